"""Kinds of policy: how they are given, and what is said about wrong ones."""

from __future__ import annotations

import itertools
import math
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.policies import POLICY_CLASSES, as_policy_class

P = np.full((2, 3, 2, 3), 1 / 3)
MODEL = mmdp.MMDP(
    P,
    np.arange(12.0).reshape(2, 3, 2),
    discount=0.9,
    states=["well", "ill", "dead"],
    actions=["wait", "treat"],
)
VARYING = mmdp.MMDP(np.stack([P] * 4), np.ones((4, 2, 3, 2)), discount=0.9)


@pytest.mark.parametrize(
    "groups",
    [
        {"well": "a", "ill": "b", "dead": "a"},
        {0: 1, 1: 2, 2: 1},
        ["a", "b", "a"],
        [7, 3, 7],
        np.array([7, 3, 7]),
    ],
)
def test_groups_by_label_id_and_array(groups: Any) -> None:
    assert mmdp.policies.Tied(groups).get_group_ids(MODEL).tolist() == [0, 1, 0]


def test_groups_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("group,state\nx,dead\ny,ill\nx,well\n")
    for path in (file, str(file)):
        assert mmdp.policies.Tied(path).get_group_ids(MODEL).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state,grup\nwell,a\n", "unknown column 'grup' (did you mean 'group'?)"),
        ("state\nwell\n", "no column 'group'"),
        ("state,group\nwell,a\nwell,b\n", "line 3: state 'well' is given twice"),
        ("", "the file is empty"),
    ],
)
def test_wrong_files_of_groups(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "groups.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError) as error:
        mmdp.policies.Tied(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_orders() -> None:
    policy_class = mmdp.policies.Monotone(states=["dead", "well", "ill"], actions=["treat", "wait"])
    assert [x.tolist() for x in policy_class.get_state_chains(MODEL)] == [[2, 0, 1]]
    assert policy_class.get_action_order(MODEL).tolist() == [1, 0]
    chains = mmdp.policies.Monotone(states=[["well", "ill"], "dead"]).get_state_chains(MODEL)
    assert [x.tolist() for x in chains] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("fixed", "allowed"),
    [
        ({"ill": "treat"}, [[1, 1], [0, 1], [1, 1]]),
        ({"ill": ["treat", "wait"], 2: 0}, [[1, 1], [1, 1], [1, 0]]),
        ([-1, 1, -1], [[1, 1], [0, 1], [1, 1]]),
        ([[True, True], [False, True], [True, True]], [[1, 1], [0, 1], [1, 1]]),
    ],
)
def test_fixed_actions(fixed: Any, allowed: list[list[int]]) -> None:
    assert mmdp.policies.Fixed(fixed).make_mask(MODEL, 4).astype(int).tolist() == [allowed]


def test_fixed_actions_by_time() -> None:
    table = np.full((4, 3), -1)
    table[2, 1] = 0
    assert mmdp.solve(
        MODEL, 4, policy_class=mmdp.policies.Fixed(table)
    ).policy.actions.tolist() == [
        [1, 1, 1],
        [1, 1, 1],
        [1, 0, 1],
        [1, 1, 1],
    ]


MASKED_MODEL = MODEL.replace(allowed=[[False, True], [True, False], [True, True]])
WRONG_CLASSES: dict[str, tuple[mmdp.MMDP, Any, str]] = {
    "unknown class": (MODEL, "monoton", "no policy class is called 'monoton' (did you mean"),
    "no class": (MODEL, 3, "or an object of a class in mmdp.policies, not 3"),
    "tied by name": (
        MODEL,
        "tied",
        "the policy class Tied needs groups; pass policy_class=mmdp.policies.Tied(groups)",
    ),
    "fixed by name": (MODEL, mmdp.policies.Fixed, "the policy class Fixed needs actions"),
    "group missing": (
        MODEL,
        mmdp.policies.Tied({"well": 1, "ill": 1}),
        "groups: no value for state 'dead'",
    ),
    "group of nobody": (
        MODEL,
        mmdp.policies.Tied({"wel": 1}),
        "unknown label 'wel' (did you mean 'well'?)",
    ),
    "too few groups": (MODEL, mmdp.policies.Tied([1, 2]), "groups: 2 values for 3 states"),
    "no common action": (
        MASKED_MODEL,
        mmdp.policies.Tied([0, 0, 1]),
        "one group: states 'well' and 'ill'",
    ),
    "state missing": (MODEL, mmdp.policies.Monotone(states=["ill", "dead"]), "leaves out 'well'"),
    "state twice": (MODEL, mmdp.policies.Monotone(states=[0, 1, 2, 1]), "names 'ill' twice"),
    "unknown state": (MODEL, mmdp.policies.Monotone(states=["i", 1, 2]), "unknown state 'i'"),
    "state out of range": (MODEL, mmdp.policies.Monotone(states=[0, 1, 3]), "unknown state '3'"),
    "action missing": (
        MODEL,
        mmdp.policies.Monotone(actions=["wait"]),
        "order of actions leaves out",
    ),
    "no monotone policy": (
        MASKED_MODEL,
        mmdp.policies.Monotone(),
        "state 'ill' does not allow an action as",
    ),
    "no action left": (
        MASKED_MODEL,
        mmdp.policies.Fixed({"ill": "treat"}),
        "state 'ill' at time 0",
    ),
    "no such action": (
        MODEL,
        mmdp.policies.Fixed([5, 0, 0]),
        "fixed action 5 is neither -1 (free) nor",
    ),
    "wrong shape": (
        MODEL,
        mmdp.policies.Fixed([[0, 0, 0]] * 3),
        "fixed actions of shape (3, 3) fit",
    ),
    "no ids": (MODEL, mmdp.policies.Fixed([0.5, 0, 0]), "fixed actions must be a mapping"),
}


@pytest.mark.parametrize("name", WRONG_CLASSES)
def test_wrong_classes_give_a_one_line_error(name: str) -> None:
    model, policy_class, message = WRONG_CLASSES[name]
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(model, 4, policy_class=policy_class)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_refusing_methods_name_the_supporting_ones() -> None:
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(MODEL, 4, "wsu", policy_class="monotone")
    reason = "it chooses each action by itself, which cannot make a monotone policy"
    assert str(error.value) == f"wsu cannot do this: {reason}; choose method='cadp'"
    with pytest.raises(mmdp.InputError, match="choose method='qmdp', 'mixts'"):
        mmdp.solve(MODEL, 4, policy_class="belief")
    qmdp = mmdp.solve(
        MODEL, 4, mmdp.methods.QMDP(n_episodes=4), policy_class="belief", backend="numpy"
    )
    assert qmdp.policy.name == "qmdp"


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("markov", "a table of time and state has a last row"),
        ("memory", "their nodes move by tables of time"),
    ],
)
def test_finite_classes_have_no_infinite_horizon(class_name: str, reason: str) -> None:
    message = f"for an infinite horizon there are no {class_name} policies: {reason}"
    with pytest.raises(mmdp.InputError, match=message) as error:
        mmdp.solve(MODEL, math.inf, policy_class=class_name)
    assert "policy_class='stationary'" in str(error.value)
    with pytest.raises(mmdp.InputError, match=message):
        as_policy_class(class_name).for_horizon(math.inf)


def test_infinite_classes_are_copies() -> None:
    policy_class = mmdp.policies.Tied([0, 0, 1])
    infinite_class = policy_class.with_infinite_horizon()
    assert (policy_class.is_infinite_horizon, infinite_class.is_infinite_horizon) == (False, True)
    assert infinite_class.decision_inputs == "the group of the state"
    assert infinite_class.change_text == "change of the action in a single group"
    assert (
        mmdp.policies.Monotone().with_infinite_horizon().change_text
        == "change in a single state that keeps it monotone"
    )
    assert pickle.loads(pickle.dumps(infinite_class)).is_infinite_horizon
    with pytest.raises(mmdp.InputError, match="a tied policy is for an infinite horizon"):
        infinite_class.for_horizon(4)
    with pytest.raises(mmdp.InputError, match=r"fixed actions of shape \(4, 3\)"):
        mmdp.solve(MODEL, math.inf, policy_class=mmdp.policies.Fixed(np.full((4, 3), -1)))


INFINITE_CLASSES = {
    "tied": mmdp.policies.Tied([0, 1, 0, 1]),
    "monotone": mmdp.policies.Monotone(),
    "chains": mmdp.policies.Monotone(states=[[2, 0, 1], [3]], actions=[2, 0, 1]),
    "fixed": mmdp.policies.Fixed([-1, 1, -1, -1]),
}


def list_policies(name: str) -> list[tuple[int, ...]]:
    """All rules for four states and three actions that the policy class allows."""
    checks: dict[str, Callable[[tuple[int, ...]], bool]] = {
        "tied": lambda actions: (actions[0], actions[1]) == (actions[2], actions[3]),
        "monotone": lambda actions: list(actions) == sorted(actions),
        "chains": lambda actions: (
            [*map([1, 2, 0].__getitem__, (actions[2], actions[0], actions[1]))]
            == sorted(map([1, 2, 0].__getitem__, actions[:3]))
        ),
        "fixed": lambda actions: actions[1] == 1,
    }
    return [actions for actions in itertools.product(range(3), repeat=4) if checks[name](actions)]


@pytest.mark.parametrize("objective", ["mean", "cvar:0.3"])
@pytest.mark.parametrize("name", INFINITE_CLASSES)
def test_best_infinite_horizon_policies_are_usually_found(
    name: str, objective: str, tmp_path: Path
) -> None:
    """Against all rules of the class, whose values are sums over many decisions."""
    n_optimal = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        model = mmdp.MMDP(
            rng.dirichlet(np.full(4, 0.4), (3, 4, 3)),
            rng.normal(size=(3, 4, 3)),
            discount=0.6,
            initial=rng.dirichlet(np.ones(4)) if seed % 3 else [1, 0, 0, 0],
        )
        values = {
            actions: mmdp.evaluate(
                model, mmdp.policies.StationaryPolicy(actions).to_markov(60)
            ).value(objective)
            for actions in list_policies(name)
        }
        solution = mmdp.solve(
            model,
            math.inf,
            mmdp.methods.CADP(n_init=3),
            policy_class=INFINITE_CLASSES[name],
            objective=objective,
        )
        actions = tuple(solution.policy.actions.tolist())
        assert actions in values
        assert solution.value == pytest.approx(values[actions], abs=1e-9)
        assert solution.provenance.policy_class.name == INFINITE_CLASSES[name].name
        n_optimal += solution.value >= max(values.values()) - 1e-9
        assert solution.restriction_cost is not None
    assert n_optimal >= 3
    file = tmp_path / "rule.csv"
    mmdp.save_policy(solution, file)
    loaded = mmdp.load_policy(file, model)
    assert isinstance(loaded, mmdp.policies.StationaryPolicy)
    assert loaded == solution.policy
    assert mmdp.evaluate(model, loaded).value(objective) == pytest.approx(solution.value)


def test_unreachable_states_keep_to_the_class() -> None:
    P = np.zeros((1, 3, 2, 3))
    P[..., 0] = 1.0  # all ways lead to the first state, where an episode begins
    model = mmdp.MMDP(P, [[[3.0, 0], [0, 2], [2, 0]]], initial=[1, 0, 0], discount=0.5)
    unrestricted = mmdp.solve(model, math.inf)
    assert unrestricted.policy.actions.tolist() == [0, 1, 0]
    tied = mmdp.solve(model, math.inf, policy_class=mmdp.policies.Tied([0, 0, 1]))
    assert tied.policy.actions.tolist() == [0, 0, 0]
    monotone = mmdp.solve(model, math.inf, policy_class=mmdp.policies.Monotone())
    assert monotone.policy.actions.tolist() in ([0, 1, 1], [0, 0, 0])
    assert monotone.details["unreachable"].tolist() == [False, True, True]


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_determined_by_any_of_its_states(seed: int) -> None:
    rng, S = np.random.default_rng(seed), 12
    model = mmdp.MMDP(np.eye(S)[None, :, None], np.zeros((S, 1)))
    policy_class = mmdp.policies.Tied(rng.integers(0, 5, S))
    group_ids, is_reached = policy_class.get_group_ids(model), rng.random((3, S)) < 0.2
    expected = [[row[group_ids == g].any() for g in group_ids] for row in is_reached]
    assert policy_class.find_determined(model, is_reached).tolist() == expected
    assert policy_class.find_determined(model, is_reached[0]).tolist() == expected[0]


def test_as_many_groups_as_states() -> None:
    """No array has an entry for each group and state: 10 GB here."""
    S = 100_000
    s = np.arange(S)
    model = mmdp.MMDP.from_coordinates(
        model=0 * s,
        state=s,
        action=0 * s,
        next_state=s,
        probability=np.ones(S),
        rewards=np.zeros((1, S, 1)),
        shape=(1, S, 1),
    )
    policy_class, is_reached = mmdp.policies.Tied(s), s % 3 == 0
    tracemalloc.start()
    assert (policy_class.find_determined(model, is_reached) == is_reached).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8


def test_every_class_is_described_and_kept() -> None:
    for name, policy_class in POLICY_CLASSES.items():
        assert policy_class.name == name
        assert policy_class.decision_inputs
    assert as_policy_class("markov").name == "markov"
    policy_class = mmdp.policies.Tied([0, 0, 1])
    assert mmdp.solve(MODEL, 4, policy_class=policy_class).provenance.policy_class is policy_class
    qmdp = mmdp.solve(MODEL, 4, mmdp.methods.QMDP(n_episodes=4), backend="numpy")
    assert qmdp.provenance.policy_class.name == "belief"


# ---------------------------------------------------------------------- states without a group
@pytest.mark.parametrize(
    "groups",
    [[0, math.nan, math.nan], [0, None, None], ["a", "", " "], {0: 1, 1: None, 2: math.nan}],
)
def test_states_without_a_group_are_refused(groups: Any) -> None:
    with pytest.raises(mmdp.InputError, match="groups: no value for states 'ill' and 'dead'"):
        mmdp.policies.Tied(groups).get_group_ids(MODEL)


def test_a_blank_group_in_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("state,group\nwell,a\nill,\ndead, \n")
    with pytest.raises(mmdp.InputError, match="line 3: no group for state 'ill'"):
        mmdp.policies.Tied(file)


@pytest.mark.parametrize("groups", [{0: 1, 1: 2, 2: 1.0}, ["1", "01", "1.0"], [1, "x", 1.0]])
def test_a_whole_number_names_one_group_however_written(groups: Any) -> None:
    assert mmdp.policies.Tied(groups).get_group_ids(MODEL).tolist() == [0, 1, 0]


@pytest.mark.parametrize("orders", [{"states": 3}, {"actions": 3}, {"states": "well"}])
def test_an_order_that_is_no_list_is_refused(orders: dict[str, Any]) -> None:
    with pytest.raises(mmdp.InputError, match="must be a list"):
        mmdp.policies.Monotone(**orders)


def test_monotone_claims_depend_on_the_objective() -> None:
    mean = mmdp.solve(MODEL, 3, policy_class="monotone")
    worst = mmdp.solve(MODEL, 3, policy_class="monotone", objective="worst")
    assert mean.status is worst.status is mmdp.Status.LOCAL_OPTIMUM
    assert mean.status_text == "no other monotone rule at a single time improves it"
    assert "change in a single state and time that keeps it monotone" in worst.status_text


def test_monotone_policies_respect_allowed_actions() -> None:
    P = np.full((1, 2, 2, 2), 0.5)
    allowed = [[False, True], [True, True]]
    model = mmdp.MMDP(P, [[0.0, 0.0], [1.0, 0.0]], discount=0.5, allowed=allowed)
    solution = mmdp.solve(model, math.inf, policy_class=mmdp.policies.Monotone())
    assert solution.policy.actions.tolist() == [1, 1]


def test_an_order_may_be_an_iterator() -> None:
    monotone = mmdp.policies.Monotone(states=iter([1, 0]))
    model = mmdp.MMDP(np.full((1, 2, 2, 2), 0.5), [[0.0, 1.0], [1.0, 0.0]])
    assert mmdp.solve(model, 1, policy_class=monotone).policy.actions.tolist() == [[1, 0]]


@pytest.mark.parametrize("groups", [{"well", "ill"}, iter([0, 1, 0]), 3])
def test_groups_have_an_order(groups: object) -> None:
    with pytest.raises(mmdp.InputError, match="a list of one group per state"):
        mmdp.policies.Tied(groups)


def test_random_policies_take_each_allowed_action_equally_often():
    allowed = [[1, 1, 0, 1], [0, 0, 1, 1], [0, 1, 0, 0]]
    model = mmdp.MMDP(np.full((1, 3, 4, 3), 1 / 3), np.zeros((3, 4)), allowed=allowed)
    actions = mmdp.policies.MarkovPolicy.random(model, 4000, seed=0).actions
    shares = (actions[:, :, None] == np.arange(4)).mean(axis=0)
    expected = model.allowed / model.allowed.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, expected, atol=0.03)  # four standard errors


@pytest.mark.parametrize(
    "make_policy", [mmdp.policies.MarkovPolicy, mmdp.policies.StationaryPolicy]
)
@pytest.mark.parametrize("is_randomized", [False, True])
def test_tables_of_policies_are_read_only_copies(make_policy, is_randomized):
    table = np.full((2, 2), 0.5) if is_randomized else np.array([0, 1])
    table = table[None] if make_policy is mmdp.policies.MarkovPolicy else table
    policy = make_policy(**{"probabilities" if is_randomized else "actions": table})
    with pytest.raises(ValueError, match="read-only"):
        policy.table[...] = 1
    table[...] = 1
    assert (policy.table != 1).any()
