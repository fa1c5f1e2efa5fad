"""The passes over states and nodes of controllers, compiled, for every backend.

Symbols as in :mod:`mmdp.core.kernels.controller`. They go entry by entry over the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from mmdp.core.kernels.controller import Controller, NodeValues
from mmdp.core.kernels.cpu import scheduler
from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, jit
from mmdp.core.kernels.cpu.passes import KernelArrays, at, choose_action, dot, sum_range
from mmdp.core.kernels.cpu.rows import sum_row_entries
from mmdp.core.kernels.cpu.scheduler import finish_piece, take_piece
from mmdp.core.kernels.cpu.threads import for_each, split_edges, split_ranges
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import TIE_RTOL, Problem, empty_aligned
from mmdp.core.shapes import Array, IntArray, NodeArray

_U = np.uint64


class _NodeBuffers(NamedTuple):
    """The arrays that the passes read and write; rows s * N + n of (state, node)."""

    actions: IntArray  # (T, S, N)
    node_transitions: NodeArray  # (T, S, N, S')
    b: Array  # (T, S * N, M), or empty if nothing is improved
    v: Array  # (T + 1, S * N, M), or 2 steps used in turn

    @classmethod
    def create(cls, controller: Controller, b: Array | None, v: Array) -> _NodeBuffers:
        """Convert a controller, b (T, S, N, M) and v (any, S, N, M)."""
        shape = -1, v.shape[1] * v.shape[2], v.shape[3]
        return cls(
            np.require(controller.actions, np.int32, ["C", "W"]),
            np.require(controller.node_transitions, np.uint8, ["C", "W"]),
            np.empty((0, *shape[1:])) if b is None else b.reshape(shape),
            v.reshape(shape),
        )


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
    p, r, allowed = at(x.p, t), at(x.r, t), at(x.allowed, t)
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
def _backward(counters, rank, edges, last_time, n_steps, x, buf, scratch):  # type: ignore[no-untyped-def]
    """Compute v of ``n_steps`` times, back from the last; improve the controller if b is given."""
    n_nodes, n_actions = len(scratch.D), len(scratch.G)
    n_models = np.int64(len(scratch.b_p))
    while True:
        step, piece = take_piece(counters, rank, len(edges) - 1, n_steps)
        if step >= n_steps:
            return
        t = last_time - step
        p, r = at(x.p, t), at(x.r, t)
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
                    scratch.columns,
                    None,
                    None,
                    start,
                    start,
                    stop,
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
    p, b, b_next = at(x.p, t), buf.b[t], buf.b[t + 1]
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


def compute_node_weights(
    prepared: PreparedProblem, controller: Controller, values: Array | None
) -> tuple[Controller, Array]:
    """Run the forward pass of :meth:`PreparedProblem.compute_node_weights`."""
    x, horizon, N = prepared.problem, prepared.horizon, controller.n_nodes
    S, M, is_switching = x.n_states, x.n_models, x.model_transitions is not None
    controller = controller if values is None else controller.copy()
    b = empty_aligned(horizon, S, N, M)
    b[:] = 0.0
    b[0, np.arange(S), controller.initial_nodes] = x.initial_joint()
    work = len(x.indices) * M * N
    n_threads = prepared.count_threads(work // x.n_actions if values is None else work * N)
    next_values = np.empty((0, S, N, M)) if values is None else x.expect_models(values)
    buffers, arrays = _NodeBuffers.create(controller, b, next_values), KernelArrays.from_tables(x)
    state_ranges, model_ranges = (split_ranges(size, n_threads) for size in (S, M))
    scratch = [_NodeScratch.from_problem(x, N) for _ in state_ranges]

    def improve(t: int, i: int) -> None:
        _improve(t, state_ranges[i].start, state_ranges[i].stop, arrays, buffers, scratch[i])

    def push(times: range, models: range) -> None:
        for t in times:
            _push_forward(t, models.start, models.stop, arrays, buffers)

    if values is None and not is_switching:  # no thread waits for another
        for_each(n_threads, partial(push, range(horizon - 1)), model_ranges)
        return controller, b
    for t in range(horizon):
        if values is not None:
            for_each(n_threads, partial(improve, t), range(len(state_ranges)))
        if t + 1 < horizon:
            for_each(n_threads, partial(push, range(t, t + 1)), model_ranges)
            if is_switching:
                b[t + 1] = x.push_models(b[t + 1])
    return controller, b


def compute_node_values(
    prepared: PreparedProblem, controller: Controller, weights: Array | None, keep_values: bool
) -> NodeValues:
    """Run the backward pass of :meth:`PreparedProblem.compute_node_values`."""
    x, T, (S, N) = prepared.problem, prepared.horizon, controller.actions.shape[1:]
    controller = controller if weights is None else controller.copy()
    v = empty_aligned(T + 1 if keep_values else 2, S, N, x.n_models)
    v[T % len(v)] = x.terminal[:, None]
    run = _make_backward(prepared, KernelArrays.from_tables(x), controller, weights, v)
    if x.model_transitions is None:
        run(T - 1, T)
    for t in reversed(range(T if x.model_transitions is not None else 0)):
        next_v = v[(t + 1) % len(v)]
        kept_v = next_v.copy()
        next_v[:] = x.expect_models(kept_v)
        run(t, 1)
        next_v[:] = kept_v
    if weights is not None:
        b = x.initial_joint()
        G = np.matmul(v[0], b[:, :, None])[:, :, 0]
        initial_nodes = choose_actions(G, b, controller.initial_nodes).astype(np.uint8)
        controller = controller._replace(initial_nodes=initial_nodes)
    returns = x.compute_returns(v[0, np.arange(S), controller.initial_nodes])
    return NodeValues(controller, returns, v if keep_values else None)


def compute_node_q(prepared: PreparedProblem, t: int, v: Array, controller: Controller) -> Array:
    """Compute q (S, N, A, M) of every action under the node transitions."""
    x = prepared.problem
    v_pair, arrays = np.array([v, x.expect_models(v)]), KernelArrays.from_tables(x).from_time(t)
    q = np.empty((*v.shape[:2], x.n_actions, x.n_models))
    for a in range(x.n_actions):
        one_step = controller._replace(
            actions=np.full((1, *v.shape[:2]), a),
            node_transitions=controller.node_transitions[t : t + 1],
        )
        _make_backward(prepared, arrays, one_step, None, v_pair)(0, 1)
        q[:, :, a] = v_pair[0]
    return q


def _make_backward(
    prepared: PreparedProblem,
    arrays: KernelArrays,
    controller: Controller,
    b: Array | None,
    v: Array,
) -> Callable[[int, int], None]:
    """Make the function that runs n steps back from a time on, in place."""
    x, N = prepared.problem, controller.n_nodes
    work = len(x.indices) * x.n_models * N * (1 if b is None else N)
    n_threads, buffers = prepared.count_threads(work), _NodeBuffers.create(controller, b, v)
    edges = split_edges(x.n_states, scheduler.count_pieces(n_threads))
    scratch = [_NodeScratch.from_problem(x, N) for _ in range(n_threads)]

    def run(last_time: int, n_steps: int) -> None:
        scheduler.run_steps(
            n_threads,
            work,
            lambda counters, rank: _backward(
                counters, rank, edges, last_time, n_steps, arrays, buffers, scratch[rank]
            ),
        )

    return run
