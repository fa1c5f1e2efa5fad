"""The CPU kernel: compiled by numba on first use, SIMD over models, threads over states.

The pass streams p once a time step and is bound by memory bandwidth. A row of the pattern
is finished before the next begins, so q of one state lives in the cache and no q array is
written unless asked for. One thread finishes a state, so results do not depend on the
number of threads. Threads are plain Python threads around code that releases the
interpreter lock: they sleep between passes (within one see march), and no global threading
layer is touched.
"""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels.cpu import steps as march
from mmdp.kernels.cpu.bounds import CpuBounds
from mmdp.kernels.cpu.episodes import CpuEpisodes
from mmdp.kernels.cpu.jit import FAST, FUSED, SUMS, jit
from mmdp.kernels.problem import TIE, Array, Backward, Choice, IntArray, Problem, aligned
from mmdp.kernels.cpu.threads import Team, default_threads
from mmdp.kernels.cpu.rows import WIDTH, row_sum

if TYPE_CHECKING:
    from mmdp.kernels.cpu.climb import Climb

WEIGHTED, OWN, ACTIONS, PROBABILITIES = range(4)
NARROW = WIDTH  # below this many models, loops run over transitions instead of models
THREADS_PAY_FROM = 100_000  # multiply-adds a time step below which one thread is faster
LONG = 32  # mean number of next states a row from which actions of one model are eliminated
MOST_TERMINAL = 1e6  # times the largest reward up to which that is done
LISTED = 32  # models from which a forward pass sorts the entries by next state
MODELS_AT_ONCE = 1024  # models a block of an independent pass, so that values stay in cache


# Indices are unsigned: numba then drops its test for negative ones, which halves the code.
_U = np.uint64


@jit(**SUMS)
def _narrow_sum(p, v, indices, start, stop, m):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(start, stop):
        total += p[k, m] * v[_U(indices[k]), m]
    return total


@jit(**FUSED)
def _q_row(p, v, r, indices, start, stop, gamma, lo, hi, out):  # type: ignore[no-untyped-def]
    """out[m] = r[m] + gamma * sum_k p[k, m] v[indices[k], m] for the models lo..hi."""
    if p.shape[1] < NARROW:
        for m in range(lo, hi):
            out[m] = r[m] + gamma * _narrow_sum(p, v, indices, start, stop, m)
        return
    row_sum(
        p, v, None, indices, np.int64(start), np.int64(stop), np.int64(lo), np.int64(hi), r, gamma,
        out,
    )  # fmt: skip


@jit(**SUMS, forceinline=True)
def _dot(x, y, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m] * y[m]
    return total


@jit(**SUMS, forceinline=True)
def _mass(x, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m]
    return total


@jit(**FAST, forceinline=True)
def _chosen(g, size, incumbent):  # type: ignore[no-untyped-def]
    """The maximiser of g (-inf: no candidate): ties to the incumbent, else the lowest action.

    ``size``: the largest |G| of actions that are no candidates, 0 where all are.
    """
    best = -np.inf
    for a in range(len(g)):
        best = max(best, g[a])
        if g[a] > -np.inf:
            size = max(size, abs(g[a]))
    bar = best - TIE * size
    if incumbent >= 0 and g[incumbent] >= bar:
        return incumbent
    for a in range(len(g)):
        if g[a] >= bar:
            return a
    return 0


@jit(**FAST)
def _take_own(q, v, own, a, lo, hi, keep):  # type: ignore[no-untyped-def]
    """Each model takes action a where it is better than what it has."""
    if keep:
        for m in range(lo, hi):
            if q[m] > v[m]:
                own[m] = a
    for m in range(lo, hi):
        v[m] = max(v[m], q[m])


@jit(**SUMS, forceinline=True)
def _one_model_q(row, p, v, r, indptr, indices, dense, gamma):  # type: ignore[no-untyped-def]
    """q of a row of a single model, whose arrays are vectors."""
    start, stop = _U(indptr[row]), _U(indptr[row + _U(1)])
    total = 0.0
    if dense:
        for k in range(stop - start):
            total += p[start + k] * v[k]
    else:
        for k in range(start, stop):
            total += p[k] * v[_U(indices[k])]
    return r[row] + gamma * total


@jit(**FAST)
def _one_model_rows(p, v, r, indptr, indices, dense, gamma, first, last, out):  # type: ignore[no-untyped-def]
    """q of the rows first..last of a single model."""
    for row in range(_U(first), _U(last)):
        out[row] = _one_model_q(row, p, v, r, indptr, indices, dense, gamma)


@jit(**FAST)
def _one_model_choice(s_from, s_to, allowed, q, b, has_incumbent, actions, v):  # type: ignore[no-untyped-def]
    """The best actions (S,) of a single model and their values, from q (S, A, 1)."""
    n_actions = allowed.shape[1]
    for s in range(s_from, s_to):
        weight = b[s if len(b) > 1 else 0, 0]
        if has_incumbent and weight == 0.0:
            v[s, 0] = q[s, actions[s], 0]
            continue
        best, size = -np.inf, 0.0
        for a in range(n_actions):
            if allowed[s, a]:
                g = weight * q[s, a, 0]
                best, size = max(best, g), max(size, abs(g))
        bar = best - TIE * size
        if not (has_incumbent and weight * q[s, actions[s], 0] >= bar):
            a = 0
            while a < n_actions - 1 and not (allowed[s, a] and weight * q[s, a, 0] >= bar):
                a += 1  # never past the last: bar is no number where values overflow
            actions[s] = a
        v[s, 0] = q[s, actions[s], 0]


@jit(**FAST, forceinline=True)
def _state_values(  # type: ignore[no-untyped-def]
    t, s, mode, allowed, q, g, incumbent, stays, actions, probabilities, own, keep_own, v_s, lo, hi
):
    """v of a state from q (A, M) of its actions, by the choice that ``mode`` makes."""
    n_actions = allowed.shape[1]
    if mode == OWN:
        for m in range(lo, hi):
            v_s[m] = -np.inf
        for a in range(n_actions):
            if allowed[s, a]:
                own_s = own[t if keep_own else 0, s if keep_own else 0]
                _take_own(q[a], v_s, own_s, a, lo, hi, keep_own)
    elif mode == PROBABILITIES:
        for m in range(lo, hi):
            v_s[m] = 0.0
        for a in range(n_actions):
            weight = probabilities[t, s, a]
            if weight > 0.0:
                for m in range(lo, hi):
                    v_s[m] += weight * q[a, m]
    else:
        chosen = incumbent
        if not stays:
            chosen = _chosen(g, 0.0, incumbent)
            actions[t, s] = chosen
        for m in range(lo, hi):
            v_s[m] = q[chosen, m]


@jit(**FAST)
def _backward(  # type: ignore[no-untyped-def]
    marks, rank, edges, horizon, m_from, m_to, mode, indptr, indices, p, r, allowed, dense, gamma,
    v, b, weighed, actions, has_incumbent, probabilities, own, keep_own, gradient, q_out, q, g,
):  # fmt: skip
    """The steps horizon-1 down to 0 over the models m_from..m_to; threads share the states.

    gradient, q_out and probabilities have length 0 where absent; p, r, b have length 1 where
    they do not vary. v holds T + 1 steps, or 2 used in turn. g (A,) and q (1, A, M) are
    scratch; q (S, A, 1) where there is one model, whose rows are computed a piece at a time.
    """
    n_actions = allowed.shape[2]
    lo, hi = _U(m_from), _U(m_to)
    keep_all = gradient.shape[0] > 0 or q_out.shape[0] > 0
    while True:
        step, piece = march.take(marks, rank, len(edges) - 1, horizon)
        if step >= horizon:
            return
        t = horizon - 1 - step
        s_from, s_to = edges[piece], edges[piece + 1]
        v_next = v[(t + 1) % v.shape[0]]
        v_t = v[t % v.shape[0]]
        p_t = p[t if p.shape[0] > 1 else 0]
        r_t = r[t if r.shape[0] > 1 else 0]
        b_t = b[t if b.shape[0] > 1 else 0]
        open_t = allowed[t if allowed.shape[0] > 1 else 0]
        if len(q) > 1:
            _one_model_rows(
                p_t.reshape(p_t.size), v_next.reshape(v_next.size), r_t.reshape(r_t.size), indptr,
                indices, dense, gamma, s_from * n_actions, s_to * n_actions, q.reshape(q.size),
            )  # fmt: skip
            if mode == WEIGHTED and not keep_all:
                _one_model_choice(s_from, s_to, open_t, q, b_t, has_incumbent, actions[t], v_t)
                march.done(marks)
                continue
        for s in range(s_from, s_to):
            b_s = b_t[s if b.shape[1] > 1 else 0]
            q_s = q[s if len(q) > 1 else 0]
            incumbent = -1
            if mode == ACTIONS or has_incumbent:
                incumbent = actions[t, s]
            # the incumbent stays where it is given, or where nobody is (no choice can matter)
            stays = mode == ACTIONS or (
                has_incumbent and mode == WEIGHTED and _mass(b_s, lo, hi) == 0.0
            )
            for a in range(n_actions):
                g[a] = -np.inf
                if not open_t[s, a] or (stays and a != incumbent and not keep_all):
                    continue
                row = s * n_actions + a
                if len(q) == 1:
                    _q_row(
                        p_t, v_next, r_t[s, a], indices, _U(indptr[row]), _U(indptr[row + 1]),
                        gamma, lo, hi, q_s[a],
                    )  # fmt: skip
                if weighed:
                    g[a] = _dot(b_s, q_s[a], lo, hi)
            if gradient.shape[0] > 0:
                for a in range(n_actions):
                    gradient[t, s, a] = g[a]
            if q_out.shape[0] > 0:
                for a in range(n_actions):
                    for m in range(lo, hi):
                        q_out[t, s, a, m] = q_s[a, m] if open_t[s, a] else -np.inf
            _state_values(
                t, s, mode, open_t, q_s, g, incumbent, stays, actions, probabilities, own,
                keep_own, v_t[s], lo, hi,
            )  # fmt: skip
        march.done(marks)


@jit(**FUSED)
def _push(s, n_actions, weight, a, lo, hi, indptr, indices, p_t, b_t, b_next):  # type: ignore[no-untyped-def]
    """Add what flows out of state s by action a, taken with this weight, to b at t + 1."""
    row = s * n_actions + a
    for k in range(_U(indptr[row]), _U(indptr[row + 1])):
        i = _U(indices[k])
        for m in range(lo, hi):
            b_next[i, m] += p_t[k, m] * (weight * b_t[s, m])


class Inflow(NamedTuple):
    """What flows into each state at one time: entries of p, sorted by next state."""

    heads: npt.NDArray[np.int64]  # (S + 1,): where the entries of a state begin
    rows: npt.NDArray[np.int64]  # (entries,): places in p
    sources: IntArray  # (entries,): the states they come from

    @classmethod
    def room(cls, problem: Problem) -> Inflow:
        """Room for any deterministic policy."""
        shape = problem.n_states, problem.n_actions
        most = int(np.diff(problem.indptr).reshape(shape).max(axis=1).sum())
        return cls(
            np.zeros(problem.n_states + 1, np.int64), np.empty(most, np.int64),
            np.empty(most, np.int32),
        )  # fmt: skip


@jit(**FAST)
def _list_inflow(actions, n_actions, lo, hi, indptr, indices, b_t, flow):  # type: ignore[no-untyped-def]
    """The entries of p by which b_t (S, M) moves on; states without mass have none."""
    heads = flow.heads
    heads[:] = 0
    for s in range(len(actions)):
        row = s * n_actions + actions[s]
        if _mass(b_t[s], lo, hi) > 0.0:
            for k in range(indptr[row], indptr[row + 1]):
                heads[indices[k] + 1] += 1
    for s in range(len(actions)):
        heads[s + 1] += heads[s]
    for s in range(len(actions)):
        row = s * n_actions + actions[s]
        if _mass(b_t[s], lo, hi) > 0.0:
            for k in range(indptr[row], indptr[row + 1]):
                place = heads[indices[k]]
                flow.rows[place], flow.sources[place] = k, s
                heads[indices[k]] += 1
    for s in range(len(actions), 0, -1):  # each head stands where the next one began
        heads[s] = heads[s - 1]
    heads[0] = 0


@jit(**FAST)
def _move(actions, n_actions, lo, hi, indptr, indices, p_t, b_t, b_next, nothing, flow):  # type: ignore[no-untyped-def]
    """b at t + 1 of the models lo..hi under actions (S,), eq. (belief-update).

    The sums are those of ``_push`` state by state, in the same order, without writing b at
    t + 1 for every entry; it takes a list of the entries, which pays for many models.
    """
    n_states = len(actions)
    if b_t.shape[1] >= LISTED:
        _list_inflow(actions, n_actions, lo, hi, indptr, indices, b_t, flow)
        for s in range(n_states):
            row_sum(
                p_t, b_t, flow.rows, flow.sources, flow.heads[s], flow.heads[s + 1], np.int64(lo),
                np.int64(hi), nothing, 1.0, b_next[s],
            )  # fmt: skip
        return
    for s in range(n_states):
        for m in range(lo, hi):
            b_next[s, m] = 0.0
    for s in range(n_states):
        if _mass(b_t[s], lo, hi) > 0.0:
            _push(s, n_actions, 1.0, actions[s], lo, hi, indptr, indices, p_t, b_t, b_next)


@jit(**FAST)
def _forward(  # type: ignore[no-untyped-def]
    t_to, m_from, m_to, indptr, indices, p, n_actions, actions, probabilities, b, nothing, flow
):
    """b[t + 1] from b[t] for t below t_to, over the models m_from..m_to (eq. belief-update)."""
    n_states = b.shape[1]
    lo, hi = _U(m_from), _U(m_to)
    random = probabilities.shape[0] > 0
    for t in range(t_to):
        p_t = p[t if p.shape[0] > 1 else 0]
        b_t, b_next = b[t], b[t + 1]
        if not random:
            _move(actions[t], n_actions, lo, hi, indptr, indices, p_t, b_t, b_next, nothing, flow)
            continue
        for s in range(n_states):
            for m in range(lo, hi):
                b_next[s, m] = 0.0
        for s in range(n_states):
            if _mass(b_t[s], lo, hi) == 0.0:
                continue
            for a in range(n_actions):
                weight = probabilities[t, s, a]
                if weight > 0.0:
                    _push(s, n_actions, weight, a, lo, hi, indptr, indices, p_t, b_t, b_next)


@jit(**FAST)
def _improve(indptr, indices, p, allowed, q, actions, b, g, nothing, flow):  # type: ignore[no-untyped-def]
    """b along the actions, each of which is the best by q and b where it is taken."""
    n_states, n_actions = allowed.shape
    lo, hi = _U(0), _U(b.shape[2])
    for t in range(len(actions)):
        for s in range(n_states):
            if _mass(b[t, s], lo, hi) > 0.0:
                for a in range(n_actions):
                    g[a] = _dot(b[t, s], q[t, s, a], lo, hi) if allowed[s, a] else -np.inf
                actions[t, s] = _chosen(g, 0.0, actions[t, s])
        if t + 1 < len(actions):
            _move(
                actions[t], n_actions, lo, hi, indptr, indices, p[t if p.shape[0] > 1 else 0], b[t],
                b[t + 1], nothing, flow,
            )  # fmt: skip


_NO_B = np.zeros((1, 1, 1))
_NO_ACTIONS = np.empty((0, 1), dtype=np.int32)
_NO_OWN = np.zeros((1, 1, 1), dtype=np.int32)
_NO_TSA = np.empty((0, 1, 1))
_NO_Q = np.empty((0, 1, 1, 1))


Precision = Literal["double", "mixed"]


class NumbaKernel(CpuBounds, CpuEpisodes):
    """Numba on the CPU.

    Parameters
    ----------
    threads
        Defaults to the cores this process may use.
    precision
        ``"mixed"``: :meth:`climb`, which is most of CADP, stores p in 32 bits (half the
        reading) and sums in 64; :class:`mmdp.CADP` then checks and values its policy in 64
        bits. All other passes are in 64 bits always, and so is a model with probabilities
        below 1e-38.
    """

    name = "numba"

    def __init__(self, threads: int | None = None, precision: Precision = "double") -> None:
        if precision not in ("double", "mixed"):
            raise InputError(f"no precision is called {precision!r}; choose double or mixed")
        self.threads = default_threads() if threads is None else threads
        self.precision = precision
        self._halved: tuple[Any, npt.NDArray[np.float32] | None] | None = None

    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: npt.NDArray[np.generic] | None = None,
        keep_actions: bool = False,
        keep_values: bool = False,
        keep_gradient: bool = False,
        keep_q: bool = False,
    ) -> Backward:
        x = problem
        S, A, M = x.n_states, x.n_actions, x.n_models
        kept = keep_values or keep_gradient or keep_q
        plain = weights is not None and weights.shape == (1, 1, 1) and policy is None and not kept
        if choice == "weighted" and plain and _pays_to_eliminate(x):
            from mmdp.kernels.cpu.induction import induct

            found, first = induct(x, horizon, self._team(len(x.indices)))
            return Backward(first, found, None, None, None)
        random = policy is not None and policy.ndim == 3
        mode = {"weighted": WEIGHTED, "own": OWN}.get(choice, PROBABILITIES if random else ACTIONS)
        v = aligned(horizon + 1 if keep_values else 2, S, M)
        v[horizon % len(v)] = x.terminal
        actions = _NO_ACTIONS
        if choice == "weighted" or mode == ACTIONS:
            actions = np.empty((horizon, S), dtype=np.int32)
            if policy is not None:
                actions[:] = policy
        own = np.empty((horizon, S, M), np.int32) if mode == OWN and keep_actions else _NO_OWN
        gradient = np.empty((horizon, S, A)) if keep_gradient else _NO_TSA
        q_out = aligned(horizon, S, A, M) if keep_q else _NO_Q
        b = _NO_B if weights is None else np.ascontiguousarray(weights)
        probabilities = np.ascontiguousarray(policy, np.float64) if random else _NO_TSA

        rows_read = 1 if mode == ACTIONS and not (keep_gradient or keep_q) else A
        work = len(x.indices) * M * rows_read // A
        team = self._team(work)
        one = M == 1 and rows_read == A
        q = np.empty((S, A, 1)) if one else None

        def run(marks: Any, rank: int, edges: Any, m: tuple[int, int]) -> None:
            _backward(
                marks, rank, edges, horizon, m[0], m[1], mode, x.indptr, x.indices, x.p, x.r,
                x.allowed, x.dense, x.discount, v, b, weights is not None, actions,
                policy is not None, probabilities, own, mode == OWN and keep_actions, gradient,
                q_out, aligned(1, A, M) if q is None else q, np.empty(A),
            )  # fmt: skip

        if weights is None and M > 1:  # models do not meet: whole passes over blocks of models
            blocks = _blocks(M, max(len(team), -(-M // MODELS_AT_ONCE)))
            whole, alone = march.edges(S, 1), Team.of(1)
            team.each(
                lambda m: march.walk(alone, 0, lambda marks, rank: run(marks, rank, whole, m)),
                blocks,
            )
        else:
            edges = march.edges(S, march.pieces(len(team)))
            march.walk(team, work, lambda marks, rank: run(marks, rank, edges, (0, M)))
        taken = own if mode == OWN else actions
        return Backward(
            v[0],
            taken if keep_actions or choice == "weighted" else None,
            v if keep_values else None,
            gradient if keep_gradient else None,
            q_out if keep_q else None,
        )

    def forward(self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic]) -> Array:
        x = problem
        random = policy.ndim == 3
        actions = _NO_ACTIONS if random else np.ascontiguousarray(policy, np.int32)
        probabilities = np.ascontiguousarray(policy, np.float64) if random else _NO_TSA
        b = aligned(horizon, x.n_states, x.n_models)
        b[0] = x.initial[:, None] * x.weights
        rows = x.n_actions if random else 1
        nothing = np.zeros(x.n_models)
        team = self._team(len(x.indices) * x.n_models * rows // x.n_actions)
        blocks = _blocks(x.n_models, max(len(team), -(-x.n_models // MODELS_AT_ONCE)))
        team.each(
            lambda m: _forward(
                horizon - 1, m[0], m[1], x.indptr, x.indices, x.p, x.n_actions, actions,
                probabilities, b, nothing, Inflow.room(x),
            ),
            blocks,
        )  # fmt: skip
        return b

    def improve(
        self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic], q: Array
    ) -> tuple[IntArray, Array]:
        x = problem
        actions, b = np.array(policy, np.int32), aligned(horizon, x.n_states, x.n_models)
        b[0] = x.initial[:, None] * x.weights
        _improve(
            x.indptr, x.indices, x.p, x.allowed[0], np.ascontiguousarray(q), actions, b,
            np.empty(x.n_actions), np.zeros(x.n_models), Inflow.room(x),
        )  # fmt: skip
        return actions, b

    def climb(self, problem: Problem, horizon: int, start: IntArray | None) -> Climb:
        """CADP's two-way sweeps from one start (None: WSU's policy)."""
        from mmdp.kernels.cpu.climb import Climb

        team = self._team(len(problem.indices) * problem.n_models)
        p = self._in_32_bits(problem.p) if self.precision == "mixed" else None
        return Climb(problem, horizon, start, team=team, p=p)

    def _in_32_bits(self, p: Array) -> npt.NDArray[np.float32] | None:
        """p rounded, kept while p lives and no other is asked for; None: p has no such form.

        A probability below the normal range of 32 bits would become zero or lose its digits,
        and a state that it leads to would count as out of reach.
        """
        if self._halved is None or self._halved[0]() is not p:
            tiny = float(np.finfo(np.float32).tiny)
            small = float(np.min(p, where=p > 0, initial=1.0)) < tiny
            half = None
            if not small:
                half = aligned(*p.shape, dtype=np.float32)
                np.copyto(half, p, casting="same_kind")
            self._halved = weakref.ref(p), half
        return self._halved[1]

    def _team(self, work: int) -> Team:
        return Team.of(self.threads if work >= THREADS_PAY_FROM else 1)


def _pays_to_eliminate(problem: Problem) -> bool:
    """Whether one model stays as it is, and its rows cost more than a look at their bounds."""
    x = problem
    steady = x.n_models == 1 and len(x.p) == 1 and len(x.r) == 1
    if not steady or len(x.indices) < LONG * x.n_states * x.n_actions:
        return False
    # sums of rises lose the last digits of small values after large ones
    return float(np.abs(x.terminal).max()) <= MOST_TERMINAL * float(np.abs(x.r).max())


def _blocks(size: int, count: int) -> list[tuple[int, int]]:
    """``count`` nearly equal ranges that cover 0..size (fewer where size is smaller)."""
    count = max(1, min(size, count))
    edges = [size * i // count for i in range(count + 1)]
    return list(pairwise(edges))
