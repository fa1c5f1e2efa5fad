"""The exact methods against brute force, and what they promise on limits."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.core.bounds.lp import LPResult
from mmdp.core.methods.base import Progress
from mmdp.core.methods.exact import Exact
from mmdp.core.methods.milp import MILP
from mmdp.core.objectives import as_objective
from mmdp.core.solution import Status
from mmdp.core.testing import (
    check_method,
    compute_returns,
    enumerate_policies,
    find_best_markov_value,
    make_random_model,
)
from tests.instances import HYPOTHESIS_SETTINGS, SEEDS, make_tiny_model, n_examples, seed_ranges


@settings(max_examples=n_examples(250), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_exact_is_brute_force(seed: int) -> None:
    model, T = make_tiny_model(seed, 300)
    best_value = find_best_markov_value(model, T)
    solution = mmdp.solve(model, T, Exact(n_init=1), seed=0)
    assert solution.status is Status.OPTIMAL
    assert solution.value == pytest.approx(best_value, rel=2e-8, abs=2e-8)
    assert solution.details["bound"] >= best_value


@settings(max_examples=n_examples(40), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_milp_is_brute_force(seed: int) -> None:
    model, T = make_tiny_model(seed, 300)
    best_value = find_best_markov_value(model, T)
    solution = mmdp.solve(model, T, MILP())
    assert solution.status is Status.OPTIMAL
    assert solution.value == pytest.approx(best_value, rel=3e-6, abs=3e-6)
    assert solution.details["bound"] >= best_value - 1e-12 * max(1.0, abs(best_value))


@pytest.mark.parametrize("method", [Exact(), MILP()])
def test_conformance(method: mmdp.methods.Method) -> None:
    check_method(method, seeds=range(3))


def test_a_limit_still_gives_a_valid_bound() -> None:
    model = make_random_model(31, n_models=6, n_states=5, n_actions=3, horizon=0, has_masks=False)
    full = mmdp.solve(model, 4, Exact(), seed=0)
    assert full.status is Status.OPTIMAL
    for options, kwargs in (
        (Exact(max_nodes=1), {}),
        (Exact(), {"time_limit": 0.02}),
        (Exact(), {"time_limit": 1e-9}),
    ):
        solution = mmdp.solve(model, 4, options, seed=0, **kwargs)
        assert solution.value <= full.value + 1e-9
        assert solution.details.get("bound", np.inf) >= full.value


def test_interrupting_gives_the_proven_gap() -> None:
    model = make_random_model(31, n_models=6, n_states=5, n_actions=3, horizon=0, has_masks=False)
    full = mmdp.solve(model, 4, Exact(), seed=0)
    reports: list[Progress] = []

    def stop(progress: Progress) -> None:
        reports.append(progress)
        if len(reports) > 12:
            raise KeyboardInterrupt

    solution = mmdp.solve(model, 4, Exact(), seed=0, callback=stop)
    assert solution.details["bound"] >= full.value
    assert solution.status in (Status.INTERRUPTED, Status.OPTIMAL)


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e6])
@pytest.mark.parametrize("method", [Exact(n_init=1), MILP()])
def test_optimal_means_optimal_at_any_scale(method: mmdp.methods.Method, scale: float) -> None:
    for seed in range(12):
        model, T = make_tiny_model(seed, 300)
        best_value = find_best_markov_value(model, T)
        scaled_model = model.replace(rewards=model.rewards * scale, terminal=model.terminal * scale)
        solution = mmdp.solve(scaled_model, T, method, seed=0)
        assert solution.status is Status.OPTIMAL
        size = max(abs(best_value), 1e-3 * float(model.problem.max_abs_returns(T).max()))
        assert solution.value / scale == pytest.approx(best_value, abs=2.5e-5 * size)
        assert solution.details["bound"] >= best_value * scale - 1e-12 * size * scale


@pytest.mark.parametrize("method", [Exact(), MILP()])
def test_a_stop_before_the_search_leaves_a_bound(method: mmdp.methods.Method) -> None:
    model = make_random_model(31, n_models=6, n_states=5, n_actions=3, horizon=0, has_masks=False)
    solution = mmdp.solve(model, 4, method, seed=0, time_limit=1e-9)
    assert (solution.status, solution.iterations) == (Status.TIME_LIMIT, 0)
    assert solution.details["bound"] <= mmdp.solve(model, 4, "oracle").value + 1e-9


@pytest.mark.parametrize(
    ("make_method", "message"),
    [
        (lambda: Exact(rel_gap=-1), "rel_gap must be a number of at least 0"),
        (lambda: Exact(n_init=0), "n_init"),
        (lambda: MILP(rel_gap=float("nan")), "rel_gap must be a number of at least 0"),
    ],
)
def test_messages(make_method: object, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        make_method()  # type: ignore[operator]


@pytest.mark.parametrize("text", ["regret:worst", "regret:mean", "regret:cvar:0.5", "worst"])
def test_milp_never_claims_more_than_the_oracle(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if HiGHS proves nothing: no regret is above 0."""
    stopped = LPResult(Status.TIME_LIMIT, None, -math.inf, 0, 0.0)
    monkeypatch.setattr(MILP, "_solve_program", lambda *_: stopped)
    model = make_random_model(1, n_models=3, n_states=3, n_actions=2, horizon=0, has_masks=False)
    solution = mmdp.solve(model, 4, "milp", objective=text, backend="numpy")
    assert solution.bound is not None
    assert solution.value < solution.bound <= mmdp.bound(model, 4, "oracle", objective=text).value
    if "regret" in text:
        assert solution.bound == 0
        assert "at most     0.0" in repr(solution)


def test_a_too_large_milp_says_what_to_do() -> None:
    with pytest.raises(mmdp.InputError, match="use method='exact'"):
        mmdp.solve(make_random_model(5, n_states=3, n_models=3, horizon=0), 50_000, MILP())


@pytest.mark.slow
def test_published_instances_are_proven_optimal(paper_data: object) -> None:
    hiv, river = (mmdp.load(paper_data / x) for x in ("hiv", "riverswim"))  # type: ignore[operator]
    cases = (
        (hiv, 5, 35638.28790110498),
        (hiv.subset(range(20)), 8, None),
        (river.subset(range(20)), 10, None),
        (hiv, 15, 44424.39742003433),
    )
    for model, T, value in cases:
        solution = mmdp.solve(model, T, Exact(), seed=0, time_limit=120)
        assert solution.status is Status.OPTIMAL
        if value is not None:
            assert solution.value == pytest.approx(value, rel=1e-9)


# ---------------------------------------------------------------------- other objectives
@pytest.mark.parametrize(
    "text",
    [
        "cvar:0.3",
        "worst",
        "var:0.3",
        "mean-cvar:0.2:0.4",
        "regret:worst",
        "regret:var:0.5",
        "regret:mean",
    ],
)
@settings(max_examples=n_examples(6), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_milp_maximizes_tails_and_regret(text: str, seed: int) -> None:
    model, horizon = make_tiny_model(seed, max_policies=300)
    objective = as_objective(text)
    returns = compute_returns(model, enumerate_policies(model, horizon))
    rho = objective.relative_returns(returns, lambda: returns.max(axis=0))
    best = float(objective.value(rho, model.weights).max())
    solution = mmdp.solve(model, horizon, "milp", objective=objective, backend="numpy")
    assert solution.bound is not None
    assert solution.bound >= best - 1e-9 * (1 + abs(best))
    assert solution.value == pytest.approx(best, abs=1e-5 * (1 + np.abs(returns).max()))
    assert solution.status is Status.OPTIMAL


# ---------------------------------------------------------------------- what a claim covers
def make_scaled_model(seed: int) -> tuple[mmdp.MMDP, int]:
    """A small instance with an offset of all rewards, or with each model in units of its own."""
    rng, T = np.random.default_rng(seed), 3
    if seed % 4:
        model = make_random_model(
            seed, n_models=4, n_states=2, n_actions=3, horizon=0, has_masks=False
        )
    else:  # masks, weights of zero, arrays by time
        model, T = make_tiny_model(seed, max_policies=300)
    offset, *powers = [(1e5, 0, 0), (0.0, 0, 6), (0.0, -6, 6)][seed % 3]
    scale = 10.0 ** rng.uniform(*powers, model.n_models)
    rewards = model.rewards * scale[:, None, None] + offset
    return model.replace(rewards=rewards, terminal=model.terminal * scale[:, None]), T


def make_randomized_policy(model: mmdp.MMDP, T: int, seed: int) -> mmdp.policies.MarkovPolicy:
    """A policy that draws its actions."""
    rng = np.random.default_rng(seed)
    raw = rng.gamma(0.5, size=(T, model.n_states, model.n_actions)) + 1e-9
    raw = raw * np.broadcast_to(model.allowed, raw.shape)
    return mmdp.policies.MarkovPolicy(probabilities=raw / raw.sum(axis=2, keepdims=True))


@pytest.mark.parametrize("seeds", [*seed_ranges(12, 120), [107]])  # 107: a tail's rows are tight
@pytest.mark.parametrize("text", ["mean", "worst", "cvar:0.3", "regret:worst"])
def test_milp_claims_hold_in_any_units(text: str, seeds: Iterable[int]) -> None:
    F = as_objective(text)
    for seed in seeds:
        model, T = make_scaled_model(seed)
        returns = compute_returns(model, enumerate_policies(model, T))
        rho = F.relative_returns(returns, lambda: returns.max(axis=0))  # noqa: B023
        values = F.value(rho, model.weights)
        best, value_range = float(values.max()), float(np.ptp(values))
        shifted_value = F.value(
            rho[values.argmax()] + model.problem.rounding_errors(T), model.weights
        )
        rounding = 2 * float(shifted_value - best)
        solution = mmdp.solve(model, T, "milp", objective=F, backend="numpy")
        cadp = mmdp.solve(model, T, objective=F, backend="numpy")
        assert solution.certificate is not None
        assert solution.certificate.value >= best - rounding
        assert cadp.value - rounding <= solution.value <= best + rounding
        if solution.status is Status.OPTIMAL:
            assert solution.value >= best - 1e-6 * value_range - rounding
        if not solution.certificate.scope.startswith("deterministic"):
            for k in range(5):
                randomized = mmdp.evaluate(
                    model, make_randomized_policy(model, T, k), backend="numpy"
                )
                assert randomized.value(F) <= solution.certificate.value + rounding


def test_a_proof_about_deterministic_policies_says_so() -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[4.0, 0.0]], [[0.0, 4.0]]])
    uniform = mmdp.policies.MarkovPolicy(probabilities=[[[0.5, 0.5]]])
    worst = mmdp.solve(model, 1, "milp", objective="worst")
    assert worst.status is Status.OPTIMAL
    assert mmdp.evaluate(model, uniform).worst == 2.0 > worst.value
    assert worst.certificate is not None
    assert worst.certificate.scope == "deterministic markov"
    assert worst.status_text == (
        "proven optimal: no deterministic Markov policy is better; a randomized one may be"
    )
    for method in ("milp", "exact"):
        mean = mmdp.solve(model, 1, method)
        assert mean.certificate is not None
        assert mean.certificate.scope in ("markov", "history")
        assert mean.status_text.endswith("policy is better")


def test_exact_refuses_tails() -> None:
    model, horizon = make_tiny_model(1)
    with pytest.raises(
        mmdp.InputError, match="exact cannot do this: it maximises the mean, not cvar:0.1; ch"
    ):
        mmdp.solve(model, horizon, "exact", objective="cvar:0.1")


# ---------------------------------------------------------------------- with cadp and certify
def make_hard_model(
    seed: int, n_models: int = 5, n_states: int = 5, concentration: float = 0.5
) -> mmdp.MMDP:
    """A random problem whose bounds without branching stay apart from the best value."""
    return mmdp.domains.garnet(
        n_models=n_models,
        n_states=n_states,
        n_actions=3,
        branching=3,
        seed=seed,
        discount=0.95,
        concentration=concentration,
    ).train


def test_exact_begins_with_the_best_of_cadp() -> None:
    for seed in range(8):
        model = make_hard_model(seed, 10, 8, concentration=0.1)
        solution = mmdp.solve(model, 8, Exact(max_nodes=1, rel_gap=1.0), backend="numpy")
        cadp = mmdp.solve(model, 8, backend="numpy")
        assert solution.value >= cadp.value - 1e-12 * abs(cadp.value), seed


def test_certify_proves_what_exact_proves() -> None:
    model = make_hard_model(1)
    best = mmdp.solve(model, 4, "milp")
    solution = mmdp.solve(model, 4, certify_time=20)
    assert best.status is Status.OPTIMAL
    assert solution.value == pytest.approx(best.value, rel=1e-9)
    assert solution.status is Status.OPTIMAL
    assert solution.certificate is not None
    assert solution.certificate.scope == "markov"
    assert solution.certificate.value >= best.value - 1e-9
    assert solution.certificate.details["bounds_by_method"]["oracle"] > solution.value + 0.01


@pytest.mark.parametrize(
    "policy_class",
    [
        mmdp.policies.Tree(max_leaves=2),
        mmdp.policies.Fixed([0, -1, -1, -1, -1]),
        mmdp.policies.Markov(randomized=True),
    ],
)
def test_certify_bounds_markov_policies_for_other_classes(
    policy_class: mmdp.policies.PolicyClass,
) -> None:
    model = make_hard_model(1)
    best = mmdp.solve(model, 4, Exact())
    solution = mmdp.solve(model, 4, policy_class=policy_class, certify_time=20)
    assert solution.bound is not None
    assert solution.bound >= best.value - 1e-9
    assert solution.bound == pytest.approx(best.value, rel=1e-6)
