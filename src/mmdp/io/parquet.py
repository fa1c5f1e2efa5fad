"""Parquet: one tidy table, with what it does not say as JSON in its metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmdp.errors import InputError
from mmdp.io.npz import FORMAT
from mmdp.io.reading import Source, must_be
from mmdp.io.tables import to_frame
from mmdp.io.writing import reason
from mmdp.model import MMDP


def read_parquet(path: Path) -> tuple[pd.DataFrame, Any]:
    """A Parquet file and what :func:`write_parquet` put into its metadata (else None)."""
    pyarrow, parquet = _pyarrow()
    must_be(path, "a Parquet file", "a Parquet file")
    try:
        table = parquet.read_table(path)
        stored = (table.schema.metadata or {}).get(b"mmdp")
        return table.to_pandas(), None if stored is None else json.loads(stored)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: damaged Parquet file ({reason(error)})") from None


def write_parquet(frame: pd.DataFrame, stored: dict[str, Any], path: Path) -> None:
    pyarrow, parquet = _pyarrow()
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), b"mmdp": json.dumps(stored).encode()}
    parquet.write_table(table.replace_schema_metadata(metadata), path)


def load_parquet(path: Path) -> tuple[pd.DataFrame, tuple[dict[str, Any], dict[str, int]] | None]:
    """The table, and the fields and sizes of a model that :func:`save_parquet` wrote."""
    frame, stored = read_parquet(path)
    if stored is None:
        return frame, None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        Source(path).fail("its metadata is not that of a model; was it saved as a policy?")
    return frame, (stored["fields"], stored["sizes"])


def save_parquet(model: MMDP, path: Path) -> None:
    fields = model.fields()
    del fields["allowed"]  # an action is allowed where the table has a row for it
    fields["parameters"] = {name: values.tolist() for name, values in model.parameters.items()}
    fields["terminal"] = model.terminal if model.terminal.any() else None
    for name, value in fields.items():
        fields[name] = value.tolist() if isinstance(value, np.ndarray) else value
    sizes = {"state": model.n_states, "action": model.n_actions, "model": model.n_models}
    write_parquet(to_frame(model), {"format": FORMAT, "fields": fields, "sizes": sizes}, path)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet files need pyarrow; install it with: pip install mmdp[parquet]"
        ) from None
    return pyarrow, pyarrow.parquet
