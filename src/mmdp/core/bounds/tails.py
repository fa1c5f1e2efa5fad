"""The occupancy program for tail objectives (CVaR, worst case, VaR) of the models' returns.

rho_m = most_m - loss_m is linear in u, with most_m that of the model's own optimum. With
eta = low + U e in the range that it can have, and model m up to D_m below it, the program maximises

    CVaR        eta - (1/alpha) sum_m lambda_m D_m z_m   with   D_m z_m >= eta - rho_m,  0 <= z <= 1
    worst case  eta                                      with         0 >= eta - rho_m
    VaR         eta                                      with   D_m z_m >= eta - rho_m,  z binary,
                                                                sum_m lambda_m z_m < alpha

Columns e and z follow those of u and pi. Only models of positive weight that can be below eta have
rows.
"""

from __future__ import annotations

import math

import numpy as np

from mmdp.core.bounds.lp import OccupancyLP, SparseMatrix
from mmdp.core.bounds.relaxation import Mask
from mmdp.core.kernels.problem import Array, PolicyTable
from mmdp.core.objectives import (
    WEIGHT_RTOL,
    CVaR,
    Mean,
    MeanCVaR,
    Objective,
    Regret,
    VaR,
    WorstCase,
    weighted_quantile,
)

LP_OBJECTIVES = (Mean.key, CVaR.key, VaR.key, WorstCase.key, MeanCVaR.key)
N_BISECTIONS = 40


def compute_loss_caps(
    objective: Objective, weights: Array, max_returns: Array, min_returns: Array, value: float
) -> Array:
    """Compute the most that each model can lose, (M,), in a policy of the given objective value.

    The other models are at their ``max_returns`` then. By bisection, since F is monotone.
    """
    lo, hi = np.zeros_like(max_returns), max_returns - min_returns
    for _ in range(N_BISECTIONS):
        middle = (lo + hi) / 2
        is_feasible = objective.value(max_returns - np.diag(middle), weights) >= value
        lo, hi = np.where(is_feasible, middle, lo), np.where(is_feasible, hi, middle)
    return np.where(weights > 0, hi, 0.0)


class TailLP:
    """Occupancy LP with the columns and rows of a tail objective.

    ``max_returns`` (M,) is rho of the models' own optima, and ``loss_caps`` (M,) the most that they
    may lose.
    """

    def __init__(
        self,
        occupancy_lp: OccupancyLP,
        objective: Objective,
        weights: Array,
        max_returns: Array,
        loss_caps: Array,
    ) -> None:
        inner: Objective = objective.inner if isinstance(objective, Regret) else objective
        self.occupancy_lp, self.weights, self.max_returns = occupancy_lp, weights, max_returns
        self.mean_share = inner.mean_weight if isinstance(inner, MeanCVaR) else float(inner.is_mean)
        self.alpha: float | None = getattr(inner, "alpha", None)
        self.has_binary_z = isinstance(inner, VaR)
        min_returns = max_returns - loss_caps
        self.eta_min, eta_max = (
            float(weighted_quantile(x, weights, self.alpha or 0.0))
            for x in (min_returns, max_returns)
        )
        self.eta_range = eta_max - self.eta_min if eta_max > self.eta_min else 1.0
        self.tail_models = np.flatnonzero((weights > 0) & (min_returns <= eta_max))
        # a model that is below eta anyway is so by at least this much
        min_shortfall = np.maximum(self.eta_min - max_returns[self.tail_models], 0.0)
        self.min_shortfall = np.zeros_like(min_shortfall) if self.has_binary_z else min_shortfall
        shortfall_range = eta_max - min_returns[self.tail_models] - self.min_shortfall
        self.shortfall_range = np.where(shortfall_range > 0, shortfall_range, 1.0)
        self.n_z = 0 if self.alpha is None else len(self.tail_models)

    @property
    def objective_offset(self) -> float:
        """Constant that the objective value and the cost sum to."""
        eta = self.eta_min
        if self.alpha is not None:
            eta -= float(self.weights[self.tail_models] @ self.min_shortfall) / self.alpha
        return (1 - self.mean_share) * eta + self.mean_share * float(
            self.weights @ self.max_returns
        )

    def bound_value_error(self, return_errors: Array) -> float:
        """Bound the change of the value if the returns change by ``return_errors`` (M,)."""
        tail_error = float(return_errors[self.tail_models].max())
        return (
            self.mean_share * float(self.weights @ return_errors)
            + (1 - self.mean_share) * tail_error
        )

    @property
    def is_integral(self) -> Mask:
        """Whether each column is binary."""
        is_policy_column: Mask = (
            np.arange(self.occupancy_lp.n_variables) >= self.occupancy_lp.n_occupancy
        )
        if self.mean_share == 1:
            return is_policy_column
        return np.concatenate([is_policy_column, [False], np.full(self.n_z, self.has_binary_z)])

    def to_arrays(self) -> tuple[Array, SparseMatrix, Array, Array, Array]:
        """Return the arrays of the LP with the columns and rows of the objective."""
        from scipy.sparse import block_array, csr_array

        if self.mean_share == 1:  # the mean, or its regret
            return self.occupancy_lp.to_arrays()
        cost, rows, lower, upper, upper_bounds = self.occupancy_lp.to_arrays()
        z_cost = np.zeros(self.n_z)
        if self.alpha is not None and not self.has_binary_z:
            z_cost += (
                (1 - self.mean_share)
                * self.shortfall_range
                * self.weights[self.tail_models]
                / self.alpha
            )
        tail_rows = self._build_tail_rows()
        tail_rhs = self.max_returns[self.tail_models] - self.eta_min + self.min_shortfall
        if self.has_binary_z:
            scale, limit = self._build_weight_limit_row()
            tail_rows.append([None, None, csr_array(scale[None])])
            tail_rhs = np.append(tail_rhs, limit)
        zero_blocks = csr_array((rows.shape[0], 1)), csr_array((rows.shape[0], self.n_z))
        return (
            np.concatenate(
                [self.mean_share * cost, [-(1 - self.mean_share) * self.eta_range], z_cost]
            ),
            block_array([[rows, *zero_blocks], *tail_rows], format="csr"),
            np.concatenate([lower, np.full(len(tail_rhs), -np.inf)]),
            np.concatenate([upper, tail_rhs]),
            np.concatenate([upper_bounds, np.ones(1 + self.n_z)]),
        )

    def _build_tail_rows(self) -> list[list[SparseMatrix]]:
        """Build U e - D_m z_m + loss_m <= max_m - eta_min (+ min_shortfall_m) for every model."""
        from scipy.sparse import coo_array, csr_array, diags_array

        n, M = len(self.tail_models), len(self.weights)
        loss = self.occupancy_lp.cost[: self.occupancy_lp.n_occupancy].reshape(-1, M)[
            :, self.tail_models
        ]
        cells, models = np.nonzero(loss)
        values = loss[cells, models] / self.weights[self.tail_models][models]
        columns = cells * M + self.tail_models[models]
        losses = coo_array(
            (values, (models, columns)), shape=(n, self.occupancy_lp.n_variables)
        ).tocsr()
        shortfall = (
            -diags_array(self.shortfall_range, format="csr") if self.n_z else csr_array((n, 0))
        )
        return [[losses, csr_array(np.full((n, 1), self.eta_range)), shortfall]]

    def _build_weight_limit_row(self) -> tuple[Array, float]:
        """Build sum lambda z < alpha as a row and its end, in units of the smallest weight."""
        assert self.alpha is not None
        lam = self.weights[self.tail_models]
        scale, limit = lam / lam.min(), (self.alpha - WEIGHT_RTOL) / float(lam.min())
        if np.ptp(scale) <= WEIGHT_RTOL:  # then it is a number of models
            limit = math.ceil(limit) - 1.0
        return scale, limit

    def policy_to_variables(self, actions: PolicyTable, b: Array, rho: Array) -> Array:
        """Convert a policy (T, S) with weights b (T, S, M) and rho (M,) to variables."""
        variables = self.occupancy_lp.policy_to_variables(actions, b)
        if self.mean_share == 1:
            return variables
        eta = float(weighted_quantile(rho, self.weights, self.alpha or 0.0))
        z = np.maximum(eta - rho[self.tail_models] - self.min_shortfall, 0.0) / self.shortfall_range
        z = (z > 0).astype(float) if self.has_binary_z else z
        return np.concatenate([variables, [(eta - self.eta_min) / self.eta_range], z[: self.n_z]])
