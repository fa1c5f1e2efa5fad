"""Policies over state and belief, against walks through all histories."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import plots
from mmdp.methods.belief_grid import Simplex
from mmdp.posterior import weights_by_step
from mmdp.testing import beginning_apart, best_with_memory, changing, random_model
from tests.cli.calls import refused, run
from tests.instances import for_ever

T = 3


def case(seed: int) -> mmdp.MMDP:
    """Two to four models: masks, times, skewed weights; some change, some begin apart."""
    model = random_model(seed, n_models=2 + seed % 3, n_states=3, n_actions=2 + seed % 2,
                         horizon=T if seed % 4 == 1 else 0)  # fmt: skip
    if seed % 4 == 2:
        return changing(model, seed)
    return beginning_apart(model, seed) if seed % 4 == 3 else model


def tables(model: mmdp.MMDP, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, S, A, S') and (M, S, A) at t."""
    P, r = model.transitions, model.rewards
    return (P[t], r[t]) if model.horizon is not None else (P, r)


def begun(model: mmdp.MMDP) -> np.ndarray:
    """(M, S) the probability of each model and first state."""
    return model.weights[:, None] * np.broadcast_to(model.initial, (model.n_models, model.n_states))


def best(model: mmdp.MMDP, t: int, s: int, joint: np.ndarray, horizon: int = T) -> np.ndarray:
    """(A,) the most that is left after each action, joint (M,): model and history."""
    found = np.full(model.n_actions, -np.inf)
    P, r = tables(model, t)
    for a in np.flatnonzero(model.allowed[s]):
        found[a] = joint @ r[:, s, a]
        for z in range(model.n_states):
            after = (joint * P[:, s, a, z]) @ model.model_transitions
            if after.any():
                last = t + 1 == horizon
                rest = after @ model.terminal[:, z] if last else max(
                    best(model, t + 1, z, after, horizon))  # fmt: skip
                found[a] += model.discount * rest
    return found


def followed(policy: Any, model: mmdp.MMDP) -> np.ndarray:
    """(M,) the return by the model at the start, over all histories; without changes of models."""
    total = np.zeros(model.n_models)

    def walk(t: int, s: int, memory: Any, chance: np.ndarray) -> None:
        if t == T:
            total[:] += chance * model.discount**t * model.terminal[:, s]
            return
        a = policy.act(memory, t, s)
        P, r = tables(model, t)
        total[:] += chance * model.discount**t * r[:, s, a]
        for z in range(model.n_states):
            after = chance * P[:, s, a, z]
            if after.any():
                walk(t + 1, z, policy.update(memory, t, s, a, z), after)

    for s, chance in enumerate(np.broadcast_to(model.initial, (model.n_models, model.n_states)).T):
        if chance.any():
            walk(0, s, policy.start(), chance)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_the_best_with_memory_lies_between_value_and_bound(seed: int) -> None:
    model = case(seed)
    found = mmdp.solve(model, T, mmdp.BeliefGrid(points=120))
    exact = sum(max(best(model, 0, s, b)) for s, b in enumerate(begun(model).T) if b.any())
    slack = 1e-9 * abs(exact)
    assert found.value <= exact + slack
    assert found.bound >= exact - slack
    assert found.bound - exact <= 0.05 * abs(exact) + 0.05
    assert exact - found.value <= 0.01 * abs(exact)
    assert (found.certificate.bounds, found.evaluation.errors) == ("history", None)
    if not model.drifts:
        assert math.isclose(exact, best_with_memory(model, T), rel_tol=1e-9)
        np.testing.assert_allclose(found.returns, followed(found.policy, model), rtol=1e-9)


@pytest.mark.parametrize(("seed", "discount"), [(0, 0.5), (1, 0.5), (2, 1.0)])
def test_for_ever_the_best_with_memory_lies_between_value_and_bound(
    seed: int, discount: float
) -> None:
    """The best over six decisions, before a rule is followed or the model becomes known."""
    model = for_ever(seed, discount)
    found = mmdp.solve(model, math.inf, mmdp.BeliefGrid(points=60))
    rule, one = mmdp.solve(model, math.inf).policy, np.eye(model.n_states)
    below, above = np.zeros((2, 2, model.n_states))
    for s in range(model.n_states):
        here = model.replace(initial=one[s])
        below[:, s] = mmdp.evaluate(rule, here).returns
        above[:, s] = mmdp.solve(here, math.inf, "oracle").returns

    def most(end: np.ndarray) -> float:
        ends, starts = model.replace(terminal=end), begun(model).T
        return sum(max(best(ends, 0, s, b, 6)) for s, b in enumerate(starts) if b.any())

    slack = 1e-9
    assert found.value <= most(above) + slack
    assert found.bound >= most(below) - slack
    assert most(below) - found.value <= 0.01
    assert found.bound - most(above) <= 0.01
    assert found.certificate.bounds == "history"
    v, (actions, moves, first) = np.zeros((2, model.n_states, 61)), found.policy.controller
    for _ in range(80):
        v = np.array([
            [[model.rewards[m, s, a] + discount * sum(
                model.transitions[m, s, a, z] * v[m, z, moves[0, s, n, z]]
                for z in range(model.n_states))
              for n, a in enumerate(actions[0, s])] for s in range(model.n_states)]
            for m in range(2)
        ])  # fmt: skip
    begins = v[:, np.arange(model.n_states), first] @ model.initial
    np.testing.assert_allclose(found.returns, begins, rtol=1e-9)


def test_for_ever_the_plan_is_that_of_a_long_horizon() -> None:
    model = ducks()
    found, long = (mmdp.solve(model, T, mmdp.BeliefGrid(points=21)) for T in (math.inf, 300))
    assert found.value == pytest.approx(long.value, rel=1e-3)
    assert found.bound >= long.value
    assert found.bound <= mmdp.bound(model, math.inf, "oracle").value
    now, then = found.policy.map().actions, long.policy.map().actions
    assert (now == then).mean() > 0.98
    assert found.policy.act_at(1000, 2, [0.5, 0.5]) == found.policy.act_at(0, 2, [0.5, 0.5])


@pytest.mark.parametrize(("seed", "count"), [(3, 4), (22, 3), (10, 4)])
def test_for_ever_rounds_that_go_in_circles_lose_little(seed: int, count: int) -> None:
    """The last round alone loses 4%, 2% and 1% of the value of a plan over a long horizon."""
    model = random_model(seed, n_models=count, n_states=3, n_actions=2, horizon=0)
    model, method = model.replace(discount=0.9), mmdp.BeliefGrid(points=101 if seed == 3 else 15)
    found, long = (mmdp.solve(model, T, method) for T in (math.inf, 150))
    assert found.value > 0.99 * long.value
    assert found.bound >= long.value


def test_its_value_on_other_models_is_exact_too() -> None:
    model, other = (random_model(seed, n_models=3, n_states=3, n_actions=2, horizon=0, masks=False)
                    for seed in (3, 8))  # fmt: skip
    policy = mmdp.solve(model, T, "grid").policy
    np.testing.assert_allclose(mmdp.evaluate(policy, other).returns, followed(policy, other))


@pytest.mark.parametrize("n_models", [2, 3, 4])
def test_interpolation_lies_above_convex_functions_and_on_linear_ones(n_models: int) -> None:
    grid, rng = Simplex.of(n_models, 100), np.random.default_rng(n_models)
    assert len(grid.points) == math.comb(grid.n + n_models - 1, n_models - 1) <= 100
    inside = rng.dirichlet(np.full(n_models, 0.5), 400)
    inside[:100, rng.integers(n_models)] = 0.0  # on the boundary
    inside = np.concatenate([inside / inside.sum(axis=1, keepdims=True), grid.points])
    corners, shares = grid.around(inside)
    assert (shares >= -1e-15).all()
    np.testing.assert_allclose((shares[..., None] * grid.points[corners]).sum(axis=1), inside,
                               atol=1e-12)  # fmt: skip
    vectors = rng.normal(size=(6, n_models))
    above = (shares * (grid.points @ vectors.T).max(axis=1)[corners]).sum(axis=1)
    true = (inside @ vectors.T).max(axis=1)
    assert (above >= true - 1e-12).all()
    np.testing.assert_allclose(above[400:], true[400:], atol=1e-12)  # exact at the points


def ducks() -> mmdp.MMDP:
    """Two hypotheses of harvest, much as in docs/adaptive-management.md."""
    share, n = np.array([0.0, 0.1, 0.25]), np.arange(1, 8)
    lives = np.array([0.65 * (1 - share), np.minimum(0.65, 0.84 * (1 - share))])[:, None]
    expected = n[:, None] * lives * (1 + 1.2 * np.exp(-n / 7))[:, None]
    P = np.exp(-(((n - expected[..., None]) / 0.8) ** 2) / 2)
    return mmdp.MMDP(
        P / P.sum(axis=3, keepdims=True), n[:, None] * share - (n < 3)[:, None],
        initial=np.eye(7)[2], discount=0.97, models=["additive", "compensatory"],
        actions=["closed", "some", "much"],
    )  # fmt: skip


def test_two_hypotheses_are_within_a_thousandth_of_the_pair_bound() -> None:
    model = ducks()
    found, pairs = mmdp.solve(model, 20, "grid"), mmdp.bound(model, 20, "pairs")
    assert found.value <= pairs.value
    assert pairs.gap(found.value) <= 1e-3
    assert found.gap <= 1e-3
    assert found.value > mmdp.solve(model, 20).value * 1.005  # learning pays here
    assert found.value < mmdp.solve(model, 20, "oracle").value


@pytest.mark.parametrize("seed", [0, 6])
def test_every_cell_of_the_map_is_the_best_action_there(seed: int) -> None:
    model = random_model(seed, n_models=2, n_states=3, n_actions=3, horizon=0)
    found = mmdp.solve(model, T, mmdp.BeliefGrid(points=101)).policy.map()
    deciding = np.flatnonzero(model.deciding)
    assert found.actions.shape == (101, len(deciding))
    for i in range(0, 101, 5):
        for row, s in enumerate(deciding):
            q = best(model, 0, s, np.array([1 - i / 100, i / 100]))
            assert q[found.actions[i, row]] >= q.max() - 1e-5 * max(1.0, abs(q.max()))


@pytest.mark.parametrize("seed", [0, 4, 8, 20])
def test_whoever_follows_the_map_has_at_least_the_value_of_the_plan(seed: int) -> None:
    model = random_model(seed, n_models=3, n_states=3, n_actions=3, horizon=0)
    found = mmdp.solve(model, 4, mmdp.BeliefGrid(points=4))

    def walked(t: int, s: int, joint: np.ndarray) -> float:
        if t == 4:
            return float(joint @ model.terminal[:, s])
        a = model.action_labels.index(found.policy.act_at(t, s, joint / joint.sum()))
        after = joint[:, None] * model.transitions[:, s, a]
        later = sum(walked(t + 1, z, after[:, z]) for z in range(3) if after[:, z].any())
        return float(joint @ model.rewards[:, s, a] + model.discount * later)

    value = sum(walked(0, s, b) for s, b in enumerate(begun(model).T) if b.any())
    assert found.value - 1e-9 <= value <= found.bound + 1e-9


def test_the_map_is_drawn_with_the_weight_across() -> None:
    policy = mmdp.solve(ducks(), 8, "grid").policy
    axis = plots.policy_heatmap(policy)
    assert axis.get_xlabel() == "weight of compensatory"
    assert axis.get_xlim() == (-0.005, 1.005)
    html = policy._repr_html_()
    assert "weight of compensatory 0 to 1" in html
    lines = policy.text().splitlines()
    assert lines[0] == f"in 2, where it starts: {policy.act_at(0, 2, [0.5, 0.5])}"
    assert len(lines) == 2 + 7
    three = mmdp.solve(case(1), T, "grid").policy.map()
    assert three.times.name == "weight of the model"
    assert three.rows[:3] == ["0, model 0", "0, model 1", "0, model 2"]


def test_an_agent_has_the_belief_that_bayes_rule_gives() -> None:
    model = ducks().replace(initial=[np.full(7, 1 / 7), [0.1, 0.2, 0.4, 0.1, 0.1, 0.1, 0.0]])
    for method in (mmdp.BeliefGrid(points=11), mmdp.QMDP(episodes=2)):
        agent = mmdp.ecosystem.Agent(mmdp.solve(model, 8, method, backend="numpy"))
        assert agent.belief == dict(zip(model.model_labels, model.weights.tolist(), strict=True))
        states = [2, 1, 2, 3]
        actions = [agent(s) for s in states]
        log = {"state": states[:-1], "action": actions[:-1], "next_state": states[1:]}
        expected = weights_by_step(model, log)[-1]
        np.testing.assert_allclose(list(agent.belief.values()), expected)
    with pytest.raises(mmdp.InputError, match="keeps no belief"):
        mmdp.ecosystem.Agent(mmdp.solve(model, 8)).belief  # noqa: B018
    agent = mmdp.ecosystem.Agent(mmdp.solve(model, 8, "grid"))
    agent(0)
    first = model.weights * model.initial[:, 0]
    np.testing.assert_allclose(list(agent.belief.values()), first / first.sum())


def test_what_it_cannot_do_is_refused() -> None:
    five = random_model(1, n_models=5)
    with pytest.raises(mmdp.InputError, match="two to four models, not 5"):
        mmdp.solve(five, T, "grid")
    for points in (3, 255):
        with pytest.raises(mmdp.InputError, match="points must be 4 to 254"):
            mmdp.BeliefGrid(points=points)
    with pytest.raises(mmdp.InputError, match="maximises the mean"):
        mmdp.solve(ducks(), T, "grid", objective="worst")
    with pytest.raises(mmdp.InputError, match="outside 0..2"):
        mmdp.solve(ducks(), T, "grid").policy.act_at(3, 0, [0.5, 0.5])


@pytest.mark.parametrize("horizon", [T, math.inf])
def test_a_file_keeps_the_plan_its_map_and_its_proof(horizon: float, tmp_path: Path) -> None:
    model, file = ducks(), tmp_path / "plan.json"
    found = mmdp.solve(model, horizon, mmdp.BeliefGrid(points=11))
    mmdp.save_policy(found, file)
    again = mmdp.load_policy(file, model)
    assert again == found.policy
    assert (again.map().actions == found.policy.map().actions).all()
    assert (again.horizon, again.text()) == (horizon, found.policy.text())
    assert (mmdp.evaluate(again, model).returns == found.returns).all()
    assert mmdp.io.load_certificate(file, model).value == found.bound
    other = model.replace(weights=[0.9, 0.1])  # its beliefs would be others
    if horizon == math.inf:
        with pytest.raises(mmdp.InputError, match="needs the models that it was made for"):
            mmdp.load_policy(file, other)
    else:
        nodes = mmdp.load_policy(file, other)
        assert isinstance(nodes, mmdp.MemoryPolicy)
        np.testing.assert_allclose(mmdp.evaluate(nodes, other).returns, found.returns, rtol=1e-12)
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"moves": None}))
    with pytest.raises(mmdp.InputError, match=r"plan\.json: "):
        mmdp.load_policy(file, model)
    with pytest.raises(mmdp.InputError, match="no table of actions: it remembers.*write it as .js"):
        mmdp.save_policy(found, tmp_path / "plan.csv")
    with pytest.raises(mmdp.InputError, match="an exported file holds a table"):
        mmdp.export(found, tmp_path / "plan.py")


def test_a_plan_in_a_file_follows_the_labels(tmp_path: Path) -> None:
    """Models with the same numbers and other labels are other models."""
    model, file = ducks().replace(states="abcdefg"), tmp_path / "plan.json"
    found = mmdp.solve(model, 3, "grid")
    mmdp.save_policy(found, file)
    order = [*range(1, model.n_states), 0]
    other = model.replace(states=[model.state_labels[i] for i in order])
    by_name = mmdp.load_policy(file, other)
    assert isinstance(by_name, mmdp.MemoryPolicy)
    own = found.policy.controller
    assert np.array_equal(by_name.first, own.first[order])
    assert np.array_equal(by_name.actions, own.actions[:, order])
    assert not np.array_equal(by_name.actions, own.actions)


def test_the_command_line_writes_a_plan_and_reads_it_again(tmp_path: Path) -> None:
    models, file = tmp_path / "models", tmp_path / "plan.json"
    mmdp.save(ducks(), models)
    assert "policy written to" in run("solve", models, "-T", 3, "--method", "grid", "-o", file).out
    value = mmdp.solve(ducks(), 3, "grid").value
    assert run("evaluate", file, models, "--json").json["value"] == pytest.approx(value, rel=1e-12)
    for policy in (["--policy", file], ["-T", "inf"]):
        run("plot", "belief", models, *policy, "--out", tmp_path / "map.svg")
        assert "weight of compensatory" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    told = refused("report", models, "--policy", file, "--out", tmp_path / "page.html")
    assert "draw it with mmdp plot belief" in told
    told = refused("solve", models, "-T", 3, "--method", "grid", "-o", tmp_path / "plan.csv")
    assert "give --out policy.json" in told
    rule = tmp_path / "rule.csv"
    mmdp.save_policy(mmdp.StationaryPolicy([0] * 7), rule)
    told = refused("plot", "belief", models, "--policy", rule, "--out", tmp_path / "map.svg")
    assert "a belief map shows a plan by state and belief" in told
