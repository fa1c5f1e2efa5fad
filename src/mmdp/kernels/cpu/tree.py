"""Compiled tree search (POMCP): the specification is in :mod:`mmdp.kernels.numpy.episodes`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu.jit import FAST, jit
from mmdp.kernels.cpu.passes import Ground, share_of
from mmdp.kernels.cpu.steps import ranges
from mmdp.kernels.cpu.threads import Team
from mmdp.kernels.events import Events
from mmdp.kernels.moves import cumulative
from mmdp.kernels.numpy.episodes import Ints, Keys
from mmdp.kernels.planner import PlannerTables
from mmdp.kernels.problem import TIE, Array, IntArray, frozen

# Indices are unsigned: numba then drops its test for negative ones.
_U = np.uint64


@jit(**FAST, helper=True)
def _mix(x):  # type: ignore[no-untyped-def]
    """splitmix64: a 64-bit hash with good diffusion."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@jit(**FAST, helper=True)
def hashed(key, counter):  # type: ignore[no-untyped-def]
    """Uniform in [0, 1) for this key and counter."""
    x = _mix(key + (counter + _U(1)) * _U(0x9E3779B97F4A7C15))
    return float(np.int64(x >> _U(11))) * (1.0 / 9007199254740992.0)


@jit(**FAST, helper=True)
def search(cumulative, start, stop, u):  # type: ignore[no-untyped-def]
    """First k in start..stop whose cumulative probability exceeds u times the total.

    Bisection without branches, because the processor cannot predict where a draw falls; nor can
    it predict the length of short rows, so the last two steps are always made.
    """
    target = u * cumulative[stop - _U(1)]
    count = stop - start
    while count > _U(4):
        half = count >> _U(1)
        start = start + half if cumulative[start + half - _U(1)] <= target else start
        count -= half
    half = count >> _U(1)
    start = start + half if cumulative[start + half - _U(half > _U(0))] <= target else start
    half = (count - half) >> _U(1)
    return start + half if cumulative[start + half - _U(half > _U(0))] <= target else start


class _Plan(NamedTuple):
    """What the search is given (see PlannerTables)."""

    x: Ground
    cdf: Array  # (T or 1, M, nnz) cumulative probabilities of tables; of length 0 for events
    allowed: npt.NDArray[np.bool_]
    choices: Array  # (T or 1, S) how many actions are allowed
    terminal: Array
    values: Array
    actions: IntArray
    exploration: Array
    gamma: float
    by_rollout: bool


class _Lanes(NamedTuple):
    """(n,) decisions that are made at one time, one after the other."""

    states: Ints
    beliefs: Array  # (n, M)
    keys: Keys
    counters: Keys
    actions: Ints


class _Room(NamedTuple):
    """The tree of one decision: a hash table of children, the nodes and the way down."""

    beliefs: Array  # (M,) cumulative
    keys: Keys
    nodes: Keys  # 0 marks an empty slot: node 0 is the root
    visits: Array
    tried: Array
    sums: Array
    path: Keys  # (T + 1, 3): node, action, state

    @classmethod
    def of(cls, tables: PlannerTables, horizon: int) -> _Room:
        size, n_actions = tables.queries + 2, tables.problem.n_actions
        slots = 1 << int(np.ceil(np.log2(max(4, 2 * size))))
        return cls(
            np.empty(tables.problem.n_models), np.empty(slots, np.uint64),
            np.empty(slots, np.uint64), np.empty(size), np.empty((size, n_actions)),
            np.empty((size, n_actions)), np.empty((horizon + 1, 3), np.uint64),
        )  # fmt: skip


@jit(**FAST, helper=True)
def _step(x, cdf, t, m, row, u):  # type: ignore[no-untyped-def]
    """The next state that u draws from a row in model m."""
    if len(cdf) == 0:
        return by_event(x, t, m, row, u)
    start, stop = _U(x.indptr[row]), _U(x.indptr[row + _U(1)])
    return _U(x.indices[search(cdf[t if len(cdf) > 1 else _U(0), m], start, stop, u)])


@jit(**FAST, helper=True)
def _entries(x, t, row):  # type: ignore[no-untyped-def]
    """The entries of a row at time t, and how far from them their probabilities are in p."""
    moved, time = np.int64(t) * x.stride, t if len(x.first) > 1 else _U(0)
    start, stop = x.indptr[row] + moved, x.indptr[row + _U(1)] + moved
    return start, stop, x.first[time, row if x.first.shape[1] > 1 else _U(0)] - start


@jit(**FAST, helper=True)
def by_event(x, t, m, row, u):  # type: ignore[no-untyped-def]
    """The same by shared events: next states in order, until the sum of chances exceeds u."""
    start, stop, shift = _entries(x, t, row)
    p = x.p[t if len(x.p) > 1 else _U(0)]
    total, last = 0.0, np.int64(-1)
    while True:
        here, mass = np.int64(2**62), 0.0
        for k in range(start, stop):
            after = np.int64(x.indices[k])
            chance = share_of(x.shares, k) * p[k + shift, m]
            if last < after and after <= here and chance > 0.0:
                mass = chance if after < here else mass + chance
                here = after
        if mass == 0.0:  # by rounding, chances sum to less than u
            return _U(last)
        total += mass
        last = here
        if total > u:
            return _U(last)


@jit(**FAST, helper=True)
def _paid(paid, x, t, m, row):  # type: ignore[no-untyped-def]
    """What the events of a row pay in model m."""
    total = 0.0
    if paid is not None:
        start, stop, shift = _entries(x, t, row)
        p = x.p[t if len(x.p) > 1 else _U(0)]
        for k in range(start, stop):
            total += share_of(x.shares, k) * p[k + shift, m] * paid[k]
    return total


@jit(**FAST, helper=True)
def reward_of(x, t, m, s, a):  # type: ignore[no-untyped-def]
    """r of (s, a) in model m."""
    r = x.r[t if len(x.r) > 1 else _U(0)]
    fixed = r[s if len(r) > 1 else _U(0), a if r.shape[1] > 1 else _U(0), m]
    return fixed + _paid(x.paid, x, t, m, s * _U(x.allowed.shape[2]) + a)


@jit(**FAST, helper=True)
def _rollout(plan, t, s, m, key, counter):  # type: ignore[no-untyped-def]
    """Return from (t, s) in model m, by the given policy or (none given) at random."""
    total, factor, horizon = 0.0, 1.0, _U(len(plan.exploration))
    n_actions = _U(plan.allowed.shape[2])
    while t < horizon:
        if len(plan.actions) > 0:
            a = _U(plan.actions[t, s])
        else:
            count = plan.choices[t if len(plan.choices) > 1 else _U(0), s]
            left = _U(np.int64(hashed(key, counter) * count))
            counter += _U(1)
            a = left
            if count < n_actions:  # the action with ``left`` allowed ones before it
                open_s, a = plan.allowed[t if len(plan.allowed) > 1 else _U(0), s], _U(0)
                while left > _U(0) or not open_s[a]:
                    left -= _U(open_s[a])
                    a += _U(1)
        total += factor * reward_of(plan.x, t, m, s, a)
        factor *= plan.gamma
        s = _step(plan.x, plan.cdf, t, m, s * n_actions + a, hashed(key, counter))
        counter += _U(1)
        t += _U(1)
    return total + factor * plan.terminal[s, m], counter


@jit(**FAST, helper=True)
def _ucb(allowed, visits, tried, sums, exploration):  # type: ignore[no-untyped-def]
    """The allowed action with the highest upper confidence bound; untried ones come first."""
    best, chosen, bonus = -np.inf, _U(0), np.log(visits)
    for a in range(_U(len(allowed))):
        if not allowed[a]:
            continue
        n = tried[a]
        if n == 0.0:
            return _U(a)
        score = sums[a] / n + exploration * np.sqrt(bonus / n)
        if score > best + TIE * (abs(score) + exploration):
            best, chosen = score, _U(a)
    return chosen


@jit(**FAST)
def _decide(first, last, t0, lanes, queries, plan, room):  # type: ignore[no-untyped-def]
    """The decisions first..last."""
    for n in range(_U(first), _U(last)):
        key, counter, mass = lanes.keys[n], lanes.counters[n], 0.0
        for m in range(_U(lanes.beliefs.shape[1])):
            mass += lanes.beliefs[n, m]
            room.beliefs[m] = mass
        a, counter = _grow(t0, _U(lanes.states[n]), key, counter, queries, plan, room)
        lanes.actions[n], lanes.counters[n] = a, counter


@jit(**FAST, helper=True)
def _grow(t0, s0, key, counter, queries, plan, room):  # type: ignore[no-untyped-def]
    """The action with the best mean at (t0, s0), and the counter after the last draw."""
    n_states, n_actions = _U(plan.allowed.shape[1]), _U(plan.allowed.shape[2])
    n_models, horizon = _U(len(room.beliefs)), _U(len(plan.exploration))
    centred, mask = len(plan.values) > 0, _U(len(room.nodes) - 1)
    room.nodes[:] = _U(0)
    room.visits[:] = 0.0
    room.tried[:] = 0.0
    room.sums[:] = 0.0
    count = _U(1)
    for _ in range(queries):
        m = search(room.beliefs, _U(0), n_models, hashed(key, counter))
        counter += _U(1)
        node, s, t, depth = _U(0), s0, t0, _U(0)
        while True:
            open_s = plan.allowed[t if len(plan.allowed) > 1 else _U(0), s]
            a = _ucb(
                open_s, room.visits[node], room.tried[node], room.sums[node], plan.exploration[t]
            )
            room.path[depth, _U(0)] = node
            room.path[depth, _U(1)] = a
            room.path[depth, _U(2)] = s
            s = _step(plan.x, plan.cdf, t, m, s * n_actions + a, hashed(key, counter))
            counter += _U(1)
            t += _U(1)
            depth += _U(1)
            if t == horizon:
                leaf = plan.terminal[s, m]
                break
            wanted = (node * n_actions + a) * n_states + s
            slot = _mix(wanted) & mask
            while room.nodes[slot] != _U(0) and room.keys[slot] != wanted:
                slot = (slot + _U(1)) & mask
            if room.nodes[slot] == _U(0):
                room.keys[slot] = wanted
                room.nodes[slot] = count
                count += _U(1)
                if centred and not plan.by_rollout:
                    leaf = plan.values[t, s, m]
                else:
                    leaf, counter = _rollout(plan, t, s, m, key, counter)
                break
            node = room.nodes[slot]
        while depth > _U(0):
            depth -= _U(1)
            node, a, s = (
                room.path[depth, _U(0)], room.path[depth, _U(1)], room.path[depth, _U(2)]
            )  # fmt: skip
            t = t0 + depth
            leaf = reward_of(plan.x, t, m, s, a) + plan.gamma * leaf
            room.visits[node] += 1.0
            room.tried[node, a] += 1.0
            room.sums[node, a] += leaf - (plan.values[t, s, m] if centred else 0.0)
    best, chosen = -np.inf, _U(0)
    for a in range(n_actions):
        if room.tried[_U(0), a] > 0.0 and room.sums[_U(0), a] / room.tried[_U(0), a] > best:
            best, chosen = room.sums[_U(0), a] / room.tried[_U(0), a], _U(a)
    return chosen, counter


class CpuTree:
    """The search on the CPU, for several episodes side by side."""

    def __init__(self, planner: PlannerTables, horizon: int, threads: int) -> None:
        self.planner, self.horizon, self.threads = planner, horizon, threads
        x = planner.problem
        by_event = isinstance(x.storage, Events)
        cdf = np.empty((0, 1, 1)) if by_event else cumulative(x.p, x.indptr)
        self.plan = _Plan(
            Ground.of(x), frozen(cdf), x.allowed,
            frozen(x.allowed.sum(axis=2).astype(float)), x.terminal, frozen(planner.values),
            frozen(planner.actions), frozen(planner.exploration[:horizon]), x.discount,
            planner.by_rollout,
        )  # fmt: skip

    def decide(self, t: int, states: Ints, beliefs: Array, keys: Keys, counters: Keys) -> Ints:
        actions = np.empty(len(states), dtype=np.int64)
        lanes = _Lanes(states, beliefs, keys, counters, actions)
        queries = _U(self.planner.queries)

        def run(part: range) -> None:
            room = _Room.of(self.planner, self.horizon)
            _decide(part.start, part.stop, _U(t), lanes, queries, self.plan, room)

        Team.of(self.threads).each(run, ranges(len(states), 8 * self.threads))
        return actions
