"""Tables of other libraries as pandas DataFrames."""

from __future__ import annotations

from typing import Any

import pandas as pd


def as_frame(table: Any) -> Any:
    """A table of polars, pyarrow or xarray as a pandas DataFrame; anything else as it is.

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
