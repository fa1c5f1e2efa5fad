"""Policy files that were cut or edited are refused with the line; the whole ones are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mmdp

LABELLED = """time,state,action,idstate,idaction
0,well,wait,0,0
0,ill,treat,1,12
1,well,wait,0,0
1,ill,treat,1,12
"""


def model(labels: bool) -> mmdp.MMDP:
    names = {"states": ["well", "ill"], "actions": [f"a{i}" for i in range(13)]}
    names["actions"][0], names["actions"][12] = "wait", "treat"
    rows = np.full((1, 2, 13, 2), 0.5)
    return mmdp.MMDP(rows, np.zeros((2, 13)), **(names if labels else {}))


def refused(text: str, tmp_path: Path, problem: mmdp.MMDP | None, match: str) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError, match=match) as caught:
        mmdp.load_policy(file, problem)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_no_cut_inside_a_row_is_read(tmp_path: Path, labels: bool, given: bool) -> None:
    problem, file = model(labels), tmp_path / "policy.csv"
    mmdp.save_policy(mmdp.MarkovPolicy.for_model(problem, [[0, 12], [0, 12]]), file)
    text = file.read_text()
    assert mmdp.load_policy(file, problem if given else None).actions.tolist() == [[0, 12]] * 2
    for cut in range(len(text)):
        if text[cut - 1] == "\n":  # between rows nothing tells a cut file from a shorter policy
            continue
        refused(text[:cut], tmp_path, problem if given else None, ".")


def test_a_cut_names_its_line(tmp_path: Path) -> None:
    labelled, numbered = model(True), "time,state,action\n0,0,0\n0,1,12\n"
    refused(LABELLED[:-6] + "\n", tmp_path, labelled, "line 5: an empty cell; is the line cut?")
    refused(numbered[:-2], tmp_path, model(False), "line 3: the last line does not end")


@pytest.mark.parametrize("given", [True, False])
def test_an_id_that_contradicts_its_label_names_its_line(tmp_path: Path, given: bool) -> None:
    problem = model(True) if given else None
    edited = LABELLED.replace("1,ill,treat,1,12", "1,ill,treat,1,0")
    refused(edited, tmp_path, problem, "line 5: idaction is 0 for action 'treat', unlike")
    edited = LABELLED.replace("1,ill,treat,1,12", "1,ill,wait,1,12")
    refused(edited, tmp_path, problem, "line 5: idaction is 12 for action 'wait', unlike")
    edited = LABELLED.replace("1,well,wait,0", "1,well,wait,1")
    refused(edited, tmp_path, problem, "line 4: idstate is 1 for state 'well', unlike")


def test_ids_of_another_model_give_way_to_labels(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(LABELLED.replace(",12", ",1"))  # there "treat" was action 1
    assert mmdp.load_policy(file, model(True)).actions.tolist() == [[0, 12]] * 2


ODD = ("a ", "a", " a", "", " ", "\n", "\t", "0", "1", "NA", "nan", 'b"', "b,c", "\u00e9", "#")


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_every_label_comes_back(tmp_path: Path, ending: str) -> None:
    """Whatever labels are called, and in whatever order the model has them."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    rng, file, n = np.random.default_rng(0), tmp_path / f"policy.{ending}", len(ODD)
    for states, actions in ((ODD, ODD), (rng.permutation(ODD), ODD[::-1]), (ODD[3:4], ODD[5:6])):
        shape = (1, len(states), len(actions), len(states))
        problem = mmdp.MMDP(
            np.full(shape, 1 / len(states)), np.zeros(shape[1:3]), states=states, actions=actions
        )
        policy = mmdp.MarkovPolicy.random(problem, 2 * n)
        mmdp.save_policy(policy, file)
        for found in (mmdp.load_policy(file, problem), mmdp.load_policy(file)):
            assert found.actions.tolist() == policy.actions.tolist()
            found.check(problem)
        mmdp.save(problem, tmp_path / "models")
        assert mmdp.load(tmp_path / "models").state_labels == problem.state_labels


def test_blanks_around_plain_labels_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text("time, state, action\n0, well, wait\n0, ill, treat\n")
    assert mmdp.load_policy(file, model(True)).actions.tolist() == [[0, 12]]


def test_labels_that_look_like_ids_are_labels() -> None:
    rows = np.full((1, 2, 2, 2), 0.5)
    one, other = (mmdp.MMDP(rows, np.zeros((2, 2)), states=x) for x in (["0", "1"], ["1", "0"]))
    policy = mmdp.MarkovPolicy.for_model(one, [[0, 1]])
    policy.check(one)
    with pytest.raises(mmdp.InputError, match="number 0 is '0' here, '1' there"):
        mmdp.evaluate(policy, other)


# ---------------------------------------------------------------------- one line, no traceback
def test_columns_given_twice_or_not_named(tmp_path: Path) -> None:
    twice = "time,state,action,action\n0,0,0,0\n0,1,0,0\n"
    refused(twice, tmp_path, None, "line 1: column 'action' is given twice; keep one")
    refused("0,0,0\n0,1,0\n", tmp_path, None, "column '0' is given twice.*must name the columns")
    refused("0,well,wait\n0,ill,wait\n", tmp_path, None, "unknown column '0'.*state,action")


def test_a_field_without_end(tmp_path: Path) -> None:
    huge = "x" * 140_000
    refused(f"time,state,action\n0,0,{huge}\n", tmp_path, None, "line 2: field larger than")
    refused(f"{huge},state,action\n0,0,0\n", tmp_path, None, "line 1: field larger than")


def test_a_long_label_does_not_fill_the_screen(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(f"time,state,action\n0,well,wait\n0,{'x' * 100_000},wait\n")
    with pytest.raises(mmdp.InputError) as caught:
        mmdp.load_policy(file, model(True))
    message = str(caught.value)
    assert message.startswith(f"{file}, line 3: the model has no state 'xxx")
    assert len(message) < 1300


@pytest.mark.parametrize("depth", [10_000, 200_000])
def test_json_as_deep_as_the_sea(tmp_path: Path, depth: int) -> None:
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
    policy = mmdp.MarkovPolicy.for_model(model, [[0], [2]])
    mmdp.save_policy(policy, tmp_path / "policy.csv")
    loaded = mmdp.load_policy(tmp_path / "policy.csv")
    assert mmdp.evaluate(loaded, model).mean == 4.0
    renamed = model.replace(actions=["wait", "treat", "cut"])
    with pytest.raises(mmdp.InputError, match="'operate' here, 'cut' there"):
        mmdp.evaluate(loaded, renamed)


@pytest.mark.parametrize(("ending", "keeps"), [("json", True), ("parquet", True), ("csv", False)])
def test_a_file_names_its_objective(tmp_path: Path, ending: str, keeps: bool) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    file, goal = tmp_path / f"policy.{ending}", mmdp.WorstCase().of_regret()
    solution = mmdp.solve(model(False), 2, objective=goal)
    mmdp.save_policy(solution, file)
    assert mmdp.io.load_objective(file) == (goal if keeps else None)
    for other in (solution.policy, mmdp.solve(model(False), 2, objective=lambda r, w: r @ w)):
        mmdp.save_policy(other, file)
        assert mmdp.io.load_objective(file) is None


def test_a_table_says_that_it_loses_the_questions_of_a_tree(tmp_path: Path) -> None:
    tree = mmdp.solve(model(False), 2, policy=mmdp.Tree(2))
    with pytest.warns(mmdp.errors.NotWritten, match="policy.csv: a table holds the actions"):
        mmdp.save_policy(tree, tmp_path / "policy.csv")
