"""Actions where no model goes: what is best under the prior weights, and no return changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels.problem import AscentResult
from mmdp.core.search import multistart
from mmdp.core.search.space import SearchSpace
from mmdp.core.testing import compute_plain_returns
from mmdp.core.timing import TimeUp

T, S, A, M = 4, 6, 3, 3
GROUPS = [0, 1, 1, 2, 2, 2]


def make_sparse_model(seed: int) -> mmdp.MMDP:
    """Few states follow any other, so that some are not reached, or not yet."""
    rng = np.random.default_rng(seed)
    P = np.zeros((M, S, A, S))
    for s in range(S):
        for a in range(A):
            next_states = rng.choice(S - 1, 2, replace=False)  # never the last state
            P[:, s, a, next_states] = rng.dirichlet(np.ones(2), size=M)
    return mmdp.MMDP(
        P,
        rng.normal(size=(M, S, A)),
        initial=np.eye(S)[0],
        weights=rng.dirichlet(np.ones(M)),
        discount=0.9,
    )


def compute_weighted_q(model: mmdp.MMDP, actions: np.ndarray) -> np.ndarray:
    """(T, S, A) sum_m lambda_m q_{t,m}(s, a) of a policy of time and state."""
    v, q_by_time = np.zeros((M, S)), []
    for row in actions[::-1]:
        q = model.rewards + model.discount * np.einsum("msaz,mz->msa", model.transitions, v)
        q_by_time.append(np.tensordot(model.weights, q, 1))
        v = q[:, np.arange(S), row]
    return np.array(q_by_time[::-1])


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        (mmdp.methods.CADP(n_init=5), "mean"),
        (mmdp.methods.CADP(init="random"), "cvar:0.4"),
        ("mirror", "mean"),
        ("milp", "cvar:0.4"),
    ],
)
def test_unreachable_states_take_the_best_prior_action(method: Any, objective: str) -> None:
    n_unreachable = 0
    for seed in range(4):
        model = make_sparse_model(seed)
        solution = mmdp.solve(model, T, method, objective=objective, backend="numpy")
        visited = mmdp.measures.model_weights(model, solution.policy).sum(axis=1) > 0
        assert (solution.details["unreachable"] == ~visited).all()
        q, actions = compute_weighted_q(model, solution.policy.actions), solution.policy.actions
        policy_values = np.take_along_axis(q, actions[:, :, None].astype(int), 2)[:, :, 0]
        assert (policy_values >= q.max(axis=2) - 1e-9)[~visited].all()
        assert np.allclose(
            solution.returns, compute_plain_returns(model, solution.policy), rtol=1e-12
        )
        n_unreachable += (~visited).sum()
    assert n_unreachable > 10


def test_restrictions_hold_in_unreachable_states() -> None:
    fixed = np.full(S, -1)
    fixed[5] = 2  # never reached, and decided all the same
    for seed in range(6):
        model = make_sparse_model(seed)
        results = {}
        for policy_class in (
            mmdp.policies.Fixed(fixed),
            mmdp.policies.Tied(GROUPS),
            mmdp.policies.Monotone(),
        ):
            solution = mmdp.solve(model, T, policy_class=policy_class, backend="numpy")
            actions, unreachable = solution.policy.actions, solution.details["unreachable"]
            assert unreachable[:, 5].all()
            assert np.allclose(solution.returns, compute_plain_returns(model, solution.policy))
            results[policy_class.name] = compute_weighted_q(model, actions), actions, unreachable
        q, actions, unreachable = results["fixed"]
        assert (actions[:, 5] == 2).all()
        unreachable_free = unreachable[:, :5]
        assert (actions[:, :5] == q[:, :5].argmax(axis=2))[unreachable_free].all()
        assert (np.diff(results["monotone"][1], axis=1) >= 0).all()
        q, actions, unreachable = results["tied"]
        for g in range(3):
            in_group = np.array(GROUPS) == g
            assert (np.ptp(actions[:, in_group], axis=1) == 0).all()
            is_unreachable = unreachable[:, in_group].all(axis=1)
            group_q = q[:, in_group].sum(axis=1)
            assert (actions[:, in_group][:, 0] == group_q.argmax(axis=1))[is_unreachable].all()


def test_stationary_policies() -> None:
    for seed in range(6):
        model = make_sparse_model(seed)
        solution = mmdp.solve(model, math.inf, mmdp.methods.CADP(n_init=4), backend="numpy")
        repeated = solution.policy.to_markov(200)
        visited = (mmdp.measures.model_weights(model, repeated).sum(axis=1) > 0).any(axis=0)
        assert (solution.details["unreachable"] == ~visited).all()
        best = compute_weighted_q(model, repeated.actions)[0].argmax(axis=1)
        assert (solution.policy.actions == best)[~visited].all()
        assert solution.value == pytest.approx(mmdp.evaluate(model, solution.policy).mean)


def test_nothing_is_marked_if_all_states_are_reachable() -> None:
    rng = np.random.default_rng(0)
    model = mmdp.MMDP(rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.normal(size=(2, 3, 2)))
    assert "unreachable" not in mmdp.solve(model, 3).details


def test_baselines_follow_their_definition() -> None:
    model = make_sparse_model(1)
    mean = mmdp.solve(model.mean_model(), T, "wsu").policy.actions
    assert (mmdp.solve(model, T, "mvp").policy.actions == mean).all()


def test_an_init_wins_by_more_than_rounding() -> None:
    optima = [
        AscentResult(np.full((1, 1), i, np.int32), np.array([x]), x, [x], 1, "local_optimum")
        for i, x in enumerate((0.5, 1.0, 1.0 + 1e-15, 1.0 + 3e-15))
    ]
    result = multistart.select_best(optima, list("abcd"), "paper", 1e-14)
    assert result.policy is optima[1].policy
    assert result.details["best_init"] == "b"
    assert multistart.select_best(optima, list("abcd"), "paper", 0.0).policy is optima[3].policy


def test_an_init_wins_on_the_scale_that_counts() -> None:
    rng = np.random.default_rng(4)
    P, r = rng.dirichlet(np.full(3, 0.3), size=(3, 3, 3)), rng.normal(size=(3, 3, 3)) * 1e-9
    r[2] = r[2] * 1e18 + 1e11  # never the worst
    model = mmdp.MMDP(P, r, discount=0.9)
    solution = mmdp.solve(model, 3, mmdp.methods.CADP(n_init=6), objective="worst", backend="numpy")
    assert solution.value == solution.details["init_values"].max()


@pytest.mark.parametrize("seed", [429, 430])
def test_no_single_change_improves_after_filling(seed: int) -> None:
    """A change that leads into states which were unreachable, where actions are good now."""
    rng = np.random.default_rng(seed)
    M, S, A, T = 3, 4, 3, 3
    p = rng.random((M, S, A, S)) * (rng.random((S, A, S)) < 0.35)
    p[..., 0] += 1e-9 * (p.sum(-1) == 0)
    p /= p.sum(-1, keepdims=True)
    terminal, initial, weights = rng.random((M, S)), rng.dirichlet(np.ones(S)), rng.random(M)
    weights /= weights.sum()
    model = mmdp.MMDP(p, np.zeros((S, A)), terminal=terminal, initial=initial, weights=weights)
    solution = mmdp.solve(model, T)

    def compute_mean(actions: np.ndarray) -> float:
        v = terminal
        for row in actions[::-1]:
            v = np.einsum("msz,mz->ms", p[:, np.arange(S), row], v)
        return float((v @ initial) @ weights)

    assert compute_mean(solution.policy.actions) == pytest.approx(solution.value, rel=1e-12)
    for t, s, a in np.ndindex(T, S, A):
        changed = np.array(solution.policy.actions)
        changed[t, s] = a
        assert compute_mean(changed) <= solution.value + 1e-12


@pytest.mark.parametrize(
    ("exception", "status"),
    [(TimeUp, mmdp.Status.TIME_LIMIT), (KeyboardInterrupt, mmdp.Status.INTERRUPTED)],
)
def test_a_policy_is_kept_if_the_last_ascent_is_stopped(
    exception: type[BaseException], status: mmdp.Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    P = np.zeros((1, 3, 2, 3))
    P[0, 0, 0, 1] = P[0, 0, 1, 2] = P[0, 1:, :, 2] = 1
    model = mmdp.MMDP(P, [[0.0, 1.0], [5.0, -5.0], [0.0, 0.0]], initial=[1, 0, 0])
    method = mmdp.methods.CADP(
        init=mmdp.policies.MarkovPolicy([[1, 1, 0], [1, 1, 0]]), sweep_type="paper"
    )

    def stop(*_: object, **options: object) -> None:
        raise exception

    monkeypatch.setattr(SearchSpace, "ascend", stop)
    solution = mmdp.solve(model, 2, method)
    assert (solution.value, solution.status) == (1.0, status)
