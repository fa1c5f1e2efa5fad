"""The page: which sections it has; ``templates/`` has their words."""

from __future__ import annotations

from functools import partial

from mmdp.pages import render
from mmdp.report.compare import Comparison
from mmdp.report.facts import Facts
from mmdp.report.figures import chart, drawing
from mmdp.report.heatmap import HeatMap
from mmdp.report.rule import in_words, usual_actions
from mmdp.report.warnings import Cautions

SECTIONS = {
    "answer": "The answer",
    "asked": "What was asked",
    "policy": "The policy",
    "frontier": "What safety costs: policies side by side",
    "methods": "Methods side by side",
    "returns": "Returns and regret over the models",
    "weights": "Model weights over time",
    "information": "What knowing more is worth",
    "memory": "What would memory gain?",
    "enough": "Were there enough models?",
    "willingness": "Cost and effect: willingness to pay",
    "source": "How this was computed",
}


def page(facts: Facts, title: str | None = None, notes: tuple[str, ...] = ()) -> str:
    """The whole document."""
    name, comparison = facts.model.name, Comparison(facts)
    return render(
        "report/templates/page.html.j2",
        title=title or (f"Decision report: {name}" if name else "Decision report"),
        notes=notes,
        sections={key: heading for key, heading in SECTIONS.items() if _tells(facts, key)},
        facts=facts,
        model=facts.model,
        found=facts.evaluation,
        cautions=Cautions(facts),
        map=HeatMap(facts, comparison.used),
        comparison=comparison,
        sentences=in_words(facts),
        usual=usual_actions(facts),
        drawing=partial(drawing, facts),
        chart=chart,
    )


def _tells(facts: Facts, section: str) -> bool:
    """Whether a section has something to say about this problem."""
    if section in ("information", "enough", "frontier"):
        return facts.model.n_models > 1
    if section == "weights":
        return facts.model.n_models > 1 and facts.weights is not None
    if section == "memory":
        return facts.memory is not None
    return section != "willingness" or facts.willingness is not None
