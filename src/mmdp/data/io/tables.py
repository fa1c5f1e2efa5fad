"""Tables of transitions: columns by role to models, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from mmdp.core.arguments import Unchecked, check_arguments, is_of_type
from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.kernels.distributions import clip_rounding
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyArray, Array, IndexArray, IntArray
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import (
    MAX_DENSE_BYTES,
    CoordinateEntries,
    ModelShape,
    StorageOption,
    entries_to_transitions,
)
from mmdp.core.validate import check_field_names, check_not_sharded
from mmdp.data.io.reading import as_frame, read_csv, read_header
from mmdp.data.schema import (
    AXIS_BY_ROLE,
    AXIS_ROLES,
    PAPER_COLUMNS,
    ColumnLabels,
    Fields,
    Table,
    TableSource,
    assign_roles,
    check_ids,
    encode_column,
    encode_labels,
    is_finite_number,
    parse_axis_argument,
    parse_ids,
)

COLUMN_ROLES = PAPER_COLUMNS | {role: role for role in PAPER_COLUMNS.values()}
COLUMN_ORDER = ("time", "model", "state", "action", "next_state", "probability", "reward")
VALUE_ROLES = ("probability", "reward")
TableColumns = dict[str, AnyArray]  # columns by role

Duplicates = Literal["error", "last", "sum"]
MissingActions = Literal["error", "zero"]
DeadEnds = Literal["error", "absorb"]
ExtraColumns = Literal["error", "ignore"]
Compatibility = Literal["cadp"]

CADP_OPTIONS: Fields = {  # as the code published with the paper
    "duplicates": "last",
    "normalize": True,
    "missing_actions": "zero",
    "dead_ends": "absorb",
    "extra_columns": "ignore",
}


@check_arguments
@dataclass(frozen=True)
class LoadOptions:
    """Checked options of :func:`mmdp.load`."""

    duplicates: Duplicates = "error"
    normalize: bool = False
    missing_actions: MissingActions = "error"
    dead_ends: DeadEnds = "error"
    extra_columns: ExtraColumns = "error"
    storage: StorageOption = "auto"
    sidecars: bool = True

    def with_compatibility(self, mode: Compatibility | None) -> LoadOptions:
        """Replace the options that a compatibility mode sets."""
        return replace(self, **CADP_OPTIONS) if mode == "cadp" else self


class EncodedTransitions(NamedTuple):
    """Transitions as ids: columns by role, and the size and labels of every axis and of time."""

    columns: TableColumns
    axes: Mapping[str, ColumnLabels]
    source: TableSource

    @property
    def shape(self) -> ModelShape:
        """Numbers of models, states and actions, (M, S, A)."""
        return self.axes["model"].size, self.axes["state"].size, self.axes["action"].size

    @property
    def n_times(self) -> int:
        """Number of times, 1 if nothing varies with time."""
        return self.axes["time"].size


# ---------------------------------------------------------------------- columns to ids
def frame_to_table(frame: pd.DataFrame, source: TableSource, options: LoadOptions) -> Table:
    """Get the known columns of a frame, by role."""
    roles = _assign_transition_roles([str(x) for x in frame.columns], source, options)
    return Table({role: frame[name] for name, role in roles.items()}, source)


def read_csv_table(path: Path, options: LoadOptions) -> Table:
    """Read the known columns of a CSV by role, as numbers if possible, else as text."""
    source, names = TableSource(path), read_header(path)
    roles = _assign_transition_roles(names, source, options)
    # 64 bits: older pandas wraps a larger number silently when asked for 32
    dtypes: Fields = {name: np.int64 if name in roles else str for name in names}
    dtypes |= {name: np.float64 for name in VALUE_ROLES if name in roles}
    label_dtypes = dtypes | {name: str for name in roles if name in AXIS_BY_ROLE}
    table = Table.from_frame(read_csv(path, names, dtypes, label_dtypes, str), source)
    return Table({role: _parse_ids_or_labels(table, x) for x, role in roles.items()}, source)


def _parse_ids_or_labels(table: Table, name: str) -> pd.Series:
    """Parse a column of text as numbers, unless it holds labels or values."""
    column = table[name]
    if column.dtype.kind in "if" or name in VALUE_ROLES:
        return column
    if name in AXIS_BY_ROLE and not is_finite_number(column.str.strip()).all():
        return column.str.strip()
    return pd.Series(table.parse_floats(name, "ids are whole numbers from 0"))


def is_policy_header(names: Iterable[str]) -> bool:
    """Check whether these are the columns of a policy."""
    return {"state", "action"} <= {*names} <= {"time", "state", "action", "idstate", "idaction"}


def _assign_transition_roles(
    names: Sequence[str], source: TableSource, options: LoadOptions
) -> dict[str, str]:
    """Assign roles to column names; remedies use the spelling of the table."""
    if is_policy_header(names):
        source.fail(
            "this is a policy, not a model",
            remedies=["give a model", Remedy("load_policy()", verb="read the policy with")],
        )
    is_tidy = any(name in AXIS_BY_ROLE for name in names)
    known = {name: name if is_tidy else paper_name for paper_name, name in PAPER_COLUMNS.items()}
    required = [role for role in known if role not in ("model", "time")]
    missing = [role for role in required if role not in map(COLUMN_ROLES.get, names)]
    remedies: list[str | Remedy] = ["remove it", Remedy("extra_columns", "ignore")]
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        remedies = ["separate the columns by commas"]
    elif missing == ["reward"]:
        remedies = ["add it, with 0 in every row if rewards come from elsewhere"]
    elif missing:
        remedies = [f"expected {','.join(x for role, x in known.items() if role != 'time')}"]
    return assign_roles(
        names,
        COLUMN_ROLES,
        required,
        source,
        "",
        remedies,
        ignore_unknown=options.extra_columns == "ignore",
        spelling=known,
    )


def encode_transitions(table: Table, fields: Fields) -> EncodedTransitions:
    """Convert the columns of a table of transitions to ids.

    ``fields`` may give, by ``states``, ``actions`` and ``models``, the order of the labels (or
    names for ids), or a number if some ids do not occur.
    """
    source, columns, axes = table.source, TableColumns(), {"time": ColumnLabels("time", 1)}
    if not len(table):
        source.fail("a header but no rows; expected one row per transition")
    raw_columns = {"model": pd.Series(np.zeros(len(table), dtype=np.int64)), **table.columns}
    for axis, roles in (*AXIS_ROLES.items(), ("time", ("time",))):
        if axis not in raw_columns:  # no times
            continue
        axis_columns = {x: raw_columns[x] for x in roles}
        expected = parse_axis_argument(fields.get(f"{axis}s"), axis)
        if all(map(_is_numeric, axis_columns.values())):
            raw_ids = [parse_ids(column, x, source) for x, column in axis_columns.items()]
            axes[axis], ids = check_ids(axis, raw_ids, source, expected, allow_gaps=False)
        elif axis == "time":
            source.fail("times are not numbers; give whole numbers from 0")
        else:
            coded_columns = [*map(encode_column, axis_columns.values())]
            for column in coded_columns:
                is_blank = column.is_blank(("",) if expected is None else ())
                source.fail_where(is_blank, f"a {axis} is empty; give its label or id")
            axes[axis], ids = encode_labels(axis, coded_columns, source, expected)
        columns |= dict(zip(roles, ids, strict=True))
    columns |= {role: _parse_finite(table, role) for role in VALUE_ROLES}
    return EncodedTransitions(columns, axes, source)


def _is_numeric(values: pd.Series) -> bool:
    """Return whether a column holds numbers."""
    return values.dtype.kind in "iuf" or pd.api.types.infer_dtype(values, skipna=False) == "integer"


def _parse_finite(table: Table, role: str) -> Array:
    """Parse a column of probabilities or rewards, and refuse values that are not finite."""
    array, source = table.parse_floats(role), table.source
    source.fail_where(~np.isfinite(array), lambda i: f"{role} is {array[i]}; give a finite number")
    if role == "probability":
        array = clip_rounding(array)
        source.fail_where(
            array < 0, lambda i: f"negative probability {array[i]:g}; it must be from 0 to 1"
        )
    return array


@check_arguments
def from_frame(
    frame: Unchecked[pd.DataFrame], *, compat: Compatibility | None = None, **fields: Any
) -> MMDP:
    """Build a model from a tidy table with one row per transition.

    A DataFrame of pandas or polars, or an xarray Dataset whose dimensions are
    ``model, state, action, next_state``.

    Columns as in the table of :mod:`mmdp.io`; ``state``, ``action``, ``next_state`` and
    ``model`` may hold labels. ``fields`` are the other arguments of :class:`mmdp.MMDP`, such as
    ``discount``; ``states``, ``actions`` and ``models`` give labels for ids, or the order of the
    labels that the frame holds, and ``initial`` and ``weights`` may map labels to numbers. Or they
    are options of :func:`mmdp.load`: ``duplicates``, ``normalize``, ``missing_actions``,
    ``dead_ends``, ``extra_columns`` and ``storage``.

    >>> import pandas as pd, mmdp
    >>> frame = pd.DataFrame({"state": ["up", "up", "down"], "action": "wait",
    ...     "next_state": ["up", "down", "down"], "probability": [0.9, 0.1, 1.0],
    ...     "reward": [4.0, 4.0, 0.0]})
    >>> model = mmdp.io.from_frame(frame, initial={"up": 1.0})
    >>> model.state_labels, model.rewards.tolist()
    (('up', 'down'), [[[4.0], [0.0]]])
    """
    option_names = [x for x in LoadOptions.__dataclass_fields__ if x != "sidecars"]
    check_field_names(fields, option_names)
    load_options = {name: fields.pop(name) for name in option_names if name in fields}
    options = LoadOptions(**load_options).with_compatibility(compat)
    converted_frame = as_frame(frame)
    if not isinstance(converted_frame, pd.DataFrame):
        raise InputError(f"frame is a {type(frame).__name__}; give a DataFrame")
    table = frame_to_table(converted_frame, TableSource("frame"), options)
    return build_model(encode_transitions(table, fields), fields, options)


@check_arguments
def to_frame(model: MMDP) -> pd.DataFrame:
    """Convert a model to a tidy table, one row per possible transition.

    Columns ``[time,] model, state, action, next_state, probability, reward``: labels as
    categoricals if the model has them, else ids. Other fields of a model are in
    :meth:`mmdp.MMDP.to_kwargs`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[3.0], [0.0]], states=["a", "b"])
    >>> print(mmdp.io.to_frame(one).to_string(index=False))
    model state  action next_state  probability  reward
        0     a       0          a          0.5     3.0
        0     a       0          b          0.5     3.0
        0     b       0          b          1.0     0.0
    """
    check_not_sharded(model.problem, "a table")
    columns: Fields = dict(model_to_columns(model))
    for axis, roles in AXIS_ROLES.items():
        if model.has_labels[axis]:
            labels = pd.Index(getattr(model, f"{axis}_labels"))
            for role in roles:
                columns[role] = pd.Categorical.from_codes(columns[role], labels)
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------- ids to a model
def build_model(encoded: EncodedTransitions, fields: Fields, options: LoadOptions) -> MMDP:
    """Build a model from transitions as ids; errors name the file."""
    _check_size(encoded)
    columns, rewards = _apply_options(encoded, options)
    _, n_states, n_actions = shape = encoded.shape
    model_fields: Fields = {f"{axis}s": encoded.axes[axis].labels for axis in AXIS_ROLES}
    sizes = [name for name in model_fields if is_of_type(fields.get(name), int)]
    model_fields |= {k: v for k, v in fields.items() if v is not None and k not in sizes}
    with encoded.source.prefix_errors():
        transitions = entries_to_transitions(
            CoordinateEntries(columns, shape, encoded.n_times), options.storage
        )
        is_used = np.zeros((n_states, n_actions), dtype=bool)
        is_used[columns["state"], columns["action"]] = True
        model_fields.setdefault("allowed", is_used)
        if options.missing_actions == "zero":
            model_fields["allow_missing"] = True
        return MMDP.from_sparse(
            transitions, rewards, next_rewards=transitions.pattern_rewards, **model_fields
        )


def _apply_options(
    encoded: EncodedTransitions, options: LoadOptions
) -> tuple[TableColumns, Array | None]:
    """Apply the load options to the columns.

    Rewards (T, S, A, M) that do not depend on s' are taken from the columns and returned.
    """
    columns = encoded.columns
    if options.dead_ends == "absorb":
        columns = _absorb_dead_ends(encoded)
    sizes = {role: encoded.axes[role].size for role in ("time", "state", "action", "model")}
    roles = [role for role in sizes if role in columns]
    row_keys = np.ravel_multi_index([columns[x] for x in roles], [sizes[x] for x in roles])
    keys = row_keys * sizes["state"] + columns["next_state"]
    if options.duplicates != "sum" and (np.diff(np.sort(keys)) == 0).any():
        if options.duplicates == "error":
            _fail_duplicate(encoded, keys)
        is_kept = ~pd.Series(keys).duplicated(keep="last").to_numpy()
        columns = {name: values[is_kept] for name, values in columns.items()}
        row_keys = row_keys[is_kept]
    if options.normalize:
        p = columns["probability"]
        sums = np.bincount(row_keys, p)[row_keys]
        columns = columns | {"probability": np.divide(p, sums, out=p.copy(), where=sums > 0)}
    rewards = np.zeros([*sizes.values()])
    rewards.reshape(-1)[row_keys] = columns["reward"]
    if not (rewards.reshape(-1)[row_keys] == columns["reward"]).all():
        return columns, None
    return {name: values for name, values in columns.items() if name != "reward"}, rewards


def _check_size(encoded: EncodedTransitions) -> None:
    """Refuse sizes out of proportion to the rows, before arrays are allocated."""
    n_models, n_states, n_actions = encoded.shape
    n_rows = len(encoded.columns["state"])
    n_cells = n_models * n_states * n_actions * encoded.n_times
    if n_cells * 8 > MAX_DENSE_BYTES and n_cells > 64 * n_rows:
        raise MemoryLimitError(
            f"{encoded.source.location}: {n_rows:,} rows for {pluralize(n_models, 'model')}, "
            f"{pluralize(n_states, 'state')} and {pluralize(n_actions, 'action')} would take "
            f"{format_bytes(n_cells * 8)} of rewards alone; check the ids, or split the models"
        )


def _fail_duplicate(encoded: EncodedTransitions, keys: IndexArray) -> None:
    """Raise the error of a transition that is given twice."""
    is_duplicate = pd.Series(keys).duplicated().to_numpy()
    row = int(np.argmax(is_duplicate))
    location = [
        f"{role.replace('_', ' ')} "
        + encoded.axes[AXIS_BY_ROLE.get(role, role)].format_id(int(encoded.columns[role][row]))
        for role in (*COLUMN_ORDER[1:5], "time")
        if role in encoded.columns
    ]
    first_row = encoded.source.describe_row(int(np.argmax(keys == keys[row])))
    encoded.source.fail(
        f"{', '.join(location)} is given again (first at {first_row}; "
        f"{pluralize(int(is_duplicate.sum()), 'duplicate')})",
        row,
        ["remove it", Remedy("duplicates", "last", "sum")],
    )


def _absorb_dead_ends(encoded: EncodedTransitions) -> TableColumns:
    """Add to every state without actions an action 0 that stays there and earns 0."""
    columns, (n_models, n_states, _) = encoded.columns, encoded.shape
    dead_states = np.setdiff1d(np.arange(n_states), columns["state"])
    sizes = (encoded.n_times, n_models, len(dead_states))
    time, model, i = np.indices(sizes).reshape(3, -1)
    state, zeros = dead_states[i], np.zeros_like(i)
    cells = (time, model, state, zeros, state, zeros + 1.0, zeros + 0.0)
    new_rows = dict(zip(COLUMN_ORDER, cells, strict=True))
    return {name: np.append(values, new_rows[name]) for name, values in columns.items()}


# ---------------------------------------------------------------------- a model to ids
def model_to_columns(model: MMDP) -> TableColumns:
    """Convert a model to columns [time,] model, state, action, next_state, probability, reward.

    Entries of probability 0 appear only if they are needed: for a reward by next state, or for an
    action that is allowed although no model (or not this one) has transitions for it.
    """
    problem, next_rewards = model.problem, model.pattern_rewards
    rows, allowed = problem.get_entry_rows(), model.allowed.reshape(-1)
    is_kept = problem.p != 0
    if next_rewards is not None:
        is_kept = (is_kept | (next_rewards != 0)) & allowed[rows][:, None]
    shape = (model.horizon or 1, len(rows), model.n_models)
    # 32 bits at once: these arrays are several times the size of the model
    t, k, m = map(_to_int32, np.nonzero(np.broadcast_to(is_kept, shape)))
    s, a = np.divmod(_to_int32(rows)[k], np.int32(model.n_actions))
    p = np.broadcast_to(problem.p, shape)[t, k, m]
    if next_rewards is not None:
        rewards = np.broadcast_to(next_rewards, shape)[t, k, m]
    else:
        r = np.asarray(problem.r)
        rewards = np.broadcast_to(r, (shape[0], *r.shape[1:]))[t, s, a, m]
    cells: tuple[AnyArray, ...] = (t, m, s, a, problem.indices[k], p, rewards)
    if model.has_missing_actions:  # allowed pairs that no model has get a row of probability 0
        unused_pairs = np.setdiff1d(np.flatnonzero(allowed), rows[is_kept.any(axis=(0, 2))])
        s, a = np.divmod(_to_int32(unused_pairs), np.int32(model.n_actions))
        zero = np.zeros(len(s), dtype=np.int32)
        cells = tuple(
            np.append(x, y) for x, y in zip(cells, (zero, zero, s, a, s, zero, zero), strict=True)
        )
    columns = dict(zip(COLUMN_ORDER, cells, strict=True))
    if model.horizon is None:
        del columns["time"]
    return columns


def _to_int32(ids: AnyArray) -> IntArray:
    return ids.astype(np.int32, copy=False)


def convert_storage(model: MMDP, storage: StorageOption, source: TableSource) -> MMDP:
    """Convert a model to dense or sparse storage."""
    if storage in ("auto", model.storage):
        return model
    axes = {axis: ColumnLabels(*model.label_index(axis)) for axis in AXIS_ROLES}
    axes["time"] = ColumnLabels("time", model.horizon or 1)
    encoded = EncodedTransitions(model_to_columns(model), axes, source)
    return build_model(encoded, model.to_kwargs(), LoadOptions(storage=storage))
