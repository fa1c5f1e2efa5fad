"""Pairs of models, compiled, for every backend: a belief between the two as a second state.

Unnormalised beliefs (lambda_i c, lambda_j) with c = exp(h g), g = -K..K-1, make a Bayes update a
shift of g by log(p_i / p_j) / h: the same shift, and the same weights of the two points around
it, for every g. To make a shift a single read, w has three times the grid's length: its middle is
the grid, and the outer thirds continue it along the line to the value of model j alone (below)
and along the ray that rises like model i alone (above). W is convex, so both lie above it.

The occupancy is the transpose of all of this: masses are pushed to shifted points, and what falls
into the outer thirds is folded back onto the ends of the lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.cpu.jit import FMA_OPTIONS, REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.passes import KernelArrays, at
from mmdp.core.kernels.cpu.threads import for_each, split_ranges
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import ModelPairs, Problem
from mmdp.core.shapes import Array, IndexArray

TASKS_PER_THREAD = 4  # pieces per thread: pairs of very different models cost more than others

# Indices are unsigned: numba then drops its test for negative ones, and loops become SIMD.
_U = np.uint64


class _PairBuffers(NamedTuple):
    """The pair in work and its buffers; axis 0 of w and endpoints is the time, odd or even."""

    c: Array  # (3 G,) the ratios of all of w
    weights: Array  # (2,) lambda_i, lambda_j
    shift: IndexArray  # (nnz,) whole steps of the grid; G or -G - 1: out of it
    bayes: Array  # (nnz, 3) p_i, p_j and the weight of the next point
    w: Array  # (2, S, 3 G)
    endpoints: Array  # (2, S, 2) the models alone
    q: Array  # (G,)
    actions: npt.NDArray[np.int16]  # (T, S, G)
    model_actions: npt.NDArray[np.int16]  # (T, S, 2)

    @classmethod
    def allocate(cls, x: Problem, nnz: int, horizon: int, pairs: ModelPairs) -> _PairBuffers:
        """Allocate the buffers of one thread, for tables with ``nnz`` entries."""
        G, S = len(pairs.grid), x.n_states
        return cls(
            np.exp(pairs.grid_step * (np.arange(3 * G) - G - G // 2)),
            np.empty(2),
            np.empty(nnz, np.int64),
            np.empty((nnz, 3)),
            np.empty((2, S, 3 * G)),
            np.empty((2, S, 2)),
            np.empty(G),
            np.empty((horizon, S, G), np.int16),
            np.empty((horizon, S, 2), np.int16),
        )


@jit(**FMA_OPTIONS, helper=True)
def _compute_shifts(p, i, j, pair):  # type: ignore[no-untyped-def]
    """Compute the Bayes update of every entry k as a shift of the grid."""
    G, step = len(pair.q), pair.c[_U(1)] / pair.c[_U(0)]
    h = np.log(step)
    for k in range(_U(p.shape[0])):
        p_i, p_j = p[k, i], p[k, j]
        shift, theta = (G if p_i > 0.0 else -G - 1), 0.0
        if p_i > 0.0 and p_j > 0.0:
            n_steps = np.floor(np.log(p_i / p_j) / h)
            shift = int(min(max(n_steps, -G - 1.0), float(G)))
            theta = min(1.0, max(0.0, (p_i / p_j * np.exp(-h * n_steps) - 1.0) / (step - 1.0)))
        pair.shift[k] = shift
        pair.bayes[k, _U(0)], pair.bayes[k, _U(1)], pair.bayes[k, _U(2)] = p_i, p_j, theta


@jit(**FMA_OPTIONS, helper=True)
def _extrapolate(w, c, e_i, e_j):  # type: ignore[no-untyped-def]
    """Extend the grid, the middle third of w, below and above."""
    n, top = _U(len(w) // 3), _U(len(w) // 3 * 2)
    below, above = (w[n] - e_j) / c[n], w[top - _U(1)] - c[top - _U(1)] * e_i
    for g in range(n):
        w[g] = e_j + below * c[g]
    for g in range(top, top + n):
        w[g] = above + e_i * c[g]


@jit(**FMA_OPTIONS)
def _backward(x, terminal, y, pair, i, j):  # type: ignore[no-untyped-def]
    """Compute the values on the grid and of both models alone, back to t = 0 in slot 0."""
    T, S, G = pair.actions.shape
    A, n_grid, last_slot = x.allowed.shape[2], _U(G), T % 2
    l_i, l_j = pair.weights[_U(0)], pair.weights[_U(1)]
    c, q = pair.c[G : 2 * G], pair.q
    for s in range(_U(S)):
        e_i, e_j = l_i * terminal[s, i], l_j * terminal[s, j]
        pair.endpoints[last_slot, s, _U(0)], pair.endpoints[last_slot, s, _U(1)] = e_i, e_j
        for g in range(n_grid):
            pair.w[last_slot, s, n_grid + g] = c[g] * e_i + e_j
        _extrapolate(pair.w[last_slot, s], pair.c, e_i, e_j)
    for t in range(T - 1, -1, -1):
        p_t, r_t, allowed_t = at(x.p, t), at(x.r, t), at(x.allowed, t)
        if x.p.shape[0] > 1 or t == T - 1:
            _compute_shifts(p_t, i, j, pair)
        w = pair.w[t % 2]
        endpoints = pair.endpoints[t % 2]
        w_next = pair.w[1 - t % 2]
        endpoints_next = pair.endpoints[1 - t % 2]
        for s in range(_U(S)):
            top_i, top_j, is_first = -np.inf, -np.inf, True
            actions, w_s = pair.actions[t, s], w[s]
            for a in range(_U(A)):
                if not allowed_t[s, a]:
                    continue
                q_i, q_j = l_i * r_t[s, a, i], l_j * r_t[s, a, j]
                if len(y) > 0:
                    q_i -= l_i * y[t, s, a, i]
                    q_j -= l_j * y[t, s, a, j]
                for g in range(n_grid):
                    q[g] = c[g] * q_i + q_j
                row = s * _U(A) + a
                for k in range(_U(x.indptr[row]), _U(x.indptr[row + _U(1)])):
                    next_state, shift = _U(x.indices[k]), pair.shift[k]
                    p_i, p_j = x.gamma * pair.bayes[k, _U(0)], x.gamma * pair.bayes[k, _U(1)]
                    e_i, e_j = endpoints_next[next_state, _U(0)], endpoints_next[next_state, _U(1)]
                    next_w = w_next[next_state]
                    q_i += p_i * e_i
                    q_j += p_j * e_j
                    if shift >= -G and shift < G:
                        left, right_weight = _U(G + shift), p_j * pair.bayes[k, _U(2)]
                        left_weight = p_j - right_weight
                        for g in range(n_grid):
                            q[g] += (
                                left_weight * next_w[g + left]
                                + right_weight * next_w[g + left + _U(1)]
                            )
                        continue
                    slope, base = p_i * e_i, p_j * (next_w[2 * G - 1] - c[G - 1] * e_i)
                    if shift < 0:
                        slope, base = p_i * (next_w[G] - e_j) / c[0], p_j * e_j
                    for g in range(n_grid):
                        q[g] += slope * c[g] + base
                action = np.int16(a)
                if is_first or q_i > top_i:
                    top_i, pair.model_actions[t, s, _U(0)] = q_i, action
                if is_first or q_j > top_j:
                    top_j, pair.model_actions[t, s, _U(1)] = q_j, action
                for g in range(n_grid):
                    actions[g] = action if is_first or q[g] > w_s[g + n_grid] else actions[g]
                for g in range(n_grid):
                    w_s[g + n_grid] = q[g] if is_first else max(w_s[g + n_grid], q[g])
                is_first = False
            endpoints[s, _U(0)], endpoints[s, _U(1)] = top_i, top_j
            _extrapolate(w_s, pair.c, top_i, top_j)


@jit(**REASSOC_OPTIONS, helper=True)
def _extrapolate_transposed(w, c, endpoints):  # type: ignore[no-untyped-def]
    """Move masses of the outer thirds to the grid and the endpoints (transpose of _extrapolate)."""
    n, top = _U(len(w) // 3), _U(len(w) // 3 * 2)
    mass_below, grid, above, mass_above = 0.0, 0.0, 0.0, 0.0
    for g in range(n):
        mass_below += w[g]
        grid += w[g] * c[g]
    for g in range(top, top + n):
        above += w[g]
        mass_above += w[g] * c[g]
    grid /= c[n]
    endpoints[_U(1)] += mass_below - grid
    endpoints[_U(0)] += mass_above - above * c[top - _U(1)]
    w[n] += grid
    w[top - _U(1)] += above


@jit(**FMA_OPTIONS)
def _forward(x, pair, i, j, u):  # type: ignore[no-untyped-def]
    """Compute the occupancy u of the chosen actions: the transpose of the backward pass.

    w[0] and endpoints[0] hold the initial mass.
    """
    T, S, G = pair.actions.shape
    A, n_grid = u.shape[2], _U(G)
    l_i, l_j = pair.weights[_U(0)], pair.weights[_U(1)]
    c = pair.c[G : 2 * G]
    for t in range(T):
        p_t = at(x.p, t)
        if x.p.shape[0] > 1:
            _compute_shifts(p_t, i, j, pair)
        w = pair.w[t % 2]
        endpoints = pair.endpoints[t % 2]
        w_next = pair.w[1 - t % 2]
        endpoints_next = pair.endpoints[1 - t % 2]
        w_next[:] = 0.0
        endpoints_next[:] = 0.0
        for s in range(_U(S)):
            w_s, actions = w[s], pair.actions[t, s]
            _extrapolate_transposed(w_s, pair.c, endpoints[s])
            for b in range(_U(A)):
                u[t, s, b, i] = 0.0
                u[t, s, b, j] = 0.0
            n_i, n_j = endpoints[s, _U(0)], endpoints[s, _U(1)]
            a_i, a_j = _U(pair.model_actions[t, s, _U(0)]), _U(pair.model_actions[t, s, _U(1)])
            u[t, s, a_i, i] += l_i * n_i
            u[t, s, a_j, j] += l_j * n_j
            for k in range(_U(x.indptr[s * _U(A) + a_i]), _U(x.indptr[s * _U(A) + a_i + _U(1)])):
                endpoints_next[_U(x.indices[k]), _U(0)] += pair.bayes[k, _U(0)] * n_i
            for k in range(_U(x.indptr[s * _U(A) + a_j]), _U(x.indptr[s * _U(A) + a_j + _U(1)])):
                endpoints_next[_U(x.indices[k]), _U(1)] += pair.bayes[k, _U(1)] * n_j
            start = _U(0)
            while start < n_grid:  # runs of beliefs that share an action
                action, stop, mass_i, mass_j = actions[start], start, 0.0, 0.0
                while stop < n_grid and actions[stop] == action:
                    mass_j += w_s[stop + n_grid]
                    mass_i += w_s[stop + n_grid] * c[stop]
                    stop += _U(1)
                a = _U(action)
                u[t, s, a, i] += l_i * mass_i
                u[t, s, a, j] += l_j * mass_j
                row = s * _U(A) + a
                begin, end = _U(x.indptr[row]), _U(x.indptr[row + _U(1)])
                if mass_j <= 0.0:
                    end = begin
                for k in range(begin, end):
                    next_state, shift = _U(x.indices[k]), pair.shift[k]
                    p_i, p_j = pair.bayes[k, _U(0)], pair.bayes[k, _U(1)]
                    out = w_next[next_state]
                    if shift >= -G and shift < G:
                        left, right_weight = _U(G + shift), p_j * pair.bayes[k, _U(2)]
                        left_weight = p_j - right_weight
                        for g in range(start, stop):
                            out[g + left] += left_weight * w_s[g + n_grid]
                        for g in range(start, stop):
                            out[g + left + _U(1)] += right_weight * w_s[g + n_grid]
                    elif shift < 0:
                        out[n_grid] += p_i * mass_i / c[0]
                        endpoints_next[next_state, _U(1)] += p_j * mass_j - p_i * mass_i / c[0]
                    else:
                        out[2 * G - 1] += p_j * mass_j
                        endpoints_next[next_state, _U(0)] += p_i * mass_i - p_j * c[G - 1] * mass_j
                start = stop


def compute_pair_optima(
    prepared: PreparedProblem, pairs: ModelPairs, y: Array | None, u: Array | None
) -> Array:
    """Run the passes of :meth:`PreparedProblem.compute_pair_optima`.

    Of shared events tables are made of two models at a time if there are no prices.
    """
    x, n_pairs, storage = prepared.problem, len(pairs.first), prepared.problem.storage
    values, G = np.empty(n_pairs), len(pairs.grid)
    prices = np.empty((0, 1, 1, 1)) if y is None else y
    is_split = isinstance(storage, ExogenousEvents) and y is None and u is None
    # the pattern of events is found once for all pairs
    n_entries = len(cast("Any", storage).pattern.indices if is_split else x.indices)

    def run(indices: range) -> None:
        pair = _PairBuffers.allocate(x, n_entries, prepared.horizon, pairs)
        for n in indices:
            i, j = int(pairs.first[n]), int(pairs.second[n])
            # a model paired with itself stands alone
            pair.weights[:] = x.weights[[i, j]] * (0.5 if i == j else 1.0)
            mass = pairs.initial_mass(x, i, j)
            problem = x.select_models(np.array([i, j])) if is_split else x
            i, j = (0, 1) if is_split else (i, j)
            arrays = KernelArrays.from_tables(problem)
            grid = mass[:, 1:-1]
            endpoints = mass[:, [-1, 0]]
            _backward(arrays, problem.terminal, prices, pair, i, j)
            values[n] = (grid * pair.w[0, :, G : 2 * G]).sum() + (
                endpoints * pair.endpoints[0]
            ).sum()
            if u is not None:
                pair.w[0], pair.w[0, :, G : 2 * G], pair.endpoints[0] = 0.0, grid, endpoints
                _forward(arrays, pair, i, j, u)

    n_threads = prepared.count_threads(n_entries * G * n_pairs)
    for_each(
        n_threads, run, split_ranges(n_pairs, TASKS_PER_THREAD * n_threads if n_threads > 1 else 1)
    )
    return values
