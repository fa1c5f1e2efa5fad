"""CADP: coordinate ascent and dynamic programming (algorithms 1 and 2 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np

from mmdp.errors import InputError
from mmdp.methods.base import Array, Context, Outcome, Start, Table, starts_in_order
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status
from mmdp.validate import check_whole

KEEP_BYTES = 2**30  # of q kept by two-way sweeps; with more, a solve takes the paper's sweeps
AT_ONCE = 64  # starts that are made and handed to the kernel together
ROUNDING = 1e-13  # relative
_UNKNOWN = np.empty(0)  # returns that were not computed


@dataclass(frozen=True)
class CADP:
    """Alternate the model weights b of the current policy and a backward pass with them.

    The return never falls, and the result is a local maximum: no change of the action in a
    single state and time improves it.

    Parameters
    ----------
    init
        Where to start: ``"wsu"`` (as in the paper), ``"mvp"``, ``"random"``, ``"uniform"``,
        or a :class:`mmdp.MarkovPolicy`.
    starts
        Number of starts; the best result is returned. In this order: ``init``, WSU's and
        MVP's policies, then by turns a single model's optimum (models drawn by weight, each
        once) and a random policy. ``details`` has ``start_values``, ``starts`` (their
        names), ``best_start`` and ``spread`` (min, mean, max).
    tol
        Stop when an iteration gains no more than ``tol * max(1, |value|)``; 0 goes on to a
        local maximum.
    max_iterations
        Cap on the iterations of one start.
    sweeps
        ``"paper"``: a sweep is the forward pass for b and the improving backward pass of the
        paper. ``"two-way"``: from the second sweep on the forward pass improves the policy
        too, with q kept from the backward pass, which takes fewer sweeps to another, equally
        exact local maximum; and only what may have changed is computed again. The kept q are
        T * S * A * M numbers: where they are over 1 GiB, the paper's sweeps are taken.
        ``details["sweeps_taken"]`` says which.
    polish
        Seconds to spend on leaving the local maximum at the end: other actions are forced in
        one state and time, CADP climbs around them, and lets go. Never worse;
        ``details["polished"]`` is what it gained, often nothing.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, mmdp.CADP(init="mvp")).value
    7.0
    """

    init: str | MarkovPolicy = "wsu"
    starts: int = 1
    tol: float = 0.0
    max_iterations: int = 1000
    sweeps: Literal["paper", "two-way"] = "two-way"
    polish: float = 0.0

    name: ClassVar[str] = "cadp"

    def __post_init__(self) -> None:
        check_whole(self.starts, "starts")
        check_whole(self.max_iterations, "max_iterations")
        if self.sweeps not in ("paper", "two-way"):
            raise InputError(f'sweeps must be "paper" or "two-way", not {self.sweeps!r}')
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")
        if not (isinstance(self.polish, (int, float)) and self.polish >= 0):
            raise InputError(f"polish must be seconds, at least 0, not {self.polish!r}")

    def run(self, context: Context) -> Outcome:
        if context.problem.n_models == 1 and self.init == "wsu" and self.starts == 1:
            return _alone(context)
        sweeps = affordable(context, self.sweeps)
        together = AT_ONCE
        if _compiled(context):  # each has its own q there
            together = (
                max(1, KEEP_BYTES // q_bytes(context)) if sweeps == "two-way" else self.starts
            )
        starts = starts_in_order(context, self.init, self.starts)
        found: list[Ascent] = []
        names: list[str] = []
        while batch := list(islice(starts, together)):
            names += [start.name for start in batch]
            found += ascend_all(context, batch, self.tol, self.max_iterations, sweeps)
        best = max(found, key=lambda ascent: ascent.value)
        outcome = Outcome(
            best.policy, best.status, best.sweeps, returns=best.returns, trace=best.trace,
            details=_details(names, [x.value for x in found], [x.sweeps for x in found], sweeps),
        )  # fmt: skip
        return self._polished(context, outcome, best) if self.polish else outcome

    def _polished(self, context: Context, outcome: Outcome, best: Ascent) -> Outcome:
        from mmdp.methods.polish import polish

        policy, value = polish(context, best.policy, seconds=self.polish)
        details = {**outcome.details, "polished": max(value - best.value, 0.0)}
        if not value > best.value:
            return replace(outcome, details=details)
        trace = [*best.trace, value]
        return replace(outcome, policy=policy, returns=None, trace=trace, details=details)


def _alone(context: Context) -> Outcome:
    """With one model WSU's pass is backward induction: there is nothing left to improve."""
    actions, returns = context.wsu()
    value = context.mean(returns)
    context.record(actions, value, last=True)
    details = {"sweeps": 1, "sweeps_taken": "none"}
    return Outcome(
        actions, Status.LOCAL_OPTIMUM, 1, returns=returns, trace=[value], details=details
    )


def q_bytes(context: Context) -> int:
    """Bytes of q of all steps, for one start."""
    x, each = context.problem, 4 if hasattr(context.kernel, "climb") else 8
    return each * context.horizon * x.n_states * x.n_actions * x.n_models


def affordable(context: Context, sweeps: str) -> str:
    """The sweeps that are taken: the paper's where q would be too large to keep."""
    return sweeps if q_bytes(context) <= KEEP_BYTES else "paper"


def _details(names: list[str], values: list[float], made: list[int], sweeps: str) -> dict[str, Any]:
    """What a solution says about its starts."""
    best = int(np.argmax(values))
    details: dict[str, Any] = {"sweeps": made[best], "sweeps_taken": sweeps}
    if len(values) > 1:
        details |= {
            "start_values": np.array(values),
            "starts": names,
            "best_start": names[best],
            "spread": {"min": min(values), "mean": float(np.mean(values)), "max": max(values)},
            "total_sweeps": sum(made),
        }
    return details


def _compiled(context: Context) -> bool:
    """Whether the kernel runs whole ascents in one call (no clock, no callback)."""
    quiet = context.deadline is None and not context.callback
    return quiet and hasattr(context.kernel, "cadp")


def _ascend_compiled(
    context: Context, tables: list[Table | None], tol: float, max_iterations: int, sweeps: str
) -> list[Ascent]:
    """All starts in one compiled loop, for kernels that have it."""
    whole = [context.wsu()[0] if table is None else table for table in tables]
    sharp = [table if table.ndim == 2 else _sharpened(context, table) for table in whole]
    found = cast("Any", context.kernel).cadp(
        context.problem, context.horizon, np.stack(sharp), tol=tol,
        max_iterations=max_iterations, sweeps=sweeps,
    )  # fmt: skip
    ends = []
    for k in range(len(tables)):
        made = int(found.sweeps[k])
        status = Status.COMPLETED if made < max_iterations else Status.ITERATION_LIMIT
        status = Status.LOCAL_OPTIMUM if found.converged[k] else status
        trace = [float(v) for v in found.trace[k] if np.isfinite(v)]
        value = float(found.values[k])
        ends.append(Ascent(found.policies[k], found.returns[k], value, status, made, trace))
    return ends


def _sharpened(context: Context, policy: Table) -> Table:
    """A randomised start made deterministic without loss: one backward pass with its weights."""
    b = context.kernel.forward(context.problem, context.horizon, policy)
    return context.weighted(b)[0]


class Ascent(NamedTuple):
    """Where one ascent ended; ``sweeps`` counts the one that confirms the maximum."""

    policy: Table
    returns: Array
    value: float
    status: Status
    sweeps: int
    trace: list[float]


def ascend_all(
    context: Context, starts: list[Start], tol: float, max_iterations: int, sweeps: str
) -> list[Ascent]:
    """CADP from several starts, in the way that suits the kernel best."""
    limits = tol, max_iterations
    tables = [start.table for start in starts]
    if _compiled(context):
        return _ascend_compiled(context, tables, *limits, sweeps)
    sharp = all(table is None or table.ndim == 2 for table in tables)
    if sharp and sweeps == "two-way" and hasattr(context.kernel, "climb"):
        return _ascend_lazily(context, tables, *limits)
    found = []
    for table in tables:
        policy, returns = context.wsu() if table is None else (table, None)
        found.append(ascend(context, policy, returns, tol, max_iterations, sweeps))
    return found


def _ascend_lazily(
    context: Context, tables: list[Table | None], tol: float, max_iterations: int
) -> list[Ascent]:
    """Two-way sweeps by the kernel, which leaves out what cannot matter.

    The first start tells the others what they need not compute. With p in 32 bits, each end is
    valued again in 64 bits and climbs on from there; the next start then begins afresh.
    """
    climb: Any = None
    ends: list[Ascent] = []
    for table in tables:
        if climb is None or context.precision == "mixed":
            climb = cast("Any", context.kernel).climb(context.problem, context.horizon, table)
            returns = climb.open()
            end = _opened(context, climb.actions.copy(), returns, context.mean(returns))
        else:
            start = context.wsu()[0] if table is None else table
            end = _opened(context, start, _UNKNOWN, climb.restart(start))
        end = _climbed(context, climb, end, tol, max_iterations)
        if context.precision == "mixed":
            returns = climb.refine(end.policy)
            value = context.mean(returns)
            trace = [min(x, value) for x in end.trace[:-1]] + [value]
            end = end._replace(returns=returns, value=value, trace=trace)
            end = _climbed(context, climb, end, tol, max_iterations)
        if end.returns is _UNKNOWN:  # nothing improved a later start
            end = end._replace(returns=context.returns(end.policy))
        ends.append(end)
    return ends


def _opened(context: Context, policy: Table, returns: Array, value: float) -> Ascent:
    """An ascent that has made no sweep yet."""
    context.record(policy, value)
    return Ascent(policy, returns, value, Status.ITERATION_LIMIT, 0, [value])


def _climbed(context: Context, climb: Any, end: Ascent, tol: float, max_iterations: int) -> Ascent:
    """Sweeps until nothing improves."""
    end = end._replace(status=Status.ITERATION_LIMIT)
    while end.status is Status.ITERATION_LIMIT and end.sweeps < max_iterations:
        changed, returns = climb.sweep()
        end = _judged(context, end, changed, climb.actions, returns, tol)
    return end


def _judged(
    context: Context, end: Ascent, changed: bool, actions: Table, returns: Array, tol: float
) -> Ascent:
    """The ascent after a sweep that led to these actions; taken only where the value rises."""
    value, sweeps = context.mean(returns), end.sweeps + 1
    gain = value - end.value
    # a value that was summed up in another order is the same up to rounding
    if not changed or gain <= (ROUNDING * abs(value) if end.returns is _UNKNOWN else 0.0):
        return end._replace(status=Status.LOCAL_OPTIMUM, sweeps=sweeps)
    policy = actions.copy()
    context.record(policy, value)
    status = Status.COMPLETED if gain <= tol * max(1.0, abs(value)) else Status.ITERATION_LIMIT
    return Ascent(policy, returns, value, status, sweeps, [*end.trace, value])


def ascend(
    context: Context,
    policy: Table,
    returns: Array | None = None,
    tol: float = 0.0,
    max_iterations: int = 1000,
    sweeps: str = "paper",
) -> Ascent:
    """CADP from one policy table, whose returns (M,) may be known already.

    A randomised start is allowed: the first sweep makes it deterministic without loss.
    """
    returns = context.returns(policy) if returns is None else returns
    value = context.mean(returns)
    trace = [value]
    if policy.ndim == 2:  # a randomised start is no answer to fall back on
        context.record(policy, value)
    q: Array | None = None
    for sweep in range(1, max_iterations + 1):
        incumbent = policy if policy.ndim == 2 else None
        improved, new_returns, q = _sweep(context, policy, q, sweeps == "two-way")
        gain = context.mean(new_returns) - value
        if incumbent is not None and ((improved == incumbent).all() or gain <= 0):
            return Ascent(policy, returns, value, Status.LOCAL_OPTIMUM, sweep, trace)
        policy, returns, value = improved, new_returns, context.mean(new_returns)
        trace.append(value)
        context.record(policy, value)
        if incumbent is not None and gain <= tol * max(1.0, abs(value)):
            return Ascent(policy, returns, value, Status.COMPLETED, sweep, trace)
    return Ascent(policy, returns, value, Status.ITERATION_LIMIT, max_iterations, trace)


def _sweep(
    context: Context, policy: Table, q: Array | None, two_way: bool
) -> tuple[Table, Array, Array | None]:
    """One forward and one backward pass: (policy, returns (M,), q where it is wanted next)."""
    kernel, problem, horizon = context.kernel, context.problem, context.horizon
    if q is None:
        b = kernel.forward(problem, horizon, policy)
    else:
        policy, b = kernel.improve(problem, horizon, policy, q)
    found = kernel.backward(
        problem, horizon, "weighted", weights=b, policy=policy if policy.ndim == 2 else None,
        keep_q=two_way,
    )  # fmt: skip
    assert found.actions is not None
    return found.actions, problem.returns(found.first), found.q
