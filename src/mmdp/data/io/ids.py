"""Ids of the states, actions, models and times of a table, by number or by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.errors import Remedy
from mmdp.core.kernels.distributions import clip_rounding
from mmdp.core.transitions import Array
from mmdp.core.validate import parse_labels
from mmdp.data.io.labels import (
    CodedColumn,
    ColumnLabels,
    IntArray,
    Labels,
    collect_labels,
    encode_column,
)
from mmdp.data.io.options import LoadOptions
from mmdp.data.io.reading import TableSource, parse_floats

AXIS_ROLES = {"state": ("state", "next_state"), "action": ("action",), "model": ("model",)}


@dataclass
class EncodedTransitions:
    """Transitions as ids: columns by role, and sizes and labels by axis.

    ``labels`` has the axes that the table names by label; ``relabeled`` those among them whose
    labels are old ids with gaps.
    """

    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)
    relabeled: set[str] = field(default_factory=set)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of models, states and actions, (M, S, A)."""
        return self.sizes["model"], self.sizes["state"], self.sizes["action"]

    @property
    def horizon(self) -> int | None:
        """Number of times; None if the table has none."""
        return self.sizes.get("time")

    def find_ids(self, axis: str, values: pd.Series, source: TableSource) -> IntArray:
        """Find the ids of labels or ids in a column of a sidecar file."""
        column_labels = ColumnLabels(axis, self.sizes[axis], self.labels.get(axis))
        ids = column_labels.find_ids(values)
        unknown_rows = np.flatnonzero(ids < 0)
        if len(unknown_rows):
            id_range = "" if column_labels.labels is not None else f" (0..{column_labels.size - 1})"
            row, value = int(values.index[unknown_rows[0]]), values.iloc[unknown_rows[0]]
            source.fail(f"no {axis} {value!r} in the transitions{id_range}; correct it", row)
        return ids


def encode_transitions(
    raw_columns: Mapping[str, Any],
    source: TableSource,
    options: LoadOptions,
    given_labels: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> EncodedTransitions:
    """Convert the columns of a table of transitions to ids.

    ``given_labels`` may give the order of the labels (or names for ids) by ``states``,
    ``actions`` and ``models``, ``sizes`` the size of an axis if some ids do not occur.
    """
    encoded = EncodedTransitions()
    columns = {"model": np.zeros(len(raw_columns["state"]), dtype=np.int64), **raw_columns}
    for axis, roles in AXIS_ROLES.items():
        label_order = parse_labels(given_labels.get(f"{axis}s"), axis)
        axis_columns = [columns[role] for role in roles]
        if all(_is_numeric(column) for column in axis_columns):
            known_size = sizes.get(axis) if label_order is None else len(label_order)
            _encode_numbers(
                encoded, axis, roles, axis_columns, source, known_size, options.id_gaps == "relabel"
            )
        else:
            codes, axis_labels = _encode_labels(axis, axis_columns, label_order, source)
            encoded.labels[axis], encoded.sizes[axis] = axis_labels, len(axis_labels)
            encoded.columns |= dict(zip(roles, codes, strict=True))
    if "time" in raw_columns:
        if not _is_numeric(raw_columns["time"]):
            source.fail("times are not numbers; give whole numbers from 0")
        _encode_numbers(encoded, "time", ("time",), [raw_columns["time"]], source, None, False)
    for role in ("probability", "reward"):
        encoded.columns[role] = _parse_finite(raw_columns[role], role, source)
    return encoded


def _is_numeric(values: pd.Series | npt.NDArray[Any]) -> bool:
    """Whether a column holds numbers."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    dtype_kind = values.dtype.kind
    return dtype_kind in "iuf" or (
        dtype_kind == "O" and pd.api.types.infer_dtype(values, skipna=False) == "integer"
    )


def parse_ids(values: pd.Series | npt.NDArray[Any], role: str, source: TableSource) -> IntArray:
    """Parse a numeric column as ids, whole numbers from 0."""
    if pd.api.types.is_extension_array_dtype(values):
        source.fail_where(pd.isna(values), f"{role} is empty; ids are whole numbers from 0")
    array = np.asarray(values)
    if array.dtype.kind == "O":
        array = array.astype(np.float64)
    if array.dtype.kind == "f":
        source.fail_where(
            ~np.isfinite(array) | (array != np.floor(array)),
            lambda i: f"{role} is {array[i]:g}, not a whole number; ids count from 0",
        )
        source.fail_where(
            array >= 2.0**53, lambda i: f"{role} id {array[i]:g} is too large; number ids from 0"
        )
    array = array.astype(np.int64, copy=False)
    if array.min() < 0:
        row = int(np.argmax(array < 0))
        source.fail(f"{role} is {array[row]}; ids count from 0, none is negative", row)
    return array


def _encode_numbers(
    encoded: EncodedTransitions,
    axis: str,
    roles: Sequence[str],
    columns: Sequence[Any],
    source: TableSource,
    known_size: int | None,
    relabel: bool,
) -> None:
    """Add numeric columns of an axis as ids; gaps are relabeled, or an error."""
    arrays = [parse_ids(column, role, source) for column, role in zip(columns, roles, strict=True)]
    max_id = max(int(array.max()) for array in arrays)
    if known_size is not None and max_id < known_size:
        encoded.sizes[axis] = known_size
    else:
        used_ids = _find_used_ids(arrays, max_id)
        if len(used_ids) <= max_id:
            if not relabel:
                _fail_gap(axis, roles, arrays, used_ids, source)
            arrays = [np.searchsorted(used_ids, array) for array in arrays]
            encoded.labels[axis] = tuple(map(str, used_ids.tolist()))
            encoded.relabeled.add(axis)
        encoded.sizes[axis] = len(used_ids)
    encoded.columns |= dict(zip(roles, arrays, strict=True))


def _find_used_ids(arrays: Sequence[IntArray], max_id: int) -> IntArray:
    """Find the ids that occur, sorted."""
    if max_id >= sum(map(len, arrays)):  # there are gaps: do not allocate by the largest id
        return np.unique(np.concatenate(arrays))
    is_used = np.zeros(max_id + 1, dtype=bool)
    for array in arrays:
        is_used[array] = True
    return np.flatnonzero(is_used)


def _fail_gap(
    axis: str,
    roles: Sequence[str],
    arrays: Sequence[IntArray],
    used_ids: IntArray,
    source: TableSource,
) -> NoReturn:
    """Raise the error of ids with gaps."""
    gap = int(np.argmax(used_ids != np.arange(len(used_ids))))
    next_id = int(used_ids[gap])
    role, array = next((r, x) for r, x in zip(roles, arrays, strict=True) if (x == next_id).any())
    noun = "time" if axis == "time" else f"{axis} id"
    remedies: list[str | Remedy] = ["number them from 0 without gaps", Remedy("id_gaps", "relabel")]
    source.fail(
        f"{role} is {next_id} but no {noun} is {gap} ({len(used_ids)} distinct, largest "
        f"{used_ids[-1]})",
        int(np.argmax(array == next_id)),
        remedies[:1] if axis == "time" else remedies,
    )


def _encode_labels(
    axis: str, raw_columns: Sequence[Any], label_order: Labels | None, source: TableSource
) -> tuple[list[IntArray], Labels]:
    """Convert columns of labels to ids, in a given order, that of categories or of appearance."""
    coded_columns = [encode_column(pd.Series(raw_column)) for raw_column in raw_columns]
    for column in coded_columns:
        is_blank = column.is_blank(("",) if label_order is None else ())
        source.fail_where(is_blank, f"a {axis} is empty; give its label or id")
    if label_order is None:
        is_ordered = all(column.is_ordered for column in coded_columns)
        label_order = collect_labels(
            replace(column, is_ordered=is_ordered) for column in coded_columns
        )
    return [
        _find_label_ids(label_order, axis, column, source) for column in coded_columns
    ], label_order


def _find_label_ids(
    labels: Labels, axis: str, column: CodedColumn, source: TableSource
) -> IntArray:
    """Find the ids of a column of labels, and refuse others."""
    ids = column.find_ids(labels)
    problem = f"is not among the given labels of {axis}s; correct it, or add it"
    source.fail_where(ids < 0, lambda i: f"{axis} {column.get_text(i)!r} {problem}")
    return ids


def _parse_finite(values: pd.Series | npt.NDArray[Any], role: str, source: TableSource) -> Array:
    """Parse a column of probabilities or rewards, and refuse values that are not finite."""
    array = parse_floats(pd.Series(values).reset_index(drop=True), role, source)
    with np.errstate(all="ignore"):
        may_be_nonfinite = not np.isfinite(array.sum())  # one pass less if all is well
    if may_be_nonfinite and not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array)))
        source.fail(f"{role} is {array[row]}; give a finite number", row)
    array = clip_rounding(array) if role == "probability" else array
    if role == "probability" and array.min() < 0:
        row = int(np.argmax(array < 0))
        source.fail(f"negative probability {array[row]:g}; it must be from 0 to 1", row)
    return array
