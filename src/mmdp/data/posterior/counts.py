"""Transition counts of a log, and the memory that models of them would take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.core.errors import MemoryLimitError, Remedy
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import MAX_DENSE_BYTES
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.schema import ColumnLabels, IntArray, TableSource


class TransitionCounts(NamedTuple):
    """Counts of the transitions (s A + a) S + s' that occur, sorted, and of pairs (S A,).

    With the states and actions of their log, its source, and the states that end episodes.
    """

    states: ColumnLabels
    actions: ColumnLabels
    keys: IntArray
    counts: IntArray
    pair_counts: IntArray
    terminal_states: IntArray
    source: TableSource

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.states.size

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.actions.size

    @classmethod
    def from_log(cls, log: TransitionLog) -> TransitionCounts:
        """Count the transitions of a log."""
        n_states, n_pairs = log.states.size, log.states.size * log.actions.size
        _check_n_pairs(log)
        pair_ids = log.state * log.actions.size + log.action
        pair_counts = _count_occurrences(pair_ids, log, n_pairs)
        ids = pair_ids * n_states + log.next_state
        if n_pairs * n_states <= max(2 * len(log), 100_000):
            count_table = _count_occurrences(ids, log, n_pairs * n_states)
            keys = np.flatnonzero(count_table)
            counts = count_table[keys]
        elif log.counts is None:
            keys, counts = np.unique(ids, return_counts=True)
        else:
            keys, inverse = np.unique(ids, return_inverse=True)
            counts = _count_occurrences(inverse, log, len(keys))
        return cls(
            log.states, log.actions, keys, counts, pair_counts, log.terminal_states, log.source
        )

    def describe_pair(self, pair: int) -> str:
        """Format the state and action of a pair s A + a."""
        s, a = divmod(pair, self.n_actions)
        return f"state {self.states.format_id(s)}, action {self.actions.format_id(a)}"


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


def check_fit_size(n_entries: int, data: TransitionCounts, n_models: int) -> None:
    """Refuse models that would exceed the memory limit."""
    n_bytes = 8 * n_models * (n_entries + data.n_states * data.n_actions)
    if n_bytes > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{data.source.location}: {n_entries:,} possible transitions ("
            f"{pluralize(data.n_states, 'state')}, {pluralize(data.n_actions, 'action')}) in "
            f"{pluralize(n_models, 'model')} would take {format_bytes(n_bytes)}",
            [
                Remedy("support", "seen", verb="leave out next states that the log lacks with"),
                Remedy("unseen", "forbid", verb="leave out pairs that the log lacks with"),
                "sample fewer models",
                "merge states",
            ],
        )
