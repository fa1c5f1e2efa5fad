"""Compiled episodes: Markov policies and planners with an exact belief over their models.

The random numbers, and what an episode is, are those of :mod:`mmdp.core.kernels.numpy.episodes`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.layout import CpuTableProblem
from mmdp.core.kernels.cpu.passes import KernelArrays
from mmdp.core.kernels.cpu.scheduler import split_ranges
from mmdp.core.kernels.cpu.threads import ThreadPool
from mmdp.core.kernels.cpu.tree_search import (
    CpuTreeSearch,
    get_reward,
    hash_uniform,
    sample_next_by_event,
    search_cdf,
)
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.numpy.episodes import (
    PLANNER_STREAM,
    Ints,
    Keys,
    TreeSearch,
    make_episode_keys,
    match_entries,
    sample_initial_states,
)
from mmdp.core.kernels.planner import NODES, SAMPLED, TREE, VALUES, PlannerTables
from mmdp.core.kernels.problem import Array, IntArray, Problem, TableStorage, as_readonly
from mmdp.core.kernels.rewards import Rewards
from mmdp.core.kernels.sampling import cumsum_rows

MAX_TASK_MODELS = 8  # models per piece of work: one cache line of p
MAX_CACHED_BELIEFS = 2**12  # numbers that the beliefs of episodes moving together may take

# Indices are unsigned: numba then drops its test for negative ones.
_U = np.uint64


class _EnvArrays(NamedTuple):
    """The models that episodes run in."""

    x: KernelArrays
    next_rewards: Array  # (T or 1, nnz, M) rewards by next state; length 0: r is seen


class _EpisodeLanes(NamedTuple):
    """The episodes (n,) of one model; state S: the episode has ended."""

    keys: Keys
    counters: Keys
    states: Keys
    returns: Array


class _PlannerArrays(NamedTuple):
    """The arrays by which a planner acts and learns (see PlannerTables)."""

    prior: Array
    planner_entries: Ints  # (nnz,) entry of the planner's pattern for each of the world's, or -1
    p: Array
    r: Array  # (T or 1, S * A, M')
    allowed: npt.NDArray[np.bool_]
    q: Array  # (T or 1, S * A, M'), length 0: act by a sampled model's ``own``
    model_actions: IntArray
    resamples_each_step: bool
    carries_belief: bool
    reward_sd: float
    uses_transitions: bool


@jit(**BASE_OPTIONS, helper=True)
def _sample_entry(cdf, indptr, row, key, t):  # type: ignore[no-untyped-def]
    """Sample an entry of the tables for this step; return nnz if the model lacks the action."""
    start, stop = _U(indptr[row]), _U(indptr[row + _U(1)])
    if start == stop or cdf[stop - _U(1)] == 0.0:
        return _U(len(cdf))
    return search_cdf(cdf, start, stop, hash_uniform(key, t + _U(1)))


@jit(**BASE_OPTIONS)
def _simulate_markov(m, horizon, n_states, env, cdf, actions, probabilities, lanes):  # type: ignore[no-untyped-def]
    """Simulate a Markov policy in model m with cumulative probabilities cdf (T or 1, nnz).

    The policy is actions (T or 1, S), or probabilities (T or 1, S, A) if that has a length.
    """
    x, factor, n_actions = env.x, 1.0, _U(env.x.allowed.shape[2])
    for t in range(horizon):
        cdf_t = cdf[t if len(cdf) > 1 else _U(0)]
        for e in range(_U(len(lanes.keys))):
            s = lanes.states[e]
            if s == n_states:
                continue
            if len(probabilities) == 0:
                a = _U(actions[t if len(actions) > 1 else _U(0), s])
            else:
                u, total, a = hash_uniform(lanes.keys[e], lanes.counters[e]), 0.0, _U(0)
                lanes.counters[e] += _U(1)
                p = probabilities[t if len(probabilities) > 1 else _U(0), s]
                for candidate in range(n_actions):
                    if total <= u and p[candidate] > 0.0:
                        total += p[candidate]
                        a = _U(candidate)
            row = s * n_actions + a
            if len(cdf_t) == 0:
                next_state = sample_next_by_event(
                    x, t, m, row, hash_uniform(lanes.keys[e], t + _U(1))
                )
            else:
                k = _sample_entry(cdf_t, x.indptr, row, lanes.keys[e], t)
                if k == _U(len(cdf_t)):  # an action that this model lacks ends the episode
                    lanes.states[e] = n_states
                    continue
                next_state = _U(x.indices[k])
            # the mean reward of (s, a) has less noise than that of the drawn next state
            lanes.returns[e] += factor * get_reward(x, t, m, s, a)
            lanes.states[e] = next_state
        factor *= x.gamma


@jit(**REASSOC_OPTIONS, helper=True)
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(len(x))):
        total += x[m] * y[m]
    return total


@jit(**REASSOC_OPTIONS, helper=True)
def _update_belief(belief, uses_transitions, p, reward_sd, r, reward):  # type: ignore[no-untyped-def]
    """Update a belief by Bayes' rule in place, with likelihoods p (M') and that of the reward.

    Returns whether any model explains the step; if none does, the belief stays.
    """
    n_models = _U(len(belief))
    if uses_transitions:
        total = _dot(belief, p)
        if total <= 0.0:
            return False
        scale = 1.0 / total
        for m in range(n_models):
            belief[m] = belief[m] * p[m] * scale
    if reward_sd > 0.0:
        min_distance, total = np.inf, 0.0
        for m in range(n_models):
            if belief[m] > 0.0:
                min_distance = min(min_distance, ((reward - r[m]) / reward_sd) ** 2)
        for m in range(n_models):
            if belief[m] > 0.0:
                distance = ((reward - r[m]) / reward_sd) ** 2
                belief[m] *= np.exp(0.5 * (min_distance - distance))
                total += belief[m]
        for m in range(n_models):
            belief[m] /= total
    return True


@jit(**BASE_OPTIONS, helper=True)
def _choose_by_q(belief, q, allowed, s):  # type: ignore[no-untyped-def]
    """Return argmax_a sum_m beta_m q(a, m) over the allowed actions; ties to the lowest."""
    best, best_action, n_actions = -np.inf, _U(0), _U(allowed.shape[1])
    for a in range(n_actions):
        if allowed[s, a]:
            value = _dot(belief, q[s * n_actions + a])
            if value > best:
                best, best_action = value, _U(a)
    return best_action


@jit(**BASE_OPTIONS, helper=True)
def _sample_model(belief, u):  # type: ignore[no-untyped-def]
    """Return the first model at which the cumulative belief exceeds u."""
    total, model = 0.0, _U(0)
    for m in range(_U(len(belief))):
        if belief[m] > 0.0 and total <= u:
            total += belief[m]
            model = _U(m)
    return model


@jit(**BASE_OPTIONS)
def _simulate_planner(m, horizon, env, cdf, planner, lanes, beliefs, sampled_models):  # type: ignore[no-untyped-def]
    """Simulate a planner in model m, as many episodes at a time as beliefs (n, M') has rows.

    Returns how many steps no model of the planner explains.
    """
    n_states, n_actions = _U(planner.allowed.shape[1]), _U(planner.allowed.shape[2])
    block_size, n_unexplained = _U(len(beliefs)), 0
    for block_start in range(_U(0), _U(len(lanes.keys)), block_size):
        n_lanes = min(block_size, _U(len(lanes.keys)) - block_start)
        if block_start == _U(0) or not planner.carries_belief:
            for e in range(n_lanes):
                for i in range(_U(len(planner.prior))):
                    beliefs[e, i] = planner.prior[i]
        factor = 1.0
        for t in range(horizon):
            cdf_t, r_t = (
                cdf[t if len(cdf) > 1 else _U(0)],
                env.x.r[t if len(env.x.r) > 1 else _U(0)],
            )
            p_t, planner_r = (
                planner.p[t if len(planner.p) > 1 else _U(0)],
                planner.r[t if len(planner.r) > 1 else _U(0)],
            )
            allowed_t = planner.allowed[t if len(planner.allowed) > 1 else _U(0)]
            for e in range(n_lanes):
                lane, belief = block_start + e, beliefs[e]
                s, key = lanes.states[lane], lanes.keys[lane]
                if s == n_states:
                    continue
                if len(planner.q) > 0:
                    a = _choose_by_q(
                        belief, planner.q[t if len(planner.q) > 1 else _U(0)], allowed_t, s
                    )
                else:
                    if planner.resamples_each_step or t == _U(0):
                        sampled_models[e] = _sample_model(
                            belief, hash_uniform(key, lanes.counters[lane])
                        )
                        lanes.counters[lane] += _U(1)
                    a = _U(
                        planner.model_actions[
                            t if len(planner.model_actions) > 1 else _U(0), s, sampled_models[e]
                        ]
                    )
                row = s * n_actions + a
                k = _sample_entry(cdf_t, env.x.indptr, row, key, t)
                if k == _U(len(cdf_t)):
                    lanes.states[lane] = n_states
                    continue
                reward = r_t[s, a, m]
                lanes.returns[lane] += factor * reward
                if len(env.next_rewards) > 0:
                    reward = env.next_rewards[t if len(env.next_rewards) > 1 else _U(0), k, m]
                planner_entry, uses_transitions = (
                    planner.planner_entries[k],
                    planner.uses_transitions,
                )
                if (uses_transitions and planner_entry < 0) or not _update_belief(
                    belief,
                    uses_transitions,
                    p_t[_U(max(planner_entry, 0))],
                    planner.reward_sd,
                    planner_r[row],
                    reward,
                ):
                    n_unexplained += 1
                lanes.states[lane] = _U(env.x.indices[k])
            factor *= env.x.gamma
    return n_unexplained


class CpuEpisodeSimulator(CpuTableProblem):
    """The simulation of episodes on the CPU."""

    def make_tree_search(self, planner: PlannerTables) -> TreeSearch:
        return CpuTreeSearch(planner, self.horizon, self.n_threads)

    def simulate(
        self,
        next_rewards: Array | None,
        planner: PlannerTables,
        n_episodes: int,
        seed: int,
        first_episode: int = 0,
    ) -> tuple[Array, Ints]:
        # the search takes all the time; nodes need no belief; numpy has beliefs that move, that the
        # first state changes or that learn from events
        planner_problem, uses_belief = planner.problem, planner.mode in (VALUES, SAMPLED)
        has_events = isinstance(self.problem.storage, ExogenousEvents)
        has_tables = all(
            isinstance(y.storage, TableStorage) for y in (self.problem, planner_problem)
        )
        needs_numpy = (
            planner.mode in (TREE, NODES)
            or planner_problem.model_transitions is not None
            or not planner_problem.has_common_initial
        )
        if needs_numpy or not (has_tables or (has_events and not uses_belief)):
            return super().simulate(next_rewards, planner, n_episodes, seed, first_episode)
        x, horizon, n_models = self.problem, self.horizon, self.problem.n_models
        returns, n_unexplained = (
            np.empty((n_models, n_episodes)),
            np.zeros(n_models, dtype=np.int64),
        )
        env_rewards = np.zeros((0, 1, 1)) if next_rewards is None else next_rewards
        env = _EnvArrays(self.arrays, as_readonly(env_rewards))
        planner_arrays = _make_planner_arrays(x, planner) if uses_belief else None
        actions, probabilities = as_readonly(planner.actions), as_readonly(planner.probabilities)

        def run(models: range) -> None:
            cdfs = np.empty((1, len(models), 0))
            if not has_events:
                cdfs = cumsum_rows(x.p[:, :, models.start : models.stop], x.indptr)
            all_lanes = _make_lanes(x, models, first_episode, n_episodes, seed)
            for i, m in enumerate(models):
                cdf, lanes = (
                    np.ascontiguousarray(cdfs[:, i]),
                    _EpisodeLanes(*(z[i] for z in all_lanes)),
                )
                if planner_arrays is None:
                    size = _U(horizon), _U(x.n_states)
                    _simulate_markov(_U(m), *size, env, cdf, actions, probabilities, lanes)
                else:
                    belief_buffers = _make_belief_buffers(planner, n_episodes)
                    n_unexplained[m] = _simulate_planner(
                        m, _U(horizon), env, cdf, planner_arrays, lanes, *belief_buffers
                    )
                has_ended = lanes.states == x.n_states
                terminal = x.terminal[np.where(has_ended, 0, lanes.states), m]
                returns[m] = lanes.returns + np.where(
                    has_ended, 0.0, x.discount**horizon * terminal
                )

        n_tasks = max(min(n_models, 8 * self.n_threads), -(-n_models // MAX_TASK_MODELS))
        ThreadPool.get(self.n_threads).for_each(run, split_ranges(n_models, n_tasks))
        return returns, n_unexplained


def _flatten_pairs(x: Rewards) -> Array:
    """Reshape (T, S, A, M) to (T, S * A, M), row s * A + a."""
    return as_readonly(np.asarray(x).reshape(len(x), x.shape[1] * x.shape[2], x.shape[3]))


def _make_planner_arrays(env: Problem, planner: PlannerTables) -> _PlannerArrays:
    """Convert the tables of a planner to the arrays of the compiled code."""
    x = planner.problem
    return _PlannerArrays(
        as_readonly(x.weights / x.weights.sum()),
        as_readonly(match_entries(env, x)),
        x.p,
        _flatten_pairs(x.r),
        x.allowed,
        _flatten_pairs(planner.q),
        as_readonly(planner.model_actions),
        planner.resamples_each_step,
        planner.carries_belief,
        planner.reward_sd,
        planner.uses_transitions,
    )


def _make_lanes(
    env: Problem, models: range, first_episode: int, n_episodes: int, seed: int
) -> _EpisodeLanes:
    """Make (models, n) episodes before their first step."""
    shape = len(models), n_episodes
    episode_ids = np.tile(np.arange(first_episode, first_episode + n_episodes), len(models))
    model_ids = np.repeat(models, n_episodes)
    keys, states = (
        make_episode_keys(seed, model_ids, episode_ids),
        sample_initial_states(env, seed, model_ids, episode_ids),
    )
    return _EpisodeLanes(
        keys.reshape(shape),
        np.full(shape, PLANNER_STREAM, np.uint64),
        states.astype(np.uint64).reshape(shape),
        np.zeros(shape),
    )


def _make_belief_buffers(planner: PlannerTables, n_episodes: int) -> tuple[Array, Keys]:
    """Allocate beliefs and sampled models of episodes that run together."""
    n_models = planner.problem.n_models
    n_lanes = (
        1 if planner.carries_belief else min(n_episodes, max(32, MAX_CACHED_BELIEFS // n_models))
    )
    return np.empty((n_lanes, n_models)), np.zeros(n_lanes, np.uint64)
