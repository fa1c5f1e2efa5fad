"""Results of the sections of a page: one function and one plain result type for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.methods import CADP
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.policies import Markov, MarkovPolicy, MemoryPolicy, Stationary, Tree, TreePolicy
from mmdp.core.simulate import simulate
from mmdp.core.solution import (
    OPTIMALITY_GAP,
    Evaluation,
    Solution,
    Status,
    describe_randomization,
    describe_restriction_cost,
)
from mmdp.core.solve import as_method, solve
from mmdp.core.text import ROUNDING_RTOL, format_number, format_with_unit, pluralize
from mmdp.data.posterior.check import Coverage, coverage
from mmdp.insight.draw.curves import effective_size_by_time
from mmdp.insight.economics import WillingnessToPay, willingness_to_pay
from mmdp.insight.economics.comparators import find_duplicate
from mmdp.insight.measures import (
    RiskFrontier,
    Stability,
    evpi,
    risk_frontier,
    sample_size_curve,
    voi_table,
)
from mmdp.insight.measures.information import MAX_GROUPS
from mmdp.insight.measures.memory import solve_by_nodes
from mmdp.insight.measures.near_optimal import NearOptimalActions, near_optimal_actions
from mmdp.insight.measures.robustness import stability_from_solution, with_single_init
from mmdp.insight.measures.simplicity import PhasedPolicy, compute_stationary_oracle, fit_stationary
from mmdp.insight.measures.stakes import ValueAtStake
from mmdp.insight.measures.tables import PolicyCells
from mmdp.insight.report.context import ReportContext, format_title
from mmdp.insight.report.rule_text import PhaseSentence, describe_rule, find_frequent_actions

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]

N_RESAMPLES = 20
N_LOGS, N_REFITTED_MODELS = 20, 100  # simulated logs, and the models fitted to each
BOUND_TIME_LIMIT = 5  # seconds at most for the bound on policies with memory
DEFAULT_MAX_NODES = 3  # of a finite-state controller
LEAF_LIMITS = (8, 4, 2)  # of the small tree: the first whose search is estimated to be short
MAX_TREE_SECONDS = 10.0
STAKE_TOLERANCE = 0.01  # that it may give up, as a share of the value at stake
MIN_SUBSET_SIZE = 5  # models in a subset
FAST_PASS_SECONDS = (
    0.005  # seconds of a pass up to which subsets of the models are drawn ten times, not three
)
EXTRA_PASSES = 3  # passes for what goes with an ascent: returns here and on test models, visits


@dataclass(frozen=True, eq=False)
class Alternative:
    """Another Markov policy, its evaluations, and its loss in the objective."""

    name: str
    policy: MarkovPolicy
    evaluation: Evaluation
    test_evaluation: Evaluation | None = None
    loss: float = 0.0


def make_alternative(context: ReportContext, name: str, policy: MarkovPolicy) -> Alternative:
    """Evaluate a policy on models and test models as an alternative to this one."""
    evaluation = context.evaluate(policy)
    loss = max(compute_difference(context.objective, context.evaluation, evaluation), 0.0)
    return Alternative(name, policy, evaluation, context.evaluate_test(policy), loss)


def compute_difference(objective: Objective, evaluation: Evaluation, other: Evaluation) -> float:
    """Compute the difference of two objective values; 0 if it is a rounding error."""
    scale = max(np.abs(x.returns).max() for x in (evaluation, other))
    difference = evaluation.value(objective) - other.value(objective)
    return 0.0 if abs(difference) <= ROUNDING_RTOL * scale else difference


# ---------------------------------------------------------------------- the answer
class PairComparison(NamedTuple):
    """Gain of a policy over another, and the models in which it returns more.

    ``n_better``: number of models in which it returns more; ``weight_better``: their weight.
    """

    name: str
    gain: float
    n_better: int
    weight_better: float


def compare(
    context: ReportContext, name: str, evaluation: Evaluation, other: Evaluation
) -> PairComparison:
    """Compare two evaluations: gain in the objective, number and weight of better models."""
    is_better = evaluation.returns > other.returns + ROUNDING_RTOL * np.abs(other.returns)
    gain = compute_difference(context.objective, evaluation, other)
    return PairComparison(
        name, gain, int(is_better.sum()), float(evaluation.weights[is_better].sum())
    )


def _compare_with_comparators(
    context: ReportContext,
) -> list[tuple[PairComparison, PairComparison | None]]:
    """Compare this policy with each comparator, on models and test models."""
    comparisons: list[tuple[PairComparison, PairComparison | None]] = []
    for name, policy in context.comparators.items():
        comparison = compare(context, name, context.evaluation, context.evaluate(policy))
        own_test, other_test, test_comparison = (
            context.test_evaluation,
            context.evaluate_test(policy),
            None,
        )
        if own_test is not None and other_test is not None:
            test_comparison = compare(context, name, own_test, other_test)
        comparisons.append((comparison, test_comparison))
    return comparisons


class ReturnRange(NamedTuple):
    """10% and 90% quantile of the returns, and number and weight of the models between."""

    low: float
    high: float
    n_models: int
    weight: float


@dataclass(frozen=True, eq=False)
class Summary:
    """Results shown in the first section of the page."""

    phased_policy: PhasedPolicy  # the policy in a few phases
    phased_alternative: Alternative  # that rule as a policy
    sentences: list[PhaseSentence]  # the rule in words; empty if it takes too many
    frequent_actions: list[tuple[str, float]]  # the most frequent actions and their shares
    share_randomized: float  # share of the decisions that are drawn by lot
    return_range: ReturnRange
    worst_model: str
    oracle_mean: float  # of someone who knows the model
    oracle_gap: float | None  # of what counts, compared with them; None if that may be negative
    history_bound: float  # on the mean return of any policy, history-dependent ones included
    rounding: float  # a difference between returns that is not more than this is none
    comparisons: list[
        tuple[PairComparison, PairComparison | None]
    ]  # the named policies, here and held out
    is_closed: bool  # whether the policy is proven to be the best
    restriction_cost_text: str  # what the restriction of the policy class costs; empty if none
    status_text: str  # how the solve ended; empty for a given policy


def summarize(context: ReportContext) -> Summary:
    """Summarize the policy: short rule, return range, oracle gap, comparisons."""
    evaluation = context.evaluation
    phased_policy = context.fit_phases()
    worst_index = np.where(evaluation.weights > 0, evaluation.returns, np.inf).argmin()
    oracle_mean, objective, oracle_gap = (
        float(evaluation.oracle @ evaluation.weights),
        context.objective,
        None,
    )
    if objective.is_monotone:
        oracle_returns = objective.relative_returns(evaluation.oracle, lambda: evaluation.oracle)
        oracle_gap = float(objective.value(oracle_returns, evaluation.weights)) - context.value
        oracle_gap = (
            oracle_gap if oracle_gap > ROUNDING_RTOL * np.abs(evaluation.oracle).max() else 0.0
        )
    history_bound = oracle_mean
    if (
        context.bound is not None
        and context.bound.scope == "history"
        and not context.has_risk_objective
    ):
        history_bound = min(oracle_mean, context.bound.value)
    return Summary(
        phased_policy,
        make_alternative(context, "the short rule", phased_policy.policy),
        describe_rule(context, phased_policy),
        find_frequent_actions(context, context.policy),
        _compute_share_randomized(context),
        _compute_return_range(evaluation),
        context.model.model_labels[int(worst_index)],
        oracle_mean,
        oracle_gap,
        history_bound,
        ROUNDING_RTOL * float(np.abs(evaluation.oracle).max()),
        _compare_with_comparators(context),
        _is_closed(context),
        _describe_restriction_cost(context),
        "" if context.solution is None else describe_status(context.solution),
    )


def _describe_restriction_cost(context: ReportContext) -> str:
    """Describe what the restriction of the policy class costs; empty if that is not known."""
    if not context.policy_class.is_restricted or (
        context.solution is None and context.free_value is None
    ):
        return ""
    return describe_restriction_cost(
        context.policy_class,
        context.value,
        context.free_value,
        None if context.bound is None else context.bound.markov_bound,
        context.model.unit,
        context.stake.format_share,
    )


def describe_status(solution: Solution) -> str:
    """Describe how a solve ended, without its proof, which has a place of its own on the page."""
    is_completed = solution.status is Status.COMPLETED
    return solution.status.value if is_completed else solution.status_text


def _compute_return_range(evaluation: Evaluation) -> ReturnRange:
    """Compute the range between the 10% and 90% quantile of the returns."""
    low, high = evaluation.quantile(0.1), evaluation.quantile(0.9)
    is_inside = (
        (evaluation.returns >= low) & (evaluation.returns <= high) & (evaluation.weights > 0)
    )
    return ReturnRange(low, high, int(is_inside.sum()), float(evaluation.weights[is_inside].sum()))


def _compute_share_randomized(context: ReportContext) -> float:
    """Compute the share of decisions in which the policy randomizes."""
    if context.policy.is_deterministic:
        return 0.0
    visit_probs = context.compute_visit_probs()
    return float(
        visit_probs[context.policy.probabilities.max(axis=2) < 1].sum() / visit_probs.sum()
    )


def _is_closed(context: ReportContext) -> bool:
    """Return whether the bound meets the value of the policy."""
    bound, solution = context.bound, context.solution
    if bound is None:
        return False
    is_proven = (
        solution is not None and solution.certificate is bound and solution.status is Status.OPTIMAL
    )
    return is_proven or bound.gap(context.value) <= OPTIMALITY_GAP


def may_gain_by_randomizing(context: ReportContext) -> bool:
    """Return whether randomization may gain something or was tried."""
    text = "" if context.solution is None else context.solution.randomization_text
    is_randomized = not context.policy.is_deterministic and (
        context.has_risk_objective or context.policy_class.name == "stationary"
    )
    return bool(text) or is_randomized


def describe_randomization_gain(context: ReportContext) -> str:
    """Describe the gain over the best deterministic policy found of the class."""
    if context.solution is not None and context.solution.randomization_text:
        return context.solution.describe_randomization(context.stake.format_share)
    is_infinite = context.policy_class.is_infinite_horizon
    deterministic_policy = solve(
        context.model,
        math.inf if is_infinite else context.horizon,
        objective=context.objective,
        seed=context.seed,
        policy_class=Stationary() if context.policy_class.name == "stationary" else None,
    ).policy
    evaluation = context.evaluate(
        deterministic_policy.to_markov(context.horizon) if is_infinite else deterministic_policy
    )
    comparison = compare(context, "", context.evaluation, evaluation)
    if comparison.gain < 0:
        loss_text = format_with_unit(format_number(-comparison.gain, 3), context.model.unit)
        return f"this one has {loss_text} less"
    return describe_randomization(
        context.policy,
        context.policy_class,
        comparison.gain,
        context.model.unit,
        context.stake.format_share,
    )


def estimate_randomization_passes(context: ReportContext) -> float:
    """Estimate the passes of solving for a deterministic policy of the class."""
    return context.policy_class.estimate_passes(
        CADP().estimate_passes(context.model.problem, context.horizon)
    )


def find_simpler_policies(context: ReportContext) -> tuple[Alternative, ...]:
    """Find policies simpler than the short rule: stationary, or with one action.

    The first is a table of all states, which is no simpler than a tree, and is left out if the
    second is as good. So is a policy that is that simple itself, or that has a name already.
    """
    name, constant_policy = context.find_constant_policies()[0]
    assert isinstance(constant_policy, MarkovPolicy)  # as the policy is one
    single, known = (
        make_alternative(context, name, constant_policy),
        [context.policy, *context.comparators.values()],
    )
    alternatives = (
        [] if any(have_same_decisions(context, constant_policy, x) for x in known) else [single]
    )
    is_constant_in_time = (context.policy.table == context.policy.table[:1]).all()
    if not context.policy_text and not is_constant_in_time:
        stationary_policy = fit_stationary(
            context.policy, context.model, context.compute_visit_probs(), context.policy_class
        )
        same = make_alternative(context, "one rule for all steps", stationary_policy)
        if (
            stationary_policy not in (context.policy, context.fit_phases().policy)
            and same.loss < single.loss
        ):
            alternatives = [same, *alternatives]
    return tuple(alternatives)


def have_same_decisions(context: ReportContext, policy: MarkovPolicy, other: MarkovPolicy) -> bool:
    """Return whether two deterministic policies agree in all states with a choice."""
    if not (policy.is_deterministic and other.is_deterministic):
        return False
    return bool((policy.actions == other.actions)[:, context.model.has_choice].all())


class SmallTree(NamedTuple):
    """The smallest tree that gives up at most 1% of the value at stake, and its gain."""

    policy: TreePolicy
    alternative: Alternative
    gain: float


def can_fit_tree(context: ReportContext) -> bool:
    """Return whether the states have features to split on and the policy is no tree itself."""
    if context.policy_text or type(context.policy_class) not in (Markov, Stationary):
        return False
    try:
        Tree().check(context.model, context.horizon)
    except InputError:
        return False
    return True


def find_small_tree(context: ReportContext) -> SmallTree | None:
    """Find the smallest tree within 1% of the value at stake; None if none is."""
    policy_class = Tree(
        choose_max_leaves(context), use_time=not context.policy_class.is_infinite_horizon
    )
    solution = solve(
        context.model,
        context.horizon,
        policy_class=policy_class,
        objective=context.objective,
        seed=context.seed,
    )
    min_value = context.value - max(
        STAKE_TOLERANCE * context.stake.amount, 1e-9 * abs(context.value)
    )
    candidates = zip(
        solution.details["trees_by_leaves"], solution.details["value_by_leaves"], strict=True
    )
    tree = next((tree for tree, value in candidates if value >= min_value), None)
    if tree is None:
        return None
    alternative = make_alternative(
        context,
        f"the rule of {pluralize(tree.n_leaves, 'leaf', 'leaves')}",
        tree.to_markov(context.horizon),
    )
    gain = compute_difference(context.objective, alternative.evaluation, context.evaluation)
    return SmallTree(tree, alternative, max(gain, 0.0))


def choose_max_leaves(context: ReportContext) -> int:
    """Choose the largest limit of leaves whose search is estimated to be short."""
    return next(
        (
            k
            for k in LEAF_LIMITS
            if context.estimate_seconds(estimate_tree_passes(context, k)) <= MAX_TREE_SECONDS
        ),
        1,
    )


def estimate_tree_passes(context: ReportContext, max_leaves: int | None = None) -> float:
    """Estimate an upper limit of the passes of the search for trees."""
    return (
        600 * (max_leaves or choose_max_leaves(context)) * (5 if context.has_risk_objective else 1)
    )


def can_find_near_optimal(context: ReportContext) -> bool:
    return context.policy.is_deterministic and bool(context.objective.is_monotone)


def find_near_optimal_sets(context: ReportContext) -> NearOptimalActions:
    """Find the actions that may be interchanged for 1% of the value at stake."""
    return near_optimal_actions(
        context.model,
        context.policy,
        STAKE_TOLERANCE,
        objective=context.objective,
        at_stake=context.stake,
    )


class OffGridCheck(NamedTuple):
    """Mean return on the grid and of the step function itself, with two standard errors.

    ``is_coarse``: whether they differ by more than chance and the gap of the bound explain.
    """

    grid_mean: float
    off_grid_mean: float
    error: float
    n_episodes: int
    is_coarse: bool


def has_grid(model: MMDP | None) -> bool:
    """Return whether the model comes from a step function with a continuous axis."""
    return model is not None and model.step_spec is not None and bool(model.step_spec.grid_axes)


def check_off_grid(context: ReportContext) -> tuple[OffGridCheck, OffGridCheck | None]:
    """Simulate the policy without the grid, on models and on test models."""
    train_check = _check_model_off_grid(context, context.model, context.evaluation)
    test_check = None
    if (
        context.test_model is not None
        and context.test_evaluation is not None
        and has_grid(context.test_model)
    ):
        test_check = _check_model_off_grid(context, context.test_model, context.test_evaluation)
    return train_check, test_check


def _check_model_off_grid(
    context: ReportContext, model: MMDP, evaluation: Evaluation
) -> OffGridCheck:
    """Simulate the policy without the grid and compare the mean return."""
    simulation = simulate(model, context.policy, seed=context.seed, off_grid=True)
    bound = None if context.has_risk_objective or model is not context.model else context.bound
    bound_gap = 0.0 if bound is None else bound.value - context.value
    error = (
        2 * simulation.stderr if simulation.stderr > 1e-12 * abs(simulation.mean) else 0.0
    )  # rounding
    rounding = ROUNDING_RTOL * abs(evaluation.mean)
    is_coarse = abs(evaluation.mean - simulation.mean) > max(bound_gap, error, rounding)
    return OffGridCheck(
        evaluation.mean, simulation.mean, error, simulation.details["n_episodes"], is_coarse
    )


class ControllerReport(NamedTuple):
    """A given finite-state controller, its evaluation, and its gain over this policy."""

    policy: MemoryPolicy
    evaluation: Evaluation
    comparison: PairComparison


def evaluate_controller(context: ReportContext) -> ControllerReport:
    """Evaluate the given finite-state controller and compare it with this policy."""
    assert context.controller is not None
    evaluation = context.evaluate(context.controller)
    comparison = compare(context, context.name, evaluation, context.evaluation)
    return ControllerReport(context.controller.merge_nodes(context.model), evaluation, comparison)


class ProblemFacts(NamedTuple):
    """Facts about the problem: quantity, weights and initial states."""

    quantity: str  # what a return is, in words
    has_equal_weights: bool
    effective_sample_size: float  # models of equal weight that these are as good as
    initial_states: list[int]  # states that an episode may start in


def collect_problem_facts(context: ReportContext) -> ProblemFacts:
    """Collect the facts about the problem that the page shows."""
    weights = context.model.weights
    initial_states = np.flatnonzero(context.model.problem.initial.any(axis=1)).tolist()
    return ProblemFacts(
        _describe_quantity(context),
        bool(np.allclose(weights, 1 / len(weights))),
        1 / float((weights**2).sum()),
        initial_states,
    )


def _describe_quantity(context: ReportContext) -> str:
    """Describe the return: the model's quantity, net benefit, or "return"."""
    model, inputs = context.model, context.economic_inputs
    if model.quantity or inputs is None:
        return model.quantity or "return"
    outcome_models = inputs.discounting.make_outcome_models(
        model, inputs.effects, inputs.costs, context.horizon
    )
    r, e, c = np.broadcast_arrays(
        *(np.where(model.allowed, y.rewards, 0.0) for y in (model, *outcome_models))
    )
    wtp = float(f"{((r + c) * e).sum() / max((e * e).sum(), 1e-300):.9g}")  # 15, not 15.00
    if not np.allclose(r, wtp * e - c, rtol=0.0, atol=ROUNDING_RTOL * np.abs(r).max()):
        return "return"
    return f"net benefit at {format_with_unit(format_number(wtp), model.unit)} per unit of effect"


# ---------------------------------------------------------------------- safer
def compute_risk_frontier(context: ReportContext) -> RiskFrontier:
    """Compute the risk frontier, from the best on average to the safest policy."""
    result = risk_frontier(context.model, context.horizon, seed=context.seed)
    test_evaluations = [
        x
        for x in (context.evaluate_test(point.policy) for point in result.solutions)
        if x is not None
    ]
    return replace(result, test_evaluations=tuple(test_evaluations))


# ---------------------------------------------------------------------- methods
@dataclass(frozen=True)
class MethodRow:
    """Row of the table of methods: evaluations on models and test models, seconds, status."""

    name: str
    evaluation: Evaluation
    test_evaluation: Evaluation | None
    seconds: float | None = None
    status: str = ""
    policy: MarkovPolicy | None = None


@dataclass(frozen=True, eq=False)
class MethodComparison:
    """Table of methods with this policy first and Oracle last, and what follows from it.

    ``best_solution``: the solution of the page's policy class with the highest mean; ``reference``:
    name and mean of the best policy on average, maybe this one; ``free_mean``: mean of the best
    policy found of any class without memory; ``oracle_gain``: how much more
    Oracle returns on average, which is the EVPI if that policy is optimal and its class is not
    restricted. ``test_leader``: name, lead and standard error of the method that is best on the
    test models, if it is ahead of this policy. ``traces``: value by iteration of every CADP run;
    ``ascent_gain``: the largest gain of a run over its init, None if no run improved.
    """

    rows: tuple[MethodRow, ...]
    best_solution: Solution | None
    reference: tuple[str, float]
    free_mean: float
    oracle_gain: float
    test_leader: tuple[str, float, float] | None
    has_simulated: bool
    traces: dict[str, Array]
    ascent_gain: float | None


def compare_methods(context: ReportContext) -> MethodComparison:
    """Solve by every method and compare the results with this policy and Oracle."""
    rows, best_solution, traces = (
        _make_rows(context),
        find_best_solution(context),
        _collect_traces(context),
    )
    ascent_gains = [float(trace[-1] - trace[0]) for trace in traces.values() if len(trace) > 1]
    mean = find_best_mean(context, best_solution)
    is_own_best = best_solution is None or mean <= context.evaluation.mean + ROUNDING_RTOL * abs(
        mean
    )
    name = "this policy" if is_own_best or best_solution is None else format_title(best_solution)
    return MethodComparison(
        rows,
        best_solution,
        (name, mean),
        _find_free_mean(context, mean),
        max(rows[-1].evaluation.mean - mean, 0.0),
        _find_test_leader(context, rows),
        any(row.evaluation.standard_errors is not None for row in rows),
        traces,
        max(ascent_gains, default=None),
    )


def find_best_solution(context: ReportContext) -> Solution | None:
    """Find the solution of the page's policy class with the highest mean; None if none."""
    solutions = context.solve_all() + (
        [context.solution] if context.solution is not None and context.is_given else []
    )
    same_class = [
        x
        for x in solutions
        if x.markov_policy is not None
        and x.provenance.policy_class.name == context.policy_class.name
    ]
    best_mean = max((x.evaluation.mean for x in same_class), default=-math.inf)
    tolerance = ROUNDING_RTOL * abs(best_mean)  # the first of those that differ by rounding
    return next((x for x in same_class if x.evaluation.mean >= best_mean - tolerance), None)


def find_best_mean(context: ReportContext, best_solution: Solution | None) -> float:
    own_mean = context.evaluation.mean
    return own_mean if best_solution is None else max(own_mean, best_solution.evaluation.mean)


def _find_free_mean(context: ReportContext, best_mean: float) -> float:
    """Find the mean of the best policy without memory that is known, restricted or not."""
    means = [x.best_value for x in context.solve_all() if x.markov_policy is not None]
    if context.free_value is not None and not context.has_risk_objective:
        means.append(context.free_value)
    return max([best_mean, *means])


def _make_rows(context: ReportContext) -> tuple[MethodRow, ...]:
    """Make the rows of the table of methods: policies, comparators, Oracle last."""
    solutions, own_solution, has_own_row = (
        context.solve_all(),
        context.solution,
        context.is_given or context.has_risk_objective,
    )
    duplicates = [
        x
        for x in solutions
        if has_own_row
        and own_solution is not None
        and own_solution.method == x.method
        and x.policy == context.policy
    ]
    rows = []
    if has_own_row:
        is_name_taken = any(
            format_title(x) == context.name for x in solutions if x not in duplicates
        )
        rows.append(
            _make_own_row("this policy" if is_name_taken else context.name, context, own_solution)
        )
    for solution in solutions:
        if solution.policy is not None and solution not in duplicates:
            test_evaluation = context.evaluate_test(solution.policy)
            rows.append(
                MethodRow(
                    format_title(solution),
                    solution.evaluation,
                    test_evaluation,
                    *_solution_columns(solution),
                )
            )
    if (x := context.controller) is not None:
        name = f"the given policy, {pluralize(x.n_nodes, 'node')}"
        rows.insert(
            0, MethodRow(name, context.evaluate(x), context.evaluate_test(x), status="given")
        )
    rows += [
        MethodRow(name, context.evaluate(x), context.evaluate_test(x), status="given", policy=x)
        for name, x in context.comparators.items()
    ]
    oracle_returns, own_test = context.evaluation.oracle, context.test_evaluation
    oracle_evaluation = Evaluation(
        oracle_returns, context.model.weights, _compute_oracle=lambda: oracle_returns
    )
    test_evaluation = None
    if own_test is not None:
        test_oracle_returns = own_test.oracle
        test_evaluation = Evaluation(
            test_oracle_returns, own_test.weights, _compute_oracle=lambda: test_oracle_returns
        )
    oracle_row = MethodRow(
        "Oracle (knows the model)",
        oracle_evaluation,
        test_evaluation,
        status="a bound: no policy does better",
    )
    return (*rows, oracle_row)


def _make_own_row(name: str, context: ReportContext, solution: Solution | None) -> MethodRow:
    """Make the row of this policy."""
    return MethodRow(
        name,
        context.evaluation,
        context.test_evaluation,
        *(() if solution is None else _solution_columns(solution)),
    )


def _solution_columns(solution: Solution) -> tuple[float, str, MarkovPolicy | None]:
    return solution.seconds, describe_status(solution), solution.markov_policy


def _find_test_leader(
    context: ReportContext, rows: tuple[MethodRow, ...]
) -> tuple[str, float, float] | None:
    """Find the method ahead of this policy on test models: name, lead, standard error."""
    test_evaluations = {
        row.name: row.test_evaluation for row in rows[:-1] if row.test_evaluation is not None
    }
    if context.test_evaluation is None or not test_evaluations or context.has_risk_objective:
        return None
    name = max(test_evaluations, key=lambda name: test_evaluations[name].mean)
    lead, stderr = test_evaluations[name].compare_mean(context.test_evaluation)
    is_ahead = lead > ROUNDING_RTOL * abs(context.test_evaluation.mean)
    return (name, lead, stderr) if is_ahead else None


def _collect_traces(context: ReportContext) -> dict[str, Array]:
    """Collect the values by iteration of every CADP run, by the name of its init."""
    own_runs = (
        [context.solution]
        if context.solution is not None and not context.has_risk_objective
        else []
    )
    traces: dict[str, Array] = {}
    for solution in [*own_runs, *context.solve_all()]:
        if solution.method == "cadp":
            init = solution.provenance.options.get("init", "wsu")
            init = "one leaf" if solution.provenance.policy_class.uses_growth else init
            name = init if isinstance(init, str) else "a given policy"
            traces.setdefault(name.upper() if len(name) == 3 else name, solution.trace)
    return traces


# ---------------------------------------------------------------------- over the models
class NearOptimalShare(NamedTuple):
    """Weight of the models whose optimum is at most ``tolerance`` above the policy."""

    weight: float
    tolerance: float


def compute_near_optimal_share(context: ReportContext) -> NearOptimalShare:
    """Compute the weight of the models with a regret of at most 1% of the stake."""
    evaluation, tolerance = context.evaluation, STAKE_TOLERANCE * context.stake.amount
    thresholds = np.maximum(tolerance, 1e-9 * np.abs(evaluation.oracle))
    return NearOptimalShare(
        float(evaluation.weights[evaluation.regret <= thresholds].sum()), tolerance
    )


def simulate_coverage(context: ReportContext) -> Coverage:
    """Compute how often intervals of the policy's return cover, on simulated logs."""
    return coverage(
        context.model, context.policy, n_logs=N_LOGS, n_models=N_REFITTED_MODELS, seed=context.seed
    )


def estimate_coverage_passes(context: ReportContext) -> float:
    """Estimate the passes of sampling and evaluating models for the simulated logs."""
    return (
        3 * N_LOGS * N_REFITTED_MODELS / context.model.n_models
    )  # models are drawn, laid out and evaluated


class WeightSummary(NamedTuple):
    """Model weights b (T, M, S), and the state that changes them most.

    ``effective_size``: number of equally likely models as uncertain as at the last decision.
    """

    weights: Array
    state: int
    effective_size: float


def summarize_weights(context: ReportContext) -> WeightSummary:
    """Summarize the model weights under the policy."""
    weights = context.compute_model_weights()
    # |b_{t,m}(s) - lambda_m P(s at t)|, summed over times and models
    expected = weights.sum(axis=1, keepdims=True) * context.model.weights[None, :, None]
    state = int(np.abs(weights - expected).sum(axis=(0, 1)).argmax())
    return WeightSummary(weights, state, float(effective_size_by_time(weights)[-1, 0]))


# ---------------------------------------------------------------------- knowing more
@dataclass(frozen=True, eq=False)
class InformationValue:
    """Expected value of perfect information (EVPI), and of each parameter (EVPPI).

    ``identifying_parameters``: parameters with another value in every model, so that knowing one
    of them is knowing the model. ``best_parameter``: name and value of the parameter worth most,
    unless it is one of these.
    """

    table: pd.DataFrame
    identifying_parameters: list[str]
    best_parameter: tuple[str, float] | None


def compute_information_value(context: ReportContext) -> InformationValue | None:
    """Compute EVPI and EVPPI; None without parameters or a solution."""
    best_solution = find_best_solution(context)
    if best_solution is None or not context.model.parameters:
        return None
    table = voi_table(context.model, context.horizon, method=best_solution)
    parameters, single_rows = context.model.parameters, table.iloc[1:]
    exact_parameters = single_rows.loc[single_rows["estimator"] == "exact", "parameter"]
    identifying_parameters = [
        x for x in exact_parameters if len(np.unique(parameters[x])) == context.model.n_models
    ]
    top_row = single_rows.sort_values("value", kind="stable").iloc[-1]
    best_parameter = (
        None
        if top_row["parameter"] in identifying_parameters
        else (str(top_row["parameter"]), float(top_row["value"]))
    )
    return InformationValue(table, identifying_parameters, best_parameter)


def estimate_information_passes(context: ReportContext) -> float:
    """Estimate the passes of the solves by groups of models."""
    n_parameters, policy_class = len(context.model.parameters), context.policy_class
    if not n_parameters or not isinstance(policy_class, Tree):
        return 200.0 * MAX_GROUPS * n_parameters
    return 125.0 * policy_class.max_leaves * (context.model.n_models + MAX_GROUPS * n_parameters)


def estimate_restricted_evpi(context: ReportContext) -> float:
    """Estimate the EVPI within the restricted policy class."""
    best_solution = find_best_solution(context)
    if best_solution is not None:
        return evpi(context.model, method=best_solution)
    model_optima = compute_stationary_oracle(context.policy, context.model)
    return max(float(model_optima @ context.model.weights) - context.evaluation.mean, 0.0)


class MemoryValue(NamedTuple):
    """Value by number of nodes, and the finite-state controller with the most nodes."""

    table: pd.DataFrame
    policy: MemoryPolicy


def estimate_memory_passes(context: ReportContext) -> float:
    """Estimate the passes of solving for finite-state controllers and simulating."""
    return 5_000.0 * max((context.request.get("max_nodes") or DEFAULT_MAX_NODES) - 1, 1)


def compute_memory_value(context: ReportContext) -> MemoryValue:
    """Compute the value by number of nodes of a finite-state controller."""
    node_counts = range(1, (context.request.get("max_nodes") or DEFAULT_MAX_NODES) + 1)
    stake = (
        ValueAtStake(0.0, "", context.model.unit) if context.has_risk_objective else context.stake
    )  # gains are averages
    return MemoryValue(
        *solve_by_nodes(
            context.model,
            context.horizon,
            node_counts,
            seed=context.seed,
            time_limit=BOUND_TIME_LIMIT,
            at_stake=stake,
        )
    )


# ---------------------------------------------------------------------- enough models
class SampleSizeCurve(NamedTuple):
    """Return on test models by number of models, and its gain from half of them to all."""

    table: pd.DataFrame
    n_models: int
    n_fewer: int
    value: float
    gain: float


def compute_sample_size_curve(context: ReportContext) -> SampleSizeCurve | None:
    """Compute the return on test models by number of models; None if too few."""
    if not can_solve_subsets(context):
        return None
    subset_sizes, n_repeats = _choose_subset_sizes(context)
    table = sample_size_curve(
        context.model,
        context.horizon,
        subset_sizes,
        test_model=context.test_model,
        n_repeats=n_repeats,
        seed=context.seed,
        method=context.methods[0],
    )
    last_row = table.iloc[-1]
    half_row = table.iloc[int((table["models"] - last_row["models"] / 2).abs().argmin())]
    value, gain = float(last_row["test"]), float(last_row["test"] - half_row["test"])
    gain = gain if abs(gain) > ROUNDING_RTOL * abs(value) else 0.0
    return SampleSizeCurve(table, int(last_row["models"]), int(half_row["models"]), value, gain)


def _choose_subset_sizes(context: ReportContext) -> tuple[list[int], int]:
    """Choose numbers of models to solve with, and the repeats of each."""
    n_available = _count_available_models(context)
    round_numbers = [a * 10**b for b in range(7) for a in (1, 2, 5)]
    subset_sizes = [*(x for x in round_numbers if MIN_SUBSET_SIZE <= x < n_available), n_available]
    return subset_sizes, 10 if context.estimate_seconds(1) <= FAST_PASS_SECONDS else 3


def estimate_sample_size_passes(context: ReportContext) -> float:
    """Estimate the passes of the ascents with fewer models."""
    subset_sizes, n_repeats = _choose_subset_sizes(context)
    return (
        _estimate_ascent_passes(context, (len(subset_sizes) - 1) * n_repeats + 1)
        if can_solve_subsets(context)
        else 0.0
    )


def estimate_resample_passes(context: ReportContext) -> float:
    """Estimate the passes of the ascents on resampled models."""
    n_resamples = context.request.get("n_resamples") or N_RESAMPLES
    return (
        _estimate_ascent_passes(context, 2 * n_resamples) if can_resample(context) else 0.0
    )  # from two starts


def _estimate_ascent_passes(context: ReportContext, n_ascents: int) -> float:
    """Estimate the passes of a number of ascents of the first method."""
    passes_per_ascent = with_single_init(context.methods[0]).estimate_passes(
        context.model.problem, context.horizon
    )
    return n_ascents * (passes_per_ascent + EXTRA_PASSES)


def can_solve_subsets(context: ReportContext) -> bool:
    """Return whether there are enough models and a Markov method to solve subsets."""
    is_markov_method = bool(context.methods) and isinstance(
        as_method(context.methods[0]).default_class, Markov
    )
    return is_markov_method and _count_available_models(context) > MIN_SUBSET_SIZE


def _count_available_models(context: ReportContext) -> int:
    """Count the models to solve with; half are held out if there are no test models."""
    return (
        context.model.n_models
        if context.test_model is not None
        else -(-context.model.n_models // 2)
    )


def can_resample(context: ReportContext) -> bool:
    """Return whether the policy is the one that the first method computes for the mean."""
    return not (context.is_given or context.has_risk_objective)


def compute_stability(context: ReportContext) -> Stability | None:
    """Compute which decisions change on resampled models; None for a given policy."""
    if not can_resample(context):
        return None
    n_resamples = context.request.get("n_resamples") or N_RESAMPLES
    return stability_from_solution(
        context.solve_method(0), context.model, n_resamples, context.seed, context.methods[0]
    )


# ---------------------------------------------------------------------- cost and effect
class WtpSweep(NamedTuple):
    """Willingness-to-pay table, and descriptions of the policies found in it.

    ``policy_texts`` are by name of the policy; ``frequent_actions`` has the most frequent actions
    and their shares for policies without a text.
    """

    table: WillingnessToPay
    policy_texts: dict[str, str]
    frequent_actions: dict[str, list[tuple[str, float]]]


def compute_willingness_to_pay(context: ReportContext) -> WtpSweep:
    """Compute the willingness-to-pay sweep and describe its policies."""
    table = _compute_wtp_table(context)
    texts = {name: table.policies[name].describe() for name in table.found_names}
    frequent_actions = {
        name: find_frequent_actions(context, table.policies[name].to_markov(context.horizon))
        for name in table.found_names
        if not texts[name]
    }
    return WtpSweep(table, {name: x for name, x in texts.items() if x}, frequent_actions)


def _compute_wtp_table(context: ReportContext) -> WillingnessToPay:
    """Compute the willingness-to-pay table of this policy, comparators and best ones."""
    inputs = context.economic_inputs
    assert inputs is not None
    policies = dict(context.comparators)
    duplicate = find_duplicate(
        context.policy,
        policies,
        inputs.discounting.make_outcome_models(
            context.model, inputs.effects, inputs.costs, context.horizon
        ),
    )
    if duplicate is None:
        policies = {"this policy": context.policy, **policies}
    else:
        new_names = {duplicate: f"{duplicate} (this policy)"}
        policies = {new_names.get(name, name): policy for name, policy in policies.items()}
    return willingness_to_pay(
        context.model,
        inputs.effects,
        inputs.costs,
        inputs.wtp_grid,
        context.horizon,
        method=context.get_method(),
        policy_class=context.find_policy_class(),
        policies=policies,
        discounting=inputs.discounting,
    )


# ---------------------------------------------------------------------- all sections
class SectionResults(TypedDict):
    """Results of the sections by key; None for a section that was not computed."""

    summary: Summary
    simpler: tuple[Alternative, ...] | None
    small_tree: SmallTree | None
    near_optimal: NearOptimalActions | None
    randomization: str | None
    off_grid: tuple[OffGridCheck, OffGridCheck | None] | None
    controller: ControllerReport | None
    problem: ProblemFacts
    policy: PolicyCells
    frontier: RiskFrontier | None
    methods: MethodComparison
    returns: NearOptimalShare
    coverage: Coverage | None
    weights: WeightSummary | None
    voi: InformationValue | None
    restricted_evpi: float | None
    memory: MemoryValue | None
    sample_size: SampleSizeCurve | None
    stability: Stability | None
    willingness: WtpSweep | None
    source: str


# ---------------------------------------------------------------------- the source
def format_method_options(context: ReportContext) -> str:
    """Format the options of the method that found the policy, in parentheses."""
    options = {} if context.solution is None else context.solution.provenance.options
    text = ", ".join(
        f"{key} {value}"
        for key, value in options.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    )
    return f" ({text})" if text else ""
