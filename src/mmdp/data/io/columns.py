"""Columns of a table of transitions, by role."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from mmdp.core.errors import Remedy
from mmdp.core.text import did_you_mean
from mmdp.core.transitions import Array
from mmdp.data.io.options import LoadOptions
from mmdp.data.io.reading import (
    TableSource,
    is_finite_number,
    parse_floats,
    read_csv_with_fallback,
    read_header,
)

PAPER_COLUMNS = {
    "idstatefrom": "state",
    "idaction": "action",
    "idstateto": "next_state",
    "idoutcome": "model",
    "idtime": "time",
    "probability": "probability",
    "reward": "reward",
}
Column = pd.Series | Array
COLUMN_ROLES = PAPER_COLUMNS | {role: role for role in PAPER_COLUMNS.values()}
LABEL_COLUMNS = ("state", "action", "next_state", "model")
REQUIRED_ROLES = ("state", "action", "next_state", "probability", "reward")


def frame_to_columns(
    frame: pd.DataFrame, source: TableSource, options: LoadOptions
) -> dict[str, Column]:
    """Get the known columns of a frame, by role."""
    roles = _assign_roles([str(x) for x in frame.columns], source, options)
    if not len(frame):
        source.fail("no rows; give at least one transition")
    return {role: frame[name] for name, role in roles.items()}


def read_csv_columns(path: Path, options: LoadOptions) -> dict[str, Column]:
    """Read the known columns of a CSV by role, as numbers if possible, else as text."""
    source, names = TableSource(path), read_header(path)
    roles = _assign_roles(names, source, options)
    # 64 bits: older pandas wraps a larger number silently when asked for 32
    dtypes: dict[str, Any] = {name: np.int64 if name in roles else str for name in names}
    dtypes |= {name: np.float64 for name in roles if roles[name] in ("probability", "reward")}
    label_dtypes = dtypes | {name: str for name in roles if name in LABEL_COLUMNS}
    frame = read_csv_with_fallback(path, names, dtypes, label_dtypes, str)
    if not len(frame):
        source.fail("a header but no rows; expected one row per transition")
    return {role: parse_numbers_or_labels(frame[name], source) for name, role in roles.items()}


def parse_numbers_or_labels(column: pd.Series, source: TableSource) -> Column:
    """Parse a column of text as numbers; columns that may hold labels may stay text."""
    if column.dtype.kind in "if":
        return column
    name = str(column.name)
    text = column.str.strip()
    if name in LABEL_COLUMNS and not is_finite_number(text).all():
        return text
    if COLUMN_ROLES[name] in ("probability", "reward"):
        return parse_floats(text, name, source)
    return parse_floats(text, name, source, "ids are whole numbers from 0")


def _assign_roles(
    names: Sequence[str], source: TableSource, options: LoadOptions
) -> dict[str, str]:
    """Assign roles to column names; refuse unknown, missing and duplicate columns."""
    if {"state", "action"} <= {*names} <= {"time", "state", "action", "idstate", "idaction"}:
        source.fail(
            "this is a policy, not a model; give a model, or read the policy with load_policy()"
        )
    roles = {name: COLUMN_ROLES.get(name, name) for name in names}
    assigned = [roles[name] for name in names]
    duplicate_role = next((role for role in assigned if assigned.count(role) > 1), None)
    if duplicate_role is not None:
        duplicate_names = " and ".join(
            name for name, role in roles.items() if role == duplicate_role
        )
        source.fail(f"column {duplicate_names!r} is given twice; keep one of them")
    unknown = [name for name in names if name not in COLUMN_ROLES]
    missing = [role for role in REQUIRED_ROLES if role not in assigned]
    if missing or (unknown and options.extra_columns == "error"):
        _fail_columns(names, unknown, missing, source)
    return {name: role for name, role in roles.items() if name in COLUMN_ROLES}


def _fail_columns(
    names: Sequence[str], unknown: Sequence[str], missing: Sequence[str], source: TableSource
) -> NoReturn:
    """Raise the error of unknown or missing columns, with the expected names."""
    is_tidy = any(name in LABEL_COLUMNS for name in names)
    spelling = {role: role if is_tidy else name for name, role in PAPER_COLUMNS.items()}
    problems = []
    if unknown:
        problems.append(
            "unknown column " + ", ".join(did_you_mean(x, COLUMN_ROLES) for x in unknown)
        )
    if missing:
        problems.append("no column " + ", ".join(repr(spelling[role]) for role in missing))
    remedies: list[str | Remedy] = ["remove it", Remedy("extra_columns", "ignore")]
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        remedies = ["separate the columns by commas"]
    elif missing:
        expected_roles = ("state", "action", "next_state", "model", "probability", "reward")
        remedies = [f"expected {','.join(spelling[role] for role in expected_roles)}"]
        if list(missing) == ["reward"]:
            remedies = ["add it, with 0 in every row if rewards come from elsewhere"]
    source.fail("; ".join(problems), None, remedies)
