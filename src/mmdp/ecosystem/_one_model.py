"""One model of a problem in the plain form that other tools expect."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels.problem import row_entries
from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """Transitions of one model, sorted by (state, action, next state)."""

    state: Ints
    action: Ints
    next_state: Ints
    probability: Array
    reward: Array


def check_model(model: MMDP, m: int) -> int:
    """A model number that exists; negative ones count from the end."""
    if not isinstance(m, (int, np.integer)) or not -model.n_models <= m < model.n_models:
        raise InputError(f"no model {m!r}; the models are 0..{model.n_models - 1}")
    return int(m) % model.n_models


def check_stationary(model: MMDP, what: str) -> None:
    if model.horizon is not None:
        raise InputError(f"{what} cannot hold a model that varies with time")
    sums = _row_sums(model)
    if (sums[model.allowed.reshape(-1)] == 0).any():
        raise InputError(
            f"{what} cannot hold actions that are missing in some models; load without "
            "missing_actions='zero', or forbid them with `allowed`"
        )


def check_still(model: MMDP, what: str) -> None:
    if model.drifts:
        raise InputError(
            f"{what} cannot hold a model that changes; hold it still with "
            "replace(model_transitions=None)"
        )


def stand_in(model: MMDP) -> Ints:
    """(S, A) the action itself if allowed, else the lowest allowed one of the state.

    Tools without forbidden actions get a copy of an allowed one, which changes no optimum.
    """
    lowest = model.allowed.argmax(axis=1)[:, None]
    return np.where(model.allowed, np.arange(model.n_actions), lowest)


def entries_of(model: MMDP, m: int, *, fill: bool) -> Entries:
    """Transitions of model m; with ``fill`` a forbidden action repeats an allowed one."""
    x = model.problem
    rows = np.arange(len(x.indptr) - 1)
    own = rows
    if fill:
        own = (rows // model.n_actions) * model.n_actions + stand_in(model).reshape(-1)
    k, row = row_entries(x.indptr, own)
    per_next = model.pattern_rewards
    expected = x.r[0].reshape(len(rows), -1)[own[row], m]
    reward = expected if per_next is None else per_next[0, k, m]
    p = x.p[0, k, m]
    keep = p > 0
    state, action = np.divmod(row, model.n_actions)
    parts = (state, action, x.indices[k].astype(np.int64), p, reward)
    return Entries(*(part[keep] for part in parts))


def _row_sums(model: MMDP) -> Array:
    """(S A,) smallest sum of a row over the models."""
    x = model.problem
    sums = np.zeros(len(x.indptr) - 1)
    filled = np.flatnonzero(np.diff(x.indptr))
    if len(filled):
        sums[filled] = np.add.reduceat(x.p[0], x.indptr[filled], axis=0).min(axis=1)
    return sums
