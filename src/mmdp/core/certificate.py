"""Certificates: a proven upper bound on the value of the best policy, searched after a solve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from mmdp.core import kernels
from mmdp.core.bounds.api import check_request, search_bound
from mmdp.core.bounds.portfolio import GapTolerance, choose_history_method
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.methods import Method, SolveContext
from mmdp.core.methods.exact import Exact
from mmdp.core.methods.registry import require_markov_method, supports
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.solution import OPTIMALITY_GAP, Bound, Solution, Status
from mmdp.core.timing import Callback, Progress, Stopwatch, TimeUp, accept_interrupt, allow_stop
from mmdp.core.validate import check_not_sharded

EXACT_TIME_SHARE = 0.8  # share of certify_time for ``exact`` if the horizon is infinite
NO_BOUND = Bound(math.inf, "", "history")


def check_certifiable(method: Method, objective: Objective, model: MMDP, horizon: int) -> None:
    """Refuse a certificate that cannot be computed for this problem, before it is solved."""
    oracle_hint = 'use mmdp.bound(model, horizon, "oracle")'
    check_not_sharded(model.problem, "certify_time", [oracle_hint])
    pairs_hint = 'use mmdp.bound(model, horizon, "pairs"), which holds for every policy'
    require_markov_method(type(method), "certify_time bounds", pairs_hint)
    check_request(model.problem, horizon, "best", objective)


@dataclass
class CertificateSearch:
    """Search for an upper bound on the value of every policy of a solution's class.

    ``context`` is the one of the solve: its problem is prepared already.
    """

    solution: Solution
    context: SolveContext
    time_limit: float
    backend: str | Backend

    @property
    def can_use_exact(self) -> bool:
        """Whether ``exact`` supports this problem and bounds the policies of this class."""
        context, policy_class = self.context, self.context.policy_class
        is_randomizable = policy_class.is_infinite_horizon and policy_class.randomized
        if self.solution.policy.memory_note or is_randomizable:
            return False
        return supports(Exact(), context.model, context.policy_horizon, context.objective)

    def add_certificate(self) -> Solution:
        """Add the lower of two bounds to the solution: the one of its method and a searched one."""
        solution, own_bound = self.solution, self.solution.certificate
        is_proven = solution.status is Status.OPTIMAL and own_bound is not None
        if is_proven or solution.status is Status.INTERRUPTED:
            return solution
        with allow_stop(accept_interrupts=True) as stop_state:
            fingerprint = self.context.model.fingerprint()
            new_bound = replace(self.find_bound(), model_fingerprint=fingerprint)
        if stop_state.exception is not None:  # before any bound was found: the policy is kept
            return replace(solution, status=Status.INTERRUPTED)
        bounds = [new_bound] if own_bound is None else [own_bound, new_bound]
        best_bound = min(bounds, key=lambda bound: bound.value)
        objective, excess = solution.objective, solution.value - best_bound.value
        max_excess = OPTIMALITY_GAP * max(abs(best_bound.value), abs(solution.value))
        if objective.key == "custom" and excess > max_excess:
            raise InputError(
                f"{objective} is {solution.value:.6g}, above its bound {best_bound.value:.6g}, so "
                "it is not monotone: its value falls when a return rises; solve without "
                "certify_time"
            )
        status: Status = solution.status
        if -excess <= self.compute_tolerance(new_bound, best_bound):
            status = Status.OPTIMAL
        elif "is_interrupted" in new_bound.details and status is not Status.OPTIMAL:
            status = Status.INTERRUPTED
        seconds = solution.seconds + new_bound.seconds
        provenance = replace(solution.provenance, seconds=seconds)
        return replace(solution, certificate=best_bound, status=status, provenance=provenance)

    def find_bound(self) -> Bound:
        """Compute a bound by ``exact`` or by the portfolio; by both if the horizon is infinite.

        ``details["bounds_by_method"]`` has the bounds on every Markov policy.
        """
        stopwatch = Stopwatch(self.time_limit)
        bound = self._find_exact_bound() if self.can_use_exact else None
        is_infinite_horizon = self.context.policy_class.is_infinite_horizon
        if bound is None or (is_infinite_horizon and "is_interrupted" not in bound.details):
            # a bound on every policy is worth some time in any case
            is_closed = bound is not None and bound.gap(self.solution.value) <= OPTIMALITY_GAP
            time_left = 0.0 if is_closed else stopwatch.time_left
            min_time = (1 - EXACT_TIME_SHARE) * self.time_limit
            bound = self._find_portfolio_bound(max(time_left, min_time), bound or NO_BOUND)
        return replace(bound, seconds=stopwatch.elapsed)

    def _find_portfolio_bound(self, time_limit: float, exact_bound: Bound) -> Bound:
        """Search a bound on all Markov policies, or on all policies if this one has a memory.

        Return ``exact_bound`` if that is lower.
        """
        solution, context = self.solution, self.context
        objective, method = solution.objective, "best"
        if solution.policy.memory_note:
            method = choose_history_method(context.model.problem, objective)
        bound = search_bound(
            context.model,
            None if context.policy_class.is_infinite_horizon else context.horizon,
            method,
            objective,
            time_limit,
            solution,
            self.backend,
            solve_context=context,
            callback=self._make_callback(exact_bound),
        )
        if bound.value < exact_bound.value:
            return bound
        bounds = {"oracle": bound.details["bounds_by_method"]["oracle"], bound.method: bound.value}
        return replace(exact_bound, details={**bound.details, "bounds_by_method": bounds})

    def _find_exact_bound(self) -> Bound | None:
        """Compute a bound by ``exact`` from the solution on; None if the problem is too large."""
        context, solution = self.context, self.solution
        exact_context, policy = context.unrestricted_context(), context.best_policy
        exact_context.use_backend(
            kernels.get_backend(
                self.backend, exact_context.problem, context.horizon, n_passes=Exact.min_passes
            )
        )
        time_share = EXACT_TIME_SHARE if context.policy_class.is_infinite_horizon else 1.0
        exact_context.stopwatch = Stopwatch(time_share * self.time_limit)
        exact_context.callback = self._make_callback()
        is_same_class = type(context.policy_class) is type(exact_context.policy_class)
        if is_same_class and policy is not None and not is_randomized(policy):
            exact_context.best_policy, exact_context.best_value = policy, context.best_value
        n_init: int | Literal["auto"] = "auto" if exact_context.best_policy is None else 1
        try:
            result = Exact(rel_gap=OPTIMALITY_GAP, n_init=n_init).run(exact_context)
        except (InputError, TimeUp):  # too large for it, or for the time
            return None
        evaluation, exact_details = solution.evaluation, result.details
        oracle_bound = {"oracle": float(evaluation.oracle @ evaluation.weights)}
        bounds = exact_details.get("root_bounds", oracle_bound)
        details = {"bounds_by_method": bounds, "n_nodes": exact_details["n_nodes"]}
        if result.status is Status.INTERRUPTED:
            accept_interrupt()
            details["is_interrupted"] = True
        # the bound is at least the value of the solution
        min_value = solution.value + context.estimate_rounding(solution.returns)
        return Bound(
            max(exact_details["bound"], min_value),
            Exact.name,
            exact_details["scope"],
            details,
        )

    def compute_tolerance(self, new_bound: Bound, best_bound: Bound) -> float:
        """Compute the difference of bound and value at which the solution counts as optimal."""
        solution, context = self.solution, self.context
        tolerance = GapTolerance(context.model.problem, context.effective_horizon)(
            OPTIMALITY_GAP,
            solution.value,
            new_bound.details.get("bounds_by_method", {}).get("oracle", best_bound.value),
            lambda error: context.objective_value(solution.returns + error),
        )
        rounding = 3 * context.estimate_rounding(solution.returns) if self.can_use_exact else 0.0
        return max(tolerance, rounding)

    def _make_callback(self, earlier_bound: Bound = NO_BOUND) -> Callback:
        """Make the callback of a bound search that calls the callback of solve() with the bound."""
        solution, callback = self.solution, self.context.callback
        assert callback is not None

        def report_progress(progress: Progress) -> None:
            value, bound = solution.value, min(progress.bound, earlier_bound.value)
            elapsed = solution.seconds + earlier_bound.seconds + progress.elapsed
            callback(
                Progress(solution.method, solution.iterations, value, value, bound, elapsed=elapsed)
            )

        return report_progress
