"""MILP: the occupancy program with a binary policy, solved by HiGHS (Steimle et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmdp.core.arguments import NonNegativeFloat, check_arguments
from mmdp.core.bounds.dual import compute_reach_bounds
from mmdp.core.bounds.lp import LP_OBJECTIVES, LPResult, OccupancyProgram, compute_loss_caps
from mmdp.core.bounds.portfolio import GapTolerance, compute_first_bound
from mmdp.core.errors import InputError, Remedy
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext, TimeUp
from mmdp.core.methods.cadp import CADP
from mmdp.core.search.context import Details, get_stop_status
from mmdp.core.solution import Status

MAX_VARIABLES = 400_000  # most variables
MAX_SLACK_SHARE = 1e-4  # share of the stakes: a solver that is less accurate proves no optimum
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

    >>> import mmdp
    >>> from mmdp.core.methods.milp import MILP
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, MILP()).value
    7.0
    """

    rel_gap: NonNegativeFloat = 1e-6

    name = "milp"
    title = "a mixed-integer program, solved by HiGHS"
    best_status = Status.OPTIMAL

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        switching_reason = spec.reason_if_switching("its bounds plan for each model by itself")
        if spec.objective.key not in LP_OBJECTIVES:
            return f"its program has the mean and lower tails, not {spec.objective}"
        reason = spec.reason_if_coupled() or spec.reason_if_infinite()
        return reason or switching_reason or spec.reason_if_sharded()

    def run(self, context: SolveContext) -> MethodResult:
        """Solve the program from CADP's policy; return the best policy with its proven bound."""
        problem = context.problem
        n_variables = int(context.evaluator.allowed.sum()) * (problem.n_models + 1)
        if n_variables > MAX_VARIABLES:
            raise InputError(
                f"the program would have {n_variables:,} variables (at most {MAX_VARIABLES:,}; "
                "exact has no limit)",
                [Remedy("method", "exact", verb="use")],
            )
        rounding_error = problem.rounding_errors(context.horizon)
        if context.objective.is_mean:
            first_bound = compute_first_bound(context.prepared)
        else:
            # no return is above the oracle's, so a regret needs no slack
            slack = 0.0 if context.objective.uses_regret else rounding_error
            first_bound = context.objective_value(context.oracle_returns() + slack)
        details: Details = {"bound": first_bound, "scope": "history"}
        details |= {"n_nodes": 0, "n_variables": n_variables}
        with context.allow_stop() as stop_state:
            CADP().run(context)
            program = self._build_program(context, first_bound)
            result = self._solve_program(context, program)
        if stop_state.exception is not None:
            status = get_stop_status(stop_state)
            return MethodResult(context.best_policy, status, 0, details=details)
        if result.x is not None:
            actions = program.variables_to_policy(result.x)
            value = context.objective_value(context.compute_returns(actions))
            if value > context.best_value:
                context.trace.append(value)
                context.keep_best(actions, value)
        bound = program.objective_offset - result.bound
        bound += 2 * program.bound_value_error(rounding_error)
        if math.isfinite(bound) and bound < first_bound:
            # the mean is linear in each decision: drawing an action gains nothing
            scope = "markov" if program.mean_share == 1 else "deterministic markov"
            details |= {"bound": bound, "scope": scope}
        returns = context.compute_returns(context.best_policy)
        achieved_bound = context.objective_value(returns + rounding_error)
        max_bound = max(first_bound, context.best_value)  # which is true anyway
        details["bound"] = min(max(details["bound"], achieved_bound), max_bound)
        details |= {"n_nodes": result.n_nodes, "n_variables": program.n_columns}
        status = result.status
        tolerance = self._gap_tolerance(context, first_bound, result.tolerance_error)
        if details["bound"] - context.best_value <= tolerance:
            status = Status.OPTIMAL
        return MethodResult(context.best_policy, status, result.n_nodes, details=details)

    def _gap_tolerance(self, context: SolveContext, first_bound: float, slack: float) -> float:
        """Compute the absolute gap at which the policy counts as optimal, given slack of HiGHS."""
        value, returns = context.best_value, context.compute_returns(context.best_policy)
        max_gain = first_bound - value
        tolerance = GapTolerance(context.problem, context.horizon)(
            self.rel_gap,
            value,
            first_bound,
            lambda error: context.objective_value(returns + error),
        )
        return max(tolerance, min(self.rel_gap * max_gain + slack, MAX_SLACK_SHARE * max_gain))

    def _build_program(self, context: SolveContext, first_bound: float) -> OccupancyProgram:
        """Build the program over policies that are at most slightly worse than CADP's."""
        problem, objective, prepared = context.problem, context.objective, context.prepared
        reach = compute_reach_bounds(prepared, deadline=context.stopwatch.deadline)
        min_returns, max_returns = (
            objective.relative_returns(returns, context.oracle_returns)
            for returns in (
                context.evaluator.compute_worst_returns(None, problem.allowed),
                prepared.compute_returns(prepared.backward("per_model").first_values),
            )
        )
        min_value = context.best_value - VALUE_MARGIN * (first_bound - context.best_value)
        caps = compute_loss_caps(objective, problem.weights, max_returns, min_returns, min_value)
        context.check_time()
        return OccupancyProgram(prepared, reach, objective, max_returns, caps)

    def _solve_program(self, context: SolveContext, program: OccupancyProgram) -> LPResult:
        """Solve the program with the incumbent as initial solution."""

        def report_progress(bound: float, n_nodes: int) -> bool:
            try:
                context.report_bound(program.objective_offset - bound, n_nodes)
            except TimeUp:
                return False
            return True

        context.check_time()
        incumbent = context.best_policy
        returns = context.objective.relative_returns(
            context.compute_returns(incumbent), context.oracle_returns
        )
        return program.minimize(
            program.policy_to_variables(incumbent, context.prepared.forward(incumbent), returns),
            rel_gap=self.rel_gap,
            deadline=context.stopwatch.deadline,
            callback=report_progress,
        )
