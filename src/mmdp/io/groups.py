"""Groups of states as a table, for policies that are the same within a group."""

from __future__ import annotations

from pathlib import Path

from mmdp.errors import InputError
from mmdp.io.reading import Source, header, read_csv
from mmdp.io.writing import PathLike

COLUMNS = ("state", "group")


def load_groups(path: PathLike) -> dict[str, str]:
    """The group of each state, from a CSV with the columns ``state,group``.

    >>> import tempfile, pathlib, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "groups.csv"
    >>> _ = file.write_text("state,group\\nmild,treatable\\nsevere,treatable\\ndead,other\\n")
    >>> mmdp.io.load_groups(file)
    {'mild': 'treatable', 'severe': 'treatable', 'dead': 'other'}
    """
    file, source = Path(path), Source(Path(path))
    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    names = header(file)
    source.check_columns(names, COLUMNS, COLUMNS, "groups have state,group")
    frame = read_csv(file, names).astype(str)
    state = frame["state"].str.strip()
    source.refuse(
        state.duplicated(), lambda i: f"state {state.iloc[i]!r} is given twice; keep one group"
    )
    group = frame["group"].str.strip()
    alone = "give it one (of its own if it is free)"
    source.refuse(group == "", lambda i: f"no group for state {state.iloc[i]!r}; {alone}")
    return dict(zip(state, group, strict=True))
