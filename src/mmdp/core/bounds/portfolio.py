"""The portfolio of searches for a bound on the mean, their inputs and their time budgets."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

import numpy as np

from mmdp.core.bounds import closed_form
from mmdp.core.bounds.dual import MIN_LEVEL, SLOW_LEVEL, DualDescent, LagrangianRelaxation
from mmdp.core.bounds.matching import PairEvaluator
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.problem import ModelPairs, PolicyTable
from mmdp.core.objectives import Objective
from mmdp.core.search.context import Details
from mmdp.core.shapes import Array
from mmdp.core.solution import Bound
from mmdp.core.timing import Callback, Progress, Stopwatch, TimeUp, allow_stop, solver_clock

PAIR_SHARE, SINGLE_SHARE, REACH_SHARE = 0.2, 0.5, 0.25  # of the time left, for each search
MIN_PAIR_STEPS = 25  # steps with pairs: if fewer fit the time, more pairs may gain more
CLOSED_REL_GAP = 1e-9  # relative gap at which a bound meets the incumbent
BOUND_METHODS = ("best", "oracle", "qmdp", "pairs")
CLOSED_FORM_METHODS = ("oracle", "qmdp")
REPORT_SECONDS = 0.5  # seconds between two matchings of the pairs


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
        self.weighted_optima, qmdp_bound = closed_form.compute_closed_forms(prepared)
        self.pass_seconds = solver_clock() - start_time  # of one pass over all models
        self.pair_evaluator = PairEvaluator(prepared, self.weighted_optima, self.seed)
        self.rounding_error = closed_form.estimate_rounding(problem, prepared.horizon)
        self.gap_tolerance = closed_form.GapTolerance(problem, prepared.horizon)
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
        deadline = solver_clock() + 0.2 * self.seconds_left

        def callback(policy: PolicyTable, value: float) -> None:
            self.incumbent_policy, self.incumbent_value = policy, value
            if solver_clock() > deadline:
                raise TimeUp

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
        iteration, value, elapsed = (
            len(self.bounds_found),
            self.incumbent_value,
            self.stopwatch.elapsed,
        )
        self.callback(Progress(name, iteration, value, value, self.best_bound, elapsed=elapsed))

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
