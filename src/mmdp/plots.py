"""Plots: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Okabe and Ito's colours: told apart by most colour-blind readers; markers do without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_axis(width: float = 6.0, height: float = 3.8) -> Axes:
    """A fresh axis on a figure of its own, drawn without a screen."""
    return new_axes(1, width, height)[0]


def new_axes(count: int, width: float = 9.0, height: float = 3.8) -> list[Axes]:
    """Axes side by side on one figure, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(1, count, squeeze=False)[0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return axes


def traces(
    values: Mapping[str, npt.ArrayLike], axis: Axes | None = None, *, ylabel: str = "mean return"
) -> Axes:
    """Return by iteration of several runs, one line each; the last point is held to the right."""
    axis = axis or new_axis()
    arrays = {name: np.asarray(y, dtype=float) for name, y in values.items()}
    longest = max(len(y) for y in arrays.values())
    for i, (name, y) in enumerate(arrays.items()):
        axis.plot(
            np.arange(len(y)), y, color=COLOURS[i % 7], marker=MARKERS[i % 7], label=name,
            linewidth=1.8, markersize=6,
        )  # fmt: skip
        axis.plot([len(y) - 1, longest - 1], [y[-1], y[-1]], color=COLOURS[i % 7], linestyle=":")
    axis.set_xlabel("iteration of CADP")
    axis.set_ylabel(ylabel)
    axis.set_xticks(range(longest))
    axis.legend(title="start", frameon=False)
    axis.grid(axis="y", alpha=0.3)
    return axis


def errors_by(
    frame: pd.DataFrame, x: str, y: str, *, error: str, by: str | None = None,
    axis: Axes | None = None, xlabel: str = "", ylabel: str = "", log: bool = False,
) -> Axes:  # fmt: skip
    """Points with error bars (two standard errors) joined by lines, one line per ``by``."""
    axis = axis or new_axis()
    groups: Sequence[tuple[Any, pd.DataFrame]] = (
        [("", frame)] if by is None else list(frame.groupby(by, sort=False))
    )
    for i, (name, part) in enumerate(groups):
        axis.errorbar(
            part[x], part[y], yerr=2 * part[error], color=COLOURS[i % 7], marker=MARKERS[i % 7],
            capsize=3, linewidth=1.8, label=str(name) or None,
        )  # fmt: skip
    if log:
        axis.set_xscale("log")
        axis.set_xticks(sorted(set(frame[x])), [f"{v:,}" for v in sorted(set(frame[x]))])
        axis.minorticks_off()
    axis.set_xlabel(xlabel or x)
    axis.set_ylabel(ylabel or y)
    if by is not None:
        axis.legend(frameon=False)
    axis.grid(axis="y", alpha=0.3)
    return axis


def png(axis: Axes, dpi: int = 150) -> bytes:
    """The axis' figure as PNG bytes."""
    import io

    buffer = io.BytesIO()
    figure = axis.get_figure()
    assert figure is not None
    figure.savefig(buffer, format="png", dpi=dpi)  # type: ignore[union-attr]
    return buffer.getvalue()
