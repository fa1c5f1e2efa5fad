"""Simpler policies: the phases tell the most, and no rule beats the best of its kind."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

import mmdp
from mmdp.measures import leaf_table
from mmdp.measures.simplicity import ENOUGH, one_rule, short_rule
from mmdp.measures.stakes import constant_policies
from mmdp.testing import random_model


def problem(seed: int) -> tuple[mmdp.MMDP, mmdp.MarkovPolicy, np.ndarray]:
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.ones(3), size=(4, 3, 2))
    allowed = np.ones((3, 2), dtype=bool)
    allowed[seed % 3, 1] = seed % 2 == 0
    model = mmdp.MMDP(
        transitions, rng.normal(size=(4, 3, 2)), initial=[1, 0, 0], allowed=allowed, discount=0.9
    )
    policy = mmdp.MarkovPolicy.random(model, 6, seed=seed)
    return model, policy, mmdp.model_weights(policy, model).sum(axis=1)


def told(actions: np.ndarray, visited: np.ndarray, cuts: tuple[int, ...]) -> float:
    """The decisions that phases between these times tell at most, by trying every action."""
    total = 0.0
    for start, stop in zip((0, *cuts), (*cuts, len(actions)), strict=True):
        for s in range(actions.shape[1]):
            total += max(
                visited[start:stop, s][actions[start:stop, s] == a].sum() for a in range(2)
            )
    return total / visited.sum()


@pytest.mark.parametrize("seed", range(12))
def test_the_phases_tell_as_much_as_any(seed: int) -> None:
    model, policy, visited = problem(seed)
    rule = short_rule(policy, model, visited)
    best = [
        max(told(policy.actions, visited, cuts) for cuts in combinations(range(1, 6), k))
        for k in range(3)
    ]
    enough = min(ENOUGH, max(best) - 1e-12)
    count = next(k for k, share in enumerate(best, 1) if share >= enough)
    assert len(rule.phases) == count
    assert rule.share == pytest.approx(best[count - 1])
    assert [x.start for x in rule.phases[1:]] == [x.stop for x in rule.phases[:-1]]
    for phase in rule.phases:
        assert (rule.policy.actions[phase.start : phase.stop] == phase.row).all()


@pytest.mark.parametrize("seed", range(12))
def test_one_rule_and_one_action(seed: int) -> None:
    model, policy, visited = problem(seed)
    rows = [row for row in product(range(2), repeat=3) if model.allowed[np.arange(3), row].all()]
    values = {
        row: mmdp.evaluate(mmdp.MarkovPolicy([row] * 6, n_actions=2), model).mean for row in rows
    }
    found = one_rule(policy, model, visited)
    assert (found.actions == found.actions[0]).all()
    usual = short_rule(policy, model, visited, phases=1).policy
    value = mmdp.evaluate(found, model).mean
    assert value == pytest.approx(values[tuple(found.actions[0].tolist())])
    assert mmdp.evaluate(usual, model).mean - 1e-12 <= value <= max(values.values()) + 1e-12
    always = constant_policies(policy, model)[0]
    # a state that allows one action alone is no choice
    best = max(values[tuple(np.where(model.allowed[:, a], a, 1 - a).tolist())] for a in (0, 1))
    assert mmdp.evaluate(always.policy, model).mean == pytest.approx(best)


def test_no_action_is_allowed_everywhere() -> None:
    model = mmdp.MMDP(
        np.full((1, 2, 2, 2), 0.5), np.zeros((2, 2)), allowed=[[True, False], [False, True]]
    )
    policy = mmdp.MarkovPolicy([[0, 1]])
    for always in constant_policies(policy, model):  # there is no choice
        assert always.policy.actions.tolist() == [[0, 1]]


@pytest.mark.parametrize(("horizon", "goal"), [(4, "mean"), (4, "cvar:0.3"), (math.inf, "mean")])
def test_each_leaf_by_a_solve_of_its_own(horizon: float, goal: str) -> None:
    size = {"n_states": 5, "n_actions": 3, "horizon": 0, "discount": 0.8, "masks": False}
    model, test = (random_model(seed, n_models=4, **size) for seed in (5, 6))
    asked = {"objective": goal, "backend": "numpy"}
    table = mmdp.value_of_leaves(model, horizon, 3, test=test if goal == "mean" else None, **asked)
    own = [mmdp.solve(model, horizon, policy=mmdp.Tree(n), **asked) for n in (1, 2, 3)]
    assert table["value"].tolist() == pytest.approx([x.value for x in own])
    assert table["gain"].tolist()[1:] == pytest.approx(np.diff([x.value for x in own]))
    assert table["rule"].tolist() == [x.policy.text() for x in own]
    assert table["price"].tolist() == pytest.approx([x.price for x in own], abs=1e-9)
    if goal == "mean":
        tested = [mmdp.evaluate(x.policy, test).mean for x in own]
        assert table["test"].tolist() == pytest.approx(tested)
    some = mmdp.value_of_leaves(model, horizon, (1, 3), **asked)
    assert some["value"].tolist() == pytest.approx([own[0].value, own[2].value])


def test_where_to_stop() -> None:
    """Two leaves on riverswim, one if nothing is gained, and all if each earns as much."""
    swim = mmdp.domains.published("riverswim").train
    table = mmdp.value_of_leaves(swim, 10, 4)
    line = np.interp([1, 2, 3, 4], [1, 4], table["value"].iloc[[0, 3]])
    assert table.attrs["elbow"] == 1 + (table["value"] - line).argmax()
    assert f"the elbow is at {table.attrs['elbow']} lea" in table.attrs["text"]
    one = random_model(2, n_models=3, n_states=4, n_actions=1, horizon=0, discount=0.9)
    assert mmdp.value_of_leaves(one, 3, 3).attrs["elbow"] == 1
    assert mmdp.value_of_leaves(swim, 50, 2).attrs["elbow"] == 2
    alone = mmdp.value_of_leaves(one, 3, [1], certify=0.1)
    assert "elbow" not in alone.attrs["text"]
    proven = mmdp.solve(one, 3, policy=mmdp.Tree(1), certify=0.1)
    free = proven.details["unrestricted"]
    assert alone["gap"].item() == pytest.approx((proven.bound - proven.value) / abs(free))
    with pytest.raises(mmdp.InputError, match="leaves is empty"):
        mmdp.value_of_leaves(one, 3, [])


@pytest.mark.parametrize("origin", [0.0, 1000.0])
def test_a_price_is_a_share_of_what_is_at_stake(origin: float) -> None:
    """Each state has an action of its own: always taking the same one costs 2 half of the time."""
    rewards = np.array([[[0.0, -2], [-2, 0]]]) + origin
    best = mmdp.MMDP(np.eye(2)[None, :, None].repeat(2, 2), rewards, initial=[0.5, 0.5])
    best = best.replace(states=["x=0", "x=1"])
    table = mmdp.value_of_leaves(best, 1, 2)
    assert table["price"].tolist() == [1.0, 0.0]
    assert table["share"].tolist() == [1.0, 0.0]
    assert table.attrs["stake"] == mmdp.measures.Stake(1.0, "always action 0")
    text = mmdp.value_of_leaves(best, 1, 1).attrs["text"]
    assert text.endswith(", 1 (100% of what is at stake) below the best policy found")


def test_a_tree_that_was_given_is_a_start() -> None:
    """Never below it, even if it has more than the growth would find by itself."""
    model = random_model(9, n_models=3, n_states=6, n_actions=3, horizon=0, masks=False)
    best = mmdp.solve(model, 4, policy=mmdp.Tree(3))
    for m in range(3):
        one = model.subset([m])
        again = mmdp.solve(one, 4, mmdp.CADP(init=best.policy), policy=mmdp.Tree(3))
        assert again.value >= max(best.returns[m], mmdp.solve(one, 4, policy=mmdp.Tree(3)).value)


@pytest.mark.parametrize("horizon", [4, math.inf])
def test_what_is_at_stake_at_a_leaf(horizon: float) -> None:
    """By simulation of the visits, and by trees whose leaf has another action."""
    model = random_model(7, n_models=3, n_states=5, horizon=0, discount=0.7, masks=False)
    solution = mmdp.solve(model, horizon, policy=mmdp.Tree(3), objective="worst")
    found, policy = leaf_table(solution, model), solution.policy
    assert found["share"].sum() == pytest.approx(1)
    steps = 200 if horizon == math.inf else 4
    b = mmdp.model_weights(policy.over(steps), model).sum(axis=1)
    if horizon == math.inf:
        b = (b * 0.7 ** np.arange(steps)[:, None]).sum(axis=0, keepdims=True)
    leaves = [x for x in policy.nodes() if not hasattr(x.node, "cut")]
    for row, (path, _, leaf, region) in zip(found.itertuples(), leaves, strict=True):
        assert row.when == (", ".join(path) or "always")
        assert row.share == pytest.approx(b[region].sum() / b.sum(), rel=1e-6)
        worst = {}
        for a in {*range(model.n_actions)} - {leaf.action}:
            table = np.where(region, a, policy.table).reshape(policy.table.shape)
            other = type(policy.rows).for_model(model, table)
            worst[model.action_labels[a]] = mmdp.evaluate(other, model).worst
        assert row.instead == max(worst, key=worst.get)
        assert row.stakes == pytest.approx(solution.value - max(worst.values()))


def test_an_action_that_is_not_allowed_is_nothing_to_take_instead() -> None:
    allowed = np.array([[True, True, False], [True, False, False]])
    model = mmdp.MMDP(np.full((1, 2, 3, 2), 0.5), [[1.0, 3.0, 0.0], [2.0, 0.0, 0.0]],
                      initial=[0.5, 0.5], allowed=allowed)  # fmt: skip
    tree = mmdp.solve(model, 1, policy=mmdp.Tree(1))  # action 1, where that is allowed
    found = leaf_table(tree, model).iloc[0]
    assert (found.action, found.instead, found.stakes) == ("1", "0", 1.0)
    stay = leaf_table(tree, model.replace(allowed=[[False, True, False], [True, False, False]]))
    assert stay.iloc[0].instead is None
