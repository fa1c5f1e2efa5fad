"""Files of policies with nodes: they come back, and those that are cut or edited are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.testing import random_controller, random_model

STATES, ACTIONS = ("well", "ill", "dead"), ("wait", "treat")


def model(labels: bool) -> mmdp.MMDP:
    plain = random_model(7, n_models=3, n_states=3, n_actions=2, horizon=0, masks=False)
    return plain.replace(states=STATES, actions=ACTIONS) if labels else plain


def policy(labels: bool) -> mmdp.MemoryPolicy:
    controller = random_controller(model(labels).problem, 4, 3, 0)
    return mmdp.MemoryPolicy.for_model(model(labels), controller)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_policy_comes_back(suffix: str, labels: bool, known: bool, tmp_path: Path) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"policy{suffix}"
    mmdp.save_policy(policy(labels), file)
    again = mmdp.load_policy(file, model(labels) if known else None)
    assert isinstance(again, mmdp.MemoryPolicy)
    assert again == policy(labels)
    assert again.state_labels == policy(labels).state_labels
    np.testing.assert_allclose(
        mmdp.evaluate(again, model(labels)).returns,
        mmdp.evaluate(policy(labels), model(labels)).returns,
    )


def test_states_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    mmdp.save_policy(policy(True), file)
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *reversed(rows)]) + "\n")
    assert mmdp.load_policy(file, model(True)) == policy(True)


def test_a_certificate_is_kept_with_its_policy(tmp_path: Path) -> None:
    small = model(True)
    solution = mmdp.solve(small, 4, policy=mmdp.Memory(nodes=2), certify=1)
    assert solution.certificate is not None
    assert solution.certificate.bounds == "history"
    assert solution.value <= solution.certificate.value
    file = tmp_path / "policy.json"
    mmdp.save_policy(solution, file)
    found = mmdp.io.load_certificate(file, small)
    assert found is not None
    assert found.value == solution.certificate.value


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows[:-1], "35 rows for 4 times, 3 states and 3 nodes; give every one"),
        (lambda rows: [*rows, rows[-1]], "line 38: time 3, state 2, node 2 is given twice"),
        (lambda rows: [rows[0].replace("yes", "maybe").replace(",0,0,", ",0,x,"), *rows[1:]],
         "node is 'x', not a number"),
        (lambda rows: [rows[0] + ",", *rows[1:]], "line 2"),
    ],
)  # fmt: skip
def test_a_table_that_was_cut_or_edited_is_refused(
    change: object, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.csv"
    mmdp.save_policy(policy(False), file)
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *change(rows)]) + "\n")  # type: ignore[operator]
    with pytest.raises(mmdp.InputError, match=told):
        mmdp.load_policy(file)


def test_a_file_of_the_wrong_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text("time,state,node,action\n0,0,0,0\n")
    with pytest.raises(mmdp.InputError, match="no column 'moves'; a policy has time,state,node"):
        mmdp.load_policy(file)
    stored = tmp_path / "policy.json"
    mmdp.save_policy(policy(False), stored)
    text = json.loads(stored.read_text())
    text["moves"][0][0][0] = "somewhere"
    stored.write_text(json.dumps(text))
    with pytest.raises(mmdp.InputError, match="moves 'somewhere' are not as in") as error:
        mmdp.load_policy(stored)
    assert "\n" not in str(error.value)
