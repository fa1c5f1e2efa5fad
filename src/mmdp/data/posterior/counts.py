"""Transition counts of a log, and the memory that models of them would take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.core.errors import MemoryLimitError, Remedy
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import MAX_DENSE_BYTES
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.schema import IntArray


class TransitionCounts(NamedTuple):
    """Counts of the transitions (s A + a) S + s' that occur, sorted, and of pairs (S A,)."""

    n_states: int
    n_actions: int
    keys: IntArray
    counts: IntArray
    pair_counts: IntArray

    @property
    def n_cells(self) -> int:
        """Number of triples (s, a, s')."""
        return self.n_states * self.n_actions * self.n_states

    @classmethod
    def from_log(cls, log: TransitionLog) -> TransitionCounts:
        """Count the transitions of a log."""
        n_states, n_actions = log.states.size, log.actions.size
        _check_n_pairs(log)
        row_ids = log.state * n_actions + log.action
        pair_counts = _count_occurrences(row_ids, log, n_states * n_actions)
        row_ids = row_ids * n_states + log.next_state
        if n_states * n_actions * n_states <= max(2 * len(log), 100_000):
            count_table = _count_occurrences(row_ids, log, n_states * n_actions * n_states)
            keys = np.flatnonzero(count_table)
            return cls(n_states, n_actions, keys, count_table[keys], pair_counts)
        if log.counts is None:
            keys, counts = np.unique(row_ids, return_counts=True)
            return cls(n_states, n_actions, keys, counts, pair_counts)
        keys, inverse = np.unique(row_ids, return_inverse=True)
        return cls(
            n_states, n_actions, keys, _count_occurrences(inverse, log, len(keys)), pair_counts
        )


def _count_occurrences(ids: IntArray, log: TransitionLog, size: int) -> IntArray:
    """Count how often the log has each id; returns (size,), exact below 2^53."""
    return np.bincount(ids, log.counts, size).astype(np.int64, copy=False)


def _check_n_pairs(log: TransitionLog) -> None:
    """Refuse a number of pairs out of proportion to the rows, before arrays are allocated."""
    n_pairs = log.states.size * log.actions.size
    if n_pairs * 8 > MAX_DENSE_BYTES // 4 and n_pairs > 64 * len(log):
        raise MemoryLimitError(
            f"{log.source.location}: {pluralize(log.states.size, 'state')} and "
            f"{pluralize(log.actions.size, 'action')} make {n_pairs:,} pairs for "
            f"{pluralize(len(log), 'row')}; number states and actions from 0 without gaps, or name "
            "those that exist by states= and actions="
        )


def check_fit_size(
    n_entries: int, data: TransitionCounts, n_models: int, log: TransitionLog
) -> None:
    """Refuse models that would exceed the memory limit."""
    n_bytes = 8 * n_models * (n_entries + data.n_states * data.n_actions)
    if n_bytes > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{log.source.location}: {n_entries:,} possible transitions ("
            f"{pluralize(data.n_states, 'state')}, {pluralize(data.n_actions, 'action')}) in "
            f"{pluralize(n_models, 'model')} would take {format_bytes(n_bytes)}",
            [
                Remedy("support", "seen", verb="leave out next states that the log lacks with"),
                Remedy("unseen", "forbid", verb="leave out pairs that the log lacks with"),
                "sample fewer models",
                "merge states",
            ],
        )
