"""Files of policies with nodes: they come back, and those that are cut or edited are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import make_random_model
from tests.instances import make_random_controller

STATES, ACTIONS = ("well", "ill", "dead"), ("wait", "treat")


def make_model(with_labels: bool) -> mmdp.MMDP:
    unlabeled = make_random_model(
        7, n_models=3, n_states=3, n_actions=2, horizon=0, has_masks=False
    )
    return unlabeled.replace(states=STATES, actions=ACTIONS) if with_labels else unlabeled


def make_policy(with_labels: bool) -> mmdp.policies.MemoryPolicy:
    controller = make_random_controller(make_model(with_labels).problem, 4, 3, 0)
    return mmdp.policies.MemoryPolicy.for_model(make_model(with_labels), controller)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize("with_model", [False, True])
def test_a_policy_comes_back(
    suffix: str, with_labels: bool, with_model: bool, tmp_path: Path
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"policy{suffix}"
    mmdp.save_policy(make_policy(with_labels), file)
    loaded = mmdp.load_policy(file, make_model(with_labels) if with_model else None)
    assert isinstance(loaded, mmdp.policies.MemoryPolicy)
    assert loaded == make_policy(with_labels)
    assert loaded.state_labels == make_policy(with_labels).state_labels
    np.testing.assert_allclose(
        mmdp.evaluate(make_model(with_labels), loaded).returns,
        mmdp.evaluate(make_model(with_labels), make_policy(with_labels)).returns,
    )


def test_states_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    mmdp.save_policy(make_policy(True), file)
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *reversed(rows)]) + "\n")
    assert mmdp.load_policy(file, make_model(True)) == make_policy(True)


def test_a_certificate_is_kept_with_its_policy(tmp_path: Path) -> None:
    model = make_model(True)
    solution = mmdp.solve(model, 4, policy_class=mmdp.policies.Memory(max_nodes=2), certify_time=1)
    assert solution.certificate is not None
    assert solution.certificate.scope == "history"
    assert solution.value <= solution.certificate.value
    file = tmp_path / "policy.json"
    mmdp.save_policy(solution, file)
    certificate = mmdp.io.load_certificate(file, model)
    assert certificate is not None
    assert certificate.value == solution.certificate.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows[:-1],
            "no action for time 3, state 2, node 2; give every state at every time",
        ),
        (lambda rows: [*rows, rows[-1]], "line 38: time 3, state 2, node 2 is given twice"),
        (
            lambda rows: [rows[0].replace("yes", "maybe").replace(",0,0,", ",0,x,"), *rows[1:]],
            "node is 'x', not a number",
        ),
        (lambda rows: [rows[0] + ",0", *rows[1:]], "line 2: more fields than the header"),
    ],
)
def test_a_table_that_was_cut_or_edited_is_refused(
    change: object, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.csv"
    mmdp.save_policy(make_policy(False), file)
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *change(rows)]) + "\n")  # type: ignore[operator]
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.load_policy(file)


def test_an_invalid_controller_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text("time,state,node,action\n0,0,0,0\n")
    with pytest.raises(mmdp.InputError, match="no column 'moves', 'start'; a policy has time"):
        mmdp.load_policy(file)
    json_path = tmp_path / "policy.json"
    mmdp.save_policy(make_policy(False), json_path)
    document = json.loads(json_path.read_text())
    document["moves"][0][0][0] = "somewhere"
    json_path.write_text(json.dumps(document))
    with pytest.raises(mmdp.InputError, match="moves 'somewhere' are not as in") as error:
        mmdp.load_policy(json_path)
    assert "\n" not in str(error.value)
