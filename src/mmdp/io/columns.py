"""The columns of a table of transitions, by the role they play."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from mmdp.errors import Remedy
from mmdp.io.reading import Source, header, is_number, numbers, read_fitting
from mmdp.io.rules import Rules
from mmdp.words import suggested

PAPER = {
    "idstatefrom": "state", "idaction": "action", "idstateto": "next_state",
    "idoutcome": "model", "idtime": "time", "probability": "probability", "reward": "reward",
}  # fmt: skip
KNOWN = PAPER | {role: role for role in PAPER.values()}
LABEL_COLUMNS = ("state", "action", "next_state", "model")
REQUIRED = ("state", "action", "next_state", "probability", "reward")


def columns_of_frame(frame: pd.DataFrame, source: Source, rules: Rules) -> dict[str, Any]:
    """The known columns of a frame, by role."""
    roles = _roles([str(x) for x in frame.columns], source, rules)
    if not len(frame):
        source.fail("no rows; give at least one transition")
    return {role: frame[name] for name, role in roles.items()}


def columns_of_csv(path: Path, rules: Rules) -> dict[str, Any]:
    """The known columns of a file, by role: as numbers if they are, else as text."""
    source, names = Source(path), header(path)
    roles = _roles(names, source, rules)
    # 64 bits: older pandas wraps a larger number silently when asked for 32
    plain: dict[str, Any] = {name: np.int64 if name in roles else str for name in names}
    plain |= {name: np.float64 for name in roles if roles[name] in ("probability", "reward")}
    labelled = plain | {name: str for name in roles if name in LABEL_COLUMNS}
    frame = read_fitting(path, names, plain, labelled, str)
    if not len(frame):
        source.fail("a header but no rows; expected one row per transition")
    return {role: numbers_or_labels(frame[name], source) for name, role in roles.items()}


def numbers_or_labels(column: pd.Series, source: Source) -> Any:
    """A column of text as numbers; only the columns that may hold labels stay text."""
    if column.dtype.kind in "if":
        return column
    name = str(column.name)
    text = column.str.strip()
    if name in LABEL_COLUMNS and not is_number(text).all():
        return text
    if KNOWN[name] in ("probability", "reward"):
        return numbers(text, name, source)
    return numbers(text, name, source, "ids are whole numbers from 0")


def _roles(names: Sequence[str], source: Source, rules: Rules) -> dict[str, str]:
    """Column name to role; unknown, missing and duplicate columns are errors."""
    if {"state", "action"} <= {*names} <= {"time", "state", "action", "idstate", "idaction"}:
        source.fail(
            "this is a policy; give the models, or read it with load_policy() or mmdp evaluate"
        )
    roles = {name: KNOWN.get(name, name) for name in names}
    played = [roles[name] for name in names]
    twice = next((role for role in played if played.count(role) > 1), None)
    if twice is not None:
        double = " and ".join(name for name, role in roles.items() if role == twice)
        source.fail(f"column {double!r} is given twice; keep one of them")
    unknown = [name for name in names if name not in KNOWN]
    missing = [role for role in REQUIRED if role not in played]
    if missing or (unknown and rules.extra_columns == "error"):
        _fail_columns(names, unknown, missing, source)
    return {name: role for name, role in roles.items() if name in KNOWN}


def _fail_columns(
    names: Sequence[str], unknown: Sequence[str], missing: Sequence[str], source: Source
) -> NoReturn:
    tidy = any(name in LABEL_COLUMNS for name in names)
    spelling = {role: role if tidy else name for name, role in PAPER.items()}
    parts = []
    if unknown:
        parts.append("unknown column " + ", ".join(suggested(x, KNOWN) for x in unknown))
    if missing:
        parts.append("no column " + ", ".join(repr(spelling[role]) for role in missing))
    remedies: list[str | Remedy] = ["remove it", Remedy("extra_columns", "ignore")]
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        remedies = ["separate the columns by commas"]
    elif missing:
        wanted = ("state", "action", "next_state", "model", "probability", "reward")
        remedies = [f"expected {','.join(spelling[role] for role in wanted)}"]
        if list(missing) == ["reward"]:
            remedies = ["add it, with 0 in every row if rewards come from elsewhere"]
    source.fail("; ".join(parts), None, remedies)
