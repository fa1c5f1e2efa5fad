"""Problems of a few shapes, so that a kernel that compiles for each compiles little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mmdp
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.planner import (
    ACTIONS,
    NODES,
    PROBABILITIES,
    SAMPLED,
    TREE,
    VALUES,
    PlannerTables,
)
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import AscentResult, PolicyTable, Problem
from tests.instances import make_random_controller

M, S, A, T = 5, 6, 3, 20
# rows of 4 to 6 next states, which are padded; one long row among short ones, which is split
SPARSITY_PATTERNS = {
    "padded": np.arange(S) < np.random.default_rng(0).integers(4, S + 1, (S, A, 1)),
    "split": np.arange(S) < np.where(np.arange(A) == 2, S, 1)[:, None] * np.ones((S, 1, 1)),
}


def make_random_model(seed: int, layout: str) -> mmdp.MMDP:
    """``"dense"`` varies with time, ``"padded"`` and ``"split"`` do not."""
    rng = np.random.default_rng(seed)
    time_shape = (T,) if layout == "dense" else ()
    p = (rng.gamma(0.5, size=(*time_shape, M, S, A, S)) + 1e-6) * SPARSITY_PATTERNS.get(layout, 1.0)
    initial = rng.dirichlet(np.ones(S)) * (np.arange(S) != seed % S)  # some states are not reached
    return mmdp.MMDP(
        p / p.sum(axis=-1, keepdims=True),
        rng.normal(size=(*time_shape, M, S, A)) * rng.choice([1.0, 100.0]),
        initial=initial / initial.sum(),
        weights=rng.dirichlet(np.full(M, 0.7)),
        discount=float(rng.choice([0.5, 0.9, 1.0])),
        terminal=rng.normal(size=(M, S)),
        storage="dense" if layout == "dense" else "sparse",
    )


def make_problem(seed: int, layout: str) -> Problem:
    """Some actions are not allowed: at some times in ``"dense"``, ever in the others."""
    n_times = T if layout == "dense" else 1
    allowed = np.random.default_rng(seed + 1000).random((n_times, S, A)) < 0.8
    return make_random_model(seed, layout).problem.restrict_actions(
        allowed | (np.arange(A) == seed % A)
    )


def make_random_policies(seed: int, n_policies: int, randomized: bool = False) -> list[PolicyTable]:
    """Random policies; their actions need not be allowed."""
    rng = np.random.default_rng(seed)
    if randomized:
        return list(rng.dirichlet(np.ones(A), size=(n_policies, T, S)))
    return list(rng.integers(0, A, (n_policies, T, S)).astype(np.int32))


def make_planners(x: Problem, horizon: int, seed: int) -> dict[str, PlannerTables]:
    """One planner of every type, with the options that change the simulation."""
    reference = NumpyBackend().prepare(x, horizon)
    p = np.random.default_rng(seed + 1).random((horizon, *x.allowed.shape[1:])) * x.allowed
    actions = p.argmax(axis=2).astype(np.int32)
    model_optima = reference.backward("per_model", keep=("q", "actions"))
    values = reference.backward("policy", policy=actions, keep=("values",)).values
    sampled_tables = PlannerTables(SAMPLED, x, model_actions=model_optima.actions)
    max_reward = max(1.0, float(np.abs(np.asarray(x.r)).max()))
    tree = PlannerTables(TREE, x, n_queries=6, exploration=np.full(horizon, max_reward))
    probabilities = p / p.sum(axis=2, keepdims=True)
    return {
        "actions": PlannerTables(ACTIONS, x, actions=actions),
        "probabilities": PlannerTables(PROBABILITIES, x, probabilities=probabilities),
        "nodes": PlannerTables(NODES, x, controller=make_random_controller(x, horizon, 3, seed)),
        "values": PlannerTables(VALUES, x, q=model_optima.q),
        "sampled": sampled_tables,
        "sampled each step, by rewards too": sampled_tables._replace(
            resamples_each_step=True, reward_sd=max_reward
        ),
        "sampled, carried, by rewards alone": sampled_tables._replace(
            carries_belief=True, reward_sd=max_reward, uses_transitions=False
        ),
        "tree with values": tree._replace(values=values),
        "tree with rollouts": tree._replace(values=values, uses_rollout=True, actions=actions),
        "tree at random": tree,
    }


class PatchedBackend(NumpyBackend):
    """numpy, with other methods in its plans: ``methods`` makes them from the class of a plan."""

    def __init__(
        self, name: str, make_methods: Callable[[type[PreparedProblem]], dict[str, Any]]
    ) -> None:
        self.name, self.make_methods = name, make_methods

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem:
        prepared = problem.storage.prepare(problem, horizon)
        prepared.__class__ = type(
            "PatchedProblem", (type(prepared),), self.make_methods(type(prepared))
        )
        return prepared


def assert_close(result: object, expected: object) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-9)  # type: ignore[arg-type]


def assert_same_ascents(results: list[AscentResult], expected: list[AscentResult]) -> None:
    for a, b in zip(results, expected, strict=True):
        assert (a.policy == b.policy).all()
        assert (a.n_sweeps, a.stop_reason, a.policy.dtype) == (
            b.n_sweeps,
            b.stop_reason,
            b.policy.dtype,
        )
        assert a.value == a.trace[-1]
        assert_close(a.trace, b.trace)
        assert_close(a.returns, b.returns)


CASES = [("dense", [None]), ("split", make_random_policies(2, 3))]
