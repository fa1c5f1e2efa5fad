"""Rendering of a report: the results of the sections put into ``templates/``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mmdp.core.text import ROUNDING_RTOL, format_bound, format_number, format_with_unit
from mmdp.insight.pages import render_page
from mmdp.insight.report.compare import compare_policies
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.figures import render_figure, render_flow_chart
from mmdp.insight.report.heatmap import HeatMap
from mmdp.insight.report.sections import SECTIONS, choose_sections, compute_sections
from mmdp.insight.report.warnings import collect_warnings


class AmountFormatter:
    """Formatter of amounts with the unit of returns; rounding errors become 0."""

    def __init__(
        self, context: ReportContext, formatter: Callable[[float, int], str], digits: int
    ) -> None:
        evaluation = context.evaluation
        self.formatter, self.digits, self.unit = formatter, digits, context.model.unit
        self.rounding_limit = ROUNDING_RTOL * max(
            np.abs(evaluation.returns).max(), np.abs(evaluation.oracle).max()
        )

    def __call__(self, value: float, digits: int | None = None) -> str:
        rounded = value if abs(value) > self.rounding_limit else 0.0
        return format_with_unit(self.formatter(rounded, digits or self.digits), self.unit)


def render_report(
    context: ReportContext, time_limit: float, title: str | None, notes: tuple[str, ...]
) -> str:
    """Render the HTML page; skip unrequested sections beyond about ``time_limit`` seconds."""
    selected, skipped = choose_sections(context, time_limit)
    results = compute_sections(context, selected)
    values: dict[str, object] = {**results}
    comparison, name = compare_policies(context, results), context.model.name
    heat_map = HeatMap(context, comparison.used_actions, results["stability"])
    shown_sections = [
        x
        for x in SECTIONS
        if x.has_template
        and x.is_applicable(context)
        and (x.shows_when_skipped or values[x.key] is not None)
    ]
    context.callback("drawing")
    figures = {
        figure: render_figure(context, figure, values[x.key])
        for x in SECTIONS
        for figure in x.figures
    }
    if len(heat_map.axis_values) > 1:
        figures["policy"] = render_figure(context, "policy", True)
    if results["memory"] is not None:
        figures["chart"] = render_flow_chart(results["memory"].policy)
    if results["controller"] is not None:
        figures["controller"] = render_flow_chart(results["controller"].policy, "controller")
    section_seconds = (
        x.estimate_seconds(context)
        for x in SECTIONS
        if x.is_applicable(context) and x.is_requested(context) is not False
    )
    return render_page(
        "report/templates/page.html.j2",
        amount=AmountFormatter(context, format_number, 4),
        difference=AmountFormatter(context, format_number, 3),
        at_most=AmountFormatter(context, format_bound, 3),
        title=title or (f"Decision report: {name}" if name else "Decision report"),
        notes=notes,
        time_limit=time_limit,
        needed_seconds=math.ceil(sum(section_seconds)),
        sections=shown_sections,
        skipped=skipped,
        context=context,
        model=context.model,
        evaluation=context.evaluation,
        warnings=collect_warnings(context, results),
        comparison=comparison,
        heat_map=heat_map,
        figures=figures,
        map_data=heat_map.to_script_data(),
        compare_data=comparison.to_script_data(heat_map) if context.model.n_models > 1 else None,
        **{key: value for key, value in values.items() if key != "policy"},
    )
