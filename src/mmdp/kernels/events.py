"""Shared events: what an event does is the same in all models, but not how likely it is.

p_m(s'|s, a) = sum_{w, c} coefficient(s, a, w, c) chance_m(kind(s, a), w) [after(s, a, w, c) = s'],
so that everything of the size S A W is stored once for all models, and p is never stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, MemoryLimitError
from mmdp.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.kernels.moves import Moves, column
from mmdp.kernels.numpy.kernel import StoredPlan
from mmdp.kernels.plan import Plan
from mmdp.kernels.problem import (
    Array,
    Form,
    Ids,
    IntArray,
    Pairs,
    Problem,
    Row,
    Stored,
    Table,
    at,
    frozen,
)
from mmdp.kernels.rewards import ByEvent, expected
from mmdp.kernels.storage import Computed
from mmdp.words import readable_bytes

LARGEST = 2 * 1024**3  # bytes that tables made from events may take


class Moment(NamedTuple):
    """Events at one time; what was not given is 0 or 1 everywhere."""

    after: IntArray  # (S, A, W, C)
    chance: Array  # (K, W, M)
    kind: IntArray  # (S, A)
    coefficient: Array  # (S, A, W, C)


class Pattern(NamedTuple):
    """The pattern of tables (see :mod:`mmdp.kernels.problem`), on which p = E k at each time."""

    indptr: Ids
    indices: IntArray
    E: list[Any]  # (nnz, K W) sparse: the coefficients of events in each entry


class Events(Computed):
    """Transitions by shared events.

    Parameters
    ----------
    after
        (T or 1, S, A, W, C) the next state of event w: C corners of a grid cell, or one state.
    chance
        (T or 1, K, W, M) the probability of event w in model m, for each kind of row.
    kind
        (T or 1, S, A) which chances a row has; None if all have the same (K = 1).
    coefficient
        (T or 1, S, A, W, C) the share of each corner; None if there is one (C = 1).

    Rows of actions that are not allowed may hold any next states.

    A shop with room for two; an item is asked for with probability 0.5 in one model, 0.1 in the
    other. Action 1 orders an item.

    >>> import mmdp
    >>> stock, order, demand = np.ogrid[:3, :2, :2]
    >>> after = np.minimum(np.maximum(stock - demand, 0) + order, 2)[None, ..., None]
    >>> events = Events(after, chance=np.array([[[[0.5, 0.9], [0.5, 0.1]]]]))
    >>> sold = np.minimum(stock, demand)
    >>> model = mmdp.MMDP(events, events.rewards(5 * sold - 1 * order), discount=0.9)
    >>> model.transitions[:, 1, 1].tolist()
    [[0.0, 0.5, 0.5], [0.0, 0.1, 0.9]]
    >>> model.rewards[:, 1, 1].tolist()
    [1.5, -0.5]
    """

    checked = True

    def __init__(
        self,
        after: npt.ArrayLike,
        chance: npt.ArrayLike,
        kind: npt.ArrayLike | None = None,
        coefficient: npt.ArrayLike | None = None,
    ) -> None:
        self.after = _read(after, "after", "iu", 5)
        self.chance = frozen(normalize(_read(chance, "chance", "iuf", 4), axis=2))
        self.kind = None if kind is None else _read(kind, "kind", "iu", 3)
        self.coefficient = (
            None
            if coefficient is None
            else frozen(normalize(_read(coefficient, "coefficient", "f", 5)))
        )
        self.shape = (self.chance.shape[3], *self.after.shape[1:3])
        self.steps = max(len(x) for x in self.arrays())
        self._check()

    # ------------------------------------------------------------ what a storage must have
    @property
    def entries(self) -> int:
        return int(np.prod(self.after.shape[1:]))

    @property
    def longest(self) -> int:
        return int(np.prod(self.after.shape[3:]))

    def arrays(self) -> list[npt.NDArray[Any]]:
        parts = (self.after, self.chance, self.kind, self.coefficient)
        return [x for x in parts if x is not None]

    def plan(self, problem: Problem, horizon: int) -> Plan:
        return EventsPlan(problem, horizon)

    def mapped(self, change: Callable[[Array], Array]) -> Events:
        other, chance = copy.copy(self), frozen(change(self.chance))
        other.__dict__.pop("_table", None)
        other.chance, other.shape = chance, (chance.shape[3], *self.shape[1:])
        return other

    @property
    def form(self) -> Form:
        return "events"

    def row(self, t: int, row: int) -> Row:
        e, (s, a) = self.at(t), divmod(row, self.shape[2])
        terms = e.coefficient[s, a, :, :, None] * e.chance[e.kind[s, a], :, None]
        after, place = np.unique(e.after[s, a], return_inverse=True)
        p = np.zeros((len(after), terms.shape[2]))
        np.add.at(p, place.reshape(-1), terms.reshape(-1, terms.shape[2]))
        possible = p.any(axis=1)
        return Row(after[possible], p[possible])

    def moves(self) -> Moves:
        return EventMoves(self)

    def ordered(self, s: Ids, a: Ids) -> tuple[Events, Ids]:
        other, place = copy.copy(self), np.argsort(s).astype(np.int32)
        for known in ("pattern", "_table"):
            other.__dict__.pop(known, None)
        other.after = frozen(place[self.after[:, s][:, :, a]])
        for name in ("kind", "coefficient"):
            part = getattr(self, name)
            setattr(other, name, None if part is None else frozen(part[:, s][:, :, a]))
        other.allowed = None if self.allowed is None else self.allowed[np.ix_(s, a)]
        return other, np.empty(0, np.int64)

    def content(self, n_states: int) -> Iterator[npt.NDArray[Any]]:
        return iter(self.arrays())

    def at(self, t: int) -> Moment:
        """All arrays at time t."""
        shape = self.after.shape[1:]
        kind = np.int32(0) if self.kind is None else at(self.kind, t)
        share = 1.0 if self.coefficient is None else at(self.coefficient, t)
        return Moment(
            at(self.after, t), at(self.chance, t), np.broadcast_to(kind, shape[:2]),
            np.broadcast_to(share, shape),
        )  # fmt: skip

    def rewards(self, reward: npt.ArrayLike) -> ByEvent:
        """What events earn in all models, (S, A, W) or (T or 1, S, A, W), as rewards of a model."""
        array = np.asarray(reward)
        array = _read(array[None] if array.ndim == 3 else array, "reward", "iuf", 4)
        shape = self.after.shape[1:4]
        varies = len(array) > 1 < self.steps
        if array.shape[1:] != shape or (varies and len(array) != self.steps):
            times = self.steps if varies else "times or 1"
            raise InputError(
                f"events: reward has shape {array.shape}; it must be ({times}, "
                f"{', '.join(map(str, shape))})"
            )
        return ByEvent(array, self.chance, self.kind)

    # ------------------------------------------------------------ within
    def _check(self) -> None:
        _, S, A, W, C = self.after.shape
        kinds = self.chance.shape[1]
        fits = {
            "chance": (self.chance, (kinds, W, self.shape[0])), "kind": (self.kind, (S, A)),
            "coefficient": (self.coefficient, (S, A, W, C)),
        }  # fmt: skip
        for name, (array, shape) in fits.items():
            if array is not None and array.shape[1:] != shape:
                raise InputError(
                    f"events: {name} has shape {array.shape}; with after of shape "
                    f"{self.after.shape} it must be (times or 1, {', '.join(map(str, shape))})"
                )
        for part in self.arrays():
            if len(part) not in (1, self.steps):
                raise InputError(
                    f"events cover {len(part)} and {self.steps} times; give one of them"
                )
        if self.kind is None and kinds > 1:
            raise InputError(
                f"events: chance has {kinds} kinds of rows; say with kind= which is whose"
            )
        if self.coefficient is None and C > 1:
            raise InputError(f"events: after has {C} corners; give their shares with coefficient=")
        for name, array, size in (("after", self.after, S), ("kind", self.kind, kinds)):
            if array is not None and array.size and not 0 <= array.min() <= array.max() < size:
                raise InputError(f"events: {name} must be from 0 to {size - 1}")
        for name, array, axis in (("chance", self.chance, 2), ("coefficient", self.coefficient, 4)):
            if array is not None:
                _check_shares(name, array, axis)

    @cached_property
    def pattern(self) -> Pattern:
        """Where events lead: the pattern of tables, whatever the chances are."""
        import scipy.sparse

        (_, S, A), (W, C) = self.shape, self.after.shape[3:]
        moments = [self.at(t) for t in range(self.steps)]
        column = [(e.kind[:, :, None] * W + np.arange(W)).repeat(C) for e in moments]
        row = np.arange(S * A).repeat(W * C)
        used = [
            (e.coefficient.reshape(-1) != 0) & e.chance.any(axis=2).reshape(-1)[k]
            for e, k in zip(moments, column, strict=True)
        ]
        keys = [(row * S + e.after.reshape(-1))[u] for e, u in zip(moments, used, strict=True)]
        found = np.unique(np.concatenate(keys))
        E = []
        for t, (e, k, u) in enumerate(zip(moments, column, used, strict=True)):
            place = np.searchsorted(found, keys[t]), k[u]
            shape = len(found), len(e.chance) * W
            E.append(scipy.sparse.coo_array((e.coefficient.reshape(-1)[u], place), shape).tocsr())
        lengths = np.bincount(found // S, minlength=S * A)
        return Pattern(np.concatenate([[0], np.cumsum(lengths)]), (found % S).astype(np.int32), E)

    def tabulated(self) -> Stored:
        """p = E k for each time."""
        self._check_tables()
        indptr, indices, E = self.pattern
        M, S, A = self.shape
        p = np.empty((self.steps, len(indices), M))
        for t, each in enumerate(E):
            p[t] = each @ at(self.chance, t).reshape(-1, M)
        return Stored(indptr, indices, p, len(indices) == S * A * S)

    def _check_tables(self) -> None:
        """Refuse tables that are far larger than the events."""
        M, S, A = self.shape
        size = 8 * self.steps * M * S * A * min(S, self.longest * self.steps)
        if size > LARGEST:
            raise MemoryLimitError(
                f"the tables of these shared events would take {readable_bytes(size)}; policies "
                "with memory, prices and files by entry need them",
                [
                    "use a method that needs none, such as cadp or qmdp",
                    "take fewer models with subset()",
                    "make the axes coarser",
                ],
            )


def _read(values: npt.ArrayLike, name: str, kinds: str, ndim: int) -> npt.NDArray[Any]:
    """An array of that many axes, of int32 or float64 numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in kinds or array.ndim != ndim:
        what = "numbers" if "f" in kinds else "whole numbers"
        raise InputError(
            f"events: {name} must be {what} with {ndim} axes, not {array.dtype} of shape "
            f"{array.shape}"
        )
    return frozen(array.astype(np.float64 if "f" in kinds else np.int32, copy=False))


def _check_shares(name: str, array: Array, axis: int) -> None:
    """Refuse what is no distribution along this axis."""
    if not array.min(initial=0.0) >= 0:  # false for NaN too
        raise InputError(f"events: {name} must not be negative or NaN")
    sums = array.sum(axis=axis)
    wrong = ~(np.abs(sums - 1.0) <= SUM_TOLERANCE)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        letters = "tkm" if name == "chance" else "tsaw"
        where = ", ".join(f"{x}={i}" for x, i in zip(letters, place, strict=True))
        raise InputError(f"events: {name} sums to {sums[place]:.10g}, not 1, at {where}")


class EventMoves(NamedTuple):
    """Where single episodes go by shared events; see :class:`mmdp.kernels.moves.Moves`."""

    events: Events

    def drawn(self, t: int, rows: Ids, models: Ids, u: Array) -> Ids:
        e, (s, a) = self.events.at(t), np.divmod(rows, self.events.shape[2])
        p = e.coefficient[s, a] * e.chance[e.kind[s, a], :, models][:, :, None]
        after = e.after[s, a].reshape(len(rows), -1)
        order = np.argsort(after, axis=1, kind="stable")
        k = column(np.take_along_axis(p.reshape(after.shape), order, axis=1), u)
        every = np.arange(len(rows))
        return after[every, order[every, k]].astype(np.int64)

    def likelihood(self, t: int, rows: Ids, after: Ids) -> Array:
        e, (s, a) = self.events.at(t), np.divmod(rows, self.events.shape[2])
        leads = e.after[s, a] == after[:, None, None]
        return expected((leads * e.coefficient[s, a]).sum(axis=2), e.chance, e.kind[s, a])


class EventRows(Plan):
    """A plan of shared events on any machine."""

    @property
    def events(self) -> Events:
        storage = self.problem.storage
        assert isinstance(storage, Events)
        return storage

    def pair_values(self, pairs: Pairs, y: Array | None = None, u: Array | None = None) -> Array:
        """By tables of two models at a time, unless there are prices for all."""
        if y is not None or u is not None:
            return super().pair_values(pairs, y, u)
        self.events.pattern  # noqa: B018  # found once for all pairs
        one = np.zeros(1, np.int64)
        values = []
        for i, j in zip(pairs.first, pairs.second, strict=True):
            two = self.problem.some(np.array([i, j] if i != j else [i]))
            plan = self._by_tables(two._replace(storage=two.storage.table(), r=np.asarray(two.r)))
            values.append(plan.pair_values(pairs._replace(first=one, second=one + (i != j))))
        return np.concatenate(values)

    def _by_tables(self, problem: Problem) -> Plan:
        """The plan of a few models whose tables were made, on this machine."""
        return StoredPlan(problem, self.horizon)

    def rows(self, t: int, s: int, a: int) -> Row:
        return self.events.row(t, s * self.problem.n_actions + a)


class EventsPlan(EventRows):
    """Shared events in plain numpy, one event at a time."""

    def expect(self, t: int, v: Array) -> Array:
        e, x = self.events.at(t), self.problem
        found = np.zeros((x.n_states, x.n_actions, v.shape[1]))
        for w, c in np.ndindex(e.after.shape[2:]):
            found += e.coefficient[:, :, w, c, None] * e.chance[e.kind, w] * v[e.after[:, :, w, c]]
        return found

    def push(self, t: int, b: Array, row: Table) -> Array:
        import scipy.sparse

        e, new = self.events.at(t), np.zeros_like(b)
        s, a = (np.arange(len(row)), row) if row.ndim == 1 else np.nonzero(row)
        flow = b[s] if row.ndim == 1 else b[s] * row[s, a, None]
        start = e.after.shape[3] * np.arange(len(s) + 1)
        for w in range(e.after.shape[2]):
            share, to = e.coefficient[s, a, w].ravel(), e.after[s, a, w].ravel()
            out = scipy.sparse.csr_array((share, to, start), (len(s), len(b)))
            new += out.T @ (flow * e.chance[e.kind[s, a], w])
        return new
