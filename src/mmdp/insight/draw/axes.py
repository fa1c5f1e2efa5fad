"""Figures without a display: axes, labels, and rendering to bytes."""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any

from mmdp.core.arguments import PositiveFloat, PositiveInt, check_arguments
from mmdp.core.errors import check_memory
from mmdp.core.text import TimeLabels, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 20_000  # bytes of one axis
MAX_LABEL_LENGTH = 24  # characters of a label
MAX_LEGEND_LENGTH = 44  # of one beside the axes, where there is room
MAX_TICK_LABELS = 25  # on an axis
# options of a legend right of the axes
LEGEND_BESIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1.0, 1.0),
    "frameon": False,
}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
UNLABELED_TIMES = TimeLabels()  # decisions are counted


@check_arguments
def new_axis(width: PositiveFloat = 6.0, height: PositiveFloat = 3.8) -> Axes:
    """Make an axis on a new figure, without a display."""
    return new_axes(1, width, height)[0]


@check_arguments
def new_axes(
    n_columns: PositiveInt,
    width: PositiveFloat = 9.0,
    height: PositiveFloat = 3.8,
    n_rows: PositiveInt = 1,
) -> list[Axes]:
    """Make axes in ``n_rows`` rows of ``n_columns`` on a new figure, without a display."""
    from matplotlib.figure import Figure

    check_memory(SIZE * n_columns * n_rows, f"{n_columns * n_rows:,} axes", ["draw fewer"])
    figure = Figure(figsize=(width, height), layout="constrained")
    axes: list[Axes] = list(figure.subplots(n_rows, n_columns, squeeze=False).reshape(-1))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        for matplotlib_axis in (axis.xaxis, axis.yaxis):  # 1,880,000, not 1.88 and 1e6
            matplotlib_axis.set_major_formatter("{x:,.10g}")
    return axes


def format_label(text: str, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Shorten a label to one line for matplotlib, and escape its dollar signs.

    >>> format_label("a$b$"), format_label("x" * 80, 10)
    ('a\\\\$b\\\\$', 'xxxxxxxxx…')
    """
    return shorten(text, max_length).replace("$", r"\$")


def format_time_axis(axis: Axes, time_labels: TimeLabels) -> str:
    """Set integer time ticks with their labels; return the label of the x axis."""
    axis.locator_params(axis="x", integer=True)
    if time_labels.labels:
        labels = time_labels.get_labels(int(axis.get_xlim()[1]) + 2)
        axis.xaxis.set_major_formatter(
            lambda t, _: format_label(labels[round(t)], 12) if 0 <= round(t) < len(labels) else ""
        )
    return format_label(time_labels.name)


@check_arguments
def to_png(axis: Axes, dpi: PositiveInt = 150) -> bytes:
    """Render the figure of an axis as PNG bytes."""
    check_memory(4 * dpi**2, f"a square inch at dpi={dpi:,}", ["take a smaller dpi"])
    return _render_figure(axis, format="png", dpi=dpi)


@check_arguments
def to_svg(axis: Axes) -> str:
    """Render the figure of an axis as SVG text, reproducibly and with texts kept as texts."""
    return _render_figure(axis, format="svg", metadata=NO_METADATA).decode()


def to_inline_svg(axis: Axes, title: str, id_prefix: str) -> str:
    """Render the figure of an axis as part of a page: ids of its own, a name, no background."""
    svg = _render_figure(axis, format="svg", metadata=NO_METADATA, transparent=True).decode()
    drawing = re.sub(r'( id="|href="#|url\(#)', rf"\1{id_prefix}-", svg[svg.index("<svg") :])
    return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _render_figure(axis: Axes, **options: Any) -> bytes:
    """Render the figure of an axis in one file format."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mmdp"}), warnings.catch_warnings():
        # if the font lacks a script, labels are shown as boxes: no reason to warn
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        axis.figure.savefig(buffer, **options)  # type: ignore[union-attr]
    return buffer.getvalue()
