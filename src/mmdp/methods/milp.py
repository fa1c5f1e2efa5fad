"""MILP: the occupancy program with a binary policy, solved by HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmdp.bounds import closed, lp
from mmdp.bounds.relaxation import open_actions, reach_bounds
from mmdp.errors import InputError, Remedy
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import Reach, Table
from mmdp.methods.base import Context, Method, Outcome, Stop
from mmdp.solution import Status

LIMIT = 400_000  # variables
FEASIBLE = 1e-6  # HiGHS's own tolerance: the relative error allowed for in its bound


@dataclass(frozen=True)
class MILP(Method):
    """Mixed-integer program in occupancy form; CADP gives the value to beat.

    Parameters
    ----------
    gap
        Relative gap at which HiGHS stops.
    tight
        Whether L and B are the reach bounds; otherwise they are 0 and the weight of the model
        (the plain program, for comparison).

    >>> import mmdp
    >>> from mmdp.methods.milp import MILP
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, MILP()).value
    7.0
    """

    gap: float = 1e-6
    tight: bool = True

    name: ClassVar[str] = "milp"
    title: ClassVar[str] = "a mixed-integer program, solved by HiGHS"
    proves: ClassVar[Status | None] = Status.OPTIMAL

    def __post_init__(self) -> None:
        if not self.gap >= 0:
            raise InputError(f"gap must be at least 0, not {self.gap}")

    def run(self, context: Context) -> Outcome:
        x = context.problem
        size = lp.variables(x, context.horizon)
        if size > LIMIT:
            raise InputError(
                f"the program would have {size:,} variables (at most {LIMIT:,}; exact has no "
                "limit)",
                [Remedy("method", "exact", do="use")],
            )
        _, outer = closed.first_bound(x, context.horizon, context.kernel)
        details: dict[str, Any] = {"bound": outer, "nodes": 0, "variables": size}
        try:
            context.kernel.ascend(x, context.horizon, [None], sweeps="paper", watch=context.record)
            program, answer = self._solve(context)
        except (Stop, KeyboardInterrupt) as stop:
            if context.best_policy is None:
                raise
            status = Status.TIME_LIMIT if isinstance(stop, Stop) else Status.INTERRUPTED
            return Outcome(context.best_policy, status, 0, details=details)
        if answer.x is not None:
            actions = _policy(program, answer.x, open_actions(x, context.horizon))
            value = context.mean(context.returns(actions))
            if value > context.best_value:
                context.trace.append(value)
                context.best_policy, context.best_value = actions, value
        unit = closed.scale_of(context.best_value, x, context.horizon)
        if math.isfinite(answer.bound):
            details["bound"] = min(-answer.bound + FEASIBLE * unit, outer)
        details["bound"] = max(details["bound"], context.best_value)
        details |= {"nodes": answer.nodes, "variables": program.size}
        near = details["bound"] - context.best_value <= (self.gap + 20 * FEASIBLE) * unit
        early = {"stopped": Status.TIME_LIMIT, "interrupted": Status.INTERRUPTED}
        status = early.get(answer.status, Status.COMPLETED)
        if answer.status == "optimal" and near:
            status = Status.OPTIMAL
        return Outcome(context.best_policy, status, answer.nodes, details=details)

    def _solve(self, context: Context) -> tuple[lp.Program, lp.Answer]:
        x, best = context.problem, context.best_policy
        assert best is not None
        if self.tight:
            reach = reach_bounds(x, context.horizon, context.kernel)
        else:
            shape = (context.horizon, x.n_states, x.n_models)
            reach = Reach(np.zeros(shape), np.broadcast_to(x.weights, shape).copy())
        program = lp.build(x, context.horizon, reach)
        left = None if context.deadline is None else context.deadline - clock()
        answer = lp.minimise(
            *program.rows(), integral=np.arange(program.size) >= program.n_u, gap=self.gap,
            time_limit=left, watch=_watch(context),
            start=program.point(best, context.kernel.forward(x, context.horizon, best)),
        )  # fmt: skip
        return program, answer


def _watch(context: Context) -> lp.Watch:
    """Progress while HiGHS runs; what it found itself is evaluated at the end."""

    def watch(bound: float, nodes: int) -> bool:
        try:
            context.tell(-bound, nodes)
        except Stop:
            return False
        return True

    return watch


def _policy(program: lp.Program, solution: Any, mask: Any) -> Table:
    """(T, S) actions; the lowest allowed action in states that are never reached."""
    chance = np.where(program.pi >= 0, solution[np.maximum(program.pi, 0)], -1.0)
    chance = np.where(mask, chance, -2.0)
    actions: Table = chance.argmax(axis=2).astype(np.int32)
    return actions
