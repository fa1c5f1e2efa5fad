"""Policies over state and belief, against walks through all histories."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.methods.belief_grid import SimplexGrid
from mmdp.core.testing import (
    find_best_history_value,
    make_random_model,
    make_switching,
    with_model_initials,
)
from mmdp.data.posterior import weights_by_step
from mmdp.insight import plots
from tests.cli.calls import run, run_refused
from tests.instances import make_infinite_model

T = 3


def make_case(seed: int) -> mmdp.MMDP:
    """Two to four models: masks, times, skewed weights; some change, some begin apart."""
    model = make_random_model(
        seed,
        n_models=2 + seed % 3,
        n_states=3,
        n_actions=2 + seed % 2,
        horizon=T if seed % 4 == 1 else 0,
    )
    if seed % 4 == 2:
        return make_switching(model, seed)
    return with_model_initials(model, seed) if seed % 4 == 3 else model


def get_arrays_at(model: mmdp.MMDP, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, S, A, S') and (M, S, A) at t."""
    P, r = model.transitions, model.rewards
    return (P[t], r[t]) if model.horizon is not None else (P, r)


def get_initial_joint(model: mmdp.MMDP) -> np.ndarray:
    """(M, S) the probability of each model and first state."""
    return model.weights[:, None] * np.broadcast_to(model.initial, (model.n_models, model.n_states))


def find_best_q(
    model: mmdp.MMDP, t: int, s: int, joint: np.ndarray, horizon: int = T
) -> np.ndarray:
    """(A,) the most that is left after each action, joint (M,): model and history."""
    q = np.full(model.n_actions, -np.inf)
    P, r = get_arrays_at(model, t)
    for a in np.flatnonzero(model.allowed[s]):
        q[a] = joint @ r[:, s, a]
        for z in range(model.n_states):
            next_joint = (joint * P[:, s, a, z]) @ model.model_transitions
            if next_joint.any():
                is_last = t + 1 == horizon
                future = (
                    next_joint @ model.terminal[:, z]
                    if is_last
                    else max(find_best_q(model, t + 1, z, next_joint, horizon))
                )
                q[a] += model.discount * future
    return q


def compute_returns_by_histories(policy: Any, model: mmdp.MMDP) -> np.ndarray:
    """(M,) the return by the model at the start, over all histories; without changes of models."""
    total = np.zeros(model.n_models)

    def expand(t: int, s: int, memory: Any, probs: np.ndarray) -> None:
        if t == T:
            total[:] += probs * model.discount**t * model.terminal[:, s]
            return
        a = policy.act(memory, t, s)
        P, r = get_arrays_at(model, t)
        total[:] += probs * model.discount**t * r[:, s, a]
        for z in range(model.n_states):
            next_probs = probs * P[:, s, a, z]
            if next_probs.any():
                expand(t + 1, z, policy.update(memory, t, s, a, z), next_probs)

    for s, probs in enumerate(np.broadcast_to(model.initial, (model.n_models, model.n_states)).T):
        if probs.any():
            expand(0, s, policy.initial_memory(), probs)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_history_optimum_lies_between_value_and_bound(seed: int) -> None:
    model = make_case(seed)
    solution = mmdp.solve(model, T, mmdp.methods.BeliefGrid(max_points=120))
    exact = sum(
        max(find_best_q(model, 0, s, b))
        for s, b in enumerate(get_initial_joint(model).T)
        if b.any()
    )
    slack = 1e-9 * abs(exact)
    assert solution.value <= exact + slack
    assert solution.bound >= exact - slack
    assert solution.bound - exact <= 0.05 * abs(exact) + 0.05
    assert exact - solution.value <= 0.01 * abs(exact)
    assert (solution.certificate.scope, solution.evaluation.standard_errors) == ("history", None)
    if not model.is_switching:
        assert math.isclose(exact, find_best_history_value(model, T), rel_tol=1e-9)
        np.testing.assert_allclose(
            solution.returns, compute_returns_by_histories(solution.policy, model), rtol=1e-9
        )


@pytest.mark.parametrize(("seed", "discount"), [(0, 0.5), (1, 0.5), (2, 1.0)])
def test_infinite_horizon_optimum_lies_between_value_and_bound(seed: int, discount: float) -> None:
    """The best over six decisions, before a rule is followed or the model becomes known."""
    model = make_infinite_model(seed, discount)
    solution = mmdp.solve(model, math.inf, mmdp.methods.BeliefGrid(max_points=60))
    stationary, eye = mmdp.solve(model, math.inf).policy, np.eye(model.n_states)
    lower, upper = np.zeros((2, 2, model.n_states))
    for s in range(model.n_states):
        started_in_s = model.replace(initial=eye[s])
        lower[:, s] = mmdp.evaluate(started_in_s, stationary).returns
        upper[:, s] = mmdp.solve(started_in_s, math.inf, "oracle").returns

    def find_best_value(terminal: np.ndarray) -> float:
        truncated, initial_joint = model.replace(terminal=terminal), get_initial_joint(model).T
        return sum(
            max(find_best_q(truncated, 0, s, b, 6)) for s, b in enumerate(initial_joint) if b.any()
        )

    slack = 1e-9
    assert solution.value <= find_best_value(upper) + slack
    assert solution.bound >= find_best_value(lower) - slack
    assert find_best_value(lower) - solution.value <= 0.01
    assert solution.bound - find_best_value(upper) <= 0.01
    assert solution.certificate.scope == "history"
    v, (actions, node_transitions, initial_nodes) = (
        np.zeros((2, model.n_states, 61)),
        solution.policy.controller,
    )
    for _ in range(80):
        v = np.array(
            [
                [
                    [
                        model.rewards[m, s, a]
                        + discount
                        * sum(
                            model.transitions[m, s, a, z] * v[m, z, node_transitions[0, s, n, z]]
                            for z in range(model.n_states)
                        )
                        for n, a in enumerate(actions[0, s])
                    ]
                    for s in range(model.n_states)
                ]
                for m in range(2)
            ]
        )
    expected = v[:, np.arange(model.n_states), initial_nodes] @ model.initial
    np.testing.assert_allclose(solution.returns, expected, rtol=1e-9)


def test_infinite_horizon_equals_a_long_horizon() -> None:
    model = make_harvest_model()
    solution, long_solution = (
        mmdp.solve(model, T, mmdp.methods.BeliefGrid(max_points=21)) for T in (math.inf, 300)
    )
    assert solution.value == pytest.approx(long_solution.value, rel=1e-3)
    assert solution.bound >= long_solution.value
    assert solution.bound <= mmdp.bound(model, math.inf, "oracle").value
    actions, long_actions = solution.policy.to_map().actions, long_solution.policy.to_map().actions
    assert (actions == long_actions).mean() > 0.98
    assert solution.policy.best_action(1000, 2, [0.5, 0.5]) == solution.policy.best_action(
        0, 2, [0.5, 0.5]
    )


@pytest.mark.parametrize(("seed", "n_models"), [(3, 4), (22, 3), (10, 4)])
def test_cycling_iterations_lose_little(seed: int, n_models: int) -> None:
    """The last round alone loses 4%, 2% and 1% of the value of a plan over a long horizon."""
    model = make_random_model(seed, n_models=n_models, n_states=3, n_actions=2, horizon=0)
    model, method = (
        model.replace(discount=0.9),
        mmdp.methods.BeliefGrid(max_points=101 if seed == 3 else 15),
    )
    solution, long_solution = (mmdp.solve(model, T, method) for T in (math.inf, 150))
    assert solution.value > 0.99 * long_solution.value
    assert solution.bound >= long_solution.value


def test_its_value_on_other_models_is_exact_too() -> None:
    model, test_model = (
        make_random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, has_masks=False)
        for seed in (3, 8)
    )
    policy = mmdp.solve(model, T, "grid").policy
    np.testing.assert_allclose(
        mmdp.evaluate(test_model, policy).returns, compute_returns_by_histories(policy, test_model)
    )


@pytest.mark.parametrize("n_models", [2, 3, 4])
def test_interpolation_bounds_convex_functions_from_above(n_models: int) -> None:
    grid, rng = SimplexGrid.with_max_points(n_models, 100), np.random.default_rng(n_models)
    assert len(grid.points) == math.comb(grid.resolution + n_models - 1, n_models - 1) <= 100
    points = rng.dirichlet(np.full(n_models, 0.5), 400)
    points[:100, rng.integers(n_models)] = 0.0  # on the boundary
    points = np.concatenate([points / points.sum(axis=1, keepdims=True), grid.points])
    corners, weights = grid.find_corners(points)
    assert (weights >= -1e-15).all()
    np.testing.assert_allclose(
        (weights[..., None] * grid.points[corners]).sum(axis=1), points, atol=1e-12
    )
    vectors = rng.normal(size=(6, n_models))
    interpolated = (weights * (grid.points @ vectors.T).max(axis=1)[corners]).sum(axis=1)
    exact = (points @ vectors.T).max(axis=1)
    assert (interpolated >= exact - 1e-12).all()
    np.testing.assert_allclose(interpolated[400:], exact[400:], atol=1e-12)  # exact at the points


def make_harvest_model() -> mmdp.MMDP:
    """Two hypotheses of harvest, much as in docs/adaptive-management.md."""
    harvest_rates, n = np.array([0.0, 0.1, 0.25]), np.arange(1, 8)
    survival = np.array([0.65 * (1 - harvest_rates), np.minimum(0.65, 0.84 * (1 - harvest_rates))])[
        :, None
    ]
    expected = n[:, None] * survival * (1 + 1.2 * np.exp(-n / 7))[:, None]
    P = np.exp(-(((n - expected[..., None]) / 0.8) ** 2) / 2)
    return mmdp.MMDP(
        P / P.sum(axis=3, keepdims=True),
        n[:, None] * harvest_rates - (n < 3)[:, None],
        initial=np.eye(7)[2],
        discount=0.97,
        models=["additive", "compensatory"],
        actions=["closed", "some", "much"],
    )


def test_two_hypotheses_are_within_a_thousandth_of_the_pair_bound() -> None:
    model = make_harvest_model()
    solution, pair_bound = mmdp.solve(model, 20, "grid"), mmdp.bound(model, 20, "pairs")
    assert solution.value <= pair_bound.value
    assert pair_bound.gap(solution.value) <= 1e-3
    assert solution.gap <= 1e-3
    assert solution.value > mmdp.solve(model, 20).value * 1.005  # learning pays here
    assert solution.value < mmdp.solve(model, 20, "oracle").value


@pytest.mark.parametrize("seed", [0, 6])
def test_every_cell_of_the_map_is_optimal(seed: int) -> None:
    model = make_random_model(seed, n_models=2, n_states=3, n_actions=3, horizon=0)
    belief_map = mmdp.solve(model, T, mmdp.methods.BeliefGrid(max_points=101)).policy.to_map()
    decision_states = np.flatnonzero(model.has_choice)
    assert belief_map.actions.shape == (101, len(decision_states))
    for i in range(0, 101, 5):
        for row, s in enumerate(decision_states):
            q = find_best_q(model, 0, s, np.array([1 - i / 100, i / 100]))
            assert q[belief_map.actions[i, row]] >= q.max() - 1e-5 * max(1.0, abs(q.max()))


@pytest.mark.parametrize("seed", [0, 4, 8, 20])
def test_the_map_earns_at_least_the_solution_value(seed: int) -> None:
    model = make_random_model(seed, n_models=3, n_states=3, n_actions=3, horizon=0)
    solution = mmdp.solve(model, 4, mmdp.methods.BeliefGrid(max_points=4))

    def compute_value(t: int, s: int, joint: np.ndarray) -> float:
        if t == 4:
            return float(joint @ model.terminal[:, s])
        a = model.action_labels.index(solution.policy.best_action(t, s, joint / joint.sum()))
        next_joint = joint[:, None] * model.transitions[:, s, a]
        future_value = sum(
            compute_value(t + 1, z, next_joint[:, z]) for z in range(3) if next_joint[:, z].any()
        )
        return float(joint @ model.rewards[:, s, a] + model.discount * future_value)

    value = sum(compute_value(0, s, b) for s, b in enumerate(get_initial_joint(model).T) if b.any())
    assert solution.value - 1e-9 <= value <= solution.bound + 1e-9


def test_the_map_is_plotted_over_the_weight() -> None:
    policy = mmdp.solve(make_harvest_model(), 8, "grid").policy
    ax = plots.policy_heatmap(policy)
    assert ax.get_xlabel() == "weight of compensatory"
    assert ax.get_xlim() == (-0.005, 1.005)
    assert "Actions by weight of compensatory and state" in policy._repr_html_()
    lines = policy.describe().splitlines()
    assert lines[0] == f"in 2, where it starts: {policy.best_action(0, 2, [0.5, 0.5])}"
    assert len(lines) == 2 + 7
    three_model_map = mmdp.solve(make_case(1), T, "grid").policy.to_map()
    assert three_model_map.time_labels.name == "weight of the model"
    assert three_model_map.row_labels[:3] == ["0, model 0", "0, model 1", "0, model 2"]


def test_an_agent_has_the_belief_that_bayes_rule_gives() -> None:
    model = make_harvest_model().replace(
        initial=[np.full(7, 1 / 7), [0.1, 0.2, 0.4, 0.1, 0.1, 0.1, 0.0]]
    )
    for method in (mmdp.methods.BeliefGrid(max_points=11), mmdp.methods.QMDP(n_episodes=2)):
        agent = mmdp.interop.Agent(mmdp.solve(model, 8, method, backend="numpy"))
        assert agent.belief == dict(zip(model.model_labels, model.weights.tolist(), strict=True))
        states = [2, 1, 2, 3]
        actions = [agent(s) for s in states]
        log = {"state": states[:-1], "action": actions[:-1], "next_state": states[1:]}
        expected = weights_by_step(model, log)[-1]
        np.testing.assert_allclose(list(agent.belief.values()), expected)
    with pytest.raises(mmdp.InputError, match="keeps no belief"):
        mmdp.interop.Agent(mmdp.solve(model, 8)).belief  # noqa: B018
    agent = mmdp.interop.Agent(mmdp.solve(model, 8, "grid"))
    agent(0)
    first = model.weights * model.initial[:, 0]
    np.testing.assert_allclose(list(agent.belief.values()), first / first.sum())


def test_unsupported_problems_are_refused() -> None:
    five = make_random_model(1, n_models=5)
    with pytest.raises(mmdp.InputError, match="two to four models, not 5"):
        mmdp.solve(five, T, "grid")
    for points in (3, 255):
        with pytest.raises(mmdp.InputError, match="points must be 4 to 254"):
            mmdp.methods.BeliefGrid(max_points=points)
    with pytest.raises(mmdp.InputError, match="maximises the mean"):
        mmdp.solve(make_harvest_model(), T, "grid", objective="worst")
    with pytest.raises(mmdp.InputError, match="time must be from 0 to 2"):
        mmdp.solve(make_harvest_model(), T, "grid").policy.best_action(3, 0, [0.5, 0.5])


@pytest.mark.parametrize("horizon", [T, math.inf])
def test_a_file_keeps_policy_map_and_certificate(horizon: float, tmp_path: Path) -> None:
    model, file = make_harvest_model(), tmp_path / "plan.json"
    solution = mmdp.solve(model, horizon, mmdp.methods.BeliefGrid(max_points=11))
    mmdp.save_policy(solution, file)
    loaded = mmdp.load_policy(file, model)
    assert loaded == solution.policy
    assert (loaded.to_map().actions == solution.policy.to_map().actions).all()
    assert (loaded.horizon, loaded.describe()) == (horizon, solution.policy.describe())
    np.testing.assert_allclose(mmdp.evaluate(model, loaded).returns, solution.returns, rtol=1e-12)
    assert mmdp.io.load_certificate(file, model).value == solution.bound
    other = model.replace(weights=[0.9, 0.1])  # its beliefs would be others
    if horizon == math.inf:
        with pytest.raises(mmdp.InputError, match="needs the models that it was solved for"):
            mmdp.load_policy(file, other)
    else:
        nodes = mmdp.load_policy(file, other)
        assert isinstance(nodes, mmdp.policies.MemoryPolicy)
        np.testing.assert_allclose(
            mmdp.evaluate(other, nodes).returns, solution.returns, rtol=1e-12
        )
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"moves": None}))
    with pytest.raises(mmdp.InputError, match=r"plan\.json: "):
        mmdp.load_policy(file, model)
    with pytest.raises(mmdp.InputError, match="no table of actions: it remembers.*write it as .js"):
        mmdp.save_policy(solution, tmp_path / "plan.csv")
    with pytest.raises(mmdp.InputError, match="an exported file holds a table"):
        mmdp.export(solution, tmp_path / "plan.py")


def test_a_saved_policy_follows_the_labels(tmp_path: Path) -> None:
    """Models with the same numbers and other labels are other models."""
    model, file = make_harvest_model().replace(states="abcdefg"), tmp_path / "plan.json"
    solution = mmdp.solve(model, 3, "grid")
    mmdp.save_policy(solution, file)
    order = [*range(1, model.n_states), 0]
    other = model.replace(states=[model.state_labels[i] for i in order])
    by_name = mmdp.load_policy(file, other)
    assert isinstance(by_name, mmdp.policies.MemoryPolicy)
    controller = solution.policy.controller
    assert np.array_equal(by_name.initial_nodes, controller.initial_nodes[order])
    assert np.array_equal(by_name.actions, controller.actions[:, order])
    assert not np.array_equal(by_name.actions, controller.actions)


def test_the_command_line_writes_and_reads_a_policy(tmp_path: Path) -> None:
    models, file = tmp_path / "models", tmp_path / "plan.json"
    mmdp.save(make_harvest_model(), models)
    assert "policy written to" in run("solve", models, "-T", 3, "--method", "grid", "-o", file).out
    value = mmdp.solve(make_harvest_model(), 3, "grid").value
    assert run("evaluate", file, models, "--json").json["value"] == pytest.approx(value, rel=1e-12)
    for policy in (["--policy", file], ["-T", "inf"]):
        run("plot", "belief", models, *policy, "--out", tmp_path / "map.svg")
        assert "weight of compensatory" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    message = run_refused("report", models, "--policy", file, "--out", tmp_path / "page.html")
    assert "draw it with mmdp plot belief" in message
    message = run_refused("solve", models, "-T", 3, "--method", "grid", "-o", tmp_path / "plan.csv")
    assert "--out policy.json" in message
    rule_file = tmp_path / "rule.csv"
    mmdp.save_policy(mmdp.policies.StationaryPolicy([0] * 7), rule_file)
    message = run_refused(
        "plot", "belief", models, "--policy", rule_file, "--out", tmp_path / "map.svg"
    )
    assert "a belief map shows a plan by state and belief" in message
