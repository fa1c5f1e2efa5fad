"""The dual over stationary policies against the enumeration of all of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.core.bounds.dual import DualDescent, StationaryRelaxation
from mmdp.core.kernels.infinite import DirectSolver
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.methods import exact
from mmdp.core.timing import solver_clock
from tests.instances import HYPOTHESIS_SETTINGS, SEEDS, n_examples


def make_model(seed: int) -> mmdp.MMDP:
    """A small instance: masks, models that start apart or have no weight, episodes that end."""
    rng = np.random.default_rng(seed)
    M, S, A = int(rng.integers(2, 5)), int(rng.integers(2, 5)), int(rng.integers(2, 4))
    discount = float(rng.choice([0.0, 0.5, 0.9, 0.99, 1.0]))
    P = rng.dirichlet(np.full(S, rng.choice([0.1, 1.0, 20.0])), size=(M, S, A))
    r = rng.normal(size=(M, S, A)) * 10.0 ** rng.uniform(-3, 3)
    weights, initial = rng.dirichlet(np.ones(M)), rng.dirichlet(np.ones(S), size=M)
    weights[rng.integers(M)] *= rng.integers(2)
    allowed = rng.random((S, A)) < 0.8
    allowed[np.arange(S), rng.integers(A, size=S)] = True
    if discount == 1:
        P[:, -1], r[:, -1] = np.eye(S)[-1], 0.0  # the last state ends the episode
        P[:, :-1] = 0.8 * P[:, :-1] + 0.2 * np.eye(S)[-1]
    weights = weights / weights.sum()
    return mmdp.MMDP(P, r, initial=initial, weights=weights, allowed=allowed, discount=discount)


def list_policies(allowed: np.ndarray) -> np.ndarray:
    return np.array(list(itertools.product(*(np.flatnonzero(x) for x in allowed))))


def compute_visits(model: mmdp.MMDP, policies: np.ndarray) -> np.ndarray:
    """(N, M, S) lambda_m sum_t gamma^t P_m[s at t], by the plain formula; 0 where episodes end."""
    s, P = np.arange(model.n_states), model.transitions
    keeps, visits = np.ones((model.n_models, model.n_states)), []
    if model.discount == 1:
        keeps[:, -1] = 0.0
    for policy in policies:
        F = np.eye(model.n_states) - model.discount * P[:, s, policy] * keeps[:, None]
        initial = np.broadcast_to(model.initial, keeps.shape) * keeps
        visits.append(np.linalg.solve(np.swapaxes(F, 1, 2), initial[:, :, None])[:, :, 0])
    return model.weights[:, None] * np.array(visits)


def compute_values(model: mmdp.MMDP, policies: np.ndarray) -> np.ndarray:
    """(N,) mean returns."""
    rewards = np.stack([model.rewards[:, np.arange(model.n_states), x] for x in policies])
    values: np.ndarray = (compute_visits(model, policies) * rewards).sum(axis=(1, 2))
    return values


def make_relaxation(model: mmdp.MMDP) -> StationaryRelaxation:
    solver = DirectSolver(model.problem)
    prepared = NumpyBackend().prepare(model.problem, 1)
    return StationaryRelaxation(prepared, solver, solver.compute_model_optima())


def make_random_subset(allowed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(1, S, A) some of the allowed actions, at least one in each state."""
    kept = np.where(allowed & (rng.random(allowed.shape) < 0.6), 1.0, 0.0)
    kept[kept.sum(axis=1) == 0] = allowed[kept.sum(axis=1) == 0]
    return kept[None] > 0


@settings(max_examples=n_examples(100), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_every_multiplier_bounds_every_policy(seed: int) -> None:
    model, rng = make_model(seed), np.random.default_rng(seed)
    allowed, x = np.asarray(model.allowed), make_relaxation(model)
    values = compute_values(model, list_policies(allowed))
    rounding = 1e-12 * np.abs(values).max() / (1 - min(model.discount, 0.9))
    if rng.random() < 0.7:  # else the reach bounds of the beginning
        x.restrict_actions(allowed[None])
    for _ in range(3):
        y = rng.normal(size=x.occupancy.shape) * 10.0 ** rng.uniform(-3, 3)
        y *= (rng.random(y.shape) < rng.choice([0.1, 0.5, 1.0])) * allowed[..., None]
        assert x.evaluate(y) + x.estimate_rounding(y) >= values.max() - rounding
        # over fewer actions, with the reach bounds of all and with narrower ones
        subset = make_random_subset(allowed, rng)
        best = compute_values(model, list_policies(subset[0])).max()
        assert x.bound_subset(y, subset) >= best - rounding
        assert x.bound_subset(None, subset) >= best - rounding
        reach = x.reach
        x.restrict_actions(subset)
        assert x.evaluate(y) + x.estimate_rounding(y) >= best - rounding
        x.reach = reach
        x.restrict_actions(allowed[None], -math.inf)


@settings(max_examples=n_examples(50), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_reach_bounds_are_the_extremes_over_policies(seed: int) -> None:
    model = make_model(seed)
    x = make_relaxation(model)
    subset = make_random_subset(np.asarray(model.allowed), np.random.default_rng(seed))
    x.restrict_actions(subset)
    visits = compute_visits(model, list_policies(subset[0]))
    tol = 1e-9 / (1 - min(model.discount, 0.9))
    np.testing.assert_allclose(x.reach.hi[0].T, visits.max(axis=0), rtol=1e-7, atol=tol)
    np.testing.assert_allclose(x.reach.lo[0].T, visits.min(axis=0), rtol=1e-7, atol=tol)
    assert (visits.max(axis=0) * (1 - 1e-12) - 1e-300 <= x.reach.hi[0].T).all()
    assert (visits.min(axis=0) * (1 + 1e-12) >= x.reach.lo[0].T).all()


def test_reach_bounds_are_those_of_before_after_the_deadline() -> None:
    model = make_model(5)
    x = make_relaxation(model)
    hi = x.reach.hi
    x.restrict_actions(np.asarray(model.allowed)[None], solver_clock() - 1)
    np.testing.assert_array_equal(x.reach.hi, hi)
    assert (compute_visits(model, list_policies(np.asarray(model.allowed))) <= hi[0].T).all()


@pytest.mark.parametrize("seed", range(6))
def test_the_advantage_certifies_the_policy_that_it_is_of(seed: int) -> None:
    """With its q - v as prices, D falls to the value where no other policy has a chance."""
    model = make_model(seed)
    allowed, x = np.asarray(model.allowed), make_relaxation(model)
    policy = list_policies(allowed)[-1]
    only = np.arange(model.n_actions) == policy[:, None]
    x.restrict_actions(only[None])
    y = x.compute_advantage(policy)
    assert x.evaluate(y) == pytest.approx(compute_values(model, policy[None])[0], rel=1e-9)


def test_losses_are_what_models_and_the_common_policy_lose() -> None:
    model = make_model(3)
    x = make_relaxation(model)
    x.restrict_actions(np.asarray(model.allowed)[None])
    y = np.random.default_rng(3).normal(size=x.occupancy.shape) * x.problem.allowed[..., None]
    loss, best = x.estimate_losses(y), x.evaluate(y)
    for s, a in np.argwhere(model.allowed):
        forced = x.allowed_actions
        forced[0, s] = np.arange(model.n_actions) == a
        assert x.bound_subset(y, forced) <= best + x.estimate_rounding(y) * 2
        if loss[s, a] <= 1e-12:
            assert x.bound_subset(y, forced) == pytest.approx(best, rel=1e-9)
    assert (loss[~np.asarray(model.allowed)] == math.inf).all()
    assert (loss >= -1e-9).all()


@settings(max_examples=n_examples(25), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_a_descent_stays_above_every_policy(seed: int) -> None:
    model = make_model(seed)
    x = make_relaxation(model)
    x.restrict_actions(np.asarray(model.allowed)[None])
    values = compute_values(model, list_policies(np.asarray(model.allowed)))
    oracle = x.evaluate()
    descent = DualDescent(x, float(values.max()), [x.compute_advantage(x.optima.actions[0])])
    descent.descend(0.02)
    rounding = 1e-12 * np.abs(values).max() / (1 - min(model.discount, 0.9))
    assert values.max() - rounding <= descent.bound <= oracle + rounding


@pytest.mark.parametrize("first_nodes", [100_000, 3, 0])  # by model optima, both, by the dual
@settings(max_examples=n_examples(20), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_exact_is_brute_force(first_nodes: int, seed: int) -> None:
    model = make_model(seed)
    values = compute_values(model, list_policies(np.asarray(model.allowed)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "FIRST_NODES", first_nodes)
        for max_nodes in (2, 100_000):
            method = mmdp.methods.Exact(n_init=1, max_nodes=max_nodes)
            solution = mmdp.solve(model, math.inf, method, seed=0, backend="numpy")
            size = max(np.abs(values).max(), 1e-3 * np.abs(model.rewards).max())
            assert solution.details["bound"] >= values.max() - 1e-11 * size
    assert solution.status is mmdp.Status.OPTIMAL
    assert solution.value == pytest.approx(values.max(), abs=3e-7 * size)


def test_nodes_with_multipliers_prove_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten models with nothing in common, of rows without zeros."""
    rng = np.random.default_rng(0)
    P, r = rng.random((10, 12, 4, 12)), rng.random((10, 12, 4))
    model, gaps = mmdp.MMDP(P / P.sum(axis=3, keepdims=True), r, discount=0.97), []
    for first_nodes in (30, 0):
        monkeypatch.setattr(exact, "FIRST_NODES", first_nodes)
        solution = mmdp.solve(model, math.inf, mmdp.methods.Exact(max_nodes=30), seed=0)
        assert solution.gap is not None
        gaps.append(solution.gap)
    assert gaps[1] < 0.5 * gaps[0]
