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

from mmdp.kernels.jax.arrays import Arrays, Traced, double, room_on
from mmdp.kernels.jax.passes import choose
from mmdp.kernels.jax.rows import Tuning, at, narrow
from mmdp.kernels.problem import Array, IntArray, Problem, Table, windows

LARGE = 2**33  # bytes of b over which the sweeps of an ascent are made here
SHARE = 0.4  # of the device's memory for b


def large(problem: Problem, horizon: int) -> bool:
    """Whether b of all times would take more than ``LARGE``."""
    return 8 * horizon * problem.terminal.size > LARGE


class Windows:
    """The paper's sweeps; see :class:`mmdp.kernels.ascent.Climber`."""

    def __init__(self, x: Arrays, problem: Problem, horizon: int, tuning: Tuning) -> None:
        self.problem, self.horizon, self.tuning = problem, horizon, tuning
        room = SHARE * room_on(jax.local_devices()[0])
        self.windows = windows(horizon, 4 * problem.terminal.size, room)
        self.x = jax.tree.map(_short, x)

    def open(self, start: Table | None) -> tuple[Table, Array]:
        if start is not None:
            return start, self._pass(start, lambda window: None)[1]
        prior = jnp.asarray(self.x.weights)[None]
        return self._pass(None, lambda window: prior)

    def sweep(self, policy: Table) -> tuple[IntArray, Array]:
        kept = {}
        with double():
            b = self.x.initial * self.x.weights
            for window in self.windows:
                kept[window.start] = b
                if window.stop < self.horizon:
                    b = _moved(self.x, window.start, b, _table(policy[window]), tuning=self.tuning)
        return self._pass(policy, lambda window: kept.pop(window.start))

    def _pass(self, policy: Table | None, weights: Any) -> tuple[IntArray, Array]:
        """Backward, with the weights b that each window begins with; along the policy if None."""
        actions = np.empty((self.horizon, self.problem.n_states), np.int32)
        with double():
            v = self.x.terminal
            for window in reversed(self.windows):
                given = None if policy is None else _table(policy[window])
                v, found = _windowed(
                    self.x, window.start, weights(window), v, given,
                    steps=window.stop - window.start, tuning=self.tuning,
                )  # fmt: skip
                actions[window] = 0 if found is None else found
            first = jnp.einsum(
                "sm,sm->m",
                self.x.initial,
                v,
                preferred_element_type=jnp.float64,
                precision="highest",
            )
            return actions, self.problem.gathered(np.asarray(first, np.float64))


def _short(array: Any) -> Any:
    """The array in 32 bits."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _table(policy: Table) -> Any:
    """Actions or probabilities, in 32 bits."""
    return jnp.asarray(policy, jnp.float32 if policy.dtype.kind == "f" else jnp.int32)


@functools.partial(jax.jit, static_argnames="tuning")
def _moved(x: Arrays, start: Traced, b: Traced, policy: Traced, *, tuning: Tuning) -> Traced:
    """b (S, M) after the time steps of a policy that begins at ``start``."""
    on = narrow(x, tuning)
    return lax.fori_loop(0, len(policy), lambda t, b: on.flow(start + t, b, policy[t]), b)


@functools.partial(jax.jit, static_argnames=("steps", "tuning"))
def _windowed(
    x: Arrays, start: Traced, b: Traced | None, v: Traced, policy: Traced | None, *, steps: int,
    tuning: Tuning,
) -> tuple[Traced, Traced | None]:  # fmt: skip
    """v at ``start`` and the actions of a window, from v after it and b (S or 1, M) at its start.

    Without a policy b is that of all times; without b the policy is followed.
    """
    on = narrow(x, tuning)
    table: Traced = policy
    sharp = policy is not None and policy.ndim == 2
    bs = None if b is None else b[None]
    if b is not None and policy is not None:
        moves = jnp.arange(steps)
        bs = lax.scan(lambda b, t: (on.flow(start + t, b, table[t]), b), b, moves)[1]

    def step(v: Traced, t: Traced) -> tuple[Traced, Traced | None]:
        if bs is None and sharp:
            return on.along(start + t, v, table[t]), None
        q = on.q(start + t, v)
        if bs is None:
            return on.average(table[t], q), None
        now = at(bs, t)
        incumbent = (table[t], on.idle(now)) if sharp else ()
        action = choose(on.gradient(start + t, now, q), *incumbent)
        return on.average(action, q), action

    return lax.scan(step, v, jnp.arange(steps), reverse=True)
