"""Conversion of tidy tables to models, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import (
    MAX_DENSE_BYTES,
    Array,
    CoordinateEntries,
    ModelShape,
    entries_to_transitions,
)
from mmdp.data.io.columns import frame_to_columns
from mmdp.data.io.frames import as_frame
from mmdp.data.io.ids import AXIS_ROLES, EncodedTransitions, encode_transitions
from mmdp.data.io.labels import IntArray
from mmdp.data.io.options import LoadOptions
from mmdp.data.io.reading import TableSource

TableColumns = dict[str, npt.NDArray[Any]]  # columns by role


@check_arguments
def from_frame(
    frame: Unchecked[pd.DataFrame],
    *,
    initial: npt.ArrayLike | Mapping[Any, float] | None = None,
    weights: npt.ArrayLike | Mapping[Any, float] | None = None,
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
    compat: str | None = None,
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
    ``id_gaps``, ``extra_columns`` and ``storage``.

    >>> import pandas as pd, mmdp
    >>> frame = pd.DataFrame({"state": ["up", "up", "down"], "action": "wait",
    ...     "next_state": ["up", "down", "down"], "probability": [0.9, 0.1, 1.0],
    ...     "reward": [4.0, 4.0, 0.0]})
    >>> model = mmdp.io.from_frame(frame, initial={"up": 1.0})
    >>> model.state_labels, model.rewards.tolist()
    (('up', 'down'), [[[4.0], [0.0]]])
    """
    options, source = LoadOptions.from_arguments(compat, **load_options), TableSource("frame")
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
    table = as_frame(frame)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"frame is a {type(frame).__name__}; give a DataFrame")
    encoded = encode_transitions(
        frame_to_columns(table, source, options), source, options, fields, {}
    )
    return build_model(encoded, fields, source, options)


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
    columns: dict[str, Any] = dict(model_to_columns(model))
    for axis, roles in AXIS_ROLES.items():
        if model.has_labels[axis]:
            labels = pd.Index(getattr(model, f"{axis}_labels"))
            for role in roles:
                columns[role] = pd.Categorical.from_codes(columns[role], labels)
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------- ids to a model
def build_model(
    encoded: EncodedTransitions,
    fields: Mapping[str, Any],
    source: TableSource,
    options: LoadOptions,
) -> MMDP:
    """Build a model from transitions as ids; errors name the file."""
    model_fields = {key: value for key, value in fields.items() if value is not None}
    for axis, labels in encoded.labels.items():
        if axis not in encoded.relabeled or f"{axis}s" not in model_fields:
            model_fields[f"{axis}s"] = labels
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
    keys = columns["state"] * n_actions
    if "time" in columns:
        keys += columns["time"] * (n_states * n_actions)
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
    """Whether a key from 0 to n_keys - 1 occurs twice."""
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
    axis_by_role = {role: axis for axis, roles in AXIS_ROLES.items() for role in roles}
    location = []
    for role in ("model", "state", "action", "next_state", "time"):
        if role in encoded.columns:
            value = int(encoded.columns[role][row])
            labels = encoded.labels.get(axis_by_role.get(role, role))
            location.append(
                f"{role.replace('_', ' ')} {labels[value]!r}"
                if labels
                else f"{role.replace('_', ' ')} {value}"
            )
    first_row = source.describe_row(int(np.argmax(keys == keys[row])))
    source.fail(
        f"{', '.join(location)} is given again (first at {first_row}; "
        f"{pluralize(int(is_duplicate.sum()), 'duplicate')})",
        row,
        ["remove it", Remedy("duplicates", "last", "sum")],
    )


def _find_used_actions(columns: TableColumns, shape: ModelShape) -> npt.NDArray[np.bool_]:
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
    new_rows = {
        "time": time,
        "model": model,
        "state": state,
        "next_state": state,
        "action": np.zeros_like(state),
        "probability": np.ones(len(state)),
        "reward": np.zeros(len(state)),
    }
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
    problem, next_rewards, rows = (
        model.problem,
        model.pattern_rewards,
        model.problem.get_entry_rows(),
    )
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
    columns: TableColumns = {
        "time": t,
        "model": m,
        "state": s,
        "action": a,
        "next_state": problem.indices[k],
        "probability": np.broadcast_to(problem.p, pattern_shape)[t, k, m],
        "reward": r[t, s, a, m]
        if next_rewards is None
        else np.broadcast_to(next_rewards, pattern_shape)[t, k, m],
    }
    if model.to_kwargs()["allow_missing"]:
        missing_columns = _make_missing_entries(model, columns, r)
        columns = {name: np.concatenate([v, missing_columns[name]]) for name, v in columns.items()}
    if model.horizon is None:
        del columns["time"]
    return {name: _to_int32(v) if v.dtype.kind == "i" else v for name, v in columns.items()}


def _to_int32(ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    return ids.astype(np.int32, copy=False)


def _make_missing_entries(model: MMDP, columns: TableColumns, r: Array) -> TableColumns:
    """Make entries of probability 0 for allowed rows without transitions."""
    has_entry = np.zeros(r.shape, dtype=bool)
    has_entry[columns["time"], columns["state"], columns["action"], columns["model"]] = True
    is_unused = ~has_entry.any(axis=(0, 3), keepdims=True)
    t, s, a, m = np.nonzero(~has_entry & model.allowed[None, :, :, None] & ((r != 0) | is_unused))
    return {
        "time": t,
        "model": m,
        "state": s,
        "action": a,
        "next_state": s,
        "probability": np.zeros(len(t)),
        "reward": r[t, s, a, m],
    }
