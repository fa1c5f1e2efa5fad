"""The page: what the sections found, put into ``templates/``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mmdp.pages import render
from mmdp.report.compare import compared
from mmdp.report.desk import Desk
from mmdp.report.heatmap import HeatMap
from mmdp.report.pictures import chart, inlined
from mmdp.report.sections import SECTIONS, chosen, compute
from mmdp.report.warnings import cautions
from mmdp.words import NOISE, at_most, in_unit, number


class Amounts:
    """Write figures with the unit of returns; what is rounding compared with returns is 0."""

    def __init__(self, desk: Desk, form: Callable[[float, int], str]) -> None:
        found = desk.evaluation
        self.form, self.unit = form, desk.model.unit
        self.least = NOISE * max(np.abs(found.returns).max(), np.abs(found.oracle).max())

    def __call__(self, value: float, digits: int = 4) -> str:
        shown = value if abs(value) > self.least else 0.0
        return in_unit(self.form(shown, digits), self.unit)


def document(desk: Desk, seconds: float, title: str | None, notes: tuple[str, ...]) -> str:
    """The whole document; parts that nobody asked for are left out beyond about ``seconds``."""
    computed, left = chosen(desk, seconds)
    found = compute(desk, computed)
    comparison, name = compared(desk, found), desk.model.name
    heat_map = HeatMap(desk, comparison.used, found["resamples"])
    shown = [
        x for x in SECTIONS
        if x.template and x.tells(desk) and (x.alone or found[x.key] is not None)
    ]  # fmt: skip
    desk.say("drawing")
    pictures = {kind: inlined(desk, kind, found[x.key]) for x in SECTIONS for kind in x.pictures}
    if len(heat_map.groups) > 1:
        pictures["policy"] = inlined(desk, "policy", True)
    if found["memory"] is not None:
        pictures["chart"] = chart(found["memory"].policy)
    if found["controller"] is not None:
        pictures["controller"] = chart(found["controller"].policy, "controller")
    whole = (x.seconds(desk) for x in SECTIONS if x.tells(desk) and x.asked(desk) is not False)
    return render(
        "report/templates/page.html.j2",
        amount=Amounts(desk, number), at_most_amount=Amounts(desk, at_most),
        title=title or (f"Decision report: {name}" if name else "Decision report"),
        notes=notes, budget=seconds, needed=math.ceil(sum(whole)), sections=shown, left=left,
        desk=desk, model=desk.model, found=desk.evaluation, cautions=cautions(desk, found),
        comparison=comparison, map=heat_map, pictures=pictures, map_data=heat_map.data(),
        compare_data=comparison.data(heat_map) if desk.model.n_models > 1 else None,
        **{key: value for key, value in found.items() if key != "policy"},
    )  # fmt: skip
