"""Compiled episodes: simulation with exact beliefs over the planner's models, and tree search.

Random numbers are a hash of (seed, model, episode, counter), not a stream: the same step of
the same episode draws the same number whatever the policy or the thread, so policies are
compared on common random numbers and results do not depend on the number of threads.

Symbols: as in :mod:`mmdp.kernels.problem`; beta (M',) is the belief over the M' models the
planner was built from, which need not be the models it is simulated in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.jit import jit
from mmdp.kernels.problem import Array, IntArray, Problem
from mmdp.kernels.threads import Team, default_threads

ACTIONS, PROBABILITIES, VALUES, SAMPLED, TREE = range(5)
_U = np.uint64
_STREAM = _U(1) << _U(32)  # counters from here on belong to the planner, below to the world


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


@jit()
def _mix(x):  # type: ignore[no-untyped-def]
    """splitmix64: a 64-bit hash with good diffusion."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@jit()
def _uniform(key, counter):  # type: ignore[no-untyped-def]
    """Uniform in [0, 1) for this key and counter."""
    x = _mix(key + (counter + _U(1)) * _U(0x9E3779B97F4A7C15))
    return float(x >> _U(11)) * (1.0 / 9007199254740992.0)


@jit()
def _key(seed, m, episode):  # type: ignore[no-untyped-def]
    return _mix(_mix(_mix(_U(seed)) + _U(m)) + _U(episode) + _U(1))


@jit()
def _search(cumulative, start, stop, u):  # type: ignore[no-untyped-def]
    """First k in start..stop whose cumulative probability exceeds u times the total."""
    target = u * cumulative[stop - 1]
    lo, hi = start, stop - 1
    while lo < hi:
        middle = (lo + hi) // 2
        if cumulative[middle] > target:
            hi = middle
        else:
            lo = middle + 1
    return lo


@jit()
def _find(indices, start, stop, state):  # type: ignore[no-untyped-def]
    """Position of a next state in a sorted row of the pattern, or -1."""
    lo, hi = start, stop
    while lo < hi:
        middle = (lo + hi) // 2
        if indices[middle] < state:
            lo = middle + 1
        else:
            hi = middle
    if lo < stop and indices[lo] == state:
        return lo
    return -1


@jit(fastmath={"contract", "reassoc"})
def _weigh(beta, q):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(len(beta)):
        total += beta[m] * q[m]
    return total


@jit(fastmath={"contract", "reassoc"})
def _reweigh(beta, likelihood, out):  # type: ignore[no-untyped-def]
    """out = beta * likelihood, returning the sum."""
    total = 0.0
    for m in range(len(beta)):
        out[m] = beta[m] * likelihood[m]
        total += out[m]
    return total


@jit()
def _draw_model(beta, u):  # type: ignore[no-untyped-def]
    total = 0.0
    last = 0
    for m in range(len(beta)):
        if beta[m] > 0.0:
            total += beta[m]
            last = m
            if total > u:
                return m
    return last


@jit()
def _update_belief(beta, scratch, p, k, r, reward, reward_sd, use_transitions):  # type: ignore[no-untyped-def]
    """beta after one observed step; False (beta kept) where no model explains it."""
    n = len(beta)
    if use_transitions:
        if k < 0:
            return False
        total = _reweigh(beta, p[k], scratch)
    else:
        total = 0.0
        for m in range(n):
            scratch[m] = beta[m]
            total += beta[m]
    if reward_sd > 0.0:
        closest = np.inf
        for m in range(n):
            if scratch[m] > 0.0:
                closest = min(closest, ((reward - r[m]) / reward_sd) ** 2)
        total = 0.0
        for m in range(n):
            scratch[m] *= np.exp(0.5 * (closest - ((reward - r[m]) / reward_sd) ** 2))
            total += scratch[m]
    if not total > 0.0:
        return False
    for m in range(n):
        beta[m] = scratch[m] / total
    return True


@jit()
def _best_by_value(beta, q, allowed):  # type: ignore[no-untyped-def]
    """argmax_a sum_m beta_m q(a, m), ties to the lowest action."""
    best, chosen = -np.inf, 0
    for a in range(len(allowed)):
        if allowed[a]:
            value = _weigh(beta, q[a])
            if value > best:
                best, chosen = value, a
    return chosen


@jit()
def _rollout_value(  # type: ignore[no-untyped-def]
    t, s, m, horizon, indptr, indices, cdf, r, allowed, gamma, terminal, actions, key, counter
):
    """Return from (t, s) in model m, by the given policy or (none given) at random."""
    n_actions = allowed.shape[1]
    total, factor = 0.0, 1.0
    while t < horizon:
        if actions.shape[0] > 0:
            a = actions[t, s]
        else:
            count = 0
            for i in range(n_actions):
                count += allowed[s, i]
            pick = int(_uniform(key, counter) * count)
            counter += _U(1)
            a = 0
            for i in range(n_actions):
                if allowed[s, i]:
                    if pick == 0:
                        a = i
                    pick -= 1
        total += factor * r[t if r.shape[0] > 1 else 0, s, a, m]
        factor *= gamma
        row = s * n_actions + a
        cumulative = cdf[t if cdf.shape[0] > 1 else 0, m]
        s = indices[_search(cumulative, indptr[row], indptr[row + 1], _uniform(key, counter))]
        counter += _U(1)
        t += 1
    return total + factor * terminal[s, m], counter


@jit()
def _child(keys, nodes, wanted):  # type: ignore[no-untyped-def]
    """Slot of a key in an open-addressing table (its own, or the empty one to use)."""
    mask = len(keys) - 1
    slot = np.int64(_mix(_U(wanted)) & _U(mask))
    while nodes[slot] >= 0 and keys[slot] != wanted:
        slot = (slot + 1) & mask
    return slot


@jit()
def _tree_action(  # type: ignore[no-untyped-def]
    t0, s0, beta, horizon, queries, exploration, indptr, indices, cdf, r, allowed, gamma,
    terminal, values, by_rollout, actions, key, counter, keys, nodes, visits, tried, totals, path,
):  # fmt: skip
    """UCB search from (t0, s0) with models drawn from beta; the action of the best mean.

    A node is a history after (t0, s0): its children are keyed on (action, next state). Each
    query adds one node, valued by ``values`` of a policy, or by a rollout where ``by_rollout``.
    Where values are given a node keeps returns above the value of its state in the drawn model:
    that difference compares actions as well and does not carry the models' spread.
    """
    n_actions, n_states = allowed.shape[1], allowed.shape[0]
    cumulative_beta = np.cumsum(beta)
    centred = values.shape[0] > 0
    nodes[:] = -1
    visits[0] = 0
    tried[0, :] = 0
    totals[0, :] = 0.0
    count = 1
    for _ in range(queries):
        m = _search(cumulative_beta, 0, len(beta), _uniform(key, counter))
        counter += _U(1)
        node, s, t, depth = 0, s0, t0, 0
        leaf = 0.0
        while True:
            best, a = -np.inf, -1
            for i in range(n_actions):
                if allowed[s, i]:
                    if tried[node, i] == 0:
                        score = np.inf
                    else:
                        score = totals[node, i] / tried[node, i] + exploration[t] * np.sqrt(
                            np.log(visits[node]) / tried[node, i]
                        )
                    if score > best:
                        best, a = score, i
            path[depth, 0] = node
            path[depth, 1] = a
            path[depth, 2] = s
            row = s * n_actions + a
            cumulative = cdf[t if cdf.shape[0] > 1 else 0, m]
            s = indices[_search(cumulative, indptr[row], indptr[row + 1], _uniform(key, counter))]
            counter += _U(1)
            t += 1
            depth += 1
            if t == horizon:
                leaf = terminal[s, m]
                break
            wanted = (node * n_actions + a) * n_states + s
            slot = _child(keys, nodes, wanted)
            if nodes[slot] < 0:
                keys[slot] = wanted
                nodes[slot] = count
                visits[count] = 0
                tried[count, :] = 0
                totals[count, :] = 0.0
                count += 1
                if centred and not by_rollout:
                    leaf = values[t, s, m]
                else:
                    leaf, counter = _rollout_value(
                        t, s, m, horizon, indptr, indices, cdf, r, allowed, gamma, terminal,
                        actions, key, counter,
                    )  # fmt: skip
                break
            node = nodes[slot]
        for d in range(depth - 1, -1, -1):
            n, a, s_d = path[d, 0], path[d, 1], path[d, 2]
            t_d = t0 + d
            leaf = r[t_d if r.shape[0] > 1 else 0, s_d, a, m] + gamma * leaf
            visits[n] += 1
            tried[n, a] += 1
            totals[n, a] += leaf - (values[t_d, s_d, m] if centred else 0.0)
    best, chosen = -np.inf, 0
    for a in range(n_actions):
        if tried[0, a] > 0 and totals[0, a] / tried[0, a] > best:
            best, chosen = totals[0, a] / tried[0, a], a
    return chosen, counter


@jit()
def _episodes(  # type: ignore[no-untyped-def]
    m_from, m_to, episodes, horizon, seed, indptr, indices, p, r, next_rewards, initial, gamma,
    terminal, mode, plan_indptr, plan_indices, plan_p, plan_r, allowed, plan_weights,
    plan_terminal, actions, probabilities, q, own, values, cdf, exploration, queries, each_step,
    by_rollout, carry, reward_sd, use_transitions, returns, impossible,
):  # fmt: skip
    """Simulate ``episodes`` in each of the models m_from..m_to of the world."""
    n_actions = allowed.shape[1]
    n_times, nnz = p.shape[0], p.shape[1]
    world = np.empty((n_times, nnz))
    start = np.cumsum(initial)
    beta, scratch = plan_weights.copy(), np.empty(len(plan_weights))
    size = queries + 2 if mode == TREE else 1
    table = 4
    while table < 2 * size:
        table *= 2
    keys, nodes = np.empty(table, np.int64), np.empty(table, np.int64)
    visits = np.empty(size, np.int64)
    tried, totals = np.empty((size, n_actions), np.int64), np.empty((size, n_actions))
    path = np.empty((horizon + 1, 3), np.int64)
    for m in range(m_from, m_to):
        for t in range(n_times):
            for row in range(len(indptr) - 1):
                total = 0.0
                for k in range(indptr[row], indptr[row + 1]):
                    total += p[t, k, m]
                    world[t, k] = total
        beta[:] = plan_weights
        for episode in range(episodes):
            key = _key(seed, m, episode)
            counter = _STREAM
            if not carry:
                beta[:] = plan_weights
            sampled = 0
            if mode == SAMPLED:
                sampled = _draw_model(beta, _uniform(key, counter))
                counter += _U(1)
            # the first state is stratified over episodes
            s = _search(start, 0, len(start), (episode + _uniform(key, _U(0))) / episodes)
            total, factor = 0.0, 1.0
            for t in range(horizon):
                a = 0
                if mode == ACTIONS:
                    a = actions[t, s]
                elif mode == PROBABILITIES:
                    u = _uniform(key, counter)
                    counter += _U(1)
                    for i in range(n_actions):
                        if probabilities[t, s, i] > 0.0:
                            a = i
                            u -= probabilities[t, s, i]
                            if u < 0.0:
                                break
                elif mode == VALUES:
                    a = _best_by_value(beta, q[t, s], allowed[s])
                elif mode == SAMPLED:
                    if each_step and t > 0:
                        sampled = _draw_model(beta, _uniform(key, counter))
                        counter += _U(1)
                    a = own[t, s, sampled]
                else:
                    a, counter = _tree_action(
                        t, s, beta, horizon, queries, exploration, plan_indptr, plan_indices,
                        cdf, plan_r, allowed, gamma, plan_terminal, values, by_rollout, actions,
                        key, counter, keys, nodes, visits, tried, totals, path,
                    )  # fmt: skip
                row = s * n_actions + a
                chances = world[t if n_times > 1 else 0]
                if indptr[row] == indptr[row + 1] or chances[indptr[row + 1] - 1] == 0.0:
                    factor = 0.0  # an action missing in this model ends the episode with nothing
                    break
                k = _search(chances, indptr[row], indptr[row + 1], _uniform(key, _U(t + 1)))
                after = indices[k]
                # the mean reward of (s, a) has less noise than the one of the drawn next state
                total += factor * r[t if r.shape[0] > 1 else 0, s, a, m]
                factor *= gamma
                if mode >= VALUES:
                    seen = r[t if r.shape[0] > 1 else 0, s, a, m]
                    if next_rewards.shape[0] > 0:
                        seen = next_rewards[t if next_rewards.shape[0] > 1 else 0, k, m]
                    place = _find(plan_indices, plan_indptr[row], plan_indptr[row + 1], after)
                    explained = _update_belief(
                        beta, scratch, plan_p[t if plan_p.shape[0] > 1 else 0], place,
                        plan_r[t if plan_r.shape[0] > 1 else 0, s, a], seen, reward_sd,
                        use_transitions,
                    )  # fmt: skip
                    if not explained:
                        impossible[m] += 1
                s = after
            returns[m, episode] = total + factor * terminal[s, m]


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
    x, plan, tables = world, tables.problem, _frozen_tables(tables)
    seen_rewards = frozen(EMPTY_3 if next_rewards is None else next_rewards)
    returns = np.empty((x.n_models, episodes))
    impossible = np.zeros(x.n_models, dtype=np.int64)
    team = Team.of(default_threads() if threads is None else threads)
    pieces = min(x.n_models, 8 * len(team))
    edges = [x.n_models * i // pieces for i in range(pieces + 1)]

    def run(i: int) -> None:
        _episodes(
            edges[i], edges[i + 1], episodes, horizon, seed, x.indptr, x.indices, x.p, x.r,
            seen_rewards, x.initial, x.discount, x.terminal,
            tables.mode, plan.indptr, plan.indices, plan.p, plan.r, plan.allowed, plan.weights,
            plan.terminal, tables.actions, tables.probabilities, tables.q, tables.own,
            tables.values, tables.cdf, tables.exploration, tables.queries, tables.each_step,
            tables.by_rollout, tables.carry, tables.reward_sd, tables.use_transitions, returns,
            impossible,
        )  # fmt: skip

    team.each(run, list(range(pieces)))
    return returns, impossible


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
    plan, size, tables = tables.problem, tables.queries + 2, _frozen_tables(tables)
    slots = 1 << int(np.ceil(np.log2(max(4, 2 * size))))
    chosen, _ = _tree_action(
        time, state, beta, horizon, tables.queries, tables.exploration, plan.indptr,
        plan.indices, tables.cdf, plan.r, plan.allowed, plan.discount, plan.terminal,
        tables.values, tables.by_rollout, tables.actions, _U(rng.integers(2**63)), _STREAM,
        np.empty(slots, np.int64), np.empty(slots, np.int64), np.empty(size, np.int64),
        np.empty((size, plan.n_actions), np.int64), np.empty((size, plan.n_actions)),
        np.empty((horizon + 1, 3), np.int64),
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
