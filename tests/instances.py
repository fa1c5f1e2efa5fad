"""Tiny random instances for tests by brute force, how many of them a test takes, histories."""

from __future__ import annotations

import math
import os
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

import mmdp
from mmdp.core.kernels import Problem
from mmdp.core.kernels.controller import Controller
from mmdp.core.testing import make_random_model

Array = npt.NDArray[np.float64]
EXACT = 1e-12
SEEDS = st.integers(0, 2**32 - 1)
HYPOTHESIS_SETTINGS = {"deadline": None, "derandomize": True}


def n_examples(n: int) -> int:
    """Examples of a test: n, or ``MMDP_EXAMPLES`` if that is more (2000: eight minutes).

    Without the slow tests, a quarter of n, or 10.
    """
    if "MMDP_FEW_EXAMPLES" in os.environ:  # by conftest.py
        n = max(n // 4, min(n, 10))
    return max(n, int(os.environ.get("MMDP_EXAMPLES", "0")))


def list_seeds(n_always: int, n_total: int) -> list[Any]:
    """Seeds of a test: the first ``n_always`` in every run, the others if slow tests run."""
    return [
        seed if seed < n_always else pytest.param(seed, marks=pytest.mark.slow)
        for seed in range(n_total)
    ]


def seed_ranges(n_always: int, n_total: int) -> list[Any]:
    """The same seeds for a parameter that is a range: two cases."""
    return [range(n_always), pytest.param(range(n_always, n_total), marks=pytest.mark.slow)]


def make_tiny_model(seed: int, max_policies: int = 1500) -> tuple[mmdp.MMDP, int]:
    """A random instance with at most ``most`` deterministic policies, and its horizon."""
    rng = np.random.default_rng(seed)
    model = make_random_model(
        seed,
        n_models=int(rng.integers(1, 6)),
        n_states=int(rng.integers(1, 4)),
        n_actions=int(rng.integers(1, 4)),
        horizon=0,
    )
    n_rules = float(np.prod(model.allowed.sum(axis=1)))
    max_horizon = max(1, int(np.log(max_policies) / np.log(max(n_rules, 1.6))))
    T = int(rng.integers(1, min(max_horizon, 5) + 1))
    sizes = {T, model.n_models, model.n_states, model.n_actions}
    if rng.random() < 0.4 and len(sizes) > 1:  # equal sizes are ambiguous
        varying = make_random_model(
            seed,
            n_models=model.n_models,
            n_states=model.n_states,
            n_actions=model.n_actions,
            horizon=T,
        )
        if np.prod(varying.allowed.sum(axis=1).astype(float)) ** T <= max_policies:
            model = varying
    changes = {}
    if rng.random() < 0.3:
        weights = rng.dirichlet(np.full(model.n_models, 0.3)) * np.where(
            rng.random(model.n_models) < 0.3, rng.choice([0.0, 1e-12]), 1.0
        )
        changes["weights"] = weights / weights.sum() if weights.sum() > 0 else None
    if rng.random() < 0.3:
        changes["initial"] = np.eye(model.n_states)[rng.integers(model.n_states)]
    return (model.replace(**changes) if changes else model), T


def returns_by_histories(
    policy: mmdp.policies.MemoryPolicy, model: mmdp.MMDP
) -> np.ndarray[Any, Any]:
    """(M,) returns by walking every history with ``start``, ``act`` and ``update``."""
    P, r = model.transitions, model.rewards
    is_time_invariant = model.horizon is None

    def walk(m: int, t: int, s: int, memory: Any) -> float:
        if t == policy.horizon:
            return float(model.terminal[m, s])
        a = policy.act(memory, t, s)
        p, reward = (
            (P[m, s, a], r[m, s, a]) if is_time_invariant else (P[t, m, s, a], r[t, m, s, a])
        )
        next_values = [
            p[z] * walk(m, t + 1, z, policy.update(memory, t, s, a, z)) for z in np.flatnonzero(p)
        ]
        return float(reward + model.discount * sum(next_values))

    initial_states = np.flatnonzero(model.initial)
    return np.array(
        [
            sum(
                model.initial[s] * walk(m, 0, int(s), policy.initial_memory())
                for s in initial_states
            )
            for m in range(model.n_models)
        ]
    )


# ---------------------------------------------------------------------- models that change
def make_random_controller(problem: Problem, horizon: int, n_nodes: int, seed: int) -> Controller:
    """A random controller with this many nodes and allowed actions."""
    rng, shape = np.random.default_rng(seed + 5), (horizon, problem.n_states, n_nodes)
    scores = rng.random((*shape, problem.n_actions)) * problem.allowed[:, :, None]
    node_transitions = rng.integers(0, n_nodes, (*shape, problem.n_states))
    initial_nodes = rng.integers(0, n_nodes, problem.n_states)
    return Controller(
        scores.argmax(axis=3).astype(np.int32),
        node_transitions.astype(np.uint8),
        initial_nodes.astype(np.uint8),
    )


def make_switching_model(
    seed: int, M: int = 2, S: int = 2, A: int = 2, **options: Any
) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    return mmdp.MMDP(
        rng.dirichlet(np.full(S, 0.7), (M, S, A)),
        rng.normal(size=(M, S, A)),
        initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.ones(M)),
        discount=rng.uniform(0.5, 1.0),
        terminal=rng.normal(size=(M, S)),
        model_transitions=rng.dirichlet(np.full(M, 0.5), M),
        **options,
    )


def returns_by_paths(x: mmdp.MMDP, actions: Array) -> Array:
    """(M,) the return from each first model: the sum over all paths m0 s0 m1 s1 ... of both."""
    P, r, K, terminal = x.transitions, x.rewards, x.model_transitions, x.terminal
    returns = np.zeros(x.n_models)
    T = len(actions)
    model_states = list(product(range(x.n_models), range(x.n_states)))
    for path in product(model_states, repeat=T + 1):
        prob, path_return = x.initial[path[0][1]], 0.0
        for t, ((m, s), (m_next, s_next)) in enumerate(pairwise(path)):
            a = actions[t, s]
            prob *= P[m, s, a, s_next] * K[m, m_next]
            path_return += x.discount**t * r[m, s, a]
        returns[path[0][0]] += prob * (path_return + x.discount**T * terminal[path[-1]])
    return returns


def list_policies(x: mmdp.MMDP, T: int) -> Array:
    shape = (T, x.n_states)
    return np.array(list(product(range(x.n_actions), repeat=math.prod(shape)))).reshape(-1, *shape)


def make_infinite_model(seed: int, discount: float) -> mmdp.MMDP:
    """Two models of two states; without a discount, half of the episodes end at every step."""
    rng = np.random.default_rng(seed)
    P, r = rng.dirichlet(np.ones(2), size=(2, 2, 2)), rng.normal(size=(2, 2, 2))
    initial = np.array([0.5, 0.5])
    if discount == 1:
        P = np.concatenate([0.5 * P, np.full((2, 2, 2, 1), 0.5)], axis=3)
        P = np.concatenate([P, np.broadcast_to([0.0, 0.0, 1.0], (2, 1, 2, 3))], axis=1)
        r, initial = np.pad(r, ((0, 0), (0, 1), (0, 0))), np.append(initial, 0.0)
    return mmdp.MMDP(P, r, initial=initial, discount=discount, weights=[0.3, 0.7])


def make_door_model(discount: float = 0.99) -> mmdp.MMDP:
    """One of two doors leads out, the left one in one model and the right one in the other."""
    P = np.zeros((2, 2, 2, 2))
    P[:, 1, :, 1] = 1
    for m, a in product(range(2), range(2)):
        P[m, 0, a, int(a == m)] = 1
    return mmdp.MMDP(
        P,
        [[-1.0, -1.0], [0.0, 0.0]],
        initial=[1, 0],
        discount=discount,
        states=["in", "out"],
        actions=["left", "right"],
    )
