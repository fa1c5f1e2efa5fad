"""Parquet files: one tidy table, with the other fields as JSON in its metadata."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError, MemoryLimitError
from mmdp.core.model import MMDP
from mmdp.core.validate import ModelFields
from mmdp.data.io.npz import MODEL_FORMAT, fields_to_json_types
from mmdp.data.io.reading import check_file_type, read_csv, read_header
from mmdp.data.io.tables import LoadOptions, ModelTable, frame_to_table, to_frame
from mmdp.data.io.writing import describe_error
from mmdp.data.schema import AXIS_ROLES, Fields, Table, TableSource


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
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
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


def read_parquet_table(path: Path, options: LoadOptions) -> ModelTable:
    """Read a table, and the fields of a model if :func:`save_parquet` wrote it."""
    frame, metadata = read_parquet(path)
    table = frame_to_table(frame, TableSource(path), options)
    if metadata is None:
        return table, None
    is_model = isinstance(metadata, dict) and metadata.get("format") == MODEL_FORMAT
    fields = metadata.get("fields") if is_model else None
    if not isinstance(fields, dict) or not {*ModelFields._fields}.issuperset(fields):
        table.source.fail(
            "its metadata is not that of a model of this version of mmdp; load policies with "
            "load_policy(), and save models again with mmdp.save"
        )
    return table, fields


def save_parquet(model: MMDP, path: Path) -> None:
    """Write a model as a tidy table with its other fields in the metadata."""
    axes = {f"{axis}s": model.label_index(axis) for axis in AXIS_ROLES}
    fields = {
        **fields_to_json_types(model),
        **{name: index.labels or index.size for name, index in axes.items()},
        "terminal": model.terminal if model.terminal.any() else None,
        "allowed": None,  # an action is allowed if the table has a row for it
    }
    fields = {k: x.tolist() if isinstance(x, np.ndarray) else x for k, x in fields.items()}
    metadata = {"format": MODEL_FORMAT, "fields": fields}
    write_parquet(to_frame(model), metadata, path)


@contextmanager
def _use_pyarrow(path: Path) -> Iterator[tuple[Any, Any]]:
    """Import pyarrow and pyarrow.parquet, and convert their errors to InputErrors."""
    pyarrow, parquet = _import_pyarrow()
    check_file_type(path, "a Parquet file", "a Parquet file")
    try:
        yield pyarrow, parquet
    except (MemoryLimitError, MemoryError):
        raise
    except Exception as error:  # pyarrow and pandas raise almost anything
        raise InputError(f"{path}: damaged Parquet file ({describe_error(error)})") from None


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
