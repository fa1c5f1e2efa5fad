"""Logs of transitions, read as ids: columns by role, labels, errors that name the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.shapes import Array, IndexArray, Mask
from mmdp.core.text import did_you_mean, join_first, pluralize
from mmdp.core.validate import are_ids
from mmdp.data.io.reading import as_frame, read_column_names, read_columns, read_csv, read_header
from mmdp.data.io.writing import as_path, get_suffix
from mmdp.data.schema import (
    AXIS_ROLES,
    PAPER_COLUMNS,
    CodedColumn,
    ColumnLabels,
    Fields,
    Labels,
    Table,
    TableSource,
    assign_roles,
    check_ids,
    encode_column,
    encode_labels,
    parse_axis_argument,
)

REQUIRED_ROLES = ("state", "action", "next_state")
ROLES = (*REQUIRED_ROLES, "count", "reward", "episode", "time", "terminated", "truncated")
EXPECTED_COLUMNS = (
    "a log has state,action,next_state and may have count,reward,episode,time (or step),terminated"
)
BOOL_TEXTS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
# an added state, entered when a state that ends only some episodes ends one
TERMINATED_LABEL = "terminated"
TABLE_SUFFIXES = (".csv", ".parquet")
MISSING_TEXTS = ("", "NA", "NaN", "nan", "<NA>")  # texts of missing values
ExpectedAxis = int | Iterable[object] | None  # number of states or actions, or their labels


@dataclass(frozen=True)
class TransitionLog:
    """Logged transitions: a frame with the ids state, action and next_state.

    Its other columns are there if known and needed: counts, reward, is_terminated (whether the row
    ends its episode), and episode and time, which order the rows. ``initial_states`` are the first
    states of episodes, if known, and ``terminal_states`` those that end episodes.
    """

    frame: pd.DataFrame
    states: ColumnLabels
    actions: ColumnLabels
    source: TableSource
    notes: list[str]
    initial_states: IndexArray | None = None
    terminal_states: IndexArray = field(default_factory=lambda: np.empty(0, np.int64))


def read_log(
    log: object,
    columns: Mapping[str, str] | None = None,
    states: ExpectedAxis = None,
    actions: ExpectedAxis = None,
    *,
    is_of_model: bool = False,
) -> TransitionLog:
    """Read a log from a path, a DataFrame or a mapping of columns.

    Ids count from 0 or 1. If the log ``is_of_model`` with these states and actions, they count from
    0, and the rows have an episode and a time.
    """
    table, notes = _read_table(log, columns or {})
    source = table.source
    if not len(table):
        source.fail("no rows; a log has one row per transition")
    expected = {
        axis: parse_axis_argument(x, axis) for axis, x in (("state", states), ("action", actions))
    }
    coded = {axis: _encode_ids(table, axis, labels) for axis, labels in expected.items()}
    base = 0 if is_of_model else _find_id_base(ids for _, ids in coded.values())
    notes += ["the ids of this log count from 1"] * base
    axes: dict[str, ColumnLabels] = {}
    values: Fields = {}
    for axis, labels in expected.items():
        coded_columns, raw_ids = coded.pop(axis)
        if raw_ids:
            axes[axis], ids = check_ids(axis, raw_ids, source, labels, base=base)
        else:
            axes[axis], ids = encode_labels(axis, coded_columns, source, labels)
        values |= dict(zip(AXIS_ROLES[axis], ids, strict=True))
    if "reward" in table:
        values["reward"] = reward = table.parse_floats("reward")
        source.fail_where(~np.isfinite(reward), "reward is missing; fill it in or drop the row")
    if "terminated" in table:
        values["is_terminated"] = _parse_terminated(table)
    has_episodes = "episode" in table
    if has_episodes or is_of_model:
        values |= {"time": _parse_times(table), "episode": _parse_episodes(table)}
    if "count" in table:
        values["counts"] = _parse_counts(table)
    frame = pd.DataFrame(values, copy=False)
    initial_states = _find_initial_states(frame, source) if has_episodes else None
    if "count" in table:
        if has_episodes:
            source.fail(
                "has columns 'count' and 'episode'; a row of an episode is one transition: drop one"
            )
        frame = frame[frame["counts"] > 0]
    return TransitionLog(frame, axes["state"], axes["action"], source, notes, initial_states)


def split_terminal_states(log: TransitionLog) -> TransitionLog:
    """Find the terminal states; split a state that ends only some episodes into two."""
    frame = log.frame
    if "is_terminated" not in frame:
        return log
    is_move = frame["state"] != frame["next_state"]  # rows may stay in a terminal state
    terminal_states = np.unique(frame["next_state"][frame["is_terminated"]])
    goes_on = pd.concat(
        [frame["state"][is_move], frame["next_state"][is_move & ~frame["is_terminated"]]]
    )
    continues = np.isin(terminal_states, goes_on)
    if not continues.any():
        return replace(log, terminal_states=terminal_states)
    labels, n_states = log.states.labels, log.states.size
    state_labels = ColumnLabels(
        "state", n_states + 1, None if labels is None else (*labels, TERMINATED_LABEL)
    )
    is_split = frame["is_terminated"] & frame["next_state"].isin(terminal_states[continues])
    examples = join_first(log.states.format_id(int(s)) for s in terminal_states[continues])
    note = (
        f"these states end some episodes and not others: {examples}; episodes that end there go "
        f"to a state of their own, {state_labels.format_id(n_states)}"
    )
    return replace(
        log,
        states=state_labels,
        frame=frame.assign(next_state=frame["next_state"].mask(is_split, n_states)),
        terminal_states=np.append(terminal_states[~continues], n_states),
        notes=[*log.notes, note],
    )


def _parse_terminated(table: Table) -> Mask:
    """Parse the column of true or false (1 or 0)."""
    column = encode_column(table["terminated"])
    category_flags = [BOOL_TEXTS.get(x.strip().lower(), np.nan) for x in column.categories]
    flags = np.array([*category_flags, np.nan])[column.codes]
    table.source.fail_where(
        np.isnan(flags),
        lambda i: f"terminated is {table['terminated'].iloc[i]!r}; write true or false (1 or 0)",
    )
    return flags == 1


def _parse_counts(table: Table) -> IndexArray:
    """Parse the number of transitions that each row stands for."""
    counts = table.parse_floats("count")
    is_wrong = ~((counts >= 0) & (counts == np.floor(counts)) & (counts < 2**53))
    table.source.fail_where(
        is_wrong, lambda i: f"count is {counts[i]:g}, not a whole number >= 0; correct it"
    )
    if not counts.any():
        table.source.fail("every count is 0; give at least one transition")
    return counts.astype(np.int64)


# ---------------------------------------------------------------------- columns by role
def _read_table(log: Any, column_names: Mapping[str, str]) -> tuple[Table, list[str]]:
    """Read the columns of a log by role, and make notes about unused columns."""
    if isinstance(log, (str, os.PathLike)):
        path = as_path(log)
        source, is_csv = TableSource(path), get_suffix(path, TABLE_SUFFIXES) == ".csv"
        names = read_header(path) if is_csv else read_column_names(path)
        roles, notes = _assign_log_roles(names, column_names, source)
        if is_csv:  # text as categories, which takes a few bytes per row
            is_number = {name: roles.get(name) in ("reward", "time") for name in names}
            dtypes = {name: np.float64 if is_number[name] else "category" for name in names}
            columns = read_csv(path, names, dtypes, "category")  # a time may be a date
        else:
            columns = read_columns(path, roles)
    else:
        source, columns = TableSource("log"), as_frame(log)
        if not isinstance(columns, (pd.DataFrame, Mapping)):
            raise InputError(f"a log is a path, a DataFrame or a mapping, not {type(log).__name__}")
        roles, notes = _assign_log_roles([str(x) for x in columns], column_names, source)
        if isinstance(columns, Mapping):
            try:
                columns = pd.DataFrame({name: columns[name] for name in roles})
            except (TypeError, ValueError):  # two axes, or unequal lengths
                source.fail(
                    "columns of different sizes, or with several axes; give each transition one "
                    "state, one action and one next state"
                )
    return Table({role: columns[name] for name, role in roles.items()}, source), notes


def _assign_log_roles(
    names: Sequence[str], column_names: Mapping[str, str], source: TableSource
) -> tuple[dict[str, str], list[str]]:
    """Assign roles to column names; refuse names that look misspelled, and note other ones."""
    if "probability" in names:
        source.fail("holds models (column probability), not a log; solve it, or drop the column")
    for role, name in column_names.items():
        if role not in ROLES:
            raise InputError(
                f"columns= has an unknown role {did_you_mean(role, ROLES)}; use {list(ROLES)}"
            )
        if name not in names:
            source.fail(f"no column {did_you_mean(name, names)}, which columns= names for {role}")
    known = {name: role for name, role in PAPER_COLUMNS.items() if role in ROLES}
    known |= {role: role for role in ROLES}
    known |= {} if {"time", "idtime"} & {*names} else {"step": "time"}
    known = {name: role for name, role in known.items() if role not in column_names}
    known |= {name: role for role, name in column_names.items()}
    missing_roles = {*ROLES} - {"count", *map(known.get, names)}  # "country" is not "count"
    unused = [name for name in names if name not in known]
    ignored = [x for x in unused if "did you mean" not in did_you_mean(x, missing_roles)]
    roles = assign_roles(
        [name for name in names if name not in ignored],
        known,
        REQUIRED_ROLES,
        source,
        EXPECTED_COLUMNS,
        [Remedy("columns", {"ROLE": "NAME"}, verb="name others with")],
    )
    return roles, [f"columns not used: {', '.join(unused)}"] if unused else []


# ---------------------------------------------------------------------- ids
def _encode_ids(
    table: Table, axis: str, labels: int | Labels | None
) -> tuple[list[CodedColumn], list[IndexArray]]:
    """Encode the columns of an axis as labels or, if all are numbers and no labels are, as ids."""
    columns = [_encode_role(table, role, labels) for role in AXIS_ROLES[axis]]
    if not all(are_ids(x.categories) for x in columns):
        return columns, []
    ids = [np.array([int(float(y)) for y in x.categories], np.int64) for x in columns]
    if isinstance(labels, tuple) and are_ids(labels):
        numbered = [CodedColumn(x.codes, [*map(str, y)]) for x, y in zip(columns, ids, strict=True)]
        return numbered, []
    return [], [y[x.codes] for x, y in zip(columns, ids, strict=True)]


def _encode_role(table: Table, role: str, labels: int | Labels | None) -> CodedColumn:
    """Encode a column as categories; a missing value is an error that names its line."""
    try:
        column = encode_column(table[role])
    except TypeError:
        table.source.fail(f"{role} is a list; give one label or id, such as '3,7' for [3, 7]", 0)
    blank_texts = {*MISSING_TEXTS}.difference(labels if isinstance(labels, tuple) else ())
    _check_not_missing(column.is_blank(blank_texts), role, table.source)
    if Path(table.source.location).suffix.lower() != ".csv":
        return column
    return CodedColumn(column.codes, [x.strip() for x in column.categories])


def _check_not_missing(is_missing: Mask, role: str, source: TableSource) -> None:
    """Refuse missing values of a role, with the line of the first."""
    count_text = pluralize(int(is_missing.sum()), "row")
    source.fail_where(
        is_missing, f"{role} is missing ({count_text} in all); fill it in or drop the row"
    )


def _find_id_base(axes: Iterable[Sequence[IndexArray]]) -> int:
    """Find the lowest id: 1 if every axis of ids begins with 1, else 0."""
    return int({min(int(ids.min()) for ids in columns) for columns in axes if columns} == {1})


# ---------------------------------------------------------------------- episodes
def _parse_episodes(table: Table) -> IndexArray:
    """Parse the episode of every row; 0 if they are not given."""
    if "episode" not in table:
        return np.zeros(len(table), np.int64)
    episode = encode_column(table["episode"])
    _check_not_missing(episode.is_blank(MISSING_TEXTS), "episode", table.source)
    return episode.codes.astype(np.int64)


def _find_initial_states(frame: pd.DataFrame, source: TableSource) -> IndexArray:
    """Find the initial state of each episode: that of its earliest row.

    Rows after the end of an episode are refused, except stays in its terminal state.
    """
    columns = [x for x in frame if x not in ("action", "reward", "counts")]
    rows = frame[columns].sort_values(["episode", "time"], kind="stable")
    episodes = rows.groupby("episode")
    if "is_terminated" in rows:
        is_over = episodes["is_terminated"].cumsum() > rows["is_terminated"]
        is_stay = (rows["state"] == rows["next_state"]) & (
            rows["state"] == rows["next_state"].shift()
        )
        source.fail_where(
            (is_over & ~is_stay).sort_index(),
            "an earlier row has terminated this episode",
            [
                "mark only the last row of an episode as terminated",
                "start a new episode in the next row",
            ],
        )
    return episodes["state"].first().to_numpy(np.int64)


def _parse_times(table: Table) -> Array:
    """Parse times as numbers that keep their order, row numbers if there are none.

    ISO dates are accepted.
    """
    if "time" not in table:
        return np.arange(len(table), dtype=np.float64) + 0.5
    column = table["time"]
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        times = column.to_numpy(np.float64)
    else:
        coded_column = encode_column(column)
        texts = pd.Series(coded_column.categories)
        numbers = pd.to_numeric(texts, errors="coerce")
        if numbers.isna().any():
            dates = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)
            # the order of decisions, not their numbers
            numbers = (dates - dates.min()) / pd.Timedelta(seconds=1) + 0.5
        times = np.append(numbers.to_numpy(np.float64), np.nan)[coded_column.codes]
    problem = "missing or not a number or an ISO date; correct it"
    table.source.fail_where(~np.isfinite(times), lambda i: f"time is {column.iloc[i]!r}, {problem}")
    return times
