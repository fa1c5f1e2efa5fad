"""The public function bound(), and its reductions to the mean over a finite horizon.

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
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from mmdp.core import kernels
from mmdp.core.arguments import FiniteFloat, NonNegativeInt, Seconds, check_arguments, check_type
from mmdp.core.bounds.portfolio import (
    BOUND_METHODS,
    CLOSED_FORM_METHODS,
    BoundPortfolio,
    BoundRequest,
    check_applicable,
)
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Backend, PreparedProblem, Problem
from mmdp.core.kernels.infinite import (
    InfiniteHorizon,
    check_infinite_horizon,
    choose_planning_horizon,
)
from mmdp.core.kernels.problem import EPS, Array, PolicyTable
from mmdp.core.objectives import Objective, ObjectiveFunction, as_objective
from mmdp.core.policies import MarkovPolicy, Policy
from mmdp.core.search.context import Details, SolveContext
from mmdp.core.solution import Bound, Solution
from mmdp.core.timing import (
    Callback,
    Progress,
    Stopwatch,
    TimeUp,
    allow_stop,
    show_progress,
    solver_clock,
)
from mmdp.core.validate import check_horizon, check_not_sharded, check_problem_size

if TYPE_CHECKING:
    from mmdp.core.model import MMDP


DEFAULT_TIME_LIMIT = 10.0  # of a search without a time limit
SEARCH_PASSES = 4000  # of a search: its kernel is chosen by them


@check_arguments
def bound(
    model: MMDP,
    horizon: float | None = None,
    method: str = "best",
    *,
    objective: str | Objective | ObjectiveFunction = "mean",
    time_limit: Seconds | None = None,
    incumbent: object = None,
    backend: str | Backend = "auto",
    seed: NonNegativeInt = 0,
    callback: Callback | None = None,
) -> Bound:
    """Compute a proven upper bound on the value of every policy.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`; the horizon may be ``math.inf``.
    method
        Bounds on every policy, history-dependent ones included: ``"oracle"`` (the model is known),
        ``"qmdp"`` (after the first decision) and ``"pairs"`` (beliefs over pairs of models).
        ``"best"`` is the least of them and of a Lagrangian dual, which bounds Markov policies.
    objective
        As for :func:`mmdp.solve`. A monotone objective is bounded by its value at the models' own
        optima; a concave one also by the method, on a mean with risk weights. The bound holds for
        a function of your own only if it is monotone: pass
        ``mmdp.objectives.CustomObjective(f, is_monotone=True)``.
    time_limit
        Seconds for the searches (``pairs`` and ``best``); 10 by default. Compilation on first use
        is not counted. A short limit gives a weaker bound, never an invalid one. It is kept up to a
        fifth, or up to one pass over all models and 16 pairs of them if that takes longer. The dual
        needs two passes per state before its first step. If those take over a quarter of the time,
        ``best`` values pairs alone, and ``details`` has ``multipliers``. If the horizon is
        infinite, a short limit also counts fewer decisions before the model becomes known. Searches
        that the limit ends stop by the clock, so such bounds may differ a little from run to run.
    incumbent
        A Solution, a MarkovPolicy or a value as the target of the searches; found by CADP by
        default. A wrong value only makes the bound less tight: it is never below it.
    backend
        As for :func:`mmdp.solve`.
    seed
        Seed of the order in which pairs of models are tried.
    callback
        Called with a :class:`mmdp.solution.Progress` while a search runs. Ctrl-C returns the best
        bound so far.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.bound(one, 3).value >= 5.25
    True
    """
    if method not in BOUND_METHODS:
        raise InputError(f"no bound is called {method!r}; choose one of {', '.join(BOUND_METHODS)}")
    F, seconds = as_objective(objective), DEFAULT_TIME_LIMIT if time_limit is None else time_limit
    x, is_infinite_horizon = model.problem, horizon == math.inf
    if is_infinite_horizon:
        check_infinite_horizon(x, model.horizon, model.state_labels)
    n_steps = None if is_infinite_horizon else check_horizon(model.horizon, horizon)
    check_request(x, n_steps or find_affordable_horizon(x, seconds), method, F)
    shown = show_progress(callback)
    return search_bound(model, n_steps, method, F, seconds, incumbent, backend, seed, shown)


def search_bound(
    model: MMDP,
    horizon: int | None,
    method: str,
    objective: Objective,
    time_limit: float,
    incumbent: object,
    backend: str | Backend,
    seed: int = 0,
    callback: Callback | None = None,
    solve_context: SolveContext | None = None,
) -> Bound:
    """Search for a bound until the time limit; ``horizon=None`` is infinite.

    Reuses the prepared problem of ``solve_context`` if it is on the same backend.
    """
    x, is_infinite_horizon = model.problem, horizon is None
    n_steps = find_affordable_horizon(x, time_limit) if horizon is None else horizon
    incumbent_parts = read_incumbent(
        incumbent, model, n_steps, is_infinite_horizon=is_infinite_horizon
    )
    stopwatch, resolved_backend = Stopwatch(time_limit), choose_backend(backend, x, n_steps, method)
    if solve_context is None or solve_context.backend.name != resolved_backend.name:
        prepared = resolved_backend.prepare(x, n_steps)
    else:
        prepared = solve_context.prepared.replace(allowed=x.allowed, horizon=n_steps)
    return compute_bound(
        BoundRequest(
            prepared,
            method,
            stopwatch,
            objective,
            is_infinite_horizon,
            *incumbent_parts,
            seed=seed,
            callback=callback,
        ),
        resolved_backend,
    )


def check_request(problem: Problem, horizon: int, method: str, objective: Objective) -> None:
    """Raise InputError if no bound holds for the objective or the problem is too large."""
    check_applicable(method, problem)
    check_has_bound(objective, method)
    if method != "oracle":
        check_not_sharded(problem, f"bound {method}", [Remedy("method", "oracle", verb="use")])
    extra_bytes = 0 if method == "oracle" else 8 * horizon * problem.n_states * problem.n_models
    check_problem_size(problem, horizon, extra_bytes)


def choose_backend(backend: str | Backend, problem: Problem, horizon: int, method: str) -> Backend:
    """Choose the backend for a search, or for the closed forms, which need no compiler."""
    passes = FEW_PASSES if method in CLOSED_FORM_METHODS else SEARCH_PASSES
    return kernels.get_backend(backend, problem, horizon, n_passes=passes)


def compute_bound(request: BoundRequest, backend: Backend) -> Bound:
    """Compute the bound: reduce to a mean over a finite horizon, search, and convert back."""
    reduction = reduce_to_mean(
        truncate_horizon(request) if request.is_infinite_horizon else request, backend
    )
    mean_request = reduction.request
    result = reduction.to_objective_bound(
        None
        if mean_request is None
        else BoundPortfolio(mean_request, reduction.lift_progress).run()
    )
    return replace(result, seconds=request.stopwatch.elapsed)


def read_incumbent(
    incumbent: object, model: MMDP, horizon: int, *, is_infinite_horizon: bool = False
) -> tuple[PolicyTable | None, float]:
    """Convert a user's Solution, MarkovPolicy or number to a table, or to a value."""
    if isinstance(incumbent, Solution):
        policy = None if is_infinite_horizon else incumbent.markov_policy
        incumbent = incumbent.value if policy is None else policy
    if isinstance(incumbent, Policy) and incumbent.as_markov is not None:
        incumbent.as_markov.check(model, horizon)
        return incumbent.as_markov.to_table(model), -math.inf
    if incumbent is None:
        return None, -math.inf
    check_type("incumbent", incumbent, Solution | MarkovPolicy | FiniteFloat)
    assert isinstance(incumbent, SupportsFloat)
    return None, float(incumbent)


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
