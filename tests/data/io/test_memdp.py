"""The block format of multiple-environment MDPs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

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
    compat = "memdp" if rewards == "1 5\n" else None
    loaded = mmdp.load(
        write_transitions(tmp_path, rewards=rewards), discount=0.9, initial=[1, 0], compat=compat
    )
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
        (
            "x",
            "x",
            "0 1\n1 2\n",
            "two.rewards: two words in a line can be rewards of states or of recommended items; "
            "say which with --load-option compat=memdp or compat=reca",
        ),
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


# ---------------------------------------------------------------------- recommenders
ITEMS, HISTORY = 3, 2
ITEM_REWARDS = [1.0, 2.0, 5.0]


def make_histories() -> list[tuple[int, ...]]:
    """States by their numbers: what was taken last, the latest item at the end; 0: nothing yet."""
    full_histories = list(itertools.product(range(1, ITEMS + 1), repeat=HISTORY))
    return [(0, 0), *((0, i) for i in range(1, ITEMS + 1)), *full_histories]


def write_recommender(folder: Path, with_summary: bool = True) -> Any:
    """The files of three users, and (M, S, A, S') and (M, S, A) by hand."""
    rng, states = np.random.default_rng(0), make_histories()
    state_ids = {x: i for i, x in enumerate(states)}
    choice_probs = rng.dirichlet(np.ones(ITEMS), (3, len(states), ITEMS)).round(6)
    choice_probs[..., 0] = (1 - choice_probs[..., 1:].sum(axis=-1)).round(6)
    P, r = np.zeros((3, len(states), ITEMS, len(states))), np.zeros((3, len(states), ITEMS))
    for m, s, a, taken_item in np.ndindex(*choice_probs.shape):
        P[m, s, a, state_ids[(*states[s][1:], taken_item + 1)]] += choice_probs[m, s, a, taken_item]
        r[m, s, a] += choice_probs[m, s, a, taken_item] * ITEM_REWARDS[a] * (taken_item == a)
    blocks = [
        "".join(
            f"{s}\t{a + 1}\t{next_state}\t{p[s, a, next_state]:.17g}\n"
            for s, a, next_state in zip(*np.nonzero(p), strict=True)
        )
        for p in (P.mean(axis=0), *P)
    ]
    (folder / "shop.transitions").write_text("\n".join(blocks))
    (folder / "shop.rewards").write_text(
        "".join(f"{i + 1}\t{x}\n" for i, x in enumerate(ITEM_REWARDS))
    )
    if with_summary:
        lines = (
            f"{len(states)} States\n{ITEMS} Actions (Items)\n3 user profiles\n2 history length\n"
        )
        (folder / "shop.summary").write_text(lines)
    return P, r


@pytest.mark.parametrize("with_summary", [True, False])
def test_recommenders(tmp_path: Path, with_summary: bool) -> None:
    """The mean of the users is no user; an item pays if it is taken as recommended."""
    P, r = write_recommender(tmp_path, with_summary)
    if not with_summary:
        with pytest.raises(mmdp.InputError, match=r"mean of the others.*compat='memdp' or 'reca'"):
            mmdp.load(tmp_path / "shop.transitions")
    model = mmdp.load(tmp_path / "shop.transitions", compat=None if with_summary else "reca")
    np.testing.assert_allclose(model.transitions, P, atol=1e-12)
    np.testing.assert_allclose(model.rewards, r, atol=1e-12)
    assert model.initial.tolist() == [1.0] + [0.0] * 12
    assert model.action_labels == ("1", "2", "3")
    assert model.weights.tolist() == [1 / 3] * 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("shop.summary", "4 user profiles\n", "4 blocks; expected one of the mean and one for "),
        ("shop.rewards", "1 1\n4 1\n", "line 2: no such item; the actions are 1 to 3"),
        ("shop.rewards", "1 1\n1 1\n", "shop.rewards, line 2: this reward is given twice"),
        ("shop.rewards", "1 1 1\n", "shop.rewards, line 1: 3 words; expected item reward"),
        ("shop.transitions", "0 0 0 1\n\n" * 4, "line 1: action is 0; items count from 1"),
        ("shop.transitions", "a 1 a 1\n\n" * 4, "line 1: state is 'a', not a number"),
    ],
)
def test_bad_recommenders(tmp_path: Path, name: str, text: str, message: str) -> None:
    write_recommender(tmp_path)
    (tmp_path / name).write_text(text)
    result = run("info", tmp_path / "shop.transitions")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert message in result.err


def test_block_compat_is_for_transitions_files_only(tmp_path: Path) -> None:
    mmdp.save(mmdp.MMDP([[[[1.0]]]], [[2.0]]), tmp_path / "m.npz")
    with pytest.raises(mmdp.InputError, match="is for .transitions files"):
        mmdp.load(tmp_path / "m.npz", compat="reca")


def test_first_block_that_is_the_mean(tmp_path: Path) -> None:
    blocks = "\n".join(f"0 0 0 {p}\n0 0 1 {1 - p}\n1 0 1 1\n" for p in (0.5, 0.25, 0.75))
    file = write_transitions(tmp_path, blocks)
    with pytest.raises(mmdp.InputError, match="mean of the others"):
        mmdp.load(file)
    assert mmdp.load(file, compat="memdp").transitions[:, 0, 0, 0].tolist() == [0.5, 0.25, 0.75]
