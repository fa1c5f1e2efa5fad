"""Pictures as part of the page."""

from __future__ import annotations

import html
import re

from mmdp import plots
from mmdp.report.facts import Facts
from mmdp.report.pictures import PICTURES


def pair(*figures: str) -> str:
    """Figures side by side where the screen is wide enough."""
    return f'<div class="pictures">{"".join(figures)}</div>'


def figure(facts: Facts, kind: str, text: str) -> str:
    picture = PICTURES[kind]
    with plots.ink(plots.INK):
        axis = picture.draw(facts)
        if axis is None:
            return f"<p>{text}</p>" if text else ""
        drawing = _inline(plots.svg(axis), kind, picture.title)
    caption = f"<figcaption>{text}</figcaption>" if text else ""
    return f'<figure data-plot="{kind}">{drawing}{caption}</figure>'


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
    return re.sub(r"<svg", f'<svg role="img" aria-label="{html.escape(title)}"', drawing, count=1)
