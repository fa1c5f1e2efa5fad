"""Polishing: leave a local optimum by forcing single actions and running CADP around them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.evaluate import Mask
from mmdp.core.kernels.problem import IntArray, PolicyTable
from mmdp.core.search.context import SolveContext
from mmdp.core.timing import solver_clock


def ascend_within_mask(
    context: SolveContext, mask: Mask, actions: IntArray
) -> tuple[IntArray, float]:
    """Run CADP over the actions of a mask (T, S, A); return the actions and their value."""
    optimum = context.prepared.replace(allowed=mask).ascend([actions], sweep_type="paper")[0]
    if optimum.value > context.best_value:
        context.record(optimum.policy, optimum.value)
    return optimum.policy, optimum.value


def check_polish_time(polish_time: float) -> None:
    """Raise InputError unless polish_time is a number of seconds >= 0."""
    is_number = isinstance(polish_time, (int, float)) and not isinstance(polish_time, bool)
    if not (is_number and polish_time >= 0):
        raise InputError(
            f"polish_time={polish_time!r} is not a number >= 0 (seconds); pass 0 to skip polishing"
        )


def polish(
    context: SolveContext,
    actions: PolicyTable,
    *,
    polish_time: float = 10.0,
    n_candidates: int = 200,
) -> tuple[IntArray, float]:
    """Improve a local optimum: force one other action, run CADP around it, then release it.

    The ``n_candidates`` (t, s, a) with the smallest loss G(chosen) - G(a) are tried in each round;
    a better local optimum starts a new round. The result is never worse than ``actions``.
    """
    x, horizon = context.problem, context.horizon
    best: IntArray = np.asarray(actions, dtype=np.int32)
    returns = context.compute_returns(best)
    value, rounding_error = context.compute_mean(returns), context.estimate_rounding(returns)
    deadline = min(solver_clock() + polish_time, context.stopwatch.deadline)
    all_allowed = np.array(np.broadcast_to(x.allowed, (horizon, x.n_states, x.n_actions)))
    improved = True
    while improved and solver_clock() < deadline:
        improved = False
        for t, s, a in _rank_alternatives(context, best, n_candidates):
            if solver_clock() > deadline:
                break
            mask = all_allowed.copy()
            mask[t, s] = False
            mask[t, s, a] = True
            trial = best.copy()
            trial[t, s] = a
            trial, _ = ascend_within_mask(context, mask, trial)
            trial, trial_value = ascend_within_mask(context, all_allowed, trial)
            if trial_value > value + rounding_error:
                best, value, improved = trial, trial_value, True
                break
    return best, value


def _rank_alternatives(
    context: SolveContext, actions: IntArray, max_count: int
) -> npt.NDArray[np.int64]:
    """Return the (t, s, a) of other actions with the smallest loss of G, (n, 3)."""
    gradient = context.evaluator.compute_gradient(actions)
    G, current_actions = gradient.discounted, actions[:, :, None].astype(np.int64)
    loss = np.take_along_axis(G, current_actions, 2) - G
    is_alternative = context.evaluator.allowed & (gradient.occupancy > 0)[:, :, None]
    np.put_along_axis(is_alternative, current_actions, False, axis=2)
    cells = np.argwhere(is_alternative)
    order = np.argsort(loss[tuple(cells.T)], kind="stable")[:max_count]
    result: npt.NDArray[np.int64] = cells[order]
    return result
