"""Search for randomized policies: ascent on the exact objective from several initial policies.

The return of a model is linear in the probabilities at one time and state, so over a finite horizon
the mean gains nothing by randomization. It does for stationary policies, and other objectives F may
gain in any case. With the derivatives J_m = d rho_m / d pi of the returns:

- the mean ascends along its gradient sum_m lambda_m J_m;
- a concave F has kinks, at which a gradient ascent ends. So each step is a linear program: the best
  F of the returns rho + J d, which weighted means bound from above, for d in a trust region;
- any other F is smoothed: its mean over Gaussian errors of the returns, with decreasing sd sigma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.problem import Array, PolicyTable
from mmdp.core.search.context import MethodResult, SolveContext
from mmdp.core.search.gradient import iter_gradient_ascent, make_discount_powers, softmax
from mmdp.core.search.inits import default_n_init
from mmdp.core.solution import Status

MAX_STEPS, STATIONARITY_TOL = 200, 1e-9  # of an ascent at most, and the stationarity that is enough
SMOOTHING_SHARES = (0.3, 0.03, 0.003)  # shares of the spread of the returns
N_ERROR_SAMPLES = 32  # errors that are averaged over
INIT_NAMES = (
    "deterministic 0.1",
    "models 0.1",
    "uniform 1",
    "deterministic 0.5",
    *(f"random {k}" for k in range(4)),
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
    params, best, value, trace = _make_params(context), None, base_value, [base_value]
    for init in _iter_inits(context, params, deterministic.policy):
        for iterate in _iter_ascent(context, params, init):
            context.details["randomization_gain"] = (
                max(context.best_value, iterate.objective_value) - base_value
            )
            context.record(params.to_table(iterate.policy), iterate.objective_value)
            if iterate.objective_value > value:
                best, value = iterate.policy, iterate.objective_value
                trace.append(value)
    if best is None or not value - base_value > 2 * context.estimate_rounding(
        deterministic.required_returns
    ):
        return unchanged
    best = _reduce_randomization(
        context, params, best, value - NEGLIGIBLE_SHARE * (value - base_value)
    )
    value = context.objective_value(params.compute_returns(best))
    for iterate in _iter_ascent(context, params, best):  # once more with the actions that are left
        if iterate.objective_value > value:
            best, value = iterate.policy, iterate.objective_value
    return MethodResult(
        params.to_table(best),
        Status.COMPLETED,
        len(trace),
        returns=params.compute_returns(best),
        trace=[*trace, value],
        details={**deterministic.details, "randomization_gain": value - base_value},
    )


# ---------------------------------------------------------------------- parametrizations
class MarkovParams:
    """Randomized Markov policies, parametrized by probabilities (T, S, A)."""

    def __init__(self, context: SolveContext) -> None:
        self.context, self.prepared = context, context.prepared
        self.allowed = np.broadcast_to(
            context.problem.allowed, (context.horizon, *context.problem.allowed.shape[1:])
        )

    def to_table(self, policy: Array) -> Array:
        """Convert probabilities to the table that a method returns."""
        return policy

    def compute_returns(self, policy: Array) -> Array:
        """Compute the exact returns of a policy, (M,)."""
        return self.context.compute_returns(self.to_table(policy))

    def compute_jacobian(self, policy: Array) -> tuple[Array, Array, Array]:
        """Compute returns (M,), their centered Jacobian (..., S, A, M) and occupancy (..., S)."""
        prepared, table, gamma = (
            self.prepared,
            self.to_table(policy),
            make_discount_powers(self.context),
        )
        d = prepared.forward_by_start(lambda prepared_start: prepared_start.forward(table))
        backward_pass = prepared.backward("policy", policy=table, keep=("q", "values"))
        advantage = np.where(
            np.isfinite(backward_pass.q), backward_pass.q - backward_pass.values[:-1, :, None], 0.0
        )
        J = np.array([prepared.credit_to_start(d[t][:, None], x) for t, x in enumerate(advantage)])
        visit_probs = np.array(
            [prepared.credit_to_start(x, np.ones_like(advantage[0, :, 0])) for x in d]
        )
        occupancy = gamma[:, :, 0] * (visit_probs @ prepared.problem.weights)
        return prepared.compute_returns(backward_pass.first_values), gamma[..., None] * J, occupancy

    def mix_model_optima(self) -> Array:
        """Mix the optimal actions of the models by the model weights."""
        model_actions = self.prepared.backward("per_model", keep=("actions",)).actions
        is_taken = model_actions[..., None] == np.arange(self.allowed.shape[-1])
        return np.einsum("tsma,m->tsa", is_taken, self.context.problem.weights)

    def to_probabilities(self, table: PolicyTable) -> Array:
        """Convert a table of actions to probabilities."""
        if is_randomized(table):
            return np.asarray(table)
        probs: Array = np.eye(self.allowed.shape[-1])[table]
        return probs


class RepeatedParams(MarkovParams):
    """Randomized policies of the state alone over a finite horizon, (S, A)."""

    def __init__(self, context: SolveContext) -> None:
        super().__init__(context)
        self.allowed = np.logical_and.reduce(self.allowed)

    def to_table(self, policy: Array) -> Array:
        return np.repeat(policy[None], self.context.horizon, axis=0)

    def compute_jacobian(self, policy: Array) -> tuple[Array, Array, Array]:
        rho, J, occupancy = super().compute_jacobian(policy)
        return rho, J.sum(axis=0), occupancy.sum(axis=0)

    def mix_model_optima(self) -> Array:
        average: Array = super().mix_model_optima().mean(axis=0)
        return average

    def to_probabilities(self, table: PolicyTable) -> Array:
        return super().to_probabilities(table[0])


class StationaryParams(MarkovParams):
    """Randomized stationary policies over an infinite horizon, (S, A)."""

    def __init__(self, context: SolveContext) -> None:
        self.context, self.allowed = context, context.problem.allowed[0]
        self.infinite_horizon = context.infinite_horizon

    def compute_returns(self, policy: Array) -> Array:
        return self.infinite_horizon.compute_returns(policy)

    def compute_jacobian(self, policy: Array) -> tuple[Array, Array, Array]:
        """Compute returns, the Jacobian d_m(s) (q_m(s, a) - v_m(s)) and the occupancy."""
        x, v, d = (
            self.infinite_horizon,
            self.infinite_horizon.compute_values(policy),
            self.infinite_horizon.compute_occupancy(policy),
        )
        J = np.moveaxis(d[:, :, None] * (x.compute_q(v) - v[:, :, None]), 0, 2)
        problem = self.context.problem
        return problem.compute_returns(v.T), J, problem.weights @ d

    def mix_model_optima(self) -> Array:
        model_actions = self.context.model_optima.actions
        is_taken = model_actions[..., None] == np.arange(self.allowed.shape[-1])
        return np.einsum("msa,m->sa", is_taken, self.context.problem.weights)


def _make_params(context: SolveContext) -> MarkovParams:
    """Make the parametrization for the policy class and horizon of the context."""
    if context.policy_class.is_infinite_horizon:
        return StationaryParams(context)
    return (MarkovParams if context.policy_class.name == "markov" else RepeatedParams)(context)


# ---------------------------------------------------------------------- ascents
class SmoothedObjective:
    """Mean of the objective over Gaussian errors of the returns with sd sigma; differentiable."""

    def __init__(self, context: SolveContext, sigma: float) -> None:
        self.context, self.objective = context, context.objective
        self.lam = context.problem.weights
        samples = np.random.default_rng(context.seed).normal(size=(N_ERROR_SAMPLES, len(self.lam)))
        self.return_errors, self.sigma = (
            sigma * samples if sigma else np.zeros((1, len(self.lam))),
            sigma,
        )

    def objective_value(self, returns: Array) -> float:
        """Compute the smoothed objective of returns (M,)."""
        return float(self.context.objective_values(returns + self.return_errors).mean())

    def compute_weights(self, returns: Array) -> Array:
        """Compute dF / d rho by finite differences, (M,)."""
        if self.objective.is_mean:
            return self.lam
        step = self.sigma * np.eye(len(self.lam))
        upper, lower = (
            self.context.objective_values(returns + sign * step) for sign in (1.0, -1.0)
        )
        return (upper - lower) / (2 * self.sigma)


@dataclass(frozen=True)
class SoftmaxIterate:
    """Iterate of a gradient ascent: ``value`` is smoothed, ``objective_value`` is exact."""

    params: MarkovParams
    smoothed_objective: SmoothedObjective
    logits: Array
    policy: Array
    value: float
    objective_value: float
    advantage: Array
    visit_probs: Array

    @classmethod
    def from_logits(
        cls, params: MarkovParams, smoothed_objective: SmoothedObjective, logits: Array
    ) -> SoftmaxIterate:
        """Evaluate the softmax policy of logits and its advantage."""
        policy = softmax(logits)
        rho, J, visit_probs = params.compute_jacobian(policy)
        advantage = np.where(np.isfinite(logits), J @ smoothed_objective.compute_weights(rho), 0.0)
        objective_value = params.context.objective_value(rho)
        return cls(
            params,
            smoothed_objective,
            logits,
            policy,
            smoothed_objective.objective_value(rho),
            objective_value,
            advantage,
            visit_probs,
        )

    def with_logits(self, context: SolveContext, logits: Array) -> SoftmaxIterate:
        """Return the iterate at other logits."""
        return self.from_logits(self.params, self.smoothed_objective, logits)

    def compute_stationarity(self, discounts: Array) -> float:
        """Compute the sum of the largest advantages, which is 0 at a stationary point."""
        return float(self.advantage.max(axis=-1).sum())


def _natural_direction(iterate: SoftmaxIterate, discounts: Array) -> Array:
    """Compute the mean advantage of each action, given that its state is visited."""
    visit_probs = iterate.visit_probs[..., None]
    return np.divide(
        iterate.advantage, visit_probs, out=np.zeros_like(iterate.advantage), where=visit_probs > 0
    )


class LPIterate(NamedTuple):
    """Iterate of an ascent by linear programs: a policy and its objective value."""

    policy: Array
    objective_value: float


def _iter_ascent(
    context: SolveContext, params: MarkovParams, init: Array
) -> Iterator[LPIterate | SoftmaxIterate]:
    """Iterate over the policies of an ascent from an initial policy."""
    F, rho = context.objective, params.compute_returns(init)
    if F.is_concave and not F.is_mean:
        return _ascend_by_lp(context, params, init)
    shares = (0.0,) if F.is_mean else SMOOTHING_SHARES
    return _ascend_by_gradient(
        context, params, init, [share * float(np.ptp(rho)) for share in shares]
    )


def _ascend_by_gradient(
    context: SolveContext, params: MarkovParams, init: Array, sigmas: list[float]
) -> Iterator[SoftmaxIterate]:
    """Ascend on smoothed objectives with decreasing sigma."""
    with np.errstate(divide="ignore"):
        logits = np.log(init)
    for sigma in sigmas:
        first_iterate = SoftmaxIterate.from_logits(
            params, SmoothedObjective(context, sigma), logits
        )
        for iterate in islice(
            iter_gradient_ascent(context, first_iterate, _natural_direction, STATIONARITY_TOL),
            MAX_STEPS,
        ):
            logits = iterate.logits
            yield iterate


def _ascend_by_lp(context: SolveContext, params: MarkovParams, init: Array) -> Iterator[LPIterate]:
    """Ascend by linear programs in a trust region that adapts to the gain of each step."""
    policy, width, lp = init, 1.0, TrustRegionLP(context, params)
    rho, J, _ = params.compute_jacobian(policy)
    value = context.objective_value(rho)
    for _ in range(MAX_LP_STEPS):
        yield LPIterate(policy, value)
        step, predicted_gain = lp.solve_step(rho, J, policy, width)
        while True:
            if predicted_gain <= STATIONARITY_TOL * abs(value) or width < MIN_BOX_WIDTH:
                return
            trial = np.maximum(policy + step, 0.0)
            trial /= trial.sum(axis=-1, keepdims=True)
            trial_value = context.objective_value(params.compute_returns(trial))
            if trial_value - value >= MIN_GAIN_SHARE * predicted_gain:
                break
            context.check_time()
            width /= 4
            step, predicted_gain = lp.solve_step(rho, J, policy, width)
        policy, value, width = trial, trial_value, min(2 * width, 1.0)
        rho, J, _ = params.compute_jacobian(policy)
    yield LPIterate(policy, value)


class TrustRegionLP:
    """Linear program for a step d: max z with z <= sum_m w_m (rho_m + (J d)_m) + c for all cuts."""

    def __init__(self, context: SolveContext, params: MarkovParams) -> None:
        from scipy.sparse import csr_array

        self.context, self.allowed = context, params.allowed
        self.free_columns = np.flatnonzero(self.allowed)
        n, size = len(self.free_columns), self.allowed.shape[-1]
        row_sums = csr_array((np.ones(n), (self.free_columns // size, range(n))))
        self.sum_rows = csr_array(
            (row_sums.data, row_sums.indices, row_sums.indptr), (row_sums.shape[0], n + 1)
        )
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
        current_value, return_change, step = (
            float(F.value(rho, lam)),
            np.zeros_like(lam),
            np.zeros(self.allowed.size),
        )
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
            if z - current_value <= (1 + MIN_GAIN_SHARE) * (
                float(F.value(rho + return_change, lam)) - current_value
            ):
                break
        return step.reshape(policy.shape), float(F.value(rho + return_change, lam)) - current_value


def _iter_inits(
    context: SolveContext, params: MarkovParams, deterministic_table: PolicyTable
) -> Iterator[Array]:
    """Iterate over initial policies: the deterministic one and others, mixed with uniform one."""
    T = 1 if context.policy_class.is_infinite_horizon else context.horizon
    n_inits = min(
        len(INIT_NAMES),
        default_n_init(INIT_NAMES, lambda name: context.problem.estimate_seconds(T, MAX_STEPS)),
    )
    uniform = params.allowed / params.allowed.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng(context.seed)
    for name in INIT_NAMES[:n_inits]:
        init_type, _, uniform_share = name.partition(" ")
        if init_type == "random":
            samples = np.where(params.allowed, rng.exponential(size=uniform.shape), 0.0)
            yield samples / samples.sum(axis=-1, keepdims=True)
            continue
        base_policies = {
            "deterministic": params.to_probabilities(deterministic_table),
            "uniform": uniform,
        }
        base_policy = (
            base_policies[init_type] if init_type in base_policies else params.mix_model_optima()
        )
        yield float(uniform_share) * uniform + (1 - float(uniform_share)) * base_policy


def _reduce_randomization(
    context: SolveContext, params: MarkovParams, policy: Array, min_value: float
) -> Array:
    """Round probabilities to actions in as many states as keep the value at ``min_value``.

    Half of the states are tried at once, then a quarter and so on, nearly deterministic ones first.
    """
    n_tries = 0

    def is_good_enough(trial: Array) -> bool:
        """Return whether a policy reaches ``min_value``, and count the try."""
        nonlocal n_tries
        n_tries += 1
        context.check_time()
        return context.objective_value(params.compute_returns(trial)) >= min_value

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
