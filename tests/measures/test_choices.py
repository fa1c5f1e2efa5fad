"""Freedom against the enumeration of everything that people could pick."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mmdp
from mmdp import InputError
from mmdp.testing import random_model, returns_of
from tests.instances import NO_TIME, SEEDS, at_least, by_paths, drawn, every_policy, tiny

GOALS = ["mean", "cvar:0.4", "worst", "entropic:0.5", "var:0.5", "regret:mean"]


def worth(policy: Any, model: mmdp.MMDP, goal: str) -> float:
    return mmdp.evaluate(policy, model).value(goal)


@settings(max_examples=at_least(15), **NO_TIME)
@given(seed=SEEDS)
def test_whatever_is_picked_stays_above_the_floor(seed: int) -> None:
    model, T = tiny(seed, most=200)
    if seed % 4 == 0:  # the models begin apart
        rng, size = np.random.default_rng(seed), (model.n_models, model.n_states)
        model = model.replace(initial=rng.dirichlet(np.ones(size[1]), size=size[0]))
    goal, tolerance = GOALS[seed % len(GOALS)], (0.0, 0.05, 0.3)[seed % 3]
    policy = mmdp.solve(model, T, "wsu").policy
    found = mmdp.freedom(policy, model, tolerance, objective=goal)
    slack = 1e-9 * (1 + abs(found.value))
    assert found.value == pytest.approx(worth(policy, model, goal))
    assert (found.mixed & ~np.broadcast_to(model.allowed, found.mixed.shape)).sum() == 0
    assert found.mixed[(*np.indices(policy.actions.shape), policy.actions)].all()
    # every policy of the sets, by pushing distributions forward
    choices = [np.flatnonzero(row) for row in found.mixed.reshape(-1, model.n_actions)]
    inside = np.array(list(product(*choices))).reshape(-1, T, model.n_states)
    own = mmdp.evaluate(policy, model).oracle
    goal_ = mmdp.objective.as_objective(goal)
    rho = goal_.counted(returns_of(inside, model), lambda: own)
    least = goal_.value(rho, model.weights).min()
    assert found.value - found.allowance - slack <= found.floor <= least + slack
    if model.n_models == 1:  # then the pass is exact
        assert found.floor == pytest.approx(least)


@settings(max_examples=at_least(10), **NO_TIME)
@given(seed=SEEDS)
def test_what_an_action_costs_alone(seed: int) -> None:
    model, T = tiny(seed, most=200)
    goal = GOALS[seed % len(GOALS)]
    policy = mmdp.solve(model, T).policy
    found = mmdp.freedom(policy, model, 0.02, objective=goal)
    for t, s, a in np.ndindex(*found.loss.shape):
        if not model.allowed[s, a]:
            assert math.isnan(found.loss[t, s, a])
            continue
        changed = policy.actions.copy()
        changed[t, s] = a
        lost = found.value - worth(mmdp.MarkovPolicy.for_model(model, changed), model, goal)
        assert found.loss[t, s, a] == pytest.approx(lost, abs=1e-9 * (1 + abs(found.value)))


@pytest.mark.parametrize("goal", ["mean", "worst"])
def test_models_that_change(goal: str) -> None:
    model, T = drawn(3), 2
    policy = mmdp.solve(model, T).policy
    found = mmdp.freedom(policy, model, 0.1, objective=goal)
    inside = [x for x in every_policy(model, T) if found.mixed[(*np.indices(x.shape), x)].all()]
    objective = mmdp.objective.as_objective(goal)
    values = [objective.value(by_paths(model, x), model.weights) for x in inside]
    assert found.floor <= min(values) + 1e-12
    assert min(values) >= found.value - found.allowance - 1e-12
    changed = policy.actions.copy()
    changed[1, 0] = 1 - changed[1, 0]
    lost = found.value - objective.value(by_paths(model, changed), model.weights)
    assert found.loss[1, 0, changed[1, 0]] == pytest.approx(lost)


@pytest.mark.parametrize("seed", range(4))
def test_a_rule_for_ever(seed: int) -> None:
    model = random_model(seed, n_models=3, n_states=3, n_actions=3, horizon=0, discount=0.8)
    if seed % 2:  # the models begin apart
        model = model.replace(initial=np.random.default_rng(seed).dirichlet(np.ones(3), size=3))
    solution = mmdp.solve(model, math.inf, objective=GOALS[seed])
    found = mmdp.freedom(solution, model, 0.1)
    assert (found.objective, found.value) == (solution.objective, pytest.approx(solution.value))
    rules = [np.array(x) for x in product(*(np.flatnonzero(row) for row in model.allowed))]
    for rule in rules:
        value = worth(mmdp.StationaryPolicy(rule, n_actions=3), model, GOALS[seed])
        if found.mixed[0, np.arange(3), rule].all():
            assert value >= found.floor - 1e-9 >= found.value - found.allowance - 2e-9
        differs = np.flatnonzero(rule != solution.policy.actions)
        if len(differs) == 1:
            loss = found.loss[0, differs[0], rule[differs[0]]]
            assert loss == pytest.approx(found.value - value, abs=1e-9)
    assert list(found.to_frame()) == ["state", "action", "loss", "alone", "mixed"]


def test_a_rule_for_ever_without_a_discount() -> None:
    P = [[[[0.5, 0.25, 0.25]] * 2, [[0.0, 0.5, 0.5]] * 2, [[0.0, 0.0, 1.0]] * 2]]
    model = mmdp.MMDP(P, [[1.0, 1.0], [2.0, 1.0], [0.0, 0.0]], initial=[1, 0, 0])
    found = mmdp.freedom(mmdp.solve(model, math.inf), model, 0.0)
    # 2 visits to the first state, 1 to the second and 1 to the last; the second alone decides
    np.testing.assert_allclose(found.visited, [[0.0, 0.25, 0.0]])
    assert found.share == 0.0


@pytest.mark.parametrize("goal", ["mean", "cvar:0.5"])
def test_a_flow_chart(goal: str) -> None:
    sizes = {"n_models": 3, "n_states": 2, "n_actions": 2, "horizon": 0}
    model, rng = random_model(4, **sizes, masks=False, discount=0.9), np.random.default_rng(1)
    shape = (2, 2, 2)  # times, states, nodes
    policy = mmdp.MemoryPolicy(
        rng.integers(2, size=shape), rng.integers(2, size=(*shape, 2)), [0, 1], n_actions=2
    )
    found = mmdp.freedom(policy, model, 0.1, objective=goal)
    assert found.loss.shape == (*policy.actions.shape, 2)
    free = 0
    for flat in product(range(2), repeat=policy.actions.size):
        actions = np.array(flat).reshape(policy.actions.shape)
        value = worth(
            mmdp.MemoryPolicy(actions, policy.moves, policy.first, n_actions=2), model, goal
        )
        if np.take_along_axis(found.mixed, actions[..., None], axis=3).all():
            free += 1
            assert value >= found.floor - 1e-12 >= found.value - found.allowance - 2e-12
        differs = np.argwhere(actions != policy.actions)
        if len(differs) == 1:
            place = (*differs[0], actions[tuple(differs[0])])
            assert found.loss[place] == pytest.approx(found.value - value, abs=1e-12)
    assert free == np.prod(found.mixed.sum(axis=3)) > 1
    assert list(found.to_frame())[:4] == ["time", "state", "node", "action"]


REST = {"resting": mmdp.MarkovPolicy([[2]] * 2, n_actions=3)}  # earns nothing


def small() -> mmdp.MMDP:
    """Two years of work: the tools differ by 1/32 at most, resting earns nothing."""
    rewards = [[[4.0, 3.96875, 0.0]], [[4.0, 4.0, 0.0]]]
    return mmdp.MMDP([[[[1.0]] * 3]] * 2, rewards, actions=["saw", "axe", "rest"])


def test_small_losses_add_up() -> None:
    model = small()
    solution = mmdp.solve(model, 2)
    found = mmdp.freedom(solution, model, 0.0025, compare=REST)  # of 8: once costs 1/64, twice 1/32
    assert found.loss[:, 0, 1] == pytest.approx([1 / 64] * 2)
    assert (found.share, found.share_alone) == (0.0, 1.0)
    assert mmdp.freedom(solution, model, 0.004, compare=REST).share == 1.0
    frame = mmdp.freedom(solution, model, 0.004, compare=REST).to_frame()
    assert frame["action"].tolist() == ["saw", "axe", "rest"] * 2
    assert frame["mixed"].tolist() == [True, True, False] * 2
    assert found.text == (
        "no decision is free if at most 0.0200 "
        "(0.25% of what is at stake, 8 compared with resting) may be lost"
    )
    alone = mmdp.freedom(solution, model, 0.6)  # always saw itself; the next best is axe
    assert alone.stake == mmdp.measures.Stake(1 / 32, "always axe")
    assert (alone.share, alone.share_alone) == (0.0, 1.0)
    same = mmdp.freedom(solution, model.replace(rewards=[[[4.0, 4.0, 4.0]]] * 2))
    assert same.text == "100% of decisions are free: their actions are equally good"


def test_the_table_of_a_policy_says_what_is_free() -> None:
    one = small()
    model = one.replace(rewards=[one.rewards, [[[0.0, 0.0, 4.0]]] * 2])  # then rest
    table = mmdp.measures.policy_table(mmdp.solve(model, 2), model, tolerance=0.01)
    assert table["free"].tolist() == ["saw or axe", "rest"]  # at stake: 4, by always saw
    assert "free" not in mmdp.measures.policy_table(mmdp.solve(model, 2), model)


def test_refusals() -> None:
    model = small()
    solution = mmdp.solve(model, 2)
    with pytest.raises(InputError, match=r"a share of what is at stake such as 0.01, not -1"):
        mmdp.freedom(solution, model, -1)
    drawn_ = mmdp.MarkovPolicy(probabilities=[[[0.5, 0.5, 0.0]]])
    with pytest.raises(InputError, match="takes one action in a state, but this one draws it"):
        mmdp.freedom(drawn_, model)
    with pytest.raises(InputError, match="never falls if a return rises"):
        mmdp.freedom(solution, model, objective=lambda rho, _: -rho.max(axis=-1))
    with pytest.raises(InputError, match="freedom is about a policy of time and state"):
        mmdp.freedom(mmdp.solve(model, 2, "qmdp"), model)


def test_an_action_that_is_not_allowed_never_divides_by_zero() -> None:
    def step(state: dict, action: dict, event: dict) -> tuple:
        wear = np.where(action["service"], 0, state["wear"]) + event["shock"]
        return {"wear": wear, "spares": state["spares"] - action["service"]}, 3 - 4 * action[
            "service"
        ]

    machine = mmdp.from_step(
        step, states={"wear": range(2), "spares": range(2)}, actions={"service": [0, 1]},
        events={"shock": [0, 1]}, chance=lambda draw: [1 - draw["p"], draw["p"]],
        draws={"p": [0.2, 0.5]}, initial={"wear": 0, "spares": 1},
        until=lambda state: state["wear"] > 1,
        allowed=lambda state, action: state["spares"] >= action["service"],
    )  # fmt: skip
    solution = mmdp.solve(
        machine, math.inf
    )  # an episode earns 9 / p - 4, and 6 / p if never served
    assert solution.value == pytest.approx(9 * 3.5 - 4)
    loss = mmdp.freedom(solution, machine).loss[0]
    assert loss[3].tolist() == pytest.approx([3 * 3.5 - 4, 0])
    assert np.isnan(loss[[0, 2], 1]).all()
