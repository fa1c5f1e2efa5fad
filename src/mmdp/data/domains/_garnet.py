"""Garnet: random sparse models around a common base, of any size."""

from __future__ import annotations

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, Seed, check_arguments
from mmdp.core.errors import InputError, check_memory
from mmdp.core.model import MMDP
from mmdp.core.shapes import IntArray
from mmdp.core.transitions import SparseTransitions
from mmdp.data.domains._common import Domain
from mmdp.data.sampling import sample_dirichlet_rows, spawn_generators

CITATION = (
    "Archibald, McKinnon and Thomas, On the Generation of Markov Decision Processes, Journal "
    "of the Operational Research Society, 1995"
)


@check_arguments
def garnet(
    n_models: PositiveInt = 20,
    n_states: PositiveInt = 50,
    n_actions: PositiveInt = 4,
    branching: PositiveInt = 5,
    concentration: float = 10.0,
    seed: Seed = 0,
    *,
    n_test: PositiveInt | None = None,
    discount: float = 0.95,
    reward_noise: NonNegativeFloat = 0.0,
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
    if branching > n_states:
        raise InputError(
            f"branching={branching} is larger than n_states={n_states}; give a smaller one"
        )
    if not concentration > 0:
        raise InputError(f"concentration={concentration} is not above 0; give a positive number")
    n_test = n_models if n_test is None else n_test
    n_samples = n_models + n_test + max(n_models, n_test)  # one set is sampled, then copied
    check_memory(
        8 * n_states * n_actions * branching * n_samples,
        f"{n_models + n_test:,} models of these sizes",
        ["take fewer models or states"],
    )
    base_rng, train_rng, test_rng = spawn_generators(seed, 3)
    successors = choose_successors(n_states * n_actions, n_states, branching, base_rng)
    base = base_rng.dirichlet(np.ones(branching), size=len(successors)).reshape(-1)
    rewards = base_rng.standard_normal((n_states, n_actions))
    indptr = np.arange(len(successors) + 1, dtype=np.int64) * branching

    def make_models(count: int, rng: np.random.Generator, scale: float, noise: float) -> MMDP:
        if scale == np.inf:
            rows = np.repeat(base[:, None], count, axis=1)
        else:
            rows = sample_dirichlet_rows(scale * base, indptr, count, rng)
        return MMDP.from_sparse(
            SparseTransitions(
                (count, n_states, n_actions),
                indptr,
                successors.reshape(-1),
                rows[None],
                is_dense=branching == n_states,
            ),
            (rewards[:, :, None] + noise * rng.standard_normal((*rewards.shape, count)))[None],
            initial=np.full(n_states, 1 / n_states),
            discount=discount,
            states=range(n_states),
            actions=range(n_actions),
            name="garnet",
            citation=CITATION,
        )

    return Domain(
        make_models(n_models, train_rng, concentration, reward_noise),
        make_models(n_test, test_rng, concentration, reward_noise),
        make_models(1, base_rng, np.inf, 0.0),
    )


def choose_successors(
    n_rows: int, n_states: int, branching: int, rng: np.random.Generator
) -> IntArray:
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
