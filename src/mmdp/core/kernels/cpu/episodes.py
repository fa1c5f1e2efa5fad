"""Episodes, compiled, for every backend: all policies and planners, step by step.

The random numbers are those of :mod:`mmdp.core.kernels.random`. Plain loops in
``tests/core/kernels/reference.py`` say once more what an episode is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.cpu.jit import BASE_OPTIONS, REASSOC_OPTIONS, jit
from mmdp.core.kernels.cpu.passes import KernelArrays, at, dot, get_entry_weight
from mmdp.core.kernels.cpu.scheduler import split_ranges
from mmdp.core.kernels.cpu.threads import ThreadPool
from mmdp.core.kernels.cpu.tree_search import (
    SearchInputs,
    SearchTree,
    find_row_entries,
    get_reward,
    hash_uniform,
    make_cdf,
    sample_next,
    search_action,
)
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.operator import Operator
from mmdp.core.kernels.planner import (
    ACTIONS,
    NODES,
    PROBABILITIES,
    SAMPLED,
    TREE,
    VALUES,
    PlannerTables,
)
from mmdp.core.kernels.problem import Array, IntArray, Problem, as_readonly
from mmdp.core.kernels.random import (
    PLANNER_STREAM,
    SWITCH_STREAM,
    Ints,
    Keys,
    make_episode_keys,
    sample_initial_states,
)

MAX_TASK_MODELS = 8  # models per piece of work: one cache line of p
MAX_CACHED_BELIEFS = 2**12  # numbers that the beliefs of episodes moving together may take

# Indices are unsigned: numba then drops its test for negative ones.
_U = np.uint64


class _PolicyArrays(NamedTuple):
    """The arrays by which a planner acts (see PlannerTables)."""

    mode: int
    actions: IntArray  # (T or 1, S, N)
    node_transitions: npt.NDArray[np.uint8]  # (T or 1, S, N, S'), or of length 0
    probabilities: Array
    q: Array
    model_actions: IntArray
    resamples_each_step: bool


class _LearnerArrays(NamedTuple):
    """The models of a planner, and how it learns which of them holds."""

    x: KernelArrays
    prior: Array  # (M',)
    initial: Array  # (S, M' or 1)
    has_unique_entries: bool  # a row leads to a next state once
    carries_belief: bool
    reward_sd: float
    uses_transitions: bool


class _Lanes(NamedTuple):
    """Episodes (n,) side by side; state S: the episode has ended."""

    keys: Keys
    counters: Keys  # of the planner
    models: Keys  # that hold now
    states: Keys
    memory: Keys  # the model that is sampled, or the node
    returns: Array
    n_unexplained: Ints  # steps that no model of the planner explains

    @classmethod
    def create(cls, env: Problem, models: Ints, episodes: Ints, seed: int) -> _Lanes:
        """Make episodes before their first step."""
        n = len(models)
        return cls(
            make_episode_keys(seed, models, episodes),
            np.full(n, PLANNER_STREAM, np.uint64),
            models.astype(np.uint64),
            sample_initial_states(env, seed, models, episodes).astype(np.uint64),
            np.zeros(n, np.uint64),
            np.zeros(n),
            np.zeros(n, np.int64),
        )


@jit(**BASE_OPTIONS, helper=True)
def _choose_by_q(belief, q, allowed):  # type: ignore[no-untyped-def]
    """Return argmax_a sum_m beta_m q(a, m) over the allowed actions; ties to the lowest."""
    best, best_action = -np.inf, _U(0)
    for a in range(_U(len(q))):
        if allowed[a]:
            value = dot(belief, q[a], _U(0), _U(len(belief)))
            if value > best:
                best, best_action = value, _U(a)
    return best_action


@jit(**BASE_OPTIONS, helper=True)
def _sample_index(probs, u):  # type: ignore[no-untyped-def]
    """Return the first index at which the sum of probabilities exceeds u."""
    total, index = 0.0, _U(0)
    for i in range(_U(len(probs))):
        if probs[i] > 0.0 and total <= u:
            total += probs[i]
            index = _U(i)
    return index


@jit(**BASE_OPTIONS, helper=True)
def _choose_action(t, lane, lanes, policy, belief, learner, search):  # type: ignore[no-untyped-def]
    """Return the planner's action; advance its counter by the random numbers used."""
    s, key = lanes.states[lane], lanes.keys[lane]
    if search is not None:
        inputs, tree = search
        a, lanes.counters[lane] = search_action(
            _U(t), s, belief, key, lanes.counters[lane], inputs, tree
        )
        return a
    if policy.mode == ACTIONS:
        return _U(at(policy.actions, t)[s, lanes.memory[lane]])
    if learner is not None and policy.mode == VALUES:
        return _choose_by_q(belief, at(policy.q, t)[s], at(learner.x.allowed, t)[s])
    is_sampled = policy.mode == SAMPLED
    if is_sampled and t > 0 and not policy.resamples_each_step:
        return _U(at(policy.model_actions, t)[s, lanes.memory[lane]])
    u = hash_uniform(key, lanes.counters[lane])
    lanes.counters[lane] += _U(1)
    if is_sampled:
        lanes.memory[lane] = _sample_index(belief, u)
        return _U(at(policy.model_actions, t)[s, lanes.memory[lane]])
    return _sample_index(at(policy.probabilities, t)[s], u)


@jit(**REASSOC_OPTIONS, helper=True)
def _multiply_belief(belief, p):  # type: ignore[no-untyped-def]
    """Update a belief by likelihoods in place; return whether any model explains them."""
    n_models = _U(len(belief))
    total = dot(belief, p, _U(0), n_models)
    if total <= 0.0:
        return False
    scale = 1.0 / total
    for m in range(n_models):
        belief[m] = belief[m] * p[m] * scale
    return True


@jit(**BASE_OPTIONS, helper=True)
def _observe_transition(belief, learner, t, row, next_state, hint, scratch):  # type: ignore[no-untyped-def]
    """Update a belief by the probability of a transition, if any model explains it.

    ``hint``: the entry at which the transition is if the simulated models have this pattern.
    """
    x = learner.x
    start, stop, shift = find_row_entries(x, t, row)
    p, first, count = at(x.p, t), start, 0
    if learner.has_unique_entries and start <= hint < stop and x.indices[hint] == next_state:
        return _multiply_belief(belief, p[hint + shift])
    for k in range(start, stop):
        if x.indices[k] == next_state and get_entry_weight(x.entry_weights, k) > 0.0:
            first, count = k if count == 0 else first, count + 1
    if count == 1:  # a weight that all models share does not matter
        return _multiply_belief(belief, p[first + shift])
    scratch[:] = 0.0
    for k in range(start, stop):
        if x.indices[k] == next_state:
            weight = get_entry_weight(x.entry_weights, k)
            for m in range(_U(len(scratch))):
                scratch[m] += weight * p[k + shift, m]
    return _multiply_belief(belief, scratch)


@jit(**BASE_OPTIONS, helper=True)
def _observe_reward(belief, learner, t, s, a, reward, scratch):  # type: ignore[no-untyped-def]
    """Update a belief by the density of a reward around r."""
    min_distance = np.inf
    for m in range(_U(len(belief))):
        if belief[m] > 0.0:
            scratch[m] = ((reward - get_reward(learner.x, t, m, s, a)) / learner.reward_sd) ** 2
            min_distance = min(min_distance, scratch[m])
    for m in range(_U(len(belief))):
        scratch[m] = np.exp(0.5 * (min_distance - scratch[m])) if belief[m] > 0.0 else 0.0
    return _multiply_belief(belief, scratch)


@jit(**BASE_OPTIONS, helper=True)
def _learn(learner, K, belief, t, s, a, next_state, k, reward, scratch):  # type: ignore[no-untyped-def]
    """Update a belief after a step by Bayes' rule; return whether any model explains the step."""
    if learner is None:
        return True
    row, is_explained = s * _U(learner.x.allowed.shape[2]) + a, True
    if learner.uses_transitions:
        is_explained = _observe_transition(
            belief, learner, t, row, next_state, np.int64(k), scratch
        )
    if is_explained and learner.reward_sd > 0.0:
        _observe_reward(belief, learner, t, s, a, reward, scratch)
    if len(K) > 0:
        for m in range(_U(len(belief))):
            scratch[m] = 0.0
            for i in range(_U(len(belief))):
                scratch[m] += belief[i] * K[i, m]
        for m in range(_U(len(belief))):
            belief[m] = scratch[m]
    return is_explained


@jit(**BASE_OPTIONS, helper=True)
def _begin_episode(learner, belief, s, keeps_belief):  # type: ignore[no-untyped-def]
    """Set the belief of a new episode, given its first state."""
    if learner is not None:
        for m in range(_U(len(belief))):
            belief[m] = belief[m] if keeps_belief else learner.prior[m]
        if learner.initial.shape[1] > 1:
            _multiply_belief(belief, learner.initial[s])


@jit(**BASE_OPTIONS, helper=True)
def _carries_belief(learner):  # type: ignore[no-untyped-def]
    if learner is None:
        return False
    return learner.carries_belief


@jit(**BASE_OPTIONS, helper=True)
def _change_model(K, m, key, t):  # type: ignore[no-untyped-def]
    """Return the model after the step at t."""
    if len(K) == 0:
        return m
    return _sample_index(K[m], hash_uniform(key, _U(SWITCH_STREAM) + t))


@jit(**BASE_OPTIONS)
def _simulate(  # type: ignore[no-untyped-def]
    first_model,
    horizon,
    x,
    cdf,
    K,
    next_rewards,
    policy,
    learner,
    learner_K,
    search,
    lanes,
    beliefs,
):
    """Simulate episodes, as many at a time as beliefs (n + 1, M') has rows but one.

    cdf (T or 1, models, nnz) begins at ``first_model``; None: events.
    """
    n_states, n_actions = _U(x.allowed.shape[1]), _U(x.allowed.shape[2])
    block_size, scratch = _U(len(beliefs) - 1), beliefs[len(beliefs) - 1]
    for start in range(_U(0), _U(len(lanes.keys)), block_size):
        n_lanes, factor = min(block_size, _U(len(lanes.keys)) - start), 1.0
        for e in range(n_lanes):
            keeps_belief = start > _U(0) and _carries_belief(learner)
            _begin_episode(learner, beliefs[e], lanes.states[start + e], keeps_belief)
        for t in range(horizon):
            for e in range(n_lanes):
                lane = start + e
                s, key, m = lanes.states[lane], lanes.keys[lane], lanes.models[lane]
                if s == n_states:
                    continue
                a = _choose_action(t, lane, lanes, policy, beliefs[e], learner, search)
                next_state, k, is_available = sample_next(
                    x, cdf, t, m - first_model, s * n_actions + a, hash_uniform(key, t + _U(1))
                )
                if not is_available:  # an action that this model lacks ends the episode
                    lanes.states[lane] = n_states
                    continue
                # the mean reward of (s, a) has less noise than that of the drawn next state
                reward = get_reward(x, t, m, s, a)
                lanes.returns[lane] += factor * reward
                if len(next_rewards) > 0:
                    reward = at(next_rewards, t)[k, m]
                is_explained = _learn(
                    learner, learner_K, beliefs[e], t, s, a, next_state, k, reward, scratch
                )
                lanes.n_unexplained[lane] += not is_explained
                if len(policy.node_transitions) > 0:
                    nodes = at(policy.node_transitions, t)[s, lanes.memory[lane]]
                    lanes.memory[lane] = nodes[next_state]
                lanes.states[lane] = next_state
                lanes.models[lane] = _change_model(K, m, key, t)
            factor *= x.gamma


def simulate(
    prepared: Operator,
    next_rewards: Array | None,
    planner: PlannerTables,
    n_episodes: int,
    seed: int,
    first_episode: int,
) -> tuple[Array, Ints]:
    """Run :meth:`PreparedProblem.simulate`."""
    env, T, n_models = prepared.problem, prepared.horizon, prepared.problem.n_models
    returns = np.empty((n_models, n_episodes))
    n_unexplained = np.empty((n_models, n_episodes), np.int64)
    arrays, policy = KernelArrays.from_problem(env), _make_policy_arrays(planner)
    learner = None if planner.mode in (ACTIONS, PROBABILITIES, NODES) else _make_learner(planner)
    search_inputs = SearchInputs.create(planner, T) if planner.mode == TREE else None
    rewards = as_readonly(np.zeros((0, 1, 1)) if next_rewards is None else next_rewards)
    no_chain = np.zeros((0, 0))
    K, planner_K = (
        as_readonly(no_chain if x.model_transitions is None else x.model_transitions)
        for x in (env, planner.problem)
    )
    n_threads = prepared.get_pool(2**62).n_threads
    n_tasks = max(min(n_models, 8 * n_threads), -(-n_models // MAX_TASK_MODELS))
    model_ranges = split_ranges(n_models, n_tasks if len(K) == 0 else 1)
    is_split = len(model_ranges) < n_threads and not planner.carries_belief
    episode_ranges = split_ranges(n_episodes, n_threads if is_split else 1)

    def run(task: tuple[range, range]) -> None:
        models, episodes = task
        cdf = make_cdf(env, slice(models.start, models.stop))
        n = len(episodes)
        ids = np.repeat(models, n), first_episode + np.tile(episodes, len(models))
        all_lanes = _Lanes.create(env, *ids, seed)
        if planner.controller is not None:
            all_lanes.memory[:] = planner.controller.initial_nodes[all_lanes.states]
        beliefs = _make_beliefs(planner, n)
        for i, m in enumerate(models):
            lanes = _Lanes._make(array[i * n : i * n + n] for array in all_lanes)
            _simulate(
                _U(0 if cdf is None else models.start),
                _U(T),
                arrays,
                cdf,
                K,
                rewards,
                policy,
                learner,
                planner_K,
                search_inputs and (search_inputs, SearchTree.allocate(planner, T)),
                lanes,
                beliefs,
            )
            has_ended, window = lanes.states == env.n_states, slice(episodes.start, episodes.stop)
            terminal = env.terminal[np.where(has_ended, 0, lanes.states), lanes.models]
            returns[m, window] = lanes.returns + np.where(
                has_ended, 0.0, env.discount**T * terminal
            )
            n_unexplained[m, window] = lanes.n_unexplained

    tasks = [(models, episodes) for models in model_ranges for episodes in episode_ranges]
    ThreadPool.get(n_threads).for_each(run, tasks)
    return returns, n_unexplained.sum(axis=1)


def _make_policy_arrays(planner: PlannerTables) -> _PolicyArrays:
    """Convert the tables by which a planner acts; a policy without memory has one node."""
    actions, moves = planner.actions[:, :, None], np.zeros((0, 1, 1, 1), np.uint8)
    if planner.controller is not None:
        actions, moves = planner.controller[:2]
    return _PolicyArrays(
        ACTIONS if planner.mode == NODES else planner.mode,
        as_readonly(actions.astype(np.int32, copy=False)),
        as_readonly(moves),
        as_readonly(planner.probabilities),
        as_readonly(planner.q),
        as_readonly(planner.model_actions),
        planner.resamples_each_step,
    )


def _make_learner(planner: PlannerTables) -> _LearnerArrays:
    x = planner.problem
    return _LearnerArrays(
        KernelArrays.from_problem(x),
        as_readonly(x.weights / x.weights.sum()),
        as_readonly(x.initial),
        not isinstance(x.storage, ExogenousEvents),
        planner.carries_belief,
        planner.reward_sd,
        planner.uses_transitions,
    )


def _make_beliefs(planner: PlannerTables, n_episodes: int) -> Array:
    """Allocate the beliefs of episodes that run together, and a row of scratch."""
    n_models = planner.problem.n_models
    if planner.mode in (ACTIONS, PROBABILITIES, NODES):
        return np.empty((n_episodes + 1, 1))
    n_lanes = min(n_episodes, max(32, MAX_CACHED_BELIEFS // n_models))
    return np.empty((2 if planner.carries_belief else n_lanes + 1, n_models))
