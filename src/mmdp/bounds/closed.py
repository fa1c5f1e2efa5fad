"""Bounds in closed form: Oracle and QMDP at the root, from each model's own optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmdp.bounds.relaxation import EPS
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.problem import Array

STAKES = 1000  # times Oracle less the value, of which a gap may be a share


def own_optimum(problem: Problem, horizon: int, kernel: Kernel) -> tuple[Array, Array]:
    """(S, A, M) q* at the first step, -inf if not allowed, and (M,) lambda_m v*_{1,m}(mu)."""
    x = problem
    values = kernel.backward(x, horizon, "own", keep=("values",)).values
    assert values is not None
    after = x.p[0] * x.ahead(values[1])[x.indices]
    expected = np.zeros((len(x.indptr) - 1, x.p.shape[2]))
    filled = np.flatnonzero(np.diff(x.indptr))
    expected[filled] = np.add.reduceat(after, x.indptr[filled], axis=0)
    q = x.r[0] + x.discount * expected.reshape(x.r.shape[1:])
    q = np.where(x.allowed[0, :, :, None], q, -np.inf)
    return q, x.weights * x.returns(values[0])


def magnitudes(problem: Problem, horizon: float) -> Array:
    """(M,) the largest |return| of each model that rewards of its size could give.

    Models that change, or that other processes hold too, count as the largest of all.
    """
    x, g = problem, problem.discount
    times = horizon if g == 1 else (1 - g**horizon) / (1 - g)
    r, terminal = (np.abs(y).reshape(-1, y.shape[-1]).max(axis=0) for y in (x.r, x.terminal))
    found: Array = times * r + g**horizon * terminal
    if x.drift is None and x.part is None:
        return found
    return np.full(x.n_models, x.everywhere([float(found.max())]).max())


def magnitude(problem: Problem, horizon: float) -> float:
    """The largest |return| that rewards of this size could give in any model."""
    return float(magnitudes(problem, horizon).max())


def scale_of(value: float, problem: Problem, horizon: float) -> float:
    """What a relative gap is relative to: |value|, or a thousandth of the largest return."""
    return max(abs(value), 1e-3 * magnitude(problem, horizon))


def closing(
    gap: float, value: float, oracle: float, problem: Problem, horizon: float,
    worth: Callable[[Array], float] | None = None,
) -> float:  # fmt: skip
    """How close a bound must come to a value to close this gap.

    If rewards have a large offset, a small share of the value is much of what is at stake between
    Oracle and the value. So that counts too, and rounding alone leaves no gap open. ``worth``
    gives the value if the returns are moved by an error (M,); the mean of all models by default.
    """
    scale = min(scale_of(value, problem, horizon), STAKES * max(oracle - value, 0.0))
    felt = horizon if problem.discount == 1 else min(horizon, 4 / (1 - problem.discount))
    error = roundings(problem, felt)
    moved = 2 * problem.weights @ error if worth is None else worth(error) - worth(-error)
    return max(gap * scale, 4 * float(moved))


def roundings(problem: Problem, horizon: float) -> Array:
    """(M,) the most by which floating-point error can have changed the return of each model."""
    x = problem
    row = int(np.diff(x.indptr).max(initial=1)) + (0 if x.drift is None else x.n_models)
    terms = (horizon + 1) * (row + 4) + x.n_models + x.n_states
    return 4 * EPS * terms * magnitudes(x, horizon)


def rounding(problem: Problem, horizon: float) -> float:
    """The most by which floating-point error can have lowered either bound."""
    return float(roundings(problem, horizon).max())


def mean_rounding(problem: Problem, horizon: float) -> float:
    """The same for the mean: a model counts by its weight."""
    return float(problem.weights @ roundings(problem, horizon))


def first_bound(problem: Problem, horizon: int, kernel: Kernel) -> tuple[Array, float]:
    """(M,) lambda_m v*_m, and the better of both bounds with rounding added."""
    q, own = own_optimum(problem, horizon, kernel)
    best = min(oracle_bound(own), qmdp_bound(problem, q))
    return own, best + mean_rounding(problem, horizon)


def oracle_bound(own: Array) -> float:
    """sum_m lambda_m v*_m: every model plays its own optimal policy."""
    return float(own.sum())


def qmdp_bound(problem: Problem, q: Array) -> float:
    """sum_s mu(s) max_a sum_m lambda_m q*_{1,m}(s, a): the model is revealed after one step."""
    weighed = np.where(
        problem.allowed[0], np.where(np.isfinite(q), q, 0.0) @ problem.weights, -np.inf
    )
    return float(problem.initial @ weighed.max(axis=1))
