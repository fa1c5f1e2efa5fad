"""Pairs of models on a CPU: a belief between the two as a second state.

Unnormalised beliefs (lambda_i c, lambda_j) with c = exp(h g), g = -K..K-1, make a Bayes update a
shift of g by log(p_i / p_j) / h: the same shift, and the same weights of the two points around
it, for every g. To make a shift a single read, w has three times the grid's length: its middle is
the grid, and the outer thirds continue it along the line to the value of model j alone (below)
and along the ray that rises like model i alone (above). W is convex, so both lie above it.

The occupancy is the transpose of all of this: masses are pushed to shifted places, and what falls
into the outer thirds is folded back onto the ends of the lines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu.jit import FUSED, SUMS, jit
from mmdp.kernels.cpu.layout import CpuLayout
from mmdp.kernels.cpu.steps import ranges
from mmdp.kernels.problem import Array, IntArray, Pairs, Problem, frozen

PIECES = 4  # pieces per thread: pairs of very different models cost more than others

# Indices are unsigned: numba then drops its test for negative ones, and loops become SIMD.
_U = np.uint64


class _Ground(NamedTuple):
    """The problem; y has length 0 if there are no prices."""

    indptr: npt.NDArray[np.int64]
    indices: IntArray
    p: Array
    r: Array
    y: Array
    allowed: npt.NDArray[np.bool_]
    terminal: Array
    gamma: float


class _Pair(NamedTuple):
    """The pair at work and its scratch; the outer axis of w and ends is the time, odd or even."""

    c: Array  # (3 G,) the ratios of all of w
    weights: Array  # (2,) lambda_i, lambda_j
    shift: npt.NDArray[np.int64]  # (nnz,) whole steps of the grid; G or -G - 1: out of it
    update: Array  # (nnz, 3) p_i, p_j and the share of the next point
    w: Array  # (2, S, 3 G)
    ends: Array  # (2, S, 2) the models alone
    q: Array  # (G,)
    choice: npt.NDArray[np.int16]  # (T, S, G)
    own: npt.NDArray[np.int16]  # (T, S, 2)

    @classmethod
    def room(cls, problem: Problem, horizon: int, pairs: Pairs) -> _Pair:
        x, grid = problem, pairs.grid
        G, S, nnz = len(grid), x.n_states, len(x.indices)
        return cls(
            np.exp(pairs.width * (np.arange(3 * G) - G - G // 2)), np.empty(2),
            np.empty(nnz, np.int64), np.empty((nnz, 3)), np.empty((2, S, 3 * G)),
            np.empty((2, S, 2)), np.empty(G), np.empty((horizon, S, G), np.int16),
            np.empty((horizon, S, 2), np.int16),
        )  # fmt: skip


@jit(**FUSED, helper=True)
def _read_updates(p, i, j, z):  # type: ignore[no-untyped-def]
    """The Bayes update of every entry k as a shift of the grid."""
    G, step = len(z.q), z.c[_U(1)] / z.c[_U(0)]
    h = np.log(step)
    for k in range(_U(p.shape[0])):
        p_i, p_j = p[k, i], p[k, j]
        shift, theta = (G if p_i > 0.0 else -G - 1), 0.0
        if p_i > 0.0 and p_j > 0.0:
            steps = np.floor(np.log(p_i / p_j) / h)
            shift = int(min(max(steps, -G - 1.0), float(G)))
            theta = min(1.0, max(0.0, (p_i / p_j * np.exp(-h * steps) - 1.0) / (step - 1.0)))
        z.shift[k] = shift
        z.update[k, _U(0)], z.update[k, _U(1)], z.update[k, _U(2)] = p_i, p_j, theta


@jit(**FUSED, helper=True)
def _extend(w, c, e_i, e_j):  # type: ignore[no-untyped-def]
    """Continue the grid, the middle third of w, below and above."""
    n, top = _U(len(w) // 3), _U(len(w) // 3 * 2)
    below, above = (w[n] - e_j) / c[n], w[top - _U(1)] - c[top - _U(1)] * e_i
    for g in range(n):
        w[g] = e_j + below * c[g]
    for g in range(top, top + n):
        w[g] = above + e_i * c[g]


@jit(**FUSED)
def _backward(x, z, i, j):  # type: ignore[no-untyped-def]
    """Values on the grid and of the models alone; slot 0 of w and ends ends with t = 0."""
    T, S, G = z.choice.shape
    A, size, last = x.allowed.shape[2], _U(G), T % 2
    l_i, l_j = z.weights[_U(0)], z.weights[_U(1)]
    c, q = z.c[G : 2 * G], z.q
    for s in range(_U(S)):
        e_i, e_j = l_i * x.terminal[s, i], l_j * x.terminal[s, j]
        z.ends[last, s, _U(0)], z.ends[last, s, _U(1)] = e_i, e_j
        for g in range(size):
            z.w[last, s, size + g] = c[g] * e_i + e_j
        _extend(z.w[last, s], z.c, e_i, e_j)
    for t in range(T - 1, -1, -1):
        p_t, r_t = x.p[t if x.p.shape[0] > 1 else 0], x.r[t if x.r.shape[0] > 1 else 0]
        open_t = x.allowed[t if x.allowed.shape[0] > 1 else 0]
        if x.p.shape[0] > 1 or t == T - 1:
            _read_updates(p_t, i, j, z)
        w, ends, w_next, ends_next = z.w[t % 2], z.ends[t % 2], z.w[1 - t % 2], z.ends[1 - t % 2]
        for s in range(_U(S)):
            top_i, top_j, first = -np.inf, -np.inf, True
            chosen, w_s = z.choice[t, s], w[s]
            for a in range(_U(A)):
                if not open_t[s, a]:
                    continue
                q_i, q_j = l_i * r_t[s, a, i], l_j * r_t[s, a, j]
                if len(x.y) > 0:
                    q_i -= l_i * x.y[t, s, a, i]
                    q_j -= l_j * x.y[t, s, a, j]
                for g in range(size):
                    q[g] = c[g] * q_i + q_j
                row = s * _U(A) + a
                for k in range(_U(x.indptr[row]), _U(x.indptr[row + _U(1)])):
                    after, shift = _U(x.indices[k]), z.shift[k]
                    p_i, p_j = x.gamma * z.update[k, _U(0)], x.gamma * z.update[k, _U(1)]
                    e_i, e_j = ends_next[after, _U(0)], ends_next[after, _U(1)]
                    w_after = w_next[after]
                    q_i += p_i * e_i
                    q_j += p_j * e_j
                    if shift >= -G and shift < G:
                        at, two = _U(G + shift), p_j * z.update[k, _U(2)]
                        one = p_j - two
                        for g in range(size):
                            q[g] += one * w_after[g + at] + two * w_after[g + at + _U(1)]
                        continue
                    slope, base = p_i * e_i, p_j * (w_after[2 * G - 1] - c[G - 1] * e_i)
                    if shift < 0:
                        slope, base = p_i * (w_after[G] - e_j) / c[0], p_j * e_j
                    for g in range(size):
                        q[g] += slope * c[g] + base
                code = np.int16(a)
                if first or q_i > top_i:
                    top_i, z.own[t, s, _U(0)] = q_i, code
                if first or q_j > top_j:
                    top_j, z.own[t, s, _U(1)] = q_j, code
                for g in range(size):
                    chosen[g] = code if first or q[g] > w_s[g + size] else chosen[g]
                for g in range(size):
                    w_s[g + size] = q[g] if first else max(w_s[g + size], q[g])
                first = False
            ends[s, _U(0)], ends[s, _U(1)] = top_i, top_j
            _extend(w_s, z.c, top_i, top_j)


@jit(**SUMS, helper=True)
def _fold(w, c, ends):  # type: ignore[no-untyped-def]
    """The transpose of ``_extend``: masses of the outer thirds, to the grid and the ends."""
    n, top = _U(len(w) // 3), _U(len(w) // 3 * 2)
    mass, grid, above, rise = 0.0, 0.0, 0.0, 0.0
    for g in range(n):
        mass += w[g]
        grid += w[g] * c[g]
    for g in range(top, top + n):
        above += w[g]
        rise += w[g] * c[g]
    grid /= c[n]
    ends[_U(1)] += mass - grid
    ends[_U(0)] += rise - above * c[top - _U(1)]
    w[n] += grid
    w[top - _U(1)] += above


@jit(**FUSED)
def _forward(x, z, i, j, u):  # type: ignore[no-untyped-def]
    """Occupancy u of what the backward pass chose: its transpose, with masses in w and ends.

    w[0] and ends[0] hold the start.
    """
    T, S, G = z.choice.shape
    A, size = u.shape[2], _U(G)
    l_i, l_j = z.weights[_U(0)], z.weights[_U(1)]
    c = z.c[G : 2 * G]
    for t in range(T):
        p_t = x.p[t if x.p.shape[0] > 1 else 0]
        if x.p.shape[0] > 1:
            _read_updates(p_t, i, j, z)
        w, ends, w_next, ends_next = z.w[t % 2], z.ends[t % 2], z.w[1 - t % 2], z.ends[1 - t % 2]
        w_next[:] = 0.0
        ends_next[:] = 0.0
        for s in range(_U(S)):
            w_s, chosen = w[s], z.choice[t, s]
            _fold(w_s, z.c, ends[s])
            for every in range(_U(A)):
                u[t, s, every, i] = 0.0
                u[t, s, every, j] = 0.0
            n_i, n_j = ends[s, _U(0)], ends[s, _U(1)]
            a_i, a_j = _U(z.own[t, s, _U(0)]), _U(z.own[t, s, _U(1)])
            u[t, s, a_i, i] += l_i * n_i
            u[t, s, a_j, j] += l_j * n_j
            for k in range(_U(x.indptr[s * _U(A) + a_i]), _U(x.indptr[s * _U(A) + a_i + _U(1)])):
                ends_next[_U(x.indices[k]), _U(0)] += z.update[k, _U(0)] * n_i
            for k in range(_U(x.indptr[s * _U(A) + a_j]), _U(x.indptr[s * _U(A) + a_j + _U(1)])):
                ends_next[_U(x.indices[k]), _U(1)] += z.update[k, _U(1)] * n_j
            start = _U(0)
            while start < size:  # runs of beliefs that share an action
                code, stop, mass_i, mass_j = chosen[start], start, 0.0, 0.0
                while stop < size and chosen[stop] == code:
                    mass_j += w_s[stop + size]
                    mass_i += w_s[stop + size] * c[stop]
                    stop += _U(1)
                a = _U(code)
                u[t, s, a, i] += l_i * mass_i
                u[t, s, a, j] += l_j * mass_j
                row = s * _U(A) + a
                first, end = _U(x.indptr[row]), _U(x.indptr[row + _U(1)])
                if mass_j <= 0.0:
                    end = first
                for k in range(first, end):
                    after, shift = _U(x.indices[k]), z.shift[k]
                    p_i, p_j = z.update[k, _U(0)], z.update[k, _U(1)]
                    out = w_next[after]
                    if shift >= -G and shift < G:
                        at, two = _U(G + shift), p_j * z.update[k, _U(2)]
                        one = p_j - two
                        for g in range(start, stop):
                            out[g + at] += one * w_s[g + size]
                        for g in range(start, stop):
                            out[g + at + _U(1)] += two * w_s[g + size]
                    elif shift < 0:
                        out[size] += p_i * mass_i / c[0]
                        ends_next[after, _U(1)] += p_j * mass_j - p_i * mass_i / c[0]
                    else:
                        out[2 * G - 1] += p_j * mass_j
                        ends_next[after, _U(0)] += p_i * mass_i - p_j * c[G - 1] * mass_j
                start = stop


class CpuPairs(CpuLayout):
    """The pairs part of a CPU plan."""

    def pair_values(self, pairs: Pairs, y: Array | None = None, u: Array | None = None) -> Array:
        x, count = self.problem, len(pairs.first)
        prices = np.empty((0, 1, 1, 1)) if y is None else y
        ground = _Ground(
            x.indptr, x.indices, x.p, frozen(np.asarray(x.r)), prices, x.allowed, x.terminal,
            x.discount,
        )  # fmt: skip
        values, G = np.empty(count), len(pairs.grid)

        def run(part: range) -> None:
            z = _Pair.room(x, self.horizon, pairs)
            for n in part:
                i, j = int(pairs.first[n]), int(pairs.second[n])
                # a model paired with itself stands alone
                z.weights[:] = x.weights[[i, j]] * (0.5 if i == j else 1.0)
                _backward(ground, z, i, j)
                mass = pairs.start(x, i, j)
                grid, ends = mass[:, 1:-1], mass[:, [-1, 0]]
                values[n] = (grid * z.w[0, :, G : 2 * G]).sum() + (ends * z.ends[0]).sum()
                if u is not None:
                    z.w[0], z.w[0, :, G : 2 * G], z.ends[0] = 0.0, grid, ends
                    _forward(ground, z, i, j, u)

        team = self.team(len(x.indices) * len(pairs.grid) * count)
        team.each(run, ranges(count, PIECES * len(team) if len(team) > 1 else 1))
        return values
