"""Reading of CSV files with explicit types, and errors that name the file and the line."""

from __future__ import annotations

import codecs
import csv
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import did_you_mean
from mmdp.core.transitions import Array
from mmdp.data.io.writing import describe_error

SMALL_FILE_BYTES = 20_000
_NUMBER_START = re.compile(r"[-+.\d]")

# pandas 3.1 made its parser exact and deprecated the argument; older defaults lose the last bit
_EXACT_FLOAT_OPTIONS: dict[str, Any] = (
    {}
    if tuple(int(x) for x in pd.__version__.split(".")[:2]) >= (3, 1)
    else {"float_precision": "round_trip"}
)
_FILE_SIGNATURES = {
    b"\x89PNG": "a PNG image",
    b"PAR1": "a Parquet file",
    b"PK": "a zip archive (.npz, .xlsx)",
    b"\x1f\x8b": "a gzip file",
    b"%PDF": "a PDF",
    b"\xff\xd8": "a JPEG image",
    b"\xff\xfe": "UTF-16 text (save it as UTF-8)",
    b"\x93NUMPY": "a .npy array",
}


@dataclass(frozen=True)
class TableSource:
    """File or table that rows come from, for error messages."""

    location: Path | str

    def describe_row(self, row: int) -> str:
        """Format a row: ``line 7`` of a CSV, ``row 5`` of another table (rows count from 0)."""
        if isinstance(self.location, Path) and self.location.suffix.lower() == ".csv":
            return f"line {_find_line_number(self.location, row)}"
        return f"row {row}"

    def fail(
        self, problem: str, row: int | None = None, remedies: Iterable[str | Remedy] = ()
    ) -> NoReturn:
        """Raise an InputError that names the file and the row."""
        row_text = "" if row is None else f", {self.describe_row(row)}"
        raise InputError(f"{self.location}{row_text}: {problem}", remedies)

    def fail_where(
        self,
        is_bad: npt.NDArray[np.bool_] | pd.Series,
        problem: str | Callable[[int], str],
        remedies: Iterable[str | Remedy] = (),
    ) -> None:
        """Raise an InputError at the first row of a mask (rows,), if there is one."""
        if np.any(is_bad):
            row = int(np.argmax(is_bad))
            self.fail(problem if isinstance(problem, str) else problem(row), row, remedies)

    def check_columns(
        self, names: Sequence[str], known: Sequence[str], required: Sequence[str], expected: str
    ) -> None:
        """Refuse unknown and missing columns."""
        problems = [f"unknown column {did_you_mean(x, known)}" for x in names if x not in known][:1]
        problems += [f"no column {x!r}" for x in required if x not in names][:1]
        if problems:
            self.fail(f"{'; '.join(problems)}; {expected}")

    @contextmanager
    def prefix_errors(self) -> Iterator[None]:
        """Add the file to the messages of InputErrors in this context."""
        try:
            yield
        except InputError as error:
            raise error.with_location(self.location) from None


def check_file_type(path: Path, expected_type: str, description: str) -> None:
    """Refuse a file whose first bytes are not of the expected type."""
    try:
        with path.open("rb") as file:
            first_bytes = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({describe_error(error)})") from None
    file_type = _detect_file_type(first_bytes)
    if file_type != expected_type:
        raise InputError(f"{path}: not {description} but {file_type}; check the name")


def _detect_file_type(first_bytes: bytes) -> str:
    """Detect the type of a file from its first bytes."""
    for signature, file_type in _FILE_SIGNATURES.items():
        if first_bytes.startswith(signature):
            return file_type
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(first_bytes)  # the last character may be cut
        return "binary data" if b"\x00" in first_bytes else "text"
    return "binary data or text that is not UTF-8"


def read_header(path: Path) -> list[str]:
    """Read the column names of a CSV; refuse duplicates and files that are not text."""
    check_file_type(path, "text", "a CSV file")
    for line_number, cells in _iter_csv_lines(path):
        names = [cell.strip() for cell in cells]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            hint = (
                "; the first line must name the columns" if _NUMBER_START.match(duplicate) else ""
            )
            raise InputError(
                f"{path}, line {line_number}: column {duplicate!r} is given twice; keep one of "
                f"them{hint}"
            )
        return names
    raise InputError(f"{path}: the file is empty; expected a header and one row per entry")


def _find_line_number(path: Path, row: int) -> int:
    """Find the line of a data row (from 0), counting the header and blank lines."""
    for i, (line_number, _) in enumerate(_iter_csv_lines(path)):
        if i == row + 1:
            return line_number
    return row + 2


def _iter_csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of every line that is not blank."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        try:
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    yield reader.line_num, cells
        except csv.Error as error:  # a field of over 131,072 characters, for one
            raise InputError(
                f"{path}, line {reader.line_num}: {describe_error(error)}; check quotes and commas"
            ) from None


def read_csv(path: Path, names: list[str], dtype: Any = str) -> pd.DataFrame:
    """Read a CSV with given names and types; malformed lines are InputErrors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # ids beyond int64: reported by us
            return pd.read_csv(
                path,
                header=0,
                names=names,
                dtype=dtype,
                engine="c",
                na_filter=False,
                index_col=False,
                encoding="utf-8",
                **_EXACT_FLOAT_OPTIONS,
            )
    except pd.errors.ParserWarning:
        TableSource(path).fail(
            f"more fields than the header has ({len(names)}); remove the extra commas or name "
            "the columns",
            row=0,
        )
    except pd.errors.ParserError as error:
        match = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if match:
            raise InputError(
                f"{path}, line {match[2]}: {match[3]} fields where the header has {match[1]}; "
                "remove the extra commas"
            ) from None
        detail = describe_error(error).removeprefix("Error tokenizing data. ")
        raise InputError(f"{path}: not a well-formed CSV file ({detail}); check quotes") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({describe_error(error)})") from None


def read_csv_with_fallback(path: Path, names: list[str], *dtypes: Any) -> pd.DataFrame:
    """Read a CSV with the first column types that fit; the last ones must fit."""
    for dtype in dtypes[:-1]:
        try:
            return read_csv(path, names, dtype)
        except InputError:  # the file itself is malformed
            raise
        except (ValueError, OverflowError):
            continue
    return read_csv(path, names, dtypes[-1])


def read_small_csv(path: Path, names: list[str]) -> pd.DataFrame:
    """Read a small CSV as text, without the start-up time of pandas."""
    if path.stat().st_size > SMALL_FILE_BYTES:
        return read_csv(path, names)
    rows = [cells for _, cells in _iter_csv_lines(path)][1:]
    is_regular = all(len(cells) == len(names) for cells in rows)
    if not is_regular or any("\ufffd" in cell for cells in rows for cell in cells):
        return read_csv(path, names)  # raises the error
    return pd.DataFrame(rows, columns=names, dtype=str)


def is_finite_number(texts: pd.Series) -> npt.NDArray[np.bool_]:
    """Find the cells (rows,) of a column of text that are finite numbers."""
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.isfinite(numbers)


def parse_floats(
    column: pd.Series, name: str, source: TableSource, remedy: str = "give a finite number"
) -> Array:
    """Parse a column of text or numbers as floats; refuse cells that are not numbers."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return column.to_numpy(np.float64)
    text = column.astype(str).str.strip()
    bad_rows = np.flatnonzero(~is_finite_number(text))
    if len(bad_rows):
        source.fail(
            f"{name} is {text.iloc[bad_rows[0]]!r}, not a number; {remedy}", int(bad_rows[0])
        )
    return text.to_numpy(dtype=object).astype(np.float64)  # Python's float: every bit is kept
