"""One model of a problem in the plain form that other tools expect."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.kernels.problem import find_row_entries
from mmdp.core.model import MMDP

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class TransitionEntries(NamedTuple):
    """Transitions of one model, sorted by (state, action, next state)."""

    state: Ints
    action: Ints
    next_state: Ints
    probability: Array
    reward: Array


def check_model_index(model: MMDP, model_index: int) -> int:
    """Check a model number, and return it from 0; negative ones count from the end."""
    if (
        not isinstance(model_index, (int, np.integer))
        or not -model.n_models <= model_index < model.n_models
    ):
        raise InputError(f"no model {model_index!r}; the models are 0..{model.n_models - 1}")
    return int(model_index) % model.n_models


def check_stationary(model: MMDP, target: str) -> None:
    """Refuse models that vary with time, or that lack actions."""
    if model.horizon is not None:
        raise InputError(f"{target} cannot hold a model that varies with time")
    sums = _min_row_sums(model)
    if (sums[model.allowed.reshape(-1)] == 0).any():
        raise InputError(
            f"{target} cannot hold actions that are missing in some models; load without "
            "missing_actions='zero', or forbid them with `allowed`"
        )


def check_not_switching(model: MMDP, target: str) -> None:
    """Refuse models that switch."""
    if model.is_switching:
        raise InputError(
            f"{target} cannot hold a model that switches; hold it still with "
            "replace(model_transitions=None)"
        )


def find_fallback_actions(model: MMDP) -> Ints:
    """Find the action to take for each action: itself if allowed, else the lowest allowed one.

    Tools without forbidden actions get a copy of an allowed one, which changes no optimum.
    """
    lowest_allowed = model.allowed.argmax(axis=1)[:, None]
    return np.where(model.allowed, np.arange(model.n_actions), lowest_allowed)


def list_transitions(model: MMDP, model_index: int, *, fill_forbidden: bool) -> TransitionEntries:
    """List the transitions of a model; ``fill_forbidden`` repeats allowed actions for others."""
    problem = model.problem
    rows = np.arange(len(problem.indptr) - 1)
    source_rows = rows
    if fill_forbidden:
        source_rows = (rows // model.n_actions) * model.n_actions + find_fallback_actions(
            model
        ).reshape(-1)
    entry_ids, row = find_row_entries(problem.indptr, source_rows)
    next_rewards = model.pattern_rewards
    expected = problem.r[0].reshape(len(rows), -1)[source_rows[row], model_index]
    reward = expected if next_rewards is None else next_rewards[0, entry_ids, model_index]
    p = problem.p[0, entry_ids, model_index]
    is_possible = p > 0
    state, action = np.divmod(row, model.n_actions)
    columns = (state, action, problem.indices[entry_ids].astype(np.int64), p, reward)
    return TransitionEntries(*(column[is_possible] for column in columns))


def _min_row_sums(model: MMDP) -> Array:
    """Compute the smallest sum of each row of transitions over the models."""
    problem = model.problem
    sums = np.zeros(len(problem.indptr) - 1)
    nonempty_rows = np.flatnonzero(np.diff(problem.indptr))
    if len(nonempty_rows):
        sums[nonempty_rows] = np.add.reduceat(
            problem.p[0], problem.indptr[nonempty_rows], axis=0
        ).min(axis=1)
    return sums
