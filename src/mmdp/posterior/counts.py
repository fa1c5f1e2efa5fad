"""How often each transition of a log occurs, and what that many models would take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.errors import MemoryLimitError, Remedy
from mmdp.io.labels import Ints
from mmdp.posterior.log import Log
from mmdp.support import MATERIALISE_LIMIT
from mmdp.words import counted, readable_bytes


class Counts(NamedTuple):
    """Keys (s A + a) S + s' that occur, sorted, with their counts; visits (S A,)."""

    n_states: int
    n_actions: int
    keys: Ints
    counts: Ints
    visits: Ints

    @property
    def cells(self) -> int:
        return self.n_states * self.n_actions * self.n_states

    @classmethod
    def of(cls, log: Log) -> Counts:
        n_states, n_actions = log.states.size, log.actions.size
        _check_pairs(log)
        rows = log.state * n_actions + log.action
        visits = _tally(rows, log, n_states * n_actions)
        rows = rows * n_states + log.next_state
        if n_states * n_actions * n_states <= max(2 * len(log), 100_000):
            table = _tally(rows, log, n_states * n_actions * n_states)
            keys = np.flatnonzero(table)
            return cls(n_states, n_actions, keys, table[keys], visits)
        if log.count is None:
            keys, counts = np.unique(rows, return_counts=True)
            return cls(n_states, n_actions, keys, counts, visits)
        keys, at = np.unique(rows, return_inverse=True)
        return cls(n_states, n_actions, keys, _tally(at, log, len(keys)), visits)


def _tally(places: Ints, log: Log, size: int) -> Ints:
    """(size,) how often the log has each place; exact, as counts below 2^53 are."""
    return np.bincount(places, log.count, size).astype(np.int64, copy=False)


def _check_pairs(log: Log) -> None:
    """Refuse a number of pairs out of proportion to the rows, before arrays of it are made."""
    pairs = log.states.size * log.actions.size
    if pairs * 8 > MATERIALISE_LIMIT // 4 and pairs > 64 * len(log):
        raise MemoryLimitError(
            f"{log.source.place}: {counted(log.states.size, 'state')} and "
            f"{counted(log.actions.size, 'action')} make {pairs:,} pairs for "
            f"{counted(len(log), 'row')}; number states and actions from 0 without gaps, or name "
            "those that exist by states= and actions="
        )


def check_size(entries: int, data: Counts, models: int, log: Log) -> None:
    """Refuse models that would not fit into memory, with their size."""
    size = 8 * models * (entries + data.n_states * data.n_actions)
    if size > MATERIALISE_LIMIT:
        raise MemoryLimitError(
            f"{log.source.place}: {entries:,} possible transitions ("
            f"{counted(data.n_states, 'state')}, {counted(data.n_actions, 'action')}) in "
            f"{counted(models, 'model')} would take {readable_bytes(size)}",
            [
                Remedy("support", "seen", do="leave out next states that never happened with"),
                Remedy("unseen", "forbid", do="leave out pairs that were never tried with"),
                "draw fewer models",
                "merge states",
            ],
        )
