"""Facts of the sections of a page: one function and one plain result type for each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.policies import (
    Markov,
    MarkovPolicy,
    MemoryPolicy,
    Policy,
    Stationary,
    Tree,
    TreePolicy,
)
from mmdp.core.shapes import Array, Mask
from mmdp.core.simulate import simulate
from mmdp.core.solution import (
    OPTIMALITY_GAP,
    Evaluation,
    Solution,
    Status,
)
from mmdp.core.solve import solve
from mmdp.core.text import ROUNDING_RTOL, pluralize
from mmdp.data.posterior.check import Coverage
from mmdp.insight.economics import WillingnessToPay, willingness_to_pay
from mmdp.insight.economics.comparators import find_duplicate
from mmdp.insight.measures import (
    NearOptimalActions,
    RiskFrontier,
    Stability,
    model_weights,
    sample_size_curve,
    voi_table,
)
from mmdp.insight.measures.decisions import PolicyCells
from mmdp.insight.measures.risk import list_round_sizes, stability_from_solution
from mmdp.insight.measures.simplicity import fit_stationary, solve_by_nodes
from mmdp.insight.plots import effective_size_by_time
from mmdp.insight.report.context import (
    ReportContext,
    compute_difference,
    drop_rounding,
    format_title,
)
from mmdp.insight.report.rule_text import PhaseSentence, describe_rule, find_frequent_actions

N_RESAMPLES = 20
BOUND_TIME_LIMIT = 5  # seconds at most for the bound on policies with memory
DEFAULT_MAX_NODES = 3  # of a finite-state controller
LEAF_LIMITS = (8, 4, 2)  # of the small tree: the first whose search is estimated to be short
MAX_TREE_SECONDS = 10.0
MIN_SUBSET_SIZE = 5  # models in a subset
# seconds of a pass up to which subsets of the models are drawn ten times, not three
FAST_PASS_SECONDS = 0.005
MIN_VISIT_PROB = 0.05  # a decision met with this probability is worth naming
STATIONARY_NAME = "one rule for all steps"


class PolicyRow(NamedTuple):
    """A policy of the page by name, with its evaluations on models and test models.

    ``policy`` is the Markov policy that the maps compare, None if it is none; ``status`` and
    ``seconds`` say how a method found it.
    """

    name: str
    evaluation: Evaluation
    test_evaluation: Evaluation | None
    policy: MarkovPolicy | None = None
    status: str = ""
    seconds: float | None = None


def make_row(
    context: ReportContext, name: str, policy: Policy | Solution, status: str = ""
) -> PolicyRow:
    """Make the row of a policy or solution, evaluated on models and test models."""
    if not isinstance(policy, Solution):
        evaluations = context.evaluate(policy), context.evaluate_test(policy)
        return PolicyRow(name, *evaluations, policy.as_markov, status)
    evaluations = policy.evaluation, context.evaluate_test(policy.policy)
    status = describe_status(policy)
    return PolicyRow(name, *evaluations, policy.markov_policy, status, policy.seconds)


# ---------------------------------------------------------------------- the answer
class PairComparison(NamedTuple):
    """Gain of a policy over another, and the models in which it returns more.

    ``n_better``: number of models in which it returns more; ``weight_better``: their weight.
    """

    gain: float
    n_models: int
    n_better: int
    weight_better: float


def compare(context: ReportContext, evaluation: Evaluation, other: Evaluation) -> PairComparison:
    """Compare two evaluations: gain in the objective, number and weight of better models."""
    is_better = find_better_models(evaluation, other)
    return PairComparison(
        compute_difference(context.objective, evaluation, other),
        len(is_better),
        int(is_better.sum()),
        float(evaluation.weights[is_better].sum()),
    )


def find_better_models(evaluation: Evaluation, other: Evaluation) -> Mask:
    """Find the models (M,) in which a policy returns clearly more than another."""
    return evaluation.returns > other.returns + ROUNDING_RTOL * np.abs(other.returns)


def _compare_both(
    context: ReportContext, policy: Policy
) -> tuple[PairComparison, PairComparison | None]:
    """Compare this policy with another on the models, and on the test models if there are any."""
    own, other = context.test_evaluation, context.evaluate_test(policy)
    comparison = compare(context, context.evaluation, context.evaluate(policy))
    return comparison, None if own is None or other is None else compare(context, own, other)


class ReturnRange(NamedTuple):
    """10% and 90% quantile of the returns, and number and weight of the models between."""

    low: float
    high: float
    n_models: int
    weight: float


class Summary(NamedTuple):
    """Results shown in the first section of the page."""

    phased_row: PolicyRow  # the policy in a few phases
    sentences: list[PhaseSentence]  # the rule in words; empty if it takes too many
    frequent_actions: list[tuple[str, float]]  # the most frequent actions and their shares
    share_randomized: float  # share of the decisions that are drawn by lot
    return_range: ReturnRange
    worst_model: str
    oracle_mean: float  # of someone who knows the model
    oracle_gap: float | None  # of what counts, compared with them; None if that may be negative
    history_bound: float  # on the mean return of any policy, history-dependent ones included
    rounding: float  # a difference between returns that is not more than this is none
    # the named policies, here and held out
    comparisons: dict[str, tuple[PairComparison, PairComparison | None]]
    is_closed: bool  # whether the policy is proven to be the best


def summarize(context: ReportContext) -> Summary:
    """Summarize the policy: short rule, return range, oracle gap, comparisons."""
    evaluation, objective, bound = context.evaluation, context.objective, context.bound
    returns, weights, oracle = evaluation.returns, evaluation.weights, evaluation.oracle
    oracle_mean, oracle_scale = float(oracle @ weights), float(np.abs(oracle).max())
    oracle_gap = None
    if objective.is_monotone:
        oracle_value = objective.value(objective.relative_returns(oracle, lambda: oracle), weights)
        oracle_gap = max(drop_rounding(float(oracle_value) - context.value, oracle_scale), 0.0)
    is_history_bound = bound is not None and bound.scope == "history" and objective.is_mean
    low, high = evaluation.quantile(0.1), evaluation.quantile(0.9)
    is_inside = (returns >= low) & (returns <= high) & (weights > 0)
    return Summary(
        make_row(context, "the short rule", context.phased_policy.policy),
        describe_rule(context),
        find_frequent_actions(context, context.policy),
        _compute_share_randomized(context),
        ReturnRange(low, high, int(is_inside.sum()), float(weights[is_inside].sum())),
        context.model.model_labels[int(np.where(weights > 0, returns, np.inf).argmin())],
        oracle_mean,
        oracle_gap,
        min(oracle_mean, bound.value) if bound and is_history_bound else oracle_mean,
        ROUNDING_RTOL * oracle_scale,
        {name: _compare_both(context, policy) for name, policy in context.comparators.items()},
        _is_closed(context),
    )


def describe_status(solution: Solution) -> str:
    """Describe how a solve ended, without its proof, which has a place of its own on the page."""
    is_completed = solution.status is Status.COMPLETED
    return solution.status.value if is_completed else solution.status_text


def _compute_share_randomized(context: ReportContext) -> float:
    """Compute the share of decisions in which the policy randomizes."""
    if context.policy.is_deterministic:
        return 0.0
    is_random = context.policy.probabilities.max(axis=2) < 1
    return float(context.visit_probs[is_random].sum() / context.visit_probs.sum())


def _is_closed(context: ReportContext) -> bool:
    """Return whether the bound meets the value of the policy."""
    if context.bound is None:
        return False
    if context.solution is not None and context.has_own_bound:
        return context.solution.status is Status.OPTIMAL
    return context.bound.gap(context.value) <= OPTIMALITY_GAP


def find_simpler_policies(context: ReportContext) -> tuple[PolicyRow, ...]:
    """Find policies simpler than the short rule: stationary, or with one action.

    The first is a table of all states, which is no simpler than a tree, and is left out if the
    second is as good. So is a policy that is that simple itself, or that has a name already.
    """
    policy, (name, constant_policy) = context.policy, context.constant_policies[0]
    assert isinstance(constant_policy, MarkovPolicy)  # as the policy is one
    single = make_row(context, name, constant_policy)
    is_known = any(
        x.is_deterministic
        and (x.actions == constant_policy.actions)[:, context.model.has_choice].all()
        for x in (policy, *context.comparators.values())
    )
    rows = () if is_known else (single,)
    if context.policy_text or (policy.table == policy.table[:1]).all():
        return rows
    stationary_policy = fit_stationary(
        policy, context.model, context.visit_probs, context.policy_class
    )
    same = make_row(context, STATIONARY_NAME, stationary_policy)
    loss, single_loss = (context.compute_loss(x.evaluation) for x in (same, single))
    is_new = stationary_policy not in (policy, context.phased_policy.policy)
    return (same, *rows) if is_new and loss < single_loss > 0 else rows


class SmallTree(NamedTuple):
    """The smallest tree that gives up at most 1% of the value at stake."""

    policy: TreePolicy
    row: PolicyRow


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
    solution = solve(
        context.model,
        context.horizon,
        policy_class=Tree(choose_max_leaves(context), use_time=not context.is_stationary),
        objective=context.objective,
        seed=context.seed,
    )
    tolerance = max(context.tolerance, 1e-9 * abs(context.value))
    trees, values = (solution.details[f"{x}_by_leaves"] for x in ("trees", "value"))
    for tree, value in zip(trees, values, strict=True):
        if value >= context.value - tolerance:
            name = f"the rule of {pluralize(tree.n_leaves, 'leaf', 'leaves')}"
            policy = tree.to_markov(context.horizon)
            return SmallTree(tree, make_row(context, name, policy))
    return None


def choose_max_leaves(context: ReportContext) -> int:
    """Choose the largest limit of leaves whose search is estimated to be short."""
    for max_leaves in LEAF_LIMITS:
        if estimate_tree_seconds(context, max_leaves) <= MAX_TREE_SECONDS:
            return max_leaves
    return 1


def estimate_tree_seconds(context: ReportContext, max_leaves: int) -> float:
    """Estimate an upper limit of the seconds of the search for trees."""
    return context.estimate_seconds(600 * max_leaves * (5 if context.has_risk_objective else 1))


class OffGridCheck(NamedTuple):
    """Mean return on the grid and of the step function itself, with two standard errors.

    ``is_coarse``: whether they differ by more than chance and the gap of the bound explain.
    """

    grid_mean: float
    off_grid_mean: float
    error: float
    n_episodes: int
    is_coarse: bool


def has_grid(model: MMDP) -> bool:
    """Return whether the model comes from a step function with a continuous axis."""
    return model.step_spec is not None and bool(model.step_spec.grid_axes)


def check_off_grid(context: ReportContext) -> list[OffGridCheck]:
    """Simulate the policy without the grid, on models and on test models that have one."""
    models = context.model, context.test_model
    return [_check_off_grid(context, x) for x in models if x is not None and has_grid(x)]


def _check_off_grid(context: ReportContext, model: MMDP) -> OffGridCheck:
    """Simulate the policy without the grid and compare the mean return."""
    bound_gap, bound = 0.0, context.bound
    if bound is not None and model is context.model and not context.has_risk_objective:
        bound_gap = bound.value - context.value
    simulation = simulate(model, context.policy, seed=context.seed, off_grid=True)
    mean, grid_mean = simulation.mean, context.evaluate(context.policy, model).mean
    error = 2 * simulation.stderr if simulation.stderr > 1e-12 * abs(mean) else 0.0  # rounding
    is_coarse = abs(grid_mean - mean) > max(bound_gap, error, ROUNDING_RTOL * abs(grid_mean))
    return OffGridCheck(grid_mean, mean, error, simulation.details["n_episodes"], is_coarse)


class ControllerReport(NamedTuple):
    """A given finite-state controller, its evaluation, and its gain over this policy."""

    policy: MemoryPolicy
    evaluation: Evaluation
    comparison: PairComparison


def evaluate_controller(context: ReportContext) -> ControllerReport:
    """Evaluate the given finite-state controller and compare it with this policy."""
    assert context.controller is not None
    evaluation = context.evaluate(context.controller)
    comparison = compare(context, evaluation, context.evaluation)
    return ControllerReport(context.controller.merge_nodes(context.model), evaluation, comparison)


class ProblemFacts(NamedTuple):
    """Facts about the problem: weights and initial states."""

    has_equal_weights: bool
    effective_sample_size: float  # models of equal weight that these are as good as
    initial_states: list[int]  # states that an episode may start in


def collect_problem_facts(context: ReportContext) -> ProblemFacts:
    """Collect the facts about the problem that the page shows."""
    weights = context.model.weights
    return ProblemFacts(
        np.allclose(weights, 1 / len(weights)),
        1 / float((weights**2).sum()),
        np.flatnonzero(context.model.problem.initial.any(axis=1)).tolist(),
    )


# ---------------------------------------------------------------------- methods
class MethodComparison(NamedTuple):
    """Table of methods with this policy first and Oracle last, and what follows from it.

    ``reference``: name and mean of the best policy on average, maybe this one; ``free_mean``: mean
    of the best policy found of any class without memory; ``oracle_gain``: how much more Oracle
    returns on average, which is the EVPI if that policy is optimal and its class is not restricted.
    ``test_leader``: name, lead and standard error of the method that is best on the test models, if
    it is ahead of this policy. ``traces``: value by iteration of every CADP run; ``ascent_gain``:
    the largest gain of a run over its init, None if no run improved.
    """

    rows: list[PolicyRow]
    reference: tuple[str, float]
    free_mean: float
    oracle_gain: float
    test_leader: tuple[str, float, float] | None
    has_simulated: bool
    traces: dict[str, Array]
    ascent_gain: float | None


def compare_methods(context: ReportContext) -> MethodComparison:
    """Solve by every method and compare the results with this policy and Oracle."""
    rows, best, traces = _make_rows(context), context.best_solution, _collect_traces(context)
    reference = "this policy", context.evaluation.mean
    if best is not None and drop_rounding(best.evaluation.mean - reference[1], reference[1]) > 0:
        reference = format_title(best), best.evaluation.mean
    means = [x.best_value for x in context.solutions if x.markov_policy is not None]
    if context.free_value is not None and not context.has_risk_objective:
        means.append(context.free_value)
    return MethodComparison(
        rows,
        reference,
        max([reference[1], *means]),
        max(rows[-1].evaluation.mean - reference[1], 0.0),
        _find_test_leader(context, rows[:-1]),
        any(row.evaluation.standard_errors is not None for row in rows),
        traces,
        max((float(x[-1] - x[0]) for x in traces.values() if len(x) > 1), default=None),
    )


def _make_rows(context: ReportContext) -> list[PolicyRow]:
    """Make the rows of the table of methods: policies, comparators, Oracle last."""
    own, solutions, rows = context.solution, context.solutions, list[PolicyRow]()
    if (controller := context.controller) is not None:
        name = f"the given policy, {pluralize(controller.n_nodes, 'node')}"
        rows.append(make_row(context, name, controller, "given"))
    if context.is_given or context.has_risk_objective:
        if own is not None:  # its duplicates are left out
            policy = context.policy
            solutions = [x for x in solutions if x.method != own.method or x.policy != policy]
        is_name_taken = context.name in map(format_title, solutions)
        row = make_row(
            context, "this policy" if is_name_taken else context.name, own or context.policy
        )
        rows.append(row._replace(evaluation=context.evaluation))
    rows += [make_row(context, format_title(x), x) for x in solutions]
    rows += [make_row(context, name, x, "given") for name, x in context.comparators.items()]
    oracle, test_oracle = (
        None if x is None else replace(x, returns=x.oracle, standard_errors=None)
        for x in (context.evaluation, context.test_evaluation)
    )
    assert oracle is not None
    status = "a bound: no policy does better"
    return [*rows, PolicyRow("Oracle (knows the model)", oracle, test_oracle, status=status)]


def _find_test_leader(
    context: ReportContext, rows: list[PolicyRow]
) -> tuple[str, float, float] | None:
    """Find the method ahead of this policy on test models: name, lead, standard error."""
    own, others = context.test_evaluation, {x.name: x.test_evaluation for x in rows}
    tested = {name: x for name, x in others.items() if x is not None}
    if own is None or not tested or context.has_risk_objective:
        return None
    name = max(tested, key=lambda name: tested[name].mean)
    lead, stderr = tested[name].compare_mean(own)
    return (name, lead, stderr) if drop_rounding(lead, own.mean) > 0 else None


def _collect_traces(context: ReportContext) -> dict[str, Array]:
    """Collect the values by iteration of every CADP run, by the name of its init."""
    solutions = context.solutions
    if context.solution is not None and not context.has_risk_objective:
        solutions = [context.solution, *solutions]
    traces: dict[str, Array] = {}
    for solution in solutions:
        if solution.method == "cadp":
            init = solution.provenance.options.get("init", "wsu")
            init = "one leaf" if solution.provenance.policy_class.uses_growth else init
            name = init if isinstance(init, str) else "a given policy"
            traces.setdefault(name.upper() if len(name) == 3 else name, solution.trace)
    return traces


# ---------------------------------------------------------------------- over the models
def compute_near_optimal_weight(context: ReportContext) -> float:
    """Compute the weight of the models with a regret of at most 1% of the stake."""
    evaluation = context.evaluation
    is_near = evaluation.regret <= np.maximum(context.tolerance, 1e-9 * np.abs(evaluation.oracle))
    return float(evaluation.weights[is_near].sum())


class WeightSummary(NamedTuple):
    """Model weights b (T, M, S), and the state that changes them most.

    ``effective_size``: number of equally likely models as uncertain as at the last decision.
    """

    weights: Array
    state: int
    effective_size: float


def summarize_weights(context: ReportContext) -> WeightSummary:
    """Summarize the model weights under the policy."""
    weights = model_weights(context.model, context.policy)
    # |b_{t,m}(s) - lambda_m P(s at t)|, summed over times and models
    expected = weights.sum(axis=1, keepdims=True) * context.model.weights[None, :, None]
    state = int(np.abs(weights - expected).sum(axis=(0, 1)).argmax())
    return WeightSummary(weights, state, float(effective_size_by_time(weights)[-1, 0]))


# ---------------------------------------------------------------------- knowing more
class InformationValue(NamedTuple):
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
    model, best_solution = context.model, context.best_solution
    if best_solution is None or not model.parameters:
        return None
    table = voi_table(model, context.horizon, method=best_solution)
    rows = table.iloc[1:]
    identifying_parameters = [
        name
        for name in rows.loc[rows["estimator"] == "exact", "parameter"]
        if len(np.unique(model.parameters[name])) == model.n_models
    ]
    name, value = rows.sort_values("value", kind="stable").iloc[-1][["parameter", "value"]]
    best_parameter = None if name in identifying_parameters else (str(name), float(value))
    return InformationValue(table, identifying_parameters, best_parameter)


class MemoryValue(NamedTuple):
    """Value by number of nodes, and the finite-state controller with the most nodes."""

    table: pd.DataFrame
    policy: MemoryPolicy


def choose_max_nodes(context: ReportContext) -> int:
    """Choose the largest number of nodes of memory."""
    return context.request.get("max_nodes") or DEFAULT_MAX_NODES


def estimate_memory_seconds(context: ReportContext) -> float:
    """Estimate the seconds of the search for controllers and of the bound, which ends early."""
    passes = 5_000.0 * max(choose_max_nodes(context) - 1, 1)
    return context.estimate_seconds(passes) + BOUND_TIME_LIMIT / 2


def compute_memory_value(context: ReportContext) -> MemoryValue:
    """Compute the value by number of nodes of a finite-state controller."""
    table, policy = solve_by_nodes(
        context.model,
        context.horizon,
        range(1, choose_max_nodes(context) + 1),
        context.seed,
        BOUND_TIME_LIMIT,
        at_stake=context.mean_stake,
    )
    return MemoryValue(table, policy)


# ---------------------------------------------------------------------- enough models
class SampleSizeCurve(NamedTuple):
    """Return on test models by number of models, and its gain from half of them to all."""

    table: pd.DataFrame
    n_models: int
    n_fewer: int
    gain: float


def compute_sample_size_curve(context: ReportContext) -> SampleSizeCurve | None:
    """Compute the return on test models by number of models; None if too few."""
    subset_sizes, n_repeats = choose_subset_sizes(context)
    if not subset_sizes:
        return None
    table = sample_size_curve(
        context.model,
        context.horizon,
        subset_sizes,
        test_model=context.test_model,
        n_repeats=n_repeats,
        seed=context.seed,
        method=context.method,
    )
    counts, values = table["models"], table["test"]
    half = int((counts - counts.iloc[-1] / 2).abs().argmin())
    gain = drop_rounding(float(values.iloc[-1] - values.iloc[half]), values.iloc[-1])
    return SampleSizeCurve(table, int(counts.iloc[-1]), int(counts.iloc[half]), gain)


def choose_subset_sizes(context: ReportContext) -> tuple[list[int], int]:
    """Choose numbers of models to solve with, and the repeats of each; none if too few.

    Half of the models are held out if there are no test models.
    """
    n_models = context.model.n_models
    n_available = n_models if context.test_model is not None else -(-n_models // 2)
    is_markov = isinstance(context.method.default_class, Markov)
    if not (context.methods and is_markov) or n_available <= MIN_SUBSET_SIZE:
        return [], 0
    subset_sizes = list_round_sizes(MIN_SUBSET_SIZE, n_available)
    return subset_sizes, 10 if context.estimate_seconds(1) <= FAST_PASS_SECONDS else 3


def choose_n_resamples(context: ReportContext) -> int:
    """Choose the number of resamples; 0 unless the first method made the policy for the mean."""
    if context.is_given or context.has_risk_objective:
        return 0
    return context.request.get("n_resamples") or N_RESAMPLES


def compute_stability(context: ReportContext) -> Stability | None:
    """Compute which decisions change on resampled models; None for a given policy."""
    n_resamples = choose_n_resamples(context)
    if not n_resamples:
        return None
    return stability_from_solution(
        context.solutions[0], context.model, n_resamples, context.seed, context.method
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
    """Compute the willingness-to-pay sweep of this policy, comparators and best ones."""
    inputs, policies = context.economic_inputs, dict(context.comparators)
    assert inputs is not None
    outcome_models = inputs.discounting.make_outcome_models(
        context.model, inputs.effects, inputs.costs, context.horizon
    )
    duplicate = find_duplicate(context.policy, policies, outcome_models)
    if duplicate is None:
        policies = {"this policy": context.policy, **policies}
    else:
        new_names = {duplicate: f"{duplicate} (this policy)"}
        policies = {new_names.get(name, name): policy for name, policy in policies.items()}
    table = willingness_to_pay(
        context.model,
        inputs.effects,
        inputs.costs,
        inputs.wtp_grid,
        context.horizon,
        method=context.method,
        policy_class=context.find_policy_class(context.method),
        policies=policies,
        discounting=inputs.discounting,
    )
    found = {name: table.policies[name] for name in table.found_names}
    texts = {name: x.describe() for name, x in found.items() if x.has_rules}
    frequent_actions = {
        name: find_frequent_actions(context, x.to_markov(context.horizon))
        for name, x in found.items()
        if name not in texts
    }
    return WtpSweep(table, texts, frequent_actions)


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


# ---------------------------------------------------------------------- all sections
class SectionResults(NamedTuple):
    """The results of the sections by their keys; None for one that was not computed."""

    summary: Summary
    problem: ProblemFacts
    policy: PolicyCells
    methods: MethodComparison
    returns: float
    source: str
    simpler: tuple[PolicyRow, ...] | None
    small_tree: SmallTree | None
    near_optimal: NearOptimalActions | None
    off_grid: list[OffGridCheck] | None
    controller: ControllerReport | None
    frontier: RiskFrontier | None
    coverage: Coverage | None
    weights: WeightSummary | None
    voi: InformationValue | None
    memory: MemoryValue | None
    sample_size: SampleSizeCurve | None
    stability: Stability | None
    willingness: WtpSweep | None


# ---------------------------------------------------------------------- warnings
def find_unseen_pairs_used(context: ReportContext) -> list[tuple[str | int, str | int]]:
    """Find the unseen (state, action) pairs that the policy takes, most frequent first."""
    states, actions = (
        context.model.label_index(axis).find_ids(pair[i] for pair in context.unseen_pairs)
        for i, axis in enumerate(("state", "action"))
    )
    is_taken = context.policy.actions[:, states] == actions
    probs = (context.visit_probs[:, states] * is_taken).sum(axis=0)
    used_ids = np.flatnonzero((states >= 0) & (actions >= 0) & (probs > 0))
    return [context.unseen_pairs[i] for i in used_ids[np.argsort(-probs[used_ids], kind="stable")]]


def compute_test_drop(context: ReportContext) -> float | None:
    """Compute the loss on test models if it exceeds two standard errors, else None."""
    evaluation, test_evaluation = context.evaluation, context.test_evaluation
    if test_evaluation is None:
        return None
    stderrs = (x.sd * np.linalg.norm(x.weights) for x in (evaluation, test_evaluation))
    drop = drop_rounding(evaluation.mean - test_evaluation.mean, evaluation.mean)
    return drop if drop > 2 * math.hypot(*stderrs) else None


def find_unstable_decisions(stability: Stability) -> list[tuple[int, int, float]]:
    """Find the visited decisions that change most on resampled models: time, state, share."""
    frequency, probs = stability.change_frequency, stability.visit_probs
    scores = np.where(probs >= MIN_VISIT_PROB, frequency * probs, 0.0)
    top = np.transpose(np.unravel_index(np.argsort(-scores, axis=None)[:3], scores.shape))
    return [(t, s, float(frequency[t, s])) for t, s in top.tolist() if scores[t, s]]


def compute_missed_gain(context: ReportContext) -> float | None:
    """Compute the gain of the best method over a given policy; None if there is none."""
    best_solution = context.best_solution
    if not context.is_given or best_solution is None or context.has_risk_objective:
        return None
    gain = best_solution.value - context.evaluation.mean
    return gain if gain > ROUNDING_RTOL * abs(best_solution.value) else None


def has_missing_rows(model: MMDP) -> bool:
    """Return whether some models lack actions that others have."""
    if not model.to_kwargs()["allow_missing"]:
        return False
    rows = np.flatnonzero(np.diff(model.problem.indptr))
    sums = np.add.reduceat(model.problem.p[0], model.problem.indptr[rows], axis=0)
    return bool((sums < 0.5).any())
