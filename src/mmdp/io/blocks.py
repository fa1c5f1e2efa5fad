"""The block formats of multiple-environment MDPs.

``NAME.transitions`` has a line ``s a s' p`` per transition and a blank line between
environments. ``NAME.rewards`` next to it has lines ``s a s' r`` or ``s a r``, in one block
for all environments or in one for each; what it leaves out earns 0.

Models of recommender systems (ReCA) have lines ``item r`` there: r is earned if the user takes the
item that was recommended. Actions are items 1..n, and a state is a number whose last digit in base
n is the item that was taken last, 0 at the start. The first block of their transitions is the mean
of the environments, for solvers of single MDPs. ``NAME.summary`` says that it is such a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import Remedy
from mmdp.io.columns import numbers_or_labels
from mmdp.io.ids import whole
from mmdp.io.reading import Source, must_be, numbers
from mmdp.io.rules import Layout
from mmdp.kernels.distributions import PRINTED
from mmdp.words import counted

TRANSITIONS = ("state", "action", "next_state", "probability")
_WHICH = Remedy("compat", "memdp", "reca", do="say which with")
REWARDS = {2: ("state",), 3: ("state", "action"), 4: ("state", "action", "next_state")}


@dataclass(frozen=True)
class Lines(Source):
    """Rows that come from lines of a text."""

    lines: Sequence[int] = ()

    def at(self, row: int) -> str:
        return f"line {self.lines[row]}"


def columns_of_blocks(path: Path, layout: Layout) -> tuple[dict[str, Any], Lines, dict[str, Any]]:
    """The columns of a table of transitions, by role, where its rows come from, and fields."""
    frame, source = _read(path, {4: TRANSITIONS})
    frame["probability"] = numbers(frame["probability"], "probability", source)
    beside, profiles = path.with_suffix(".rewards"), _profiles(path.with_suffix(".summary"))
    if layout == "reca" or (layout == "auto" and profiles is not None):
        return _recommender(frame, beside, source, profiles)
    if layout == "auto" and _begins_with_mean(frame):
        source.fail("the first block is the mean of the others; is it an environment too?",
                    remedies=[_WHICH])  # fmt: skip
    raw = {role: numbers_or_labels(frame[role], source) for role in TRANSITIONS[:3]}
    rewards = _rewards(beside, frame, layout) if beside.is_file() else 0.0
    return raw | {"model": frame["model"], "probability": frame["probability"],
                  "reward": pd.Series(rewards, frame.index)}, source, {}  # fmt: skip


def _profiles(path: Path) -> int | None:
    """The number of environments by the summary of a recommender; None if it is none."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r"^(\d+) user profiles$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _begins_with_mean(frame: pd.DataFrame) -> bool:
    """Whether the first block is the mean of all others, which differ."""
    p = frame.pivot_table(
        "probability", list(TRANSITIONS[:3]), "model", aggfunc="sum", fill_value=0.0
    ).to_numpy()
    if p.shape[1] < 3 or not np.ptp(p[:, 1:], axis=1).max() > PRINTED:
        return False
    return bool(np.abs(p[:, 0] - p[:, 1:].mean(axis=1)).max() <= PRINTED)


def _recommender(
    frame: pd.DataFrame, beside: Path, source: Lines, profiles: int | None
) -> tuple[dict[str, Any], Lines, dict[str, Any]]:
    """The environments after the first block; what is taken as recommended earns its reward."""
    count = int(frame["model"].max())
    if count < 1 or profiles not in (None, count):
        source.fail(f"{counted(count + 1, 'block')}; expected one of the mean and one for each of "
                    f"{'the' if profiles is None else profiles} environments")  # fmt: skip
    state, action, after = (_ids(frame, role, source) for role in TRANSITIONS[:3])
    n = int(action.max())
    source.refuse(action == 0, "action is 0; items count from 1")
    if not beside.is_file():
        Source(beside).fail("no such file; the rewards of items are read from it")
    table, items = _read(beside, {2: ("item", "reward")})
    item = _ids(table, "item", items)
    items.refuse((item == 0) | (item > n), f"no such item; the actions are 1 to {n}")
    items.refuse(table.duplicated("item"), "this reward is given twice; keep one")
    earned = np.zeros(n + 1)
    earned[item] = numbers(table["reward"], "reward", items)
    taken = np.where(after > 0, (after - 1) % n + 1, 0)
    keep = (frame["model"] > 0).to_numpy()
    columns = {
        "model": frame["model"] - 1, "state": state, "next_state": after,
        "probability": frame["probability"], "reward": np.where(taken == action, earned[action], 0),
    }  # fmt: skip
    kept: dict[str, Any] = {role: pd.Series(x)[keep] for role, x in columns.items()}
    names = [str(i) for i in range(1, n + 1)]
    kept["action"] = pd.Series(pd.Categorical(action[keep].astype(str), categories=names))
    lines = [line for line, one in zip(source.lines, keep, strict=True) if one]
    return kept, Lines(source.place, lines), {"initial": {0: 1.0}}


def _ids(frame: pd.DataFrame, role: str, source: Lines) -> npt.NDArray[np.int64]:
    return whole(numbers(frame[role], role, source), role, source)


def _rewards(path: Path, frame: pd.DataFrame, layout: Layout) -> Any:
    """(rows,) the reward of every transition."""
    wanted = {count: (*keys, "reward") for count, keys in REWARDS.items()}
    table, source = _read(path, wanted)
    keys = [name for name in table.columns if name not in ("reward", "model")]
    if keys == ["state"] and layout == "auto":
        source.fail("two words in a line: are these rewards of states, or of items that are "
                    "recommended?", remedies=[_WHICH])  # fmt: skip
    environments = int(table["model"].max()) + 1
    if environments > 1:
        keys.append("model")
        if environments != frame["model"].max() + 1:
            source.fail(f"{environments} blocks for {frame['model'].max() + 1} environments; "
                        "give one block for each, or one for all")  # fmt: skip
    source.refuse(table.duplicated(keys), "this reward is given twice; keep one")
    table["reward"] = numbers(table["reward"], "reward", source)
    known = pd.MultiIndex.from_frame(table[keys]).isin(pd.MultiIndex.from_frame(frame[keys]))
    source.refuse(~known, "no transition has this reward; check the ids")
    found = frame[keys].merge(table[[*keys, "reward"]], how="left", on=keys)
    return found["reward"].fillna(0.0).to_numpy()


def _read(path: Path, wanted: dict[int, tuple[str, ...]]) -> tuple[pd.DataFrame, Lines]:
    """Words by column, the block as ``model``; the first line says how many words there are."""
    must_be(path, "text", "a text file")
    rows: list[list[Any]] = []
    lines: list[int] = []
    block, gap = 0, False
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            gap = gap or (bool(rows) and not line.strip())
            continue
        expected = [len(rows[0]) - 1] if rows else list(wanted)
        if len(words) not in expected:
            layout = " or ".join(" ".join(wanted[n]) for n in expected)
            Source(f"{path}, line {number}").fail(f"{len(words)} words; expected {layout}")
        block, gap = block + gap, False
        rows.append([*words, block])
        lines.append(number)
    if not rows:
        Source(path).fail("no lines; expected one per entry")
    names = [*wanted[len(rows[0]) - 1], "model"]
    return pd.DataFrame(rows, columns=names), Lines(path, tuple(lines))
