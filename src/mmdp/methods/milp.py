"""MILP: the occupancy program with a binary policy, solved by HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmdp.arguments import NonNegativeFloat, checked
from mmdp.bounds import closed, lp, tails
from mmdp.bounds.relaxation import open_actions, reach_bounds
from mmdp.errors import InputError, Remedy
from mmdp.kernels.problem import Reach, Table
from mmdp.methods.base import Context, Method, Outcome, Question, Stop
from mmdp.methods.cadp import CADP
from mmdp.search.context import early
from mmdp.solution import Status

LIMIT = 400_000  # most variables
SURE = 1e-4  # share of the stakes: a solver that is less accurate proves no optimum
ENDS = {"stopped": Status.TIME_LIMIT, "interrupted": Status.INTERRUPTED}  # how HiGHS ended
MARGIN = 1e-3  # share of the stakes by which policies may be worse than CADP's


@checked
@dataclass(frozen=True)
class MILP(Method):
    """Mixed-integer program in occupancy form; CADP gives the value to beat.

    The policy is never worse than CADP's, its value that of an exact evaluation, and the answer
    counts as optimal only if the bound meets that value. For the mean no Markov policy is better
    then; for other objectives no deterministic one is, and one that draws its actions may be.

    Parameters
    ----------
    gap
        Relative gap at which HiGHS stops and the answer counts as optimal, as for
        :class:`mmdp.Exact`.
    tight
        Whether L and B are the reach bounds; otherwise they are 0 and the weight of the model
        (the plain program, for comparison).

    >>> import mmdp
    >>> from mmdp.methods.milp import MILP
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, MILP()).value
    7.0
    """

    gap: NonNegativeFloat = 1e-6
    tight: bool = True

    name: ClassVar[str] = "milp"
    title: ClassVar[str] = "a mixed-integer program, solved by HiGHS"
    proves: ClassVar[Status | None] = Status.OPTIMAL

    def __post_init__(self) -> None:
        if not self.gap >= 0:
            raise InputError(f"gap must be at least 0, not {self.gap}")

    def lacks(self, question: Question) -> str | None:
        taken_apart = question.not_still("its bounds plan for each model by itself")
        if question.objective.kind not in tails.KINDS:
            return f"its program has the mean and lower tails, not {question.objective}"
        ends = question.not_mask() or question.not_ending()
        return ends or taken_apart or question.not_whole()

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
        details: dict[str, Any] = {"bound": outer, "bounds": "history"}
        details |= {"nodes": 0, "variables": size}
        with context.ending() as end:
            CADP().run(context)
            tail, answer = self._solve(context, outer)
        if end.stop is not None:
            return Outcome(context.best_policy, early(end), 0, details=details)
        if answer.x is not None:
            actions = _policy(tail.program, answer.x, open_actions(x, context.horizon))
            value = context.worth(context.returns(actions))
            if value > context.best_value:
                context.trace.append(value)
                context.keep(actions, value)
        error = x.roundings(context.horizon)
        most = tail.constant - answer.bound + 2 * tail.moved(error)
        if math.isfinite(most) and most < outer:
            # the mean is linear in each decision: drawing an action gains nothing
            over = "markov" if tail.share == 1 else "deterministic markov"
            details |= {"bound": most, "bounds": over}
        returns = context.returns(context.best_policy)
        details["bound"] = max(details["bound"], context.worth(returns + error))
        details |= {"nodes": answer.nodes, "variables": len(tail.integral)}
        status = ENDS.get(answer.status, Status.COMPLETED)
        if details["bound"] - context.best_value <= self._near(context, outer, answer.slack):
            status = Status.OPTIMAL
        return Outcome(context.best_policy, status, answer.nodes, details=details)

    def _near(self, context: Context, outer: float, slack: float) -> float:
        """How close the bound must come: as elsewhere, or as close as HiGHS is accurate."""
        value, returns = context.best_value, context.returns(context.best_policy)
        closing, stakes = closed.Closing(context.problem, context.horizon), outer - value
        near = closing(self.gap, value, outer, lambda error: context.worth(returns + error))
        return max(near, min(self.gap * stakes + slack, SURE * stakes))

    def _outer(self, context: Context) -> float:
        """A bound in closed form: the better of Oracle and QMDP, or F of the models' own optima."""
        x, T = context.problem, context.horizon
        if context.objective.linear:
            return closed.first_bound(context.plan)[1]
        return context.worth(context.own() + x.roundings(T))

    def _tail(self, context: Context, reach: Reach, outer: float) -> tails.Tail:
        """The program over the policies that are not worse than CADP's, and a few more."""
        x, F = context.problem, context.objective
        losing = context.plan.but(rewards=-x.r, terminal=-x.terminal)
        least = -losing.returns(losing.backward("own").first)
        most = context.plan.returns(context.plan.backward("own").first)  # over the open actions
        least, most = (F.counted(rho, context.own) for rho in (least, most))
        value = context.best_value - MARGIN * (outer - context.best_value)
        cap = tails.caps(F, x.weights, most, least, value)
        return tails.Tail(lp.build(context.plan, reach, cap), F, x.weights, most, cap)

    def _solve(self, context: Context, outer: float) -> tuple[tails.Tail, lp.Answer]:
        x, best = context.problem, context.best_policy
        if self.tight:
            reach = reach_bounds(context.plan, deadline=context.time.deadline)
        else:
            shape = (context.horizon, x.n_states, x.n_models)
            reach = Reach(np.zeros(shape), np.broadcast_to(x.weights, shape).copy())
        context.check_time()
        tail = self._tail(context, reach, outer)
        context.check_time()
        b = context.plan.forward(best)
        rho = context.objective.counted(context.returns(best), context.own)
        answer = lp.minimise(
            *tail.rows(), integral=tail.integral, gap=self.gap, time_limit=context.time.left,
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
