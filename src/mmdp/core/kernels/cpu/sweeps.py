"""CADP's sweeps on the CPU.

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
from mmdp.core.kernels.cpu.passes import WEIGHTED, KernelArrays, PassBuffers, PassOptions
from mmdp.core.kernels.numpy.passes import TableSweeper
from mmdp.core.kernels.problem import PolicyTable, empty_aligned, split_windows
from mmdp.core.shapes import Array, IndexArray, IntArray

if TYPE_CHECKING:
    from mmdp.core.kernels.cpu.backend import CpuProblem

MAX_MEMORY_SHARE = 0.25  # of memory for b of all times; if it takes more, it is kept in windows


class TwoWaySweeper(TableSweeper):
    """Two-way sweeps without the steps that cannot matter."""

    prepared: CpuProblem

    def __post_init__(self) -> None:
        super().__post_init__()
        x, T = self.problem, self.prepared.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        self.buffers = PassBuffers.create(
            x,
            T,
            actions=np.empty((T, S), np.int32),
            b=empty_aligned(T, S, M),
            v=empty_aligned(T + 1, S, M),
            q=empty_aligned(T, S, A, M),
        )
        self.buffers.b[0] = x.initial_joint()

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        self.first_changed_time: int | None = None  # by the last backward pass, if q is kept
        return super().initialize(init)

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        prepared, buffers, actions = self.prepared, self.buffers, self.buffers.actions
        is_table, last_time = policy.ndim == 2, len(policy) - 1
        if self.first_changed_time is None:
            prepared.fill_weights(buffers.b, policy, prepared.arrays)
            if is_table:
                actions[:] = policy
        else:
            prepared.run_forward(buffers, prepared.arrays, self.first_changed_time)
            changed_times = _find_changed_times(actions, policy)
            if not len(changed_times):
                return actions.copy(), prepared.compute_returns(buffers.v[0])
            last_time = int(changed_times[-1])
        old_actions = actions.copy()
        options = PassOptions(
            WEIGHTED, last_time, has_weights=True, has_incumbent=is_table, keep_q=True
        )
        prepared.run_backward(options, buffers, prepared.arrays)
        self.first_changed_time = -1
        if is_table:
            changed_times = _find_changed_times(actions, old_actions)
            self.first_changed_time = int(changed_times[0]) if len(changed_times) else len(actions)
        return actions.copy(), prepared.compute_returns(buffers.v[0])


def _find_changed_times(actions: IntArray, old_actions: PolicyTable) -> IndexArray:
    return np.flatnonzero((actions != old_actions).any(axis=1))


class PaperSweeper(TableSweeper):
    """The paper's sweeps; if b takes much memory, it is kept in one window of times at a time."""

    prepared: CpuProblem

    def __post_init__(self) -> None:
        super().__post_init__()
        x, T = self.problem, self.prepared.horizon
        shape, max_bytes = x.terminal.shape, MAX_MEMORY_SHARE * memory_here()
        self.windows = split_windows(T, 8 * x.terminal.size, max_bytes)
        self.buffers = PassBuffers.create(
            x,
            T,
            actions=np.empty((T, shape[0]), np.int32),
            b=empty_aligned(self.windows[0].stop + 1, *shape),
            v=empty_aligned(2, *shape),
        )

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        (actions, _, b, v), is_table = self.buffers[:4], policy.ndim == 2
        if is_table:
            actions[:] = policy
        window_weights = [self.problem.initial_joint()]
        for window in self.windows[:-1]:
            self._fill_weights(window_weights[-1], policy, window.start, window.stop + 1)
            window_weights.append(b[window.stop - window.start].copy())
        v[0] = self.problem.terminal
        for window in reversed(self.windows):
            n_times = window.stop - window.start
            v[n_times % 2] = v[0]
            arrays = self._fill_weights(window_weights.pop(), policy, window.start, window.stop)
            options = PassOptions(WEIGHTED, n_times - 1, has_weights=True, has_incumbent=is_table)
            buffers = self.buffers._replace(actions=actions[window])
            self.prepared.run_backward(options, buffers, arrays)
        return actions.copy(), self.prepared.compute_returns(v[0])

    def _fill_weights(
        self, first_weights: Array, policy: PolicyTable, start: int, stop: int
    ) -> KernelArrays:
        """Compute b of some times from that of the first; return the arrays of the times."""
        arrays, b = self.prepared.arrays.from_time(start), self.buffers.b[: stop - start]
        b[0] = first_weights
        self.prepared.fill_weights(b, policy[start:stop], arrays)
        return arrays
