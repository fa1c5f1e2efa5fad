"""Shared events: what an event does is the same in all models, but not how likely it is.

p_m(s'|s, a) is the sum of corner_weights(s, a, w, c) probs_m(distribution_id(s, a), w) over the
events w and corners c with next_states(s, a, w, c) = s'. So everything of the size S A W is stored
once for all models, and p is never stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError, MemoryLimitError, memory_here
from mmdp.core.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import (
    ALL_MODELS,
    PolicyTable,
    Problem,
    StorageFormat,
    TableStorage,
    TransitionRow,
    as_readonly,
    at_time,
    make_indptr,
)
from mmdp.core.kernels.rewards import EventRewards, expect_events
from mmdp.core.kernels.sampling import sample_columns
from mmdp.core.kernels.storage import CustomStorage
from mmdp.core.shapes import AnyArray, Array, IndexArray, IntArray
from mmdp.core.text import format_bytes

MAX_TABLE_BYTES = 2 * 1024**3  # bytes that tables made from events may take
MAX_MERGED_BYTES = 2**30  # bytes that they may take if passes over the events would do
MERGING_BYTES, MAX_MEMORY_SHARE = 64, 0.25  # memory for an event while tables are made, and of all
ENTRY_COST = 8  # events for each entry of tables from which passes over tables are faster
N_SAMPLED_ROWS = 256  # rows by which the size of tables is estimated
MAX_BLOCK_ENTRIES = 2**22  # events of the rows that are merged at a time


class EventsAtTime(NamedTuple):
    """The arrays of shared events at one time; missing ones are 0 or 1 everywhere."""

    next_states: IntArray  # (S, A, W, C)
    probs: Array  # (K, W, M)
    distribution_id: IntArray  # (S, A)
    corner_weights: Array  # (S, A, W, C)

    def select_rows(self, rows: IndexArray | slice) -> EventsAtTime:
        """Return the arrays of these rows s * A + a, with one axis for states and actions."""
        next_states, probs, ids, weights = self
        W, C = next_states.shape[2:]
        return EventsAtTime(
            next_states.reshape(-1, W, C)[rows],
            probs,
            ids.reshape(-1)[rows],
            weights[np.divmod(np.arange(ids.size)[rows], ids.shape[1])],
        )


class EventPattern(NamedTuple):
    """The sparse pattern of the tables of shared events, with p = E k at each time."""

    indptr: IndexArray
    indices: IntArray
    E: list[Any]  # (nnz, K W) sparse: the coefficients of events in each entry


class ExogenousEvents(CustomStorage):
    """Transitions by exogenous events, whose effects are the same in all models.

    Parameters
    ----------
    next_states
        (T or 1, S, A, W, C) the next state of event w: C corners of a grid cell, or one state.
    probs
        (T or 1, K, W, M) the probability of event w in model m, for each of K distributions.
    distribution_id
        (T or 1, S, A) the distribution of each state and action; None if there is one (K = 1).
    corner_weights
        (T or 1, S, A, W, C) the weight of each corner; None if there is one (C = 1).

    Rows of actions that are not allowed may hold any next states.

    A shop with room for two; an item is asked for with probability 0.5 in one model, 0.1 in the
    other. Action 1 orders an item.

    >>> import mmdp
    >>> stock, order, demand = np.ogrid[:3, :2, :2]
    >>> next_states = np.minimum(np.maximum(stock - demand, 0) + order, 2)[None, ..., None]
    >>> events = ExogenousEvents(next_states, probs=np.array([[[[0.5, 0.9], [0.5, 0.1]]]]))
    >>> sold = np.minimum(stock, demand)
    >>> model = mmdp.MMDP(events, events.make_rewards(5 * sold - 1 * order), discount=0.9)
    >>> model.transitions[:, 1, 1].tolist()
    [[0.0, 0.5, 0.5], [0.0, 0.1, 0.9]]
    >>> model.rewards[:, 1, 1].tolist()
    [1.5, -0.5]
    """

    is_compiled = True
    has_valid_rows = True

    def __init__(
        self,
        next_states: npt.ArrayLike,
        probs: npt.ArrayLike,
        distribution_id: npt.ArrayLike | None = None,
        corner_weights: npt.ArrayLike | None = None,
    ) -> None:
        self.next_states = _read_array(next_states, "next_states", "iu", 5)
        self.probs = as_readonly(normalize(_read_array(probs, "probs", "iuf", 4), axis=2))
        self.distribution_id = (
            None
            if distribution_id is None
            else _read_array(distribution_id, "distribution_id", "iu", 3)
        )
        self.corner_weights = (
            None
            if corner_weights is None
            else as_readonly(normalize(_read_array(corner_weights, "corner_weights", "f", 5)))
        )
        self.shape = (self.probs.shape[3], *self.next_states.shape[1:3])
        self.n_times = max(len(x) for x in self.get_arrays())
        self._check_arrays()

    # ------------------------------------------------------------ what a storage must have
    @property
    def n_entries(self) -> int:
        return int(np.prod(self.next_states.shape[1:]))

    @property
    def max_row_length(self) -> int:
        return int(np.prod(self.next_states.shape[3:]))

    def get_arrays(self) -> list[AnyArray]:
        arrays = (self.next_states, self.probs, self.distribution_id, self.corner_weights)
        return [x for x in arrays if x is not None]

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        return EventProblem(problem, horizon)

    def map_models(self, function: Callable[[Array], Array]) -> ExogenousEvents:
        clone, probs = self._copy(), as_readonly(function(self.probs))
        clone.probs, clone.shape = probs, (probs.shape[3], *self.shape[1:])
        return clone

    @property
    def format(self) -> StorageFormat:
        return "events"

    def get_row(self, t: int, row: int) -> TransitionRow:
        e, (s, a) = self.at_time(t), divmod(row, self.shape[2])
        terms = e.corner_weights[s, a, :, :, None] * e.probs[e.distribution_id[s, a], :, None]
        next_states, inverse = np.unique(e.next_states[s, a], return_inverse=True)
        p = np.zeros((len(next_states), terms.shape[2]))
        np.add.at(p, inverse.reshape(-1), terms.reshape(-1, terms.shape[2]))
        is_possible = p.any(axis=1)
        return TransitionRow(next_states[is_possible], p[is_possible])

    def make_sampler(self, models: slice = ALL_MODELS) -> ExogenousEvents:
        return self

    def sample_next(
        self, t: int, rows: IndexArray, models: IndexArray, u: Array
    ) -> tuple[IndexArray, IndexArray]:
        """Sample next states as :class:`TableSampler` does; there are no entries: -1."""
        e, (s, a) = self.at_time(t), np.divmod(rows, self.shape[2])
        p = e.corner_weights[s, a] * e.probs[e.distribution_id[s, a], :, models][:, :, None]
        next_states = e.next_states[s, a].reshape(len(rows), -1)
        order = np.argsort(next_states, axis=1, kind="stable")
        k = sample_columns(np.take_along_axis(p.reshape(next_states.shape), order, axis=1), u)
        indices = np.arange(len(rows))
        return next_states[indices, order[indices, k]].astype(np.int64), np.full(len(rows), -1)

    def likelihood(self, t: int, rows: IndexArray, next_states: IndexArray) -> Array:
        """Return (n, M) the probability of these next states in every model."""
        e, (s, a) = self.at_time(t), np.divmod(rows, self.shape[2])
        is_match = e.next_states[s, a] == next_states[:, None, None]
        weights = (is_match * e.corner_weights[s, a]).sum(axis=2)
        return expect_events(weights, e.probs, e.distribution_id[s, a])

    def reorder(
        self, states: IndexArray, actions: IndexArray
    ) -> tuple[ExogenousEvents, IndexArray]:
        clone, new_ids = self._copy(), np.argsort(states).astype(np.int32)
        clone.__dict__.pop("pattern", None)
        clone.next_states = as_readonly(new_ids[self.next_states[:, states][:, :, actions]])
        for name in ("distribution_id", "corner_weights"):
            array = getattr(self, name)
            setattr(
                clone, name, None if array is None else as_readonly(array[:, states][:, :, actions])
            )
        clone.allowed = None if self.allowed is None else self.allowed[np.ix_(states, actions)]
        return clone, np.empty(0, np.int64)

    def iter_content(self, n_states: int) -> Iterator[AnyArray]:
        return iter(self.get_arrays())

    def at_time(self, t: int) -> EventsAtTime:
        """Return all arrays at time t."""
        shape = self.next_states.shape[1:]
        ids = np.int32(0) if self.distribution_id is None else at_time(self.distribution_id, t)
        weights = 1.0 if self.corner_weights is None else at_time(self.corner_weights, t)
        return EventsAtTime(
            at_time(self.next_states, t),
            at_time(self.probs, t),
            np.broadcast_to(ids, shape[:2]),
            np.broadcast_to(weights, shape),
        )

    def make_rewards(self, reward: npt.ArrayLike) -> EventRewards:
        """Make model rewards from the reward of each event, (S, A, W) or (T or 1, S, A, W)."""
        array = np.asarray(reward)
        array = _read_array(array[None] if array.ndim == 3 else array, "reward", "iuf", 4)
        shape = self.next_states.shape[1:4]
        is_varying = len(array) > 1 < self.n_times
        if array.shape[1:] != shape or (is_varying and len(array) != self.n_times):
            n_times = self.n_times if is_varying else "times or 1"
            raise InputError(
                f"events: reward has shape {array.shape}; it must be ({n_times}, "
                f"{', '.join(map(str, shape))})"
            )
        return EventRewards(array, self.probs, self.distribution_id)

    @cached_property
    def is_faster_as_table(self) -> bool:
        """Whether passes take tables, as many events of a row lead to the same states."""
        events_nbytes = 8 * self.n_times * self.shape[0] * self.n_entries
        return (
            MERGING_BYTES * self.n_entries <= MAX_MEMORY_SHARE * memory_here()
            and self.table_nbytes <= min(MAX_MERGED_BYTES, events_nbytes / ENTRY_COST)
        )

    @cached_property
    def table_nbytes(self) -> int:
        """Bytes that the tables take, estimated from some of the rows."""
        M, S, A = self.shape
        rows = np.unique(np.linspace(0, S * A - 1, N_SAMPLED_ROWS).astype(np.int64))
        n_entries = len(self._find_pattern(rows).indices) / len(rows) * S * A
        return int(8 * self.n_times * M * n_entries)

    @cached_property
    def merged_rows(self) -> TableStorage:
        """All rows as by :meth:`select_rows`, kept because a single model is solved on them."""
        return self.select_rows(np.arange(self.shape[1] * self.shape[2]))

    # ------------------------------------------------------------ within
    def _copy(self) -> ExogenousEvents:
        """Return a copy without the tables."""
        clone = copy.copy(self)
        for cached_name in ("merged_rows", "is_faster_as_table", "table_nbytes"):
            clone.__dict__.pop(cached_name, None)
        return clone

    def _check_arrays(self) -> None:
        """Raise InputError if shapes, indices or probabilities are wrong."""
        _, S, A, W, C = self.next_states.shape
        K = self.probs.shape[1]
        for name, shape, n_ids, axis in (  # ids from 0 to n_ids - 1, or distributions along an axis
            ("next_states", (S, A, W, C), S, None),
            ("probs", (K, W, self.shape[0]), None, 2),
            ("distribution_id", (S, A), K, None),
            ("corner_weights", (S, A, W, C), None, 4),
        ):
            array = getattr(self, name)
            if array is None:
                continue
            if array.shape[1:] != shape:
                raise InputError(
                    f"events: {name} has shape {array.shape}; with next_states of shape "
                    f"{self.next_states.shape} it must be "
                    f"(times or 1, {', '.join(map(str, shape))})"
                )
            if len(array) not in (1, self.n_times):
                raise InputError(
                    f"events cover {len(array)} and {self.n_times} times; give one of them"
                )
            if n_ids is not None and array.size and not 0 <= array.min() <= array.max() < n_ids:
                raise InputError(f"events: {name} must be from 0 to {n_ids - 1}")
            if axis is not None:
                _check_distribution(name, array, axis)
        if self.distribution_id is None and K > 1:
            raise InputError(
                f"events: probs has {K} distributions; give distribution_id= with "
                "the number of the one that each state and action has"
            )
        if self.corner_weights is None and C > 1:
            raise InputError(
                f"events: next_states has {C} corners; give corner_weights= with the weight of each"
            )

    @cached_property
    def pattern(self) -> EventPattern:
        """The sparse pattern of the tables; it does not depend on the probabilities of events."""
        return self._find_pattern(slice(None))

    def _find_pattern(self, rows: IndexArray | slice) -> EventPattern:
        """Find the sparse pattern of these rows s * A + a of the tables."""
        import scipy.sparse

        (_, S, _), (W, C) = self.shape, self.next_states.shape[3:]
        snapshots = [self.at_time(t).select_rows(rows) for t in range(self.n_times)]
        columns = [(e.distribution_id[:, None] * W + np.arange(W)).repeat(C) for e in snapshots]
        n_rows = len(snapshots[0].next_states)
        row = np.arange(n_rows).repeat(W * C)
        is_used = [
            (e.corner_weights.reshape(-1) != 0) & e.probs.any(axis=2).reshape(-1)[k]
            for e, k in zip(snapshots, columns, strict=True)
        ]
        cell_keys = [
            (row * S + e.next_states.reshape(-1))[u]
            for e, u in zip(snapshots, is_used, strict=True)
        ]
        cells = np.unique(np.concatenate(cell_keys))
        E = []
        for t, (e, k, u) in enumerate(zip(snapshots, columns, is_used, strict=True)):
            coords = np.searchsorted(cells, cell_keys[t]), k[u]
            shape = len(cells), len(e.probs) * W
            E.append(
                scipy.sparse.coo_array((e.corner_weights.reshape(-1)[u], coords), shape).tocsr()
            )
        indptr = make_indptr(np.bincount(cells // S, minlength=n_rows))
        return EventPattern(indptr, (cells % S).astype(np.int32), E)

    def compute_table(self) -> TableStorage:
        """Compute the tables p = E k of all times."""
        self._check_table_size()
        return self._fill_pattern(self.pattern)

    def select_rows(self, rows: IndexArray) -> TableStorage:
        if self.n_times > 1:
            return self._fill_pattern(self._find_pattern(rows))
        size = max(1, MAX_BLOCK_ENTRIES // self.max_row_length)
        blocks = [self._merge_runs(rows[i : i + size]) for i in range(0, len(rows), size)]
        lengths, next_states, p = (np.concatenate(x) for x in zip(*blocks, strict=True))
        return TableStorage(make_indptr(lengths), next_states, p[None], is_dense=False)

    def _merge_runs(self, rows: IndexArray) -> tuple[IndexArray, IntArray, Array]:
        """Merge events of these rows that follow each other and lead to the same state.

        Return the number of entries of each row, and the next states and p (k, M) of them all.
        """
        import scipy.sparse

        e = self.at_time(0).select_rows(rows)
        (_, W, M), C = e.probs.shape, e.next_states.shape[2]
        next_states = e.next_states.reshape(len(rows), W * C)
        is_first = np.ones(next_states.shape, dtype=bool)
        np.not_equal(next_states[:, 1:], next_states[:, :-1], out=is_first[:, 1:])
        starts = np.append(np.flatnonzero(is_first), is_first.size)
        columns = (e.distribution_id[:, None] * W + np.arange(W, dtype=np.int32)).repeat(C)
        probs = e.probs.reshape(-1, M)
        sums = e.corner_weights.reshape(-1), columns, starts
        run_sums = scipy.sparse.csr_array(sums, (len(starts) - 1, len(probs)))
        return np.count_nonzero(is_first, axis=1), next_states[is_first], run_sums @ probs

    def _fill_pattern(self, pattern: EventPattern) -> TableStorage:
        """Compute the tables p = E k on a pattern."""
        (indptr, indices, E), (M, S, _) = pattern, self.shape
        p = np.empty((self.n_times, len(indices), M))
        for t, matrix in enumerate(E):
            p[t] = matrix @ at_time(self.probs, t).reshape(-1, M)
        return TableStorage(indptr, indices, p, len(indices) == (len(indptr) - 1) * S)

    def _check_table_size(self) -> None:
        """Raise MemoryLimitError if the tables would be larger than MAX_TABLE_BYTES."""
        if self.table_nbytes > MAX_TABLE_BYTES:
            size = format_bytes(self.table_nbytes)
            raise MemoryLimitError(
                f"the tables of these shared events would take about {size}; policies "
                "with memory, dual bounds and files by entry need them",
                [
                    "use a method that needs none, such as cadp or qmdp",
                    "take fewer models with subset()",
                    "make the axes coarser",
                ],
            )


def _read_array(values: npt.ArrayLike, name: str, dtype_kinds: str, ndim: int) -> AnyArray:
    """Convert values to a read-only array of int32 or float64 with ``ndim`` axes."""
    array = np.asarray(values)
    if array.dtype.kind not in dtype_kinds or array.ndim != ndim:
        expected_type = "numbers" if "f" in dtype_kinds else "whole numbers"
        raise InputError(
            f"events: {name} must be {expected_type} with {ndim} axes, not {array.dtype} of shape "
            f"{array.shape}"
        )
    return as_readonly(array.astype(np.float64 if "f" in dtype_kinds else np.int32, copy=False))


def _check_distribution(name: str, array: Array, axis: int) -> None:
    """Raise InputError if an array is not a distribution along this axis."""
    if not array.min(initial=0.0) >= 0:  # false for NaN too
        raise InputError(f"events: {name} must not be negative or NaN")
    sums = array.sum(axis=axis)
    is_wrong = ~(np.abs(sums - 1.0) <= SUM_TOLERANCE)
    if is_wrong.any():
        index = tuple(int(i) for i in np.argwhere(is_wrong)[0])
        axis_letters = "tkm" if name == "probs" else "tsaw"
        location = ", ".join(f"{x}={i}" for x, i in zip(axis_letters, index, strict=True))
        raise InputError(f"events: {name} sums to {sums[index]:.10g}, not 1, at {location}")


class EventProblem(PreparedProblem):
    """Shared events in plain numpy, one event at a time."""

    @property
    def events(self) -> ExogenousEvents:
        """The shared events of the problem."""
        storage = self.problem.storage
        assert isinstance(storage, ExogenousEvents)
        return storage

    def expect_next(self, t: int, v: Array) -> Array:
        e, x = self.events.at_time(t), self.problem
        total = np.zeros((x.n_states, x.n_actions, v.shape[1]))
        for w, c in np.ndindex(e.next_states.shape[2:]):
            total += (
                e.corner_weights[:, :, w, c, None]
                * e.probs[e.distribution_id, w]
                * v[e.next_states[:, :, w, c]]
            )
        return total

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        import scipy.sparse

        e, next_b = self.events.at_time(t), np.zeros_like(b)
        s, a = (
            (np.arange(len(policy_row)), policy_row)
            if policy_row.ndim == 1
            else np.nonzero(policy_row)
        )
        flow = b[s] if policy_row.ndim == 1 else b[s] * policy_row[s, a, None]
        indptr = e.next_states.shape[3] * np.arange(len(s) + 1)
        for w in range(e.next_states.shape[2]):
            weights, next_states = e.corner_weights[s, a, w].ravel(), e.next_states[s, a, w].ravel()
            matrix = scipy.sparse.csr_array((weights, next_states, indptr), (len(s), len(b)))
            next_b += matrix.T @ (flow * e.probs[e.distribution_id[s, a], w])
        return next_b
