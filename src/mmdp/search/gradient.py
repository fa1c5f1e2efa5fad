"""First-order ascent on the return: natural policy gradient and mirror ascent.

Both move the randomised policy in log space, log pi <- log pi + eta * d, with a backtracking
line search on the exact return, and end with a rounding that cannot lose return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from mmdp.clock import Stop
from mmdp.kernels import Plan
from mmdp.kernels.problem import Array, Table
from mmdp.policy import MarkovPolicy
from mmdp.search.context import Context

STEPS, TOL = 40, 1e-6  # of a short ascent from which a search starts
PASSES = 3 * STEPS  # of that ascent, line search included


def climb(context: Context, point: Point, direction: Direction, tol: float) -> Iterator[Point]:
    """The point and what follows, until stationary or stuck; ``tol``: a share of the stakes."""
    discounts, size, enough = discounts_of(context), None, tol * context.stakes
    found: Point | None = point
    while found is not None:  # otherwise no step improves: this is as far as rounding allows
        yield (point := found)
        if point.stationarity(discounts) <= enough:
            return
        d = direction(point, discounts)
        size = size or 1.0 / float(np.abs(d).max())
        found, size = _line_search(context, point, d, size)


@dataclass(frozen=True)
class Iterate:
    """A randomised policy with its value, weights b (T, S, M) and advantage (T, S, A).

    advantage = G - sum_a pi G, 0 if not allowed; subtracting the state's mean from the
    gradient changes neither the exponentiated step nor the optimum.
    """

    logits: Array
    policy: Array
    value: float
    b: Array
    advantage: Array
    plan: Plan

    def moved(self, context: Context, logits: Array) -> Iterate:
        return self.at(context, logits)

    @classmethod
    def at(cls, context: Context, logits: Array) -> Iterate:
        policy = softmax(logits)
        plan, allowed = context.plan, context.problem.allowed
        b, G, returns = slopes(plan, policy)
        advantage = np.where(allowed, G - (policy * G).sum(axis=2, keepdims=True), 0.0)
        return cls(logits, policy, context.mean(returns), b, advantage, plan)

    def mass(self) -> Array:
        """(T, S) sum_m b, over the models of all parts."""
        return self.plan.total(self.b)

    def stationarity(self, discounts: Array) -> float:
        """sum_{t,s} gamma^t max_a advantage: 0 exactly at a stationary policy."""
        return float((discounts[:, :, 0] * self.advantage.max(axis=2)).sum())


def slopes(plan: Plan, policy: Table) -> tuple[Array, Array, Array]:
    """b (T, S, M), G = sum_m b q (T, S, A), 0 if not allowed, and the returns (M,)."""
    b = plan.forward(policy)
    found = plan.backward("given", policy=policy, weights=b, keep=("gradient",))
    return b, np.where(plan.problem.allowed, found.gradient, 0.0), plan.returns(found.first)


def natural(point: Iterate, discounts: Array) -> Array:
    """The mean advantage A_t(s, a) = (G - sum_a pi G) / b_t(s), b_t(s) = sum_m b_{t,m}(s)."""
    mass = point.mass()[:, :, None]
    return np.divide(point.advantage, mass, out=np.zeros_like(point.advantage), where=mass > 0)


def mirror(point: Iterate, discounts: Array) -> Array:
    """d rho / d pi, up to the mean of each state."""
    result: Array = discounts * point.advantage
    return result


Point = Any  # an Iterate, or what has its value, logits, stationarity and moved
Direction = Callable[[Point, Array], Array]
DIRECTIONS: dict[str, Direction] = {"mirror": mirror, "gradient": natural}
STARTS = tuple(DIRECTIONS)


def _line_search(
    context: Context, point: Point, d: Array, size: float
) -> tuple[Point | None, float]:
    """Shrink the step until the exact return rises; the next step tries twice as far."""
    for _ in range(60):
        trial = point.moved(context, point.logits + size * d)
        if trial.value > point.value:
            return trial, 2.0 * size
        size *= 0.5
        context.check_time()
    return None, size


def softmax(logits: Array) -> Array:
    """(..., A) probabilities; -inf marks actions that are not allowed."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


def start_logits(context: Context, table: Table) -> Array:
    """Logits of a policy; a deterministic one is mixed with a little of the uniform policy."""
    if table.ndim == 2:
        sharp = MarkovPolicy(table, n_actions=context.model.n_actions).probabilities
        table = 0.9 * sharp + 0.1 * MarkovPolicy.uniform(context.model, context.horizon).table
    with np.errstate(divide="ignore"):
        return np.where(context.problem.allowed, np.log(table), -np.inf)


def discounts_of(context: Context) -> Array:
    """(T, 1, 1) gamma^t."""
    return context.model.discount ** np.arange(context.horizon)[:, None, None].astype(float)


# ---------------------------------------------------------------------- short ascents as starts
def rounded_end(context: Context, name: str) -> Table:
    """The deterministic end of a short gradient ascent from the uniform policy."""
    inner = context.quiet()
    uniform = MarkovPolicy.uniform(context.model, context.horizon).table
    point = Iterate.at(inner, start_logits(inner, uniform))
    points = climb(inner, point, DIRECTIONS[name], TOL)
    with suppress(Stop):
        for point in islice(points, STEPS + 1):
            inner.record(point.policy, point.value)
    if context.best_policy is not None:
        context.check_time()
    return inner.weighted(point.b)[0]
