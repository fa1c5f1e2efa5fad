"""The block format of multiple-environment MDPs.

``NAME.transitions`` has a line ``s a s' p`` per transition and a blank line between
environments. ``NAME.rewards`` next to it has lines ``s a s' r``, ``s a r`` or ``s r``, in one block
for all environments or in one for each; what it leaves out earns 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mmdp.io.columns import numbers_or_labels
from mmdp.io.reading import Source, must_be, numbers

TRANSITIONS = ("state", "action", "next_state", "probability")
REWARDS = {2: ("state",), 3: ("state", "action"), 4: ("state", "action", "next_state")}


@dataclass(frozen=True)
class Lines(Source):
    """Rows that come from lines of a text."""

    lines: Sequence[int] = ()

    def at(self, row: int) -> str:
        return f"line {self.lines[row]}"


def columns_of_blocks(path: Path) -> tuple[dict[str, Any], Lines]:
    """The columns of a table of transitions, by role, and where its rows come from."""
    frame, source = _read(path, {4: TRANSITIONS})
    frame["reward"] = 0.0
    beside = path.with_suffix(".rewards")
    if beside.is_file():
        frame["reward"] = _rewards(beside, frame)
    raw = {role: numbers_or_labels(frame[role], source) for role in TRANSITIONS[:3]}
    probability = numbers(frame["probability"], "probability", source)
    return raw | {"model": frame["model"], "probability": probability,
                  "reward": frame["reward"]}, source  # fmt: skip


def _rewards(path: Path, frame: pd.DataFrame) -> Any:
    """(rows,) the reward of every transition."""
    wanted = {count: (*keys, "reward") for count, keys in REWARDS.items()}
    table, source = _read(path, wanted)
    keys = [name for name in table.columns if name not in ("reward", "model")]
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
