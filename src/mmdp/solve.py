"""The front door: solve() and evaluate(), and the quantities of the paper's first theorem."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp._version import __version__
from mmdp.arguments import Read, Seconds, Seed, checked
from mmdp.certify import certified, check_certify
from mmdp.checkpoint import Checkpoint
from mmdp.clock import Callback, answer
from mmdp.errors import InputError
from mmdp.kernels import Kernel, Plan
from mmdp.methods import METHODS, Context, Method, Outcome
from mmdp.methods.table import asked
from mmdp.model import MMDP
from mmdp.objective import Function, Objective, as_objective
from mmdp.policy import (
    MarkovPolicy,
    Planner,
    PolicyKind,
    followed,
    markov_policy,
)
from mmdp.policy.tree import Planted
from mmdp.search.context import early
from mmdp.search.unreached import filled
from mmdp.simulate import simulate
from mmdp.solution import Bound, Evaluation, Optimum, Provenance, Solution, Status
from mmdp.validate import check_extent, check_whole_model
from mmdp.words import suggested

Array = npt.NDArray[np.float64]
P = ParamSpec("P")
T = TypeVar("T")


def _by_name(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse an argument that does not exist with the nearest one, or the method that has it."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        unknown = next((name for name in given if name not in known), None)
        if unknown is None:
            return function(*args, **given)
        values: dict[str, Any] = {**dict(zip(known, args, strict=False)), **given}
        method: Any = type(read_method(values.get("method", "cadp")))
        own = f"method={'mmdp.' * method.__module__.startswith('mmdp.')}{method.__name__}"
        options = [x.name for x in dataclasses.fields(method)]
        if unknown in options:
            raise InputError(f"{unknown} is an option of the method; give {own}({unknown}=...)")
        others = f"; those of the method, {', '.join(options)}, go into {own}(...)"
        raise InputError(
            f"solve() has no argument {suggested(unknown, known)}{others if options else ''}"
        )

    return call


@_by_name
@checked
def solve(
    model: MMDP,
    horizon: float | None = None,
    method: Read[str | Method] = "cadp",
    *,
    objective: str | Objective | Function = "mean",
    policy: Read[str | PolicyKind | None] = None,
    backend: str | Kernel = "auto",
    seed: Seed = 0,
    time_limit: Seconds | None = None,
    certify: bool | Seconds = False,
    checkpoint: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
) -> Solution:
    """Compute one policy for all models.

    Parameters
    ----------
    model
        The multi-model MDP.
    horizon
        Number of decisions T; optional for a time-varying model, which has its own.
        ``math.inf``: there is no last decision, and the policy depends on the state alone.
    method
        A name, or a method with options such as ``mmdp.CADP(init="mvp", starts=16)``.
        :func:`mmdp.methods.capabilities` lists the names and what each method can do.
    objective
        What counts over the models: ``mmdp.CVaR(0.1)``, ``mmdp.WorstCase().of_regret()``, their
        text such as ``"cvar:0.1"``, or a function of (returns (..., M), weights (M,)) that
        gives values (...). See :mod:`mmdp.objective`. The solution's value, bound and gap are
        those of the objective; its ``evaluation`` has the mean.
    policy
        What a decision may depend on: ``"markov"`` (the time and the state),
        :class:`mmdp.Memory` (a few nodes too), :class:`mmdp.Stationary` (the state alone),
        :class:`mmdp.Tied`, :class:`mmdp.Monotone`, :class:`mmdp.Fixed` or :class:`mmdp.Tree`. By
        default what the method finds first, which is ``"markov"`` for most, and ``"stationary"``
        if the horizon is infinite.
    backend
        ``"auto"``, ``"numba"``, ``"numpy"``, ``"jax"`` or a kernel.
    seed
        Seed of every random choice.
    time_limit
        Seconds after which the best policy so far is returned, with its status.
    certify
        Compute a proven upper bound too (see :func:`mmdp.bound`): ``True``, or the seconds to
        spend on it. The solution then has ``certificate``, ``bound`` and ``gap``, and status
        OPTIMAL if the gap closes. Its ``seconds`` include those of the proof.
    checkpoint
        A ``.json`` file that keeps the best policy so far, as :func:`mmdp.load_policy` reads it.
        It is written every so often and at the end. If it is there already, the solve starts
        from its policy and never ends below it. It is refused if it belongs to another problem.
        If it cannot be written, there is a warning and the solve goes on.
    callback
        Called with a :class:`mmdp.Progress` after each iteration, and with the bound so far
        while it is proven.

    Where no model goes, a policy of time and state, or a stationary one, takes the action that is
    best under the weights of the models given the rest, as WSU does. It changes no return.
    ``details["unreached"]``, (T, S) or (S,), says where that is; it is left out if that is nowhere.

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
    chosen = read_method(method)
    question = asked(chosen, model, horizon, as_objective(objective), policy)
    kind, steps = question.kind, question.steps
    kind.check(model, steps)
    check_extent(model.problem, steps, chosen.bytes_held(question))
    passes = kind.passes(chosen.passes(model.problem, steps))
    kernel = kernels.get(backend, model.problem, steps, passes=passes)
    context = Context(
        model, steps, kernel, method=chosen.name, kind=kind, objective=question.objective,
        seed=seed, time_limit=time_limit, callback=callback,
    )  # fmt: skip
    check_certify(certify, chosen, question.objective, model, steps)
    if checkpoint is not None:
        check_whole_model(model.problem, "a checkpoint", ["leave it out"])
    outcome = _run(chosen, context) if checkpoint is None else _kept(chosen, context, checkpoint)
    return certified(_finish(outcome, chosen, context), context, certify, backend, callback)


@checked
def evaluate(
    policy: Read[Planner | Solution],
    model: MMDP,
    *,
    episodes: int | None = None,
    seed: Seed = 0,
    backend: str | Kernel = "auto",
) -> Evaluation:
    """The return of a policy on every model of a problem.

    Exact, unless you ask for ``episodes`` per model; planners with a belief are always
    simulated, with error bars (see :func:`mmdp.simulate`). ``model`` may hold other models
    than those the policy was computed from, such as test models. Regret against each model's
    own optimum is computed when first asked for.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.evaluate(mmdp.MarkovPolicy([[0], [1]]), one).mean
    3.5
    """
    oracle = "Oracle has one policy per model and is evaluated by solving the models at hand"
    known = followed(policy, "evaluate() needs a policy", oracle)
    known.check(model)
    kind = known.kind
    steps = kind.steps(model, math.inf) if kind.endless else int(known.horizon)
    check_extent(model.problem, steps)
    kernel = kernels.get(backend, model.problem, steps, passes=2)
    context = Context(model, steps, kernel, method="evaluate", kind=kind, seed=seed)
    if known.exact and episodes is None:
        returns = known.returns(model, kernel)
        return _evaluation(context, returns, _provenance(context, {}))
    report = simulate(known, model, episodes=episodes, seed=seed, backend=backend)
    outcome = Outcome(known, Status.COMPLETED, 1, errors=report.errors, details=report.details)
    return _evaluation(context, report.returns, _provenance(context, {}), outcome)


@checked
def model_weights(
    policy: Read[MarkovPolicy | Solution], model: MMDP, *, backend: str | Kernel = "auto"
) -> Array:
    """(T, M, S) model weights b_{t,m}(s) = P[model is m, state at t is s] (definition 4.1).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> mmdp.model_weights(mmdp.MarkovPolicy([[0, 0], [0, 0]]), one)[1].tolist()
    [[0.5, 0.5]]
    """
    policy = markov_policy(policy, "model weights need")
    policy.check(model)
    b = _plan(backend, model, policy).forward(policy.table_for(model))
    return np.moveaxis(b, 2, 1)


@checked
def gradient(
    policy: Read[MarkovPolicy | Solution], model: MMDP, *, backend: str | Kernel = "auto"
) -> Array:
    """(T, S, A) gradient of the return, d rho / d pi_t(s, a) (the paper's first theorem).

    Equals gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a); NaN for actions that are not allowed.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.gradient(mmdp.MarkovPolicy([[0], [1]]), one).tolist()
    [[[3.5, 4.5]], [[1.0, 1.5]]]
    """
    policy = markov_policy(policy, "the gradient needs")
    policy.check(model)
    plan, table = _plan(backend, model, policy), policy.table_for(model)
    b = plan.forward(table)
    found = plan.backward("given", policy=table, weights=b, keep=("gradient",))
    scale = model.discount ** np.arange(policy.horizon)[:, None, None].astype(float)
    return scale * np.where(model.allowed, found.gradient, np.nan)


def _plan(backend: str | Kernel, model: MMDP, policy: MarkovPolicy) -> Plan:
    kernel = kernels.get(backend, model.problem, policy.horizon, passes=2)
    return kernel.plan(model.problem, policy.horizon)


def read_method(method: str | Method) -> Method:
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(
                f"no method is called {suggested(method, METHODS)}; choose one of "
                f"{', '.join(METHODS)}"
            )
        return METHODS[method]()
    chosen = method() if isinstance(method, type) else method
    if not isinstance(chosen, Method):
        raise InputError(
            f"method must be a name or an object of a class derived from mmdp.methods.Method, "
            f"not {method!r}"
        )
    return chosen


def _run(method: Method, context: Context) -> Outcome:
    with context.ending() as end, context.holding():
        outcome = method.run(context)
    if end.stop is not None:
        details = dict(context.details)
        outcome = Outcome(context.best_policy, early(end), context.iterations, details=details)
    if outcome.status is Status.INTERRUPTED:
        answer(end.stop)
    return outcome


def _kept(method: Method, context: Context, file: str | os.PathLike[str]) -> Outcome:
    """Run from the policy in the file, if there is one, and keep the best there."""
    checkpoint = Checkpoint(file, context, method)
    checkpoint.resume()
    context.callback = checkpoint.watch(context.callback)
    try:
        return checkpoint.at_least(_run(method, context))
    finally:
        checkpoint.write()


def _simulated(outcome: Outcome, context: Context) -> Outcome:
    """The planner with its simulated return on its own models."""
    report = simulate(
        outcome.policy, context.model, episodes=outcome.episodes, seed=context.seed or 0,
        backend=context.kernel, check_time=context.time.check,
    )  # fmt: skip
    status: Status = outcome.status
    if report.details["episodes"] < report.details["episodes_wanted"]:
        early = "interrupted" in report.details
        status = Status.INTERRUPTED if early else Status.TIME_LIMIT
    return dataclasses.replace(
        outcome, returns=report.returns, errors=report.errors, details=report.details,
        status=status,
    )  # fmt: skip


def _evaluated(outcome: Outcome, context: Context) -> Outcome:
    """The outcome with the returns of its table, if it has one."""
    table = outcome.policy.table if isinstance(outcome.policy, Planted) else outcome.policy
    if outcome.returns is not None or not isinstance(table, np.ndarray):
        return outcome
    return outcome.but(returns=context.returns(table))


def _finish(outcome: Outcome, method: Method, context: Context) -> Solution:
    if not getattr(outcome.policy, "exact", True):
        outcome = _simulated(outcome, context)
    else:
        outcome = _evaluated(outcome, context)
        outcome = outcome if method.complete else filled(context, outcome)
    returns, policy = outcome.returns, outcome.policy
    if isinstance(policy, (np.ndarray, tuple)):
        policy = context.kind.policy_of(context.model, policy)
    if returns is None:
        assert policy is not None
        returns = policy.returns(context.model, context.kernel)
    provenance = _provenance(context, _options(method))
    evaluation = _evaluation(context, returns, provenance, outcome)
    value = context.worth(returns)
    proven, certificate = outcome.details.get("bound"), None
    if proven is not None:
        certificate = Bound(
            proven,
            method.name,
            _bounded(outcome, context.kind),
            seconds=provenance.seconds,
            objective=context.objective,
        )
    return Solution(
        policy=policy,
        value=value,
        returns=returns,
        status=outcome.status,
        iterations=outcome.iterations,
        trace=np.array(outcome.trace or context.trace or [value]),
        provenance=provenance,
        evaluation=evaluation,
        certificate=certificate,
        policies=outcome.policies,
        details=outcome.details,
    )


def _bounded(outcome: Outcome, kind: PolicyKind) -> Optimum:
    """Which policies a method has proven its bound for."""
    plain = "stationary" if kind.endless else "markov"
    return cast("Optimum", kind.proven or outcome.details.get("bounds", plain))


def _options(method: Method) -> dict[str, Any]:
    """The options of a method, by name (arrays and policies as they are)."""
    if not dataclasses.is_dataclass(method):
        return {}
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


def _provenance(context: Context, options: dict[str, Any]) -> Provenance:
    return Provenance(
        method=context.method, options=options,
        horizon=math.inf if context.kind.endless else context.horizon, policy=context.kind,
        backend=context.kernel.name, seed=context.seed, version=__version__,
        seconds=context.time.seconds, objective=context.objective,
    )  # fmt: skip


def _evaluation(
    context: Context, returns: Array, provenance: Provenance, outcome: Outcome | None = None
) -> Evaluation:
    model = context.model

    def oracle() -> Array:
        # an optimum that rounding puts below an exact return is as high as that
        exact = outcome is None or outcome.errors is None
        return np.maximum(context.own(), returns) if exact else context.own()

    returns.setflags(write=False)
    return Evaluation(
        returns=returns,
        weights=model.weights,
        errors=None if outcome is None else outcome.errors,
        details={} if outcome is None else outcome.details,
        model_labels=model.model_labels if model.labelled["model"] else None,
        provenance=provenance,
        _oracle=oracle,
    )
