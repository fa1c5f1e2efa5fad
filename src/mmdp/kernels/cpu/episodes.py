"""Compiled episodes: Markov policies and planners with an exact belief over their models.

The random numbers, and what an episode is, are those of :mod:`mmdp.kernels.numpy.episodes`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.cpu.jit import FAST, SUMS, jit
from mmdp.kernels.cpu.layout import CpuLayout
from mmdp.kernels.cpu.passes import Ground
from mmdp.kernels.cpu.steps import ranges
from mmdp.kernels.cpu.threads import Team
from mmdp.kernels.cpu.tree import CpuTree, by_event, hashed, reward_of, search
from mmdp.kernels.events import Events
from mmdp.kernels.moves import cumulative
from mmdp.kernels.numpy.episodes import (
    STREAM,
    Ints,
    Keys,
    Tree,
    first_states,
    keys_of,
    places,
)
from mmdp.kernels.planner import NODES, SAMPLED, TREE, VALUES, PlannerTables
from mmdp.kernels.problem import Array, IntArray, Problem, Stored, frozen
from mmdp.kernels.rewards import Rewards

MODELS_AT_ONCE = 8  # models per piece of work: one cache line of p
IN_CACHE = 2**12  # numbers that the beliefs of episodes moving together may take

# Indices are unsigned: numba then drops its test for negative ones.
_U = np.uint64


class _World(NamedTuple):
    """The models that episodes run in."""

    x: Ground
    seen: Array  # (T or 1, nnz, M) rewards by next state; length 0: r is seen


class _Lanes(NamedTuple):
    """(n,) the episodes of one model; state S: the episode has ended."""

    keys: Keys
    counters: Keys
    states: Keys
    totals: Array


class _Plan(NamedTuple):
    """What a planner acts by and learns from (see PlannerTables)."""

    prior: Array
    places: Ints  # (nnz,) entry of the planner's pattern for each of the world's, or -1
    p: Array
    r: Array  # (T or 1, S * A, M')
    allowed: npt.NDArray[np.bool_]
    q: Array  # (T or 1, S * A, M'), length 0: act by a sampled model's ``own``
    own: IntArray
    each_step: bool
    carry: bool
    reward_sd: float
    use_transitions: bool


@jit(**FAST, helper=True)
def _move(cdf, indptr, row, key, t):  # type: ignore[no-untyped-def]
    """Entry of the pattern drawn for this step; nnz if the model lacks the action."""
    start, stop = _U(indptr[row]), _U(indptr[row + _U(1)])
    if start == stop or cdf[stop - _U(1)] == 0.0:
        return _U(len(cdf))
    return search(cdf, start, stop, hashed(key, t + _U(1)))


@jit(**FAST)
def _markov(m, horizon, n_states, world, cdf, actions, probabilities, lanes):  # type: ignore[no-untyped-def]
    """Episodes in model m, whose cumulative probabilities are cdf (T or 1, nnz; 0: events).

    The policy is actions (T or 1, S), or probabilities (T or 1, S, A) if that has a length.
    """
    x, factor, n_actions = world.x, 1.0, _U(world.x.allowed.shape[2])
    for t in range(horizon):
        cdf_t = cdf[t if len(cdf) > 1 else _U(0)]
        for e in range(_U(len(lanes.keys))):
            s = lanes.states[e]
            if s == n_states:
                continue
            if len(probabilities) == 0:
                a = _U(actions[t if len(actions) > 1 else _U(0), s])
            else:
                u, total, a = hashed(lanes.keys[e], lanes.counters[e]), 0.0, _U(0)
                lanes.counters[e] += _U(1)
                p = probabilities[t if len(probabilities) > 1 else _U(0), s]
                for b in range(n_actions):
                    if total <= u and p[b] > 0.0:
                        total += p[b]
                        a = _U(b)
            row = s * n_actions + a
            if len(cdf_t) == 0:
                after = by_event(x, t, m, row, hashed(lanes.keys[e], t + _U(1)))
            else:
                k = _move(cdf_t, x.indptr, row, lanes.keys[e], t)
                if k == _U(len(cdf_t)):  # an action that this model lacks ends the episode
                    lanes.states[e] = n_states
                    continue
                after = _U(x.indices[k])
            # the mean reward of (s, a) has less noise than that of the drawn next state
            lanes.totals[e] += factor * reward_of(x, t, m, s, a)
            lanes.states[e] = after
        factor *= x.gamma


@jit(**SUMS, helper=True)
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(len(x))):
        total += x[m] * y[m]
    return total


@jit(**SUMS, helper=True)
def _learn(belief, use_transitions, p, reward_sd, r, reward):  # type: ignore[no-untyped-def]
    """Bayes' rule in place, for the likelihoods p (M') of the step and that of the reward.

    Returns whether any model explains the step; if none does, the belief stays.
    """
    n_models = _U(len(belief))
    if use_transitions:
        total = _dot(belief, p)
        if total <= 0.0:
            return False
        scale = 1.0 / total
        for m in range(n_models):
            belief[m] = belief[m] * p[m] * scale
    if reward_sd > 0.0:
        closest, total = np.inf, 0.0
        for m in range(n_models):
            if belief[m] > 0.0:
                closest = min(closest, ((reward - r[m]) / reward_sd) ** 2)
        for m in range(n_models):
            if belief[m] > 0.0:
                distance = ((reward - r[m]) / reward_sd) ** 2
                belief[m] *= np.exp(0.5 * (closest - distance))
                total += belief[m]
        for m in range(n_models):
            belief[m] /= total
    return True


@jit(**FAST, helper=True)
def _best(belief, q, allowed, s):  # type: ignore[no-untyped-def]
    """argmax_a sum_m beta_m q(a, m) over the allowed actions, ties to the lowest."""
    best, chosen, n_actions = -np.inf, _U(0), _U(allowed.shape[1])
    for a in range(n_actions):
        if allowed[s, a]:
            value = _dot(belief, q[s * n_actions + a])
            if value > best:
                best, chosen = value, _U(a)
    return chosen


@jit(**FAST, helper=True)
def _draw_model(belief, u):  # type: ignore[no-untyped-def]
    """The first model at which the running sum of the belief exceeds u."""
    total, last = 0.0, _U(0)
    for m in range(_U(len(belief))):
        if belief[m] > 0.0 and total <= u:
            total += belief[m]
            last = _U(m)
    return last


@jit(**FAST)
def _believe(m, horizon, world, cdf, plan, lanes, beliefs, sampled):  # type: ignore[no-untyped-def]
    """Episodes of a planner in model m, some at a time, as many as beliefs (n, M') has rows.

    Returns how many steps no model of the planner explains.
    """
    n_states, n_actions = _U(plan.allowed.shape[1]), _U(plan.allowed.shape[2])
    block, unexplained = _U(len(beliefs)), 0
    for first in range(_U(0), _U(len(lanes.keys)), block):
        count = min(block, _U(len(lanes.keys)) - first)
        if first == _U(0) or not plan.carry:
            for e in range(count):
                for i in range(_U(len(plan.prior))):
                    beliefs[e, i] = plan.prior[i]
        factor = 1.0
        for t in range(horizon):
            cdf_t, r_t = (
                cdf[t if len(cdf) > 1 else _U(0)],
                world.x.r[t if len(world.x.r) > 1 else _U(0)],
            )
            p_t, own_r = (
                plan.p[t if len(plan.p) > 1 else _U(0)],
                plan.r[t if len(plan.r) > 1 else _U(0)],
            )
            open_t = plan.allowed[t if len(plan.allowed) > 1 else _U(0)]
            for e in range(count):
                lane, belief = first + e, beliefs[e]
                s, key = lanes.states[lane], lanes.keys[lane]
                if s == n_states:
                    continue
                if len(plan.q) > 0:
                    a = _best(belief, plan.q[t if len(plan.q) > 1 else _U(0)], open_t, s)
                else:
                    if plan.each_step or t == _U(0):
                        sampled[e] = _draw_model(belief, hashed(key, lanes.counters[lane]))
                        lanes.counters[lane] += _U(1)
                    a = _U(plan.own[t if len(plan.own) > 1 else _U(0), s, sampled[e]])
                row = s * n_actions + a
                k = _move(cdf_t, world.x.indptr, row, key, t)
                if k == _U(len(cdf_t)):
                    lanes.states[lane] = n_states
                    continue
                reward = r_t[s, a, m]
                lanes.totals[lane] += factor * reward
                if len(world.seen) > 0:
                    reward = world.seen[t if len(world.seen) > 1 else _U(0), k, m]
                place, learns = plan.places[k], plan.use_transitions
                if (learns and place < 0) or not _learn(
                    belief, learns, p_t[_U(max(place, 0))], plan.reward_sd, own_r[row], reward
                ):
                    unexplained += 1
                lanes.states[lane] = _U(world.x.indices[k])
            factor *= world.x.gamma
    return unexplained


class CpuEpisodes(CpuLayout):
    """The episodes part of a CPU plan."""

    def tree(self, planner: PlannerTables) -> Tree:
        return CpuTree(planner, self.horizon, self.threads)

    def simulate(
        self, next_rewards: Array | None, planner: PlannerTables, episodes: int,
        seed: int, first: int = 0,
    ) -> tuple[Array, Ints]:  # fmt: skip
        # the search takes all the time; nodes need no belief; numpy has beliefs that move, that the
        # first state changes or that learn from events
        own, learns = planner.problem, planner.mode in (VALUES, SAMPLED)
        events = isinstance(self.problem.storage, Events)
        stored = all(isinstance(y.storage, Stored) for y in (self.problem, own))
        plain = planner.mode in (TREE, NODES) or own.drift is not None or not own.same_start
        if plain or not (stored or (events and not learns)):
            return super().simulate(next_rewards, planner, episodes, seed, first)
        x, horizon, n_models = self.problem, self.horizon, self.problem.n_models
        returns, impossible = np.empty((n_models, episodes)), np.zeros(n_models, dtype=np.int64)
        seen = np.zeros((0, 1, 1)) if next_rewards is None else next_rewards
        ground = _World(self.ground, frozen(seen))
        plan = _plan(x, planner) if learns else None
        actions, probabilities = frozen(planner.actions), frozen(planner.probabilities)

        def run(models: range) -> None:
            totals = np.empty((1, len(models), 0))
            if not events:
                totals = cumulative(x.p[:, :, models.start : models.stop], x.indptr)
            started = _lanes(x, models, first, episodes, seed)
            for i, m in enumerate(models):
                cdf, lanes = np.ascontiguousarray(totals[:, i]), _Lanes(*(z[i] for z in started))
                if plan is None:
                    size = _U(horizon), _U(x.n_states)
                    _markov(_U(m), *size, ground, cdf, actions, probabilities, lanes)
                else:
                    room = _room(planner, episodes)
                    impossible[m] = _believe(m, _U(horizon), ground, cdf, plan, lanes, *room)
                ended = lanes.states == x.n_states
                last = x.terminal[np.where(ended, 0, lanes.states), m]
                returns[m] = lanes.totals + np.where(ended, 0.0, x.discount**horizon * last)

        pieces = max(min(n_models, 8 * self.threads), -(-n_models // MODELS_AT_ONCE))
        Team.of(self.threads).each(run, ranges(n_models, pieces))
        return returns, impossible


def _by_row(x: Rewards) -> Array:
    """(T, S, A, M) as (T, S * A, M): row s * A + a, as in the pattern."""
    return frozen(np.asarray(x).reshape(len(x), x.shape[1] * x.shape[2], x.shape[3]))


def _plan(world: Problem, tables: PlannerTables) -> _Plan:
    x = tables.problem
    return _Plan(
        frozen(x.weights / x.weights.sum()), frozen(places(world, x)), x.p, _by_row(x.r),
        x.allowed, _by_row(tables.q), frozen(tables.own), tables.each_step, tables.carry,
        tables.reward_sd, tables.use_transitions,
    )  # fmt: skip


def _lanes(world: Problem, models: range, first: int, count: int, seed: int) -> _Lanes:
    """(models, n) episodes before their first step."""
    shape = len(models), count
    numbers = np.tile(np.arange(first, first + count), len(models))
    of = np.repeat(models, count)
    keys, states = keys_of(seed, of, numbers), first_states(world, seed, of, numbers)
    return _Lanes(
        keys.reshape(shape), np.full(shape, STREAM, np.uint64),
        states.astype(np.uint64).reshape(shape), np.zeros(shape),
    )  # fmt: skip


def _room(tables: PlannerTables, episodes: int) -> tuple[Array, Keys]:
    """Beliefs and sampled models of the episodes that move together; carried ones go alone."""
    n_models = tables.problem.n_models
    count = 1 if tables.carry else min(episodes, max(32, IN_CACHE // n_models))
    return np.empty((count, n_models)), np.zeros(count, np.uint64)
