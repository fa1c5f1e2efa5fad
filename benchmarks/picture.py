"""One picture of a run: how cost grows, and every figure next to its floor (not for a trial)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import Row

COLOURS = {"aim": "#2a7f62", "ok": "#7fb069", "MISSED": "#c8553d"}


def draw(rows: Sequence[Row], path: Path, floors: bool = True) -> None:
    """Write the PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = [row for row in rows if floors and row.goal is not None and row.value is not None]
    held = [row for row in held if row.goal is not None and row.goal.kind != "within"]
    figure = Figure(figsize=(12, max(4.5, 1.5 + 0.27 * len(held))), layout="constrained")
    FigureCanvasAgg(figure)
    left, *right = figure.subplots(1, 1 + floors, squeeze=False)[0]
    growth_curves(left, rows)
    for ax in right:
        floor_bars(ax, held)
    figure.savefig(path, dpi=110, format="png")


def growth_curves(ax: Any, rows: Sequence[Row]) -> None:
    """Time against work, both relative to the smallest, on logarithmic axes."""
    for row in rows:
        if "axis" in row.details:
            seconds = row.details["seconds"]
            times = [x / seconds[0] for x in seconds]
            label = f"{row.details['axis']}: slope {row.value:.2f}"
            ax.loglog(row.details["size"], times, "o-", label=label)
    ax.loglog([1, 100], [1, 100], color="0.6", linestyle="--", linewidth=1, label="linear")
    ax.set(xlabel="work, relative", ylabel="seconds, relative", title="Growth")
    ax.legend(loc="lower right")
    ax.grid(True, which="major", alpha=0.3)


def floor_bars(ax: Any, rows: Sequence[Row]) -> None:
    """One bar per figure in units of its floor, a tick at its aim; longer is better."""
    names = []
    for i, row in enumerate(rows):
        assert row.goal is not None
        assert row.value is not None
        least = row.goal.kind == "least"
        length = row.value / row.goal.floor if least else row.goal.floor / max(row.value, 1e-9)
        aim = row.goal.aim / row.goal.floor if least else row.goal.floor / row.goal.aim
        ax.barh(i, max(length, 0.05), color=COLOURS[row.reached], height=0.7)
        ax.plot([aim, aim], [i - 0.4, i + 0.4], color="black", linewidth=1.5)
        names.append(f"{row.check}, {row.threads}" if row.threads else row.check)
    ax.axvline(1.0, color="0.3", linestyle="--", linewidth=1)
    ax.set_yticks(range(len(rows)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="in units of the floor (dashed); black: the aim", title="Floors", xscale="log")
    ax.set_xlim(left=0.2)
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    ax.set_xticks([], minor=True)
