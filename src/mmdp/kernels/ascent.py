"""Algorithm 2 of the paper: coordinate ascent and dynamic programming, for every CPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mmdp.kernels.problem import Array, Ascent, IntArray, Problem, Table, Watch


class Climber(Protocol):
    """What the loop needs from a kernel; numpy_kernel.Sweeper is the plain one."""

    problem: Problem

    def open(self, start: Table | None) -> tuple[Table, Array]:
        """The start (None: WSU's policy) and its returns (M,)."""
        ...

    def sweep(self, policy: Table) -> tuple[IntArray, Array]:
        """A forward and a backward pass from the policy that the last call returned.

        Gives the improved actions (T, S) and their returns (M,).
        """
        ...


def ascend(
    climber: Climber, start: Table | None, tol: float, max_sweeps: int, watch: Watch | None,
    worth: Callable[[Array], float] | None = None,
) -> Ascent:  # fmt: skip
    """Sweep until the policy repeats; see :meth:`mmdp.kernels.problem.Kernel.ascend`.

    ``worth``: the value of returns (M,), their mean by default.
    """
    weights, watch = climber.problem.weights, watch or (lambda policy, value: None)
    worth = worth or (lambda returns: float(returns @ weights))
    policy, returns = climber.open(start)
    trace = [worth(returns)]
    if policy.ndim == 2:
        watch(policy, trace[0])
    else:  # a randomised start is no answer to fall back on
        max_sweeps = max(max_sweeps, 1)
    for sweep in range(1, max_sweeps + 1):
        improved, new_returns = climber.sweep(policy)
        value = worth(new_returns)
        gain, sharp = value - trace[-1], policy.ndim == 2
        if sharp and ((improved == policy).all() or gain <= 0):
            return Ascent(policy, returns, trace[-1], trace, sweep, "maximum")
        policy, returns = improved, new_returns
        trace.append(value)
        watch(policy, value)
        if sharp and gain <= tol:
            return Ascent(policy, returns, value, trace, sweep, "tolerance")
    return Ascent(policy, returns, trace[-1], trace, max_sweeps, "limit")
