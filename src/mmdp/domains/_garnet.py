"""Garnet: random sparse models around a common base, of any size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Seed, checked
from mmdp.domains._common import Array, Domain, generators
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.support import Support, check_memory
from mmdp.validate import check_whole

DESCRIPTION = "random sparse models around a common base, of any size"
CITATION = (
    "Archibald, McKinnon and Thomas, On the Generation of Markov Decision Processes, Journal "
    "of the Operational Research Society, 1995"
)


@checked
def garnet(
    n_models: int = 20,
    n_states: int = 50,
    n_actions: int = 4,
    branching: int = 5,
    concentration: float = 10.0,
    seed: Seed = 0,
    *,
    n_test: int | None = None,
    discount: float = 0.95,
    reward_noise: float = 0.0,
) -> Domain:
    """Random models that share a sparse support.

    Parameters
    ----------
    n_models, n_test
        Numbers of train and test models; by default the same.
    n_states, n_actions
        Sizes S and A.
    branching
        Successors b of each (state, action), drawn without replacement.
    concentration
        A row of the base is Dirichlet(1, ..., 1) over its successors, and the same row of
        each model Dirichlet(concentration * base row): the larger, the more alike the models.
        Infinity makes them equal.
    discount
        gamma; the initial distribution is uniform.
    reward_noise
        Rewards are standard normal, shared by the models, plus this times a standard
        normal of each model's own.

    ``Domain.true`` is the base model. Transitions take memory of order S A b M; no dense array
    is made.

    >>> import mmdp
    >>> train, test = mmdp.domains.garnet(n_models=3, n_states=6, n_actions=2, branching=2)
    >>> train.storage, len(train.problem.indices)
    ('sparse', 24)
    """
    sizes = (check_whole(n_states, "n_states"), check_whole(n_actions, "n_actions"))
    if check_whole(branching, "branching") > n_states:
        raise InputError(f"branching is {branching}, more than the {n_states} states")
    if not concentration > 0:
        raise InputError(f"concentration must be above 0, not {concentration}")
    if not reward_noise >= 0:
        raise InputError(f"reward_noise must be at least 0, not {reward_noise}")
    check_memory(
        8 * math.prod(sizes) * branching * n_models, f"{n_models:,} models of these sizes",
        ["take fewer models or states"],
    )  # fmt: skip
    base_rng, train_rng, test_rng = generators(seed, 3)
    successors = choose_successors(sizes[0] * sizes[1], n_states, branching, base_rng)
    base = base_rng.dirichlet(np.ones(branching), size=len(successors))
    rewards = base_rng.standard_normal(sizes)

    def models(n: int, rng: np.random.Generator, scale: float, noise: float) -> MMDP:
        rows = _perturbed(base, n, scale, rng)
        r = rewards[:, :, None] + noise * rng.standard_normal((*sizes, n))
        return _on_support(successors, rows, r, discount)

    n_train = check_whole(n_models, "n_models")
    n_test = n_train if n_test is None else check_whole(n_test, "n_test")
    return Domain(
        "garnet",
        models(n_train, train_rng, concentration, reward_noise),
        models(n_test, test_rng, concentration, reward_noise),
        models(1, base_rng, np.inf, 0.0),
        DESCRIPTION,
        CITATION,
    )


def choose_successors(
    rows: int, n_states: int, branching: int, rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """(rows, b) distinct next states per row, sorted; Floyd's algorithm on all rows at once.

    >>> choose_successors(2, 3, 3, np.random.default_rng(0)).tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    chosen = np.full((rows, branching), -1, dtype=np.int32)
    for k, top in enumerate(range(n_states - branching, n_states)):
        pick = rng.integers(0, top + 1, size=rows, dtype=np.int32)
        taken = (chosen[:, :k] == pick[:, None]).any(axis=1)
        chosen[:, k] = np.where(taken, top, pick)
    return np.sort(chosen, axis=1)


def _perturbed(base: Array, n: int, concentration: float, rng: np.random.Generator) -> Array:
    """(rows, b, n) rows of n models around the (rows, b) base."""
    if np.isinf(concentration):
        return np.repeat(base[:, :, None], n, axis=2)
    shape = concentration * base[:, :, None]
    rows = rng.standard_gamma(shape, size=(*base.shape, n))
    total = rows.sum(axis=1, keepdims=True)
    empty = total[:, 0, :] == 0  # every gamma underflowed: fall back to the base
    if empty.any():
        row, model = np.nonzero(empty)
        rows[row, :, model] = base[row]
        total = rows.sum(axis=1, keepdims=True)
    rows /= total
    return rows


def _on_support(
    successors: npt.NDArray[np.int32], rows: Array, rewards: Array, discount: float
) -> MMDP:
    """Wrap (S*A, b, M) rows and (S, A, M) rewards, without listing coordinates."""
    n_states, n_actions, n_models = rewards.shape
    branching = successors.shape[1]
    dense = branching == n_states
    support = Support(
        (n_models, n_states, n_actions),
        np.arange(len(successors) + 1, dtype=np.int64) * branching,
        successors.reshape(-1), rows.reshape(1, -1, n_models), dense,
    )  # fmt: skip
    return MMDP.from_support(
        support, rewards[None], initial=np.full(n_states, 1 / n_states), discount=discount,
        states=range(n_states), actions=range(n_actions), name="garnet", citation=CITATION,
    )  # fmt: skip
