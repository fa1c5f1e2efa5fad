"""First-order ascents: natural policy gradient, mirror ascent, and randomized policies.

Both move the randomised policy in log space, log pi <- log pi + eta * d, with a backtracking
line search on the exact return, and end with a rounding that cannot lose return.

Randomized policies are searched by ascents on the exact objective from several initial policies.
The return of a model is linear in the probabilities at one time and state, so over a finite horizon
the mean gains nothing by randomization. It does for stationary policies, and other objectives F may
gain in any case. With the derivatives J_m = d rho_m / d pi of the returns:

- the mean ascends along its gradient sum_m lambda_m J_m;
- a concave F has kinks, at which a gradient ascent ends. So each step is a linear program: the best
  F of the returns rho + J d, which weighted means bound from above, for d in a trust region;
- any other F is smoothed: its mean over Gaussian errors of the returns, with decreasing sd sigma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mmdp.core.evaluate import MeanGradient
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.policies import MarkovPolicy
from mmdp.core.search.context import MethodResult, SolveContext
from mmdp.core.search.multistart import default_n_init
from mmdp.core.shapes import Array
from mmdp.core.solution import Status
from mmdp.core.timing import TimeUp

MAX_HALVINGS = 60  # of a step until the exact return increases
MAX_INIT_STEPS, INIT_TOL = 40, 1e-6  # of a short ascent from which a search starts
N_ERROR_SAMPLES = 32  # errors of the returns that a smoothed objective is the mean over
ASCENT_PASSES = 3 * MAX_INIT_STEPS  # of that ascent, line search included


def iter_gradient_ascent(
    context: SolveContext, iterate: GradientIterate, direction: Direction, tol: float
) -> Iterator[GradientIterate]:
    """Iterate over the iterates of a gradient ascent until it is stationary or no step improves.

    ``tol`` is a share of the return span.
    """
    step_size, threshold = 0.0, tol * context.return_span
    yield iterate
    while iterate.stationarity > threshold:
        d = direction(iterate)
        step_size = 2.0 * step_size or 1.0 / float(np.abs(d).max())
        for _ in range(MAX_HALVINGS):
            trial = GradientIterate.from_logits(iterate.objective, iterate.logits + step_size * d)
            if trial.value > iterate.value:
                break
            step_size *= 0.5
            context.check_time()
        else:  # no step improves: this is as far as rounding allows
            return
        yield (iterate := trial)


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
    def from_table(cls, context: SolveContext, table: PolicyTable) -> GradientIterate:
        """Evaluate a policy table; a deterministic one is mixed with 10% of the uniform one."""
        if table.ndim == 2:
            probs = MarkovPolicy(table, n_actions=context.model.n_actions).probabilities
            table = 0.9 * probs + 0.1 * MarkovPolicy.uniform(context.model, context.horizon).table
        with np.errstate(divide="ignore"):
            logits = np.where(context.problem.allowed, np.log(table), -np.inf)
        return cls.from_logits(SmoothedObjective(context), logits)

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


def softmax(logits: Array) -> Array:
    """Convert logits to probabilities (..., A); -inf marks actions that are not allowed."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


# ---------------------------------------------------------------------- initial policies
def ascend_and_round(context: SolveContext, name: str) -> PolicyTable:
    """Run a short gradient ascent from the uniform policy and round it to deterministic actions."""
    subcontext = context.subcontext()
    uniform = MarkovPolicy.uniform(context.model, context.horizon).table
    iterate = GradientIterate.from_table(subcontext, uniform)
    iterates = iter_gradient_ascent(subcontext, iterate, DIRECTIONS[name], INIT_TOL)
    with suppress(TimeUp):
        for iterate in islice(iterates, MAX_INIT_STEPS + 1):
            subcontext.record(iterate.policy, iterate.value)
    if context.best_policy is not None:
        context.check_time()
    return subcontext.maximize_weighted(subcontext.prepared.forward(iterate.policy))[0]


MAX_STEPS, STATIONARITY_TOL = 200, 1e-9  # of an ascent at most, and the stationarity that is enough
SMOOTHING_SHARES = (0.3, 0.03, 0.003)  # shares of the spread of the returns
INITS = (  # policies and the share of the uniform one in them
    ("deterministic", 0.1),
    ("models", 0.1),
    ("uniform", 1.0),
    ("deterministic", 0.5),
    *[("random", 0.0)] * 4,
)
MAX_LP_STEPS, MAX_NEW_CUTS, MAX_KEPT_CUTS = (
    40,
    12,
    40,
)  # linear steps, new cuts in one of them, cuts that are kept
MIN_GAIN_SHARE = 0.1  # share of what a linear step promises that it must earn
MIN_BOX_WIDTH = 1e-7  # the smallest box
NEGLIGIBLE_SHARE = 1e-3  # share of what drawing earns, for which fewer actions are drawn
MAX_REDUCTION_TRIES = 200  # tables that are tried for that at most


def solve_randomized(context: SolveContext, deterministic: MethodResult) -> MethodResult:
    """Find a randomized policy that beats the deterministic one, or return the latter.

    ``details["randomization_gain"]`` is the difference of their objective values.
    """
    base_value = context.objective_value(deterministic.required_returns)
    unchanged = deterministic.replace(details={**deterministic.details, "randomization_gain": 0.0})
    if context.objective.is_mean and context.policy_class.name == "markov":
        return unchanged
    evaluator, best, value, trace = context.evaluator, None, base_value, [base_value]
    for init in _iter_inits(context, deterministic.policy):
        for policy, new_value in _iter_ascent(context, init):
            context.details["randomization_gain"] = max(context.best_value, new_value) - base_value
            context.record(evaluator.to_table(policy), new_value)
            if new_value > value:
                best, value = policy, new_value
                trace.append(value)
    if best is None or not value - base_value > 2 * context.estimate_rounding(
        deterministic.required_returns
    ):
        return unchanged
    best = _reduce_randomization(context, best, value - NEGLIGIBLE_SHARE * (value - base_value))
    value = context.objective_value(evaluator.compute_returns(best))
    for policy, new_value in _iter_ascent(context, best):  # with the actions that are left
        if new_value > value:
            best, value = policy, new_value
    return MethodResult(
        evaluator.to_table(best),
        Status.COMPLETED,
        len(trace),
        returns=evaluator.compute_returns(best),
        trace=[*trace, value],
        details={**deterministic.details, "randomization_gain": value - base_value},
    )


# ---------------------------------------------------------------------- ascents
def _iter_ascent(context: SolveContext, init: Array) -> Iterator[tuple[Array, float]]:
    """Iterate over the policies of an ascent and their values; smoothed ever less if not by LP."""
    F, returns = context.objective, context.evaluator.compute_returns(init)
    spread = float(np.ptp(returns)) or context.return_span  # models may all return the same
    if spread == 0:  # and so may all policies
        return
    if F.is_concave and not F.is_mean:
        yield from _ascend_by_lp(context, init)
        return
    with np.errstate(divide="ignore"):
        logits = np.log(init)
    for share in (0.0,) if F.is_mean else SMOOTHING_SHARES:
        iterate = GradientIterate.from_logits(SmoothedObjective(context, share * spread), logits)
        iterates = iter_gradient_ascent(context, iterate, natural_direction, STATIONARITY_TOL)
        for iterate in islice(iterates, MAX_STEPS):
            logits = iterate.logits
            yield iterate.policy, context.objective_value(iterate.gradient.returns)


def _ascend_by_lp(context: SolveContext, init: Array) -> Iterator[tuple[Array, float]]:
    """Ascend by linear programs in a trust region that adapts to the gain of each step."""
    policy, width, lp, evaluator = init, 1.0, TrustRegionLP(context), context.evaluator
    rho, J, _ = evaluator.compute_jacobian(policy)
    value = context.objective_value(rho)
    for _ in range(MAX_LP_STEPS):
        yield policy, value
        while True:
            step, predicted_gain = lp.solve_step(rho, J, policy, width)
            if predicted_gain <= STATIONARITY_TOL * abs(value) or width < MIN_BOX_WIDTH:
                return
            trial = np.maximum(policy + step, 0.0)
            trial /= trial.sum(axis=-1, keepdims=True)
            trial_value = context.objective_value(evaluator.compute_returns(trial))
            if trial_value - value >= MIN_GAIN_SHARE * predicted_gain:
                break
            context.check_time()
            width /= 4
        policy, value, width = trial, trial_value, min(2 * width, 1.0)
        rho, J, _ = evaluator.compute_jacobian(policy)
    yield policy, value


class TrustRegionLP:
    """Linear program for a step d: max z with z <= sum_m w_m (rho_m + (J d)_m) + c for all cuts."""

    def __init__(self, context: SolveContext) -> None:
        from scipy.sparse import csr_array

        self.context, self.allowed = context, context.evaluator.allowed
        self.free_columns = np.flatnonzero(self.allowed)
        n, size = len(self.free_columns), self.allowed.shape[-1]
        entries = np.ones(n), (self.free_columns // size, range(n))
        self.sum_rows = csr_array(entries, (self.allowed.size // size, n + 1))
        self.cuts: list[tuple[Array, float]] = []

    def solve_step(
        self, returns: Array, J: Array, policy: Array, width: float
    ) -> tuple[Array, float]:
        """Return the best step (..., S, A) in the box and its predicted gain of the objective."""
        from scipy.optimize import linprog

        F, lam = self.context.objective, self.context.problem.weights
        rho = F.relative_returns(returns, self.context.oracle_returns)
        J, pi = J.reshape(-1, len(lam))[self.free_columns], policy.ravel()[self.free_columns]
        box = np.stack([np.maximum(-pi, -width), np.minimum(1 - pi, width)], axis=1)
        column_bounds = np.vstack([box, [[-np.inf, np.inf]]])
        return_change, step = np.zeros_like(lam), np.zeros(self.allowed.size)
        current_value, gain = float(F.value(rho, lam)), 0.0
        for _ in range(MAX_NEW_CUTS):
            xi = F.dual_density(rho + return_change, lam)
            self.cuts = [*self.cuts[-MAX_KEPT_CUTS:], (lam * xi, F.penalty(xi, lam))]
            w, c = (np.array(column) for column in zip(*self.cuts, strict=True))
            lp_result = linprog(  # type: ignore[call-overload]
                np.append(np.zeros(len(pi)), -1.0),
                np.hstack([-w @ J.T, np.ones((len(w), 1))]),
                w @ rho + c,
                self.sum_rows,
                np.zeros(self.sum_rows.shape[0]),
                column_bounds,
            )
            if lp_result.x is None:
                break
            d, z = lp_result.x[:-1], lp_result.x[-1]
            return_change, step[self.free_columns] = d @ J, d
            gain = float(F.value(rho + return_change, lam)) - current_value
            if z - current_value <= (1 + MIN_GAIN_SHARE) * gain:
                break
        return step.reshape(policy.shape), gain


def _iter_inits(context: SolveContext, deterministic_table: PolicyTable) -> Iterator[Array]:
    """Iterate over initial policies: the deterministic one and others, mixed with uniform one."""
    evaluator = context.evaluator
    T = 1 if context.is_infinite_horizon else context.horizon
    n_inits = default_n_init([], lambda name: context.problem.estimate_seconds(T, MAX_STEPS))
    uniform = evaluator.allowed / evaluator.allowed.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng(context.seed)
    for init_type, uniform_share in INITS[:n_inits]:
        base_policy = uniform
        if init_type == "random":
            samples = np.where(evaluator.allowed, rng.exponential(size=uniform.shape), 0.0)
            base_policy = samples / samples.sum(axis=-1, keepdims=True)
        elif init_type == "deterministic":
            base_policy = evaluator.to_probabilities(deterministic_table)
        elif init_type == "models":  # their optimal actions, by the weights of the models
            model_actions = context.compute_model_actions()
            is_taken = model_actions[..., None] == np.arange(context.problem.n_actions)
            mixture = np.einsum("...ma,m->...a", is_taken, context.problem.weights)
            is_row = context.is_infinite_horizon
            base_policy = evaluator.to_probabilities(mixture[0] if is_row else mixture)
        yield uniform_share * uniform + (1 - uniform_share) * base_policy


def _reduce_randomization(context: SolveContext, policy: Array, min_value: float) -> Array:
    """Round probabilities to actions in as many states as keep the value at ``min_value``.

    Half of the states are tried at once, then a quarter and so on, nearly deterministic ones first.
    """
    evaluator, n_tries = context.evaluator, 0

    def is_good_enough(trial: Array) -> bool:
        """Return whether a policy reaches ``min_value``, and count the try."""
        nonlocal n_tries
        n_tries += 1
        context.check_time()
        return context.objective_value(evaluator.compute_returns(trial)) >= min_value

    pruned = np.where(policy < NEGLIGIBLE_SHARE, 0.0, policy)
    pruned /= pruned.sum(axis=-1, keepdims=True)
    policy = pruned if is_good_enough(pruned) else policy
    shape, rows = policy.shape, policy.reshape(-1, policy.shape[-1])
    randomized_rows = np.flatnonzero(rows.max(axis=1) < 1)
    groups = [randomized_rows[np.argsort(-rows[randomized_rows].max(axis=1), kind="stable")]]
    while groups and n_tries < MAX_REDUCTION_TRIES:
        group = groups.pop()
        trial = rows.copy()
        trial[group] = np.eye(shape[-1])[rows[group].argmax(axis=1)]
        if is_good_enough(trial.reshape(shape)):
            rows = trial
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return rows.reshape(shape)
