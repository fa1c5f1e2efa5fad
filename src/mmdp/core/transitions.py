"""The sparsity pattern: one CSR structure for all models, with their values side by side.

Row ``s * A + a`` of the pattern owns ``indptr[row]:indptr[row + 1]``; ``indices`` are next
states and ``values[t, k, m]`` the probabilities, with length 1 on the time axis if they
do not vary. The dense storage is the same layout with the full pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError, MemoryLimitError
from mmdp.core.kernels.problem import empty_aligned
from mmdp.core.kernels.rewards import Rewards
from mmdp.core.memory import check_memory
from mmdp.core.text import format_bytes

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.int32]
Ids = npt.NDArray[np.integer]
ModelShape = tuple[int, int, int]  # models, states, actions
StorageOption = Literal["auto", "dense", "sparse"]

DENSE_THRESHOLD = 0.7  # share of non-zero entries over which the full pattern is kept
BLOCK_SIZE = 1 << 18  # numbers that are worked on together: they stay in a cache
MAX_DENSE_BYTES = 2 * 1024**3  # bytes that an array larger than its input may take


def check_not_masked(values: object, name: str, depth: int = 8) -> None:
    """Refuse masked entries, also in lists: numpy would read what is under the mask."""
    if isinstance(values, (list, tuple)):
        for item in values if depth else ():
            if not isinstance(item, (list, tuple, np.ndarray)):
                break  # numbers: looking at each would take long
            check_not_masked(item, name, depth - 1)
    elif np.ma.is_masked(values):
        masked_array = cast("npt.NDArray[np.generic]", values)
        raise InputError(
            f"{name}: {int(np.ma.getmaskarray(masked_array).sum()):,} of {masked_array.size:,} "
            "entries are masked",
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


class SparseTransitions:
    """The shared CSR pattern with the values of all models, before validation."""

    def __init__(
        self,
        shape: ModelShape,
        indptr: Ints,
        indices: IntArray,
        values: Array,
        is_dense: bool,
        pattern_rewards: Array | None = None,
        horizon: int | None = None,
    ) -> None:
        self.shape, self.indptr, self.indices = shape, indptr, indices
        self.values, self.is_dense, self.pattern_rewards, self.horizon = (
            values,
            is_dense,
            pattern_rewards,
            horizon,
        )

    @classmethod
    def from_flat_indices(
        cls,
        shape: ModelShape,
        flat_indices: Ints | None,
        values: Array,
        pattern_rewards: Array | None = None,
        horizon: int | None = None,
    ) -> SparseTransitions:
        """Make transitions from values at sorted flat indices (s A + a) S + s'; None: at all."""
        _, n_states, n_actions = shape
        n_rows = n_states * n_actions
        if flat_indices is None:
            indptr = np.arange(n_rows + 1, dtype=np.int64) * n_states
            indices = np.tile(np.arange(n_states, dtype=np.int32), n_rows)
        else:
            counts = np.bincount(flat_indices // n_states, minlength=n_rows)
            indptr = np.append(0, np.cumsum(counts)).astype(np.int64)
            indices = (flat_indices % n_states).astype(np.int32)
        return cls(shape, indptr, indices, values, flat_indices is None, pattern_rewards, horizon)

    @property
    def flat_indices(self) -> Ints:
        """Flat index (s A + a) S + s' of every entry (nnz,)."""
        flat_indices: Ints = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        flat_indices *= self.shape[1]
        flat_indices += self.indices
        return flat_indices

    def iter_blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of rows that fit into a cache, each with the slice of its entries."""
        n_rows, max_entries = (
            len(self.indptr) - 1,
            BLOCK_SIZE // (self.shape[0] * (self.horizon or 1)),
        )
        first = 0
        while first < n_rows:
            last = int(np.searchsorted(self.indptr, self.indptr[first] + max_entries, "right")) - 1
            last = min(max(last, first + 1), n_rows)
            yield slice(first, last), slice(int(self.indptr[first]), int(self.indptr[last]))
            first = last

    def reduce_rows(self, ufunc: np.ufunc, x: Array, rows: slice, fill_value: float = 0.0) -> Array:
        """Reduce the entries x (T', k, M) of these rows to (T', rows, M)."""
        starts = self.indptr[rows] - self.indptr[rows.start]
        result = np.full((len(x), len(starts), x.shape[2]), fill_value)
        is_nonempty = np.diff(starts, append=x.shape[1]) > 0
        if is_nonempty.any():
            result[:, is_nonempty] = ufunc.reduceat(x, starts[is_nonempty], axis=1)
        return result

    def sum_rows(self, x: Array) -> Array:
        """Sum x (T', nnz, M) over each row; returns (T', S*A, M)."""
        sums = np.empty((len(x), len(self.indptr) - 1, x.shape[2]))
        for rows, entries in self.iter_blocks():
            sums[:, rows] = self.reduce_rows(np.add, x[:, entries], rows)
        return sums


# ---------------------------------------------------------------------- entries to a support
class EntryBlock(NamedTuple):
    """A block of transitions as parallel arrays; flat_index = (s A + a) S + s'."""

    time: int | Ids
    model: Ids
    flat_index: Ints
    p: Array
    reward: Array | None = None


class CoordinateEntries:
    """Transitions as columns by name, one entry each, with ids from 0."""

    def __init__(
        self, columns: dict[str, npt.NDArray[Any]], shape: ModelShape, horizon: int | None
    ) -> None:
        self.columns, self.shape = columns, shape
        self.horizon = horizon if "time" in columns else None
        self.n_entries, self.has_rewards = len(columns["probability"]), "reward" in columns

    @classmethod
    def parse(
        cls, columns: dict[str, object], shape: ModelShape, horizon: int | None
    ) -> CoordinateEntries:
        """Parse columns that a user gives, and check them against the shape; None: absent."""
        given_columns = {name: values for name, values in columns.items() if values is not None}
        parsed_columns = {
            name: (as_float_array if name in ("probability", "reward") else _as_id_array)(
                values, name
            )
            for name, values in given_columns.items()
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

    def iter_blocks(self) -> Iterator[EntryBlock]:
        """Yield blocks of consecutive entries."""
        _, n_states, n_actions = self.shape
        for i in range(0, self.n_entries, BLOCK_SIZE):
            chunk = {name: values[i : i + BLOCK_SIZE] for name, values in self.columns.items()}
            flat_index = chunk["state"].astype(np.int64)
            for size, role in ((n_actions, "action"), (n_states, "next_state")):
                flat_index *= size
                flat_index += chunk[role]
            yield EntryBlock(
                chunk.get("time", 0),
                chunk["model"],
                flat_index,
                chunk["probability"],
                chunk.get("reward"),
            )


def _as_id_array(values: object, name: str) -> Ids:
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


class CsrMatrix(Protocol):
    """A sparse matrix by rows, as ``scipy.sparse.csr_array``."""

    indptr: Ints
    indices: Ints
    data: npt.NDArray[np.generic]
    nnz: int


class SparseMatrix(Protocol):
    """A sparse matrix of scipy, in any format."""

    shape: tuple[int, ...]
    nnz: int

    def tocsr(self) -> CsrMatrix:
        """Convert to a matrix by rows."""
        ...


class MatrixEntries:
    """``[action]``, ``[model][action]`` or ``[time][model][action]`` of (S, S') sparse matrices."""

    has_rewards = False

    def __init__(self, nested: object) -> None:
        depth = find_nesting_depth(nested)
        nested_by_time = nested if depth == 3 else [nested] if depth == 2 else [[nested]]
        self.matrices_by_time = cast("Sequence[Sequence[Sequence[SparseMatrix]]]", nested_by_time)
        self.horizon = len(self.matrices_by_time) if depth == 3 else None
        first = self.matrices_by_time[0]
        n_models, n_actions, n_states = len(first), len(first[0]), first[0][0].shape[0]
        self.shape, self.n_entries = (n_models, n_states, n_actions), 0
        for t, models in enumerate(self.matrices_by_time):
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
                    self.n_entries += matrix.nnz

    def iter_blocks(self) -> Iterator[EntryBlock]:
        """Yield blocks with all models of a time and action, whose values are adjacent."""
        _, n_states, n_actions = self.shape
        for t, models in enumerate(self.matrices_by_time):
            for a in range(n_actions):
                csr_matrices = [matrices[a].tocsr() for matrices in models]
                n_rows = max(
                    1, n_states * BLOCK_SIZE // max(1, sum(matrix.nnz for matrix in csr_matrices))
                )
                for s in range(0, n_states, n_rows):
                    row_pointers = [matrix.indptr[s : s + n_rows + 1] for matrix in csr_matrices]
                    entry_slices = [slice(matrix[0], matrix[-1]) for matrix in row_pointers]
                    counts = np.diff(row_pointers, axis=1)
                    m = np.repeat(np.arange(len(csr_matrices)), counts.sum(axis=1))
                    row_offsets = (np.arange(s, s + counts.shape[1]) * n_actions + a) * n_states
                    flat_index = np.repeat(
                        np.tile(row_offsets, len(csr_matrices)), counts.reshape(-1)
                    )
                    flat_index += np.concatenate(
                        [
                            matrix.indices[i]
                            for matrix, i in zip(csr_matrices, entry_slices, strict=True)
                        ]
                    )
                    p = np.concatenate(
                        [
                            matrix.data[i]
                            for matrix, i in zip(csr_matrices, entry_slices, strict=True)
                        ]
                    )
                    yield EntryBlock(t, m, flat_index, as_float_array(p, "transitions"))


Entries = CoordinateEntries | MatrixEntries


def entries_to_transitions(entries: Entries, storage: StorageOption) -> SparseTransitions:
    """Convert entries to transitions on their common sparsity pattern; duplicates add up."""
    _check_storage(storage)
    n_models, n_states, n_actions = entries.shape
    n_times, n_cells = entries.horizon or 1, n_states * n_actions * n_states
    flat_indices: Ints | None = _find_flat_indices(entries, n_cells)
    assert flat_indices is not None
    if storage == "dense" or (storage == "auto" and len(flat_indices) > DENSE_THRESHOLD * n_cells):
        flat_indices = None
    size = n_times * n_models * (n_cells if flat_indices is None else len(flat_indices))
    check_memory(
        8 * size,
        "the transitions of all models",
        ["take fewer models", "spread the models over machines (docs: many hosts)"],
    )
    if size * 8 > MAX_DENSE_BYTES and size > entries.n_entries * (
        16 if flat_indices is None else 64
    ):
        raise MemoryLimitError(
            f"dense storage would take {format_bytes(size * 8)} for {entries.n_entries:,} "
            'transitions; use storage="sparse" or "auto"'
            if flat_indices is None
            else "the models share so few transitions that their union would take "
            f"{format_bytes(size * 8)} for {entries.n_entries:,} entries; split the models into "
            "groups with similar support"
        )
    values = empty_aligned(n_times, size // (n_times * n_models), n_models)
    p, find_positions = values.reshape(-1), _make_position_finder(flat_indices, n_cells, size)
    p[:] = 0.0
    r, is_rewarded = (np.zeros(size * entries.has_rewards, dtype=dtype) for dtype in (float, bool))
    for positions, block in _iter_positioned_blocks(entries, find_positions, values.shape):
        np.add.at(p, positions, block.p)
        if entries.has_rewards:
            r[positions], is_rewarded[positions] = block.reward, True
    if (
        entries.has_rewards and np.count_nonzero(is_rewarded) < entries.n_entries
    ):  # the mean by probability
        totals = np.zeros(size)
        for positions, block in _iter_positioned_blocks(entries, find_positions, values.shape):
            assert block.reward is not None
            np.add.at(totals, positions, block.p * block.reward)
        np.divide(totals, p, out=r, where=p > 0)
    rewards = r.reshape(values.shape) if entries.has_rewards else None
    return SparseTransitions.from_flat_indices(
        entries.shape, flat_indices, values, rewards, entries.horizon
    )


def _find_flat_indices(entries: Entries, n_cells: int) -> Ints:
    """Find the sorted flat indices that occur in the entries."""
    if n_cells <= 8 * entries.n_entries + 1_000_000:
        is_present = np.zeros(n_cells, dtype=bool)
        for block in entries.iter_blocks():
            is_present[block.flat_index] = True
        return np.flatnonzero(is_present)
    merged_indices, pending_indices, n_pending = np.empty(0, dtype=np.int64), [], 0
    for block in entries.iter_blocks():
        pending_indices.append(_sort_unique(block.flat_index))
        n_pending += len(pending_indices[-1])
        if n_pending > max(len(merged_indices), BLOCK_SIZE):
            merged_indices, pending_indices, n_pending = (
                _sort_unique(np.concatenate([merged_indices, *pending_indices])),
                [],
                0,
            )
    return _sort_unique(np.concatenate([merged_indices, *pending_indices]))


def _sort_unique(flat_indices: Ints) -> Ints:
    """Sort and drop duplicates; faster than numpy's ``unique``, which hashes integers."""
    flat_indices = np.sort(flat_indices)
    return flat_indices[np.diff(flat_indices, prepend=-1) != 0]


def _make_position_finder(
    flat_indices: Ints | None, n_cells: int, size: int
) -> Callable[[Ints], Ints]:
    """Make a function from flat indices to their positions in the sorted pattern."""
    if flat_indices is None:
        return lambda flat_index: flat_index
    if n_cells > 2 * size:
        return lambda flat_index: np.searchsorted(flat_indices, flat_index)
    position_table: Ints = np.zeros(
        n_cells, dtype=np.int32 if len(flat_indices) < 2**31 else np.int64
    )
    position_table[flat_indices] = np.arange(len(flat_indices))
    return lambda flat_index: position_table[flat_index]


def _iter_positioned_blocks(
    entries: Entries, find_positions: Callable[[Ints], Ints], shape: tuple[int, ...]
) -> Iterator[tuple[Ints, EntryBlock]]:
    """Yield blocks with the positions of their entries in an array (T, nnz, M)."""
    for block in entries.iter_blocks():
        positions = find_positions(block.flat_index).astype(np.int64)
        positions += np.asarray(block.time, dtype=np.int64) * shape[1]
        positions *= shape[2]
        positions += block.model
        yield positions, block


# ---------------------------------------------------------------------- arrays to a support
def dense_to_transitions(array: Array, storage: StorageOption) -> SparseTransitions:
    """Convert an array ((T,) M, S, A, S') to transitions on a common sparsity pattern."""
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
    is_used = np.zeros(flat.shape[2], dtype=bool)
    is_dense = storage == "dense"
    for t, m in np.ndindex(n_times, n_models):
        if is_dense:
            break
        is_used |= flat[t, m] != 0
        is_dense = storage == "auto" and is_used.mean() > DENSE_THRESHOLD
    flat_indices = None if is_dense else np.flatnonzero(is_used)
    shape = (n_models, n_states, n_actions)
    return SparseTransitions.from_flat_indices(
        shape, flat_indices, move_models_last(flat, flat_indices), horizon=horizon
    )


def move_models_last(flat: Array, flat_indices: Ints | None) -> Array:
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


def _check_storage(storage: str) -> None:
    """Refuse a storage other than "auto", "dense" and "sparse"."""
    if storage not in ("auto", "dense", "sparse"):
        raise InputError(f'storage must be "auto", "dense" or "sparse", not {storage!r}')


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
        and bool((np.diff(indptr) >= 0).all())
        and indptr[-1] == len(indices)
        and (not transitions.is_dense or len(indices) == n_states * n_actions * n_states)
        and bool(((indices >= 0) & (indices < n_states)).all())
        and p.shape[1:] == (len(indices), n_models)
        and (rewards is None or rewards.shape[1:] == (n_states, n_actions, n_models))
        and (next_rewards is None or next_rewards.shape[1:] == p.shape[1:])
        and lengths <= {1, transitions.horizon or 1}
        and (transitions.horizon or 1) in lengths
    )
    if is_consistent:
        flat_indices = transitions.flat_indices
        is_consistent = bool((flat_indices[1:] > flat_indices[:-1]).all())
    if not is_consistent:
        raise InputError(
            "indptr, indices, values and rewards of the sparsity pattern have shapes that differ"
        )
