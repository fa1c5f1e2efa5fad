"""The readable kernel: stored tables in plain numpy and scipy."""

from __future__ import annotations

import numpy as np

from mmdp.kernels.plan import Machine, Plan
from mmdp.kernels.problem import PLAIN, Array, Problem, Row, Stored, Table, at

FILLED = 0.1  # share of non-zero probabilities from which rows are treated as dense


class NumpyKernel(Machine):
    """Plain numpy and scipy, the specification that every other kernel is tested against."""

    name = "numpy"


def lay_out(problem: Problem, horizon: int) -> Plan:
    """Stored tables as whole rows if enough of them is filled, else by their entries."""
    full = (len(problem.indptr) - 1) * problem.n_states
    dense = len(problem.indices) >= FILLED * full
    return (DensePlan if dense else SparsePlan)(problem, horizon)


class StoredPlan(Plan):
    """A plan of a problem whose transitions are stored on a pattern."""

    def rows(self, t: int, s: int, a: int) -> Row:
        return self.problem.storage.row(t, s * self.problem.n_actions + a)


class DensePlan(StoredPlan):
    """Products with whole rows, models first: BLAS multiplies one matrix per model."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        super().__init__(problem, horizon)
        x = problem
        self.p = np.zeros((len(x.p), x.n_models, len(x.indptr) - 1, x.n_states))
        self.p[:, :, x.rows(), x.indices] = np.moveaxis(x.p, 2, 1)

    def expect(self, t: int, v: Array) -> Array:
        found = np.matmul(at(self.p, t), v.T[:, :, None])
        return np.ascontiguousarray(found.T).reshape(-1, self.problem.n_actions, v.shape[1])

    def push(self, t: int, b: Array, row: Table) -> Array:
        p, n_actions = at(self.p, t), self.problem.n_actions
        if row.ndim == 1:
            flow, p = b, p[:, np.arange(len(row)) * n_actions + row]
        else:
            flow = (row[:, :, None] * b[:, None, :]).reshape(-1, b.shape[1])
        return np.ascontiguousarray(np.matmul(flow.T[:, None, :], p)[:, 0].T)


class SparsePlan(StoredPlan):
    """Products with the entries of the pattern only."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        import scipy.sparse

        super().__init__(problem, horizon)
        x, nnz = problem, len(problem.indices)
        entries, ones = np.arange(nnz), np.ones(nnz)
        self.p, self.indices = x.p, x.indices
        self.state, self.action = np.divmod(x.rows(), x.n_actions)
        shape = x.n_states * x.n_actions, nnz
        self.by_row = scipy.sparse.csr_array((ones, entries, x.indptr), shape=shape)
        into = (ones, (x.indices, entries))
        self.by_target = scipy.sparse.csr_array(into, shape=(x.n_states, nnz))

    def expect(self, t: int, v: Array) -> Array:
        found = np.asarray(self.by_row @ (at(self.p, t) * v[self.indices]))
        return found.reshape(-1, self.problem.n_actions, v.shape[1])

    def push(self, t: int, b: Array, row: Table) -> Array:
        pi: Array = np.asarray(row if row.ndim == 2 else np.eye(self.problem.n_actions)[row])
        flow = at(self.p, t) * (pi[self.state, self.action, None] * b[self.state])
        return np.asarray(self.by_target @ flow)


PLAIN[Stored] = lay_out
