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

from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.problem import Array, PolicyTable
from mmdp.core.policies import MarkovPolicy
from mmdp.core.search.context import SolveContext
from mmdp.core.timing import TimeUp

MAX_STEPS, STATIONARITY_TOL = 40, 1e-6  # of a short ascent from which a search starts
ASCENT_PASSES = 3 * MAX_STEPS  # of that ascent, line search included


def iter_gradient_ascent(
    context: SolveContext, iterate: AscentIterate, direction: Direction, tol: float
) -> Iterator[AscentIterate]:
    """Iterate over the iterates of a gradient ascent until it is stationary or no step improves.

    ``tol`` is a share of the return span.
    """
    discounts, step_size, threshold = make_discount_powers(context), None, tol * context.return_span
    next_iterate: AscentIterate | None = iterate
    while next_iterate is not None:  # otherwise no step improves: this is as far as rounding allows
        yield (iterate := next_iterate)
        if iterate.compute_stationarity(discounts) <= threshold:
            return
        d = direction(iterate, discounts)
        step_size = step_size or 1.0 / float(np.abs(d).max())
        next_iterate, step_size = _line_search(context, iterate, d, step_size)


@dataclass(frozen=True)
class GradientIterate:
    """Randomized policy with its value, weights b (T, S, M) and advantage (T, S, A).

    advantage = G - sum_a pi G, 0 if not allowed; subtracting the state's mean from the
    gradient changes neither the exponentiated step nor the optimum.
    """

    logits: Array
    policy: Array
    value: float
    b: Array
    advantage: Array
    prepared: PreparedProblem

    def with_logits(self, context: SolveContext, logits: Array) -> GradientIterate:
        """Return the iterate at other logits."""
        return self.from_logits(context, logits)

    @classmethod
    def from_logits(cls, context: SolveContext, logits: Array) -> GradientIterate:
        """Evaluate the softmax policy of logits (T, S, A)."""
        policy = softmax(logits)
        prepared, allowed = context.prepared, context.problem.allowed
        b, G, returns = compute_gradient(prepared, policy)
        advantage = np.where(allowed, G - (policy * G).sum(axis=2, keepdims=True), 0.0)
        return cls(logits, policy, context.compute_mean(returns), b, advantage, prepared)

    def compute_visit_probs(self) -> Array:
        """Compute the visit probabilities sum_m b, (T, S), over the models of all shards."""
        return self.prepared.sum_models(self.b)

    def compute_stationarity(self, discounts: Array) -> float:
        """Compute sum_{t,s} gamma^t max_a advantage, which is 0 exactly at a stationary point."""
        return float((discounts[:, :, 0] * self.advantage.max(axis=2)).sum())


def compute_gradient(prepared: PreparedProblem, policy: PolicyTable) -> tuple[Array, Array, Array]:
    """Compute b (T, S, M), the gradient G = sum_m b q (T, S, A) and the returns (M,).

    G is d rho / d pi (Theorem 4.1 of Su and Petrik 2023) without gamma^t, and 0 for actions that
    are not allowed.
    """
    b = prepared.forward(policy)
    backward_pass = prepared.backward("policy", policy=policy, weights=b, keep=("gradient",))
    return (
        b,
        np.where(prepared.problem.allowed, backward_pass.gradient, 0.0),
        prepared.compute_returns(backward_pass.first_values),
    )


def natural_direction(iterate: GradientIterate, discounts: Array) -> Array:
    """Compute the mean advantage (G - sum_a pi G) / b_t(s), with b_t(s) = sum_m b_{t,m}(s)."""
    visit_probs = iterate.compute_visit_probs()[:, :, None]
    return np.divide(
        iterate.advantage, visit_probs, out=np.zeros_like(iterate.advantage), where=visit_probs > 0
    )


def mirror_direction(iterate: GradientIterate, discounts: Array) -> Array:
    """Compute d rho / d pi less its mean in each state."""
    result: Array = discounts * iterate.advantage
    return result


AscentIterate = Any  # a GradientIterate, or an object with the same value, logits and methods
Direction = Callable[[AscentIterate, Array], Array]
DIRECTIONS: dict[str, Direction] = {"mirror": mirror_direction, "gradient": natural_direction}
GRADIENT_INITS = tuple(DIRECTIONS)


def _line_search(
    context: SolveContext, iterate: AscentIterate, d: Array, step_size: float
) -> tuple[AscentIterate | None, float]:
    """Halve the step until the exact return increases; return the iterate and next step size."""
    for _ in range(60):
        trial = iterate.with_logits(context, iterate.logits + step_size * d)
        if trial.value > iterate.value:
            return trial, 2.0 * step_size
        step_size *= 0.5
        context.check_time()
    return None, step_size


def softmax(logits: Array) -> Array:
    """Convert logits to probabilities (..., A); -inf marks actions that are not allowed."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


def table_to_logits(context: SolveContext, table: PolicyTable) -> Array:
    """Convert a policy table to logits; a deterministic one is mixed with 10% of uniform one."""
    if table.ndim == 2:
        probs = MarkovPolicy(table, n_actions=context.model.n_actions).probabilities
        table = 0.9 * probs + 0.1 * MarkovPolicy.uniform(context.model, context.horizon).table
    with np.errstate(divide="ignore"):
        return np.where(context.problem.allowed, np.log(table), -np.inf)


def make_discount_powers(context: SolveContext) -> Array:
    """Return gamma^t as an array (T, 1, 1)."""
    return context.model.discount ** np.arange(context.horizon)[:, None, None].astype(float)


# ---------------------------------------------------------------------- initial policies
def ascend_and_round(context: SolveContext, name: str) -> PolicyTable:
    """Run a short gradient ascent from the uniform policy and round it to deterministic actions."""
    subcontext = context.subcontext()
    uniform = MarkovPolicy.uniform(context.model, context.horizon).table
    iterate = GradientIterate.from_logits(subcontext, table_to_logits(subcontext, uniform))
    iterates = iter_gradient_ascent(subcontext, iterate, DIRECTIONS[name], STATIONARITY_TOL)
    with suppress(TimeUp):
        for iterate in islice(iterates, MAX_STEPS + 1):
            subcontext.record(iterate.policy, iterate.value)
    if context.best_policy is not None:
        context.check_time()
    return subcontext.maximize_weighted(iterate.b)[0]
