"""MILP: the occupancy program with a binary policy, solved by HiGHS (Steimle et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, check_arguments
from mmdp.core.bounds import closed_form, lp, tails
from mmdp.core.bounds.relaxation import Mask, compute_reach_bounds, expand_allowed
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Array, PolicyTable, VisitBounds
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext, TimeUp
from mmdp.core.methods.cadp import CADP
from mmdp.core.search.context import Details, get_stop_status
from mmdp.core.solution import Status

MAX_VARIABLES = 400_000  # most variables
MAX_SLACK_SHARE = 1e-4  # share of the stakes: a solver that is less accurate proves no optimum
STOP_STATUSES = {"stopped": Status.TIME_LIMIT, "interrupted": Status.INTERRUPTED}  # how HiGHS ended
VALUE_MARGIN = 1e-3  # share of the stakes by which policies may be worse than CADP's


@check_arguments
@dataclass(frozen=True)
class MILP(Method):
    """Mixed-integer program for the best Markov policy (Steimle et al. 2021), solved by HiGHS.

    The policy is never worse than CADP's, its value that of an exact evaluation, and the answer
    counts as optimal only if the bound meets that value. For the mean no Markov policy is better
    then; for other objectives no deterministic one is, and one that draws its actions may be.

    Parameters
    ----------
    rel_gap
        Relative gap at which HiGHS stops and the answer counts as optimal, as for
        :class:`mmdp.methods.Exact`.
    use_reach_bounds
        Whether L and B are the reach bounds; otherwise they are 0 and the weight of the model
        (the plain program, for comparison).

    >>> import mmdp
    >>> from mmdp.core.methods.milp import MILP
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, MILP()).value
    7.0
    """

    rel_gap: NonNegativeFloat = 1e-6
    use_reach_bounds: bool = True

    name: ClassVar[str] = "milp"
    title: ClassVar[str] = "a mixed-integer program, solved by HiGHS"
    best_status: ClassVar[Status | None] = Status.OPTIMAL

    def __post_init__(self) -> None:
        if not self.rel_gap >= 0:
            raise InputError(f"rel_gap must be at least 0, not {self.rel_gap}")

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        switching_reason = spec.reason_if_switching("its bounds plan for each model by itself")
        if spec.objective.key not in tails.LP_OBJECTIVES:
            return f"its program has the mean and lower tails, not {spec.objective}"
        reason = spec.reason_if_coupled() or spec.reason_if_infinite()
        return reason or switching_reason or spec.reason_if_sharded()

    def run(self, context: SolveContext) -> MethodResult:
        """Solve the program from CADP's policy; return the best policy with its proven bound."""
        problem = context.problem
        n_variables = lp.count_variables(problem, context.horizon)
        if n_variables > MAX_VARIABLES:
            raise InputError(
                f"the program would have {n_variables:,} variables (at most {MAX_VARIABLES:,}; "
                "exact has no limit)",
                [Remedy("method", "exact", verb="use")],
            )
        closed_form_bound = self._compute_closed_form_bound(context)
        details: Details = {"bound": closed_form_bound, "scope": "history"}
        details |= {"n_nodes": 0, "n_variables": n_variables}
        with context.allow_stop() as stop_state:
            CADP().run(context)
            tail_lp, lp_result = self._solve_lp(context, closed_form_bound)
        if stop_state.exception is not None:
            return MethodResult(
                context.best_policy, get_stop_status(stop_state), 0, details=details
            )
        if lp_result.x is not None:
            actions = _extract_policy(
                tail_lp.occupancy_lp, lp_result.x, expand_allowed(problem, context.horizon)
            )
            value = context.objective_value(context.compute_returns(actions))
            if value > context.best_value:
                context.trace.append(value)
                context.keep_best(actions, value)
        rounding_error = problem.rounding_errors(context.horizon)
        lp_bound = (
            tail_lp.objective_offset
            - lp_result.bound
            + 2 * tail_lp.bound_value_error(rounding_error)
        )
        if math.isfinite(lp_bound) and lp_bound < closed_form_bound:
            # the mean is linear in each decision: drawing an action gains nothing
            scope = "markov" if tail_lp.mean_share == 1 else "deterministic markov"
            details |= {"bound": lp_bound, "scope": scope}
        returns = context.compute_returns(context.best_policy)
        details["bound"] = max(details["bound"], context.objective_value(returns + rounding_error))
        details |= {"n_nodes": lp_result.n_nodes, "n_variables": len(tail_lp.is_integral)}
        status = STOP_STATUSES.get(lp_result.status, Status.COMPLETED)
        if details["bound"] - context.best_value <= self._gap_tolerance(
            context, closed_form_bound, lp_result.tolerance_error
        ):
            status = Status.OPTIMAL
        return MethodResult(context.best_policy, status, lp_result.n_nodes, details=details)

    def _gap_tolerance(
        self, context: SolveContext, closed_form_bound: float, slack: float
    ) -> float:
        """Compute the absolute gap at which the policy counts as optimal, given slack of HiGHS."""
        value, returns = context.best_value, context.compute_returns(context.best_policy)
        gap_tolerance, max_gain = (
            closed_form.GapTolerance(context.problem, context.horizon),
            closed_form_bound - value,
        )
        tolerance = gap_tolerance(
            self.rel_gap,
            value,
            closed_form_bound,
            lambda error: context.objective_value(returns + error),
        )
        return max(tolerance, min(self.rel_gap * max_gain + slack, MAX_SLACK_SHARE * max_gain))

    def _compute_closed_form_bound(self, context: SolveContext) -> float:
        """Compute the smaller of Oracle and QMDP, or F of the models' own optima."""
        problem, horizon = context.problem, context.horizon
        if context.objective.is_mean:
            return closed_form.compute_first_bound(context.prepared)[1]
        return context.objective_value(context.oracle_returns() + problem.rounding_errors(horizon))

    def _make_tail_lp(
        self, context: SolveContext, reach: VisitBounds, closed_form_bound: float
    ) -> tails.TailLP:
        """Build the program over policies that are at most slightly worse than CADP's."""
        problem, objective = context.problem, context.objective
        negated_problem = context.prepared.replace(rewards=-problem.r, terminal=-problem.terminal)
        min_returns = -negated_problem.compute_returns(
            negated_problem.backward("per_model").first_values
        )
        max_returns = context.prepared.compute_returns(
            context.prepared.backward("per_model").first_values
        )  # over the open actions
        min_returns, max_returns = (
            objective.relative_returns(returns, context.oracle_returns)
            for returns in (min_returns, max_returns)
        )
        min_value = context.best_value - VALUE_MARGIN * (closed_form_bound - context.best_value)
        caps = tails.compute_loss_caps(
            objective, problem.weights, max_returns, min_returns, min_value
        )
        return tails.TailLP(
            lp.build_lp(context.prepared, reach, caps),
            objective,
            problem.weights,
            max_returns,
            caps,
        )

    def _solve_lp(
        self, context: SolveContext, closed_form_bound: float
    ) -> tuple[tails.TailLP, lp.LPResult]:
        """Build and solve the program, with the incumbent as initial solution."""
        problem, incumbent = context.problem, context.best_policy
        if self.use_reach_bounds:
            reach = compute_reach_bounds(context.prepared, deadline=context.stopwatch.deadline)
        else:
            shape = (context.horizon, problem.n_states, problem.n_models)
            reach = VisitBounds(np.zeros(shape), np.broadcast_to(problem.weights, shape).copy())
        context.check_time()
        tail_lp = self._make_tail_lp(context, reach, closed_form_bound)
        context.check_time()
        model_weights = context.prepared.forward(incumbent)
        returns = context.objective.relative_returns(
            context.compute_returns(incumbent), context.oracle_returns
        )
        lp_result = lp.minimize(
            *tail_lp.to_arrays(),
            is_integral=tail_lp.is_integral,
            rel_gap=self.rel_gap,
            time_limit=context.stopwatch.time_left,
            callback=_make_callback(context, tail_lp.objective_offset),
            initial_solution=tail_lp.policy_to_variables(incumbent, model_weights, returns),
        )
        return tail_lp, lp_result


def _make_callback(context: SolveContext, constant: float) -> lp.MipCallback:
    """Make the callback that reports the bound of HiGHS and stops it at the time limit."""

    def report_progress(bound: float, n_nodes: int) -> bool:
        try:
            context.report_bound(constant - bound, n_nodes)
        except TimeUp:
            return False
        return True

    return report_progress


def _extract_policy(program: lp.OccupancyLP, solution: Array, mask: Mask) -> PolicyTable:
    """Extract the actions (T, S) of a solution; the lowest allowed one where it has no weight."""
    probs = np.where(
        program.policy_columns >= 0, solution[np.maximum(program.policy_columns, 0)], -1.0
    )
    probs = np.where(mask, probs, -2.0)
    actions: PolicyTable = probs.argmax(axis=2).astype(np.int32)
    return actions
