"""What upper bounds ask of a plan, in plain numpy (see :mod:`mmdp.bounds.relaxation`).

Reach probabilities and the optima of single models are ordinary backward passes with other
numbers.

=========  =========================================================  ============
symbol     meaning                                                    shape
=========  =========================================================  ============
lo, hi     L, B: least and largest P[model m, state s at t]           (T, S, M)
y          prices, in units of reward at that time                    (T, S, A, M)
u          occupancy P[model m, state s, action a at t] of the        (T, S, A, M)
           policy that each model or pair of models chose for itself
H          sum_m (B y+ - L y-), what the common policy is paid        (T, S, A)
=========  =========================================================  ============
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.kernels.numpy.passes import Passes
from mmdp.kernels.problem import Array, IntArray, Pairs, Problem, Reach, at


class Bounds(Passes):
    """The bounds part of a plan; ``apart``: whether a model, or a pair, can be bounded alone."""

    apart: ClassVar[bool] = True

    def reach(self, states: npt.NDArray[np.int64] | None = None) -> Reach:
        """The least and largest probability of every model, state and time, not rounded.

        ``states``: of these alone, which takes two passes per state. B is the optimum if the only
        reward is for being in s at t; L the same with a minus.
        """
        x, T = self.problem, self.horizon
        places = np.arange(x.n_states) if states is None else states
        bare = self.but(rewards=np.zeros((1, x.n_states, x.n_actions, x.n_models)), discount=1.0)
        lo, hi = (np.empty((T, len(places), x.n_models)) for _ in range(2))
        for n, s in enumerate(places):
            for sign, found in ((1.0, hi), (-1.0, lo)):
                prize = np.zeros((x.n_states, x.n_models))
                prize[s] = sign
                found[:, n] = sign * x.weights * _chances(bare.but(terminal=prize))
        return Reach(lo, hi)

    def own_values(self, y: Array | None = None, u: Array | None = None) -> Array:
        """(M,) lambda_m times the optimum of each model alone with rewards r - y.

        ``y`` (T, S, A, M) are prices in units of reward at that time. ``u`` (T, S, A, M) is
        filled with the occupancy P[m, s, a at t] of the models' own policies.
        """
        plan = self if y is None else self.but(rewards=np.asarray(self.problem.r) - y)
        found = plan.backward("own", keep=("actions",) if u is not None else ())
        if u is not None:
            self.occupancy(found.actions, u)
        return self.problem.weights * self.returns(found.first)

    def occupancy(self, own: IntArray, u: Array) -> None:
        """Fill u with the occupancy of each model's own policy (T, S, M)."""
        x, actions = self.problem, np.arange(self.problem.n_actions)[:, None]
        rows, n = x.rows(), x.start()
        for t in range(len(own)):
            u[t] = np.where(own[t][:, None] == actions, n[:, None], 0.0)
            n = np.zeros_like(n)
            np.add.at(n, x.indices, at(x.p, t) * u[t].reshape(-1, x.n_models)[rows])

    def pair_values(self, pairs: Pairs, y: Array | None = None, u: Array | None = None) -> Array:
        """(n,) lambda_i V_i + lambda_j V_j of the optimum of each pair; y and u as above."""
        values = np.empty(len(pairs.first))
        for n, (i, j) in enumerate(zip(pairs.first, pairs.second, strict=True)):
            values[n] = _Pair(self.problem, self.horizon, i, j, pairs).value(y, u)
        return values

    def common_prices(self, y: Array, reach: Reach) -> tuple[Array, IntArray]:
        """(T, S, A) H = sum_m (B y+ - L y-), -inf if not allowed, and (T, S) its maximiser."""
        prices = np.einsum("tsam,tsm->tsa", np.maximum(y, 0.0), reach.hi)
        prices += np.einsum("tsam,tsm->tsa", np.minimum(y, 0.0), reach.lo)
        prices[~np.broadcast_to(self.problem.allowed, prices.shape)] = -np.inf
        return prices, prices.argmax(axis=2).astype(np.int32)

    def descend(
        self, y: Array, u: Array, best: IntArray, reach: Reach, keep: float, d: Array
    ) -> float:
        """d = keep * d + g / B for a subgradient g of D at y, in place; returns <g, d>.

        ``u`` is the occupancy that :meth:`own_values` or :meth:`pair_values` found at y, and
        ``best`` the maximiser that :meth:`common_prices` found. Among the subgradients the one
        near 0 is taken; inner products are weighed by gamma^t.

        Without prices at (t, s) every mixture of actions maximises H; that of u is taken.
        Otherwise ``best`` is the maximiser. At y = 0, g may lie anywhere between its values on
        both sides; the one nearest to 0 is taken.
        """
        x = self.problem
        free = ~(y != 0.0).any(axis=(2, 3))
        used = u.sum(axis=3)
        mixture = used / (used.sum(axis=2, keepdims=True) + 1e-300)
        share = np.where(free[:, :, None], mixture, np.eye(x.n_actions)[best])[:, :, :, None]
        least, most = reach.lo[:, :, None] * share, reach.hi[:, :, None] * share
        g = np.where(y > 0.0, most, np.where(y < 0.0, least, np.clip(u, least, most))) - u
        g[~np.broadcast_to(x.allowed, g.shape[:3])] = 0.0
        hi = reach.hi[:, :, None]
        d *= keep
        d += np.divide(g, hi, out=np.zeros_like(g), where=hi > 1e-300)
        gamma = x.discount ** np.arange(self.horizon)
        return float(gamma @ np.einsum("tsam,tsam->t", g, d))


def _chances(plan: Bounds) -> Array:
    """(T, M) the optimum of every model if its terminal values are paid after t steps."""
    x, T = plan.problem, plan.horizon
    if x.storage.steps == len(x.allowed) == 1:  # a long horizon includes every shorter one
        values = plan.backward("own", keep=("values",)).values
        return x.returns(values[:0:-1])
    first = [x.terminal, *(plan.but(horizon=t).backward("own").first for t in range(1, T))]
    return np.array([plan.returns(v) for v in first])


class _Pair:
    """Two models as one decision process, whose state is (s, z) with z the belief between them.

    z = 1..G are the points of the grid, with unnormalised weights (lambda_i c_z, lambda_j);
    z = 0 is model j alone and z = G + 1 model i alone. A Bayes update falls between two points.
    The value is convex in c, so the line between them (beyond the last point: the ray that
    rises like model i alone) lies above it.
    """

    def __init__(self, problem: Problem, horizon: int, i: int, j: int, pairs: Pairs) -> None:
        self.problem, self.horizon, self.i, self.j = problem, horizon, i, j
        half = 0.5 if i == j else 1.0  # a model paired with itself stands alone
        grid, self.pairs = pairs.grid, pairs
        self.c_i = np.concatenate([[0.0], grid, [1.0]])
        self.c_j = np.concatenate([[1.0], np.ones_like(grid), [0.0]])
        self.l_i = half * problem.weights[i] * self.c_i
        self.l_j = half * problem.weights[j] * self.c_j
        self.moves = [self._moves(p) for p in problem.p]

    def _moves(self, p: Array) -> Any:
        """(S A Z, S Z) sparse: what (s, a, z) takes of the values at (s', z')."""
        from scipy.sparse import coo_array

        x, size = self.problem, len(self.c_i)
        z, below, above = self.pairs.between(
            p[:, self.i, None] * self.c_i, p[:, self.j, None] * self.c_j
        )
        rows = x.rows()[:, None] * size + np.arange(size)
        columns = x.indices[:, None] * size + z
        rows, columns, weights = (
            np.concatenate(both).ravel()
            for both in ((rows, rows), (columns, columns + 1), (below, above))
        )
        shape = (x.n_states * x.n_actions * size, x.n_states * size)
        return coo_array((weights, (rows, columns)), shape=shape).tocsr()

    def value(self, y: Array | None, u: Array | None) -> float:
        """The value at the root by backward induction; u by pushing it forward again."""
        x, shape = self.problem, (self.problem.n_states, self.problem.n_actions, len(self.c_i))
        v = x.terminal[:, self.i, None] * self.l_i + x.terminal[:, self.j, None] * self.l_j
        chosen = np.empty((self.horizon, shape[0], shape[2]), dtype=np.int64)
        for t in reversed(range(self.horizon)):
            r = at(x.r, t) if y is None else at(x.r, t) - y[t]
            q = r[:, :, self.i, None] * self.l_i + r[:, :, self.j, None] * self.l_j
            moves = at(self.moves, t)
            q += x.discount * (moves @ v.reshape(-1)).reshape(shape)
            q[~at(x.allowed, t)] = -np.inf
            chosen[t], v = q.argmax(axis=1), q.max(axis=1)
        if u is not None:
            self._occupy(chosen, u)
        return float((self.pairs.start(x, self.i, self.j) * v).sum())

    def _occupy(self, chosen: npt.NDArray[np.int64], u: Array) -> None:
        x, actions = self.problem, np.arange(self.problem.n_actions)[:, None]
        mass = self.pairs.start(x, self.i, self.j)
        u[..., [self.i, self.j]] = 0.0
        for t in range(self.horizon):
            taken = np.where(chosen[t][:, None] == actions, mass[:, None], 0.0)
            u[t, :, :, self.i] += taken @ self.l_i
            u[t, :, :, self.j] += taken @ self.l_j
            moves = at(self.moves, t)
            mass = (moves.T @ taken.reshape(-1)).reshape(mass.shape)
