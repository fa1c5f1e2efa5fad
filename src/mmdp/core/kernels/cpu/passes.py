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

from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.rows import sum_row_entries
from mmdp.core.kernels.cpu.scheduler import finish_piece, take_piece
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import TIE_RTOL, Problem, as_readonly, empty_aligned
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.shapes import AnyArray, Array, IndexArray, IntArray, Mask

# Indices are unsigned: numba then drops its test for negative ones, which halves the code.
_U = np.uint64

WEIGHTED, PER_MODEL, ACTIONS, PROBABILITIES = range(4)  # how a backward pass decides in each state


class KernelArrays(NamedTuple):
    """The arrays of a problem as the compiled code takes them.

    At time t, row s * A + a has entries i = indptr[row]..indptr[row + 1], plus t * time_stride,
    which lead to indices[i] with probability entry_weights[i] p[p_start[row] + i - indptr[row]].
    In tables p_start is indptr. Rows with the same distribution of events have the same p_start.
    The reward is r, one row for all if entries have rewards entry_rewards[i].
    """

    indptr: IndexArray  # (S * A + 1,)
    indices: IntArray  # (entries,)
    p: Array  # (T or 1, any, M)
    r: Array  # (T or 1, S or 1, A or 1, M)
    allowed: Mask
    gamma: float
    p_start: IndexArray  # (T or 1, S * A), or one for all rows
    entry_weights: Array | None = None  # (entries,); None: 1
    time_stride: int = 0  # 0 if entries do not vary with time
    entry_rewards: Array | None = None  # (entries,); None: 0

    @classmethod
    def from_problem(cls, problem: Problem) -> KernelArrays:
        """Convert a problem with tables or shared events to arrays."""
        x, e = problem, problem.storage
        if not isinstance(e, ExogenousEvents):
            return cls.from_tables(x)
        if x.n_models == 1 and e.n_times == 1:  # a tenth of the entries, often
            return cls.from_tables(x._replace(storage=e.merged_rows))
        return cls.from_tables(x) if e.is_faster_as_table else cls._from_events(x, e)

    @classmethod
    def from_tables(cls, problem: Problem) -> KernelArrays:
        """Convert the tables of any storage, for work that goes entry by entry."""
        x = problem
        return cls(
            as_readonly(x.indptr),
            as_readonly(x.indices),
            as_readonly(x.p),
            as_readonly(np.asarray(x.r)),
            as_readonly(x.allowed),
            x.discount,
            as_readonly(x.indptr[None]),
        )

    @classmethod
    def _from_events(cls, x: Problem, e: ExogenousEvents) -> KernelArrays:
        """Convert a problem with shared events to arrays."""
        row_length, n_rows = e.max_row_length, x.n_states * x.n_actions
        ids = (
            np.zeros((1, 1), np.int64)
            if e.distribution_id is None
            else e.distribution_id.reshape(-1, n_rows)
        )
        probs = np.repeat(e.probs, e.next_states.shape[4], axis=2)  # once for each corner
        r, rewards = x.r, None
        if isinstance(r, EventRewards):
            rewards, r = r.reward[..., None], np.zeros((1, 1, 1, r.shape[3]))
        n_times = max(len(y) for y in (e.next_states, e.corner_weights, rewards) if y is not None)

        def flatten(array: AnyArray | None) -> Any:
            shape = (n_times, *e.next_states.shape[1:])
            return None if array is None else as_readonly(np.broadcast_to(array, shape)).reshape(-1)

        return cls(
            as_readonly(np.arange(n_rows + 1) * row_length),
            flatten(e.next_states),
            as_readonly(probs.reshape(len(probs), -1, probs.shape[3])),
            as_readonly(r),
            as_readonly(x.allowed),
            x.discount,
            as_readonly(ids * np.int64(row_length)),
            flatten(e.corner_weights),
            n_rows * row_length if n_times > 1 else 0,
            flatten(rewards),
        )

    def with_problem(self, problem: Problem) -> KernelArrays:
        """Return the same transitions, and rewards by event, with the other arrays of a problem."""
        x = self._replace(allowed=as_readonly(problem.allowed), gamma=problem.discount)
        if isinstance(problem.r, EventRewards):
            return x
        return x._replace(r=as_readonly(problem.r), entry_rewards=None)

    def from_time(self, t: int) -> KernelArrays:
        """Return the arrays from time t on."""
        names = ("p", "p_start", "r", "allowed")
        slices = {name: x[t:] for name in names if len(x := getattr(self, name)) > 1}
        for name in ("indices", "entry_weights", "entry_rewards") if self.time_stride else ():
            x = getattr(self, name)
            slices[name] = None if x is None else x[t * self.time_stride :]
        return self._replace(**slices)


class PassOptions(NamedTuple):
    """The options of a backward pass."""

    mode: int
    last_time: int  # the step it begins with
    has_weights: bool = False  # b is given
    has_incumbent: bool = False  # actions are given: they keep ties, and states without weight
    keep_q: bool = False
    keep_gradient: bool = False
    keep_model_actions: bool = False


class PassBuffers(NamedTuple):
    """The arrays that a pass reads and writes; unused ones have length 0, or 1 along time."""

    actions: IntArray  # (T, S)
    probabilities: Array  # (T, S, A)
    b: Array  # (T or 1, S or 1, M)
    v: Array  # (T + 1, S, M), or 2 steps used in turn
    q: Array  # (T, S, A, M)
    gradient: Array  # (T, S, A)
    model_actions: IntArray  # (T, S, M)

    @classmethod
    def create(
        cls, problem: Problem, horizon: int, **arrays: npt.NDArray[np.generic]
    ) -> PassBuffers:
        """Make buffers from these arrays; all others are empty."""
        empty = {
            "actions": np.empty((0, 1), np.int32),
            "probabilities": np.empty((0, 1, 1)),
            "b": np.zeros((1, 1, 1)),
            "q": np.empty((0, 1, 1, 1)),
            "gradient": np.empty((0, 1, 1)),
            "model_actions": np.empty((0, 1, 1), np.int32),
        }
        buffers = cls(**{**empty, **arrays})  # type: ignore[arg-type]
        buffers.v[horizon % len(buffers.v)] = problem.terminal
        return buffers


class PassScratch(NamedTuple):
    """The arrays that one thread writes."""

    q: Array  # (A, M)
    G: Array  # (A,)

    @classmethod
    def from_problem(cls, problem: Problem) -> PassScratch:
        """Allocate the arrays of one thread."""
        A = problem.n_actions
        return cls(empty_aligned(A, problem.r.shape[3]), np.empty(A))


@jit(**BASE_OPTIONS, helper=True, inline="always")
def at(array, t):  # type: ignore[no-untyped-def]
    """Return the slice at time t of an array whose time axis may have length 1."""
    return array[t * (len(array) > 1)]


@jit(**BASE_OPTIONS, helper=True, inline="always")
def find_row_entries(x, t, row):  # type: ignore[no-untyped-def]
    """Return the first row of p of a row s * A + a at time t, and its first and last entry."""
    p_start, offset = at(x.p_start, t), t * x.time_stride
    first_row = p_start[row if len(p_start) > 1 else 0]
    return first_row, x.indptr[row] + offset, x.indptr[row + 1] + offset


@jit(**REASSOC_OPTIONS, helper=True)
def dot(x, y, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m] * y[m]
    return total


@jit(**REASSOC_OPTIONS, helper=True)
def sum_range(x, lo, hi):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(lo, hi):
        total += x[m]
    return total


@jit(**BASE_OPTIONS, helper=True)
def choose_action(G, incumbent):  # type: ignore[no-untyped-def]
    """Return the maximizer of G (-inf: not allowed); ties go to the incumbent, else the lowest."""
    best, scale = -np.inf, 0.0
    for a in range(len(G)):
        best = max(best, G[a])
        if G[a] > -np.inf:
            scale = max(scale, abs(G[a]))
    threshold, best_action = best - TIE_RTOL * scale, 0
    for a in range(len(G) - 1, -1, -1):
        if G[a] >= threshold:
            best_action = a
    if incumbent >= 0 and G[incumbent] >= threshold:
        best_action = incumbent
    return best_action


@jit(**BASE_OPTIONS, helper=True)
def get_entry_weight(entry_weights, k):  # type: ignore[no-untyped-def]
    if entry_weights is None:
        return 1.0
    return entry_weights[k]


@jit(**BASE_OPTIONS, helper=True)
def _get_action_prob(buf, t, s, a):  # type: ignore[no-untyped-def]
    if len(buf.probabilities) > 0:
        return buf.probabilities[t, s, a]
    return 1.0 if buf.actions[t, s] == a else 0.0


@jit(**BASE_OPTIONS)
def backward(counters, rank, edges, options, x, buf, scratch):  # type: ignore[no-untyped-def]
    """Run a backward pass from options.last_time to 0; threads share the states of each step."""
    n_actions, n_models = x.allowed.shape[2], np.int64(x.p.shape[2])
    lo, hi = _U(0), _U(n_models)
    while True:
        step, piece = take_piece(counters, rank, len(edges) - 1, options.last_time + 1)
        if step > options.last_time:
            return
        t = options.last_time - step
        p, r = at(x.p, t), at(x.r, t)
        allowed, b = at(x.allowed, t), at(buf.b, t)
        v_next, v = buf.v[(t + 1) % len(buf.v)], buf.v[t % len(buf.v)]
        for s in range(edges[piece], edges[piece + 1]):
            q = buf.q[t, s] if options.keep_q else scratch.q
            b_s = b[s if len(b) > 1 else 0]
            old_action = np.int64(buf.actions[t, s]) if options.has_incumbent else np.int64(-1)
            is_unreached = options.has_weights and sum_range(b_s, lo, hi) == 0.0
            keeps_action = options.mode == ACTIONS or (options.has_incumbent and is_unreached)
            one_row = (  # the gradient of a state without weight is 0
                keeps_action and not options.keep_q and (is_unreached or not options.keep_gradient)
            )
            for a in range(n_actions):
                row = s * n_actions + a
                if not allowed[s, a] or (one_row and a != old_action):
                    continue
                first_row, start, stop = find_row_entries(x, t, row)
                sum_row_entries(
                    p,
                    v_next,
                    x.indices,
                    x.entry_weights,
                    x.entry_rewards,
                    first_row,
                    start,
                    stop,
                    n_models,
                    r[min(s, len(r) - 1), min(a, r.shape[1] - 1)],
                    x.gamma,
                    q[a],
                )
            if options.has_weights:
                for a in range(n_actions):
                    scratch.G[a] = -np.inf
                    if allowed[s, a]:
                        is_computed = not one_row or a == old_action
                        scratch.G[a] = dot(b_s, q[a], lo, hi) if is_computed else 0.0
                    if options.keep_gradient:
                        buf.gradient[t, s, a] = scratch.G[a]
            if options.mode == WEIGHTED or options.mode == ACTIONS:
                action = old_action if keeps_action else choose_action(scratch.G, old_action)
                buf.actions[t, s] = action
                for m in range(lo, hi):
                    v[s, m] = q[action, m]
            else:
                _combine_actions(t, s, lo, hi, options, allowed, q, buf, v[s])
            if options.keep_q:
                for a in range(n_actions):
                    if not allowed[s, a]:
                        for m in range(lo, hi):
                            q[a, m] = -np.inf
        finish_piece(counters)


@jit(**BASE_OPTIONS, helper=True)
def _combine_actions(t, s, lo, hi, options, allowed, q, buf, v):  # type: ignore[no-untyped-def]
    """Compute v of a state from q (A, M): the maximum, or the mean by probabilities."""
    for m in range(lo, hi):
        v[m] = -np.inf if options.mode == PER_MODEL else 0.0
    for a in range(len(q)):
        if not allowed[s, a]:
            continue
        if options.mode == PROBABILITIES:
            prob = buf.probabilities[t, s, a]
            for m in range(lo, hi):
                v[m] += prob * q[a, m]
            continue
        if options.keep_model_actions:
            for m in range(lo, hi):
                buf.model_actions[t, s, m] = a if q[a, m] > v[m] else buf.model_actions[t, s, m]
        for m in range(lo, hi):
            v[m] = max(v[m], q[a, m])


@jit(**REASSOC_OPTIONS, helper=True)
def push_row(p, columns, entry_weights, first_row, start, stop, prob, b, lo, hi, b_next):  # type: ignore[no-untyped-def]
    """Add prob b p of the entries of a row to b_next, for the models lo..hi."""
    for k in range(start, stop):
        weight, p_k = prob * get_entry_weight(entry_weights, k), p[_U(first_row + k - start)]
        out = b_next[_U(columns[k])]
        for m in range(lo, hi):
            out[m] += weight * p_k[m] * b[m]


@jit(**BASE_OPTIONS)
def forward(counters, rank, edges, model_edges, start_time, improve, x, buf, G):  # type: ignore[no-untyped-def]
    """Compute b under a policy, from b at ``start_time`` on (-1: from the first time).

    The policy is probabilities if these have a length, else actions.

    If ``improve``, the actions after ``start_time`` are improved on the way by the kept q:
    in turn, the states of a step choose and the models move on.
    """
    n_actions, first_time = x.allowed.shape[2], max(start_time, 0)
    horizon = len(buf.probabilities) if len(buf.probabilities) > 0 else len(buf.actions)
    zero, n_models = _U(0), _U(x.p.shape[2])
    n_steps = 2 * (horizon - first_time)
    while True:
        step, piece = take_piece(counters, rank, len(edges) - 1, n_steps)
        if step >= n_steps:
            return
        t = first_time + step // 2
        b = buf.b[t]
        if step % 2 == 1 and t + 1 < horizon:
            lo, hi = _U(model_edges[piece]), _U(model_edges[piece + 1])
            p, b_next = at(x.p, t), buf.b[t + 1]
            for s in range(_U(len(b))):
                for m in range(lo, hi):
                    b_next[s, m] = 0.0
            for s in range(len(b)):
                if sum_range(b[s], lo, hi) == 0.0:
                    continue
                for a in range(n_actions):
                    prob, row = _get_action_prob(buf, t, s, a), s * n_actions + a
                    if prob > 0.0:
                        first_row, start, stop = find_row_entries(x, t, row)
                        push_row(
                            p,
                            x.indices,
                            x.entry_weights,
                            first_row,
                            start,
                            stop,
                            prob,
                            b[s],
                            lo,
                            hi,
                            b_next,
                        )
        elif step % 2 == 0 and improve and t > start_time:
            allowed = at(x.allowed, t)
            for s in range(edges[piece], edges[piece + 1]):
                if sum_range(b[s], zero, n_models) > 0.0:
                    for a in range(n_actions):
                        G[a] = -np.inf
                        if allowed[s, a]:
                            G[a] = dot(b[s], buf.q[t, s, a], zero, n_models)
                    buf.actions[t, s] = choose_action(G, np.int64(buf.actions[t, s]))
        finish_piece(counters)


@jit(**BASE_OPTIONS)
def compute_q(lo, hi, t, x, v, r, entry_rewards, gamma, q):  # type: ignore[no-untyped-def]
    """Compute q (S, A, M) = r + P (entry_rewards + gamma v) at time t for the states lo..hi."""
    n_actions, n_models = q.shape[1], np.int64(q.shape[2])
    p = at(x.p, t)
    for s in range(lo, hi):
        for a in range(n_actions):
            first_row, start, stop = find_row_entries(x, t, s * n_actions + a)
            sum_row_entries(
                p,
                v,
                x.indices,
                x.entry_weights,
                entry_rewards,
                first_row,
                start,
                stop,
                n_models,
                r[min(s, len(r) - 1), min(a, r.shape[1] - 1)],
                gamma,
                q[s, a],
            )
