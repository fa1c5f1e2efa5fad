"""CADP's two-way sweeps on the CPU, with only the work that can matter.

Symbols as in :mod:`mmdp.kernels.problem`. q of every step is kept, in 32 bits and rounded up:
it serves as a bound, and v holds the row of the action in force in full. A kept row q_t(s, a)
is out of date once v_{t+1} has changed, but not by much: for any model it has risen by gamma
times the largest rise of v_{t+1} since then at most. ``bar`` holds these rises, added up, one
line for every change of v_{t+1}; ``age`` says at which line a row was computed. The row of
the action in force is always computed. A rival whose G cannot exceed that action's is left
alone; the others are computed and compared. The choices are those that would be made if all
rows were computed.

A forward pass starts where the last backward pass first changed an action, a backward pass
where the last forward pass last changed one: before and after, weights, values and choices
are as they were.

After an ascent has ended, another start may follow: ascents of one problem end near each
other, and the rows that one leaves behind are bounds for the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu import steps as march
from mmdp.kernels.cpu.jit import FAST, SUMS, jit
from mmdp.kernels.cpu.passes import Inflow, _chosen, _dot, _mass, _move, _q_row
from mmdp.kernels.problem import TIE, Array, IntArray, Problem, aligned
from mmdp.kernels.cpu.threads import Team

WSU, GIVEN, SWEEP, ANEW = range(4)  # what a backward pass does; ANEW: as SWEEP, for another start
FOLLOW, DECIDE = range(2)  # what is done in a state: FOLLOW the action in force
LINES = 16  # of ``bar``; when they are used up, every other one is dropped
SHORT = 4  # next states up to which computing a row costs no more than the test of its bound
ROUNDING = 2.0**-23  # relative error of p in 32 bits, twice over
TINY, LOWEST = 1e-37, -3e38  # about the ends of the range of 32 bits
_U = np.uint64
_INLINE: dict[str, Any] = {**FAST, "forceinline": True}  # arrays travel as ten numbers each


class Ground(NamedTuple):
    """The problem as the compiled code takes it; p in 32 or 64 bits."""

    indptr: npt.NDArray[np.int64]
    indices: IntArray
    p: npt.NDArray[Any]
    r: Array
    allowed: npt.NDArray[np.bool_]
    weights: Array
    gamma: float


class State(NamedTuple):
    """Where the climb stands; bar and rise are empty where all rows are short."""

    actions: IntArray  # (T, S)
    held: IntArray  # (T, S): the actions that v was computed for
    b: Array  # (T, S, M)
    v: Array  # (T + 1, S, M)
    q: npt.NDArray[np.float32]  # (T, S, A, M): no less than q was when it was computed
    age: npt.NDArray[np.int16]  # (T, S, A): line of bar at which a row was computed, -1 never
    now: npt.NDArray[np.int16]  # (T,): the last line of bar
    bar: Array  # (T, LINES, M)
    moved: npt.NDArray[np.bool_]  # (2, S): whether v_t(s) changed, t even and odd
    rise: Array  # (pieces, 2, M): how much v_t rose at most over a piece of the states


class Scratch(NamedTuple):
    """What one thread writes while it works on a step."""

    need: npt.NDArray[np.bool_]  # (A,): rows of the state to compute
    known: npt.NDArray[np.bool_]  # (A,): rows of the state that were computed on this visit
    rows: Array  # (A, M): those rows
    G: Array  # (A,)
    bar_now: Array  # (M,): the last line of bar
    lift: Array  # (LINES,): the largest rise of bar since each line
    nothing: Array  # (M,): zeros
    flow: Inflow


# ------------------------------------------------------------------ bounds
@jit(**FAST)
def _copy(source, target):  # type: ignore[no-untyped-def]
    for m in range(len(source)):
        target[m] = source[m]


@jit(**FAST)
def _keep(row, kept):  # type: ignore[no-untyped-def]
    """A row in 32 bits, none of its numbers less than it was."""
    for m in range(len(row)):
        kept[m] = np.float32(max(row[m] + (abs(row[m]) * ROUNDING + TINY), LOWEST))


@jit(**FAST)
def _line_up(bar, age, now):  # type: ignore[no-untyped-def]
    """One more line for bar (LINES, M) of a time step; now is its last line so far."""
    if now + 1 == len(bar):
        for line in range(2, now, 2):
            _copy(bar[line], bar[line // 2])
        half = now // 2 + 1
        _copy(bar[now], bar[half])
        for s in range(len(age)):
            for a in range(age.shape[1]):
                if age[s, a] >= 0:  # an earlier line than its own: the bound is wider, not wrong
                    age[s, a] = half if age[s, a] == now else age[s, a] // 2
        now = half
    _copy(bar[now], bar[now + 1])
    return now + 1


@jit(**FAST)
def _line_up_below(top, c):  # type: ignore[no-untyped-def]
    """One more line of bar wherever v_{t+1} may move in the backward pass that comes."""
    for t in range(min(top, len(c.now))):
        c.now[t] = _line_up(c.bar[t], c.age[t], c.now[t])


@jit(**FAST)
def _largest_rise(above, below):  # type: ignore[no-untyped-def]
    most = 0.0
    for m in range(len(above)):
        most = max(most, above[m] - below[m])
    return most


@jit(**SUMS, forceinline=True)
def _slack(b, above, below):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(len(b)):
        total += b[m] * (above[m] - below[m])
    return total


@jit(**_INLINE)
def _raise_bar(t, piece, c, w):  # type: ignore[no-untyped-def]
    """The bar of time t, raised by how much v_{t+1} rose; gives how many of its states moved."""
    after, line = (t + 1) % 2, c.now[t]
    moved = 0
    for s in range(c.moved.shape[1]):
        moved += c.moved[after, s]
    _copy(c.bar[t, line], w.bar_now)
    if moved > 0:
        for other in range(len(c.rise)):
            for m in range(len(w.bar_now)):
                # the line before stays as it was: other threads read it
                raised = c.bar[t, line - 1, m] + c.rise[other, after, m]
                w.bar_now[m] = max(w.bar_now[m], raised)
        if piece == 0:
            _copy(w.bar_now, c.bar[t, line])
    for m in range(len(w.bar_now)):
        c.rise[piece, t % 2, m] = 0.0
    return moved


# ------------------------------------------------------------------ rows of a state
@jit(**_INLINE)
def _keep_up(t, s, top, moved, x, c):  # type: ignore[no-untyped-def]
    """Rows that nothing moved in stay up to date; gives whether any row of the state is hit.

    The first step of a pass has no new line, and nothing moved after it.
    """
    n_states, n_actions = x.allowed.shape
    if t == top or moved == n_states:
        return t != top
    any_hit = False
    for a in range(n_actions):
        row, hit = s * n_actions + a, False
        for k in range(x.indptr[row], x.indptr[row + 1] if moved > 0 else 0):
            hit |= c.moved[(t + 1) % 2, x.indices[k]]
        if x.allowed[s, a] and hit:
            any_hit = True
        elif c.age[t, s, a] == c.now[t] - 1:
            c.age[t, s, a] = c.now[t]
    return any_hit


@jit(**_INLINE)
def _rows(t, s, x, c, w):  # type: ignore[no-untyped-def]
    """Compute the rows asked for in w.need."""
    n_actions = x.allowed.shape[1]
    p_t = x.p[t if x.p.shape[0] > 1 else 0]
    r_t = x.r[t if x.r.shape[0] > 1 else 0]
    for a in range(n_actions):
        if w.need[a]:
            row = s * n_actions + a
            _q_row(
                p_t, c.v[t + 1], r_t[s, a], x.indices, _U(x.indptr[row]), _U(x.indptr[row + 1]),
                x.gamma, _U(0), _U(x.p.shape[2]), w.rows[a],
            )  # fmt: skip
            _keep(w.rows[a], c.q[t, s, a])
            c.age[t, s, a] = c.now[t]
            w.known[a] = True


@jit(**_INLINE)
def _at_once(t, s, a, x, c):  # type: ignore[no-untyped-def]
    """Whether a row that is out of date is computed without a test of its bound."""
    row = s * x.allowed.shape[1] + a
    return c.age[t, s, a] < 0 or x.indptr[row + 1] - x.indptr[row] <= SHORT


@jit(**_INLINE)
def _promising(t, s, x, c):  # type: ignore[no-untyped-def]
    """The action whose kept row, old as it may be, looks best."""
    best, pivot = -np.inf, c.actions[t, s]
    for a in range(x.allowed.shape[1]):
        if x.allowed[s, a] and c.age[t, s, a] >= 0:
            g = _dot(c.b[t, s], c.q[t, s, a], _U(0), _U(x.p.shape[2]))
            if g > best:
                best, pivot = g, a
    return pivot


@jit(**_INLINE)
def _ask_first(t, s, mode, task, pivot, x, c, w):  # type: ignore[no-untyped-def]
    """Ask for the rows that are needed whatever they hold."""
    for a in range(x.allowed.shape[1]):
        w.known[a] = False
        fresh = mode != WSU and c.age[t, s, a] == c.now[t]
        if a == pivot:  # in full only where v was computed for it
            wanted, fresh = True, fresh and a == c.held[t, s]
        else:
            wanted = mode == WSU or (task == DECIDE and _at_once(t, s, a, x, c))
        w.need[a] = wanted and x.allowed[s, a] and not fresh


@jit(**_INLINE)
def _ask_rivals(t, s, pivot, mass, bar_now, x, c, w):  # type: ignore[no-untyped-def]
    """G of the rows that are known; ask for others that might beat the pivot's.

    Gives the largest |G|, and whether any row is asked for.
    """
    b, asked = c.b[t, s], False
    zero, width = _U(0), _U(len(b))
    best = _dot(b, w.rows[pivot] if w.known[pivot] else c.v[t, s], zero, width)
    size = abs(best)
    for a in range(x.allowed.shape[1]):  # G, or what it was when the row was kept
        w.need[a], w.G[a] = False, best if a == pivot else -np.inf
        if a == pivot or not x.allowed[s, a]:
            continue
        if w.known[a]:
            w.G[a] = _dot(b, w.rows[a], zero, width)
        elif c.age[t, s, a] == c.now[t] or not _at_once(t, s, a, x, c):
            w.G[a] = _dot(b, c.q[t, s, a], zero, width)
        else:
            w.need[a] = asked = True
        if abs(w.G[a]) < np.inf:  # not where it is beyond the range of 32 bits
            size = max(size, abs(w.G[a]))
    for a in range(x.allowed.shape[1]):
        if a == pivot or not x.allowed[s, a] or w.known[a] or w.need[a]:
            continue
        line, g = c.age[t, s, a], w.G[a]
        rises = line < c.now[t]
        w.G[a] = -np.inf
        # the action in force keeps a tie, so it is left out only well below
        least = best - (2.0 * TIE * size if a == c.actions[t, s] else 0.0)
        if g + (x.gamma * mass * w.lift[line] if rises else 0.0) <= least:
            continue
        if rises and g + x.gamma * _slack(b, bar_now, c.bar[t, line]) <= least:
            continue
        w.need[a] = asked = True
    return size, asked


@jit(**_INLINE)
def _decide(t, s, pivot, mass, bar_now, x, c, w):  # type: ignore[no-untyped-def]
    """The best action by G; the action in force keeps a tie. The pivot's row is there in full."""
    size, asked = _ask_rivals(t, s, pivot, mass, bar_now, x, c, w)
    if asked:
        _rows(t, s, x, c, w)
        for a in range(x.allowed.shape[1]):
            if w.need[a]:
                w.G[a] = _dot(c.b[t, s], w.rows[a], _U(0), _U(x.p.shape[2]))
    c.actions[t, s] = _chosen(w.G, size, c.actions[t, s])


@jit(**_INLINE)
def _decide_by_prior(t, s, x, c, w):  # type: ignore[no-untyped-def]
    """WSU's choice, with all rows just computed."""
    for a in range(x.allowed.shape[1]):
        w.G[a] = -np.inf
        if x.allowed[s, a]:
            w.G[a] = _dot(x.weights, w.rows[a], _U(0), _U(x.p.shape[2]))
    c.actions[t, s] = _chosen(w.G, 0.0, -1)


@jit(**_INLINE)
def _settle(t, s, piece, track, rounding, c, w):  # type: ignore[no-untyped-def]
    """v_t(s) of the action in force; notes that it moved and how much it rose."""
    if not w.known[c.actions[t, s]]:
        c.moved[t % 2, s] = False
        return
    v, new = c.v[t, s], w.rows[c.actions[t, s]]
    if track:
        rise = c.rise[piece, t % 2]
        for m in range(len(rise)):
            rise[m] = max(rise[m], new[m] - v[m] + rounding * abs(v[m]))
        c.moved[t % 2, s] = True
    c.held[t, s] = c.actions[t, s]
    _copy(new, v)


# ------------------------------------------------------------------ passes
@jit(**_INLINE)
def _back_state(t, s, piece, top, moved, mode, first, track, rounding, x, c, w):  # type: ignore[no-untyped-def]
    """One state of a backward step."""
    if track:
        hit = _keep_up(t, s, top, moved, x, c)
        if not hit and not first and c.held[t, s] == c.actions[t, s]:
            c.moved[t % 2, s] = False
            return
    mass, task, pivot = 0.0, DECIDE, c.actions[t, s]
    if mode >= SWEEP:
        mass = _mass(c.b[t, s], _U(0), _U(x.p.shape[2]))
    if mode == GIVEN or (mode >= SWEEP and mass == 0.0):
        task = FOLLOW
    if mode == ANEW and task == DECIDE:
        pivot = _promising(t, s, x, c)
    _ask_first(t, s, mode, task, pivot, x, c, w)
    _rows(t, s, x, c, w)
    if mode == WSU:
        _decide_by_prior(t, s, x, c, w)
    elif task == DECIDE:
        _decide(t, s, pivot, mass, w.bar_now, x, c, w)
    _settle(t, s, piece, track, rounding, c, w)


@jit(**FAST)
def _back(marks, rank, edges, top, mode, first, track, rounding, x, c, w):  # type: ignore[no-untyped-def]
    """The backward pass from step ``top`` down.

    ``first``: all states are decided, whether rows changed or not. ``track``: changes of v
    are noted; not in the pass that computes it for the first time.
    """
    steps = min(top + 1, len(c.actions))
    moved = 0
    while True:
        step, piece = march.take(marks, rank, len(edges) - 1, steps)
        if step >= steps:
            return
        t = steps - 1 - step
        if track:
            moved = _raise_bar(t, piece, c, w)
            for line in range(c.now[t]):
                w.lift[line] = _largest_rise(w.bar_now, c.bar[t, line])
        for s in range(edges[piece], edges[piece + 1]):
            _back_state(t, s, piece, top, moved, mode, first, track, rounding, x, c, w)
        march.done(marks)


@jit(**_INLINE)
def _fore_choose(t, s_from, s_to, x, c, w):  # type: ignore[no-untyped-def]
    """The best actions of some states with the weights b as they are now."""
    bar_now = c.bar[t, c.now[t]]
    for line in range(c.now[t]):
        w.lift[line] = _largest_rise(bar_now, c.bar[t, line])
    for s in range(s_from, s_to):
        mass = _mass(c.b[t, s], _U(0), _U(x.p.shape[2]))
        if mass > 0.0:
            for a in range(len(w.known)):
                w.known[a] = False
            _decide(t, s, c.actions[t, s], mass, bar_now, x, c, w)


@jit(**_INLINE)
def _fore_push(t, lo, hi, x, c, w):  # type: ignore[no-untyped-def]
    """b at t + 1 of the models lo..hi."""
    p_t = x.p[t if x.p.shape[0] > 1 else 0]
    _move(
        c.actions[t], x.allowed.shape[1], lo, hi, x.indptr, x.indices, p_t, c.b[t], c.b[t + 1],
        w.nothing, w.flow,
    )  # fmt: skip


@jit(**FAST)
def _fore(marks, rank, edges, models, since, choosing, x, c, w):  # type: ignore[no-untyped-def]
    """The forward pass from b at step ``since`` on (-1: from the first).

    Where ``choosing``, the actions after ``since`` are improved on the way: by turns, the
    states of a step choose and the models move on.
    """
    lowest, horizon = max(since, 0), len(c.actions)
    steps = 2 * (horizon - lowest)
    while True:
        step, piece = march.take(marks, rank, len(edges) - 1, steps)
        if step >= steps:
            return
        t = lowest + step // 2
        if step % 2 == 1 and t + 1 < horizon:
            _fore_push(t, _U(models[piece]), _U(models[piece + 1]), x, c, w)
        elif step % 2 == 0 and choosing and t > since:
            _fore_choose(t, edges[piece], edges[piece + 1], x, c, w)
        march.done(marks)


@jit(**FAST)
def _worth(t, x, c):  # type: ignore[no-untyped-def]
    """The expected reward of step t."""
    total = 0.0
    for s in range(c.actions.shape[1]):
        r = x.r[t if x.r.shape[0] > 1 else 0, s, c.actions[t, s]]
        total += _dot(c.b[t, s], r, _U(0), _U(x.p.shape[2]))
    return total


@jit(**FAST)
def _differ(x, y):  # type: ignore[no-untyped-def]
    """The first and the last step where x and y (T, S) differ; T and -1 where nowhere."""
    first, last = len(x), -1
    for t in range(len(x)):
        for s in range(x.shape[1]):
            if x[t, s] != y[t, s]:
                first, last = min(first, t), t
                break
    return first, last


class Climb:
    """An ascent of CADP by two-way sweeps: ``open`` values the start, ``sweep`` improves it.

    When it has ended, ``restart`` begins another.

    ``start``: a policy (T, S), None for WSU's. ``p``: the transitions to compute with, in 32
    or 64 bits; :meth:`refine` goes on with those of the problem.
    """

    def __init__(
        self, problem: Problem, horizon: int, start: IntArray | None, *, team: Team,
        p: npt.NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        x, T, S, A, M = problem, horizon, problem.n_states, problem.n_actions, problem.n_models
        pieces = march.pieces(len(team))
        # bars are for long rows alone
        width = M if np.diff(x.indptr).max(initial=0) > SHORT else 0
        self.problem, self.team, self.mode = problem, team, WSU if start is None else GIVEN
        self.first = True  # no sweep has been made yet
        self.again = False  # this is another start: b is there, and rows of the one before
        self.since = -1  # the first step whose action the last backward pass changed
        self.edges, self.models = march.edges(S, pieces), march.edges(M, pieces)
        self.ground = Ground(
            x.indptr, x.indices, x.p if p is None else p, x.r, x.allowed[0], x.weights, x.discount
        )
        self.state = State(
            actions=np.zeros((T, S), np.int32) if start is None else np.array(start, np.int32),
            held=np.zeros((T, S), np.int32),
            b=aligned(T, S, M),
            v=aligned(T + 1, S, M),
            q=aligned(T, S, A, M, dtype=np.float32),
            age=np.full((T, S, A), -1, np.int16),
            now=np.zeros(T, np.int16),
            bar=np.zeros((T, LINES, width)),
            moved=np.zeros((2, S), np.bool_),
            rise=np.zeros((pieces, 2, width)),
        )
        self.scratch = [
            Scratch(
                np.zeros(A, np.bool_),
                np.zeros(A, np.bool_),
                aligned(A, M),
                np.empty(A),
                np.empty(width),
                np.zeros(LINES),
                np.zeros(M),
                Inflow.room(x),
            )
            for _ in range(len(team))
        ]
        np.multiply(x.initial[:, None], x.weights, out=self.state.b[0])
        self.state.v[T] = x.terminal

    @property
    def actions(self) -> IntArray:
        """(T, S): the policy as it is now."""
        return self.state.actions

    def open(self) -> Array:
        """(M,) returns of the start, which is computed here where it is WSU's."""
        return self._back(len(self.actions) - 1, self.mode, track=False)

    def sweep(self) -> tuple[bool, Array]:
        """A forward and a backward pass: (whether actions changed, (M,) returns)."""
        before, choosing, last = self.actions.copy(), not self.first, len(self.actions) - 1
        mode, self.again = (ANEW if self.again else SWEEP), False
        if mode == SWEEP:
            self.fore(choosing)
        turned = False
        if choosing:
            _, last = _differ(self.actions, before)
            turned = last >= 0
            np.copyto(before, self.actions)
        returns = self._back(last, mode, track=True) if last >= 0 else self._returns()
        self.first = False
        self.since, last = _differ(self.actions, before)
        return turned or last >= 0, returns

    def restart(self, start: IntArray) -> float:
        """The mean return of another start (T, S), from which the next sweep goes on."""
        x, T = self.problem, len(self.actions)
        self.actions[:] = start
        self.since, self.first, self.again = -1, True, True
        self.fore(choosing=False)
        rewards = [_worth(t, self.ground, self.state) for t in range(T)]
        value = float(np.dot(x.discount ** np.arange(T), rewards))
        if x.terminal.any():
            end, scratch = aligned(x.n_states, x.n_models), self.scratch[0]
            _move(
                self.actions[-1], x.n_actions, _U(0), _U(x.n_models), x.indptr, x.indices,
                x.p[-1], self.state.b[-1], end, scratch.nothing, scratch.flow,
            )  # fmt: skip
            value += x.discount**T * float(np.vdot(end, x.terminal))
        return value

    def refine(self, policy: IntArray) -> Array:
        """(M,) exact returns of (T, S); from here on the problem's own p is used."""
        T = len(self.actions)
        self.actions[:] = policy
        self.ground = self.ground._replace(p=self.problem.p)
        # p of the last step differs too: its line says by how much
        self.state.moved[T % 2] = True
        width = self.state.rise.shape[2]
        most = np.abs(self.problem.terminal[:, :width]).max(axis=0)
        self.state.rise[:, T % 2] = ROUNDING * most
        self.since, self.first = -1, False
        return self._back(T, GIVEN, track=True, rounding=ROUNDING)

    def fore(self, choosing: bool) -> None:
        """The forward pass, which improves the actions where ``choosing``."""
        self._walk(
            lambda marks, rank: _fore(
                marks, rank, self.edges, self.models, self.since, choosing, self.ground,
                self.state, self.scratch[rank],
            )
        )  # fmt: skip

    def _back(self, top: int, mode: int, *, track: bool, rounding: float = 0.0) -> Array:
        if track:
            if top < len(self.actions):
                self.state.moved[(top + 1) % 2] = False
            _line_up_below(top, self.state)
        self._walk(
            lambda marks, rank: _back(
                marks, rank, self.edges, top, mode, self.first, track, rounding, self.ground,
                self.state, self.scratch[rank],
            )
        )  # fmt: skip
        return self._returns()

    def _walk(self, call: Callable[[march.Marks, int], None]) -> None:
        x = self.problem
        march.walk(self.team, len(x.indices) * x.n_models, call)

    def _returns(self) -> Array:
        return self.problem.returns(self.state.v[0])
