"""Episodes and tree search in plain numpy: many episodes side by side, step by step.

Random numbers are a hash of (seed, model, episode, counter), not a stream. The same step of the
same episode draws the same number under every policy, so policies are compared on common random
numbers. The world's counters begin at 0, those by which its models change at
``SWITCH_STREAM``, the planner's at ``PLANNER_STREAM``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

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
from mmdp.core.kernels.problem import TIE_RTOL, Array, Problem, at_time
from mmdp.core.kernels.sampling import TableSampler, sample_columns

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

PLANNER_STREAM = 1 << 32
SWITCH_STREAM = 1 << 31
MAX_BATCH_BELIEFS = 2**18  # most numbers in the beliefs of episodes that run side by side
GOLDEN_RATIO = (5**0.5 - 1) / 2
_MASK_64 = (1 << 64) - 1


def splitmix64(x: Any) -> Any:
    """Hash a whole number, or an array of uint64, to 64 bits (splitmix64)."""
    x = x & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def hash_uniform(key: Any, counter: Any) -> Any:
    """Return a number in [0, 1) that is a hash of this key and counter."""
    return (splitmix64(key + (((counter + 1) * 0x9E3779B97F4A7C15) & _MASK_64)) >> 11) * 2.0**-53


def make_episode_keys(seed: int, models: Ints, episodes: Ints) -> Keys:
    """Return (n,) the random key of each episode in its model."""
    keys: Keys = splitmix64(
        splitmix64(splitmix64(seed) + models.astype(np.uint64)) + episodes.astype(np.uint64) + 1
    )
    return keys


def sample_initial_states(env: Problem, seed: int, models: Ints, episodes: Ints) -> Ints:
    """Return (n,) the initial state of each episode.

    Steps of the golden ratio spread the episodes of a model evenly over the initial
    distribution, however many there are.
    """
    u = (
        hash_uniform(make_episode_keys(seed, models, 0 * models), 0) + GOLDEN_RATIO * episodes
    ) % 1.0
    cdf = np.cumsum(env.initial.T, axis=1)  # (M or 1, S)
    if env.has_common_initial:
        states: Ints = np.searchsorted(cdf[0], u * cdf[0, -1], side="right")
        return states
    initial_states = np.empty_like(models)
    for m in np.unique(models):
        mask = models == m
        initial_states[mask] = np.searchsorted(cdf[m], u[mask] * cdf[m, -1], side="right")
    return initial_states


def match_entries(env: Problem, planner_problem: Problem) -> Ints:
    """Return (nnz,) the planner's entry for each entry of the simulated models, -1 if none."""
    env_cells = env.get_entry_rows() * env.n_states + env.indices
    planner_cells = (
        planner_problem.get_entry_rows() * planner_problem.n_states + planner_problem.indices
    )
    entries = np.searchsorted(planner_cells, env_cells)
    entries[planner_cells[np.minimum(entries, len(planner_cells) - 1)] != env_cells] = -1
    return entries


class EpisodeSimulator(Operator):
    """The simulation of episodes in the models of a prepared problem."""

    _cached_search: tuple[PlannerTables, int, TreeSearch] | None = (
        None  # the last one, and its horizon
    )

    def make_tree_search(self, planner: PlannerTables) -> TreeSearch:
        """Make the tree search of this backend."""
        return _NumpyTreeSearch(planner, self.horizon)

    def simulate(
        self,
        next_rewards: Array | None,
        planner: PlannerTables,
        n_episodes: int,
        seed: int,
        first_episode: int = 0,
    ) -> tuple[Array, Ints]:
        """Simulate episodes; return (M, n) returns and (M,) counts of unexplained steps.

        Random numbers are a hash of (seed, model, episode, counter): every backend has the
        same ones. ``first_episode`` is the number of the first episode, so that they can be
        simulated part by part.
        """
        env, tree_search = (
            self.problem,
            self.make_tree_search(planner) if planner.mode == TREE else None,
        )
        simulation = _Simulation(env, next_rewards, planner, tree_search, self.horizon, seed)
        returns = np.empty((env.n_models, n_episodes))
        n_unexplained = np.zeros(env.n_models, dtype=np.int64)
        for batch in simulation.iter_batches(first_episode, n_episodes):
            returns[batch.start_models, batch.episode_ids - first_episode] = simulation.run(batch)
            np.add.at(n_unexplained, batch.start_models, batch.n_unexplained)
        return returns, n_unexplained

    def search_action(
        self, planner: PlannerTables, time: int, state: int, belief: Array, seed: int
    ) -> int:
        """Choose one action by tree search from (time, state) with this belief (M,)."""
        cached = self._cached_search
        if cached is None or cached[0] is not planner or cached[1] != self.horizon:
            cached = self._cached_search = planner, self.horizon, self.make_tree_search(planner)
        counters = np.full(1, PLANNER_STREAM, dtype=np.uint64)
        keys, states = np.full(1, seed, dtype=np.uint64), np.full(1, state)
        return int(cached[2].choose_actions(time, states, belief[None], keys, counters)[0])


class TreeSearch(Protocol):
    """A tree search for several episodes at once."""

    def choose_actions(
        self, t: int, states: Ints, beliefs: Array, keys: Keys, counters: Keys
    ) -> Ints:
        """Return (n,) actions at t; advance the counters (n,) by the random numbers used."""
        ...


@dataclass
class _EpisodeBatch:
    """Episodes that run at the same time, each in one model; arrays of length n."""

    start_models: Ints  # at the start
    current_models: Ints  # the models that hold now
    episode_ids: Ints
    keys: Keys
    counters: Keys
    beliefs: Array  # (n, M') sums to 1
    model_or_node: Ints  # the model that is sampled, or the node of a controller
    n_unexplained: Ints


class _Simulation:
    """One simulation: the true models, the planner and the samplers of both."""

    def __init__(
        self,
        env: Problem,
        next_rewards: Array | None,
        planner: PlannerTables,
        tree_search: TreeSearch | None,
        horizon: int,
        seed: int,
    ) -> None:
        self.env, self.next_rewards, self.planner = env, next_rewards, planner
        self.horizon, self.seed = horizon, seed
        self.sampler, self.planner_sampler = (
            env.storage.make_sampler(),
            planner.problem.storage.make_sampler(),
        )
        self.tree_search = tree_search
        self.uses_belief = planner.mode not in (ACTIONS, PROBABILITIES, NODES)

    def iter_batches(self, first_episode: int, n_episodes: int) -> Iterator[_EpisodeBatch]:
        """Yield the episodes in batches; one per model at a time if beliefs are carried over."""
        prior = self.planner.problem.weights / self.planner.problem.weights.sum()
        if self.planner.carries_belief:
            models = np.arange(self.env.n_models)
            beliefs = np.tile(prior, (len(models), 1))
            for episode in range(first_episode, first_episode + n_episodes):
                batch = self._make_batch(models, np.full(len(models), episode), beliefs)
                yield batch
                beliefs = batch.beliefs
            return
        all_pairs = np.arange(self.env.n_models * n_episodes)
        for pairs in np.array_split(
            all_pairs, -(-len(all_pairs) * len(prior) // MAX_BATCH_BELIEFS)
        ):
            models, episodes = np.divmod(pairs, n_episodes)
            yield self._make_batch(
                models, first_episode + episodes, np.tile(prior, (len(pairs), 1))
            )

    def _make_batch(self, models: Ints, episode_ids: Ints, beliefs: Array) -> _EpisodeBatch:
        """Make a batch of episodes before their first step."""
        keys, n = make_episode_keys(self.seed, models, episode_ids), len(models)
        zeros = np.zeros(n, dtype=np.int64)
        counters = np.full(n, PLANNER_STREAM, dtype=np.uint64)
        return _EpisodeBatch(
            models, models, episode_ids, keys, counters, beliefs, zeros, zeros.copy()
        )

    def run(self, batch: _EpisodeBatch) -> Array:
        """Run a batch of episodes to the end; return their returns (n,)."""
        env, returns, factor = self.env, np.zeros(len(batch.start_models)), 1.0
        states = sample_initial_states(env, self.seed, batch.start_models, batch.episode_ids)
        if not self.planner.problem.has_common_initial:
            batch.beliefs = self.planner.problem.condition_on_initial(batch.beliefs, states)
        active = np.arange(len(batch.start_models))
        if self.planner.controller is not None:
            batch.model_or_node[:] = self.planner.controller.initial_nodes[states]
        for t in range(self.horizon):
            rows = states[active] * env.n_actions + self._choose_actions(
                batch, active, t, states[active]
            )
            next_states = self.sampler.sample_next(
                t, rows, batch.current_models[active], hash_uniform(batch.keys[active], t + 1)
            )
            # an action that this model lacks ends the episode with nothing
            active, rows, next_states = (
                array[next_states >= 0] for array in (active, rows, next_states)
            )
            # the mean reward of (s, a) has less noise than that of the drawn next state
            rewards = env.get_rewards(
                t, *np.divmod(rows, env.n_actions), batch.current_models[active]
            )
            returns[active] += factor * rewards
            if self.uses_belief:
                if self.next_rewards is not None:
                    assert isinstance(self.sampler, TableSampler)
                    entries = self.sampler.find_entries(rows, next_states)
                    rewards = at_time(self.next_rewards, t)[entries, batch.current_models[active]]
                self._update_beliefs(batch, active, rows, next_states, rewards, t)
            if self.planner.controller is not None:
                nodes = at_time(self.planner.controller.node_transitions, t)[
                    states[active], batch.model_or_node[active]
                ]
                batch.model_or_node[active] = nodes[np.arange(len(active)), next_states]
            states[active] = next_states
            batch.current_models = env.sample_next_models(
                batch.current_models, partial(self._sample_models, batch, t)
            )
            factor *= env.discount
        returns[active] += factor * env.terminal[states[active], batch.current_models[active]]
        return returns

    def _sample_models(self, batch: _EpisodeBatch, t: int, probs: Array) -> Ints:
        """Sample the models after the step at t by their probabilities (n, M)."""
        return sample_columns(probs, hash_uniform(batch.keys, SWITCH_STREAM + t))

    def _choose_actions(self, batch: _EpisodeBatch, active: Ints, t: int, states: Ints) -> Ints:
        """Return (n,) the planner's actions at t in these states."""
        planner = self.planner
        if planner.mode == ACTIONS:
            return at_time(planner.actions, t)[states].astype(np.int64)
        if planner.controller is not None:
            return at_time(planner.controller.actions, t)[
                states, batch.model_or_node[active]
            ].astype(np.int64)
        if planner.mode == PROBABILITIES:
            return sample_columns(
                at_time(planner.probabilities, t)[states], self._next_uniform(batch, active)
            )
        if planner.mode == VALUES:
            return _choose_by_q(batch.beliefs[active], planner, t, states)
        if planner.mode == SAMPLED:
            if planner.resamples_each_step or t == 0:
                batch.model_or_node[active] = sample_columns(
                    batch.beliefs[active], self._next_uniform(batch, active)
                )
            return at_time(planner.model_actions, t)[states, batch.model_or_node[active]].astype(
                np.int64
            )
        assert self.tree_search is not None
        counters = batch.counters[active]
        actions = self.tree_search.choose_actions(
            t, states, batch.beliefs[active], batch.keys[active], counters
        )
        batch.counters[active] = counters
        return actions

    def _next_uniform(self, batch: _EpisodeBatch, active: Ints) -> Array:
        """Return the planner's next random number in each episode."""
        u: Array = hash_uniform(batch.keys[active], batch.counters[active])
        batch.counters[active] += np.uint64(1)
        return u

    def _update_beliefs(
        self,
        batch: _EpisodeBatch,
        active: Ints,
        rows: Ints,
        next_states: Ints,
        rewards: Array,
        t: int,
    ) -> None:
        """Update beliefs by Bayes' rule; count steps that no model explains and ignore them."""
        planner, beliefs = self.planner, batch.beliefs[active]
        if planner.uses_transitions:
            beliefs = beliefs * self.planner_sampler.likelihood(t, rows, next_states)
        if planner.reward_sd > 0.0:
            r = planner.problem.get_rewards(t, *np.divmod(rows, planner.problem.n_actions))
            distance = np.where(
                beliefs > 0.0, ((rewards[:, None] - r) / planner.reward_sd) ** 2, np.inf
            )
            min_distance = distance.min(axis=1, keepdims=True)
            with np.errstate(invalid="ignore"):  # no model explains the step
                beliefs = np.where(
                    beliefs > 0.0, beliefs * np.exp(0.5 * (min_distance - distance)), 0.0
                )
        mass = beliefs.sum(axis=1)
        is_explained = mass > 0.0
        batch.n_unexplained[active] += ~is_explained
        beliefs[is_explained] /= mass[is_explained, None]
        beliefs[~is_explained] = batch.beliefs[active[~is_explained]]
        batch.beliefs[active] = planner.problem.push_models(beliefs)


def _choose_by_q(beliefs: Array, planner: PlannerTables, t: int, states: Ints) -> Ints:
    """Return (n,) argmax_a sum_m beta_m q(a, m) over the allowed actions; ties to the lowest."""
    allowed, actions = at_time(planner.problem.allowed, t), np.empty(len(states), dtype=np.int64)
    for s in np.unique(states):
        mask, feasible = states == s, np.flatnonzero(allowed[s])
        actions[mask] = feasible[
            (beliefs[mask] @ at_time(planner.q, t)[s, feasible].T).argmax(axis=1)
        ]
    return actions


class _SearchNode:
    """A history after the root: visits, and tries and sums of each action."""

    def __init__(self, n_actions: int) -> None:
        self.n_visits = 0
        self.n_tried, self.sums = [0] * n_actions, [0.0] * n_actions
        self.children: dict[tuple[int, int], _SearchNode] = {}


class _NumpyTreeSearch:
    """A UCB tree search with models sampled from the belief at the root (POMCP).

    A node is a history after the root: its children are keyed on (action, next state). Each
    query adds one node, valued by ``values`` of a policy, or by a rollout. If values are given,
    a node keeps returns minus the value of its state in the drawn model: that difference
    compares actions just as well, without the spread between models.
    """

    def __init__(self, planner: PlannerTables, horizon: int) -> None:
        self.planner, self.problem, self.horizon = planner, planner.problem, horizon
        self.sampler = planner.problem.storage.make_sampler()
        self.is_centered = len(planner.values) > 0

    def choose_actions(
        self, t: int, states: Ints, beliefs: Array, keys: Keys, counters: Keys
    ) -> Ints:
        actions = np.empty(len(states), dtype=np.int64)
        for n, s in enumerate(states.tolist()):
            self.key, self.counter = int(keys[n]), int(counters[n])
            actions[n] = self._choose_action(t, s, beliefs[n])
            counters[n] = self.counter
        return actions

    def _choose_action(self, t: int, s: int, belief: Array) -> int:
        """Return the action with the best mean at the root."""
        cdf, root = np.cumsum(belief), _SearchNode(self.problem.n_actions)
        for _ in range(self.planner.n_queries):
            m = int(np.searchsorted(cdf, self._next_uniform() * cdf[-1], side="right"))
            self._run_query(root, t, s, m)
        means = [z / n if n else -math.inf for z, n in zip(root.sums, root.n_tried, strict=True)]
        return means.index(max(means))

    def _run_query(self, node: _SearchNode, t: int, s: int, m: int) -> None:
        """Follow the tree in model m to a new node, and add its value to all nodes on the way."""
        x, path = self.problem, []
        while True:
            a = self._choose_by_ucb(node, t, s)
            path.append((node, t, s, a))
            s, t = self._sample_next(t, s, a, m), t + 1
            if t == self.horizon:
                value = float(x.terminal[s, m])
                break
            child = node.children.get((a, s))
            if child is None:
                node.children[a, s] = _SearchNode(x.n_actions)
                value = self._evaluate_leaf(t, s, m)
                break
            node = child
        for node, t, s, a in reversed(path):
            value = float(x.get_rewards(t, s, a, m)) + x.discount * value
            node.n_visits += 1
            node.n_tried[a] += 1
            node.sums[a] += value - (self.planner.values[t, s, m] if self.is_centered else 0.0)

    def _choose_by_ucb(self, node: _SearchNode, t: int, s: int) -> int:
        """Return the action with the highest upper confidence bound; untried ones come first."""
        best, best_action, exploration = -math.inf, 0, float(self.planner.exploration[t])
        for a in np.flatnonzero(at_time(self.problem.allowed, t)[s]).tolist():
            n = node.n_tried[a]
            if n == 0:
                return int(a)
            score = node.sums[a] / n + exploration * math.sqrt(math.log(node.n_visits) / n)
            if score > best + TIE_RTOL * (abs(score) + exploration):
                best, best_action = score, a
        return best_action

    def _evaluate_leaf(self, t: int, s: int, m: int) -> float:
        """Return the value of a new node: known, or by simulating the policy or random actions."""
        x, planner = self.problem, self.planner
        if self.is_centered and not planner.uses_rollout:
            return float(planner.values[t, s, m])
        total, factor = 0.0, 1.0
        for time in range(t, self.horizon):
            if len(planner.actions):
                a = int(planner.actions[time, s])
            else:
                feasible = np.flatnonzero(at_time(x.allowed, time)[s])
                a = int(feasible[int(self._next_uniform() * len(feasible))])
            total += factor * float(x.get_rewards(time, s, a, m))
            factor *= x.discount
            s = self._sample_next(time, s, a, m)
        return total + factor * float(x.terminal[s, m])

    def _sample_next(self, t: int, s: int, a: int, m: int) -> int:
        """Sample the next state of (s, a) in model m."""
        row, u = s * self.problem.n_actions + a, np.array([self._next_uniform()])
        next_state = int(self.sampler.sample_next(t, np.array([row]), np.array([m]), u)[0])
        # an action that this model lacks pays nothing, wherever it leads
        return (
            next_state
            if next_state >= 0
            else int(self.problem.storage.get_row(t, row).next_states[-1])
        )

    def _next_uniform(self) -> float:
        self.counter += 1
        return float(hash_uniform(self.key, self.counter - 1))
