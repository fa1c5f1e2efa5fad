"""CADP: coordinate ascent and dynamic programming (algorithms 1 and 2 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mmdp.errors import InputError
from mmdp.methods.base import Array, Context, Outcome, Table, start_policy
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status


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
        Number of starts: ``init`` first, then seeded random policies; the best is returned.
    tol
        Stop when an iteration gains no more than ``tol * max(1, |value|)``.
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

    name: ClassVar[str] = "cadp"

    def __post_init__(self) -> None:
        if self.starts < 1:
            raise InputError(f"starts must be at least 1, not {self.starts}")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations must be at least 1, not {self.max_iterations}")
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")

    def run(self, context: Context) -> Outcome:
        seeds = np.random.SeedSequence(context.seed).generate_state(self.starts)
        found = []
        for k in range(self.starts):
            start = start_policy(context, self.init if k == 0 else "random", int(seeds[k]))
            found.append(ascend(context, *start, self.tol, self.max_iterations))
        best = max(found, key=lambda ascent: ascent.value)
        details: dict[str, Any] = {"sweeps": best.sweeps}
        if self.starts > 1:
            details["start_values"] = np.array([ascent.value for ascent in found])
            details["total_sweeps"] = sum(ascent.sweeps for ascent in found)
        status = Status.LOCAL_OPTIMUM if best.converged else Status.ITERATION_LIMIT
        return Outcome(best.policy, status, best.sweeps, returns=best.returns, details=details)


class Ascent(NamedTuple):
    """Where one ascent ended; ``sweeps`` counts the one that confirms the maximum."""

    policy: Table
    returns: Array
    value: float
    converged: bool
    sweeps: int


def ascend(
    context: Context,
    policy: Table,
    returns: Array | None = None,
    tol: float = 0.0,
    max_iterations: int = 1000,
) -> Ascent:
    """CADP from one policy table, whose returns (M,) may be known already.

    A randomised start is allowed: the first sweep makes it deterministic without loss.
    """
    returns = context.returns(policy) if returns is None else returns
    value = context.mean(returns)
    context.record(policy, value)
    for sweep in range(1, max_iterations + 1):
        b = context.kernel.forward(context.problem, context.horizon, policy)
        incumbent = policy if policy.ndim == 2 else None
        improved, new_returns = context.weighted(b, incumbent)
        gain = context.mean(new_returns) - value
        if incumbent is not None and ((improved == incumbent).all() or gain <= 0):
            return Ascent(policy, returns, value, True, sweep)
        policy, returns, value = improved, new_returns, context.mean(new_returns)
        context.record(policy, value)
        if incumbent is not None and gain <= tol * max(1.0, abs(value)):
            return Ascent(policy, returns, value, False, sweep)
    return Ascent(policy, returns, value, False, max_iterations)
