"""Features of states as a table, for policies that are trees."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mmdp.errors import InputError
from mmdp.io.reading import Source, header, read_csv
from mmdp.io.writing import PathLike


def load_features(path: PathLike) -> pd.DataFrame:
    """The features of each state, from a CSV with a column ``state`` and others.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "features.csv"
    >>> _ = file.write_text("state,stage,site\\nmild,1,home\\nsevere,2,ward\\n")
    >>> mmdp.io.load_features(file).loc["severe"].tolist()
    ['2', 'ward']
    """
    file, source = Path(path), Source(Path(path))
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    names = header(file)
    if "state" not in names:
        source.fail("no column 'state'; features have state and other columns")
    if len(names) < 2:
        source.fail("no column besides state; features have state and other columns")
    frame = read_csv(file, names).astype(str)
    twice = frame["state"].duplicated().to_numpy()
    if twice.any():
        row = int(twice.argmax())
        source.fail(f"state {frame['state'].iloc[row]!r} is given twice; keep one line", row)
    return frame.set_index("state")
