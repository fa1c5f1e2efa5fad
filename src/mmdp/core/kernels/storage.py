"""Custom storages: transitions that are computed instead of read from tables."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import (
    ALL_MODELS,
    Problem,
    Storage,
    StorageFormat,
    TableStorage,
    TransitionRow,
    make_indptr,
)
from mmdp.core.kernels.sampling import TransitionSampler
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask


class CustomStorage:
    """A base class for storages that compute transitions instead of reading tables.

    A subclass sets ``shape`` and writes ``prepare``, whose result has ``expect_next`` and
    ``push_forward``. Passes, ascents and objectives use these, with every backend. Work that
    goes entry by entry (checks, controllers, pairs of models, episodes, files) reads tables, which
    are made once, when they are first asked for. So do linear programs unless ``get_row`` is
    written too.
    """

    shape: tuple[int, int, int]  # models, states, actions
    n_times: int = 1  # time steps that transitions are given for; 1 if they do not vary
    is_compiled: bool = False  # whether the compiled backends know it
    has_valid_rows: bool = False  # whether rows are known to be distributions, without tables
    allowed: Mask | None = None  # (S, A); tables hold 0 for other actions

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        """Prepare a problem in plain numpy, with ``expect_next`` and ``push_forward``."""
        raise NotImplementedError

    @property
    def n_entries(self) -> int:
        """The multiply-adds of one step in one model; by default those of tables."""
        return self.shape[1] ** 2 * self.shape[2]

    @property
    def max_row_length(self) -> int:
        """The largest number of next states of a row."""
        return self.shape[1]

    def to_table(self) -> TableStorage:
        """Convert the transitions to tables, for work that goes entry by entry."""
        return self._table

    def select_rows(self, rows: IndexArray) -> TableStorage:
        """Return the tables of these rows s * A + a alone, in this order.

        A next state may have several entries.
        """
        return self.to_table().select_rows(rows)

    def restrict_actions(self, allowed: Mask) -> CustomStorage:
        """Return the same storage for a model with only these actions (S, A) allowed."""
        clone = copy.copy(self)
        clone.allowed = None if allowed.all() else allowed
        return clone

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and other processes take: all but the tables."""
        return {name: value for name, value in vars(self).items() if name != "_table"}

    @cached_property
    def _table(self) -> TableStorage:
        table = self.compute_table()
        if self.allowed is not None:
            table.p[:, ~self.allowed.reshape(-1)[table.get_entry_rows()]] = 0.0
        return table

    def map_models(self, function: Callable[[Array], Array]) -> Storage:
        """Return the storage of other models: ``function`` of the numbers (..., M) of p."""
        return self.to_table().map_models(function)

    def get_arrays(self) -> list[AnyArray]:
        """Return all arrays that hold the transitions."""
        return self.to_table().get_arrays()

    @property
    def format(self) -> StorageFormat:
        """The name of the format."""
        return self.to_table().format

    def reorder(self, states: IndexArray, actions: IndexArray) -> tuple[Storage, IndexArray]:
        """Reorder states and actions by these ids; return the storage and its entry order."""
        return self.to_table().reorder(states, actions)

    def get_row(self, t: int, row: int) -> TransitionRow:
        """Return the next states of row s * A + a at time t and their probabilities."""
        return self.to_table().get_row(t, row)

    def make_sampler(self, models: slice = ALL_MODELS) -> TransitionSampler:
        """Make a sampler of next states for single episodes in these models."""
        return self.to_table().make_sampler(models)

    def iter_content(self, n_states: int) -> Iterator[AnyArray]:
        """Yield arrays that are equal only for equal transitions, in any format."""
        return self.to_table().iter_content(n_states)

    def compute_table(self) -> TableStorage:
        """Compute the tables from the expectation of a value that is 1 in one state alone."""
        M, S, A = self.shape
        problem = Problem(
            self,
            r=np.zeros((1, S, A, M)),
            allowed=np.ones((1, S, A), bool),
            initial=np.full((S, 1), 1 / S),
            weights=np.full(M, 1 / M),
            discount=1.0,
            terminal=np.zeros((S, M)),
        )
        prepared = self.prepare(problem, self.n_times)
        unit_vectors = np.repeat(np.eye(S)[:, :, None], M, axis=2)
        columns = [
            [prepared.expect_next(t, unit) for unit in unit_vectors] for t in range(self.n_times)
        ]
        p = np.moveaxis(np.array(columns), 1, 3).reshape(self.n_times, S * A, S, M)
        is_nonzero = p.any(axis=(0, 3))
        return TableStorage(
            make_indptr(is_nonzero.sum(axis=1)),
            np.nonzero(is_nonzero)[1].astype(np.int32),
            p[:, is_nonzero],
            bool(is_nonzero.all()),
        )
