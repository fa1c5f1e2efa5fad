"""What is known about each state, as a table: features for trees, groups for tied policies."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mmdp.arguments import checked
from mmdp.io.parquet import read_frame
from mmdp.io.reading import Source
from mmdp.io.writing import PathLike


@checked
def load_features(path: PathLike) -> pd.DataFrame:
    """The features of each state, from a CSV with a column ``state`` and others.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "features.csv"
    >>> _ = file.write_text("state,stage,site\\nmild,1,home\\nsevere,2,ward\\n")
    >>> mmdp.io.load_features(file).loc["severe"].tolist()
    ['2', 'ward']
    """
    frame, source = _by_state(path)
    if "state" not in frame or len(frame.columns) < 2:
        lacking = "besides state" if "state" in frame else "'state'"
        source.fail(f"no column {lacking}; features have state and other columns")
    state = frame["state"]
    source.refuse(
        state.duplicated(), lambda i: f"state {state.iloc[i]!r} is given twice; keep one line"
    )
    return frame.set_index("state")


@checked
def load_groups(path: PathLike) -> dict[str, str]:
    """The group of each state, from a CSV with the columns ``state,group``.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "groups.csv"
    >>> _ = file.write_text("state,group\\nmild,treatable\\nsevere,treatable\\ndead,other\\n")
    >>> mmdp.io.load_groups(file)
    {'mild': 'treatable', 'severe': 'treatable', 'dead': 'other'}
    """
    frame, source = _by_state(path)
    columns = ("state", "group")
    source.check_columns(list(frame.columns), columns, columns, "groups have state,group")
    state, group = (frame[name].str.strip() for name in columns)
    source.refuse(
        state.duplicated(), lambda i: f"state {state.iloc[i]!r} is given twice; keep one group"
    )
    alone = "give it one (of its own if it is free)"
    source.refuse(group == "", lambda i: f"no group for state {state.iloc[i]!r}; {alone}")
    return dict(zip(state, group, strict=True))


def _by_state(path: PathLike) -> tuple[pd.DataFrame, Source]:
    return read_frame(Path(path)).astype(str), Source(Path(path))
