"""Tree search (POMCP), compiled, for every backend: UCB with models sampled from the belief.

A node is a history after the root: its children are keyed on (action, next state). Each
query adds one node, valued by ``values`` of a policy, or by a rollout. If values are given,
a node keeps returns minus the value of its state in the drawn model: that difference
compares actions just as well, without the spread between models.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.core.errors import check_memory
from mmdp.core.kernels import sampling
from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, jit
from mmdp.core.kernels.cpu.passes import KernelArrays, at, find_row_entries, get_entry_weight
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.planner import PlannerTables
from mmdp.core.kernels.problem import TIE_RTOL, as_readonly
from mmdp.core.kernels.sampling import PLANNER_STREAM, Keys, cumsum_rows
from mmdp.core.shapes import Array, IndexArray, IntArray

# Indices are unsigned: numba then drops its test for negative ones.
_U = np.uint64


splitmix64 = jit(**BASE_OPTIONS, helper=True)(sampling.splitmix64)


@jit(**BASE_OPTIONS, helper=True)
def hash_uniform(key, counter):  # type: ignore[no-untyped-def]
    """Return a number in [0, 1) that is a hash of this key and counter; see sampling.hash_bits."""
    bits = splitmix64(key + (counter + _U(1)) * _U(0x9E3779B97F4A7C15)) >> _U(11)
    return float(np.int64(bits)) * 2.0**-53


@jit(**BASE_OPTIONS, helper=True)
def search_cdf(cdf, start, stop, u):  # type: ignore[no-untyped-def]
    """Return the first k in start..stop whose cumulative probability exceeds u times the total.

    Bisection without branches, because the processor cannot predict where a sample falls; nor can
    it predict the length of short rows, so the last two steps are always made.
    """
    target = u * cdf[stop - _U(1)]
    count = stop - start
    while count > _U(4):
        half = count >> _U(1)
        start = start + half if cdf[start + half - _U(1)] <= target else start
        count -= half
    half = count >> _U(1)
    start = start + half if cdf[start + half - _U(half > _U(0))] <= target else start
    half = (count - half) >> _U(1)
    return start + half if cdf[start + half - _U(half > _U(0))] <= target else start


class SearchInputs(NamedTuple):
    """The inputs of the search (see PlannerTables)."""

    x: KernelArrays
    cdf: Array | None  # (T or 1, M, nnz) cumulative probabilities of tables
    n_allowed: Array  # (T or 1, S) how many actions are allowed
    terminal: Array
    values: Array
    actions: IntArray
    exploration: Array
    n_queries: int
    uses_rollout: bool

    @classmethod
    def create(cls, planner: PlannerTables, horizon: int) -> SearchInputs:
        """Convert the tables of a planner."""
        x = planner.problem
        return cls(
            KernelArrays.from_problem(x),
            None if isinstance(x.storage, ExogenousEvents) else cumsum_rows(x.p, x.indptr),
            as_readonly(x.allowed.sum(axis=2).astype(float)),
            x.terminal,
            as_readonly(planner.values),
            as_readonly(planner.actions),
            as_readonly(planner.exploration[:horizon]),
            planner.n_queries,
            planner.uses_rollout,
        )


class SearchTree(NamedTuple):
    """The tree of one decision: a hash table of children, the nodes and the path to the leaf."""

    belief_cdf: Array  # (M,) cumulative
    keys: Keys
    nodes: Keys  # 0 marks an empty slot: node 0 is the root
    n_visits: Array
    n_tried: Array
    sums: Array
    path: Keys  # (T + 1, 3): node, action, state

    @classmethod
    def allocate(cls, planner: PlannerTables, horizon: int) -> SearchTree:
        """Allocate a tree for that many queries."""
        n_nodes, n_actions = planner.n_queries + 2, planner.problem.n_actions
        n_slots = 1 << int(np.ceil(np.log2(max(4, 2 * n_nodes))))
        n_bytes = 8 * (2 * n_slots + n_nodes * (1 + 2 * n_actions))
        check_memory(n_bytes, f"a tree of {planner.n_queries:,} queries", ["take fewer n_queries"])
        return cls(
            np.empty(planner.problem.n_models),
            np.empty(n_slots, np.uint64),
            np.empty(n_slots, np.uint64),
            np.empty(n_nodes),
            np.empty((n_nodes, n_actions)),
            np.empty((n_nodes, n_actions)),
            np.empty((horizon + 1, 3), np.uint64),
        )


@jit(**BASE_OPTIONS, helper=True)
def sample_next(x, cdf, t, m, row, u):  # type: ignore[no-untyped-def]
    """Return the first next state of a row in model m at which the sum of probabilities exceeds u.

    It is 0 if no model has the action.
    """
    if cdf is None:
        return _sample_next_by_event(x, t, m, row, u)
    start, stop = _U(x.indptr[row]), _U(x.indptr[row + _U(1)])
    return _U(x.indices[search_cdf(at(cdf, t)[m], start, stop, u)]) if start < stop else _U(0)


@jit(**BASE_OPTIONS, helper=True)
def _sample_next_by_event(x, t, m, row, u):  # type: ignore[no-untyped-def]
    """Return the next state of a row by shared events in model m for the uniform number u."""
    first_row, start, stop = find_row_entries(x, np.int64(t), np.int64(row))
    p, shift = at(x.p, t), first_row - start
    total, last_state = 0.0, np.int64(-1)
    while True:
        next_lowest, mass = np.int64(2**62), 0.0
        for k in range(start, stop):
            next_state = np.int64(x.indices[k])
            prob = get_entry_weight(x.entry_weights, k) * p[k + shift, m]
            if last_state < next_state and next_state <= next_lowest and prob > 0.0:
                mass = prob if next_state < next_lowest else mass + prob
                next_lowest = next_state
        if mass == 0.0:  # by rounding, probabilities sum to less than u
            return _U(last_state)
        total += mass
        last_state = next_lowest
        if total > u:
            return _U(last_state)


@jit(**BASE_OPTIONS, helper=True)
def _expect_event_reward(entry_rewards, x, t, m, row):  # type: ignore[no-untyped-def]
    """Compute the expected reward of the events of a row in model m."""
    total = 0.0
    if entry_rewards is not None:
        first_row, start, stop = find_row_entries(x, np.int64(t), np.int64(row))
        p, shift = at(x.p, t), first_row - start
        for k in range(start, stop):
            total += get_entry_weight(x.entry_weights, k) * p[k + shift, m] * entry_rewards[k]
    return total


@jit(**BASE_OPTIONS, helper=True)
def get_reward(x, t, m, s, a):  # type: ignore[no-untyped-def]
    """Return r of (s, a) in model m."""
    r = at(x.r, t)
    table_reward = r[s if len(r) > 1 else _U(0), a if r.shape[1] > 1 else _U(0), m]
    return table_reward + _expect_event_reward(
        x.entry_rewards, x, t, m, s * _U(x.allowed.shape[2]) + a
    )


@jit(**BASE_OPTIONS, helper=True)
def _run_rollout(inputs, t, s, m, key, counter):  # type: ignore[no-untyped-def]
    """Return the simulated return from (t, s) in model m by the policy, or at random."""
    total, factor, horizon = 0.0, 1.0, _U(len(inputs.exploration))
    n_actions = _U(inputs.x.allowed.shape[2])
    while t < horizon:
        if len(inputs.actions) > 0:
            a = _U(inputs.actions[t, s])
        else:
            n_allowed = at(inputs.n_allowed, t)[s]
            n_skip = _U(np.int64(hash_uniform(key, counter) * n_allowed))
            counter += _U(1)
            a = n_skip
            if n_allowed < n_actions:  # the action with ``left`` allowed ones before it
                allowed_s, a = at(inputs.x.allowed, t)[s], _U(0)
                while n_skip > _U(0) or not allowed_s[a]:
                    n_skip -= _U(allowed_s[a])
                    a += _U(1)
        total += factor * get_reward(inputs.x, t, m, s, a)
        factor *= inputs.x.gamma
        u = hash_uniform(key, counter)
        s = sample_next(inputs.x, inputs.cdf, t, m, s * n_actions + a, u)
        counter += _U(1)
        t += _U(1)
    return total + factor * inputs.terminal[s, m], counter


@jit(**BASE_OPTIONS, helper=True)
def _choose_by_ucb(allowed, n_visits, n_tried, sums, exploration):  # type: ignore[no-untyped-def]
    """Return the allowed action with the highest confidence bound; untried ones first."""
    best, best_action, log_visits = -np.inf, _U(0), np.log(n_visits)
    for a in range(_U(len(allowed))):
        if not allowed[a]:
            continue
        n = n_tried[a]
        if n == 0.0:
            return _U(a)
        score = sums[a] / n + exploration * np.sqrt(log_visits / n)
        if score > best + TIE_RTOL * (abs(score) + exploration):
            best, best_action = score, _U(a)
    return best_action


@jit(**BASE_OPTIONS, helper=True)
def _search_action(t0, s0, belief, key, counter, inputs, tree):  # type: ignore[no-untyped-def]
    """Return the action with the best mean at the root, and the counter after the last number."""
    n_states, n_actions = _U(inputs.x.allowed.shape[1]), _U(inputs.x.allowed.shape[2])
    n_models, horizon = _U(len(tree.belief_cdf)), _U(len(inputs.exploration))
    is_centered, mask = len(inputs.values) > 0, _U(len(tree.nodes) - 1)
    tree.nodes[:] = _U(0)
    tree.n_visits[:] = 0.0
    tree.n_tried[:] = 0.0
    tree.sums[:] = 0.0
    n_nodes, total = _U(1), 0.0
    for m in range(n_models):
        total += belief[m]
        tree.belief_cdf[m] = total
    for _ in range(inputs.n_queries):
        m = search_cdf(tree.belief_cdf, _U(0), n_models, hash_uniform(key, counter))
        counter += _U(1)
        node, s, t, depth = _U(0), s0, t0, _U(0)
        while True:
            a = _choose_by_ucb(
                at(inputs.x.allowed, t)[s],
                tree.n_visits[node],
                tree.n_tried[node],
                tree.sums[node],
                inputs.exploration[t],
            )
            tree.path[depth, _U(0)] = node
            tree.path[depth, _U(1)] = a
            tree.path[depth, _U(2)] = s
            u = hash_uniform(key, counter)
            s = sample_next(inputs.x, inputs.cdf, t, m, s * n_actions + a, u)
            counter += _U(1)
            t += _U(1)
            depth += _U(1)
            if t == horizon:
                value = inputs.terminal[s, m]
                break
            child_key = (node * n_actions + a) * n_states + s
            slot = splitmix64(child_key) & mask
            while tree.nodes[slot] != _U(0) and tree.keys[slot] != child_key:
                slot = (slot + _U(1)) & mask
            if tree.nodes[slot] == _U(0):
                tree.keys[slot] = child_key
                tree.nodes[slot] = n_nodes
                n_nodes += _U(1)
                if is_centered and not inputs.uses_rollout:
                    value = inputs.values[t, s, m]
                else:
                    value, counter = _run_rollout(inputs, t, s, m, key, counter)
                break
            node = tree.nodes[slot]
        while depth > _U(0):
            depth -= _U(1)
            node, a, s = (tree.path[depth, _U(0)], tree.path[depth, _U(1)], tree.path[depth, _U(2)])
            t = t0 + depth
            value = get_reward(inputs.x, t, m, s, a) + inputs.x.gamma * value
            tree.n_visits[node] += 1.0
            tree.n_tried[node, a] += 1.0
            tree.sums[node, a] += value - (inputs.values[t, s, m] if is_centered else 0.0)
    best_mean, best_action = -np.inf, _U(0)
    for a in range(n_actions):
        if (
            tree.n_tried[_U(0), a] > 0.0
            and tree.sums[_U(0), a] / tree.n_tried[_U(0), a] > best_mean
        ):
            best_mean, best_action = tree.sums[_U(0), a] / tree.n_tried[_U(0), a], _U(a)
    return best_action, counter


@jit(**BASE_OPTIONS)
def _search_actions(t, lanes, states, beliefs, keys, counters, inputs, tree, actions):  # type: ignore[no-untyped-def]
    """Search for the action of each of the lanes, and advance their counters."""
    for i in range(len(lanes)):
        n = lanes[i]
        actions[i], counters[n] = _search_action(
            t, _U(states[i]), beliefs[n], keys[n], counters[n], inputs, tree
        )


class TreeSearch:
    """The tree search of a planner, for one decision after the other."""

    def __init__(self, planner: PlannerTables, horizon: int) -> None:
        self.inputs = SearchInputs.create(planner, horizon)
        self.tree = SearchTree.allocate(planner, horizon)

    def choose_actions(
        self,
        t: int,
        lanes: IndexArray,
        states: IndexArray,
        beliefs: Array,
        keys: Keys,
        counters: Keys,
    ) -> IndexArray:
        """Return (n,) the best actions found in these states; advance the counters.

        ``lanes`` (n,) are the rows of beliefs (any, M'), keys and counters.
        """
        actions = np.empty(len(lanes), np.int64)
        _search_actions(
            _U(t), lanes, states, beliefs, keys, counters, self.inputs, self.tree, actions
        )
        return actions

    def choose_action(self, t: int, state: int, belief: Array, seed: int) -> int:
        """Return the best action found from (t, state) with this belief (M,)."""
        key, counter = (np.full(1, n, np.uint64) for n in (seed, PLANNER_STREAM))
        lanes, states = np.zeros(1, np.int64), np.full(1, state, np.int64)
        belief = np.array(belief, np.float64)[None]
        return int(self.choose_actions(t, lanes, states, belief, key, counter)[0])
