"""Upper bounds against brute force: validity above all, then tightness where it is known."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp.core.bounds import BOUND_METHODS, Bound, bound
from mmdp.core.bounds.dual import (
    DualDescent,
    LagrangianRelaxation,
    compute_reach_bounds,
    step_without_sign_change,
)
from mmdp.core.bounds.portfolio import PairEvaluator, iter_pairs, match_by_assignment
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.core.kernels.problem import ModelPairs
from mmdp.core.testing import (
    compute_mean_returns,
    enumerate_policies,
    find_best_history_value,
    find_best_markov_value,
    make_random_model,
)
from mmdp.core.timing import TimeUp, solver_clock
from tests.instances import HYPOTHESIS_SETTINGS, SEEDS, make_tiny_model, n_examples

BACKEND = mmdp.core.kernels.get_backend("numba")


def make_random_pairs(n: int, rng: np.random.Generator) -> ModelPairs:
    order = rng.permutation(n)
    half = rng.integers(0, n // 2 + 1)
    reach, width = int(rng.integers(0, 9)), float(rng.choice([0.1, 0.5, 2.0]))
    return ModelPairs(order[:half].copy(), order[half : 2 * half].copy(), reach, width)


def make_random_multipliers(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    y = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3)
    return y * (rng.random(shape) < rng.choice([0.1, 0.5, 1.0]))


# ------------------------------------------------------------------ validity
@settings(max_examples=n_examples(600), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_every_multiplier_gives_a_bound(seed: int) -> None:
    model, T = make_tiny_model(seed, 150)
    rng = np.random.default_rng(seed)
    best_value = find_best_markov_value(model, T)
    x = LagrangianRelaxation(BACKEND.prepare(model.problem, T))
    for _ in range(2):
        y = make_random_multipliers(x.occupancy.shape, rng)
        assert x.evaluate(y) + x.estimate_rounding(y) >= best_value
        x.set_pairs(make_random_pairs(model.n_models, rng))
        assert x.evaluate(y) + x.estimate_rounding(y) >= best_value
        x.set_pairs(None)


@settings(max_examples=n_examples(150), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_every_method_bounds_its_scope(seed: int) -> None:
    model, T = make_tiny_model(seed)
    best_value = find_best_markov_value(model, T)
    history_value = find_best_history_value(model, T) if T <= 3 else best_value
    assert history_value >= best_value - 1e-9 * max(1, abs(best_value))
    for method in BOUND_METHODS:
        result = bound(model, T, method, time_limit=0.02)
        assert result.value >= best_value, method
        if result.scope == "history":
            assert result.value >= history_value - 1e-12 * max(1.0, abs(history_value)), method


@settings(max_examples=n_examples(400), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_pairs_bound_policies_with_memory(seed: int) -> None:
    model, T = make_tiny_model(seed, 60)
    rng = np.random.default_rng(seed)
    x = LagrangianRelaxation(BACKEND.prepare(model.problem, T))
    x.set_pairs(make_random_pairs(model.n_models, rng))
    assert x.evaluate() + x.estimate_rounding(None) >= find_best_history_value(model, T)


@settings(max_examples=n_examples(300), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_elimination_loses_no_better_policy(seed: int) -> None:
    model, T = make_tiny_model(seed, 300)
    rng = np.random.default_rng(seed)
    policies = enumerate_policies(model, T)
    values = compute_mean_returns(model, policies)
    incumbent = float(np.quantile(values, rng.choice([0.3, 0.8, 1.0])))
    x = LagrangianRelaxation(BACKEND.prepare(model.problem, T))
    x.set_pairs(make_random_pairs(model.n_models, rng))
    descent = DualDescent(x, incumbent)
    for _ in range(3):
        for _ in range(20):
            descent.take_step()
        descent.eliminate_actions()
    assert descent.bound >= values.max()
    t, s = np.indices(policies.shape[1:])
    is_allowed = x.allowed_actions[t, s, policies].all(axis=(1, 2))
    reaches = np.array(
        [_reaches_eliminated(model, policy, x.allowed_actions) for policy in policies[~is_allowed]]
    )
    lost = values[~is_allowed][reaches] if len(reaches) else np.array([])
    assert (lost <= incumbent + 1e-9 * max(1.0, abs(incumbent))).all()


def _reaches_eliminated(model: mmdp.MMDP, actions: np.ndarray, mask: np.ndarray) -> bool:
    """Whether some model meets a closed action (at other places the choice does not matter)."""
    b = mmdp.measures.model_weights(
        model, mmdp.policies.MarkovPolicy(actions, n_actions=model.n_actions)
    )
    t, s = np.indices(actions.shape)
    return bool(((b.sum(axis=1) > 0) & ~mask[t, s, actions]).any())


@settings(max_examples=n_examples(300), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_reach_bounds_are_the_extremes_over_policies(seed: int) -> None:
    model, T = make_tiny_model(seed, 100)
    x = model.problem
    prepared = BACKEND.prepare(x, T)
    lo, hi = compute_reach_bounds(prepared)
    b = np.array(
        [
            mmdp.measures.model_weights(
                model, mmdp.policies.MarkovPolicy(policy, n_actions=model.n_actions)
            )
            for policy in enumerate_policies(model, T)
        ]
    )
    b = np.moveaxis(b, 2, 3)
    np.testing.assert_allclose(hi, b.max(axis=0), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(lo, b.min(axis=0), rtol=1e-9, atol=1e-300)
    mask = np.broadcast_to(x.allowed, (T, x.n_states, x.n_actions)).copy()
    removable = np.argwhere(mask & (mask.sum(axis=2, keepdims=True) > 1))
    if len(removable) == 0:
        return
    t, s, a = removable[seed % len(removable)]
    mask[t, s, a] = False
    is_allowed = enumerate_policies(model, T)[:, t, s] != a
    lo, hi = compute_reach_bounds(prepared.replace(allowed=mask))
    np.testing.assert_allclose(hi, b[is_allowed].max(axis=0), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(lo, b[is_allowed].min(axis=0), rtol=1e-9, atol=1e-300)


# ------------------------------------------------------------------ tightness
@settings(max_examples=n_examples(100), **HYPOTHESIS_SETTINGS)
@given(seed=SEEDS)
def test_the_subgradient_inequality_holds(seed: int) -> None:
    """D(z) >= D(y) + <g, z - y>: with d = g / B and keep 0, g = d B gamma^t."""
    model, T = make_tiny_model(seed, 100)
    rng = np.random.default_rng(seed)
    x = LagrangianRelaxation(BACKEND.prepare(model.problem, T))
    x.set_pairs(make_random_pairs(model.n_models, rng))
    y = make_random_multipliers(x.occupancy.shape, rng)
    value, d = x.evaluate(y), np.zeros(x.occupancy.shape)
    gamma = model.discount
    x.prepared.update_direction(y, x.occupancy, x.best_actions, x.reach, 0.0, d)
    g = d * x.reach.hi[:, :, None] * (gamma ** np.arange(T))[:, None, None, None]
    for _ in range(5):
        z = y + make_random_multipliers(y.shape, rng)
        line = value + float((g * (z - y)).sum())
        assert x.evaluate(z) >= line - 1e-9 * (abs(line) + float(np.abs(g * (z - y)).sum()) + 1)


@pytest.mark.parametrize("seed", range(12))
def test_a_pair_on_a_fine_grid_is_exact(seed: int) -> None:
    model = make_random_model(seed, n_models=2, n_states=3, n_actions=2, horizon=0).replace(
        weights=[0.5, 0.5]
    )
    x = LagrangianRelaxation(BACKEND.prepare(model.problem, 4))
    x.set_pairs(ModelPairs(np.array([0]), np.array([1]), 2000, 0.005))
    exact = find_best_history_value(model, 4)
    assert exact <= x.evaluate() + x.estimate_rounding(None)
    assert x.evaluate() == pytest.approx(exact, rel=2e-4, abs=2e-3)


def test_dual_at_zero_is_oracle_at_policy_its_certificate() -> None:
    model = make_random_model(7, n_models=4, n_states=3, n_actions=3, horizon=0)
    solution, T = mmdp.solve(model, 3), 3
    x = LagrangianRelaxation(BACKEND.prepare(model.problem, T))
    oracle = mmdp.solve(model, T, "oracle").value
    assert x.evaluate(np.zeros(x.occupancy.shape)) == pytest.approx(oracle)
    prepared = mmdp.core.kernels.get_backend("numpy").prepare(model.problem, T)
    backward_pass = prepared.backward(
        "policy", policy=solution.policy.actions, keep=("q", "values")
    )
    advantage = np.where(
        np.isfinite(backward_pass.q), backward_pass.q - backward_pass.values[:-1, :, None], 0.0
    )
    penalties = np.where(
        advantage > 0, advantage * x.reach.hi[:, :, None], advantage * x.reach.lo[:, :, None]
    ).sum(axis=3)
    penalties = np.where(model.allowed, penalties, -np.inf).max(axis=2)
    discounts = model.discount ** np.arange(T)
    expected = solution.value + float((discounts[:, None] * penalties).sum())
    assert x.evaluate(advantage) == pytest.approx(expected)


def test_matching_takes_the_pairs_of_largest_gain() -> None:
    model = make_random_model(3, n_models=6, n_states=3, n_actions=3, horizon=0)
    relaxation = LagrangianRelaxation(BACKEND.prepare(model.problem, 4))
    single_values = relaxation.prepared.compute_weighted_optima()
    evaluator = PairEvaluator(relaxation.prepared, single_values)
    assert not evaluator.evaluate_pairs(np.inf)
    pairs, gain = evaluator.match_pairs()
    relaxation.set_pairs(pairs)
    matched_value = relaxation.evaluate()
    values = []
    for order in itertools.permutations(range(6)):
        first, second = np.array(order[:3]), np.array(order[3:])
        if (first < second).all() and (np.diff(first) > 0).all():
            relaxation.set_pairs(ModelPairs(first, second, pairs.grid_radius, pairs.grid_step))
            values.append(relaxation.evaluate())
    assert len(values) == 15
    assert matched_value == pytest.approx(min(values))
    assert matched_value == pytest.approx(single_values.sum() - gain)


@pytest.mark.parametrize("seed", range(20))
def test_matching_loses_little_in_odd_cycles(seed: int) -> None:
    """Against every matching of known pairs, one by one; greedy pairs would lose up to a half."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    i, j = np.triu_indices(n, 1)
    evaluated = rng.permutation(len(i))[: rng.integers(1, len(i) + 1)]
    i, j, gains = i[evaluated], j[evaluated], rng.random(len(evaluated))

    def find_best_matching(unmatched: frozenset[int], k: int) -> float:
        if k == len(i):
            return 0.0
        pair = {int(i[k]), int(j[k])}
        value_with_pair = (
            gains[k] + find_best_matching(unmatched - pair, k + 1) if pair <= unmatched else 0.0
        )
        return max(value_with_pair, find_best_matching(unmatched, k + 1))

    selected = match_by_assignment(i, j, gains, n)
    used = np.concatenate([i[selected], j[selected]])
    assert len(set(used.tolist())) == len(used)
    best = find_best_matching(frozenset(range(n)), 0)
    assert 2 / 3 * best <= gains[selected].sum() <= best + 1e-12


@pytest.mark.parametrize("n", [2, 3, 8, 9, 50])
def test_every_pair_occurs_once_and_the_first_are_disjoint(n: int) -> None:
    batches = list(iter_pairs(np.arange(n)))
    first, second = (np.concatenate(x) for x in zip(*(y[:2] for y in batches), strict=True))
    pairs = np.sort([first, second], axis=0).T.tolist()
    assert sorted(map(tuple, pairs)) == list(itertools.combinations(range(n), 2))
    assert len(np.unique(pairs[: n // 2])) == n // 2 * 2


# ------------------------------------------------------------------ special cases, messages
def test_bounds_are_exact_on_trivial_problems() -> None:
    one_model = make_random_model(1, n_models=1, n_states=4, n_actions=3, horizon=0)
    five_models = make_random_model(2, n_models=5, n_states=4, n_actions=3, horizon=0)
    one_action = make_random_model(4, n_models=5, n_states=4, n_actions=1, horizon=0)
    for model, T in ((one_model, 6), (five_models, 1), (one_action, 6)):
        result = bound(model, T, time_limit=0.1)
        assert result.gap(mmdp.solve(model, T).value) <= 1e-11


def test_the_bound_is_the_same_for_any_threads() -> None:
    model = make_random_model(11, n_models=6, n_states=5, n_actions=3, horizon=0)
    values = []
    for n_threads in (1, 3):
        x = LagrangianRelaxation(NumbaBackend(n_threads).prepare(model.problem, 6))
        x.set_pairs(ModelPairs(np.array([0, 2]), np.array([4, 5])))
        descent = DualDescent(x, mmdp.solve(model, 6).value)
        for _ in range(40):
            descent.take_step()
        values.append(descent.bound)
    assert values[0] == values[1]


def test_an_incumbent_may_have_any_accepted_type() -> None:
    model = make_random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 4)
    reports: list[float] = []
    for incumbent in (solution, solution.policy, solution.value, None, solution.value + 5.0):
        result = bound(
            model,
            4,
            time_limit=0.2,
            incumbent=incumbent,
            callback=lambda p: reports.append(p.bound),
        )
        assert result.value >= solution.value
    assert result.value >= solution.value + 5.0 or result.method != "dual"
    assert reports


def test_an_incumbent_of_another_horizon_is_refused() -> None:
    model = make_random_model(3, horizon=0)
    for T in (1, 3):
        with pytest.raises(mmdp.InputError):
            bound(model, 5, time_limit=0.1, incumbent=mmdp.solve(model, T))
    assert bound(model, 5, time_limit=0.1, incumbent=np.int64(-1000)).value > -1000


def test_interrupting_returns_a_valid_bound() -> None:
    model = make_random_model(5, n_models=6, n_states=4, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 5)

    def stop(progress: object) -> None:
        if getattr(progress, "stage", "") == "dual":
            raise KeyboardInterrupt

    result = bound(model, 5, time_limit=5, incumbent=solution, callback=stop)
    assert solution.value <= result.value <= result.details["bounds_by_method"]["oracle"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "none"}, "no bound is called 'none'; choose one of best"),
        ({"method": "orcale"}, r"'orcale' \(did you mean 'oracle'\?\); choose one of best"),
        ({"time_limit": 0}, "time_limit must be a positive number"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1"),
        ({"incumbent": float("nan")}, "a finite number"),
        ({"incumbent": "cadp"}, "a Solution, a MarkovPolicy or a finite number"),
    ],
)
def test_messages(options: dict[str, object], message: str) -> None:
    model = make_random_model(5, n_models=4, n_states=3, n_actions=3, horizon=0)
    with pytest.raises(mmdp.InputError, match=message):
        bound(model, **{"horizon": 3, **options})  # type: ignore[arg-type]


def test_bound_text() -> None:
    result = Bound(110.0, "pairs", "history")
    assert result.gap(100.0) == pytest.approx(0.1)
    assert result.gap(0.0) == np.inf
    assert result.gap(120.0) == 0.0
    assert result.share_closed(100.0, 140.0) == pytest.approx(0.75)
    assert "any policy" in repr(result)


def test_models_with_unreachable_states() -> None:
    p = np.zeros((2, 3, 2, 3))
    p[:, :2, 0, 0] = p[:, :2, 1, 1] = p[:, 2, :, 2] = 1.0
    model = mmdp.MMDP(p, np.random.default_rng(0).normal(size=(2, 3, 2)), initial=[1, 0, 0])
    result = bound(model, 4, time_limit=0.5)
    assert result.value >= find_best_markov_value(model, 4)


# ------------------------------------------------------------------ the published data
@pytest.mark.slow
def test_published_gaps(paper_data: object) -> None:
    for name, horizon, max_gap in (("riverswim", 50, 0.009), ("hiv", 15, 1e-6)):
        model = mmdp.load(paper_data / name)  # type: ignore[operator]
        solution = mmdp.solve(model, horizon)
        result = bound(model, horizon, time_limit=60, incumbent=solution)
        assert 0 <= result.gap(solution.value) <= max_gap


# ------------------------------------------------------------------ time
def test_reach_bounds_stop_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_random_model(8, n_models=5, n_states=7, n_actions=3, horizon=0, has_masks=True)
    prepared = BACKEND.prepare(model.problem, 4)
    expected = compute_reach_bounds(prepared)
    monkeypatch.setattr("mmdp.core.bounds.dual.BLOCK_SIZE", 3)
    by_blocks = compute_reach_bounds(prepared, deadline=solver_clock() + 1000)
    for one, other in zip(by_blocks, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(TimeUp):
        compute_reach_bounds(prepared, deadline=solver_clock())


def test_without_time_the_bound_has_no_multipliers() -> None:
    model = make_random_model(8, n_models=6, n_states=7, n_actions=3, horizon=0)
    result = bound(model, 4, time_limit=1e-9)
    bounds = result.details["bounds_by_method"]
    assert result.details["multipliers"] == "no time for them"
    assert result.value == min(bounds.values()) >= mmdp.solve(model, 4).value
    assert set(bounds) == {"oracle", "qmdp", "pairs"}


@pytest.mark.parametrize("max_models", [3, 1000])
def test_pairs_are_evaluated_in_parts_as_at_once(
    max_models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdp.core.bounds.portfolio.MAX_ASSIGNMENT_MODELS", max_models)
    model = make_random_model(9, n_models=21, n_states=3, n_actions=3, horizon=0)
    prepared = BACKEND.prepare(model.replace(weights=[0.0, *[0.05] * 20]).problem, 4)
    single_values = prepared.compute_weighted_optima()
    at_once, in_parts = (PairEvaluator(prepared, single_values) for _ in range(2))
    assert not at_once.evaluate_pairs(np.inf)
    n_parts = 1
    while in_parts.evaluate_pairs(solver_clock()):  # the first pairs are always evaluated
        n_parts += 1
    assert n_parts > 10
    (pairs, gain), (_, other_gain) = at_once.match_pairs(), in_parts.match_pairs()
    assert sorted([*pairs.first, *pairs.second]) == list(range(1, 21))
    assert gain == pytest.approx(other_gain)
    grouped = LagrangianRelaxation(prepared, pairs)
    assert single_values.sum() - gain == pytest.approx(grouped.evaluate(), rel=1e-9)


def test_progress_shows_falling_bound_and_gap() -> None:
    model = make_random_model(5, n_models=8, n_states=4, n_actions=3, horizon=0)
    reports: list[mmdp.solution.Progress] = []
    result = bound(model, 5, time_limit=0.5, callback=reports.append)
    values = [p.bound for p in reports]
    assert values == sorted(values, reverse=True)
    assert values[-1] == result.value < values[0]
    assert {"oracle", "pairs", "dual"} <= {p.stage for p in reports}
    assert np.isnan(reports[0].gap)  # before there is an incumbent
    assert reports[-1].gap == pytest.approx(result.gap(result.details["incumbent"]))
    solve_reports: list[mmdp.solution.Progress] = []
    solution = mmdp.solve(model, 5, certify_time=0.5, callback=solve_reports.append)
    bound_reports = [p for p in solve_reports if not np.isnan(p.bound)]
    assert bound_reports[-1].bound == solution.bound
    assert bound_reports[-1].gap == pytest.approx(solution.gap)


@pytest.mark.parametrize("method", ["wsu", "exact", "milp"])
def test_an_offset_of_the_rewards_proves_nothing(method: str) -> None:
    """With 1e10 in every reward, all policies are within a billionth of each other."""
    model = make_random_model(1, n_models=4, n_states=3, n_actions=2, horizon=0)
    offset = 1e10 * (model.discount ** np.arange(4)).sum()
    best = mmdp.solve(model, 4, "exact").value + offset
    shifted_model = model.replace(rewards=model.rewards + 1e10)
    solution = mmdp.solve(shifted_model, 4, method, certify_time=0.2 if method == "wsu" else None)
    assert solution.bound is not None
    assert solution.bound >= best * (1 - 1e-14)
    if method == "wsu":
        assert solution.value < best - 5
        assert solution.status is mmdp.Status.COMPLETED
    if solution.status is mmdp.Status.OPTIMAL:
        assert solution.value == pytest.approx(best, rel=0, abs=0.1)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
def test_a_model_of_another_scale_proves_nothing(scale: float) -> None:
    """Two models bet against each other; the even mixture is the best for the worst of them."""
    P = np.ones((3, 1, 2, 1))
    model = mmdp.MMDP(P, [[[4e-3, 0.0]], [[0.0, 4e-3]], [[scale, scale]]])
    uniform = mmdp.evaluate(model, mmdp.policies.MarkovPolicy(probabilities=[[[0.5, 0.5]]])).worst
    assert uniform == pytest.approx(2e-3)
    solution = mmdp.solve(model, 1, objective="worst", certify_time=0.2)
    assert solution.value == 0
    assert solution.status is not mmdp.Status.OPTIMAL
    assert uniform <= solution.bound <= uniform * (1 + 1e-6)


def test_differences_above_rounding_are_not_proven_away() -> None:
    """Two models that want other actions, by 6e-5 of rewards of 1e9: a coin serves both better."""
    r = -8.6e8 + 6e-5 * np.eye(2)[:, None, :]
    model = mmdp.MMDP(np.ones((2, 1, 2, 1)), r)
    solution = mmdp.solve(model, 1, objective="regret:cvar:0.5", certify_time=1)
    uniform = mmdp.evaluate(model, mmdp.policies.MarkovPolicy.uniform(model, 1))
    assert uniform.value(solution.objective) > solution.value + 2e-5
    assert solution.status is not mmdp.Status.OPTIMAL


def test_steps_of_large_multipliers_stop_at_zero_without_a_warning() -> None:
    y, d = np.array([1e200, 1e200, -1e200, 0.0]), np.array([-1e200, 3e200, -3e200, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new = step_without_sign_change(y, d, 1.0)
    assert new.tolist() == [2e200, 0.0, 0.0, -1.0]
