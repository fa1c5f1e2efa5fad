"""The front door: solve() and evaluate(), and the quantities of the paper's first theorem."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp._version import __version__
from mmdp.bounds.envelope import check_bounded
from mmdp.checkpoint import Checkpoint
from mmdp.errors import InputError
from mmdp.interrupts import Held, answer
from mmdp.kernels import Kernel
from mmdp.kernels.controller import Controller
from mmdp.kernels.endless import Endless
from mmdp.methods import METHODS, Callback, Context, Method, Oracle, Outcome, Rollout
from mmdp.methods.base import Progress, Stop
from mmdp.methods.belief import BeliefPlanner
from mmdp.methods.exact import Exact
from mmdp.methods.table import (
    check_finds,
    check_gives_table,
    check_maximises,
    check_plans_for,
    check_spreads,
    markov_policy,
)
from mmdp.methods.unreached import filled
from mmdp.model import MMDP
from mmdp.objective import KINDS, Function, Mean, Objective, as_objective
from mmdp.policy import (
    Belief,
    ExactPolicy,
    Markov,
    MarkovPolicy,
    MemoryPolicy,
    Planner,
    PolicyKind,
    Stationary,
    read_kind,
)
from mmdp.simulate import simulate
from mmdp.solution import Bound, Evaluation, Provenance, Solution, Status
from mmdp.validate import check_extent, check_seed, check_time_limit, check_whole_model

Array = npt.NDArray[np.float64]

HINT_EPISODES = 2000  # simulated in all, to see whether memory would pay
HINT_NUMBERS = 300_000  # T S A M per second of a proof, up to which it takes little of that
TREE = 0.8  # of the time of a proof for the tree of exact, if the horizon is infinite
PROVEN = 1e-9  # relative gap at which a policy counts as proven optimal


def solve(
    model: MMDP,
    horizon: float | None = None,
    method: str | Method = "cadp",
    *,
    objective: str | Objective | Function = "mean",
    policy: str | PolicyKind | None = None,
    backend: str | Kernel = "auto",
    seed: int | None = 0,
    time_limit: float | None = None,
    certify: bool | float = False,
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
        ``math.inf``: there is no last decision, and the policy is stationary.
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
        :class:`mmdp.Tied`, :class:`mmdp.Monotone` or :class:`mmdp.Fixed`. By default what the
        method finds first, which is ``"markov"`` for most, and ``"stationary"`` if the horizon is
        infinite.
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

    Ctrl-C returns the best policy so far, if there is one, with status INTERRUPTED: a loop over
    solves asks for it. The next Ctrl-C raises KeyboardInterrupt.

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
    chosen, maximised = read_method(method), as_objective(objective)
    check_maximises(chosen, maximised)
    check_plans_for(chosen, maximised, model)
    kind = _read_kind(policy, horizon, chosen)
    check_spreads(chosen, maximised, kind, model.problem)
    steps = kind.steps(model, horizon)
    check_time_limit(time_limit)
    check_seed(seed)
    kind.check(model, steps)
    check_extent(model.problem, steps, chosen.bytes_held(model.problem, steps))
    passes = chosen.passes(model.problem, steps) + kind.more_passes
    kernel = kernels.get(backend, model.problem, steps, passes=passes)
    context = Context(
        model, steps, kernel, method=chosen.name, kind=kind, objective=maximised, seed=seed,
        time_limit=time_limit, callback=callback,
    )  # fmt: skip
    _check_certify(certify, chosen, maximised, model)
    if checkpoint is not None:
        check_whole_model(model.problem, "a checkpoint", ["leave it out"])
    outcome = _run(chosen, context) if checkpoint is None else _kept(chosen, context, checkpoint)
    solution = _of_one_model(_finish(outcome, chosen, context), model)
    if certify and solution.status is not Status.INTERRUPTED:
        solution = _certified(solution, model, certify, backend, callback)
    return _signed(solution, model)


def evaluate(
    policy: ExactPolicy | Planner | Solution,
    model: MMDP,
    *,
    episodes: int | None = None,
    seed: int | None = 0,
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
    if isinstance(policy, Solution):
        policy = policy.policy
    if not isinstance(policy, (ExactPolicy, Planner)):
        raise InputError(
            f"evaluate() needs a policy, not {type(policy).__name__}; Oracle has one policy per "
            "model and is evaluated by solving the models at hand"
        )
    kind = policy.kind if isinstance(policy, ExactPolicy) else Belief()
    steps = kind.steps(model, math.inf) if kind.endless else int(policy.horizon)
    check_extent(model.problem, steps)
    kernel = kernels.get(backend, model.problem, steps, passes=2)
    context = Context(model, steps, kernel, method="evaluate", kind=kind, seed=seed)
    if isinstance(policy, ExactPolicy) and episodes is None:
        policy.check(model)
        returns = policy.returns(model, kernel)
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
    policy = markov_policy(policy, "model weights need")
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
    policy = markov_policy(policy, "the gradient needs")
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


def read_method(method: str | Method) -> Method:
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


def _read_kind(
    policy: str | PolicyKind | None, horizon: float | None, method: Method
) -> PolicyKind:
    """The kind of policy that is asked for.

    By default stationary if the horizon is infinite, else the first that the method finds.
    """
    endless = policy is None and horizon == math.inf
    if policy is None and not (endless and method.policies):
        alone = Stationary() if endless else Markov()  # Oracle's policies are of no kind
        return read_kind(method.policies[0]) if method.policies else alone
    kind = Stationary() if policy is None else read_kind(policy)
    check_finds(method, kind)
    return kind


def _run(method: Method, context: Context) -> Outcome:
    held: Any = Held() if context.problem.part is not None else nullcontext(context.interrupts)
    try:
        with held as context.interrupts:
            outcome = method.run(context)
        if outcome.status is Status.INTERRUPTED:  # the method noticed it itself
            answer(KeyboardInterrupt())
        return outcome
    except (Stop, KeyboardInterrupt) as stop:
        if context.best_policy is None:
            raise
        answer(stop)
        status = Status.TIME_LIMIT if isinstance(stop, Stop) else Status.INTERRUPTED
        details = dict(context.details)
        return Outcome(context.best_policy, status, context.iterations, details=details)


def _kept(method: Method, context: Context, file: str | os.PathLike[str]) -> Outcome:
    """Run from the policy in the file, if there is one, and keep the best there."""
    checkpoint = Checkpoint(file, context, method)
    resumed = checkpoint.resume(method)
    context.callback = checkpoint.watch(context.callback)
    try:
        return checkpoint.at_least(_run(resumed, context))
    finally:
        checkpoint.write()


def _simulated(outcome: Outcome, context: Context) -> Outcome:
    """The planner with its simulated return on its own models."""
    report = simulate(
        outcome.policy, context.model, episodes=outcome.episodes, seed=context.seed or 0,
        backend=context.kernel, check_time=context.check_time,
    )  # fmt: skip
    status: Status = outcome.status
    if report.details["episodes"] < report.details["episodes_wanted"]:
        early = "interrupted" in report.details
        status = Status.INTERRUPTED if early else Status.TIME_LIMIT
    return dataclasses.replace(
        outcome, returns=report.returns, errors=report.errors, details=report.details,
        status=status,
    )  # fmt: skip


def _finish(outcome: Outcome, method: Method, context: Context) -> Solution:
    if isinstance(outcome.policy, BeliefPlanner):
        outcome = _simulated(outcome, context)
    elif not method.complete:
        outcome = filled(context, outcome)
    returns, policy = outcome.returns, outcome.policy
    if isinstance(policy, (np.ndarray, Controller)):
        policy = context.kind.policy_of(context.model, policy)
    if returns is None:
        assert isinstance(policy, ExactPolicy)
        returns = policy.returns(context.model, context.kernel)
    provenance = _provenance(context, _options(method))
    evaluation = _evaluation(context, returns, provenance, outcome)
    value = context.worth(returns)
    proven, certificate = outcome.details.get("bound"), None
    if proven is not None:
        certificate = Bound(
            proven,
            method.name,
            outcome.details.get("bounds", "stationary" if context.kind.endless else "markov"),
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


def _check_certify(
    certify: bool | float, method: Method, objective: Objective, model: MMDP
) -> None:
    number = isinstance(certify, (int, float, np.number))
    if not number or not (certify is False or certify > 0):
        raise InputError(f"certify must be True or a positive number of seconds, not {certify!r}")
    if certify:
        oracle = 'use mmdp.bound(model, horizon, "oracle")'
        check_whole_model(model.problem, "certify", [oracle])
        every = 'use mmdp.bound(model, horizon, "pairs"), which holds for every policy'
        check_gives_table(method, "certify bounds", every)
        check_bounded(objective)


def _certified(
    solution: Solution, model: MMDP, certify: bool | float, backend: str | Kernel,
    callback: Callback | None,
) -> Solution:  # fmt: skip
    """The solution with what was proven: the least bound of its own and a searched one."""
    from mmdp.bounds import closed
    from mmdp.bounds.front import SECONDS

    own, T = solution.certificate, solution.provenance.horizon
    if solution.status is Status.OPTIMAL and own is not None:
        return solution
    limit = SECONDS if certify is True else float(certify)
    try:
        found = _searched(solution, model, limit, backend, callback)
    except KeyboardInterrupt as stop:  # before any bound was found: the policy is kept
        answer(stop)
        return dataclasses.replace(solution, status=Status.INTERRUPTED)
    least = found if own is None or found.value < own.value else own
    _check_above(least, solution)
    status: Status = solution.status
    oracle = found.details.get("bounds", {}).get("oracle", least.value)
    F = solution.objective
    rho = F.counted(solution.returns, lambda: solution.evaluation.oracle)
    near = closed.closing(
        PROVEN, solution.value, oracle, model.problem, T,
        lambda error: float(F.value(rho + error, model.weights)),
    )  # fmt: skip
    if solution.provenance.policy.endless and solution.objective == Mean():
        near = max(near, 3 * _rounding(model, T))
    if least.value - solution.value <= near:
        status = Status.OPTIMAL
    elif "interrupted" in found.details and status is not Status.OPTIMAL:
        status = Status.INTERRUPTED
    seconds = solution.seconds + found.seconds
    return dataclasses.replace(
        solution, certificate=least, status=status,
        details={**solution.details, **_memory_gain(solution, model, limit)},
        provenance=dataclasses.replace(solution.provenance, seconds=seconds),
    )  # fmt: skip


def _searched(
    solution: Solution, model: MMDP, seconds: float, backend: str | Kernel,
    callback: Callback | None,
) -> Bound:  # fmt: skip
    """The least bound of a search; of two if the horizon is infinite.

    ``details["bounds"]`` has what was proven about every Markov policy.
    """
    from mmdp.bounds.front import bound

    T, tree, left = solution.provenance.horizon, None, seconds
    if solution.provenance.policy.endless and solution.objective == Mean():
        tree = _by_tree(solution, model, TREE * seconds, backend, callback)
    if tree is not None:
        if "interrupted" in tree.details:
            return tree
        # what every policy can reach at most is worth some time in any case
        done = tree.gap(solution.value) <= PROVEN
        left = max((1 - TREE) * seconds, 0.0 if done else seconds - tree.seconds)
    # the bounds on Markov policies do not hold for those that remember
    remembers = isinstance(solution.policy, MemoryPolicy)
    every = "pairs" if solution.objective.concave else "oracle"
    found = bound(
        model, T,
        every if remembers and not model.drifts else "best",
        time_limit=left, incumbent=solution.value if remembers else solution,
        backend=backend, objective=solution.objective,
        callback=None if callback is None else _proving(solution, callback, tree),
    )  # fmt: skip
    if tree is None or found.value < tree.value:
        return found
    bounds = {"oracle": found.details["bounds"]["oracle"], found.method: found.value}
    return dataclasses.replace(
        tree, details={**found.details, "bounds": bounds}, seconds=tree.seconds + found.seconds
    )


def _by_tree(
    solution: Solution, model: MMDP, seconds: float, backend: str | Kernel,
    callback: Callback | None,
) -> Bound | None:  # fmt: skip
    """What ``exact`` proves of deterministic stationary policies; None if it is not for them."""
    told = None if callback is None else _proving(solution, callback)
    try:
        found = solve(
            model, math.inf, Exact(gap=PROVEN), time_limit=seconds, backend=backend,
            callback=told,
        )  # fmt: skip
    except (InputError, Stop):  # too large for it, or for the time
        return None
    assert found.certificate is not None
    rho = solution.evaluation
    details: dict[str, Any] = {"bounds": {"oracle": float(rho.oracle @ rho.weights)}}
    if found.status is Status.INTERRUPTED:
        details["interrupted"] = True
    # no policy at hand is above what is proven
    most = max(found.certificate.value, solution.value + _rounding(model, math.inf))
    return dataclasses.replace(found.certificate, value=most, details=details)


def _rounding(model: MMDP, horizon: float) -> float:
    """The most by which rounding can have lowered a value."""
    from mmdp.bounds import closed

    x = model.problem
    return Endless(x).rounding() if horizon == math.inf else closed.rounding(x, horizon)


def _of_one_model(solution: Solution, model: MMDP) -> Solution:
    """Proven optimal if it is the optimum of the only model: then no objective has a better one."""
    F: Any = solution.objective
    plain = getattr(F, "inner", F).kind in KINDS
    if model.n_models > 1 or solution.status is not Status.LOCAL_OPTIMUM or not plain:
        return solution
    missing = float(solution.evaluation.regret[0])
    if missing > 2 * _rounding(model, solution.provenance.horizon):
        return solution
    return dataclasses.replace(solution, status=Status.OPTIMAL)


def _check_above(bound: Bound, solution: Solution) -> None:
    """Refuse a function of the user that is above its bound: it is not monotone."""
    F, scale = solution.objective, max(abs(bound.value), abs(solution.value))
    if F.kind == "custom" and solution.value - bound.value > PROVEN * scale:
        raise InputError(
            f"{F} is {solution.value:.6g}, above its bound {bound.value:.6g}, so it is not "
            "monotone: a value falls when a return rises; ask for no certificate"
        )


def _proving(
    solution: Solution, callback: Callback, known: Bound | None = None
) -> Callable[[Any], object]:
    """A callback of bound(), or of exact, that tells a callback of solve()."""
    value, count = solution.value, solution.iterations
    most, spent = (math.inf, 0.0) if known is None else (known.value, known.seconds)

    def told(p: Any) -> None:
        bound = p.bound if isinstance(p, Progress) else min(most, p.value)
        seconds = solution.seconds + spent + p.seconds
        callback(Progress(solution.method, count, value, value, seconds, bound))

    return told


def _memory_gain(solution: Solution, model: MMDP, seconds: float) -> dict[str, Any]:
    """What a policy that learns gains over this one, if a short simulation shows it clearly.

    Tried if it is short beside the ``seconds`` of the proof, by the size of the problem.
    """
    T, policy = int(min(solution.provenance.horizon, 2**31)), solution.policy
    small = T * model.n_states * model.n_actions * model.n_models <= HINT_NUMBERS * seconds
    plain = type(solution.provenance.policy) is Markov and solution.objective == Mean()
    if not (plain and small and policy.deterministic):
        return {}
    episodes = max(4, HINT_EPISODES // model.n_models)
    # numpy: the compiled episodes would compile longer than this takes
    rollout = solve(model, T, Rollout(episodes=episodes, baseline=policy), backend="numpy")
    gain, error = (rollout.details[name] for name in ("difference", "difference_stderr"))
    if gain <= max(4 * error, 1e-3 * abs(solution.value)):
        return {}
    return {"memory_gain": gain, "memory_gain_stderr": error}


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
        method=context.method, options=options,
        horizon=math.inf if context.kind.endless else context.horizon, policy=context.kind,
        backend=context.kernel.name, seed=context.seed, version=__version__,
        seconds=context.seconds, objective=context.objective,
    )  # fmt: skip


def _evaluation(
    context: Context, returns: Array, provenance: Provenance, outcome: Outcome | None = None
) -> Evaluation:
    model = context.model

    def oracle() -> Array:
        endless = context.kind if context.kind.endless else None
        fresh = Context(model, context.horizon, context.kernel, method="oracle", kind=endless)
        found = Oracle(keep_policies=False).run(fresh).returns
        assert found is not None
        # an optimum that rounding puts below an exact return is as high as that
        exact = outcome is None or outcome.errors is None
        return np.maximum(found, returns) if exact else found

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
