"""CADP on shared events that are too many for b of all times: 32-bit numbers, window by window.

A sweep first moves b forward and keeps it where a window of time steps begins. Then, from the last
window to the first, it moves b through the window once more, keeps all of it there, and makes the
backward steps. Everything stays on the device; the host sees actions and returns.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mmdp.core.kernels.jax.arrays import ProblemArrays, Traced, enable_float64, get_device_memory
from mmdp.core.kernels.jax.passes import choose_actions
from mmdp.core.kernels.jax.step_ops import Tuning, at_time, make_step_ops
from mmdp.core.kernels.problem import PolicyTable, Problem, split_windows
from mmdp.core.shapes import Array, IntArray

MAX_WEIGHT_BYTES = 2**33  # bytes of b over which the sweeps of an ascent are made here
MAX_MEMORY_SHARE = 0.4  # of the device's memory for b


def needs_windows(problem: Problem, horizon: int) -> bool:
    """Return whether b of all times would take more than MAX_WEIGHT_BYTES."""
    return 8 * horizon * problem.terminal.size > MAX_WEIGHT_BYTES


class WindowedSweeper:
    """The paper's sweeps in 32-bit numbers, window by window."""

    def __init__(self, x: ProblemArrays, problem: Problem, horizon: int, tuning: Tuning) -> None:
        self.problem, self.horizon, self.tuning = problem, horizon, tuning
        max_bytes = MAX_MEMORY_SHARE * get_device_memory(jax.local_devices()[0])
        self.windows = split_windows(horizon, 4 * problem.terminal.size, max_bytes)
        self.x = jax.tree.map(_to_float32, x)

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        if init is not None:
            return init, self._run_backward(init, lambda window: None)[1]
        prior = jnp.asarray(self.x.weights)[None]
        return self._run_backward(None, lambda window: prior)

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        window_weights = {}
        with enable_float64():
            b = self.x.initial * self.x.weights
            for window in self.windows:
                window_weights[window.start] = b
                if window.stop < self.horizon:
                    b = _push_window(
                        self.x, window.start, b, _to_table_32(policy[window]), tuning=self.tuning
                    )
        return self._run_backward(policy, lambda window: window_weights.pop(window.start))

    def _run_backward(self, policy: PolicyTable | None, get_weights: Any) -> tuple[IntArray, Array]:
        """Run a backward pass with b at the start of each window, or along the policy."""
        actions = np.empty((self.horizon, self.problem.n_states), np.int32)
        with enable_float64():
            v = self.x.terminal
            for window in reversed(self.windows):
                table = None if policy is None else _to_table_32(policy[window])
                v, window_actions = _backward_window(
                    self.x,
                    window.start,
                    get_weights(window),
                    v,
                    table,
                    n_times=window.stop - window.start,
                    tuning=self.tuning,
                )
                actions[window] = 0 if window_actions is None else window_actions
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
    """Compute b (S, M) after the time steps of a policy that begins at ``start``."""
    ops = make_step_ops(x, tuning)
    return lax.fori_loop(
        0, len(policy), lambda t, b: ops.push_forward(start_time + t, b, policy[t]), b
    )


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
) -> tuple[Traced, Traced | None]:
    """Compute v at ``start`` and the actions of a window, from v after it and b at its start.

    Without a policy b is that of all times; without b the policy is followed.
    """
    ops = make_step_ops(x, tuning)
    table: Traced = policy
    is_table = policy is not None and policy.ndim == 2
    window_b = None if b is None else b[None]
    if b is not None and policy is not None:
        times = jnp.arange(n_times)
        window_b = lax.scan(
            lambda b, t: (ops.push_forward(start_time + t, b, table[t]), b), b, times
        )[1]

    def step(v: Traced, t: Traced) -> tuple[Traced, Traced | None]:
        if window_b is None and is_table:
            return ops.evaluate_step(start_time + t, v, table[t]), None
        q = ops.q_step(start_time + t, v)
        if window_b is None:
            return ops.average_q(table[t], q), None
        b_t = at_time(window_b, t)
        incumbent = (table[t], ops.is_unvisited(b_t)) if is_table else ()
        action = choose_actions(ops.compute_gradient(start_time + t, b_t, q), *incumbent)
        return ops.average_q(action, q), action

    return lax.scan(step, v, jnp.arange(n_times), reverse=True)
