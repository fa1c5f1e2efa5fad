"""MILP: the occupancy program with a binary policy, solved by HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmdp.bounds import closed, lp, tails
from mmdp.bounds.relaxation import open_actions, reach_bounds
from mmdp.errors import InputError, Remedy
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import Reach, Table
from mmdp.methods.base import Context, Method, Outcome, Stop
from mmdp.methods.cadp import CADP
from mmdp.objective import Mean
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
    objectives: ClassVar[tuple[str, ...]] = tails.KINDS

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
        outer = self._outer(context)
        details: dict[str, Any] = {"bound": outer, "nodes": 0, "variables": size}
        try:
            self._start(context)
            tail, answer = self._solve(context)
        except (Stop, KeyboardInterrupt) as stop:
            if context.best_policy is None:
                raise
            status = Status.TIME_LIMIT if isinstance(stop, Stop) else Status.INTERRUPTED
            return Outcome(context.best_policy, status, 0, details=details)
        if answer.x is not None:
            actions = _policy(tail.program, answer.x, open_actions(x, context.horizon))
            value = context.worth(context.returns(actions))
            if value > context.best_value:
                context.trace.append(value)
                context.best_policy, context.best_value = actions, value
        unit = closed.scale_of(context.best_value, x, context.horizon)
        if math.isfinite(answer.bound):
            most = tail.constant - answer.bound
            details["bound"] = min(most + FEASIBLE * unit, outer)
        details["bound"] = max(details["bound"], context.best_value)
        details |= {"nodes": answer.nodes, "variables": len(tail.integral)}
        near = details["bound"] - context.best_value <= (self.gap + 20 * FEASIBLE) * unit
        early = {"stopped": Status.TIME_LIMIT, "interrupted": Status.INTERRUPTED}
        status = early.get(answer.status, Status.COMPLETED)
        if answer.status == "optimal" and near:
            status = Status.OPTIMAL
        return Outcome(context.best_policy, status, answer.nodes, details=details)

    def _outer(self, context: Context) -> float:
        """A bound in closed form: the better of Oracle and QMDP, or F of the models' own optima."""
        x, T = context.problem, context.horizon
        if context.objective == Mean():
            return closed.first_bound(x, T, context.kernel)[1]
        return context.worth(context.own() + closed.rounding(x, T))

    def _start(self, context: Context) -> None:
        """CADP's policy, recorded as the value to beat."""
        if context.objective != Mean():
            CADP(starts=1).run(context)
            return
        x, T = context.problem, context.horizon
        context.kernel.ascend(x, T, [None], sweeps="paper", watch=context.record)

    def _tail(self, context: Context, program: lp.Program) -> tails.Tail:
        x, T, objective = context.problem, context.horizon, context.objective
        own = context.own() if objective.regret else np.zeros(x.n_models)
        losing = x._replace(r=-x.r, terminal=-x.terminal)
        least = -x.returns(context.kernel.backward(losing, T, "own").first)
        return tails.Tail(program, objective, x.weights, own, least - own, context.own() - own)

    def _solve(self, context: Context) -> tuple[tails.Tail, lp.Answer]:
        x, best = context.problem, context.best_policy
        assert best is not None
        if self.tight:
            reach = reach_bounds(x, context.horizon, context.kernel)
        else:
            shape = (context.horizon, x.n_states, x.n_models)
            reach = Reach(np.zeros(shape), np.broadcast_to(x.weights, shape).copy())
        tail = self._tail(context, lp.build(x, context.horizon, reach))
        left = None if context.deadline is None else context.deadline - clock()
        b = context.kernel.forward(x, context.horizon, best)
        rho = context.objective.counted(context.returns(best), context.own)
        answer = lp.minimise(
            *tail.rows(), integral=tail.integral, gap=self.gap, time_limit=left,
            watch=_watch(context, tail.constant), start=tail.point(best, b, rho),
        )  # fmt: skip
        return tail, answer


def _watch(context: Context, constant: float) -> lp.Watch:
    """Progress while HiGHS runs; what it found itself is evaluated at the end."""

    def watch(bound: float, nodes: int) -> bool:
        try:
            context.tell(constant - bound, nodes)
        except Stop:
            return False
        return True

    return watch


def _policy(program: lp.Program, solution: Any, mask: Any) -> Table:
    """(T, S) actions; the lowest allowed action where the program puts no weight."""
    chance = np.where(program.pi >= 0, solution[np.maximum(program.pi, 0)], -1.0)
    chance = np.where(mask, chance, -2.0)
    actions: Table = chance.argmax(axis=2).astype(np.int32)
    return actions
