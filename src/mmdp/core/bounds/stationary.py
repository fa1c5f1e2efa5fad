"""The Lagrangian relaxation over stationary policies and an infinite horizon.

As over Markov policies (:mod:`mmdp.core.bounds.dual`), without the time: u_m(s, a) is the
discounted number of times that m is the model, s the state and a the action, and L <= u_m(s) <= B
the least and the largest that any stationary policy makes of it.
"""

from __future__ import annotations

import copy
import math

import numpy as np

from mmdp.core.bounds.dual import EPS, LagrangianRelaxation
from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.infinite import DirectSolver, ModelOptima
from mmdp.core.kernels.problem import PolicyTable, VisitBounds
from mmdp.core.shapes import Array, Mask
from mmdp.core.timing import solver_clock


class StationaryRelaxation(LagrangianRelaxation):
    """Dual function D(y) over the stationary policies of the allowed actions, y (1, S, A, M).

    ``optima`` are those of the last call, from which the next one begins. The reach bounds are
    0 and all visits until :meth:`restrict_actions` is given time for better ones.
    """

    def __init__(
        self, prepared: PreparedProblem, solver: DirectSolver, optima: ModelOptima
    ) -> None:
        x = prepared.problem
        self.solver, self.optima = solver, optima
        self._reach_optima: dict[tuple[int, int], ModelOptima] = {}
        max_visits = np.multiply(x.weights * solver.effective_horizon, solver.transient.T)
        hi = np.array(np.broadcast_to(max_visits, (1, x.n_states, x.n_models)))
        self.reach = VisitBounds(np.zeros_like(hi), hi)
        super().__init__(prepared.replace(horizon=1), deadline=-math.inf)

    def restrict_actions(self, allowed: Mask, deadline: float = math.inf) -> None:
        """Set the allowed actions (1, S, A), and narrow the reach bounds until the deadline.

        Those that are there must hold for these actions; multipliers stay valid.
        """
        self.prepared = self.prepared.replace(allowed=allowed)
        x, lo, hi = self.problem, self.reach.lo.copy(), self.reach.hi.copy()
        rounding_error = 4 * EPS * (x.n_states + 4)
        for s in range(x.n_states):
            if solver_clock() > deadline:
                break
            for sign, bounds, narrow in ((1.0, hi, np.minimum), (-1.0, lo, np.maximum)):
                r = np.zeros_like(self.solver.r)
                r[:, s] = sign * np.broadcast_to(self.solver.transient, r.shape[:2])[:, s, None]
                init = self._reach_optima.get((s, int(sign)))
                optima = _with_rewards(self.solver, r).compute_model_optima(allowed[0], init)
                self._reach_optima[s, int(sign)] = optima
                visits = sign * (x.compute_returns(optima.values.T) + optima.error_bound)
                bounds[0, s] = narrow(
                    bounds[0, s], x.weights * visits * (1 + sign * rounding_error)
                )
        self.reach = VisitBounds(lo, hi)

    def evaluate_groups(
        self, y: Array | None, *, subgradient: bool = False, allowed: Mask | None = None
    ) -> float:
        """Compute the sum of the models' values; ``allowed`` (1, S, A): over these actions."""
        x, solver = self.problem, self._with_multipliers(y)
        feasible = x.allowed if allowed is None else allowed
        self.optima = solver.compute_model_optima(feasible[0], self.optima)
        if subgradient:
            m, s = np.indices(self.optima.actions.shape)
            visits = x.weights[:, None] * solver.compute_occupancy(self.optima.actions)
            self.occupancy[:] = 0.0
            self.occupancy[0, s, self.optima.actions, m] = visits * solver.transient
        returns = x.compute_returns(self.optima.values.T) + self.optima.error_bound
        return float(x.weights @ returns)

    def estimate_rounding(self, y: Array | None) -> float:
        """Bound the floating-point error of D(y), which is added to every bound."""
        return self.solver.effective_horizon * super().estimate_rounding(y)

    def compute_advantage(self, policy: PolicyTable) -> Array:
        """Compute q - v (1, S, A, M) of a policy: multipliers with which all policies are equal."""
        values = self.solver.compute_values(policy)
        advantage = self.solver.compute_q(values) - values[:, :, None]
        advantage = np.moveaxis(advantage * self.solver.transient[:, :, None], 0, 2)
        return np.where(self.problem.allowed[..., None], advantage, 0.0)

    def bound_subset(self, y: Array | None, allowed: Mask) -> float:
        """Bound the policies of some allowed actions, with y and H of the last evaluation."""
        total = self.evaluate_groups(y, allowed=allowed) + self.estimate_rounding(y)
        if y is None:
            return total
        return total + float(np.where(allowed, self.common_payoffs, -np.inf).max(axis=2).sum())

    def estimate_losses(self, y: Array | None) -> Array:
        """Estimate how much D(y) falls (S, A) if an action must be taken in a state.

        It is what models lose in the states of their optimum, and what the common policy does. It
        is infinite for actions that are not allowed.
        """
        self.evaluate(y)
        q = self._with_multipliers(y).compute_q(self.optima.values)
        visits = self.occupancy[0].sum(axis=1)
        loss: Array = np.einsum("sm,msa->sa", visits, self.optima.values[:, :, None] - q)
        if y is not None:
            loss += self.common_payoffs[0].max(axis=1, keepdims=True) - self.common_payoffs[0]
        return np.where(self.problem.allowed[0], loss, np.inf)

    def _with_multipliers(self, y: Array | None) -> DirectSolver:
        """Return the solver for rewards r - y, without those after the end of an episode."""
        r = self.solver.r
        if y is not None:
            r = r - np.moveaxis(y[0], 2, 0) * self.solver.transient[:, :, None]
        return _with_rewards(self.solver, r)


def _with_rewards(solver: DirectSolver, r: Array) -> DirectSolver:
    """Return a copy of the solver for other rewards (M, S, A)."""
    clone = copy.copy(solver)
    clone.r, clone.last_cache, clone.retained_cache = r, {}, {}
    return clone
