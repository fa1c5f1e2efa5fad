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
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd

from mmdp.core.errors import Remedy
from mmdp.core.kernels.distributions import PRINTED_TOLERANCE
from mmdp.core.text import pluralize
from mmdp.core.transitions import Array
from mmdp.data.io.reading import check_file_type
from mmdp.data.io.tables import LoadOptions, MemdpLayout, ModelTable, parse_numbers_or_labels
from mmdp.data.schema import Table, TableSource

CELL_ROLES = ("state", "action", "next_state")
_COMPAT_REMEDY = Remedy("compat", "memdp", "reca", verb="say which with")


def read_memdp_table(path: Path, options: LoadOptions) -> ModelTable:
    """Read the columns of a .transitions file by role, and other fields."""
    layout = options.layout
    table = _read_blocks(path, [(*CELL_ROLES, "probability")])
    frame = pd.DataFrame({**table.columns, "probability": table.parse_floats("probability")})
    rewards_path = path.with_suffix(".rewards")
    n_profiles = _read_n_profiles(path.with_suffix(".summary"))
    if layout == "reca" or (layout == "auto" and n_profiles is not None):
        table = Table.from_frame(frame, table.source)
        table = _read_recommender(table, rewards_path, n_profiles)
        return ModelTable(table, {"initial": {0: 1.0}})
    if layout == "auto" and _is_first_block_mean(frame):
        table.source.fail(
            "the first block is the mean of the others; it may be a summary or an environment",
            remedies=[_COMPAT_REMEDY],
        )
    cells = {role: parse_numbers_or_labels(frame[role], table.source) for role in CELL_ROLES}
    rewards = _read_rewards(rewards_path, frame, layout) if rewards_path.is_file() else 0.0
    return ModelTable(Table.from_frame(frame.assign(**cells, reward=rewards), table.source))


def _read_n_profiles(path: Path) -> int | None:
    """Read the number of environments from the summary of a recommender; None without."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    match = re.search(r"^(\d+) user profiles$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _is_first_block_mean(frame: pd.DataFrame) -> bool:
    """Return whether the first block is the mean of all others, which differ."""
    p = frame.pivot_table(
        "probability", list(CELL_ROLES), "model", aggfunc="sum", fill_value=0.0
    ).to_numpy()
    if p.shape[1] < 3 or not np.ptp(p[:, 1:], axis=1).max() > PRINTED_TOLERANCE:
        return False
    return bool(np.abs(p[:, 0] - p[:, 1:].mean(axis=1)).max() <= PRINTED_TOLERANCE)


def _read_recommender(table: Table, rewards_path: Path, n_profiles: int | None) -> Table:
    """Read a recommender: blocks after the first, with rewards of recommended items taken."""
    model, source = table["model"].to_numpy(), table.source
    n_environments = int(model.max())
    if n_environments < 1 or n_profiles not in (None, n_environments):
        source.fail(
            f"{pluralize(n_environments + 1, 'block')}; expected one of the mean and one for each "
            f"of {'the' if n_profiles is None else n_profiles} environments"
        )
    state, action, next_state = (table.parse_ids(role) for role in CELL_ROLES)
    n_items = int(action.max())
    source.fail_where(action == 0, "action is 0; items count from 1")
    if not rewards_path.is_file():
        TableSource(rewards_path).fail("no such file; the rewards of items are read from it")
    item_table = _read_blocks(rewards_path, [("item", "reward")])
    item = item_table.parse_ids("item")
    item_table.source.fail_where(
        (item == 0) | (item > n_items), f"no such item; the actions are 1 to {n_items}"
    )
    item_table.source.check_unique(item, "this reward")
    item_rewards = np.zeros(n_items + 1)
    item_rewards[item] = item_table.parse_floats("reward")
    taken_item = np.where(next_state > 0, (next_state - 1) % n_items + 1, 0)
    items = pd.CategoricalDtype([str(i) for i in range(1, n_items + 1)])
    columns = {
        "model": model - 1,
        "state": state,
        "action": pd.Series(action.astype(str)).astype(items),
        "next_state": next_state,
        "probability": table["probability"],
        "reward": np.where(taken_item == action, item_rewards[action], 0),
    }
    is_kept = model > 0
    kept_source = TableSource(source.location, tuple(compress(source.line_numbers, is_kept)))
    return Table.from_frame(pd.DataFrame(columns)[is_kept], kept_source)


def _read_rewards(path: Path, frame: pd.DataFrame, layout: MemdpLayout) -> Array:
    """Read the reward (rows,) of every transition from a .rewards file."""
    table = _read_blocks(path, [(*CELL_ROLES[:n], "reward") for n in (1, 2, 3)])
    source = table.source
    keys = [name for name in table.columns if name not in ("reward", "model")]
    if keys == ["state"] and layout == "auto":
        source.fail(
            "two words in a line can be rewards of states or of recommended items",
            remedies=[_COMPAT_REMEDY],
        )
    n_blocks, n_models = (int(x["model"].max()) + 1 for x in (table, frame))
    if n_blocks > 1:
        keys.append("model")
        if n_blocks != n_models:
            source.fail(
                f"{n_blocks} blocks for {n_models} environments; give one block for each, or one "
                "for all"
            )
    index = pd.MultiIndex.from_arrays([table[key] for key in keys])
    frame_index = pd.MultiIndex.from_frame(frame[keys])
    source.check_unique(index.to_series(), "this reward")
    rewards = pd.Series(table.parse_floats("reward"), index)
    is_unused = ~index.isin(frame_index)
    source.fail_where(is_unused, "no transition has this reward; check the ids")
    return np.asarray(rewards.reindex(frame_index, fill_value=0.0), np.float64)


def _read_blocks(path: Path, layouts: list[tuple[str, ...]]) -> Table:
    """Read lines of words as columns, with the block as ``model``; blank lines divide blocks."""
    check_file_type(path, "text", "a text file")
    rows: list[list[str]] = []
    blocks: list[int] = []
    line_numbers: list[int] = []
    is_new_block = False
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for line_number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            is_new_block = is_new_block or (bool(rows) and not line.strip())
            continue
        layouts = [x for x in layouts if len(x) == len(rows[0])] if rows else layouts
        if len(words) not in map(len, layouts):
            TableSource(path, [line_number]).fail(
                f"{len(words)} words; expected {' or '.join(map(' '.join, layouts))}", 0
            )
        rows.append(words)
        blocks.append(blocks[-1] + is_new_block if blocks else 0)
        line_numbers.append(line_number)
        is_new_block = False
    if not rows:
        TableSource(path).fail("no lines; expected one per entry")
    columns = next(x for x in layouts if len(x) == len(rows[0]))
    frame = pd.DataFrame(rows, columns=columns).assign(model=blocks)
    return Table.from_frame(frame, TableSource(path, line_numbers))
