"""Reductions to the mean over a number of decisions: never below brute force, often tight."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.bounds.ask import Ask
from mmdp.bounds.front import prove
from mmdp.bounds.portfolio import for_every_policy
from mmdp.clock import Stopwatch
from mmdp.kernels import Plan, Problem
from mmdp.kernels.numpy.kernel import NumpyKernel
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
    for attempt in (
        lambda: mmdp.bound(model, horizon, objective=wild),
        lambda: mmdp.solve(model, horizon, objective=wild, certify=1),
    ):
        with pytest.raises(mmdp.InputError, match="no bound is known for custom:matmul, which is"):
            attempt()


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


# ---------------------------------------------------------------------- no last decision
def later() -> mmdp.MMDP:
    """Each of two ways pays one model at once; what they lead to shows after two steps."""
    ways = np.zeros((2, 5, 2, 5))
    ways[:, 0, 0, 1] = ways[:, 0, 1, 2] = ways[:, 1, :, 3] = ways[:, 2, :, 4] = 1.0
    ways[:, 3, :, 3] = ways[:, 4, :, 4] = 1.0
    rewards = np.zeros((2, 5, 2))
    rewards[:, 0] = np.eye(2)
    rewards[:, 4] = 10.0
    return mmdp.MMDP(ways, rewards, initial=[1, 0, 0, 0, 0], discount=0.9)


@pytest.mark.parametrize("text", ["regret:mean", "regret:worst", "cvar:0.5", "mean"])
def test_without_time_for_own_optima_a_bound_still_holds(text: str) -> None:
    """Own optima that are known from above only must not count as lost."""
    some = (random_model(i, n_states=3, horizon=0, discount=0.7, masks=False) for i in range(3))
    F, kernel = as_objective(text), mmdp.kernels.get("numpy")
    for model in (later(), *some):
        value = mmdp.solve(model, math.inf, objective=text).value
        for steps, seconds in ((1, 0.0), (2, 0.0), (1, 0.1), (30, 0.1)):
            plan = kernel.plan(model.problem, steps)
            found = prove(Ask(plan, "best", Stopwatch(seconds), F, endless=True), kernel)
            assert found.value >= value
            assert min(found.details["bounds"].values()) == found.value


# ---------------------------------------------------------------------- the chain
class Counting(NumpyKernel):
    """How many problems were laid out, and how many models each had."""

    def __init__(self) -> None:
        self.laid_out: list[int] = []

    def plan(self, problem: Problem, horizon: int) -> Plan:
        self.laid_out.append(problem.n_models)
        return super().plan(problem, horizon)


@pytest.mark.parametrize("horizon", [4, math.inf])
@pytest.mark.parametrize("text", ["mean", "entropic:0.1", "cvar:0.3"])
def test_a_problem_is_laid_out_once(text: str, horizon: float) -> None:
    """Again only with fewer models, if the tilted weights leave some out."""
    model = random_model(6, n_models=5, n_states=3, n_actions=3, horizon=0, discount=0.8)
    kernel = Counting()
    mmdp.bound(model, horizon, objective=text, time_limit=0.2, backend=kernel)
    first, *others = kernel.laid_out
    assert first == 5
    assert all(n < 5 for n in others)
    assert len(others) <= (text == "cvar:0.3")


@pytest.mark.parametrize("options", [{}, {"objective": "entropic:0.1"}, {"policy": mmdp.Memory(2)}])
def test_a_certificate_is_proven_on_the_plan_of_the_solve(options: dict[str, Any]) -> None:
    model = random_model(6, n_models=5, n_states=3, n_actions=3, horizon=0, discount=0.8)
    plain, proving = Counting(), Counting()
    mmdp.solve(model, 4, backend=plain, **options)
    found = mmdp.solve(model, 4, backend=proving, certify=0.2, **options)
    assert found.bound is not None
    assert proving.laid_out == plain.laid_out


def test_what_bounds_every_policy_does_so_for_models_that_change_too() -> None:
    model = random_model(6, n_models=3, n_states=3, n_actions=3, horizon=0)
    changing = model.replace(model_transitions=np.full((3, 3), 0.1) + 0.7 * np.eye(3))
    for x, names in ((model, {"pairs", "oracle"}), (changing, {"best"})):
        for text in ("mean", "var:0.3"):
            assert for_every_policy(x.problem, as_objective(text)) in names
    assert mmdp.bound(changing, 3, for_every_policy(changing.problem)).bounds == "history"


def test_progress_on_an_objective_has_its_own_incumbent() -> None:
    model = random_model(6, n_models=5, n_states=3, n_actions=3, horizon=0)
    seen: list[mmdp.Progress] = []
    found = mmdp.bound(model, 4, objective="cvar:0.3", time_limit=0.2, callback=seen.append)
    assert seen[-1].bound == pytest.approx(found.value)
    assert {p.best for p in seen} == {found.details["incumbent"]}
    assert found.details["incumbent"] <= found.value
