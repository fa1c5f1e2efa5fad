"""Episodes, many side by side and step by step: numpy, with compiled beliefs and tree searches.

The random numbers are those of :mod:`mmdp.core.kernels.sampling`. Plain loops in
``tests/core/kernels/reference.py`` say once more what an episode is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmdp.core.kernels.cpu.threads import for_each
from mmdp.core.kernels.planner import ACTIONS, PROBABILITIES, SAMPLED, VALUES, PlannerTables
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import as_readonly, at_time
from mmdp.core.kernels.sampling import (
    PLANNER_STREAM,
    SWITCH_STREAM,
    TableSampler,
    hash_uniform,
    make_episode_keys,
    sample_columns,
    sample_initial_states,
)
from mmdp.core.shapes import Array, IndexArray, Mask

MAX_LANES = 2**14  # episodes side by side
MAX_BELIEFS = 2**18  # numbers in their beliefs


def simulate(
    prepared: PreparedProblem,
    next_rewards: Array | None,
    planner: PlannerTables,
    n_episodes: int,
    seed: int,
    first_episode: int,
) -> tuple[Array, IndexArray]:
    """Run :meth:`PreparedProblem.simulate`."""
    shape = prepared.problem.n_models, n_episodes
    returns, n_unexplained = np.empty(shape), np.zeros(shape, np.int64)
    ids = np.arange(returns.size).reshape(shape)
    # threads pay only for compiled code
    n_threads = prepared.count_threads(2**62) if planner.uses_belief else 1
    if planner.carries_belief:  # from one episode of every model to the next
        tasks: list[Sequence[IndexArray]] = [list(ids.T)]
    else:
        n_lanes = min(MAX_LANES, MAX_BELIEFS // planner.problem.n_models + 1)
        n_tasks = max(-(-ids.size // n_lanes), n_threads)
        tasks = [[block] for block in np.array_split(ids.ravel(), n_tasks)]

    def run(blocks: Sequence[IndexArray]) -> None:
        models = slice(blocks[0][0] // n_episodes, blocks[-1][-1] // n_episodes + 1)
        episodes = _Episodes(prepared, models, next_rewards, planner, seed)
        for block in blocks:
            m, e = np.divmod(block, n_episodes)
            returns[m, e], n_unexplained[m, e] = episodes.run(m, first_episode + e)

    for_each(n_threads, run, tasks)
    return returns, n_unexplained.sum(axis=1)


class _Episodes:
    """Episodes (n,) of one policy that run side by side, and those that follow them."""

    def __init__(
        self,
        prepared: PreparedProblem,
        models: slice,
        next_rewards: Array | None,
        planner: PlannerTables,
        seed: int,
    ) -> None:
        self.env, self.horizon, self.next_rewards = prepared.problem, prepared.horizon, next_rewards
        self.planner, self.seed = planner, seed
        is_switching = self.env.model_transitions is not None
        self.sampler = self.env.storage.make_sampler(slice(None) if is_switching else models)
        self.learner = planner.problem.storage.make_sampler()
        self.has_same_entries = (
            isinstance(self.learner, TableSampler)
            and isinstance(self.sampler, TableSampler)
            and self.learner.table.indices is self.sampler.table.indices
        )
        self.beliefs: Array | None = None  # (n, M') over the models of the planner
        if planner.n_queries:
            from mmdp.core.kernels.cpu.tree_search import TreeSearch

            self.search = TreeSearch(planner, self.horizon)

    def run(self, models: IndexArray, episodes: IndexArray) -> tuple[Array, IndexArray]:
        """Run episodes to the end; return their returns and how many steps no model explains."""
        env, planner, n = self.env, self.planner, len(models)
        self.keys = make_episode_keys(self.seed, models, episodes)
        self.counters = np.full(n, PLANNER_STREAM, np.uint64)
        states = sample_initial_states(env, self.seed, models, episodes)
        self.memory = np.zeros(n, np.int64)  # the sampled model, or the node
        if planner.controller is not None:
            self.memory[:] = planner.controller.initial_nodes[states]
        if planner.uses_belief:
            x = planner.problem
            if self.beliefs is None:
                self.beliefs = np.tile(x.weights / x.weights.sum(), (n, 1))
            if not x.has_common_initial:
                self.beliefs = x.condition_on_initial(self.beliefs, states)
        returns, n_unexplained = np.zeros(n), np.zeros(n, np.int64)
        factor, models, lanes = 1.0, models.copy(), np.arange(n)
        for t in range(self.horizon):
            s, m = states[lanes], models[lanes]
            a = self._choose_actions(t, lanes, s)
            rows, u = s * env.n_actions + a, hash_uniform(self.keys[lanes], t + 1)
            next_states, entries = self.sampler.sample_next(t, rows, m, u)
            if next_states.min(initial=0) < 0:  # an action that this model lacks ends the episode
                left = next_states >= 0
                arrays = lanes, s, m, a, next_states, entries
                lanes, s, m, a, next_states, entries = (x[left] for x in arrays)
            # the mean reward of (s, a) has less noise than that of the drawn next state
            rewards = env.get_rewards(t, s, a, m)
            returns[lanes] += factor * rewards
            if planner.uses_belief:
                if self.next_rewards is not None:
                    rewards = at_time(self.next_rewards, t)[entries, m]
                n_unexplained[lanes] += ~self._learn(t, lanes, s, a, next_states, entries, rewards)
            if planner.controller is not None:
                nodes = at_time(planner.controller.node_transitions, t)
                self.memory[lanes] = nodes[s, self.memory[lanes], next_states]
            if env.model_transitions is not None:
                u = hash_uniform(self.keys[lanes], SWITCH_STREAM + t)
                models[lanes] = sample_columns(env.model_transitions[m], u)
            states[lanes] = next_states
            factor *= env.discount
        returns[lanes] += factor * env.terminal[states[lanes], models[lanes]]
        return returns, n_unexplained

    def _choose_actions(self, t: int, lanes: IndexArray, states: IndexArray) -> IndexArray:
        """Return (n,) the policy's actions at t in these states."""
        planner, memory = self.planner, self.memory
        if planner.mode == ACTIONS:
            return at_time(planner.actions, t)[states].astype(np.int64)
        if planner.controller is not None:
            return at_time(planner.controller.actions, t)[states, memory[lanes]].astype(np.int64)
        if planner.mode == PROBABILITIES:
            return sample_columns(at_time(planner.probabilities, t)[states], self._draw(lanes))
        assert self.beliefs is not None
        if planner.mode == SAMPLED:
            if planner.resamples_each_step or t == 0:
                memory[lanes] = sample_columns(self.beliefs[lanes], self._draw(lanes))
            return at_time(planner.model_actions, t)[states, memory[lanes]].astype(np.int64)
        if planner.mode == VALUES:
            from mmdp.core.kernels.cpu.beliefs import choose_by_values

            actions = np.empty(len(lanes), np.int64)
            q, allowed = (as_readonly(at_time(x, t)) for x in (planner.q, planner.problem.allowed))
            choose_by_values(self.beliefs, lanes, states, q, allowed, actions)
            return actions
        return self.search.choose_actions(t, lanes, states, self.beliefs, self.keys, self.counters)

    def _draw(self, lanes: IndexArray) -> Array:
        """Return the policy's next random number in each episode."""
        u = hash_uniform(self.keys[lanes], self.counters[lanes])
        self.counters[lanes] += np.uint64(1)
        return u

    def _learn(
        self,
        t: int,
        lanes: IndexArray,
        s: IndexArray,
        a: IndexArray,
        next_states: IndexArray,
        entries: IndexArray,
        rewards: Array,
    ) -> Mask:
        """Update beliefs by Bayes' rule; return (n,) whether any model explains the step."""
        from mmdp.core.kernels.cpu.beliefs import multiply_beliefs

        planner, x = self.planner, self.planner.problem
        beliefs, is_explained, rows = self.beliefs, np.ones(len(lanes), bool), s * x.n_actions + a
        assert beliefs is not None
        if planner.uses_transitions:
            if isinstance(self.learner, TableSampler):
                p, k = at_time(x.p, t), entries
                if not self.has_same_entries:
                    k = self.learner.find_entries(rows, next_states)
            else:
                p, k = self.learner.likelihood(t, rows, next_states), np.arange(len(lanes))
            multiply_beliefs(beliefs, lanes, as_readonly(p), k, is_explained)
        if planner.reward_sd > 0:
            r = x.get_rewards(t, s, a)
            distance = np.where(
                beliefs[lanes] > 0, ((rewards[:, None] - r) / planner.reward_sd) ** 2, np.inf
            )
            density = np.exp(0.5 * (distance.min(axis=1, keepdims=True) - distance))
            k = np.where(is_explained, np.arange(len(lanes)), -1)
            multiply_beliefs(beliefs, lanes, as_readonly(density), k, np.empty_like(is_explained))
        if x.model_transitions is not None:
            beliefs[lanes] = x.push_models(beliefs[lanes])
        return is_explained
