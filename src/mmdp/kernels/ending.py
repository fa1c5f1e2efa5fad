"""Episodes that end by themselves: total rewards without a discount.

An episode of model m has ended where nothing happens any more: in a state that no action leaves or
earns anything in. If from every other state that can be met each policy gets there, the values
v = sum_t P^t r exist for all policies, randomised ones too. They do not if some policy can stay
elsewhere for ever, with certainty: for one model, in the largest set of states each of which has
an action that never leads out of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, Remedy
from mmdp.kernels.problem import Problem, Stored
from mmdp.words import by_count, some

Mask = npt.NDArray[np.bool_]


def until_ended(problem: Problem, labels: Sequence[str] = ()) -> Problem:
    """The problem in which nothing follows where episodes have ended, or where none comes.

    There p and r are 0; the values of all other states are as before. InputError if an episode
    can go on for ever.

    >>> import mmdp
    >>> P = [[[[0.5, 0.5]], [[0.0, 1.0]]]]
    >>> until_ended(mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0]).problem).p[0, :, 0].tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    graph = _Graph(problem)
    met = graph.met()
    staying = graph.staying() & met
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
    live = met & ~graph.ended  # (S, M)
    table = problem.storage.table()
    p = np.where(live[graph.state], table.p, 0.0)
    r = np.where(live[:, None], np.asarray(problem.r), 0.0)
    return problem._replace(storage=Stored(table.indptr, table.indices, p, table.dense), r=r)


class _Graph:
    """Which states lead where, in each model; arrays have the models last."""

    def __init__(self, problem: Problem) -> None:
        x, table = problem, problem.storage.table()
        self.shape = (x.n_states, x.n_actions)
        self.problem, self.indptr, self.to = x, table.indptr, table.indices
        self.state, self.action = np.divmod(x.rows(), x.n_actions)
        allowed = x.allowed[0][self.state, self.action]
        self.open: Mask = (table.p[0] > 0) & allowed[:, None]  # (nnz, M)
        self.possible = self._any(self.open)
        stays = self.possible & ~self._any(self.open & (self.to != self.state)[:, None])
        earns = (x.r[0] != 0) | ~stays
        self.ended: Mask = ~(earns & x.allowed[0][:, :, None]).any(axis=1)  # (S, M)

    def _any(self, entries: Mask) -> Mask:
        """(S, A, M) whether any entry of a row is true."""
        total = np.zeros((len(entries) + 1, entries.shape[1]), dtype=np.int64)
        np.cumsum(entries, axis=0, out=total[1:])
        found: Mask = total[self.indptr[1:]] > total[self.indptr[:-1]]
        return found.reshape(*self.shape, -1)

    def staying(self) -> Mask:
        """(S, M) where some policy stays for ever without having ended."""
        inside: Mask = ~self.ended
        while True:
            leaves = self._any(self.open & ~inside[self.to])
            left = inside & (self.possible & ~leaves).any(axis=1)
            if (left == inside).all():
                return inside
            inside = left

    def circle(self, inside: Mask, m: int) -> list[int]:
        """States that a policy meets again and again in model m, staying inside (S, M)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        stays = self.possible & ~self._any(self.open & ~inside[self.to])
        chosen = stays[:, :, m].argmax(axis=1)[self.state] == self.action
        taken = chosen & self.open[:, m] & inside[self.state, m]
        now, after = self.state[taken], self.to[taken]
        chain = coo_array((np.ones(len(now)), (now, after)), shape=(len(inside),) * 2)
        part = connected_components(chain, connection="strong")[1]
        left = np.isin(part, part[now[part[now] != part[after]]])  # some step leads out of them
        closed = inside[:, m] & ~left
        found: list[int] = np.flatnonzero(closed & (part == part[closed.argmax()])).tolist()
        return found

    def met(self) -> Mask:
        """(S, M) where some policy comes with a positive probability."""
        x = self.problem
        found: Mask = np.broadcast_to(x.initial > 0, (x.n_states, x.n_models)).copy()
        while True:
            before = int(found.sum())
            np.logical_or.at(found, self.to, self.open & found[self.state])
            if int(found.sum()) == before:
                return found
