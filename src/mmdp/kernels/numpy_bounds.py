"""What upper bounds need from a kernel, in plain numpy (see :mod:`mmdp.bounds.relaxation`).

Reach probabilities and the optima of single models are ordinary backward passes of a changed
problem. They use ``backward`` only, so any kernel can inherit them.

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

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.kernels.problem import Array, IntArray, Kernel, Pairs, Problem, Reach, at

ROOM = 2**17  # numbers of p up to which one pass aims at several states


class NumpyBounds:
    """The bounds part of a kernel that has a backward pass."""

    def reach(
        self: Kernel, problem: Problem, horizon: int,
        states: npt.NDArray[np.int64] | None = None,
    ) -> Reach:  # fmt: skip
        """B is the optimum if the only reward is for being in s at t; L the same with a minus."""
        x, n_models = problem, problem.n_models
        places = np.arange(x.n_states) if states is None else states
        goals = 2 * len(places)
        steady = len(x.p) == len(x.allowed) == 1
        chance = np.empty((horizon, goals, n_models))
        at_once = min(goals, max(1, ROOM // max(1, x.p.size)))
        many = _copies(x, at_once)
        for first in range(0, goals, at_once):
            some = np.arange(first, min(first + at_once, goals))
            prize = np.zeros((x.n_states, at_once, n_models))
            prize[places[some // 2], some - first] = np.where(some % 2 == 0, 1.0, -1.0)[:, None]
            many = changed(many, terminal=prize.reshape(x.n_states, -1))
            found = np.empty((horizon, at_once * n_models))
            if steady and horizon > 1:  # a long horizon includes every shorter one
                values = self.backward(many, horizon - 1, "own", keep=("values",)).values
                assert values is not None
                found[:] = np.tensordot(values[::-1], x.initial, (1, 0))
            else:
                for t in range(horizon):
                    start = self.backward(many, t, "own").first if t else many.terminal
                    found[t] = many.returns(start)
            chance[:, some] = found.reshape(horizon, at_once, n_models)[:, : len(some)]
        chance *= x.weights
        return Reach(-chance[:, 1::2], chance[:, ::2].copy())

    def own_values(
        self: Kernel, problem: Problem, horizon: int, y: Array | None = None,
        u: Array | None = None,
    ) -> Array:  # fmt: skip
        x = problem if y is None else changed(problem, r=problem.r - y)
        found = self.backward(x, horizon, "own", keep=("actions",) if u is not None else ())
        if u is not None:
            assert found.actions is not None
            occupancy(problem, found.actions, u)
        return x.weights * x.returns(found.first)

    def pair_values(
        self, problem: Problem, horizon: int, pairs: Pairs, y: Array | None = None,
        u: Array | None = None,
    ) -> Array:  # fmt: skip
        values = np.empty(len(pairs.first))
        for n, (i, j) in enumerate(zip(pairs.first, pairs.second, strict=True)):
            values[n] = _Pair(problem, horizon, i, j, pairs.grid).value(y, u)
        return values

    def common_prices(
        self, problem: Problem, horizon: int, y: Array, reach: Reach
    ) -> tuple[Array, IntArray]:
        prices = np.einsum("tsam,tsm->tsa", np.maximum(y, 0.0), reach.hi)
        prices += np.einsum("tsam,tsm->tsa", np.minimum(y, 0.0), reach.lo)
        prices[~np.broadcast_to(problem.allowed, prices.shape)] = -np.inf
        return prices, prices.argmax(axis=2).astype(np.int32)

    def descend(
        self, problem: Problem, horizon: int, y: Array, u: Array, best: IntArray, reach: Reach,
        keep: float, d: Array,
    ) -> float:  # fmt: skip
        """Without prices at (t, s) every mixture of actions maximises H; that of u is taken.

        Otherwise ``best`` is the maximiser. At y = 0, g may lie anywhere between its values on
        both sides; the one nearest to 0 is taken.
        """
        free = ~(y != 0.0).any(axis=(2, 3))
        used = u.sum(axis=3)
        mixture = used / (used.sum(axis=2, keepdims=True) + 1e-300)
        share = np.where(free[:, :, None], mixture, np.eye(problem.n_actions)[best])[:, :, :, None]
        least, most = reach.lo[:, :, None] * share, reach.hi[:, :, None] * share
        g = np.where(y > 0.0, most, np.where(y < 0.0, least, np.clip(u, least, most))) - u
        g[~np.broadcast_to(problem.allowed, g.shape[:3])] = 0.0
        hi = reach.hi[:, :, None]
        d *= keep
        d += np.divide(g, hi, out=np.zeros_like(g), where=hi > 1e-300)
        gamma = problem.discount ** np.arange(horizon)
        return float(gamma @ np.einsum("tsam,tsam->t", g, d))


def occupancy(problem: Problem, own: IntArray, u: Array) -> None:
    """Fill u with the occupancy of each model's own policy (T, S, M)."""
    x, actions = problem, np.arange(problem.n_actions)[:, None]
    rows, n = x.rows(), x.start()
    for t in range(len(own)):
        u[t] = np.where(own[t][:, None] == actions, n[:, None], 0.0)
        n = np.zeros_like(n)
        np.add.at(n, x.indices, at(x.p, t) * u[t].reshape(-1, x.n_models)[rows])


def changed(problem: Problem, **parts: Any) -> Problem:
    """The problem with other arrays, which become read-only."""
    for part in parts.values():
        part.setflags(write=False)
    return problem._replace(**parts)


def _copies(problem: Problem, count: int) -> Problem:
    """Every model ``count`` times, without rewards or discount; models last, (count, M)."""
    x, n_models = problem, count * problem.n_models
    return changed(
        x, p=np.tile(x.p, count), r=np.zeros((1, x.n_states, x.n_actions, n_models)),
        weights=np.tile(x.weights, count),
    )._replace(discount=1.0)  # fmt: skip


class _Pair:
    """Two models as one decision process, whose state is (s, z) with z the belief between them.

    z = 1..G are the points of the grid, with unnormalised weights (lambda_i c_z, lambda_j);
    z = 0 is model j alone and z = G + 1 model i alone. A Bayes update falls between two points.
    The value is convex in c, so the line between them (beyond the last point: the ray that
    rises like model i alone) lies above it.
    """

    def __init__(self, problem: Problem, horizon: int, i: int, j: int, grid: Array) -> None:
        self.problem, self.horizon, self.i, self.j = problem, horizon, i, j
        half = 0.5 if i == j else 1.0  # a model paired with itself stands alone
        self.knots = np.concatenate([[0.0], grid])
        self.c_i = np.concatenate([[0.0], grid, [1.0]])
        self.c_j = np.concatenate([[1.0], np.ones_like(grid), [0.0]])
        self.l_i = half * problem.weights[i] * self.c_i
        self.l_j = half * problem.weights[j] * self.c_j
        self.prior = 1 + len(grid) // 2
        self.moves = [self._moves(p) for p in problem.p]

    def _moves(self, p: Array) -> Any:
        """(S A Z, S Z) sparse: what (s, a, z) takes of the values at (s', z')."""
        from scipy.sparse import coo_array

        x, size, last = self.problem, len(self.c_i), len(self.knots) - 1
        to_i = p[:, self.i, None] * self.c_i
        to_j = p[:, self.j, None] * self.c_j
        beyond = to_i >= to_j * self.knots[last]
        c = to_i / np.where(beyond, 1.0, to_j)
        z = np.minimum(np.searchsorted(self.knots, c, side="right") - 1, last - 1)
        theta = (c - self.knots[z]) / (self.knots[z + 1] - self.knots[z])
        z = np.where(beyond, last, z)
        below = np.where(beyond, to_j, to_j * (1.0 - theta))
        above = np.where(beyond, to_i - to_j * self.knots[last], to_j * theta)
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
            moves = self.moves[t if len(self.moves) > 1 else 0]
            q += x.discount * (moves @ v.reshape(-1)).reshape(shape)
            q[~at(x.allowed, t)] = -np.inf
            chosen[t], v = q.argmax(axis=1), q.max(axis=1)
        if u is not None:
            self._occupy(chosen, u)
        return float(x.initial @ v[:, self.prior])

    def _occupy(self, chosen: npt.NDArray[np.int64], u: Array) -> None:
        x, actions = self.problem, np.arange(self.problem.n_actions)[:, None]
        mass = np.zeros(chosen.shape[1:])
        mass[:, self.prior] = x.initial
        u[..., [self.i, self.j]] = 0.0
        for t in range(self.horizon):
            taken = np.where(chosen[t][:, None] == actions, mass[:, None], 0.0)
            u[t, :, :, self.i] += taken @ self.l_i
            u[t, :, :, self.j] += taken @ self.l_j
            moves = self.moves[t if len(self.moves) > 1 else 0]
            mass = (moves.T @ taken.reshape(-1)).reshape(mass.shape)
