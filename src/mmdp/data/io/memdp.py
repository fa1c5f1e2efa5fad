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

from mmdp.core.errors import Remedy
from mmdp.core.kernels.distributions import PRINTED_TOLERANCE
from mmdp.core.text import pluralize
from mmdp.data.io.columns import parse_numbers_or_labels
from mmdp.data.io.ids import parse_ids
from mmdp.data.io.options import MemdpLayout
from mmdp.data.io.reading import TableSource, check_file_type, parse_floats

TRANSITION_COLUMNS = ("state", "action", "next_state", "probability")
_COMPAT_REMEDY = Remedy("compat", "memdp", "reca", verb="say which with")
REWARD_KEYS = {2: ("state",), 3: ("state", "action"), 4: ("state", "action", "next_state")}


@dataclass(frozen=True)
class TextLineSource(TableSource):
    """Text file whose rows have line numbers of their own."""

    line_numbers: Sequence[int] = ()

    def describe_row(self, row: int) -> str:
        return f"line {self.line_numbers[row]}"


def read_memdp_columns(
    path: Path, layout: MemdpLayout
) -> tuple[dict[str, Any], TextLineSource, dict[str, Any]]:
    """Read the columns of a .transitions file by role, their source, and other fields."""
    frame, source = _read_blocks(path, {4: TRANSITION_COLUMNS})
    frame["probability"] = parse_floats(frame["probability"], "probability", source)
    rewards_path, n_profiles = (
        path.with_suffix(".rewards"),
        _read_n_profiles(path.with_suffix(".summary")),
    )
    if layout == "reca" or (layout == "auto" and n_profiles is not None):
        return _read_recommender_columns(frame, rewards_path, source, n_profiles)
    if layout == "auto" and _is_first_block_mean(frame):
        source.fail(
            "the first block is the mean of the others; it may be a summary or an environment",
            remedies=[_COMPAT_REMEDY],
        )
    columns = {
        role: parse_numbers_or_labels(frame[role], source) for role in TRANSITION_COLUMNS[:3]
    }
    rewards = _read_rewards(rewards_path, frame, layout) if rewards_path.is_file() else 0.0
    return (
        columns
        | {
            "model": frame["model"],
            "probability": frame["probability"],
            "reward": pd.Series(rewards, frame.index),
        },
        source,
        {},
    )


def _read_n_profiles(path: Path) -> int | None:
    """Read the number of environments from the summary of a recommender; None without."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    match = re.search(r"^(\d+) user profiles$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _is_first_block_mean(frame: pd.DataFrame) -> bool:
    """Whether the first block is the mean of all others, which differ."""
    p = frame.pivot_table(
        "probability", list(TRANSITION_COLUMNS[:3]), "model", aggfunc="sum", fill_value=0.0
    ).to_numpy()
    if p.shape[1] < 3 or not np.ptp(p[:, 1:], axis=1).max() > PRINTED_TOLERANCE:
        return False
    return bool(np.abs(p[:, 0] - p[:, 1:].mean(axis=1)).max() <= PRINTED_TOLERANCE)


def _read_recommender_columns(
    frame: pd.DataFrame, rewards_path: Path, source: TextLineSource, n_profiles: int | None
) -> tuple[dict[str, Any], TextLineSource, dict[str, Any]]:
    """Read a recommender: blocks after the first, with rewards of recommended items taken."""
    n_environments = int(frame["model"].max())
    if n_environments < 1 or n_profiles not in (None, n_environments):
        source.fail(
            f"{pluralize(n_environments + 1, 'block')}; expected one of the mean and one for each "
            f"of {'the' if n_profiles is None else n_profiles} environments"
        )
    state, action, next_state = (
        _parse_role_ids(frame, role, source) for role in TRANSITION_COLUMNS[:3]
    )
    n_items = int(action.max())
    source.fail_where(action == 0, "action is 0; items count from 1")
    if not rewards_path.is_file():
        TableSource(rewards_path).fail("no such file; the rewards of items are read from it")
    reward_table, item_source = _read_blocks(rewards_path, {2: ("item", "reward")})
    item = _parse_role_ids(reward_table, "item", item_source)
    item_source.fail_where(
        (item == 0) | (item > n_items), f"no such item; the actions are 1 to {n_items}"
    )
    item_source.fail_where(reward_table.duplicated("item"), "this reward is given twice; keep one")
    item_rewards = np.zeros(n_items + 1)
    item_rewards[item] = parse_floats(reward_table["reward"], "reward", item_source)
    taken_item = np.where(next_state > 0, (next_state - 1) % n_items + 1, 0)
    is_kept = (frame["model"] > 0).to_numpy()
    columns = {
        "model": frame["model"] - 1,
        "state": state,
        "next_state": next_state,
        "probability": frame["probability"],
        "reward": np.where(taken_item == action, item_rewards[action], 0),
    }
    kept_columns: dict[str, Any] = {role: pd.Series(x)[is_kept] for role, x in columns.items()}
    item_labels = [str(i) for i in range(1, n_items + 1)]
    kept_columns["action"] = pd.Series(
        pd.Categorical(action[is_kept].astype(str), categories=item_labels)
    )
    line_numbers = [
        line_number
        for line_number, is_line_kept in zip(source.line_numbers, is_kept, strict=True)
        if is_line_kept
    ]
    return kept_columns, TextLineSource(source.location, line_numbers), {"initial": {0: 1.0}}


def _parse_role_ids(
    frame: pd.DataFrame, role: str, source: TextLineSource
) -> npt.NDArray[np.int64]:
    return parse_ids(parse_floats(frame[role], role, source), role, source)


def _read_rewards(path: Path, frame: pd.DataFrame, layout: MemdpLayout) -> npt.NDArray[Any]:
    """Read the reward (rows,) of every transition from a .rewards file."""
    layouts = {n_words: (*keys, "reward") for n_words, keys in REWARD_KEYS.items()}
    table, source = _read_blocks(path, layouts)
    keys = [name for name in table.columns if name not in ("reward", "model")]
    if keys == ["state"] and layout == "auto":
        source.fail(
            "two words in a line can be rewards of states or of recommended items",
            remedies=[_COMPAT_REMEDY],
        )
    n_blocks = int(table["model"].max()) + 1
    if n_blocks > 1:
        keys.append("model")
        if n_blocks != frame["model"].max() + 1:
            source.fail(
                f"{n_blocks} blocks for {frame['model'].max() + 1} environments; "
                "give one block for each, or one for all"
            )
    source.fail_where(table.duplicated(keys), "this reward is given twice; keep one")
    table["reward"] = parse_floats(table["reward"], "reward", source)
    has_transition = pd.MultiIndex.from_frame(table[keys]).isin(
        pd.MultiIndex.from_frame(frame[keys])
    )
    source.fail_where(~has_transition, "no transition has this reward; check the ids")
    merged = frame[keys].merge(table[[*keys, "reward"]], how="left", on=keys)
    return merged["reward"].fillna(0.0).to_numpy()


def _read_blocks(
    path: Path, layouts: dict[int, tuple[str, ...]]
) -> tuple[pd.DataFrame, TextLineSource]:
    """Read lines of words as columns, with the block as ``model``; blank lines divide blocks."""
    check_file_type(path, "text", "a text file")
    rows: list[list[Any]] = []
    line_numbers: list[int] = []
    block, is_new_block = 0, False
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for line_number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            is_new_block = is_new_block or (bool(rows) and not line.strip())
            continue
        expected_widths = [len(rows[0]) - 1] if rows else list(layouts)
        if len(words) not in expected_widths:
            layout_text = " or ".join(" ".join(layouts[n]) for n in expected_widths)
            TableSource(f"{path}, line {line_number}").fail(
                f"{len(words)} words; expected {layout_text}"
            )
        block, is_new_block = block + is_new_block, False
        rows.append([*words, block])
        line_numbers.append(line_number)
    if not rows:
        TableSource(path).fail("no lines; expected one per entry")
    column_names = [*layouts[len(rows[0]) - 1], "model"]
    return pd.DataFrame(rows, columns=column_names), TextLineSource(path, tuple(line_numbers))
