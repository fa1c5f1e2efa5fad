"""What the compiled code of every backend computes, in plain loops over entries and episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mmdp.core.kernels.planner import (
    ACTIONS,
    NODES,
    PROBABILITIES,
    SAMPLED,
    TREE,
    VALUES,
    PlannerTables,
)
from mmdp.core.kernels.problem import Problem, at_time

MASK = (1 << 64) - 1


# ------------------------------------------------------------------ random numbers
def mix(x: int) -> int:
    """splitmix64 with Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Numbers:
    """The numbers of one key, from a counter on."""

    def __init__(self, key: int, counter: int) -> None:
        self.key, self.counter = key, counter

    def draw(self) -> float:
        self.counter += 1
        return (mix((self.key + self.counter * 0x9E3779B97F4A7C15) & MASK) >> 11) * 2.0**-53


def make_key(seed: int, model: int, episode: int) -> int:
    return mix((mix((mix(seed & MASK) + model) & MASK) + episode + 1) & MASK)


def draw_index(probs: Any, u: float) -> int:
    """The first index at which the sum of probabilities exceeds u, in parts of their total."""
    total = np.cumsum(probs)
    last_possible = int(np.flatnonzero(np.asarray(probs) > 0)[-1])
    return min(int((total <= u * total[-1]).sum()), last_possible)


# ------------------------------------------------------------------ episodes
def find_probs(x: Problem, t: int, s: int, a: int) -> tuple[Any, Any]:
    """Next states in order, and their probabilities in all models."""
    next_states, p = x.storage.get_row(t, s * x.n_actions + a)
    order = np.argsort(next_states)
    return next_states[order], p[order]


def simulate_plainly(
    x: Problem, horizon: int, next_rewards: Any, planner: PlannerTables, n_episodes: int, seed: int
) -> tuple[Any, Any]:
    """Returns (M, n) of all episodes, and steps (M,) that no model of the planner explains."""
    returns = np.zeros((x.n_models, n_episodes))
    n_unexplained = np.zeros(x.n_models, int)
    for m in range(x.n_models):
        belief = None
        for episode in range(n_episodes):
            if belief is None or not planner.carries_belief:
                belief = planner.problem.weights / planner.problem.weights.sum()
            run = PlainEpisode(x, horizon, next_rewards, planner, seed, m, episode, belief)
            returns[m, episode], belief = run.run(), run.belief
            n_unexplained[m] += run.n_unexplained
    return returns, n_unexplained


class PlainEpisode:
    """One episode in one model."""

    def __init__(self, x, horizon, next_rewards, planner, seed, m, episode, belief) -> None:
        self.x, self.horizon, self.next_rewards, self.planner = x, horizon, next_rewards, planner
        self.key, self.m, self.belief = make_key(seed, m, episode), m, belief
        self.own_numbers, self.n_unexplained = Numbers(self.key, 1 << 32), 0
        first = Numbers(make_key(seed, m, 0), 0).draw()
        u = (first + (5**0.5 - 1) / 2 * episode) % 1.0
        self.s = draw_index(x.get_initial(m), u)

    def run(self) -> float:
        x, planner, total, factor = self.x, self.planner, 0.0, 1.0
        self.update_belief(planner.problem.initial[self.s])
        node = None if planner.controller is None else planner.controller.initial_nodes[self.s]
        for t in range(self.horizon):
            a, s = self.choose(t, node), self.s
            next_states, p = find_probs(x, t, s, a)
            if not p[:, self.m].sum() > 0:  # an action that this model lacks
                return total
            i = draw_index(p[:, self.m], Numbers(self.key, t + 1).draw())
            self.s = int(next_states[i])
            reward = float(np.asarray(at_time(x.r, t))[s, a, self.m])
            total += factor * reward
            factor *= x.discount
            if self.next_rewards is not None:
                entries = range(*x.indptr[s * x.n_actions + a :][:2])
                k = next(k for k in entries if x.indices[k] == self.s)
                reward = at_time(self.next_rewards, t)[k, self.m]
            if planner.mode in (VALUES, SAMPLED, TREE):
                self.learn(t, s, a, reward)
            if node is not None:
                node = planner.controller.node_transitions[t, s, node, self.s]
            if x.model_transitions is not None:
                u = Numbers(self.key, (1 << 31) + t).draw()
                self.m = draw_index(x.model_transitions[self.m], u)
        return total + factor * x.terminal[self.s, self.m]

    def choose(self, t: int, node: Any) -> int:
        planner, s = self.planner, self.s
        if planner.mode == ACTIONS:
            return int(at_time(planner.actions, t)[s])
        if planner.mode == NODES:
            return int(planner.controller.actions[t, s, node])
        if planner.mode == PROBABILITIES:
            return draw_index(at_time(planner.probabilities, t)[s], self.own_numbers.draw())
        if planner.mode == VALUES:
            allowed = np.flatnonzero(at_time(planner.problem.allowed, t)[s])
            return int(allowed[(at_time(planner.q, t)[s, allowed] @ self.belief).argmax()])
        if planner.mode == SAMPLED:
            if planner.resamples_each_step or t == 0:
                self.sampled = draw_index(self.belief, self.own_numbers.draw())
            return int(at_time(planner.model_actions, t)[s, self.sampled])
        return PlainSearch(planner, self.horizon, self.own_numbers).choose(t, s, self.belief)

    def learn(self, t: int, s: int, a: int, reward: float) -> None:
        planner, x = self.planner, self.planner.problem
        likelihood = np.ones(x.n_models)
        if planner.uses_transitions:
            next_states, p = find_probs(x, t, s, a)
            likelihood = p[next_states == self.s].sum(axis=0)
        if planner.reward_sd > 0:
            r = np.asarray(at_time(x.r, t))[s, a]
            distance = ((reward - r) / planner.reward_sd) ** 2
            possible = (self.belief > 0) & (likelihood > 0)
            nearest = distance[possible].min() if possible.any() else 0.0
            likelihood = likelihood * np.exp(np.minimum(nearest - distance, 0.0) / 2)
        self.n_unexplained += not self.update_belief(likelihood)
        if x.model_transitions is not None:
            self.belief = self.belief @ x.model_transitions

    def update_belief(self, likelihood: Any) -> bool:
        joint = self.belief * likelihood
        if not joint.sum() > 0:
            return False
        self.belief = joint / joint.sum()
        return True


class PlainSearch:
    """POMCP with a dictionary for every node: visits, tries, sums and children."""

    def __init__(self, planner: PlannerTables, horizon: int, numbers: Numbers) -> None:
        self.planner, self.x = planner, planner.problem
        self.horizon, self.numbers = horizon, numbers

    def make_node(self) -> dict[str, Any]:
        A = self.x.n_actions
        return {"tried": np.zeros(A), "sums": np.zeros(A), "children": {}}

    def choose(self, t: int, s: int, belief: Any) -> int:
        root = self.make_node()
        for _ in range(self.planner.n_queries):
            cdf = np.cumsum(belief)
            m = int(np.searchsorted(cdf, self.numbers.draw() * cdf[-1], side="right"))
            self.query(root, t, s, m)
        means = np.where(root["tried"] > 0, root["sums"] / np.maximum(root["tried"], 1), -np.inf)
        return int(means.argmax())

    def query(self, node: dict[str, Any], t: int, s: int, m: int) -> float:
        """Return the sampled value of (t, s) in model m; add one node."""
        a = self.choose_by_ucb(node, t, s)
        next_state = self.move(t, s, a, m)
        if t + 1 == self.horizon:
            value = float(self.x.terminal[next_state, m])
        elif (a, next_state) in node["children"]:
            value = self.query(node["children"][a, next_state], t + 1, next_state, m)
        else:
            node["children"][a, next_state] = self.make_node()
            value = self.evaluate(t + 1, next_state, m)
        value = float(np.asarray(at_time(self.x.r, t))[s, a, m]) + self.x.discount * value
        node["tried"][a] += 1
        node["sums"][a] += value - (
            self.planner.values[t, s, m] if len(self.planner.values) else 0.0
        )
        return value

    def choose_by_ucb(self, node: dict[str, Any], t: int, s: int) -> int:
        tried, best, best_action = node["tried"], -math.inf, 0
        exploration = self.planner.exploration[t]
        for a in np.flatnonzero(at_time(self.x.allowed, t)[s]).tolist():
            if tried[a] == 0:
                return a
            bonus = exploration * math.sqrt(math.log(tried.sum()) / tried[a])
            score = node["sums"][a] / tried[a] + bonus
            if score > best + 1e-12 * (abs(score) + exploration):
                best, best_action = score, a
        return best_action

    def evaluate(self, t: int, s: int, m: int) -> float:
        planner, total, factor = self.planner, 0.0, 1.0
        if len(planner.values) and not planner.uses_rollout:
            return float(planner.values[t, s, m])
        for time in range(t, self.horizon):
            if len(planner.actions):
                a = int(planner.actions[time, s])
            else:
                allowed = np.flatnonzero(at_time(self.x.allowed, time)[s])
                a = int(allowed[int(self.numbers.draw() * len(allowed))])
            total += factor * float(np.asarray(at_time(self.x.r, time))[s, a, m])
            factor *= self.x.discount
            s = self.move(time, s, a, m)
        return total + factor * float(self.x.terminal[s, m])

    def move(self, t: int, s: int, a: int, m: int) -> int:
        next_states, p = find_probs(self.x, t, s, a)
        u = self.numbers.draw()
        # an action that this model lacks pays nothing, wherever it leads
        return int(next_states[draw_index(p[:, m], u) if p[:, m].any() else -1])


# ------------------------------------------------------------------ controllers
def evaluate_controller_plainly(x: Problem, horizon: int, controller: Any) -> tuple[Any, Any]:
    """Values (T + 1, S, N, M) and weights (T, S, N, M), one entry after the other."""
    S, N, M = x.n_states, controller.n_nodes, x.n_models
    K = np.eye(M) if x.model_transitions is None else x.model_transitions
    values, b = np.zeros((horizon + 1, S, N, M)), np.zeros((horizon, S, N, M))
    values[horizon] = x.terminal[:, None]
    for s in range(S):
        b[0, s, controller.initial_nodes[s]] = x.initial_joint()[s]
    for forward in (True, False):
        for t in range(horizon) if forward else reversed(range(horizon)):
            for s, n in np.ndindex(S, N):
                a = controller.actions[t, s, n]
                next_states, p = find_probs(x, t, s, a)
                if not forward:
                    values[t, s, n] = np.asarray(at_time(x.r, t))[s, a]
                for z, p_z in zip(next_states, p, strict=True):
                    node = controller.node_transitions[t, s, n, z]
                    if not forward:
                        values[t, s, n] += x.discount * p_z * (K @ values[t + 1, z, node])
                    elif t + 1 < horizon:
                        b[t + 1, z, node] += (b[t, s, n] * p_z) @ K
    return values, b


# ------------------------------------------------------------------ bounds
def solve_pair_plainly(
    x: Problem, horizon: int, i: int, j: int, knots: Any, y: Any
) -> tuple[float, Any]:
    """The optimum of two models over beliefs (c, 1) on a grid, and its occupancy (T, S, A, 2).

    ``knots``: c of the grid, in order; values between are on a line, beyond the last on a ray.
    """
    weights = x.weights[[i, j]] * (0.5 if i == j else 1.0)
    places = [(0.0, 1.0), *((c, 1.0) for c in knots), (1.0, 0.0)]  # of models i and j
    levels = np.concatenate([[0.0], knots])

    def split(mass_i: float, mass_j: float) -> list[tuple[int, float]]:
        """The places around masses of the two models, and the weight of each."""
        if mass_j == 0 or mass_i / mass_j >= levels[-1]:
            return [(len(knots), mass_j), (len(knots) + 1, mass_i - mass_j * levels[-1])]
        z = int(np.searchsorted(levels, mass_i / mass_j, side="right")) - 1
        theta = (mass_i / mass_j - levels[z]) / (levels[z + 1] - levels[z])
        return [(z, mass_j * (1 - theta)), (z + 1, mass_j * theta)]

    def find_moves(t: int, s: int, a: int, z: int) -> list[tuple[int, int, float]]:
        next_states, p = find_probs(x, t, s, a)
        return [
            (next_state, place, weight)
            for next_state, p_next in zip(next_states, p, strict=True)
            for place, weight in split(p_next[i] * places[z][0], p_next[j] * places[z][1])
            if weight != 0
        ]

    Z, r = len(places), x.r if y is None else np.asarray(x.r) - y
    v = np.array(
        [
            [x.terminal[s, [i, j]] @ (weights * places[z]) for z in range(Z)]
            for s in range(x.n_states)
        ]
    )
    choices = np.zeros((horizon, x.n_states, Z), int)
    for t in reversed(range(horizon)):
        q = np.full((x.n_states, x.n_actions, Z), -np.inf)
        for s, a, z in np.ndindex(*q.shape):
            if at_time(x.allowed, t)[s, a]:
                q[s, a, z] = np.asarray(at_time(r, t))[s, a, [i, j]] @ (weights * places[z])
                moves = find_moves(t, s, a, z)
                q[s, a, z] += x.discount * sum(w * v[next_s, place] for next_s, place, w in moves)
        choices[t], v = q.argmax(axis=1), q.max(axis=1)
    mass = np.zeros_like(v)
    for s in range(x.n_states):
        for place, weight in split(x.get_initial(i)[s], x.get_initial(j)[s]):
            mass[s, place] += weight
    value, u = float((mass * v).sum()), np.zeros((horizon, x.n_states, x.n_actions, 2))
    for t in range(horizon):
        next_mass = np.zeros_like(mass)
        for s, z in np.ndindex(*mass.shape):
            u[t, s, choices[t, s, z]] += mass[s, z] * weights * places[z]
            for next_state, place, weight in find_moves(t, s, choices[t, s, z], z):
                next_mass[next_state, place] += mass[s, z] * weight
        mass = next_mass
    return value, u


def fill_occupancy_plainly(x: Problem, horizon: int, model_actions: Any) -> Any:
    """The occupancy (T, S, A, M) of each model's own policy."""
    u, b = np.zeros((horizon, x.n_states, x.n_actions, x.n_models)), x.initial_joint()
    for t in range(horizon):
        next_b = np.zeros_like(b)
        for s, m in np.ndindex(*b.shape):
            a = model_actions[t, s, m]
            u[t, s, a, m] = b[s, m]
            next_states, p = find_probs(x, t, s, a)
            next_b[next_states, m] += b[s, m] * p[:, m]
        b = next_b
    return u


def find_direction_plainly(
    x: Problem, y: Any, u: Any, best: Any, reach: Any, momentum: float, d: Any
):
    """d and <g, d> after a step, from the formula in PreparedProblem.update_direction."""
    d, product = d.copy(), 0.0
    for t, s, a, m in np.ndindex(*y.shape):
        if not at_time(x.allowed, t)[s, a]:
            continue
        if (y[t, s] != 0).any():
            prob = float(best[t, s] == a)
        else:
            prob = u[t, s, a].sum() / (u[t, s].sum() + 1e-300)
        ends = reach.lo[t, s, m] * prob, reach.hi[t, s, m] * prob
        own = u[t, s, a, m]
        g = (
            ends[1] if y[t, s, a, m] > 0 else ends[0] if y[t, s, a, m] < 0 else np.clip(own, *ends)
        ) - own
        d[t, s, a, m] = momentum * d[t, s, a, m] + (
            g / reach.hi[t, s, m] if reach.hi[t, s, m] > 1e-300 else 0.0
        )
        product += x.discount**t * g * d[t, s, a, m]
    return d, product
