"""Backward induction: the best policy of one model, on the CPU.

With q of an action kept from an earlier step u > t, q_t is known up to what v has changed
since: q_t(s, a) <= q_u(s, a) + gamma * (the largest rises of v, one step after the other,
added up). An action that cannot win by this bound is not computed, which is most of them
after a few steps (MacQueen's elimination of actions, for a finite horizon). Values and
actions are those that would be found if all were computed. Nothing is eliminated if rows
are too short to be worth it, or change with time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.kernels.cpu import steps
from mmdp.kernels.cpu.jit import FAST, SUMS, jit
from mmdp.kernels.cpu.passes import Ground
from mmdp.kernels.cpu.threads import Team
from mmdp.kernels.problem import TIE, Array, IntArray, Problem

_U = np.uint64
EPS = 2.0**-50  # rounding error per step, relative to the values
LONG = 32  # mean number of next states per row from which actions are eliminated
MOST_TERMINAL = 1e6  # terminal values, in units of the largest reward, up to which that is done


class State(NamedTuple):
    """What is known of the steps so far."""

    actions: IntArray  # (T, S)
    v: Array  # (3, S): of three steps in turn
    kept: Array  # (S, A): q as it was computed last
    at: IntArray  # (S, A): at which time that was; 0 if it is computed at every step
    rise: Array  # (T,): largest rises of v after a step, added up from the end


class Elimination(NamedTuple):
    """Whether actions are eliminated, and the least and largest sum of a row: 1, or 0 if empty."""

    pays: bool
    least: float
    most: float

    @classmethod
    def of(cls, x: Problem, long: int = LONG) -> Elimination:
        steady = len(x.p) == len(x.r) == len(x.allowed) == 1
        # sums of rises lose the last digits of small values after large ones
        even = float(np.abs(x.terminal).max()) <= MOST_TERMINAL * float(np.abs(x.r).max())
        if not (steady and even and len(x.indices) >= long * x.n_states * x.n_actions):
            return cls(False, 1.0, 1.0)
        filled = np.diff(x.indptr) > 0
        totals = np.add.reduceat(x.p[0, :, 0], x.indptr[:-1][filled])
        least = 0.0 if (x.allowed.reshape(-1) & ~filled).any() else float(totals.min())
        return cls(True, least, float(totals.max()))


@jit(**SUMS, helper=True, forceinline=True)
def _q(row, v, p, r, dense, x):  # type: ignore[no-untyped-def]
    """q of one row s * A + a; p and r are those of the time."""
    start, stop = _U(x.indptr[row]), _U(x.indptr[row + _U(1)])
    total = 0.0
    if dense:
        for k in range(stop - start):
            total += p[start + k] * v[k]
    else:
        for k in range(start, stop):
            total += p[k] * v[_U(x.indices[k])]
    return r[row] + x.gamma * total


@jit(**FAST, helper=True)
def _rows(first, last, v, p, r, dense, x, kept):  # type: ignore[no-untyped-def]
    """q of the rows first..last: a loop of its own, which is compiled to faster code."""
    for row in range(_U(first), _U(last)):
        kept[row] = _q(row, v, p, r, dense, x)


@jit(**FAST, helper=True)
def _everyone(s, allowed, kept):  # type: ignore[no-untyped-def]
    """The best q of a state, and the largest in size."""
    best, size = -np.inf, 0.0
    for a in range(len(allowed)):
        if allowed[a]:
            best, size = max(best, kept[s, a]), max(size, abs(kept[s, a]))
    return best, size


@jit(**FAST, helper=True)
def _rivals(t, s, v, p, r, dense, allowed, x, c):  # type: ignore[no-untyped-def]
    """The same, computed only for the action that looks best and those that might be as good."""
    first, pivot, highest, size = _U(s * len(allowed)), 0, -np.inf, 0.0
    for a in range(len(allowed)):
        if allowed[a]:
            bound = c.kept[s, a] + (c.rise[t] - c.rise[c.at[s, a]])
            size = max(size, abs(c.kept[s, a]))
            if bound > highest:
                pivot, highest = a, bound
    best = _q(first + _U(pivot), v, p, r, dense, x)
    c.kept[s, pivot], c.at[s, pivot] = best, t
    for a in range(len(allowed)):
        if allowed[a] and a != pivot:
            since = c.at[s, a]
            scale = max(size, abs(best), abs(c.rise[t]), abs(c.rise[since]))
            slack = (2.0 * TIE + EPS * (since - t)) * scale
            if c.kept[s, a] + (c.rise[t] - c.rise[since]) + slack >= best:
                c.kept[s, a], c.at[s, a] = _q(first + _U(a), v, p, r, dense, x), t
                best = max(best, c.kept[s, a])
    return best, max(size, abs(best))


@jit(**FAST)
def _induct(marks, rank, edges, dense, eliminate, x, c):  # type: ignore[no-untyped-def]
    """The steps from the last to the first; threads share the states."""
    horizon, last, kept = len(c.actions), x.allowed.shape[2] - 1, c.kept.reshape(-1)
    while True:
        step, piece = steps.take(marks, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t = horizon - 1 - step
        v, after = c.v[(t + 1) % 3], c.v[(t + 2) % 3]
        p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
        choosy = eliminate.pays and step > 0
        if choosy:  # every thread on this step finds the same
            most = -np.inf
            for s in range(len(v)):
                most = max(most, v[s] - after[s])
            share = eliminate.most if most > 0.0 else eliminate.least
            c.rise[t] = c.rise[t + 1] + x.gamma * most * share
        if not choosy:
            lo, hi = edges[piece] * (last + 1), edges[piece + 1] * (last + 1)
            _rows(lo, hi, v, p, r, dense, x, kept)
        for s in range(edges[piece], edges[piece + 1]):
            allowed = x.allowed[t if len(x.allowed) > 1 else 0, s]
            if choosy:
                best, size = _rivals(t, s, v, p, r, dense, allowed, x, c)
            else:
                best, size = _everyone(s, allowed, c.kept)
            bar, a = best - TIE * size, 0
            while a < last and not (allowed[a] and c.at[s, a] <= t and c.kept[s, a] >= bar):
                a += 1  # never past the last: the bar is no number if values overflow
            c.actions[t, s], c.v[t % 3, s] = a, c.kept[s, a]
        steps.done(marks)


def induct(
    problem: Problem, horizon: int, team: Team, elimination: Elimination | None = None
) -> tuple[IntArray, Array]:
    """((T, S) best actions, (S, 1) values at the first step)."""
    x, S, A = problem, problem.n_states, problem.n_actions
    edges, rule = steps.edges(S, steps.pieces(len(team))), elimination or Elimination.of(x)
    c = State(
        np.zeros((horizon, S), np.int32), np.zeros((3, S)), np.zeros((S, A)),
        np.full((S, A), horizon - 1 if rule.pays else 0, np.int32), np.zeros(horizon),
    )  # fmt: skip
    c.v[horizon % 3] = x.terminal[:, 0]
    ground = Ground.of(x)
    p, r = (y.reshape(len(y), -1) for y in (ground.p, ground.r))
    ground = ground._replace(p=p, r=r)
    steps.walk(
        team, len(x.indices),
        lambda marks, rank: _induct(marks, rank, edges, x.dense, rule, ground, c),
    )  # fmt: skip
    return c.actions, c.v[0][:, None].copy()
