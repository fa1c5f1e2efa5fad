"""Policy files that were cut or edited are refused with the line; the whole ones are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mmdp

LABELED_POLICY = """time,state,action,idstate,idaction
0,well,wait,0,0
0,ill,treat,1,12
1,well,wait,0,0
1,ill,treat,1,12
"""


def make_model(with_labels: bool) -> mmdp.MMDP:
    names = {"states": ["well", "ill"], "actions": [f"a{i}" for i in range(13)]}
    names["actions"][0], names["actions"][12] = "wait", "treat"
    rows = np.full((1, 2, 13, 2), 0.5)
    return mmdp.MMDP(rows, np.zeros((2, 13)), **(names if with_labels else {}))


def check_refused(text: str, tmp_path: Path, model: mmdp.MMDP | None, match: str) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError, match=match) as error_info:
        mmdp.load_policy(file, model)
    assert str(error_info.value).startswith(str(file))


@pytest.mark.parametrize("with_labels", [True, False])
@pytest.mark.parametrize("with_model", [True, False])
def test_truncated_rows_are_refused(tmp_path: Path, with_labels: bool, with_model: bool) -> None:
    model, file = make_model(with_labels), tmp_path / "policy.csv"
    mmdp.save_policy(mmdp.policies.MarkovPolicy.for_model(model, [[0, 12], [0, 12]]), file)
    text = file.read_text()
    assert mmdp.load_policy(file, model if with_model else None).actions.tolist() == [[0, 12]] * 2
    for cut_index in range(len(text)):
        if (
            text[cut_index - 1] == "\n"
        ):  # between rows nothing tells a cut file from a shorter policy
            continue
        check_refused(text[:cut_index], tmp_path, model if with_model else None, ".")


def test_a_truncated_file_names_its_line(tmp_path: Path) -> None:
    labeled_model, id_text = make_model(True), "time,state,action\n0,0,0\n0,1,12\n"
    check_refused(
        LABELED_POLICY[:-6] + "\n",
        tmp_path,
        labeled_model,
        "line 5: an empty cell; fill it in",
    )
    check_refused(
        id_text[:-2], tmp_path, make_model(False), "line 3: the last line has no line break"
    )


@pytest.mark.parametrize("with_model", [True, False])
def test_an_id_that_contradicts_its_label_names_its_line(tmp_path: Path, with_model: bool) -> None:
    model = make_model(True) if with_model else None
    edited_text = LABELED_POLICY.replace("1,ill,treat,1,12", "1,ill,treat,1,0")
    check_refused(edited_text, tmp_path, model, "line 5: idaction is 0 for action 'treat', unlike")
    edited_text = LABELED_POLICY.replace("1,ill,treat,1,12", "1,ill,wait,1,12")
    check_refused(edited_text, tmp_path, model, "line 5: idaction is 12 for action 'wait', unlike")
    edited_text = LABELED_POLICY.replace("1,well,wait,0", "1,well,wait,1")
    check_refused(edited_text, tmp_path, model, "line 4: idstate is 1 for state 'well', unlike")


def test_ids_of_another_model_give_way_to_labels(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(LABELED_POLICY.replace(",12", ",1"))  # there "treat" was action 1
    assert mmdp.load_policy(file, make_model(True)).actions.tolist() == [[0, 12]] * 2


ODD_LABELS = (
    "a ",
    "a",
    " a",
    "",
    " ",
    "\n",
    "\t",
    "0",
    "1",
    "NA",
    "nan",
    'b"',
    "b,c",
    "\u00e9",
    "#",
)


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_every_label_comes_back(tmp_path: Path, suffix: str) -> None:
    """Whatever labels are called, and in whatever order the model has them."""
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    rng, file, n = np.random.default_rng(0), tmp_path / f"policy.{suffix}", len(ODD_LABELS)
    for states, actions in (
        (ODD_LABELS, ODD_LABELS),
        (rng.permutation(ODD_LABELS), ODD_LABELS[::-1]),
        (ODD_LABELS[3:4], ODD_LABELS[5:6]),
    ):
        shape = (1, len(states), len(actions), len(states))
        model = mmdp.MMDP(
            np.full(shape, 1 / len(states)), np.zeros(shape[1:3]), states=states, actions=actions
        )
        policy = mmdp.policies.MarkovPolicy.random(model, 2 * n)
        mmdp.save_policy(policy, file)
        for loaded in (mmdp.load_policy(file, model), mmdp.load_policy(file)):
            assert loaded.actions.tolist() == policy.actions.tolist()
            loaded.check(model)
        mmdp.save(model, tmp_path / "models")
        assert mmdp.load(tmp_path / "models").state_labels == model.state_labels


def test_blanks_around_plain_labels_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text("time, state, action\n0, well, wait\n0, ill, treat\n")
    assert mmdp.load_policy(file, make_model(True)).actions.tolist() == [[0, 12]]


def test_labels_that_look_like_ids_are_labels() -> None:
    rows = np.full((1, 2, 2, 2), 0.5)
    model, swapped_model = (
        mmdp.MMDP(rows, np.zeros((2, 2)), states=x) for x in (["0", "1"], ["1", "0"])
    )
    policy = mmdp.policies.MarkovPolicy.for_model(model, [[0, 1]])
    policy.check(model)
    with pytest.raises(mmdp.InputError, match="number 0 is '0' here, '1' there"):
        mmdp.evaluate(swapped_model, policy)


# ---------------------------------------------------------------------- one line, no traceback
def test_columns_given_twice_or_not_named(tmp_path: Path) -> None:
    repeated_column = "time,state,action,action\n0,0,0,0\n0,1,0,0\n"
    check_refused(
        repeated_column, tmp_path, None, "line 1: column 'action' is given twice; keep one"
    )
    check_refused(
        "0,0,0\n0,1,0\n", tmp_path, None, "column '0' is given twice.*must name the columns"
    )
    check_refused("0,well,wait\n0,ill,wait\n", tmp_path, None, "unknown column '0'.*state,action")


def test_an_overlong_field_is_refused(tmp_path: Path) -> None:
    huge = "x" * 140_000
    check_refused(f"time,state,action\n0,0,{huge}\n", tmp_path, None, "line 2: field larger than")
    check_refused(f"{huge},state,action\n0,0,0\n", tmp_path, None, "line 1: field larger than")


def test_a_long_label_does_not_fill_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(f"time,state,action\n0,well,wait\n0,{'x' * 100_000},wait\n")
    with pytest.raises(mmdp.InputError) as error_info:
        mmdp.load_policy(file, make_model(True))
    message = str(error_info.value)
    assert message.startswith(f"{file}, line 3: the model has no state 'xxx")
    assert len(message) < 1300


@pytest.mark.parametrize("depth", [10_000, 200_000])
def test_deeply_nested_json_is_refused(tmp_path: Path, depth: int) -> None:
    file = tmp_path / "policy.json"
    file.write_text("[" * depth + "]" * depth)
    with pytest.raises(mmdp.InputError, match="not a JSON file"):
        mmdp.load_policy(file)
    head = json.dumps({"format": "mmdp-policy-1"})[:-1]
    file.write_text(f'{head}, "policy": {"[" * 900}1{"]" * 900}}}')
    with pytest.raises(mmdp.InputError, match="policy actions"):
        mmdp.load_policy(file)


def test_a_table_without_an_unused_action_can_be_evaluated(tmp_path: Path) -> None:
    model = mmdp.MMDP(
        [[[[1.0]] * 3]] * 2, [[[1.0, 2.0, 3.0]]] * 2, actions=["wait", "treat", "operate"]
    )
    policy = mmdp.policies.MarkovPolicy.for_model(model, [[0], [2]])
    mmdp.save_policy(policy, tmp_path / "policy.csv")
    loaded = mmdp.load_policy(tmp_path / "policy.csv")
    assert mmdp.evaluate(model, loaded).mean == 4.0
    renamed = model.replace(actions=["wait", "treat", "cut"])
    with pytest.raises(mmdp.InputError, match="'operate' here, 'cut' there"):
        mmdp.evaluate(renamed, loaded)


def test_an_unused_action_whose_id_is_the_label_of_another(tmp_path: Path) -> None:
    model = mmdp.MMDP([[[[1.0]] * 3]], [[[1.0, 2.0, 3.0]]], actions=[1, 2, 3])
    mmdp.save_policy(mmdp.policies.MarkovPolicy.for_model(model, [[0], [2]]), tmp_path / "p.csv")
    loaded = mmdp.load_policy(tmp_path / "p.csv")
    assert loaded.action_labels == ("1", "action 1", "3")
    assert mmdp.evaluate(model, loaded).mean == 4.0


@pytest.mark.parametrize(
    ("suffix", "has_objective"), [("json", True), ("parquet", True), ("csv", False)]
)
def test_a_file_names_its_objective(tmp_path: Path, suffix: str, has_objective: bool) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    file, objective = tmp_path / f"policy.{suffix}", mmdp.objectives.WorstCase().on_regret()
    solution = mmdp.solve(make_model(False), 2, objective=objective)
    mmdp.save_policy(solution, file)
    assert mmdp.io.load_objective(file) == (objective if has_objective else None)
    for other_source in (
        solution.policy,
        mmdp.solve(make_model(False), 2, objective=lambda r, w: r @ w),
    ):
        mmdp.save_policy(other_source, file)
        assert mmdp.io.load_objective(file) is None


def test_a_table_warns_that_tree_splits_are_lost(tmp_path: Path) -> None:
    tree = mmdp.solve(make_model(False), 2, policy_class=mmdp.policies.Tree(2))
    with pytest.warns(
        mmdp.core.errors.FileNotWrittenWarning, match="policy.csv: a table holds the actions"
    ):
        mmdp.save_policy(tree, tmp_path / "policy.csv")


@pytest.mark.parametrize("text", ["[1]", '"policy"', "{}", '{"format": "other"}'])
def test_other_json_is_no_policy(tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)
    for load in (mmdp.load_policy, mmdp.io.load_objective):
        with pytest.raises(mmdp.InputError, match="not a policy saved by mmdp"):
            load(file)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    policy = mmdp.policies.MarkovPolicy([[0]])
    for call in (
        lambda: mmdp.load_policy(tmp_path),
        lambda: mmdp.save_policy(policy, tmp_path),
        lambda: mmdp.fit(tmp_path),
    ):
        with pytest.raises(mmdp.InputError, match="is a folder; give a file"):
            call()
    for call in (
        lambda: mmdp.load_policy(tmp_path / "policy.csv"),
        lambda: mmdp.load_policy(tmp_path / "policy.json"),
        lambda: mmdp.fit(tmp_path / "log.csv"),
        lambda: mmdp.io.load_groups(tmp_path / "groups.csv"),
    ):
        with pytest.raises(mmdp.InputError, match="no such file; check the path"):
            call()
