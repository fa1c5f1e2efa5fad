"""Flow chart of a finite-state controller: boxes and arrows as text, SVG or Graphviz."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass

from mmdp.core.text import format_percent, pluralize, shorten

BOX_WIDTH, LINE_HEIGHT, PADDING = 280, 17, 12  # of a box, a line of text and the space around it
MAX_LINE_LENGTH = 38  # characters of a line


@dataclass(frozen=True)
class Box:
    """A node of the chart: title, lines of text and a tooltip."""

    title: str
    lines: tuple[str, ...]
    tooltip: tuple[str, ...]


@dataclass(frozen=True)
class Arrow:
    """A transition between two nodes, with the share of the steps that leave the first."""

    source: int
    target: int
    share: float
    label: str
    tooltip: tuple[str, ...]


@dataclass(frozen=True)
class FlowChart:
    """A flow chart of boxes and arrows, as text, SVG or Graphviz; notebooks show the SVG.

    >>> chart = FlowChart((Box("Node 0", ("waits",), ()),), ())
    >>> print(chart.text)
    Node 0
      waits
    """

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def text(self) -> str:
        """The chart as text: each node with its lines and its arrows."""
        lines = []
        for i, box in enumerate(self.boxes):
            lines += [box.title, *(f"  {line}" for line in (*box.lines, *box.tooltip))]
            for arrow in self.arrows:
                if arrow.source == i:
                    lines.append(
                        f"  → node {arrow.target} ({format_percent(arrow.share)}): {arrow.label}"
                    )
        return "\n".join(lines)

    def to_dot(self) -> str:
        """Render the chart in the language of Graphviz."""
        lines = ["digraph controller {", '  node [shape=box, fontname="sans-serif"];']
        for i, box in enumerate(self.boxes):
            short_lines = (shorten(line, MAX_LINE_LENGTH) for line in box.lines)
            text = "\\n".join(map(_escape_dot, (box.title, *short_lines)))
            lines.append(
                f'  n{i} [label="{text}", tooltip="{_escape_dot("; ".join(box.tooltip))}"];'
            )
        for arrow in self.arrows:
            tooltip = _escape_dot("; ".join(arrow.tooltip))
            lines.append(
                f"  n{arrow.source} -> n{arrow.target} "
                f'[label="{_escape_dot(arrow.label)}", tooltip="{tooltip}"];'
            )
        return "\n".join([*lines, "}", ""])

    def to_svg(self) -> str:
        """Render the chart as self-contained SVG with tooltips."""
        return _SvgRenderer(self).render()

    def _repr_svg_(self) -> str:
        """Render the chart for notebooks."""
        return self.to_svg()


def _escape_dot(text: str) -> str:
    """Escape a text for a string in DOT."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


# ---------------------------------------------------------------------- how it is drawn
class _SvgRenderer:
    """Layout and SVG of a chart: boxes on an ellipse, arrows bent to the right."""

    def __init__(self, chart: FlowChart) -> None:
        self.chart = chart
        self.heights = [LINE_HEIGHT * (1 + len(box.lines)) + PADDING for box in chart.boxes]
        max_height, n = max(self.heights), len(chart.boxes)
        x_radius = {1: 0.0, 2: 245.0}.get(n, 60.0 * n + 110.0)
        y_radius = 0.0 if n <= 2 else 0.5 * max_height + 45.0 * n
        self.width = 2 * (x_radius + BOX_WIDTH / 2 + 90)
        angles = [math.pi + 2 * math.pi * i / n for i in range(n)]
        self.centers = [
            (self.width / 2 + x_radius * math.cos(angle), y_radius * math.sin(angle))
            for angle in angles
        ]

    def render(self) -> str:
        """Render the whole chart."""
        arrows = "".join(map(self._render_arrow, self.chart.arrows))
        boxes = "".join(self._render_box(i, box) for i, box in enumerate(self.chart.boxes))
        labels = "".join(map(self._render_label, self.chart.arrows))
        top, bottom = self._y_extent()
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top:.0f} {self.width:.0f} '
            f'{bottom - top:.0f}" width="{self.width:.0f}" font-family="sans-serif" '
            f'font-size="12" role="img"><title>{pluralize(len(self.chart.boxes), "node")}</title>'
            '<defs><marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0 10 5 0 10z" '
            f'fill="#456"/></marker></defs>{arrows}{boxes}{labels}</svg>\n'
        )

    def _y_extent(self) -> tuple[float, float]:
        """Compute the vertical extent (top, bottom) of the drawing, with padding."""
        tops = [y - height / 2 for (_, y), height in zip(self.centers, self.heights, strict=True)]
        bottoms = [top + height for top, height in zip(tops, self.heights, strict=True)]
        # an arrow bends at most half of the way from its ends to the control point
        bend_tops = [
            (a + 2 * c + b) / 4
            for (_, a), (_, c), (_, b) in map(self._arrow_path, self.chart.arrows)
        ]
        return min(tops + bend_tops) - PADDING, max(bottoms + bend_tops) + PADDING

    def _render_box(self, i: int, box: Box) -> str:
        """Render one box with its lines and tooltip."""
        (x, y), height = self.centers[i], self.heights[i]
        left, top = x - BOX_WIDTH / 2, y - height / 2
        lines = [(box.title, ' font-weight="bold"')]
        lines += [(shorten(line, MAX_LINE_LENGTH), "") for line in box.lines]
        text = "".join(
            f'<text x="{left + 10:.0f}" y="{top + LINE_HEIGHT * (j + 1):.0f}"{style}>'
            f"{html.escape(line)}</text>"
            for j, (line, style) in enumerate(lines)
        )
        return (
            f"<g><title>{_format_tooltip([box.title, *box.tooltip])}</title>"
            f'<rect x="{left:.0f}" y="{top:.0f}" '
            f'width="{BOX_WIDTH}" height="{height}" rx="8" fill="#f4f7fb" stroke="#456"/>{text}</g>'
        )

    def _arrow_path(self, arrow: Arrow) -> tuple[tuple[float, float], ...]:
        """Compute start, control point and end of an arrow, at the borders of its boxes."""
        a, b = self.centers[arrow.source], self.centers[arrow.target]
        dx, dy = b[0] - a[0], b[1] - a[1]
        length = math.hypot(dx, dy)
        bend = 0.16 * length + 25
        control_point = (
            (a[0] + b[0]) / 2 - bend * dy / length,
            (a[1] + b[1]) / 2 + bend * dx / length,
        )
        return (
            self._border_point(arrow.source, control_point),
            control_point,
            self._border_point(arrow.target, control_point),
        )

    def _border_point(self, i: int, target: tuple[float, float]) -> tuple[float, float]:
        """Compute the point at which the line from a box's center to a target leaves the box."""
        (x, y), dx, dy = (
            self.centers[i],
            *(p - c for p, c in zip(target, self.centers[i], strict=True)),
        )
        scale = min(
            BOX_WIDTH / 2 / abs(dx) if dx else math.inf,
            self.heights[i] / 2 / abs(dy) if dy else math.inf,
        )
        return x + scale * dx, y + scale * dy

    def _render_arrow(self, arrow: Arrow) -> str:
        """Render one arrow, wider for a larger share."""
        (x0, y0), (cx, cy), (x1, y1) = self._arrow_path(arrow)
        return (
            f'<path d="M{x0:.0f} {y0:.0f}Q{cx:.0f} {cy:.0f} {x1:.0f} {y1:.0f}" fill="none" '
            f'stroke="#456" stroke-width="{1 + 2.5 * arrow.share:.1f}" marker-end="url(#end)">'
            f"<title>{_format_tooltip(arrow.tooltip)}</title></path>"
        )

    def _render_label(self, arrow: Arrow) -> str:
        """Render the label of an arrow near its start."""
        (x0, y0), (cx, cy), (x1, y1) = self._arrow_path(arrow)
        x, y = 0.36 * x0 + 0.48 * cx + 0.16 * x1, 0.36 * y0 + 0.48 * cy + 0.16 * y1
        text = shorten(arrow.label, 26)
        width = 6.4 * len(text) + 8
        return (
            f"<g><title>{_format_tooltip(arrow.tooltip)}</title>"
            f'<rect x="{x - width / 2:.0f}" y="{y - 9:.0f}" '
            f'width="{width:.0f}" height="17" rx="3" fill="#fff" fill-opacity="0.9"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{html.escape(text)}</text></g>'
        )


def _format_tooltip(lines: Iterable[str]) -> str:
    """Join lines to a tooltip, escaped for SVG."""
    return html.escape("\n".join(lines))
