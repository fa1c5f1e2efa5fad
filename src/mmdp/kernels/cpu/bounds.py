"""Bounds on a CPU: loops over prices, for which numpy would go through memory several times.

Reach bounds and optima of single models are backward passes, as in
:mod:`mmdp.kernels.numpy.bounds`, where the symbols are explained too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu.jit import SUMS, jit
from mmdp.kernels.cpu.pairs import CpuPairs
from mmdp.kernels.cpu.steps import ranges
from mmdp.kernels.problem import Array, IntArray, Reach

# Indices are unsigned: numba then drops its test for negative ones, and loops become SIMD.
_U = np.uint64


@jit(**SUMS)
def _occupy(m_from, m_to, indptr, indices, p, own, n, u):  # type: ignore[no-untyped-def]
    """u of the own policies for the models m_from..m_to; n (2, S, M) has b at the start in n[0]."""
    T, S, A = u.shape[:3]
    lo, hi = _U(m_from), _U(m_to)
    for t in range(_U(T)):
        n_t, n_next = n[t % _U(2)], n[_U(1) - t % _U(2)]
        p_t = p[t if p.shape[0] > 1 else _U(0)]
        for s in range(_U(S)):
            for m in range(lo, hi):
                n_next[s, m] = 0.0
        for s in range(_U(S)):
            for a in range(_U(A)):
                flow, code, mass = u[t, s, a], np.int32(a), 0.0
                for m in range(lo, hi):
                    flow[m] = n_t[s, m] if own[t, s, m] == code else 0.0
                for m in range(lo, hi):
                    mass += flow[m]
                if mass == 0.0:
                    continue
                row = s * _U(A) + a
                for k in range(_U(indptr[row]), _U(indptr[row + _U(1)])):
                    x = _U(indices[k])
                    for m in range(lo, hi):
                        n_next[x, m] += p_t[k, m] * flow[m]


@jit(**SUMS)
def _prices(t_from, t_to, y, lo, hi, allowed, h, best):  # type: ignore[no-untyped-def]
    """H (T, S, A) and its maximiser (T, S) at the times t_from..t_to."""
    _, S, A, M = y.shape
    for t in range(_U(t_from), _U(t_to)):
        open_t = allowed[t if allowed.shape[0] > 1 else _U(0)]
        for s in range(_U(S)):
            top = -np.inf
            for a in range(_U(A)):
                h[t, s, a] = -np.inf
                if not open_t[s, a]:
                    continue
                total = 0.0
                for m in range(_U(M)):
                    x = y[t, s, a, m]
                    total += max(x, 0.0) * hi[t, s, m] + min(x, 0.0) * lo[t, s, m]
                h[t, s, a] = total
                if total > top:
                    top = total
                    best[t, s] = a


class _Place(NamedTuple):
    """The position of a descent (see :meth:`mmdp.kernels.numpy.bounds.Bounds.descend`)."""

    y: Array
    u: Array
    best: IntArray
    lo: Array
    hi: Array
    allowed: npt.NDArray[np.bool_]


@jit(**SUMS)
def _descend(t_from, t_to, place, keep, d, sizes, share, per_hi):  # type: ignore[no-untyped-def]
    """The direction at the times t_from..t_to; sizes[t] = <g, d>.

    share (A,) and per_hi (M,) are scratch.
    """
    y, u, lo, hi = place.y, place.u, place.lo, place.hi
    _, S, A, M = y.shape
    for t in range(_U(t_from), _U(t_to)):
        open_t = place.allowed[t if place.allowed.shape[0] > 1 else _U(0)]
        sizes[t] = 0.0
        for s in range(_U(S)):
            largest, all_used = 0.0, 1e-300
            for a in range(_U(A)):
                used = 0.0
                for m in range(_U(M)):
                    largest = max(largest, abs(y[t, s, a, m]))
                    used += u[t, s, a, m]
                share[a] = used
                all_used += used
            for m in range(_U(M)):
                per_hi[m] = 1.0 / hi[t, s, m] if hi[t, s, m] > 1e-300 else 0.0
            for a in range(_U(A)):
                if not open_t[s, a]:
                    continue
                part = share[a] / all_used
                if largest > 0.0:
                    part = 1.0 if a == place.best[t, s] else 0.0
                size = 0.0
                for m in range(_U(M)):
                    least, most = lo[t, s, m] * part, hi[t, s, m] * part
                    use, price = u[t, s, a, m], y[t, s, a, m]
                    near = min(max(use, least), most)
                    g = (most if price > 0.0 else (least if price < 0.0 else near)) - use
                    new = keep * d[t, s, a, m] + g * per_hi[m]
                    d[t, s, a, m] = new
                    size += g * new
                sizes[t] += size


class CpuBounds(CpuPairs):
    """The bounds part of a CPU plan."""

    def occupancy(self, own: IntArray, u: Array) -> None:
        x, n = self.problem, np.stack([self.problem.start()] * 2)
        team = self.team(x.storage.entries * x.n_models)
        team.each(
            lambda m: _occupy(m.start, m.stop, x.indptr, x.indices, x.p, own, n, u),
            ranges(x.n_models, len(team)),
        )

    def common_prices(self, y: Array, reach: Reach) -> tuple[Array, IntArray]:
        prices, best = np.empty(y.shape[:3]), np.empty(y.shape[:2], dtype=np.int32)
        team, (lo, hi), allowed = self.team(y[0].size), reach, self.problem.allowed
        team.each(
            lambda t: _prices(t.start, t.stop, y, lo, hi, allowed, prices, best),
            ranges(self.horizon, len(team)),
        )
        return prices, best

    def descend(
        self, y: Array, u: Array, best: IntArray, reach: Reach, keep: float, d: Array
    ) -> float:
        place = _Place(y, u, best, reach.lo, reach.hi, self.problem.allowed)
        sizes, team = np.empty(self.horizon), self.team(y[0].size)

        def run(t: range) -> None:
            scratch = np.empty(y.shape[2]), np.empty(y.shape[3])
            _descend(t.start, t.stop, place, keep, d, sizes, *scratch)

        team.each(run, ranges(self.horizon, len(team)))
        return float(self.problem.discount ** np.arange(self.horizon) @ sizes)
