"""Effects and costs of state-action pairs, read from a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import check_arguments
from mmdp.core.model import MMDP
from mmdp.core.text import did_you_mean, pluralize
from mmdp.data.io.reading import read_csv, read_header
from mmdp.data.io.writing import PathLike
from mmdp.data.schema import IntArray, TableSource, encode_column, parse_floats
from mmdp.insight.economics.discounting import Amounts

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
REQUIRED_COLUMNS, OPTIONAL_COLUMNS = (
    ("state", "action", "effect", "cost"),
    ("model", "time", "next_state"),
)
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
    source, column_names = TableSource(Path(path)), read_header(Path(path))
    known_columns, has_time_labels = (
        (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS),
        "time" in column_names and bool(model.time_labels.labels),
    )
    unknown_columns = [
        x
        for x in column_names
        if x not in known_columns and not (has_time_labels and x == model.time_labels.column_name)
    ]
    problems = [f"unknown column {did_you_mean(x, known_columns)}" for x in unknown_columns]
    problems += [f"no column {x!r}" for x in REQUIRED_COLUMNS if x not in column_names]
    if problems:
        source.fail(
            f"{'; '.join(problems)} in line 1; expected {','.join(REQUIRED_COLUMNS)}, maybe "
            f"{','.join(OPTIONAL_COLUMNS)}, where time counts from 0"
        )
    table = read_csv(Path(path), column_names)
    if not len(table):
        source.fail("a header but no rows; expected one row per state and action")
    amounts = [parse_floats(table[name], name, source) for name in ("effect", "cost")]
    axes: list[str] = [x for x in ("time", "model", "state", "action") if x in column_names]
    ids_by_axis = [_read_ids(table[axis], axis, model, source) for axis in axes]
    sizes = [
        model.n_models if axis == "model" else model.allowed.shape[axis == "action"]
        for axis in axes
    ]
    if "time" in column_names:
        sizes[0] = int(ids_by_axis[0].max()) + 1
    is_transition = np.zeros(len(table), dtype=bool)
    if "next_state" in column_names:
        is_transition = (table["next_state"].str.strip() != "").to_numpy()

    def fill_arrays(rows: Mask, required: Mask | bool) -> Array:
        """Fill arrays (2, ...) with the effects and costs of some rows of the table."""
        index = tuple(ids[rows] for ids in ids_by_axis)
        counts, arrays = np.zeros(sizes, dtype=int), np.zeros((2, *sizes))
        np.add.at(counts, index, 1)
        _check_counts(counts, axes, required, model, source)
        for array, values in zip(arrays, amounts, strict=True):
            array[index] = values[rows]
        if "time" not in column_names:
            return arrays
        arrays = arrays if "model" in column_names else arrays[:, :, None]
        return np.broadcast_to(arrays, (2, sizes[0], model.n_models, *arrays.shape[3:]))

    pair_amounts = fill_arrays(~is_transition, model.allowed)
    for name, values in zip(("effect", "cost"), amounts, strict=True):
        _check_not_constant(values, name, source)
    if not is_transition.any():
        return pair_amounts[0], pair_amounts[1]
    next_states = table["next_state"].where(is_transition, model.state_labels[0])
    axes, sizes = [*axes, "next_state"], [*sizes, model.n_states]
    ids_by_axis = [*ids_by_axis, _read_ids(next_states, "next_state", model, source)]
    transition_amounts = fill_arrays(is_transition, False)
    effect, cost = (
        {"rewards": x, "next_rewards": y}
        for x, y in zip(pair_amounts, transition_amounts, strict=True)
    )
    return effect, cost


def _check_not_constant(values: Array, name: str, source: TableSource) -> None:
    """Refuse a column of effects or costs with one value in all rows."""
    if len(values) > 1 and np.ptp(values) == 0:
        source.fail(
            f"{name} is {values[0]:g} in this and every other line, so that no policy has more "
            "of it than another; give what each action has",
            0,
        )


def _get_labels(model: MMDP, axis: str) -> Sequence[str]:
    return getattr(model, f"{axis.removeprefix('next_')}_labels")  # type: ignore[no-any-return]


def _read_ids(column: pd.Series, axis: str, model: MMDP, source: TableSource) -> IntArray:
    """Convert a column of times or labels to ids; refuse unknown ones."""
    if axis == "time":
        times = parse_floats(column, axis, source)
        is_wrong = ~((times >= 0) & (times == np.floor(times)) & (times < MAX_TIMES))
        source.fail_where(is_wrong, lambda i: f"time is {times[i]:g}, not a whole number from 0 on")
        return times.astype(np.int64)
    labels = _get_labels(model, axis)
    coded_column = encode_column(column.astype(str).str.strip())
    ids = coded_column.find_ids(labels)
    if ids.min() < 0:
        row = int(np.argmax(ids < 0))
        name = did_you_mean(coded_column.get_text(row), labels)
        source.fail(f"unknown {axis} {name}; use those of the model", row)
    return ids


def _check_counts(
    counts: IntArray, axes: Sequence[str], required: Mask | bool, model: MMDP, source: TableSource
) -> None:
    """Refuse required entries that are missing, and entries given twice."""
    is_wrong = (counts > 1) | ((counts == 0) & required)
    if is_wrong.any():
        index = np.argwhere(is_wrong)[0]
        labels = [
            int(i) if axis == "time" else _get_labels(model, axis)[i]
            for axis, i in zip(axes, index, strict=True)
        ]
        location = ", ".join(f"{axis} {label!r}" for axis, label in zip(axes, labels, strict=True))
        problem = "given twice" if counts[tuple(index)] > 1 else "not given"
        source.fail(
            f"{location} is {problem} ({pluralize(int(is_wrong.sum()), 'case')} like it); give "
            "every action once"
        )
