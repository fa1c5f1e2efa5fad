"""solve() computes one policy for all models; evaluate() computes the returns of a policy."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import cast

import numpy as np

from mmdp._version import __version__
from mmdp.core import kernels
from mmdp.core.arguments import Seconds, Seed, Unchecked, as_instance, check_arguments
from mmdp.core.certificate import CertificateSearch, check_certifiable
from mmdp.core.checkpoint import Checkpoint
from mmdp.core.kernels import Backend
from mmdp.core.methods import METHODS, Method, MethodResult, SolveContext
from mmdp.core.methods.registry import check_supported
from mmdp.core.model import MMDP
from mmdp.core.objectives import OBJECTIVES, Objective, ObjectiveFunction, as_objective
from mmdp.core.policies import Planner, PolicyClass, as_policy
from mmdp.core.search.context import get_stop_status
from mmdp.core.search.unreachable import fill_unreachable
from mmdp.core.shapes import Array
from mmdp.core.simulate import run_simulation
from mmdp.core.solution import (
    Bound,
    BoundScope,
    Evaluation,
    Provenance,
    Solution,
    Status,
    make_evaluation,
)
from mmdp.core.timing import Callback, accept_interrupt, show_progress
from mmdp.core.validate import check_not_sharded, check_problem_size


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
    context.report_step("preparing the models")
    if certify_time is not None:
        check_certifiable(resolved_method, spec.objective, model, n_steps)
    if checkpoint is not None:
        check_not_sharded(model.problem, "a checkpoint", ["leave out checkpoint"])
        result = _run_with_checkpoint(resolved_method, context, checkpoint)
    else:
        result = _run_method(resolved_method, context)
    solution = _make_solution(result, resolved_method, context)
    if certify_time is None:
        return solution
    return CertificateSearch(solution, context, certify_time, backend).add_certificate()


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
            model_fingerprint=model.fingerprint(),
            objective=context.objective,
        )
    is_of_one_model = model.n_models == 1 and context.objective.key in OBJECTIVES
    if is_of_one_model and status is Status.LOCAL_OPTIMUM:
        # the optimum of the only model is the best policy under any objective
        max_regret = 2 * context.estimate_rounding(evaluation.returns)
        status = Status.OPTIMAL if evaluation.regret[0] <= max_regret else status
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
        horizon=context.policy_horizon,
        policy_class=context.policy_class,
        backend=context.backend.name,
        seed=context.seed,
        version=__version__,
        seconds=context.stopwatch.elapsed,
        objective=context.objective,
    )
    return replace(evaluation, provenance=provenance, _compute_oracle=compute_oracle_returns)
