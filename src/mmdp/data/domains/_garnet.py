"""Garnet: random sparse models around a common base, of any size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.memory import check_memory
from mmdp.core.model import MMDP
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import check_int
from mmdp.data.domains._common import Array, Domain, spawn_generators

DESCRIPTION = "random sparse models around a common base, of any size"
CITATION = (
    "Archibald, McKinnon and Thomas, On the Generation of Markov Decision Processes, Journal "
    "of the Operational Research Society, 1995"
)


@check_arguments
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
    """Generate random models that share a sparsity pattern.

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

    ``Domain.true_model`` is the base model. Transitions take memory of order S A b M; no dense
    array is made.

    >>> import mmdp
    >>> train, test = mmdp.domains.garnet(n_models=3, n_states=6, n_actions=2, branching=2)
    >>> train.storage, len(train.problem.indices)
    ('sparse', 24)
    """
    sizes = (check_int(n_states, "n_states"), check_int(n_actions, "n_actions"))
    if check_int(branching, "branching") > n_states:
        raise InputError(
            f"branching={branching} is larger than n_states={n_states}; give a smaller one"
        )
    if not concentration > 0:
        raise InputError(f"concentration={concentration} is not above 0; give a positive number")
    if not reward_noise >= 0:
        raise InputError(f"reward_noise={reward_noise} is below 0; give a number of at least 0")
    n_train = check_int(n_models, "n_models")
    n_test = n_train if n_test is None else check_int(n_test, "n_test")
    n_samples = n_train + n_test + max(n_train, n_test)  # one set is sampled, then copied
    check_memory(
        8 * math.prod(sizes) * branching * n_samples,
        f"{n_train + n_test:,} models of these sizes",
        ["take fewer models or states"],
    )
    base_rng, train_rng, test_rng = spawn_generators(seed, 3)
    successors = choose_successors(sizes[0] * sizes[1], n_states, branching, base_rng)
    base = base_rng.dirichlet(np.ones(branching), size=len(successors))
    rewards = base_rng.standard_normal(sizes)

    def make_models(count: int, rng: np.random.Generator, scale: float, noise: float) -> MMDP:
        rows = _perturb_rows(base, count, scale, rng)
        r = rewards[:, :, None] + noise * rng.standard_normal((*sizes, count))
        return _make_model(successors, rows, r, discount)

    return Domain(
        "garnet",
        make_models(n_train, train_rng, concentration, reward_noise),
        make_models(n_test, test_rng, concentration, reward_noise),
        make_models(1, base_rng, np.inf, 0.0),
        DESCRIPTION,
        CITATION,
    )


def choose_successors(
    n_rows: int, n_states: int, branching: int, rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """Sample distinct next states for each row, sorted. Returns: (rows, b).

    It is Floyd's algorithm on all rows at once.

    >>> choose_successors(2, 3, 3, np.random.default_rng(0)).tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    successors = np.full((n_rows, branching), -1, dtype=np.int32)
    for k, highest in enumerate(range(n_states - branching, n_states)):
        pick = rng.integers(0, highest + 1, size=n_rows, dtype=np.int32)
        is_taken = (successors[:, :k] == pick[:, None]).any(axis=1)
        successors[:, k] = np.where(is_taken, highest, pick)
    return np.sort(successors, axis=1)


def _perturb_rows(
    base: Array, n_models: int, concentration: float, rng: np.random.Generator
) -> Array:
    """Sample the rows of n models around the base (rows, b). Returns: (rows, b, n)."""
    if np.isinf(concentration):
        return np.repeat(base[:, :, None], n_models, axis=2)
    shape = concentration * base[:, :, None]
    rows = rng.standard_gamma(shape, size=(*base.shape, n_models))
    row_sums = rows.sum(axis=1, keepdims=True)
    is_empty = row_sums[:, 0, :] == 0  # every gamma underflowed: fall back to the base
    if is_empty.any():
        row, model = np.nonzero(is_empty)
        rows[row, :, model] = base[row]
        row_sums = rows.sum(axis=1, keepdims=True)
    rows /= row_sums
    return rows


def _make_model(
    successors: npt.NDArray[np.int32], rows: Array, rewards: Array, discount: float
) -> MMDP:
    """Make the models from rows (S*A, b, M) and rewards (S, A, M), without coordinates."""
    n_states, n_actions, n_models = rewards.shape
    branching = successors.shape[1]
    is_dense = branching == n_states
    transitions = SparseTransitions(
        (n_models, n_states, n_actions),
        np.arange(len(successors) + 1, dtype=np.int64) * branching,
        successors.reshape(-1),
        rows.reshape(1, -1, n_models),
        is_dense,
    )
    return MMDP.from_sparse(
        transitions,
        rewards[None],
        initial=np.full(n_states, 1 / n_states),
        discount=discount,
        states=range(n_states),
        actions=range(n_actions),
        name="garnet",
        citation=CITATION,
    )
