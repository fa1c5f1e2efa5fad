"""The readable kernel: the specification that every other kernel is tested against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmdp.kernels.problem import TIE, Array, Backward, Choice, IntArray, Problem


class NumpyKernel:
    """Plain numpy and scipy; symbols as in :mod:`mmdp.kernels.problem`."""

    name = "numpy"

    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: npt.NDArray[np.generic] | None = None,
        keep_actions: bool = False,
        keep_values: bool = False,
        keep_gradient: bool = False,
        keep_q: bool = False,
    ) -> Backward:
        T, S, A, M = horizon, problem.n_states, problem.n_actions, problem.n_models
        allowed = problem.allowed
        expect = _Expectation(problem)
        v = problem.terminal
        actions = np.zeros((T, S, M) if choice == "own" else (T, S), dtype=np.int32)
        values = np.empty((T + 1, S, M)) if keep_values else None
        gradient = np.empty((T, S, A)) if keep_gradient else None
        all_q = np.empty((T, S, A, M)) if keep_q else None
        if values is not None:
            values[T] = v
        for t in reversed(range(T)):
            q = _at(problem.r, t) + problem.discount * expect(v, t)
            if weights is not None:
                b = np.broadcast_to(_at(weights, t), (S, M))
                G = np.einsum("sm,sam->sa", b, q)
                G[~allowed] = -np.inf
                if gradient is not None:
                    gradient[t] = G
            if choice == "weighted":
                incumbent = None if policy is None else policy[t]
                actions[t] = choose(G, b, incumbent)
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
        chosen = actions if keep_actions or choice == "weighted" else None
        return Backward(v, chosen, values, gradient, all_q)

    def forward(self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic]) -> Array:
        b = np.empty((horizon, problem.n_states, problem.n_models))
        b[0] = problem.initial[:, None] * problem.weights
        for t in range(horizon - 1):
            b[t + 1] = _step(problem, t, policy[t], b[t])
        return b

    def improve(
        self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic], q: Array
    ) -> tuple[IntArray, Array]:
        actions = np.empty((horizon, problem.n_states), dtype=np.int32)
        b = np.empty((horizon, problem.n_states, problem.n_models))
        b[0] = problem.initial[:, None] * problem.weights
        for t in range(horizon):
            finite = np.where(problem.allowed[:, :, None], q[t], 0.0)
            G = np.einsum("sm,sam->sa", b[t], finite)
            G[~problem.allowed] = -np.inf
            actions[t] = choose(G, b[t], policy[t])
            if t + 1 < horizon:
                b[t + 1] = _step(problem, t, actions[t], b[t])
        return actions, b


def _step(problem: Problem, t: int, policy: npt.NDArray[np.generic], b: Array) -> Array:
    """b at t + 1 from b (S, M) at t under the actions (S,) or probabilities (S, A) of t."""
    pi: Array = np.asarray(policy if policy.ndim == 2 else np.eye(problem.n_actions)[policy])
    row_state, row_action = np.divmod(problem.rows(), problem.n_actions)
    flow = _at(problem.p, t) * (pi[row_state, row_action, None] * b[row_state])
    after = np.zeros_like(b)
    np.add.at(after, problem.indices, flow)
    return after


class _Expectation:
    """sum_s' p(s'|s,a) v(s') for every model: (S, M) -> (S, A, M)."""

    def __init__(self, problem: Problem) -> None:
        import scipy.sparse

        self.problem = problem
        nnz, n_rows = len(problem.indices), len(problem.indptr) - 1
        if not problem.dense:
            ones = (np.ones(nnz), np.arange(nnz), problem.indptr)
            self.sum_rows = scipy.sparse.csr_array(ones, shape=(n_rows, nnz))

    def __call__(self, v: Array, t: int) -> Array:
        x = self.problem
        S, A, M = x.n_states, x.n_actions, x.n_models
        p = _at(x.p, t)
        if x.dense:
            result: Array = np.einsum("sanm,nm->sam", p.reshape(S, A, S, M), v)
            return result
        return np.asarray(self.sum_rows @ (p * v[x.indices])).reshape(S, A, M)


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


def _at(array: Array, t: int) -> Array:
    """The slice of time t of an array that may not vary with time."""
    result: Array = array[t if len(array) > 1 else 0]
    return result
