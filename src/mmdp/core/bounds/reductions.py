"""Reductions of a bound request to the mean over a finite horizon.

**No last decision**: many decisions, after which the model is known. Each model then has its own
optimum as terminal value, so no tail is left out, and every number of decisions gives a valid
bound.

**Other objectives**: a monotone F is at most F(rho*), with rho* (M,) the returns of the models' own
optimal policies. A concave one is also at most a reweighted mean: for all xi of its envelope

    F(rho) <= sum_m lambda_m xi_m rho_m + penalty(xi),

so every bound on the mean with weights lambda xi bounds F. The best xi is found by fictitious play
between xi, which answers the average returns so far, and a policy, which answers the average xi by
CADP. Their averages approach the equilibrium, at which no other weights give a lower bound by much.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace

import numpy as np

from mmdp.core.bounds.request import BoundRequest
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Backend, PreparedProblem, Problem
from mmdp.core.kernels.infinite import InfiniteHorizon, choose_planning_horizon
from mmdp.core.kernels.problem import EPS, Array, PolicyTable
from mmdp.core.objectives import Objective
from mmdp.core.search.context import Details
from mmdp.core.solution import Bound
from mmdp.core.timing import Progress, TimeUp, allow_stop, solver_clock

MIN_SECONDS = 0.1  # least seconds for a search
FEW_PASSES = 20  # for the closed forms and one ascent
MAX_ROUNDS = 300  # most rounds of the play
TIME_SHARE = 0.25  # of the time for the play
REL_TOL = 1e-9  # relative distance between both players at which it ends


# ---------------------------------------------------------------------- no last decision
def find_affordable_horizon(problem: Problem, time_limit: float) -> int:
    """Choose the truncation horizon: as many decisions as half the time allows, by size.

    A rule by size, not by the clock.
    """
    max_horizon = int(
        max(time_limit / 2, MIN_SECONDS) / problem.estimate_seconds(1, 4 * FEW_PASSES)
    )
    return max(1, min(choose_planning_horizon(problem), max_horizon))


def truncate_horizon(request: BoundRequest) -> BoundRequest:
    """Truncate an infinite horizon, with the models' own optima as terminal values."""
    start_time, is_late = solver_clock(), False

    def check_time() -> None:
        """Raise TimeUp after half of the time."""
        nonlocal is_late
        is_late = solver_clock() > (start_time + request.stopwatch.deadline) / 2
        if is_late:
            raise TimeUp

    infinite_horizon = InfiniteHorizon.from_problem(request.prepared.problem, check_time)
    model_optima = infinite_horizon.compute_model_optima()
    terminal_values = np.ascontiguousarray(
        (model_optima.values + model_optima.error_bound[:, None]).T
    )
    # the optima are then known from above only, and a regret needs the true ones
    method = "oracle" if is_late and request.objective.uses_regret else request.method
    return replace(
        request,
        prepared=request.prepared.replace(terminal=terminal_values),
        method=method,
        return_errors=infinite_horizon.rounding_errors(),
        stopwatch=request.stopwatch.with_min_time(MIN_SECONDS),
    )


# ---------------------------------------------------------------------- objectives
def check_has_bound(objective: Objective, method: str = "best") -> None:
    """Raise InputError if no bound, or not this method, holds for the objective."""
    if objective.is_monotone is None:
        raise InputError(
            f"a bound on {objective} holds only if it is monotone; say "
            "mmdp.objectives.CustomObjective(f, is_monotone=True) if no value falls when a return "
            "rises"
        )
    if not objective.is_monotone:
        raise InputError(
            f"no bound is known for {objective}, which is not monotone; solve without certify"
        )
    if not objective.is_concave and method not in ("best", "oracle"):
        raise InputError(
            f"{objective} is not concave, so {method} does not bound it",
            [Remedy("method", "oracle", verb="use")],
        )


@dataclass(frozen=True)
class MeanReduction:
    """Request for a bound on a mean; adding ``offset`` makes it a bound on the objective.

    ``oracle_value`` is F(rho*), a bound too; if it is the only one, ``request`` is None.
    """

    objective: Objective
    request: BoundRequest | None
    offset: float = 0.0
    oracle_value: float = math.inf
    details: Details = field(default_factory=dict)

    def to_objective_bound(self, mean_bound: Bound | None) -> Bound:
        """Convert a bound on the mean to one on the objective."""
        bounds, details = {}, dict(self.details)
        if mean_bound is not None:
            bounds = {
                key: self._add_offset(x)
                for key, x in mean_bound.details["bounds_by_method"].items()
            }
            details = {**mean_bound.details, **details}
            mean_bound = replace(mean_bound, value=self._add_offset(mean_bound.value))
        if self.oracle_value < math.inf:
            bounds["oracle"] = self.oracle_value
        if mean_bound is None or self.oracle_value <= mean_bound.value:
            mean_bound = Bound(self.oracle_value, "oracle", "history")
        return replace(
            mean_bound, details={**details, "bounds_by_method": bounds}, objective=self.objective
        )

    def _add_offset(self, mean_bound: float) -> float:
        """Add the offset to a bound on the mean, rounded up."""
        return math.nextafter(mean_bound + self.offset, math.inf)

    def lift_progress(self, progress: Progress) -> Progress:
        """Convert progress on the mean to progress on the objective."""
        best = self.details.get("incumbent", progress.best_value)
        bound = min(self.oracle_value, self._add_offset(progress.bound))
        return progress._replace(value=best, best_value=best, bound=bound)


def reduce_to_mean(request: BoundRequest, backend: Backend) -> MeanReduction:
    """Reduce the request to a mean with risk weights; models of weight 0 are dropped."""
    F, prepared, x = request.objective, request.prepared, request.prepared.problem
    return_errors = np.zeros(x.n_models) if request.return_errors is None else request.return_errors
    if F.is_mean:
        return MeanReduction(F, request, float(x.weights @ return_errors))
    oracle_returns = prepared.compute_returns(prepared.backward("per_model").first_values)
    rounding_errors = (
        4 * x.rounding_errors(prepared.horizon) + return_errors
    )  # of the returns, and of F
    # no return is above rho*, so a regret needs no slack for the passes
    max_returns = return_errors if F.uses_regret else oracle_returns + rounding_errors
    oracle_value = float(F.value(max_returns, x.weights))
    oracle_value += 4 * EPS * abs(oracle_value)  # of F itself
    if request.method == "oracle" or not F.is_concave:
        return MeanReduction(F, None, oracle_value=oracle_value)
    play = FictitiousPlay(prepared, F, oracle_returns)
    with allow_stop(accept_interrupts=True) as stop_state:
        play.run(
            request.incumbent_policy, solver_clock() + TIME_SHARE * request.stopwatch.time_left
        )
    if stop_state.is_interrupted:
        return MeanReduction(F, None, oracle_value=oracle_value, details={"is_interrupted": True})
    weights = x.weights * play.xi
    penalty = F.penalty(play.xi, x.weights)
    offset = penalty + 4 * EPS * abs(penalty) + float(weights @ rounding_errors)
    if F.uses_regret:
        offset -= float(weights @ oracle_returns)
    mean_request = replace(
        request,
        prepared=_drop_zero_weights(prepared, weights, backend),
        incumbent_policy=play.policy,
        incumbent_value=-math.inf,
        stopwatch=request.stopwatch.with_min_time(MIN_SECONDS),
    )
    details = {"incumbent": play.best_value, "weights": weights, "n_rounds": play.n_rounds}
    return MeanReduction(F, mean_request, offset, oracle_value, details)


def _drop_zero_weights(
    prepared: PreparedProblem, weights: Array, backend: Backend
) -> PreparedProblem:
    """Return the problem with other weights, without the models of weight 0.

    They stay if a model with a weight may turn into them.
    """
    positive_models, normalized_weights = np.flatnonzero(weights > 0), weights / weights.sum()
    if len(positive_models) == len(weights) or not prepared.has_independent_models:
        return prepared.replace(weights=normalized_weights)
    problem = prepared.problem.select_models(positive_models)._replace(
        weights=normalized_weights[positive_models]
    )
    return backend.prepare(problem, prepared.horizon)


class FictitiousPlay:
    """Fictitious play between risk weights and policies (Brown 1951); ``xi`` (M,) is its result."""

    def __init__(
        self, prepared: PreparedProblem, objective: Objective, oracle_returns: Array
    ) -> None:
        self.prepared, self.problem = prepared, prepared.problem
        self.objective, self.oracle_returns = objective, oracle_returns
        self.policy: PolicyTable | None = None
        self.best_value, self.n_rounds = -np.inf, 0

    def run(self, policy: PolicyTable | None, deadline: float) -> None:
        """Play rounds from a policy (None: the mean's) until both sides agree or the time is up."""
        F, lam = self.objective, self.problem.weights
        self.policy, self.xi = policy, np.ones_like(lam)
        rho = (
            self._best_response(self.xi, deadline)
            if policy is None
            else self._evaluate_policy(policy)
        )
        self.xi = mean_xi = F.dual_density(rho, lam)
        lower_value, upper_value = float(F.value(rho, lam)), np.inf
        for k in range(2, MAX_ROUNDS):
            response = self._best_response(mean_xi, deadline)
            self.n_rounds = k
            reweighted_mean = float((lam * mean_xi) @ response) + F.penalty(mean_xi, lam)
            if reweighted_mean < upper_value:
                upper_value, self.xi = reweighted_mean, mean_xi
            rho = rho + (response - rho) / k
            lower_value = max(lower_value, float(F.value(rho, lam)))
            # with the risk weights: a model that does not count may have returns of another scale
            if (
                upper_value - lower_value <= REL_TOL * float((lam * self.xi) @ np.abs(rho))
                or solver_clock() > deadline
            ):
                return
            mean_xi = mean_xi + (F.dual_density(rho, lam) - mean_xi) / k

    def _best_response(self, xi: Array, deadline: float) -> Array:
        """Compute the returns (M,) of CADP's policy for the weights lambda xi."""

        def callback(policy: PolicyTable, value: float) -> None:
            self.policy = policy
            if solver_clock() > deadline:
                raise TimeUp

        prepared = self.prepared.replace(weights=self.problem.weights * xi)
        with contextlib.suppress(TimeUp):
            prepared.ascend([self.policy], callback=callback)
        assert self.policy is not None
        return self._evaluate_policy(self.policy)

    def _evaluate_policy(self, policy: PolicyTable) -> Array:
        """Compute the returns (M,) of a policy, and keep the best objective value."""
        initial_values = self.prepared.backward("policy", policy=policy).first_values
        rho = self.objective.relative_returns(
            self.prepared.compute_returns(initial_values), lambda: self.oracle_returns
        )
        self.best_value = max(
            self.best_value, float(self.objective.value(rho, self.problem.weights))
        )
        return rho
