"""The portfolio of searches for a bound on the mean, their inputs and their time budgets.

The closed forms are Oracle and QMDP, from the optimum of each model.

Pairs of models: the gain of a pair is how much lower its value is than the sum of its models' own
optima. Pairs are evaluated, then those with the largest total gain are matched. The first pairs
that are evaluated are disjoint; given time, all pairs are. The best matching is found by the
assignment problem, where every model chooses another or itself: its solution is a permutation,
whose cycles are cut into pairs. That is the optimum unless a cycle is odd.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mmdp.core.bounds.dual import MIN_LEVEL, SLOW_LEVEL, DualDescent, LagrangianRelaxation
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.problem import ModelPairs, PolicyTable
from mmdp.core.objectives import Objective
from mmdp.core.search.context import Details
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.solution import Bound
from mmdp.core.timing import (
    Callback,
    Progress,
    Stopwatch,
    TimeUp,
    allow_stop,
    measure_compilation,
    solver_clock,
)

PAIR_SHARE, SINGLE_SHARE, REACH_SHARE = 0.2, 0.5, 0.25  # of the time left, for each search
MIN_PAIR_STEPS = 25  # steps with pairs: if fewer fit the time, more pairs may gain more
CLOSED_REL_GAP = 1e-9  # relative gap at which a bound meets the incumbent
BOUND_METHODS = ("best", "oracle", "qmdp", "pairs")
CLOSED_FORM_METHODS = ("oracle", "qmdp")
REPORT_SECONDS = 0.5  # seconds between two matchings of the pairs
BATCH_SIZE = 16  # pairs that are evaluated before the clock is looked at
MAX_ASSIGNMENT_MODELS = 1_000  # above this, the first disjoint pairs are taken
MAX_GAP_SCALE = 1000  # a gap is relative to at most this many times (Oracle - value)


def choose_history_method(problem: Problem, objective: Objective | None = None) -> str:
    """Return the method with the best bound on history-dependent policies."""
    if problem.reason_if_switching("pairs"):
        return "best"  # the closed forms
    return "pairs" if objective is None or objective.is_concave else "oracle"


@dataclass
class BoundPortfolio:
    """Searches for a bound on the mean of a prepared problem, with the bounds found so far.

    The incumbent is a good policy, or its value. ``rel_gap``: gap at which a bound counts as
    closed. The dual ``descent`` ends at ``min_level``.
    """

    prepared: PreparedProblem
    method: str
    stopwatch: Stopwatch
    callback: Callback
    incumbent_policy: PolicyTable | None = None
    incumbent_value: float = -math.inf
    seed: int = 0
    rel_gap: float = CLOSED_REL_GAP
    min_level: float = MIN_LEVEL
    bounds_found: dict[str, float] = field(default_factory=dict)
    details: Details = field(default_factory=dict)
    descent: DualDescent | None = None

    def run(self) -> Bound:
        """Run the method and return its smallest bound; Ctrl-C returns the smallest so far."""
        with allow_stop(lambda: self.bounds_found, accept_interrupts=True) as stop_state:
            self.compute_closed_forms()
            if self.method == "best":
                self.run_best()
            elif self.method == "pairs":
                self.match_models(self.stopwatch.deadline)
        if stop_state.is_interrupted:
            self.details["is_interrupted"] = True
        return self.make_result()

    def compute_closed_forms(self) -> None:
        """Compute the closed forms and the value of the incumbent."""
        prepared, problem, start_time = self.prepared, self.prepared.problem, solver_clock()
        self.weighted_optima, qmdp_bound = compute_closed_forms(prepared)
        self.pass_seconds = solver_clock() - start_time  # of one pass over all models
        self.pair_evaluator = PairEvaluator(prepared, self.weighted_optima, self.seed)
        self.rounding_error = estimate_rounding(problem, prepared.horizon)
        self.gap_tolerance = GapTolerance(problem, prepared.horizon)
        if self.method != "qmdp":
            oracle_bound = float(self.weighted_optima.sum())
            self.record_bound("oracle", oracle_bound + self.rounding_error)
        if self.method != "oracle":
            self.record_bound("qmdp", qmdp_bound + self.rounding_error)
        policy = self.incumbent_policy
        if policy is not None and self.method not in CLOSED_FORM_METHODS:
            first_values = prepared.backward("policy", policy=policy).first_values
            self.incumbent_value = float(prepared.compute_returns(first_values) @ problem.weights)
            self.incumbent_policy = policy if policy.ndim == 2 else None

    def _find_incumbent(self) -> None:
        """Find an incumbent by CADP in a fifth of the time, unless one was given."""
        if self.incumbent_value > -math.inf:
            return
        stopwatch = Stopwatch(0.2 * self.seconds_left)

        def callback(policy: PolicyTable, value: float) -> None:
            self.incumbent_policy, self.incumbent_value = policy, value
            stopwatch.raise_if_expired()

        with contextlib.suppress(TimeUp):
            self.prepared.ascend([None], sweep_type="paper", callback=callback)

    # ------------------------------------------------------------ what has been found
    @property
    def best_bound(self) -> float:
        """Smallest bound so far."""
        return min(self.bounds_found.values())

    @property
    def history_bound(self) -> float:
        """Smallest bound so far on history-dependent policies."""
        return min(x for name, x in self.bounds_found.items() if name != "dual")

    def record_bound(self, name: str, value: float) -> None:
        """Keep the smallest bound of each method, and call back."""
        self.bounds_found[name] = min(value, self.bounds_found.get(name, math.inf))
        value, elapsed = self.incumbent_value, self.stopwatch.elapsed
        n_bounds = len(self.bounds_found)
        self.callback(Progress(name, n_bounds, value, value, self.best_bound, elapsed=elapsed))

    def make_result(self) -> Bound:
        """Make the Bound of the smallest value found."""
        bounds = self.bounds_found
        name = min(bounds, key=bounds.__getitem__)
        details = {**self.details, "bounds_by_method": bounds}
        if self.incumbent_value > -math.inf:
            details["incumbent"] = self.incumbent_value
        return Bound(bounds[name], name, "markov" if name == "dual" else "history", details)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(self.stopwatch.time_left, 0.0)

    # ------------------------------------------------------------ the searches
    def match_models(self, deadline: float) -> ModelPairs:
        """Evaluate and match more pairs of models until the deadline, and record their bound."""
        evaluator, has_more = self.pair_evaluator, True
        while has_more:
            has_more = evaluator.evaluate_pairs(min(deadline, solver_clock() + REPORT_SECONDS))
            pairs, gain = evaluator.match_pairs()
            rounding_error = 8 * self.rounding_error  # beliefs take more operations
            bound = float(self.weighted_optima.sum()) - gain + rounding_error
            self.record_bound("pairs", bound)
            has_more &= solver_clock() < deadline
        return pairs

    def run_best(self) -> None:
        """Evaluate pairs of models, and minimize the dual if the time allows reach bounds.

        Its multipliers are found for single models first, which is faster, then for the pairs.
        """
        if not self.prepared.has_independent_models:  # no search is valid
            return
        problem, deadline = self.prepared.problem, self.stopwatch.deadline
        has_choice = (problem.allowed.sum(axis=2) > 1).any()
        if (problem.weights > 0).sum() == 1 or self.prepared.horizon == 1 or not has_choice:
            return  # the closed forms are exact
        relaxation = self._make_relaxation()
        if relaxation is None:
            self.match_models(deadline)
            return
        pairs = self.match_models(solver_clock() + PAIR_SHARE * self.seconds_left)
        descent = self._descend(relaxation, self._make_multipliers(), SINGLE_SHARE, SLOW_LEVEL)
        step_seconds = self.pair_evaluator.seconds_per_pair * problem.n_models
        has_few_steps = MIN_PAIR_STEPS * step_seconds > self.seconds_left
        if has_few_steps and descent.bound > self.bounds_found["pairs"]:
            self.match_models(deadline)  # multipliers would make up for it too late
            return
        relaxation.set_pairs(pairs)
        self._descend(relaxation, [descent.best_y], 1.0, self.min_level)

    def _make_relaxation(self) -> LagrangianRelaxation | None:
        """Make the dual function of single models; None if its reach bounds take too long.

        They take two passes per state.
        """
        self._find_incumbent()
        seconds = REACH_SHARE * self.seconds_left
        try:
            if self.pass_seconds * self.prepared.problem.n_states > seconds:  # half of them
                raise TimeUp
            return LagrangianRelaxation(self.prepared, deadline=solver_clock() + seconds)
        except TimeUp:
            self.details["multipliers"] = "no time for them"
            return None

    def _make_multipliers(self) -> list[Array]:
        """Make multipliers y = theta (q - v) of the incumbent policy.

        With theta = 1 every policy has the value of the incumbent in each model, so
        D = value + sum_{t,s} gamma^t max_a H(a): a certificate in closed form.
        """
        if self.incumbent_policy is None:
            return []
        backward_pass = self.prepared.backward(
            "policy", policy=self.incumbent_policy, keep=("q", "values")
        )
        q, values = backward_pass.q, backward_pass.values[:-1, :, None]
        advantage = np.where(np.isfinite(q), q - values, 0.0)
        return [theta * advantage for theta in (1.0, 0.3)]

    def _descend(
        self,
        relaxation: LagrangianRelaxation,
        multipliers: list[Array],
        time_share: float,
        min_level: float,
    ) -> DualDescent:
        """Minimize D in a share of the time left, from given multipliers, and record the bound."""

        def record_progress() -> None:
            self.record_bound("dual", descent.bound)

        value = self.incumbent_value
        tolerance = self.gap_tolerance(self.rel_gap, value, self.bounds_found["oracle"])
        descent = self.descent = DualDescent(
            relaxation,
            value,
            multipliers,
            deadline=solver_clock() + time_share * self.seconds_left,
            target=value + tolerance,
            callback=record_progress,
        )
        try:
            (descent.run if relaxation.pairs else descent.descend)(min_level)
        finally:
            record_progress()
            self.details |= {"n_steps": descent.n_steps, "n_eliminated": descent.n_eliminated}
        return descent


# ---------------------------------------------------------------------- closed forms
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


# ---------------------------------------------------------------------- pairs of models
def iter_pairs(models: IndexArray) -> Iterator[ModelPairs]:
    """Iterate over all pairs of models in batches; the first half of a round is disjoint.

    >>> sum(len(pairs.first) for pairs in iter_pairs(np.arange(5)))
    10
    """
    n = len(models)
    for distance in range(1, n // 2 + 1):
        positions = np.arange(distance) if 2 * distance == n else np.r_[0:n:2, 1:n:2]
        for start in range(0, len(positions), BATCH_SIZE):
            batch = positions[start : start + BATCH_SIZE]
            yield ModelPairs(models[batch], models[(batch + distance) % n])


class PairEvaluator:
    """Evaluates pairs of models and keeps their gains.

    ``weighted_optima`` (M,): the models' own optimal values times their weights.
    """

    def __init__(self, prepared: PreparedProblem, weighted_optima: Array, seed: int = 0) -> None:
        self.prepared, self.weighted_optima = prepared, weighted_optima
        self.models = np.flatnonzero(prepared.problem.weights > 0)
        self._remaining = iter_pairs(np.random.default_rng(seed).permutation(self.models))
        self.seconds_per_pair = 0.0
        self._evaluated = [(self.models[:0], self.models[:0], np.zeros(0))]

    def evaluate_pairs(self, deadline: float) -> bool:
        """Evaluate pairs until the deadline, at least a batch; return whether some are left."""
        for pairs in self._remaining:
            start_time = solver_clock()
            values = self.prepared.compute_pair_optima(pairs)
            own_values = self.weighted_optima[pairs.first] + self.weighted_optima[pairs.second]
            self._evaluated.append((pairs.first, pairs.second, own_values - values))
            self.seconds_per_pair = (solver_clock() - start_time) / len(values)
            if solver_clock() > deadline:
                return True
        return False

    def match_pairs(self) -> tuple[ModelPairs, float]:
        """Match evaluated pairs for a large total gain; return them and this gain."""
        first, second, gains = map(np.concatenate, zip(*self._evaluated, strict=True))
        if len(self.models) > MAX_ASSIGNMENT_MODELS:
            chosen = np.arange(min(len(gains), len(self.models) // 2))  # these are disjoint
        else:
            chosen = match_by_assignment(first, second, gains, len(self.weighted_optima))
        return ModelPairs(first[chosen], second[chosen]), float(gains[chosen].sum())


def match_by_assignment(i: IndexArray, j: IndexArray, gains: Array, n: int) -> IndexArray:
    """Return the indices of disjoint pairs from the optimal assignment, with its cycles split.

    >>> i, j, gain = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]), np.array([2.0, 3.0, 2.0, 0.0])
    >>> match_by_assignment(i, j, gain, 4)
    array([0, 2])
    """
    with measure_compilation():  # loads compiled code
        from scipy.optimize import linear_sum_assignment

    pair_index, gain_matrix = np.full((n, n), -1), np.full((n, n), -np.inf)
    pair_index[i, j] = pair_index[j, i] = np.arange(len(gains))
    gain_matrix[i, j] = gain_matrix[j, i] = gains
    np.fill_diagonal(gain_matrix, 0.0)
    _, partner = linear_sum_assignment(gain_matrix, maximize=True)
    is_free, chosen = partner != np.arange(n), [pair_index[0, :0]]
    for model in range(n):
        cycle = []
        while is_free[model]:
            is_free[model] = False
            cycle.append(pair_index[model, partner[model]])
            model = partner[model]
        if cycle:  # every second pair, from the offset with the largest gain
            size = len(cycle) // 2 * 2
            choices = [np.roll(cycle, -k)[:size:2] for k in range(len(cycle))]
            chosen.append(max(choices, key=lambda choice: float(gains[choice].sum())))
    return np.concatenate(chosen)
