"""The occupancy program for the tail of the models' returns instead of their mean.

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
from typing import Any

import numpy as np

from mmdp.bounds.lp import Program
from mmdp.bounds.relaxation import Mask
from mmdp.kernels.problem import Array
from mmdp.objective import SAME, CVaR, Mean, MeanCVaR, Objective, Regret, VaR, WorstCase, quantile

KINDS = (Mean.kind, CVaR.kind, VaR.kind, WorstCase.kind, MeanCVaR.kind)
HALVINGS = 40


def caps(objective: Objective, weights: Array, most: Array, least: Array, value: float) -> Array:
    """(M,) the most that each model can lose, down to ``least``, in a policy of that value.

    The others are at their ``most`` then. By bisection: F never falls if a return rises.
    """
    lo, hi = np.zeros_like(most), most - least
    for _ in range(HALVINGS):
        middle = (lo + hi) / 2
        enough = objective.value(most - np.diag(middle), weights) >= value
        lo, hi = np.where(enough, middle, lo), np.where(enough, hi, middle)
    return np.where(weights > 0, hi, 0.0)


class Tail:
    """The program with the columns and rows of an objective.

    ``most`` (M,) is rho of the models' own optima, and ``cap`` (M,) the most that they may lose.
    """

    def __init__(
        self, program: Program, objective: Objective, weights: Array, most: Array, cap: Array
    ) -> None:
        inner: Any = objective.inner if isinstance(objective, Regret) else objective
        self.program, self.weights, self.most = program, weights, most
        self.share = inner.share if isinstance(inner, MeanCVaR) else float(inner.linear)
        self.alpha: float | None = getattr(inner, "alpha", None)
        self.binary = isinstance(inner, VaR)
        least = most - cap
        self.low, high = (float(quantile(x, weights, self.alpha or 0.0)) for x in (least, most))
        self.width = high - self.low if high > self.low else 1.0
        self.some = np.flatnonzero((weights > 0) & (least <= high))
        # a model that is below eta anyway is so by at least this much
        floor = np.maximum(self.low - most[self.some], 0.0)
        self.floor = np.zeros_like(floor) if self.binary else floor
        below = high - least[self.some] - self.floor
        self.below = np.where(below > 0, below, 1.0)
        self.n_z = 0 if self.alpha is None else len(self.some)

    @property
    def constant(self) -> float:
        """The value of the objective and the cost together."""
        eta = self.low
        if self.alpha is not None:
            eta -= float(self.weights[self.some] @ self.floor) / self.alpha
        return (1 - self.share) * eta + self.share * float(self.weights @ self.most)

    def moved(self, error: Array) -> float:
        """The most by which the value moves if the returns do by ``error`` (M,)."""
        tail = float(error[self.some].max())
        return self.share * float(self.weights @ error) + (1 - self.share) * tail

    @property
    def integral(self) -> Mask:
        """Which columns are binary."""
        first: Mask = np.arange(self.program.size) >= self.program.n_u
        if self.share == 1:
            return first
        return np.concatenate([first, [False], np.full(self.n_z, self.binary)])

    def rows(self) -> tuple[Array, Any, Array, Array, Array]:
        """Like :meth:`mmdp.bounds.lp.Program.rows`, with the objective's columns and rows."""
        from scipy.sparse import block_array, csr_array

        if self.share == 1:  # the mean, or its regret
            return self.program.rows()
        cost, rows, lower, upper, most = self.program.rows()
        z_cost = np.zeros(self.n_z)
        if self.alpha is not None and not self.binary:
            z_cost += (1 - self.share) * self.below * self.weights[self.some] / self.alpha
        tails = self._tails()
        ends = self.most[self.some] - self.low + self.floor
        if self.binary:
            scale, cap = self._few()
            tails.append([None, None, csr_array(scale[None])])
            ends = np.append(ends, cap)
        nothing = csr_array((rows.shape[0], 1)), csr_array((rows.shape[0], self.n_z))
        return (
            np.concatenate([self.share * cost, [-(1 - self.share) * self.width], z_cost]),
            block_array([[rows, *nothing], *tails], format="csr"),
            np.concatenate([lower, np.full(len(ends), -np.inf)]),
            np.concatenate([upper, ends]),
            np.concatenate([most, np.ones(1 + self.n_z)]),
        )  # fmt: skip

    def _tails(self) -> list[list[Any]]:
        """U e - D_m z_m + loss_m <= most_m - low (+ floor_m) for every model."""
        from scipy.sparse import coo_array, csr_array, diags_array

        n, M = len(self.some), len(self.weights)
        loss = self.program.cost[: self.program.n_u].reshape(-1, M)[:, self.some]
        cells, models = np.nonzero(loss)
        values = loss[cells, models] / self.weights[self.some][models]
        columns = cells * M + self.some[models]
        losses = coo_array((values, (models, columns)), shape=(n, self.program.size)).tocsr()
        slack = -diags_array(self.below, format="csr") if self.n_z else csr_array((n, 0))
        return [[losses, csr_array(np.full((n, 1), self.width)), slack]]

    def _few(self) -> tuple[Array, float]:
        """sum lambda z < alpha as a row and its end, in units of the least weight."""
        assert self.alpha is not None
        lam = self.weights[self.some]
        scale, cap = lam / lam.min(), (self.alpha - SAME) / float(lam.min())
        if np.ptp(scale) <= SAME:  # then it is a number of models
            cap = math.ceil(cap) - 1.0
        return scale, cap

    def point(self, actions: Any, b: Array, rho: Array) -> Array:
        """The variables of a policy (T, S) with weights b (T, S, M) and rho (M,)."""
        known = self.program.point(actions, b)
        if self.share == 1:
            return known
        eta = float(quantile(rho, self.weights, self.alpha or 0.0))
        z = np.maximum(eta - rho[self.some] - self.floor, 0.0) / self.below
        z = (z > 0).astype(float) if self.binary else z
        return np.concatenate([known, [(eta - self.low) / self.width], z[: self.n_z]])
