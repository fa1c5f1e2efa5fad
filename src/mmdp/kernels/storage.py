"""A storage of your own: transitions that a plan computes instead of reading them from tables."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.kernels.moves import Moves
from mmdp.kernels.plan import Plan
from mmdp.kernels.problem import Array, Form, Ids, Problem, Row, Storage, Stored


class Computed:
    """Derive from this class: give ``shape``, and a ``plan`` with ``expect`` and ``push``.

    Passes, ascents and objectives run on that plan, with every backend. Work that goes entry by
    entry (checks, controllers, pairs of models, files) reads tables, which are made once, when
    they are first asked for. So do episodes and linear programs unless ``moves`` and ``row`` are
    written too.
    """

    shape: tuple[int, int, int]  # models, states, actions
    steps: int = 1  # time steps that transitions are given for; 1 if they do not vary
    checked: bool = False  # whether rows are known to be distributions, without tables
    allowed: npt.NDArray[np.bool_] | None = None  # (S, A); tables hold 0 for other actions

    def plan(self, problem: Problem, horizon: int) -> Plan:
        """The problem laid out in plain numpy."""
        raise NotImplementedError

    @property
    def entries(self) -> int:
        """Multiply-adds per model of one step; by default those of tables."""
        return self.shape[1] ** 2 * self.shape[2]

    @property
    def longest(self) -> int:
        """The most next states of a row."""
        return self.shape[1]

    def table(self) -> Stored:
        return self._table

    def within(self, allowed: npt.NDArray[np.bool_]) -> Computed:
        """The same storage, for a model in which only these actions (S, A) are allowed."""
        other = copy.copy(self)
        other.__dict__.pop("_table", None)
        other.allowed = None if allowed.all() else allowed
        return other

    @cached_property
    def _table(self) -> Stored:
        table = self.tabulated()
        if self.allowed is not None:
            table.p[:, ~self.allowed.reshape(-1)[table.rows()]] = 0.0
        return table

    def mapped(self, change: Callable[[Array], Array]) -> Storage:
        return self.table().mapped(change)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """All that is held of the transitions."""
        return self.table().arrays()

    @property
    def form(self) -> Form:
        return self.table().form

    def ordered(self, s: Ids, a: Ids) -> tuple[Storage, Ids]:
        return self.table().ordered(s, a)

    def row(self, t: int, row: int) -> Row:
        return self.table().row(t, row)

    def moves(self) -> Moves:
        return self.table().moves()

    def content(self, n_states: int) -> Iterator[npt.NDArray[Any]]:
        return self.table().content(n_states)

    def tabulated(self) -> Stored:
        """Column by column: what is expected of a value that is 1 in one state alone."""
        M, S, A = self.shape
        bare = Problem(
            self, r=np.zeros((1, S, A, M)), allowed=np.ones((1, S, A), bool),
            initial=np.full((S, 1), 1 / S), weights=np.full(M, 1 / M), discount=1.0,
            terminal=np.zeros((S, M)),
        )  # fmt: skip
        plan, units = self.plan(bare, self.steps), np.repeat(np.eye(S)[:, :, None], M, axis=2)
        columns = [[plan.expect(t, unit) for unit in units] for t in range(self.steps)]
        p = np.moveaxis(np.array(columns), 1, 3).reshape(self.steps, S * A, S, M)
        found = p.any(axis=(0, 3))
        indptr = np.concatenate([[0], np.cumsum(found.sum(axis=1))])
        return Stored(indptr, np.nonzero(found)[1].astype(np.int32), p[:, found], bool(found.all()))
