"""A table of logged transitions as ids: columns by role, labels, errors that name the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import InputError, Remedy
from mmdp.io.columns import PAPER
from mmdp.io.frames import as_frame
from mmdp.io.labels import Coded, Ints, Labels, Names, are_whole, coded, labels_of
from mmdp.io.parquet import ParquetColumns
from mmdp.io.reading import Source, header, numbers, read_fitting
from mmdp.io.writing import as_path
from mmdp.support import Array
from mmdp.validate import ordered
from mmdp.words import by_count, counted, suggested

REQUIRED = ("state", "action", "next_state")
ROLES = (*REQUIRED, "count", "reward", "episode", "time", "terminated", "truncated")
OTHER_NAMES = {"step": "time"}  # accepted if the role has no column of its own name
FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
TERMINATED = "terminated"  # the state of its own after a state that ends some episodes only
MISSING = ("", "NA", "NaN", "nan", "<NA>")  # how a missing value is written in text


@dataclass(frozen=True)
class Log:
    """Logged transitions as ids, each seen ``count`` times (None: once).

    ``first`` are the states that episodes start in, if known. ``terminated`` are the rows that end
    their episode, if known, and ``ends`` the states in which nothing follows.
    """

    state: Ints
    action: Ints
    next_state: Ints
    count: Ints | None
    reward: Array | None
    first: Ints | None
    terminated: npt.NDArray[np.bool_] | None
    states: Names
    actions: Names
    source: Source
    ends: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.state)


@dataclass(frozen=True)
class Steps:
    """Logged transitions of a known model in the order in which they were seen, by ids."""

    state: Ints
    action: Ints
    next_state: Ints
    episode: Ints
    time: Ints  # the number of the decision
    row: Ints  # where it is in the log
    source: Source

    @property
    def episodes(self) -> int:
        return len(np.unique(self.episode))

    @property
    def jumps(self) -> Ints:
        """The steps that begin elsewhere than the one just before them ended."""
        order = np.argsort(self.episode, kind="stable")
        last, now = order[:-1], order[1:]
        next_one = (self.episode[now] == self.episode[last]) & (
            self.time[now] == self.time[last] + 1
        )
        return now[next_one & (self.state[now] != self.next_state[last])]

    @property
    def times(self) -> Ints:
        """(n + 1,) before the first step and after each."""
        return np.append(self.time[:1], self.time + 1)


def read_log(
    log: Any,
    columns: Mapping[str, str] | None = None,
    states: int | Iterable[object] | None = None,
    actions: int | Iterable[object] | None = None,
) -> Log:
    """Read a log from a path, a DataFrame or a mapping of columns."""
    read = _read(log, columns, states, actions)[0]
    return read if read.terminated is None else _with_ends(read, read.terminated)


def _with_ends(log: Log, terminated: npt.NDArray[np.bool_]) -> Log:
    """The log with its last states; one that ends some episodes only gets a copy that ends all."""
    moves = log.state != log.next_state  # rows may go on in a last state
    ends = np.unique(log.next_state[terminated])
    goes_on = np.isin(ends, log.state[moves]) | np.isin(ends, log.next_state[moves & ~terminated])
    if not goes_on.any():
        return replace(log, ends=ends)
    labels, size = log.states.labels, log.states.size
    names = Names("state", size + 1, None if labels is None else (*labels, TERMINATED))
    split = terminated & np.isin(log.next_state, ends[goes_on])
    some = ", ".join(log.states.of(int(s)) for s in ends[goes_on][:5])
    note = (
        f"{by_count(int(goes_on.sum()), 'a state ends', 'states end')} some episodes and not "
        f"others ({some}{' ...' if goes_on.sum() > 5 else ''}): what ends there goes to a state of "
        f"its own, {names.of(size)}"
    )
    return replace(
        log, states=names, next_state=np.where(split, size, log.next_state),
        ends=np.append(ends[~goes_on], size), notes=[*log.notes, note],
    )  # fmt: skip


def read_steps(
    log: Any, states: int | Iterable[object], actions: int | Iterable[object]
) -> Steps:  # fmt: skip
    """Read a log of known states and actions, whose ids count from 0.

    It is put in the order of its times. Without whole numbers as times, decisions are counted.
    """
    try:
        found, table = _read(log, None, states, actions, base=0)
    except InputError as error:  # its arguments are those of fit
        raise InputError(error.problem, [x for x in error.remedies if isinstance(x, str)]) from None
    n, source = len(found), found.source
    if found.count is not None:
        source.fail("has counts; here a row is one step: repeat it, or drop the column 'count'")
    episode = coded(table["episode"]).codes if "episode" in table else np.zeros(n, np.int64)
    seen = _times(table["time"], source) if "time" in table else np.arange(n) + 0.5
    source.refuse(
        pd.DataFrame({"episode": episode, "time": seen}).duplicated(),
        "another step has this time, and nothing is counted twice",
        ["drop it", "name several sites in a column 'episode'"],
    )
    order = np.argsort(seen, kind="stable")
    time: Ints = seen[order].astype(np.int64)
    if (time != seen[order]).any():
        time = np.asarray(pd.Series(time).groupby(episode[order]).cumcount(), np.int64)
    return Steps(
        found.state[order], found.action[order], found.next_state[order],
        episode[order].astype(np.int64), time, order, source,
    )  # fmt: skip


def _read(
    log: Any, columns: Mapping[str, str] | None, states: int | Iterable[object] | None,
    actions: int | Iterable[object] | None, base: int | None = None,
) -> tuple[Log, dict[str, pd.Series]]:  # fmt: skip
    """The log and its columns; ``base``: what ids count from, None to find out."""
    table, source, notes = _columns(log, columns or {})
    if not len(table["state"]):
        source.fail("no rows; a log has one row per transition")
    wanted = {"state": _wanted(states, "states"), "action": _wanted(actions, "actions")}
    coded = {role: _coded(table[role], role, source, wanted) for role in REQUIRED}
    base = _base(coded.values()) if base is None else base
    if base:
        notes.append("the ids of this log count from 1")
    names, (state, next_state) = _ids("state", ("state", "next_state"), coded, wanted, source, base)
    notes += _fractions(names)
    of_actions, (action,) = _ids("action", ("action",), coded, wanted, source, base)
    del coded
    reward = None
    if "reward" in table:
        reward = numbers(table["reward"], "reward", source)
        source.refuse(~np.isfinite(reward), "reward is missing; fill it in or drop the row")
    first = _first_states(table, state, source)
    ended = _flags(table["terminated"], "terminated", source) if "terminated" in table else None
    count = _seen(table["count"], source) if "count" in table else None
    if count is not None:
        if first is not None:
            source.fail("has counts and episodes; a row of an episode is one transition: drop one")
        seen = count > 0
        state, action, next_state, count = (x[seen] for x in (state, action, next_state, count))
        reward = None if reward is None else reward[seen]
        ended = None if ended is None else ended[seen]
    read = Log(
        state, action, next_state, count, reward, first, ended, names, of_actions, source,
        notes=notes,
    )  # fmt: skip
    return read, table


def _flags(column: pd.Series, role: str, source: Source) -> npt.NDArray[np.bool_]:
    part = coded(column)
    known = [FLAGS.get(x.strip().lower(), np.nan) for x in part.texts or ()]
    found = np.array([*known, np.nan])[part.codes]
    source.refuse(
        np.isnan(found), lambda i: f"{role} is {column.iloc[i]!r}; write true or false (1 or 0)"
    )
    return found == 1


def _fractions(states: Names) -> list[str]:
    """A note if states are numbers with fractions: measurements, which hardly ever come again."""
    try:
        numbers = np.array([float(x) for x in states.labels or ()])
    except ValueError:
        return []
    if (numbers == np.floor(numbers)).all():
        return []
    return [f"states have fractions, and each of the {len(numbers)} numbers is a state; round "
            "measurements to fewer values"]  # fmt: skip


def _seen(column: pd.Series, source: Source) -> Ints:
    """How often the transition of each row was seen."""
    given = numbers(column, "count", source)
    wrong = ~((given >= 0) & (given == np.floor(given)) & (given < 2**53))
    source.refuse(wrong, lambda i: f"count is {given[i]:g}, not a whole number from 0 on")
    if not given.any():
        source.fail("every count is 0; a table of counts has at least one transition")
    return given.astype(np.int64)


# ---------------------------------------------------------------------- columns by role
def _columns(
    log: Any, renamed: Mapping[str, str]
) -> tuple[dict[str, pd.Series], Source, list[str]]:
    """The columns that play a role, where they come from, and notes about the others."""
    if isinstance(log, (str, os.PathLike)):
        path = as_path(log)
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
        source = Source(path)
        if path.suffix.lower() == ".csv":
            frame, roles, notes = _read_csv(path, renamed)
        elif path.suffix.lower() == ".parquet":
            file = ParquetColumns(path)
            roles, notes = _roles(file.names, renamed, source)
            return {role: file.read(name) for name, role in roles.items()}, source, notes
        else:
            raise InputError(f"{path}: unknown suffix {path.suffix!r}; a log is .csv or .parquet")
    else:
        source, frame = Source("log"), as_frame(log)
        if not isinstance(frame, (pd.DataFrame, Mapping)):
            raise InputError(f"a log is a path, a DataFrame or a mapping, not {type(log).__name__}")
        roles, notes = _roles([str(x) for x in frame], renamed, source)
        if isinstance(frame, Mapping):
            frame = _as_table({name: frame[name] for name in roles}, source)
    return {role: frame[name] for name, role in roles.items()}, source, notes


def _as_table(columns: Mapping[str, Any], source: Source) -> pd.DataFrame:
    try:
        return pd.DataFrame(columns)
    except (TypeError, ValueError):  # two axes, or unequal lengths
        sizes = {name: "x".join(map(str, np.shape(x))) or "1" for name, x in columns.items()}
        source.fail(
            f"columns of different sizes: {', '.join(f'{x} {n}' for x, n in sizes.items())}",
            remedies=["give each transition one state, one action and one next state"],
        )


def _read_csv(
    path: Path, renamed: Mapping[str, str]
) -> tuple[pd.DataFrame, dict[str, str], list[str]]:
    """Text as categories: each label is held once, and a row costs a few bytes."""
    names = header(path)
    roles, notes = _roles(names, renamed, Source(path))
    category: dict[str, Any] = dict.fromkeys(names, "category")
    reward = {name: np.float64 for name, role in roles.items() if role == "reward"}
    time = {name: np.float64 for name, role in roles.items() if role == "time"}
    # a time may be a date, and a reward not a number
    types = (category | reward | time, category | reward, category | dict.fromkeys(reward, str))
    return read_fitting(path, names, *types), roles, notes


def _roles(
    names: Sequence[str], renamed: Mapping[str, str], source: Source
) -> tuple[dict[str, str], list[str]]:
    """Column name to role. Another column is left out, unless it looks like a misspelt role."""
    for role, name in renamed.items():
        if role not in ROLES:
            raise InputError(f"columns= names no role {suggested(role, ROLES)}; use {list(ROLES)}")
        if name not in names:
            source.fail(f"no column {suggested(name, names)}, which columns= names for {role}")
    known = {role: role for role in ROLES} | {k: v for k, v in PAPER.items() if v in ROLES}
    known |= {k: v for k, v in OTHER_NAMES.items() if not {v, f"id{v}"} & set(names)}
    known = {name: role for name, role in known.items() if role not in renamed}
    known |= {name: role for role, name in renamed.items()}
    roles: dict[str, str] = {}
    for name in names:
        if name not in known:
            continue
        if known[name] in roles.values():
            source.fail(f"column {name!r} gives {known[name]} a second time; keep one of them")
        roles[name] = known[name]
    absent = [role for role in ROLES if role not in (*roles.values(), "count")]  # not "country"
    others = [name for name in names if name not in roles]
    misspelt = [name for name in others if "did you mean" in suggested(name, absent)]
    lacking = [role for role in absent if role in REQUIRED]
    if misspelt or lacking:
        problems = [f"unknown column {suggested(name, absent)}" for name in misspelt]
        problems += [f"no column {role!r}" for role in lacking]
        source.fail(
            f"{'; '.join(problems)}; a log has state,action,next_state and may have "
            "count,reward,episode,time (or step),terminated",
            remedies=[Remedy("columns", {"ROLE": "NAME"}, do="name others with")],
        )
    notes = [f"columns not used: {', '.join(others)}"] if others else []
    return roles, notes


# ---------------------------------------------------------------------- ids
def _wanted(given: int | Iterable[object] | None, what: str) -> int | Labels | None:
    if given is None or isinstance(given, (int, np.integer)):
        if given is not None and given < 1:
            raise InputError(f"{what} must be at least 1 or a list of labels, not {given}")
        return None if given is None else int(given)
    if isinstance(given, str):
        raise InputError(f"{what} must be a number or a list of labels, not {given!r}")
    labels = ordered(given, what[:-1]) or ()
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"{what} must be a list of labels that differ; one is given twice or none")
    return labels


def _coded(column: pd.Series, role: str, source: Source, wanted: Mapping[str, Any]) -> Coded:
    """Codes of a column; a missing value is an error that names its line."""
    kind = "action" if role == "action" else "state"
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "iu":
        array = column.to_numpy()
        if array.min() >= 0 and array.max() < 4 * len(array) + 1000:
            return Coded(array, None)
    elif isinstance(dtype, np.dtype) and dtype.kind == "f":
        array = column.to_numpy()
        _refuse_missing(~np.isfinite(array), role, source)
        if (array == np.floor(array)).all() and array.min() >= 0 and array.max() < 4e9:
            return _coded(pd.Series(array.astype(np.int64)), role, source, wanted)
    elif isinstance(column.iloc[0], (list, np.ndarray)):
        source.fail(f"{role} is a list; give one label or id, such as '3,7' for [3, 7]", 0)
    part = coded(column)
    labels = wanted[kind] if isinstance(wanted[kind], tuple) else ()
    _refuse_missing(part.blank(set(MISSING) - set(labels)), role, source)
    if isinstance(source.place, Path) and source.place.suffix.lower() == ".csv":
        return Coded(part.codes, [x.strip() for x in part.texts or ()])
    return part


def _refuse_missing(missing: npt.NDArray[np.bool_], role: str, source: Source) -> None:
    count = counted(int(missing.sum()), "row")
    source.refuse(missing, f"{role} is missing ({count} like it); fill it in or drop the row")


def _base(columns: Iterable[Coded]) -> int:
    """1 if the ids count from 1: no column of them has a 0, and each kind has a 1."""
    state, action, after = columns
    kinds = [x for x in ((state, after), (action,)) if all(part.whole for part in x)]
    lowest = [min(int(part.numbers().min()) for part in parts) for parts in kinds]
    return int(bool(lowest) and set(lowest) == {1})


def _ids(
    kind: str,
    roles: Sequence[str],
    coded: Mapping[str, Coded],
    wanted: Mapping[str, int | Labels | None],
    source: Source,
    base: int,
) -> tuple[Names, list[Ints]]:
    """The ids of the columns of a kind, and what they stand for; those of the log have a base."""
    parts, given = [coded[role] for role in roles], wanted[kind]
    whole = all(part.whole for part in parts)
    if isinstance(given, tuple) and whole and not are_whole(given):
        names = Names(kind, len(given), given)  # the log has ids, the list names them
        return names, _numbered(parts, roles, names, source, base)
    if isinstance(given, tuple):
        names = Names(kind, len(given), given)
        return names, [_looked_up(x, r, names, source) for x, r in zip(parts, roles, strict=True)]
    if given is not None and not whole:
        labels = labels_of(parts)
        source.fail(
            f"{kind}s have labels, so their number is not enough",
            remedies=[Remedy(f"{kind}s", [*labels[:3], "..."], do="name them all with")],
        )
    if whole:
        top = max(int(part.numbers().max()) for part in parts)
        size = top + 1 - base if given is None else given
        names = Names(kind, size, tuple(str(i + 1) for i in range(size)) if base else None)
        return names, _numbered(parts, roles, names, source, base)
    labels = labels_of(parts)
    names = Names(kind, len(labels), labels)
    return names, [_looked_up(x, r, names, source) for x, r in zip(parts, roles, strict=True)]


def _numbered(
    parts: Sequence[Coded], roles: Sequence[str], names: Names, source: Source, base: int
) -> list[Ints]:
    ids = [part.numbers() - base for part in parts]
    for array, role in zip(ids, roles, strict=True):
        if int(array.max()) >= names.size:
            row = int(np.argmax(array >= names.size))
            least = max(int(x.max()) for x in ids) + 1
            source.fail(
                f"{role} is {array[row] + base}, which is not one of the "
                f"{counted(names.size, names.kind)} {base}..{names.size - 1 + base}",
                row,
                ["correct it", Remedy(f"{names.kind}s", least, do="say")],
            )
    return ids


def _looked_up(part: Coded, role: str, names: Names, source: Source) -> Ints:
    labels = names.labels or ()
    found = part.ids(labels)
    if found.min() < 0:
        row = int(np.argmax(found < 0))
        source.fail(
            f"{role} {suggested(part.text(row), labels)} is not among the "
            f"{counted(names.size, names.kind)} given",
            row,
            ["correct it", Remedy(f"{names.kind}s", [*labels, part.text(row)], do="add it:")],
        )
    return found


def _first_states(table: Mapping[str, pd.Series], state: Ints, source: Source) -> Ints | None:
    """The state that each episode starts in: its earliest row by time, else by place."""
    if "episode" not in table:
        return None
    episode = coded(table["episode"])
    _refuse_missing(episode.blank(MISSING), "episode", source)
    rows = np.arange(len(episode.codes) - 1, -1, -1)
    if "time" in table:
        times = _times(table["time"], source)
        rows = rows[np.argsort(-times[::-1], kind="stable")]
    first = np.full(int(episode.codes.max()) + 1, -1, dtype=np.int64)
    first[episode.codes[rows]] = rows  # the last one written is the earliest
    return state[first[first >= 0]]


def _times(column: pd.Series, source: Source) -> Array:
    """Times as numbers that keep their order; dates are accepted."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        times = column.to_numpy(np.float64)
    else:
        part = coded(column)
        texts = pd.Series(part.texts)
        numeric = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
        if np.isnan(numeric).any():
            dates = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)
            origin = dates.min()
            seconds = ((dates - origin) / pd.Timedelta(seconds=1)).to_numpy(np.float64)
            numeric = seconds + 0.5  # the order of decisions, not their numbers
        times = np.append(numeric, np.nan)[part.codes]
    wrong = "missing or not a number or an ISO date; correct it"
    source.refuse(~np.isfinite(times), lambda i: f"time is {column.iloc[i]!r}, {wrong}")
    return times
