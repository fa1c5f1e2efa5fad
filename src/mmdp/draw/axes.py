"""Figures without a screen: axes, labels, and their bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mmdp.arguments import PositiveFloat, PositiveInt, checked
from mmdp.words import Times, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 24  # characters of a label
IN_LEGEND = 44  # of one beside the axes, where there is room
MOST_LABELS = 25  # on an axis
UNNAMED = Times()  # decisions are counted


@checked
def new_axis(width: PositiveFloat = 6.0, height: PositiveFloat = 3.8) -> Axes:
    """A fresh axis on a figure of its own, drawn without a screen."""
    return new_axes(1, width, height)[0]


@checked
def new_axes(
    count: PositiveInt,
    width: PositiveFloat = 9.0,
    height: PositiveFloat = 3.8,
    rows: PositiveInt = 1,
) -> list[Axes]:
    """Axes side by side on one figure, in rows of ``count``, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(rows, count, squeeze=False).reshape(-1))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        for side in (axis.xaxis, axis.yaxis):  # 1,880,000 rather than 1.88 and 1e6 in a corner
            side.set_major_formatter("{x:,.10g}")
    return axes


def label(text: str, longest: int = LONGEST) -> str:
    """A label for matplotlib: on one line, not too long, dollar signs not read as formulas.

    >>> label("a$b$"), label("x" * 80, 10)
    ('a\\\\$b\\\\$', 'xxxxxxxxx…')
    """
    return shortened(text, longest).replace("$", r"\$")


def over_times(axis: Axes, times: Times) -> str:
    """Whole decisions across, under their labels; what to write below."""
    axis.locator_params(axis="x", integer=True)
    if times.labels:
        every = times.first(int(axis.get_xlim()[1]) + 2)
        axis.xaxis.set_major_formatter(
            lambda t, _: label(every[round(t)], 12) if 0 <= round(t) < len(every) else ""
        )
    return label(times.name)


@checked
def png(axis: Axes, dpi: PositiveInt = 150) -> bytes:
    """The axis' figure as PNG bytes."""
    return _drawn(axis, "png", dpi=dpi)


@checked
def svg(axis: Axes) -> str:
    """The axis' figure as SVG text: the same for the same input, texts kept as texts."""
    return _drawn(axis, "svg").decode()


@contextmanager
def ink(colour: str) -> Iterator[None]:
    """Text and axes of the figures made inside in one colour."""
    from matplotlib import rc_context

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys(names, colour)
    with rc_context(settings):
        yield


def _drawn(axis: Axes, form: Literal["png", "svg"], **options: Any) -> bytes:
    import io

    from matplotlib import rc_context

    buffer = io.BytesIO()
    figure = axis.get_figure()
    assert figure is not None
    fixed: Any = {"svg.fonttype": "none", "svg.hashsalt": "mmdp"}
    if form == "svg":
        options["metadata"] = {"Date": None, "Creator": None}
    with rc_context(fixed), warnings.catch_warnings():
        # if the font lacks a script, labels are shown as boxes: no reason to warn
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=form, **options)  # type: ignore[union-attr]
    return buffer.getvalue()
