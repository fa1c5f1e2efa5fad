"""The readable backend: tables in plain numpy and scipy."""

from __future__ import annotations

import numpy as np

from mmdp.core.kernels.costs import MIN_DENSE_FILL
from mmdp.core.kernels.numpy.controllers import EntryIndex
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import (
    NUMPY_PREPARERS,
    Array,
    PolicyTable,
    Problem,
    TableStorage,
    TransitionRow,
    at_time,
)


class NumpyBackend(BaseBackend):
    """The backend in plain numpy and scipy, which specifies all others."""

    name = "numpy"


def prepare_tables(problem: Problem, horizon: int) -> PreparedProblem:
    """Prepare tables as whole rows if enough entries are non-zero, else entry by entry."""
    dense_size = (len(problem.indptr) - 1) * problem.n_states
    is_dense = len(problem.indices) >= MIN_DENSE_FILL * dense_size
    return (DenseProblem if is_dense else SparseProblem)(problem, horizon)


class TableProblem(PreparedProblem):
    """A prepared problem whose transitions are stored in tables."""

    def get_row(self, t: int, s: int, a: int) -> TransitionRow:
        return self.problem.storage.get_row(t, s * self.problem.n_actions + a)


class DenseProblem(TableProblem):
    """Products with whole rows, one BLAS call for each model."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        super().__init__(problem, horizon)
        x = problem
        self.p = np.zeros((len(x.p), x.n_models, len(x.indptr) - 1, x.n_states))
        self.p[:, :, x.get_entry_rows(), x.indices] = np.moveaxis(x.p, 2, 1)

    def expect_next(self, t: int, v: Array) -> Array:
        expected = np.matmul(at_time(self.p, t), v.T[:, :, None])
        return np.ascontiguousarray(expected.T).reshape(-1, self.problem.n_actions, v.shape[1])

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        p, n_actions = at_time(self.p, t), self.problem.n_actions
        if policy_row.ndim == 1:
            flow, p = b, p[:, np.arange(len(policy_row)) * n_actions + policy_row]
        else:
            flow = (policy_row[:, :, None] * b[:, None, :]).reshape(-1, b.shape[1])
        return np.ascontiguousarray(np.matmul(flow.T[:, None, :], p)[:, 0].T)


class SparseProblem(TableProblem):
    """Products with the non-zero entries of the tables only."""

    _pattern: EntryIndex

    def __init__(self, problem: Problem, horizon: int) -> None:
        import scipy.sparse

        super().__init__(problem, horizon)
        x, nnz = problem, len(problem.indices)
        self.p, self.indices, self._pattern = x.p, x.indices, EntryIndex(x)
        coordinates = (np.ones(nnz), (x.indices, np.arange(nnz)))
        self.next_state_sums = scipy.sparse.csr_array(coordinates, shape=(x.n_states, nnz))

    def expect_next(self, t: int, v: Array) -> Array:
        expected = np.asarray(self._pattern.row_sums @ (at_time(self.p, t) * v[self.indices]))
        return expected.reshape(-1, self.problem.n_actions, v.shape[1])

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        pi: Array = np.asarray(
            policy_row if policy_row.ndim == 2 else np.eye(self.problem.n_actions)[policy_row]
        )
        state, action = self._pattern.state, self._pattern.action
        flow = at_time(self.p, t) * (pi[state, action, None] * b[state])
        return np.asarray(self.next_state_sums @ flow)


NUMPY_PREPARERS[TableStorage] = prepare_tables
