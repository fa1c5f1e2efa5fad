"""Logs of transitions, read as ids: columns by role, labels, errors that name the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.errors import InputError, Remedy
from mmdp.core.text import choose_verb_form, did_you_mean, pluralize
from mmdp.core.transitions import Array
from mmdp.core.validate import are_ids, parse_labels
from mmdp.data.io.columns import PAPER_COLUMNS
from mmdp.data.io.frames import as_frame
from mmdp.data.io.labels import (
    CodedColumn,
    ColumnLabels,
    IntArray,
    Labels,
    collect_labels,
    encode_column,
)
from mmdp.data.io.parquet import ParquetColumns
from mmdp.data.io.reading import TableSource, parse_floats, read_csv_with_fallback, read_header
from mmdp.data.io.writing import as_path

REQUIRED_ROLES = ("state", "action", "next_state")
ROLES = (*REQUIRED_ROLES, "count", "reward", "episode", "time", "terminated", "truncated")
ROLE_ALIASES = {"step": "time"}  # accepted if the role has no column of its own name
BOOL_TEXTS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
TERMINATED_LABEL = (
    "terminated"  # added state, entered when a state that ends only some episodes ends one
)
MISSING_TEXTS = ("", "NA", "NaN", "nan", "<NA>")  # texts of missing values


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
    is_terminated: npt.NDArray[np.bool_] | None
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
    log: Any,
    columns: Mapping[str, str] | None = None,
    states: int | Iterable[object] | None = None,
    actions: int | Iterable[object] | None = None,
) -> TransitionLog:
    """Read a log from a path, a DataFrame or a mapping of columns."""
    parsed = _parse_log(log, columns, states, actions)[0]
    return (
        parsed
        if parsed.is_terminated is None
        else _split_terminal_states(parsed, parsed.is_terminated)
    )


def _split_terminal_states(
    log: TransitionLog, is_terminated: npt.NDArray[np.bool_]
) -> TransitionLog:
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


def read_steps(
    log: Any, states: int | Iterable[object], actions: int | Iterable[object]
) -> LoggedSteps:
    """Read a log with the states and actions of a model, sorted by time; ids count from 0.

    Times that are not whole numbers are replaced by the number of the decision.
    """
    try:
        parsed, table = _parse_log(log, None, states, actions, base=0)
    except InputError as error:  # its arguments are those of fit
        raise InputError(error.message, [x for x in error.remedies if isinstance(x, str)]) from None
    n, source = len(parsed), parsed.source
    if parsed.counts is not None:
        source.fail(
            "has a column 'count', but a row must be one step; repeat rows, or drop the column"
        )
    episode = encode_column(table["episode"]).codes if "episode" in table else np.zeros(n, np.int64)
    raw_times = _parse_times(table["time"], source) if "time" in table else np.arange(n) + 0.5
    source.fail_where(
        pd.DataFrame({"episode": episode, "time": raw_times}).duplicated(),
        "another step has this time",
        ["drop it", "number the episodes in a column 'episode'"],
    )
    order = np.argsort(raw_times, kind="stable")
    time: IntArray = raw_times[order].astype(np.int64)
    if (time != raw_times[order]).any():
        time = np.asarray(pd.Series(time).groupby(episode[order]).cumcount(), np.int64)
    return LoggedSteps(
        parsed.state[order],
        parsed.action[order],
        parsed.next_state[order],
        episode[order].astype(np.int64),
        time,
        order,
        source,
    )


def _parse_log(
    log: Any,
    columns: Mapping[str, str] | None,
    states: int | Iterable[object] | None,
    actions: int | Iterable[object] | None,
    base: int | None = None,
) -> tuple[TransitionLog, dict[str, pd.Series]]:
    """Parse a log and its columns; ids count from ``base`` (None: 0 or 1, by the log)."""
    table, source, notes = _read_columns(log, columns or {})
    if not len(table["state"]):
        source.fail("no rows; a log has one row per transition")
    expected = {
        "state": _check_expected(states, "states"),
        "action": _check_expected(actions, "actions"),
    }
    coded_columns = {
        role: _encode_role(table[role], role, source, expected) for role in REQUIRED_ROLES
    }
    base = _find_id_base(coded_columns.values()) if base is None else base
    if base:
        notes.append("the ids of this log count from 1")
    state_labels, (state, next_state) = _encode_axis(
        "state", ("state", "next_state"), coded_columns, expected, source, base
    )
    notes += _make_fraction_notes(state_labels)
    action_labels, (action,) = _encode_axis(
        "action", ("action",), coded_columns, expected, source, base
    )
    del coded_columns
    reward = None
    if "reward" in table:
        reward = parse_floats(table["reward"], "reward", source)
        source.fail_where(~np.isfinite(reward), "reward is missing; fill it in or drop the row")
    initial_states = _find_initial_states(table, state, source)
    is_terminated = (
        _parse_flags(table["terminated"], "terminated", source) if "terminated" in table else None
    )
    if is_terminated is not None:
        _refuse_after_end(table, is_terminated, state, next_state, source)
    counts = _parse_counts(table["count"], source) if "count" in table else None
    if counts is not None:
        if initial_states is not None:
            source.fail(
                "has columns 'count' and 'episode'; a row of an episode is one transition: drop one"
            )
        is_seen = counts > 0
        state, action, next_state, counts = (
            x[is_seen] for x in (state, action, next_state, counts)
        )
        reward = None if reward is None else reward[is_seen]
        is_terminated = None if is_terminated is None else is_terminated[is_seen]
    parsed = TransitionLog(
        state,
        action,
        next_state,
        counts,
        reward,
        initial_states,
        is_terminated,
        state_labels,
        action_labels,
        source,
        notes=notes,
    )
    return parsed, table


def _parse_flags(column: pd.Series, role: str, source: TableSource) -> npt.NDArray[np.bool_]:
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


def _parse_counts(column: pd.Series, source: TableSource) -> IntArray:
    """Parse the number of transitions that each row stands for."""
    counts = parse_floats(column, "count", source)
    is_wrong = ~((counts >= 0) & (counts == np.floor(counts)) & (counts < 2**53))
    source.fail_where(
        is_wrong, lambda i: f"count is {counts[i]:g}, not a whole number >= 0; correct it"
    )
    if not counts.any():
        source.fail("every count is 0; give at least one transition")
    return counts.astype(np.int64)


# ---------------------------------------------------------------------- columns by role
def _read_columns(
    log: Any, column_names: Mapping[str, str]
) -> tuple[dict[str, pd.Series], TableSource, list[str]]:
    """Read the columns by role, their source, and notes about unused columns."""
    if isinstance(log, (str, os.PathLike)):
        path = as_path(log)
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
        source = TableSource(path)
        if path.suffix.lower() == ".csv":
            frame, roles, notes = _read_csv_log(path, column_names)
        elif path.suffix.lower() == ".parquet":
            file = ParquetColumns(path)
            roles, notes = _assign_roles(file.column_names, column_names, source)
            return {role: file.read_column(name) for name, role in roles.items()}, source, notes
        else:
            raise InputError(f"{path}: unknown suffix {path.suffix!r}; a log is .csv or .parquet")
    else:
        source, frame = TableSource("log"), as_frame(log)
        if not isinstance(frame, (pd.DataFrame, Mapping)):
            raise InputError(f"a log is a path, a DataFrame or a mapping, not {type(log).__name__}")
        roles, notes = _assign_roles([str(x) for x in frame], column_names, source)
        if isinstance(frame, Mapping):
            frame = _make_frame({name: frame[name] for name in roles}, source)
    return {role: frame[name] for name, role in roles.items()}, source, notes


def _make_frame(columns: Mapping[str, Any], source: TableSource) -> pd.DataFrame:
    """Make a table of columns, and refuse columns of different sizes."""
    try:
        return pd.DataFrame(columns)
    except (TypeError, ValueError):  # two axes, or unequal lengths
        sizes = {name: "x".join(map(str, np.shape(x))) or "1" for name, x in columns.items()}
        source.fail(
            f"columns of different sizes: {', '.join(f'{x} {n}' for x, n in sizes.items())}",
            remedies=["give each transition one state, one action and one next state"],
        )


def _read_csv_log(
    path: Path, column_names: Mapping[str, str]
) -> tuple[pd.DataFrame, dict[str, str], list[str]]:
    """Read a CSV with text as categories, which takes a few bytes per row."""
    names = read_header(path)
    roles, notes = _assign_roles(names, column_names, TableSource(path))
    category_dtypes: dict[str, Any] = dict.fromkeys(names, "category")
    reward_dtypes = {name: np.float64 for name, role in roles.items() if role == "reward"}
    time_dtypes = {name: np.float64 for name, role in roles.items() if role == "time"}
    # a time may be a date, and a reward not a number
    dtype_options = (
        category_dtypes | reward_dtypes | time_dtypes,
        category_dtypes | reward_dtypes,
        category_dtypes | dict.fromkeys(reward_dtypes, str),
    )
    return read_csv_with_fallback(path, names, *dtype_options), roles, notes


def _assign_roles(
    names: Sequence[str], column_names: Mapping[str, str], source: TableSource
) -> tuple[dict[str, str], list[str]]:
    """Assign roles to column names; refuse missing roles and names that look misspelled."""
    for role, name in column_names.items():
        if role not in ROLES:
            raise InputError(
                f"columns= has an unknown role {did_you_mean(role, ROLES)}; use {list(ROLES)}"
            )
        if name not in names:
            source.fail(f"no column {did_you_mean(name, names)}, which columns= names for {role}")
    role_by_name = {role: role for role in ROLES} | {
        k: v for k, v in PAPER_COLUMNS.items() if v in ROLES
    }
    role_by_name |= {k: v for k, v in ROLE_ALIASES.items() if not {v, f"id{v}"} & set(names)}
    role_by_name = {name: role for name, role in role_by_name.items() if role not in column_names}
    role_by_name |= {name: role for role, name in column_names.items()}
    roles: dict[str, str] = {}
    for name in names:
        if name not in role_by_name:
            continue
        if role_by_name[name] in roles.values():
            source.fail(
                f"column {name!r} gives {role_by_name[name]} a second time; keep one of them"
            )
        roles[name] = role_by_name[name]
    missing_roles = [
        role for role in ROLES if role not in (*roles.values(), "count")
    ]  # not "country"
    unused = [name for name in names if name not in roles]
    misspelled = [name for name in unused if "did you mean" in did_you_mean(name, missing_roles)]
    missing_required = [role for role in missing_roles if role in REQUIRED_ROLES]
    if misspelled or missing_required:
        problems = [f"unknown column {did_you_mean(name, missing_roles)}" for name in misspelled]
        problems += [f"no column {role!r}" for role in missing_required]
        source.fail(
            f"{'; '.join(problems)}; a log has state,action,next_state and may have "
            "count,reward,episode,time (or step),terminated",
            remedies=[Remedy("columns", {"ROLE": "NAME"}, verb="name others with")],
        )
    notes = [f"columns not used: {', '.join(unused)}"] if unused else []
    return roles, notes


# ---------------------------------------------------------------------- ids
def _check_expected(expected: int | Iterable[object] | None, argument: str) -> int | Labels | None:
    """Parse the argument states= or actions=: a number, labels or None."""
    if expected is None or isinstance(expected, (int, np.integer)):
        if expected is not None and expected < 1:
            raise InputError(f"{argument} must be at least 1 or a list of labels, not {expected}")
        return None if expected is None else int(expected)
    if isinstance(expected, str):
        raise InputError(f"{argument} must be a number or a list of labels, not {expected!r}")
    labels = parse_labels(expected, argument[:-1]) or ()
    if not labels or len(set(labels)) < len(labels):
        raise InputError(
            f"{argument} must be a list of different labels; remove duplicates, give at least one"
        )
    return labels


def _encode_role(
    column: pd.Series, role: str, source: TableSource, expected: Mapping[str, Any]
) -> CodedColumn:
    """Encode a column as ids or categories; a missing value is an error that names its line."""
    axis = "action" if role == "action" else "state"
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "iu":
        array = column.to_numpy()
        if array.min() >= 0 and array.max() < 4 * len(array) + 1000:
            return CodedColumn(array, None)
    elif isinstance(dtype, np.dtype) and dtype.kind == "f":
        array = column.to_numpy()
        _check_not_missing(~np.isfinite(array), role, source)
        if (array == np.floor(array)).all() and array.min() >= 0 and array.max() < 4e9:
            return _encode_role(pd.Series(array.astype(np.int64)), role, source, expected)
    elif isinstance(column.iloc[0], (list, np.ndarray)):
        source.fail(f"{role} is a list; give one label or id, such as '3,7' for [3, 7]", 0)
    coded_column = encode_column(column)
    labels = expected[axis] if isinstance(expected[axis], tuple) else ()
    _check_not_missing(coded_column.is_blank(set(MISSING_TEXTS) - set(labels)), role, source)
    if isinstance(source.location, Path) and source.location.suffix.lower() == ".csv":
        return CodedColumn(coded_column.codes, [x.strip() for x in coded_column.categories or ()])
    return coded_column


def _check_not_missing(is_missing: npt.NDArray[np.bool_], role: str, source: TableSource) -> None:
    """Refuse missing values of a role, with the line of the first."""
    count_text = pluralize(int(is_missing.sum()), "row")
    source.fail_where(
        is_missing, f"{role} is missing ({count_text} like it); fill it in or drop the row"
    )


def _find_id_base(columns: Iterable[CodedColumn]) -> int:
    """Find the lowest id: 1 if no column of ids has a 0 and each axis has a 1, else 0."""
    state, action, next_state = columns
    id_groups = [x for x in ((state, next_state), (action,)) if all(column.has_ids for column in x)]
    min_ids = [min(int(column.parse_ids().min()) for column in group) for group in id_groups]
    return int(bool(min_ids) and set(min_ids) == {1})


def _encode_axis(
    axis: str,
    roles: Sequence[str],
    coded_columns: Mapping[str, CodedColumn],
    expected: Mapping[str, int | Labels | None],
    source: TableSource,
    base: int,
) -> tuple[ColumnLabels, list[IntArray]]:
    """Convert the columns of an axis (state or action) to ids from 0, with their labels."""
    axis_columns, expected_labels = [coded_columns[role] for role in roles], expected[axis]
    has_ids = all(column.has_ids for column in axis_columns)
    if isinstance(expected_labels, tuple) and has_ids and not are_ids(expected_labels):
        label_index = ColumnLabels(
            axis, len(expected_labels), expected_labels
        )  # the log has ids, the list names them
        return label_index, _check_numbered(axis_columns, roles, label_index, source, base)
    if isinstance(expected_labels, tuple):
        label_index = ColumnLabels(axis, len(expected_labels), expected_labels)
        return label_index, [
            _find_label_ids(x, r, label_index, source)
            for x, r in zip(axis_columns, roles, strict=True)
        ]
    if expected_labels is not None and not has_ids:
        labels = collect_labels(axis_columns)
        source.fail(
            f"{axis}s have labels, so their number is not enough",
            remedies=[Remedy(f"{axis}s", [*labels[:3], "..."], verb="name them all with")],
        )
    if has_ids:
        max_id = max(int(column.parse_ids().max()) for column in axis_columns)
        size = max_id + 1 - base if expected_labels is None else expected_labels
        label_index = ColumnLabels(
            axis, size, tuple(str(i + 1) for i in range(size)) if base else None
        )
        return label_index, _check_numbered(axis_columns, roles, label_index, source, base)
    labels = collect_labels(axis_columns)
    label_index = ColumnLabels(axis, len(labels), labels)
    return label_index, [
        _find_label_ids(x, r, label_index, source) for x, r in zip(axis_columns, roles, strict=True)
    ]


def _check_numbered(
    columns: Sequence[CodedColumn],
    roles: Sequence[str],
    label_index: ColumnLabels,
    source: TableSource,
    base: int,
) -> list[IntArray]:
    """Parse columns of ids that count from ``base``, and refuse ids beyond the axis."""
    ids = [column.parse_ids() - base for column in columns]
    for array, role in zip(ids, roles, strict=True):
        if int(array.max()) >= label_index.size:
            row = int(np.argmax(array >= label_index.size))
            min_size = max(int(x.max()) for x in ids) + 1
            source.fail(
                f"{role} is {array[row] + base}, which is not one of the "
                f"{pluralize(label_index.size, label_index.axis_name)} "
                f"{base}..{label_index.size - 1 + base}",
                row,
                ["correct it", Remedy(f"{label_index.axis_name}s", min_size, verb="say")],
            )
    return ids


def _find_label_ids(
    column: CodedColumn, role: str, label_index: ColumnLabels, source: TableSource
) -> IntArray:
    """Find the ids of a column of labels, and refuse labels that are not given."""
    labels = label_index.labels or ()
    ids = column.find_ids(labels)
    if ids.min() < 0:
        row = int(np.argmax(ids < 0))
        source.fail(
            f"{role} {did_you_mean(column.get_text(row), labels)} is not among the "
            f"{pluralize(label_index.size, label_index.axis_name)} given",
            row,
            [
                "correct it",
                Remedy(
                    f"{label_index.axis_name}s", [*labels, column.get_text(row)], verb="add it:"
                ),
            ],
        )
    return ids


def _find_initial_states(
    table: Mapping[str, pd.Series], state: IntArray, source: TableSource
) -> IntArray | None:
    """Find the initial state of each episode: its earliest row by time, else by position."""
    if "episode" not in table:
        return None
    episode = encode_column(table["episode"])
    _check_not_missing(episode.is_blank(MISSING_TEXTS), "episode", source)
    rows = np.arange(len(episode.codes) - 1, -1, -1)
    if "time" in table:
        times = _parse_times(table["time"], source)
        rows = rows[np.argsort(-times[::-1], kind="stable")]
    first_rows = np.full(int(episode.codes.max()) + 1, -1, dtype=np.int64)
    first_rows[episode.codes[rows]] = rows  # the last one written is the earliest
    return state[first_rows[first_rows >= 0]]


def _refuse_after_end(
    table: Mapping[str, pd.Series],
    is_terminated: npt.NDArray[np.bool_],
    state: IntArray,
    next_state: IntArray,
    source: TableSource,
) -> None:
    """Refuse rows of an episode after its end, except stays in the terminal state."""
    if "episode" not in table:
        return
    episode = encode_column(table["episode"]).codes
    time = _parse_times(table["time"], source) if "time" in table else np.arange(len(episode))
    order = np.lexsort((time, episode))
    n_ends = pd.Series(is_terminated[order].astype(np.int64))
    is_over = (n_ends.groupby(episode[order]).cumsum() - n_ends).to_numpy() > 0
    is_stay = (state == next_state)[order] & (state[order] == np.roll(next_state[order], 1))
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
