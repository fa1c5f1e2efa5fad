"""The sparsity pattern: one CSR structure for all models, with their values side by side.

Row ``s * A + a`` of the pattern owns ``indptr[row]:indptr[row + 1]``; ``indices`` are next
states and ``values[t, k, m]`` the probabilities, with length 1 on the time axis if they
do not vary. The dense storage is the same layout with the full pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from mmdp.core.errors import InputError, MemoryLimitError, check_memory
from mmdp.core.kernels.problem import Storage, TableStorage, empty_aligned, make_indptr
from mmdp.core.kernels.rewards import Rewards
from mmdp.core.kernels.storage import CustomStorage
from mmdp.core.shapes import AnyArray, AnyIntArray, Array, IndexArray, IntArray
from mmdp.core.text import format_bytes

ModelShape = tuple[int, int, int]  # models, states, actions
StorageOption = Literal["auto", "dense", "sparse"]

DENSE_THRESHOLD = 0.7  # share of non-zero entries over which the full pattern is kept
BLOCK_SIZE = 1 << 18  # numbers that are worked on together: they stay in a cache
MAX_DENSE_BYTES = 2 * 1024**3  # bytes that an array larger than its input may take


def check_not_masked(values: object, name: str) -> None:
    """Refuse masked entries: numpy would read what is under the mask."""
    for x in values if isinstance(values, (list, tuple)) else [values]:
        if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
            raise InputError(
                f"{name}: {int(np.ma.getmaskarray(x).sum()):,} of {x.size:,} entries are masked",
                ["fill them in with .filled(VALUE)", "leave them out with .compressed()"],
            )


def as_float_array(values: object, name: str) -> Array:
    """Convert numbers to a float array; ``name`` is the argument in messages."""
    check_not_masked(values, name)
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":  # numpy drops the imaginary part
        raise InputError(f"{name} must be real numbers, not complex ones")
    try:
        array = np.asarray(values, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{name} has a whole number that is too large to compute with") from None
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must be a rectangular array of numbers; its parts differ in length or hold "
            "something else"
        ) from None
    return array


@dataclass
class SparseTransitions:
    """The shared CSR pattern with the values of all models, before validation."""

    shape: ModelShape
    indptr: IndexArray
    indices: IntArray
    values: Array
    is_dense: bool
    pattern_rewards: Array | None = None
    horizon: int | None = None
    custom_storage: CustomStorage | None = None  # that the tables are of

    @classmethod
    def from_flat_indices(
        cls,
        shape: ModelShape,
        flat_indices: IndexArray | None,
        values: Array,
        pattern_rewards: Array | None = None,
        horizon: int | None = None,
    ) -> SparseTransitions:
        """Make transitions from values at sorted flat indices (s A + a) S + s'; None: at all."""
        _, n_states, n_actions = shape
        is_dense = flat_indices is None
        if flat_indices is None:
            flat_indices = np.arange(n_states * n_actions * n_states)
        counts = np.bincount(flat_indices // n_states, minlength=n_states * n_actions)
        indices = (flat_indices % n_states).astype(np.int32)
        return cls(shape, make_indptr(counts), indices, values, is_dense, pattern_rewards, horizon)

    @classmethod
    def from_storage(
        cls, storage: Storage, n_states: int, horizon: int | None = None
    ) -> SparseTransitions:
        """Make transitions of a storage; empty ones of a custom storage whose rows are valid."""
        custom_storage = storage if isinstance(storage, CustomStorage) else None
        if custom_storage is not None and custom_storage.has_valid_rows:
            M, S, A = custom_storage.shape
            values, indptr = np.empty((storage.n_times, 0, M)), np.zeros(S * A + 1, np.int64)
            table = TableStorage(indptr, np.empty(0, np.int32), values, False)
        else:
            table = storage.to_table()
        horizon = storage.n_times if storage.n_times > 1 else horizon
        shape = (table.p.shape[2], n_states, (len(table.indptr) - 1) // n_states)
        return cls(shape, *table, None, horizon, custom_storage)

    @property
    def flat_indices(self) -> IndexArray:
        """Flat index (s A + a) S + s' of every entry (nnz,)."""
        rows: IndexArray = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return rows * self.shape[1] + self.indices

    def locate_entry(self, k: int) -> dict[str, int]:
        """Find the state, action and next state of an entry."""
        row = int(np.searchsorted(self.indptr, k, side="right")) - 1
        state, action = divmod(row, self.shape[2])
        return {"state": state, "action": action, "next_state": int(self.indices[k])}

    def reduce_rows(
        self, ufunc: np.ufunc, compute: Callable[[slice], Array], fill_value: float = 0.0
    ) -> Array:
        """Reduce x (T', nnz, M) over each row to (T', S*A, M); ``compute`` gives x at entries.

        It works on blocks of rows that fit into a cache.
        """
        max_entries = max(1, BLOCK_SIZE // (self.shape[0] * (self.horizon or 1)))
        cuts = np.searchsorted(self.indptr, np.arange(0, self.indptr[-1], max_entries))
        blocks = []
        for first, last in pairwise(np.unique([0, *cuts, len(self.indptr) - 1])):
            edges = self.indptr[first : last + 1]
            x, starts = compute(slice(edges[0], edges[-1])), edges[:-1] - edges[0]
            block = np.full((len(x), last - first, x.shape[2]), fill_value)
            is_nonempty = np.diff(edges) > 0
            block[:, is_nonempty] = ufunc.reduceat(x, starts[is_nonempty], axis=1)
            blocks.append(block)
        return np.concatenate(blocks, axis=1)

    def sum_rows(self) -> Array:
        """Sum the values of each row, (T', S*A, M)."""
        if not self.is_dense:
            return self.reduce_rows(np.add, lambda entries: self.values[:, entries])
        n_models, n_states, _ = self.shape  # twice as fast
        return self.values.reshape(len(self.values), -1, n_states, n_models).sum(axis=2)


# ---------------------------------------------------------------------- entries to a support
class CoordinateEntries:
    """Transitions as columns by name, one entry each, with ids from 0."""

    def __init__(
        self, columns: dict[str, AnyArray], shape: ModelShape, horizon: int | None
    ) -> None:
        self.columns, self.shape = columns, shape
        self.horizon = horizon if "time" in columns else None
        self.n_entries, self.has_rewards = len(columns["probability"]), "reward" in columns

    @classmethod
    def parse(
        cls, columns: dict[str, object], shape: ModelShape, horizon: int | None
    ) -> CoordinateEntries:
        """Parse columns that a user gives, and check them against the shape; None: absent."""
        parsed_columns = {
            name: (as_float_array if name in ("probability", "reward") else _as_id_array)(
                values, name
            )
            for name, values in columns.items()
            if values is not None
        }
        if {x.shape for x in parsed_columns.values()} != {(parsed_columns["probability"].size,)}:
            raise InputError("coordinates must all have the same length")
        if "time" in parsed_columns and horizon is None:
            horizon = int(parsed_columns["time"].max(initial=-1)) + 1
        M, S, A = shape
        if min(shape) < 1:
            raise InputError(f"shape {shape} must be (models, states, actions), all at least 1")
        check_memory(
            8 * S * A * (M + 1),
            f"a model of shape {shape}",
            ["make the shape smaller: it is (models, states, actions)"],
        )
        sizes = {"model": M, "state": S, "action": A, "next_state": S, "time": horizon or 0}
        for name in parsed_columns.keys() & sizes.keys():
            ids, size = parsed_columns[name], sizes[name]
            if ids.size and (ids.min() < 0 or ids.max() >= size):
                bad_id = ids[(ids < 0) | (ids >= size)][0]
                raise InputError(f"{name} id {bad_id} is outside 0..{size - 1}; ids count from 0")
        return cls(parsed_columns, shape, horizon)

    def iter_columns(self) -> Iterator[dict[str, Any]]:
        """Yield the columns of blocks of consecutive entries."""
        for i in range(0, self.n_entries, BLOCK_SIZE):
            yield {name: values[i : i + BLOCK_SIZE] for name, values in self.columns.items()}

    def iter_blocks(self) -> Iterator[tuple[IndexArray, dict[str, Any]]]:
        """Yield the flat indices (s A + a) S + s' of blocks of entries, and their columns."""
        _, n_states, n_actions = self.shape
        for block in self.iter_columns():
            rows = block["state"].astype(np.int64) * n_actions + block["action"]
            yield rows * n_states + block["next_state"], block


class MatrixEntries(CoordinateEntries):
    """``[action]``, ``[model][action]`` or ``[time][model][action]`` of (S, S') sparse matrices."""

    def __init__(self, nested: Any) -> None:
        depth, self.has_rewards = find_nesting_depth(nested), False
        by_time = nested if depth == 3 else [nested] if depth == 2 else [[nested]]
        self.horizon = len(by_time) if depth == 3 else None
        self.matrices = {
            (t, m, a): matrix
            for t, models in enumerate(by_time)
            for m, matrices in enumerate(models)
            for a, matrix in enumerate(matrices)
        }
        n_models, n_actions, S = len(by_time[0]), len(by_time[0][0]), by_time[0][0][0].shape[0]
        expected_shapes = dict.fromkeys(np.ndindex(len(by_time), n_models, n_actions), (S, S))
        if {ids: matrix.shape for ids, matrix in self.matrices.items()} != expected_shapes:
            raise InputError(
                f"sparse transitions must be {n_models} models of {n_actions} matrices of shape "
                f"({S}, {S}) each, as the first one; some differ"
            )
        self.shape = n_models, S, n_actions
        self.n_entries = sum(matrix.nnz for matrix in self.matrices.values())

    def iter_columns(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of one matrix after the other."""
        for (t, m, a), matrix in self.matrices.items():
            entries = matrix.tocoo()
            ids = {"time": t, "model": m, "action": a, "state": entries.row}
            p = as_float_array(entries.data, "transitions")
            yield ids | {"next_state": entries.col, "probability": p}


def _as_id_array(values: object, name: str) -> AnyIntArray:
    """Convert ids to an integer array; ``name`` is the column in messages."""
    check_not_masked(values, name)
    array = np.asarray(values)
    if array.dtype.kind == "i":
        return array
    if array.dtype.kind not in "uf":
        raise InputError(f"{name} must be whole numbers, ids from 0")
    with np.errstate(invalid="ignore"):  # NaN and inf are refused below
        ids = array.astype(np.int64)
    if (ids != array).any():
        raise InputError(f"{name} ids must be whole numbers, not {array[ids != array][0]}")
    return ids


def find_nesting_depth(matrices: object) -> int:
    """Count the levels of lists around scipy sparse matrices; 0 if there are no matrices."""
    depth = 0
    while isinstance(matrices, (list, tuple)) and matrices:
        matrices, depth = matrices[0], depth + 1
    return depth if hasattr(matrices, "tocoo") else 0


def is_nested_sparse(transitions: object) -> bool:
    """Check whether transitions are lists of scipy sparse matrices."""
    return find_nesting_depth(transitions) > 0


def entries_to_transitions(entries: CoordinateEntries, storage: StorageOption) -> SparseTransitions:
    """Convert entries to transitions on their common sparsity pattern; duplicates add up."""
    n_models, n_states, n_actions = entries.shape
    n_times, n_cells = entries.horizon or 1, n_states * n_actions * n_states
    n_entries, has_rewards = entries.n_entries, entries.has_rewards
    pending, n_pending = [np.empty(0, np.int64)], 0  # the first is merged from those before
    for flat_index, _ in entries.iter_blocks():
        pending.append(_sort_unique(flat_index))
        n_pending += len(pending[-1])
        if n_pending > max(len(pending[0]), BLOCK_SIZE):
            pending, n_pending = [_sort_unique(np.concatenate(pending))], 0
    flat_indices: IndexArray | None = _sort_unique(np.concatenate(pending))
    assert flat_indices is not None
    if storage == "dense" or (storage == "auto" and len(flat_indices) > DENSE_THRESHOLD * n_cells):
        flat_indices = None
    length = n_cells if flat_indices is None else len(flat_indices)
    size = n_times * length * n_models
    check_memory(
        8 * size,
        "the transitions of all models",
        ["take fewer models", "spread the models over machines (docs: many hosts)"],
    )
    if size * 8 > MAX_DENSE_BYTES and size > n_entries * (16 if flat_indices is None else 64):
        raise MemoryLimitError(
            f"{n_entries:,} transitions would take {format_bytes(size * 8)}",
            ['use storage="sparse"', "split the models into groups with similar transitions"],
        )

    def iter_positions() -> Iterator[tuple[IndexArray, dict[str, Any]]]:
        """Yield the positions of entries in an array (T, nnz, M), block by block."""
        for k, block in entries.iter_blocks():
            k = k if flat_indices is None else np.searchsorted(flat_indices, k)
            if entries.horizon is not None:
                k = np.asarray(block["time"], np.int64) * length + k
            yield k * n_models + block["model"], block

    values = empty_aligned(n_times, length, n_models)
    values[:], p = 0.0, values.reshape(-1)
    r, is_rewarded = (np.zeros(size * has_rewards, dtype=dtype) for dtype in (float, bool))
    for positions, block in iter_positions():
        np.add.at(p, positions, block["probability"])
        if has_rewards:
            r[positions], is_rewarded[positions] = block["reward"], True
    if has_rewards and np.count_nonzero(is_rewarded) < n_entries:
        totals = np.zeros(size)  # duplicates have the mean reward by probability
        for positions, block in iter_positions():
            np.add.at(totals, positions, block["probability"] * block["reward"])
        np.divide(totals, p, out=r, where=p > 0)
    rewards = r.reshape(values.shape) if has_rewards else None
    return SparseTransitions.from_flat_indices(
        entries.shape, flat_indices, values, rewards, entries.horizon
    )


def _sort_unique(flat_indices: IndexArray) -> IndexArray:
    """Sort and drop duplicates; faster than numpy's ``unique``, which hashes integers."""
    flat_indices = np.sort(flat_indices, kind="stable")  # fast for sorted runs
    return flat_indices[np.diff(flat_indices, prepend=-1) != 0]


# ---------------------------------------------------------------------- arrays to a support
def dense_to_transitions(array: Array, storage: StorageOption) -> SparseTransitions:
    """Convert an array ((T,) M, S, A, S') to transitions on a common sparsity pattern."""
    if not 3 <= array.ndim <= 5:
        raise InputError(
            f"transitions have {array.ndim} axes {array.shape}; expected (models, states, "
            "actions, next states) with an optional leading time axis"
        )
    horizon = len(array) if array.ndim == 5 else None
    array = array.reshape((1,) * (5 - array.ndim) + array.shape)
    n_times, n_models, n_states, n_actions, n_next = array.shape
    if n_next != n_states:
        raise InputError(
            f"transitions of shape {array.shape[-4:]}: the last axis must have as many next "
            f"states ({n_next}) as there are states ({n_states}); the axes are "
            "(models, states, actions, next states)"
        )
    if 0 in array.shape:
        raise InputError(f"transitions of shape {array.shape} are empty")
    flat = array.reshape(n_times, n_models, -1)
    is_used = (flat != 0).any(axis=(0, 1))
    is_dense = storage == "dense" or (storage == "auto" and is_used.mean() > DENSE_THRESHOLD)
    flat_indices = None if is_dense else np.flatnonzero(is_used)
    shape = (n_models, n_states, n_actions)
    return SparseTransitions.from_flat_indices(
        shape, flat_indices, move_models_last(flat, flat_indices), horizon=horizon
    )


def move_models_last(flat: Array, flat_indices: IndexArray | None) -> Array:
    """Select values (T, M, S A S') at flat indices and move models last: (T, nnz, M)."""
    n_times, n_models, n_cells = flat.shape
    values = empty_aligned(
        n_times, n_cells if flat_indices is None else len(flat_indices), n_models
    )
    if flat_indices is None:
        values[:] = np.moveaxis(flat, 1, 2)
        return values
    step = max(1, BLOCK_SIZE // (n_times * n_models))
    for i in range(0, len(flat_indices), step):
        values[:, i : i + step] = np.moveaxis(flat.take(flat_indices[i : i + step], axis=2), 1, 2)
    return values


def check_pattern(
    transitions: SparseTransitions, rewards: Rewards | None, next_rewards: Array | None
) -> None:
    """Check that the arrays of a sparsity pattern have matching shapes and valid indices."""
    n_models, n_states, n_actions = transitions.shape
    indptr, indices, p = transitions.indptr, transitions.indices, transitions.values
    lengths = {len(x) for x in (p, rewards, next_rewards) if x is not None}
    is_consistent = (
        indptr.shape == (n_states * n_actions + 1,)
        and indptr[0] == 0
        and (np.diff(indptr) >= 0).all()
        and indptr[-1] == len(indices)
        and (not transitions.is_dense or len(indices) == n_states * n_actions * n_states)
        and ((indices >= 0) & (indices < n_states)).all()
        and (np.diff(transitions.flat_indices) > 0).all()
        and p.shape[1:] == (len(indices), n_models)
        and (rewards is None or rewards.shape[1:] == (n_states, n_actions, n_models))
        and (next_rewards is None or next_rewards.shape[1:] == p.shape[1:])
        and lengths <= {1, transitions.horizon or 1}
        and (transitions.horizon or 1) in lengths
    )
    if not is_consistent:
        raise InputError(
            "indptr, indices, values and rewards of the sparsity pattern have shapes that differ"
        )
