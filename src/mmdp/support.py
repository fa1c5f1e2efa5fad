"""The shared support: one CSR pattern for all models, their values side by side.

Row ``s * A + a`` of the pattern owns ``indptr[row]:indptr[row + 1]``; ``indices`` are next
states and ``values[t, k, m]`` the probabilities, with length 1 on the time axis if they
do not vary. The dense storage is the same layout with the full pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, MemoryLimitError, Remedy
from mmdp.kernels.problem import aligned, memory_here
from mmdp.kernels.rewards import Rewards
from mmdp.words import readable_bytes

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.int32]
Shape = tuple[int, int, int]  # models, states, actions
Storage = Literal["auto", "dense", "sparse"]

DENSE_ABOVE = 0.7  # share of non-zero entries over which the full pattern is kept
BLOCK = 1 << 18  # numbers that are worked on together: they stay in a cache
MATERIALISE_LIMIT = 2 * 1024**3  # bytes that an array larger than its input may take


def refuse_masked(values: Any, what: str, depth: int = 8) -> None:
    """Refuse masked entries, also in lists: numpy would read what is under the mask."""
    if isinstance(values, (list, tuple)):
        for inner in values if depth else ():
            if not isinstance(inner, (list, tuple, np.ndarray)):
                break  # numbers: looking at each would take long
            refuse_masked(inner, what, depth - 1)
    elif np.ma.is_masked(values):
        raise InputError(
            f"{what}: {int(np.ma.getmaskarray(values).sum()):,} of {values.size:,} entries are "
            "masked",
            ["fill them in with .filled(VALUE)", "leave them out with .compressed()"],
        )


def float_array(values: Any, what: str) -> Array:
    refuse_masked(values, what)
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":  # numpy drops the imaginary part
        raise InputError(f"{what} must be real numbers, not complex ones")
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{what} must be a rectangular array of numbers; its parts differ in length or hold "
            "something else"
        ) from None
    return array


def check_memory(
    size: int, what: str, remedies: Iterable[str | Remedy] = (), models: int = 0
) -> None:
    """Refuse arrays that do not fit on top of ``models`` bytes, before memory is taken."""
    here = memory_here()
    if size + models > here:
        more = f" on top of the {readable_bytes(models)} of the models" if models else ""
        raise MemoryLimitError(
            f"{what} would take {readable_bytes(size)}{more}; this machine has "
            f"{readable_bytes(here)}", remedies,
        )  # fmt: skip


class Support:
    """The shared CSR pattern with the values of all models, before validation."""

    def __init__(
        self, shape: Shape, indptr: Ints, indices: IntArray, values: Array, dense: bool,
        rewards: Array | None = None, horizon: int | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.indptr, self.indices = shape, indptr, indices
        self.values, self.dense, self.rewards, self.horizon = values, dense, rewards, horizon

    @classmethod
    def on_keys(
        cls, shape: Shape, keys: Ints | None, values: Array, rewards: Array | None = None,
        horizon: int | None = None,
    ) -> Support:  # fmt: skip
        """Values on sorted keys (s A + a) S + s'; None: on all of them."""
        _, n_states, n_actions = shape
        rows = n_states * n_actions
        if keys is None:
            indptr = np.arange(rows + 1, dtype=np.int64) * n_states
            indices = np.tile(np.arange(n_states, dtype=np.int32), rows)
        else:
            counts = np.bincount(keys // n_states, minlength=rows)
            indptr = np.append(0, np.cumsum(counts)).astype(np.int64)
            indices = (keys % n_states).astype(np.int32)
        return cls(shape, indptr, indices, values, keys is None, rewards, horizon)

    @property
    def keys(self) -> Ints:
        """(nnz,) (s A + a) S + s' of every entry."""
        keys: Ints = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        keys *= self.shape[1]
        keys += self.indices
        return keys

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Rows of the pattern, as many as stay in a cache together, and their entries."""
        rows, most = len(self.indptr) - 1, BLOCK // (self.shape[0] * (self.horizon or 1))
        first = 0
        while first < rows:
            last = int(np.searchsorted(self.indptr, self.indptr[first] + most, "right")) - 1
            last = min(max(last, first + 1), rows)
            yield slice(first, last), slice(int(self.indptr[first]), int(self.indptr[last]))
            first = last

    def reduced(self, by: np.ufunc, x: Array, rows: slice, empty: float = 0.0) -> Array:
        """The entries x (T', k, M) of these rows, reduced row by row -> (T', rows, M)."""
        starts = self.indptr[rows] - self.indptr[rows.start]
        found = np.full((len(x), len(starts), x.shape[2]), empty)
        filled = np.diff(starts, append=x.shape[1]) > 0
        if filled.any():
            found[:, filled] = by.reduceat(x, starts[filled], axis=1)
        return found

    def row_sums(self, x: Array) -> Array:
        """x (T', nnz, M) summed over each row -> (T', S*A, M)."""
        sums = np.empty((len(x), len(self.indptr) - 1, x.shape[2]))
        for rows, entries in self.blocks():
            sums[:, rows] = self.reduced(np.add, x[:, entries], rows)
        return sums


# ---------------------------------------------------------------------- entries to a support
class Block(NamedTuple):
    """Some transitions, as parallel arrays or one number for all; key = (s A + a) S + s'."""

    time: Any
    model: Any
    key: Ints
    p: Array
    reward: Any = None


class Columns:
    """One entry per transition: arrays by role, with ids from 0."""

    def __init__(
        self, columns: dict[str, npt.NDArray[Any]], shape: Shape, horizon: int | None
    ) -> None:
        self.columns, self.shape = columns, shape
        self.horizon = horizon if "time" in columns else None
        self.count, self.rewarded = len(columns["probability"]), "reward" in columns

    @classmethod
    def read(cls, columns: dict[str, Any], shape: Shape, horizon: int | None) -> Columns:
        """Columns as a user gives them, checked against the shape; None: not given."""
        given = {name: values for name, values in columns.items() if values is not None}
        found = {
            name: (float_array if name in ("probability", "reward") else _whole)(values, name)
            for name, values in given.items()
        }
        if {x.shape for x in found.values()} != {(found["probability"].size,)}:
            raise InputError("coordinates must all have the same length")
        if "time" in found and horizon is None:
            horizon = int(found["time"].max(initial=-1)) + 1
        M, S, A = shape
        limits = {"model": M, "state": S, "action": A, "next_state": S, "time": horizon or 0}
        for name in found.keys() & limits.keys():
            ids, limit = found[name], limits[name]
            if ids.size and (ids.min() < 0 or ids.max() >= limit):
                bad = ids[(ids < 0) | (ids >= limit)][0]
                raise InputError(f"{name} id {bad} is outside 0..{limit - 1}; ids count from 0")
        return cls(found, shape, horizon)

    def blocks(self) -> Iterator[Block]:
        _, n_states, n_actions = self.shape
        for i in range(0, self.count, BLOCK):
            c = {name: values[i : i + BLOCK] for name, values in self.columns.items()}
            key = c["state"].astype(np.int64)
            for size, role in ((n_actions, "action"), (n_states, "next_state")):
                key *= size
                key += c[role]
            yield Block(c.get("time", 0), c["model"], key, c["probability"], c.get("reward"))


def _whole(values: Any, name: str) -> npt.NDArray[np.integer[Any]]:
    refuse_masked(values, name)
    raw = np.asarray(values)
    if raw.dtype.kind == "i":
        return raw
    if raw.dtype.kind not in "uf":
        raise InputError(f"{name} must be whole numbers, ids from 0")
    with np.errstate(invalid="ignore"):  # NaN and inf are refused below
        ids = raw.astype(np.int64)
    if (ids != raw).any():
        raise InputError(f"{name} ids must be whole numbers, not {raw[ids != raw][0]}")
    return ids


def depth_of_nest(nest: Any) -> int:
    """How many lists there are around scipy sparse matrices; 0 if there are none in it."""
    depth = 0
    while isinstance(nest, (list, tuple)) and nest:
        nest, depth = nest[0], depth + 1
    return depth if hasattr(nest, "tocoo") else 0


def is_sparse_nest(transitions: Any) -> bool:
    return depth_of_nest(transitions) > 0


class Matrices:
    """``[action]``, ``[model][action]`` or ``[time][model][action]`` of (S, S') sparse matrices."""

    rewarded = False

    def __init__(self, nest: Any) -> None:
        depth = depth_of_nest(nest)
        self.times = nest if depth == 3 else [nest] if depth == 2 else [[nest]]
        self.horizon = len(self.times) if depth == 3 else None
        first = self.times[0]
        n_models, n_actions, n_states = len(first), len(first[0]), first[0][0].shape[0]
        self.shape, self.count = (n_models, n_states, n_actions), 0
        for t, models in enumerate(self.times):
            if len(models) != n_models:
                raise InputError(f"time {t} has {len(models)} models, time 0 has {n_models}")
            for m, matrices in enumerate(models):
                if len(matrices) != n_actions:
                    raise InputError(
                        f"model {m} has {len(matrices)} matrices, model 0 has {n_actions}"
                    )
                for a, matrix in enumerate(matrices):
                    if matrix.shape != (n_states, n_states):
                        raise InputError(
                            f"model {m}, action {a}: matrix of shape {matrix.shape}, "
                            f"expected ({n_states}, {n_states})"
                        )
                    self.count += matrix.nnz

    def blocks(self) -> Iterator[Block]:
        """All models of a time and action together: what they write lies side by side."""
        _, n_states, n_actions = self.shape
        for t, models in enumerate(self.times):
            for a in range(n_actions):
                some = [matrices[a].tocsr() for matrices in models]
                step = max(1, n_states * BLOCK // max(1, sum(x.nnz for x in some)))
                for s in range(0, n_states, step):
                    ends = [x.indptr[s : s + step + 1] for x in some]
                    parts = [slice(x[0], x[-1]) for x in ends]
                    counts = np.diff(ends, axis=1)
                    m = np.repeat(np.arange(len(some)), counts.sum(axis=1))
                    first = (np.arange(s, s + counts.shape[1]) * n_actions + a) * n_states
                    key = np.repeat(np.tile(first, len(some)), counts.reshape(-1))
                    key += np.concatenate([x.indices[i] for x, i in zip(some, parts, strict=True)])
                    p = np.concatenate([x.data[i] for x, i in zip(some, parts, strict=True)])
                    yield Block(t, m, key, float_array(p, "transitions"))


Entries = Columns | Matrices


def support_of(entries: Entries, storage: Storage) -> Support:
    """Two passes over the entries: which there are, then their values; duplicates add up."""
    _check_storage(storage)
    n_models, n_states, n_actions = entries.shape
    times, cells = entries.horizon or 1, n_states * n_actions * n_states
    keys: Ints | None = _union(entries, cells)
    assert keys is not None
    if storage == "dense" or (storage == "auto" and len(keys) > DENSE_ABOVE * cells):
        keys = None
    size = times * n_models * (cells if keys is None else len(keys))
    check_memory(
        8 * size, "the transitions of all models",
        ["take fewer models", "spread the models over machines (docs: many hosts)"],
    )  # fmt: skip
    if size * 8 > MATERIALISE_LIMIT and size > entries.count * (16 if keys is None else 64):
        raise MemoryLimitError(
            f"dense storage would take {readable_bytes(size * 8)} for {entries.count:,} "
            'transitions; use storage="sparse" or "auto"'
            if keys is None
            else "the models share so few transitions that their union would take "
            f"{readable_bytes(size * 8)} for {entries.count:,} entries; split the models into "
            "groups with similar support"
        )
    values = aligned(times, size // (times * n_models), n_models)
    p, find = values.reshape(-1), _finder(keys, cells, size)
    p[:] = 0.0
    r, seen = (np.zeros(size * entries.rewarded, dtype=kind) for kind in (float, bool))
    for at, x in _placed(entries, find, values.shape):
        np.add.at(p, at, x.p)
        if entries.rewarded:
            r[at], seen[at] = x.reward, True
    if entries.rewarded and np.count_nonzero(seen) < entries.count:  # the mean by probability
        totals = np.zeros(size)
        for at, x in _placed(entries, find, values.shape):
            np.add.at(totals, at, x.p * x.reward)
        np.divide(totals, p, out=r, where=p > 0)
    rewards = r.reshape(values.shape) if entries.rewarded else None
    return Support.on_keys(entries.shape, keys, values, rewards, entries.horizon)


def _union(entries: Entries, cells: int) -> Ints:
    """The keys that occur, sorted; by a table if that is not larger than the values."""
    if cells <= 8 * entries.count + 1_000_000:
        seen = np.zeros(cells, dtype=bool)
        for x in entries.blocks():
            seen[x.key] = True
        return np.flatnonzero(seen)
    known, new, held = np.empty(0, dtype=np.int64), [], 0
    for x in entries.blocks():
        new.append(_distinct(x.key))
        held += len(new[-1])
        if held > max(len(known), BLOCK):
            known, new, held = _distinct(np.concatenate([known, *new])), [], 0
    return _distinct(np.concatenate([known, *new]))


def _distinct(keys: Ints) -> Ints:
    """Sorted, each once; numpy's ``unique`` hashes integers, which takes many times as long."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) != 0]


def _finder(keys: Ints | None, cells: int, size: int) -> Callable[[Ints], Ints]:
    """The place of a key among the sorted ones; by a table if that takes little memory."""
    if keys is None:
        return lambda key: key
    if cells > 2 * size:
        return lambda key: np.searchsorted(keys, key)
    table: Ints = np.zeros(cells, dtype=np.int32 if len(keys) < 2**31 else np.int64)
    table[keys] = np.arange(len(keys))
    return lambda key: table[key]


def _placed(
    entries: Entries, find: Callable[[Ints], Ints], shape: tuple[int, ...]
) -> Iterator[tuple[Ints, Block]]:
    """Blocks with the places of their entries in an array (T, nnz, M)."""
    for x in entries.blocks():
        at = find(x.key).astype(np.int64)
        at += np.asarray(x.time, dtype=np.int64) * shape[1]
        at *= shape[2]
        at += x.model
        yield at, x


# ---------------------------------------------------------------------- arrays to a support
def support_from_dense(array: Array, storage: Storage) -> Support:
    """(T,) M, S, A, S' array to the shared pattern, models last."""
    _check_storage(storage)
    if array.ndim == 3:
        array = array[None]
    horizon = len(array) if array.ndim == 5 else None
    if array.ndim not in (4, 5):
        raise InputError(
            f"transitions have {array.ndim} axes {array.shape}; expected (models, states, "
            "actions, next states) with an optional leading time axis"
        )
    array = array if array.ndim == 5 else array[None]
    times, n_models, n_states, n_actions, n_next = array.shape
    if n_next != n_states:
        raise InputError(
            f"transitions of shape {array.shape[-4:]}: the last axis must have as many next "
            f"states ({n_next}) as there are states ({n_states}); the axes are "
            "(models, states, actions, next states)"
        )
    if 0 in array.shape:
        raise InputError(f"transitions of shape {array.shape} are empty")
    flat = array.reshape(times, n_models, -1)
    used = np.zeros(flat.shape[2], dtype=bool)
    dense = storage == "dense"
    for t, m in np.ndindex(times, n_models):
        if dense:
            break
        used |= flat[t, m] != 0
        dense = storage == "auto" and used.mean() > DENSE_ABOVE
    keys = None if dense else np.flatnonzero(used)
    shape = (n_models, n_states, n_actions)
    return Support.on_keys(shape, keys, models_last(flat, keys), horizon=horizon)


def models_last(flat: Array, keys: Ints | None) -> Array:
    """(T, M, S A S') values at these keys as (T, nnz, M), without another copy of them all."""
    times, n_models, cells = flat.shape
    found = aligned(times, cells if keys is None else len(keys), n_models)
    if keys is None:
        found[:] = np.moveaxis(flat, 1, 2)
        return found
    step = max(1, BLOCK // (times * n_models))
    for i in range(0, len(keys), step):
        found[:, i : i + step] = np.moveaxis(flat.take(keys[i : i + step], axis=2), 1, 2)
    return found


def _check_storage(storage: str) -> None:
    if storage not in ("auto", "dense", "sparse"):
        raise InputError(f'storage must be "auto", "dense" or "sparse", not {storage!r}')


def check_pattern(support: Support, rewards: Rewards | None, next_rewards: Array | None) -> None:
    """Refuse arrays that do not fit together: a kernel would read beyond their ends."""
    n_models, n_states, n_actions = support.shape
    indptr, indices, p = support.indptr, support.indices, support.values
    lengths = {len(x) for x in (p, rewards, next_rewards) if x is not None}
    fits = (
        indptr.shape == (n_states * n_actions + 1,)
        and indptr[0] == 0
        and bool((np.diff(indptr) >= 0).all())
        and indptr[-1] == len(indices)
        and (not support.dense or len(indices) == n_states * n_actions * n_states)
        and bool(((indices >= 0) & (indices < n_states)).all())
        and p.shape[1:] == (len(indices), n_models)
        and (rewards is None or rewards.shape[1:] == (n_states, n_actions, n_models))
        and (next_rewards is None or next_rewards.shape[1:] == p.shape[1:])
        and lengths <= {1, support.horizon or 1}
        and (support.horizon or 1) in lengths
    )
    if fits:
        keys = support.keys
        fits = bool((keys[1:] > keys[:-1]).all())
    if not fits:
        raise InputError("the arrays of the pattern do not fit together")
