"""Bounds on a CPU: loops over multipliers, for which numpy would go through memory several times.

Visit bounds and optima of single models are backward passes, as in
:mod:`mmdp.core.kernels.numpy.bounds`, where the symbols are explained too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.cpu.jit import REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.pairs import CpuPairPasses
from mmdp.core.kernels.cpu.scheduler import split_ranges
from mmdp.core.kernels.problem import Array, IntArray, VisitBounds

# Indices are unsigned: numba then drops its test for negative ones, and loops become SIMD.
_U = np.uint64


@jit(**REASSOC_OPTIONS)
def _fill_occupancy(m_from, m_to, indptr, indices, p, model_actions, b, u):  # type: ignore[no-untyped-def]
    """Fill u with the occupancy of the models' own policies; b[0] is that at the start."""
    T, S, A = u.shape[:3]
    lo, hi = _U(m_from), _U(m_to)
    for t in range(_U(T)):
        b_t, b_next = b[t % _U(2)], b[_U(1) - t % _U(2)]
        p_t = p[t if p.shape[0] > 1 else _U(0)]
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
def _compute_common_term(t_from, t_to, y, lo, hi, allowed, H, best):  # type: ignore[no-untyped-def]
    """Compute H (T, S, A) and its maximizer (T, S) at some of the times."""
    _, S, A, M = y.shape
    for t in range(_U(t_from), _U(t_to)):
        allowed_t = allowed[t if allowed.shape[0] > 1 else _U(0)]
        for s in range(_U(S)):
            highest = -np.inf
            for a in range(_U(A)):
                H[t, s, a] = -np.inf
                if not allowed_t[s, a]:
                    continue
                total = 0.0
                for m in range(_U(M)):
                    x = y[t, s, a, m]
                    total += max(x, 0.0) * hi[t, s, m] + min(x, 0.0) * lo[t, s, m]
                H[t, s, a] = total
                if total > highest:
                    highest = total
                    best[t, s] = a


class _DescentPoint(NamedTuple):
    """The arrays of one descent step; see
    :meth:`mmdp.core.kernels.numpy.bounds.BoundPasses.update_direction`.
    """

    y: Array
    u: Array
    best: IntArray
    lo: Array
    hi: Array
    allowed: npt.NDArray[np.bool_]


@jit(**REASSOC_OPTIONS)
def _update_direction(t_from, t_to, point, momentum, d, products, action_mass, inverse_hi):  # type: ignore[no-untyped-def]
    """Update the direction at some of the times; products[t] = <g, d>.

    action_mass (A,) and inverse_hi (M,) are scratch.
    """
    y, u, lo, hi = point.y, point.u, point.lo, point.hi
    _, S, A, M = y.shape
    for t in range(_U(t_from), _U(t_to)):
        allowed_t = point.allowed[t if point.allowed.shape[0] > 1 else _U(0)]
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
                    prob = 1.0 if a == point.best[t, s] else 0.0
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


class CpuBoundPasses(CpuPairPasses):
    """The passes that upper bounds need, on the CPU."""

    def fill_occupancy(self, model_actions: IntArray, u: Array) -> None:
        x, b = self.problem, np.stack([self.problem.initial_joint()] * 2)
        pool = self.get_pool(x.storage.n_entries * x.n_models)
        pool.for_each(
            lambda m: _fill_occupancy(
                m.start, m.stop, x.indptr, x.indices, x.p, model_actions, b, u
            ),
            split_ranges(x.n_models, len(pool)),
        )

    def compute_common_term(self, y: Array, visit_bounds: VisitBounds) -> tuple[Array, IntArray]:
        H, best = np.empty(y.shape[:3]), np.empty(y.shape[:2], dtype=np.int32)
        pool, (lo, hi), allowed = self.get_pool(y[0].size), visit_bounds, self.problem.allowed
        pool.for_each(
            lambda t: _compute_common_term(t.start, t.stop, y, lo, hi, allowed, H, best),
            split_ranges(self.horizon, len(pool)),
        )
        return H, best

    def update_direction(
        self,
        y: Array,
        u: Array,
        best: IntArray,
        visit_bounds: VisitBounds,
        momentum: float,
        d: Array,
    ) -> float:
        point = _DescentPoint(y, u, best, visit_bounds.lo, visit_bounds.hi, self.problem.allowed)
        products, pool = np.empty(self.horizon), self.get_pool(y[0].size)

        def run(t: range) -> None:
            scratch = np.empty(y.shape[2]), np.empty(y.shape[3])
            _update_direction(t.start, t.stop, point, momentum, d, products, *scratch)

        pool.for_each(run, split_ranges(self.horizon, len(pool)))
        return float(self.problem.discount ** np.arange(self.horizon) @ products)
