"""Backward induction: the best policy of one model, on the CPU.

With q of an action kept from an earlier step u > t, q_t is known up to what v has changed
since: q_t(s, a) <= q_u(s, a) + gamma * (the largest rises of v, one step after the other,
added up). An action that cannot win by this bound is not computed, which is most of them
after a few steps (MacQueen's elimination of actions, for a finite horizon). Values and
actions are those that would be found if all were computed. It is left alone if rows are too
short to be worth it, or change with time.
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
    at: IntArray  # (S, A): at which time that was
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
        totals = np.bincount(x.rows(), x.p[0, :, 0], minlength=len(x.indptr) - 1)
        used = totals[x.allowed.reshape(-1)]
        return cls(True, float(used.min()), float(used.max()))


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
def _rivals(t, s, v, p, r, dense, allowed, x, c):  # type: ignore[no-untyped-def]
    """q of the action that looks best, and of those that might be as good."""
    n_actions = len(allowed)
    pivot, highest, size = 0, -np.inf, 0.0
    for a in range(n_actions):
        if allowed[a]:
            bound = c.kept[s, a] + (c.rise[t] - c.rise[c.at[s, a]])
            size = max(size, abs(c.kept[s, a]))
            if bound > highest:
                pivot, highest = a, bound
    best = _q(_U(s * n_actions + pivot), v, p, r, dense, x)
    c.kept[s, pivot], c.at[s, pivot] = best, t
    for a in range(n_actions):
        if allowed[a] and a != pivot:
            since = c.at[s, a]
            scale = max(size, abs(best), abs(c.rise[t]), abs(c.rise[since]))
            slack = (2.0 * TIE + EPS * (since - t)) * scale
            if c.kept[s, a] + (c.rise[t] - c.rise[since]) + slack >= best:
                c.at[s, a] = t
                c.kept[s, a] = _q(_U(s * n_actions + a), v, p, r, dense, x)
                best = max(best, c.kept[s, a])


@jit(**FAST, helper=True)
def _choose(t, s, allowed, c):  # type: ignore[no-untyped-def]
    """The best action, the lowest of several; and its value."""
    best, size = -np.inf, 0.0
    for a in range(len(allowed)):
        if allowed[a]:
            size = max(size, abs(c.kept[s, a]))
            if c.at[s, a] == t:
                best = max(best, c.kept[s, a])
    bar, chosen = best - TIE * size, 0
    for a in range(len(allowed) - 1, -1, -1):
        if allowed[a] and c.at[s, a] == t and c.kept[s, a] >= bar:
            chosen = a
    c.actions[t, s] = chosen
    c.v[t % 3, s] = c.kept[s, chosen]


@jit(**FAST)
def _induct(marks, rank, edges, dense, eliminate, x, c):  # type: ignore[no-untyped-def]
    """The steps from the last to the first; threads share the states."""
    horizon, n_actions = len(c.actions), x.allowed.shape[2]
    while True:
        step, piece = steps.take(marks, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t = horizon - 1 - step
        v, after = c.v[(t + 1) % 3], c.v[(t + 2) % 3]
        p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
        if step > 0 and eliminate.pays:  # whoever works on this step finds the same
            most = -np.inf
            for s in range(len(v)):
                most = max(most, v[s] - after[s])
            share = eliminate.most if most > 0.0 else eliminate.least
            c.rise[t] = c.rise[t + 1] + x.gamma * most * share
        for s in range(edges[piece], edges[piece + 1]):
            allowed = x.allowed[t if len(x.allowed) > 1 else 0, s]
            if step > 0 and eliminate.pays:
                _rivals(t, s, v, p, r, dense, allowed, x, c)
            else:
                for a in range(n_actions):
                    if allowed[a]:
                        c.at[s, a] = t
                        c.kept[s, a] = _q(_U(s * n_actions + a), v, p, r, dense, x)
            _choose(t, s, allowed, c)
        steps.done(marks)


def induct(
    problem: Problem, horizon: int, team: Team, elimination: Elimination | None = None
) -> tuple[IntArray, Array]:
    """((T, S) best actions, (S, 1) values at the first step)."""
    x, S, A = problem, problem.n_states, problem.n_actions
    edges = steps.edges(S, steps.pieces(len(team)))
    c = State(
        np.zeros((horizon, S), np.int32), np.zeros((3, S)), np.zeros((S, A)),
        np.full((S, A), -1, np.int32), np.zeros(horizon),
    )  # fmt: skip
    c.v[horizon % 3] = x.terminal[:, 0]
    ground, rule = Ground.of(x), elimination or Elimination.of(x)
    ground = ground._replace(p=x.p.reshape(len(x.p), -1), r=x.r.reshape(len(x.r), -1))
    steps.walk(
        team, len(x.indices),
        lambda marks, rank: _induct(marks, rank, edges, x.dense, rule, ground, c),
    )  # fmt: skip
    return c.actions, c.v[0][:, None].copy()
