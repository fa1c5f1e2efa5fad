"""solve() computes one policy for all models; evaluate() computes the returns of a policy.

A certificate is a proven upper bound on the value of the best policy, searched after the solve.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from mmdp._version import __version__
from mmdp.core import kernels
from mmdp.core.arguments import Seconds, Seed, Unchecked, as_instance, check_arguments
from mmdp.core.bounds import closed_form
from mmdp.core.bounds.api import check_request, search_bound
from mmdp.core.bounds.portfolio import choose_history_method
from mmdp.core.checkpoint import Checkpoint
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.methods import METHODS, Method, MethodResult, SolveContext
from mmdp.core.methods.base import ProblemSpec
from mmdp.core.methods.exact import Exact
from mmdp.core.methods.registry import check_supported, require_markov_method
from mmdp.core.model import MMDP
from mmdp.core.objectives import OBJECTIVES, Objective, ObjectiveFunction, as_objective
from mmdp.core.policies import Planner, PolicyClass, as_policy
from mmdp.core.search.context import get_stop_status
from mmdp.core.search.unreachable import fill_unreachable
from mmdp.core.shapes import Array
from mmdp.core.simulate import run_simulation
from mmdp.core.solution import (
    OPTIMALITY_GAP,
    Bound,
    BoundScope,
    Evaluation,
    Provenance,
    Solution,
    Status,
    make_evaluation,
)
from mmdp.core.timing import (
    Callback,
    Progress,
    Stopwatch,
    TimeUp,
    accept_interrupt,
    allow_stop,
    show_progress,
)
from mmdp.core.validate import check_not_sharded, check_problem_size

EXACT_TIME_SHARE = 0.8  # share of certify_time for ``exact`` if the horizon is infinite
NO_BOUND = Bound(math.inf, "", "history")


@check_arguments
def solve(
    model: MMDP,
    horizon: float | None = None,
    method: Unchecked[str | Method] = "cadp",
    *,
    objective: str | Objective | ObjectiveFunction = "mean",
    policy_class: Unchecked[str | PolicyClass | None] = None,
    backend: str | Backend = "auto",
    seed: Seed = 0,
    time_limit: Seconds | None = None,
    certify_time: Seconds | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Compute one policy for all models.

    Parameters
    ----------
    model
        The multi-model MDP.
    horizon
        Number of decisions T, or infinity; optional for a time-varying model, which has its own.
        ``math.inf``: there is no last decision, and the policy depends on the state alone.
    method
        Name of the method. :func:`mmdp.methods.list_capabilities` lists the names and the problems
        that each supports. Or a method with options such as
        ``mmdp.methods.CADP(init="mvp", n_init=16)``.
    objective
        What to maximize over the models: ``"mean"``, ``"cvar:0.1"`` (of the worst tenth),
        ``"var:0.1"``, ``"evar:0.1"``, ``"entropic:0.01"``, ``"worst"``, ``"mean-cvar:0.1:0.5"``, or
        ``"regret:"`` and one of these. Or an object such as ``mmdp.objectives.CVaR(0.1)`` or
        ``mmdp.objectives.WorstCase().on_regret()`` (see :mod:`mmdp.objectives`), or a function of
        (returns (..., M), weights (M,)) that gives values (...). The solution's value, bound and
        gap are those of the objective; its ``evaluation`` has the mean.
    policy_class
        What a decision may depend on, by default the time and the state. ``"markov"`` (on both),
        :class:`mmdp.policies.Memory` (on the node of a finite-state controller too),
        :class:`mmdp.policies.Stationary` (on the state alone), :class:`mmdp.policies.Tied`,
        :class:`mmdp.policies.Monotone`, :class:`mmdp.policies.Fixed` or
        :class:`mmdp.policies.Tree`. By default that of the method, which is ``"markov"`` for most,
        and ``"stationary"`` if the horizon is infinite.
    backend
        Backend to compute with. ``"auto"``, ``"numba"``, ``"numpy"``, ``"jax"`` or an object.
    seed
        Seed of every random choice.
    time_limit
        Seconds after which the best policy so far is returned. Its status then says so.
    certify_time
        Seconds to spend on a proof of how good the policy is. After the solve it computes an upper
        bound (see :func:`mmdp.bound`); None: no bound. The solution then has ``certificate``,
        ``bound`` and ``gap``, and status OPTIMAL if the gap closes. Its ``seconds`` include those
        of the proof.
    checkpoint
        A ``.json`` file that keeps the best policy so far; the solve starts from it if it is there.
        It is written every so often and at the end, as :func:`mmdp.load_policy` reads it, and the
        solve never ends below it. It is refused if it belongs to another problem.
        If it cannot be written, there is a warning and the solve goes on.
    callback
        Called with a :class:`mmdp.solution.Progress` after each iteration, and with the bound so
        far during the proof.

    In states that no model reaches, a Markov or stationary policy takes the action that is best
    under the prior weights of the models, as WSU does. It changes no return.
    ``details["unreachable"]``, bool (T, S) or (S,), marks these states; the key is absent if all
    are reached.

    Ctrl-C returns the best policy so far, if there is one, with status INTERRUPTED, which a
    loop over solves should check. The next Ctrl-C raises KeyboardInterrupt.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1], [1.0, 0.0]], [[0.0, 1.0], [0.8, 0.2]]],
    ...      [[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.8, 0.2]]]]
    >>> model = mmdp.MMDP(P, [[10.0, 8.0], [0.0, -5.0]], initial=[1, 0], discount=0.9)
    >>> solution = mmdp.solve(model, horizon=10)
    >>> solution.policy.actions[:, 1].tolist()
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    """
    resolved_method = as_method(method)
    spec = check_supported(resolved_method, model, horizon, as_objective(objective), policy_class)
    resolved_class, n_steps = spec.policy_class, spec.planning_horizon
    check_problem_size(model.problem, n_steps, resolved_method.estimate_bytes(spec))
    resolved_class.check(model, n_steps)
    passes = resolved_class.estimate_passes(resolved_method.estimate_passes(model.problem, n_steps))
    if resolved_class.is_infinite_horizon and model.n_models == 1:
        passes = 0.0  # policy iteration takes none
    resolved_backend = kernels.get_backend(
        backend,
        model.problem,
        n_steps,
        n_passes=passes,
        prefer_loaded=resolved_method.ignores_rounding
        and spec.objective.is_mean
        and resolved_class.is_action_mask
        and not resolved_class.randomized,
    )
    context = SolveContext(
        model,
        n_steps,
        resolved_backend,
        method=resolved_method.name,
        policy_class=resolved_class,
        objective=spec.objective,
        seed=seed,
        time_limit=time_limit,
        callback=show_progress(callback),
    )
    if certify_time is not None:
        check_certifiable(resolved_method, spec.objective, model, n_steps)
    if checkpoint is not None:
        check_not_sharded(model.problem, "a checkpoint", ["leave out checkpoint"])
        result = _run_with_checkpoint(resolved_method, context, checkpoint)
    else:
        result = _run_method(resolved_method, context)
    solution = _make_solution(result, resolved_method, context)
    return certify_solution(solution, context, certify_time, backend)


@check_arguments
def evaluate(
    model: MMDP,
    policy: Unchecked[Planner | Solution],
    *,
    n_episodes: int | None = None,
    seed: Seed = 0,
    backend: str | Backend = "auto",
) -> Evaluation:
    """Compute the return of a policy on every model of an MMDP.

    Returns are exact, unless you ask for ``n_episodes`` per model; belief policies are always
    simulated, with error bars (see :func:`mmdp.simulate`). ``model`` may hold other models
    than those the policy was computed from, such as test models. Regret against each model's
    optimum is computed when first asked for.

    Parameters
    ----------
    model, policy
        The models, and the policy or the solution that it comes from.
    n_episodes
        Number of episodes per model to simulate; by default returns are exact, if they can be.
    seed
        Seed of the simulation.
    backend
        As for :func:`mmdp.solve`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.evaluate(one, mmdp.policies.MarkovPolicy([[0], [1]])).mean
    3.5
    """
    remedy = "Oracle has one policy per model and is evaluated by solving the models at hand"
    resolved_policy = as_policy(policy, "evaluate() needs a policy", remedy)
    resolved_policy.check(model)
    policy_class = resolved_policy.policy_class
    n_steps = (
        policy_class.resolve_horizon(model, math.inf)
        if policy_class.is_infinite_horizon
        else int(resolved_policy.horizon)
    )
    check_problem_size(model.problem, n_steps)
    is_exact = resolved_policy.has_exact_returns and n_episodes is None
    resolved_backend = kernels.get_backend(
        backend, model.problem, n_steps, n_passes=2, prefer_loaded=is_exact
    )
    context = SolveContext(
        model, n_steps, resolved_backend, method="evaluate", policy_class=policy_class, seed=seed
    )
    if is_exact:
        returns = resolved_policy.compute_returns(model, resolved_backend)
        evaluation = make_evaluation(model, returns)
    else:
        evaluation = run_simulation(
            model, resolved_policy, n_episodes=n_episodes, seed=seed, backend=backend
        )
    return _add_provenance(evaluation, context, {})


def as_method(method: str | Method) -> Method:
    """Convert the name or class of a method to a method with default options."""
    return as_instance(method, METHODS, Method, "method", "mmdp.methods")


def _run_method(method: Method, context: SolveContext) -> MethodResult:
    """Run a method; return its result, or the best policy so far if time or Ctrl-C ends it."""
    with context.allow_stop() as stop_state, context.defer_interrupts():
        result = method.run(context)
    if stop_state.exception is not None:
        status, details = get_stop_status(stop_state), dict(context.details)
        result = MethodResult(context.best_policy, status, context.n_iterations, details=details)
    if result.status is Status.INTERRUPTED:
        accept_interrupt(stop_state.exception)
    return result


def _run_with_checkpoint(
    method: Method, context: SolveContext, path: str | os.PathLike[str]
) -> MethodResult:
    """Run a method from the policy in a checkpoint file and write the best policy to it."""
    checkpoint = Checkpoint(path, context, method)
    checkpoint.resume()
    assert context.callback is not None
    context.callback = checkpoint.make_callback(context.callback)
    try:
        return checkpoint.keep_better(_run_method(method, context))
    finally:
        checkpoint.write()


def _make_solution(result: MethodResult, method: Method, context: SolveContext) -> Solution:
    """Make the Solution of a method's result, with returns, evaluation and certificate."""
    if not method.covers_unreachable:
        result = fill_unreachable(context, result)
    policy, returns, status, model = result.policy, result.returns, result.status, context.model
    if returns is None and isinstance(policy, np.ndarray):
        returns = context.compute_returns(policy)
    if isinstance(policy, (np.ndarray, tuple)):
        policy = context.policy_class.make_policy(model, policy)
    if getattr(policy, "has_exact_returns", True):
        if returns is None:
            returns = policy.compute_returns(model, context.backend)
        evaluation = make_evaluation(model, returns, details=result.details)
    else:
        evaluation = run_simulation(
            model,
            policy,
            n_episodes=result.n_episodes,
            seed=context.seed or 0,
            backend=context.backend,
            check_time=context.stopwatch.raise_if_expired,
        )
    details = evaluation.details
    if details.get("n_episodes", 0) < details.get("n_episodes_requested", 0):
        status = Status.INTERRUPTED if "is_interrupted" in details else Status.TIME_LIMIT
    evaluation = _add_provenance(evaluation, context, dict(vars(method)))
    provenance = evaluation.provenance
    assert provenance is not None
    value, certificate = context.objective_value(evaluation.returns), None
    if "bound" in details:
        class_scope = "stationary" if context.policy_class.is_infinite_horizon else "markov"
        scope = context.policy_class.bound_scope or details.get("scope", class_scope)
        certificate = Bound(
            details["bound"],
            method.name,
            cast("BoundScope", scope),
            seconds=provenance.seconds,
            objective=context.objective,
        )
    return Solution(
        policy=policy,
        value=value,
        returns=evaluation.returns,
        status=status,
        iterations=result.n_iterations,
        trace=np.array(result.trace or context.trace or [value]),
        provenance=provenance,
        evaluation=evaluation,
        certificate=certificate,
        model_policies=result.model_policies,
        details=details,
    )


def _add_provenance(
    evaluation: Evaluation, context: SolveContext, options: dict[str, object]
) -> Evaluation:
    """Record what an evaluation was computed with; its oracle is computed on first use."""
    returns, is_exact = evaluation.returns, evaluation.standard_errors is None

    def compute_oracle_returns() -> Array:
        oracle = context.oracle_returns()
        # an optimum that rounding puts below an exact return is as high as that
        return np.maximum(oracle, returns) if is_exact else oracle

    returns.setflags(write=False)
    provenance = Provenance(
        method=context.method,
        options=options,
        horizon=math.inf if context.policy_class.is_infinite_horizon else context.horizon,
        policy_class=context.policy_class,
        backend=context.backend.name,
        seed=context.seed,
        version=__version__,
        seconds=context.stopwatch.elapsed,
        objective=context.objective,
    )
    return replace(evaluation, provenance=provenance, _compute_oracle=compute_oracle_returns)


# ---------------------------------------------------------------------- certificates
def check_certifiable(method: Method, objective: Objective, model: MMDP, horizon: int) -> None:
    """Refuse a certificate that cannot be computed for this problem, before it is solved."""
    oracle_hint = 'use mmdp.bound(model, horizon, "oracle")'
    check_not_sharded(model.problem, "certify_time", [oracle_hint])
    pairs_hint = 'use mmdp.bound(model, horizon, "pairs"), which holds for every policy'
    require_markov_method(type(method), "certify_time bounds", pairs_hint)
    check_request(model.problem, horizon, "best", objective)


def certify_solution(
    solution: Solution,
    context: SolveContext,
    certify_time: float | None,
    backend: str | Backend,
) -> Solution:
    """Add a certificate to a solution, searching a bound for ``certify_time`` seconds if given.

    ``context`` is the one of the solve: its problem is prepared already.
    """
    is_of_one_model = context.model.n_models == 1 and solution.objective.key in OBJECTIVES
    if is_of_one_model and solution.status is Status.LOCAL_OPTIMUM:
        # the optimum of the only model is the best policy under any objective
        regret = float(solution.evaluation.regret[0])
        if regret <= 2 * context.estimate_rounding(solution.returns):
            solution = replace(solution, status=Status.OPTIMAL)
    if certify_time is not None and solution.status is not Status.INTERRUPTED:
        solution = CertificateSearch(solution, context, certify_time, backend).add_certificate()
    if solution.certificate is None:
        return solution
    certificate = replace(solution.certificate, model_fingerprint=context.model.fingerprint())
    return replace(solution, certificate=certificate)


@dataclass
class CertificateSearch:
    """Search for an upper bound on the value of every policy of a solution's class."""

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
        free_class = context.unrestricted_context().policy_class
        horizon = self.solution.provenance.horizon
        spec = ProblemSpec(context.model, horizon, context.objective, free_class)
        return Exact().unsupported_reason(spec) is None

    def add_certificate(self) -> Solution:
        """Add the lower of two bounds to the solution: the one of its method and a searched one."""
        solution, own_bound = self.solution, self.solution.certificate
        if solution.status is Status.OPTIMAL and own_bound is not None:
            return solution
        with allow_stop(accept_interrupts=True) as stop_state:
            new_bound = self.find_bound()
        if stop_state.exception is not None:  # before any bound was found: the policy is kept
            return replace(solution, status=Status.INTERRUPTED)
        best_bound = new_bound
        if own_bound is not None and own_bound.value <= new_bound.value:
            best_bound = own_bound
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
        exact_bound = self._find_exact_bound() if self.can_use_exact else None
        if exact_bound is None:
            return self._find_portfolio_bound(self.time_limit)
        is_infinite_horizon = self.context.policy_class.is_infinite_horizon
        if "is_interrupted" in exact_bound.details or not is_infinite_horizon:
            return exact_bound
        # a bound on every policy is worth some time in any case
        is_closed = exact_bound.gap(self.solution.value) <= OPTIMALITY_GAP
        time_left = max(
            (1 - EXACT_TIME_SHARE) * self.time_limit,
            0.0 if is_closed else self.time_limit - exact_bound.seconds,
        )
        portfolio_bound = self._find_portfolio_bound(time_left, exact_bound)
        if portfolio_bound.value < exact_bound.value:
            return portfolio_bound
        bounds = {
            "oracle": portfolio_bound.details["bounds_by_method"]["oracle"],
            portfolio_bound.method: portfolio_bound.value,
        }
        return replace(
            exact_bound,
            details={**portfolio_bound.details, "bounds_by_method": bounds},
            seconds=exact_bound.seconds + portfolio_bound.seconds,
        )

    def _find_portfolio_bound(self, time_limit: float, exact_bound: Bound = NO_BOUND) -> Bound:
        """Search a bound on all Markov policies, or on all policies if this one has a memory."""
        solution, context = self.solution, self.context
        objective, method = solution.objective, "best"
        if solution.policy.memory_note:
            method = choose_history_method(context.model.problem, objective)
        return search_bound(
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
        details: dict[str, object] = {
            "bounds_by_method": bounds,
            "n_nodes": exact_details["n_nodes"],
        }
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
            exact_context.stopwatch.elapsed,
        )

    def compute_tolerance(self, new_bound: Bound, best_bound: Bound) -> float:
        """Compute the difference of bound and value at which the solution counts as optimal."""
        solution, context = self.solution, self.context
        objective, weights = context.objective, context.model.weights
        returns = objective.relative_returns(solution.returns, lambda: solution.evaluation.oracle)
        gap_tolerance = closed_form.GapTolerance(context.model.problem, context.effective_horizon)
        tolerance = gap_tolerance(
            OPTIMALITY_GAP,
            solution.value,
            new_bound.details.get("bounds_by_method", {}).get("oracle", best_bound.value),
            lambda error: float(objective.value(returns + error, weights)),
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
