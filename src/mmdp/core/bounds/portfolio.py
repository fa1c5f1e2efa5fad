"""The portfolio of searches for a bound on the mean, and their time budgets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np

from mmdp.core.bounds import closed_form, lp
from mmdp.core.bounds.descent import DualDescent
from mmdp.core.bounds.matching import FINE_COST_RATIO, INITIAL_BATCH, Matching, PairEvaluator
from mmdp.core.bounds.relaxation import LagrangianRelaxation
from mmdp.core.bounds.request import BoundRequest
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Problem
from mmdp.core.kernels.problem import Array, ModelPairs, PolicyTable
from mmdp.core.objectives import Objective
from mmdp.core.search.context import Details
from mmdp.core.solution import Bound, BoundScope
from mmdp.core.timing import Progress, TimeUp, allow_stop, solver_clock

MAX_LP_VARIABLES, QUICK_LP_VARIABLES = (
    200_000,
    5_000,
)  # variables of the linear program; those it takes in seconds
REACH_SHARE = 0.25  # of the time, at most, for reach bounds; a search needs several times as long
CLOSED_REL_GAP = 1e-9  # relative gap at which a bound meets the incumbent
MIN_PAIR_STEPS = 100  # steps with pairs of models; if fewer fit the time, models begin one by one
MIN_START_EVALUATIONS = 6  # values of all pairs that a search with pairs takes before it moves
MIN_DESCENT_EVALUATIONS = (
    25  # such values: if there is time for fewer, more matching gains more on average
)
CLOSED_FORM_METHODS = ("oracle", "qmdp")
REPORT_SECONDS = 0.5  # seconds between two looks at what pairs give
PAIR_STEP_COST = 1.5  # values of all pairs on the fine grid that a step with them takes
SLOW_GAP_SHARE = (
    0.01  # share of the gap: if models alone gain less in a step's time, pairs take over
)


def check_applicable(method: str, problem: Problem) -> None:
    """Raise InputError for methods that do not hold for switching models.

    Oracle and QMDP hold: they see which model holds at every time, or from the second on, and no
    policy sees more. The searches give each model, or pair, its own states and values, which the
    others then share.
    """
    reason = problem.reason_if_switching(f"{method} holds for models that never change")
    if reason and method not in ("best", *CLOSED_FORM_METHODS):
        raise InputError(reason, [Remedy("method", "best", *CLOSED_FORM_METHODS, verb="choose")])


def choose_history_method(problem: Problem, objective: Objective | None = None) -> str:
    """Return the method with the best bound on history-dependent policies."""
    if problem.reason_if_switching("pairs"):
        return "best"  # the closed forms
    return "pairs" if objective is None or objective.is_concave else "oracle"


ProgressMap = Callable[[Progress], Progress]


class BoundPortfolio:
    """Searches for a bound on the mean, with the bounds found so far.

    ``lift_progress`` converts progress on the mean to that of the callback. ``rel_gap``: gap at
    which a bound counts as closed. With ``will_branch`` the search ends as soon as it is slow, and
    ``descent`` is its state.
    """

    def __init__(
        self,
        request: BoundRequest,
        lift_progress: ProgressMap = lambda progress: progress,
        *,
        rel_gap: float = CLOSED_REL_GAP,
        will_branch: bool = False,
    ) -> None:
        self.request, self.prepared, self.deadline, self.lift_progress = (
            request,
            request.prepared,
            request.stopwatch.deadline,
            lift_progress,
        )
        self.problem, self.horizon = request.prepared.problem, request.prepared.horizon
        self.bounds_found: dict[str, tuple[float, BoundScope]] = {}
        self.details: Details = {}
        self.incumbent_value, self.incumbent_policy = (
            request.incumbent_value,
            request.incumbent_policy,
        )
        self.pair_evaluator: PairEvaluator | None = None
        self.rel_gap, self.will_branch = rel_gap, will_branch
        self.descent: DualDescent | None = None

    def run(self) -> Bound:
        """Run the method and return its smallest bound; Ctrl-C returns the smallest so far."""
        with allow_stop(lambda: self.bounds_found, accept_interrupts=True) as stop_state:
            self.compute_closed_forms()
            RUNNERS[self.request.method](self)
        if stop_state.is_interrupted:
            self.details["is_interrupted"] = True
        return self.make_result()

    def compute_closed_forms(self) -> None:
        """Compute the closed forms and the value of the incumbent."""
        self.start_time, method = solver_clock(), self.request.method
        self.q, self.weighted_optima = closed_form.compute_model_optima(self.prepared)
        self.pass_seconds = solver_clock() - self.start_time  # of one pass over all models
        self.rounding_error = closed_form.estimate_rounding(self.problem, self.horizon)
        self.gap_tolerance = closed_form.GapTolerance(self.problem, self.horizon)
        if method != "qmdp":
            self.record_bound(
                "oracle",
                closed_form.compute_oracle_bound(self.weighted_optima) + self.rounding_error,
                "history",
            )
        if method != "oracle":
            self.record_bound(
                "qmdp",
                closed_form.compute_qmdp_bound(self.problem, self.q) + self.rounding_error,
                "history",
            )
        if method not in CLOSED_FORM_METHODS and self.incumbent_policy is not None:
            returns = self.prepared.compute_returns(
                self.prepared.backward("policy", policy=self.incumbent_policy).first_values
            )
            self.incumbent_value = float(returns @ self.problem.weights)
            self.incumbent_policy = (
                self.incumbent_policy if self.incumbent_policy.ndim == 2 else None
            )

    def _find_incumbent(self) -> None:
        """Find an incumbent by CADP in a fifth of the time, unless one was given."""
        if self.incumbent_value > -math.inf:
            return
        deadline = solver_clock() + 0.2 * self.seconds_left()

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
        return min(x for x, _ in self.bounds_found.values())

    def record_bound(self, name: str, value: float, scope: BoundScope) -> None:
        """Keep the smallest bound of each method, and call back."""
        if name not in self.bounds_found or value < self.bounds_found[name][0]:
            self.bounds_found[name] = (value, scope)
        if self.request.callback is not None:
            progress = Progress(
                stage=name,
                iteration=len(self.bounds_found),
                value=self.incumbent_value,
                best_value=self.incumbent_value,
                bound=self.best_bound,
                elapsed=self.request.stopwatch.elapsed,
            )
            self.request.callback(self.lift_progress(progress))

    def make_result(self) -> Bound:
        """Make the Bound of the smallest value found."""
        name = min(self.bounds_found, key=lambda key: self.bounds_found[key][0])
        value, scope = self.bounds_found[name]
        details = {
            **self.details,
            "bounds_by_method": {key: x for key, (x, _) in self.bounds_found.items()},
        }
        if self.incumbent_value > -math.inf:
            details["incumbent"] = self.incumbent_value
        return Bound(value, name, scope, details)

    @property
    def is_closed(self) -> bool:
        """Whether a bound meets the incumbent value."""
        return self.best_bound - self.incumbent_value <= self.tolerance

    @property
    def tolerance(self) -> float:
        """Absolute tolerance at which a bound meets the incumbent value."""
        return self.gap_tolerance(
            self.rel_gap, self.incumbent_value, self.bounds_found["oracle"][0]
        )

    def seconds_left(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - solver_clock()

    # ------------------------------------------------------------ the methods
    def run_closed_forms(self) -> None:
        """Do nothing: the closed forms are computed first in any case."""

    def run_pairs(self) -> None:
        """Match models, then evaluate the pairs on a finer grid."""
        self._refine_model_pairs(self._bound_by_model_pairs(0.95))

    def run_dual(self) -> None:
        """Minimize the dual over single models, if the time allows reach bounds."""
        relaxation = self._make_relaxation()
        if relaxation is not None:
            self._descend("dual", None, self._start_descent(relaxation))

    def run_pair_dual(self) -> None:
        """Minimize the dual over pairs of models; pairs alone if time is short."""
        relaxation = self._make_relaxation()
        if relaxation is None:
            return self.run_pairs()
        self._optimize_pair_multipliers(relaxation, 0.3, MIN_START_EVALUATIONS)

    def run_lp(self) -> None:
        """Solve the occupancy LP, if the time allows reach bounds."""
        relaxation = self._make_relaxation()
        if relaxation is not None:
            self._solve_lp(relaxation, 1.0)

    def run_best(self) -> None:
        """Run closed forms if they are exact; otherwise pairs, then the dual that fits the time."""
        if not self.prepared.has_independent_models:  # no search is valid
            return
        has_one_model = int((self.problem.weights > 0).sum()) == 1
        if has_one_model or self.horizon == 1 or (self.problem.allowed.sum(axis=2) == 1).all():
            return
        relaxation = self._make_relaxation(REACH_SHARE)
        if relaxation is None:
            return self.run_pairs()
        n_variables = lp.count_variables(self.problem, self.horizon)
        is_solved = n_variables <= QUICK_LP_VARIABLES and self._solve_lp(relaxation, 0.1)
        if self.is_closed:
            return
        matching = self._bound_by_model_pairs(0.06)
        has_few_steps = (
            MIN_PAIR_STEPS * PAIR_STEP_COST * matching.refine_seconds > self.seconds_left()
        )
        if not (has_few_steps and self._optimize_model_multipliers(relaxation, matching)):
            self._optimize_pair_multipliers(
                relaxation, 0.45 if has_few_steps else 0.3, MIN_DESCENT_EVALUATIONS
            )
        if self.will_branch:
            return
        relaxation.set_pairs(None)
        if self.seconds_left() > 0 and not self.is_closed:  # the pairs were done early
            self._descend("dual", None, self._start_descent(relaxation))
        if (
            n_variables <= MAX_LP_VARIABLES
            and not (is_solved or self.is_closed)
            and self.seconds_left() > 0
        ):
            self._solve_lp(relaxation, 1.0)

    def _optimize_pair_multipliers(
        self, relaxation: LagrangianRelaxation, time_share: float, min_evaluations: float
    ) -> None:
        """Match models for a share of the time, then optimize multipliers for the pairs.

        If there is no time for ``min_evaluations`` evaluations of all pairs, models are matched to
        the end.
        """
        matching = self._bound_by_model_pairs(time_share)
        cost, pairs = self._refine_model_pairs(matching), to_fine_grid(matching.pairs)
        if self.seconds_left() > min_evaluations * cost:
            relaxation.set_pairs(pairs)
            self._descend("pair-dual", pairs, self._start_descent(relaxation))
        else:
            self.run_pairs()

    def _optimize_model_multipliers(
        self, relaxation: LagrangianRelaxation, matching: Matching
    ) -> bool:
        """Optimize multipliers for single models while that is faster, then for pairs.

        Returns False if the bound of pairs without multipliers seems out of reach.
        """
        start_time, step_seconds = solver_clock(), PAIR_STEP_COST * matching.refine_seconds
        descent, has_pair_time = (
            self._start_descent(relaxation),
            step_seconds < 0.2 * self.seconds_left(),
        )
        deadline = self.deadline - step_seconds * has_pair_time
        pause, previous_value = 2 * solver_clock() - start_time, self.bounds_found["oracle"][0]
        while True:
            round_start = solver_clock()
            self._descend("dual", None, descent, deadline=min(pause, deadline))
            decrease_rate = (previous_value - descent.best_value) / max(
                solver_clock() - round_start, 1e-9
            )
            if (
                descent.best_value - 0.5 * decrease_rate * self.seconds_left()
                > self.bounds_found["pairs"][0]
            ):
                return False
            is_slow = decrease_rate * step_seconds < SLOW_GAP_SHARE * (
                descent.best_value - self.incumbent_value
            )
            if is_slow or descent.has_converged or solver_clock() > deadline or self.is_closed:
                break
            pause, previous_value = 2 * solver_clock() - start_time, descent.best_value
        if has_pair_time:
            self._descend("pair-dual", to_fine_grid(matching.pairs), descent)
        return True

    # ------------------------------------------------------------ parts
    def _bound_by_model_pairs(self, time_share: float) -> Matching:
        """Pair up models in a share of the time left, and record the bound by their gains.

        The grid of beliefs is coarse. Time is kept to evaluate the pairs on the fine grid if that
        takes less than half of it.
        """
        if self.pair_evaluator is None:
            self.pair_evaluator = PairEvaluator(
                self.prepared, self.weighted_optima, seed=self.request.seed
            )
        deadline = solver_clock() + time_share * max(self.seconds_left(), 0.0)
        while self.pair_evaluator.evaluate_pairs(
            deadline,
            reserved_pairs=FINE_COST_RATIO * self.problem.n_models / 2,
            max_seconds=REPORT_SECONDS,
        ):
            self._record_pair_bound(self.pair_evaluator.make_matching(greedy=True).gains)
        matching = self.pair_evaluator.make_matching()
        self.details["n_pairs_evaluated"] = matching.n_evaluated
        self._record_pair_bound(matching.gains)
        return matching

    def _record_pair_bound(self, gains: Array) -> None:
        """Record the bound of disjoint pairs with these gains."""
        rounding_error = 8 * self.rounding_error  # beliefs take more operations
        self.record_bound(
            "pairs", float(self.weighted_optima.sum() - gains.sum()) + rounding_error, "history"
        )

    def _refine_model_pairs(self, matching: Matching) -> float:
        """Evaluate pairs on the fine grid until the deadline; return the seconds that all take."""
        pairs, gains = to_fine_grid(matching.pairs), matching.gains.copy()
        start_time, n_done, batch_size = solver_clock(), 0, INITIAL_BATCH
        seconds_per_pair = FINE_COST_RATIO * matching.seconds_per_pair
        while (
            n_done < len(gains) and solver_clock() + batch_size * seconds_per_pair < self.deadline
        ):
            i, j = (
                pairs.first[n_done : n_done + batch_size],
                pairs.second[n_done : n_done + batch_size],
            )
            values = self.prepared.compute_pair_optima(pairs._replace(first=i, second=j))
            batch_gains = gains[n_done : n_done + batch_size]
            np.maximum(
                batch_gains,
                self.weighted_optima[i] + self.weighted_optima[j] - values,
                out=batch_gains,
            )
            n_done += len(i)
            seconds_per_pair = (solver_clock() - start_time) / n_done
            batch_size = max(INITIAL_BATCH, int(REPORT_SECONDS / max(seconds_per_pair, 1e-9)))
            self._record_pair_bound(gains)
        return seconds_per_pair * len(gains)

    def _make_relaxation(self, time_share: float = 0.8) -> LagrangianRelaxation | None:
        """Make the dual function of single models; None if its reach bounds take too long.

        They take two passes per state.
        """
        try:
            if (
                self.pass_seconds * self.problem.n_states > time_share * self.seconds_left()
            ):  # half of them
                raise TimeUp
            self._find_incumbent()
            return LagrangianRelaxation(
                self.prepared, deadline=solver_clock() + time_share * self.seconds_left()
            )
        except TimeUp:
            self.details["multipliers"] = "no time for them"
            return None

    def _solve_lp(self, relaxation: LagrangianRelaxation, time_share: float) -> bool:
        """Record the bound of the LP; return whether it was solved in time.

        Policies that elimination has cut off have at most the incumbent value.
        """
        occupancy_lp = lp.build_lp(relaxation.prepared, relaxation.reach)
        result = lp.solve_relaxation(occupancy_lp, time_share * self.seconds_left())
        if result.status != "optimal":
            self.details["lp_status"] = result.status
            return False
        y = lp.extract_multipliers(
            occupancy_lp, result, self.problem.n_models, self.problem.discount
        )
        value = relaxation.evaluate(y, subgradient=False) + relaxation.estimate_rounding(y)
        self.record_bound(
            "lp", max(value, self.incumbent_value + relaxation.estimate_rounding(None)), "markov"
        )
        return True

    def _descend(
        self, name: str, pairs: ModelPairs | None, descent: DualDescent, deadline: float = math.inf
    ) -> None:
        """Minimize D over these pairs and record the bound."""
        stop_time = min(deadline, self.deadline)
        if pairs is not descent.relaxation.pairs:
            descent.change_pairs(pairs)
        target = self.incumbent_value + self.tolerance

        def record_progress() -> None:
            self.record_bound(name, descent.bound, "markov")

        callback = None if self.request.callback is None else record_progress
        try:
            while solver_clock() < stop_time and not self.is_closed:
                descent.run(deadline=stop_time, max_steps=100, target=target, callback=callback)
                if descent.best_value <= target or not self._refine_descent(descent):
                    break
        finally:
            if descent.n_steps:
                record_progress()
            self.details |= {"n_steps": descent.n_steps, "n_eliminated": descent.n_eliminated}

    def _refine_descent(self, descent: DualDescent) -> bool:
        """Eliminate actions when the descent is slow; refine the grid when it has converged."""
        relaxation = descent.relaxation
        is_slow = descent.delta is not None and descent.delta < 0.02 * (
            descent.best_value - self.incumbent_value
        )
        if not (descent.has_converged or is_slow):
            return True
        n_eliminated = 0
        if relaxation.reach_seconds < 0.05 * self.seconds_left():
            elapsed_seconds = solver_clock() - self.start_time
            probe_deadline = solver_clock() + min(
                0.3 * elapsed_seconds, 0.5 * max(self.seconds_left(), 0.0)
            )
            n_eliminated = descent.eliminate_actions(probe_deadline)
        if n_eliminated or not (descent.has_converged or self.will_branch):
            return True
        if self.will_branch or relaxation.pairs is None or relaxation.pairs.grid_step < 0.05:
            return False
        descent.change_pairs(
            relaxation.pairs._replace(
                grid_radius=2 * relaxation.pairs.grid_radius,
                grid_step=relaxation.pairs.grid_step / 2,
            )
        )
        return True

    def _start_descent(self, relaxation: LagrangianRelaxation) -> DualDescent:
        """Start a descent at the best of y = 0 and y = theta (q - v) of the incumbent policy.

        With these multipliers every policy has the value of the incumbent in each model, so
        D = value + sum_{t,s} gamma^t max_a H(a): a certificate in closed form at theta = 1.
        """
        descent = self.descent = DualDescent(relaxation, self.incumbent_value)
        if self.incumbent_policy is not None:
            backward_pass = self.prepared.backward(
                "policy", policy=self.incumbent_policy, keep=("q", "values")
            )
            advantage = np.where(
                np.isfinite(backward_pass.q),
                backward_pass.q - backward_pass.values[:-1, :, None],
                0.0,
            )
            descent.initialize_at([theta * advantage for theta in (1.0, 0.3)])
        return descent


def check_lp_size(problem: Problem, horizon: int) -> None:
    """Raise InputError if the LP has too many variables."""
    n_variables = lp.count_variables(problem, horizon)
    if n_variables > MAX_LP_VARIABLES:
        raise InputError(
            f"the linear program would have {n_variables:,} variables (lp takes at most "
            f"{MAX_LP_VARIABLES:,}; pair-dual has no limit)",
            [Remedy("method", "pair-dual", verb="use")],
        )


def to_fine_grid(pairs: ModelPairs) -> ModelPairs:
    """Return the same pairs on the fine grid."""
    return ModelPairs(pairs.first, pairs.second)


RUNNERS: dict[str, Callable[[BoundPortfolio], None]] = {
    "best": BoundPortfolio.run_best,
    "oracle": BoundPortfolio.run_closed_forms,
    "qmdp": BoundPortfolio.run_closed_forms,
    "pairs": BoundPortfolio.run_pairs,
    "dual": BoundPortfolio.run_dual,
    "pair-dual": BoundPortfolio.run_pair_dual,
    "lp": BoundPortfolio.run_lp,
}
BOUND_METHODS = tuple(RUNNERS)
