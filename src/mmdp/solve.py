"""The front door: solve() and evaluate(), and the quantities of the paper's first theorem."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp._version import __version__
from mmdp.errors import InputError
from mmdp.interrupts import Held
from mmdp.kernels import Kernel
from mmdp.methods import METHODS, Callback, Context, Method, Oracle, Outcome
from mmdp.methods.base import Stop
from mmdp.methods.belief import BeliefPlanner
from mmdp.methods.table import check_gives_table, check_maximises, check_spreads
from mmdp.model import MMDP
from mmdp.objective import Function, Objective, as_objective
from mmdp.policy import MarkovPolicy, Planner
from mmdp.simulate import simulate
from mmdp.solution import Bound, Evaluation, Provenance, Solution, Status
from mmdp.validate import (
    check_extent,
    check_horizon,
    check_seed,
    check_time_limit,
    check_whole_model,
)

Array = npt.NDArray[np.float64]

PROVEN = 1e-9  # relative gap at which a policy counts as proven optimal


def solve(
    model: MMDP,
    horizon: int | None = None,
    method: str | Method = "cadp",
    *,
    objective: str | Objective | Function = "mean",
    backend: str | Kernel = "auto",
    seed: int | None = 0,
    time_limit: float | None = None,
    certify: bool | float = False,
    callback: Callback | None = None,
) -> Solution:
    """Compute one policy for all models.

    Parameters
    ----------
    model
        The multi-model MDP.
    horizon
        Number of decisions T; optional for a time-varying model, which has its own.
    method
        A name, or a method with options such as ``mmdp.CADP(init="mvp", starts=16)``.
        :func:`mmdp.methods.capabilities` lists the names and what each method can do.
    objective
        What counts over the models: ``mmdp.CVaR(0.1)``, ``mmdp.WorstCase().of_regret()``, their
        text such as ``"cvar:0.1"``, or a function of (returns (..., M), weights (M,)) that
        gives values (...). See :mod:`mmdp.objective`. The solution's value, bound and gap are
        those of the objective; its ``evaluation`` has the mean.
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
    callback
        Called with a :class:`mmdp.Progress` after each iteration.

    Ctrl-C returns the best policy so far, if there is one, with status INTERRUPTED.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1], [1.0, 0.0]], [[0.0, 1.0], [0.8, 0.2]]],
    ...      [[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.8, 0.2]]]]
    >>> model = mmdp.MMDP(P, [[10.0, 8.0], [0.0, -5.0]], initial=[1, 0], discount=0.9)
    >>> solution = mmdp.solve(model, horizon=10)
    >>> solution.policy.actions[:, 1].tolist()
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    """
    if not isinstance(model, MMDP):
        raise InputError(
            f"solve() needs an MMDP, not {type(model).__name__}; use mmdp.load(path) for files"
        )
    chosen, maximised = _read_method(method), as_objective(objective)
    check_maximises(chosen, maximised)
    check_spreads(chosen, maximised, model.problem)
    steps = check_horizon(model.horizon, horizon)
    check_time_limit(time_limit)
    check_seed(seed)
    check_extent(model.problem, steps, chosen.bytes_held(model.problem, steps))
    kernel = kernels.get(backend, model.problem, steps, passes=chosen.passes(model.problem, steps))
    context = Context(
        model, steps, kernel, method=chosen.name, seed=seed, time_limit=time_limit,
        callback=callback, objective=maximised,
    )  # fmt: skip
    _check_certify(certify, chosen, model)
    outcome = _run(chosen, context)
    solution = _finish(outcome, chosen, context)
    if certify:
        solution = _certified(solution, model, certify, backend)
    return _signed(solution, model)


def evaluate(
    policy: MarkovPolicy | Planner | Solution,
    model: MMDP,
    *,
    episodes: int | None = None,
    seed: int | None = 0,
    backend: str | Kernel = "auto",
) -> Evaluation:
    """The return of a policy on every model of a problem.

    Exact for Markov policies, unless you ask for ``episodes`` per model. Planners are
    simulated, with error bars (see :func:`mmdp.simulate`). ``model`` may hold other models
    than those the policy was computed from, such as test models. Regret against each model's
    own optimum is computed when first asked for.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.evaluate(mmdp.MarkovPolicy([[0], [1]]), one).mean
    3.5
    """
    if isinstance(policy, Solution):
        policy = policy.policy
    if not isinstance(policy, (MarkovPolicy, Planner)):
        raise InputError(
            f"evaluate() needs a policy, not {type(policy).__name__}; Oracle has one policy per "
            "model and is evaluated by solving the models at hand"
        )
    check_extent(model.problem, policy.horizon)
    kernel = kernels.get(backend, model.problem, policy.horizon, passes=2)
    context = Context(model, policy.horizon, kernel, method="evaluate", seed=seed)
    if isinstance(policy, MarkovPolicy) and episodes is None:
        policy.check(model)
        returns = context.returns(policy.table_for(model))
        return _evaluation(context, returns, _provenance(context, {}))
    report = simulate(policy, model, episodes=episodes, seed=seed, backend=backend)
    outcome = Outcome(policy, Status.COMPLETED, 1, errors=report.errors, details=report.details)
    return _evaluation(context, report.returns, _provenance(context, {}), outcome)


def model_weights(policy: MarkovPolicy, model: MMDP, *, backend: str | Kernel = "auto") -> Array:
    """(T, M, S) model weights b_{t,m}(s) = P[model is m, state at t is s] (definition 4.1).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> mmdp.model_weights(mmdp.MarkovPolicy([[0, 0], [0, 0]]), one)[1].tolist()
    [[0.5, 0.5]]
    """
    policy.check(model)
    kernel, table = _kernel(backend, model, policy), policy.table_for(model)
    b = kernel.forward(model.problem, policy.horizon, table)
    return np.moveaxis(b, 2, 1)


def gradient(policy: MarkovPolicy, model: MMDP, *, backend: str | Kernel = "auto") -> Array:
    """(T, S, A) gradient of the return, d rho / d pi_t(s, a) (the paper's first theorem).

    Equals gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a); NaN for actions that are not allowed.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.gradient(mmdp.MarkovPolicy([[0], [1]]), one).tolist()
    [[[3.5, 4.5]], [[1.0, 1.5]]]
    """
    policy.check(model)
    kernel, table = _kernel(backend, model, policy), policy.table_for(model)
    b = kernel.forward(model.problem, policy.horizon, table)
    found = kernel.backward(
        model.problem, policy.horizon, "given", policy=table, weights=b, keep=("gradient",)
    )
    assert found.gradient is not None
    scale = model.discount ** np.arange(policy.horizon)[:, None, None].astype(float)
    return scale * np.where(model.allowed, found.gradient, np.nan)


def _kernel(backend: str | Kernel, model: MMDP, policy: MarkovPolicy) -> Kernel:
    return kernels.get(backend, model.problem, policy.horizon, passes=2)


def _read_method(method: str | Method) -> Method:
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(f"no method is called {method!r}; choose one of {', '.join(METHODS)}")
        return METHODS[method]()
    chosen = method() if isinstance(method, type) else method
    if not isinstance(chosen, Method):
        raise InputError(
            f"method must be a name or an object of a class derived from mmdp.methods.Method, "
            f"not {method!r}"
        )
    return chosen


def _run(method: Method, context: Context) -> Outcome:
    held: Any = Held() if context.problem.part is not None else nullcontext(context.interrupts)
    try:
        with held as context.interrupts:
            return method.run(context)
    except (Stop, KeyboardInterrupt) as stop:
        if context.best_policy is None:
            raise
        status = Status.TIME_LIMIT if isinstance(stop, Stop) else Status.INTERRUPTED
        return Outcome(context.best_policy, status, context.iterations)


def _simulated(outcome: Outcome, context: Context) -> Outcome:
    """The planner with its simulated return on its own models."""
    report = simulate(
        outcome.policy, context.model, episodes=outcome.episodes, seed=context.seed or 0,
        backend=context.kernel,
        check_time=None if context.deadline is None else context.check_time,
    )  # fmt: skip
    whole = report.details["episodes"] == report.details["episodes_wanted"]
    return dataclasses.replace(
        outcome, returns=report.returns, errors=report.errors, details=report.details,
        status=outcome.status if whole else Status.TIME_LIMIT,
    )  # fmt: skip


def _finish(outcome: Outcome, method: Method, context: Context) -> Solution:
    if isinstance(outcome.policy, BeliefPlanner):
        outcome = _simulated(outcome, context)
    returns, policy = outcome.returns, outcome.policy
    if isinstance(policy, np.ndarray):
        table = policy
        returns = context.returns(table) if returns is None else returns
        policy = (
            MarkovPolicy.for_model(context.model, table)
            if table.ndim == 2
            else MarkovPolicy.for_model(context.model, probabilities=table)
        )
    assert returns is not None
    provenance = _provenance(context, _options(method))
    evaluation = _evaluation(context, returns, provenance, outcome)
    value = context.worth(returns)
    proven, certificate = outcome.details.get("bound"), None
    if proven is not None:
        certificate = Bound(proven, method.name, "markov", seconds=provenance.seconds)
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


def _check_certify(certify: bool | float, method: Method, model: MMDP) -> None:
    number = isinstance(certify, (int, float, np.number))
    if not number or not (certify is False or certify > 0):
        raise InputError(f"certify must be True or a positive number of seconds, not {certify!r}")
    if certify:
        oracle = 'use mmdp.bound(model, horizon, "oracle")'
        check_whole_model(model.problem, "certify", [oracle])
        every = 'use mmdp.bound(model, horizon, "pairs"), which holds for every policy'
        check_gives_table(method, "certify bounds", every)


def _certified(
    solution: Solution, model: MMDP, certify: bool | float, backend: str | Kernel
) -> Solution:
    """The solution with what was proven: the least bound of its own and a searched one."""
    from mmdp.bounds import bound

    own = solution.certificate
    if solution.status is Status.OPTIMAL:
        known = Bound(solution.value, solution.method, "markov", seconds=solution.seconds)
        return dataclasses.replace(solution, certificate=own or known)
    limit = None if certify is True else float(certify)
    try:
        found = bound(
            model, solution.provenance.horizon, time_limit=limit, incumbent=solution,
            backend=backend,
        )  # fmt: skip
    except KeyboardInterrupt:  # before any bound was found: the policy is kept
        return dataclasses.replace(solution, status=Status.INTERRUPTED)
    least = found if own is None or found.value < own.value else own
    status: Status = solution.status
    if least.gap(solution.value) <= PROVEN:
        status = Status.OPTIMAL
    elif "interrupted" in found.details:
        status = Status.INTERRUPTED
    seconds = solution.seconds + found.seconds
    return dataclasses.replace(
        solution, certificate=least, status=status,
        provenance=dataclasses.replace(solution.provenance, seconds=seconds),
    )  # fmt: skip


def _signed(solution: Solution, model: MMDP) -> Solution:
    """The solution with the models named in what was proven about it."""
    if solution.certificate is None:
        return solution
    signed = dataclasses.replace(solution.certificate, model=model.fingerprint())
    return dataclasses.replace(solution, certificate=signed)


def _options(method: Method) -> dict[str, Any]:
    """The options of a method, by name (arrays and policies as they are)."""
    if not dataclasses.is_dataclass(method):
        return {}
    return {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}


def _provenance(context: Context, options: dict[str, Any]) -> Provenance:
    return Provenance(
        method=context.method, options=options, horizon=context.horizon,
        backend=context.kernel.name, seed=context.seed, version=__version__,
        seconds=context.seconds, objective=context.objective,
    )  # fmt: skip


def _evaluation(
    context: Context, returns: Array, provenance: Provenance, outcome: Outcome | None = None
) -> Evaluation:
    model = context.model

    def oracle() -> Array:
        fresh = Context(model, context.horizon, context.kernel, method="oracle")
        found = Oracle(keep_policies=False).run(fresh).returns
        assert found is not None
        return found

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
