"""StationaryPolicy: its files, its labels, and the same as a policy of time and state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp

MODEL = mmdp.MMDP(
    np.full((2, 3, 2, 3), 1 / 3), np.arange(12.0).reshape(2, 3, 2), discount=0.9,
    states=["well", "ill", "dead"], actions=["wait", "treat"],
)  # fmt: skip
LABELS = {"state_labels": MODEL.state_labels, "action_labels": MODEL.action_labels}
SHARP = mmdp.StationaryPolicy([1, 0, 1], **LABELS)
SOFT = mmdp.StationaryPolicy(probabilities=[[0.5, 0.5], [1, 0], [0.25, 0.75]], **LABELS)


@pytest.mark.parametrize("suffix", ["csv", "json"])
@pytest.mark.parametrize("policy", [SHARP, SOFT], ids=["sharp", "soft"])
def test_files_keep_it(tmp_path: Path, suffix: str, policy: mmdp.StationaryPolicy) -> None:
    file = tmp_path / f"rule.{suffix}"
    mmdp.save_policy(policy, file)
    for model in (MODEL, None):
        again = mmdp.load_policy(file, model)
        assert isinstance(again, mmdp.StationaryPolicy)
        assert again == policy
        assert again.row.state_labels == policy.row.state_labels
    assert mmdp.evaluate(again, MODEL).mean == mmdp.evaluate(policy, MODEL).mean


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_proof_is_kept_with_it(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rule.{suffix}"
    solution = mmdp.solve(MODEL, float("inf"), "exact")
    mmdp.save_policy(solution, file)
    proven = mmdp.io.load_certificate(file, MODEL)
    assert proven is not None
    assert solution.certificate is not None
    assert proven.bounds == solution.certificate.bounds
    assert proven.value == solution.bound
    mmdp.save_policy(mmdp.solve(MODEL, 3), file)
    assert isinstance(mmdp.load_policy(file, MODEL), mmdp.MarkovPolicy)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("state,action\nwell,wait\nill,wait\n", "no action for time 0, state 'dead'"),
        ("state,action\nwell,wait\nwell,wait\nill,treat\ndead,wait\n", "given twice"),
        ("state,action\nwell,go\nill,wait\ndead,wait\n", "the model has no action 'go'"),
        ("state\nwell\n", "no column 'action'; a policy has [time,]state,action"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "rule.csv"
    file.write_text(text)
    with pytest.raises(mmdp.InputError) as error:
        mmdp.load_policy(file, MODEL)
    assert told in str(error.value)


def test_what_it_says() -> None:
    assert repr(SHARP) == "StationaryPolicy(3 states, 2 actions, deterministic)"
    assert SHARP.to_frame().columns.tolist() == ["state", "action", "idstate", "idaction"]
    assert SHARP.to_frame()["action"].tolist() == ["treat", "wait", "treat"]
    assert SHARP.over(2).actions.tolist() == [[1, 0, 1], [1, 0, 1]]
    assert SOFT.over(2).probabilities[1].tolist() == SOFT.probabilities.tolist()
    assert SHARP != SOFT
    with pytest.raises(AttributeError):
        SHARP.row = None  # type: ignore[assignment]
    with pytest.raises(mmdp.InputError, match="one row, not 2"):
        mmdp.StationaryPolicy.of_row(SHARP.over(2))
    with pytest.raises(mmdp.InputError, match="the policy is for 2 states"):
        mmdp.evaluate(mmdp.StationaryPolicy([0, 1]), MODEL)
