"""Labels of any text come back from every file; what no file can hold is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp

TEXTS = ["a\rb", "\r", "a\r\nb", "\n", "\t", " x ", '"', "a,b", "'", "é", "😀", "\x1b[0m", "\u2028"]
P = np.full((2, 2, 2, 2), 0.5)


def model(text: str) -> mmdp.MMDP:
    return mmdp.MMDP(
        P, [[1.0, 2.0], [3.0, 4.0]], states=[text, "z"], actions=[text, "y"], models=[text, "m"],
        name=text, unit=text, citation=text, times={"age": [text, "later"]}, initial=[1, 0],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["folder", "m.csv", "m.npz", "m.parquet"])
@pytest.mark.parametrize("text", TEXTS)
def test_labels_come_back(text: str, name: str, tmp_path: Path) -> None:
    mmdp.save(model(text), tmp_path / name)
    back = mmdp.load(tmp_path / name)
    assert back.state_labels == (text, "z")
    assert back.action_labels == (text, "y")
    assert back.model_labels == (text, "m")
    assert (back.name, back.unit, back.citation) == (text, text, text)
    assert back.times.labels == (text, "later")


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
@pytest.mark.parametrize("text", TEXTS)
def test_policies_know_the_labels(text: str, suffix: str, tmp_path: Path) -> None:
    one = model(text).replace(times=None)
    policy = mmdp.solve(one, 2, "wsu", backend="numpy").policy
    mmdp.save_policy(policy, tmp_path / f"p.{suffix}")
    back = mmdp.load_policy(tmp_path / f"p.{suffix}", one)
    np.testing.assert_array_equal(back.actions, policy.actions)
    assert back.state_labels == (text, "z")


@pytest.mark.parametrize("text", ["\0", "a\0b", "a\0", "\ud800", "x\udfff"])
@pytest.mark.parametrize(
    "field", ["states", "actions", "models", "times", "name", "unit", "citation", "parameters"]
)
def test_what_no_file_can_hold_is_refused(text: str, field: str) -> None:
    given: Any = {"parameters": {text: [1.0, 2.0]}, "times": {"age": [text, "b"]}}.get(field)
    given = given or (text if field in ("name", "unit", "citation") else [text, "b"])
    with pytest.raises(mmdp.InputError, match="a character that files cannot hold") as caught:
        mmdp.MMDP(P, np.zeros((2, 2)), **{field: given})
    assert repr(text) in str(caught.value)


def test_labels_of_policies_are_checked_too() -> None:
    with pytest.raises(mmdp.InputError, match="a character that files cannot hold"):
        mmdp.MarkovPolicy([[0, 1]], state_labels=["a\0", "b"])
