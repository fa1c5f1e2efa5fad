"""Backward induction of one model that does not change with time, on the CPU.

With q of an action kept from an earlier step u > t, q_t is known up to what v has changed
since: q_t(s, a) <= q_u(s, a) + gamma * (the largest rises of v, one step after the other,
added up). An action that cannot win by this bound is not computed, which is most of them
after a few steps (MacQueen's elimination of actions, for a finite horizon). Values and
actions are those that would be found if all were computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu import steps as march
from mmdp.kernels.cpu.jit import FAST, SUMS, jit
from mmdp.kernels.cpu.passes import _one_model_q
from mmdp.kernels.problem import TIE, Array, IntArray, Problem
from mmdp.kernels.cpu.threads import Team

_U = np.uint64
EPS = 2.0**-50  # of rounding, a step and relative to the values


class Ground(NamedTuple):
    """The problem as the compiled code takes it; p and r are vectors."""

    indptr: npt.NDArray[np.int64]
    indices: IntArray
    p: Array
    r: Array
    allowed: npt.NDArray[np.bool_]
    dense: bool
    gamma: float


class State(NamedTuple):
    """What is known of the steps so far."""

    actions: IntArray  # (T, S)
    v: Array  # (3, S): of three steps in turn
    kept: Array  # (S, A): q as it was computed last
    at: npt.NDArray[np.int64]  # (S, A): at which time that was
    rise: Array  # (T,): largest rises of v after a step, added up from the end
    least: Array  # (pieces,): smallest sum of a row, which is 1 or, for an empty row, 0
    most: Array  # (pieces,): largest sum of a row


@jit(**FAST, forceinline=True)
def _q(s, a, v, x):  # type: ignore[no-untyped-def]
    row = _U(s * x.allowed.shape[1] + a)
    return _one_model_q(row, x.p, v, x.r, x.indptr, x.indices, x.dense, x.gamma)


@jit(**SUMS)
def _row_total(s, a, x):  # type: ignore[no-untyped-def]
    row, total = s * x.allowed.shape[1] + a, 0.0
    for k in range(x.indptr[row], x.indptr[row + 1]):
        total += x.p[k]
    return total


@jit(**FAST)
def _first_step(t, s, piece, v, x, c):  # type: ignore[no-untyped-def]
    """All q of a state."""
    for a in range(x.allowed.shape[1]):
        if x.allowed[s, a]:
            c.kept[s, a], c.at[s, a] = _q(s, a, v, x), t
            total = _row_total(s, a, x)
            c.least[piece] = min(c.least[piece], total)
            c.most[piece] = max(c.most[piece], total)


@jit(**FAST)
def _later_step(t, s, v, x, c):  # type: ignore[no-untyped-def]
    """q of the action that looks best, and of those that might be as good."""
    n_actions = x.allowed.shape[1]
    pivot, highest, size = 0, -np.inf, 0.0
    for a in range(n_actions):
        if x.allowed[s, a]:
            bound = c.kept[s, a] + (c.rise[t] - c.rise[c.at[s, a]])
            size = max(size, abs(c.kept[s, a]))
            if bound > highest:
                pivot, highest = a, bound
    best = _q(s, pivot, v, x)
    c.kept[s, pivot], c.at[s, pivot] = best, t
    for a in range(n_actions):
        if x.allowed[s, a] and a != pivot:
            since = c.at[s, a]
            scale = max(size, abs(best), abs(c.rise[t]), abs(c.rise[since]))
            slack = (2.0 * TIE + EPS * (since - t)) * scale
            if c.kept[s, a] + (c.rise[t] - c.rise[since]) + slack >= best:
                c.kept[s, a], c.at[s, a] = _q(s, a, v, x), t
                best = max(best, c.kept[s, a])


@jit(**FAST)
def _choose(t, s, allowed, c):  # type: ignore[no-untyped-def]
    """The best action, the lowest where several are; and its value."""
    best, size = -np.inf, 0.0
    for a in range(allowed.shape[1]):
        if allowed[s, a]:
            size = max(size, abs(c.kept[s, a]))
            if c.at[s, a] == t:
                best = max(best, c.kept[s, a])
    a, last = 0, allowed.shape[1] - 1
    while a < last and not (
        allowed[s, a] and c.at[s, a] == t and c.kept[s, a] >= best - TIE * size
    ):
        a += 1  # never past the last: the bar is no number where values overflow
    c.actions[t, s] = a
    c.v[t % 3, s] = c.kept[s, a]


@jit(**FAST)
def _induct(marks, rank, edges, x, c):  # type: ignore[no-untyped-def]
    """The steps from the last to the first; threads share the states."""
    horizon = len(c.actions)
    while True:
        step, piece = march.take(marks, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t = horizon - 1 - step
        v, after = c.v[(t + 1) % 3], c.v[(t + 2) % 3]
        if step > 0:  # whoever works on this step finds the same
            most = -np.inf
            for s in range(len(v)):
                most = max(most, v[s] - after[s])
            share = c.most[0] if most > 0.0 else c.least[0]  # sums of rows: 1 or nearly so, or 0
            for other in range(1, len(c.least)):
                share = max(share, c.most[other]) if most > 0.0 else min(share, c.least[other])
            c.rise[t] = c.rise[t + 1] + x.gamma * most * share
        for s in range(edges[piece], edges[piece + 1]):
            if step == 0:
                _first_step(t, s, piece, v, x, c)
            else:
                _later_step(t, s, v, x, c)
            _choose(t, s, x.allowed, c)
        march.done(marks)


def induct(problem: Problem, horizon: int, team: Team) -> tuple[IntArray, Array]:
    """((T, S) best actions, (S, 1) values at the first step)."""
    x, pieces = problem, march.pieces(len(team))
    S, A = x.n_states, x.n_actions
    edges = march.edges(S, pieces)
    c = State(
        np.zeros((horizon, S), np.int32), np.zeros((3, S)), np.zeros((S, A)),
        np.full((S, A), -1, np.int64), np.zeros(horizon), np.full(pieces, np.inf),
        np.full(pieces, -np.inf),
    )  # fmt: skip
    c.v[horizon % 3] = x.terminal[:, 0]
    ground = Ground(
        x.indptr, x.indices, x.p.reshape(-1), x.r.reshape(-1), x.allowed[0], x.dense, x.discount
    )
    march.walk(team, len(x.indices), lambda marks, rank: _induct(marks, rank, edges, ground, c))
    return c.actions, c.v[0][:, None].copy()
