"""A flow chart: boxes and arrows as text, SVG or Graphviz."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mmdp.words import counted, percent, shortened

WIDTH, LINE, ROOM = 280, 17, 12  # of a box, a line of text and the space around it
LONGEST = 38  # characters of a line


@dataclass(frozen=True)
class Box:
    """A node: its head, lines for everyone, and more for those who ask."""

    head: str
    lines: tuple[str, ...]
    more: tuple[str, ...]


@dataclass(frozen=True)
class Arrow:
    """A way from one node to another: ``share`` of the steps that leave the first."""

    source: int
    target: int
    share: float
    label: str
    more: tuple[str, ...]


@dataclass(frozen=True)
class FlowChart:
    """Boxes and arrows, as text, SVG or Graphviz; notebooks show the picture.

    >>> chart = FlowChart((Box("Node 0", ("waits",), ()),), ())
    >>> print(chart.words)
    Node 0
      waits
    """

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def words(self) -> str:
        """What every node is about, and what leads where."""
        lines = []
        for i, box in enumerate(self.boxes):
            lines += [box.head, *(f"  {line}" for line in (*box.lines, *box.more))]
            for arrow in self.arrows:
                if arrow.source == i:
                    lines.append(f"  → node {arrow.target} ({percent(arrow.share)}): {arrow.label}")
        return "\n".join(lines)

    def dot(self) -> str:
        """The chart in Graphviz's language."""
        lines = ["digraph controller {", '  node [shape=box, fontname="sans-serif"];']
        for i, box in enumerate(self.boxes):
            short = (shortened(line, LONGEST) for line in box.lines)
            text = "\\n".join(map(_quoted, (box.head, *short)))
            lines.append(f'  n{i} [label="{text}", tooltip="{_quoted("; ".join(box.more))}"];')
        for arrow in self.arrows:
            tip = _quoted("; ".join(arrow.more))
            lines.append(
                f"  n{arrow.source} -> n{arrow.target} "
                f'[label="{_quoted(arrow.label)}", tooltip="{tip}"];'
            )
        return "\n".join([*lines, "}", ""])

    def svg(self) -> str:
        """The chart as SVG, without a network or a font of its own; hovering shows more."""
        return _Drawing(self).svg()

    def _repr_svg_(self) -> str:
        return self.svg()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


# ---------------------------------------------------------------------- how it is drawn
class _Drawing:
    """Boxes on an ellipse, arrows bent to the right so that there and back do not meet."""

    def __init__(self, chart: FlowChart) -> None:
        self.chart = chart
        self.heights = [LINE * (1 + len(box.lines)) + ROOM for box in chart.boxes]
        tall, n = max(self.heights), len(chart.boxes)
        across = {1: 0.0, 2: 245.0}.get(n, 60.0 * n + 110.0)
        down = 0.0 if n <= 2 else 0.5 * tall + 45.0 * n
        self.width = 2 * (across + WIDTH / 2 + 90)
        turns = [math.pi + 2 * math.pi * i / n for i in range(n)]
        self.centres = [(self.width / 2 + across * math.cos(u), down * math.sin(u)) for u in turns]

    def svg(self) -> str:
        arrows = "".join(map(self._arrow, self.chart.arrows))
        boxes = "".join(self._box(i, box) for i, box in enumerate(self.chart.boxes))
        labels = "".join(map(self._label, self.chart.arrows))
        top, bottom = self._extent()
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top:.0f} {self.width:.0f} '
            f'{bottom - top:.0f}" width="{self.width:.0f}" font-family="sans-serif" '
            f'font-size="12" role="img"><title>{counted(len(self.chart.boxes), "node")}</title>'
            '<defs><marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0 10 5 0 10z" '
            f'fill="#456"/></marker></defs>{arrows}{boxes}{labels}</svg>\n'
        )

    def _extent(self) -> tuple[float, float]:
        """The least and the largest height at which something is drawn, with some room."""
        tops = [y - tall / 2 for (_, y), tall in zip(self.centres, self.heights, strict=True)]
        bottoms = [top + tall for top, tall in zip(tops, self.heights, strict=True)]
        # an arrow bends at most half of the way from its ends to the control point
        bends = [
            (a + 2 * c + b) / 4 for (_, a), (_, c), (_, b) in map(self._curve, self.chart.arrows)
        ]
        return min(tops + bends) - ROOM, max(bottoms + bends) + ROOM

    def _box(self, i: int, box: Box) -> str:
        (x, y), tall = self.centres[i], self.heights[i]
        left, top = x - WIDTH / 2, y - tall / 2
        lines = [(box.head, ' font-weight="bold"')]
        lines += [(shortened(line, LONGEST), "") for line in box.lines]
        text = "".join(
            f'<text x="{left + 10:.0f}" y="{top + LINE * (j + 1):.0f}"{style}>'
            f"{html.escape(line)}</text>"
            for j, (line, style) in enumerate(lines)
        )
        return (
            f'<g><title>{_tip([box.head, *box.more])}</title><rect x="{left:.0f}" y="{top:.0f}" '
            f'width="{WIDTH}" height="{tall}" rx="8" fill="#f4f7fb" stroke="#456"/>{text}</g>'
        )

    def _curve(self, arrow: Arrow) -> tuple[tuple[float, float], ...]:
        """Start, control point and end of an arrow, at the borders of its boxes."""
        a, b = self.centres[arrow.source], self.centres[arrow.target]
        dx, dy = b[0] - a[0], b[1] - a[1]
        far = math.hypot(dx, dy)
        bend = 0.16 * far + 25
        middle = (a[0] + b[0]) / 2 - bend * dy / far, (a[1] + b[1]) / 2 + bend * dx / far
        return self._border(arrow.source, middle), middle, self._border(arrow.target, middle)

    def _border(self, i: int, towards: tuple[float, float]) -> tuple[float, float]:
        """Where the line from a box's centre to a point leaves the box."""
        (x, y), dx, dy = self.centres[i], *(
            p - c for p, c in zip(towards, self.centres[i], strict=True)
        )  # fmt: skip
        scale = min(
            WIDTH / 2 / abs(dx) if dx else math.inf,
            self.heights[i] / 2 / abs(dy) if dy else math.inf,
        )
        return x + scale * dx, y + scale * dy

    def _arrow(self, arrow: Arrow) -> str:
        (x0, y0), (cx, cy), (x1, y1) = self._curve(arrow)
        return (
            f'<path d="M{x0:.0f} {y0:.0f}Q{cx:.0f} {cy:.0f} {x1:.0f} {y1:.0f}" fill="none" '
            f'stroke="#456" stroke-width="{1 + 2.5 * arrow.share:.1f}" marker-end="url(#end)">'
            f"<title>{_tip(arrow.more)}</title></path>"
        )

    def _label(self, arrow: Arrow) -> str:
        (x0, y0), (cx, cy), (x1, y1) = self._curve(arrow)
        x, y = 0.36 * x0 + 0.48 * cx + 0.16 * x1, 0.36 * y0 + 0.48 * cy + 0.16 * y1
        text = shortened(arrow.label, 26)
        wide = 6.4 * len(text) + 8
        return (
            f'<g><title>{_tip(arrow.more)}</title><rect x="{x - wide / 2:.0f}" y="{y - 9:.0f}" '
            f'width="{wide:.0f}" height="17" rx="3" fill="#fff" fill-opacity="0.9"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{html.escape(text)}</text></g>'
        )


def _tip(lines: Iterable[Any]) -> str:
    return html.escape("\n".join(map(str, lines)))
