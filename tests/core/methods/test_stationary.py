"""Stationary policies: exact changes, enumeration, proofs, and what is refused."""

from __future__ import annotations

import functools
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
from benchmarks.waits import make_de_moor

import mmdp
from mmdp.core.evaluate import RankOneUpdate
from mmdp.core.kernels import infinite
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.kernels.numpy.passes import Passes
from mmdp.core.methods.base import TimeUp
from mmdp.core.objectives import as_objective
from mmdp.core.testing import compute_plain_returns, make_random_model
from mmdp.core.text import format_number
from tests.instances import n_examples, seed_ranges

INF = math.inf


def make_model(seed: int, M: int = 6, S: int = 5, A: int = 3, discount: float = 0.9) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    return mmdp.MMDP(
        rng.dirichlet(np.full(S, 0.3), size=(M, S, A)),
        rng.normal(size=(M, S, A)),
        discount=discount,
        initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.ones(M)),
    )


def enumerate_policies(model: mmdp.MMDP) -> np.ndarray:
    """(N, S) all deterministic stationary policies."""
    return np.array(list(itertools.product(*(np.flatnonzero(x) for x in model.allowed))))


def compute_returns_by_power_series(policies: np.ndarray, model: mmdp.MMDP) -> np.ndarray:
    """(N,) mean returns of the policies (N, S): gamma^t mu P^t r, summed until it vanishes."""
    s, (P, r) = np.arange(model.n_states), (model.transitions, model.rewards)
    x = np.broadcast_to(model.initial, (len(policies), model.n_models, model.n_states))
    total, factor = np.zeros((len(policies), model.n_models)), 1.0
    P_pi = np.moveaxis(P[:, s, policies], 1, 0)  # (N, M, S, S')
    r_pi = np.moveaxis(r[:, s, policies], 1, 0)
    while factor > 1e-13:
        total = total + factor * (x * r_pi).sum(axis=2)
        x, factor = np.einsum("nms,nmsz->nmz", x, P_pi), factor * model.discount
    return total @ model.weights


# ---------------------------------------------------------------------- values
def test_direct_and_iterative_solvers_agree() -> None:
    model = make_model(1, S=7)
    direct, iterative = DirectSolver(model.problem), InfiniteHorizon(model.problem)
    rng = np.random.default_rng(0)
    for policy in (rng.integers(0, 3, 7), rng.dirichlet(np.ones(3), size=7)):
        assert np.allclose(
            direct.compute_values(policy), iterative.compute_values(policy), rtol=1e-11
        )
        assert np.allclose(
            direct.compute_occupancy(policy), iterative.compute_occupancy(policy), rtol=1e-11
        )
        v, d = direct.compute_values(policy), direct.compute_occupancy(policy)
        pi = np.eye(3)[policy] if policy.ndim == 1 else policy
        assert np.allclose(v @ model.initial, np.einsum("ms,sa,msa->m", d, pi, direct.r))
    assert np.allclose(
        direct.compute_model_optima().values, iterative.compute_model_optima().values, rtol=1e-11
    )
    for m in range(model.n_models):
        single_model = model.subset([m])
        assert direct.compute_model_optima().values[m] @ model.initial == pytest.approx(
            compute_returns_by_power_series(enumerate_policies(single_model), single_model).max()
        )


def test_occupancies_of_many_models_are_found_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrections have both signs, and the change of a repetition falls in the sum alone."""
    model = make_de_moor(2, n_models=4)
    direct, iterative = DirectSolver(model.problem), InfiniteHorizon(model.problem)
    policy = direct.compute_q(direct.compute_values(np.zeros(121, int))).mean(axis=0).argmax(axis=1)
    monkeypatch.setattr(infinite, "DIRECT_SPEEDUP", 1e-6)
    monkeypatch.setattr(infinite.InfiniteHorizon, "_solve_by_model", None)
    n_steps, original_step = 0, InfiniteHorizon._make_step

    def make_counted_step(self: InfiniteHorizon, system: Any) -> Any:
        step_once = original_step(self, system)

        def step(x: Any) -> Any:
            nonlocal n_steps
            n_steps += 1
            assert n_steps < 200
            return step_once(x)

        return step

    monkeypatch.setattr(InfiniteHorizon, "_make_step", make_counted_step)
    for _ in range(3):
        np.testing.assert_allclose(
            iterative.compute_occupancy(policy), direct.compute_occupancy(policy), atol=1e-9
        )
        n_steps, q = 0, direct.compute_q(direct.compute_values(policy))
        policy = q.mean(axis=0).argmax(axis=1)


def test_values_are_exact_for_the_last_policies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Approximate values find a policy that exact ones prove: the optimum is the same."""
    model = make_de_moor(2)
    direct, iterative = DirectSolver(model.problem), InfiniteHorizon(model.problem)
    tolerances, original = [], InfiniteHorizon.solve_linear

    def solve_linear(self: InfiniteHorizon, system: Any) -> Any:
        tolerances.append(system.rtol)
        return original(self, system)

    monkeypatch.setattr(InfiniteHorizon, "solve_linear", solve_linear)
    optima, expected = iterative.compute_model_optima(), direct.compute_model_optima()
    assert optima.is_complete
    assert optima.actions.tolist() == expected.actions.tolist()
    np.testing.assert_allclose(optima.values, expected.values, rtol=1e-12)
    assert tolerances == sorted(tolerances, reverse=True)
    assert 1 <= tolerances.count(0.0) <= 2 < len(tolerances)


def compute_exact_optimum(model: mmdp.MMDP, m: int) -> list[Fraction]:
    """(S,) the optimal values of model m in exact arithmetic."""
    S, gamma, values_by_policy = model.n_states, Fraction(model.discount), []
    for policy in enumerate_policies(model):
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
        values_by_policy.append([row[-1] for row in rows])
    return [max(values) for values in zip(*values_by_policy, strict=True)]


@pytest.mark.parametrize(
    ("solver_class", "one_minus_discount"),
    [(InfiniteHorizon, 1e-2), (DirectSolver, 1e-2), (DirectSolver, 1e-5), (DirectSolver, 1e-6)],
)
def test_model_optima_near_discount_one_are_proven(
    solver_class: type[InfiniteHorizon], one_minus_discount: float
) -> None:
    for seed in range(4):
        model = make_model_near_discount_one(seed, one_minus_discount, 10.0 ** (6 * seed - 9))
        optima = solver_class(model.problem).compute_model_optima()
        for m in range(model.n_models):
            optimum = compute_exact_optimum(model, m)
            upper = [Fraction(x) + Fraction(optima.error_bound[m]) for x in optima.values[m]]
            assert all(x >= y for x, y in zip(upper, optimum, strict=True))
            assert optima.error_bound[m] <= 1e-13 / one_minus_discount * abs(optima.values[m]).max()


@pytest.mark.parametrize(("n_models", "n_states"), [(6, 2), (2, 5)])
def test_returns_are_as_exact_as_their_rounding_errors_say(n_models: int, n_states: int) -> None:
    model = make_model(1, n_models, n_states, A=1, discount=0.999)
    returns = mmdp.evaluate(model, mmdp.policies.StationaryPolicy([0] * n_states)).returns
    max_errors = InfiniteHorizon.from_problem(model.problem).rounding_errors()
    for m in range(n_models):
        values = compute_exact_optimum(model, m)
        exact_return = sum(Fraction(b) * v for b, v in zip(model.initial, values, strict=True))
        assert abs(Fraction(returns[m]) - exact_return) <= Fraction(max_errors[m])


def test_rewards_of_one_model_leave_the_values_of_another_exact() -> None:
    """Also where values are iterated, for many states."""
    S, discount = 300, 0.999
    stay, walk = np.eye(S), 0.5 * (np.roll(np.eye(S), 1, axis=0) + np.roll(np.eye(S), -1, axis=0))
    small = np.random.default_rng(0).random(S)
    model = mmdp.MMDP(
        np.stack([stay, walk])[:, :, None],
        np.stack([np.full(S, 1e12), small])[..., None],
        discount=discount,
        initial=np.eye(S)[0],
    )
    returns = mmdp.evaluate(model, mmdp.policies.StationaryPolicy([0] * S)).returns
    value = np.linalg.solve(np.eye(S) - discount * walk, small)[0]
    assert returns == pytest.approx([1e12 / (1 - discount), value], rel=1e-10)


def make_model_near_discount_one(seed: int, one_minus_discount: float, scale: float) -> mmdp.MMDP:
    """Rewards of this size, of which few differ by much; actions that are all but tied."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(4, 0.3), size=(2, 4, 2))
    r = scale * (1 + 10.0 ** -rng.integers(1, 12, size=(2, 4, 2)) * rng.normal(size=(2, 4, 2)))
    return mmdp.MMDP(p, r, discount=1 - one_minus_discount, initial=[1, 0, 0, 0])


@pytest.mark.parametrize("one_minus_discount", [1e-5, 1e-6])
def test_bounds_and_evpi_near_discount_one(
    one_minus_discount: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdp.core.methods.cadp.COMPARISON_SECONDS", 0)
    for seed in range(6):
        model = make_model_near_discount_one(seed, one_minus_discount, 10.0 ** (3 * seed - 9))
        solution = mmdp.solve(model, INF, mmdp.methods.CADP(n_init=4), backend="numpy")
        assert mmdp.bound(model, INF, "oracle").value >= solution.value
        assert solution.evpi >= 0
        assert (solution.evaluation.regret >= 0).all()
        single_solution = mmdp.solve(model.subset([0]), INF, backend="numpy")
        assert mmdp.bound(model.subset([0]), INF, "qmdp").value >= single_solution.value
        exact_solution = mmdp.solve(model, INF, "exact", backend="numpy")
        assert exact_solution.bound >= max(exact_solution.value, solution.value)


def test_evaluation_is_that_of_a_long_horizon() -> None:
    model = make_model(2)
    policy = mmdp.policies.StationaryPolicy([0, 1, 2, 1, 0])
    evaluation = mmdp.evaluate(model, policy)
    assert np.allclose(
        evaluation.returns, compute_plain_returns(model, policy.to_markov(300)), atol=1e-9
    )
    assert evaluation.provenance is not None
    assert evaluation.provenance.horizon == INF
    assert (evaluation.regret >= -1e-9).all()
    other = make_model(3)
    assert mmdp.evaluate(other, policy).mean == pytest.approx(
        compute_returns_by_power_series(policy.actions[None], other)[0]
    )


def test_a_randomized_policy_is_evaluated_too() -> None:
    model = make_model(2)
    policy = mmdp.policies.StationaryPolicy(probabilities=np.full((5, 3), 1 / 3))
    expected = compute_plain_returns(model, policy.to_markov(300))
    assert np.allclose(mmdp.evaluate(model, policy).returns, expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_rank_one_updates_equal_a_new_factorization(seed: int) -> None:
    model = make_model(seed)
    x = DirectSolver(model.problem)
    update = RankOneUpdate(x, np.zeros(5, dtype=np.int32))
    for s in (3, 0, 4, 1, 2):
        before, changes = x.compute_returns(update.policy), update.compute_changes(s)
        a = int((changes @ model.weights).argmax())
        update.apply_change(s, a)
        assert np.allclose(
            x.compute_returns(update.policy), before + changes[a], rtol=1e-10, atol=1e-12
        )
    assert update.policy.any()
    refactorized = RankOneUpdate(x, update.policy.copy())
    for name in ("F", "v", "d"):
        assert np.allclose(
            getattr(update, name), getattr(refactorized, name), rtol=1e-10, atol=1e-12
        )


# ---------------------------------------------------------------------- the search
def compute_success_rate(seeds: range) -> float:
    n_optimal = 0
    for seed in seeds:
        model = make_model(seed)
        values = compute_returns_by_power_series(enumerate_policies(model), model)
        solution = mmdp.solve(model, INF, backend="numpy")
        assert solution.value <= values.max() + 1e-9
        assert (np.diff(solution.trace) >= -1e-12).all()
        n_optimal += solution.value >= values.max() - 1e-9
        exact_solution = mmdp.solve(model, INF, "exact", backend="numpy")
        assert exact_solution.status is mmdp.Status.OPTIMAL
        assert exact_solution.value == pytest.approx(values.max(), abs=1e-8)
        assert exact_solution.bound >= values.max() - 1e-12
    return n_optimal / len(seeds)


def test_one_call_finds_the_optimum_and_exact_proves_it() -> None:
    assert compute_success_rate(range(10)) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mean", "worst", "cvar:0.5", "regret:worst"])
def test_the_optimum_of_one_model_needs_no_search(objective: str) -> None:
    for seed in range(5):
        model = make_model(seed, M=1)
        solution = mmdp.solve(model, INF, objective=objective)
        best = compute_returns_by_power_series(enumerate_policies(model), model).max()
        value = 0.0 if objective.startswith("regret") else best
        assert solution.value == pytest.approx(value, abs=1e-9)
        assert solution.returns[0] == pytest.approx(best, rel=1e-10)
        assert (solution.status, solution.details["sweep_type"]) == (mmdp.Status.OPTIMAL, "none")
        assert solution.restriction_cost == pytest.approx(0, abs=1e-12)


def test_an_objective_that_is_not_monotone_is_searched_with_one_model_too() -> None:
    def value(returns: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return -np.abs(returns[..., 0])

    for seed in range(5):
        model = make_model(seed, M=1)
        solution = mmdp.solve(model, INF, objective=value)
        best = mmdp.solve(model, INF)  # the largest return is not what is asked for
        assert solution.value == pytest.approx(-abs(solution.returns[0]), abs=1e-12)
        assert solution.value > -abs(best.returns[0]) + 1e-3


def test_one_call_finds_most_optima() -> None:
    assert compute_success_rate(range(n_examples(200))) >= 0.85


@pytest.mark.parametrize(("name", "value"), [("riverswim", 202.83126546), ("hiv", 44815.98065376)])
def test_the_published_models(name: str, value: float) -> None:
    train, test = mmdp.domains.load_published(name)
    solution = mmdp.solve(train, INF, mmdp.methods.CADP(n_init=4))
    assert solution.value >= value - 1e-6
    assert mmdp.solve(train, INF, "exact").status is mmdp.Status.OPTIMAL
    assert solution.details["unrestricted_value"] >= solution.value
    evaluation = mmdp.evaluate(test, solution.policy.to_markov(400), backend="numpy")
    assert mmdp.evaluate(test, solution).mean == pytest.approx(evaluation.mean)


def test_stationarity_cost_is_that_of_a_real_policy() -> None:
    train, _ = mmdp.domains.load_published("riverswim")
    solution = mmdp.solve(train, INF, mmdp.methods.CADP(n_init=1))
    long_value = mmdp.solve(train, 150, mmdp.methods.CADP(n_init=1)).value
    assert solution.details["unrestricted_value"] == pytest.approx(long_value, rel=1e-4)
    assert solution.restriction_cost is not None
    assert solution.restriction_cost / long_value == pytest.approx(0.0054, abs=2e-4)
    assert (
        solution.restriction_cost_text
        == f"being stationary costs {format_number(solution.restriction_cost, 3)}"
    )


def test_stationarity_cost_without_a_long_horizon_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(0).replace(discount=0.99)
    completed = mmdp.solve(model, INF, backend="numpy")
    monkeypatch.setattr("mmdp.core.methods.cadp.COMPARISON_SECONDS", 1e-4)
    shortened = mmdp.solve(model, INF, backend="numpy")
    assert 1 <= shortened.details["comparison_horizon"] < completed.details["comparison_horizon"]
    assert shortened.restriction_cost is not None
    assert completed.restriction_cost is not None
    assert 0 <= shortened.restriction_cost <= completed.restriction_cost + 1e-9
    assert shortened.restriction_cost_text.startswith("being stationary costs ")


def test_many_states_are_searched_by_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmdp.core.kernels.infinite.MAX_MATRIX_BYTES", 0)
    n_optimal = 0
    for seed in range(4):
        model = make_model(seed)
        solution = mmdp.solve(model, INF, mmdp.methods.CADP(n_init=4), backend="numpy")
        best = compute_returns_by_power_series(enumerate_policies(model), model).max()
        assert solution.status is mmdp.Status.COMPLETED
        assert solution.value <= best + 1e-9
        n_optimal += solution.value >= best - 1e-9
    assert n_optimal >= 3
    with pytest.raises(mmdp.InputError, match="solve with cadp"):
        mmdp.solve(make_model(0), INF, "exact")


@pytest.mark.parametrize("objective", ["cvar:0.3", "regret:worst", "var:0.4"])
def test_objectives(objective: str) -> None:
    F, n_optimal = as_objective(objective), 0
    for seed in range(4):
        model = make_model(seed, S=4)
        x = InfiniteHorizon.from_problem(model.problem)
        returns = np.stack([x.compute_returns(policy) for policy in enumerate_policies(model)])
        rho = (
            returns - x.compute_model_optima().values @ model.initial if F.uses_regret else returns
        )
        best = float(F.value(rho, model.weights).max())
        solution = mmdp.solve(model, INF, objective=F, backend="numpy")
        assert solution.value <= best + 1e-9
        assert solution.value == pytest.approx(solution.evaluation.value(F))
        assert mmdp.bound(model, INF, "oracle", objective=F).value >= best - 1e-12
        n_optimal += solution.value >= best - 1e-9
    assert n_optimal >= 3


# ---------------------------------------------------------------------- bounds
@functools.cache
def find_best_known_value(seed: int) -> float:
    model = make_model(seed, S=3, A=2)
    best = compute_returns_by_power_series(enumerate_policies(model), model).max()
    long_value = mmdp.solve(model, 100, backend="numpy").value  # rewards after 100 steps: 3e-5
    return float(max(best, long_value - 1e-3))


@pytest.mark.parametrize("method", ["oracle", "qmdp", "pairs", "best"])
def test_infinite_horizon_bounds_hold(method: str) -> None:
    for seed in range(3):
        model = make_model(seed, S=3, A=2)
        bound = mmdp.bound(model, INF, method, time_limit=0.1, backend="numpy")
        assert bound.value >= find_best_known_value(seed)
    single_model = model.subset([0])
    assert mmdp.bound(single_model, INF, "oracle").value == pytest.approx(
        compute_returns_by_power_series(enumerate_policies(single_model), single_model).max()
    )


def test_a_certificate_bounds_the_restriction_cost() -> None:
    solution = mmdp.solve(make_model(4), INF, certify_time=0.5, backend="numpy")
    assert solution.certificate is not None
    assert solution.certificate.scope == "deterministic stationary"
    assert solution.bound == pytest.approx(solution.value)
    assert solution.certificate.markov_bound is not None
    assert solution.certificate.markov_bound >= solution.details["unrestricted_value"] - 1e-9
    assert re.search(r"being stationary costs .*, at most", repr(solution))


def make_opposed_models(discount: float = 0.99) -> mmdp.MMDP:
    """Two models, each of which wants the other action until it is done."""
    P = np.zeros((2, 2, 2, 2))
    P[[0, 1], 0, [0, 1], 1] = P[[0, 1], 0, [1, 0], 0] = P[:, 1, :, 1] = 1
    return mmdp.MMDP(P, [[-1.0, -1.0], [0.0, 0.0]], initial=[1, 0], discount=discount)


def test_a_proof_is_about_deterministic_policies(tmp_path: Path) -> None:
    model = make_opposed_models()
    solution = mmdp.solve(model, INF, "exact")
    uniform = mmdp.policies.StationaryPolicy(probabilities=np.full((2, 2), 0.5))
    assert solution.value == pytest.approx(-50.5)
    assert mmdp.evaluate(model, uniform).mean == pytest.approx(-1 / (1 - 0.99 / 2))
    assert solution.status_text.startswith(
        "proven optimal: no deterministic stationary policy is better;"
    )
    mmdp.save_policy(solution, tmp_path / "p.json")
    loaded = mmdp.io.load_certificate(tmp_path / "p.json", model)
    assert loaded is not None
    assert loaded.scope == "deterministic stationary"


@pytest.mark.parametrize("seeds", seed_ranges(6, 60))
def test_a_bound_covers_the_policies_in_its_scope(seeds: range) -> None:
    for seed in seeds:
        model = make_opposed_models(0.9) if seed == 0 else make_model(seed, M=3, S=2, A=2)
        offset = [0.0, 1e6][seed % 2]
        model = model.replace(rewards=model.rewards + offset)
        values = compute_returns_by_power_series(enumerate_policies(model), model)
        rng = np.random.default_rng(seed)
        policies = [
            mmdp.policies.StationaryPolicy(probabilities=x) for x in rng.dirichlet([1, 1], (30, 2))
        ]
        best_randomized = max(mmdp.evaluate(model, x).mean for x in policies)
        for method, certify_time in (("exact", None), ("cadp", 0.2)):
            solution = mmdp.solve(model, INF, method, certify_time=certify_time, backend="numpy")
            certificate = solution.certificate
            assert certificate is not None
            deterministic = certificate.scope.startswith("deterministic")
            rounding = 1e-12 * (1 + offset) / (1 - model.discount) ** 2  # of the power series
            assert certificate.value >= values.max() - rounding
            assert deterministic or certificate.value >= best_randomized - rounding
            assert (
                certificate.markov_bound is None
                or certificate.markov_bound >= best_randomized - rounding
            )
            if solution.status is mmdp.Status.OPTIMAL:
                assert solution.value >= values.max() - 1e-5 * np.ptp(values) - rounding


def test_certify_proves_what_exact_proves() -> None:
    model = make_model(3, M=5, S=6, A=3, discount=0.95)
    exact = mmdp.solve(model, INF, "exact", backend="numpy")
    solution = mmdp.solve(model, INF, certify_time=1, backend="numpy")
    assert exact.status is solution.status is mmdp.Status.OPTIMAL
    assert solution.bound == pytest.approx(exact.value, rel=1e-9)
    assert solution.certificate is not None
    assert solution.certificate.scope == "deterministic stationary"


@pytest.mark.parametrize("method", ["exact", "cadp"])
def test_a_model_without_weight_loosens_no_proof(method: str) -> None:
    rng = np.random.default_rng(0)
    P, r = rng.dirichlet(np.full(3, 0.3), size=(3, 3, 3)), rng.normal(size=(3, 3, 3))
    r[2] *= 1e13
    model = mmdp.MMDP(P, r, initial=[1, 0, 0], weights=[0.5, 0.5, 0], discount=0.99)
    solution = mmdp.solve(model, INF, method, certify_time=1, backend="numpy")
    assert solution.status is mmdp.Status.OPTIMAL
    assert solution.gap is not None
    assert solution.gap < 1e-9


def test_limits() -> None:
    stopped = mmdp.solve(make_model(4), INF, time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert isinstance(stopped.policy, mmdp.policies.StationaryPolicy)
    stopped_exact = mmdp.solve(make_model(4), INF, "exact", time_limit=1e-9)
    assert stopped_exact.bound is not None
    assert stopped_exact.bound >= stopped_exact.value


@pytest.mark.parametrize("solver_class", [DirectSolver, InfiniteHorizon])
def test_model_optima_are_bounded_after_any_stop(solver_class: type[InfiniteHorizon]) -> None:
    model = make_model(4, S=8)
    optimum, gaps = DirectSolver(model.problem).compute_model_optima().values, []
    for max_calls in range(50):
        calls = itertools.count()

        def check_time(calls: Iterator[int] = calls, max_calls: int = max_calls) -> None:
            if next(calls) >= max_calls:
                raise TimeUp

        optima = solver_class(model.problem, check_time).compute_model_optima()
        upper = optima.values + optima.error_bound[:, None] - optimum
        assert (upper >= 0).all()
        gaps.append(upper.max())
    assert gaps[0] > 1
    assert gaps[-1] < 1e-11


def test_factorizing_model_by_model_ends_with_the_time() -> None:
    model, calls = make_model(4, M=6), itertools.count(1)

    def check_time() -> None:
        if next(calls) == 3:
            raise TimeUp

    solver = InfiniteHorizon(model.problem, check_time)
    solver.uses_factorization = True
    with pytest.raises(TimeUp):
        solver.compute_values(np.zeros(model.n_states, int))
    assert next(calls) == 4


@pytest.mark.parametrize("limit", [3.0, 20.0])
def test_limits_are_kept_up_to_a_pass(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a factorisation, a change of a state or a pass takes a second."""
    now = [0.0]

    def perf_counter() -> float:
        now[0] += 1e-3
        return now[0]

    fake = types.SimpleNamespace(perf_counter=perf_counter)
    monkeypatch.setattr("mmdp.core.timing.time", fake)

    def slow_down(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def run_for_a_second(*args: Any, **options: Any) -> Any:
            now[0] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, run_for_a_second)

    model = make_model(4, S=4, discount=0.95)
    best = compute_returns_by_power_series(enumerate_policies(model), model).max()
    for owner, name in (
        (DirectSolver, "solve_linear"),
        (DirectSolver, "compute_inverse"),
        (RankOneUpdate, "compute_changes"),
    ):
        slow_down(owner, name)
    slow_down(Passes, "backward")
    for method in ("cadp", "exact"):
        now[0] = 0.0
        solution = mmdp.solve(model, INF, method, time_limit=limit, backend="numpy")
        assert solution.status is mmdp.Status.TIME_LIMIT
        assert now[0] <= limit + 4  # a start, its values, its returns and those of the solution
        assert solution.bound is None or solution.bound >= best
    now[0] = 0.0
    assert mmdp.bound(model, INF, "pairs", time_limit=limit, backend="numpy").value >= best
    assert now[0] <= limit + 4


def test_options() -> None:
    model = make_model(4)
    best = mmdp.solve(model, INF)
    resumed = mmdp.solve(model, INF, mmdp.methods.CADP(init=best.policy, n_init=1))
    assert resumed.policy == best.policy
    assert resumed.iterations == 1
    assert (
        mmdp.solve(model, INF, mmdp.methods.CADP(init="random", n_init=5)).value
        <= best.value + 1e-9
    )
    with pytest.raises(mmdp.InputError, match="no init is called .mirror.; choose wsu"):
        mmdp.solve(model, INF, mmdp.methods.CADP(init="mirror"))


# ---------------------------------------------------------------------- what is refused
VARYING = mmdp.MMDP(np.full((4, 2, 3, 2, 3), 1 / 3), np.ones((4, 2, 3, 2)), discount=0.9)


@pytest.mark.parametrize(
    ("model", "horizon", "message"),
    [
        (VARYING, INF, "varies over 4 time steps, so it has no infinite horizon; pass horizon=4"),
        (VARYING.replace(discount=1.0), INF, "varies over 4"),
        (make_model(0, discount=1.0), INF, "infinite horizon needs episodes that end"),
    ],
)
def test_refused_by_solve(model: mmdp.MMDP, horizon: float, message: str) -> None:
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(model, horizon, policy_class="stationary")
    assert message in str(error.value)
    if horizon == INF:
        with pytest.raises(mmdp.InputError):
            mmdp.bound(model, INF)
        with pytest.raises(mmdp.InputError):
            mmdp.evaluate(model, mmdp.policies.StationaryPolicy([0] * model.n_states))


def test_refused_elsewhere() -> None:
    model = make_model(0)
    solution = mmdp.solve(model, INF)
    for call in (
        lambda: mmdp.report.write(model, "x.html", policy=solution),
        lambda: mmdp.measures.policy_table(model, solution),
        lambda: mmdp.measures.policy_gradient(model, solution.policy),
        lambda: mmdp.measures.model_weights(model, solution.policy),
    ):
        with pytest.raises(mmdp.InputError, match="stationary.*over|stationary; pass horizon"):
            call()
    with pytest.raises(
        mmdp.InputError, match="it plans backwards from a last decision; choose method='cadp'"
    ):
        mmdp.solve(model, INF, "wsu")
    assert mmdp.solve(model, INF, "oracle").value >= solution.value
    assert InfiniteHorizon.from_problem(model.problem).compute_model_optima().actions.shape == (
        6,
        5,
    )


@pytest.mark.parametrize("solver_class", [DirectSolver, InfiniteHorizon])
@pytest.mark.parametrize("seed", range(3))
def test_the_unit_of_rewards_does_not_matter(
    solver_class: type[InfiniteHorizon], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InfiniteHorizon, "from_problem", staticmethod(solver_class))
    model = make_model(seed)
    small = mmdp.MMDP(
        model.transitions,
        model.rewards * 2.0**-43,
        discount=model.discount,
        initial=model.initial,
        weights=model.weights,
    )
    one, other = (
        mmdp.solve(x, INF, mmdp.methods.CADP(init="mvp", n_init=4)) for x in (model, small)
    )
    assert other.value * 2.0**43 == pytest.approx(one.value, rel=1e-9)


def test_an_init_that_is_not_stationary_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match=r"covers \d+ time steps, the horizon is inf"):
        mmdp.solve(
            make_model(0), INF, mmdp.methods.CADP(init=mmdp.policies.MarkovPolicy([[0] * 5]))
        )


@pytest.mark.parametrize("seed", range(4))
def test_mvp_is_optimal_for_the_mean_model(seed: int) -> None:
    model = make_random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, discount=0.9)
    solution, mean = mmdp.solve(model, math.inf, "mvp"), model.mean_model()
    rows = itertools.product(*(np.flatnonzero(x) for x in model.allowed))
    best = max(
        mmdp.evaluate(mean, mmdp.policies.StationaryPolicy(x, n_actions=2)).mean for x in rows
    )
    policy = mmdp.policies.StationaryPolicy(solution.policy.actions, n_actions=2)
    assert math.isclose(mmdp.evaluate(mean, policy).mean, best, rel_tol=1e-9, abs_tol=1e-12)
    np.testing.assert_allclose(solution.returns, mmdp.evaluate(model, policy).returns, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_discount_near_one_finds_the_largest_average_reward(seed: int) -> None:
    """Every stationary policy of models that mix; gains by their stationary distributions."""
    rng, s = np.random.default_rng(seed), np.arange(3)
    P, r = rng.dirichlet(np.ones(3), (3, 3, 2)), rng.normal(size=(3, 3, 2))
    weights = rng.dirichlet(np.ones(3))

    def compute_average_reward(pi: Any) -> float:
        total = 0.0
        for m in range(3):
            flow = np.vstack([P[m, s, pi].T - np.eye(3), np.ones(3)])
            occupancy = np.linalg.lstsq(flow, [0, 0, 0, 1], rcond=None)[0]
            total += weights[m] * (occupancy @ r[m, s, pi])
        return total

    best = max(compute_average_reward(np.array(pi)) for pi in itertools.product(range(2), repeat=3))
    model = mmdp.MMDP(P, r, weights=weights, discount=1 - 1e-6)
    solution = mmdp.solve(model, math.inf, "exact")
    assert solution.status is mmdp.Status.OPTIMAL
    assert compute_average_reward(solution.policy.actions) == pytest.approx(best, abs=1e-5)
    assert 1e-6 * solution.value == pytest.approx(best, abs=1e-5)
    with pytest.raises(mmdp.InputError, match="about the average reward per step"):
        mmdp.solve(model.replace(discount=1.0), math.inf)
