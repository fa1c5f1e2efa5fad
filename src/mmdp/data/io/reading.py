"""Tables of CSV and Parquet files, and of other libraries, as pandas DataFrames.

Tables of states are features for decision trees and groups for tied policies.
"""

from __future__ import annotations

import codecs
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, MemoryLimitError, describe_missing
from mmdp.data.io.writing import PathLike, describe_error
from mmdp.data.schema import Fields, Table, TableSource, assign_roles, iter_csv_lines

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
    """Refuse a file that is missing, or whose first bytes are not of the expected type."""
    if not path.is_file():
        raise InputError(describe_missing(path))
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


@contextmanager
def report_damage(path: Path, description: str) -> Iterator[None]:
    """Convert the errors of a library that reads a file, of whatever type, to InputErrors."""
    try:
        yield
    except (MemoryLimitError, MemoryError):
        raise
    except Exception as error:
        detail = str(error) if isinstance(error, InputError) else describe_error(error)
        raise InputError(f"{path}: damaged {description} ({detail})") from None


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


# ---------------------------------------------------------------------- Parquet
def read_parquet(path: Path) -> tuple[pd.DataFrame, Any]:
    """Read the table of a Parquet file and the metadata of :func:`write_parquet`, else None."""
    with _use_pyarrow(path) as (_, parquet):
        table = parquet.read_table(path, page_checksum_verification=True)
        table.validate(full=True)
        metadata = table.schema.metadata or {}
        mmdp_metadata, checksum = metadata.get(b"mmdp"), metadata.get(b"mmdp-crc32")
        if checksum is not None and checksum != _checksum(mmdp_metadata or b""):
            raise ValueError("its metadata were changed")
        return table.to_pandas(), None if mmdp_metadata is None else json.loads(mmdp_metadata)


def read_table(path: Path) -> Table:
    """Read a table with any columns: Parquet, or CSV as text."""
    is_parquet = path.suffix.lower() == ".parquet"
    frame = read_parquet(path)[0] if is_parquet else read_csv(path, read_header(path))
    return Table.from_frame(frame, TableSource(path))


def read_column_names(path: Path) -> list[str]:
    """Read the names of the columns; an unnamed index that pandas stored is none."""
    with _use_pyarrow(path) as (_, parquet):
        names = map(str, parquet.read_schema(path).names)
        return [x for x in names if not re.fullmatch(r"__index_level_\d+__", x)]


def read_columns(path: Path, names: Iterable[str]) -> pd.DataFrame:
    """Read some columns in little memory: text as categories in the order of first appearance."""
    with _use_pyarrow(path) as (pyarrow, parquet):
        types = pyarrow.types
        texts = [
            x.name
            for x in parquet.read_schema(path)
            if types.is_string(x.type) or types.is_large_string(x.type)
        ]
        table = parquet.read_table(
            path,
            columns=[*names],
            read_dictionary=texts,
            use_threads=False,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        table.validate(full=True)
        frame = table.to_pandas(split_blocks=True, self_destruct=True, ignore_metadata=True)
        del table
        pyarrow.default_memory_pool().release_unused()  # gives memory back to the system
        return frame  # type: ignore[no-any-return]


def write_parquet(frame: pd.DataFrame, metadata: Fields, path: Path) -> None:
    """Write a table with metadata and checksums."""
    pyarrow, parquet = _import_pyarrow()
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    text = json.dumps(metadata).encode()
    mmdp_entries = {b"mmdp": text, b"mmdp-crc32": _checksum(text)}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **mmdp_entries})
    parquet.write_table(table, path, write_page_checksum=True)


def _checksum(text: bytes) -> bytes:
    return b"%d" % zlib.crc32(text)


@contextmanager
def _use_pyarrow(path: Path) -> Iterator[tuple[Any, Any]]:
    """Import pyarrow and pyarrow.parquet, and convert their errors to InputErrors."""
    modules = _import_pyarrow()
    check_file_type(path, "a Parquet file", "a Parquet file")
    with report_damage(path, "Parquet file"):
        yield modules


def _import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet, or say how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet files need pyarrow; install it with: pip install mmdp[parquet]"
        ) from None
    return pyarrow, pyarrow.parquet


# ---------------------------------------------------------------------- tables of states
@check_arguments
def load_features(path: PathLike) -> pd.DataFrame:
    """Load the features of each state from a CSV with a column ``state`` and others.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "features.csv"
    >>> _ = file.write_text("state,stage,site\\nmild,1,home\\nsevere,2,ward\\n")
    >>> mmdp.io.load_features(file).loc["severe"].tolist()
    ['2', 'ward']
    """
    frame, source = _read_state_table(path)
    if "state" not in frame or len(frame.columns) < 2:
        missing = "besides state" if "state" in frame else "'state'"
        source.fail(f"no column {missing}; features have state and other columns")
    state = frame["state"]
    source.check_unique(state, lambda i: f"state {state.iloc[i]!r}")
    return frame.set_index("state")


@check_arguments
def load_groups(path: PathLike) -> dict[str, str]:
    """Load the group of each state from a CSV with the columns ``state,group``.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "groups.csv"
    >>> _ = file.write_text("state,group\\nmild,treatable\\nsevere,treatable\\ndead,other\\n")
    >>> mmdp.io.load_groups(file)
    {'mild': 'treatable', 'severe': 'treatable', 'dead': 'other'}
    """
    frame, source = _read_state_table(path)
    columns = ("state", "group")
    assign_roles(frame.columns, columns, columns, source, "groups have state,group")
    state, group = (frame[name].str.strip() for name in columns)
    source.check_unique(state, lambda i: f"state {state.iloc[i]!r}")
    hint = "give it one (of its own if it is free)"
    source.fail_where(group == "", lambda i: f"no group for state {state.iloc[i]!r}; {hint}")
    return dict(zip(state, group, strict=True))


def _read_state_table(path: PathLike) -> tuple[pd.DataFrame, TableSource]:
    table = read_table(Path(path))
    return pd.DataFrame(table.columns).astype(str), table.source
