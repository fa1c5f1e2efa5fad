"""Groups of states as a table, for policies that are the same within a group."""

from __future__ import annotations

from pathlib import Path

from mmdp.errors import InputError
from mmdp.io.reading import Source, header, read_csv
from mmdp.io.writing import PathLike
from mmdp.words import suggested

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
    for name in names:
        if name not in COLUMNS:
            source.fail(f"unknown column {suggested(name, COLUMNS)}; groups have state,group")
    for name in COLUMNS:
        if name not in names:
            source.fail(f"no column {name!r}; groups have state,group")
    frame = read_csv(file, names).astype(str)
    state = frame["state"].str.strip()
    twice = state.duplicated().to_numpy()
    if twice.any():
        row = int(twice.argmax())
        source.fail(f"state {state.iloc[row]!r} is given twice; keep one group", row)
    group = frame["group"].str.strip()
    blank = (group == "").to_numpy()
    if blank.any():
        row = int(blank.argmax())
        source.fail(
            f"no group for state {state.iloc[row]!r}; give it one (of its own if it is free)", row
        )
    return dict(zip(state, group, strict=True))
