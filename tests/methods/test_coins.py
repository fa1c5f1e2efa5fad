"""Policies that draw their actions: closed forms, linear programs, enumeration, bounds, words."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import mmdp
from mmdp import kernels, report
from mmdp.objective import as_objective
from mmdp.search import coins
from mmdp.search.context import Context
from tests.instances import door, drawn

INF = math.inf
RULE, TABLE = mmdp.Stationary(randomised=True), mmdp.Markov(randomised=True)


def instance(seed: int) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    M, S, A = int(rng.integers(2, 7)), 3, 2
    return mmdp.MMDP(
        rng.dirichlet(np.full(S, 0.3), size=(M, S, A)), rng.normal(size=(M, S, A)), discount=0.9,
        initial=rng.dirichlet(np.ones(S)), weights=rng.dirichlet(np.ones(M)),
    )  # fmt: skip


def returns(model: mmdp.MMDP, table: np.ndarray, steps: int = 400) -> np.ndarray:
    """(M,) by following mu over time; the table is (S, A), or (T, S, A) for T steps."""
    tables = np.broadcast_to(table, (steps, *table.shape)) if table.ndim == 2 else table
    mu = np.broadcast_to(model.initial, (model.n_models, model.n_states))
    total = np.zeros(model.n_models)
    for t, pi in enumerate(tables):
        there = mu[:, :, None] * pi
        total += model.discount**t * np.einsum("msa,msa->m", there, model.rewards)
        mu = np.einsum("msa,msaz->mz", there, model.transitions)
    return total


def rows(model: mmdp.MMDP) -> np.ndarray:
    """(N, S, A) all rules that draw nothing."""
    choices = itertools.product(range(model.n_actions), repeat=model.n_states)
    return np.eye(model.n_actions)[np.array(list(choices))]


# ---------------------------------------------------------------------- the best value
def test_two_models_that_need_opposite_actions() -> None:
    """An even coin leaves at each step with probability 1/2: cost 1 / (1 - .99 / 2)."""
    model = door()
    sharp, found = mmdp.solve(model, INF), mmdp.solve(model, INF, policy=RULE)
    assert sharp.value == pytest.approx(-50.5)
    assert found.value == pytest.approx(-1 / (1 - 0.99 / 2), rel=1e-12)
    assert isinstance(found.policy, mmdp.StationaryPolicy)
    np.testing.assert_allclose(found.policy.probabilities[0], [0.5, 0.5], atol=1e-6)
    assert found.details["tossing"] == pytest.approx(found.value - sharp.value)
    words = "drawing actions at random earns 48.5, in 1 of 2 states: in ("
    assert found.tossing_text.startswith(words)
    assert words in repr(found)
    assert found.price_text == "being stationary costs 0.485"  # left, then right: -1.495
    assert sharp.tossing_text == ""


def test_over_a_number_of_decisions_and_for_the_worst_case() -> None:
    model = door()
    daily = mmdp.solve(model, 50, policy=RULE, backend="numpy")
    cost = (1 - (0.99 / 2) ** 50) / (1 - 0.99 / 2)
    assert daily.value == pytest.approx(-cost, rel=1e-9)
    assert "in 1 of 2 states" in daily.tossing_text
    assert (daily.policy.table == daily.policy.table[0]).all()
    # left with probability x, then right, then left: 1 + (1 - x)(g + g^2) and 1 + x g are equal
    free = mmdp.solve(model, 8, objective="worst", policy=TABLE, backend="numpy")
    g = 0.99
    x = (g + g * g) / (2 * g + g * g)
    assert free.value == pytest.approx(-(1 + x * g), rel=1e-6)
    assert "in 1 of 16 times and states: in at time 0 (" in free.tossing_text


@pytest.mark.parametrize("objective", ["worst", "cvar:0.3", "regret:worst"])
def test_one_decision_is_a_matrix_game(objective: str) -> None:
    """max over shares of the actions of a minimum over weights of the models: a linear program."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        M, A, w = 5, 4, rng.dirichlet(np.ones(5))
        r = rng.normal(size=(M, A))
        model = mmdp.MMDP(np.ones((M, 1, A, 1)), r[:, None], weights=w)
        R = r - r.max(axis=1, keepdims=True) if "regret" in objective else r
        alpha = 0.3 if "cvar" in objective else 1e-9
        # variables: shares (A,), z, shortfalls u (M,); CVaR = z - w u / alpha, u >= z - R x
        c = np.concatenate([np.zeros(A), [-1.0], w / alpha])
        G = np.hstack([-R, np.ones((M, 1)), -np.eye(M)])
        best = linprog(
            c, G, np.zeros(M), [[1.0] * A + [0.0] * (M + 1)], [1.0],
            [(0, None)] * A + [(None, None)] + [(0, None)] * M,
        )  # fmt: skip
        found = mmdp.solve(model, 1, objective=objective, policy=TABLE)
        assert found.value == pytest.approx(-best.fun, abs=1e-9)
        F = as_objective(objective)
        assert found.value == pytest.approx(float(F.value(R @ found.policy.probabilities[0, 0], w)))


@pytest.mark.parametrize("seed", range(2))
def test_rules_are_never_below_the_best_that_draws_nothing_nor_above_a_bound(seed: int) -> None:
    model = instance(seed)
    sharp = np.array([returns(model, row) for row in rows(model)])
    for objective in ("mean", "worst"):
        F = as_objective(objective)
        found = mmdp.solve(model, INF, objective=objective, policy=RULE, certify=0.1)
        best = F.value(sharp, model.weights).max()
        own = returns(model, found.policy.probabilities)
        assert found.value == pytest.approx(float(F.value(own, model.weights)), abs=1e-9)
        assert found.value >= best - 1e-9
        assert found.details["tossing"] == pytest.approx(found.value - best, abs=1e-9)
        assert found.certificate.bounds in ("markov", "history")
        rng = np.random.default_rng(seed)
        others = [returns(model, rng.dirichlet([0.4, 0.4], size=3)) for _ in range(20)]
        assert found.bound >= max(found.value, F.value(np.array(others), model.weights).max())


def test_a_local_search_over_probabilities_finds_nothing_better() -> None:
    """From the solution no other shares in one state, and no mixture with a random rule, gain."""
    model = instance(3)
    found = mmdp.solve(model, INF, policy=RULE)
    table, w = found.policy.probabilities, model.weights
    assert len(found.policy.drawn_at) > 0
    rng = np.random.default_rng(0)
    for s, x in itertools.product(range(3), np.linspace(0, 1, 21)):
        other = table.copy()
        other[s] = [x, 1 - x]
        assert returns(model, other) @ w <= found.value + 1e-7
    for step in (0.001, 0.01, 0.1):
        other = (1 - step) * table + step * rng.dirichlet([1, 1], size=3)
        assert returns(model, other) @ w <= found.value + 1e-7


def test_every_objective_and_models_that_change() -> None:
    model, goals = drawn(1), ["worst", "var:0.5", lambda rho, w: np.tanh(rho) @ w]
    for objective, kind in itertools.product(goals, (RULE, TABLE)):
        plain = mmdp.Markov() if kind is TABLE else mmdp.Stationary()
        sharp = mmdp.solve(model, 3, objective=objective, policy=plain)
        found = mmdp.solve(model, 3, objective=objective, policy=kind)
        assert found.value >= sharp.value - 1e-12
        assert found.value == pytest.approx(mmdp.evaluate(found, model).value(objective))


def test_the_mean_of_tables_gains_nothing_and_says_so() -> None:
    found = mmdp.solve(instance(0), 4, policy=TABLE)
    assert found.policy.deterministic
    assert found.value == mmdp.solve(instance(0), 4).value
    assert found.tossing_text == "drawing actions at random earns nothing"
    with pytest.raises(mmdp.InputError, match="one action in each state.*choose method='cadp'"):
        mmdp.solve(instance(0), INF, "exact", policy=RULE)


# ---------------------------------------------------------------------- slopes
@pytest.mark.parametrize(("kind", "horizon"), [(TABLE, 3), (RULE, 3), (RULE, INF)])
@pytest.mark.parametrize("objective", ["mean", "entropic:0.5", "var:0.5"])
def test_slopes_are_differences(kind: Any, horizon: float, objective: str) -> None:
    model, F = instance(2), as_objective(objective)
    asked, steps = kind.over(horizon), 3
    context = Context(model, steps, kernels.get("numpy"), kind=asked, objective=F)
    ground, rng = coins._ground(context), np.random.default_rng(1)
    policy = rng.dirichlet([2, 2], size=ground.allowed.shape[:-1])
    goal = coins.Blurred(context, 1e-6 if objective == "var:0.5" else 0.0)
    rho, J, _ = ground.slopes(policy)
    w = (
        goal.weights(rho)
        if objective != "entropic:0.5"
        else model.weights * F.tilt(rho, model.weights)
    )
    np.testing.assert_allclose(
        rho, returns(model, ground.table(policy), 3 if horizon == 3 else 400)
    )
    turn = rng.normal(size=policy.shape[:-1])[..., None] * [1, -1]  # shares still add up to 1
    up, down = (F.value(ground.returns(policy + e * turn), model.weights) for e in (1e-6, -1e-6))
    assert ((J @ w) * turn).sum() == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-8)


# ---------------------------------------------------------------------- the same rule for T steps
@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_a_rule_over_a_number_of_decisions_is_the_best_of_all(objective: str) -> None:
    for seed in range(2):
        model, F = instance(seed), as_objective(objective)
        values = [float(F.value(returns(model, row, 7), model.weights)) for row in rows(model)]
        found = mmdp.solve(model, 7, objective=objective, policy="stationary", certify=0.1)
        assert (found.policy.actions == found.policy.actions[0]).all()
        assert found.value == pytest.approx(max(values))
        assert found.bound >= found.value
        free = mmdp.solve(model, 7, objective=objective).value
        assert found.price >= free - found.value - 1e-9
        many = mmdp.search.rules.EACH
        mmdp.search.rules.EACH = 0  # by the gradient alone
        try:
            less = mmdp.solve(model, 7, objective=objective, policy="stationary")
        finally:
            mmdp.search.rules.EACH = many
        assert less.value <= found.value + 1e-12
        assert less.status is mmdp.Status.COMPLETED


# ---------------------------------------------------------------------- what is done with them
def test_kept_shown_and_exported(tmp_path: Path) -> None:
    model, file = door(), tmp_path / "best.json"
    found = mmdp.solve(model, INF, policy=RULE, checkpoint=file)
    assert mmdp.evaluate(mmdp.load_policy(file), model).mean == pytest.approx(found.value)
    again = mmdp.solve(model, INF, policy=RULE, checkpoint=file)
    assert again.value >= found.value - 1e-12
    with pytest.raises(mmdp.InputError, match="the checkpoint of another problem"):
        mmdp.solve(model, INF, checkpoint=file)
    daily = mmdp.solve(model, 20, policy=RULE, backend="numpy")
    page = report.write(
        model, tmp_path / "page.html", horizon=20, policy=daily, methods=["wsu"], resamples=0,
        information=False, enough=False, memory=0, frontier=False,
    )  # fmt: skip
    assert "each state, drawing actions at random earns" in page.read_text(encoding="utf-8")
    mmdp.export(found, tmp_path / "rule.py", model=model)
    space: dict[str, Any] = {}
    exec((tmp_path / "rule.py").read_text(encoding="utf-8"), space)
    assert "0.5" in (tmp_path / "rule.py").read_text(encoding="utf-8")


def test_a_time_limit_returns_the_best_so_far() -> None:
    found = mmdp.solve(door(), INF, policy=RULE, time_limit=1e-6)
    assert found.status is mmdp.Status.TIME_LIMIT
    assert found.value >= -100
