"""Controllers on the CPU: the passes over states and nodes, compiled."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from mmdp.kernels.controller import Controller, Nodes, NodeValues
from mmdp.kernels.cpu import steps
from mmdp.kernels.cpu.jit import FAST, jit
from mmdp.kernels.cpu.layout import CpuLayout
from mmdp.kernels.cpu.passes import choose, dot, mass
from mmdp.kernels.cpu.rows import row_sum
from mmdp.kernels.cpu.steps import done, take
from mmdp.kernels.numpy.controllers import begun, ended
from mmdp.kernels.problem import TIE, Array, IntArray, Problem, aligned

_U = np.uint64


class _State(NamedTuple):
    """What the passes read and write; rows s * N + n of (state, node)."""

    actions: IntArray  # (T, S, N)
    moves: Nodes  # (T, S, N, S')
    b: Array  # (T, S * N, M), or empty if nothing is improved
    v: Array  # (T + 1, S * N, M), or 2 steps used in turn


class _Scratch(NamedTuple):
    """What one thread writes while it works."""

    c: Array  # (M,): b p of an entry
    D: Array  # (N,)
    G: Array  # (A,)
    best: Nodes  # (nnz,): the best move after each entry of a state
    columns: IntArray  # (nnz,): the rows of v that the entries lead to

    @classmethod
    def of(cls, problem: Problem, nodes: int) -> _Scratch:
        nnz = len(problem.indices)
        return cls(
            aligned(problem.n_models), np.empty(nodes), np.empty(problem.n_actions),
            np.empty(nnz, np.uint8), np.empty(nnz, np.int32),
        )  # fmt: skip


@jit(**FAST, helper=True)
def _joint_step(t, s, n, x, b, v_next, c, w):  # type: ignore[no-untyped-def]
    """The best action in (s, n) with its best moves; the old ones if these are as good."""
    n_actions, n_nodes, width = len(w.G), _U(len(w.D)), _U(len(w.c))
    p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
    allowed = x.allowed[t if len(x.allowed) > 1 else 0]
    old, moves, zero = c.actions[t, s, n], c.moves[t, s, n], _U(0)
    same, size = -np.inf, 0.0
    for a in range(n_actions):
        w.G[a] = -np.inf
        if not allowed[s, a]:
            continue
        reward, later, held = dot(b, r[s, a], zero, width), 0.0, 0.0
        for k in range(x.indptr[s * n_actions + a], x.indptr[s * n_actions + a + 1]):
            after = _U(x.indices[k])
            for m in range(width):
                w.c[m] = b[m] * p[k, m]
            for i in range(n_nodes):
                w.D[i] = dot(w.c, v_next[after * n_nodes + i], zero, width)
            w.best[k] = choose(w.D, np.int64(moves[after]))
            later += w.D[w.best[k]]
            held += w.D[moves[after]]
        w.G[a] = reward + x.gamma * later
        size = max(size, abs(w.G[a]))
        if a == old:
            same = reward + x.gamma * held
    found = choose(w.G, np.int64(-1))
    if same >= max(w.G) - TIE * size:
        return
    c.actions[t, s, n] = found
    for k in range(x.indptr[s * n_actions + found], x.indptr[s * n_actions + found + 1]):
        moves[x.indices[k]] = w.best[k]


@jit(**FAST)
def _back(marks, rank, edges, x, c, w):  # type: ignore[no-untyped-def]
    """v of every step from the last to the first; improved on the way if there is a b."""
    horizon, n_nodes, n_actions = len(c.actions), len(w.D), len(w.G)
    width = np.int64(len(w.c))
    while True:
        step, piece = take(marks, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t = horizon - 1 - step
        p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
        v_next, v = c.v[(t + 1) % len(c.v)], c.v[t % len(c.v)]
        for s in range(edges[piece], edges[piece + 1]):
            for n in range(n_nodes):
                row = s * n_nodes + n
                if len(c.b) > 0 and mass(c.b[t, row], _U(0), _U(width)) > 0.0:
                    _joint_step(t, s, n, x, c.b[t, row], v_next, c, w)
                a = c.actions[t, s, n]
                start, stop = x.indptr[s * n_actions + a], x.indptr[s * n_actions + a + 1]
                for k in range(start, stop):
                    w.columns[k] = x.indices[k] * n_nodes + c.moves[t, s, n, x.indices[k]]
                row_sum(
                    p, v_next, None, w.columns, None, None, start, start, stop, 0, width, r[s, a],
                    x.gamma, v[row],
                )  # fmt: skip
        done(marks)


@jit(**FAST)
def _improve(t, lo, hi, x, c, w):  # type: ignore[no-untyped-def]
    """The joint step at t in the states lo..hi."""
    n_nodes = len(w.D)
    for row in range(lo * n_nodes, hi * n_nodes):
        if mass(c.b[t, row], _U(0), _U(len(w.c))) > 0.0:
            _joint_step(t, row // n_nodes, row % n_nodes, x, c.b[t, row], c.v[t + 1], c, w)


@jit(**FAST)
def _push(t, lo, hi, x, c):  # type: ignore[no-untyped-def]
    """b of the models lo..hi at t + 1."""
    n_states, n_nodes = c.actions.shape[1:]
    n_actions = x.allowed.shape[2]
    lo, hi = _U(lo), _U(hi)
    p, b, after = x.p[t if len(x.p) > 1 else 0], c.b[t], c.b[t + 1]
    for s in range(n_states):
        for n in range(n_nodes):
            row = s * n_nodes + n
            if mass(b[row], lo, hi) == 0.0:
                continue
            start = s * n_actions + c.actions[t, s, n]
            for k in range(x.indptr[start], x.indptr[start + 1]):
                i = _U(x.indices[k] * n_nodes + c.moves[t, s, n, x.indices[k]])
                for m in range(lo, hi):
                    after[i, m] += p[k, m] * b[row, m]


class CpuControllers(CpuLayout):
    """The controllers part of a CPU plan."""

    def node_weights(
        self, controller: Controller, values: Array | None = None
    ) -> tuple[Controller, Array]:
        x, horizon, N = self.problem, self.horizon, controller.n_nodes
        controller = controller if values is None else controller.copy()
        b = begun(x, horizon, controller)
        work = len(x.indices) * x.n_models * N
        team = self.team(work // x.n_actions if values is None else work * N)
        state, ground = _state(x, controller, b, values), self.tables
        states, models = (steps.ranges(size, len(team)) for size in (x.n_states, x.n_models))

        scratch = [_Scratch.of(x, N) for _ in states]

        def improve(t: int, i: int) -> None:
            _improve(t, states[i].start, states[i].stop, ground, state, scratch[i])

        def push(times: range, part: range) -> None:
            for t in times:
                _push(t, part.start, part.stop, ground, state)

        if values is None:  # the models are independent: no thread waits for another
            team.each(partial(push, range(horizon - 1)), models)
            return controller, b
        for t in range(horizon):
            team.each(partial(improve, t), range(len(states)))
            team.each(partial(push, range(t, min(t + 1, horizon - 1))), models)
        return controller, b

    def node_values(
        self, controller: Controller, weights: Array | None = None, *, keep: bool = False
    ) -> NodeValues:
        x, horizon, (S, N) = self.problem, self.horizon, controller.actions.shape[1:]
        M = x.n_models
        controller = controller if weights is None else controller.copy()
        v = aligned(horizon + 1 if keep else 2, S, N, M)
        v[horizon % len(v)] = x.terminal[:, None]
        state, ground = _state(x, controller, weights, v), self.tables
        work = len(x.indices) * M * N * (1 if weights is None else N)
        team = self.team(work)
        edges = steps.edges(S, steps.pieces(len(team)))
        scratch = [_Scratch.of(x, N) for _ in range(len(team))]
        steps.walk(
            team, work,
            lambda marks, rank: _back(marks, rank, edges, ground, state, scratch[rank]),
        )  # fmt: skip
        return ended(x, controller, v[0], v if keep else None, improve=weights is not None)


def _state(x: Problem, controller: Controller, b: Array | None, v: Array | None) -> _State:
    """The arrays as the compiled code takes them, with rows s * N + n."""
    rows, M = x.n_states * controller.n_nodes, x.n_models
    nothing = np.empty((0, rows, M))
    return _State(
        np.require(controller.actions, np.int32, ["C", "W"]),
        np.require(controller.moves, np.uint8, ["C", "W"]),
        *(nothing if part is None else part.reshape(-1, rows, M) for part in (b, v)),
    )
