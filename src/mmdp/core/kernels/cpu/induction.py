"""Backward induction of one model that does not vary with time, on the CPU.

Most actions need not be computed (MacQueen's elimination, for a finite horizon). If q of an action
was computed at time u > t, then q_t <= q_u + gamma times the largest rises of v from one step to
the next since then. An action that cannot be the best by this bound is left out. Values and
actions are those that are found if all actions are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.scheduler import finish_piece, take_piece
from mmdp.core.kernels.problem import TIE_RTOL
from mmdp.core.shapes import Array, IntArray

STEP_RTOL = 2.0**-50  # rounding error of a step, relative to the values


class InductionBuffers(NamedTuple):
    """The arrays that the induction reads and writes."""

    actions: IntArray  # (T, S)
    v: Array  # (3, S): of three steps in turn
    q: Array  # (pieces, A): of the present state; -inf: not computed
    bounds: Array  # (S, A): of q less the rises until then; inf: unknown, -inf: not allowed
    rises: Array  # (T,): gamma times the largest rises of v, added up from the last step on


@jit(**REASSOC_OPTIONS, helper=True)
def _compute_q(row, v, is_dense, p, r, x):  # type: ignore[no-untyped-def]
    """Compute q of a row s * A + a."""
    start, stop = np.uint64(x.indptr[row]), np.uint64(x.indptr[row + 1])
    total = 0.0
    if is_dense:
        for k in range(stop - start):
            total += p[start + k] * v[k]
    else:
        for k in range(start, stop):
            total += p[k] * v[np.uint64(x.indices[k])]
    return r[row] + x.gamma * total


@jit(**BASE_OPTIONS)
def induct(counters, rank, edges, is_dense, min_sum, max_sum, p, r, x, buf):  # type: ignore[no-untyped-def]
    """Run all steps; threads share the states of each. Rows of p sum to min_sum..max_sum."""
    horizon, n_actions = len(buf.actions), buf.bounds.shape[1]
    max_reward = 0.0
    for row in range(len(r)):
        max_reward = max(max_reward, abs(r[row]))
    while True:
        step, piece = take_piece(counters, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t, q = horizon - 1 - step, buf.q[piece]
        v, later_v = buf.v[(t + 1) % 3], buf.v[(t + 2) % 3]
        rise, scale = -np.inf, 0.0
        for s in range(len(v)):
            rise, scale = max(rise, v[s] - later_v[s]), max(scale, abs(v[s]))
        if step > 0:  # every thread finds the same
            buf.rises[t] = buf.rises[t + 1] + x.gamma * rise * (max_sum if rise > 0 else min_sum)
        total_rise = buf.rises[t]
        scale = max_reward + max_sum * scale + abs(total_rise)
        slack = (2.0 * TIE_RTOL + STEP_RTOL * step) * scale
        for s in range(edges[piece], edges[piece + 1]):
            bounds, first = buf.bounds[s], np.int64(buf.actions[t + 1, s]) if step > 0 else 0
            while bounds[first] == -np.inf:
                first += 1
            best = _compute_q(s * n_actions + first, v, is_dense, p, r, x)
            bounds[first], q[first], size = best - total_rise, best, abs(best)
            for a in range(n_actions):
                bound = bounds[a] + total_rise
                if a != first:
                    q[a] = -np.inf
                    if bound + slack >= best:
                        q[a] = bound = _compute_q(s * n_actions + a, v, is_dense, p, r, x)
                        bounds[a], best = bound - total_rise, max(best, bound)
                    if bound > -np.inf:
                        size = max(size, abs(bound))
            a = 0  # the last one stays if values overflow
            while a < n_actions - 1 and not q[a] >= best - TIE_RTOL * size:
                a += 1
            buf.actions[t, s], buf.v[t % 3, s] = a, q[a]
        finish_piece(counters)
