"""Compiled episodes: simulation with exact beliefs over the planner's models, and tree search.

Random numbers are a hash of (seed, model, episode, counter), not a stream: the same step of
the same episode draws the same number whatever the policy or the thread, so policies are
compared on common random numbers and results do not depend on the number of threads.

Symbols: as in :mod:`mmdp.kernels.problem`; beta (M',) is the belief over the M' models the
planner was built from, which need not be the models it is simulated in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu.jit import jit
from mmdp.kernels.cpu.threads import Team, default_threads
from mmdp.kernels.problem import Array, IntArray, Problem

ACTIONS, PROBABILITIES, VALUES, SAMPLED, TREE = range(5)
_STREAM = np.uint64(1) << np.uint64(32)  # the planner's counters start here, the world's at 0
TINY = 1e-30  # a belief whose mass falls below this is scaled up again
BLOCK = 32  # episodes that move step by step together: their loads overlap and share q_t
MODELS_AT_ONCE = 8  # models of the world a piece of work: one cache line of p

# Indices are unsigned and division by zero is not tested: both would double the code. The code
# allocates nothing, so it counts no references: numba's counts are atomic, several a step.
_U = np.uint64
_FAST: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_SUMS: dict[str, Any] = {**_FAST, "fastmath": {"contract", "reassoc"}}


class PlannerTables(NamedTuple):
    """What the compiled simulator needs of a policy; absent parts have length 0.

    ``mode``: ACTIONS or PROBABILITIES (Markov), VALUES (argmax of sum_m beta q),
    SAMPLED (act by the optimal policy of a model drawn from beta), TREE (search).
    """

    mode: int
    problem: Problem  # of the planner's models
    actions: IntArray  # (T, S): Markov policy, or the rollout policy of the search
    probabilities: Array  # (T, S, A)
    q: Array  # (T, S, A, M')
    own: IntArray  # (T, S, M'): each model's optimal policy
    values: Array  # (T + 1, S, M'): leaf values of the search
    cdf: Array  # (T or 1, M', nnz): cumulative rows of each planner model, for the search
    exploration: Array  # (T,) UCB constant
    queries: int
    by_rollout: bool  # TREE: leaves are valued by simulation instead of by ``values``
    each_step: bool  # SAMPLED: draw the model anew at every step
    carry: bool  # SAMPLED: keep the belief from one episode to the next
    reward_sd: float  # > 0: rewards enter the likelihood, Normal around r_m(s, a)
    use_transitions: bool  # whether transitions enter the likelihood


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view: numba compiles once more for every mix of read-only and writable."""
    view = array.view()
    view.setflags(write=False)
    return view


EMPTY_2 = np.zeros((0, 1), dtype=np.int32)
EMPTY_3I = np.zeros((0, 1, 1), dtype=np.int32)
EMPTY_3 = np.zeros((0, 1, 1))
EMPTY_4 = np.zeros((0, 1, 1, 1))


@jit(**_FAST)
def _mix(x):  # type: ignore[no-untyped-def]
    """splitmix64: a 64-bit hash with good diffusion."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@jit(**_FAST)
def _uniform(key, counter):  # type: ignore[no-untyped-def]
    """Uniform in [0, 1) for this key and counter."""
    x = _mix(key + (counter + _U(1)) * _U(0x9E3779B97F4A7C15))
    return float(np.int64(x >> _U(11))) * (1.0 / 9007199254740992.0)


@jit(**_FAST)
def _key(seed, m, episode):  # type: ignore[no-untyped-def]
    return _mix(_mix(_mix(_U(seed)) + _U(m)) + _U(episode) + _U(1))


@jit(**_FAST)
def _search(cumulative, start, stop, u):  # type: ignore[no-untyped-def]
    """First k in start..stop whose cumulative probability exceeds u times the total.

    Halving without branches, since where a draw falls cannot be predicted; nor can the length
    of short rows, so the last two halvings are always made.
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


@jit(**_SUMS)
def _add_up(p, indptr, m_from, m_to, out):  # type: ignore[no-untyped-def]
    """out[m - m_from, t, k]: cumulative probabilities along each row, for some models."""
    for t in range(_U(p.shape[0])):
        for row in range(_U(len(indptr) - 1)):
            start = _U(indptr[row])
            for k in range(start, _U(indptr[row + _U(1)])):
                for m in range(m_from, m_to):
                    before = out[m - m_from, t, k - _U(1)] if k > start else 0.0
                    out[m - m_from, t, k] = before + p[t, k, m]


@jit(**_SUMS)
def _weigh(beliefs, i, q, t, row):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(beliefs.shape[1])):
        total += beliefs[i, m] * q[t, row, m]
    return total


@jit(**_FAST)
def _best_by_value(beliefs, i, q, t, s, allowed):  # type: ignore[no-untyped-def]
    """argmax_a sum_m beta_m q(a, m), ties to the lowest action; beta of any mass."""
    n_actions = _U(allowed.shape[1])
    best, chosen = -np.inf, _U(0)
    for a in range(n_actions):
        if allowed[s, a]:
            value = _weigh(beliefs, i, q, t, s * n_actions + a)
            if value > best:
                best, chosen = value, _U(a)
    return chosen


@jit(**_FAST)
def _draw_model(beliefs, i, target):  # type: ignore[no-untyped-def]
    """The model at which the running sum of beta exceeds the target."""
    total = 0.0
    last = _U(0)
    for m in range(_U(beliefs.shape[1])):
        if beliefs[i, m] > 0.0:
            total += beliefs[i, m]
            last = _U(m)
            if total > target:
                return m
    return last


@jit(**_SUMS)
def _reweigh(beliefs, i, p, t, k, j):  # type: ignore[no-untyped-def]
    """Belief j = belief i times the likelihood, returning the sum."""
    total = 0.0
    for m in range(_U(beliefs.shape[1])):
        beliefs[j, m] = beliefs[i, m] * p[t, k, m]
        total += beliefs[j, m]
    return total


@jit(**_SUMS)
def _scale(beliefs, i, factor, j):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(beliefs.shape[1])):
        beliefs[j, m] = beliefs[i, m] * factor
        total += beliefs[j, m]
    return total


@jit(**_FAST)
def _by_reward(beliefs, i, r, t, row, reward, reward_sd):  # type: ignore[no-untyped-def]
    """beta times the Normal likelihood of the reward, up to a factor; returns the sum."""
    closest = np.inf
    for m in range(_U(beliefs.shape[1])):
        if beliefs[i, m] > 0.0:
            closest = min(closest, ((reward - r[t, row, m]) / reward_sd) ** 2)
    total = 0.0
    for m in range(_U(beliefs.shape[1])):
        if beliefs[i, m] > 0.0:
            distance = ((reward - r[t, row, m]) / reward_sd) ** 2
            beliefs[i, m] *= np.exp(0.5 * (closest - distance))
            total += beliefs[i, m]
    return total


@jit(**_FAST)
def _observe(  # type: ignore[no-untyped-def]
    beliefs, i, p, p_t, place, r, r_t, row, reward, reward_sd, use_transitions
):
    """Bayes' rule from belief i into belief i ^ 1, whose mass is returned.

    The mass is not 1: what uses a belief does not mind its scale, and scaling at every step
    costs as much as the rule. It is 0 where no model explains the step.
    """
    j = i ^ _U(1)
    if not use_transitions:
        mass = _scale(beliefs, i, 1.0, j)
    elif place >= 0:
        mass = _reweigh(beliefs, i, p, p_t, _U(place), j)
    else:
        return 0.0
    if reward_sd > 0.0:
        mass = _by_reward(beliefs, j, r, r_t, row, reward, reward_sd)
    if 0.0 < mass < TINY:
        mass = _scale(beliefs, j, 1.0 / mass, j)
    return mass


@jit(**_SUMS)
def _prior(weights, beliefs, i):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(len(weights))):
        beliefs[i, m] = weights[m]
        total += weights[m]
    return total


@jit(**_FAST)
def _start(m, first, count, episodes, seed, initial, keys, counters, states, totals):  # type: ignore[no-untyped-def]
    """Episodes first..first + count in model m, before their first step."""
    for e in range(count):
        keys[e] = _key(seed, m, first + e)
        counters[e] = _STREAM
        totals[e] = 0.0
        # the first state is stratified over episodes
        u = (float(np.int64(first + e)) + _uniform(keys[e], _U(0))) / episodes
        states[e] = _search(initial, _U(0), _U(len(initial)), u)


@jit(**_FAST)
def _move(world, begin, indptr, row, key, t):  # type: ignore[no-untyped-def]
    """Entry of the pattern drawn for this step; nnz where the model lacks the action.

    The cumulative probabilities of the model's pattern begin at ``begin`` of ``world``.
    """
    start, stop = begin + _U(indptr[row]), begin + _U(indptr[row + _U(1)])
    if start == stop or world[stop - _U(1)] == 0.0:
        return _U(indptr[_U(len(indptr) - 1)])
    return _search(world, start, stop, _uniform(key, t + _U(1))) - begin


@jit(**_FAST)
def _markov_episodes(  # type: ignore[no-untyped-def]
    m_from, m_to, episodes, block, horizon, seed, indptr, indices, world, n_times, r, initial,
    gamma, terminal, n_actions, actions, probabilities, keys, counters, states, totals, returns,
):  # fmt: skip
    """Simulate a Markov policy: actions (T, S), or probabilities (T, S, A) where given."""
    nnz = _U(len(indices))
    r_step = _U(r.shape[0] > 1)
    for m in range(m_from, m_to):
        for first in range(_U(0), episodes, block):
            count = min(block, episodes - first)
            _start(m, first, count, episodes, seed, initial, keys, counters, states, totals)
            factor = 1.0
            for t in range(horizon):
                begin = ((m - m_from) * n_times + t * _U(n_times > _U(1))) * nnz
                for e in range(count):
                    s = states[e]
                    if s == nnz:
                        continue
                    if probabilities.shape[0] == 0:
                        a = _U(actions[t, s])
                    else:
                        a = _draw_action(probabilities, t, s, _uniform(keys[e], counters[e]))
                        counters[e] += _U(1)
                    row = s * n_actions + a
                    k = _move(world, begin, indptr, row, keys[e], t)
                    if k == nnz:  # an action missing in this model ends the episode with nothing
                        states[e] = nnz
                        continue
                    # the mean reward of (s, a) has less noise than that of the drawn next state
                    totals[e] += factor * r[t * r_step, row, m]
                    states[e] = _U(indices[k])
                factor *= gamma
            _finish(m, first, count, factor, nnz, terminal, states, totals, returns)


@jit(**_FAST)
def _draw_action(probabilities, t, s, u):  # type: ignore[no-untyped-def]
    chosen = _U(0)
    for a in range(_U(probabilities.shape[2])):
        if probabilities[t, s, a] > 0.0:
            chosen = _U(a)
            u -= probabilities[t, s, a]
            if u < 0.0:
                break
    return chosen


@jit(**_FAST)
def _finish(m, first, count, factor, nnz, terminal, states, totals, returns):  # type: ignore[no-untyped-def]
    for e in range(count):
        returns[m, first + e] = totals[e]
        if states[e] != nnz:
            returns[m, first + e] += factor * terminal[states[e], m]


@jit(**_FAST)
def _belief_episodes(  # type: ignore[no-untyped-def]
    m_from, m_to, episodes, block, horizon, seed, indptr, indices, world, n_times, r,
    next_rewards, initial, gamma, terminal, places, p, own_r, allowed, weights, by_value, q, own,
    each_step, carry, reward_sd, use_transitions, keys, counters, states, totals, beliefs, rows,
    masses, sampled, returns, impossible,
):  # fmt: skip
    """Simulate planners that act by q (T, S * A, M') or by a sampled model's ``own`` policy.

    ``places`` (nnz,): entry of the planner's pattern for each of the world's, or -1.
    ``p``, ``own_r``, ``weights`` are the planner's models. Episode e of a block has its belief
    of mass ``masses[e]`` in row ``rows[e]``, 2e or 2e + 1, of ``beliefs`` (2 block, M').
    """
    nnz, n_actions = _U(len(indices)), _U(allowed.shape[1])
    r_step = _U(r.shape[0] > 1)
    seen_step, p_step = _U(next_rewards.shape[0] > 1), _U(p.shape[0] > 1)
    own_step = _U(own_r.shape[0] > 1)
    for m in range(m_from, m_to):
        for first in range(_U(0), episodes, block):
            count = min(block, episodes - first)
            _start(m, first, count, episodes, seed, initial, keys, counters, states, totals)
            for e in range(count):
                if first == _U(0) or not carry:
                    rows[e] = _U(2) * e
                    masses[e] = _prior(weights, beliefs, rows[e])
            factor = 1.0
            for t in range(horizon):
                begin = ((m - m_from) * n_times + t * _U(n_times > _U(1))) * nnz
                for e in range(count):
                    s, key = states[e], keys[e]
                    if s == nnz:
                        continue
                    if by_value:
                        a = _best_by_value(beliefs, rows[e], q, t, s, allowed)
                    else:
                        if each_step or t == _U(0):
                            u = _uniform(key, counters[e])
                            counters[e] += _U(1)
                            sampled[e] = _draw_model(beliefs, rows[e], u * masses[e])
                        a = _U(own[t, s, sampled[e]])
                    row = s * n_actions + a
                    k = _move(world, begin, indptr, row, key, t)
                    if k == nnz:
                        states[e] = nnz
                        continue
                    seen = r[t * r_step, row, m]
                    totals[e] += factor * seen
                    if next_rewards.shape[0] > 0:
                        seen = next_rewards[t * seen_step, k, m]
                    mass = _observe(
                        beliefs, rows[e], p, t * p_step, places[k], own_r, t * own_step, row,
                        seen, reward_sd, use_transitions,
                    )  # fmt: skip
                    if mass > 0.0:
                        rows[e] ^= _U(1)
                        masses[e] = mass
                    else:
                        impossible[m] += 1
                    states[e] = _U(indices[k])
                factor *= gamma
            _finish(m, first, count, factor, nnz, terminal, states, totals, returns)


@jit(**_FAST)
def _rollout_value(  # type: ignore[no-untyped-def]
    t, s, m, horizon, indptr, indices, cdf, begin, cdf_step, r, choices, n_choices, free,
    gamma, terminal, actions, key, counter,
):  # fmt: skip
    """Return from (t, s) in model m, by the given policy or (none given) at random.

    The cumulative rows of step t begin at ``begin + t * cdf_step`` of ``cdf``.
    """
    n_actions = _U(choices.shape[1])
    r_step = _U(r.shape[0] > 1)
    at_random = actions.shape[0] == 0
    every = float(choices.shape[1])
    total, factor = 0.0, 1.0
    while t < horizon:
        if at_random:
            # where all actions are allowed the draw need not wait for the state
            chosen = _U(np.int64(_uniform(key, counter) * (every if free else n_choices[s])))
            a = chosen if free else _U(choices[s, chosen])
            counter += _U(1)
        else:
            a = _U(actions[t, s])
        row = s * n_actions + a
        total += factor * r[t * r_step, row, m]
        factor *= gamma
        at = begin + t * cdf_step
        start, stop = at + _U(indptr[row]), at + _U(indptr[row + _U(1)])
        s = _U(indices[_search(cdf, start, stop, _uniform(key, counter)) - at])
        counter += _U(1)
        t += _U(1)
    return total + factor * terminal[s, m], counter


@jit(**_FAST)
def _child(slots, nodes, wanted):  # type: ignore[no-untyped-def]
    """Slot of a key in an open-addressing table (its own, or the empty one to use)."""
    mask = _U(len(slots) - 1)
    slot = _mix(wanted) & mask
    while nodes[slot] != _U(0) and slots[slot] != wanted:
        slot = (slot + _U(1)) & mask
    return slot


@jit(**_FAST)
def _ucb(node, s, choices, n_choices, exploration, visits, tried, totals):  # type: ignore[no-untyped-def]
    """The allowed action of the highest upper confidence bound; one not tried comes first."""
    best, chosen = -np.inf, _U(0)
    bonus = np.log(visits[node])
    for i in range(_U(n_choices[s])):
        a = _U(choices[s, i])
        if tried[node, a] == 0.0:
            return a
        score = totals[node, a] / tried[node, a] + exploration * np.sqrt(bonus / tried[node, a])
        if score > best:
            best, chosen = score, a
    return chosen


@jit(**_FAST)
def _tree_action(  # type: ignore[no-untyped-def]
    t0, s0, beliefs, now, horizon, queries, exploration, indptr, indices, cdf, vary, r, choices,
    n_choices, gamma, terminal, values, by_rollout, actions, key, counter, cumulative, slots,
    nodes, visits, tried, totals, path,
):  # fmt: skip
    """UCB search from (t0, s0) with models drawn from belief ``now``; the action of the best mean.

    A node is a history after (t0, s0): its children are keyed on (action, next state). Each
    query adds one node, valued by ``values`` of a policy, or by a rollout where ``by_rollout``.
    Where values are given a node keeps returns above the value of its state in the drawn model:
    that difference compares actions as well and does not carry the models' spread. Node 0 is
    the root, so 0 in ``nodes`` marks an empty slot.
    """
    n_states, n_actions = _U(choices.shape[0]), _U(choices.shape[1])
    nnz, n_models = _U(len(indices)), _U(beliefs.shape[1])
    r_step = _U(r.shape[0] > 1)
    cdf_step = nnz * n_models * _U(vary)
    centred = values.shape[0] > 0
    free = True
    for i in range(n_states):
        free = free and n_choices[i] == choices.shape[1]
    mass = 0.0
    for i in range(n_models):
        mass += beliefs[now, i]
        cumulative[i] = mass
    nodes[:] = _U(0)
    visits[:] = 0.0
    tried[:] = 0.0
    totals[:] = 0.0
    count = _U(1)
    for _ in range(queries):
        m = _search(cumulative, _U(0), n_models, _uniform(key, counter))
        counter += _U(1)
        node, s, t, depth = _U(0), s0, t0, _U(0)
        while True:
            a = _ucb(node, s, choices, n_choices, exploration[t], visits, tried, totals)
            path[depth, _U(0)] = node
            path[depth, _U(1)] = a
            path[depth, _U(2)] = s
            row = s * n_actions + a
            at = m * nnz + t * cdf_step
            start, stop = at + _U(indptr[row]), at + _U(indptr[row + _U(1)])
            s = _U(indices[_search(cdf, start, stop, _uniform(key, counter)) - at])
            counter += _U(1)
            t += _U(1)
            depth += _U(1)
            if t == horizon:
                leaf = terminal[s, m]
                break
            wanted = (node * n_actions + a) * n_states + s
            slot = _child(slots, nodes, wanted)
            if nodes[slot] == _U(0):
                slots[slot] = wanted
                nodes[slot] = count
                count += _U(1)
                if centred and not by_rollout:
                    leaf = values[t, s, m]
                else:
                    leaf, counter = _rollout_value(
                        t, s, m, horizon, indptr, indices, cdf, m * nnz, cdf_step, r, choices,
                        n_choices, free, gamma, terminal, actions, key, counter,
                    )  # fmt: skip
                break
            node = nodes[slot]
        while depth > _U(0):
            depth -= _U(1)
            n, a, s = path[depth, _U(0)], path[depth, _U(1)], path[depth, _U(2)]
            t = t0 + depth
            leaf = r[t * r_step, s * n_actions + a, m] + gamma * leaf
            visits[n] += 1.0
            tried[n, a] += 1.0
            totals[n, a] += leaf - (values[t, s, m] if centred else 0.0)
    best, chosen = -np.inf, _U(0)
    for a in range(n_actions):
        if tried[_U(0), a] > 0.0 and totals[_U(0), a] / tried[_U(0), a] > best:
            best, chosen = totals[_U(0), a] / tried[_U(0), a], _U(a)
    return chosen, counter


@jit(**_FAST)
def _tree_episodes(  # type: ignore[no-untyped-def]
    m_from, m_to, episodes, horizon, seed, indptr, indices, world, n_times, r, initial, gamma,
    terminal, places, p, weights, own_indptr, own_indices, own_r, own_terminal, choices,
    n_choices, queries, exploration, cdf, vary, values, by_rollout, actions, reward_sd,
    use_transitions, keys, counters, states, totals, beliefs, cumulative, slots, nodes, visits,
    tried, sums, path, returns, impossible,
):  # fmt: skip
    """Simulate the tree search; ``own_``: of the planner's models, as in _belief_episodes."""
    nnz, n_actions = _U(len(indices)), _U(choices.shape[1])
    r_step, p_step = _U(r.shape[0] > 1), _U(p.shape[0] > 1)
    own_step = _U(own_r.shape[0] > 1)
    for m in range(m_from, m_to):
        for episode in range(episodes):
            _start(m, episode, _U(1), episodes, seed, initial, keys, counters, states, totals)
            s, key, counter = states[_U(0)], keys[_U(0)], counters[_U(0)]
            now, factor = _U(0), 1.0
            _prior(weights, beliefs, now)
            for t in range(horizon):
                a, counter = _tree_action(
                    t, s, beliefs, now, horizon, queries, exploration, own_indptr, own_indices,
                    cdf, vary, own_r, choices, n_choices, gamma, own_terminal, values, by_rollout,
                    actions, key, counter, cumulative, slots, nodes, visits, tried, sums, path,
                )  # fmt: skip
                row = s * n_actions + a
                begin = ((m - m_from) * n_times + t * _U(n_times > _U(1))) * nnz
                k = _move(world, begin, indptr, row, key, t)
                if k == nnz:
                    s = nnz
                    break
                totals[_U(0)] += factor * r[t * r_step, row, m]
                factor *= gamma
                mass = _observe(
                    beliefs, now, p, t * p_step, places[k], own_r, t * own_step, row,
                    r[t * r_step, row, m], reward_sd, use_transitions,
                )  # fmt: skip
                if mass > 0.0:
                    now ^= _U(1)
                else:
                    impossible[m] += 1
                s = _U(indices[k])
            states[_U(0)] = s
            _finish(m, episode, _U(1), factor, nnz, terminal, states, totals, returns)


def simulate(
    world: Problem,
    next_rewards: Array | None,
    tables: PlannerTables,
    horizon: int,
    episodes: int,
    seed: int,
    threads: int | None = None,
) -> tuple[Array, npt.NDArray[np.int64]]:
    """((M, episodes) returns, (M,) transitions that no model of the planner explains)."""
    tables = _frozen_tables(tables)
    returns = np.empty((world.n_models, episodes))
    impossible = np.zeros(world.n_models, dtype=np.int64)
    team = Team.of(default_threads() if threads is None else threads)
    pieces = max(min(world.n_models, 8 * len(team)), -(-world.n_models // MODELS_AT_ONCE))
    edges = [world.n_models * i // pieces for i in range(pieces + 1)]
    common = _Common(
        world, tables, _U(horizon), _U(episodes), _U(seed), frozen(np.cumsum(world.initial)),
        returns, impossible,
    )  # fmt: skip
    prepare = {TREE: _tree_piece, VALUES: _belief_piece, SAMPLED: _belief_piece}
    run = prepare.get(tables.mode, _markov_piece)(common, next_rewards)
    team.each(lambda i: run(_U(edges[i]), _U(edges[i + 1])), range(pieces))
    return returns, impossible


class _Common(NamedTuple):
    """What the simulation of every kind of planner is given."""

    world: Problem
    tables: PlannerTables
    horizon: Any
    episodes: Any
    seed: Any
    initial: Array  # cumulative
    returns: Array
    impossible: npt.NDArray[np.int64]

    def block(self) -> int:
        """Episodes at once; beliefs carried from one to the next leave no choice."""
        return 1 if self.tables.carry else min(BLOCK, int(self.episodes))

    def cumulative(self, m_from: Any, m_to: Any) -> Array:
        """(m_to - m_from, T or 1, nnz) cumulative probabilities along each row, flat."""
        p, indptr = self.world.p, self.world.indptr
        out = np.empty((int(m_to - m_from), p.shape[0], p.shape[1]))
        _add_up(p, indptr, m_from, m_to, out)
        return out.reshape(-1)


Piece = Callable[[Any, Any], None]


def _episode_scratch(size: int) -> tuple[npt.NDArray[Any], ...]:
    """Keys, counters, states and totals of so many episodes at once."""
    return (*(np.empty(size, np.uint64) for _ in range(3)), np.empty(size))


def _markov_piece(c: _Common, _: Array | None) -> Piece:
    x, tables, block = c.world, c.tables, c.block()

    def run(m_from: Any, m_to: Any) -> None:
        _markov_episodes(
            m_from, m_to, c.episodes, _U(block), c.horizon, c.seed, x.indptr, x.indices,
            c.cumulative(m_from, m_to), _U(len(x.p)), _by_row(x.r), c.initial, x.discount,
            x.terminal, _U(x.n_actions), tables.actions, tables.probabilities,
            *_episode_scratch(block), c.returns,
        )  # fmt: skip

    return run


def _belief_piece(c: _Common, next_rewards: Array | None) -> Piece:
    x, tables, plan, block = c.world, c.tables, c.tables.problem, c.block()
    seen = frozen(EMPTY_3 if next_rewards is None else next_rewards)
    places = _places(x, plan)

    def run(m_from: Any, m_to: Any) -> None:
        _belief_episodes(
            m_from, m_to, c.episodes, _U(block), c.horizon, c.seed, x.indptr, x.indices,
            c.cumulative(m_from, m_to), _U(len(x.p)), _by_row(x.r), seen, c.initial, x.discount,
            x.terminal, places, plan.p, _by_row(plan.r), plan.allowed[0], plan.weights,
            tables.mode == VALUES, _by_row(tables.q),
            tables.own, tables.each_step, tables.carry, tables.reward_sd, tables.use_transitions,
            *_episode_scratch(block), np.empty((2 * block, plan.n_models)),
            np.empty(block, np.uint64), np.empty(block), np.empty(block, np.uint64), c.returns,
            c.impossible,
        )  # fmt: skip

    return run


def _tree_piece(c: _Common, _: Array | None) -> Piece:
    x, tables, plan = c.world, c.tables, c.tables.problem
    places, choices = _places(x, plan), _choices(plan)

    def run(m_from: Any, m_to: Any) -> None:
        _tree_episodes(
            m_from, m_to, c.episodes, c.horizon, c.seed, x.indptr, x.indices,
            c.cumulative(m_from, m_to), _U(len(x.p)), _by_row(x.r), c.initial, x.discount,
            x.terminal, places, plan.p, plan.weights, plan.indptr, plan.indices,
            _by_row(plan.r), plan.terminal, *choices, _U(tables.queries), tables.exploration,
            tables.cdf.reshape(-1), len(tables.cdf) > 1, tables.values, tables.by_rollout,
            tables.actions, tables.reward_sd, tables.use_transitions, *_episode_scratch(1),
            np.empty((2, plan.n_models)), *_tree_scratch(tables, int(c.horizon)), c.returns,
            c.impossible,
        )  # fmt: skip

    return run


def _by_row(x: Array) -> Array:
    """(T, S, A, M) as (T, S * A, M): row s * A + a, as in the pattern."""
    return x.reshape(len(x), x.shape[1] * x.shape[2], x.shape[3])


def _tree_scratch(tables: PlannerTables, horizon: int) -> tuple[npt.NDArray[Any], ...]:
    """Cumulative belief, hash table (keys, nodes), nodes (visits, tried, totals) and path."""
    size, n_actions = tables.queries + 2, tables.problem.n_actions
    slots = 1 << int(np.ceil(np.log2(max(4, 2 * size))))
    return (
        np.empty(tables.problem.n_models), np.empty(slots, np.uint64), np.empty(slots, np.uint64),
        np.empty(size), np.empty((size, n_actions)), np.empty((size, n_actions)),
        np.empty((horizon + 1, 3), np.uint64),
    )  # fmt: skip


def _choices(plan: Problem) -> tuple[IntArray, Array]:
    """((S, A) allowed actions of each state first, in order, (S,) how many)."""
    order = np.argsort(~plan.allowed[0], axis=1, kind="stable").astype(np.int32)
    return frozen(order), frozen(plan.allowed[0].sum(axis=1).astype(np.float64))


def _places(world: Problem, plan: Problem) -> npt.NDArray[np.int64]:
    """(nnz,) entry of the planner's pattern for every entry of the world's, -1 where none."""
    wanted = world.rows() * world.n_states + world.indices
    known = plan.rows() * plan.n_states + plan.indices
    at = np.searchsorted(known, wanted)
    at[known[np.minimum(at, len(known) - 1)] != wanted] = -1
    return frozen(at)


def _frozen_tables(tables: PlannerTables) -> PlannerTables:
    parts: dict[str, Any] = {
        name: frozen(part)
        for name, part in tables._asdict().items()
        if isinstance(part, np.ndarray)
    }
    return tables._replace(**parts)


def search_action(
    tables: PlannerTables, horizon: int, time: int, state: int, beta: Array,
    rng: np.random.Generator,
) -> int:  # fmt: skip
    """One decision of the tree search, for planners that run step by step."""
    plan, tables = tables.problem, _frozen_tables(tables)
    chosen, _ = _tree_action(
        _U(time), _U(state), beta.reshape(1, -1), _U(0), _U(horizon), _U(tables.queries),
        tables.exploration, plan.indptr, plan.indices, tables.cdf.reshape(-1),
        len(tables.cdf) > 1, _by_row(plan.r), *_choices(plan), plan.discount, plan.terminal,
        tables.values, tables.by_rollout, tables.actions, _U(rng.integers(2**63)),
        _STREAM, *_tree_scratch(tables, horizon),
    )  # fmt: skip
    return int(chosen)


def cumulative_rows(problem: Problem) -> Array:
    """(T or 1, M, nnz) cumulative probabilities along each row, models first."""
    p = np.ascontiguousarray(np.moveaxis(problem.p, 2, 1))
    totals = np.cumsum(p, axis=2)
    before = np.concatenate([np.zeros((*totals.shape[:2], 1)), totals], axis=2)
    starts = np.repeat(problem.indptr[:-1], np.diff(problem.indptr))
    result: Array = totals - before[:, :, starts]
    return result
