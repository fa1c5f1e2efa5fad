"""Bounds in closed form: Oracle and QMDP, from the optimum of each model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.problem import Array

MAX_GAP_SCALE = 1000  # a gap is relative to at most this many times (Oracle - value)


def compute_model_optima(prepared: PreparedProblem) -> tuple[Array, Array]:
    """Compute q* at time 0 (S, A, M), -inf if not allowed, and lambda_m v*_m(mu) (M,).

    The sum of the latter is the Oracle bound: every model follows its optimal policy.
    """
    x, values = prepared.problem, prepared.backward("per_model", keep=("values",)).values
    q = np.where(x.allowed[0, :, :, None], prepared.q_step(0, values[1]), -np.inf)
    return q, x.weights * prepared.compute_returns(values[0])


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
        self.weights, self.rounding_errors = (
            problem.weights,
            problem.rounding_errors(effective_horizon),
        )
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
        scale = min(
            max(abs(value), 1e-3 * self.max_magnitude), MAX_GAP_SCALE * max(oracle - value, 0.0)
        )
        rounding_errors, objective_value = (
            self.rounding_errors,
            objective_value or (lambda x: float(self.weights @ x)),
        )
        return max(
            gap * scale, 2 * (objective_value(rounding_errors) - objective_value(-rounding_errors))
        )


def estimate_rounding(problem: Problem, horizon: float) -> float:
    """Bound the floating-point error of the closed forms, or of any mean return."""
    return float(problem.weights @ problem.rounding_errors(horizon))


def compute_first_bound(prepared: PreparedProblem) -> float:
    """Compute the smaller of both closed forms, rounded up."""
    q, weighted_optima = compute_model_optima(prepared)
    best = min(float(weighted_optima.sum()), compute_qmdp_bound(prepared.problem, q))
    return best + estimate_rounding(prepared.problem, prepared.horizon)


def compute_qmdp_bound(problem: Problem, q: Array) -> float:
    """Compute the QMDP bound sum_s max_a sum_m lambda_m mu_m(s) q*_{1,m}(s, a)."""
    weighted_q = np.matmul(np.where(np.isfinite(q), q, 0.0), problem.initial_joint()[:, :, None])[
        :, :, 0
    ]
    return float(np.where(problem.allowed[0], weighted_q, -np.inf).max(axis=1).sum())
