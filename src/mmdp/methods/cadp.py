"""CADP: coordinate ascent and dynamic programming (algorithms 1 and 2 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmdp.errors import InputError
from mmdp.methods.base import Context, Outcome, Table, start_policy
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
        results: list[tuple[float, Table, bool, int]] = []
        values: list[float] = []
        total = 0
        for k in range(self.starts):
            start = start_policy(context, self.init if k == 0 else "random", int(seeds[k]))
            policy, value, converged, sweeps = ascend(context, start, self.tol, self.max_iterations)
            results.append((value, policy, converged, sweeps))
            values.append(value)
            total += sweeps
        value, policy, converged, sweeps = max(results, key=lambda x: x[0])
        details: dict[str, Any] = {"sweeps": sweeps}
        if self.starts > 1:
            details |= {"start_values": np.array(values), "total_sweeps": total}
        status = Status.LOCAL_OPTIMUM if converged else Status.ITERATION_LIMIT
        return Outcome(policy, status, sweeps, details=details)


def ascend(
    context: Context, policy: Table, tol: float = 0.0, max_iterations: int = 1000
) -> tuple[Table, float, bool, int]:
    """CADP from one policy table: (local maximum, value, converged, sweeps).

    The sweep that confirms the maximum is counted. A randomised start is allowed: the first
    sweep makes it deterministic without loss.
    """
    kernel, problem, horizon = context.kernel, context.problem, context.horizon
    value = float(context.returns(policy) @ problem.weights)
    context.record(policy, value)
    for sweep in range(1, max_iterations + 1):
        b = kernel.forward(problem, horizon, policy)
        incumbent = policy if policy.ndim == 2 else None
        improved, new_value = context.weighted(b, incumbent)
        if incumbent is not None:
            if (improved == incumbent).all():
                return policy, value, True, sweep
            if new_value <= value:  # rounding: nothing left to gain
                return policy, value, True, sweep
        gain, policy, value = new_value - value, improved, max(value, new_value)
        context.record(policy, value)
        if incumbent is not None and gain <= tol * max(1.0, abs(value)):
            return policy, value, tol == 0.0, sweep
    return policy, value, False, max_iterations
