"""The readable backend: tables in plain numpy and scipy."""

from __future__ import annotations

import numpy as np

from mmdp.core.kernels.costs import MIN_DENSE_FILL
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import (
    NUMPY_PREPARERS,
    Array,
    PolicyTable,
    Problem,
    TableStorage,
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


class DenseProblem(PreparedProblem):
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


class SparseProblem(PreparedProblem):
    """Products with the non-zero entries of the tables only."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        import scipy.sparse

        super().__init__(problem, horizon)
        x, nnz = problem, len(problem.indices)
        self.p, self.indices = x.p, x.indices
        self.state, self.action = np.divmod(x.get_entry_rows(), x.n_actions)
        row_sums = np.ones(nnz), np.arange(nnz), x.indptr
        self.row_sums = scipy.sparse.csr_array(row_sums, shape=(len(x.indptr) - 1, nnz))
        coordinates = (np.ones(nnz), (x.indices, np.arange(nnz)))
        self.next_state_sums = scipy.sparse.csr_array(coordinates, shape=(x.n_states, nnz))

    def expect_next(self, t: int, v: Array) -> Array:
        expected = np.asarray(self.row_sums @ (at_time(self.p, t) * v[self.indices]))
        return expected.reshape(-1, self.problem.n_actions, v.shape[1])

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        pi: Array = np.asarray(
            policy_row if policy_row.ndim == 2 else np.eye(self.problem.n_actions)[policy_row]
        )
        flow = at_time(self.p, t) * (pi[self.state, self.action, None] * b[self.state])
        return np.asarray(self.next_state_sums @ flow)


NUMPY_PREPARERS[TableStorage] = prepare_tables
