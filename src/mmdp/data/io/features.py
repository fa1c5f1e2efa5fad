"""Tables of states: features for decision trees, groups for tied policies."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mmdp.core.arguments import check_arguments
from mmdp.data.io.reading import read_table
from mmdp.data.io.writing import PathLike
from mmdp.data.schema import TableSource, assign_roles


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
