"""Sections of a report: headings, options, estimates of time, and the order.

The page follows the table from top to bottom, and the budget is spent in the same order: what
readers want most comes first. A section without a heading belongs to the one above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from mmdp.core.solve import as_method
from mmdp.core.text import format_duration
from mmdp.data.posterior.check import can_simulate_logs
from mmdp.insight.report import findings
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.findings import SectionResults

MAX_WEIGHT_ENTRIES = 50_000_000  # numbers in (T, M, S) model weights that are still computed
MAX_MODEL_SOLVES = 2_000  # models times horizon up to which each model is solved apart
MIN_BUDGET_SHARE = 0.1  # of the time limit, for sections that were not requested
SECONDS_PER_FIGURE = 0.2

ContextFunction = Callable[
    [ReportContext], float
]  # a figure or a truth about the problem, by its sizes alone


@dataclass(frozen=True)
class Section:
    """A section of the page.

    ``compute`` makes the result that the template named ``key`` and the ``figures`` show, in about
    ``estimate_passes`` passes over the problem. ``is_applicable``: whether the problem has such a
    result at all. ``request_hint``: how to request it, in Python and on the command line; without
    one it is always computed. ``is_automatic``: whether it may be computed without a request.
    ``shows_when_skipped``: whether the template has something to say without a result. A section
    without a heading belongs to the one above it.
    """

    key: str
    heading: str
    description: str  # for the progress line, and if it is left out
    compute: Callable[[ReportContext], object]
    estimate_passes: ContextFunction = lambda context: 0
    figures: tuple[str, ...] = ()
    is_applicable: ContextFunction = lambda context: True
    is_automatic: ContextFunction = lambda context: True
    request_hint: tuple[str, ...] | None = None
    option: str = ""  # of report.write that asks for it, if not named as the key
    has_template: bool = True
    shows_when_skipped: bool = True
    search_seconds: float = 0.0  # seconds of a search with a time limit, on average

    def estimate_seconds(self, context: ReportContext) -> float:
        """Estimate the seconds that the section takes."""
        return (
            context.estimate_seconds(self.estimate_passes(context))
            + SECONDS_PER_FIGURE * len(self.figures)
            + self.search_seconds
        )

    def is_requested(self, context: ReportContext) -> bool | None:
        """Return whether the section was requested; None if the time limit decides."""
        name = self.option or self.key
        option: object = True if self.request_hint is None else context.request.get(name)
        if option is None:
            return None if self.is_automatic(context) else False
        return bool(option)


def _has_several_models(context: ReportContext) -> bool:
    return context.model.n_models > 1


def _is_not_switching(context: ReportContext) -> bool:
    return not context.model.problem.reason_if_switching("models are redrawn")


def _estimate_solve_passes(context: ReportContext) -> float:
    """Estimate the passes of solving by every method."""
    passes = [
        as_method(method).estimate_passes(context.model.problem, context.horizon)
        for method in context.methods
    ]
    return 10 + sum(passes)


def _can_store_weights(context: ReportContext) -> bool:
    """Return whether (T, M, S) model weights fit into memory."""
    size = context.horizon * context.model.n_models * context.model.n_states
    return _has_several_models(context) and size <= MAX_WEIGHT_ENTRIES


def _can_solve_each_model(context: ReportContext) -> bool:
    """Return whether solving each model within the restricted class is fast."""
    n_solves = context.model.n_models * context.horizon
    return (
        _has_several_models(context)
        and context.policy_class.is_restricted
        and not context.policy_text
        and n_solves <= MAX_MODEL_SOLVES
    )


SECTIONS = (
    Section("summary", "The answer", "the policy in words", findings.summarize),
    Section(
        "simpler",
        "",
        "simpler policies",
        findings.find_simpler_policies,
        lambda context: 130,
        request_hint=(),
        has_template=False,
    ),
    Section(
        "small_tree",
        "",
        "the smallest rule that will do",
        findings.find_small_tree,
        findings.estimate_tree_passes,
        ("tree",),
        is_applicable=findings.can_fit_tree,
        request_hint=("small_tree=True",),
        has_template=False,
    ),
    Section(
        "near_optimal",
        "",
        "where people may choose",
        findings.find_near_optimal_sets,
        lambda context: 60,
        is_applicable=findings.can_find_near_optimal,
        request_hint=(),
        has_template=False,
    ),
    Section(
        "randomization",
        "",
        "what random actions gain",
        findings.describe_randomization_gain,
        findings.estimate_randomization_passes,
        is_applicable=findings.may_gain_by_randomizing,
        request_hint=(),
        has_template=False,
    ),
    Section(
        "off_grid",
        "",
        "the function without its grid",
        findings.check_off_grid,
        lambda context: 100,
        is_applicable=lambda context: findings.has_grid(context.model),
        request_hint=(),
        has_template=False,
    ),
    Section(
        "controller",
        "The given policy with memory",
        "the flow chart",
        findings.evaluate_controller,
        is_applicable=lambda context: context.controller is not None,
    ),
    Section("problem", "What was asked", "the problem", findings.collect_problem_facts),
    Section("policy", "The policy", "each time and state", ReportContext.compute_cells),
    Section(
        "frontier",
        "What safety costs: policies side by side",
        "safer policies",
        findings.compute_risk_frontier,
        lambda context: 8_000,
        is_applicable=_has_several_models,
        is_automatic=_is_not_switching,
        request_hint=("frontier=True", "--frontier"),
    ),
    Section(
        "methods",
        "Methods side by side",
        "other methods",
        findings.compare_methods,
        _estimate_solve_passes,
        ("methods", "trace"),
    ),
    Section(
        "returns",
        "Returns and regret over the models",
        "returns by model",
        findings.compute_near_optimal_share,
        figures=("returns", "regret"),
    ),
    Section(
        "coverage",
        "",
        "ranges from simulated logs",
        findings.simulate_coverage,
        findings.estimate_coverage_passes,
        is_applicable=lambda context: can_simulate_logs(context.model),
        request_hint=(),
        has_template=False,
    ),
    Section(
        "weights",
        "Model weights over time",
        "model weights",
        findings.summarize_weights,
        figures=("weights",),
        is_applicable=_can_store_weights,
    ),
    Section(
        "voi",
        "What knowing more is worth",
        "the value of each parameter",
        findings.compute_information_value,
        findings.estimate_information_passes,
        ("voi",),
        _has_several_models,
        request_hint=("voi=True", "--voi"),
    ),
    Section(
        "restricted_evpi",
        "",
        "the best policy of each model",
        findings.estimate_restricted_evpi,
        lambda context: 1_000,
        is_applicable=_can_solve_each_model,
        request_hint=(),
        has_template=False,
    ),
    Section(
        "memory",
        "What would memory gain?",
        "policies with memory",
        findings.compute_memory_value,
        findings.estimate_memory_passes,
        ("memory",),
        _has_several_models,
        lambda context: not context.policy_class.is_restricted,
        ("max_nodes=3", "--max-nodes 3"),
        option="max_nodes",
        shows_when_skipped=False,
        search_seconds=findings.BOUND_TIME_LIMIT / 2,
    ),
    Section(
        "sample_size",
        "Were there enough models?",
        "solving with fewer models",
        findings.compute_sample_size_curve,
        findings.estimate_sample_size_passes,
        ("sample_size",),
        _has_several_models,
        _is_not_switching,
        ("sample_size=True", "--sample-size"),
    ),
    Section(
        "stability",
        "",
        "solving on resampled models",
        findings.compute_stability,
        findings.estimate_resample_passes,
        is_applicable=_has_several_models,
        is_automatic=_is_not_switching,
        request_hint=("n_resamples=20", "--sample-size"),
        option="n_resamples",
    ),
    Section(
        "willingness",
        "Cost and effect: willingness to pay",
        "willingness to pay",
        findings.compute_willingness_to_pay,
        figures=("willingness", "loss"),
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


def compute_sections(context: ReportContext, sections: Sequence[Section]) -> SectionResults:
    """Compute the chosen sections; the results by key, None for the others."""
    results: dict[str, object] = dict.fromkeys(section.key for section in SECTIONS)
    for i, x in enumerate(sections):
        seconds = x.estimate_seconds(context)
        estimate_text = f", about {format_duration(seconds)}" if seconds >= 1 else ""
        context.callback(f"{x.description} ({i + 1} of {len(sections)}{estimate_text})")
        results[x.key] = x.compute(context)
    return cast("SectionResults", results)
