"""The occupancy program for the tail of the models' returns instead of their mean.

rho_m is linear in u. With eta = low + U e in the range of the returns, U its width, the program
maximises

    CVaR        eta - (1/alpha) sum_m lambda_m U z_m   with   U z_m >= eta - rho_m,   0 <= z <= 1
    worst case  eta                                    with       0 >= eta - rho_m
    VaR         eta                                    with   U z_m >= eta - rho_m,   z binary,
                                                              sum_m lambda_m z_m < alpha

Columns e and z follow those of u and pi. Only models of positive weight have rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mmdp.bounds.lp import Program
from mmdp.bounds.relaxation import Mask
from mmdp.kernels.problem import Array
from mmdp.objective import SAME, CVaR, Mean, MeanCVaR, Objective, Regret, VaR, WorstCase, quantile

KINDS = (Mean.kind, CVaR.kind, VaR.kind, WorstCase.kind, MeanCVaR.kind, "regret")


class Tail:
    """The program with the columns and rows of an objective.

    ``own`` (M,) is subtracted from the returns: zeros, or the models' own optima for a regret.
    ``least`` and ``most`` (M,) bound what is left.
    """

    def __init__(
        self, program: Program, objective: Objective, weights: Array, own: Array, least: Array,
        most: Array,
    ) -> None:  # fmt: skip
        inner: Any = objective.inner if isinstance(objective, Regret) else objective
        self.program, self.weights, self.own = program, weights, own
        self.share = inner.share if isinstance(inner, MeanCVaR) else float(inner == Mean())
        self.alpha: float | None = getattr(inner, "alpha", None)
        self.binary = isinstance(inner, VaR)
        self.some = np.flatnonzero(weights > 0)
        self.low = float(least[self.some].min())
        self.width = float(most[self.some].max()) - self.low or 1.0
        self.n_z = 0 if self.alpha is None else len(self.some)

    @property
    def constant(self) -> float:
        """What the value of the objective has beside minus the cost."""
        return (1 - self.share) * self.low - self.share * float(self.weights @ self.own)

    @property
    def integral(self) -> Mask:
        """Which columns are binary."""
        first: Mask = np.arange(self.program.size) >= self.program.n_u
        if self.share == 1:
            return first
        return np.concatenate([first, [False], np.full(self.n_z, self.binary)])

    def rows(self) -> tuple[Array, Any, Array, Array, Array]:
        """As :meth:`mmdp.bounds.lp.Program.rows`, with the objective's columns and rows."""
        from scipy.sparse import block_array, csr_array

        if self.share == 1:  # the mean, or its regret
            return self.program.rows()
        cost, rows, lower, upper, most = self.program.rows()
        z_cost = np.zeros(self.n_z)
        if self.alpha is not None and not self.binary:
            z_cost += (1 - self.share) * self.width * self.weights[self.some] / self.alpha
        tails = self._tails()
        ends = -(self.low + self.own[self.some]) / self.width
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
        """e - z_m - rho_m / U <= -(low + own_m) / U for every model."""
        from scipy.sparse import coo_array, csr_array, eye_array

        n, M = len(self.some), len(self.weights)
        worth = -self.program.cost[: self.program.n_u].reshape(-1, M)[:, self.some]
        cells, models = np.nonzero(worth)
        values = -worth[cells, models] / (self.width * self.weights[self.some][models])
        columns = cells * M + self.some[models]
        returns = coo_array((values, (models, columns)), shape=(n, self.program.size)).tocsr()
        slack = -eye_array(n, format="csr") if self.n_z else csr_array((n, 0))
        return [[returns, csr_array(np.ones((n, 1))), slack]]

    def _few(self) -> tuple[Array, float]:
        """sum lambda z < alpha as a row and its end, in units of the least weight."""
        assert self.alpha is not None
        lam = self.weights[self.some]
        scale, cap = lam / lam.min(), (self.alpha - SAME) / float(lam.min())
        if np.ptp(scale) <= SAME:  # then as many models as that
            cap = math.ceil(cap) - 1.0
        return scale, cap

    def point(self, actions: Any, b: Array, rho: Array) -> Array:
        """The variables of a policy (T, S) with weights b (T, S, M) and rho (M,)."""
        known = self.program.point(actions, b)
        if self.share == 1:
            return known
        level = 0.0 if self.alpha is None else self.alpha
        eta = float(quantile(rho, self.weights, level))
        z = np.maximum(eta - rho[self.some], 0.0) / self.width
        z = (z > 0).astype(float) if self.binary else z
        return np.concatenate([known, [(eta - self.low) / self.width], z[: self.n_z]])
