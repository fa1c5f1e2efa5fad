"""One model of a problem in the plain form that other tools expect."""

from __future__ import annotations

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.kernels.problem import find_row_entries
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.transitions import SparseTransitions
from mmdp.core.validate import check_not_sharded

# transitions of one model, sorted by the first three:
# state, action, next state, probability, reward
TransitionEntries = tuple[IndexArray, IndexArray, IndexArray, Array, Array]


def check_model_index(model: MMDP, model_index: int) -> int:
    """Check a model number, and return it from 0; negative ones count from the end."""
    if (
        not isinstance(model_index, (int, np.integer))
        or not -model.n_models <= model_index < model.n_models
    ):
        raise InputError(f"no model {model_index!r}; the models are 0..{model.n_models - 1}")
    return int(model_index) % model.n_models


def check_stationary(model: MMDP, target: str) -> None:
    """Refuse a shard of the models, and models that vary with time or lack actions."""
    check_not_sharded(model.problem, target)
    if model.horizon is not None:
        raise InputError(f"{target} cannot hold a model that varies with time")
    shape = (model.n_models, *model.allowed.shape)
    sums = SparseTransitions(shape, *model.problem.storage.to_table()).sum_rows()[0]
    if (sums[model.allowed.reshape(-1)] == 0).any():
        raise InputError(
            f"{target} cannot hold actions that are missing in some models; load without "
            "missing_actions='zero', or forbid them with `allowed`"
        )


def find_fallback_actions(model: MMDP) -> IndexArray:
    """Find the action to take for each action: itself if allowed, else the lowest allowed one.

    Tools without forbidden actions get a copy of an allowed one, which changes no optimum.
    """
    lowest_allowed = model.allowed.argmax(axis=1)[:, None]
    return np.where(model.allowed, np.arange(model.n_actions), lowest_allowed)


def list_transitions(model: MMDP, model_index: int) -> TransitionEntries:
    """List the transitions of a model; actions that are not allowed repeat allowed ones."""
    problem, next_rewards = model.problem, model.pattern_rewards
    first_rows = np.arange(model.n_states)[:, None] * model.n_actions
    rows = (first_rows + find_fallback_actions(model)).reshape(-1)
    entries, row = find_row_entries(problem.indptr, rows)
    p = problem.p[0, entries, model_index]
    is_possible = p > 0
    entries, row, p = entries[is_possible], row[is_possible], p[is_possible]
    expected = problem.r[0].reshape(len(rows), -1)[rows[row], model_index]
    reward = expected if next_rewards is None else next_rewards[0, entries, model_index]
    return *np.divmod(row, model.n_actions), problem.indices[entries].astype(np.int64), p, reward
