"""First-order ascent on the return: natural policy gradient and mirror ascent.

Both move the randomised policy in log space, log pi <- log pi + eta * d, with a backtracking
line search on the exact return, and end with a rounding that cannot lose return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mmdp.core.evaluate import MeanGradient
from mmdp.core.kernels.problem import Array, PolicyTable
from mmdp.core.policies import MarkovPolicy
from mmdp.core.search.context import SolveContext
from mmdp.core.timing import TimeUp

MAX_STEPS, STATIONARITY_TOL = 40, 1e-6  # of a short ascent from which a search starts
N_ERROR_SAMPLES = 32  # errors of the returns that a smoothed objective is the mean over
ASCENT_PASSES = 3 * MAX_STEPS  # of that ascent, line search included


def iter_gradient_ascent(
    context: SolveContext, iterate: GradientIterate, direction: Direction, tol: float
) -> Iterator[GradientIterate]:
    """Iterate over the iterates of a gradient ascent until it is stationary or no step improves.

    ``tol`` is a share of the return span.
    """
    step_size, threshold = None, tol * context.return_span
    next_iterate: GradientIterate | None = iterate
    while next_iterate is not None:  # otherwise no step improves: this is as far as rounding allows
        yield (iterate := next_iterate)
        if iterate.stationarity <= threshold:
            return
        d = direction(iterate)
        step_size = step_size or 1.0 / float(np.abs(d).max())
        next_iterate, step_size = _line_search(context, iterate, d, step_size)


class SmoothedObjective:
    """Mean of the objective over Gaussian errors of the returns with sd sigma; differentiable."""

    def __init__(self, context: SolveContext, sigma: float = 0.0) -> None:
        self.context, self.sigma, self.lam = context, sigma, context.problem.weights
        shape = (N_ERROR_SAMPLES if sigma else 1, len(self.lam))
        self.return_errors = sigma * np.random.default_rng(context.seed).normal(size=shape)

    def objective_value(self, returns: Array) -> float:
        """Compute the smoothed objective of returns (M,)."""
        return float(self.context.objective_values(returns + self.return_errors).mean())

    def compute_weights(self, returns: Array) -> Array:
        """Compute dF / d rho by finite differences, (M,)."""
        step = self.sigma * np.eye(len(self.lam))
        upper, lower = (
            self.context.objective_values(returns + sign * step) for sign in (1.0, -1.0)
        )
        return (upper - lower) / (2 * self.sigma)


@dataclass(frozen=True)
class GradientIterate:
    """Softmax policy with its smoothed value and the gradient of that value.

    advantage (..., S, A) = G - sum_a pi G, 0 if not allowed; subtracting the state's mean from the
    gradient changes neither the exponentiated step nor the optimum.
    """

    objective: SmoothedObjective
    logits: Array
    policy: Array
    value: float
    gradient: MeanGradient
    advantage: Array

    @classmethod
    def from_logits(cls, objective: SmoothedObjective, logits: Array) -> GradientIterate:
        """Evaluate the softmax policy of logits (..., S, A)."""
        policy, evaluator = softmax(logits), objective.context.evaluator
        if objective.context.objective.is_mean:
            gradient = evaluator.compute_gradient(policy)
        else:
            returns, J, occupancy = evaluator.compute_jacobian(policy)
            gradient = MeanGradient(returns, J @ objective.compute_weights(returns), occupancy)
        means = (policy * gradient.G).sum(axis=-1, keepdims=True)
        advantage = np.where(np.isfinite(logits), gradient.G - means, 0.0)
        value = objective.objective_value(gradient.returns)
        return cls(objective, logits, policy, value, gradient, advantage)

    @property
    def objective_value(self) -> float:
        """Exact value of the objective."""
        return self.objective.context.objective_value(self.gradient.returns)

    @property
    def stationarity(self) -> float:
        """sum_{t,s} gamma^t max_a advantage, which is 0 exactly at a stationary point."""
        return float((self.gradient.discounts * self.advantage.max(axis=-1)).sum())


def natural_direction(iterate: GradientIterate) -> Array:
    """Compute the mean advantage of each action, given that its state is visited."""
    occupancy = iterate.gradient.occupancy[..., None]
    return np.divide(
        iterate.advantage, occupancy, out=np.zeros_like(iterate.advantage), where=occupancy > 0
    )


def mirror_direction(iterate: GradientIterate) -> Array:
    """Compute d rho / d pi less its mean in each state."""
    return iterate.gradient.discounts[..., None] * iterate.advantage


Direction = Callable[[GradientIterate], Array]
DIRECTIONS: dict[str, Direction] = {"mirror": mirror_direction, "gradient": natural_direction}
GRADIENT_INITS = tuple(DIRECTIONS)


def _line_search(
    context: SolveContext, iterate: GradientIterate, d: Array, step_size: float
) -> tuple[GradientIterate | None, float]:
    """Halve the step until the exact return increases; return the iterate and next step size."""
    for _ in range(60):
        trial = GradientIterate.from_logits(iterate.objective, iterate.logits + step_size * d)
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


# ---------------------------------------------------------------------- initial policies
def ascend_and_round(context: SolveContext, name: str) -> PolicyTable:
    """Run a short gradient ascent from the uniform policy and round it to deterministic actions."""
    subcontext = context.subcontext()
    uniform = MarkovPolicy.uniform(context.model, context.horizon).table
    logits = table_to_logits(subcontext, uniform)
    iterate = GradientIterate.from_logits(SmoothedObjective(subcontext), logits)
    iterates = iter_gradient_ascent(subcontext, iterate, DIRECTIONS[name], STATIONARITY_TOL)
    with suppress(TimeUp):
        for iterate in islice(iterates, MAX_STEPS + 1):
            subcontext.record(iterate.policy, iterate.value)
    if context.best_policy is not None:
        context.check_time()
    return subcontext.maximize_weighted(subcontext.prepared.forward(iterate.policy))[0]
