"""The readable backend: tables in plain numpy and scipy."""

from __future__ import annotations

import numpy as np

from mmdp.core.kernels.costs import MIN_DENSE_FILL
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import PolicyTable, Problem, at_time
from mmdp.core.shapes import Array


class NumpyBackend(BaseBackend):
    """The backend in plain numpy and scipy, which specifies all others."""

    name = "numpy"


def prepare_tables(problem: Problem, horizon: int) -> PreparedProblem:
    """Prepare tables as whole rows if enough entries are non-zero, else entry by entry."""
    dense_size = (len(problem.indptr) - 1) * problem.n_states
    is_dense = len(problem.indices) >= MIN_DENSE_FILL * dense_size
    return (DenseProblem if is_dense else SparseProblem)(problem, horizon)


MAX_MATRIX_SIZE = 2**19  # numbers of a matrix up to which its product with a vector is one call


class DenseProblem(PreparedProblem):
    """Products with whole rows, one BLAS call for each model."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        super().__init__(problem, horizon)
        x, n_rows = problem, len(problem.indptr) - 1
        if x.is_dense:
            self.p = np.ascontiguousarray(np.moveaxis(x.p, 2, 1))
        else:
            self.p = np.zeros((len(x.p), x.n_models, n_rows * x.n_states))
            self.p[:, :, x.get_entry_rows() * x.n_states + x.indices] = np.moveaxis(x.p, 2, 1)
        # of all rows, or of one state each: BLAS starts threads for large matrices, which spin
        is_large = n_rows * x.n_states > MAX_MATRIX_SIZE
        self.p = self.p.reshape(len(x.p), x.n_models, x.n_states if is_large else 1, -1, x.n_states)

    def expect_next(self, t: int, v: Array) -> Array:
        expected = np.matmul(at_time(self.p, t), v.T[:, None, :, None])
        by_row = np.ascontiguousarray(expected.reshape(v.shape[1], -1).T)
        return by_row.reshape(-1, self.problem.n_actions, v.shape[1])

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        n_actions = self.problem.n_actions
        p = at_time(self.p, t).reshape(b.shape[1], -1, len(b))
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
