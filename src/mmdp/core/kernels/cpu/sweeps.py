"""CADP's sweeps on the CPU, without the work that cannot matter.

A two-way sweep improves the policy in both passes and keeps q of all steps in between. The
forward pass begins at the first step whose action the last backward pass changed; the backward
pass begins at the last step whose action the forward pass changed. Outside of that range
weights, values and choices are unchanged. Inside it, a row of q is computed again only if one of
its next values has changed. If the forward pass changes nothing, the policy is a local maximum,
and no backward pass is needed to confirm it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmdp.core.kernels.cpu import scheduler
from mmdp.core.kernels.cpu.passes import (
    ACTIONS,
    PROBABILITIES,
    WEIGHTED,
    KernelArrays,
    PassBuffers,
    PassOptions,
    PassScratch,
    backward,
    forward,
)
from mmdp.core.kernels.cpu.threads import split_edges
from mmdp.core.kernels.problem import Array, IntArray, PolicyTable, empty_aligned, split_windows
from mmdp.core.memory import memory_here

if TYPE_CHECKING:
    from mmdp.core.kernels.cpu.backend import CpuProblem

MAX_MEMORY_SHARE = 0.25  # of memory for b of all times; if it takes more, it is kept in windows


class CpuSweeper:
    """The sweeps of the ascents of one problem; see :class:`mmdp.core.kernels.ascent.Sweeper`."""

    def __init__(self, prepared: CpuProblem, *, two_way: bool) -> None:
        x, T = prepared.problem, prepared.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        pool = prepared.get_pool(x.storage.n_entries * M)
        self.problem, self.pool, self.two_way = x, pool, two_way
        n_pieces = scheduler.count_pieces(len(pool))
        self.state_edges, self.model_edges = (
            split_edges(S, n_pieces),
            split_edges(M, n_pieces),
        )
        self.arrays = prepared.arrays
        self.scratch = [PassScratch.from_arrays(prepared.arrays) for _ in range(len(pool))]
        q_buffer = {"q": empty_aligned(T, S, A, M)} if two_way else {}
        max_bytes = np.inf if two_way else MAX_MEMORY_SHARE * memory_here()
        self.windows = split_windows(T, 8 * S * M, max_bytes)
        b = empty_aligned(T if len(self.windows) == 1 else self.windows[0].stop + 1, S, M)
        self.buffers = PassBuffers.create(
            x,
            T,
            actions=np.zeros((T, S), np.int32),
            b=b,
            v=empty_aligned(T + 1 if two_way else 2, S, M),
            v_actions=np.zeros((T, S), np.int32),
            v_changed=np.zeros((T + 1, S), np.bool_),
            **q_buffer,
        )
        self.buffers.b[0] = x.initial_joint()

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        """Return the first policy (computed by WSU if ``init`` is None) and its returns."""
        self.is_first_sweep = True  # no sweep has been made
        self.has_current_q = self.two_way and init is None  # q is that of v
        self.first_changed_time = -1  # the first step whose action the last backward pass changed
        last_time = len(self.buffers.actions) - 1
        if init is None:
            prior_buffers = self.buffers._replace(b=self.problem.prior_weights())
            self._run_backward(
                PassOptions(WEIGHTED, last_time, has_weights=True, keep_q=self.two_way),
                prior_buffers,
            )
            self.buffers.v_actions[:] = self.buffers.actions
            return self.buffers.actions.copy(), self._compute_returns()
        if init.ndim == 2:
            self.buffers.actions[:] = init
            self._run_backward(PassOptions(ACTIONS, last_time, has_incumbent=True))
        else:
            buffers = self.buffers._replace(probabilities=np.ascontiguousarray(init, np.float64))
            self._run_backward(PassOptions(PROBABILITIES, last_time), buffers)
        return init, self._compute_returns()

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        """Run a forward and a backward pass; return the actions and their returns."""
        actions, last_time = self.buffers.actions, len(policy) - 1
        if len(self.windows) > 1:
            return self._sweep_windows(policy)
        if policy.ndim == 3:
            self._push_window(policy, 0)
        else:
            old_actions = actions.copy()
            self._run_forward(
                self.two_way and not self.is_first_sweep,
                self.first_changed_time,
                self.buffers,
                self.arrays,
            )
            if self.two_way and not self.is_first_sweep:
                changed_times = np.flatnonzero((actions != old_actions).any(axis=1))
                if not len(changed_times):
                    return old_actions, self._compute_returns()
                last_time = int(changed_times[-1])
        old_actions = actions.copy()
        self.buffers.v_changed[last_time + 1] = False
        self._run_backward(
            PassOptions(
                WEIGHTED,
                last_time,
                has_weights=True,
                has_incumbent=policy.ndim == 2,
                keep_q=self.two_way,
                is_incremental=self.has_current_q,
                all_states=self.is_first_sweep,
            )
        )
        if not self.has_current_q:
            self.buffers.v_actions[:] = actions
        self.is_first_sweep, self.has_current_q = False, self.two_way
        if policy.ndim == 2:
            changed_times = np.flatnonzero((actions != old_actions).any(axis=1))
            self.first_changed_time = int(changed_times[0]) if len(changed_times) else len(actions)
        return actions.copy(), self._compute_returns()

    def _sweep_windows(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        """Run a sweep with b of one window of times in memory; b is computed twice."""
        b, v, window_weights = self.buffers.b, self.buffers.v, []
        is_randomized = policy.ndim == 3
        b[0] = self.problem.initial_joint()
        for window in self.windows:
            window_weights.append(b[0].copy())
            if window.stop < len(policy):
                self._push_window(policy[window.start : window.stop + 1], window.start)
                b[0] = b[window.stop - window.start]
        v[0] = self.problem.terminal
        for window, first_weights in zip(
            reversed(self.windows), reversed(window_weights), strict=True
        ):
            n_times = window.stop - window.start
            b[0], v[n_times % 2] = first_weights, v[0]
            self._push_window(policy[window], window.start)
            options = PassOptions(
                WEIGHTED, n_times - 1, has_weights=True, has_incumbent=not is_randomized
            )
            buffers = self.buffers._replace(actions=self.buffers.actions[window])
            self._run_backward(options, buffers, self.arrays.from_time(window.start))
        return self.buffers.actions.copy(), self._compute_returns()

    def _push_window(self, policy: PolicyTable, t: int) -> None:
        """Compute b of a window from b[0] on, under a policy that begins at time t."""
        if policy.ndim == 3:
            buffers = self.buffers._replace(probabilities=np.ascontiguousarray(policy, np.float64))
        else:
            buffers = self.buffers._replace(actions=np.require(policy, np.int32, ["C", "W"]))
        self._run_forward(False, -1, buffers, self.arrays.from_time(t))

    def _run_forward(
        self, improve: bool, start_time: int, buffers: PassBuffers, arrays: KernelArrays
    ) -> None:
        """Run the compiled forward pass on all threads."""
        scratch = self.scratch
        if len(buffers.probabilities):
            scratch = [PassScratch.from_arrays(arrays, is_randomized=True) for _ in scratch]
        self._run_steps(
            lambda counters, rank: forward(
                counters,
                rank,
                self.state_edges,
                self.model_edges,
                start_time,
                improve,
                arrays,
                buffers,
                scratch[rank],
            )
        )

    def _run_backward(
        self,
        options: PassOptions,
        buffers: PassBuffers | None = None,
        arrays: KernelArrays | None = None,
    ) -> None:
        """Run the compiled backward pass on all threads."""
        pass_buffers, pass_arrays = buffers or self.buffers, arrays or self.arrays
        if (
            arrays is None and options.last_time == len(pass_buffers.v_changed) - 2
        ):  # v may have two times only
            pass_buffers.v[(options.last_time + 1) % len(pass_buffers.v)] = self.problem.terminal
        self._run_steps(
            lambda counters, rank: backward(
                counters,
                rank,
                self.state_edges,
                options,
                pass_arrays,
                pass_buffers,
                self.scratch[rank],
            )
        )

    def _run_steps(self, function: scheduler.ThreadFunction) -> None:
        scheduler.run_steps(
            self.pool, self.problem.storage.n_entries * self.problem.n_models, function
        )

    def _compute_returns(self) -> Array:
        return self.problem.compute_returns(self.buffers.v[0])
