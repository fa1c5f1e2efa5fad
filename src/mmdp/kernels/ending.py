"""Episodes that end by themselves: total rewards without a discount.

An episode of model m has ended where nothing happens any more: in a state that no action leaves or
earns anything in. If from every other state that can be met each policy gets there, the values
v = sum_t P^t r exist for all policies, randomised ones too. They do not if some policy can stay
elsewhere for ever, with certainty: for one model, in the largest set of states each of which has
an action that never leads out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, Remedy
from mmdp.kernels.problem import Problem
from mmdp.words import by_count, some

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]


def going_on(problem: Problem, labels: Sequence[str] = ()) -> Mask:
    """(S, M) where something follows: states that some policy meets before episodes have ended.

    InputError if an episode can go on for ever.

    >>> import mmdp
    >>> P = [[[[0.5, 0.5]], [[0.0, 1.0]]]]
    >>> going_on(mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0]).problem).tolist()
    [[True], [False]]
    """
    graph = _Graph(problem)
    met = graph.met()
    staying = graph.models(graph.staying() & met)
    if staying.any():
        m = int(staying.any(axis=0).argmax())
        where = graph.circle(staying, m)
        names = some((repr(labels[s]) if labels else str(s) for s in where), 3)
        raise InputError(
            "at discount 1 an infinite horizon needs episodes that end, and in model "
            f"{m} some policy stays in {by_count(len(where), 'state', 'states')} {names} for ever",
            [
                "set a discount near 1, such as 0.9999 (1 - discount times the value is then about "
                "the average reward per step)",
                Remedy("horizon", 50, do="give a number, for example"),
            ],
        )
    return graph.models(met & ~graph.ended)


class _Graph:
    """Which states lead where; the last axis has the models, eight of them in a byte."""

    def __init__(self, problem: Problem) -> None:
        x, table = problem, problem.storage.table()
        self.shape = (x.n_states, x.n_actions)
        self.problem, self.indptr, self.to = x, table.indptr, table.indices
        self.state, self.action = np.divmod(x.rows(), x.n_actions)
        allowed = x.allowed[0]
        self.open = _bits(table.p[0] > 0)  # (nnz, bytes)
        self.open[~allowed[self.state, self.action]] = 0
        self.possible = self._any(self.open)
        away = self._any(np.where((self.to != self.state)[:, None], self.open, 0))
        earns = _bits(np.asarray(x.r)[0] != 0) | away | ~self.possible
        self.ended = ~np.bitwise_or.reduce(np.where(allowed[:, :, None], earns, 0), axis=1)

    def models(self, bits: Bits) -> Mask:
        """The same with a place for each model."""
        return np.unpackbits(bits, axis=-1, count=self.problem.n_models).view(bool)

    def _any(self, entries: Bits) -> Bits:
        """(S, A, bytes) whether any entry of a row is true."""
        found = _joined(entries, self.indptr)
        return found.reshape(*self.shape, -1)

    def staying(self) -> Bits:
        """(S, bytes) where some policy stays for ever without having ended."""
        inside = ~self.ended
        while True:
            left = inside & np.bitwise_or.reduce(self._stays(inside), axis=1)
            if (left == inside).all():
                return inside
            inside = left

    def _stays(self, inside: Bits) -> Bits:
        """(S, A, bytes) where an action is possible and never leads out."""
        return self.possible & ~self._any(self.open & ~inside[self.to])

    def circle(self, inside: Mask, m: int) -> list[int]:
        """States that a policy meets again and again in model m, staying inside (S, M)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        stays = self.models(self._stays(_bits(inside)))[:, :, m]
        chosen = stays.argmax(axis=1)[self.state] == self.action
        taken = chosen & self.models(self.open)[:, m] & inside[self.state, m]
        now, after = self.state[taken], self.to[taken]
        chain = coo_array((np.ones(len(now)), (now, after)), shape=(len(inside),) * 2)
        part = connected_components(chain, connection="strong")[1]
        left = np.isin(part, part[now[part[now] != part[after]]])  # some step leads out of them
        closed = inside[:, m] & ~left
        found: list[int] = np.flatnonzero(closed & (part == part[closed.argmax()])).tolist()
        return found

    def met(self) -> Bits:
        """(S, bytes) where some policy comes with a positive probability."""
        x = self.problem
        found = _bits(np.broadcast_to(x.initial > 0, (x.n_states, x.n_models)))
        order = np.argsort(self.to, kind="stable")
        came, open_ = self.state[order], self.open[order]
        starts = np.searchsorted(self.to[order], np.arange(x.n_states + 1))
        while True:
            after = found | _joined(open_ & found[came], starts)
            if (after == found).all():
                return found
            found = after


def _bits(mask: npt.NDArray[Any]) -> Bits:
    return np.packbits(mask, axis=-1)


def _joined(entries: Bits, indptr: npt.NDArray[Any]) -> Bits:
    """(rows, bytes) the entries indptr[i]:indptr[i + 1] of each row, joined by or."""
    found = np.zeros((len(indptr) - 1, entries.shape[1]), dtype=np.uint8)
    full = np.flatnonzero(np.diff(indptr))
    if len(full):
        found[full] = np.bitwise_or.reduceat(entries, indptr[full], axis=0)
    return found
