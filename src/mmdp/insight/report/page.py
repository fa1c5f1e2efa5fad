"""Rendering of a report: the results of the sections put into ``templates/``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from mmdp.insight.pages import render_page
from mmdp.insight.report import sentences
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.figures import PAGE_FIGURES, render_figure
from mmdp.insight.report.findings import SectionResults
from mmdp.insight.report.interactive import HeatMap, PolicyComparison
from mmdp.insight.report.sections import SECTIONS, choose_sections, compute_sections


def render_report(
    context: ReportContext, time_limit: float, title: str | None, notes: Sequence[str]
) -> str:
    """Render the HTML page; skip unrequested sections beyond about ``time_limit`` seconds."""
    selected, skipped = choose_sections(context, time_limit)
    results = SectionResults(**compute_sections(context, selected))
    comparison, name = PolicyComparison(context, results), context.model.name
    heat_map = HeatMap(context, comparison.used_actions, results.stability)
    applicable = [x for x in SECTIONS if x.is_applicable(context)]
    context.callback("drawing")
    figures = {
        name: render_figure(name, context, getattr(results, x.section))
        for name, x in PAGE_FIGURES.items()
        if x.is_on_page or (name == "policy" and len(heat_map.axis_values) > 1)
    }
    for figure, result in (("chart", results.memory), ("controller", results.controller)):
        if result is not None:
            figures[figure] = Markup(result.policy.to_flow_chart().to_svg(figure))
    needed_seconds = sum(
        x.estimate_seconds(context) for x in applicable if x.is_requested(context) is not False
    )
    return render_page(
        "report/templates/page.html.j2",
        title=title or (f"Decision report: {name}" if name else "Decision report"),
        notes=notes,
        time_limit=time_limit,
        needed_seconds=math.ceil(needed_seconds),
        sections=[
            x
            for x in applicable
            if x.heading and (x.shows_when_skipped or getattr(results, x.key) is not None)
        ],
        skipped={
            key: x._replace(seconds=context.slowness * x.seconds) for key, x in skipped.items()
        },
        context=context,
        model=context.model,
        evaluation=context.evaluation,
        results=results,
        say=sentences,
        comparison=comparison,
        heat_map=heat_map,
        figures=figures,
        map_data=heat_map.to_script_data(),
        compare_data=comparison.to_script_data(heat_map) if context.model.n_models > 1 else None,
    )
