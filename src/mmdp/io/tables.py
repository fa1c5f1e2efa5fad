"""Tidy tables to models and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.arguments import Read, checked
from mmdp.errors import InputError, MemoryLimitError, Remedy
from mmdp.io.columns import columns_of_frame
from mmdp.io.frames import as_frame
from mmdp.io.ids import KINDS, Ids, encode
from mmdp.io.labels import Ints
from mmdp.io.reading import Source
from mmdp.io.rules import Rules
from mmdp.model import MMDP
from mmdp.support import MATERIALISE_LIMIT, Array, Columns, Shape, support_of
from mmdp.words import counted, readable_bytes

Table = dict[str, npt.NDArray[Any]]  # columns by role


@checked
def from_frame(
    frame: Read[pd.DataFrame],
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
    times: Any = None,
    unit: str | None = None,
    quantity: str | None = None,
    compat: str | None = None,
    **rules: Any,
) -> MMDP:
    """Build a model from a tidy table, one row per transition: a DataFrame of pandas or polars.

    Or an xarray Dataset whose dimensions are ``model, state, action, next_state``.

    Columns as in the table of :mod:`mmdp.io`; ``state``, ``action``, ``next_state`` and
    ``model`` may hold labels. ``states``, ``actions`` and ``models`` give labels for ids, or
    the order of the labels that the frame holds. ``initial`` and ``weights`` may map labels
    to numbers; the other fields are those of :class:`mmdp.MMDP`. ``rules`` are those of
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
    read, source = Rules.read(compat, **rules), Source("frame")
    fields = {
        "states": states, "actions": actions, "models": models, "initial": initial,
        "weights": weights, "discount": discount, "terminal": terminal,
        "model_transitions": model_transitions, "parameters": parameters, "name": name,
        "citation": citation, "times": times, "unit": unit, "quantity": quantity,
    }  # fmt: skip
    table = as_frame(frame)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"frame must be a DataFrame, not {type(frame).__name__}")
    ids = encode(columns_of_frame(table, source, read), source, read, fields, {})
    return assemble(ids, fields, source, read)


@checked
def to_frame(model: MMDP) -> pd.DataFrame:
    """The model as a tidy table: one row per transition that can happen.

    Columns ``[time,] model, state, action, next_state, probability, reward``: labels as
    categoricals if the model has them, else ids. What else there is about a model is in
    :meth:`mmdp.MMDP.fields`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[3.0], [0.0]], states=["a", "b"])
    >>> print(mmdp.io.to_frame(one).to_string(index=False))
    model state  action next_state  probability  reward
        0     a       0          a          0.5     3.0
        0     a       0          b          0.5     3.0
        0     b       0          b          1.0     0.0
    """
    columns: dict[str, Any] = dict(entries(model))
    for kind, roles in KINDS.items():
        if model.labelled[kind]:
            labels = pd.Index(getattr(model, f"{kind}_labels"))
            for role in roles:
                columns[role] = pd.Categorical.from_codes(columns[role], labels)
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------- ids to a model
def assemble(ids: Ids, fields: Mapping[str, Any], source: Source, rules: Rules) -> MMDP:
    """The model of checked ids; errors of its own checks get the name of the file."""
    given = {key: value for key, value in fields.items() if value is not None}
    for kind, labels in ids.labels.items():
        if kind not in ids.relabelled or f"{kind}s" not in given:
            given[f"{kind}s"] = labels
    _check_size(ids, source)
    columns, expected = _settled(ids, source, rules)
    with source.named():
        if expected is not None:
            columns = {name: values for name, values in columns.items() if name != "reward"}
        support = support_of(Columns(columns, ids.shape, ids.horizon), rules.storage)
        if "allowed" not in given:
            named = np.diff(support.indptr).reshape(ids.shape[1:]) > 0
            given["allowed"] = _present_actions(columns, ids.shape) if support.dense else named
        if rules.missing_actions == "zero":
            given["allow_missing"] = True
        return MMDP.from_support(support, expected, next_rewards=support.rewards, **given)


def _settled(ids: Ids, source: Source, rules: Rules) -> tuple[Table, Array | None]:
    """The columns after the rules were applied, and r(s, a) if no reward depends on s'."""
    rows = _row_keys(ids.columns, ids.shape)
    columns = _settle_duplicates(ids, rows, source, rules)
    if rules.dead_ends == "absorb":
        columns = _absorb_dead_ends(columns, ids.shape, ids.horizon)
    if columns is not ids.columns:
        rows = _row_keys(columns, ids.shape)
    if rules.normalize:
        p = columns["probability"]
        sums = np.bincount(rows, p)[rows]
        columns = columns | {"probability": np.divide(p, sums, out=p.copy(), where=sums > 0)}
    n_models, n_states, n_actions = ids.shape
    shape = (ids.horizon or 1, n_states, n_actions, n_models)
    return columns, _constant_rewards(columns["reward"], rows, shape)


def _check_size(ids: Ids, source: Source) -> None:
    """Refuse sizes out of proportion to the rows, before an array of that size is made."""
    n_models, n_states, n_actions = ids.shape
    count = len(ids.columns["state"])
    cells = n_models * n_states * n_actions * (ids.horizon or 1)
    if cells * 8 > MATERIALISE_LIMIT and cells > 64 * count:
        raise MemoryLimitError(
            f"{source.place}: {count:,} rows for {counted(n_models, 'model')}, "
            f"{counted(n_states, 'state')} and {counted(n_actions, 'action')} would take "
            f"{readable_bytes(cells * 8)} of rewards alone; check the ids, or split the models"
        )


def _row_keys(columns: Table, shape: Shape) -> Ints:
    """((t S + s) A + a) M + m of every entry: its place in the reward array."""
    n_models, n_states, n_actions = shape
    keys = columns["state"] * n_actions
    if "time" in columns:
        keys += columns["time"] * (n_states * n_actions)
    keys += columns["action"]
    keys *= n_models
    keys += columns["model"]
    return keys


def _settle_duplicates(ids: Ids, rows: Ints, source: Source, rules: Rules) -> Table:
    """Refuse duplicates or keep the last; "sum" leaves them, and the storage adds them up."""
    n_models, n_states, n_actions = ids.shape
    space = (ids.horizon or 1) * n_models * n_states * n_actions * n_states
    keys = rows * n_states
    keys += ids.columns["next_state"]
    if rules.duplicates == "sum" or not _has_duplicates(keys, space):
        return ids.columns
    if rules.duplicates == "last":
        keep = ~pd.Series(keys).duplicated(keep="last").to_numpy()
        return {name: values[keep] for name, values in ids.columns.items()}
    _fail_duplicate(ids, keys, source)


def _has_duplicates(keys: Ints, space: int) -> bool:
    if space <= 16 * len(keys) + 1_000_000:
        seen = np.zeros(space, dtype=bool)
        seen[keys] = True
        return int(np.count_nonzero(seen)) < len(keys)
    ordered = np.sort(keys)
    return bool((ordered[1:] == ordered[:-1]).any())


def _fail_duplicate(ids: Ids, keys: Ints, source: Source) -> NoReturn:
    repeated = pd.Series(keys).duplicated().to_numpy()
    row = int(np.argmax(repeated))
    kinds = {role: kind for kind, roles in KINDS.items() for role in roles}
    place = []
    for role in ("model", "state", "action", "next_state", "time"):
        if role in ids.columns:
            value = int(ids.columns[role][row])
            labels = ids.labels.get(kinds.get(role, role))
            place.append(f"{role.replace('_', ' ')} {labels[value]!r}" if labels else
                         f"{role.replace('_', ' ')} {value}")  # fmt: skip
    first = source.at(int(np.argmax(keys == keys[row])))
    source.fail(
        f"{', '.join(place)} is given again (first at {first}; "
        f"{counted(int(repeated.sum()), 'duplicate')})",
        row,
        ["remove it", Remedy("duplicates", "last", "sum")],
    )


def _present_actions(columns: Table, shape: Shape) -> npt.NDArray[np.bool_]:
    """(S, A): an action is there if any row names it."""
    seen = np.zeros(shape[1] * shape[2], dtype=bool)
    seen[columns["state"] * shape[2] + columns["action"]] = True
    return seen.reshape(shape[1:])


def _absorb_dead_ends(columns: Table, shape: Shape, horizon: int | None) -> Table:
    """Give every state without actions an action 0 that stays there and earns 0."""
    dead = np.flatnonzero(~_present_actions(columns, shape).any(axis=1))
    if not len(dead):
        return columns
    grid = np.meshgrid(np.arange(horizon or 1), np.arange(shape[0]), dead, indexing="ij")
    time, model, state = (x.ravel() for x in grid)
    added = {
        "time": time, "model": model, "state": state, "next_state": state,
        "action": np.zeros_like(state), "probability": np.ones(len(state)),
        "reward": np.zeros(len(state)),
    }  # fmt: skip
    return {name: np.concatenate([values, added[name]]) for name, values in columns.items()}


def _constant_rewards(reward: Array, rows: Ints, shape: tuple[int, ...]) -> Array | None:
    """(T, S, A, M) r(s, a) if no row's reward depends on s', so that it stays exact."""
    table = np.zeros(int(np.prod(shape)))
    table[rows] = reward
    return table.reshape(shape) if bool((table[rows] == reward).all()) else None


# ---------------------------------------------------------------------- a model to ids
def entries(model: MMDP) -> Table:
    """Parallel arrays [time,] model, state, action, next_state, probability, reward.

    Entries of probability 0 appear only if they carry something: a reward per next state, or
    an action that is allowed although no model (or not this one) has transitions for it.
    """
    x, next_rewards, rows = model.problem, model.pattern_rewards, model.problem.rows()
    keep = x.p != 0
    if next_rewards is not None:
        keep = (keep | (next_rewards != 0)) & x.allowed.reshape(-1)[rows][:, None]
    on_pattern = (model.horizon or 1, len(rows), model.n_models)
    r = np.broadcast_to(np.asarray(x.r), (on_pattern[0], *x.r.shape[1:]))
    # 32 bits at once: these arrays are several times the size of the model
    if model.horizon is None:
        k, m = map(_short, np.nonzero(keep[0]))
        t = np.broadcast_to(np.int32(0), k.shape)
    else:
        t, k, m = map(_short, np.nonzero(np.broadcast_to(keep, on_pattern)))
    s, a = map(_short, np.divmod(_short(rows)[k], np.int32(model.n_actions)))
    found: Table = {
        "time": t, "model": m, "state": s, "action": a, "next_state": x.indices[k],
        "probability": np.broadcast_to(x.p, on_pattern)[t, k, m],
        "reward": r[t, s, a, m] if next_rewards is None
        else np.broadcast_to(next_rewards, on_pattern)[t, k, m],
    }  # fmt: skip
    if model.fields()["allow_missing"]:
        extra = _missing_entries(model, found, r)
        found = {name: np.concatenate([v, extra[name]]) for name, v in found.items()}
    if model.horizon is None:
        del found["time"]
    return {name: _short(v) if v.dtype.kind == "i" else v for name, v in found.items()}


def _short(ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    return ids.astype(np.int32, copy=False)


def _missing_entries(model: MMDP, found: Table, r: Array) -> Table:
    """Entries of probability 0 for allowed rows that have none but must not be forgotten."""
    has = np.zeros(r.shape, dtype=bool)
    has[found["time"], found["state"], found["action"], found["model"]] = True
    nowhere = ~has.any(axis=(0, 3), keepdims=True)
    t, s, a, m = np.nonzero(~has & model.allowed[None, :, :, None] & ((r != 0) | nowhere))
    return {
        "time": t, "model": m, "state": s, "action": a, "next_state": s,
        "probability": np.zeros(len(t)), "reward": r[t, s, a, m],
    }  # fmt: skip
