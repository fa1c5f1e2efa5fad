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
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, SupportsFloat

import numpy as np

from mmdp.core import kernels
from mmdp.core.arguments import FiniteFloat, NonNegativeInt, Seconds, check_arguments, check_type
from mmdp.core.bounds.portfolio import (
    BOUND_METHODS,
    CLOSED_FORM_METHODS,
    BoundPortfolio,
)
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Backend, PreparedProblem, Problem
from mmdp.core.kernels.infinite import (
    InfiniteHorizon,
    ModelOptima,
    check_infinite_horizon,
    choose_planning_horizon,
)
from mmdp.core.kernels.problem import EPS, PolicyTable
from mmdp.core.objectives import Objective, ObjectiveFunction, as_objective
from mmdp.core.policies import MarkovPolicy, Policy
from mmdp.core.search.context import Details, SolveContext
from mmdp.core.shapes import Array
from mmdp.core.solution import Bound, Solution
from mmdp.core.text import did_you_mean
from mmdp.core.timing import (
    Callback,
    Progress,
    Stopwatch,
    TimeUp,
    allow_stop,
    show_progress,
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
        suggestion = did_you_mean(method, BOUND_METHODS)
        raise InputError(
            f"no bound is called {suggestion}; choose one of {', '.join(BOUND_METHODS)}"
        )
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
    callback: Callback = lambda progress: None,
    solve_context: SolveContext | None = None,
) -> Bound:
    """Search for a bound until the time limit; ``horizon=None`` is infinite.

    Reuses the prepared problem of ``solve_context`` if it is on the same backend.
    """
    x, stopwatch = model.problem, Stopwatch(time_limit)
    n_steps = find_affordable_horizon(x, time_limit) if horizon is None else horizon
    policy, value = read_incumbent(incumbent, model, horizon)
    passes = FEW_PASSES if method in CLOSED_FORM_METHODS else SEARCH_PASSES
    resolved_backend = kernels.get_backend(backend, x, n_steps, n_passes=passes)
    if solve_context is None or solve_context.backend.name != resolved_backend.name:
        prepared = resolved_backend.prepare(x, n_steps)
    else:
        prepared = solve_context.prepared.replace(allowed=x.allowed, horizon=n_steps)
    return_errors = np.zeros(x.n_models)
    if horizon is None:
        optima, prepared, return_errors = truncate_horizon(prepared, stopwatch)
        # optima that are known from above only bound no regret
        method = method if optima.is_complete or not objective.uses_regret else "oracle"
        stopwatch = stopwatch.with_min_time(MIN_SECONDS)
    portfolio = BoundPortfolio(prepared, method, stopwatch, callback, policy, value, seed)
    result = bound_objective(portfolio, objective, return_errors, resolved_backend)
    return replace(result, objective=objective, seconds=stopwatch.elapsed)


def check_request(problem: Problem, horizon: int, method: str, objective: Objective) -> None:
    """Raise InputError if no bound holds for the objective or the problem is too large.

    For switching models oracle and QMDP hold: they see which model holds at every time, or from the
    second on, and no policy sees more. The searches give each model, or pair, its own states and
    values, which the others then share.
    """
    reason = problem.reason_if_switching(f"{method} holds for models that never change")
    if reason and method not in ("best", *CLOSED_FORM_METHODS):
        raise InputError(reason, [Remedy("method", "best", *CLOSED_FORM_METHODS, verb="choose")])
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
    use_oracle = Remedy("method", "oracle", verb="use")
    if not objective.is_concave and method not in ("best", "oracle"):
        raise InputError(f"{objective} is not concave, so {method} does not bound it", [use_oracle])
    if method != "oracle":
        check_not_sharded(problem, f"bound {method}", [use_oracle])
    extra_bytes = 0 if method == "oracle" else 8 * horizon * problem.n_states * problem.n_models
    check_problem_size(problem, horizon, extra_bytes)


def read_incumbent(
    incumbent: object, model: MMDP, horizon: int | None
) -> tuple[PolicyTable | None, float]:
    """Convert a user's Solution, MarkovPolicy or number to a table, or to a value."""
    if isinstance(incumbent, Solution):
        policy = None if horizon is None else incumbent.markov_policy
        incumbent = incumbent.value if policy is None else policy
    if isinstance(incumbent, Policy) and (markov_policy := incumbent.as_markov) is not None:
        markov_policy.check(model, horizon)
        return markov_policy.to_table(model), -math.inf
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
    pass_seconds = problem.estimate_seconds(1, 4 * FEW_PASSES)
    max_horizon = int(max(time_limit / 2, MIN_SECONDS) / pass_seconds)
    return max(1, min(choose_planning_horizon(problem), max_horizon))


def truncate_horizon(
    prepared: PreparedProblem, stopwatch: Stopwatch
) -> tuple[ModelOptima, PreparedProblem, Array]:
    """Truncate an infinite horizon, with the models' own optima as terminal values.

    They are found in half of the time. Returns them, the problem, and the most by which the return
    (M,) of a model, or its optimum, may differ from that on it, besides rounding there.
    """
    check_time = Stopwatch(stopwatch.time_left / 2).raise_if_expired
    infinite_horizon = InfiniteHorizon.from_problem(prepared.problem, check_time)
    optima = infinite_horizon.compute_model_optima()
    terminal_values = np.ascontiguousarray((optima.values + optima.error_bound[:, None]).T)
    return optima, prepared.replace(terminal=terminal_values), infinite_horizon.rounding_errors()


# ---------------------------------------------------------------------- objectives
def bound_objective(
    portfolio: BoundPortfolio, objective: Objective, return_errors: Array, backend: Backend
) -> Bound:
    """Bound an objective by F(rho*) and by a portfolio for the mean with risk weights."""
    F, prepared, x = objective, portfolio.prepared, portfolio.prepared.problem
    offset, oracle_value, details = float(x.weights @ return_errors), math.inf, Details()
    if not F.is_mean:
        oracle_returns = prepared.compute_returns(prepared.backward("per_model").first_values)
        # of the returns, and of F
        rounding_errors = 4 * x.rounding_errors(prepared.horizon) + return_errors
        # no return is above rho*, so a regret needs no slack for the passes
        max_returns = return_errors if F.uses_regret else oracle_returns + rounding_errors
        oracle_value = float(F.value(max_returns, x.weights))
        oracle_value += 4 * EPS * abs(oracle_value)  # of F itself
        details = {"bounds_by_method": {"oracle": oracle_value}}
        oracle_bound = Bound(oracle_value, "oracle", "history", details)
        if portfolio.method == "oracle" or not F.is_concave:
            return oracle_bound
        stopwatch = Stopwatch(TIME_SHARE * portfolio.stopwatch.time_left)
        with allow_stop(accept_interrupts=True) as stop_state:
            play = find_risk_weights(
                prepared, F, oracle_returns, portfolio.incumbent_policy, stopwatch
            )
        if stop_state.is_interrupted:
            return replace(oracle_bound, details={"is_interrupted": True, **details})
        weights, penalty = x.weights * play.xi, F.penalty(play.xi, x.weights)
        offset = penalty + 4 * EPS * abs(penalty) + float(weights @ rounding_errors)
        if F.uses_regret:
            offset -= float(weights @ oracle_returns)
        details = {"incumbent": play.best_value, "weights": weights, "n_rounds": play.n_rounds}
        portfolio = replace(
            portfolio,
            prepared=_drop_zero_weights(prepared, weights, backend),
            incumbent_policy=play.policy,
            incumbent_value=-math.inf,
            stopwatch=portfolio.stopwatch.with_min_time(MIN_SECONDS),
        )
    callback = portfolio.callback

    def add_offset(mean_bound: float) -> float:
        """Convert a bound on the mean to one on the objective, rounded up."""
        return math.nextafter(mean_bound + offset, math.inf)

    def report_progress(progress: Progress) -> None:
        """Report progress on the mean as progress on the objective."""
        value = details.get("incumbent", progress.best_value)
        bound = min(oracle_value, add_offset(progress.bound))
        callback(progress._replace(value=value, best_value=value, bound=bound))

    result = replace(portfolio, callback=report_progress).run()
    bounds = {key: add_offset(y) for key, y in result.details["bounds_by_method"].items()}
    if not F.is_mean:
        bounds["oracle"] = oracle_value
    details = {**result.details, **details, "bounds_by_method": bounds}
    if oracle_value <= (value := add_offset(result.value)):
        return Bound(oracle_value, "oracle", "history", details)
    return replace(result, value=value, details=details)


def _drop_zero_weights(
    prepared: PreparedProblem, weights: Array, backend: Backend
) -> PreparedProblem:
    """Return the problem with other weights, without the models of weight 0.

    They stay if a model with a weight may turn into them.
    """
    positive_models, normalized_weights = np.flatnonzero(weights > 0), weights / weights.sum()
    if len(positive_models) == len(weights) or not prepared.has_independent_models:
        return prepared.replace(weights=normalized_weights)
    problem = prepared.problem.select_models(positive_models)
    problem = problem._replace(weights=normalized_weights[positive_models])
    return backend.prepare(problem, prepared.horizon)


class RiskWeights(NamedTuple):
    """Risk weights xi (M,), the last policy of the play, and the largest objective value in it."""

    xi: Array
    policy: PolicyTable | None
    best_value: float
    n_rounds: int


def find_risk_weights(
    prepared: PreparedProblem,
    objective: Objective,
    oracle_returns: Array,
    policy: PolicyTable | None,
    stopwatch: Stopwatch,
) -> RiskWeights:
    """Find risk weights by fictitious play between them and policies (Brown 1951).

    Rounds begin at a policy (None: the mean's) and end when both sides agree or the time is up.
    """
    F, lam = objective, prepared.problem.weights

    def evaluate_policy() -> Array:
        """Compute the returns (M,) of the policy, relative to the oracle's if F is a regret."""
        first_values = prepared.backward("policy", policy=policy).first_values
        return F.relative_returns(prepared.compute_returns(first_values), lambda: oracle_returns)

    def respond(xi: Array) -> Array:
        """Compute the returns (M,) of CADP's policy for the weights lambda xi."""

        def keep_policy(new_policy: PolicyTable, value: float) -> None:
            nonlocal policy
            policy = new_policy
            stopwatch.raise_if_expired()

        with contextlib.suppress(TimeUp):
            prepared.replace(weights=lam * xi).ascend([policy], callback=keep_policy)
        return evaluate_policy()

    rho = respond(np.ones_like(lam)) if policy is None else evaluate_policy()
    xi = mean_xi = F.dual_density(rho, lam)
    best_value = lower_value = float(F.value(rho, lam))
    upper_value = math.inf
    for n_rounds in range(2, MAX_ROUNDS):
        response = respond(mean_xi)
        best_value = max(best_value, float(F.value(response, lam)))
        reweighted_mean = float((lam * mean_xi) @ response) + F.penalty(mean_xi, lam)
        if reweighted_mean < upper_value:
            upper_value, xi = reweighted_mean, mean_xi
        rho = rho + (response - rho) / n_rounds
        lower_value = max(lower_value, float(F.value(rho, lam)))
        # with the risk weights: a model that does not count may have returns of another scale
        tolerance = REL_TOL * float((lam * xi) @ np.abs(rho))
        if upper_value - lower_value <= tolerance or stopwatch.is_expired:
            break
        mean_xi = mean_xi + (F.dual_density(rho, lam) - mean_xi) / n_rounds
    return RiskWeights(xi, policy, best_value, n_rounds)
