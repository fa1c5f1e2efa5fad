"""Counts and rewards of a log, prior of transitions, and the rows of the posterior: their sum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import fdtrc

from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.transitions import MAX_DENSE_BYTES, Array, as_float_array
from mmdp.data.posterior.log import TransitionLog
from mmdp.data.schema import ColumnLabels, Fields, IntArray, Mask, TableSource

UnseenRule = Literal["prior", "absorb", "forbid"]
SIGNIFICANCE_LEVEL = 0.01  # of the test whether rewards depend on the next state
JEFFREYS_COUNT = 0.5  # the pseudo-count of Jeffreys' prior


class RewardMoments(NamedTuple):
    """Number, mean and sum of squares about the mean of the rewards of each id, in order."""

    ids: IntArray
    n: Array
    mean: Array
    sum_squares: Array

    @classmethod
    def from_log(cls, log: TransitionLog, ids: IntArray, codes: IntArray) -> RewardMoments | None:
        """Compute the moments of the rewards of each id, given the code of every row."""
        if "reward" not in log.frame:
            return None
        reward = log.frame["reward"].to_numpy()
        n_rows = log.frame["counts"].to_numpy() if "counts" in log.frame else np.ones(len(codes))
        n = _sum_by_code(codes, n_rows)
        mean = _sum_by_code(codes, n_rows * reward) / n
        return cls(ids, n, mean, _sum_by_code(codes, n_rows * (reward - mean[codes]) ** 2))

    def select(self, mask: Mask) -> RewardMoments:
        """Select the ids in a mask."""
        return RewardMoments(self.ids[mask], self.n[mask], self.mean[mask], self.sum_squares[mask])

    def group_by(self, group_keys: IntArray) -> RewardMoments:
        """Combine the moments of ids with the same group key."""
        group_ids, codes = np.unique(group_keys, return_inverse=True)
        n = _sum_by_code(codes, self.n)
        mean = _sum_by_code(codes, self.n * self.mean) / n
        sum_squares = self.sum_squares + self.n * (self.mean - mean[codes]) ** 2
        return RewardMoments(group_ids, n, mean, _sum_by_code(codes, sum_squares))

    def lookup(self, ids: IntArray) -> RewardMoments:
        """Look up the moments of ids; 0 for ids without rewards."""
        moments = pd.DataFrame(self._asdict()).set_index("ids").reindex(ids, fill_value=0.0)
        return RewardMoments(ids, *moments.to_numpy(np.float64).T)

    @property
    def is_exact(self) -> bool:
        """Whether the rewards of each id are all equal, up to rounding."""
        return bool(self.sum_squares.sum() <= 1e-12 * (self.n @ self.mean**2))

    def differs_from(self, groups: RewardMoments) -> bool:
        """Test whether the means within groups differ, by a one-way analysis of variance."""
        if groups.is_exact or self.is_exact:
            return not groups.is_exact
        within, total = float(self.sum_squares.sum()), float(groups.sum_squares.sum())
        dof = len(self.ids) - len(groups.ids), int(self.n.sum()) - len(self.ids)
        if not dof[0]:
            return False
        f_ratio = ((total - within) / dof[0]) / (within / dof[1])
        return bool(fdtrc(*dof, f_ratio) < SIGNIFICANCE_LEVEL)


def _sum_by_code(codes: IntArray, values: Array | IntArray) -> Array:
    return np.bincount(codes, values).astype(np.float64, copy=False)


class TransitionCounts(NamedTuple):
    """Counts of the transitions (s A + a) S + s' that occur, sorted, and their rewards if known.

    With the states and actions of their log, its source, and the states that end episodes.
    """

    states: ColumnLabels
    actions: ColumnLabels
    keys: IntArray
    counts: IntArray
    source: TableSource
    terminal_states: IntArray
    rewards: RewardMoments | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of states and of actions."""
        return self.states.size, self.actions.size

    @property
    def pair_counts(self) -> IntArray:
        """Number of transitions (S A,) from each pair s A + a; exact below 2^53."""
        n_pairs = self.states.size * self.actions.size
        return np.bincount(self.to_pairs(self.keys), self.counts, n_pairs).astype(np.int64)

    def to_pairs(self, keys: IntArray) -> IntArray:
        """Convert keys (s A + a) S + s' to s A + a."""
        return keys // self.states.size

    def to_moves(self, keys: IntArray) -> IntArray:
        """Convert keys (s A + a) S + s' to s S + s'."""
        n_states, n_actions = self.shape
        return keys // (n_states * n_actions) * n_states + keys % n_states

    @classmethod
    def from_log(cls, log: TransitionLog) -> TransitionCounts:
        """Count the transitions of a log."""
        state, action, next_state = (log.frame[x] for x in ("state", "action", "next_state"))
        row_keys = (state * log.actions.size + action) * log.states.size + next_state
        codes, keys = pd.factorize(row_keys.to_numpy(), sort=True)
        del row_keys
        counts = np.bincount(codes, log.frame.get("counts")).astype(np.int64, copy=False)
        rewards = RewardMoments.from_log(log, keys, codes)
        data = cls(log.states, log.actions, keys, counts, log.source, log.terminal_states, rewards)
        check_fit_size(0, data, 1)
        return data

    def describe_pair(self, pair: int) -> str:
        """Format the state and action of a pair s A + a."""
        s, a = divmod(pair, self.actions.size)
        return f"state {self.states.format_id(s)}, action {self.actions.format_id(a)}"


def check_fit_size(n_entries: int, data: TransitionCounts, n_models: int) -> None:
    """Refuse models that would exceed the memory limit."""
    n_bytes = 8 * n_models * (n_entries + math.prod(data.shape))
    if n_bytes > MAX_DENSE_BYTES:
        raise MemoryLimitError(
            f"{data.source.location}: {n_entries:,} possible transitions ("
            f"{pluralize(data.states.size, 'state')}, {pluralize(data.actions.size, 'action')}) in "
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

    Pairs in ``is_absorbing`` stay in their state and earn 0.
    """

    data: TransitionCounts
    keys: IntArray
    alpha: Array
    allowed: Mask
    is_absorbing: Mask
    is_unseen: Mask
    prior_totals: Array


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
        (n_states, n_actions), is_seen = data.shape, data.pair_counts > 0
        is_terminal = np.zeros(n_states, dtype=bool)
        is_terminal[self._find_absorbing(data)] = True
        is_absorbing = np.repeat(is_terminal, n_actions)
        is_unseen, allowed = ~is_seen & ~is_absorbing, np.ones_like(is_absorbing)
        if self.unseen == "absorb":
            is_absorbing = is_absorbing | is_unseen
        elif self.unseen == "forbid":
            is_left = np.repeat(is_seen.reshape(n_states, -1).any(axis=1), n_actions)
            allowed = ~is_unseen | ~is_left
            is_absorbing |= is_unseen & allowed  # a state that is never left stays
        is_sampled = allowed & ~is_absorbing
        keys, pseudo_counts = self._make_pseudo_counts(data, is_sampled)
        alpha = pseudo_counts * self.concentration
        prior_totals = np.bincount(data.to_pairs(keys), alpha, len(allowed)).astype(np.float64)
        is_counted = is_sampled[data.to_pairs(data.keys)]
        seen_keys = data.keys[is_counted]
        impossible_keys = seen_keys[~np.isin(seen_keys, keys, assume_unique=True)]
        if len(impossible_keys):
            pair, next_state = divmod(int(impossible_keys[0]), n_states)
            data.source.fail(
                f"the log has {data.describe_pair(pair)} leading to "
                f"{data.states.format_id(next_state)}, which the prior rules out "
                f"({pluralize(len(impossible_keys), 'transition')} like it); allow it or correct "
                "the log"
            )
        empty_rows = np.flatnonzero(is_sampled & (prior_totals == 0))
        if len(empty_rows):
            data.source.fail(
                f"no next state is possible for {data.describe_pair(int(empty_rows[0]))}, which "
                f"the log lacks ({pluralize(len(empty_rows), 'pair')} like it)",
                remedies=[
                    Remedy("support", verb="widen"),
                    Remedy("prior", verb="widen"),
                    Remedy("unseen", "absorb", "forbid", verb="choose"),
                ],
            )
        alpha[np.searchsorted(keys, seen_keys)] += data.counts[is_counted]
        absorbing_rows = np.flatnonzero(is_absorbing)
        keys = np.append(keys, absorbing_rows * n_states + absorbing_rows // n_actions)
        alpha, order = np.append(alpha, np.ones(len(absorbing_rows))), np.argsort(keys)
        return DirichletRows(
            data, keys[order], alpha[order], allowed, is_absorbing, is_unseen, prior_totals
        )

    def _make_pseudo_counts(
        self, data: TransitionCounts, is_sampled: Mask
    ) -> tuple[IntArray, Array]:
        """Make the keys of the sampled rows, with pseudo-counts before scaling."""
        (n, n_actions), is_named = data.shape, isinstance(self.pseudo_counts, str)
        is_pooled = is_named and self.pseudo_counts == "pooled"
        if self.support == "seen":
            keys = data.keys[is_sampled[data.to_pairs(data.keys)]]
        elif is_pooled:
            return _make_pooled_counts(data, is_sampled)
        else:
            check_fit_size(n * int(is_sampled.sum()), data, 1)
            keys = (np.flatnonzero(is_sampled)[:, None] * n + np.arange(n)).reshape(-1)
        if is_named:
            return keys, np.full(len(keys), JEFFREYS_COUNT if is_pooled else 1.0)
        pseudo_counts = _broadcast_pseudo_counts(self.pseudo_counts, (n, n_actions, n))
        pseudo_counts = pseudo_counts.reshape(-1)[keys]
        return keys[pseudo_counts > 0], pseudo_counts[pseudo_counts > 0]


def _make_pooled_counts(data: TransitionCounts, is_sampled: Mask) -> tuple[IntArray, Array]:
    """Make the keys of the sampled rows with half an observation of each next state of the state.

    With fewer than two next states of a state, another half is spread over all states.
    """
    n, n_actions = data.shape
    seen_moves = np.unique(data.to_moves(data.keys))
    n_next = np.bincount(seen_moves // n, minlength=n)
    n_sampled = is_sampled.reshape(n, -1).sum(axis=1)
    check_fit_size(int((np.where(n_next < 2, n, n_next) * n_sampled).sum()), data, 1)
    spread_states = np.flatnonzero((n_next < 2) & (n_sampled > 0))
    spread_moves = (spread_states[:, None] * n + np.arange(n)).reshape(-1)
    moves = np.union1d(seen_moves, spread_moves)
    counts = np.isin(moves, seen_moves) + np.isin(moves, spread_moves) / n
    pairs = (moves // n)[:, None] * n_actions + np.arange(n_actions)
    keys = (pairs * n + (moves % n)[:, None])[is_sampled[pairs]]
    counts = np.broadcast_to(JEFFREYS_COUNT * counts[:, None], pairs.shape)[is_sampled[pairs]]
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
