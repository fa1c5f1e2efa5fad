"""Reductions to the mean over a number of decisions: never below brute force, often tight."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.core.bounds.api import search_bound
from mmdp.core.bounds.portfolio import choose_history_method
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.objectives import Objective, as_objective
from mmdp.core.testing import compute_returns, enumerate_policies, make_random_model
from tests.instances import HYPOTHESIS_SETTINGS, SEEDS, make_tiny_model, n_examples

TEXTS = (
    "cvar:0.3",
    "var:0.3",
    "evar:0.2",
    "entropic:0.1",
    "worst",
    "mean-cvar:0.2:0.4",
    "regret:worst",
    "regret:cvar:0.4",
    "regret:mean",
    "regret:entropic:0.5",
)


def find_best_value(objective: Objective, model: mmdp.MMDP, horizon: int) -> float:
    returns = compute_returns(model, enumerate_policies(model, horizon))
    rho = objective.relative_returns(returns, lambda: returns.max(axis=0))
    return float(objective.value(rho, model.weights).max())


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=n_examples(8), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_no_bound_is_below_the_best_policy(text: str, seed: int) -> None:
    model, horizon = make_tiny_model(seed)
    objective = as_objective(text)
    best = find_best_value(objective, model, horizon)
    for method in ("oracle", "best", "pairs") if objective.is_concave else ("oracle", "best"):
        bound = mmdp.bound(
            model, horizon, method, objective=objective, time_limit=0.2, backend="numpy"
        )
        assert bound.value >= best
        assert bound.objective == objective
        assert bound.details["bounds_by_method"]["oracle"] >= bound.value


@pytest.mark.parametrize("beta", [1e-9, 1e-14, 1e-17])
@pytest.mark.parametrize("unit", [1.0, 1e-12])
def test_a_small_beta_is_bounded_like_the_mean(beta: float, unit: float) -> None:
    for seed in range(3):
        model, horizon = make_tiny_model(seed)
        model = model.replace(rewards=model.rewards * unit)
        best = find_best_value(mmdp.objectives.Mean(), model, horizon)
        for method in ("oracle", "pairs"):
            objective = mmdp.objectives.Entropic(beta)
            bound = mmdp.bound(
                model, horizon, method, objective=objective, time_limit=0.1, backend="numpy"
            )
            mean_bound = mmdp.bound(model, horizon, method, time_limit=0.1, backend="numpy")
            assert bound.value >= max(
                find_best_value(objective, model, horizon), best - 1e-7 * abs(best)
            )
            if method == "oracle":
                assert bound.value == pytest.approx(mean_bound.value, rel=1e-7)


def test_a_policy_without_regret_is_optimal() -> None:
    for seed in range(4):
        model = make_random_model(seed, n_models=1, n_states=3, n_actions=2, horizon=0)
        for text in ("regret:worst", "regret:mean", "regret:entropic:0.5", "regret:evar:0.2"):
            solution = mmdp.solve(model, 4, objective=text, certify_time=0.1)
            assert solution.status is mmdp.Status.OPTIMAL
            assert solution.bound == 0
            assert solution.value == pytest.approx(0, abs=1e-12)


def test_risk_weights_tighten_the_oracle_bound() -> None:
    model = mmdp.domains.load_published("hiv").train
    solution = mmdp.solve(model, 5, objective="cvar:0.2", certify_time=2)
    assert solution.certificate is not None
    oracle_bound = solution.certificate.details["bounds_by_method"]["oracle"]
    assert solution.value <= solution.bound < oracle_bound - 0.5 * (oracle_bound - solution.value)
    weights = solution.certificate.details["weights"]
    assert weights.sum() == pytest.approx(1)
    assert (weights <= model.weights / 0.2 + 1e-12).all()


def test_a_closed_gap_is_optimal() -> None:
    model = make_random_model(3, n_models=1, n_states=3, n_actions=2, horizon=0)
    solution = mmdp.solve(model, 4, objective="worst", certify_time=1)
    assert solution.status is mmdp.Status.OPTIMAL
    assert solution.gap == pytest.approx(0, abs=1e-9)
    assert solution.certificate is not None
    assert solution.certificate.objective == mmdp.objectives.WorstCase()


def test_a_monotone_user_function_is_bounded() -> None:
    model, horizon = make_random_model(2, n_models=4, n_states=3, n_actions=2, horizon=0), 3
    min_return = mmdp.objectives.CustomObjective(
        lambda returns, weights: np.sort(returns, axis=-1)[..., 0], is_monotone=True
    )
    worst_bound = mmdp.bound(model, horizon, "oracle", objective="worst")
    bound = mmdp.bound(model, horizon, objective=min_return)
    assert bound.value == pytest.approx(worst_bound.value)
    not_monotone = mmdp.objectives.CustomObjective(np.matmul, is_monotone=False)
    for attempt in (
        lambda: mmdp.bound(model, horizon, objective=not_monotone),
        lambda: mmdp.solve(model, horizon, objective=not_monotone, certify_time=1),
    ):
        with pytest.raises(mmdp.InputError, match="no bound is known for custom:matmul, which is"):
            attempt()


def test_a_function_that_is_not_monotone_is_never_proven_optimal() -> None:
    model = make_random_model(2, n_models=4, n_states=3, n_actions=2, horizon=0)

    def negative_spread(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return -returns.std(axis=-1)

    for objective in (
        negative_spread,
        mmdp.objectives.CustomObjective(negative_spread),
        mmdp.objectives.CustomObjective(negative_spread).on_regret(),
    ):
        with pytest.raises(
            mmdp.InputError,
            match=r"say mmdp\.objectives\.CustomObjective\(f, is_monotone=True\) if no",
        ):
            mmdp.solve(model, 3, objective=objective, certify_time=0.1)
        with pytest.raises(mmdp.InputError, match="holds only if it is monotone"):
            mmdp.bound(model, 3, objective=objective)
    with pytest.raises(mmdp.InputError, match="above its bound .* so it is not monotone"):
        mmdp.solve(
            model,
            3,
            objective=mmdp.objectives.CustomObjective(negative_spread, is_monotone=True),
            certify_time=0.1,
        )


def test_a_quantile_has_no_risk_weights() -> None:
    model, horizon = make_tiny_model(11)
    with pytest.raises(mmdp.InputError, match="var:0.5 is not concave, so pairs does not bound it"):
        mmdp.bound(model, horizon, "pairs", objective="var:0.5")


# ---------------------------------------------------------------------- no last decision
def make_delayed_model() -> mmdp.MMDP:
    """Each of two ways pays one model at once; what they lead to shows after two steps."""
    transitions = np.zeros((2, 5, 2, 5))
    transitions[:, 0, 0, 1] = transitions[:, 0, 1, 2] = transitions[:, 1, :, 3] = transitions[
        :, 2, :, 4
    ] = 1.0
    transitions[:, 3, :, 3] = transitions[:, 4, :, 4] = 1.0
    rewards = np.zeros((2, 5, 2))
    rewards[:, 0] = np.eye(2)
    rewards[:, 4] = 10.0
    return mmdp.MMDP(transitions, rewards, initial=[1, 0, 0, 0, 0], discount=0.9)


@pytest.mark.parametrize("text", ["regret:mean", "regret:worst", "cvar:0.5", "mean"])
def test_bounds_hold_without_time_for_model_optima(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own optima that are known from above only must not count as lost."""
    random_models = (
        make_random_model(i, n_states=3, horizon=0, discount=0.7, has_masks=False) for i in range(3)
    )
    F = as_objective(text)
    for model in (make_delayed_model(), *random_models):
        value = mmdp.solve(model, math.inf, objective=text).value
        for horizon, seconds in ((1, 0.0), (2, 0.0), (1, 0.1), (30, 0.1)):
            monkeypatch.setattr(
                "mmdp.core.bounds.api.find_affordable_horizon", lambda *_, n=horizon: n
            )
            bound = search_bound(model, None, "best", F, seconds, None, "numpy")
            assert bound.value >= value
            assert min(bound.details["bounds_by_method"].values()) == bound.value


# ---------------------------------------------------------------------- the chain
class CountingBackend(NumpyBackend):
    """How many problems were laid out, and how many models each had."""

    def __init__(self) -> None:
        self.n_models_prepared: list[int] = []

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        self.n_models_prepared.append(problem.n_models)
        return super().prepare(problem, horizon)


@pytest.mark.parametrize("horizon", [4, math.inf])
@pytest.mark.parametrize("text", ["mean", "entropic:0.1", "cvar:0.3"])
def test_a_problem_is_prepared_once(text: str, horizon: float) -> None:
    """Again only with fewer models, if the tilted weights leave some out."""
    model = make_random_model(6, n_models=5, n_states=3, n_actions=3, horizon=0, discount=0.8)
    backend = CountingBackend()
    mmdp.bound(model, horizon, objective=text, time_limit=0.2, backend=backend)
    first, *other_counts = backend.n_models_prepared
    assert first == 5
    assert all(n < 5 for n in other_counts)
    assert len(other_counts) <= (text == "cvar:0.3")


@pytest.mark.parametrize(
    "options", [{}, {"objective": "entropic:0.1"}, {"policy_class": mmdp.policies.Memory(2)}]
)
def test_a_certificate_reuses_the_prepared_problem(options: dict[str, Any]) -> None:
    model = make_random_model(6, n_models=5, n_states=3, n_actions=3, horizon=0, discount=0.8)
    solving, certifying = CountingBackend(), CountingBackend()
    mmdp.solve(model, 4, backend=solving, **options)
    solution = mmdp.solve(model, 4, backend=certifying, certify_time=0.2, **options)
    assert solution.bound is not None
    assert certifying.n_models_prepared == solving.n_models_prepared


def test_bounds_of_every_policy_hold_for_switching_models() -> None:
    model = make_random_model(6, n_models=3, n_states=3, n_actions=3, horizon=0)
    switching = model.replace(model_transitions=np.full((3, 3), 0.1) + 0.7 * np.eye(3))
    for x, names in ((model, {"pairs", "oracle"}), (switching, {"best"})):
        for text in ("mean", "var:0.3"):
            assert choose_history_method(x.problem, as_objective(text)) in names
    assert mmdp.bound(switching, 3, choose_history_method(switching.problem)).scope == "history"


def test_progress_on_an_objective_has_its_own_incumbent() -> None:
    model = make_random_model(6, n_models=5, n_states=3, n_actions=3, horizon=0)
    reports: list[mmdp.solution.Progress] = []
    bound = mmdp.bound(model, 4, objective="cvar:0.3", time_limit=0.2, callback=reports.append)
    assert reports[-1].bound == pytest.approx(bound.value)
    assert {p.best_value for p in reports} == {bound.details["incumbent"]}
    assert bound.details["incumbent"] <= bound.value
