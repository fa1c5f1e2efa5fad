"""CADP for any objective: never falls, ends where no single change helps, against brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.core import kernels
from mmdp.core.kernels.ascent import ascend
from mmdp.core.methods.registry import methods_supporting
from mmdp.core.objectives import Objective, as_objective
from mmdp.core.search.context import SolveContext
from mmdp.core.search.space import AscentDirection
from mmdp.core.search.spaces import MarkovSpace
from mmdp.core.testing import (
    compute_plain_returns,
    compute_returns,
    enumerate_policies,
    make_random_model,
)
from tests.instances import HYPOTHESIS_SETTINGS, SEEDS, make_tiny_model, n_examples


def mean_minus_two_sd(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A function of a user that is not monotone: the mean less two standard deviations."""
    mean = returns @ weights
    return mean - 2 * np.sqrt(((returns - mean[..., None]) ** 2) @ weights)


OBJECTIVES: list[Objective] = [
    *map(as_objective, ("cvar:0.3", "var:0.3", "evar:0.2", "entropic:0.1", "worst")),
    *map(as_objective, ("mean-cvar:0.2:0.4", "regret:worst", "regret:cvar:0.4", "regret:mean")),
    mmdp.objectives.CustomObjective(mean_minus_two_sd, is_monotone=False),
]
EACH_OBJECTIVE = pytest.mark.parametrize("objective", OBJECTIVES, ids=str)


def compute_objective_value(
    returns: np.ndarray, objective: Objective, model: mmdp.MMDP, horizon: int
) -> object:
    """F of returns (..., M), with the models' own optima by enumeration."""
    oracle_returns = compute_returns(model, enumerate_policies(model, horizon)).max(axis=0)
    return objective.value(
        objective.relative_returns(returns, lambda: oracle_returns), model.weights
    )


@EACH_OBJECTIVE
@settings(max_examples=n_examples(12), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_an_ascent_never_falls_and_ends_in_a_local_optimum(objective: Objective, seed: int) -> None:
    model, horizon = make_tiny_model(seed)
    solution = mmdp.solve(model, horizon, objective=objective, backend="numpy")
    slack = 1e-9 * (1 + np.abs(solution.returns).max())
    assert (np.diff(solution.trace) >= 0).all()
    assert solution.trace[-1] == pytest.approx(solution.value, abs=slack)
    assert solution.returns == pytest.approx(
        compute_plain_returns(model, solution.policy), abs=slack
    )
    assert solution.value == pytest.approx(
        compute_objective_value(solution.returns, objective, model, horizon), abs=10 * slack
    )
    assert solution.status is mmdp.Status.LOCAL_OPTIMUM or model.n_models == 1
    policies = enumerate_policies(model, horizon)
    neighbors = policies[(policies != solution.policy.actions).sum(axis=(1, 2)) <= 1]
    values = compute_objective_value(compute_returns(model, neighbors), objective, model, horizon)
    assert np.max(values) <= solution.value + 10 * slack  # type: ignore[call-overload]


@pytest.mark.parametrize("text", ["cvar:0.3", "worst", "var:0.4"])
def test_zero_weight_models_set_no_scale(text: str) -> None:
    """A change that helps the model that counts is no rounding beside larger returns."""
    for seed in range(12):
        scale = 10.0 ** np.random.default_rng(seed).integers(-12, 13, 5)
        model = make_random_model(
            seed, n_models=5, n_states=2, n_actions=3, has_masks=False, horizon=0
        )
        model = model.replace(
            rewards=model.rewards * scale[:, None, None],
            terminal=model.terminal * scale[:, None],
            weights=np.full(5, 0.2),
        )
        solution = mmdp.solve(model, 3, objective=text, backend="numpy")
        policies = enumerate_policies(model, 3)
        neighbors = policies[(policies != solution.policy.actions).sum(axis=(1, 2)) <= 1]
        best = as_objective(text).value(compute_returns(model, neighbors), model.weights).max()
        assert best <= solution.value + 1e-9 * abs(solution.value)


@EACH_OBJECTIVE
def test_many_inits_find_most_tiny_optima(objective: Objective) -> None:
    n_optimal = []
    for seed in range(n_examples(15)):
        model, horizon = make_tiny_model(seed)
        solution = mmdp.solve(model, horizon, objective=objective, backend="numpy")
        returns = compute_returns(model, enumerate_policies(model, horizon))
        best_value = np.max(compute_objective_value(returns, objective, model, horizon))  # type: ignore[call-overload]
        slack = 1e-9 * (1 + np.abs(returns).max())
        assert solution.value <= best_value + 10 * slack
        n_optimal.append(solution.value >= best_value - 10 * slack)
    assert np.mean(n_optimal) >= 0.8


class _Staircase:
    """A sweeper whose policies are numbers; sweep n leads from the value of n to that of n + 1."""

    def __init__(self, values: list[float]) -> None:
        self.values, self.problem = values, make_random_model(0, n_models=1).problem

    def initialize(self, init: object) -> tuple[Any, Any]:
        return np.array(0), np.array([self.values[0]])

    def sweep(self, policy: Any) -> tuple[Any, Any]:
        return policy + 1, np.array([self.values[int(policy) + 1]])


@pytest.mark.parametrize(("target", "n_sweeps"), [(-np.inf, 9), (30.9, 9), (31.1, 2), (500.0, 1)])
def test_an_ascent_that_falls_behind_is_given_up(target: float, n_sweeps: int) -> None:
    values = [0.0, 10.0, *np.arange(11.0, 18.0), 17.0]  # 20 more sweeps from 11 lead to 31
    result = ascend(_Staircase(values), None, 0.0, 1000, None, lambda x: float(x[0]), target)
    assert result.n_sweeps == n_sweeps
    assert result.stop_reason == ("local_optimum" if n_sweeps == 9 else "tolerance")


@pytest.mark.parametrize(("gain_share", "n_sweeps"), [(0.0, 5), (0.09, 5), (0.1, 2), (1.0, 1)])
def test_a_stage_ends_when_its_gain_has_died(gain_share: float, n_sweeps: int) -> None:
    values = [100.0, 110.0, 111.0, 113.0, 116.0, 116.0]  # gains of 10 and of 1, a share of 1 / 11
    options: Any = (0.0, 1000, None, lambda x: float(x[0]), -np.inf, gain_share)
    result = ascend(_Staircase(values), None, *options)
    assert result.n_sweeps == n_sweeps
    assert result.stop_reason == ("local_optimum" if n_sweeps == 5 else "tolerance")


@pytest.mark.parametrize("text", ["evar:0.2", "entropic:0.1", "cvar:0.3", "worst"])
def test_changes_that_cannot_improve_are_not_looked_at(text: str) -> None:
    """The mean with the risk weights rules them out, also where these are rounded (EVaR)."""
    model = make_random_model(5, n_models=6, n_states=4, n_actions=3, horizon=0)
    context = SolveContext(model, 6, kernels.get_backend("numpy"))
    table, objective, looks = np.zeros((6, 4), np.int32), as_objective(text), list[int]()

    class Watched(type(objective)):  # type: ignore[misc]
        def value(self, returns: np.ndarray, weights: np.ndarray) -> Any:
            looks.append(returns.ndim)
            return super().value(returns, weights)

    direction = AscentDirection(
        MarkovSpace(context), table, context.compute_returns(table), Watched(**vars(objective))
    )
    looks.clear()
    changes = -np.abs(np.random.default_rng(0).normal(size=(200, 3, 6)))
    changes[:, 0] = 0.0
    assert (direction.select_changes(changes) == -1).all()
    assert len(looks) == 1  # at the present returns


def test_ascents_that_crawl_do_not_keep_a_search() -> None:
    """Single changes for the worst regret zigzag at its kinks: 309 sweeps if they all go on."""
    model = mmdp.domains.population_small().train
    solution = mmdp.solve(model, 20, objective="regret:worst")
    assert solution.details["n_total_sweeps"] < 150


def test_the_default_objective_is_the_mean() -> None:
    model = make_random_model(5, n_models=6, n_states=4, n_actions=3, horizon=0)
    default, named = mmdp.solve(model, 6), mmdp.solve(model, 6, objective="mean")
    assert default.value == named.value
    assert (default.trace == named.trace).all()
    regret = mmdp.solve(model, 6, objective=mmdp.objectives.Mean().on_regret())
    assert regret.value == pytest.approx(-regret.evaluation.bayes_regret)
    assert regret.value == pytest.approx(default.value - default.evaluation.oracle @ model.weights)


def test_backends_agree() -> None:
    for seed in range(3):
        model = make_random_model(seed, n_models=9, n_states=5, n_actions=3, horizon=7)
        solutions = [
            mmdp.solve(model, 7, objective="cvar:0.3", backend=backend)
            for backend in ("numpy", "numba")
        ]
        assert solutions[0].value == pytest.approx(solutions[1].value, rel=1e-9)


def test_a_solution_names_its_objective() -> None:
    model = make_random_model(1, n_models=5, n_states=3, n_actions=2, horizon=0)
    solution = mmdp.solve(model, 4, objective=mmdp.objectives.CVaR(0.4))
    assert solution.objective == mmdp.objectives.CVaR(0.4)
    assert solution.value == solution.evaluation.value("cvar:0.4") == solution.evaluation.cvar(0.4)
    assert "Solution(cadp, horizon 4, CVaR 40%)" in repr(solution)
    assert f"mean {solution.evaluation.mean:,.6g}" in repr(solution)
    assert "mean" not in repr(mmdp.solve(model, 4))
    resumed = mmdp.solve(
        model, 4, mmdp.methods.CADP(init=solution.policy), objective=solution.provenance.objective
    )
    assert resumed.value >= solution.value
    assert resumed.details["sweep_type"] == "single changes"


def test_the_worst_models_gain_what_the_mean_gives_up() -> None:
    train = mmdp.domains.load_published("riverswim").train
    cvar_solution = mmdp.solve(train, 10, objective="cvar:0.1")
    mean_solution = mmdp.solve(train, 10)
    assert cvar_solution.value > mean_solution.evaluation.cvar(0.1) + 1
    assert cvar_solution.evaluation.mean < mean_solution.value


# ---------------------------------------------------------------------- the published models
ALPHAS = (0.5, 0.2, 0.1, 0.05, 0.01)
# by alpha: what a plain ascent from the mean's policy reaches, and the models' own optima
RIVERSWIM = ((123.60, 71.58, 57.39, 53.08, 50.626), (128.30, 73.17, 58.39, 53.38, 50.63))
HIV = ((31829, 23859, 19792, 16623, 11464), (40840, 32150, 28106, 22792, 12348))


@pytest.mark.parametrize(
    ("name", "horizon", "published"), [("hiv", 15, HIV), ("riverswim", 50, RIVERSWIM)]
)
def test_the_tail_of_the_published_models(
    name: str, horizon: int, published: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    train, test = mmdp.domains.load_published(name)
    selected = slice(None) if name == "hiv" else slice(2, 3)  # the others are slow: see below
    for alpha, lower, upper in list(zip(ALPHAS, *published, strict=True))[selected]:
        objective = mmdp.objectives.CVaR(alpha)
        solution = mmdp.solve(train, horizon, objective=objective)
        bound = mmdp.bound(train, horizon, "oracle", objective=objective)
        assert lower <= solution.value <= bound.value <= upper
        if name == "riverswim":
            assert mmdp.evaluate(test, solution).value(objective) >= 64


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_tail_of_riverswim_is_proven(alpha: float) -> None:
    train, _ = mmdp.domains.load_published("riverswim")
    lower, upper = (dict(zip(ALPHAS, x, strict=True))[alpha] for x in RIVERSWIM)
    solution = mmdp.solve(train, 50, objective=mmdp.objectives.CVaR(alpha), certify_time=30)
    assert solution.bound is not None
    assert lower <= solution.value <= solution.bound <= upper
    assert solution.gap is not None
    assert solution.gap <= (0.01 if alpha == 0.5 else 0.0025)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "gap"), [(0.2, 0.03), (0.1, 0.065)])
def test_the_tail_of_hiv_is_proven(alpha: float, gap: float) -> None:
    train, _ = mmdp.domains.load_published("hiv")
    solution = mmdp.solve(train, 15, objective=mmdp.objectives.CVaR(alpha), certify_time=30)
    assert solution.gap is not None
    assert solution.gap <= gap


# ---------------------------------------------------------------------- limits and refusals
def test_time_limit_and_callback_keep_the_best() -> None:
    model = make_random_model(2, n_models=30, n_states=12, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 20, objective="cvar:0.2", time_limit=1e-9)
    assert solution.status is mmdp.Status.TIME_LIMIT
    best_values: list[float] = []

    def interrupt(progress: mmdp.solution.Progress) -> None:
        best_values.append(progress.best_value)
        if len(best_values) == 3:
            raise KeyboardInterrupt

    solution = mmdp.solve(model, 20, objective="cvar:0.2", callback=interrupt)
    assert solution.status is mmdp.Status.INTERRUPTED
    assert solution.value == pytest.approx(max(best_values))


@pytest.mark.parametrize(
    "policy_class", [None, mmdp.policies.Tied([0, 0, 1, 1]), mmdp.policies.Monotone()]
)
def test_a_time_limit_ends_a_sweep(policy_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which the changes at one time take a second."""
    now, original = [0.0], AscentDirection.select_changes
    monkeypatch.setattr("mmdp.core.timing.time.perf_counter", lambda: now[0])

    def improve_slowly(*args: Any) -> Any:
        now[0] += 1
        return original(*args)

    monkeypatch.setattr(AscentDirection, "select_changes", improve_slowly)
    model = make_random_model(2, n_models=5, n_states=4, n_actions=3, horizon=0, has_masks=False)
    solution = mmdp.solve(
        model, 20, objective="cvar:0.2", policy_class=policy_class, time_limit=30.0, backend="numpy"
    )
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert now[0] <= 31 + 4  # the states of one time


def test_seeds_repeat() -> None:
    model = make_random_model(7, n_models=5, n_states=3, n_actions=3, horizon=0)
    solutions = [
        mmdp.solve(model, 5, mmdp.methods.CADP(n_init=8), objective="worst", seed=seed)
        for seed in (1, 1, 2)
    ]
    assert (solutions[0].policy.actions == solutions[1].policy.actions).all()
    assert solutions[0].details["inits"] == solutions[1].details["inits"]


def test_refusals_name_the_supporting_methods() -> None:
    model = make_random_model(1, n_models=2, n_states=2, n_actions=2, horizon=0)
    for method, objective in itertools.product(("wsu", "oracle", "qmdp"), ("worst", "regret:mean")):
        objective_key = "regret" if objective == "regret:mean" else objective
        with pytest.raises(mmdp.InputError, match=f"{method} .* mean, not {objective}") as error:
            mmdp.solve(model, 2, method, objective=objective)
        assert all(
            repr(name) in str(error.value) for name in methods_supporting(objective=objective_key)
        )


@pytest.mark.parametrize("policy_class", ["markov", mmdp.policies.Tied([0, 0, 1])])
@pytest.mark.parametrize("text", ["cvar:0.4", "worst", "entropic:0.5"])
def test_large_rewards_of_zero_weight_models_are_ignored(
    text: str, policy_class: str | mmdp.PolicyKind
) -> None:
    model = make_random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    three_models = model.subset([0, 1, 2]).replace(weights=np.full(3, 1 / 3))
    rewards = model.rewards * np.array([1, 1, 1, 1e16])[:, None, None]
    four_models = model.replace(rewards=rewards, weights=[1 / 3, 1 / 3, 1 / 3, 0])
    method = mmdp.methods.CADP(init=mmdp.policies.MarkovPolicy(np.zeros((4, 3), int)), n_init=1)
    expected, solution = (
        mmdp.solve(x, 4, method, objective=text, policy_class=policy_class)
        for x in (three_models, four_models)
    )
    assert solution.value == pytest.approx(expected.value, rel=1e-12)
    bounds = [mmdp.bound(x, 4, "oracle", objective=text).value for x in (three_models, four_models)]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-9)


def test_the_worst_optimum_behind_an_unvisited_state() -> None:
    """By the mean B is not worth a visit, and its action there is the wrong one for the worst."""
    P = np.zeros((4, 2, 4))  # from the start to A or B, and on to the end
    P[0, 0, 1] = P[0, 1, 2] = 1
    P[1:, :, 3] = 1
    r = np.zeros((2, 4, 2))
    r[:, 1] = [[9.0, 9.0], [5.0, 5.0]]
    r[:, 2] = [[12.0, 5.8], [0.0, 6.0]]
    model = mmdp.MMDP([P, P], r, initial=[1, 0, 0, 0])
    for objective in ("worst", "cvar:0.4"):
        solution = mmdp.solve(model, 2, mmdp.methods.CADP(n_init=1), objective=objective)
        assert solution.value == pytest.approx(5.8)
