"""Effects and costs of state-action pairs, read from a CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.model import MMDP
from mmdp.core.shapes import Mask
from mmdp.core.text import pluralize
from mmdp.data.io.reading import read_csv, read_header
from mmdp.data.io.writing import PathLike
from mmdp.data.schema import ColumnLabels, Table, TableSource, assign_roles
from mmdp.insight.economics.discounting import Amounts

AMOUNTS = ("effect", "cost")
REQUIRED_COLUMNS = ("state", "action", *AMOUNTS)
OPTIONAL_COLUMNS = ("model", "time", "next_state")
MAX_TIMES = 1_000_000  # a year in place of a number of steps would ask for an array of its size


@check_arguments
def read_effects(path: PathLike, model: MMDP) -> tuple[Amounts, Amounts]:
    """Read effects and costs from a CSV file: each (S, A), or (M, S, A) by model.

    The CSV has the columns ``state, action, effect, cost``, with the labels or ids of the model,
    and one row for every action that is allowed. With a column ``time`` (0, 1, ...) they vary with
    time: (T, M, S, A); labels of times, such as ages, may stand next to it. A row whose column
    ``next_state`` is not blank has what happens once, on the way to that state; then each is a
    mapping with ``rewards`` and ``next_rewards``.

    >>> import tempfile, pathlib, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]], actions=["wait", "treat"])
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "effects.csv"
    >>> _ = file.write_text("state,action,effect,cost\\n0,wait,0,0\\n0,treat,2,100\\n")
    >>> read_effects(file, one)[1].tolist()
    [[0.0, 100.0]]
    """
    table = _read_table(Path(path), model)
    axes = _find_axes(table, model)
    has_transitions, sizes = "next_state" in axes, [x.size for x in axes.values()]
    cells = table.find_cells(axes, "this combination of labels")
    arrays = np.full((2, *sizes), np.nan)
    for array, name in zip(arrays, AMOUNTS, strict=True):
        values = array.reshape(-1)[cells] = table.parse_floats(name)
        if len(values) > 1 and np.ptp(values) == 0:
            table.source.fail(
                f"{name} is {values[0]:g} in this and every other line, so that no policy has more "
                "of it than another; give what each action has",
                0,
            )
    is_given = ~np.isnan(arrays[0])
    _check_given(is_given[..., -1] if has_transitions else is_given, axes, model, table.source)
    arrays = np.nan_to_num(arrays)
    if "time" in axes:
        arrays = arrays if "model" in axes else arrays[:, :, None]
        arrays = np.broadcast_to(arrays, (2, sizes[0], model.n_models, *arrays.shape[3:]))
    if not has_transitions:
        return arrays[0], arrays[1]
    effect, cost = ({"rewards": x[..., -1], "next_rewards": x[..., :-1]} for x in arrays)
    has_any = (cells % sizes[-1] < model.n_states).any()
    return (effect, cost) if has_any else (effect["rewards"], cost["rewards"])


def _read_table(path: Path, model: MMDP) -> Table:
    """Read the columns of the file; refuse unknown and missing ones."""
    source, names, times = TableSource(path), read_header(path), model.time_labels
    skipped = times.column_name if times.labels and "time" in names else None
    expected = (
        f"name {','.join(REQUIRED_COLUMNS)} in line 1, maybe {','.join(OPTIONAL_COLUMNS)}, where "
        "time counts from 0"
    )
    known = *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS
    roles = assign_roles(
        [name for name in names if name != skipped], known, REQUIRED_COLUMNS, source, expected
    )
    frame = read_csv(path, names)
    if not len(frame):
        source.fail("a header but no rows; expected one row per state and action")
    return Table({name: frame[name].str.strip() for name in roles}, source)


def _find_axes(table: Table, model: MMDP) -> dict[str, ColumnLabels]:
    """Find the labels of the axes by role, in their order; a blank next state is the last one."""
    axes = {}
    if "time" in table:
        times = table.parse_ids("time")
        table.source.fail_where(
            times >= MAX_TIMES, lambda i: f"time is {times[i]}, not a number of steps from 0 on"
        )
        axes["time"] = ColumnLabels("time", int(times.max()) + 1)
    labels_by_role = {
        "model": model.model_labels,
        "state": model.state_labels,
        "action": model.action_labels,
        "next_state": (*model.state_labels, ""),
    }
    return axes | {
        role: ColumnLabels(role, len(labels), labels)
        for role, labels in labels_by_role.items()
        if role in table
    }


def _check_given(
    is_given: Mask,
    axes: Mapping[str, ColumnLabels],
    model: MMDP,
    source: TableSource,
) -> None:
    """Refuse allowed actions that have no row."""
    is_missing = ~is_given & model.allowed
    if is_missing.any():
        first = np.argwhere(is_missing)[0].tolist()
        pairs = zip(axes.values(), first, strict=False)
        location = ", ".join(f"{labels.axis_name} {labels.format_id(i)}" for labels, i in pairs)
        n_missing = pluralize(int(is_missing.sum()), "case")
        source.fail(f"{location} is not given ({n_missing} like it); give every action once")
