"""Bounds in closed form: Oracle and QMDP at the root, from each model's own optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmdp.kernels import Plan, Problem
from mmdp.kernels.problem import Array

STAKES = 1000  # a gap is relative to at most this many times (Oracle - value)


def own_optimum(plan: Plan) -> tuple[Array, Array]:
    """(S, A, M) q* at the first step, -inf if not allowed, and (M,) lambda_m v*_{1,m}(mu)."""
    x, values = plan.problem, plan.backward("own", keep=("values",)).values
    q = np.where(x.allowed[0, :, :, None], plan.step(0, values[1]), -np.inf)
    return q, x.weights * plan.returns(values[0])


class Closing:
    """How close a bound must come to a value to close a gap of it, on one problem.

    A gap is relative to |value|, or to a thousandth of the largest possible return. If rewards have
    a large offset, a small share of the value is much of what is at stake between Oracle and the
    value. So that counts too, and rounding alone leaves no gap open.
    """

    def __init__(self, problem: Problem, horizon: float) -> None:
        felt = horizon if problem.discount == 1 else min(horizon, 4 / (1 - problem.discount))
        self.weights, self.error = problem.weights, problem.roundings(felt)
        self.largest = float(problem.magnitudes(horizon).max())

    def __call__(
        self, gap: float, value: float, oracle: float,
        worth: Callable[[Array], float] | None = None,
    ) -> float:  # fmt: skip
        """``worth``: the value if returns move by an error (M,); by default, of their mean."""
        scale = min(max(abs(value), 1e-3 * self.largest), STAKES * max(oracle - value, 0.0))
        error, worth = self.error, worth or (lambda x: float(self.weights @ x))
        return max(gap * scale, 2 * (worth(error) - worth(-error)))


def rounding(problem: Problem, horizon: float) -> float:
    """The most by which floating-point error can have lowered either bound, or any mean."""
    return float(problem.weights @ problem.roundings(horizon))


def first_bound(plan: Plan) -> tuple[Array, float]:
    """(M,) lambda_m v*_m, and the better of both bounds with rounding added."""
    q, own = own_optimum(plan)
    best = min(oracle_bound(own), qmdp_bound(plan.problem, q))
    return own, best + rounding(plan.problem, plan.horizon)


def oracle_bound(own: Array) -> float:
    """sum_m lambda_m v*_m: every model plays its own optimal policy."""
    return float(own.sum())


def qmdp_bound(problem: Problem, q: Array) -> float:
    """sum_s max_a sum_m lambda_m mu_m(s) q*_{1,m}(s, a): the model is revealed after one step."""
    weighed = np.matmul(np.where(np.isfinite(q), q, 0.0), problem.start()[:, :, None])[:, :, 0]
    return float(np.where(problem.allowed[0], weighed, -np.inf).max(axis=1).sum())
