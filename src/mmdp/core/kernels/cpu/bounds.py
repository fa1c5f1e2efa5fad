"""Dual bounds, compiled, for every backend: loops over prices and occupancies.

Symbols as in :mod:`mmdp.core.kernels.prepared`.
"""

from __future__ import annotations

import numpy as np

from mmdp.core.kernels.cpu.jit import REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.passes import KernelArrays, at
from mmdp.core.kernels.cpu.threads import for_each, split_ranges
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import VisitBounds
from mmdp.core.shapes import Array, IntArray

# Indices are unsigned: numba then drops its test for negative ones, and loops become SIMD.
_U = np.uint64


@jit(**REASSOC_OPTIONS)
def _fill_occupancy(m_from, m_to, indptr, indices, p, model_actions, b, u):  # type: ignore[no-untyped-def]
    """Fill u with the occupancy of the models' own policies; b[0] is that at the start."""
    T, S, A = u.shape[:3]
    lo, hi = _U(m_from), _U(m_to)
    for t in range(_U(T)):
        b_t, b_next = b[t % _U(2)], b[_U(1) - t % _U(2)]
        p_t = at(p, t)
        for s in range(_U(S)):
            for m in range(lo, hi):
                b_next[s, m] = 0.0
        for s in range(_U(S)):
            for a in range(_U(A)):
                flow, action, mass = u[t, s, a], np.int32(a), 0.0
                for m in range(lo, hi):
                    flow[m] = b_t[s, m] if model_actions[t, s, m] == action else 0.0
                for m in range(lo, hi):
                    mass += flow[m]
                if mass == 0.0:
                    continue
                row = s * _U(A) + a
                for k in range(_U(indptr[row]), _U(indptr[row + _U(1)])):
                    next_state = _U(indices[k])
                    for m in range(lo, hi):
                        b_next[next_state, m] += p_t[k, m] * flow[m]


@jit(**REASSOC_OPTIONS)
def _update_direction(  # type: ignore[no-untyped-def]
    t_from, t_to, y, u, best, lo, hi, allowed, momentum, d, products, action_mass, inverse_hi
):
    """Update the direction at some of the times; products[t] = <g, d>.

    action_mass (A,) and inverse_hi (M,) are scratch.
    """
    _, S, A, M = y.shape
    for t in range(_U(t_from), _U(t_to)):
        allowed_t = at(allowed, t)
        products[t] = 0.0
        for s in range(_U(S)):
            max_multiplier, total_mass = 0.0, 1e-300
            for a in range(_U(A)):
                mass = 0.0
                for m in range(_U(M)):
                    max_multiplier = max(max_multiplier, abs(y[t, s, a, m]))
                    mass += u[t, s, a, m]
                action_mass[a] = mass
                total_mass += mass
            for m in range(_U(M)):
                inverse_hi[m] = 1.0 / hi[t, s, m] if hi[t, s, m] > 1e-300 else 0.0
            for a in range(_U(A)):
                if not allowed_t[s, a]:
                    continue
                prob = action_mass[a] / total_mass
                if max_multiplier > 0.0:
                    prob = 1.0 if a == best[t, s] else 0.0
                product = 0.0
                for m in range(_U(M)):
                    lower, upper = lo[t, s, m] * prob, hi[t, s, m] * prob
                    occupancy, multiplier = u[t, s, a, m], y[t, s, a, m]
                    nearest = min(max(occupancy, lower), upper)
                    g = (
                        upper if multiplier > 0.0 else (lower if multiplier < 0.0 else nearest)
                    ) - occupancy
                    new_d = momentum * d[t, s, a, m] + g * inverse_hi[m]
                    d[t, s, a, m] = new_d
                    product += g * new_d
                products[t] += product


def fill_occupancy(prepared: PreparedProblem, model_actions: IntArray, u: Array) -> None:
    """Fill u (T, S, A, M) with the occupancy of each model's own policy (T, S, M)."""
    x, b = prepared.problem, np.stack([prepared.problem.initial_joint()] * 2)
    arrays, n_threads = (
        KernelArrays.from_tables(x),
        prepared.count_threads(x.storage.n_entries * x.n_models),
    )
    for_each(
        n_threads,
        lambda m: _fill_occupancy(
            m.start, m.stop, arrays.indptr, arrays.indices, arrays.p, model_actions, b, u
        ),
        split_ranges(x.n_models, n_threads),
    )


def update_direction(
    prepared: PreparedProblem,
    y: Array,
    u: Array,
    best: IntArray,
    visit_bounds: VisitBounds,
    momentum: float,
    d: Array,
) -> float:
    """Run the step of :meth:`PreparedProblem.update_direction`."""
    x, n_threads, products = (
        prepared.problem,
        prepared.count_threads(y[0].size),
        np.empty(prepared.horizon),
    )

    def run(t: range) -> None:
        scratch = np.empty(y.shape[2]), np.empty(y.shape[3])
        _update_direction(
            t.start, t.stop, y, u, best, *visit_bounds, x.allowed, momentum, d, products, *scratch
        )

    for_each(n_threads, run, split_ranges(prepared.horizon, n_threads))
    return float(x.discount ** np.arange(prepared.horizon) @ products)
