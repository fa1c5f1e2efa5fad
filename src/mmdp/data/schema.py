"""One schema for all tables: values by dimensions, labels, roles, and messages that name the line.

A format is an adapter: it makes a :class:`Table` of its columns and of the :class:`TableSource`
that they come from. What columns mean (roles), which ids their cells have (numbers or labels) and
what is wrong with them is read here, for models, sidecar files, policies, samples and logs alike.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import validate
from mmdp.core.arguments import is_of_type
from mmdp.core.errors import InputError, NotNormalizedError, Remedy
from mmdp.core.shapes import AnyArray, AnyIntArray, Array, IndexArray, Mask
from mmdp.core.text import did_you_mean, pluralize

Fields = dict[str, Any]  # arguments by name
Labels = tuple[str, ...]
ValuesByLabel = npt.ArrayLike | Mapping[Any, float]  # in order, or by label
PAPER_COLUMNS = {
    "idstatefrom": "state",
    "idaction": "action",
    "idstateto": "next_state",
    "idoutcome": "model",
    "idtime": "time",
    "probability": "probability",
    "reward": "reward",
}
AXIS_ROLES = {"state": ("state", "next_state"), "action": ("action",), "model": ("model",)}
AXIS_BY_ROLE = {role: axis for axis, roles in AXIS_ROLES.items() for role in roles}


@dataclass(frozen=True)
class TableSource:
    """File or table that rows come from, for error messages."""

    location: Path | str

    def describe_row(self, row: int) -> str:
        """Format a row: ``line 7`` of a CSV, ``row 5`` of another table (from 0)."""
        if isinstance(self.location, Path) and self.location.suffix.lower() == ".csv":
            line_numbers = (n for i, (n, _) in enumerate(iter_csv_lines(self.location)) if i > row)
            return f"line {next(line_numbers, row + 2)}"
        return f"row {row}"

    def fail(
        self, problem: str, row: int | None = None, remedies: Iterable[str | Remedy] = ()
    ) -> NoReturn:
        """Raise an InputError that names the file and the row."""
        row_text = "" if row is None else f", {self.describe_row(row)}"
        raise InputError(f"{self.location}{row_text}: {problem}", remedies)

    def fail_where(
        self,
        is_bad: Mask | pd.Series,
        problem: str | Callable[[int], str],
        remedies: Iterable[str | Remedy] = (),
    ) -> None:
        """Raise an InputError at the first row of a mask (rows,), if there is one."""
        if np.any(is_bad):
            row = int(np.argmax(is_bad))
            self.fail(problem if isinstance(problem, str) else problem(row), row, remedies)

    def check_unique(
        self,
        keys: IndexArray | pd.Series | pd.DataFrame,
        subject: str | Callable[[int], str],
        hint: str = "",
    ) -> None:
        """Refuse keys (rows,) that occur twice."""
        self.fail_where(
            pd.DataFrame(keys).duplicated(),
            lambda i: (
                f"{subject if isinstance(subject, str) else subject(i)} is given twice; "
                f"keep one row{hint}"
            ),
        )

    @contextmanager
    def prefix_errors(self, line: object = None) -> Iterator[None]:
        """Add the file, and a line of it, to the messages of InputErrors in this context."""
        try:
            yield
        except InputError as original_error:
            error = original_error
            if isinstance(error, NotNormalizedError):
                error = error.for_file()
            line_text = "" if line is None else f", line {line}"
            raise error.with_location(f"{self.location}{line_text}") from None


def iter_csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of every line that is not blank."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        try:
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    yield reader.line_num, cells
        except csv.Error as error:  # a field of over 131,072 characters, for one
            raise InputError(
                f"{path}, line {reader.line_num}: {error}; check quotes and commas"
            ) from None


# ---------------------------------------------------------------------- roles
def assign_roles(
    names: Iterable[str],
    known: Mapping[str, str] | Iterable[str],
    required: Iterable[str],
    source: TableSource,
    expected: str,
    remedies: Iterable[str | Remedy] = (),
    *,
    ignore_unknown: bool = False,
    spelling: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Assign roles to column names; refuse unknown, missing and duplicate columns.

    ``known`` maps names to roles, or lists names that are roles themselves; ``expected`` says in
    messages what they are, and ``spelling`` gives the name of a missing role.

    >>> assign_roles(["idstate"], {"idstate": "state"}, ["state"], TableSource("frame"), "")
    {'idstate': 'state'}
    """
    role_by_name = known if isinstance(known, Mapping) else {x: x for x in known}
    roles: dict[str, str] = {}
    unknown: list[str] = []
    for name in names:
        role = role_by_name.get(name)
        if role is None:
            unknown.append(did_you_mean(name, role_by_name))
        elif role in roles.values():
            source.fail(f"column {name!r} gives {role} a second time; keep one of them")
        else:
            roles[name] = role
    missing = [
        repr((spelling or {}).get(role, role)) for role in required if role not in roles.values()
    ]
    shown = {"unknown column": [] if ignore_unknown else unknown, "no column": missing}
    problems = [f"{problem} {', '.join(x)}" for problem, x in shown.items() if x]
    if problems:
        source.fail("; ".join(filter(None, [*problems, expected])), None, remedies)
    return roles


# ---------------------------------------------------------------------- numbers
def is_finite_number(texts: pd.Series) -> Mask:
    """Find the cells (rows,) of a column of text that are finite numbers."""
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.isfinite(numbers)


def parse_ids(values: pd.Series | AnyArray, role: str, source: TableSource) -> IndexArray:
    """Parse a numeric column as ids, whole numbers from 0."""
    if pd.api.types.is_extension_array_dtype(values):
        source.fail_where(pd.isna(values), f"{role} is empty; ids are whole numbers from 0")
    array = np.asarray(values)
    if array.dtype.kind in "Of":
        array = array.astype(np.float64, copy=False)
        source.fail_where(
            ~np.isfinite(array) | (array != np.floor(array)),
            lambda i: f"{role} is {array[i]:g}, not a whole number; ids count from 0",
        )
        source.fail_where(
            array >= 2.0**53, lambda i: f"{role} id {array[i]:g} is too large; number ids from 0"
        )
    ids = array.astype(np.int64, copy=False)
    source.fail_where(ids < 0, lambda i: f"{role} is {ids[i]}; ids count from 0, none is negative")
    return ids


# ---------------------------------------------------------------------- labels
@dataclass(frozen=True)
class CodedColumn:
    """A column of labels as codes (-1: missing) and the category of each code.

    If ``is_ordered``, the categories come in an order of their own.

    >>> column = encode_column(["up", "down", None, "up"])
    >>> column.codes.tolist(), column.categories
    ([0, 1, -1, 0], ['up', 'down'])
    """

    codes: AnyIntArray
    categories: list[str]
    is_ordered: bool = False

    def is_blank(self, blank_texts: Collection[str] = ("",)) -> Mask:
        """Find the cells (rows,) that are missing or one of ``blank_texts``."""
        return np.array([*(x.strip() in blank_texts for x in self.categories), True])[self.codes]

    def find_used_categories(self) -> list[str]:
        """List the categories that occur: in their own order, or in order of appearance."""
        codes = pd.unique(self.codes)
        return [
            self.categories[i] for i in (np.sort(codes) if self.is_ordered else codes) if i >= 0
        ]


def encode_column(column: pd.Series | Iterable[object]) -> CodedColumn:
    """Encode a column of any values as codes and categories."""
    series = column if isinstance(column, pd.Series) else pd.Series(list(column), dtype=object)
    is_ordered = isinstance(series.dtype, pd.CategoricalDtype)
    if is_ordered:
        codes, categories = series.cat.codes.to_numpy(), series.cat.categories
    else:
        codes, categories = pd.factorize(series)
    return CodedColumn(codes, [str(x) for x in categories], is_ordered)


class ColumnLabels(validate.LabelIndex):
    """Labels of an axis, looked up in columns.

    >>> ColumnLabels("state", 2, ("up", "down")).find_ids(["down", "left"]).tolist()
    [1, -1]
    """

    __slots__ = ()

    def find_ids(self, values: pd.Series | Iterable[object]) -> IndexArray:
        """Find the ids (rows,) of labels, or of ids if there are no labels; -1 if unknown."""
        return self.find_codes(encode_column(values))

    def find_codes(self, column: CodedColumn) -> IndexArray:
        """Find the ids (rows,) of an encoded column; -1 if unknown."""
        return np.append(super().find_ids(column.categories), -1)[column.codes]

    def parse_ids(self, column: pd.Series, source: TableSource) -> IndexArray:
        """Find the ids (rows,) of a column, and refuse unknown labels and ids."""
        ids = self.find_ids(column)
        id_range = "" if self.labels is not None else f" (0..{self.size - 1})"

        def describe(row: int) -> str:
            name = did_you_mean(str(column.iloc[row]), self.labels or ())
            return f"no {self.axis_name} {name} is known{id_range}; correct it"

        source.fail_where(ids < 0, describe)
        return ids


def parse_axis_argument(value: Any, axis: str) -> int | Labels | None:
    """Parse the number of ids of an axis, or the labels in order; None stays None."""
    return int(value) if is_of_type(value, int) else validate.parse_labels(value, axis)


def encode_labels(
    axis: str, columns: Sequence[CodedColumn], source: TableSource, expected: int | Labels | None
) -> tuple[ColumnLabels, list[IndexArray]]:
    """Convert the columns of an axis that hold labels to ids, and make its labels.

    ``expected``: the labels in order; otherwise in the order of their appearance.
    """
    used_labels = tuple(dict.fromkeys(x for y in columns for x in y.find_used_categories()))
    if isinstance(expected, int) and expected != len(used_labels):
        source.fail(
            f"{axis}s have labels, so their number is not enough",
            remedies=[Remedy(f"{axis}s", [*used_labels[:3], "..."], verb="name them all with")],
        )
    names = expected if isinstance(expected, tuple) else used_labels
    label_index = ColumnLabels(axis, len(names), names)
    ids = [label_index.find_codes(column) for column in columns]
    for column, role, array in zip(columns, AXIS_ROLES[axis], ids, strict=True):
        if array.min() < 0:
            row = int(np.argmax(array < 0))
            text = column.categories[column.codes[row]]
            source.fail(
                f"{role} {did_you_mean(text, names)} is not among the "
                f"{pluralize(len(names), axis)} given",
                row,
                ["correct it", Remedy(f"{axis}s", [*names, text], verb="add it:")],
            )
    return label_index, ids


def check_ids(
    axis: str,
    columns: Sequence[IndexArray],
    source: TableSource,
    expected: int | Labels | None,
    *,
    base: int = 0,
    allow_gaps: bool = True,
) -> tuple[ColumnLabels, list[IndexArray]]:
    """Check columns of ids of an axis, which count from ``base``, and convert them to ids from 0.

    ``expected``: the number of ids, or their names in order. Gaps in ids of unknown number are
    refused unless ``allow_gaps``.
    """
    labels = expected if isinstance(expected, tuple) else None
    roles = AXIS_ROLES.get(axis, (axis,))
    ids = [column - base for column in columns] if base else [*columns]  # no needless copies
    n_ids = max(int(array.max()) for array in ids) + 1
    size = len(expected) if isinstance(expected, tuple) else expected
    if size is None:
        size = n_ids
        if not allow_gaps:
            _check_gaps(axis, roles, ids, n_ids, source)
    id_range = f"{pluralize(size, axis)} {base}..{size - 1 + base}"
    for array, role in zip(ids, roles, strict=True):
        row = int(np.argmax(array >= size))
        if array[row] >= size:
            source.fail(
                f"{role} is {array[row] + base}, which is not one of the {id_range}",
                row,
                ["correct it", Remedy(f"{axis}s", n_ids, verb="say")],
            )
    if base and labels is None:
        labels = tuple(str(i + base) for i in range(size))
    return ColumnLabels(axis, size, labels), ids


def _check_gaps(
    axis: str, roles: Sequence[str], arrays: Sequence[IndexArray], n_ids: int, source: TableSource
) -> None:
    """Refuse ids with gaps."""
    used_ids = np.unique(np.concatenate([*map(pd.unique, arrays)]))
    if len(used_ids) == n_ids:
        return
    gap = int(np.argmax(used_ids != np.arange(len(used_ids))))
    next_id = used_ids[gap]
    noun = "time" if axis == "time" else f"{axis} id"
    for array, role in zip(arrays, roles, strict=True):
        source.fail_where(
            array == next_id,
            f"{role} is {next_id} but no {noun} is {gap} ({len(used_ids)} distinct, largest "
            f"{used_ids[-1]})",
            ["number them from 0 without gaps"],
        )


# ---------------------------------------------------------------------- values by dimensions
@dataclass(frozen=True)
class Table:
    """Columns by role, and the source that messages about them name.

    >>> table = Table({"state": pd.Series(["down"]), "value": pd.Series(["2"])}, TableSource("x"))
    >>> table.read_values("value", {"state": ColumnLabels("state", 2, ("up", "down"))}).tolist()
    [0.0, 2.0]
    """

    columns: Mapping[str, pd.Series]
    source: TableSource

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, source: TableSource) -> Table:
        """Make a table of all columns of a frame."""
        return cls({str(name): frame[name] for name in frame}, source)

    def __getitem__(self, role: str) -> pd.Series:
        return self.columns[role]

    def __contains__(self, role: object) -> bool:
        return role in self.columns

    def __len__(self) -> int:
        return len(self.columns[next(iter(self.columns))])

    def parse_floats(self, role: str, remedy: str = "give a finite number") -> Array:
        """Parse a column of text or numbers as floats; refuse cells that are not numbers."""
        column = self[role]
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
            return column.to_numpy(np.float64)
        text = column.astype(str).str.strip()
        self.source.fail_where(
            ~is_finite_number(text), lambda i: f"{role} is {text.iloc[i]!r}, not a number; {remedy}"
        )
        return text.to_numpy(dtype=object).astype(np.float64)  # Python's float: every bit is kept

    def parse_ids(self, role: str) -> IndexArray:
        """Parse a column as ids, whole numbers from 0."""
        return parse_ids(self.parse_floats(role), role, self.source)

    def sort_rows(self, ids: IndexArray, size: int, axis: str, value: str = "row") -> IndexArray:
        """Find the order of rows by id; refuse ids that are given twice or left out."""
        self.source.check_unique(ids, f"this {axis}")
        missing_ids = np.setdiff1d(np.arange(size), ids)
        if len(missing_ids):
            self.source.fail(f"no {value} for {axis} {missing_ids[0]}; give one for each")
        return np.argsort(ids)

    def find_cells(self, axes: Mapping[str, ColumnLabels], subject: str) -> IndexArray:
        """Find the cell of every row in a flat array with these axes; refuse a cell given twice."""
        ids = [labels.parse_ids(self[role], self.source) for role, labels in axes.items()]
        cells = np.ravel_multi_index(ids, [labels.size for labels in axes.values()])
        self.source.check_unique(cells, subject)
        return cells

    def read_values(self, value: str, axes: Mapping[str, ColumnLabels]) -> Array:
        """Read a column of values into an array with these axes; 0 where no row is."""
        array = np.zeros([labels.size for labels in axes.values()])
        array.reshape(-1)[self.find_cells(axes, f"this {value}")] = self.parse_floats(value)
        return array
