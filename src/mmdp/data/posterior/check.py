"""Checks of fitted models: pairs that the log lacks, and coverage of the true return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from mmdp.core.arguments import PositiveInt, Seed, Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.policies import Planner
from mmdp.core.shapes import IndexArray
from mmdp.core.solution import Solution
from mmdp.core.solve import evaluate
from mmdp.core.transitions import SparseTransitions
from mmdp.data.posterior.dirichlet import (
    DirichletRows,
    Prior,
    RewardPosterior,
    TransitionCounts,
    sample_models,
)
from mmdp.data.sampling import spawn_generators
from mmdp.data.schema import ColumnLabels, Fields, TableSource

QUANTILES = (0.05, 0.95)


class Coverage(NamedTuple):
    """Number of simulated logs whose range covers the true return, and number of logs."""

    n_covered: int
    n_logs: int


@check_arguments
def find_unseen_pairs(model: MMDP) -> tuple[tuple[str, str], ...]:
    """List the (state, action) pairs that the log of fitted models lacks; none for other models.

    >>> import mmdp
    >>> log = {"state": ["up", "down"], "action": ["run", "fix"], "next_state": ["up", "up"],
    ...        "reward": [1.0, 0.0]}
    >>> mmdp.posterior.find_unseen_pairs(mmdp.fit(log, n_models=2).train)
    (('up', 'fix'), ('down', 'run'))
    """
    if model.evidence is None:
        return ()
    is_unseen = np.ones((model.n_states, model.n_actions), bool)
    is_unseen.reshape(-1)[model.evidence.flat_indices // model.n_states] = False
    is_unseen[list(model.evidence.prior["absorbing"])] = False
    return tuple((model.state_labels[s], model.action_labels[a]) for s, a in np.argwhere(is_unseen))


def can_simulate_logs(model: MMDP) -> bool:
    """Return whether logs like that of the model can be simulated and fitted again."""
    evidence, problem = model.evidence, model.problem
    if evidence is None or model.horizon is not None or problem.shard is not None:
        return False
    return problem.model_transitions is None and evidence.prior["pseudo_counts"] is not None


@check_arguments
def coverage(
    model: MMDP,
    policy: Unchecked[Planner | Solution],
    *,
    n_logs: PositiveInt = 20,
    n_models: PositiveInt = 100,
    seed: Seed = 0,
) -> Coverage:
    """Count the simulated logs whose 90% range of returns covers the true return.

    A posterior predictive check. Every log comes from a model of the posterior, and has as many
    transitions from each state and action as the log of ``model``. ``n_models`` are fitted to it
    with the same prior, and the range holds the returns of the policy in nine tenths of them.
    Rewards are taken as known. Pairs that the log lacks are in no simulated log either.

    >>> import mmdp
    >>> log = {"state": [0] * 5, "action": [0, 0, 0, 1, 1], "next_state": [1, 1, 2, 1, 2],
    ...        "reward": [1.0, 1.0, 0.0, 1.0, 0.0], "terminated": [True] * 5}
    >>> for support in ("all", "seen"):
    ...     model = mmdp.fit(log, n_models=50, support=support, initial={0: 1.0}).train
    ...     print(mmdp.posterior.coverage(model, mmdp.solve(model, 1)))
    Coverage(n_covered=17, n_logs=20)
    Coverage(n_covered=13, n_logs=20)
    """
    if not can_simulate_logs(model):
        raise InputError(
            "coverage() needs models made by fit(), which do not switch, in one process"
        )
    evidence, rng = model.evidence, spawn_generators(seed, 1)[0]
    assert evidence is not None
    prior = Prior(**evidence.prior)
    data = TransitionCounts(
        ColumnLabels("state", model.n_states),
        ColumnLabels("action", model.n_actions),
        evidence.flat_indices,
        evidence.counts,
        TableSource("log"),
        np.empty(0, np.int64),
    )
    true_models = _sample_like(model, prior.make_rows(data), n_logs, rng)
    n_covered = 0
    for m, value in enumerate(evaluate(true_models, policy).returns.tolist()):
        rows = prior.make_rows(_simulate_counts(data, true_models, m, rng))
        returns = evaluate(_sample_like(model, rows, n_models, rng), policy).returns
        low, high = np.quantile(returns, QUANTILES)
        rounding = 1e-9 * np.abs(returns).max()
        n_covered += bool(low - rounding <= value <= high + rounding)
    return Coverage(n_covered, n_logs)


def _sample_like(model: MMDP, rows: DirichletRows, n_models: int, rng: np.random.Generator) -> MMDP:
    """Sample models from these rows, with the mean rewards and other fields of a model."""
    fields: Fields = {
        "states": model.label_index("state").labels,
        "actions": model.label_index("action").labels,
        "initial": np.atleast_2d(model.initial).mean(axis=0),
        "discount": model.discount,
        "terminal": model.terminal.mean(axis=0),
    }
    next_rewards = model.pattern_rewards
    if next_rewards is None:
        values = np.asarray(model.problem.r)[0].mean(axis=-1).reshape(-1)
    else:
        mean_rewards = pd.Series(next_rewards[0].mean(axis=-1), _compute_keys(model))
        values = mean_rewards.reindex(rows.keys, fill_value=0.0).to_numpy(np.float64)
    rewards = RewardPosterior(rows, values, next_rewards is not None)
    return sample_models(rewards, n_models, rng, fields)


def _simulate_counts(
    data: TransitionCounts, true_models: MMDP, m: int, rng: np.random.Generator
) -> TransitionCounts:
    """Simulate as many transitions from each pair as the log has, in model m."""
    table, pair_counts = true_models.problem.storage.to_table(), data.pair_counts
    keys, counts = _compute_keys(true_models), np.zeros(len(table.indices), np.int64)
    for row in np.flatnonzero(pair_counts):
        entries = slice(table.indptr[row], table.indptr[row + 1])
        probs = table.p[0, entries, m]
        counts[entries] = rng.multinomial(pair_counts[row], probs / probs.sum())
    return data._replace(keys=keys[counts > 0], counts=counts[counts > 0])


def _compute_keys(model: MMDP) -> IndexArray:
    """Compute the key (s A + a) S + s' of every stored transition."""
    return SparseTransitions.from_storage(model.problem.storage, model.n_states).flat_indices
