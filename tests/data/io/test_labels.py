"""Labels of any text come back from every file; what no file can hold is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp

LABELS = [
    "a\rb",
    "\r",
    "a\r\nb",
    "\n",
    "\t",
    " x ",
    '"',
    "a,b",
    "'",
    "é",
    "😀",
    "\x1b[0m",
    "\u2028",
]
TRANSITIONS = np.full((2, 2, 2, 2), 0.5)


def make_model(label: str) -> mmdp.MMDP:
    return mmdp.MMDP(
        TRANSITIONS,
        [[1.0, 2.0], [3.0, 4.0]],
        states=[label, "z"],
        actions=[label, "y"],
        models=[label, "m"],
        name=label,
        unit=label,
        citation=label,
        time_labels={"age": [label, "later"]},
        initial=[1, 0],
    )


@pytest.mark.parametrize("name", ["folder", "m.csv", "m.npz", "m.parquet"])
@pytest.mark.parametrize("label", LABELS)
def test_labels_come_back(label: str, name: str, tmp_path: Path) -> None:
    mmdp.save(make_model(label), tmp_path / name)
    loaded = mmdp.load(tmp_path / name)
    assert loaded.state_labels == (label, "z")
    assert loaded.action_labels == (label, "y")
    assert loaded.model_labels == (label, "m")
    assert (loaded.name, loaded.unit, loaded.citation) == (label, label, label)
    assert loaded.time_labels.labels == (label, "later")


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
@pytest.mark.parametrize("label", LABELS)
def test_policies_know_the_labels(label: str, suffix: str, tmp_path: Path) -> None:
    model = make_model(label).replace(time_labels=None)
    policy = mmdp.solve(model, 2, "wsu", backend="numpy").policy
    mmdp.save_policy(policy, tmp_path / f"p.{suffix}")
    loaded = mmdp.load_policy(tmp_path / f"p.{suffix}", model)
    np.testing.assert_array_equal(loaded.actions, policy.actions)
    assert loaded.state_labels == (label, "z")


@pytest.mark.parametrize("label", ["\0", "a\0b", "a\0", "\ud800", "x\udfff"])
@pytest.mark.parametrize(
    "field",
    ["states", "actions", "models", "time_labels"],
)
def test_labels_that_files_cannot_store_are_refused(label: str, field: str) -> None:
    field_value: Any = {"age": [label, "b"]} if field == "time_labels" else [label, "b"]
    with pytest.raises(mmdp.InputError, match="a character that files cannot hold") as error_info:
        mmdp.MMDP(TRANSITIONS, np.zeros((2, 2)), **{field: field_value})
    assert repr(label) in str(error_info.value)


def test_labels_of_policies_are_checked_too() -> None:
    with pytest.raises(mmdp.InputError, match="a character that files cannot hold"):
        mmdp.policies.MarkovPolicy([[0, 1]], state_labels=["a\0", "b"])
