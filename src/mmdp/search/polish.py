"""Leaving local maxima: CADP inside a set of open actions, and forced changes around a policy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.clock import clock
from mmdp.errors import InputError
from mmdp.kernels.problem import IntArray, Table
from mmdp.search.context import Context

Mask = npt.NDArray[np.bool_]


def ascend_inside(context: Context, mask: Mask, actions: IntArray) -> tuple[IntArray, float]:
    """CADP over the open actions of ``mask`` (T, S, A) from a policy inside it."""
    end = context.plan.but(allowed=mask).ascend([actions], sweeps="paper")[0]
    if end.value > context.best_value:
        context.record(end.policy, end.value)
    return end.policy, end.value


def check_polish(seconds: float) -> None:
    """Refuse what is no number of seconds; 0 means none."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and seconds >= 0):
        raise InputError(f"polish must be seconds, at least 0, not {seconds!r}")


def polish(
    context: Context, actions: Table, *, seconds: float = 10.0, candidates: int = 200
) -> tuple[IntArray, float]:
    """Try to leave a local maximum: force one other action, ascend around it, release it.

    Candidates are the (t, s, a) with the least loss G(chosen) - G(a), ``candidates`` of them
    per round; a better local maximum starts a new round. Never worse than ``actions``.
    """
    x, horizon = context.problem, context.horizon
    best: IntArray = np.asarray(actions, dtype=np.int32)
    returns = context.returns(best)
    value, rounding = context.mean(returns), context.rounding(returns)
    until = min(clock() + seconds, context.time.deadline)
    everything = np.array(np.broadcast_to(x.allowed, (horizon, x.n_states, x.n_actions)))
    improved = True
    while improved and clock() < until:
        improved = False
        for t, s, a in _least_losses(context, best, candidates):
            if clock() > until:
                break
            mask = everything.copy()
            mask[t, s] = False
            mask[t, s, a] = True
            moved = best.copy()
            moved[t, s] = a
            moved, _ = ascend_inside(context, mask, moved)
            moved, worth = ascend_inside(context, everything, moved)
            if worth > value + rounding:
                best, value, improved = moved, worth, True
                break
    return best, value


def _least_losses(context: Context, actions: IntArray, most: int) -> npt.NDArray[np.int64]:
    """(n, 3) places (t, s, a) of other actions, least loss of G first."""
    x, plan, taken = context.problem, context.plan, actions[:, :, None].astype(np.int64)
    b = plan.forward(actions)
    found = plan.backward("given", policy=actions, weights=b, keep=("gradient",))
    known = np.isfinite(found.gradient)
    gradient = np.where(known, found.gradient, 0.0)
    loss = np.take_along_axis(gradient, taken, 2) - gradient
    loss *= (x.discount ** np.arange(context.horizon))[:, None, None]
    others = known & (b.sum(axis=2) > 0)[:, :, None]
    np.put_along_axis(others, taken, False, axis=2)
    places = np.argwhere(others)
    order = np.argsort(loss[tuple(places.T)], kind="stable")[:most]
    result: npt.NDArray[np.int64] = places[order]
    return result
