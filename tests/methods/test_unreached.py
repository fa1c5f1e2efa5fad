"""Actions where no model goes: what is best under the prior weights, and no return changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.kernels.problem import Ascent
from mmdp.search import starts
from mmdp.testing import plain_returns

T, S, A, M = 4, 6, 3, 3
GROUPS = [0, 1, 1, 2, 2, 2]


def sparse(seed: int) -> mmdp.MMDP:
    """Few states follow any other, so that some are not reached, or not yet."""
    rng = np.random.default_rng(seed)
    P = np.zeros((M, S, A, S))
    for s in range(S):
        for a in range(A):
            after = rng.choice(S - 1, 2, replace=False)  # never the last state
            P[:, s, a, after] = rng.dirichlet(np.ones(2), size=M)
    return mmdp.MMDP(
        P, rng.normal(size=(M, S, A)), initial=np.eye(S)[0], weights=rng.dirichlet(np.ones(M)),
        discount=0.9,
    )  # fmt: skip


def weighed_q(model: mmdp.MMDP, actions: np.ndarray) -> np.ndarray:
    """(T, S, A) sum_m lambda_m q_{t,m}(s, a) of a policy of time and state."""
    v, found = np.zeros((M, S)), []
    for row in actions[::-1]:
        q = model.rewards + model.discount * np.einsum("msaz,mz->msa", model.transitions, v)
        found.append(np.tensordot(model.weights, q, 1))
        v = q[:, np.arange(S), row]
    return np.array(found[::-1])


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        (mmdp.CADP(starts=5), "mean"), (mmdp.CADP(init="random"), "cvar:0.4"),
        ("mirror", "mean"), ("milp", "cvar:0.4"),
    ],
)  # fmt: skip
def test_unreached_states_take_what_is_best_by_the_prior(method: Any, objective: str) -> None:
    found = 0
    for seed in range(4):
        model = sparse(seed)
        solution = mmdp.solve(model, T, method, objective=objective, backend="numpy")
        visited = mmdp.model_weights(solution.policy, model).sum(axis=1) > 0
        assert (solution.details["unreached"] == ~visited).all()
        q, actions = weighed_q(model, solution.policy.actions), solution.policy.actions
        chosen = np.take_along_axis(q, actions[:, :, None].astype(int), 2)[:, :, 0]
        assert (chosen >= q.max(axis=2) - 1e-9)[~visited].all()
        assert np.allclose(solution.returns, plain_returns(solution.policy, model), rtol=1e-12)
        found += (~visited).sum()
    assert found > 10


def test_inside_a_restriction() -> None:
    fixed = np.full(S, -1)
    fixed[5] = 2  # never reached, and decided all the same
    for seed in range(6):
        model = sparse(seed)
        q_of = {}
        for kind in (mmdp.Fixed(fixed), mmdp.Tied(GROUPS), mmdp.Monotone()):
            solution = mmdp.solve(model, T, policy=kind, backend="numpy")
            actions, unreached = solution.policy.actions, solution.details["unreached"]
            assert unreached[:, 5].all()
            assert np.allclose(solution.returns, plain_returns(solution.policy, model))
            q_of[kind.name] = weighed_q(model, actions), actions, unreached
        q, actions, unreached = q_of["fixed"]
        assert (actions[:, 5] == 2).all()
        free = unreached[:, :5]
        assert (actions[:, :5] == q[:, :5].argmax(axis=2))[free].all()
        assert (np.diff(q_of["monotone"][1], axis=1) >= 0).all()
        q, actions, unreached = q_of["tied"]
        for g in range(3):
            inside = np.array(GROUPS) == g
            assert (np.ptp(actions[:, inside], axis=1) == 0).all()
            away = unreached[:, inside].all(axis=1)
            together = q[:, inside].sum(axis=1)
            assert (actions[:, inside][:, 0] == together.argmax(axis=1))[away].all()


def test_stationary_policies() -> None:
    for seed in range(6):
        model = sparse(seed)
        solution = mmdp.solve(model, math.inf, mmdp.CADP(starts=4), backend="numpy")
        long = solution.policy.over(200)
        visited = (mmdp.model_weights(long, model).sum(axis=1) > 0).any(axis=0)
        assert (solution.details["unreached"] == ~visited).all()
        best = weighed_q(model, long.actions)[0].argmax(axis=1)
        assert (solution.policy.actions == best)[~visited].all()
        assert solution.value == pytest.approx(mmdp.evaluate(solution.policy, model).mean)


def test_nothing_is_marked_where_every_state_is_reached() -> None:
    rng = np.random.default_rng(0)
    model = mmdp.MMDP(rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.normal(size=(2, 3, 2)))
    assert "unreached" not in mmdp.solve(model, 3).details


def test_baselines_are_as_their_definition_has_them() -> None:
    model = sparse(1)
    mean = mmdp.solve(model.mean_model(), T, "wsu").policy.actions
    assert (mmdp.solve(model, T, "mvp").policy.actions == mean).all()


def test_a_start_wins_by_more_than_rounding() -> None:
    ends = [
        Ascent(np.full((1, 1), i, np.int32), np.array([x]), x, [x], 1, "maximum")
        for i, x in enumerate((0.5, 1.0, 1.0 + 1e-15, 1.0 + 3e-15))
    ]
    outcome = starts.best_of(ends, list("abcd"), "paper", 1e-14)
    assert outcome.policy is ends[1].policy
    assert outcome.details["best_start"] == "b"
    assert starts.best_of(ends, list("abcd"), "paper", 0.0).policy is ends[3].policy


def test_a_start_wins_by_the_scale_of_the_models_that_count() -> None:
    rng = np.random.default_rng(4)
    P, r = rng.dirichlet(np.full(3, 0.3), size=(3, 3, 3)), rng.normal(size=(3, 3, 3)) * 1e-9
    r[2] = r[2] * 1e18 + 1e11  # never the worst
    model = mmdp.MMDP(P, r, discount=0.9)
    found = mmdp.solve(model, 3, mmdp.CADP(starts=6), objective="worst", backend="numpy")
    assert found.value == found.details["start_values"].max()
