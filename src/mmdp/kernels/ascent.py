"""Algorithm 2 of the paper: coordinate ascent and dynamic programming, on any machine.

It serves tables of actions, and every other kind of policy that can be improved step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mmdp.kernels.problem import Array, Ascent, Problem, Watch


class Climber(Protocol):
    """What the loop needs; numpy.passes.Sweeper is the plain one for tables."""

    problem: Problem

    def open(self, start: Any) -> tuple[Any, Array]:
        """The start (None: WSU's policy) and its returns (M,)."""
        ...

    def sweep(self, policy: Any) -> tuple[Any, Array]:
        """The policy that the last call returned, improved, and its returns (M,)."""
        ...


def ascend(
    climber: Climber, start: Any, tol: float, max_sweeps: int, watch: Watch | None,
    worth: Callable[[Array], float] | None = None,
) -> Ascent:  # fmt: skip
    """Sweep until the policy repeats; see :meth:`mmdp.kernels.numpy.passes.Passes.ascend`.

    ``worth``: the value of returns (M,), their mean by default.
    """
    weights, watch = climber.problem.weights, watch or (lambda policy, value: None)
    worth = worth or (lambda returns: float(returns @ weights))
    policy, returns = climber.open(start)
    trace = [worth(returns)]
    if not randomised(policy):
        watch(policy, trace[0])
    else:  # a randomised start is no answer to fall back on
        max_sweeps = max(max_sweeps, 1)
    for sweep in range(1, max_sweeps + 1):
        improved, new_returns = climber.sweep(policy)
        value = worth(new_returns)
        gain, sharp = value - trace[-1], not randomised(policy)
        if sharp and (same(improved, policy) or gain <= 0):
            return Ascent(policy, returns, trace[-1], trace, sweep, "maximum")
        policy, returns = improved, new_returns
        trace.append(value)
        watch(policy, value)
        if sharp and gain <= tol:
            return Ascent(policy, returns, value, trace, sweep, "tolerance")
    return Ascent(policy, returns, trace[-1], trace, max_sweeps, "limit")


def randomised(policy: Any) -> bool:
    """Whether it is a table of probabilities."""
    return isinstance(policy, np.ndarray) and policy.dtype.kind == "f"


def same(one: Any, other: Any) -> bool:
    """Whether two tables, or two tuples of tables, are equal."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other))
