"""The passes on the CPU: SIMD over models, threads over states (or over models).

A backward pass streams p once per time step and is bound by memory bandwidth. A row of the
pattern is finished before the next begins, so q of one state stays in the cache. One thread
finishes a state, so results do not depend on the number of threads.

numba optimises a helper again inside each of its callers, and that takes most of the compile
time. Hence two passes and few helpers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu.jit import FAST, SUMS, jit
from mmdp.kernels.cpu.rows import row_sum
from mmdp.kernels.cpu.steps import done, take
from mmdp.kernels.events import Events
from mmdp.kernels.problem import TIE, Array, IntArray, Problem, aligned, frozen
from mmdp.kernels.rewards import ByEvent

# Indices are unsigned: numba then drops its test for negative ones, which halves the code.
_U = np.uint64

WEIGHTED, OWN, ACTIONS, PROBABILITIES = range(4)  # how a backward pass decides in each state


class Ground(NamedTuple):
    """The problem as the compiled code takes it.

    At time t, row s * A + a has entries i = indptr[row]..indptr[row + 1], moved by t * stride,
    which lead to indices[i] with the probabilities shares[i] p[first[row] + i - indptr[row]].
    In tables first is indptr. Rows that share events have the same p, or that of their kind. The
    reward is r, one row for all if entry i pays paid[i].
    """

    indptr: npt.NDArray[np.int64]  # (S * A + 1,)
    indices: IntArray  # (entries,)
    p: Array  # (T or 1, any, M)
    r: Array  # (T or 1, S or 1, A or 1, M)
    allowed: npt.NDArray[np.bool_]
    gamma: float
    first: npt.NDArray[np.int64]  # (T or 1, S * A), or one for all rows
    shares: Array | None = None  # (entries,); None: 1
    stride: int = 0  # 0 if next states, shares and what they pay do not vary with time
    paid: Array | None = None  # (entries,); None: 0

    @classmethod
    def of(cls, problem: Problem) -> Ground:
        """Shared events, or tables."""
        x = problem
        if isinstance(x.storage, Events):
            return cls._of_events(x, x.storage)
        return cls(
            frozen(x.indptr), frozen(x.indices), frozen(x.p), frozen(np.asarray(x.r)),
            frozen(x.allowed), x.discount, frozen(x.indptr[None]),
        )  # fmt: skip

    @classmethod
    def _of_events(cls, x: Problem, e: Events) -> Ground:
        each, rows = e.longest, x.n_states * x.n_actions
        kind = np.zeros((1, 1), np.int64) if e.kind is None else e.kind.reshape(-1, rows)
        chance = np.repeat(e.chance, e.after.shape[4], axis=2)  # once for each corner
        paid = x.r.reward[..., None] if isinstance(x.r, ByEvent) else None
        varying = max(len(y) for y in (e.after, e.coefficient, paid) if y is not None)

        def flat(y: npt.NDArray[Any] | None) -> Any:
            whole = (varying, *e.after.shape[1:])
            return None if y is None else frozen(np.broadcast_to(y, whole)).reshape(-1)

        return cls(
            frozen(np.arange(rows + 1) * each), flat(e.after),
            frozen(chance.reshape(len(chance), -1, chance.shape[3])), cls.row(x),
            frozen(x.allowed), x.discount, frozen(kind * np.int64(each)), flat(e.coefficient),
            rows * each if varying > 1 else 0, flat(paid),
        )  # fmt: skip

    @staticmethod
    def row(problem: Problem) -> Array:
        """r, or one row of zeros if entries pay."""
        r = problem.r
        return frozen(r if isinstance(r, np.ndarray) else np.zeros((1, 1, 1, r.shape[3])))

    def changed(self, problem: Problem) -> Ground:
        """The same transitions with other numbers; rewards by event stay or become others."""
        x, r = problem, self.row(problem)
        paid = None if isinstance(x.r, np.ndarray) else self.paid
        return self._replace(r=r, allowed=frozen(x.allowed), gamma=x.discount, paid=paid)

    def since(self, t: int) -> Ground:
        """The problem from time t on."""
        varying = ("p", "first", "r", "allowed")
        later = {k: x[t:] for k in varying if len(x := getattr(self, k)) > 1}
        for k in ("indices", "shares", "paid") if self.stride else ():
            x = getattr(self, k)
            later[k] = None if x is None else x[t * self.stride :]
        return self._replace(**later)


class Orders(NamedTuple):
    """What a backward pass does."""

    mode: int
    top: int  # the step it begins with
    weighed: bool = False  # b is given
    incumbent: bool = False  # actions are given: they keep ties, and states without weight
    keep_q: bool = False
    keep_gradient: bool = False
    keep_own: bool = False
    lazy: bool = False  # q and v are those of ``held``: compute what has moved since
    everywhere: bool = True  # lazy: decide in states where nothing has moved too


class State(NamedTuple):
    """What a pass reads and writes; unused parts have length 0, or 1 along time."""

    actions: IntArray  # (T, S)
    probabilities: Array  # (T, S, A)
    b: Array  # (T or 1, S or 1, M)
    v: Array  # (T + 1, S, M), or 2 steps used in turn
    q: Array  # (T, S, A, M)
    gradient: Array  # (T, S, A)
    own: IntArray  # (T, S, M)
    held: IntArray  # (T, S): the actions that v belongs to
    moved: npt.NDArray[np.bool_]  # (T + 1, S): whether v has changed in this pass

    @classmethod
    def of(cls, problem: Problem, horizon: int, **parts: npt.NDArray[np.generic]) -> State:
        """These parts and nothing else."""
        nothing = {
            "actions": np.empty((0, 1), np.int32), "probabilities": np.empty((0, 1, 1)),
            "b": np.zeros((1, 1, 1)), "q": np.empty((0, 1, 1, 1)),
            "gradient": np.empty((0, 1, 1)), "own": np.empty((0, 1, 1), np.int32),
            "held": np.empty((0, 1), np.int32), "moved": np.empty((0, 1), np.bool_),
        }  # fmt: skip
        state = cls(**{**nothing, **parts})  # type: ignore[arg-type]
        state.v[horizon % len(state.v)] = problem.terminal
        return state


class Scratch(NamedTuple):
    """What one thread writes while it works."""

    q: Array  # (A, M)
    G: Array  # (A,)
    nothing: Array  # (M,): zeros
    heads: npt.NDArray[np.int64]  # (S + 1,): where the entries that lead into a state begin
    rows: npt.NDArray[np.int64]  # (entries,): their places in p
    sources: IntArray  # (entries,): the states they come from
    shares: Array | None  # (entries,)

    @classmethod
    def of(cls, x: Ground) -> Scratch:
        (S, A), M = x.allowed.shape[1:], x.p.shape[2]
        entries = int(np.diff(x.indptr).reshape(S, A).max(axis=1).sum())
        return cls(
            aligned(A, M), np.empty(A), np.zeros(M), np.zeros(S + 1, np.int64),
            np.empty(entries, np.int64), np.empty(entries, np.int32),
            None if x.shares is None else np.empty(entries),
        )  # fmt: skip


@jit(**SUMS, helper=True)
def dot(x, y, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m] * y[m]
    return total


@jit(**SUMS, helper=True)
def mass(x, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m]
    return total


@jit(**FAST, helper=True)
def choose(G, incumbent):  # type: ignore[no-untyped-def]
    """The maximiser of G (-inf: not allowed): ties to the incumbent, else the lowest action."""
    best, size = -np.inf, 0.0
    for a in range(len(G)):
        best = max(best, G[a])
        if G[a] > -np.inf:
            size = max(size, abs(G[a]))
    bar, chosen = best - TIE * size, 0
    for a in range(len(G) - 1, -1, -1):
        if G[a] >= bar:
            chosen = a
    if incumbent >= 0 and G[incumbent] >= bar:
        chosen = incumbent
    return chosen


@jit(**FAST, helper=True)
def share_of(shares, k):  # type: ignore[no-untyped-def]
    if shares is None:
        return 1.0
    return shares[k]


@jit(**FAST, helper=True)
def _keep_share(kept, place, shares, k):  # type: ignore[no-untyped-def]
    if shares is not None:
        kept[place] = shares[k]


@jit(**FAST, helper=True)
def _any_moved(moved, indices, start, stop):  # type: ignore[no-untyped-def]
    found = False
    for k in range(start, stop):
        found |= moved[_U(indices[k])]
    return found


@jit(**FAST)
def back(marks, rank, edges, do, x, c, w):  # type: ignore[no-untyped-def]
    """The steps do.top..0; threads share the states of each step."""
    n_actions, width = x.allowed.shape[2], np.int64(x.p.shape[2])
    lo, hi = _U(0), _U(width)
    all_rows = do.mode != ACTIONS or do.keep_q or do.keep_gradient
    while True:
        step, piece = take(marks, rank, len(edges) - 1, do.top + 1)
        if step > do.top:
            return
        t = do.top - step
        p, r = x.p[t if len(x.p) > 1 else 0], x.r[t if len(x.r) > 1 else 0]
        allowed, b = x.allowed[t if len(x.allowed) > 1 else 0], c.b[t if len(c.b) > 1 else 0]
        first, moved = x.first[t if len(x.first) > 1 else 0], t * x.stride
        v_next, v = c.v[(t + 1) % len(c.v)], c.v[t % len(c.v)]
        for s in range(edges[piece], edges[piece + 1]):
            q = c.q[t, s] if do.keep_q else w.q
            b_s = b[s if len(b) > 1 else 0]
            old = np.int64(c.actions[t, s]) if do.incumbent else np.int64(-1)
            stays = do.mode == ACTIONS or (do.incumbent and mass(b_s, lo, hi) == 0.0)
            fresh = False
            for a in range(n_actions):
                row = s * n_actions + a
                start, stop = x.indptr[row] + moved, x.indptr[row + 1] + moved
                if not allowed[s, a] or not (all_rows or a == old):
                    continue
                if do.lazy and not _any_moved(c.moved[t + 1], x.indices, _U(start), _U(stop)):
                    continue
                fresh = True
                row_sum(
                    p, v_next, None, x.indices, x.shares, x.paid,
                    first[row if len(first) > 1 else 0], start, stop, 0, width,
                    r[min(s, len(r) - 1), min(a, r.shape[1] - 1)], x.gamma, q[a],
                )  # fmt: skip
            if do.lazy and not do.everywhere and not fresh and c.held[t, s] == old:
                c.moved[t, s] = False
                continue
            if do.weighed:
                for a in range(n_actions):
                    w.G[a] = -np.inf
                    if allowed[s, a] and (all_rows or a == old):
                        w.G[a] = dot(b_s, q[a], lo, hi)
                    if do.keep_gradient:
                        c.gradient[t, s, a] = w.G[a]
            if do.mode == WEIGHTED or do.mode == ACTIONS:
                chosen = old if stays else choose(w.G, old)
                c.actions[t, s] = chosen
                if do.lazy:
                    c.moved[t, s] = fresh or c.held[t, s] != chosen
                    c.held[t, s] = chosen
                for m in range(lo, hi):
                    v[s, m] = q[chosen, m]
            else:
                _every_action(t, s, lo, hi, do, allowed, q, c, v[s])
            if do.keep_q:
                for a in range(n_actions):
                    if not allowed[s, a]:
                        for m in range(lo, hi):
                            q[a, m] = -np.inf
        done(marks)


@jit(**FAST, helper=True)
def _every_action(t, s, lo, hi, do, allowed, q, c, v):  # type: ignore[no-untyped-def]
    """v of a state from q (A, M): each model's own best action, or the mean by probabilities."""
    for m in range(lo, hi):
        v[m] = -np.inf if do.mode == OWN else 0.0
    for a in range(len(q)):
        if not allowed[s, a]:
            continue
        if do.mode == PROBABILITIES:
            share = c.probabilities[t, s, a]
            for m in range(lo, hi):
                v[m] += share * q[a, m]
            continue
        if do.keep_own:
            for m in range(lo, hi):
                c.own[t, s, m] = a if q[a, m] > v[m] else c.own[t, s, m]
        for m in range(lo, hi):
            v[m] = max(v[m], q[a, m])


@jit(**FAST, helper=True)
def _list_inflow(t, lo, hi, x, c, w):  # type: ignore[no-untyped-def]
    """The entries of p by which b (S, M) at t moves on, by next state; no mass, no entries."""
    heads, actions, b, n_actions = w.heads, c.actions[t], c.b[t], x.allowed.shape[2]
    first, moved = x.first[t if len(x.first) > 1 else 0], t * x.stride
    heads[:] = 0
    for s in range(len(actions)):
        row = s * n_actions + actions[s]
        if mass(b[s], lo, hi) > 0.0:
            for k in range(x.indptr[row] + moved, x.indptr[row + 1] + moved):
                heads[x.indices[k] + 1] += 1
    for s in range(len(actions)):
        heads[s + 1] += heads[s]
    for s in range(len(actions)):
        row = s * n_actions + actions[s]
        if mass(b[s], lo, hi) > 0.0:
            start = x.indptr[row] + moved
            shift = first[row if len(first) > 1 else 0] - start
            for k in range(start, x.indptr[row + 1] + moved):
                place = heads[x.indices[k]]
                w.rows[place], w.sources[place] = k + shift, s
                _keep_share(w.shares, place, x.shares, k)
                heads[x.indices[k]] += 1
    for s in range(len(actions), 0, -1):  # each head stands where the next one began
        heads[s] = heads[s - 1]
    heads[0] = 0


@jit(**FAST)
def fore(marks, rank, edges, models, since, choosing, x, c, w):  # type: ignore[no-untyped-def]
    """b under the actions, from b at step ``since`` on (-1: from the first).

    If ``choosing``, the actions after ``since`` are improved on the way by the q that is kept:
    in turn, the states of a step choose and the models move on.
    """
    n_actions, horizon, lowest = x.allowed.shape[2], len(c.actions), max(since, 0)
    zero, width = _U(0), _U(x.p.shape[2])
    steps = 2 * (horizon - lowest)
    while True:
        step, piece = take(marks, rank, len(edges) - 1, steps)
        if step >= steps:
            return
        t = lowest + step // 2
        b = c.b[t]
        if step % 2 == 1 and t + 1 < horizon:
            lo, hi = models[piece], models[piece + 1]
            p = x.p[t if len(x.p) > 1 else 0]
            _list_inflow(t, _U(lo), _U(hi), x, c, w)
            for s in range(len(b)):
                row_sum(
                    p, b, w.rows, w.sources, w.shares, None, 0, w.heads[s], w.heads[s + 1], lo, hi,
                    w.nothing, 1.0, c.b[t + 1, s],
                )  # fmt: skip
        elif step % 2 == 0 and choosing and t > since:
            allowed = x.allowed[t if len(x.allowed) > 1 else 0]
            for s in range(edges[piece], edges[piece + 1]):
                if mass(b[s], zero, width) > 0.0:
                    for a in range(n_actions):
                        w.G[a] = -np.inf
                        if allowed[s, a]:
                            w.G[a] = dot(b[s], c.q[t, s, a], zero, width)
                    c.actions[t, s] = choose(w.G, np.int64(c.actions[t, s]))
        done(marks)


@jit(**FAST)
def product(lo, hi, t, x, v, r, paid, gamma, q):  # type: ignore[no-untyped-def]
    """q (S, A, M) = r + P (paid + gamma v) at time t, states lo..hi; r (S or 1, A or 1, M)."""
    n_actions, width = q.shape[1], np.int64(q.shape[2])
    p, moved = x.p[t if len(x.p) > 1 else 0], t * x.stride
    first = x.first[t if len(x.first) > 1 else 0]
    for s in range(lo, hi):
        for a in range(n_actions):
            row = s * n_actions + a
            row_sum(
                p, v, None, x.indices, x.shares, paid, first[row if len(first) > 1 else 0],
                x.indptr[row] + moved, x.indptr[row + 1] + moved, 0, width,
                r[min(s, len(r) - 1), min(a, r.shape[1] - 1)], gamma, q[s, a],
            )  # fmt: skip


@jit(**FAST)
def fore_random(lo, hi, x, c):  # type: ignore[no-untyped-def]
    """b of the models lo..hi under probabilities (T, S, A)."""
    n_actions = x.allowed.shape[2]
    lo, hi = _U(lo), _U(hi)
    for t in range(len(c.probabilities) - 1):
        p, b, after = x.p[t if len(x.p) > 1 else 0], c.b[t], c.b[t + 1]
        first, moved = x.first[t if len(x.first) > 1 else 0], t * x.stride
        for s in range(len(b)):
            for m in range(lo, hi):
                after[s, m] = 0.0
        for row in range(len(b) * n_actions):
            s = row // n_actions
            start, share = x.indptr[row] + moved, c.probabilities[t, s, row - s * n_actions]
            shift = first[row if len(first) > 1 else 0] - start
            for k in range(start, x.indptr[row + 1] + moved):
                if share > 0.0:
                    i, j, part = _U(x.indices[k]), _U(k + shift), share * share_of(x.shares, k)
                    for m in range(lo, hi):
                        after[i, m] += p[j, m] * (part * b[s, m])
