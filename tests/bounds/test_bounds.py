"""Upper bounds against brute force: validity above all, then tightness where it is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.bounds import BOUNDS, Bound, bound
from mmdp.bounds.ask import Ask
from mmdp.bounds.descent import Descent
from mmdp.bounds.matching import Tournament, _assigned, rounds
from mmdp.bounds.portfolio import Portfolio
from mmdp.bounds.relaxation import Relaxation, open_actions, reach_bounds
from mmdp.clock import Stop, Stopwatch, clock
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.problem import Pairs, Reach
from mmdp.testing import (
    all_policies,
    best_by_enumeration,
    best_with_memory,
    random_model,
    values_of,
)
from tests.instances import NO_TIME, SEEDS, at_least, tiny

KERNEL = mmdp.kernels.get("numba")


def random_pairs(n: int, rng: np.random.Generator) -> Pairs:
    order = rng.permutation(n)
    half = rng.integers(0, n // 2 + 1)
    reach, width = int(rng.integers(0, 9)), float(rng.choice([0.1, 0.5, 2.0]))
    return Pairs(order[:half].copy(), order[half : 2 * half].copy(), reach, width)


def random_multipliers(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    y = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3)
    return y * (rng.random(shape) < rng.choice([0.1, 0.5, 1.0]))


# ------------------------------------------------------------------ validity
@settings(max_examples=at_least(600), **NO_TIME)
@given(seed=SEEDS)
def test_every_multiplier_gives_a_bound(seed: int) -> None:
    model, T = tiny(seed, 150)
    rng = np.random.default_rng(seed)
    truth = best_by_enumeration(model, T)
    x = Relaxation(KERNEL.plan(model.problem, T))
    for _ in range(2):
        y = random_multipliers(x.u.shape, rng)
        assert x.value(y) + x.rounding(y) >= truth
        x.group(random_pairs(model.n_models, rng))
        assert x.value(y) + x.rounding(y) >= truth
        x.group(None)


@settings(max_examples=at_least(150), **NO_TIME)
@given(seed=SEEDS)
def test_every_method_bounds_what_it_says(seed: int) -> None:
    model, T = tiny(seed)
    truth = best_by_enumeration(model, T)
    history = best_with_memory(model, T) if T <= 3 else truth
    assert history >= truth - 1e-9 * max(1, abs(truth))
    for method in BOUNDS:
        found = bound(model, T, method, time_limit=0.02)
        assert found.value >= truth, method
        if found.bounds == "history":
            assert found.value >= history - 1e-12 * max(1.0, abs(history)), method


@settings(max_examples=at_least(400), **NO_TIME)
@given(seed=SEEDS)
def test_pairs_bound_policies_with_memory(seed: int) -> None:
    model, T = tiny(seed, 60)
    rng = np.random.default_rng(seed)
    x = Relaxation(KERNEL.plan(model.problem, T))
    x.group(random_pairs(model.n_models, rng))
    assert x.value() + x.rounding(None) >= best_with_memory(model, T)


@settings(max_examples=at_least(300), **NO_TIME)
@given(seed=SEEDS)
def test_closing_actions_loses_no_better_policy(seed: int) -> None:
    model, T = tiny(seed, 300)
    rng = np.random.default_rng(seed)
    every = all_policies(model, T)
    value = values_of(every, model)
    target = float(np.quantile(value, rng.choice([0.3, 0.8, 1.0])))
    x = Relaxation(KERNEL.plan(model.problem, T))
    x.group(random_pairs(model.n_models, rng))
    search = Descent(x, target)
    for _ in range(3):
        search.run(max_steps=20)
        search.close_actions(probe_until=np.inf)
    assert search.bound >= value.max()
    t, s = np.indices(every.shape[1:])
    inside = x.open[t, s, every].all(axis=(1, 2))
    reach = np.array([_reaches_closed(model, one, x.open) for one in every[~inside]])
    lost = value[~inside][reach] if len(reach) else np.array([])
    assert (lost <= target + 1e-9 * max(1.0, abs(target))).all()


def _reaches_closed(model: mmdp.MMDP, actions: np.ndarray, mask: np.ndarray) -> bool:
    """Whether some model meets a closed action (at other places the choice does not matter)."""
    b = mmdp.model_weights(mmdp.MarkovPolicy(actions, n_actions=model.n_actions), model)
    t, s = np.indices(actions.shape)
    return bool(((b.sum(axis=1) > 0) & ~mask[t, s, actions]).any())


@settings(max_examples=at_least(300), **NO_TIME)
@given(seed=SEEDS)
def test_reach_bounds_are_the_extremes_over_policies(seed: int) -> None:
    model, T = tiny(seed, 100)
    x = model.problem
    plan = KERNEL.plan(x, T)
    lo, hi = reach_bounds(plan)
    b = np.array(
        [
            mmdp.model_weights(mmdp.MarkovPolicy(one, n_actions=model.n_actions), model)
            for one in all_policies(model, T)
        ]
    )
    b = np.moveaxis(b, 2, 3)
    np.testing.assert_allclose(hi, b.max(axis=0), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(lo, b.min(axis=0), rtol=1e-9, atol=1e-300)
    mask = open_actions(x, T)
    closed = np.argwhere(mask & (mask.sum(axis=2, keepdims=True) > 1))
    if len(closed) == 0:
        return
    t, s, a = closed[seed % len(closed)]
    mask[t, s, a] = False
    inside = all_policies(model, T)[:, t, s] != a
    lo, hi = reach_bounds(plan.but(allowed=mask))
    np.testing.assert_allclose(hi, b[inside].max(axis=0), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(lo, b[inside].min(axis=0), rtol=1e-9, atol=1e-300)


# ------------------------------------------------------------------ tightness
@settings(max_examples=at_least(100), **NO_TIME)
@given(seed=SEEDS)
def test_subgradient_is_one(seed: int) -> None:
    """D(z) >= D(y) + <g, z - y>: with d = g / B and keep 0, g = d B gamma^t."""
    model, T = tiny(seed, 100)
    rng = np.random.default_rng(seed)
    x = Relaxation(KERNEL.plan(model.problem, T))
    x.group(random_pairs(model.n_models, rng))
    y = random_multipliers(x.u.shape, rng)
    value, d = x.value(y), np.zeros(x.u.shape)
    gamma = model.discount
    x.plan.descend(y, x.u, x.best, x.reach, 0.0, d)
    g = d * x.reach.hi[:, :, None] * (gamma ** np.arange(T))[:, None, None, None]
    for _ in range(5):
        z = y + random_multipliers(y.shape, rng)
        line = value + float((g * (z - y)).sum())
        assert x.value(z) >= line - 1e-9 * (abs(line) + float(np.abs(g * (z - y)).sum()) + 1)


@pytest.mark.parametrize("seed", range(12))
def test_pair_of_two_models_is_the_exact_history_value_on_a_fine_grid(seed: int) -> None:
    model = random_model(seed, n_models=2, n_states=3, n_actions=2, horizon=0).replace(
        weights=[0.5, 0.5]
    )
    x = Relaxation(KERNEL.plan(model.problem, 4))
    x.group(Pairs(np.array([0]), np.array([1]), 2000, 0.005))
    exact = best_with_memory(model, 4)
    assert exact <= x.value() + x.rounding(None)
    assert x.value() == pytest.approx(exact, rel=2e-4, abs=2e-3)


@pytest.mark.parametrize("seed", range(8))
def test_dual_prices_of_the_program_prove_its_value(seed: int) -> None:
    from mmdp.bounds import lp

    model, T = tiny(seed + 50)
    x = Relaxation(KERNEL.plan(model.problem, T))
    program = lp.build(x.plan, x.reach)
    found = lp.solve_relaxation(program, None)
    y = lp.multipliers(program, found, model.n_models, model.discount)
    oracle = x.value(None)
    most = oracle - found.bound
    assert x.value(y) == pytest.approx(most, rel=1e-6, abs=1e-6)
    search = Descent(x, best_by_enumeration(model, T))
    search.run(max_steps=1500)
    assert search.bound >= most - 1e-6 * max(1, abs(most))
    assert oracle - search.bound >= 0.5 * (oracle - most) - 1e-6  # well on the way


def test_dual_at_zero_is_oracle_and_at_the_policy_its_certificate() -> None:
    model = random_model(7, n_models=4, n_states=3, n_actions=3, horizon=0)
    solution, T = mmdp.solve(model, 3), 3
    x = Relaxation(KERNEL.plan(model.problem, T))
    oracle = mmdp.solve(model, T, "oracle").value
    assert x.value(np.zeros(x.u.shape)) == pytest.approx(oracle)
    plan = mmdp.kernels.get("numpy").plan(model.problem, T)
    found = plan.backward("given", policy=solution.policy.actions, keep=("q", "values"))
    advantage = np.where(np.isfinite(found.q), found.q - found.values[:-1, :, None], 0.0)
    prices = np.where(
        advantage > 0, advantage * x.reach.hi[:, :, None], advantage * x.reach.lo[:, :, None]
    ).sum(axis=3)
    prices = np.where(model.allowed, prices, -np.inf).max(axis=2)
    factor = model.discount ** np.arange(T)
    expected = solution.value + float((factor[:, None] * prices).sum())
    assert x.value(advantage) == pytest.approx(expected)


def test_matching_takes_the_pairs_of_largest_gain() -> None:
    model = random_model(3, n_models=6, n_states=3, n_actions=3, horizon=0)
    relaxation = Relaxation(KERNEL.plan(model.problem, 4))
    own = relaxation.group_values(None)
    tournament = Tournament(relaxation.plan, own)
    tournament.play(np.inf)
    pairs, gain, tried, _ = tournament.matching()
    assert tried == 15
    relaxation.group(pairs)
    found = relaxation.value()
    values = []
    for order in itertools.permutations(range(6)):
        first, second = np.array(order[:3]), np.array(order[3:])
        if (first < second).all() and (np.diff(first) > 0).all():
            relaxation.group(Pairs(first, second, pairs.reach, pairs.width))
            values.append(relaxation.value())
    assert len(values) == 15
    assert found == pytest.approx(min(values))
    assert found == pytest.approx(own.sum() - gain.sum())


@pytest.mark.parametrize("seed", range(20))
def test_matching_loses_little_in_odd_cycles(seed: int) -> None:
    """Against every matching of known pairs, one by one; greedy pairs would lose up to a half."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    i, j = np.triu_indices(n, 1)
    known = rng.permutation(len(i))[: rng.integers(1, len(i) + 1)]
    i, j, gain = i[known], j[known], rng.random(len(known))

    def most(free: frozenset[int], k: int) -> float:
        if k == len(i):
            return 0.0
        pair = {int(i[k]), int(j[k])}
        taken = gain[k] + most(free - pair, k + 1) if pair <= free else 0.0
        return max(taken, most(free, k + 1))

    found = _assigned(i, j, gain, n)
    used = np.concatenate([i[found], j[found]])
    assert len(set(used.tolist())) == len(used)
    best = most(frozenset(range(n)), 0)
    assert 2 / 3 * best <= gain[found].sum() <= best + 1e-12


def test_matching_tries_every_pair_if_there_is_time() -> None:
    """With many quick rounds too: a part of a round is never planned longer than the round."""
    model = random_model(4, n_models=60, n_states=2, n_actions=2, horizon=0)
    plan = KERNEL.plan(model.problem, 2)
    tournament = Tournament(plan, plan.own_values())
    tournament.play(clock() + 60)
    assert tournament.matching().tried == 60 * 59 // 2


@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_rounds_hold_every_pair_once(n: int) -> None:
    pairs = [
        tuple(sorted(p)) for f, s in rounds(n, 1) for p in zip(f.tolist(), s.tolist(), strict=True)
    ]
    assert sorted(pairs) == list(itertools.combinations(range(n), 2))


# ------------------------------------------------------------------ special cases, messages
def test_exact_where_the_problem_is_trivial() -> None:
    one_model = random_model(1, n_models=1, n_states=4, n_actions=3, horizon=0)
    several = random_model(2, n_models=5, n_states=4, n_actions=3, horizon=0)
    one_action = random_model(4, n_models=5, n_states=4, n_actions=1, horizon=0)
    for model, T in ((one_model, 6), (several, 1), (one_action, 6)):
        found = bound(model, T, time_limit=0.1)
        assert found.gap(mmdp.solve(model, T).value) <= 1e-11


def test_threads_and_seeds_do_not_matter_for_validity_and_the_value_is_the_same() -> None:
    model = random_model(11, n_models=6, n_states=5, n_actions=3, horizon=0)
    values = []
    for threads in (1, 3):
        x = Relaxation(NumbaKernel(threads).plan(model.problem, 6))
        x.group(Pairs(np.array([0, 2]), np.array([4, 5])))
        search = Descent(x, mmdp.solve(model, 6).value)
        search.run(max_steps=40)
        values.append(search.bound)
    assert values[0] == values[1]


def test_an_incumbent_may_be_a_solution_a_policy_a_number_or_none() -> None:
    model = random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 4)
    seen: list[float] = []
    for incumbent in (solution, solution.policy, solution.value, None, solution.value + 5.0):
        found = bound(
            model, 4, time_limit=0.2, incumbent=incumbent, callback=lambda p: seen.append(p.bound)
        )
        assert found.value >= solution.value
    assert found.value >= solution.value + 5.0 or found.method != "pair-dual"
    assert seen


def test_an_incumbent_of_another_horizon_is_refused() -> None:
    model = random_model(3, horizon=0)
    for T in (1, 3):
        with pytest.raises(mmdp.InputError):
            bound(model, 5, time_limit=0.1, incumbent=mmdp.solve(model, T))
    assert bound(model, 5, time_limit=0.1, incumbent=np.int64(-1000)).value > -1000


def test_interrupting_returns_a_valid_bound() -> None:
    model = random_model(5, n_models=6, n_states=4, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 5)

    def stop(progress: object) -> None:
        if getattr(progress, "method", "") == "pair-dual":
            raise KeyboardInterrupt

    found = bound(model, 5, time_limit=5, incumbent=solution, callback=stop)
    assert solution.value <= found.value <= found.details["bounds"]["oracle"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "none"}, "no bound is called 'none'; choose one of best"),
        ({"time_limit": 0}, "time_limit must be a positive number"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"incumbent": float("nan")}, "must be finite"),
        ({"incumbent": "cadp"}, "a Solution, a MarkovPolicy or a number"),
    ],
)
def test_messages(options: dict[str, object], words: str) -> None:
    model = random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    with pytest.raises(mmdp.InputError, match=words):
        bound(model, **{"horizon": 3, **options})  # type: ignore[arg-type]


def test_a_program_too_large_says_what_to_do() -> None:
    model = random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    with pytest.raises(mmdp.InputError, match="use method='pair-dual'"):
        bound(model, 50_000, "lp")


def test_bound_words() -> None:
    found = Bound(110.0, "pairs", "history")
    assert found.gap(100.0) == pytest.approx(0.1)
    assert found.gap(0.0) == np.inf
    assert found.gap(120.0) == 0.0
    assert found.closed(100.0, 140.0) == pytest.approx(0.75)
    assert "any policy" in repr(found)


def test_models_with_unreachable_states() -> None:
    p = np.zeros((2, 3, 2, 3))
    p[:, :2, 0, 0] = p[:, :2, 1, 1] = p[:, 2, :, 2] = 1.0
    model = mmdp.MMDP(p, np.random.default_rng(0).normal(size=(2, 3, 2)), initial=[1, 0, 0])
    found = bound(model, 4, time_limit=0.5)
    assert found.value >= best_by_enumeration(model, 4)


# ------------------------------------------------------------------ the published data
@pytest.mark.slow
def test_published_gaps(paper_data: object) -> None:
    for name, horizon, most in (("riverswim", 50, 0.009), ("hiv", 15, 1e-6)):
        model = mmdp.load(paper_data / name)  # type: ignore[operator]
        solution = mmdp.solve(model, horizon)
        found = bound(model, horizon, time_limit=60, incumbent=solution)
        assert 0 <= found.gap(solution.value) <= most


# ------------------------------------------------------------------ time
def test_reach_bounds_in_parts_are_those_of_all() -> None:
    model = random_model(8, n_models=5, n_states=7, n_actions=3, horizon=0, masks=True)
    plan = KERNEL.plan(model.problem, 4)
    whole, parts = reach_bounds(plan), reach_bounds(plan, deadline=clock() + 1000)
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_reach_bounds_that_take_too_long_are_given_up_after_one_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model(8, n_models=5, n_states=7, n_actions=3, horizon=0)
    plan, asked = KERNEL.plan(model.problem, 4), []
    reach = plan.reach

    def counting(states: np.ndarray) -> Reach:
        asked.append(states)
        return reach(states)

    monkeypatch.setattr(plan, "reach", counting)
    with pytest.raises(Stop):
        reach_bounds(plan, deadline=clock())
    assert [x.tolist() for x in asked] == [[0]]


@pytest.mark.parametrize("method", ["dual", "pair-dual", "lp", "best"])
def test_without_time_for_prices_there_is_a_bound_without(method: str) -> None:
    model = random_model(8, n_models=6, n_states=7, n_actions=3, horizon=0)
    found = bound(model, 4, method, time_limit=1e-9)
    bounds = found.details["bounds"]
    assert found.details["prices"] == "no time for them"
    assert found.value == min(bounds.values()) >= mmdp.solve(model, 4).value
    assert set(bounds) == {"oracle", "qmdp", *(["pairs"] * (method in ("pair-dual", "best")))}


def test_pairs_are_refined_as_far_as_there_is_time() -> None:
    """A pair on the fine grid is never worse than on the coarse one; part of them is valid."""
    model = random_model(9, n_models=60, n_states=3, n_actions=3, horizon=0)
    plan = KERNEL.plan(model.problem, 5)
    search = Portfolio(Ask(plan, "pairs", Stopwatch(1000)))
    search.start()
    found = search._match(0.9)
    coarse = search.found["pairs"][0]
    search.deadline = clock()  # no time at all
    search._value_pairs(found)
    assert search.found["pairs"][0] == coarse
    search.deadline = clock() + 1000
    search._value_pairs(found)
    grouped = Relaxation(plan, Pairs(found.pairs.first, found.pairs.second))
    assert search.found["pairs"][0] <= coarse
    assert search.found["pairs"][0] == pytest.approx(grouped.value(), rel=1e-9)


def test_a_tournament_that_is_played_on_is_the_same() -> None:
    model = random_model(9, n_models=20, n_states=3, n_actions=3, horizon=0)
    plan = KERNEL.plan(model.problem, 4)
    once, often = (Tournament(plan, plan.own_values()) for _ in range(2))
    assert not once.play(np.inf)
    often.play(clock())  # the first pairs are always played
    assert 0 < often.count < once.count == 190
    while often.play(np.inf, most=0.0):
        pass
    one, other = once.matching(), often.matching()
    assert one.tried == other.tried
    assert one.gain.sum() == pytest.approx(other.gain.sum())


def test_progress_shows_the_bound_and_the_gap_as_they_fall() -> None:
    model = random_model(5, n_models=8, n_states=4, n_actions=3, horizon=0)
    seen: list[mmdp.Progress] = []
    found = bound(model, 5, time_limit=0.5, callback=seen.append)
    values = [p.bound for p in seen]
    assert values == sorted(values, reverse=True)
    assert values[-1] == found.value < values[0]
    assert {"oracle", "pairs", "pair-dual"} <= {p.method for p in seen}
    assert np.isnan(seen[0].gap)  # before there is an incumbent
    assert seen[-1].gap == pytest.approx(found.gap(found.details["incumbent"]))
    told: list[mmdp.Progress] = []
    solution = mmdp.solve(model, 5, certify=0.5, callback=told.append)
    proving = [p for p in told if not np.isnan(p.bound)]
    assert proving[-1].bound == solution.bound
    assert proving[-1].gap == pytest.approx(solution.gap)


# ------------------------------------------------------------------ best of all
@pytest.mark.parametrize("seed", range(3))
def test_best_is_at_least_as_good_as_a_small_linear_program(seed: int) -> None:
    model = random_model(seed, n_models=5, n_states=4, n_actions=3, horizon=0)
    by_program = bound(model, 5, "lp", time_limit=5)
    assert "lp" in by_program.details["bounds"]
    assert bound(model, 5, time_limit=1).value <= by_program.value * (1 + 1e-9)


@pytest.mark.slow
def test_best_is_close_to_the_best_single_method() -> None:
    """By 2% of its gap on most small instances; the machine's other work makes the rest."""
    worse = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        M, S, A, T = (int(rng.integers(*x)) for x in ((2, 16), (2, 9), (2, 5), (3, 11)))
        model = random_model(seed, n_models=M, n_states=S, n_actions=A, horizon=0)
        value = mmdp.solve(model, T, mmdp.CADP(polish=1.0)).value
        single = min(
            bound(model, T, name, time_limit=2).value
            for name in ("lp", "pairs", "dual", "pair-dual")
        )
        best = bound(model, T, time_limit=2).value
        worse.append((best - single) / max(single - value, 1e-6 * abs(value)))
    print("best against the best single method, as a share of its gap:", np.round(worse, 4))
    assert np.quantile(worse, 0.9) <= 0.02


@pytest.mark.parametrize("method", ["wsu", "exact", "milp"])
def test_an_offset_of_the_rewards_proves_nothing(method: str) -> None:
    """With 1e10 in every reward, all policies are within a billionth of each other."""
    model = random_model(1, n_models=4, n_states=3, n_actions=2, horizon=0)
    offset = 1e10 * (model.discount ** np.arange(4)).sum()
    best = mmdp.solve(model, 4, "exact").value + offset
    lifted = model.replace(rewards=model.rewards + 1e10)
    found = mmdp.solve(lifted, 4, method, certify=0.2 if method == "wsu" else False)
    assert found.bound is not None
    assert found.bound >= best * (1 - 1e-14)
    if method == "wsu":
        assert found.value < best - 5
        assert found.status is mmdp.Status.COMPLETED
    if found.status is mmdp.Status.OPTIMAL:
        assert found.value == pytest.approx(best, rel=0, abs=0.1)


@pytest.mark.parametrize("large", [1.0, 1e6, 1e12])
def test_a_model_of_another_scale_proves_nothing(large: float) -> None:
    """Two models bet against each other; the even mixture is the best for the worst of them."""
    P = np.ones((3, 1, 2, 1))
    model = mmdp.MMDP(P, [[[4e-3, 0.0]], [[0.0, 4e-3]], [[large, large]]])
    even = mmdp.evaluate(mmdp.MarkovPolicy(probabilities=[[[0.5, 0.5]]]), model).worst
    assert even == pytest.approx(2e-3)
    found = mmdp.solve(model, 1, objective="worst", certify=0.2)
    assert found.value == 0
    assert found.status is not mmdp.Status.OPTIMAL
    assert even <= found.bound <= even * (1 + 1e-6)


def test_what_rounding_does_not_hide_is_not_proven() -> None:
    """Two models that want other actions, by 6e-5 of rewards of 1e9: a coin serves both better."""
    r = -8.6e8 + 6e-5 * np.eye(2)[:, None, :]
    model = mmdp.MMDP(np.ones((2, 1, 2, 1)), r)
    found = mmdp.solve(model, 1, objective="regret:cvar:0.5", certify=1)
    coin = mmdp.evaluate(mmdp.MarkovPolicy.uniform(model, 1), model)
    assert coin.value(found.objective) > found.value + 2e-5
    assert found.status is not mmdp.Status.OPTIMAL
