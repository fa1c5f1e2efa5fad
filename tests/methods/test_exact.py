"""The exact methods against brute force, and what they promise on limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp import kernels
from mmdp.methods.base import Context, Progress
from mmdp.methods.exact import Exact
from mmdp.methods.milp import MILP
from mmdp.objective import as_objective
from mmdp.search.polish import ascend_inside, polish
from mmdp.solution import Status
from mmdp.testing import (
    all_policies,
    best_by_enumeration,
    check_method,
    random_model,
    returns_of,
    values_of,
)
from tests.instances import NO_TIME, SEEDS, at_least, shares, tiny


@settings(max_examples=at_least(250), **NO_TIME)
@given(seed=SEEDS)
def test_exact_is_brute_force(seed: int) -> None:
    model, T = tiny(seed, 300)
    truth = best_by_enumeration(model, T)
    found = mmdp.solve(model, T, Exact(starts=1, polish=0), seed=0)
    assert found.status is Status.OPTIMAL
    assert found.value == pytest.approx(truth, rel=2e-8, abs=2e-8)
    assert found.details["bound"] >= truth


@settings(max_examples=at_least(40), **NO_TIME)
@given(seed=SEEDS)
def test_milp_is_brute_force(seed: int) -> None:
    model, T = tiny(seed, 300)
    truth = best_by_enumeration(model, T)
    for tight in (True, False):
        found = mmdp.solve(model, T, MILP(tight=tight))
        assert found.status is Status.OPTIMAL
        assert found.value == pytest.approx(truth, rel=3e-6, abs=3e-6)
        assert found.details["bound"] >= truth - 1e-12 * max(1.0, abs(truth))


@pytest.mark.parametrize("method", [Exact(), MILP()])
def test_conformance(method: mmdp.methods.Method) -> None:
    check_method(method, seeds=range(3))


def test_a_limit_still_gives_a_valid_bound() -> None:
    model = random_model(31, n_models=6, n_states=5, n_actions=3, horizon=0, masks=False)
    full = mmdp.solve(model, 4, Exact(), seed=0)
    assert full.status is Status.OPTIMAL
    for options, kwargs in (
        (Exact(max_nodes=1, polish=0), {}),
        (Exact(polish=0), {"time_limit": 0.02}),
        (Exact(polish=0), {"time_limit": 1e-9}),
    ):
        found = mmdp.solve(model, 4, options, seed=0, **kwargs)
        assert found.value <= full.value + 1e-9
        assert found.details.get("bound", np.inf) >= full.value


def test_interrupting_gives_the_proven_gap() -> None:
    model = random_model(31, n_models=6, n_states=5, n_actions=3, horizon=0, masks=False)
    full = mmdp.solve(model, 4, Exact(), seed=0)
    seen: list[Progress] = []

    def stop(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) > 12:
            raise KeyboardInterrupt

    found = mmdp.solve(model, 4, Exact(), seed=0, callback=stop)
    assert found.details["bound"] >= full.value
    assert found.status in (Status.INTERRUPTED, Status.OPTIMAL)


def test_inside_a_mask_the_ascent_stays_there_and_never_falls() -> None:
    for seed in range(30):
        model, T = tiny(seed, 300)
        rng = np.random.default_rng(seed)
        mask = np.broadcast_to(model.allowed, (T, *model.allowed.shape)).copy()
        start = all_policies(model, T)[-1].astype(np.int32)
        mask &= rng.random(mask.shape) < 0.6
        np.put_along_axis(mask, start[:, :, None].astype(np.int64), True, axis=2)
        context = Context(model, T, kernels.get("numpy"))
        found, value = ascend_inside(context, mask, start)
        assert np.take_along_axis(mask, found[:, :, None].astype(np.int64), 2).all()
        assert value == pytest.approx(float(values_of(found[None], model)[0]), rel=1e-9, abs=1e-9)
        assert value >= float(values_of(start[None], model)[0]) - 1e-9


def test_polish_is_never_worse_and_leaves_some_local_maxima() -> None:
    better = 0
    for seed in range(60):
        model = random_model(seed, n_models=4, n_states=3, n_actions=3, horizon=0, discount=0.9)
        context = Context(model, 3, kernels.get("numpy"))
        start = np.argmax(model.allowed, axis=1)[None].repeat(3, axis=0).astype(np.int32)
        local = context.plan.ascend([start], sweeps="paper")[0]
        found, value = polish(context, local.policy, seconds=5)
        assert value >= local.value
        assert value == pytest.approx(float(values_of(found[None], model)[0]), rel=1e-9, abs=1e-9)
        better += value > local.value + 1e-9
    assert better >= 3


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e6])
@pytest.mark.parametrize("method", [Exact(starts=1, polish=0), MILP()])
def test_optimal_means_optimal_at_any_scale(method: mmdp.methods.Method, scale: float) -> None:
    for seed in range(12):
        model, T = tiny(seed, 300)
        truth = best_by_enumeration(model, T)
        small = model.replace(rewards=model.rewards * scale, terminal=model.terminal * scale)
        found = mmdp.solve(small, T, method, seed=0)
        assert found.status is Status.OPTIMAL
        size = max(abs(truth), 1e-3 * float(model.problem.magnitudes(T).max()))
        assert found.value / scale == pytest.approx(truth, abs=2.5e-5 * size)
        assert found.details["bound"] >= truth * scale - 1e-12 * size * scale


@pytest.mark.parametrize("method", [Exact(), MILP()])
def test_a_stop_before_the_search_leaves_the_closed_bound(method: mmdp.methods.Method) -> None:
    model = random_model(31, n_models=6, n_states=5, n_actions=3, horizon=0, masks=False)
    found = mmdp.solve(model, 4, method, seed=0, time_limit=1e-9)
    assert found.status is Status.TIME_LIMIT
    assert found.details["bound"] <= mmdp.solve(model, 4, "oracle").value + 1e-9


def test_polish_keeps_the_time_limit() -> None:
    model = mmdp.domains.garnet(seed=0).train
    found = mmdp.solve(model, 25, mmdp.CADP(polish=600), time_limit=0.3)
    assert found.seconds < 60


def test_cadp_polishes_when_asked() -> None:
    gained = 0
    for seed in range(40):
        model = random_model(seed, n_models=4, n_states=3, n_actions=3, horizon=0, discount=0.9)
        plain = mmdp.solve(model, 4, mmdp.CADP(init="random"), seed=seed)
        found = mmdp.solve(model, 4, mmdp.CADP(init="random", polish=1.0), seed=seed)
        assert found.value == pytest.approx(plain.value + found.details["polished"], abs=1e-9)
        assert found.value == pytest.approx(float(plain_mean(model, found)), abs=1e-9)
        assert found.trace[-1] == pytest.approx(found.value, abs=1e-9)
        gained += found.value > plain.value + 1e-9
    assert gained >= 1


def plain_mean(model: mmdp.MMDP, found: mmdp.Solution) -> float:
    assert isinstance(found.policy, mmdp.MarkovPolicy)
    return float(values_of(found.policy.table[None], model)[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mmdp.CADP(polish=-1), "polish must be seconds"),
        (lambda: Exact(gap=-1), "gap must be a number of at least 0"),
        (lambda: Exact(starts=0), "starts"),
        (lambda: MILP(gap=float("nan")), "gap must be a number of at least 0"),
    ],
)
def test_messages(make: object, words: str) -> None:
    with pytest.raises(mmdp.InputError, match=words):
        make()  # type: ignore[operator]


def test_a_program_too_large_says_what_to_do() -> None:
    with pytest.raises(mmdp.InputError, match="use method='exact'"):
        mmdp.solve(random_model(5, n_states=3, n_models=3, horizon=0), 50_000, MILP())


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
        found = mmdp.solve(model, T, Exact(), seed=0, time_limit=120)
        assert found.status is Status.OPTIMAL
        if value is not None:
            assert found.value == pytest.approx(value, rel=1e-9)


# ---------------------------------------------------------------------- other objectives
@pytest.mark.parametrize(
    "text",
    ["cvar:0.3", "worst", "var:0.3", "mean-cvar:0.2:0.4", "regret:worst", "regret:var:0.5",
     "regret:mean"],
)  # fmt: skip
@settings(max_examples=at_least(6), **NO_TIME)
@given(seed=SEEDS)
def test_milp_maximises_tails_and_regret(text: str, seed: int) -> None:
    model, horizon = tiny(seed, most=300)
    objective = as_objective(text)
    every = returns_of(all_policies(model, horizon), model)
    rho = objective.counted(every, lambda: every.max(axis=0))
    best = float(objective.value(rho, model.weights).max())
    found = mmdp.solve(model, horizon, "milp", objective=objective, backend="numpy")
    assert found.bound is not None
    assert found.bound >= best - 1e-9 * (1 + abs(best))
    assert found.value == pytest.approx(best, abs=1e-5 * (1 + np.abs(every).max()))


# ---------------------------------------------------------------------- what a claim covers
def scaled(seed: int) -> tuple[mmdp.MMDP, int]:
    """A small instance with an offset of all rewards, or with each model in units of its own."""
    rng, T = np.random.default_rng(seed), 3
    if seed % 4:
        model = random_model(seed, n_models=4, n_states=2, n_actions=3, horizon=0, masks=False)
    else:  # masks, weights of zero, arrays by time
        model, T = tiny(seed, most=300)
    offset, *powers = [(1e5, 0, 0), (0.0, 0, 6), (0.0, -6, 6)][seed % 3]
    scale = 10.0 ** rng.uniform(*powers, model.n_models)
    rewards = model.rewards * scale[:, None, None] + offset
    return model.replace(rewards=rewards, terminal=model.terminal * scale[:, None]), T


def drawing(model: mmdp.MMDP, T: int, seed: int) -> mmdp.MarkovPolicy:
    """A policy that draws its actions."""
    rng = np.random.default_rng(seed)
    raw = rng.gamma(0.5, size=(T, model.n_states, model.n_actions)) + 1e-9
    raw = raw * np.broadcast_to(model.allowed, raw.shape)
    return mmdp.MarkovPolicy(probabilities=raw / raw.sum(axis=2, keepdims=True))


@pytest.mark.parametrize("seeds", shares(12, 120))
@pytest.mark.parametrize("text", ["mean", "worst", "cvar:0.3", "regret:worst"])
def test_what_milp_claims_is_true_in_any_units(text: str, seeds: range) -> None:
    F = as_objective(text)
    for seed in seeds:
        model, T = scaled(seed)
        returns = returns_of(all_policies(model, T), model)
        rho = F.counted(returns, lambda: returns.max(axis=0))  # noqa: B023
        every = F.value(rho, model.weights)
        best, range_ = float(every.max()), float(np.ptp(every))
        moved = F.value(rho[every.argmax()] + model.problem.roundings(T), model.weights)
        rounding = 2 * float(moved - best)
        found = mmdp.solve(model, T, "milp", objective=F, backend="numpy")
        cadp = mmdp.solve(model, T, objective=F, backend="numpy")
        assert found.certificate is not None
        assert found.certificate.value >= best - rounding
        assert cadp.value - rounding <= found.value <= best + rounding
        if found.status is Status.OPTIMAL:
            assert found.value >= best - 1e-6 * range_ - rounding
        if not found.certificate.bounds.startswith("deterministic"):
            for k in range(5):
                drawn = mmdp.evaluate(drawing(model, T, k), model, backend="numpy")
                assert drawn.value(F) <= found.certificate.value + rounding


def test_a_proof_about_deterministic_policies_says_so() -> None:
    bets = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[4.0, 0.0]], [[0.0, 4.0]]])
    even = mmdp.MarkovPolicy(probabilities=[[[0.5, 0.5]]])
    worst = mmdp.solve(bets, 1, "milp", objective="worst")
    assert worst.status is Status.OPTIMAL
    assert mmdp.evaluate(even, bets).worst == 2.0 > worst.value
    assert worst.certificate is not None
    assert worst.certificate.bounds == "deterministic markov"
    assert worst.outcome == (
        "proven optimal: no deterministic Markov policy is better; "
        "one that draws its actions may be"
    )
    for method in ("milp", "exact"):
        mean = mmdp.solve(bets, 1, method)
        assert mean.certificate is not None
        assert mean.certificate.bounds in ("markov", "history")
        assert mean.outcome.endswith("policy is better")


def test_exact_refuses_tails() -> None:
    model, horizon = tiny(1)
    with pytest.raises(
        mmdp.InputError, match="exact cannot do this: it maximises the mean, not cvar:0.1; ch"
    ):
        mmdp.solve(model, horizon, "exact", objective="cvar:0.1")


# ---------------------------------------------------------------------- with cadp and certify
def hard(seed: int, n_models: int = 5, n_states: int = 5, concentration: float = 0.5) -> mmdp.MMDP:
    """A random problem whose bounds without branching stay apart from the best value."""
    return mmdp.domains.garnet(
        n_models=n_models, n_states=n_states, n_actions=3, branching=3, seed=seed, discount=0.95,
        concentration=concentration,
    ).train  # fmt: skip


def test_exact_begins_with_the_best_of_cadp() -> None:
    for seed in range(8):
        model = hard(seed, 10, 8, concentration=0.1)
        found = mmdp.solve(model, 8, Exact(polish=0, max_nodes=1, gap=1.0), backend="numpy")
        cadp = mmdp.solve(model, 8, backend="numpy")
        assert found.value >= cadp.value - 1e-12 * abs(cadp.value), seed


def test_certify_proves_what_exact_proves() -> None:
    model = hard(1)
    best = mmdp.solve(model, 4, "milp")
    found = mmdp.solve(model, 4, certify=20)
    assert best.status is Status.OPTIMAL
    assert found.value == pytest.approx(best.value, rel=1e-9)
    assert found.status is Status.OPTIMAL
    assert found.certificate is not None
    assert found.certificate.bounds == "markov"
    assert found.certificate.value >= best.value - 1e-9
    assert found.certificate.details["bounds"]["oracle"] > found.value + 0.01


@pytest.mark.parametrize(
    "policy", [mmdp.Tree(leaves=2), mmdp.Fixed([0, -1, -1, -1, -1]), mmdp.Markov(randomised=True)]
)
def test_certify_bounds_every_markov_policy_for_other_kinds(policy: mmdp.PolicyKind) -> None:
    model = hard(1)
    best = mmdp.solve(model, 4, Exact())
    found = mmdp.solve(model, 4, policy=policy, certify=20)
    assert found.bound is not None
    assert found.bound >= best.value - 1e-9
    assert found.bound == pytest.approx(best.value, rel=1e-6)
