"""Tables of transitions: columns by role to models, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import StateText, Unchecked, check_arguments
from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.kernels.distributions import clip_rounding
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import (
    MAX_DENSE_BYTES,
    Array,
    CoordinateEntries,
    ModelShape,
    StorageOption,
    entries_to_transitions,
)
from mmdp.core.validate import parse_labels
from mmdp.data.io.reading import as_frame, read_csv, read_header
from mmdp.data.schema import (
    AXIS_BY_ROLE,
    AXIS_ROLES,
    PAPER_COLUMNS,
    AnyArray,
    CodedColumn,
    ColumnLabels,
    Fields,
    IntArray,
    Labels,
    Mask,
    Table,
    TableSource,
    ValuesByLabel,
    assign_roles,
    encode_axis,
    encode_column,
    is_finite_number,
    parse_floats,
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

    @classmethod
    def from_arguments(cls, compat: Compatibility | None, **options: Any) -> LoadOptions:
        """Check options by name, with those of a compatibility mode."""
        return cls(**(options | (CADP_OPTIONS if compat == "cadp" else {})))


@dataclass
class EncodedTransitions:
    """Transitions as ids: columns by role, and the size and labels of every axis."""

    columns: TableColumns = field(default_factory=dict)
    axes: dict[str, ColumnLabels] = field(default_factory=dict)
    horizon: int | None = None

    @property
    def shape(self) -> ModelShape:
        """Numbers of models, states and actions, (M, S, A)."""
        return self.axes["model"].size, self.axes["state"].size, self.axes["action"].size


@dataclass(frozen=True)
class ModelTable:
    """What an adapter reads from a file: transitions by role, and fields and sizes of the model.

    If it ``is_complete``, no sidecar files are read.
    """

    table: Table
    fields: Fields = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = False


# ---------------------------------------------------------------------- columns to ids
def frame_to_table(frame: pd.DataFrame, source: TableSource, options: LoadOptions) -> Table:
    """Get the known columns of a frame, by role."""
    roles = _assign_transition_roles([str(x) for x in frame.columns], source, options)
    return Table({role: frame[name] for name, role in roles.items()}, source)


def read_csv_table(path: Path, options: LoadOptions) -> ModelTable:
    """Read the known columns of a CSV by role, as numbers if possible, else as text."""
    source, names = TableSource(path), read_header(path)
    roles = _assign_transition_roles(names, source, options)
    # 64 bits: older pandas wraps a larger number silently when asked for 32
    dtypes: Fields = {name: np.int64 if name in roles else str for name in names}
    dtypes |= {name: np.float64 for name in VALUE_ROLES if name in roles}
    label_dtypes = dtypes | {name: str for name in roles if name in AXIS_BY_ROLE}
    frame = read_csv(path, names, dtypes, label_dtypes, str)
    columns = {role: parse_numbers_or_labels(frame[x], source) for x, role in roles.items()}
    return ModelTable(Table(columns, source))


def parse_numbers_or_labels(column: pd.Series, source: TableSource) -> pd.Series:
    """Parse a column of text as numbers; columns that may hold labels may stay text."""
    if column.dtype.kind in "if":
        return column
    name, text = str(column.name), column.str.strip()
    if name in AXIS_BY_ROLE and not is_finite_number(text).all():
        return text
    remedy = "ids are whole numbers from 0"
    remedy = "give a finite number" if COLUMN_ROLES[name] in VALUE_ROLES else remedy
    return pd.Series(parse_floats(text, name, source, remedy))


def _assign_transition_roles(
    names: Sequence[str], source: TableSource, options: LoadOptions
) -> dict[str, str]:
    """Assign roles to column names; remedies use the spelling of the table."""
    if {"state", "action"} <= {*names} <= {"time", "state", "action", "idstate", "idaction"}:
        source.fail(
            "this is a policy, not a model; give a model, or read the policy with load_policy()"
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


def encode_transitions(
    table: Table, options: LoadOptions, fields: Fields, sizes: Mapping[str, int]
) -> EncodedTransitions:
    """Convert the columns of a table of transitions to ids.

    ``fields`` may give the order of the labels (or names for ids) by ``states``, ``actions`` and
    ``models``, ``sizes`` the size of an axis if some ids do not occur.
    """
    source, encoded = table.source, EncodedTransitions()
    if not len(table):
        source.fail("a header but no rows; expected one row per transition")
    columns = {"model": pd.Series(np.zeros(len(table), dtype=np.int64)), **table.columns}
    for axis, roles in (*AXIS_ROLES.items(), ("time", ("time",))):
        if roles[0] not in columns:
            continue
        names = parse_labels(fields.get(f"{axis}s"), axis)
        raw_columns = [columns[role] for role in roles]
        has_ids = all(map(_is_numeric, raw_columns))
        if has_ids:
            coded_columns = [
                CodedColumn(parse_ids(column, role, source), None)
                for column, role in zip(raw_columns, roles, strict=True)
            ]
        elif axis == "time":
            source.fail("times are not numbers; give whole numbers from 0")
        else:
            coded_columns = _encode_labels(axis, raw_columns, names, source)
        encoded.axes[axis], ids = encode_axis(
            axis,
            roles,
            coded_columns,
            source,
            sizes.get(axis) if names is None and has_ids else names,
            allow_gaps=False,
        )
        encoded.columns |= dict(zip(roles, ids, strict=True))
    if "time" in encoded.axes:
        encoded.horizon = encoded.axes.pop("time").size
    encoded.columns |= {role: _parse_finite(table, role) for role in VALUE_ROLES}
    return encoded


def _is_numeric(values: pd.Series) -> bool:
    """Return whether a column holds numbers."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    dtype_kind = values.dtype.kind
    return dtype_kind in "iuf" or (
        dtype_kind == "O" and pd.api.types.infer_dtype(values, skipna=False) == "integer"
    )


def _encode_labels(
    axis: str, columns: Sequence[pd.Series], names: Labels | None, source: TableSource
) -> list[CodedColumn]:
    """Encode columns of labels, in the order of their categories if all of them have one."""
    coded_columns = [encode_column(column) for column in columns]
    for column in coded_columns:
        is_blank = column.is_blank(("",) if names is None else ())
        source.fail_where(is_blank, f"a {axis} is empty; give its label or id")
    is_ordered = all(column.is_ordered for column in coded_columns)
    return [replace(column, is_ordered=is_ordered) for column in coded_columns]


def _parse_finite(table: Table, role: str) -> Array:
    """Parse a column of probabilities or rewards, and refuse values that are not finite."""
    array, source = table.parse_floats(role), table.source
    with np.errstate(all="ignore"):
        may_be_nonfinite = not np.isfinite(array.sum())  # one pass less if all is well
    if may_be_nonfinite:
        source.fail_where(
            ~np.isfinite(array), lambda i: f"{role} is {array[i]}; give a finite number"
        )
    array = clip_rounding(array) if role == "probability" else array
    if role == "probability" and array.min() < 0:
        source.fail_where(
            array < 0, lambda i: f"negative probability {array[i]:g}; it must be from 0 to 1"
        )
    return array


@check_arguments
def from_frame(
    frame: Unchecked[pd.DataFrame],
    *,
    initial: StateText | ValuesByLabel | None = None,
    weights: ValuesByLabel | None = None,
    discount: float = 1.0,
    terminal: npt.ArrayLike | None = None,
    model_transitions: npt.ArrayLike | None = None,
    states: Sequence[object] | None = None,
    actions: Sequence[object] | None = None,
    models: Sequence[object] | None = None,
    parameters: Mapping[str, npt.ArrayLike] | None = None,
    name: str | None = None,
    citation: str | None = None,
    time_labels: Any = None,
    unit: str | None = None,
    quantity: str | None = None,
    compat: Compatibility | None = None,
    **load_options: Any,
) -> MMDP:
    """Build a model from a tidy table with one row per transition.

    A DataFrame of pandas or polars, or an xarray Dataset whose dimensions are
    ``model, state, action, next_state``.

    Columns as in the table of :mod:`mmdp.io`; ``state``, ``action``, ``next_state`` and
    ``model`` may hold labels. ``states``, ``actions`` and ``models`` give labels for ids, or
    the order of the labels that the frame holds. ``initial`` and ``weights`` may map labels
    to numbers; the other fields are those of :class:`mmdp.MMDP`. ``load_options`` are those of
    :func:`mmdp.load`: ``duplicates``, ``normalize``, ``missing_actions``, ``dead_ends``,
    ``extra_columns`` and ``storage``.

    >>> import pandas as pd, mmdp
    >>> frame = pd.DataFrame({"state": ["up", "up", "down"], "action": "wait",
    ...     "next_state": ["up", "down", "down"], "probability": [0.9, 0.1, 1.0],
    ...     "reward": [4.0, 4.0, 0.0]})
    >>> model = mmdp.io.from_frame(frame, initial={"up": 1.0})
    >>> model.state_labels, model.rewards.tolist()
    (('up', 'down'), [[[4.0], [0.0]]])
    """
    options = LoadOptions.from_arguments(compat, **load_options)
    fields = {
        "states": states,
        "actions": actions,
        "models": models,
        "initial": initial,
        "weights": weights,
        "discount": discount,
        "terminal": terminal,
        "model_transitions": model_transitions,
        "parameters": parameters,
        "name": name,
        "citation": citation,
        "time_labels": time_labels,
        "unit": unit,
        "quantity": quantity,
    }
    converted_frame = as_frame(frame)
    if not isinstance(converted_frame, pd.DataFrame):
        raise InputError(f"frame is a {type(frame).__name__}; give a DataFrame")
    table = frame_to_table(converted_frame, TableSource("frame"), options)
    return build_model(
        encode_transitions(table, options, fields, {}), fields, table.source, options
    )


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
    columns: Fields = dict(model_to_columns(model))
    for axis, roles in AXIS_ROLES.items():
        if model.has_labels[axis]:
            labels = pd.Index(getattr(model, f"{axis}_labels"))
            for role in roles:
                columns[role] = pd.Categorical.from_codes(columns[role], labels)
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------- ids to a model
def build_model(
    encoded: EncodedTransitions,
    fields: Fields,
    source: TableSource,
    options: LoadOptions,
) -> MMDP:
    """Build a model from transitions as ids; errors name the file."""
    model_fields = {key: value for key, value in fields.items() if value is not None}
    for axis, index in encoded.axes.items():
        if index.labels is not None:
            model_fields[f"{axis}s"] = index.labels
    _check_size(encoded, source)
    columns, rewards = _apply_options(encoded, source, options)
    with source.prefix_errors():
        if rewards is not None:
            columns = {name: values for name, values in columns.items() if name != "reward"}
        transitions = entries_to_transitions(
            CoordinateEntries(columns, encoded.shape, encoded.horizon), options.storage
        )
        if "allowed" not in model_fields:
            has_entries = np.diff(transitions.indptr).reshape(encoded.shape[1:]) > 0
            model_fields["allowed"] = (
                _find_used_actions(columns, encoded.shape) if transitions.is_dense else has_entries
            )
        if options.missing_actions == "zero":
            model_fields["allow_missing"] = True
        return MMDP.from_sparse(
            transitions, rewards, next_rewards=transitions.pattern_rewards, **model_fields
        )


def _apply_options(
    encoded: EncodedTransitions, source: TableSource, options: LoadOptions
) -> tuple[TableColumns, Array | None]:
    """Apply the load options to the columns; returns them, and r(s, a) if none depends on s'."""
    row_keys = _compute_row_keys(encoded.columns, encoded.shape)
    columns = _resolve_duplicates(encoded, row_keys, source, options)
    if options.dead_ends == "absorb":
        columns = _absorb_dead_ends(columns, encoded.shape, encoded.horizon)
    if columns is not encoded.columns:
        row_keys = _compute_row_keys(columns, encoded.shape)
    if options.normalize:
        p = columns["probability"]
        sums = np.bincount(row_keys, p)[row_keys]
        columns = columns | {"probability": np.divide(p, sums, out=p.copy(), where=sums > 0)}
    n_models, n_states, n_actions = encoded.shape
    shape = (encoded.horizon or 1, n_states, n_actions, n_models)
    return columns, _find_constant_rewards(columns["reward"], row_keys, shape)


def _check_size(encoded: EncodedTransitions, source: TableSource) -> None:
    """Refuse sizes out of proportion to the rows, before arrays are allocated."""
    n_models, n_states, n_actions = encoded.shape
    n_rows = len(encoded.columns["state"])
    n_cells = n_models * n_states * n_actions * (encoded.horizon or 1)
    if n_cells * 8 > MAX_DENSE_BYTES and n_cells > 64 * n_rows:
        raise MemoryLimitError(
            f"{source.location}: {n_rows:,} rows for {pluralize(n_models, 'model')}, "
            f"{pluralize(n_states, 'state')} and {pluralize(n_actions, 'action')} would take "
            f"{format_bytes(n_cells * 8)} of rewards alone; check the ids, or split the models"
        )


def _compute_row_keys(columns: TableColumns, shape: ModelShape) -> IntArray:
    """Compute ((t S + s) A + a) M + m of every entry, its index in the reward array."""
    n_models, n_states, n_actions = shape
    keys = columns["state"].astype(np.int64)
    keys *= n_actions
    if "time" in columns:
        keys += columns["time"].astype(np.int64) * (n_states * n_actions)
    keys += columns["action"]
    keys *= n_models
    keys += columns["model"]
    return keys


def _resolve_duplicates(
    encoded: EncodedTransitions, row_keys: IntArray, source: TableSource, options: LoadOptions
) -> TableColumns:
    """Refuse duplicate transitions or keep the last; those to be summed stay."""
    n_models, n_states, n_actions = encoded.shape
    n_keys = (encoded.horizon or 1) * n_models * n_states * n_actions * n_states
    keys = row_keys * n_states
    keys += encoded.columns["next_state"]
    if options.duplicates == "sum" or not _has_duplicates(keys, n_keys):
        return encoded.columns
    if options.duplicates == "last":
        is_kept = ~pd.Series(keys).duplicated(keep="last").to_numpy()
        return {name: values[is_kept] for name, values in encoded.columns.items()}
    _fail_duplicate(encoded, keys, source)


def _has_duplicates(keys: IntArray, n_keys: int) -> bool:
    """Return whether a key from 0 to n_keys - 1 occurs twice."""
    if n_keys <= 16 * len(keys) + 1_000_000:
        is_used = np.zeros(n_keys, dtype=bool)
        is_used[keys] = True
        return int(np.count_nonzero(is_used)) < len(keys)
    sorted_keys = np.sort(keys)
    return bool((sorted_keys[1:] == sorted_keys[:-1]).any())


def _fail_duplicate(encoded: EncodedTransitions, keys: IntArray, source: TableSource) -> NoReturn:
    """Raise the error of a transition that is given twice."""
    is_duplicate = pd.Series(keys).duplicated().to_numpy()
    row = int(np.argmax(is_duplicate))
    location = []
    for role in ("model", "state", "action", "next_state", "time"):
        if role in encoded.columns:
            axis = encoded.axes.get(AXIS_BY_ROLE.get(role, role))
            value = int(encoded.columns[role][row])
            name = str(value) if axis is None else axis.format_id(value)
            location.append(f"{role.replace('_', ' ')} {name}")
    first_row = source.describe_row(int(np.argmax(keys == keys[row])))
    source.fail(
        f"{', '.join(location)} is given again (first at {first_row}; "
        f"{pluralize(int(is_duplicate.sum()), 'duplicate')})",
        row,
        ["remove it", Remedy("duplicates", "last", "sum")],
    )


def _find_used_actions(columns: TableColumns, shape: ModelShape) -> Mask:
    """Find the state-action pairs (S, A) that occur in a row."""
    is_used = np.zeros(shape[1] * shape[2], dtype=bool)
    is_used[columns["state"] * shape[2] + columns["action"]] = True
    return is_used.reshape(shape[1:])


def _absorb_dead_ends(
    columns: TableColumns, shape: ModelShape, horizon: int | None
) -> TableColumns:
    """Add to every state without actions an action 0 that stays there and earns 0."""
    dead_states = np.flatnonzero(~_find_used_actions(columns, shape).any(axis=1))
    if not len(dead_states):
        return columns
    grid = np.meshgrid(np.arange(horizon or 1), np.arange(shape[0]), dead_states, indexing="ij")
    time, model, state = (x.ravel() for x in grid)
    zeros, ones = np.zeros(len(state)), np.ones(len(state))
    cells = (time, model, state, np.zeros_like(state), state, ones, zeros)
    new_rows = dict(zip(COLUMN_ORDER, cells, strict=True))
    return {name: np.concatenate([values, new_rows[name]]) for name, values in columns.items()}


def _find_constant_rewards(
    reward: Array, row_keys: IntArray, shape: tuple[int, ...]
) -> Array | None:
    """Find the rewards (T, S, A, M) of pairs; None if a reward depends on the next state."""
    table = np.zeros(int(np.prod(shape)))
    table[row_keys] = reward
    return table.reshape(shape) if bool((table[row_keys] == reward).all()) else None


# ---------------------------------------------------------------------- a model to ids
def model_to_columns(model: MMDP) -> TableColumns:
    """Convert a model to columns [time,] model, state, action, next_state, probability, reward.

    Entries of probability 0 appear only if they are needed: for a reward by next state, or for an
    action that is allowed although no model (or not this one) has transitions for it.
    """
    problem = model.problem
    next_rewards = model.pattern_rewards
    rows = model.problem.get_entry_rows()
    is_kept = problem.p != 0
    if next_rewards is not None:
        is_kept = (is_kept | (next_rewards != 0)) & problem.allowed.reshape(-1)[rows][:, None]
    pattern_shape = (model.horizon or 1, len(rows), model.n_models)
    r = np.broadcast_to(np.asarray(problem.r), (pattern_shape[0], *problem.r.shape[1:]))
    # 32 bits at once: these arrays are several times the size of the model
    if model.horizon is None:
        k, m = map(_to_int32, np.nonzero(is_kept[0]))
        t = np.broadcast_to(np.int32(0), k.shape)
    else:
        t, k, m = map(_to_int32, np.nonzero(np.broadcast_to(is_kept, pattern_shape)))
    s, a = map(_to_int32, np.divmod(_to_int32(rows)[k], np.int32(model.n_actions)))
    p = np.broadcast_to(problem.p, pattern_shape)[t, k, m]
    rewards = (
        r[t, s, a, m]
        if next_rewards is None
        else np.broadcast_to(next_rewards, pattern_shape)[t, k, m]
    )
    cells = (t, m, s, a, problem.indices[k], p, rewards)
    columns: TableColumns = dict(zip(COLUMN_ORDER, cells, strict=True))
    if model.to_kwargs()["allow_missing"]:
        missing_columns = _make_missing_entries(model, columns, r)
        columns = {name: np.concatenate([v, missing_columns[name]]) for name, v in columns.items()}
    if model.horizon is None:
        del columns["time"]
    return {name: _to_int32(v) if v.dtype.kind == "i" else v for name, v in columns.items()}


def _to_int32(ids: AnyArray) -> npt.NDArray[np.int32]:
    return ids.astype(np.int32, copy=False)


def _make_missing_entries(model: MMDP, columns: TableColumns, r: Array) -> TableColumns:
    """Make entries of probability 0 for allowed rows without transitions."""
    has_entry = np.zeros(r.shape, dtype=bool)
    has_entry[columns["time"], columns["state"], columns["action"], columns["model"]] = True
    is_unused = ~has_entry.any(axis=(0, 3), keepdims=True)
    t, s, a, m = np.nonzero(~has_entry & model.allowed[None, :, :, None] & ((r != 0) | is_unused))
    cells = (t, m, s, a, s, np.zeros(len(t)), r[t, s, a, m])
    return dict(zip(COLUMN_ORDER, cells, strict=True))


def convert_storage(model: MMDP, storage: StorageOption, source: TableSource) -> MMDP:
    """Convert a model to dense or sparse storage."""
    if storage in ("auto", model.storage):
        return model
    sizes = {"state": model.n_states, "action": model.n_actions, "model": model.n_models}
    axes = {axis: ColumnLabels(axis, size) for axis, size in sizes.items()}
    encoded = EncodedTransitions(model_to_columns(model), axes, model.horizon)
    return build_model(encoded, model.to_kwargs(), source, LoadOptions(storage=storage))
