"""Tables of CSV files, and of other libraries, as pandas DataFrames."""

from __future__ import annotations

import codecs
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from mmdp.core.errors import InputError
from mmdp.data.io.writing import describe_error
from mmdp.data.schema import TableSource, iter_csv_lines

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


def check_file_type(path: Path, expected_type: str, description: str) -> None:
    """Refuse a file whose first bytes are not of the expected type."""
    try:
        with path.open("rb") as file:
            first_bytes = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({describe_error(error)})") from None
    signatures = (x for x in _FILE_SIGNATURES if first_bytes.startswith(x))
    file_type = _FILE_SIGNATURES.get(next(signatures, b""), "")
    if not file_type:
        file_type = "binary data or text that is not UTF-8"
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(first_bytes)  # the last may be cut
            file_type = "binary data" if b"\x00" in first_bytes else "text"
    if file_type != expected_type:
        raise InputError(f"{path}: not {description} but {file_type}; check the name")


def read_header(path: Path) -> list[str]:
    """Read the column names of a CSV; refuse duplicates and files that are not text."""
    check_file_type(path, "text", "a CSV file")
    for line_number, cells in iter_csv_lines(path):
        names = [cell.strip() for cell in cells]
        for name in names:
            if names.count(name) > 1:
                is_number = _NUMBER_START.match(name)
                hint = "; the first line must name the columns" if is_number else ""
                raise InputError(
                    f"{path}, line {line_number}: column {name!r} is given twice; keep one of "
                    f"them{hint}"
                )
        return names
    raise InputError(f"{path}: the file is empty; expected a header and one row per entry")


def read_csv(path: Path, names: list[str], dtype: Any = str, *fallbacks: Any) -> pd.DataFrame:
    """Read a CSV with given names and the first column types that fit.

    Malformed lines are InputErrors.
    """
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
    except (ValueError, OverflowError):
        if not fallbacks:
            raise
        return read_csv(path, names, *fallbacks)


def as_frame(table: Any) -> Any:
    """Convert a table of polars, pyarrow or xarray to a DataFrame; return others as they are.

    None of these libraries is needed: what counts is that the table has ``to_pandas`` or, with
    named dimensions, ``to_dataframe``. A dimension of an xarray Dataset becomes a column if it
    has coordinates.

    >>> class Polars:
    ...     def to_pandas(self):
    ...         return pd.DataFrame({"state": ["up"]})
    >>> as_frame(Polars())["state"].tolist(), as_frame([1, 2])
    (['up'], [1, 2])
    """
    if isinstance(table, (pd.DataFrame, type)):
        return table
    if hasattr(table, "to_dataframe") and hasattr(table, "dims"):
        dims_without_coords = [dim for dim in table.dims if dim not in table.coords]
        return table.to_dataframe().reset_index().drop(columns=dims_without_coords)
    return table.to_pandas() if hasattr(table, "to_pandas") else table
