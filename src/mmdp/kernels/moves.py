"""Where single episodes go: next states that are drawn, and how likely a step was in all models.

Rows are numbered s * A + a, as in the pattern of tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.kernels.rewards import at

if TYPE_CHECKING:
    from mmdp.kernels.problem import Stored

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Moves(Protocol):
    """What episodes ask of a storage."""

    def drawn(self, t: int, rows: Ints, models: Ints, u: Array) -> Ints:
        """(n,) next states by u (n,) uniform in [0, 1); -1 if the model lacks the action.

        The first next state, in their order, at which the sum of probabilities exceeds u.
        """
        ...

    def likelihood(self, t: int, rows: Ints, after: Ints) -> Array:
        """(n, M) the probability in every model of these next states."""
        ...


class TableMoves:
    """By tables."""

    def __init__(self, table: Stored) -> None:
        self.table = table

    @cached_property
    def total(self) -> Array:
        return cumulative(self.table.p, self.table.indptr)

    def drawn(self, t: int, rows: Ints, models: Ints, u: Array) -> Ints:
        total = at(self.total, t)
        low, high = self.table.indptr[rows], self.table.indptr[rows + 1] - 1
        here = high >= low
        here[here] &= total[models[here], high[here]] > 0.0
        m, found = models[here], np.full(len(rows), -1)
        target = u[here] * total[m, high[here]]
        k = first_where(lambda k: total[m, k] > target, low[here], high[here])
        found[here] = self.table.indices[k]
        return found

    def likelihood(self, t: int, rows: Ints, after: Ints) -> Array:
        p, k = at(self.table.p, t), self.entries(rows, after)
        return np.where(k[:, None] >= 0, p[k], 0.0)

    def entries(self, rows: Ints, after: Ints) -> Ints:
        """(n,) the entries of the pattern that lead there, -1 if there is none."""
        indptr, indices = self.table.indptr, self.table.indices
        low, high = indptr[rows], indptr[rows + 1]
        last = np.maximum(high - 1, 0)
        k = first_where(lambda k: indices[k] >= after, np.minimum(low, last), last)
        return np.where((high > low) & (indices[k] == after), k, -1)


def first_where(holds: Callable[[Ints], Mask], low: Ints, high: Ints) -> Ints:
    """(n,) the first k in low..high at which ``holds``, which is false and then true; else high."""
    while (low < high).any():
        middle = (low + high) // 2
        further = ~holds(middle) & (low < high)
        low, high = np.where(further, middle + 1, low), np.where(further, high, middle)
    return low


def cumulative(p: Array, indptr: Ints) -> Array:
    """(T or 1, M, nnz) probabilities summed up along each row of the pattern."""
    total = np.moveaxis(p, 2, 1).copy()
    lengths, entries = np.diff(indptr), indptr[:-1]
    if len(np.unique(lengths)) == 1:
        rows = total.reshape(*total.shape[:2], len(lengths), lengths[0])
        return np.cumsum(rows, axis=3, out=rows).reshape(total.shape)
    for j in range(1, int(lengths.max(initial=0))):
        entries, lengths = entries[lengths > j] + 1, lengths[lengths > j]
        total[:, :, entries] += total[:, :, entries - 1]
    return total


def column(chances: Array, u: Array) -> Ints:
    """(n,) one column of each row (n, k), drawn with probabilities proportional to it."""
    total = np.cumsum(chances, axis=1)
    last = chances.shape[1] - 1 - (chances[:, ::-1] > 0.0).argmax(axis=1)
    drawn = (total <= (u * total[:, -1])[:, None]).sum(axis=1)
    return np.minimum(drawn, last)
