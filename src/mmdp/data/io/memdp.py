"""The block format of multiple-environment MDPs.

``NAME.transitions`` has a line ``s a s' p`` per transition and a blank line between
environments. ``NAME.rewards`` next to it has lines ``s a s' r``, ``s a r`` or ``s r``, in one block
for all environments or in one for each; what it leaves out earns 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from mmdp.core.transitions import Array
from mmdp.data.io.reading import check_file_type
from mmdp.data.io.tables import LoadOptions, ModelTable, parse_numbers_or_labels
from mmdp.data.schema import Table, TableSource

CELL_ROLES = ("state", "action", "next_state")


def read_memdp_table(path: Path, options: LoadOptions) -> ModelTable:
    """Read the columns of a .transitions file by role, with the rewards next to it."""
    table, rewards_path = (
        _read_blocks(path, [(*CELL_ROLES, "probability")]),
        path.with_suffix(".rewards"),
    )
    if path.with_suffix(".summary").is_file():
        table.source.fail(
            "the models of a recommender (ReCA), marked by their .summary, have a layout of their "
            "own; see 'Files of other tools' in the documentation"
        )
    columns = {role: parse_numbers_or_labels(table[role], table.source) for role in CELL_ROLES}
    rewards = _read_rewards(rewards_path, table) if rewards_path.is_file() else 0.0
    columns = {**table.columns, **columns, "reward": pd.Series(rewards, table["state"].index)}
    return Table(columns, table.source), None


def _read_rewards(path: Path, transitions: Table) -> Array:
    """Read the reward (rows,) of every transition from a .rewards file."""
    table = _read_blocks(path, [(*CELL_ROLES[:n], "reward") for n in (1, 2, 3)])
    source = table.source
    keys = [name for name in table.columns if name not in ("reward", "model")]
    n_blocks, n_models = (int(x["model"].max()) + 1 for x in (table, transitions))
    if n_blocks > 1:
        keys.append("model")
        if n_blocks != n_models:
            source.fail(
                f"{n_blocks} blocks for {n_models} environments; give one block for each, or one "
                "for all"
            )
    index, cells = (
        pd.MultiIndex.from_arrays([x[key] for key in keys]) for x in (table, transitions)
    )
    source.check_unique(index.to_series(), "this reward")
    source.fail_where(~index.isin(cells), "no transition has this reward; check the ids")
    rewards = pd.Series(table.parse_floats("reward"), index)
    return np.asarray(rewards.reindex(cells, fill_value=0.0), np.float64)


def _read_blocks(path: Path, layouts: list[tuple[str, ...]]) -> Table:
    """Read lines of words as columns, with the block as ``model``; blank lines divide blocks."""
    check_file_type(path, "text", "a text file")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    rows: list[list[str]] = []
    line_numbers: list[int] = []
    blocks: list[int] = []
    is_new_block = False
    for line_number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        is_new_block |= not line.strip()
        if words:
            rows.append(words)
            line_numbers.append(line_number)
            blocks.append(blocks[-1] + is_new_block if blocks else 0)
            is_new_block = False
    source = TableSource(path, line_numbers)
    if not rows:
        source.fail("no lines; expected one per entry")
    fitting = [x for x in layouts if len(x) == len(rows[0])] or layouts
    for i, words in enumerate(rows):
        if len(words) != len(fitting[0]):
            expected = " or ".join(map(" ".join, fitting))
            source.fail(f"{len(words)} words; expected {expected}", i)
    return Table.from_frame(pd.DataFrame(rows, columns=fitting[0]).assign(model=blocks), source)
