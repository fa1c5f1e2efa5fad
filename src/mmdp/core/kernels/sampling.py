"""Random numbers of episodes, and what is sampled by them.

The numbers are a hash of (seed, model, episode, counter), not a stream: the same step of the same
episode draws the same number under every policy, so policies are compared on common random
numbers. The world's counters begin at 0, those by which its models change at ``SWITCH_STREAM``,
the planner's at ``PLANNER_STREAM``. The functions take arrays; in
:mod:`mmdp.core.kernels.cpu.tree_search` they are compiled for numbers.

Rows are numbered s * A + a, as in the pattern of tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.rewards import at_time
from mmdp.core.shapes import Array, IndexArray, Mask

if TYPE_CHECKING:
    from mmdp.core.kernels.events import ExogenousEvents
    from mmdp.core.kernels.problem import Problem, TableStorage

Keys = npt.NDArray[np.uint64]

PLANNER_STREAM = 1 << 32
SWITCH_STREAM = 1 << 31
GOLDEN_RATIO = (5**0.5 - 1) / 2
_U = np.uint64

TransitionSampler: TypeAlias = "TableSampler | ExogenousEvents"


def splitmix64(x: Any) -> Any:
    """Hash numbers of 64 bits (splitmix64)."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


def hash_bits(key: Any, counter: Any) -> Any:
    """Return 53 random bits that are a hash of this key and counter."""
    return splitmix64(key + (counter + _U(1)) * _U(0x9E3779B97F4A7C15)) >> _U(11)


def hash_uniform(key: Keys, counter: Any) -> Any:
    """Return numbers in [0, 1) that are a hash of these keys and counters."""
    return hash_bits(key, np.full_like(key, counter)) * 2.0**-53


def make_episode_keys(seed: int, models: IndexArray, episodes: IndexArray) -> Keys:
    """Return (n,) the random key of each episode in its model."""
    seeds = np.full(len(models), seed % 2**64, np.uint64)
    return splitmix64(
        splitmix64(splitmix64(seeds) + models.astype(np.uint64))
        + episodes.astype(np.uint64)
        + _U(1)
    )


def sample_initial_states(
    env: Problem, seed: int, models: IndexArray, episodes: IndexArray
) -> IndexArray:
    """Return (n,) the initial state of each episode.

    Steps of the golden ratio spread the episodes of a model evenly over the initial
    distribution, however many there are.
    """
    u = hash_uniform(make_episode_keys(seed, models, 0 * models), 0)
    u = (u + GOLDEN_RATIO * episodes) % 1.0
    cdf = np.cumsum(env.initial.T, axis=1)  # (M or 1, S)
    states = np.empty_like(models)
    columns = 0 * models if env.has_common_initial else models
    for m in np.unique(columns):
        mask = columns == m
        states[mask] = np.searchsorted(cdf[m], u[mask] * cdf[m, -1], side="right")
    return states


@dataclass
class TableSampler:
    """A sampler of next states by transition tables."""

    table: TableStorage
    models: slice

    @cached_property
    def cumulative_probs(self) -> Array:
        """The cumulative probabilities (T or 1, M, nnz) of each row."""
        return cumsum_rows(self.table.p[:, :, self.models], self.table.indptr)

    def sample_next(
        self, t: int, rows: IndexArray, models: IndexArray, u: Array
    ) -> tuple[IndexArray, IndexArray]:
        """Return (n,) next states by u (n,) uniform in [0, 1), and (n,) their entries in tables.

        The first next state, in their order, at which the sum of probabilities exceeds u. It is
        -1 if the model lacks the action. Shared events have no entries: -1.
        """
        cdf, indptr = at_time(self.cumulative_probs, t), self.table.indptr
        offsets, cdf = (models - (self.models.start or 0)) * cdf.shape[1], cdf.reshape(-1)
        last = indptr[rows + 1] - 1
        first, total = np.minimum(indptr[rows], last), cdf[offsets + last]
        target = u * total
        k = bisect_first(lambda k: cdf[k] > target, offsets + first, offsets + last) - offsets
        k = np.where((indptr[rows] <= last) & (total > 0.0), k, -1)
        return np.where(k >= 0, self.table.indices[k], -1), k

    def likelihood(self, t: int, rows: IndexArray, next_states: IndexArray) -> Array:
        """Return (n, M) the probability of these next states in every model."""
        p, k = at_time(self.table.p, t), self.find_entries(rows, next_states)
        return np.where(k[:, None] >= 0, p[k], 0.0)

    def find_entries(self, rows: IndexArray, next_states: IndexArray) -> IndexArray:
        """Return (n,) the entries of these rows that lead to these next states, -1 if none."""
        indptr, indices = self.table.indptr, self.table.indices
        low, high = indptr[rows], indptr[rows + 1]
        last_entry = np.maximum(high - 1, 0)
        k = bisect_first(
            lambda k: indices[k] >= next_states, np.minimum(low, last_entry), last_entry
        )
        return np.where((high > low) & (indices[k] == next_states), k, -1)


def bisect_first(
    predicate: Callable[[IndexArray], Mask], low: IndexArray, high: IndexArray
) -> IndexArray:
    """Return (n,) the first k in low..high at which a monotone predicate is true; else high."""
    while (low < high).any():
        middle = (low + high) >> 1
        is_above = ~predicate(middle) & (low < high)
        low, high = np.where(is_above, middle + 1, low), np.where(is_above, high, middle)
    return low


def cumsum_rows(p: Array, indptr: IndexArray) -> Array:
    """Compute (T or 1, M, nnz) the cumulative sums of probabilities along each row."""
    total = np.moveaxis(p, 2, 1).copy()
    lengths, entries = np.diff(indptr), indptr[:-1]
    if len(np.unique(lengths)) == 1:
        rows = total.reshape(*total.shape[:2], len(lengths), lengths[0])
        return np.cumsum(rows, axis=3, out=rows).reshape(total.shape)
    for j in range(1, int(lengths.max(initial=0))):
        entries, lengths = entries[lengths > j] + 1, lengths[lengths > j]
        total[:, :, entries] += total[:, :, entries - 1]
    return total


def sample_columns(probs: Array, u: Array) -> IndexArray:
    """Sample (n,) one column of each row (n, k) with probabilities proportional to it."""
    total = np.cumsum(probs, axis=1)
    last_possible = probs.shape[1] - 1 - (probs[:, ::-1] > 0.0).argmax(axis=1)
    columns = (total <= (u * total[:, -1])[:, None]).sum(axis=1)
    return np.minimum(columns, last_possible)
