"""Logs of transitions, read as ids: columns by role, labels, errors that name the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import did_you_mean, join_first, pluralize
from mmdp.core.transitions import Array
from mmdp.core.validate import are_ids, parse_labels
from mmdp.data.io.parquet import ParquetColumns
from mmdp.data.io.reading import as_frame, read_csv, read_header
from mmdp.data.io.writing import as_path
from mmdp.data.schema import (
    AXIS_ROLES,
    PAPER_COLUMNS,
    CodedColumn,
    ColumnLabels,
    Fields,
    IntArray,
    Labels,
    Mask,
    Table,
    TableSource,
    assign_roles,
    encode_axis,
    encode_column,
)

REQUIRED_ROLES = ("state", "action", "next_state")
ROLES = (*REQUIRED_ROLES, "count", "reward", "episode", "time", "terminated", "truncated")
EXPECTED_COLUMNS = (
    "a log has state,action,next_state and may have count,reward,episode,time (or step),terminated"
)
BOOL_TEXTS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
# an added state, entered when a state that ends only some episodes ends one
TERMINATED_LABEL = "terminated"
MISSING_TEXTS = ("", "NA", "NaN", "nan", "<NA>")  # texts of missing values
ExpectedAxis = int | Iterable[object] | None  # number of states or actions, or their labels


@dataclass(frozen=True)
class TransitionLog:
    """Logged transitions as ids, each with its number in ``counts`` (None: once).

    ``initial_states`` are the first states of episodes, if known. ``is_terminated`` marks the rows
    that end their episode, if known, and ``terminal_states`` are the states that end episodes.
    """

    state: IntArray
    action: IntArray
    next_state: IntArray
    states: ColumnLabels
    actions: ColumnLabels
    source: TableSource
    counts: IntArray | None = None
    reward: Array | None = None
    initial_states: IntArray | None = None
    is_terminated: Mask | None = None
    terminal_states: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.state)


@dataclass(frozen=True)
class LoggedSteps:
    """Logged transitions of a known model in the order of time, by ids."""

    state: IntArray
    action: IntArray
    next_state: IntArray
    episode: IntArray
    time: IntArray  # the number of the decision
    rows: IntArray  # row of the log
    source: TableSource

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return len(np.unique(self.episode))

    @property
    def weight_times(self) -> IntArray:
        """Times (n + 1,) of the weights before the first step and after each."""
        return np.append(self.time[:1], self.time + 1)


def read_log(
    log: object,
    columns: Mapping[str, str] | None = None,
    states: ExpectedAxis = None,
    actions: ExpectedAxis = None,
) -> TransitionLog:
    """Read a log from a path, a DataFrame or a mapping of columns."""
    parsed, _ = _parse_log(log, columns or {}, states, actions)
    return parsed if parsed.is_terminated is None else _split_terminal_states(parsed)


def _split_terminal_states(log: TransitionLog) -> TransitionLog:
    """Find the terminal states; split a state that ends only some episodes into two."""
    assert log.is_terminated is not None
    is_move = log.state != log.next_state  # rows may stay in a terminal state
    terminal_states = np.unique(log.next_state[log.is_terminated])
    continues = np.isin(terminal_states, log.state[is_move]) | np.isin(
        terminal_states, log.next_state[is_move & ~log.is_terminated]
    )
    if not continues.any():
        return replace(log, terminal_states=terminal_states)
    labels, n_states = log.states.labels, log.states.size
    state_labels = ColumnLabels(
        "state", n_states + 1, None if labels is None else (*labels, TERMINATED_LABEL)
    )
    is_split = log.is_terminated & np.isin(log.next_state, terminal_states[continues])
    examples = join_first(log.states.format_id(int(s)) for s in terminal_states[continues])
    note = (
        f"these states end some episodes and not others: {examples}; episodes that end there go "
        f"to a state of their own, {state_labels.format_id(n_states)}"
    )
    return replace(
        log,
        states=state_labels,
        next_state=np.where(is_split, n_states, log.next_state),
        terminal_states=np.append(terminal_states[~continues], n_states),
        notes=[*log.notes, note],
    )


def read_steps(log: object, states: ExpectedAxis, actions: ExpectedAxis) -> LoggedSteps:
    """Read a log with the states and actions of a model, sorted by time; ids count from 0.

    Times that are not whole numbers are replaced by the number of the decision.
    """
    try:
        parsed, table = _parse_log(log, {}, states, actions, base=0)
    except InputError as error:  # its arguments are those of fit
        raise InputError(error.message, [x for x in error.remedies if isinstance(x, str)]) from None
    source = parsed.source
    if parsed.counts is not None:
        source.fail(
            "has a column 'count', but a row must be one step; repeat rows, or drop the column"
        )
    episode, raw_times = _parse_episodes(table)
    source.fail_where(
        pd.DataFrame({"episode": episode, "time": raw_times}).duplicated(),
        "another step has this time",
        ["drop it", "number the episodes in a column 'episode'"],
    )
    order = np.argsort(raw_times, kind="stable")
    time: IntArray = raw_times[order].astype(np.int64)
    if (time != raw_times[order]).any():
        time = np.asarray(pd.Series(time).groupby(episode[order]).cumcount(), np.int64)
    state, action, next_state = (x[order] for x in (parsed.state, parsed.action, parsed.next_state))
    return LoggedSteps(state, action, next_state, episode[order], time, order, source)


def _parse_log(
    log: object,
    column_names: Mapping[str, str],
    states: ExpectedAxis,
    actions: ExpectedAxis,
    base: int | None = None,
) -> tuple[TransitionLog, Table]:
    """Parse a log and its columns; ids count from ``base`` (None: 0 or 1, by the log)."""
    table, notes = _read_table(log, column_names)
    source = table.source
    if not len(table):
        source.fail("no rows; a log has one row per transition")
    expected = {
        axis: x if x is None or isinstance(x, (int, np.integer)) else parse_labels(x, axis)
        for axis, x in (("state", states), ("action", actions))
    }
    columns = {axis: _encode_ids(table, axis, labels) for axis, labels in expected.items()}
    if base is None:
        base = _find_id_base(columns.values())
        notes += ["the ids of this log count from 1"] * base
    axes: dict[str, ColumnLabels] = {}
    values: Fields = {}
    for axis, labels in expected.items():
        roles = AXIS_ROLES[axis]
        axes[axis], ids = encode_axis(axis, roles, columns.pop(axis), source, labels, base=base)
        values |= dict(zip(roles, ids, strict=True))
    if "reward" in table:
        values["reward"] = reward = table.parse_floats("reward")
        source.fail_where(~np.isfinite(reward), "reward is missing; fill it in or drop the row")
    if "terminated" in table:
        values["is_terminated"] = _parse_terminated(table)
    initial_states = _find_initial_states(table, values) if "episode" in table else None
    if "count" in table:
        if initial_states is not None:
            source.fail(
                "has columns 'count' and 'episode'; a row of an episode is one transition: drop one"
            )
        values["counts"] = counts = _parse_counts(table)
        values = {name: x[counts > 0] for name, x in values.items()}
    parsed = TransitionLog(
        **values,
        states=axes["state"],
        actions=axes["action"],
        source=source,
        initial_states=initial_states,
        notes=notes,
    )
    return parsed, table


def _parse_terminated(table: Table) -> Mask:
    """Parse the column of true or false (1 or 0)."""
    column = encode_column(table["terminated"])
    category_flags = [BOOL_TEXTS.get(x.strip().lower(), np.nan) for x in column.texts]
    flags = np.array([*category_flags, np.nan])[column.codes]
    table.source.fail_where(
        np.isnan(flags),
        lambda i: f"terminated is {table['terminated'].iloc[i]!r}; write true or false (1 or 0)",
    )
    return flags == 1


def _parse_counts(table: Table) -> IntArray:
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
def _read_table(log: object, column_names: Mapping[str, str]) -> tuple[Table, list[str]]:
    """Read the columns of a log by role, and make notes about unused columns."""
    if isinstance(log, (str, os.PathLike)):
        return _read_file(as_path(log), column_names)
    frame, source = as_frame(log), TableSource("log")
    if not isinstance(frame, (pd.DataFrame, Mapping)):
        raise InputError(f"a log is a path, a DataFrame or a mapping, not {type(log).__name__}")
    roles, notes = _assign_log_roles([str(x) for x in frame], column_names, source)
    if isinstance(frame, Mapping):
        try:
            frame = pd.DataFrame({name: frame[name] for name in roles})
        except (TypeError, ValueError):  # two axes, or unequal lengths
            source.fail(
                "columns of different sizes, or with several axes; give each transition one state, "
                "one action and one next state"
            )
    return Table({role: frame[name] for name, role in roles.items()}, source), notes


def _read_file(path: Path, column_names: Mapping[str, str]) -> tuple[Table, list[str]]:
    """Read the columns of a file by role; text as categories, which takes a few bytes per row."""
    source, suffix = TableSource(path), path.suffix.lower()
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    if suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: unknown suffix {path.suffix!r}; a log is .csv or .parquet")
    if suffix == ".parquet":
        file = ParquetColumns(path)
        roles, notes = _assign_log_roles(file.column_names, column_names, source)
        return Table({role: file.read_column(name) for name, role in roles.items()}, source), notes
    names = read_header(path)
    roles, notes = _assign_log_roles(names, column_names, source)
    is_number = {name: roles.get(name) in ("reward", "time") for name in names}
    dtypes = {name: np.float64 if is_number[name] else "category" for name in names}
    frame = read_csv(path, names, dtypes, "category")  # a time may be a date, a reward not a number
    return Table({role: frame[name] for name, role in roles.items()}, source), notes


def _assign_log_roles(
    names: Sequence[str], column_names: Mapping[str, str], source: TableSource
) -> tuple[dict[str, str], list[str]]:
    """Assign roles to column names; refuse names that look misspelled, and note other ones."""
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
def _encode_ids(table: Table, axis: str, labels: int | Labels | None) -> list[CodedColumn]:
    """Encode the columns of an axis as labels or, if all are numbers and no labels are, as ids."""
    columns = [_encode_role(table, role, labels) for role in AXIS_ROLES[axis]]
    if not all(x.has_ids for x in columns):
        return columns
    if isinstance(labels, tuple) and are_ids(labels):
        return [replace(x, categories=[str(int(float(y))) for y in x.texts]) for x in columns]
    return [CodedColumn(x.parse_ids(), None) for x in columns]


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
    return CodedColumn(column.codes, [x.strip() for x in column.texts])


def _check_not_missing(is_missing: Mask, role: str, source: TableSource) -> None:
    """Refuse missing values of a role, with the line of the first."""
    count_text = pluralize(int(is_missing.sum()), "row")
    source.fail_where(
        is_missing, f"{role} is missing ({count_text} like it); fill it in or drop the row"
    )


def _find_id_base(axes: Iterable[Sequence[CodedColumn]]) -> int:
    """Find the lowest id: 1 if every axis of ids begins with 1, else 0."""
    min_ids = {
        min(int(column.codes.min()) for column in columns)
        for columns in axes
        if all(column.categories is None for column in columns)
    }
    return int(min_ids == {1})


# ---------------------------------------------------------------------- episodes
def _parse_episodes(table: Table) -> tuple[IntArray, Array]:
    """Parse the episode (0 if not given) and the time (the row's number) of every row."""
    row_numbers = np.arange(len(table), dtype=np.float64)
    times = _parse_times(table) if "time" in table else row_numbers + 0.5
    if "episode" not in table:
        return np.zeros(len(table), np.int64), times
    episode = encode_column(table["episode"])
    _check_not_missing(episode.is_blank(MISSING_TEXTS), "episode", table.source)
    return episode.codes.astype(np.int64), times


def _find_initial_states(table: Table, values: Fields) -> IntArray:
    """Find the initial state of each episode: that of its earliest row.

    Rows after the end of an episode are refused, except stays in its terminal state.
    """
    episode, times = _parse_episodes(table)
    order = np.lexsort((times, episode))
    episode, state = episode[order], values["state"][order]
    if "is_terminated" in values:
        next_state = values["next_state"][order]
        n_ends = pd.Series(values["is_terminated"][order].astype(np.int64))
        is_over = (n_ends.groupby(episode).cumsum() - n_ends).to_numpy() > 0
        is_stay = (state == next_state) & (state == np.roll(next_state, 1))
        is_after_end = np.empty(len(order), dtype=bool)
        is_after_end[order] = is_over & ~is_stay
        table.source.fail_where(
            is_after_end,
            "an earlier row has terminated this episode",
            [
                "mark only the last row of an episode as terminated",
                "start a new episode in the next row",
            ],
        )
    return np.asarray(state[np.diff(episode, prepend=-1) != 0], np.int64)


def _parse_times(table: Table) -> Array:
    """Parse times as numbers that keep their order; ISO dates are accepted."""
    column = table["time"]
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        times = column.to_numpy(np.float64)
    else:
        coded_column = encode_column(column)
        texts = pd.Series(coded_column.texts)
        numbers = pd.to_numeric(texts, errors="coerce")
        if numbers.isna().any():
            dates = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)
            # the order of decisions, not their numbers
            numbers = (dates - dates.min()) / pd.Timedelta(seconds=1) + 0.5
        times = np.append(numbers.to_numpy(np.float64), np.nan)[coded_column.codes]
    problem = "missing or not a number or an ISO date; correct it"
    table.source.fail_where(~np.isfinite(times), lambda i: f"time is {column.iloc[i]!r}, {problem}")
    return times
