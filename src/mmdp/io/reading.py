"""Reading text: CSV with nothing guessed, and errors that name the file and the line."""

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
import pandas as pd

from mmdp.errors import InputError, Remedy
from mmdp.io.writing import reason
from mmdp.support import Array
from mmdp.words import suggested

SMALL = 20_000  # bytes
_NUMBER = re.compile(r"[-+.\d]")

# pandas 3.1 made its parser exact and deprecated the argument; older defaults lose the last bit
_EXACT: dict[str, Any] = (
    {}
    if tuple(int(x) for x in pd.__version__.split(".")[:2]) >= (3, 1)
    else {"float_precision": "round_trip"}
)
_STARTS = {
    b"\x89PNG": "a PNG image", b"PAR1": "a Parquet file", b"PK": "a zip archive (.npz, .xlsx)",
    b"\x1f\x8b": "a gzip file", b"%PDF": "a PDF", b"\xff\xd8": "a JPEG image",
    b"\xff\xfe": "UTF-16 text (save it as UTF-8)", b"\x93NUMPY": "a .npy array",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The origin of rows, so that an error can name the place."""

    place: Path | str

    def at(self, row: int) -> str:
        """``line 7`` of a CSV, ``row 5`` of another table (rows count from 0)."""
        if isinstance(self.place, Path) and self.place.suffix.lower() == ".csv":
            return f"line {_line_of(self.place, row)}"
        return f"row {row}"

    def fail(
        self, problem: str, row: int | None = None, remedies: Iterable[str | Remedy] = ()
    ) -> NoReturn:
        where = "" if row is None else f", {self.at(row)}"
        raise InputError(f"{self.place}{where}: {problem}", remedies)

    def refuse(
        self, bad: Any, problem: str | Callable[[int], str], remedies: Iterable[str | Remedy] = ()
    ) -> None:
        """Fail at the first row that is ``bad`` (rows,), if there is one."""
        if np.any(bad):
            row = int(np.argmax(bad))
            self.fail(problem if isinstance(problem, str) else problem(row), row, remedies)

    def check_columns(
        self, names: Sequence[str], known: Sequence[str], needed: Sequence[str], expected: str
    ) -> None:
        """Refuse a column that is not known, or that is lacking."""
        problems = [f"unknown column {suggested(x, known)}" for x in names if x not in known][:1]
        problems += [f"no column {x!r}" for x in needed if x not in names][:1]
        if problems:
            self.fail(f"{'; '.join(problems)}; {expected}")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the place before the errors of the library's own checks."""
        try:
            yield
        except InputError as error:
            raise error.at(self.place) from None


def must_be(path: Path, kind: str, called: str) -> None:
    """Refuse a file whose first bytes are not of ``kind``: a wrong suffix is common."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    found = _kind_of(head)
    if found != kind:
        raise InputError(f"{path}: not {called} but {found}; check the name")


def _kind_of(head: bytes) -> str:
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the end may be half a letter
        return "binary data" if b"\x00" in head else "text"
    return "binary data or text that is not UTF-8"


def header(path: Path) -> list[str]:
    """The names in the first line of a CSV, no two alike; refuses what is not text."""
    must_be(path, "text", "a CSV file")
    for line, cells in _lines(path):
        names = [cell.strip() for cell in cells]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            numbered = "; the first line must name the columns" if _NUMBER.match(twice) else ""
            raise InputError(
                f"{path}, line {line}: column {twice!r} is given twice; keep one of them{numbered}"
            )
        return names
    raise InputError(f"{path}: the file is empty; expected a header and one row per entry")


def _line_of(path: Path, row: int) -> int:
    """The line of data row ``row`` (0-based), with the header and blank lines counted."""
    for seen, (line, _) in enumerate(_lines(path)):
        if seen == row + 1:
            return line
    return row + 2


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every line that is not blank, as pandas counts rows."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        try:
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    yield reader.line_num, cells
        except csv.Error as error:  # a field of over 131,072 characters, for one
            raise InputError(
                f"{path}, line {reader.line_num}: {reason(error)}; check quotes and commas"
            ) from None


def read_csv(path: Path, names: list[str], dtype: Any = str) -> pd.DataFrame:
    """pandas.read_csv with nothing guessed; malformed lines are InputErrors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # ids beyond int64: reported by us
            return pd.read_csv(
                path, header=0, names=names, dtype=dtype, engine="c", na_filter=False,
                index_col=False, encoding="utf-8", **_EXACT,
            )  # fmt: skip
    except pd.errors.ParserWarning:
        Source(path).fail(
            f"more fields than the header has ({len(names)}); remove the extra commas or name "
            "the columns",
            row=0,
        )
    except pd.errors.ParserError as error:
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if found:
            raise InputError(
                f"{path}, line {found[2]}: {found[3]} fields where the header has {found[1]}; "
                "remove the extra commas"
            ) from None
        detail = reason(error).removeprefix("Error tokenizing data. ")
        raise InputError(f"{path}: not a well-formed CSV file ({detail}); check quotes") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None


def read_fitting(path: Path, names: list[str], *dtypes: Any) -> pd.DataFrame:
    """Read with the first types that fit, the fastest first; the last ones, text, always do."""
    for dtype in dtypes[:-1]:
        try:
            return read_csv(path, names, dtype)
        except InputError:  # the file itself is malformed
            raise
        except (ValueError, OverflowError):
            continue
    return read_csv(path, names, dtypes[-1])


def read_small(path: Path, names: list[str]) -> pd.DataFrame:
    """The same as text, for a file of a few lines: pandas takes a millisecond to start."""
    if path.stat().st_size > SMALL:
        return read_csv(path, names)
    rows = [cells for _, cells in _lines(path)][1:]
    plain = all(len(cells) == len(names) for cells in rows)
    if not plain or any("\ufffd" in cell for cells in rows for cell in cells):
        return read_csv(path, names)  # which says what is wrong
    return pd.DataFrame(rows, columns=names, dtype=str)


def is_number(text: pd.Series) -> Any:
    """(rows,) booleans: which cells of a column of text are finite numbers."""
    return np.isfinite(pd.to_numeric(text, errors="coerce").to_numpy(np.float64, na_value=np.nan))


def numbers(
    column: pd.Series, name: str, source: Source, remedy: str = "give a finite number"
) -> Array:
    """A column of text or numbers as floats; a cell that is not a number is an error."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return column.to_numpy(np.float64)
    text = column.astype(str).str.strip()
    bad = np.flatnonzero(~is_number(text))
    if len(bad):
        source.fail(f"{name} is {text.iloc[bad[0]]!r}, not a number; {remedy}", int(bad[0]))
    return text.to_numpy(dtype=object).astype(np.float64)  # Python's float: every bit is kept
