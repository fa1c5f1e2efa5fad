"""Parquet: one tidy table, with what it does not say as JSON in its metadata."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmdp.errors import InputError, MemoryLimitError
from mmdp.io.npz import FORMAT
from mmdp.io.reading import Source, header, must_be, read_csv
from mmdp.io.tables import to_frame
from mmdp.io.writing import reason
from mmdp.model import MMDP
from mmdp.validate import Fields

NAMES = {*Fields._fields}


def read_parquet(path: Path) -> tuple[pd.DataFrame, Any]:
    """A Parquet file and what :func:`write_parquet` put into its metadata (else None)."""
    with _reading(path) as (_, parquet):
        table = parquet.read_table(path, page_checksum_verification=True)
        table.validate(full=True)
        metadata = table.schema.metadata or {}
        stored, checksum = metadata.get(b"mmdp"), metadata.get(b"mmdp-crc32")
        if checksum is not None and checksum != _checksum(stored or b""):
            raise ValueError("its metadata were changed")
        return table.to_pandas(), None if stored is None else json.loads(stored)


def read_frame(path: Path) -> pd.DataFrame:
    """A table with any columns: Parquet, or CSV as text."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)[0]
    return read_csv(path, header(path))


class ParquetColumns:
    """The columns of a Parquet file, read one at a time: the whole table is never held twice.

    Text comes as categories in the order of first appearance, at a few bytes per row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _reading(path) as (_, parquet):
            self._file = parquet.ParquetFile(
                path, pre_buffer=False, page_checksum_verification=True
            )
            names = [str(name) for name in self._file.schema_arrow.names]
            # an unnamed index that pandas stored is not a column
            self.names = [x for x in names if not re.fullmatch(r"__index_level_\d+__", x)]

    def read(self, name: str) -> pd.Series:
        with _reading(self._path) as (pyarrow, _):
            types = pyarrow.types
            table = self._file.read(columns=[name], use_threads=False, use_pandas_metadata=False)
            column = table.column(0)
            column.validate(full=True)
            del table
            if types.is_string(column.type) or types.is_large_string(column.type):
                column = column.dictionary_encode()
            series: pd.Series = column.to_pandas(self_destruct=True)
            del column
        # give freed memory back to the system, so that the next column can use it
        pyarrow.default_memory_pool().release_unused()
        return series.rename(name)


def write_parquet(frame: pd.DataFrame, stored: dict[str, Any], path: Path) -> None:
    pyarrow, parquet = _pyarrow()
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    text = json.dumps(stored).encode()
    own = {b"mmdp": text, b"mmdp-crc32": _checksum(text)}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **own})
    parquet.write_table(table, path, write_page_checksum=True)


def _checksum(text: bytes) -> bytes:
    return b"%d" % zlib.crc32(text)


def load_parquet(path: Path) -> tuple[pd.DataFrame, tuple[dict[str, Any], dict[str, int]] | None]:
    """The table, and the fields and sizes of a model that :func:`save_parquet` wrote."""
    frame, stored = read_parquet(path)
    if stored is None:
        return frame, None
    known = stored if isinstance(stored, dict) and stored.get("format") == FORMAT else {}
    fields, sizes = known.get("fields"), known.get("sizes")
    if not isinstance(fields, dict) or not isinstance(sizes, dict) or fields.keys() - NAMES:
        Source(path).fail("its metadata is not that of a model; was it saved as a policy?")
    return frame, (fields, sizes)


def save_parquet(model: MMDP, path: Path, **more: Any) -> None:
    fields = model.fields()
    del fields["allowed"]  # an action is allowed if the table has a row for it
    fields["parameters"] = {name: values.tolist() for name, values in model.parameters.items()}
    fields["terminal"] = model.terminal if model.terminal.any() else None
    for name, value in fields.items():
        fields[name] = value.tolist() if isinstance(value, np.ndarray) else value
    sizes = {"state": model.n_states, "action": model.n_actions, "model": model.n_models}
    stored = {"format": FORMAT, "fields": fields, "sizes": sizes, **more}
    write_parquet(to_frame(model), stored, path)


@contextmanager
def _reading(path: Path) -> Iterator[tuple[Any, Any]]:
    """pyarrow and pyarrow.parquet, whose errors say that the file is damaged."""
    pyarrow, parquet = _pyarrow()
    must_be(path, "a Parquet file", "a Parquet file")
    try:
        yield pyarrow, parquet
    except (MemoryLimitError, MemoryError):
        raise
    except Exception as error:  # pyarrow and pandas raise almost anything
        raise InputError(f"{path}: damaged Parquet file ({reason(error)})") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet files need pyarrow; install it with: pip install mmdp[parquet]"
        ) from None
    return pyarrow, pyarrow.parquet
