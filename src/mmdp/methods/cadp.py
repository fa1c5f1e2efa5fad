"""CADP: coordinate ascent and dynamic programming (algorithms 1 and 2 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np

from mmdp.errors import InputError
from mmdp.methods.base import Array, Context, Outcome, Table, start_policy
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status
from mmdp.validate import check_whole


@dataclass(frozen=True)
class CADP:
    """Alternate the model weights b of the current policy and a backward pass with them.

    The return never falls, and the result is a local maximum: no change of the action in a
    single state and time improves it.

    Parameters
    ----------
    sweeps
        ``"paper"``: a sweep is the forward pass for b and the improving backward pass of the
        paper; ``"two-way"``: the forward pass improves the policy too, with q kept from the
        backward pass (T * S * A * M numbers), which takes fewer sweeps to another, equally
        exact local maximum.
    init
        Where to start: ``"wsu"`` (as in the paper), ``"mvp"``, ``"random"``, ``"uniform"``,
        or a :class:`mmdp.MarkovPolicy`.
    starts
        Number of starts: ``init`` first, then seeded random policies; the best is returned.
    tol
        Stop when an iteration gains no more than ``tol * max(1, |value|)``; 0 goes on to a
        local maximum.
    max_iterations
        Cap on the iterations of one start.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, mmdp.CADP(init="mvp")).value
    7.0
    """

    init: str | MarkovPolicy = "wsu"
    starts: int = 1
    tol: float = 0.0
    max_iterations: int = 1000
    sweeps: Literal["paper", "two-way"] = "paper"

    name: ClassVar[str] = "cadp"

    def __post_init__(self) -> None:
        check_whole(self.starts, "starts")
        check_whole(self.max_iterations, "max_iterations")
        if self.sweeps not in ("paper", "two-way"):
            raise InputError(f'sweeps must be "paper" or "two-way", not {self.sweeps!r}')
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")

    def run(self, context: Context) -> Outcome:
        if hasattr(context.kernel, "cadp") and context.deadline is None and not context.callback:
            return self._run_compiled(context)
        seeds = np.random.SeedSequence(context.seed).generate_state(self.starts)
        found = []
        for k in range(self.starts):
            start = start_policy(context, self.init if k == 0 else "random", int(seeds[k]))
            found.append(ascend(context, *start, self.tol, self.max_iterations, self.sweeps))
        best = max(found, key=lambda ascent: ascent.value)
        details: dict[str, Any] = {"sweeps": best.sweeps}
        if self.starts > 1:
            details["start_values"] = np.array([ascent.value for ascent in found])
            details["total_sweeps"] = sum(ascent.sweeps for ascent in found)
        return Outcome(
            best.policy, best.status, best.sweeps, returns=best.returns, trace=best.trace,
            details=details,
        )  # fmt: skip

    def _run_compiled(self, context: Context) -> Outcome:
        """All starts in one compiled loop, for kernels that have it (no clock, no callback)."""
        seeds = np.random.SeedSequence(context.seed).generate_state(self.starts)
        inits = [self.init, *["random"] * (self.starts - 1)]
        starts = [
            start_policy(context, init, int(seed))[0]
            for init, seed in zip(inits, seeds, strict=True)
        ]
        sharp = [x if x.ndim == 2 else _sharpened(context, x) for x in starts]
        found = cast("Any", context.kernel).cadp(
            context.problem, context.horizon, np.stack(sharp), tol=self.tol,
            max_iterations=self.max_iterations, sweeps=self.sweeps,
        )  # fmt: skip
        best = int(np.argmax(found.values))
        sweeps = int(found.sweeps[best])
        trace = [float(v) for v in found.trace[best] if np.isfinite(v)]
        details: dict[str, Any] = {"sweeps": sweeps}
        if self.starts > 1:
            details["start_values"] = np.asarray(found.values)
            details["total_sweeps"] = int(np.sum(found.sweeps))
        status = Status.LOCAL_OPTIMUM if found.converged[best] else Status.ITERATION_LIMIT
        if not found.converged[best] and sweeps < self.max_iterations:
            status = Status.COMPLETED
        return Outcome(
            np.asarray(found.policies[best]), status, sweeps, trace=trace, details=details
        )


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
