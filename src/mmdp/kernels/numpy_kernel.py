"""The readable kernel: the specification that every other kernel is tested against."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from mmdp.kernels.ascent import ascend
from mmdp.kernels.numpy_bounds import NumpyBounds
from mmdp.kernels.numpy_controllers import NumpyControllers
from mmdp.kernels.numpy_episodes import NumpyEpisodes
from mmdp.kernels.problem import (
    TIE,
    Array,
    Ascent,
    Backward,
    Choice,
    IntArray,
    Problem,
    Rows,
    Sweeps,
    Table,
    Watch,
    at,
)

FILLED = 0.1  # share of non-zero probabilities from which rows are treated as dense


class NumpyKernel(NumpyBounds, NumpyControllers, NumpyEpisodes):
    """Plain numpy and scipy; symbols as in :mod:`mmdp.kernels.problem`."""

    name = "numpy"

    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: Table | None = None,
        keep: Collection[str] = (),
    ) -> Backward:
        return _Passes(problem, horizon).backward(choice, weights, policy, keep)

    def forward(self, problem: Problem, horizon: int, policy: Table) -> Array:
        return _Passes(problem, horizon).forward(policy)[1]

    def ascend(
        self,
        problem: Problem,
        horizon: int,
        starts: Iterable[Table | None],
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        sweeps: Sweeps = "two-way",
        rows: Rows | None = None,
        watch: Watch | None = None,
    ) -> list[Ascent]:
        sweeper = Sweeper(problem, horizon, sweeps, rows)
        return [ascend(sweeper, start, tol, max_sweeps, watch) for start in starts]


class _Passes:
    """The passes over one problem, whose transitions are laid out once for all of them."""

    def __init__(self, problem: Problem, horizon: int, rows: Rows | None = None) -> None:
        problem.check(horizon)
        self.problem, self.horizon, self.choose = problem, horizon, rows or choose
        self.transitions = transitions_of(problem)

    # ------------------------------------------------------------ algorithm 1: model weights
    def forward(self, policy: Table, q: Array | None = None) -> tuple[Table, Array]:
        """The policy and (T, S, M) model weights b under it.

        With q (T, S, A, M) of this policy, the actions of each time are first improved for the b
        that arrives there, and the improved policy is returned.
        """
        x, T = self.problem, self.horizon
        b = np.empty((T, x.n_states, x.n_models))
        taken = np.array(policy)
        b[0] = x.start()
        for t in range(T):
            if q is not None:
                taken[t] = self.choose(_weighed(b[t], q[t], at(x.allowed, t)), b[t], policy[t])
            if t + 1 < T:
                b[t + 1] = x.moved(self.transitions.push(b[t], taken[t], t))
        return taken, b

    def backward(
        self,
        choice: Choice,
        weights: Array | None = None,
        policy: Table | None = None,
        keep: Collection[str] = (),
    ) -> Backward:
        """See :meth:`mmdp.kernels.problem.Kernel.backward`."""
        x, T = self.problem, self.horizon
        S, A, M = x.n_states, x.n_actions, x.n_models
        v = x.terminal
        actions = np.zeros((T, S, M) if choice == "own" else (T, S), dtype=np.int32)
        values = np.empty((T + 1, S, M)) if "values" in keep else None
        gradient = np.empty((T, S, A)) if "gradient" in keep else None
        all_q = np.empty((T, S, A, M)) if "q" in keep else None
        if values is not None:
            values[T] = v
        for t in reversed(range(T)):
            allowed = at(x.allowed, t)
            q = at(x.r, t) + x.discount * self.transitions.expect(x.ahead(v), t)
            if weights is not None:
                b = np.broadcast_to(at(weights, t), (S, M))
                G = _weighed(b, q, allowed)
                if gradient is not None:
                    gradient[t] = G
            if choice == "weighted":
                actions[t] = self.choose(G, b, None if policy is None else policy[t])
                v = q[np.arange(S), actions[t]]
            elif choice == "own":
                masked = np.where(allowed[:, :, None], q, -np.inf)
                actions[t] = masked.argmax(axis=1)
                v = masked.max(axis=1)
            elif policy is not None and policy.ndim == 2:
                actions[t] = policy[t]
                v = q[np.arange(S), policy[t]]
            else:
                assert policy is not None
                v = np.einsum("sa,sam->sm", policy[t], q)
            if values is not None:
                values[t] = v
            if all_q is not None:
                all_q[t] = np.where(allowed[:, :, None], q, -np.inf)
        chosen = actions if "actions" in keep or choice == "weighted" else None
        return Backward(v, chosen, values, gradient, all_q)


class Sweeper(_Passes):
    """The sweeps of an ascent; two-way ones keep q from each backward pass for the next forward."""

    def __init__(
        self, problem: Problem, horizon: int, sweeps: Sweeps, rows: Rows | None = None
    ) -> None:
        super().__init__(problem, horizon, rows)
        self.two_way = sweeps == "two-way"
        self.q: Array | None = None

    def open(self, start: Table | None) -> tuple[Table, Array]:
        self.q = None
        if start is not None:
            return start, self.problem.returns(self.backward("given", policy=start).first)
        wsu = self.backward("weighted", self.problem.prior_weights(self.horizon))
        assert wsu.actions is not None
        return wsu.actions, self.problem.returns(wsu.first)

    def sweep(self, policy: Table) -> tuple[IntArray, Array]:
        policy, b = self.forward(policy, self.q)
        incumbent = policy if policy.ndim == 2 else None
        found = self.backward("weighted", b, incumbent, keep=("q",) if self.two_way else ())
        assert found.actions is not None
        self.q = found.q
        return found.actions, self.problem.returns(found.first)


def _weighed(b: Array, q: Array, allowed: npt.NDArray[np.bool_]) -> Array:
    """(S, A) G = sum_m b q, -inf if not allowed."""
    finite = np.where(allowed[:, :, None], q, 0.0)
    G: Array = np.matmul(finite, b[:, :, None])[:, :, 0]
    G[~allowed] = -np.inf
    return G


def choose(G: Array, b: Array, incumbent: npt.NDArray[np.generic] | None) -> IntArray:
    """(S,) maximisers of G (S, A); ties to the incumbent, else to the lowest action."""
    best = G.max(axis=1)
    finite = np.where(np.isfinite(G), G, 0.0)
    tied = (best - TIE * np.abs(finite).max(axis=1))[:, None] <= G
    actions = tied.argmax(axis=1).astype(np.int32)
    if incumbent is not None:
        states = np.arange(len(G))
        keep = tied[states, incumbent] | (b.sum(axis=1) == 0)
        actions = np.where(keep, incumbent, actions).astype(np.int32)
    return actions


def transitions_of(problem: Problem) -> _Dense | _Sparse:
    """Products with the transitions: whole rows if enough of them is filled."""
    full = (len(problem.indptr) - 1) * problem.n_states
    return (_Dense if len(problem.indices) >= FILLED * full else _Sparse)(problem)


class _Dense:
    """Products with whole rows, models first: BLAS multiplies one matrix per model."""

    def __init__(self, problem: Problem) -> None:
        x = problem
        shape = len(x.p), x.n_models, len(x.indptr) - 1, x.n_states
        self.p = np.zeros(shape)
        self.p[:, :, x.rows(), x.indices] = np.moveaxis(x.p, 2, 1)
        self.n_actions = x.n_actions

    def expect(self, v: Array, t: int) -> Array:
        """sum_s' p(s'|s,a) v(s') for every model: (S, M) -> (S, A, M)."""
        found = np.matmul(at(self.p, t), v.T[:, :, None])
        return np.ascontiguousarray(found.T).reshape(-1, self.n_actions, v.shape[1])

    def push(self, b: Array, policy: Table, t: int) -> Array:
        """(S, M) b at t + 1 from b at t under the actions (S,) or probabilities (S, A) of t."""
        p = at(self.p, t)
        if policy.ndim == 1:
            flow, p = b, p[:, np.arange(len(policy)) * self.n_actions + policy]
        else:
            flow = (policy[:, :, None] * b[:, None, :]).reshape(-1, b.shape[1])
        return np.ascontiguousarray(np.matmul(flow.T[:, None, :], p)[:, 0].T)


class _Sparse:
    """Products with the entries of the pattern only; same methods as :class:`_Dense`."""

    def __init__(self, problem: Problem) -> None:
        import scipy.sparse

        x, nnz = problem, len(problem.indices)
        entries = np.arange(nnz), np.ones(nnz)
        self.p, self.indices, self.n_actions = x.p, x.indices, x.n_actions
        self.state, self.action = np.divmod(x.rows(), x.n_actions)
        rows = x.n_states * x.n_actions
        self.by_row = scipy.sparse.csr_array((entries[1], entries[0], x.indptr), shape=(rows, nnz))
        into = (entries[1], (x.indices, entries[0]))
        self.by_target = scipy.sparse.csr_array(into, shape=(x.n_states, nnz))

    def expect(self, v: Array, t: int) -> Array:
        found = np.asarray(self.by_row @ (at(self.p, t) * v[self.indices]))
        return found.reshape(-1, self.n_actions, v.shape[1])

    def push(self, b: Array, policy: Table, t: int) -> Array:
        pi: Array = np.asarray(policy if policy.ndim == 2 else np.eye(self.n_actions)[policy])
        flow = at(self.p, t) * (pi[self.state, self.action, None] * b[self.state])
        return np.asarray(self.by_target @ flow)
