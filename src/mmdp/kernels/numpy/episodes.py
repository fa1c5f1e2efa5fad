"""Episodes and tree search in plain numpy: many episodes side by side, step by step.

Random numbers are a hash of (seed, model, episode, counter), not a stream. The same step of the
same episode draws the same number under every policy, so policies are compared on common random
numbers. The world's counters begin at 0, those by which its models change at ``CHANGES``, the
planner's at ``STREAM``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.kernels.moves import TableMoves, column
from mmdp.kernels.operator import Operator
from mmdp.kernels.planner import (
    ACTIONS,
    NODES,
    PROBABILITIES,
    SAMPLED,
    TREE,
    VALUES,
    PlannerTables,
)
from mmdp.kernels.problem import TIE, Array, Problem, at

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

STREAM = 1 << 32
CHANGES = 1 << 31
AT_ONCE = 2**18  # most numbers in the beliefs of episodes that run side by side
GOLDEN = (5**0.5 - 1) / 2
_WORD = (1 << 64) - 1


def mix(x: Any) -> Any:
    """splitmix64, a 64-bit hash with good diffusion, of a whole number or an array of uint64."""
    x = x & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def uniform(key: Any, counter: Any) -> Any:
    """Uniform in [0, 1) for this key and counter."""
    return (mix(key + (((counter + 1) * 0x9E3779B97F4A7C15) & _WORD)) >> 11) * 2.0**-53


def keys_of(seed: int, models: Ints, episodes: Ints) -> Keys:
    """(n,) the key of each episode in its model."""
    keys: Keys = mix(mix(mix(seed) + models.astype(np.uint64)) + episodes.astype(np.uint64) + 1)
    return keys


def first_states(world: Problem, seed: int, models: Ints, episodes: Ints) -> Ints:
    """(n,) where each episode begins.

    Steps of the golden ratio spread the episodes of a model evenly over the initial
    distribution, however many there are.
    """
    u = (uniform(keys_of(seed, models, 0 * models), 0) + GOLDEN * episodes) % 1.0
    start = np.cumsum(world.initial.T, axis=1)  # (M or 1, S)
    if world.same_start:
        states: Ints = np.searchsorted(start[0], u * start[0, -1], side="right")
        return states
    found = np.empty_like(models)
    for m in np.unique(models):
        own = models == m
        found[own] = np.searchsorted(start[m], u[own] * start[m, -1], side="right")
    return found


def places(world: Problem, plan: Problem) -> Ints:
    """(nnz,) entry of the planner's pattern for every entry of the world's, -1 if none."""
    wanted = world.rows() * world.n_states + world.indices
    known = plan.rows() * plan.n_states + plan.indices
    at = np.searchsorted(known, wanted)
    at[known[np.minimum(at, len(known) - 1)] != wanted] = -1
    return at


class Episodes(Operator):
    """The episodes part of a plan, which is that of the models they are drawn from."""

    _searched: tuple[PlannerTables, int, Tree] | None = None  # the last one, and its horizon

    def tree(self, planner: PlannerTables) -> Tree:
        """The search of this machine."""
        return _Tree(planner, self.horizon)

    def simulate(
        self, next_rewards: Array | None, planner: PlannerTables, episodes: int, seed: int,
        first: int = 0,
    ) -> tuple[Array, Ints]:  # fmt: skip
        """((M, episodes) returns, (M,) transitions that no model of the planner explains).

        Random numbers are a hash of (seed, model, episode, counter): every machine draws the
        same ones. ``first`` is the number of the first episode, so that they can be simulated
        part by part.
        """
        world, tree = self.problem, self.tree(planner) if planner.mode == TREE else None
        setting = _Setting(world, next_rewards, planner, tree, self.horizon, seed)
        returns = np.empty((world.n_models, episodes))
        impossible = np.zeros(world.n_models, dtype=np.int64)
        for some in setting.portions(first, episodes):
            returns[some.models, some.episodes - first] = setting.run(some)
            np.add.at(impossible, some.models, some.impossible)
        return returns, impossible

    def search(
        self, planner: PlannerTables, time: int, state: int, belief: Array, seed: int
    ) -> int:
        """One decision of the tree search from (time, state) with this belief (M,)."""
        known = self._searched
        if known is None or known[0] is not planner or known[1] != self.horizon:
            known = self._searched = planner, self.horizon, self.tree(planner)
        counters = np.full(1, STREAM, dtype=np.uint64)
        keys, states = np.full(1, seed, dtype=np.uint64), np.full(1, state)
        return int(known[2].decide(time, states, belief[None], keys, counters)[0])


class Tree(Protocol):
    """A search for several episodes side by side."""

    def decide(self, t: int, states: Ints, beliefs: Array, keys: Keys, counters: Keys) -> Ints:
        """(n,) actions at t; counters (n,) move on by the numbers drawn."""
        ...


@dataclass
class _Episodes:
    """Episodes that run side by side, each in a model; arrays of length n."""

    models: Ints  # at the start
    now: Ints  # the models that hold now
    episodes: Ints
    keys: Keys
    counters: Keys
    beliefs: Array  # (n, M') sums to 1
    sampled: Ints  # the model that is sampled, or the node of a controller
    impossible: Ints


class _Setting:
    """One simulation: the world, the planner and the tables that both need."""

    def __init__(
        self, world: Problem, next_rewards: Array | None, planner: PlannerTables,
        tree: Tree | None, horizon: int, seed: int,
    ) -> None:  # fmt: skip
        self.world, self.next_rewards, self.planner = world, next_rewards, planner
        self.horizon, self.seed = horizon, seed
        self.moves, self.known = world.storage.moves(), planner.problem.storage.moves()
        self.tree = tree
        self.learns = planner.mode not in (ACTIONS, PROBABILITIES, NODES)

    def portions(self, first: int, count: int) -> Any:
        """The episodes in portions; if they carry their beliefs on, one per model at a time."""
        prior = self.planner.problem.weights / self.planner.problem.weights.sum()
        if self.planner.carry:
            models = np.arange(self.world.n_models)
            beliefs = np.tile(prior, (len(models), 1))
            for episode in range(first, first + count):
                some = self._portion(models, np.full(len(models), episode), beliefs)
                yield some
                beliefs = some.beliefs
            return
        every = np.arange(self.world.n_models * count)
        for part in np.array_split(every, -(-len(every) * len(prior) // AT_ONCE)):
            models, episodes = np.divmod(part, count)
            yield self._portion(models, first + episodes, np.tile(prior, (len(part), 1)))

    def _portion(self, models: Ints, episodes: Ints, beliefs: Array) -> _Episodes:
        keys, n = keys_of(self.seed, models, episodes), len(models)
        nothing = np.zeros(n, dtype=np.int64)
        counters = np.full(n, STREAM, dtype=np.uint64)
        return _Episodes(models, models, episodes, keys, counters, beliefs, nothing, nothing.copy())

    def run(self, x: _Episodes) -> Array:
        """(n,) returns."""
        world, totals, factor = self.world, np.zeros(len(x.models)), 1.0
        states = first_states(world, self.seed, x.models, x.episodes)
        if not self.planner.problem.same_start:
            x.beliefs = self.planner.problem.seen_first(x.beliefs, states)
        live = np.arange(len(x.models))
        if self.planner.controller is not None:
            x.sampled[:] = self.planner.controller.first[states]
        for t in range(self.horizon):
            rows = states[live] * world.n_actions + self._actions(x, live, t, states[live])
            after = self.moves.drawn(t, rows, x.now[live], uniform(x.keys[live], t + 1))
            # an action that this model lacks ends the episode with nothing
            live, rows, after = (part[after >= 0] for part in (live, rows, after))
            # the mean reward of (s, a) has less noise than that of the drawn next state
            rewards = world.paid(t, *np.divmod(rows, world.n_actions), x.now[live])
            totals[live] += factor * rewards
            if self.learns:
                if self.next_rewards is not None:
                    assert isinstance(self.moves, TableMoves)
                    entries = self.moves.entries(rows, after)
                    rewards = at(self.next_rewards, t)[entries, x.now[live]]
                self._observe(x, live, rows, after, rewards, t)
            if self.planner.controller is not None:
                nodes = at(self.planner.controller.moves, t)[states[live], x.sampled[live]]
                x.sampled[live] = nodes[np.arange(len(live)), after]
            states[live] = after
            x.now = world.turned(x.now, partial(self._turn, x, t))
            factor *= world.discount
        totals[live] += factor * world.terminal[states[live], x.now[live]]
        return totals

    def _turn(self, x: _Episodes, t: int, chances: Array) -> Ints:
        """The models after the step at t, drawn by their chances (n, M)."""
        return column(chances, uniform(x.keys, CHANGES + t))

    def _actions(self, x: _Episodes, live: Ints, t: int, states: Ints) -> Ints:
        """(n,) what the planner does at t in these states."""
        plan = self.planner
        if plan.mode == ACTIONS:
            return at(plan.actions, t)[states].astype(np.int64)
        if plan.controller is not None:
            return at(plan.controller.actions, t)[states, x.sampled[live]].astype(np.int64)
        if plan.mode == PROBABILITIES:
            return column(at(plan.probabilities, t)[states], self._random(x, live))
        if plan.mode == VALUES:
            return _by_value(x.beliefs[live], plan, t, states)
        if plan.mode == SAMPLED:
            if plan.each_step or t == 0:
                x.sampled[live] = column(x.beliefs[live], self._random(x, live))
            return at(plan.own, t)[states, x.sampled[live]].astype(np.int64)
        assert self.tree is not None
        counters = x.counters[live]
        actions = self.tree.decide(t, states, x.beliefs[live], x.keys[live], counters)
        x.counters[live] = counters
        return actions

    def _random(self, x: _Episodes, live: Ints) -> Array:
        """The planner's next random number in each episode."""
        u: Array = uniform(x.keys[live], x.counters[live])
        x.counters[live] += np.uint64(1)
        return u

    def _observe(
        self, x: _Episodes, live: Ints, rows: Ints, after: Ints, rewards: Array, t: int
    ) -> None:
        """Bayes' rule; a step that no model explains leaves the belief unchanged and is counted."""
        plan, new = self.planner, x.beliefs[live]
        if plan.use_transitions:
            new = new * self.known.likelihood(t, rows, after)
        if plan.reward_sd > 0.0:
            r = plan.problem.paid(t, *np.divmod(rows, plan.problem.n_actions))
            distance = np.where(new > 0.0, ((rewards[:, None] - r) / plan.reward_sd) ** 2, np.inf)
            closest = distance.min(axis=1, keepdims=True)
            with np.errstate(invalid="ignore"):  # no model explains the step
                new = np.where(new > 0.0, new * np.exp(0.5 * (closest - distance)), 0.0)
        mass = new.sum(axis=1)
        explained = mass > 0.0
        x.impossible[live] += ~explained
        new[explained] /= mass[explained, None]
        new[~explained] = x.beliefs[live[~explained]]
        x.beliefs[live] = plan.problem.moved(new)


def _by_value(beliefs: Array, plan: PlannerTables, t: int, states: Ints) -> Ints:
    """(n,) argmax_a sum_m beta_m q(a, m) over the allowed actions, ties to the lowest."""
    allowed, actions = at(plan.problem.allowed, t), np.empty(len(states), dtype=np.int64)
    for s in np.unique(states):
        here, some = states == s, np.flatnonzero(allowed[s])
        actions[here] = some[(beliefs[here] @ at(plan.q, t)[s, some].T).argmax(axis=1)]
    return actions


class _Node:
    """A history after the root: its visits, and the tries and sums of each action."""

    def __init__(self, n_actions: int) -> None:
        self.visits = 0
        self.tried, self.sums = [0] * n_actions, [0.0] * n_actions
        self.children: dict[tuple[int, int], _Node] = {}


class _Tree:
    """UCB search with models drawn from the belief at the root (POMCP).

    A node is a history after the root: its children are keyed on (action, next state). Each
    query adds one node, valued by ``values`` of a policy, or by a rollout. If values are given,
    a node keeps returns minus the value of its state in the drawn model: that difference
    compares actions just as well, without the spread between models.
    """

    def __init__(self, planner: PlannerTables, horizon: int) -> None:
        self.planner, self.problem, self.horizon = planner, planner.problem, horizon
        self.moves = planner.problem.storage.moves()
        self.centred = len(planner.values) > 0

    def decide(self, t: int, states: Ints, beliefs: Array, keys: Keys, counters: Keys) -> Ints:
        actions = np.empty(len(states), dtype=np.int64)
        for n, s in enumerate(states.tolist()):
            self.key, self.counter = int(keys[n]), int(counters[n])
            actions[n] = self._best(t, s, beliefs[n])
            counters[n] = self.counter
        return actions

    def _best(self, t: int, s: int, belief: Array) -> int:
        """The action with the best mean at the root."""
        total, root = np.cumsum(belief), _Node(self.problem.n_actions)
        for _ in range(self.planner.queries):
            m = int(np.searchsorted(total, self._random() * total[-1], side="right"))
            self._query(root, t, s, m)
        means = [z / n if n else -math.inf for z, n in zip(root.sums, root.tried, strict=True)]
        return means.index(max(means))

    def _query(self, node: _Node, t: int, s: int, m: int) -> None:
        """Down the tree in model m to a new node, and back up with its value."""
        x, path = self.problem, []
        while True:
            a = self._ucb(node, t, s)
            path.append((node, t, s, a))
            s, t = self._move(t, s, a, m), t + 1
            if t == self.horizon:
                leaf = float(x.terminal[s, m])
                break
            child = node.children.get((a, s))
            if child is None:
                node.children[a, s] = _Node(x.n_actions)
                leaf = self._leaf(t, s, m)
                break
            node = child
        for node, t, s, a in reversed(path):
            leaf = float(x.paid(t, s, a, m)) + x.discount * leaf
            node.visits += 1
            node.tried[a] += 1
            node.sums[a] += leaf - (self.planner.values[t, s, m] if self.centred else 0.0)

    def _ucb(self, node: _Node, t: int, s: int) -> int:
        """The action with the highest upper confidence bound; untried ones come first."""
        best, chosen, exploration = -math.inf, 0, float(self.planner.exploration[t])
        for a in np.flatnonzero(at(self.problem.allowed, t)[s]).tolist():
            n = node.tried[a]
            if n == 0:
                return int(a)
            score = node.sums[a] / n + exploration * math.sqrt(math.log(node.visits) / n)
            if score > best + TIE * (abs(score) + exploration):
                best, chosen = score, a
        return chosen

    def _leaf(self, t: int, s: int, m: int) -> float:
        """The value of a new node: known, or by simulating the given policy or random actions."""
        x, plan = self.problem, self.planner
        if self.centred and not plan.by_rollout:
            return float(plan.values[t, s, m])
        total, factor = 0.0, 1.0
        for time in range(t, self.horizon):
            if len(plan.actions):
                a = int(plan.actions[time, s])
            else:
                some = np.flatnonzero(at(x.allowed, time)[s])
                a = int(some[int(self._random() * len(some))])
            total += factor * float(x.paid(time, s, a, m))
            factor *= x.discount
            s = self._move(time, s, a, m)
        return total + factor * float(x.terminal[s, m])

    def _move(self, t: int, s: int, a: int, m: int) -> int:
        row, u = s * self.problem.n_actions + a, np.array([self._random()])
        after = int(self.moves.drawn(t, np.array([row]), np.array([m]), u)[0])
        # an action that this model lacks pays nothing, wherever it leads
        return after if after >= 0 else int(self.problem.storage.row(t, row).after[-1])

    def _random(self) -> float:
        self.counter += 1
        return float(uniform(self.key, self.counter - 1))
