"""The tree as a policy: what it asks about, how it reads, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.core.policies.tree import Feature, Leaf, Split, TreePolicy
from mmdp.core.text import TimeLabels

RNG = np.random.default_rng(1)
P, R = RNG.dirichlet(np.ones(4), size=(3, 4, 2)), RNG.normal(size=(3, 4, 2))
WARDS = ["home", "ward", "clinic", "dead"]
MODEL = mmdp.MMDP(P, R, discount=0.9, states=WARDS, actions=["wait", "treat"])
FRAME = pd.DataFrame({"age": [1, 2, 2, 9], "site": ["in", "out", "in", "off"]}, index=WARDS)


def read_columns(
    policy_class: mmdp.policies.Tree, model: mmdp.MMDP = MODEL
) -> dict[str, list[Any]]:
    return {x.name: x.values for x in policy_class.make_features(model, 3)}


def test_features_come_from_tables(tmp_path: Path) -> None:
    file = tmp_path / "features.csv"
    FRAME.iloc[::-1].to_csv(file, index_label="state")
    expected = {"age": [1, 2, 2, 9], "site": ["in", "out", "in", "off"], "time": [0, 1, 2]}
    by_state = FRAME.reset_index(names="state").sample(frac=1, random_state=0)
    mapping = {name: dict(FRAME[name]) for name in FRAME}
    for table in (FRAME, FRAME.iloc[::-1], by_state, mapping, file, str(file)):
        assert read_columns(mmdp.policies.Tree(features=table)) == expected
    assert read_columns(mmdp.policies.Tree(features={"age": [1, 2, 2, 9]}, use_time=False)) == {
        "age": [1, 2, 2, 9]
    }


def test_features_come_from_the_labels() -> None:
    def make_labeled_model(labels: list[str] | None) -> dict[str, list[Any]]:
        return read_columns(mmdp.policies.Tree(use_time=False), mmdp.MMDP(P, R, states=labels))

    assert make_labeled_model(None) == {"state": [0, 1, 2, 3]}
    assert make_labeled_model(["10", "20", "-5", "0.5"]) == {"state": [10, 20, -5, 0.5]}
    assert make_labeled_model([f"stock {k}" for k in (3, 1, 0, 2)]) == {"stock": [3, 1, 0, 2]}


def make_stock_model(**options: Any) -> mmdp.MMDP:
    """Stock that falls by one in the dry and by two in the wet, unless it is filled up."""

    def step(state: Any, action: Any) -> Any:
        falls = np.where(state["weather"] == "dry", 1, 2)
        stock = np.where(action["fill"], 3, state["stock"] - falls)
        stock = stock if options else np.maximum(stock, 0)
        return {"stock": stock, "weather": state["weather"]}, state["stock"] - 2.0 * action["fill"]

    states = {"stock": range(4), "weather": ["dry", "wet, cold"]}
    return mmdp.from_step(step, states=states, actions={"fill": [0, 1]}, discount=0.9, **options)


def test_features_come_from_named_axes(tmp_path: Path) -> None:
    expected = {
        "stock": [s for s in range(4) for _ in range(2)],
        "weather": ["dry", "wet, cold"] * 4,
    }
    model = make_stock_model()
    assert read_columns(mmdp.policies.Tree(use_time=False), model) == expected
    mmdp.save(model, tmp_path / "stock.csv")
    assert (
        read_columns(mmdp.policies.Tree(use_time=False), mmdp.load(tmp_path / "stock.csv"))
        == expected
    )
    assert read_columns(
        mmdp.policies.Tree(use_time=False), mmdp.MMDP(P, R, states=[f"k={s}" for s in "1357"])
    ) == {"k": [1, 3, 5, 7]}
    solution = mmdp.solve(model, 6, policy_class=mmdp.policies.Tree(4))
    assert "stock is at most" in solution.policy.describe()
    assert solution.policy.action(0, stock=0, weather="wet, cold") == "fill=1"


def test_a_state_without_decisions_needs_no_value() -> None:
    model = make_stock_model(is_terminal=lambda state: state["stock"] < 0)
    assert model.state_labels[-1] == "ended"
    assert read_columns(mmdp.policies.Tree(use_time=False), model)["stock"][-3:] == [3, 3, 0]
    unrestricted, tree = (
        mmdp.solve(model, 5, policy_class=x)
        for x in ("markov", mmdp.policies.Tree(8, use_time=True))
    )
    assert tree.value == pytest.approx(unrestricted.value)
    with pytest.raises(mmdp.InputError, match="such as 'dead'"):  # here an action matters
        mmdp.solve(
            mmdp.MMDP(P, R, states=["0", "1", "2", "dead"]), 3, policy_class=mmdp.policies.Tree(2)
        )


def test_a_tree_over_two_axes_is_found() -> None:
    """On, order is worth its price from a stock of 2; off, below."""

    def step(state: Any, action: Any) -> Any:
        is_profitable = (state["stock"] >= 2) == (state["mode"] == "on")
        return dict(state), action["order"] * np.where(is_profitable, 1.0, -1.0)

    axes: dict[str, Any] = {
        "states": {"stock": [0.5, 2, 7], "mode": ["on", "off"]},
        "actions": {"order": [0, 1]},
    }
    for is_terminal in (None, lambda state: state["stock"] > 9):
        model = mmdp.from_step(step, **axes, is_terminal=is_terminal)
        solution = mmdp.solve(model, 2, policy_class=mmdp.policies.Tree(4), backend="numpy")
        assert solution.policy.action(0, stock=2, mode="on") == "order=1"
        assert solution.restriction_cost == pytest.approx(0.0)
        assert "stock is at most 0.5" in solution.policy.describe()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (None, "nothing to split on: the states have names, such as 'home'"),
        ({"age": [1, 2]}, "feature 'age': 2 values for 4 states"),
        ({"age": [1, 2, None, 4]}, "feature 'age': no value for state 'clinic'"),
        ({"age": [1, 1, 1, 1]}, "the same in all states"),
        ({"time": [1, 2, 3, 4]}, "a feature is called 'time'"),
        ({"age": [1, 2, pd.NA, 4]}, "feature 'age': no value for state 'clinic'"),
        ({"age": ["1", "2", "NA", "4"]}, "feature 'age': no value for state 'clinic'"),
        ({"age": np.zeros((4, 2))}, "feature 'age': several values for one state"),
        ({"age": "abcd"}, "feature 'age' is one value, 'abcd'"),
        (FRAME["age"], "feature 'home' is one value, 1"),
        ({1: [1, 2, 3, 4], "1": [4, 3, 2, 1]}, "two features are called '1'"),
        (FRAME.iloc[:3], "feature 'age': no value for state 'dead'"),
        (FRAME.rename(index={"ward": "wardd"}), "unknown label 'wardd'"),
        ([1, 2, 3, 4], "features must be a table by state"),
        ("nowhere.csv", "nowhere.csv: no such file"),
    ],
)
def test_features_that_cannot_be_used(features: Any, message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message) as refused:
        mmdp.solve(MODEL, 3, policy_class=mmdp.policies.Tree(2, features))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("place,age\nhome,1\n", "no column 'state'"),
        ("state\nhome\n", "no column besides state"),
        ("state,age\nhome,1\nhome,2\n", "line 3: state 'home' is given twice"),
    ],
)
def test_files_of_features_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "features.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.policies.Tree(features=file)


def test_it_reads_as_a_rule() -> None:
    age, site = Feature.from_values("age", FRAME["age"]), Feature.from_values("site", FRAME["site"])
    time = Feature.from_times(TimeLabels(), 3)
    tree = Split(1, 1, Split(2, 0, Leaf(1), Leaf(0)), Split(0, 0, Leaf(0), Leaf(1)))
    table = [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 0]]
    policy = TreePolicy(mmdp.policies.MarkovPolicy.for_model(MODEL, table), tree, [age, site, time])
    assert policy.describe().splitlines() == [
        "if site is out:",
        "    if time is at most 0: treat",
        "    otherwise: wait",
        "otherwise:",
        "    if age is at most 1: wait",
        "    otherwise: treat",
        "where that is not allowed: wait",
    ]
    assert repr(policy).endswith("4 leaves on site, time, age)")
    always = TreePolicy(policy.table_policy, Leaf(1), [])
    assert always.describe() == "always: treat\nwhere that is not allowed: wait"


def test_units_go_with_the_number() -> None:
    count = Feature.from_values("CD4 count [cells/mm3]", [100, 200.5])
    assert count.format_condition(0) == "CD4 count is at most 100 cells/mm3"
    assert count.format_condition(0, is_true=False) == "CD4 count is above 100 cells/mm3"
    assert Feature.from_values("f(x)", [1, 2]).format_condition(0) == "f is at most 1 x"
    assert Feature.from_values("(kg)", [1, 2]).format_condition(0) == "(kg) is at most 1"
    assert (
        Feature.from_values("site (ward)", ["in", "out"]).format_condition(0, is_true=False)
        == "site (ward) is not in"
    )


def test_thresholds_are_printed_distinctly() -> None:
    feature = Feature.from_values("size", [0.1, 1.0, 1.0 + 1e-15, 1e13, 1e13 + 1])
    texts = [
        feature.format_condition(threshold_id).removeprefix("size is at most ")
        for threshold_id in range(4)
    ]
    assert texts == ["0.1", "1.0", "1", "10000000000000.0"]


def test_trees_are_accepted_like_tables() -> None:
    """A start of a search, a policy to bound, a rule whose table a measure reads."""
    tree = mmdp.solve(MODEL, 3, policy_class=mmdp.policies.Tree(2, FRAME), backend="numpy").policy
    unrestricted = mmdp.solve(MODEL, 3, mmdp.methods.CADP(init=tree, n_init=1), backend="numpy")
    assert unrestricted.value >= mmdp.evaluate(MODEL, tree).mean - 1e-12
    np.testing.assert_array_equal(tree.to_table(MODEL), tree.to_markov(3).to_table(MODEL))
    solution = mmdp.solve(MODEL, 3, policy_class=mmdp.policies.Tree(2, FRAME), backend="numpy")
    assert solution.markov_policy == solution.policy.to_markov(3)
    stationary = mmdp.solve(
        MODEL, math.inf, policy_class=mmdp.policies.Tree(2, FRAME), backend="numpy"
    )
    assert stationary.markov_policy is None
    np.testing.assert_array_equal(
        stationary.policy.probabilities.argmax(axis=1), stationary.policy.table
    )


def test_states_that_do_not_allow_the_action() -> None:
    allowed = np.ones((4, 2), dtype=bool)
    allowed[3, 1] = False
    model = mmdp.MMDP(
        P, np.add(R, [0, 5]), allowed=allowed, states=WARDS, actions=["wait", "treat"]
    )
    policy = mmdp.solve(model, 3, policy_class=mmdp.policies.Tree(1, FRAME)).policy
    policy.check(model)
    assert policy.describe() == "always: treat\nwhere that is not allowed: wait"


def test_files_match_names(tmp_path: Path) -> None:
    """A model whose states and actions come in another order gets the same rule."""
    policy = mmdp.solve(MODEL, 3, policy_class=mmdp.policies.Tree(4, FRAME)).policy
    file, order = tmp_path / "tree.json", [2, 0, 3, 1]
    mmdp.save_policy(policy, file)
    other = mmdp.MMDP(
        P[:, order][:, :, ::-1][:, :, :, order],
        R[:, order][:, :, ::-1],
        discount=0.9,
        states=[WARDS[s] for s in order],
        actions=["treat", "wait"],
    )
    loaded = mmdp.load_policy(file, other)
    assert loaded.describe() == policy.describe()
    assert mmdp.evaluate(other, loaded).mean == pytest.approx(mmdp.evaluate(MODEL, policy).mean)
    assert mmdp.load_policy(file).describe() == policy.describe()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"if": "age"', '"if": "height"', "height"),
        ('"then": 0', '"then": 9', "an action 9, which does not exist"),
        ('"age": [', '"age": [5, ', "does not have 4 values"),
    ],
)
def test_files_that_are_broken(tmp_path: Path, old: str, new: str, message: str) -> None:
    rows = mmdp.policies.MarkovPolicy.for_model(MODEL, [[0, 1, 1, 1]])
    policy = TreePolicy(
        rows, Split(0, 0, Leaf(0), Leaf(1)), [Feature.from_values("age", FRAME["age"])]
    )
    file = tmp_path / "tree.json"
    mmdp.save_policy(policy, file)
    text = " ".join(file.read_text(encoding="utf-8").split()).replace("[ ", "[")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.load_policy(file)


def test_its_class_has_its_horizon() -> None:
    stationary = mmdp.solve(MODEL, math.inf, policy_class=mmdp.policies.Tree(2, FRAME)).policy
    assert stationary.policy_class.is_infinite_horizon
    assert stationary.horizon == math.inf
    assert stationary.policy_class.describe(MODEL, 1) == "at most 2 leaves, by age and site"
    with pytest.raises(mmdp.InputError, match="leaves must be"):
        mmdp.policies.Tree(0)


def test_splits_of_a_continuous_axis_are_midpoints(tmp_path: Path) -> None:
    """What lies between two points goes to the nearest: so does the rule in words and in files."""
    model = mmdp.from_step(
        lambda state, action: ({"mass": state["mass"]}, action["cut"] * (state["mass"] - 4.0)),
        states={"mass": mmdp.Grid(0.0, 10.0, 5)},
        actions={"cut": [0, 1]},
        discount=0.9,
    )
    policy = mmdp.solve(model, 3, policy_class=mmdp.policies.Tree(2, use_time=False)).policy
    assert policy.describe() == "if mass is at most 3.75: cut=0\notherwise: cut=1"
    mmdp.save_policy(policy, tmp_path / "rule.json")
    loaded = mmdp.load_policy(tmp_path / "rule.json")
    assert loaded.describe() == policy.describe()
    mmdp.export(policy, tmp_path / "rule.py")
    assert "3.75" in (tmp_path / "rule.py").read_text(encoding="utf-8")


def test_splits_on_ages_are_splits_on_times() -> None:
    rows = mmdp.policies.MarkovPolicy([[0]] * 3 + [[1]] * 4, time_labels={"age": range(3, 5)})
    tree = TreePolicy(
        rows, Split(0, 2, Leaf(0), Leaf(1)), [Feature.from_times(rows.time_labels, 7)]
    )
    assert tree.describe() == "if age is at most 5: 0\notherwise: 1"
    threshold = int(tree.describe().split("at most ")[1].split(":")[0])
    by_age = [0 if age <= threshold else 1 for age in map(int, rows.time_labels.get_labels(7))]
    assert by_age == rows.actions[:, 0].tolist()
    assert tree.to_dict()["tree"] == {"if": "time", "at most": 2.0, "then": 0, "else": 1}
    assert (
        TreePolicy.from_dict(rows, {}, True, tree.to_dict()["tree"]).describe() == tree.describe()
    )
    for labels in ([22, 23, 0, 1], [40, 45, 60]):  # after 60 come decisions 3, 4, ...
        hours = mmdp.policies.MarkovPolicy(rows.actions, time_labels={"hour": labels})
        assert (
            tree.reorder(hours).describe()
            == f"if hour is at or before {labels[2]}: 0\notherwise: 1"
        )
    unlabeled = mmdp.policies.MarkovPolicy(rows.actions)
    assert tree.reorder(unlabeled).describe() == "if time is at most 2: 0\notherwise: 1"
    p, names = [[[[0.5, 0.5]]] * 2], ["age=1", "age=2"]
    duplicate_name = mmdp.MMDP(p, [[1.0]] * 2, states=names, time_labels=rows.time_labels)
    with pytest.raises(mmdp.InputError, match="a feature is called 'age', as the time is"):
        mmdp.policies.Tree().make_features(duplicate_name, 3)


def follow_text(text: str, state: int, allowed: set[str]) -> str:
    """What a reader of the rule does in a state, who sees which actions are allowed."""
    *lines, last = text.splitlines()
    depth, action_name = 0, ""
    for line in lines:
        indent = (len(line) - len(line.lstrip())) // 4
        condition, action = line.strip().split(":")
        is_true = condition == "otherwise" or state <= int(
            condition.removeprefix("if state is at most ")
        )
        if indent == depth and not action_name and is_true:
            depth, action_name = depth + 1, action.strip()
    ranked = last.removeprefix("where that is not allowed: ").removeprefix("the first allowed of ")
    return next(x for x in (action_name, *ranked.split(", ")) if x in allowed)


@pytest.mark.parametrize("seed", range(3))
def test_the_text_covers_forbidden_actions(tmp_path: Path, seed: int) -> None:
    """In one line, however many states that is; also if a model has its actions in another order"""
    rng = np.random.default_rng(seed)
    allowed = rng.random((60, 5)) < 0.5
    allowed[np.arange(60), rng.integers(5, size=60)] = True
    p, r = rng.dirichlet(np.ones(60), size=(3, 60, 5)), rng.normal(size=(3, 60, 5))
    model = mmdp.MMDP(p, r, allowed=allowed, actions=list("vwxyz"), states=map(str, range(60)))
    policy = mmdp.solve(
        model, 3, policy_class=mmdp.policies.Tree(3, use_time=False), backend="numpy"
    ).policy
    assert len(policy.describe()) < 300
    order = rng.permutation(5)
    other = mmdp.MMDP(
        p[:, :, order],
        r[:, :, order],
        allowed=allowed[:, order],
        states=model.state_labels,
        actions=["vwxyz"[a] for a in order],
    )
    mmdp.save_policy(policy, tmp_path / "tree.json")
    loaded = mmdp.load_policy(tmp_path / "tree.json", other)
    mmdp.save_policy(loaded, tmp_path / "again.json")
    for variant in (policy, loaded, mmdp.load_policy(tmp_path / "again.json")):
        for s in range(60):
            names = {"vwxyz"[a] for a in np.flatnonzero(allowed[s])}
            assert follow_text(variant.describe(), s, names) == variant.action(state=str(s))


def test_a_leaf_names_its_action() -> None:
    """The search may leave an action in a leaf that no state of it allows."""
    feature, names = Feature.from_values("x", [0, 1, 2, 3]), [f"x={i}" for i in range(4)]
    rows = mmdp.policies.StationaryPolicy([1, 1, 2, 2], state_labels=names)
    policy = mmdp.policies.TreePolicy(rows, Split(0, 1, Leaf(2), Leaf(2)), [feature])
    assert policy.tree == Split(0, 1, Leaf(1), Leaf(2))
    assert policy.fallback_actions == ()
    assert policy.describe() == "if x is at most 1: 1\notherwise: 2"
    mixed = mmdp.policies.TreePolicy(
        mmdp.policies.StationaryPolicy([0, 1, 2, 2]), policy.tree, [feature]
    )
    assert mixed.tree == policy.tree
    assert mixed.fallback_actions == (0,)
