"""The CPU kernel: compiled by numba on first use, SIMD over models, threads over states.

The pass streams p once a time step and is bound by memory bandwidth. A row of the pattern
is finished before the next begins, so q of one state lives in the cache and no q array is
written unless asked for. One thread finishes a state, so results do not depend on the
number of threads. Threads are plain Python threads around code that releases the
interpreter lock: they sleep while they wait, and no global threading layer is touched.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mmdp.kernels.jit import jit
from mmdp.kernels.problem import TIE, Array, Backward, Choice, IntArray, Problem
from mmdp.kernels.threads import Team, default_threads

WEIGHTED, OWN, ACTIONS, PROBABILITIES = range(4)
NARROW = 4  # below this many models, loops run over transitions instead of models
THREADS_PAY_FROM = 1_000_000  # multiply-adds a time step below which one thread is faster
MANY_PIECES_FROM = 4_000_000  # multiply-adds a time step from which small pieces pay
MODELS_AT_ONCE = 1024  # models a block of an independent pass, so that values stay in cache


# Indices are unsigned: numba then drops its test for negative ones, which halves the code.
_U = np.uint64


@jit(fastmath={"contract"})
def _add_four(p, v, k, i0, i1, i2, i3, lo, hi, out):  # type: ignore[no-untyped-def]
    for m in range(lo, hi):
        out[m] += (
            p[k, m] * v[i0, m] + p[k + _U(1), m] * v[i1, m]
            + p[k + _U(2), m] * v[i2, m] + p[k + _U(3), m] * v[i3, m]
        )  # fmt: skip


@jit(fastmath={"contract"})
def _add_eight(p, v, k, indices, lo, hi, out):  # type: ignore[no-untyped-def]
    i0, i1, i2, i3 = (
        _U(indices[k]), _U(indices[k + _U(1)]), _U(indices[k + _U(2)]), _U(indices[k + _U(3)]),
    )  # fmt: skip
    i4, i5, i6, i7 = (
        _U(indices[k + _U(4)]), _U(indices[k + _U(5)]), _U(indices[k + _U(6)]),
        _U(indices[k + _U(7)]),
    )  # fmt: skip
    for m in range(lo, hi):
        out[m] += (
            p[k, m] * v[i0, m] + p[k + _U(1), m] * v[i1, m]
            + p[k + _U(2), m] * v[i2, m] + p[k + _U(3), m] * v[i3, m]
        ) + (
            p[k + _U(4), m] * v[i4, m] + p[k + _U(5), m] * v[i5, m]
            + p[k + _U(6), m] * v[i6, m] + p[k + _U(7), m] * v[i7, m]
        )  # fmt: skip


@jit(fastmath={"contract", "reassoc"})
def _narrow_sum(p, v, indices, start, stop, m):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(start, stop):
        total += p[k, m] * v[_U(indices[k]), m]
    return total


@jit(fastmath={"contract"})
def _q_row(p, v, r, indices, start, stop, gamma, lo, hi, out):  # type: ignore[no-untyped-def]
    """out[m] = r[m] + gamma * sum_k p[k, m] v[indices[k], m] for the models lo..hi."""
    if p.shape[1] < NARROW:
        for m in range(lo, hi):
            out[m] = r[m] + gamma * _narrow_sum(p, v, indices, start, stop, m)
        return
    for m in range(lo, hi):
        out[m] = 0.0
    k = start
    while k + _U(8) <= stop:
        _add_eight(p, v, k, indices, lo, hi, out)
        k += _U(8)
    while k + _U(4) <= stop:
        _add_four(
            p, v, k, _U(indices[k]), _U(indices[k + _U(1)]), _U(indices[k + _U(2)]),
            _U(indices[k + _U(3)]), lo, hi, out,
        )  # fmt: skip
        k += _U(4)
    while k < stop:
        i = _U(indices[k])
        for m in range(lo, hi):
            out[m] += p[k, m] * v[i, m]
        k += _U(1)
    for m in range(lo, hi):
        out[m] = r[m] + gamma * out[m]


@jit(fastmath={"contract", "reassoc"})
def _dot(x, y, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m] * y[m]
    return total


@jit(fastmath={"reassoc"})
def _mass(x, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m]
    return total


@jit()
def _chosen(g, incumbent):  # type: ignore[no-untyped-def]
    """The maximiser of g (-inf: not allowed): ties to the incumbent, else the lowest action."""
    best = -np.inf
    size = 0.0
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


@jit()
def _take_own(q, v, own, a, lo, hi, keep):  # type: ignore[no-untyped-def]
    """Each model takes action a where it is better than what it has."""
    if keep:
        for m in range(lo, hi):
            if q[m] > v[m]:
                own[m] = a
    for m in range(lo, hi):
        v[m] = max(v[m], q[m])


@jit(fastmath={"contract"})
def _backward(  # type: ignore[no-untyped-def]
    t_from, t_to, s_from, s_to, m_from, m_to, mode, indptr, indices, p, r, allowed, gamma, v,
    b, weighed, actions, has_incumbent, probabilities, own, keep_own, gradient, q_out, q, g,
):  # fmt: skip
    """Steps t_from-1 down to t_to over the states s_from..s_to and models m_from..m_to.

    gradient, q_out and probabilities have length 0 where absent; p, r, b have length 1 where
    they do not vary. v holds T + 1 steps, or 2 used in turn. q (A, M), g (A,) are scratch.
    """
    n_actions = allowed.shape[1]
    lo, hi = _U(m_from), _U(m_to)
    keep_all = gradient.shape[0] > 0 or q_out.shape[0] > 0
    for t in range(t_from - 1, t_to - 1, -1):
        v_next = v[(t + 1) % v.shape[0]]
        v_t = v[t % v.shape[0]]
        p_t = p[t if p.shape[0] > 1 else 0]
        r_t = r[t if r.shape[0] > 1 else 0]
        b_t = b[t if b.shape[0] > 1 else 0]
        for s in range(s_from, s_to):
            b_s = b_t[s if b.shape[1] > 1 else 0]
            incumbent = -1
            if mode == ACTIONS or has_incumbent:
                incumbent = actions[t, s]
            # the incumbent stays where it is given, or where nobody is (no choice can matter)
            stays = mode == ACTIONS or (
                mode == WEIGHTED and incumbent >= 0 and _mass(b_s, lo, hi) == 0.0
            )
            for a in range(n_actions):
                g[a] = -np.inf
                if not allowed[s, a] or (stays and a != incumbent and not keep_all):
                    continue
                row = s * n_actions + a
                _q_row(
                    p_t, v_next, r_t[s, a], indices, _U(indptr[row]), _U(indptr[row + 1]), gamma,
                    lo, hi, q[a],
                )  # fmt: skip
                if weighed:
                    g[a] = _dot(b_s, q[a], lo, hi)
            if gradient.shape[0] > 0:
                for a in range(n_actions):
                    gradient[t, s, a] = g[a]
            if q_out.shape[0] > 0:
                for a in range(n_actions):
                    for m in range(lo, hi):
                        q_out[t, s, a, m] = q[a, m] if allowed[s, a] else -np.inf
            v_s = v_t[s]
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
                    chosen = _chosen(g, incumbent)
                    actions[t, s] = chosen
                for m in range(lo, hi):
                    v_s[m] = q[chosen, m]


@jit(fastmath={"contract"})
def _push(s, n_actions, weight, a, lo, hi, indptr, indices, p_t, b_t, b_next):  # type: ignore[no-untyped-def]
    """Add what flows out of state s by action a, taken with this weight, to b at t + 1."""
    row = s * n_actions + a
    for k in range(_U(indptr[row]), _U(indptr[row + 1])):
        i = _U(indices[k])
        for m in range(lo, hi):
            b_next[i, m] += p_t[k, m] * (weight * b_t[s, m])


@jit()
def _forward(  # type: ignore[no-untyped-def]
    t_to, m_from, m_to, indptr, indices, p, n_actions, actions, probabilities, b
):
    """b[t + 1] from b[t] for t below t_to, over the models m_from..m_to (eq. belief-update)."""
    n_states = b.shape[1]
    lo, hi = _U(m_from), _U(m_to)
    random = probabilities.shape[0] > 0
    for t in range(t_to):
        p_t = p[t if p.shape[0] > 1 else 0]
        b_t, b_next = b[t], b[t + 1]
        for s in range(n_states):
            for m in range(lo, hi):
                b_next[s, m] = 0.0
        for s in range(n_states):
            if _mass(b_t[s], lo, hi) == 0.0:
                continue
            if not random:
                _push(s, n_actions, 1.0, actions[t, s], lo, hi, indptr, indices, p_t, b_t, b_next)
                continue
            for a in range(n_actions):
                weight = probabilities[t, s, a]
                if weight > 0.0:
                    _push(s, n_actions, weight, a, lo, hi, indptr, indices, p_t, b_t, b_next)


@jit()
def _choose_states(t, s_from, s_to, allowed, q_t, b_t, actions, g):  # type: ignore[no-untyped-def]
    """Actions at time t that maximise G = sum_m b q over the states s_from..s_to."""
    zero, width = _U(0), _U(b_t.shape[1])
    for s in range(s_from, s_to):
        if _mass(b_t[s], zero, width) == 0.0:
            continue
        for a in range(allowed.shape[1]):
            g[a] = _dot(b_t[s], q_t[s, a], zero, width) if allowed[s, a] else -np.inf
        actions[t, s] = _chosen(g, actions[t, s])


_NO_B = np.zeros((1, 1, 1))
_NO_ACTIONS = np.empty((0, 1), dtype=np.int32)
_NO_OWN = np.zeros((1, 1, 1), dtype=np.int32)
_NO_TSA = np.empty((0, 1, 1))
_NO_Q = np.empty((0, 1, 1, 1))


class NumbaKernel:
    """Numba on the CPU; ``threads`` defaults to the cores this process may use."""

    name = "numba"

    def __init__(self, threads: int | None = None) -> None:
        self.threads = default_threads() if threads is None else threads

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
        random = policy is not None and policy.ndim == 3
        mode = {"weighted": WEIGHTED, "own": OWN}.get(choice, PROBABILITIES if random else ACTIONS)
        v = np.empty((horizon + 1 if keep_values else 2, S, M))
        v[horizon % len(v)] = x.terminal
        actions = _NO_ACTIONS
        if choice == "weighted" or mode == ACTIONS:
            actions = np.empty((horizon, S), dtype=np.int32)
            if policy is not None:
                actions[:] = policy
        own = np.empty((horizon, S, M), np.int32) if mode == OWN and keep_actions else _NO_OWN
        gradient = np.empty((horizon, S, A)) if keep_gradient else _NO_TSA
        q_out = np.empty((horizon, S, A, M)) if keep_q else _NO_Q
        b = _NO_B if weights is None else np.ascontiguousarray(weights)
        probabilities = np.ascontiguousarray(policy, np.float64) if random else _NO_TSA

        def run(t_from: int, t_to: int, s: tuple[int, int], m: tuple[int, int]) -> None:
            _backward(
                t_from, t_to, s[0], s[1], m[0], m[1], mode, x.indptr, x.indices, x.p, x.r,
                x.allowed, x.discount, v, b, weights is not None, actions, policy is not None,
                probabilities, own, mode == OWN and keep_actions, gradient, q_out,
                np.empty((A, M)), np.empty(A),
            )  # fmt: skip

        rows_read = 1 if mode == ACTIONS and not (keep_gradient or keep_q) else A
        work = len(x.indices) * M * rows_read // A
        team = self._team(work)
        if weights is None:  # models do not meet: whole passes over blocks of models
            blocks = _blocks(M, max(len(team), -(-M // MODELS_AT_ONCE)))
            team.each(lambda m: run(horizon, 0, (0, S), m), blocks)
        elif len(team) == 1:
            run(horizon, 0, (0, S), (0, M))
        else:
            # many pieces guard against a busy neighbour, few against the cost of handing over
            pieces = len(team) * (4 if work >= MANY_PIECES_FROM else 1)
            states = _blocks(S, pieces)
            for t in range(horizon, 0, -1):
                team.each(lambda s, t=t: run(t, t - 1, s, (0, M)), states)  # type: ignore[misc]
        found = own if mode == OWN else actions
        return Backward(
            v[0],
            found if keep_actions or choice == "weighted" else None,
            v if keep_values else None,
            gradient if keep_gradient else None,
            q_out if keep_q else None,
        )

    def forward(self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic]) -> Array:
        x = problem
        random = policy.ndim == 3
        actions = _NO_ACTIONS if random else np.ascontiguousarray(policy, np.int32)
        probabilities = np.ascontiguousarray(policy, np.float64) if random else _NO_TSA
        b = np.empty((horizon, x.n_states, x.n_models))
        b[0] = x.initial[:, None] * x.weights
        rows = x.n_actions if random else 1
        team = self._team(len(x.indices) * x.n_models * rows // x.n_actions)
        blocks = _blocks(x.n_models, max(len(team), -(-x.n_models // MODELS_AT_ONCE)))
        team.each(
            lambda m: _forward(
                horizon - 1, m[0], m[1], x.indptr, x.indices, x.p, x.n_actions, actions,
                probabilities, b,
            ),
            blocks,
        )  # fmt: skip
        return b

    def improve(
        self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic], q: Array
    ) -> tuple[IntArray, Array]:
        x = problem
        S, A, M = x.n_states, x.n_actions, x.n_models
        actions = np.array(policy, dtype=np.int32)
        b = np.empty((horizon, S, M))
        b[0] = x.initial[:, None] * x.weights
        team = self._team(len(x.indices) * M // A + S * A * M)
        states, models = _blocks(S, len(team)), _blocks(M, len(team))
        for t in range(horizon):
            p_t = x.p[t : t + 1] if len(x.p) > 1 else x.p
            team.each(
                lambda s, t=t: _choose_states(  # type: ignore[misc]
                    t, s[0], s[1], x.allowed, q[t], b[t], actions, np.empty(A)
                ),
                states,
            )
            if t + 1 < horizon:
                team.each(
                    lambda m, t=t, p_t=p_t: _forward(  # type: ignore[misc]
                        1, m[0], m[1], x.indptr, x.indices, p_t, A, actions[t : t + 1], _NO_TSA,
                        b[t : t + 2],
                    ),
                    models,
                )  # fmt: skip
        return actions, b

    def _team(self, work: int) -> Team:
        return Team.of(self.threads if work >= THREADS_PAY_FROM else 1)


def _blocks(size: int, count: int) -> list[tuple[int, int]]:
    """``count`` nearly equal ranges that cover 0..size (fewer where size is smaller)."""
    count = max(1, min(size, count))
    edges = [size * i // count for i in range(count + 1)]
    return list(pairwise(edges))
