"""The passes of upper bounds in plain numpy (see :mod:`mmdp.core.bounds.dual`).

Visit probabilities and the optima of single models are ordinary backward passes with other
numbers.

=========  =========================================================  ============
symbol     meaning                                                    shape
=========  =========================================================  ============
lo, hi     L, B: least and largest P[model m, state s at t]           (T, S, M)
y          prices, in units of reward at that time                    (T, S, A, M)
u          occupancy P[model m, state s, action a at t] of the        (T, S, A, M)
           policy that each model or pair of models chose for itself
H          sum_m (B y+ - L y-), the reward of the common policy       (T, S, A)
=========  =========================================================  ============
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.numpy.passes import Passes
from mmdp.core.kernels.problem import Array, IntArray, ModelPairs, Problem, VisitBounds, at_time

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class BoundPasses(Passes):
    """The passes that upper bounds need."""

    has_independent_models: ClassVar[bool] = True

    def compute_visit_bounds(self, states: npt.NDArray[np.int64] | None = None) -> VisitBounds:
        """Compute the least and largest visit probability of every model, state and time.

        ``states``: of these alone, which takes two passes per state. B is the optimum if the only
        reward is for being in s at t; L the same with a minus.
        """
        x, T = self.problem, self.horizon
        target_states = np.arange(x.n_states) if states is None else states
        without_rewards = self.replace(
            rewards=np.zeros((1, x.n_states, x.n_actions, x.n_models)), discount=1.0
        )
        lo, hi = (np.empty((T, len(target_states), x.n_models)) for _ in range(2))
        for n, s in enumerate(target_states):
            for sign, bound in ((1.0, hi), (-1.0, lo)):
                terminal = np.zeros((x.n_states, x.n_models))
                terminal[s] = sign
                bound[:, n] = (
                    sign
                    * x.weights
                    * _optima_by_horizon(without_rewards.replace(terminal=terminal))
                )
        return VisitBounds(lo, hi)

    def compute_weighted_optima(self, y: Array | None = None, u: Array | None = None) -> Array:
        """Compute (M,) lambda_m times the optimum of each model alone with rewards r - y.

        ``y`` (T, S, A, M) are prices in units of reward at that time. ``u`` (T, S, A, M) is
        filled with the occupancy P[m, s, a at t] of the models' own policies.
        """
        prepared = self if y is None else self.replace(rewards=np.asarray(self.problem.r) - y)
        backward_pass = prepared.backward("per_model", keep=("actions",) if u is not None else ())
        if u is not None:
            self.fill_occupancy(backward_pass.actions, u)
        return self.problem.weights * self.compute_returns(backward_pass.first_values)

    def fill_occupancy(self, model_actions: IntArray, u: Array) -> None:
        """Fill u with the occupancy of each model's own policy (T, S, M)."""
        x, actions = self.problem, np.arange(self.problem.n_actions)[:, None]
        rows, n = x.get_entry_rows(), x.initial_joint()
        for t in range(len(model_actions)):
            u[t] = np.where(model_actions[t][:, None] == actions, n[:, None], 0.0)
            n = np.zeros_like(n)
            np.add.at(n, x.indices, at_time(x.p, t) * u[t].reshape(-1, x.n_models)[rows])

    def compute_pair_optima(
        self, pairs: ModelPairs, y: Array | None = None, u: Array | None = None
    ) -> Array:
        """Compute (n,) the weighted optimum lambda_i V_i + lambda_j V_j of each pair of models."""
        values = np.empty(len(pairs.first))
        for n, (i, j) in enumerate(zip(pairs.first, pairs.second, strict=True)):
            values[n] = _PairProblem(self.problem, self.horizon, i, j, pairs).compute_value(y, u)
        return values

    def compute_common_term(self, y: Array, visit_bounds: VisitBounds) -> tuple[Array, IntArray]:
        """Compute H (T, S, A) = sum_m (B y+ - L y-) and its maximizer (T, S)."""
        H = np.einsum("tsam,tsm->tsa", np.maximum(y, 0.0), visit_bounds.hi)
        H += np.einsum("tsam,tsm->tsa", np.minimum(y, 0.0), visit_bounds.lo)
        H[~np.broadcast_to(self.problem.allowed, H.shape)] = -np.inf
        return H, H.argmax(axis=2).astype(np.int32)

    def update_direction(
        self,
        y: Array,
        u: Array,
        best: IntArray,
        visit_bounds: VisitBounds,
        momentum: float,
        d: Array,
    ) -> float:
        """Set d = momentum * d + g / B for a subgradient g of D at y, and return <g, d>.

        ``u`` is the occupancy that :meth:`compute_weighted_optima` or
        :meth:`compute_pair_optima` found at y, and ``best`` the maximizer of
        :meth:`compute_common_term`. Among the subgradients the one
        near 0 is taken; inner products are weighed by gamma^t.

        Without prices at (t, s) every mixture of actions maximizes H; that of u is taken.
        Otherwise ``best`` is the maximizer. At y = 0, g may lie anywhere between its values on
        both sides; the one nearest to 0 is taken.
        """
        x = self.problem
        has_no_multipliers = ~(y != 0.0).any(axis=(2, 3))
        action_mass = u.sum(axis=3)
        mixture = action_mass / (action_mass.sum(axis=2, keepdims=True) + 1e-300)
        action_probs = np.where(has_no_multipliers[:, :, None], mixture, np.eye(x.n_actions)[best])[
            :, :, :, None
        ]
        lower, upper = (
            visit_bounds.lo[:, :, None] * action_probs,
            visit_bounds.hi[:, :, None] * action_probs,
        )
        g = np.where(y > 0.0, upper, np.where(y < 0.0, lower, np.clip(u, lower, upper))) - u
        g[~np.broadcast_to(x.allowed, g.shape[:3])] = 0.0
        hi = visit_bounds.hi[:, :, None]
        d *= momentum
        d += np.divide(g, hi, out=np.zeros_like(g), where=hi > 1e-300)
        gamma = x.discount ** np.arange(self.horizon)
        return float(gamma @ np.einsum("tsam,tsam->t", g, d))


def _optima_by_horizon(prepared: BoundPasses) -> Array:
    """Compute (T, M) the optimum of every model if its terminal values are paid after t steps."""
    x, T = prepared.problem, prepared.horizon
    if x.storage.n_times == len(x.allowed) == 1:  # a long horizon includes every shorter one
        values = prepared.backward("per_model", keep=("values",)).values
        return x.compute_returns(values[:0:-1])
    first_values = [
        x.terminal,
        *(prepared.replace(horizon=t).backward("per_model").first_values for t in range(1, T)),
    ]
    return np.array([prepared.compute_returns(v) for v in first_values])


class _PairProblem:
    """A decision process of two models, with states (s, z) and the belief z between the two.

    z = 1..G are the points of the grid, with unnormalised weights (lambda_i c_z, lambda_j);
    z = 0 is model j alone and z = G + 1 model i alone. A Bayes update falls between two points.
    The value is convex in c, so the line between them (beyond the last point: the ray that
    rises like model i alone) lies above it.
    """

    def __init__(self, problem: Problem, horizon: int, i: int, j: int, pairs: ModelPairs) -> None:
        self.problem, self.horizon, self.i, self.j = problem, horizon, i, j
        scale = 0.5 if i == j else 1.0  # a model paired with itself stands alone
        grid, self.pairs = pairs.grid, pairs
        self.c_i = np.concatenate([[0.0], grid, [1.0]])
        self.c_j = np.concatenate([[1.0], np.ones_like(grid), [0.0]])
        self.l_i = scale * problem.weights[i] * self.c_i
        self.l_j = scale * problem.weights[j] * self.c_j
        self.transitions = [self._build_transitions(p) for p in problem.p]

    def _build_transitions(self, p: Array) -> csr_array:
        """Build the sparse matrix (S A Z, S Z) from (s, a, z) to (s', z')."""
        from scipy.sparse import coo_array

        x, size = self.problem, len(self.c_i)
        z, lower_weight, upper_weight = self.pairs.interpolate(
            p[:, self.i, None] * self.c_i, p[:, self.j, None] * self.c_j
        )
        rows = x.get_entry_rows()[:, None] * size + np.arange(size)
        columns = x.indices[:, None] * size + z
        rows, columns, weights = (
            np.concatenate(halves).ravel()
            for halves in ((rows, rows), (columns, columns + 1), (lower_weight, upper_weight))
        )
        shape = (x.n_states * x.n_actions * size, x.n_states * size)
        return coo_array((weights, (rows, columns)), shape=shape).tocsr()

    def compute_value(self, y: Array | None, u: Array | None) -> float:
        """Compute the value by backward induction with prices y; fill the occupancy u if given."""
        x, shape = self.problem, (self.problem.n_states, self.problem.n_actions, len(self.c_i))
        v = x.terminal[:, self.i, None] * self.l_i + x.terminal[:, self.j, None] * self.l_j
        chosen_actions = np.empty((self.horizon, shape[0], shape[2]), dtype=np.int64)
        for t in reversed(range(self.horizon)):
            r = at_time(x.r, t) if y is None else at_time(x.r, t) - y[t]
            q = r[:, :, self.i, None] * self.l_i + r[:, :, self.j, None] * self.l_j
            transitions = at_time(self.transitions, t)
            q += x.discount * (transitions @ v.reshape(-1)).reshape(shape)
            q[~at_time(x.allowed, t)] = -np.inf
            chosen_actions[t], v = q.argmax(axis=1), q.max(axis=1)
        if u is not None:
            self._fill_occupancy(chosen_actions, u)
        return float((self.pairs.initial_mass(x, self.i, self.j) * v).sum())

    def _fill_occupancy(self, chosen_actions: npt.NDArray[np.int64], u: Array) -> None:
        """Fill u with the occupancy of both models under the chosen actions (T, S, Z)."""
        x, actions = self.problem, np.arange(self.problem.n_actions)[:, None]
        mass = self.pairs.initial_mass(x, self.i, self.j)
        u[..., [self.i, self.j]] = 0.0
        for t in range(self.horizon):
            flow = np.where(chosen_actions[t][:, None] == actions, mass[:, None], 0.0)
            u[t, :, :, self.i] += flow @ self.l_i
            u[t, :, :, self.j] += flow @ self.l_j
            transitions = at_time(self.transitions, t)
            mass = (transitions.T @ flow.reshape(-1)).reshape(mass.shape)
