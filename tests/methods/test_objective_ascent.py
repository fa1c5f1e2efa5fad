"""CADP for any objective: never falls, ends where no single change helps, against brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.methods.table import able
from mmdp.objective import Objective, as_objective
from mmdp.search import landscape
from mmdp.testing import all_policies, plain_returns, random_model, returns_of
from tests.instances import NO_TIME, SEEDS, at_least, tiny


def spread(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A function of a user that is not monotone: the mean less two standard deviations."""
    mean = returns @ weights
    return mean - 2 * np.sqrt(((returns - mean[..., None]) ** 2) @ weights)


OBJECTIVES: list[Objective] = [
    *map(as_objective, ("cvar:0.3", "var:0.3", "evar:0.2", "entropic:0.1", "worst")),
    *map(as_objective, ("mean-cvar:0.2:0.4", "regret:worst", "regret:cvar:0.4", "regret:mean")),
    mmdp.Custom(spread, monotone=False),
]  # fmt: skip
EACH = pytest.mark.parametrize("objective", OBJECTIVES, ids=str)


def value_of(returns: np.ndarray, objective: Objective, model: mmdp.MMDP, horizon: int) -> object:
    """F of returns (..., M), with the models' own optima by enumeration."""
    own = returns_of(all_policies(model, horizon), model).max(axis=0)
    return objective.value(objective.counted(returns, lambda: own), model.weights)


@EACH
@settings(max_examples=at_least(12), **NO_TIME)
@given(seed=SEEDS)
def test_an_ascent_never_falls_and_ends_in_a_local_optimum(objective: Objective, seed: int) -> None:
    model, horizon = tiny(seed)
    found = mmdp.solve(model, horizon, objective=objective, backend="numpy")
    slack = 1e-9 * (1 + np.abs(found.returns).max())
    assert (np.diff(found.trace) >= 0).all()
    assert found.trace[-1] == pytest.approx(found.value, abs=slack)
    assert found.returns == pytest.approx(plain_returns(found.policy, model), abs=slack)
    assert found.value == pytest.approx(
        value_of(found.returns, objective, model, horizon), abs=10 * slack
    )
    assert found.status is mmdp.Status.LOCAL_OPTIMUM or model.n_models == 1
    every = all_policies(model, horizon)
    near = every[(every != found.policy.actions).sum(axis=(1, 2)) <= 1]
    values = value_of(returns_of(near, model), objective, model, horizon)
    assert np.max(values) <= found.value + 10 * slack  # type: ignore[call-overload]


@pytest.mark.parametrize("text", ["cvar:0.3", "worst", "var:0.4"])
def test_models_that_do_not_count_set_no_scale(text: str) -> None:
    """A change that helps the model that counts is no rounding beside larger returns."""
    for seed in range(12):
        scale = 10.0 ** np.random.default_rng(seed).integers(-12, 13, 5)
        model = random_model(seed, n_models=5, n_states=2, n_actions=3, masks=False, horizon=0)
        model = model.replace(
            rewards=model.rewards * scale[:, None, None],
            terminal=model.terminal * scale[:, None], weights=np.full(5, 0.2),
        )  # fmt: skip
        found = mmdp.solve(model, 3, objective=text, backend="numpy")
        every = all_policies(model, 3)
        near = every[(every != found.policy.actions).sum(axis=(1, 2)) <= 1]
        best = as_objective(text).value(returns_of(near, model), model.weights).max()
        assert best <= found.value + 1e-9 * abs(found.value)


@EACH
def test_many_starts_find_the_optimum_of_most_tiny_instances(objective: Objective) -> None:
    best = []
    for seed in range(15):
        model, horizon = tiny(seed)
        found = mmdp.solve(model, horizon, objective=objective, backend="numpy")
        every = returns_of(all_policies(model, horizon), model)
        most = np.max(value_of(every, objective, model, horizon))  # type: ignore[call-overload]
        slack = 1e-9 * (1 + np.abs(every).max())
        assert found.value <= most + 10 * slack
        best.append(found.value >= most - 10 * slack)
    assert np.mean(best) >= 0.8


def test_the_mean_goes_its_own_way() -> None:
    model = random_model(5, n_models=6, n_states=4, n_actions=3, horizon=0)
    plain, named = mmdp.solve(model, 6), mmdp.solve(model, 6, objective="mean")
    assert plain.value == named.value
    assert (plain.trace == named.trace).all()
    regret = mmdp.solve(model, 6, objective=mmdp.Mean().of_regret())
    assert regret.value == pytest.approx(-regret.evaluation.bayes_regret)
    assert regret.value == pytest.approx(plain.value - plain.evaluation.oracle @ model.weights)


def test_kernels_agree() -> None:
    for seed in range(3):
        model = random_model(seed, n_models=9, n_states=5, n_actions=3, horizon=7)
        ends = [
            mmdp.solve(model, 7, objective="cvar:0.3", backend=backend)
            for backend in ("numpy", "numba")
        ]
        assert ends[0].value == pytest.approx(ends[1].value, rel=1e-9)


def test_a_solution_says_what_it_maximised() -> None:
    model = random_model(1, n_models=5, n_states=3, n_actions=2, horizon=0)
    found = mmdp.solve(model, 4, objective=mmdp.CVaR(0.4))
    assert found.objective == mmdp.CVaR(0.4)
    assert found.value == found.evaluation.value("cvar:0.4") == found.evaluation.cvar(0.4)
    assert "Solution(cadp, horizon 4, CVaR 40%)" in repr(found)
    assert f"mean {found.evaluation.mean:,.6g}" in repr(found)
    assert "mean" not in repr(mmdp.solve(model, 4))
    again = mmdp.solve(model, 4, mmdp.CADP(init=found.policy), objective=found.provenance.objective)
    assert again.value >= found.value
    assert again.details["sweeps_taken"] == "single changes"


def test_the_worst_models_gain_what_the_mean_gives_up() -> None:
    train = mmdp.domains.published("riverswim").train
    careful = mmdp.solve(train, 10, objective="cvar:0.1")
    plain = mmdp.solve(train, 10)
    assert careful.value > plain.evaluation.cvar(0.1) + 1
    assert careful.evaluation.mean < plain.value


# ---------------------------------------------------------------------- the published models
ALPHAS = (0.5, 0.2, 0.1, 0.05, 0.01)
# by alpha: what a plain ascent from the mean's policy reaches, and the models' own optima
RIVERSWIM = ((123.60, 71.58, 57.39, 53.08, 50.626), (128.30, 73.17, 58.39, 53.38, 50.63))
HIV = ((31829, 23859, 19792, 16623, 11464), (40840, 32150, 28106, 22792, 12348))


@pytest.mark.parametrize(
    ("name", "horizon", "figures"), [("hiv", 15, HIV), ("riverswim", 50, RIVERSWIM)]
)
def test_the_tail_of_the_published_models(
    name: str, horizon: int, figures: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    train, test = mmdp.domains.published(name)
    some = slice(None) if name == "hiv" else slice(2, 3)  # the others are slow: see below
    for alpha, least, most in list(zip(ALPHAS, *figures, strict=True))[some]:
        goal = mmdp.CVaR(alpha)
        found = mmdp.solve(train, horizon, objective=goal)
        bound = mmdp.bound(train, horizon, "oracle", objective=goal)
        assert least <= found.value <= bound.value <= most
        if name == "riverswim":
            assert mmdp.evaluate(found, test).value(goal) >= 64


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_tail_of_riverswim_is_proven(alpha: float) -> None:
    train, _ = mmdp.domains.published("riverswim")
    least, most = (dict(zip(ALPHAS, x, strict=True))[alpha] for x in RIVERSWIM)
    found = mmdp.solve(train, 50, objective=mmdp.CVaR(alpha), certify=30)
    assert found.bound is not None
    assert least <= found.value <= found.bound <= most
    assert found.gap is not None
    assert found.gap <= (0.01 if alpha == 0.5 else 0.0025)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "gap"), [(0.2, 0.03), (0.1, 0.065)])
def test_the_tail_of_hiv_is_proven(alpha: float, gap: float) -> None:
    train, _ = mmdp.domains.published("hiv")
    found = mmdp.solve(train, 15, objective=mmdp.CVaR(alpha), certify=30)
    assert found.gap is not None
    assert found.gap <= gap


# ---------------------------------------------------------------------- limits and refusals
def test_a_time_limit_and_a_callback_end_it_with_the_best_so_far() -> None:
    model = random_model(2, n_models=30, n_states=12, n_actions=3, horizon=0)
    found = mmdp.solve(model, 20, objective="cvar:0.2", time_limit=1e-9)
    assert found.status is mmdp.Status.TIME_LIMIT
    seen: list[float] = []

    def interrupt(progress: mmdp.Progress) -> None:
        seen.append(progress.best)
        if len(seen) == 3:
            raise KeyboardInterrupt

    found = mmdp.solve(model, 20, objective="cvar:0.2", callback=interrupt)
    assert found.status is mmdp.Status.INTERRUPTED
    assert found.value == pytest.approx(max(seen))


@pytest.mark.parametrize("kind", [None, mmdp.Tied([0, 0, 1, 1]), mmdp.Monotone()])
def test_a_time_limit_ends_a_sweep(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which the changes at one time take a second."""
    now, best = [0.0], landscape.best_changes
    monkeypatch.setattr("mmdp.clock.time.perf_counter", lambda: now[0])

    def slow(*args: Any) -> Any:
        now[0] += 1
        return best(*args)

    monkeypatch.setattr(landscape, "best_changes", slow)
    model = random_model(2, n_models=5, n_states=4, n_actions=3, horizon=0, masks=False)
    found = mmdp.solve(
        model, 20, objective="cvar:0.2", policy=kind, time_limit=30.0, backend="numpy"
    )
    assert found.status is mmdp.Status.TIME_LIMIT
    assert now[0] <= 31 + 4  # the states of one time


def test_seeds_repeat() -> None:
    model = random_model(7, n_models=5, n_states=3, n_actions=3, horizon=0)
    ends = [
        mmdp.solve(model, 5, mmdp.CADP(starts=8), objective="worst", seed=seed)
        for seed in (1, 1, 2)
    ]
    assert (ends[0].policy.actions == ends[1].policy.actions).all()
    assert ends[0].details["starts"] == ends[1].details["starts"]


def test_methods_that_cannot_are_refused_and_those_that_can_are_named() -> None:
    model = random_model(1, n_models=2, n_states=2, n_actions=2, horizon=0)
    for method, objective in itertools.product(("wsu", "oracle", "qmdp"), ("worst", "regret:mean")):
        kind = "regret" if objective == "regret:mean" else objective
        with pytest.raises(mmdp.InputError, match=f"{method} .* mean, not {objective}") as told:
            mmdp.solve(model, 2, method, objective=objective)
        assert all(repr(name) in str(told.value) for name in able(objective=kind))
    with pytest.raises(mmdp.InputError, match="polish is for the mean"):
        mmdp.solve(model, 2, mmdp.CADP(polish=1), objective="worst")


@pytest.mark.parametrize("policy", ["markov", mmdp.Tied([0, 0, 1])])
@pytest.mark.parametrize("text", ["cvar:0.4", "worst", "entropic:0.5"])
def test_models_of_weight_zero_set_no_scale(text: str, policy: str | mmdp.PolicyKind) -> None:
    model = random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    few = model.subset([0, 1, 2]).replace(weights=np.full(3, 1 / 3))
    rewards = model.rewards * np.array([1, 1, 1, 1e16])[:, None, None]
    wide = model.replace(rewards=rewards, weights=[1 / 3, 1 / 3, 1 / 3, 0])
    start = mmdp.CADP(init=mmdp.MarkovPolicy(np.zeros((4, 3), int)), starts=1)
    least, found = (mmdp.solve(x, 4, start, objective=text, policy=policy) for x in (few, wide))
    assert found.value == pytest.approx(least.value, rel=1e-12)
    bounds = [mmdp.bound(x, 4, "oracle", objective=text).value for x in (few, wide)]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-9)


def test_the_worst_model_s_own_optimum_is_found_behind_a_state_that_is_not_reached() -> None:
    """By the mean B is not worth a visit, and its action there is the wrong one for the worst."""
    P = np.zeros((4, 2, 4))  # from the start to A or B, and on to the end
    P[0, 0, 1] = P[0, 1, 2] = 1
    P[1:, :, 3] = 1
    r = np.zeros((2, 4, 2))
    r[:, 1] = [[9.0, 9.0], [5.0, 5.0]]
    r[:, 2] = [[12.0, 5.8], [0.0, 6.0]]
    model = mmdp.MMDP([P, P], r, initial=[1, 0, 0, 0])
    for objective in ("worst", "cvar:0.4"):
        found = mmdp.solve(model, 2, mmdp.CADP(starts=1), objective=objective)
        assert found.value == pytest.approx(5.8)
