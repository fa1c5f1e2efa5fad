"""CADP's sweeps on the CPU, without the steps that cannot matter.

A two-way sweep improves the policy in both passes and keeps q of all steps in between. The
forward pass begins at the first step whose action the last backward pass changed; the backward
pass begins at the last step whose action the forward pass changed. Outside of that range
weights, values and choices are unchanged. If the forward pass changes nothing, the policy is a
local maximum, and no backward pass is needed to confirm it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmdp.core.errors import memory_here
from mmdp.core.kernels.cpu.passes import (
    ACTIONS,
    PROBABILITIES,
    WEIGHTED,
    KernelArrays,
    PassBuffers,
    PassOptions,
)
from mmdp.core.kernels.problem import PolicyTable, empty_aligned, split_windows
from mmdp.core.shapes import AnyArray, Array, IntArray

if TYPE_CHECKING:
    from mmdp.core.kernels.cpu.backend import CpuProblem

MAX_MEMORY_SHARE = 0.25  # of memory for b of all times; if it takes more, it is kept in windows


class CpuSweeper:
    """The sweeps of the ascents of one problem; see :class:`mmdp.core.kernels.ascent.Sweeper`."""

    def __init__(self, prepared: CpuProblem, *, two_way: bool) -> None:
        x, T = prepared.problem, prepared.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        self.prepared, self.problem, self.two_way = prepared, x, two_way
        max_bytes = np.inf if two_way else MAX_MEMORY_SHARE * memory_here()
        self.windows = split_windows(T, 8 * S * M, max_bytes)
        b = empty_aligned(T if len(self.windows) == 1 else self.windows[0].stop + 1, S, M)
        self.buffers = PassBuffers.create(
            x,
            T,
            actions=np.zeros((T, S), np.int32),
            b=b,
            v=empty_aligned(T + 1 if two_way else 2, S, M),
            **({"q": empty_aligned(T, S, A, M)} if two_way else {}),
        )
        self.buffers.b[0] = x.initial_joint()

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        """Return the first policy (computed by WSU if ``init`` is None) and its returns."""
        self.first_changed_time: int | None = None  # by the last backward pass, if q is kept
        last_time = self.prepared.horizon - 1
        if init is None:
            options = PassOptions(WEIGHTED, last_time, has_weights=True)
            self._run_backward(options, b=self.problem.prior_weights())
            return self.buffers.actions.copy(), self._compute_returns()
        if init.ndim == 2:
            self.buffers.actions[:] = init
            self._run_backward(PassOptions(ACTIONS, last_time, has_incumbent=True))
        else:
            probabilities = np.ascontiguousarray(init, np.float64)
            self._run_backward(PassOptions(PROBABILITIES, last_time), probabilities=probabilities)
        return init, self._compute_returns()

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        """Run a forward and a backward pass; return the actions and their returns."""
        if len(self.windows) > 1:
            return self._sweep_windows(policy)
        actions, last_time = self.buffers.actions, len(policy) - 1
        if self.first_changed_time is None:
            self._fill_weights(policy)
        else:
            old_actions = actions.copy()
            self.prepared.run_forward(self.buffers, self.prepared.arrays, self.first_changed_time)
            changed_times = np.flatnonzero((actions != old_actions).any(axis=1))
            if not len(changed_times):
                return old_actions, self._compute_returns()
            last_time = int(changed_times[-1])
        old_actions = actions.copy()
        self._run_backward(
            PassOptions(
                WEIGHTED,
                last_time,
                has_weights=True,
                has_incumbent=policy.ndim == 2,
                keep_q=self.two_way,
            )
        )
        if self.two_way and policy.ndim == 2:
            changed_times = np.flatnonzero((actions != old_actions).any(axis=1))
            self.first_changed_time = int(changed_times[0]) if len(changed_times) else len(actions)
        elif self.two_way:
            self.first_changed_time = -1
        return actions.copy(), self._compute_returns()

    def _sweep_windows(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        """Run a sweep with b of one window of times in memory; b is computed twice."""
        (actions, _, b, v), window_weights = self.buffers[:4], []
        b[0] = self.problem.initial_joint()
        for window in self.windows:
            window_weights.append(b[0].copy())
            if window.stop < len(policy):
                self._fill_weights(policy[window.start : window.stop + 1], window.start)
                b[0] = b[window.stop - window.start]
        v[0] = self.problem.terminal
        for window, first_weights in zip(
            reversed(self.windows), reversed(window_weights), strict=True
        ):
            n_times = window.stop - window.start
            b[0], v[n_times % 2] = first_weights, v[0]
            arrays = self._fill_weights(policy[window], window.start)
            options = PassOptions(
                WEIGHTED, n_times - 1, has_weights=True, has_incumbent=policy.ndim == 2
            )
            buffers = self.buffers._replace(actions=actions[window])
            self.prepared.run_backward(options, buffers, arrays)
        return actions.copy(), self._compute_returns()

    def _fill_weights(self, policy: PolicyTable, t: int = 0) -> KernelArrays:
        """Compute b from b[0] on, under a policy that begins at time t; return its arrays."""
        arrays = self.prepared.arrays.from_time(t)
        self.prepared.fill_weights(self.buffers.b[: len(policy)], policy, arrays)
        return arrays

    def _run_backward(self, options: PassOptions, **arrays: AnyArray) -> None:
        """Run the compiled backward pass, with some of the buffers replaced."""
        buffers = self.buffers._replace(**arrays)
        if options.last_time == self.prepared.horizon - 1:  # v may have two times only
            buffers.v[self.prepared.horizon % len(buffers.v)] = self.problem.terminal
        self.prepared.run_backward(options, buffers, self.prepared.arrays)

    def _compute_returns(self) -> Array:
        return self.problem.compute_returns(self.buffers.v[0])
