"""Bounds on objectives: never below brute force, tight if little is left to chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.objective import Objective, as_objective
from mmdp.testing import all_policies, random_model, returns_of
from tests.instances import NO_TIME, SEEDS, at_least, tiny

TEXTS = (
    "cvar:0.3", "var:0.3", "evar:0.2", "entropic:0.1", "worst", "mean-cvar:0.2:0.4", "regret:worst",
    "regret:cvar:0.4", "regret:mean", "regret:entropic:0.5",
)  # fmt: skip


def best_of(objective: Objective, model: mmdp.MMDP, horizon: int) -> float:
    every = returns_of(all_policies(model, horizon), model)
    rho = objective.counted(every, lambda: every.max(axis=0))
    return float(objective.value(rho, model.weights).max())


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=at_least(8), **NO_TIME)
@given(seed=SEEDS)
def test_no_bound_is_below_the_best_policy(text: str, seed: int) -> None:
    model, horizon = tiny(seed)
    objective = as_objective(text)
    best = best_of(objective, model, horizon)
    for method in ("oracle", "best", "pairs") if objective.concave else ("oracle", "best"):
        found = mmdp.bound(
            model, horizon, method, objective=objective, time_limit=0.2, backend="numpy"
        )
        assert found.value >= best
        assert found.objective == objective
        assert found.details["bounds"]["oracle"] >= found.value


@pytest.mark.parametrize("beta", [1e-9, 1e-14, 1e-17])
@pytest.mark.parametrize("unit", [1.0, 1e-12])
def test_a_small_beta_is_bounded_like_the_mean(beta: float, unit: float) -> None:
    for seed in range(3):
        model, horizon = tiny(seed)
        model = model.replace(rewards=model.rewards * unit)
        best = best_of(mmdp.Mean(), model, horizon)
        for method in ("oracle", "pairs"):
            goal = mmdp.Entropic(beta)
            found = mmdp.bound(
                model, horizon, method, objective=goal, time_limit=0.1, backend="numpy"
            )
            plain = mmdp.bound(model, horizon, method, time_limit=0.1, backend="numpy")
            assert found.value >= max(best_of(goal, model, horizon), best - 1e-7 * abs(best))
            if method == "oracle":
                assert found.value == pytest.approx(plain.value, rel=1e-7)


def test_a_policy_without_regret_is_optimal() -> None:
    for seed in range(4):
        model = random_model(seed, n_models=1, n_states=3, n_actions=2, horizon=0)
        for text in ("regret:worst", "regret:mean", "regret:entropic:0.5", "regret:evar:0.2"):
            found = mmdp.solve(model, 4, objective=text, certify=0.1)
            assert found.status is mmdp.Status.OPTIMAL
            assert found.bound == 0
            assert found.value == pytest.approx(0, abs=1e-12)


def test_tilted_weights_tighten_the_bound_of_the_models_own_optima() -> None:
    model = mmdp.domains.published("hiv").train
    solution = mmdp.solve(model, 5, objective="cvar:0.2", certify=2)
    assert solution.certificate is not None
    first = solution.certificate.details["bounds"]["oracle"]
    assert solution.value <= solution.bound < first - 0.5 * (first - solution.value)
    weights = solution.certificate.details["weights"]
    assert weights.sum() == pytest.approx(1)
    assert (weights <= model.weights / 0.2 + 1e-12).all()


def test_a_closed_gap_is_optimal() -> None:
    model = random_model(3, n_models=1, n_states=3, n_actions=2, horizon=0)
    found = mmdp.solve(model, 4, objective="worst", certify=1)
    assert found.status is mmdp.Status.OPTIMAL
    assert found.gap == pytest.approx(0, abs=1e-9)
    assert found.certificate is not None
    assert found.certificate.objective == mmdp.WorstCase()


def test_a_function_of_a_user_is_bounded_if_it_is_monotone() -> None:
    model, horizon = random_model(2, n_models=4, n_states=3, n_actions=2, horizon=0), 3
    least = mmdp.Custom(lambda returns, weights: np.sort(returns, axis=-1)[..., 0], monotone=True)
    worst = mmdp.bound(model, horizon, "oracle", objective="worst")
    found = mmdp.bound(model, horizon, objective=least)
    assert found.value == pytest.approx(worst.value)
    wild = mmdp.Custom(np.matmul, monotone=False)
    for prove in (
        lambda: mmdp.bound(model, horizon, objective=wild),
        lambda: mmdp.solve(model, horizon, objective=wild, certify=1),
    ):
        with pytest.raises(mmdp.InputError, match="no bound is known for custom:matmul, which is"):
            prove()


def test_a_function_that_is_not_monotone_is_never_proven_optimal() -> None:
    model = random_model(2, n_models=4, n_states=3, n_actions=2, horizon=0)

    def narrow(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return -returns.std(axis=-1)

    for unknown in (narrow, mmdp.Custom(narrow), mmdp.Custom(narrow).of_regret()):
        with pytest.raises(mmdp.InputError, match=r"say mmdp\.Custom\(f, monotone=True\) if no"):
            mmdp.solve(model, 3, objective=unknown, certify=0.1)
        with pytest.raises(mmdp.InputError, match="holds only if it is monotone"):
            mmdp.bound(model, 3, objective=unknown)
    with pytest.raises(mmdp.InputError, match="above its bound .* so it is not monotone"):
        mmdp.solve(model, 3, objective=mmdp.Custom(narrow, monotone=True), certify=0.1)


def test_a_quantile_has_no_tilted_weights() -> None:
    model, horizon = tiny(11)
    with pytest.raises(mmdp.InputError, match="var:0.5 is not concave, so pairs does not bound it"):
        mmdp.bound(model, horizon, "pairs", objective="var:0.5")
