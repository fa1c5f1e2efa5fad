"""The block format of multiple-environment MDPs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mmdp
from tests.cli.calls import run

TRANSITIONS = """# environment 1
0 0 0 0.5
0 0 1 0.5
0 1 1 1
1 0 1 1.0
1 1 0 1

# environment 2

0 0 1 1
0 1  0 .25
0 1 1\t.75
1 0 1 1.0
1 1 0 1
"""
P = [[[[0.5, 0.5], [0, 1]], [[0, 1], [1, 0]]], [[[0, 1], [0.25, 0.75]], [[0, 1], [1, 0]]]]


def write_transitions(folder: Path, text: str = TRANSITIONS, rewards: str | None = None) -> Path:
    (folder / "two.transitions").write_text(text)
    if rewards is not None:
        (folder / "two.rewards").write_text(rewards)
    return folder / "two.transitions"


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (None, np.zeros((2, 2, 2))),
        ("1 5\n", [[[0, 0], [5, 5]], [[0, 0], [5, 5]]]),
        ("0 1 2\n1 1 -1\n", [[[0, 2], [0, -1]], [[0, 2], [0, -1]]]),
        ("0 0 1 8\n", [[[4, 0], [0, 0]], [[8, 0], [0, 0]]]),
        ("0 1 2\n\n1 0 3", [[[0, 2], [0, 0]], [[0, 0], [3, 0]]]),
    ],
)
def test_blocks_are_models(tmp_path: Path, rewards: str | None, expected: object) -> None:
    loaded = mmdp.load(write_transitions(tmp_path, rewards=rewards), discount=0.9, initial=[1, 0])
    np.testing.assert_array_equal(loaded.transitions, P)
    np.testing.assert_array_equal(loaded.rewards, expected)
    assert loaded.discount == 0.9


def test_labels_and_a_rewards_file(tmp_path: Path) -> None:
    text = (
        TRANSITIONS.replace("\n0 ", "\nup ").replace(" 0 0.5", " up 0.5").replace(" 0 1", " up 1")
    )
    text = "\n".join(
        " ".join(
            [
                {"0": "up", "1": "down"}.get(x, x) if i in (0, 2) else x
                for i, x in enumerate(line.split())
            ]
        )
        if line[:1] in "01"
        else line
        for line in TRANSITIONS.splitlines()
    )
    (tmp_path / "initial.csv").write_text("state,probability\ndown,1\n")
    loaded = mmdp.load(write_transitions(tmp_path, text, "down 1 4\n"))
    assert loaded.state_labels == ("up", "down")
    assert loaded.initial.tolist() == [0, 1]
    np.testing.assert_array_equal(loaded.rewards[:, 1, 1], [4, 4])
    np.testing.assert_array_equal(loaded.transitions, P)
    assert mmdp.load(tmp_path / "two.transitions", sidecars=False).initial.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("old", "new", "rewards", "message"),
    [
        ("0 0 0 0.5", "0 0 0", None, "two.transitions, line 2: 3 words; expected state action"),
        ("0 0 0 0.5", "0 0 0 x", None, "line 2: probability is 'x', not a number"),
        ("0 0 0 0.5", "0 0 0 -1", None, "line 2: negative probability -1"),
        ("0 0 0 0.5", "0 0 0 0.4", None, "sum to 0.9"),
        (
            "0 1  0 .25",
            "0 0 1 .25",
            None,
            "line 11: model 1, state 0, action 0, next state 1 is given again (first at line 10",
        ),
        ("1 1 0 1\n\n", "1 7 0 1\n\n", None, "line 6: action is 7 but no action id is 2"),
        (TRANSITIONS, "# nothing\n", None, "no lines; expected one per entry"),
        ("x", "x", "0 1 1\n0 1 2\n", "two.rewards, line 2: this reward is given twice"),
        ("x", "x", "0 1 x\n", "two.rewards, line 1: reward is 'x', not a number"),
        ("x", "x", "0 9 1\n", "two.rewards, line 1: no transition has this reward"),
        ("x", "x", "0 1 1\n\n0 1 1\n\n0 1 1", "3 blocks for 2 environments"),
        ("x", "x", "0 1\n0 1 1", "two.rewards, line 2: 3 words; expected state reward"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, old: str, new: str, rewards: str | None, message: str
) -> None:
    result = run("info", write_transitions(tmp_path, TRANSITIONS.replace(old, new), rewards))
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert message in result.err


def test_rewards_without_transitions_are_refused(tmp_path: Path) -> None:
    write_transitions(tmp_path, rewards="0 1\n")
    assert "belongs to two.transitions" in run("info", tmp_path / "two.rewards").err


def test_recommenders_are_refused(tmp_path: Path) -> None:
    """Their first block is the mean of the others, and their rewards are by item."""
    file = write_transitions(tmp_path)
    (tmp_path / "two.summary").write_text("2 user profiles\n")
    with pytest.raises(mmdp.InputError, match="recommender"):
        mmdp.load(file)
