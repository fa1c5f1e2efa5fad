"""Counts of a log, prior of transitions, and the rows of the posterior: their sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import MAX_DENSE_BYTES, Array, as_float_array
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.schema import ColumnLabels, Fields, IntArray, Mask, TableSource

UnseenRule = Literal["prior", "absorb", "forbid"]
JEFFREYS_COUNT = 0.5  # the pseudo-count of Jeffreys' prior


class TransitionCounts(NamedTuple):
    """Counts of the transitions (s A + a) S + s' that occur, sorted, and of pairs (S A,).

    With the states and actions of their log, its source, and the states that end episodes.
    """

    states: ColumnLabels
    actions: ColumnLabels
    keys: IntArray
    counts: IntArray
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

    @property
    def pair_counts(self) -> IntArray:
        """Number of transitions (S A,) from each pair s A + a; exact below 2^53."""
        n_pairs = self.n_states * self.n_actions
        return np.bincount(self.keys // self.n_states, self.counts, n_pairs).astype(np.int64)

    @classmethod
    def from_log(cls, log: TransitionLog) -> TransitionCounts:
        """Count the transitions of a log."""
        row_keys = (log.state * log.actions.size + log.action) * log.states.size + log.next_state
        codes, keys = pd.factorize(row_keys, sort=True)
        counts = np.bincount(codes, log.counts).astype(np.int64, copy=False)
        data = cls(log.states, log.actions, keys, counts, log.terminal_states, log.source)
        check_fit_size(0, data, 1)
        return data

    def describe_pair(self, pair: int) -> str:
        """Format the state and action of a pair s A + a."""
        s, a = divmod(pair, self.n_actions)
        return f"state {self.states.format_id(s)}, action {self.actions.format_id(a)}"


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


class DirichletRows(NamedTuple):
    """Dirichlet parameters alpha + n on sorted keys, and masks (S A,) of the pairs.

    ``shape`` is (S, A). Pairs in ``is_absorbing`` stay in their state and earn 0.
    """

    shape: tuple[int, int]
    keys: IntArray
    alpha: Array
    allowed: Mask
    is_absorbing: Mask
    unseen_rows: IntArray
    prior_totals: Array

    @property
    def pair_ids(self) -> IntArray:
        """Pair s A + a of each key."""
        return self.keys // self.shape[0]


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of the transitions; its fields are options of :func:`fit`."""

    pseudo_counts: Any = "pooled"  # or "symmetric", or an array
    concentration: float = 1.0
    support: Literal["all", "seen"] = "all"
    unseen: UnseenRule = "prior"
    absorbing: Iterable[object] = ()

    def to_dict(self, data: TransitionCounts) -> Fields:
        """Convert to a dict of fields, states as ids."""
        return vars(self) | {"absorbing": self._find_absorbing(data)}

    def _find_absorbing(self, data: TransitionCounts) -> list[int]:
        """Find the ids of the states that end an episode."""
        return sorted({*data.states.get_ids(self.absorbing), *data.terminal_states.tolist()})

    def make_rows(self, data: TransitionCounts) -> DirichletRows:
        """Make the Dirichlet parameters of every row from the counts of the log."""
        shape, n_states = (data.n_states, data.n_actions), data.n_states
        is_absorbing, allowed, unseen_rows = self._classify_rows(data)
        is_sampled = allowed & ~is_absorbing
        keys, pseudo_counts = self._make_pseudo_counts(data, is_sampled)
        alpha = pseudo_counts * self.concentration
        prior_totals = np.bincount(keys // n_states, alpha, len(allowed)).astype(np.float64)
        is_counted = ~is_absorbing[data.keys // n_states]
        seen_keys = data.keys[is_counted]
        _check_possible(data, seen_keys[~np.isin(seen_keys, keys, assume_unique=True)])
        _check_not_empty(data, np.flatnonzero(is_sampled & (prior_totals == 0)))
        alpha[np.searchsorted(keys, seen_keys)] += data.counts[is_counted]
        absorbing_rows = np.flatnonzero(is_absorbing)
        loops = absorbing_rows * n_states + absorbing_rows // data.n_actions
        keys, alpha = np.append(keys, loops), np.append(alpha, np.ones(len(loops)))
        order = np.argsort(keys, kind="stable")
        return DirichletRows(
            shape, keys[order], alpha[order], allowed, is_absorbing, unseen_rows, prior_totals
        )

    def _classify_rows(self, data: TransitionCounts) -> tuple[Mask, Mask, IntArray]:
        """Find the absorbing rows and the allowed rows (S A,), and the ids of unseen rows."""
        is_terminal = np.zeros(data.n_states, dtype=bool)
        is_terminal[self._find_absorbing(data)] = True
        is_absorbing = np.repeat(is_terminal, data.n_actions)
        is_seen = data.pair_counts > 0
        is_unseen = ~is_seen & ~is_absorbing
        allowed = np.ones_like(is_absorbing)
        if self.unseen == "absorb":
            is_absorbing |= is_unseen
        elif self.unseen == "forbid":
            is_left = is_seen.reshape(data.n_states, -1).any(axis=1)
            allowed = ~is_unseen | np.repeat(~is_left, data.n_actions)
            is_absorbing |= is_unseen & allowed  # a state that is never left stays
        return is_absorbing, allowed, np.flatnonzero(is_unseen)

    def _make_pseudo_counts(
        self, data: TransitionCounts, is_sampled: Mask
    ) -> tuple[IntArray, Array]:
        """Make the keys of the sampled rows, with pseudo-counts before scaling."""
        n, is_named = data.n_states, isinstance(self.pseudo_counts, str)
        is_pooled = is_named and self.pseudo_counts == "pooled"
        if self.support == "seen":
            keys = data.keys[is_sampled[data.keys // n]]
        elif is_pooled:
            return _make_pooled_counts(data, is_sampled)
        else:
            check_fit_size(n * int(is_sampled.sum()), data, 1)
            keys = (np.flatnonzero(is_sampled)[:, None] * n + np.arange(n)).reshape(-1)
        if is_named:
            return keys, np.full(len(keys), JEFFREYS_COUNT if is_pooled else 1.0)
        shape = (n, data.n_actions, n)
        pseudo_counts = _broadcast_pseudo_counts(self.pseudo_counts, shape).reshape(-1)[keys]
        return keys[pseudo_counts > 0], pseudo_counts[pseudo_counts > 0]


def _make_pooled_counts(data: TransitionCounts, is_sampled: Mask) -> tuple[IntArray, Array]:
    """Make the keys of the sampled rows with half an observation of each next state of the state.

    With fewer than two next states of a state, another half is spread over all states.
    """
    n = data.n_states
    seen_moves = np.unique(data.keys // (n * data.n_actions) * n + data.keys % n)  # s S + s'
    n_next = np.bincount(seen_moves // n, minlength=n)
    n_sampled = is_sampled.reshape(n, -1).sum(axis=1)
    check_fit_size(int((np.where(n_next < 2, n, n_next) * n_sampled).sum()), data, 1)
    spread_states = np.flatnonzero((n_next < 2) & (n_sampled > 0))
    spread_moves = (spread_states[:, None] * n + np.arange(n)).reshape(-1)
    moves = np.union1d(seen_moves, spread_moves)
    counts = np.isin(moves, seen_moves) + np.isin(moves, spread_moves) / n
    pairs = (moves // n)[:, None] * data.n_actions + np.arange(data.n_actions)
    keys = pairs * n + (moves % n)[:, None]
    counts = np.broadcast_to(JEFFREYS_COUNT * counts[:, None], keys.shape)[is_sampled[pairs]]
    keys = keys[is_sampled[pairs]]
    order = np.argsort(keys)
    return keys[order], counts[order]


def _broadcast_pseudo_counts(values: Any, shape: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    """Check pseudo-counts and broadcast them to (S, A, S')."""
    array = as_float_array(values, "prior")
    if not (np.isfinite(array).all() and array.min(initial=0.0) >= 0):
        raise InputError("prior has pseudo-counts below 0 or not finite; give finite ones >= 0")
    if array.shape == (shape[0], shape[2]):  # the same for all actions
        if shape[0] == shape[1]:
            raise InputError(
                f"prior of shape {array.shape} could be by state or by action and next "
                "state; give it as (S, 1, S') or (1, A, S')"
            )
        array = array[:, None, :]
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(
            f"prior of shape {array.shape} does not broadcast to (S, A, S') = {shape}"
        ) from None


def _check_possible(data: TransitionCounts, impossible_keys: IntArray) -> None:
    """Refuse a log with a transition that the prior rules out."""
    if len(impossible_keys):
        pair, next_state = divmod(int(impossible_keys[0]), data.n_states)
        data.source.fail(
            f"the log has {data.describe_pair(pair)} leading to "
            f"{data.states.format_id(next_state)}, which the prior rules out "
            f"({pluralize(len(impossible_keys), 'transition')} like it); allow it or correct the "
            "log"
        )


def _check_not_empty(data: TransitionCounts, empty_rows: IntArray) -> None:
    """Refuse rows without possible next states."""
    if len(empty_rows):
        data.source.fail(
            f"no next state is possible for {data.describe_pair(int(empty_rows[0]))}, which the "
            f"log lacks ({pluralize(len(empty_rows), 'pair')} like it)",
            remedies=[
                Remedy("support", verb="widen"),
                Remedy("prior", verb="widen"),
                Remedy("unseen", "absorb", "forbid", verb="choose"),
            ],
        )
