"""Sections of a report: headings, options, estimates of time, and the order.

The page follows the table from top to bottom, and the budget is spent in the same order: what
readers want most comes first. A section without a heading belongs to the one above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mmdp.core.policies import Tree
from mmdp.core.text import format_duration
from mmdp.data.posterior.check import can_simulate_logs, coverage
from mmdp.insight.measures import near_optimal_actions, risk_frontier
from mmdp.insight.measures.information import MAX_GROUPS, PASSES_PER_GROUP, SECONDS_PER_GROUP
from mmdp.insight.measures.risk import with_single_init
from mmdp.insight.report import findings
from mmdp.insight.report.context import STAKE_TOLERANCE, ReportContext

MAX_WEIGHT_ENTRIES = 50_000_000  # numbers in (T, M, S) model weights that are still computed
MIN_BUDGET_SHARE = 0.1  # of the time limit, for sections that were not requested
N_LOGS, N_REFITTED_MODELS = 20, 100  # simulated logs, and the models fitted to each
# of estimates that the time of this machine is compared with: less goes into loading of code
MIN_TIMED_SECONDS = 5.0
EXTRA_PASSES = 3  # passes for what goes with an ascent: returns here and on test models, visits

# a figure or a truth about the problem, by its sizes alone
ContextFunction = Callable[[ReportContext], float]


class Section(NamedTuple):
    """A section of the page.

    ``compute`` makes the result that the template named ``key`` and its figures show, in about
    ``estimate_seconds`` of CPU time, by sizes alone. ``is_applicable``: whether the problem has
    such a result at all. ``request_hint``: how to request it, in Python and on the command line;
    without one, a section with a heading is always computed. ``is_automatic``: whether it may be
    computed without a request. ``shows_when_skipped``: whether the template has something to say
    without a result. A section without a heading is part of the template above it.
    """

    key: str
    heading: str
    description: str  # for the progress line, and if it is left out
    compute: Callable[[ReportContext], object]
    estimate_seconds: ContextFunction = lambda context: 0.0
    is_applicable: ContextFunction = lambda context: True
    is_automatic: ContextFunction = lambda context: True
    request_hint: tuple[str, ...] = ()
    shows_when_skipped: bool = True

    def is_requested(self, context: ReportContext) -> bool | None:
        """Return whether the section was requested; None if the time limit decides."""
        if self.heading and not self.request_hint:
            return True
        option = context.request.get("".join(self.request_hint[:1]).partition("=")[0])
        if option is None:
            return None if self.is_automatic(context) else False
        return bool(option)


def _has_several_models(context: ReportContext) -> bool:
    return context.model.n_models > 1


def _is_not_switching(context: ReportContext) -> bool:
    return not context.model.problem.reason_if_switching("models are redrawn")


def _can_store_weights(context: ReportContext) -> bool:
    """Return whether (T, M, S) model weights fit into memory."""
    size = context.horizon * context.model.n_models * context.model.n_states
    return context.model.n_models > 1 and size <= MAX_WEIGHT_ENTRIES


def take_passes(n_passes: float) -> ContextFunction:
    """Make the estimate of the seconds of a number of passes over the models."""
    return lambda context: context.estimate_seconds(n_passes)


def _estimate_solves(context: ReportContext) -> float:
    """Estimate the seconds of solving by every method."""
    problem, horizon = context.model.problem, context.horizon
    passes = sum(x.estimate_passes(problem, horizon) for x in context.methods)
    return context.estimate_seconds(10 + passes)


def _estimate_ascents(context: ReportContext, n_ascents: int) -> float:
    """Estimate the seconds of a number of ascents of the first method."""
    if not n_ascents:
        return 0.0
    method = with_single_init(context.method)
    passes = method.estimate_passes(context.model.problem, context.horizon)
    return context.estimate_seconds(n_ascents * (passes + EXTRA_PASSES))


def _estimate_sample_size(context: ReportContext) -> float:
    """Estimate the seconds of the ascents with fewer models."""
    subset_sizes, n_repeats = findings.choose_subset_sizes(context)
    n_ascents = (len(subset_sizes) - 1) * n_repeats + 1 if subset_sizes else 0
    return _estimate_ascents(context, n_ascents)


def _estimate_information(context: ReportContext) -> float:
    """Estimate the seconds of the solves by groups of models."""
    n_groups, policy_class = MAX_GROUPS * len(context.model.parameters), context.policy_class
    passes = float(PASSES_PER_GROUP * n_groups)
    if n_groups and isinstance(policy_class, Tree):
        passes = 125.0 * policy_class.max_leaves * (context.model.n_models + n_groups)
    return context.estimate_seconds(passes) + SECONDS_PER_GROUP * n_groups


SECTIONS = (
    Section("summary", "The answer", "the policy in words", findings.summarize),
    Section("simpler", "", "simpler policies", findings.find_simpler_policies, take_passes(130)),
    Section(
        "small_tree",
        "",
        "the smallest rule that will do",
        findings.find_small_tree,
        lambda context: findings.estimate_tree_seconds(
            context, findings.choose_max_leaves(context)
        ),
        findings.can_fit_tree,
        request_hint=("small_tree=True",),
    ),
    Section(
        "near_optimal",
        "",
        "where people may choose",
        lambda context: near_optimal_actions(
            context.model,
            context.policy,
            STAKE_TOLERANCE,
            objective=context.objective,
            at_stake=context.stake,
        ),
        take_passes(60),
        is_applicable=lambda context: (
            context.policy.is_deterministic and bool(context.objective.is_monotone)
        ),
    ),
    Section(
        "off_grid",
        "",
        "the function without its grid",
        findings.check_off_grid,
        take_passes(100),
        is_applicable=lambda context: findings.has_grid(context.model),
    ),
    Section(
        "controller",
        "The given policy with memory",
        "the flow chart",
        findings.evaluate_controller,
        is_applicable=lambda context: context.controller is not None,
    ),
    Section("problem", "What was asked", "the problem", findings.collect_problem_facts),
    Section("policy", "The policy", "each time and state", lambda context: context.cells),
    Section(
        "frontier",
        "What safety costs: policies side by side",
        "safer policies",
        lambda context: risk_frontier(
            context.model, context.horizon, test_model=context.test_model, seed=context.seed
        ),
        take_passes(8_000),
        is_applicable=_has_several_models,
        is_automatic=_is_not_switching,
        request_hint=("frontier=True", "--frontier"),
    ),
    Section(
        "methods",
        "Methods side by side",
        "other methods",
        findings.compare_methods,
        _estimate_solves,
    ),
    Section(
        "returns",
        "Returns and regret over the models",
        "returns by model",
        findings.compute_near_optimal_weight,
    ),
    Section(
        "coverage",
        "",
        "ranges from simulated logs",
        lambda context: coverage(
            context.model,
            context.policy,
            n_logs=N_LOGS,
            n_models=N_REFITTED_MODELS,
            seed=context.seed,
        ),
        # models are drawn, laid out and evaluated
        lambda context: context.estimate_seconds(
            3 * N_LOGS * N_REFITTED_MODELS / context.model.n_models
        ),
        is_applicable=lambda context: can_simulate_logs(context.model),
    ),
    Section(
        "weights",
        "Model weights over time",
        "model weights",
        findings.summarize_weights,
        is_applicable=_can_store_weights,
    ),
    Section(
        "voi",
        "What knowing more is worth",
        "the value of each parameter",
        findings.compute_information_value,
        _estimate_information,
        _has_several_models,
        request_hint=("voi=True", "--voi"),
    ),
    Section(
        "memory",
        "What would memory gain?",
        "policies with memory",
        findings.compute_memory_value,
        findings.estimate_memory_seconds,
        _has_several_models,
        lambda context: not context.policy_class.is_restricted,
        ("max_nodes=3", "--max-nodes 3"),
        shows_when_skipped=False,
    ),
    Section(
        "sample_size",
        "Were there enough models?",
        "solving with fewer models",
        findings.compute_sample_size_curve,
        _estimate_sample_size,
        _has_several_models,
        _is_not_switching,
        ("sample_size=True", "--sample-size"),
    ),
    Section(
        "stability",
        "",
        "solving on resampled models",
        findings.compute_stability,
        # from two starts
        lambda context: _estimate_ascents(context, 2 * findings.choose_n_resamples(context)),
        is_applicable=_has_several_models,
        is_automatic=_is_not_switching,
        request_hint=("n_resamples=20", "--sample-size"),
    ),
    Section(
        "willingness",
        "Cost and effect: willingness to pay",
        "willingness to pay",
        findings.compute_willingness_to_pay,
        is_applicable=lambda context: context.economic_inputs is not None,
    ),
    Section("source", "How this was computed", "the source", findings.format_method_options),
)


class SkippedSection(NamedTuple):
    """A section left out, its estimated seconds, and whether the time limit is the reason."""

    section: Section
    seconds: float
    is_over_budget: bool


def choose_sections(
    context: ReportContext, time_limit: float
) -> tuple[list[Section], dict[str, SkippedSection]]:
    """Choose the sections to compute, in order, and those to skip, by key.

    Sections that nobody asked for are chosen from the top down, as long as the estimates of all
    together stay within ``seconds``, or their own within a tenth of it. The estimates depend on
    sizes alone, so that the same call gives the same page.
    """
    applicable = [section for section in SECTIONS if section.is_applicable(context)]
    remaining = max(
        time_limit
        - sum(x.estimate_seconds(context) for x in applicable if x.is_requested(context)),
        MIN_BUDGET_SHARE * time_limit,
    )
    selected, skipped = list[Section](), dict[str, SkippedSection]()
    for section in applicable:
        is_requested, seconds = section.is_requested(context), section.estimate_seconds(context)
        if is_requested or (is_requested is None and seconds <= remaining):
            remaining -= 0 if is_requested else seconds
            selected.append(section)
        else:
            skipped[section.key] = SkippedSection(section, seconds, is_requested is None)
    return selected, skipped


def compute_sections(context: ReportContext, sections: Sequence[Section]) -> dict[str, Any]:
    """Compute the chosen sections; the results by key, None for the others.

    The methods come first: shares are of what is at stake, which is that of the best policy found.
    What sections take on this machine is compared with the estimates, for those that follow.
    """
    results: dict[str, Any] = dict.fromkeys(section.key for section in SECTIONS)
    start, estimate, slowness = time.process_time(), 0.0, 1.0
    for i, x in enumerate(sorted(sections, key=lambda section: section.key != "methods")):
        seconds = slowness * x.estimate_seconds(context)
        estimate_text = f", about {format_duration(seconds)}" if seconds >= 1 else ""
        context.callback(f"{x.description} ({i + 1} of {len(sections)}{estimate_text})")
        results[x.key] = x.compute(context)
        estimate += x.estimate_seconds(context)
        if estimate >= MIN_TIMED_SECONDS:
            slowness = (time.process_time() - start) / estimate
    return results
