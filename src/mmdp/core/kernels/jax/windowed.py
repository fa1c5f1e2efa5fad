"""CADP on shared events that are too many for b of all times: 32-bit numbers, window by window.

A sweep first moves b forward and keeps it where a window of time steps begins. Then, from the last
window to the first, it moves b through the window once more, keeps all of it there, and makes the
backward steps. Everything stays on the device; the host sees actions and returns.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mmdp.core.kernels.jax.arrays import ProblemArrays, Traced, enable_float64, get_device_memory
from mmdp.core.kernels.jax.passes import backward, forward
from mmdp.core.kernels.jax.step_ops import Tuning, is_deterministic, make_step_ops
from mmdp.core.kernels.numpy.passes import TableSweeper
from mmdp.core.kernels.problem import AscentResult, PolicyTable, Problem, split_windows
from mmdp.core.shapes import Array, IntArray

if TYPE_CHECKING:
    from mmdp.core.kernels.jax.backend import JaxProblem

MAX_WEIGHT_BYTES = 2**33  # bytes of b over which the sweeps of an ascent are made here
MAX_MEMORY_SHARE = 0.4  # of the device's memory for b


def needs_windows(problem: Problem, horizon: int) -> bool:
    """Return whether b of all times would take more than MAX_WEIGHT_BYTES."""
    return 8 * horizon * problem.terminal.size > MAX_WEIGHT_BYTES


class Float32Sweeper(TableSweeper):
    """The paper's sweeps in 32-bit numbers, window by window."""

    prepared: JaxProblem

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tuning = self.prepared.tuning._replace(unroll=1)  # several q take too much memory
        max_bytes = MAX_MEMORY_SHARE * get_device_memory(jax.local_devices()[0])
        bytes_per_time = 4 * self.problem.terminal.size
        self.windows = split_windows(self.prepared.horizon, bytes_per_time, max_bytes)
        with enable_float64():
            self.x = jax.tree.map(_to_float32, self.prepared.get_device_arrays())

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        n_windows = len(self.windows)
        if init is not None:
            return init, self._run_backward(init, [None] * n_windows)[1]
        return self._run_backward(None, [self.x.weights[None]] * n_windows)

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        with enable_float64():
            window_weights = [self.x.initial * self.x.weights]
            for window in self.windows[:-1]:
                b, table = window_weights[-1], _to_table_32(policy[window])
                window_weights.append(
                    _push_window(self.x, window.start, b, table, tuning=self.tuning)
                )
        return self._run_backward(policy, window_weights)

    def finish(self, result: AscentResult) -> AscentResult:
        first_values = self.prepared.backward("policy", policy=result.policy).first_values
        returns = self.prepared.compute_returns(first_values)
        value = float(returns @ self.problem.weights)
        return result._replace(returns=returns, value=value, is_single_precision=True)

    def _run_backward(
        self, policy: PolicyTable | None, window_weights: list[Traced | None]
    ) -> tuple[IntArray, Array]:
        """Run a backward pass with b at the start of each window, or along the policy."""
        actions = np.empty((self.prepared.horizon, self.problem.n_states), np.int32)
        with enable_float64():
            v = self.x.terminal
            for window in reversed(self.windows):
                table = None if policy is None else _to_table_32(policy[window])
                v, outputs = _backward_window(
                    self.x,
                    window.start,
                    window_weights.pop(),
                    v,
                    table,
                    n_times=window.stop - window.start,
                    tuning=self.tuning,
                )
                actions[window] = outputs.get("actions", 0)
            returns = jnp.einsum(
                "sm,sm->m",
                self.x.initial,
                v,
                preferred_element_type=jnp.float64,
                precision="highest",
            )
            return actions, self.problem.gather_models(np.asarray(returns, np.float64))


def _to_float32(array: Traced) -> Traced:
    """Convert an array to 32 bits."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _to_table_32(policy: PolicyTable) -> Traced:
    """Convert actions or probabilities to 32 bits."""
    return jnp.asarray(policy, jnp.float32 if policy.dtype.kind == "f" else jnp.int32)


@functools.partial(jax.jit, static_argnames="tuning")
def _push_window(
    x: ProblemArrays, start_time: Traced, b: Traced, policy: Traced, *, tuning: Tuning
) -> Traced:
    """Compute b (S, M) after the time steps of a policy that begins at ``start_time``."""
    ops = make_step_ops(x, tuning, start_time)
    return lax.fori_loop(0, len(policy), lambda t, b: ops.push_forward(t, b, policy[t]), b)


@functools.partial(jax.jit, static_argnames=("n_times", "tuning"))
def _backward_window(
    x: ProblemArrays,
    start_time: Traced,
    b: Traced | None,
    v: Traced,
    policy: Traced | None,
    *,
    n_times: int,
    tuning: Tuning,
) -> Any:
    """Compute v at ``start_time`` and the actions of a window, from v after it and b at its start.

    Without a policy b is that of all times; without b the policy is followed.
    """
    ops = make_step_ops(x, tuning, start_time)
    if b is None:
        return backward(ops, n_times, "policy", None, policy, (), v)
    weights = b[None] if policy is None else forward(ops, policy, b=b)[1]
    incumbent = policy if is_deterministic(policy) else None
    return backward(ops, n_times, "weighted", weights, incumbent, ("actions",), v)
