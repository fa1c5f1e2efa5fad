"""Algorithm 2 of the paper: coordinate ascent and dynamic programming, on any backend.

It serves tables of actions, and every other policy class that can be improved step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from mmdp.core.kernels.problem import AscentResult, Callback, Problem
from mmdp.core.shapes import Array

SWEEPS_TO_TARGET = 20  # further sweeps in which an ascent must be able to reach its target

P = TypeVar("P")  # a policy: a table, or a tuple of tables


class Sweeper(Protocol[P]):
    """The two operations that :func:`ascend` needs to improve a policy of some kind."""

    problem: Problem

    def initialize(self, init: P | None) -> tuple[P, Array]:
        """Return the first policy (of WSU if ``init`` is None) and its returns (M,)."""
        ...

    def sweep(self, policy: P) -> tuple[P, Array]:
        """Return an improvement of the policy from the last call, and its returns (M,)."""
        ...


def ascend(
    sweeper: Sweeper[Any],
    init: object,
    tol: float,
    max_sweeps: int,
    callback: Callback | None,
    objective_value: Callable[[Array], float] | None = None,
    target: float = -np.inf,
    gain_share: float = 0.0,
) -> AscentResult:
    """Run sweeps from ``init`` until the policy repeats, gains at most ``tol`` or a limit ends it.

    It also ends when a sweep gains at most ``gain_share`` of what all have gained, or when
    ``SWEEPS_TO_TARGET`` more sweeps that gain as much as the last one would not reach ``target``.
    ``objective_value``: the value of returns (M,), their mean by default.
    """
    weights, callback = sweeper.problem.weights, callback or (lambda policy, value: None)
    objective_value = objective_value or (lambda returns: float(returns @ weights))
    policy, returns = sweeper.initialize(init)
    trace = [objective_value(returns)]
    if not is_randomized(policy):
        callback(policy, trace[0])
    else:  # a randomized init is no result
        max_sweeps = max(max_sweeps, 1)
    for n_sweeps in range(1, max_sweeps + 1):
        new_policy, new_returns = sweeper.sweep(policy)
        value = objective_value(new_returns)
        gain, was_deterministic = value - trace[-1], not is_randomized(policy)
        if was_deterministic and (is_same_policy(new_policy, policy) or gain <= 0):
            return AscentResult(policy, returns, trace[-1], trace, n_sweeps, "local_optimum")
        policy, returns = new_policy, new_returns
        trace.append(value)
        callback(policy, value)
        min_gain = max(tol, gain_share * (value - trace[0]), (target - value) / SWEEPS_TO_TARGET)
        if was_deterministic and gain <= min_gain:
            return AscentResult(policy, returns, value, trace, n_sweeps, "tolerance")
    return AscentResult(policy, returns, trace[-1], trace, max_sweeps, "limit")


def is_randomized(policy: object) -> bool:
    """Return whether a policy is a table of probabilities."""
    return isinstance(policy, np.ndarray) and policy.dtype.kind == "f"


def is_same_policy(policy: object, other: object) -> bool:
    """Return whether two tables, or two tuples of tables, are equal."""
    if isinstance(policy, tuple):
        assert isinstance(other, tuple)
        return len(policy) == len(other) and all(map(is_same_policy, policy, other))
    return bool(np.array_equal(np.asarray(policy), np.asarray(other)))
