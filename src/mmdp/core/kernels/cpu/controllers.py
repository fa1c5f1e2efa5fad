"""Controllers on the CPU: the passes over states and nodes, compiled."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from mmdp.core.kernels.controller import Controller, NodeArray, NodeValues
from mmdp.core.kernels.cpu import scheduler
from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, jit
from mmdp.core.kernels.cpu.layout import CpuTableProblem
from mmdp.core.kernels.cpu.passes import choose_action, dot, sum_range
from mmdp.core.kernels.cpu.rows import sum_row_entries
from mmdp.core.kernels.cpu.scheduler import finish_piece, take_piece
from mmdp.core.kernels.numpy.controllers import finish_backward, make_initial_weights
from mmdp.core.kernels.problem import TIE_RTOL, Array, IntArray, Problem, empty_aligned

_U = np.uint64


class _NodeBuffers(NamedTuple):
    """The arrays that the passes read and write; rows s * N + n of (state, node)."""

    actions: IntArray  # (T, S, N)
    node_transitions: NodeArray  # (T, S, N, S')
    b: Array  # (T, S * N, M), or empty if nothing is improved
    v: Array  # (T + 1, S * N, M), or 2 steps used in turn


class _NodeScratch(NamedTuple):
    """The arrays that one thread writes."""

    b_p: Array  # (M,): b p of an entry
    D: Array  # (N,)
    G: Array  # (A,)
    best_nodes: NodeArray  # (nnz,): the best move after each entry of a state
    columns: IntArray  # (nnz,): the rows of v that the entries lead to

    @classmethod
    def from_problem(cls, problem: Problem, n_nodes: int) -> _NodeScratch:
        """Allocate the arrays of one thread."""
        nnz = len(problem.indices)
        return cls(
            empty_aligned(problem.n_models),
            np.empty(n_nodes),
            np.empty(problem.n_actions),
            np.empty(nnz, np.uint8),
            np.empty(nnz, np.int32),
        )


@jit(**BASE_OPTIONS, helper=True)
def _improve_node(t, s, n, x, b, v_next, buf, scratch):  # type: ignore[no-untyped-def]
    """Set the best action of (s, n) with its best next nodes; ties keep the old ones."""
    n_actions, n_nodes, n_models = len(scratch.G), _U(len(scratch.D)), _U(len(scratch.b_p))
    p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
    allowed = x.allowed[t if len(x.allowed) > 1 else 0]
    old_action, next_nodes, zero = buf.actions[t, s, n], buf.node_transitions[t, s, n], _U(0)
    old_G, scale = -np.inf, 0.0
    for a in range(n_actions):
        scratch.G[a] = -np.inf
        if not allowed[s, a]:
            continue
        reward, best_future, old_future = dot(b, r[s, a], zero, n_models), 0.0, 0.0
        for k in range(x.indptr[s * n_actions + a], x.indptr[s * n_actions + a + 1]):
            next_state = _U(x.indices[k])
            for m in range(n_models):
                scratch.b_p[m] = b[m] * p[k, m]
            for i in range(n_nodes):
                scratch.D[i] = dot(scratch.b_p, v_next[next_state * n_nodes + i], zero, n_models)
            scratch.best_nodes[k] = choose_action(scratch.D, np.int64(next_nodes[next_state]))
            best_future += scratch.D[scratch.best_nodes[k]]
            old_future += scratch.D[next_nodes[next_state]]
        scratch.G[a] = reward + x.gamma * best_future
        scale = max(scale, abs(scratch.G[a]))
        if a == old_action:
            old_G = reward + x.gamma * old_future
    new_action = choose_action(scratch.G, np.int64(-1))
    if old_G >= max(scratch.G) - TIE_RTOL * scale:
        return
    buf.actions[t, s, n] = new_action
    for k in range(x.indptr[s * n_actions + new_action], x.indptr[s * n_actions + new_action + 1]):
        next_nodes[x.indices[k]] = scratch.best_nodes[k]


@jit(**BASE_OPTIONS)
def _backward(counters, rank, edges, x, buf, scratch):  # type: ignore[no-untyped-def]
    """Compute v of every time from the last to the first; improve the controller if b is given."""
    horizon, n_nodes, n_actions = len(buf.actions), len(scratch.D), len(scratch.G)
    n_models = np.int64(len(scratch.b_p))
    while True:
        step, piece = take_piece(counters, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t = horizon - 1 - step
        p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
        v_next, v = buf.v[(t + 1) % len(buf.v)], buf.v[t % len(buf.v)]
        for s in range(edges[piece], edges[piece + 1]):
            for n in range(n_nodes):
                row = s * n_nodes + n
                if len(buf.b) > 0 and sum_range(buf.b[t, row], _U(0), _U(n_models)) > 0.0:
                    _improve_node(t, s, n, x, buf.b[t, row], v_next, buf, scratch)
                a = buf.actions[t, s, n]
                start, stop = x.indptr[s * n_actions + a], x.indptr[s * n_actions + a + 1]
                for k in range(start, stop):
                    scratch.columns[k] = (
                        x.indices[k] * n_nodes + buf.node_transitions[t, s, n, x.indices[k]]
                    )
                sum_row_entries(
                    p,
                    v_next,
                    None,
                    scratch.columns,
                    None,
                    None,
                    start,
                    start,
                    stop,
                    0,
                    n_models,
                    r[s, a],
                    x.gamma,
                    v[row],
                )
        finish_piece(counters)


@jit(**BASE_OPTIONS)
def _improve(t, lo, hi, x, buf, scratch):  # type: ignore[no-untyped-def]
    """Improve the controller at t in the states lo..hi."""
    n_nodes = len(scratch.D)
    for row in range(lo * n_nodes, hi * n_nodes):
        if sum_range(buf.b[t, row], _U(0), _U(len(scratch.b_p))) > 0.0:
            _improve_node(
                t, row // n_nodes, row % n_nodes, x, buf.b[t, row], buf.v[t + 1], buf, scratch
            )


@jit(**BASE_OPTIONS)
def _push_forward(t, lo, hi, x, buf):  # type: ignore[no-untyped-def]
    """Compute b of the models lo..hi at t + 1."""
    n_states, n_nodes = buf.actions.shape[1:]
    n_actions = x.allowed.shape[2]
    lo, hi = _U(lo), _U(hi)
    p, b, b_next = x.p[t if len(x.p) > 1 else 0], buf.b[t], buf.b[t + 1]
    for s in range(n_states):
        for n in range(n_nodes):
            row = s * n_nodes + n
            if sum_range(b[row], lo, hi) == 0.0:
                continue
            start = s * n_actions + buf.actions[t, s, n]
            for k in range(x.indptr[start], x.indptr[start + 1]):
                i = _U(x.indices[k] * n_nodes + buf.node_transitions[t, s, n, x.indices[k]])
                for m in range(lo, hi):
                    b_next[i, m] += p[k, m] * b[row, m]


class CpuControllerPasses(CpuTableProblem):
    """The passes over states and nodes of controllers, on the CPU."""

    def compute_node_weights(
        self, controller: Controller, values: Array | None = None
    ) -> tuple[Controller, Array]:
        x, horizon, N = self.problem, self.horizon, controller.n_nodes
        controller = controller if values is None else controller.copy()
        b = make_initial_weights(x, horizon, controller)
        work = len(x.indices) * x.n_models * N
        pool = self.get_pool(work // x.n_actions if values is None else work * N)
        buffers, arrays = _make_node_buffers(x, controller, b, values), self.table_arrays
        state_ranges, model_ranges = (
            scheduler.split_ranges(size, len(pool)) for size in (x.n_states, x.n_models)
        )

        scratch = [_NodeScratch.from_problem(x, N) for _ in state_ranges]

        def improve(t: int, i: int) -> None:
            _improve(t, state_ranges[i].start, state_ranges[i].stop, arrays, buffers, scratch[i])

        def push(times: range, models: range) -> None:
            for t in times:
                _push_forward(t, models.start, models.stop, arrays, buffers)

        if values is None:  # the models are independent: no thread waits for another
            pool.for_each(partial(push, range(horizon - 1)), model_ranges)
            return controller, b
        for t in range(horizon):
            pool.for_each(partial(improve, t), range(len(state_ranges)))
            pool.for_each(partial(push, range(t, min(t + 1, horizon - 1))), model_ranges)
        return controller, b

    def compute_node_values(
        self, controller: Controller, weights: Array | None = None, *, keep_values: bool = False
    ) -> NodeValues:
        x, horizon, (S, N) = self.problem, self.horizon, controller.actions.shape[1:]
        M = x.n_models
        controller = controller if weights is None else controller.copy()
        v = empty_aligned(horizon + 1 if keep_values else 2, S, N, M)
        v[horizon % len(v)] = x.terminal[:, None]
        buffers, arrays = _make_node_buffers(x, controller, weights, v), self.table_arrays
        work = len(x.indices) * M * N * (1 if weights is None else N)
        pool = self.get_pool(work)
        edges = scheduler.split_edges(S, scheduler.count_pieces(len(pool)))
        scratch = [_NodeScratch.from_problem(x, N) for _ in range(len(pool))]
        scheduler.run_steps(
            pool,
            work,
            lambda counters, rank: _backward(counters, rank, edges, arrays, buffers, scratch[rank]),
        )
        return finish_backward(
            x, controller, v[0], v if keep_values else None, improve=weights is not None
        )


def _make_node_buffers(
    x: Problem, controller: Controller, b: Array | None, v: Array | None
) -> _NodeBuffers:
    """Convert a controller to the arrays of the compiled code, with rows s * N + n."""
    rows, M = x.n_states * controller.n_nodes, x.n_models
    empty = np.empty((0, rows, M))
    return _NodeBuffers(
        np.require(controller.actions, np.int32, ["C", "W"]),
        np.require(controller.node_transitions, np.uint8, ["C", "W"]),
        *(empty if array is None else array.reshape(-1, rows, M) for array in (b, v)),
    )
