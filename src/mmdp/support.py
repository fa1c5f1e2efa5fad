"""The shared support: one CSR pattern for all models, their values beside each other.

Row ``s * A + a`` of the pattern owns ``indptr[row]:indptr[row + 1]``; ``indices`` are next
states and ``values[t, k, m]`` the probabilities, with length 1 on the time axis if they
do not vary. The dense storage is the same layout with the full pattern.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, MemoryLimitError, Remedy
from mmdp.kernels.problem import aligned, memory_here
from mmdp.words import readable_bytes

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
Storage = Literal["auto", "dense", "sparse"]

DENSE_ABOVE = 0.7  # share of non-zero entries over which the full pattern is kept
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
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":  # numpy would cut them
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
    """Refuse arrays that cannot fit, beside models of so many bytes, before memory is taken."""
    here = memory_here()
    if size + models > here:
        beside = f" beside the {readable_bytes(models)} of the models" if models else ""
        raise MemoryLimitError(
            f"{what} would take {readable_bytes(size)}{beside}; this machine has "
            f"{readable_bytes(here)}", remedies,
        )  # fmt: skip


class Coordinates:
    """Transitions as parallel arrays, checked against the shape."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]], horizon: int | None) -> None:
        self.columns, self.horizon = columns, horizon

    @classmethod
    def read(
        cls, model: Any, state: Any, action: Any, next_state: Any, probability: Any,
        reward: Any, time: Any, shape: tuple[int, int, int], horizon: int | None,
    ) -> Coordinates:  # fmt: skip
        limits = {"model": shape[0], "state": shape[1], "action": shape[2], "next_state": shape[1]}
        given = {"model": model, "state": state, "action": action, "next_state": next_state}
        columns: dict[str, npt.NDArray[Any]] = {}
        if time is not None:
            refuse_masked(time, "time")
            ids = np.asarray(time, dtype=np.int64)
            horizon = horizon if horizon is not None else int(ids.max(initial=-1)) + 1
            given["time"], limits["time"] = ids, horizon
        for name, values in given.items():
            refuse_masked(values, name)
            raw = np.asarray(values)
            ids = raw.astype(np.int64)
            if (ids != raw).any():
                raise InputError(f"{name} ids must be whole numbers, not {raw[ids != raw][0]}")
            if ids.size and (ids.min() < 0 or ids.max() >= limits[name]):
                bad = ids[(ids < 0) | (ids >= limits[name])][0]
                raise InputError(
                    f"{name} id {bad} is outside 0..{limits[name] - 1}; ids count from 0"
                )
            columns[name] = ids
        columns["probability"] = float_array(probability, "probability")
        if reward is not None:
            columns["reward"] = float_array(reward, "reward")
        if len({x.shape for x in columns.values()}) > 1:
            raise InputError("coordinates must all have the same length")
        return cls(columns, horizon)


class Support:
    """The shared CSR pattern with the values of all models, before validation."""

    def __init__(
        self, shape: tuple[int, int, int], indptr: npt.NDArray[np.int64], indices: IntArray,
        values: Array, dense: bool, rewards: Array | None, horizon: int | None,
    ) -> None:  # fmt: skip
        self.shape, self.indptr, self.indices = shape, indptr, indices
        self.values, self.dense, self.rewards, self.horizon = values, dense, rewards, horizon

    def row_sums(self, values: Array) -> Array:
        """(T', nnz, M) summed over each row of the pattern -> (T', S*A, M)."""
        sums = np.zeros((len(values), len(self.indptr) - 1, values.shape[2]))
        filled = np.flatnonzero(np.diff(self.indptr))
        if len(filled):
            sums[:, filled] = np.add.reduceat(values, self.indptr[filled], axis=1)
        return sums


def depth_of_nest(nest: Any) -> int:
    """How many lists there are around scipy sparse matrices; 0 if there are none in it."""
    depth = 0
    while isinstance(nest, (list, tuple)) and nest:
        nest, depth = nest[0], depth + 1
    return depth if hasattr(nest, "tocoo") else 0


def is_sparse_nest(transitions: Any) -> bool:
    return depth_of_nest(transitions) > 0


def coordinates_of_nest(nest: Any) -> tuple[Coordinates, tuple[int, int, int]]:
    """``[action]``, ``[model][action]`` or ``[time][model][action]`` of (S, S') sparse matrices."""
    depth = depth_of_nest(nest)
    times = nest if depth == 3 else [nest] if depth == 2 else [[nest]]
    n_models, n_actions, n_states = len(times[0]), len(times[0][0]), times[0][0][0].shape[0]
    parts: dict[str, list[Any]] = {k: [] for k in ("t", "m", "s", "a", "n", "p")}
    for t, models in enumerate(times):
        if len(models) != n_models:
            raise InputError(f"time {t} has {len(models)} models, time 0 has {n_models}")
        for m, matrices in enumerate(models):
            if len(matrices) != n_actions:
                raise InputError(f"model {m} has {len(matrices)} matrices, model 0 has {n_actions}")
            for a, matrix in enumerate(matrices):
                if matrix.shape != (n_states, n_states):
                    raise InputError(
                        f"model {m}, action {a}: matrix of shape {matrix.shape}, "
                        f"expected ({n_states}, {n_states})"
                    )
                coo = matrix.tocoo()
                for key, i in (("t", t), ("m", m), ("a", a)):
                    parts[key].append(np.full(coo.nnz, i))
                parts["s"].append(coo.row)
                parts["n"].append(coo.col)
                parts["p"].append(coo.data)
    j = {k: np.concatenate(v) for k, v in parts.items()}
    shape = (n_models, n_states, n_actions)
    time, horizon = (j["t"], len(times)) if depth == 3 else (None, None)
    found = Coordinates.read(j["m"], j["s"], j["a"], j["n"], j["p"], None, time, shape, horizon)
    return found, shape


def support_from_coordinates(
    coordinates: Coordinates, shape: tuple[int, int, int], storage: Storage
) -> Support:
    """Place coordinates into the shared pattern by sorting their keys; no dense array."""
    _check_storage(storage)
    n_models, n_states, n_actions = shape
    c = coordinates.columns
    keys = c["state"] * n_actions
    keys += c["action"]
    keys *= n_states
    keys += c["next_state"]
    pattern, positions = _unique_with_positions(keys, n_states * n_actions * n_states)
    dense = storage == "dense" or (
        storage == "auto" and len(pattern) > DENSE_ABOVE * n_states**2 * n_actions
    )
    if dense:
        cells = n_states * n_actions * n_states
        size = cells * n_models * 8 * (coordinates.horizon or 1)
        if size > MATERIALISE_LIMIT and size > 8 * len(keys) * 16:
            raise MemoryLimitError(
                f"dense storage would take {readable_bytes(size)} for {len(keys):,} transitions; "
                'use storage="sparse" or "auto"'
            )
        positions, pattern = keys, np.arange(cells)
    times = coordinates.horizon if "time" in c else 1
    size = (times or 1) * len(pattern) * n_models
    if size * 8 > MATERIALISE_LIMIT and size > 64 * len(keys):
        raise MemoryLimitError(
            f"the models share so few transitions that their union would take "
            f"{readable_bytes(size * 8)} for {len(keys):,} entries; split the models into groups "
            "with similar support"
        )
    target = positions * n_models
    target += c["model"]
    if "time" in c:
        target = c["time"] * (len(pattern) * n_models) + target
    where = (times or 1, len(pattern), n_models)
    values = aligned(*where)
    values.reshape(-1)[:] = np.bincount(target, c["probability"], size)
    rewards = None
    if "reward" in c:
        flat = np.zeros(size)
        flat[target] = c["reward"]
        if np.bincount(target, minlength=1).max() > 1:  # duplicates: the mean by probability
            total = np.bincount(target, c["probability"] * c["reward"], size)
            np.divide(total, values.reshape(-1), out=flat, where=values.reshape(-1) > 0)
        rewards = flat.reshape(where)
    rows = pattern // n_states
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_states * n_actions))])
    return Support(
        shape, indptr.astype(np.int64), (pattern % n_states).astype(np.int32), values, dense,
        rewards, coordinates.horizon if "time" in c else None,
    )  # fmt: skip


def _unique_with_positions(
    keys: npt.NDArray[np.int64], limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sorted unique keys and the place of every key among them; by a table if that is small."""
    if limit <= 8 * len(keys) + 1_000_000:
        seen = np.zeros(limit, dtype=bool)
        seen[keys] = True
        unique = np.flatnonzero(seen)
        return unique, (np.cumsum(seen) - 1)[keys]
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique, inverse


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
    flat = array.reshape(times, n_models, n_states * n_actions * n_states)
    used = (flat != 0).any(axis=(0, 1))
    dense = storage == "dense" or (storage == "auto" and used.mean() > DENSE_ABOVE)
    pattern = np.arange(flat.shape[2]) if dense else np.flatnonzero(used)
    values = aligned(times, len(pattern), n_models)
    np.copyto(values, np.moveaxis(flat if dense else flat[:, :, pattern], 1, 2))
    counts = np.bincount(pattern // n_states, minlength=n_states * n_actions)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Support(
        (n_models, n_states, n_actions), indptr, (pattern % n_states).astype(np.int32), values,
        dense, None, horizon,
    )  # fmt: skip


def _check_storage(storage: str) -> None:
    if storage not in ("auto", "dense", "sparse"):
        raise InputError(f'storage must be "auto", "dense" or "sparse", not {storage!r}')


def check_pattern(support: Support, rewards: Array | None, next_rewards: Array | None) -> None:
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
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        fits = bool((np.diff(rows * n_states + indices) > 0).all())
    if not fits:
        raise InputError("the arrays of the pattern do not fit together")
