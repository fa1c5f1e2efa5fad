"""Logs of transitions, read as ids: columns by role, labels, errors that name the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import choose_verb_form, did_you_mean, pluralize
from mmdp.core.transitions import Array
from mmdp.core.validate import are_ids, parse_labels
from mmdp.data.io.parquet import ParquetColumns
from mmdp.data.io.reading import as_frame, read_csv, read_header
from mmdp.data.io.writing import as_path
from mmdp.data.schema import (
    AXIS_BY_ROLE,
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
TERMINATED_LABEL = (
    "terminated"  # added state, entered when a state that ends only some episodes ends one
)
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
    counts: IntArray | None
    reward: Array | None
    initial_states: IntArray | None
    is_terminated: Mask | None
    states: ColumnLabels
    actions: ColumnLabels
    source: TableSource
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
    def discontinuities(self) -> IntArray:
        """Ids of the steps whose state is not the next state of the step just before."""
        order = np.argsort(self.episode, kind="stable")
        previous, current = order[:-1], order[1:]
        is_next = (self.episode[current] == self.episode[previous]) & (
            self.time[current] == self.time[previous] + 1
        )
        return current[is_next & (self.state[current] != self.next_state[previous])]

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
    parsed = _parse_log(log, columns, states, actions)[0]
    return (
        parsed
        if parsed.is_terminated is None
        else _split_terminal_states(parsed, parsed.is_terminated)
    )


def _split_terminal_states(log: TransitionLog, is_terminated: Mask) -> TransitionLog:
    """Find the terminal states; split a state that ends only some episodes into two."""
    is_move = log.state != log.next_state  # rows may stay in a terminal state
    terminal_states = np.unique(log.next_state[is_terminated])
    continues = np.isin(terminal_states, log.state[is_move]) | np.isin(
        terminal_states, log.next_state[is_move & ~is_terminated]
    )
    if not continues.any():
        return replace(log, terminal_states=terminal_states)
    labels, n_states = log.states.labels, log.states.size
    state_labels = ColumnLabels(
        "state", n_states + 1, None if labels is None else (*labels, TERMINATED_LABEL)
    )
    is_split = is_terminated & np.isin(log.next_state, terminal_states[continues])
    examples = ", ".join(log.states.format_id(int(s)) for s in terminal_states[continues][:5])
    note = (
        f"{choose_verb_form(int(continues.sum()), 'a state ends', 'states end')} some episodes and "
        f"not others ({examples}{' ...' if continues.sum() > 5 else ''}): episodes that end there "
        f"go to a state of their own, {state_labels.format_id(n_states)}"
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
        parsed, table = _parse_log(log, None, states, actions, base=0)
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
    columns: Mapping[str, str] | None,
    states: ExpectedAxis,
    actions: ExpectedAxis,
    base: int | None = None,
) -> tuple[TransitionLog, Table]:
    """Parse a log and its columns; ids count from ``base`` (None: 0 or 1, by the log)."""
    table, notes = _read_table(log, columns or {})
    source = table.source
    if not len(table):
        source.fail("no rows; a log has one row per transition")
    expected = {
        "state": _check_expected(states, "state"),
        "action": _check_expected(actions, "action"),
    }
    coded_columns = {role: _encode_role(table, role, expected) for role in REQUIRED_ROLES}
    base = _find_id_base(coded_columns) if base is None else base
    if base:
        notes.append("the ids of this log count from 1")
    axes: dict[str, ColumnLabels] = {}
    values: Fields = {}
    for axis, labels in expected.items():
        roles = AXIS_ROLES[axis]
        axis_columns = [coded_columns.pop(role) for role in roles]
        if all(column.has_ids for column in axis_columns):
            # ids are labels if the labels that are expected are numbers
            is_labeled = isinstance(labels, tuple) and are_ids(labels)
            axis_columns = [
                CodedColumn(x.codes, x.texts) if is_labeled else CodedColumn(x.parse_ids(), None)
                for x in axis_columns
            ]
        axes[axis], ids = encode_axis(axis, roles, axis_columns, source, labels, base=base)
        values |= dict(zip(roles, ids, strict=True))
    notes += _make_fraction_notes(axes["state"])
    if "reward" in table:
        values["reward"] = reward = table.parse_floats("reward")
        source.fail_where(~np.isfinite(reward), "reward is missing; fill it in or drop the row")
    if "terminated" in table:
        values["is_terminated"] = _parse_flags(table["terminated"], "terminated", source)
    initial_states = None
    if "episode" in table:
        episode, times = _parse_episodes(table)
        initial_states = _find_initial_states(episode, times, values["state"])
        if "terminated" in table:
            _refuse_after_end(episode, times, values, source)
    if "count" in table:
        if initial_states is not None:
            source.fail(
                "has columns 'count' and 'episode'; a row of an episode is one transition: drop one"
            )
        values["counts"] = counts = _parse_counts(table)
        values = {name: x[counts > 0] for name, x in values.items()}
    parsed = TransitionLog(
        **{"counts": None, "reward": None, "is_terminated": None, **values},
        initial_states=initial_states,
        states=axes["state"],
        actions=axes["action"],
        source=source,
        notes=notes,
    )
    return parsed, table


def _parse_flags(column: pd.Series, role: str, source: TableSource) -> Mask:
    """Parse a column of true or false (1 or 0)."""
    coded_column = encode_column(column)
    category_flags = [
        BOOL_TEXTS.get(x.strip().lower(), np.nan) for x in coded_column.categories or ()
    ]
    flags = np.array([*category_flags, np.nan])[coded_column.codes]
    source.fail_where(
        np.isnan(flags), lambda i: f"{role} is {column.iloc[i]!r}; write true or false (1 or 0)"
    )
    return flags == 1


def _make_fraction_notes(states: ColumnLabels) -> list[str]:
    """Make a note if states are numbers with fractions, which rarely occur twice."""
    try:
        values = np.array([float(x) for x in states.labels or ()])
    except ValueError:
        return []
    if (values == np.floor(values)).all():
        return []
    return [
        f"states have fractions, and each of the {len(values)} numbers is a state; round "
        "measurements to fewer values"
    ]


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
    frame = as_frame(log)
    if isinstance(log, (str, os.PathLike)):
        path = as_path(log)
        source, suffix = TableSource(path), path.suffix.lower()
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
        if suffix == ".parquet":
            file = ParquetColumns(path)
            roles, notes = _assign_log_roles(file.column_names, column_names, source)
            columns = {role: file.read_column(name) for name, role in roles.items()}
            return Table(columns, source), notes
        if suffix != ".csv":
            raise InputError(f"{path}: unknown suffix {path.suffix!r}; a log is .csv or .parquet")
        names = read_header(path)
        roles, notes = _assign_log_roles(names, column_names, source)
        frame = _read_csv_log(path, names, roles)
    elif isinstance(frame, (pd.DataFrame, Mapping)):
        source = TableSource("log")
        roles, notes = _assign_log_roles([str(x) for x in frame], column_names, source)
        if isinstance(frame, Mapping):
            frame = _make_frame({name: frame[name] for name in roles}, source)
    else:
        raise InputError(f"a log is a path, a DataFrame or a mapping, not {type(log).__name__}")
    return Table({role: frame[name] for name, role in roles.items()}, source), notes


def _make_frame(columns: Fields, source: TableSource) -> pd.DataFrame:
    """Make a table of columns, and refuse columns of different sizes."""
    try:
        return pd.DataFrame(columns)
    except (TypeError, ValueError):  # two axes, or unequal lengths
        sizes = {name: "x".join(map(str, np.shape(x))) or "1" for name, x in columns.items()}
        source.fail(
            f"columns of different sizes: {', '.join(f'{x} {n}' for x, n in sizes.items())}",
            remedies=["give each transition one state, one action and one next state"],
        )


def _read_csv_log(path: Path, names: list[str], roles: Mapping[str, str]) -> pd.DataFrame:
    """Read a CSV with text as categories, which takes a few bytes per row."""
    dtypes: Fields = dict.fromkeys(names, "category")
    float_dtypes = {
        role: {name: np.float64 for name, x in roles.items() if x == role}
        for role in ("reward", "time")
    }
    reward_dtypes = dtypes | float_dtypes["reward"]
    text_dtypes = dtypes | dict.fromkeys(float_dtypes["reward"], str)
    # a time may be a date, and a reward not a number
    return read_csv(path, names, reward_dtypes | float_dtypes["time"], reward_dtypes, text_dtypes)


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
    known = {role: role for role in ROLES}
    known |= {name: role for name, role in PAPER_COLUMNS.items() if role in ROLES}
    known |= {} if {"time", "idtime"} & {*names} else {"step": "time"}
    known = {name: role for name, role in known.items() if role not in column_names}
    known |= {name: role for role, name in column_names.items()}
    missing_roles = {*ROLES} - {"count", *map(known.get, names)}  # "country" is not "count"
    unused = [name for name in names if name not in known]
    misspelled = [name for name in unused if "did you mean" in did_you_mean(name, missing_roles)]
    remedies = [Remedy("columns", {"ROLE": "NAME"}, verb="name others with")]
    checked_names = [name for name in names if name in known or name in misspelled]
    roles = assign_roles(checked_names, known, REQUIRED_ROLES, source, EXPECTED_COLUMNS, remedies)
    return roles, [f"columns not used: {', '.join(unused)}"] if unused else []


# ---------------------------------------------------------------------- ids
def _check_expected(expected: ExpectedAxis, axis: str) -> int | Labels | None:
    """Parse the argument states= or actions=: a number, labels or None."""
    if expected is None or isinstance(expected, (int, np.integer)):
        if expected is not None and expected < 1:
            raise InputError(f"{axis}s must be at least 1 or a list of labels, not {expected}")
        return None if expected is None else int(expected)
    if isinstance(expected, str):
        raise InputError(f"{axis}s must be a number or a list of labels, not {expected!r}")
    labels = parse_labels(expected, axis) or ()
    if not labels or len(set(labels)) < len(labels):
        raise InputError(
            f"{axis}s must be a list of different labels; remove duplicates, give at least one"
        )
    return labels


def _encode_role(
    table: Table, role: str, expected: Mapping[str, int | Labels | None]
) -> CodedColumn:
    """Encode a column as ids or categories; a missing value is an error that names its line."""
    column, source = table[role], table.source
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        array = column.to_numpy()
        _check_not_missing(~np.isfinite(array), role, source)
        if (array == np.floor(array)).all() and array.min() >= 0 and array.max() < 4e9:
            column = pd.Series(array.astype(np.int64))
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iu":
        array = column.to_numpy()
        if array.min() >= 0 and array.max() < 4 * len(array) + 1000:
            return CodedColumn(array, None)
    elif isinstance(column.iloc[0], (list, np.ndarray)):
        source.fail(f"{role} is a list; give one label or id, such as '3,7' for [3, 7]", 0)
    coded_column, labels = encode_column(column), expected[AXIS_BY_ROLE[role]]
    blank_texts = {*MISSING_TEXTS} - {*(labels if isinstance(labels, tuple) else ())}
    _check_not_missing(coded_column.is_blank(blank_texts), role, source)
    if isinstance(source.location, Path) and source.location.suffix.lower() == ".csv":
        return CodedColumn(coded_column.codes, [x.strip() for x in coded_column.texts])
    return coded_column


def _check_not_missing(is_missing: Mask, role: str, source: TableSource) -> None:
    """Refuse missing values of a role, with the line of the first."""
    count_text = pluralize(int(is_missing.sum()), "row")
    source.fail_where(
        is_missing, f"{role} is missing ({count_text} like it); fill it in or drop the row"
    )


def _find_id_base(columns: Mapping[str, CodedColumn]) -> int:
    """Find the lowest id: 1 if no column of ids has a 0 and each axis has a 1, else 0."""
    axes = [[columns[role] for role in AXIS_ROLES[axis]] for axis in ("state", "action")]
    min_ids = {
        min(int(column.parse_ids().min()) for column in axis)
        for axis in axes
        if all(column.has_ids for column in axis)
    }
    return int(min_ids == {1})


# ---------------------------------------------------------------------- episodes
def _parse_episodes(table: Table) -> tuple[IntArray, Array]:
    """Parse the episode (0 if not given) and the time (the row's number) of every row."""
    n = len(table)
    times = np.arange(n, dtype=np.float64)
    times += 0.5
    if "time" in table:
        times = _parse_times(table["time"], table.source)
    if "episode" not in table:
        return np.zeros(n, np.int64), times
    episode = encode_column(table["episode"])
    _check_not_missing(episode.is_blank(MISSING_TEXTS), "episode", table.source)
    return episode.codes.astype(np.int64), times


def _find_initial_states(episode: IntArray, times: Array, state: IntArray) -> IntArray:
    """Find the initial state of each episode: that of its earliest row."""
    rows = np.argsort(times, kind="stable")[::-1]
    first_rows = np.full(int(episode.max()) + 1, -1, dtype=np.int64)
    first_rows[episode[rows]] = rows  # the last one written is the earliest
    return state[first_rows[first_rows >= 0]]


def _refuse_after_end(episode: IntArray, times: Array, values: Fields, source: TableSource) -> None:
    """Refuse rows of an episode after its end, except stays in the terminal state."""
    order = np.lexsort((times, episode))
    state, next_state = values["state"][order], values["next_state"][order]
    n_ends = pd.Series(values["is_terminated"][order].astype(np.int64))
    is_over = (n_ends.groupby(episode[order]).cumsum() - n_ends).to_numpy() > 0
    is_stay = (state == next_state) & (state == np.roll(next_state, 1))
    is_after_end = np.empty(len(order), dtype=bool)
    is_after_end[order] = is_over & ~is_stay
    source.fail_where(
        is_after_end,
        "an earlier row has terminated this episode",
        [
            "mark only the last row of an episode as terminated",
            "start a new episode in the next row",
        ],
    )


def _parse_times(column: pd.Series, source: TableSource) -> Array:
    """Parse times as numbers that keep their order; ISO dates are accepted."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        times = column.to_numpy(np.float64)
    else:
        coded_column = encode_column(column)
        texts = pd.Series(coded_column.categories)
        numeric = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
        if np.isnan(numeric).any():
            dates = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)
            origin = dates.min()
            seconds = ((dates - origin) / pd.Timedelta(seconds=1)).to_numpy(np.float64)
            numeric = seconds + 0.5  # the order of decisions, not their numbers
        times = np.append(numeric, np.nan)[coded_column.codes]
    problem = "missing or not a number or an ISO date; correct it"
    source.fail_where(~np.isfinite(times), lambda i: f"time is {column.iloc[i]!r}, {problem}")
    return times
