"""Pictures as part of the page."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from mmdp import plots
from mmdp.policy import MemoryPolicy
from mmdp.report.facts import Facts
from mmdp.report.pictures import PICTURES


def drawing(facts: Facts, kind: str) -> Markup | None:
    """A picture as SVG for the page; None if there is nothing to show."""
    picture = PICTURES[kind]
    with plots.ink(plots.INK):
        axis = picture.draw(facts)
        return None if axis is None else Markup(_inline(plots.svg(axis), kind, picture.title))


def chart(policy: MemoryPolicy) -> Markup:
    """The flow chart of a policy with memory as SVG for the page."""
    return Markup(_inline(policy.flow_chart().svg(), "chart", "Flow chart of the policy"))


def _inline(svg: str, kind: str, title: str) -> str:
    """A drawing as part of the page: its own ids, the page's ink, a name for screen readers."""
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{kind}-', drawing)
    drawing = re.sub(r'(href="#|url\(#)', rf"\g<1>{kind}-", drawing)
    drawing = drawing.replace(plots.INK, "currentColor")
    blue = plots.COLOURS[0].lower()  # too dark for a dark page
    drawing = drawing.replace(f": {blue}", f": var(--blue, {blue})")
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, count=1, flags=re.DOTALL)
    # the background of figure and axes: the page has its own
    drawing = re.sub(r'style="fill: #ffffff"', 'style="fill: none"', drawing)
    return re.sub(r"<svg", f'<svg role="img" aria-label="{escape(title)}"', drawing, count=1)
