"""Kinds of policy: how they are given, and what is said about wrong ones."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.policy import KINDS, read_kind

P = np.full((2, 3, 2, 3), 1 / 3)
MODEL = mmdp.MMDP(
    P, np.arange(12.0).reshape(2, 3, 2), discount=0.9, states=["well", "ill", "dead"],
    actions=["wait", "treat"],
)  # fmt: skip
VARYING = mmdp.MMDP(np.stack([P] * 4), np.ones((4, 2, 3, 2)), discount=0.9)


@pytest.mark.parametrize(
    "groups",
    [
        {"well": "a", "ill": "b", "dead": "a"}, {0: 1, 1: 2, 2: 1}, ["a", "b", "a"], [7, 3, 7],
        np.array([7, 3, 7]),
    ],
)  # fmt: skip
def test_groups_by_label_id_and_array(groups: Any) -> None:
    assert mmdp.Tied(groups).group_of(MODEL).tolist() == [0, 1, 0]


def test_groups_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("group,state\nx,dead\ny,ill\nx,well\n")
    for path in (file, str(file)):
        assert mmdp.Tied(path).group_of(MODEL).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("state,grup\nwell,a\n", "unknown column 'grup' (did you mean 'group'?)"),
        ("state\nwell\n", "no column 'group'"),
        ("state,group\nwell,a\nwell,b\n", "line 3: state 'well' is given twice"),
        ("", "the file is empty"),
    ],
)
def test_wrong_files_of_groups(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "groups.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError) as error:
        mmdp.Tied(file)
    assert told in str(error.value)
    assert str(file) in str(error.value)


def test_orders() -> None:
    kind = mmdp.Monotone(states=["dead", "well", "ill"], actions=["treat", "wait"])
    assert [x.tolist() for x in kind.chains(MODEL)] == [[2, 0, 1]]
    assert kind.order(MODEL).tolist() == [1, 0]
    chains = mmdp.Monotone(states=[["well", "ill"], "dead"]).chains(MODEL)
    assert [x.tolist() for x in chains] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("fixed", "open_"),
    [
        ({"ill": "treat"}, [[1, 1], [0, 1], [1, 1]]),
        ({"ill": ["treat", "wait"], 2: 0}, [[1, 1], [1, 1], [1, 0]]),
        ([-1, 1, -1], [[1, 1], [0, 1], [1, 1]]),
        ([[True, True], [False, True], [True, True]], [[1, 1], [0, 1], [1, 1]]),
    ],
)
def test_fixed_actions(fixed: Any, open_: list[list[int]]) -> None:
    assert mmdp.Fixed(fixed).mask(MODEL, 4).astype(int).tolist() == [open_]


def test_fixed_actions_by_time() -> None:
    table = np.full((4, 3), -1)
    table[2, 1] = 0
    assert mmdp.solve(MODEL, 4, policy=mmdp.Fixed(table)).policy.actions.tolist() == [
        [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1],
    ]  # fmt: skip


LIMITED = MODEL.replace(allowed=[[False, True], [True, False], [True, True]])
WRONG: dict[str, tuple[mmdp.MMDP, Any, str]] = {
    "unknown kind": (MODEL, "monoton", "no kind of policy is called 'monoton' (did you mean"),
    "no kind": (MODEL, 3, "policy must be the name of a kind of policy"),
    "tied by name": (MODEL, "tied", "a tied policy needs groups; pass policy=mmdp.Tied(groups)"),
    "fixed by name": (MODEL, mmdp.Fixed, "a fixed policy needs actions"),
    "group missing": (MODEL, mmdp.Tied({"well": 1, "ill": 1}), "leave out state 'dead'"),
    "group of nobody": (MODEL, mmdp.Tied({"wel": 1}), "no label 'wel' (did you mean 'well'?)"),
    "too few groups": (MODEL, mmdp.Tied([1, 2]), "groups of shape (2,) for 3 states"),
    "no common action": (LIMITED, mmdp.Tied([0, 0, 1]), "one group: states 'well' and 'ill'"),
    "state missing": (MODEL, mmdp.Monotone(states=["ill", "dead"]), "leaves out 'well'"),
    "state twice": (MODEL, mmdp.Monotone(states=[0, 1, 2, 1]), "names 'ill' twice"),
    "unknown state": (MODEL, mmdp.Monotone(states=["i", 1, 2]), "unknown state 'i'"),
    "state out of range": (MODEL, mmdp.Monotone(states=[0, 1, 3]), "unknown state '3'"),
    "action missing": (MODEL, mmdp.Monotone(actions=["wait"]), "order of actions leaves out"),
    "no monotone policy": (LIMITED, mmdp.Monotone(), "state 'ill' does not allow an action as"),
    "no action left": (LIMITED, mmdp.Fixed({"ill": "treat"}), "state 'ill' at time 0"),
    "no such action": (MODEL, mmdp.Fixed([5, 0, 0]), "fixed action 5 is neither -1 (free) nor"),
    "wrong shape": (MODEL, mmdp.Fixed([[0, 0, 0]] * 3), "fixed actions of shape (3, 3) fit"),
    "no ids": (MODEL, mmdp.Fixed([0.5, 0, 0]), "fixed actions must be a mapping"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kinds_are_one_clear_line(name: str) -> None:
    model, kind, told = WRONG[name]
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(model, 4, policy=kind)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_methods_that_cannot_name_those_that_can() -> None:
    with pytest.raises(mmdp.InputError) as error:
        mmdp.solve(MODEL, 4, "wsu", policy="monotone")
    reason = "it chooses each action by itself, which cannot make a monotone policy"
    assert str(error.value) == f"wsu cannot do this: {reason}; choose method='cadp'"
    with pytest.raises(mmdp.InputError, match="choose method='qmdp', 'mixts'"):
        mmdp.solve(MODEL, 4, policy="belief")
    qmdp = mmdp.solve(MODEL, 4, mmdp.QMDP(episodes=4), policy="belief", backend="numpy")
    assert qmdp.policy.name == "qmdp"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("markov", "a table of time and state has a last row"),
        ("memory", "their nodes move by tables of time"),
    ],
)
def test_a_kind_with_a_last_decision_has_no_infinite_horizon(kind: str, why: str) -> None:
    told = f"for an infinite horizon there are no {kind} policies: {why}"
    with pytest.raises(mmdp.InputError, match=told) as error:
        mmdp.solve(MODEL, math.inf, policy=kind)
    assert "policy='stationary'" in str(error.value)
    with pytest.raises(mmdp.InputError, match=told):
        read_kind(kind).over(math.inf)


def test_a_kind_for_ever_says_so_and_leaves_the_other_as_it_is() -> None:
    kind = mmdp.Tied([0, 0, 1])
    endless = kind.for_ever()
    assert (kind.endless, endless.endless) == (False, True)
    assert endless.title == "the group of the state"
    assert endless.change == "change of the action in a single group"
    assert mmdp.Monotone().for_ever().change == "change in a single state that keeps it monotone"
    assert pickle.loads(pickle.dumps(endless)).endless
    with pytest.raises(mmdp.InputError, match="a tied policy is for an infinite horizon"):
        endless.over(4)
    with pytest.raises(mmdp.InputError, match=r"fixed actions of shape \(4, 3\)"):
        mmdp.solve(MODEL, math.inf, policy=mmdp.Fixed(np.full((4, 3), -1)))


ENDLESS = {
    "tied": mmdp.Tied([0, 1, 0, 1]), "monotone": mmdp.Monotone(),
    "chains": mmdp.Monotone(states=[[2, 0, 1], [3]], actions=[2, 0, 1]),
    "fixed": mmdp.Fixed([-1, 1, -1, -1]),
}  # fmt: skip


def rules(name: str) -> list[tuple[int, ...]]:
    """All rules for four states and three actions that the kind allows."""
    allowed: dict[str, Callable[[tuple[int, ...]], bool]] = {
        "tied": lambda r: (r[0], r[1]) == (r[2], r[3]),
        "monotone": lambda r: list(r) == sorted(r),
        "chains": lambda r: (
            [*map([1, 2, 0].__getitem__, (r[2], r[0], r[1]))]
            == sorted(map([1, 2, 0].__getitem__, r[:3]))
        ),
        "fixed": lambda r: r[1] == 1,
    }
    return [r for r in itertools.product(range(3), repeat=4) if allowed[name](r)]


@pytest.mark.parametrize("objective", ["mean", "cvar:0.3"])
@pytest.mark.parametrize("name", ENDLESS)
def test_for_ever_the_best_rule_of_a_kind_is_nearly_always_found(
    name: str, objective: str, tmp_path: Path
) -> None:
    """Against all rules of the kind, whose values are sums over many decisions."""
    best = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        model = mmdp.MMDP(
            rng.dirichlet(np.full(4, 0.4), (3, 4, 3)), rng.normal(size=(3, 4, 3)), discount=0.6,
            initial=rng.dirichlet(np.ones(4)) if seed % 3 else [1, 0, 0, 0],
        )  # fmt: skip
        value = {
            rule: mmdp.evaluate(mmdp.StationaryPolicy(rule).over(60), model).value(objective)
            for rule in rules(name)
        }
        found = mmdp.solve(
            model, math.inf, mmdp.CADP(starts=3), policy=ENDLESS[name], objective=objective
        )
        rule = tuple(found.policy.actions.tolist())
        assert rule in value
        assert found.value == pytest.approx(value[rule], abs=1e-9)
        assert found.provenance.policy.name == ENDLESS[name].name
        best += found.value >= max(value.values()) - 1e-9
        assert found.price is not None
    assert best >= 3
    file = tmp_path / "rule.csv"
    mmdp.save_policy(found, file)
    again = mmdp.load_policy(file, model)
    assert isinstance(again, mmdp.StationaryPolicy)
    assert again == found.policy
    assert mmdp.evaluate(again, model).value(objective) == pytest.approx(found.value)


def test_for_ever_states_that_no_model_reaches_keep_to_the_kind() -> None:
    P = np.zeros((1, 3, 2, 3))
    P[..., 0] = 1.0  # all ways lead to the first state, where an episode begins
    model = mmdp.MMDP(P, [[[3.0, 0], [0, 2], [2, 0]]], initial=[1, 0, 0], discount=0.5)
    free = mmdp.solve(model, math.inf)
    assert free.policy.actions.tolist() == [0, 1, 0]
    tied = mmdp.solve(model, math.inf, policy=mmdp.Tied([0, 0, 1]))
    assert tied.policy.actions.tolist() == [0, 0, 0]
    rising = mmdp.solve(model, math.inf, policy=mmdp.Monotone())
    assert rising.policy.actions.tolist() in ([0, 1, 1], [0, 0, 0])
    assert rising.details["unreached"].tolist() == [False, True, True]


def test_every_kind_is_told_in_words_and_kept() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.title
    assert read_kind("markov").name == "markov"
    kind = mmdp.Tied([0, 0, 1])
    assert mmdp.solve(MODEL, 4, policy=kind).provenance.policy is kind
    qmdp = mmdp.solve(MODEL, 4, mmdp.QMDP(episodes=4), backend="numpy")
    assert qmdp.provenance.policy.name == "belief"


# ---------------------------------------------------------------------- states without a group
@pytest.mark.parametrize(
    "groups",
    [[0, math.nan, math.nan], [0, None, None], ["a", "", " "], {0: 1, 1: None, 2: math.nan}],
)
def test_states_without_a_group_are_refused(groups: Any) -> None:
    with pytest.raises(mmdp.InputError, match="the groups leave out states 'ill' and 'dead'"):
        mmdp.Tied(groups).group_of(MODEL)


def test_a_blank_group_in_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("state,group\nwell,a\nill,\ndead, \n")
    with pytest.raises(mmdp.InputError, match="line 3: no group for state 'ill'"):
        mmdp.Tied(file)


@pytest.mark.parametrize("groups", [{0: 1, 1: 2, 2: 1.0}, ["1", "01", "1.0"], [1, "x", 1.0]])
def test_a_whole_number_names_one_group_however_written(groups: Any) -> None:
    assert mmdp.Tied(groups).group_of(MODEL).tolist() == [0, 1, 0]


@pytest.mark.parametrize("given", [{"states": 3}, {"actions": 3}, {"states": "well"}])
def test_an_order_that_is_no_list_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(mmdp.InputError, match="must be a list"):
        mmdp.Monotone(**given)


def test_what_a_monotone_maximum_proves_depends_on_the_objective() -> None:
    mean = mmdp.solve(MODEL, 3, policy="monotone")
    worst = mmdp.solve(MODEL, 3, policy="monotone", objective="worst")
    assert mean.status is worst.status is mmdp.Status.LOCAL_OPTIMUM
    assert mean.outcome == "no other monotone rule at a single time improves it"
    assert "change in a single state and time that keeps it monotone" in worst.outcome


def test_a_rising_rule_leaves_room_for_lower_states_that_allow_only_high_actions() -> None:
    P = np.full((1, 2, 2, 2), 0.5)
    allowed = [[False, True], [True, True]]
    model = mmdp.MMDP(P, [[0.0, 0.0], [1.0, 0.0]], discount=0.5, allowed=allowed)
    found = mmdp.solve(model, math.inf, policy=mmdp.Monotone())
    assert found.policy.actions.tolist() == [1, 1]


def test_an_order_may_be_an_iterator() -> None:
    rising = mmdp.Monotone(states=iter([1, 0]))
    model = mmdp.MMDP(np.full((1, 2, 2, 2), 0.5), [[0.0, 1.0], [1.0, 0.0]])
    assert mmdp.solve(model, 1, policy=rising).policy.actions.tolist() == [[1, 0]]


@pytest.mark.parametrize("groups", [{"well", "ill"}, iter([0, 1, 0]), 3])
def test_groups_have_an_order(groups: object) -> None:
    with pytest.raises(mmdp.InputError, match="a list of one group per state"):
        mmdp.Tied(groups)
