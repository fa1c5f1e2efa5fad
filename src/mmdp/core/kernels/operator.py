"""The one operator, q = r + gamma P v and its transpose, of a prepared problem.

A new storage or a new backend writes ``expect_next`` and ``push_forward``; everything else is
written in terms of them in plain numpy, which is the specification, and overridden where a fused
pass pays. Symbols as in :mod:`mmdp.core.kernels.problem`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.kernels.cpu.threads import ThreadPool, default_n_threads
from mmdp.core.kernels.problem import PolicyTable, Problem, as_readonly, at_time
from mmdp.core.kernels.rewards import EventRewards, Rewards
from mmdp.core.shapes import Array, IntArray, Mask


def is_numba_disabled() -> bool:
    """Return whether NUMBA_DISABLE_JIT switches off numba's compiler."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


class Operator:
    """A problem over a number of decisions, prepared once on a backend."""

    n_threads: int | None = None  # None: the cores that this process may use
    min_parallel_work: float = 100_000  # multiply-adds below which one thread is faster

    def __init__(self, problem: Problem, horizon: int) -> None:
        problem.check_horizon(horizon)
        self.problem, self.horizon = problem, horizon

    # ------------------------------------------------------------ written by a storage or backend
    def expect_next(self, t: int, v: Array) -> Array:
        """Compute (S, A, M) sum_s' p(s'|s, a) v(s') in every model, from v (S, M)."""
        raise NotImplementedError

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        """Compute b (S, M) at t + 1 from b at t under actions (S,) or probabilities (S, A)."""
        raise NotImplementedError

    # ------------------------------------------------------------ written once
    def get_pool(self, work: float) -> ThreadPool:
        """Return the threads of compiled code for ``work`` multiply-adds per step."""
        if is_numba_disabled():
            raise InputError(
                "controllers, beliefs and dual bounds need numba's compiler, which "
                "NUMBA_DISABLE_JIT switches off; unset it"
            )
        n_threads = self.n_threads or default_n_threads()
        return ThreadPool(n_threads if work >= self.min_parallel_work else 1)

    def q_step(self, t: int, v: Array) -> Array:
        """Compute (S, A, M) q = r + gamma P v at time t from v (S, M)."""
        return at_time(self.problem.r, t) + self.problem.discount * self.expect_next(t, v)

    def improve_objective(
        self, table: PolicyTable, rho: Array, formula: Any, min_gain: float
    ) -> tuple[IntArray, Array] | None:
        """Improve F by one change of an action after the other; return the table and its returns.

        rho (M,): the returns that count at the table. formula: the dataclass of F, with value and
        dual_density. A change must gain more than ``min_gain``. None if that is not compiled here.
        """
        return None

    def sum_models(self, values: Array) -> Array:
        """Sum values (..., M) over all models."""
        return np.asarray(self.problem.all_gather(values.sum(axis=-1)).sum(axis=0))

    def forward_by_start(self, run_forward: Callable[[Self], Array]) -> Array:
        """Run a forward pass in which every model has weight 1."""
        return run_forward(self.replace(weights=np.ones_like(self.problem.weights)))

    def credit_to_start(self, d: Array, gains: Array) -> Array:
        """Compute (..., M) what gains (..., M) add to the returns of the models at the start."""
        return d * gains

    def joint_weights(self, d: Array, weights: Array) -> Array:
        """Compute b (S, M) such that sum_m b x is what x adds to the returns with these weights."""
        return d * weights

    def compute_returns(self, first_values: Array) -> Array:
        """Compute (M,) the return of every model from the values (S, M) at the first step."""
        return self.problem.compute_returns(first_values)

    def replace(
        self,
        *,
        weights: Array | None = None,
        initial: Array | None = None,
        rewards: Rewards | None = None,
        terminal: Array | None = None,
        allowed: Mask | None = None,
        discount: float | None = None,
        horizon: int | None = None,
    ) -> Self:
        """Return a copy with other numbers, or over fewer decisions, that shares the transitions.

        rewards: (T or 1, S, A, M). terminal: (S, M). allowed: (T or 1, S, A).
        """
        arrays = {"weights": weights, "initial": initial, "r": rewards, "terminal": terminal}
        replacements: Any = {
            name: array if isinstance(array, EventRewards) else as_readonly(np.asarray(array))
            for name, array in arrays.items()
            if array is not None
        }
        problem = self.problem._replace(**replacements)
        if discount is not None:
            problem = problem._replace(discount=discount)
        if allowed is not None:
            problem = problem.restrict_actions(allowed)
        clone = copy.copy(self)
        clone._set_problem(problem, self.horizon if horizon is None else horizon)
        return clone

    def _set_problem(self, problem: Problem, horizon: int) -> None:
        """Replace the problem and the horizon; the transitions stay the same."""
        self.problem, self.horizon = problem, horizon
