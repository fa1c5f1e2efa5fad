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
from mmdp.core import kernels
from mmdp.core.objectives import as_objective
from mmdp.core.search.context import SolveContext
from mmdp.core.search.gradient import SmoothedObjective
from mmdp.insight import report
from tests.instances import make_door_model, make_switching_model

INF = math.inf
STATIONARY, MARKOV = (
    mmdp.policies.Stationary(randomized=True),
    mmdp.policies.Markov(randomized=True),
)


def make_model(seed: int) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    M, S, A = int(rng.integers(2, 7)), 3, 2
    return mmdp.MMDP(
        rng.dirichlet(np.full(S, 0.3), size=(M, S, A)),
        rng.normal(size=(M, S, A)),
        discount=0.9,
        initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.ones(M)),
    )


def compute_returns(model: mmdp.MMDP, table: np.ndarray, n_steps: int = 400) -> np.ndarray:
    """(M,) by following mu over time; the table is (S, A), or (T, S, A) for T steps."""
    tables = np.broadcast_to(table, (n_steps, *table.shape)) if table.ndim == 2 else table
    mu = np.broadcast_to(model.initial, (model.n_models, model.n_states))
    total = np.zeros(model.n_models)
    for t, pi in enumerate(tables):
        joint = mu[:, :, None] * pi
        total += model.discount**t * np.einsum("msa,msa->m", joint, model.rewards)
        mu = np.einsum("msa,msaz->mz", joint, model.transitions)
    return total


def list_deterministic_policies(model: mmdp.MMDP) -> np.ndarray:
    """(N, S, A) all rules that draw nothing."""
    choices = itertools.product(range(model.n_actions), repeat=model.n_states)
    return np.eye(model.n_actions)[np.array(list(choices))]


# ---------------------------------------------------------------------- the best value
def test_two_models_that_need_opposite_actions() -> None:
    """An even coin leaves at each step with probability 1/2: cost 1 / (1 - .99 / 2)."""
    model = make_door_model()
    deterministic, solution = (
        mmdp.solve(model, INF),
        mmdp.solve(model, INF, policy_class=STATIONARY),
    )
    assert deterministic.value == pytest.approx(-50.5)
    assert solution.value == pytest.approx(-1 / (1 - 0.99 / 2), rel=1e-12)
    assert isinstance(solution.policy, mmdp.policies.StationaryPolicy)
    np.testing.assert_allclose(solution.policy.probabilities[0], [0.5, 0.5], atol=1e-6)
    assert solution.details["randomization_gain"] == pytest.approx(
        solution.value - deterministic.value
    )
    text = "drawing actions at random earns 48.5, in 1 of 2 states: in ("
    assert solution.randomization_text.startswith(text)
    assert text in repr(solution)
    assert (
        solution.restriction_cost_text == "being stationary costs 0.485"
    )  # left, then right: -1.495
    assert deterministic.randomization_text == ""


def test_finite_horizon_and_worst_case() -> None:
    model = make_door_model()
    repeated = mmdp.solve(model, 50, policy_class=STATIONARY, backend="numpy")
    cost = (1 - (0.99 / 2) ** 50) / (1 - 0.99 / 2)
    assert repeated.value == pytest.approx(-cost, rel=1e-9)
    assert "in 1 of 2 states" in repeated.randomization_text
    assert (repeated.policy.table == repeated.policy.table[0]).all()
    # left with probability x, then right, then left: 1 + (1 - x)(g + g^2) and 1 + x g are equal
    markov = mmdp.solve(model, 8, objective="worst", policy_class=MARKOV, backend="numpy")
    g = 0.99
    x = (g + g * g) / (2 * g + g * g)
    assert markov.value == pytest.approx(-(1 + x * g), rel=1e-6)
    assert "in 1 of 16 times and states: in at time 0 (" in markov.randomization_text


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
            c,
            G,
            np.zeros(M),
            [[1.0] * A + [0.0] * (M + 1)],
            [1.0],
            [(0, None)] * A + [(None, None)] + [(0, None)] * M,
        )
        solution = mmdp.solve(model, 1, objective=objective, policy_class=MARKOV)
        assert solution.value == pytest.approx(-best.fun, abs=1e-9)
        F = as_objective(objective)
        assert solution.value == pytest.approx(
            float(F.value(R @ solution.policy.probabilities[0, 0], w))
        )


@pytest.mark.parametrize("seed", range(2))
def test_values_lie_between_deterministic_best_and_bound(seed: int) -> None:
    model = make_model(seed)
    deterministic_returns = np.array(
        [compute_returns(model, row) for row in list_deterministic_policies(model)]
    )
    for objective in ("mean", "worst"):
        F = as_objective(objective)
        solution = mmdp.solve(
            model, INF, objective=objective, policy_class=STATIONARY, certify_time=0.1
        )
        best = F.value(deterministic_returns, model.weights).max()
        solution_returns = compute_returns(model, solution.policy.probabilities)
        assert solution.value == pytest.approx(
            float(F.value(solution_returns, model.weights)), abs=1e-9
        )
        assert solution.value >= best - 1e-9
        assert solution.details["randomization_gain"] == pytest.approx(
            solution.value - best, abs=1e-9
        )
        assert solution.certificate.scope in ("markov", "history")
        rng = np.random.default_rng(seed)
        random_returns = [
            compute_returns(model, rng.dirichlet([0.4, 0.4], size=3)) for _ in range(20)
        ]
        assert solution.bound >= max(
            solution.value, F.value(np.array(random_returns), model.weights).max()
        )


def test_a_local_search_over_probabilities_finds_nothing_better() -> None:
    """From the solution no other shares in one state, and no mixture with a random rule, gain."""
    model = make_model(3)
    solution = mmdp.solve(model, INF, policy_class=STATIONARY)
    table, w = solution.policy.probabilities, model.weights
    assert len(solution.policy.randomized_cells) > 0
    rng = np.random.default_rng(0)
    for s, x in itertools.product(range(3), np.linspace(0, 1, 21)):
        other = table.copy()
        other[s] = [x, 1 - x]
        assert compute_returns(model, other) @ w <= solution.value + 1e-7
    for step in (0.001, 0.01, 0.1):
        other = (1 - step) * table + step * rng.dirichlet([1, 1], size=3)
        assert compute_returns(model, other) @ w <= solution.value + 1e-7


def test_every_objective_and_switching_models() -> None:
    model, objectives = (
        make_switching_model(1),
        ["worst", "var:0.5", lambda rho, w: np.tanh(rho) @ w],
    )
    for objective, policy_class in itertools.product(objectives, (STATIONARY, MARKOV)):
        deterministic_class = (
            mmdp.policies.Markov() if policy_class is MARKOV else mmdp.policies.Stationary()
        )
        deterministic = mmdp.solve(model, 3, objective=objective, policy_class=deterministic_class)
        solution = mmdp.solve(model, 3, objective=objective, policy_class=policy_class)
        assert solution.value >= deterministic.value - 1e-12
        assert solution.value == pytest.approx(mmdp.evaluate(model, solution).value(objective))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("policy_class", "horizon"), [(STATIONARY, INF), (MARKOV, 3)])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_models_that_return_the_same(
    policy_class: mmdp.policies.PolicyClass, horizon: float, scale: float
) -> None:
    first = make_model(0).subset([0])
    P, r = (np.repeat(x, 2, axis=0) for x in (first.transitions, scale * first.rewards))
    twins = mmdp.MMDP(P, r, discount=first.discount, initial=first.initial)
    solution = mmdp.solve(twins, horizon, objective="var:0.5", policy_class=policy_class)
    optimum = mmdp.solve(first.replace(rewards=scale * first.rewards), horizon).value
    assert solution.value == pytest.approx(optimum)


def test_markov_mean_gains_nothing_by_randomizing() -> None:
    solution = mmdp.solve(make_model(0), 4, policy_class=MARKOV)
    assert solution.policy.is_deterministic
    assert solution.value == pytest.approx(mmdp.solve(make_model(0), 4).value, rel=1e-12)
    assert solution.randomization_text == "drawing actions at random earns nothing"
    with pytest.raises(mmdp.InputError, match="one action in each state.*choose method='cadp'"):
        mmdp.solve(make_model(0), INF, "exact", policy_class=STATIONARY)


# ---------------------------------------------------------------------- slopes
@pytest.mark.parametrize(
    ("policy_class", "horizon"), [(MARKOV, 3), (STATIONARY, 3), (STATIONARY, INF)]
)
@pytest.mark.parametrize("objective", ["mean", "entropic:0.5", "var:0.5"])
def test_gradients_equal_central_differences(
    policy_class: Any, horizon: float, objective: str
) -> None:
    model, F = make_model(2), as_objective(objective)
    class_for_horizon, n_steps = policy_class.for_horizon(horizon), 3
    context = SolveContext(
        model, n_steps, kernels.get_backend("numpy"), policy_class=class_for_horizon, objective=F
    )
    evaluator, rng = context.evaluator, np.random.default_rng(1)
    policy = rng.dirichlet([2, 2], size=evaluator.allowed.shape[:-1])
    smoothed = SmoothedObjective(context, 1e-6 if objective == "var:0.5" else 0.0)
    rho, J, _ = evaluator.compute_jacobian(policy)
    w = (
        smoothed.compute_weights(rho)
        if objective == "var:0.5"
        else model.weights * F.dual_density(rho, model.weights)
    )
    if objective == "mean":
        gradient = evaluator.compute_gradient(policy).discounted
        centered = gradient - (policy * gradient).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(centered - (J @ w), 0, atol=1e-9)
    np.testing.assert_allclose(
        rho, compute_returns(model, evaluator.to_table(policy), 3 if horizon == 3 else 400)
    )
    direction = rng.normal(size=policy.shape[:-1])[..., None] * [1, -1]  # shares still add up to 1
    up, down = (
        F.value(evaluator.compute_returns(policy + e * direction), model.weights)
        for e in (1e-6, -1e-6)
    )
    assert ((J @ w) * direction).sum() == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-8)


# ---------------------------------------------------------------------- the same rule for T steps
@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_repeated_policies_are_the_best_of_all(objective: str) -> None:
    for seed in range(2):
        model, F = make_model(seed), as_objective(objective)
        values = [
            float(F.value(compute_returns(model, row, 7), model.weights))
            for row in list_deterministic_policies(model)
        ]
        solution = mmdp.solve(
            model, 7, objective=objective, policy_class="stationary", certify_time=0.1
        )
        assert (solution.policy.actions == solution.policy.actions[0]).all()
        assert solution.value == pytest.approx(max(values))
        assert solution.bound >= solution.value
        markov_value = mmdp.solve(model, 7, objective=objective).value
        assert solution.restriction_cost >= markov_value - solution.value - 1e-9
        original = mmdp.core.search.spaces.MAX_EXHAUSTIVE
        mmdp.core.search.spaces.MAX_EXHAUSTIVE = 0  # by the gradient alone
        try:
            by_gradient = mmdp.solve(model, 7, objective=objective, policy_class="stationary")
        finally:
            mmdp.core.search.spaces.MAX_EXHAUSTIVE = original
        assert by_gradient.value <= solution.value + 1e-12
        assert by_gradient.status is mmdp.Status.COMPLETED


# ---------------------------------------------------------------------- what is done with them
def test_checkpoint_report_and_export(tmp_path: Path) -> None:
    model, file = make_door_model(), tmp_path / "best.json"
    solution = mmdp.solve(model, INF, policy_class=STATIONARY, checkpoint=file)
    assert mmdp.evaluate(model, mmdp.load_policy(file)).mean == pytest.approx(solution.value)
    resumed = mmdp.solve(model, INF, policy_class=STATIONARY, checkpoint=file)
    assert resumed.value >= solution.value - 1e-12
    with pytest.raises(mmdp.InputError, match="the checkpoint of another problem"):
        mmdp.solve(model, INF, checkpoint=file)
    repeated = mmdp.solve(model, 20, policy_class=STATIONARY, backend="numpy")
    page = report.write(
        model,
        tmp_path / "page.html",
        horizon=20,
        policy=repeated,
        methods=["wsu"],
        n_resamples=0,
        voi=False,
        sample_size=False,
        max_nodes=0,
        frontier=False,
    )
    assert "each state, drawing actions at random earns" in page.read_text(encoding="utf-8")
    mmdp.export(solution, tmp_path / "rule.py", model=model)
    namespace: dict[str, Any] = {}
    exec((tmp_path / "rule.py").read_text(encoding="utf-8"), namespace)
    assert "0.5" in (tmp_path / "rule.py").read_text(encoding="utf-8")


def test_a_time_limit_returns_the_best_so_far() -> None:
    solution = mmdp.solve(make_door_model(), INF, policy_class=STATIONARY, time_limit=1e-6)
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert solution.value >= -100
