"""Leaving local maxima: CADP inside a set of open actions, and forced changes around a policy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.bounds import closed
from mmdp.errors import InputError
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import IntArray, Table
from mmdp.methods.base import Context

Mask = npt.NDArray[np.bool_]


def ascend_inside(context: Context, mask: Mask, actions: IntArray) -> tuple[IntArray, float]:
    """CADP over the open actions of ``mask`` (T, S, A) from a policy inside it."""
    inside = context.problem.restricted(mask)
    end = context.kernel.ascend(inside, context.horizon, [actions], sweeps="paper")[0]
    if end.value > context.best_value:
        context.record(end.policy, end.value)
    return end.policy, end.value


def check_polish(seconds: float) -> None:
    """Polishing is asked for in seconds, everywhere; 0 is none."""
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
    value = context.mean(context.returns(best))
    until = clock() + seconds
    if context.deadline is not None:
        until = min(until, context.deadline)
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
            if worth > value + closed.rounding(x, horizon):
                best, value, improved = moved, worth, True
                break
    return best, value


def _least_losses(context: Context, actions: IntArray, most: int) -> npt.NDArray[np.int64]:
    """(n, 3) places (t, s, a) of other actions, least loss of G first."""
    x, horizon = context.problem, context.horizon
    b = context.kernel.forward(x, horizon, actions)
    found = context.kernel.backward(
        x, horizon, "given", policy=actions, weights=b, keep=("gradient",)
    )
    assert found.gradient is not None
    known = np.isfinite(found.gradient)
    gradient = np.where(known, found.gradient, 0.0)
    chosen = np.take_along_axis(gradient, actions[:, :, None].astype(np.int64), 2)
    loss = (chosen - gradient) * (x.discount ** np.arange(horizon))[:, None, None]
    others = known & (b.sum(axis=2) > 0)[:, :, None]
    np.put_along_axis(others, actions[:, :, None].astype(np.int64), False, axis=2)
    places = np.argwhere(others)
    order = np.argsort(loss[tuple(places.T)], kind="stable")[:most]
    result: npt.NDArray[np.int64] = places[order]
    return result
