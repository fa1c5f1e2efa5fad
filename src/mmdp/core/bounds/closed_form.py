"""Bounds in closed form: Oracle and QMDP, from the optimum of each model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.shapes import Array

MAX_GAP_SCALE = 1000  # a gap is relative to at most this many times (Oracle - value)


def compute_closed_forms(prepared: PreparedProblem) -> tuple[Array, float]:
    """Compute lambda_m v*_m(mu) (M,), whose sum is the Oracle bound, and the QMDP bound.

    Oracle: every model follows its optimal policy. QMDP: sum_s max_a sum_m lambda_m mu_m(s)
    q*_{1,m}(s, a).
    """
    x, values = prepared.problem, prepared.backward("per_model", keep=("values",)).values
    allowed = x.allowed[0]
    q = np.where(allowed[:, :, None], prepared.q_step(0, values[1]), 0.0)
    mean_q = np.where(allowed, np.einsum("sam,sm->sa", q, x.initial_joint()), -np.inf)
    return x.weights * prepared.compute_returns(values[0]), float(mean_q.max(axis=1).sum())


class GapTolerance:
    """Tolerance at which a bound counts as closed, for one problem.

    A gap is relative to |value|, or to a thousandth of the largest possible return. If rewards have
    a large offset, a small share of the value is much of what is at stake between Oracle and the
    value. So that counts too, and rounding alone leaves no gap open.
    """

    def __init__(self, problem: Problem, horizon: float) -> None:
        effective_horizon = (
            horizon if problem.discount == 1 else min(horizon, 4 / (1 - problem.discount))
        )
        self.weights = problem.weights
        self.rounding_errors = problem.rounding_errors(effective_horizon)
        self.max_magnitude = float(problem.max_abs_returns(horizon).max())

    def __call__(
        self,
        gap: float,
        value: float,
        oracle: float,
        objective_value: Callable[[Array], float] | None = None,
    ) -> float:
        """Compute the absolute tolerance for a relative gap at a value.

        ``objective_value`` maps errors of the returns (M,) to the value; their mean by default.
        """
        magnitude = max(abs(value), 1e-3 * self.max_magnitude)
        scale = min(magnitude, MAX_GAP_SCALE * max(oracle - value, 0.0))
        F = objective_value or (lambda errors: float(self.weights @ errors))
        return max(gap * scale, 3 * (F(self.rounding_errors) - F(-self.rounding_errors)))


def estimate_rounding(problem: Problem, horizon: float) -> float:
    """Bound the floating-point error of the closed forms, or of any mean return."""
    return float(problem.weights @ problem.rounding_errors(horizon))


def compute_first_bound(prepared: PreparedProblem) -> float:
    """Compute the smaller of both closed forms, rounded up."""
    weighted_optima, qmdp_bound = compute_closed_forms(prepared)
    best = min(float(weighted_optima.sum()), qmdp_bound)
    return best + estimate_rounding(prepared.problem, prepared.horizon)
