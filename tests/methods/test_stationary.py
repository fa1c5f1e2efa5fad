"""Stationary policies: exact changes, enumeration, proofs, and what is refused."""

from __future__ import annotations

import itertools
import math
import re
import types
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.kernels.endless import Endless, Factorised, Iterated
from mmdp.kernels.numpy.passes import Passes
from mmdp.methods.base import Stop
from mmdp.objective import as_objective
from mmdp.search.rules import _Exact
from mmdp.testing import plain_returns, random_model
from mmdp.words import number
from tests.instances import shares

INF = math.inf


def instance(seed: int, M: int = 6, S: int = 5, A: int = 3, discount: float = 0.9) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    return mmdp.MMDP(
        rng.dirichlet(np.full(S, 0.3), size=(M, S, A)), rng.normal(size=(M, S, A)),
        discount=discount, initial=rng.dirichlet(np.ones(S)), weights=rng.dirichlet(np.ones(M)),
    )  # fmt: skip


def every(model: mmdp.MMDP) -> np.ndarray:
    """(N, S) all deterministic stationary policies."""
    return np.array(list(itertools.product(*(np.flatnonzero(x) for x in model.allowed))))


def by_power_series(policy: np.ndarray, model: mmdp.MMDP) -> np.ndarray:
    """(N,) mean returns of the policies (N, S): gamma^t mu P^t r, summed until it vanishes."""
    s, (P, r) = np.arange(model.n_states), (model.transitions, model.rewards)
    x = np.broadcast_to(model.initial, (len(policy), model.n_models, model.n_states))
    total, factor = np.zeros((len(policy), model.n_models)), 1.0
    P_pi = np.moveaxis(P[:, s, policy], 1, 0)  # (N, M, S, S')
    r_pi = np.moveaxis(r[:, s, policy], 1, 0)
    while factor > 1e-13:
        total = total + factor * (x * r_pi).sum(axis=2)
        x, factor = np.einsum("nms,nmsz->nmz", x, P_pi), factor * model.discount
    return total @ model.weights


# ---------------------------------------------------------------------- values
def test_values_visits_and_own_optima_both_ways() -> None:
    model = instance(1, S=7)
    exact, iterated = Factorised(model.problem), Iterated(model.problem)
    rng = np.random.default_rng(0)
    for policy in (rng.integers(0, 3, 7), rng.dirichlet(np.ones(3), size=7)):
        assert np.allclose(exact.values(policy), iterated.values(policy), rtol=1e-11)
        assert np.allclose(exact.visits(policy), iterated.visits(policy), rtol=1e-11)
        v, d = exact.values(policy), exact.visits(policy)
        pi = np.eye(3)[policy] if policy.ndim == 1 else policy
        assert np.allclose(v @ model.initial, np.einsum("ms,sa,msa->m", d, pi, exact.r))
    assert np.allclose(exact.own().values, iterated.own().values, rtol=1e-11)
    for m in range(model.n_models):
        alone = model.subset([m])
        assert exact.own().values[m] @ model.initial == pytest.approx(
            by_power_series(every(alone), alone).max()
        )


def exact_optimum(model: mmdp.MMDP, m: int) -> list[Fraction]:
    """(S,) the optimal values of model m in exact arithmetic."""
    S, gamma, found = model.n_states, Fraction(model.discount), []
    for policy in every(model):
        rows = [
            [int(s == z) - gamma * Fraction(model.transitions[m, s, a, z]) for z in range(S)]
            + [Fraction(model.rewards[m, s, a])]
            for s, a in enumerate(policy)
        ]
        for i in range(S):  # Gauss-Jordan; the matrix is diagonally dominant
            rows[i] = [x / rows[i][i] for x in rows[i]]
            for k in range(S):
                if k != i:
                    rows[k] = [y - rows[k][i] * x for x, y in zip(rows[i], rows[k], strict=True)]
        found.append([row[-1] for row in rows])
    return [max(values) for values in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("kind", "left"), [(Iterated, 1e-2), (Factorised, 1e-2), (Factorised, 1e-5), (Factorised, 1e-6)]
)
def test_own_optima_near_discount_1_are_proven(kind: type[Endless], left: float) -> None:
    for seed in range(4):
        model = near_one(seed, left, 10.0 ** (6 * seed - 9))
        own = kind(model.problem).own()
        for m in range(model.n_models):
            optimum = exact_optimum(model, m)
            above = [Fraction(x) + Fraction(own.above[m]) for x in own.values[m]]
            assert all(x >= y for x, y in zip(above, optimum, strict=True))
            assert own.above[m] <= 1e-13 / left * abs(own.values[m]).max()


def near_one(seed: int, left: float, scale: float) -> mmdp.MMDP:
    """Rewards of this size, of which few differ by much; actions that are all but tied."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(4, 0.3), size=(2, 4, 2))
    r = scale * (1 + 10.0 ** -rng.integers(1, 12, size=(2, 4, 2)) * rng.normal(size=(2, 4, 2)))
    return mmdp.MMDP(p, r, discount=1 - left, initial=[1, 0, 0, 0])


@pytest.mark.parametrize("left", [1e-5, 1e-6])
def test_bounds_and_evpi_near_discount_1(left: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdp.search.price.COMPARING", 0)
    for seed in range(6):
        model = near_one(seed, left, 10.0 ** (3 * seed - 9))
        solution = mmdp.solve(model, INF, mmdp.CADP(starts=4), backend="numpy")
        assert mmdp.bound(model, INF, "oracle").value >= solution.value
        assert solution.evpi >= 0
        assert (solution.evaluation.regret >= 0).all()
        alone = mmdp.solve(model.subset([0]), INF, backend="numpy")
        assert mmdp.bound(model.subset([0]), INF, "qmdp").value >= alone.value
        proven = mmdp.solve(model, INF, "exact", backend="numpy")
        assert proven.bound >= max(proven.value, solution.value)


def test_evaluation_is_that_of_a_long_horizon() -> None:
    model = instance(2)
    policy = mmdp.StationaryPolicy([0, 1, 2, 1, 0])
    found = mmdp.evaluate(policy, model)
    assert np.allclose(found.returns, plain_returns(policy.over(300), model), atol=1e-9)
    assert found.provenance is not None
    assert found.provenance.horizon == INF
    assert (found.regret >= -1e-9).all()
    other = instance(3)
    assert mmdp.evaluate(policy, other).mean == pytest.approx(
        by_power_series(policy.actions[None], other)[0]
    )


def test_a_randomised_policy_is_evaluated_too() -> None:
    model = instance(2)
    policy = mmdp.StationaryPolicy(probabilities=np.full((5, 3), 1 / 3))
    expected = plain_returns(policy.over(300), model)
    assert np.allclose(mmdp.evaluate(policy, model).returns, expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_change_moves_everything_as_a_new_factorisation(seed: int) -> None:
    model = instance(seed)
    x = Factorised(model.problem)
    point = _Exact(x, np.zeros(5, dtype=np.int32))
    for s in (3, 0, 4, 1, 2):
        before, changes = x.returns(point.policy), point.changes(s)
        a = int((changes @ model.weights).argmax())
        point.take(s, a)
        assert np.allclose(x.returns(point.policy), before + changes[a], rtol=1e-10, atol=1e-12)
    assert point.policy.any()
    again = _Exact(x, point.policy.copy())
    for name in ("F", "v", "d"):
        assert np.allclose(getattr(point, name), getattr(again, name), rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------- the search
def found_share(seeds: range) -> float:
    hits = 0
    for seed in seeds:
        model = instance(seed)
        values = by_power_series(every(model), model)
        solution = mmdp.solve(model, INF, backend="numpy")
        assert solution.value <= values.max() + 1e-9
        assert (np.diff(solution.trace) >= -1e-12).all()
        hits += solution.value >= values.max() - 1e-9
        proven = mmdp.solve(model, INF, "exact", backend="numpy")
        assert proven.status is mmdp.Status.OPTIMAL
        assert proven.value == pytest.approx(values.max(), abs=1e-8)
        assert proven.bound >= values.max() - 1e-12
    return hits / len(seeds)


def test_one_call_finds_the_optimum_and_exact_proves_it() -> None:
    assert found_share(range(10)) >= 0.85


@pytest.mark.slow
def test_one_call_finds_the_optimum_of_200_instances() -> None:
    assert found_share(range(200)) >= 0.85


@pytest.mark.parametrize(("name", "value"), [("riverswim", 202.83126546), ("hiv", 44815.98065376)])
def test_the_published_models(name: str, value: float) -> None:
    train, test = mmdp.domains.published(name)
    solution = mmdp.solve(train, INF, mmdp.CADP(starts=4))
    assert solution.value >= value - 1e-6
    assert mmdp.solve(train, INF, "exact").status is mmdp.Status.OPTIMAL
    assert solution.details["unrestricted"] >= solution.value
    again = mmdp.evaluate(solution.policy.over(400), test, backend="numpy")
    assert mmdp.evaluate(solution, test).mean == pytest.approx(again.mean)


def test_the_price_of_stationarity_is_that_of_a_policy_one_can_follow() -> None:
    train, _ = mmdp.domains.published("riverswim")
    solution = mmdp.solve(train, INF, mmdp.CADP(starts=1))
    long = mmdp.solve(train, 150, mmdp.CADP(starts=1)).value
    assert solution.details["unrestricted"] == pytest.approx(long, rel=1e-4)
    assert solution.price is not None
    assert solution.price / long == pytest.approx(0.0054, abs=2e-4)
    assert solution.price_text == f"being stationary costs {number(solution.price, 3)}"


def test_the_price_is_known_if_a_long_while_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    model = instance(0).replace(discount=0.99)
    whole = mmdp.solve(model, INF, backend="numpy")
    monkeypatch.setattr("mmdp.search.price.COMPARING", 1e-4)
    short = mmdp.solve(model, INF, backend="numpy")
    assert 1 <= short.details["compared_steps"] < whole.details["compared_steps"]
    assert short.price is not None
    assert whole.price is not None
    assert 0 <= short.price <= whole.price + 1e-9
    assert short.price_text.startswith("being stationary costs ")


def test_many_states_are_searched_by_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdp.kernels.endless.MATRICES", 0)
    found = 0
    for seed in range(4):
        model = instance(seed)
        solution = mmdp.solve(model, INF, mmdp.CADP(starts=4), backend="numpy")
        best = by_power_series(every(model), model).max()
        assert solution.status is mmdp.Status.COMPLETED
        assert solution.value <= best + 1e-9
        found += solution.value >= best - 1e-9
    assert found >= 3
    with pytest.raises(mmdp.InputError, match="solve with cadp"):
        mmdp.solve(instance(0), INF, "exact")


@pytest.mark.parametrize("objective", ["cvar:0.3", "regret:worst", "var:0.4"])
def test_objectives(objective: str) -> None:
    F, found = as_objective(objective), 0
    for seed in range(4):
        model = instance(seed, S=4)
        x = Endless.of(model.problem)
        returns = np.stack([x.returns(policy) for policy in every(model)])
        rho = returns - x.own().values @ model.initial if F.regret else returns
        best = float(F.value(rho, model.weights).max())
        solution = mmdp.solve(model, INF, objective=F, backend="numpy")
        assert solution.value <= best + 1e-9
        assert solution.value == pytest.approx(solution.evaluation.value(F))
        assert mmdp.bound(model, INF, "oracle", objective=F).value >= best - 1e-12
        found += solution.value >= best - 1e-9
    assert found >= 3


# ---------------------------------------------------------------------- bounds
@pytest.mark.parametrize("method", ["oracle", "qmdp", "pairs", "best"])
def test_bounds_hold_without_a_last_decision(method: str) -> None:
    for seed in range(3):
        model = instance(seed, S=3, A=2)
        best = by_power_series(every(model), model).max()
        long = mmdp.solve(model, 100, backend="numpy").value  # rewards after 100 steps: 3e-5
        found = mmdp.bound(model, INF, method, time_limit=0.3, backend="numpy")
        assert found.value >= max(best, long - 1e-3)
    one = model.subset([0])
    assert mmdp.bound(one, INF, "oracle").value == pytest.approx(
        by_power_series(every(one), one).max()
    )


def test_a_certificate_bounds_the_price() -> None:
    solution = mmdp.solve(instance(4), INF, certify=0.5, backend="numpy")
    assert solution.certificate is not None
    assert solution.certificate.bounds == "deterministic stationary"
    assert solution.bound == pytest.approx(solution.value)
    assert solution.certificate.of_every is not None
    assert solution.certificate.of_every >= solution.details["unrestricted"] - 1e-9
    assert re.search(r"being stationary costs .*, at most", repr(solution))


def opposed(discount: float = 0.99) -> mmdp.MMDP:
    """Two models, each of which wants the other action until it is done."""
    P = np.zeros((2, 2, 2, 2))
    P[[0, 1], 0, [0, 1], 1] = P[[0, 1], 0, [1, 0], 0] = P[:, 1, :, 1] = 1
    return mmdp.MMDP(P, [[-1.0, -1.0], [0.0, 0.0]], initial=[1, 0], discount=discount)


def test_a_proof_is_about_deterministic_policies(tmp_path: Path) -> None:
    model = opposed()
    found = mmdp.solve(model, INF, "exact")
    even = mmdp.StationaryPolicy(probabilities=np.full((2, 2), 0.5))
    assert found.value == pytest.approx(-50.5)
    assert mmdp.evaluate(even, model).mean == pytest.approx(-1 / (1 - 0.99 / 2))
    assert found.outcome.startswith("proven optimal: no deterministic stationary policy is better;")
    mmdp.save_policy(found, tmp_path / "p.json")
    again = mmdp.io.load_certificate(tmp_path / "p.json", model)
    assert again is not None
    assert again.bounds == "deterministic stationary"


@pytest.mark.parametrize("seeds", shares(6, 60))
def test_a_bound_covers_the_policies_that_it_names(seeds: range) -> None:
    for seed in seeds:
        model = opposed(0.9) if seed == 0 else instance(seed, M=3, S=2, A=2)
        offset = [0.0, 1e6][seed % 2]
        model = model.replace(rewards=model.rewards + offset)
        values = by_power_series(every(model), model)
        rng = np.random.default_rng(seed)
        rules = [mmdp.StationaryPolicy(probabilities=x) for x in rng.dirichlet([1, 1], (30, 2))]
        drawn = max(mmdp.evaluate(x, model).mean for x in rules)
        for method, certify in (("exact", False), ("cadp", 0.2)):
            found = mmdp.solve(model, INF, method, certify=certify, backend="numpy")
            proven = found.certificate
            assert proven is not None
            deterministic = proven.bounds.startswith("deterministic")
            rounding = 1e-12 * (1 + offset) / (1 - model.discount) ** 2  # of the power series
            assert proven.value >= values.max() - rounding
            assert deterministic or proven.value >= drawn - rounding
            assert proven.of_every is None or proven.of_every >= drawn - rounding
            if found.status is mmdp.Status.OPTIMAL:
                assert found.value >= values.max() - 1e-5 * np.ptp(values) - rounding


def test_certify_proves_what_exact_proves() -> None:
    model = instance(3, M=5, S=6, A=3, discount=0.95)
    exact = mmdp.solve(model, INF, "exact", backend="numpy")
    found = mmdp.solve(model, INF, certify=1, backend="numpy")
    assert exact.status is found.status is mmdp.Status.OPTIMAL
    assert found.bound == pytest.approx(exact.value, rel=1e-9)
    assert found.certificate is not None
    assert found.certificate.bounds == "deterministic stationary"


@pytest.mark.parametrize("method", ["exact", "cadp"])
def test_a_model_without_weight_loosens_no_proof(method: str) -> None:
    rng = np.random.default_rng(0)
    P, r = rng.dirichlet(np.full(3, 0.3), size=(3, 3, 3)), rng.normal(size=(3, 3, 3))
    r[2] *= 1e13
    model = mmdp.MMDP(P, r, initial=[1, 0, 0], weights=[0.5, 0.5, 0], discount=0.99)
    found = mmdp.solve(model, INF, method, certify=1, backend="numpy")
    assert found.status is mmdp.Status.OPTIMAL
    assert found.gap is not None
    assert found.gap < 1e-9


def test_limits() -> None:
    stopped = mmdp.solve(instance(4), INF, time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert isinstance(stopped.policy, mmdp.StationaryPolicy)
    early = mmdp.solve(instance(4), INF, "exact", time_limit=1e-9)
    assert early.bound is not None
    assert early.bound >= early.value


@pytest.mark.parametrize("kind", [Factorised, Iterated])
def test_own_optima_are_proven_whenever_the_time_is_up(kind: type[Endless]) -> None:
    model = instance(4, S=8)
    optimum, gaps = Factorised(model.problem).own().values, []
    for most in range(50):
        calls = itertools.count()

        def check_time(calls: Iterator[int] = calls, most: int = most) -> None:
            if next(calls) >= most:
                raise Stop

        own = kind(model.problem, check_time).own()
        above = own.values + own.above[:, None] - optimum
        assert (above >= 0).all()
        gaps.append(above.max())
    assert gaps[0] > 1
    assert gaps[-1] < 1e-11


@pytest.mark.parametrize("limit", [3.0, 20.0])
def test_limits_are_kept_up_to_a_pass(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a factorisation, a change of a state or a pass takes a second."""
    now = [0.0]

    def perf_counter() -> float:
        now[0] += 1e-3
        return now[0]

    fake = types.SimpleNamespace(perf_counter=perf_counter)
    monkeypatch.setattr("mmdp.clock.time", fake)

    def slow(owner: type, name: str) -> None:
        work = getattr(owner, name)

        def taking_a_second(*args: Any, **options: Any) -> Any:
            now[0] += 1
            return work(*args, **options)

        monkeypatch.setattr(owner, name, taking_a_second)

    model = instance(4, S=4, discount=0.95)
    best = by_power_series(every(model), model).max()
    for owner, name in ((Factorised, "solve"), (Factorised, "inverse"), (_Exact, "changes")):
        slow(owner, name)
    slow(Passes, "backward")
    for method in ("cadp", "exact"):
        now[0] = 0.0
        found = mmdp.solve(model, INF, method, time_limit=limit, backend="numpy")
        assert found.status is mmdp.Status.TIME_LIMIT
        assert now[0] <= limit + 4  # a start, its values, its returns and those of the solution
        assert found.bound is None or found.bound >= best
    now[0] = 0.0
    assert mmdp.bound(model, INF, "pairs", time_limit=limit, backend="numpy").value >= best
    assert now[0] <= limit + 4


def test_options() -> None:
    model = instance(4)
    best = mmdp.solve(model, INF)
    again = mmdp.solve(model, INF, mmdp.CADP(init=best.policy, starts=1))
    assert again.policy == best.policy
    assert again.iterations == 1
    assert mmdp.solve(model, INF, mmdp.CADP(init="random", starts=5)).value <= best.value + 1e-9
    with pytest.raises(mmdp.InputError, match="no start is called .mirror.; choose wsu"):
        mmdp.solve(model, INF, mmdp.CADP(init="mirror"))


# ---------------------------------------------------------------------- what is refused
VARYING = mmdp.MMDP(np.full((4, 2, 3, 2, 3), 1 / 3), np.ones((4, 2, 3, 2)), discount=0.9)


@pytest.mark.parametrize(
    ("model", "horizon", "told"),
    [
        (VARYING, INF, "varies over 4 time steps, so it has no infinite horizon; pass horizon=4"),
        (VARYING.replace(discount=1.0), INF, "varies over 4"),
        (instance(0, discount=1.0), INF, "infinite horizon needs episodes that end"),
    ],
)
def test_refused_by_solve(model: mmdp.MMDP, horizon: float, told: str) -> None:
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(model, horizon, policy="stationary")
    assert told in str(error.value)
    if horizon == INF:
        with pytest.raises(mmdp.InputError):
            mmdp.bound(model, INF)
        with pytest.raises(mmdp.InputError):
            mmdp.evaluate(mmdp.StationaryPolicy([0] * model.n_states), model)


def test_refused_elsewhere() -> None:
    model = instance(0)
    found = mmdp.solve(model, INF)
    for ask in (
        lambda: mmdp.report.write(model, "x.html", policy=found),
        lambda: mmdp.measures.policy_table(found, model),
        lambda: mmdp.gradient(found.policy, model),
        lambda: mmdp.model_weights(found.policy, model),
    ):
        with pytest.raises(mmdp.InputError, match="stationary.*over"):
            ask()
    with pytest.raises(
        mmdp.InputError, match="it plans backwards from a last decision; choose method='cadp'"
    ):
        mmdp.solve(model, INF, "wsu")
    assert mmdp.solve(model, INF, "oracle").value >= found.value
    assert Endless.of(model.problem).own().actions.shape == (6, 5)


@pytest.mark.parametrize("kind", [Factorised, Iterated])
@pytest.mark.parametrize("seed", range(3))
def test_the_unit_of_rewards_does_not_matter(
    kind: type[Endless], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endless, "of", staticmethod(kind))
    model = instance(seed)
    small = mmdp.MMDP(
        model.transitions, model.rewards * 2.0**-43, discount=model.discount,
        initial=model.initial, weights=model.weights,
    )  # fmt: skip
    one, other = (mmdp.solve(x, INF, mmdp.CADP(init="mvp", starts=4)) for x in (model, small))
    assert other.value * 2.0**43 == pytest.approx(one.value, rel=1e-9)


def test_a_start_that_is_not_stationary_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match=r"covers \d+ time steps, the horizon is inf"):
        mmdp.solve(instance(0), INF, mmdp.CADP(init=mmdp.MarkovPolicy([[0] * 5])))


@pytest.mark.parametrize("seed", range(4))
def test_mvp_is_the_best_rule_of_the_average_model(seed: int) -> None:
    model = random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, discount=0.9)
    found, mean = mmdp.solve(model, math.inf, "mvp"), model.mean_model()
    rows = itertools.product(*(np.flatnonzero(x) for x in model.allowed))
    best = max(mmdp.evaluate(mmdp.StationaryPolicy(x, n_actions=2), mean).mean for x in rows)
    rule = mmdp.StationaryPolicy(found.policy.actions, n_actions=2)
    assert math.isclose(mmdp.evaluate(rule, mean).mean, best, rel_tol=1e-9, abs_tol=1e-12)
    np.testing.assert_allclose(found.returns, mmdp.evaluate(rule, model).returns, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_discount_near_one_finds_the_largest_average_reward(seed: int) -> None:
    """Every stationary policy of models that mix; gains by their stationary distributions."""
    rng, s = np.random.default_rng(seed), np.arange(3)
    P, r = rng.dirichlet(np.ones(3), (3, 3, 2)), rng.normal(size=(3, 3, 2))
    weights = rng.dirichlet(np.ones(3))

    def gain(pi: Any) -> float:
        found = 0.0
        for m in range(3):
            flow = np.vstack([P[m, s, pi].T - np.eye(3), np.ones(3)])
            visits = np.linalg.lstsq(flow, [0, 0, 0, 1], rcond=None)[0]
            found += weights[m] * (visits @ r[m, s, pi])
        return found

    best = max(gain(np.array(pi)) for pi in itertools.product(range(2), repeat=3))
    model = mmdp.MMDP(P, r, weights=weights, discount=1 - 1e-6)
    solution = mmdp.solve(model, math.inf, "exact")
    assert solution.status is mmdp.Status.OPTIMAL
    assert gain(solution.policy.actions) == pytest.approx(best, abs=1e-5)
    assert 1e-6 * solution.value == pytest.approx(best, abs=1e-5)
    with pytest.raises(mmdp.InputError, match="about the average reward per step"):
        mmdp.solve(model.replace(discount=1.0), math.inf)
