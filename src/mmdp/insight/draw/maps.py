"""Map of a policy, a color for each action: by time and state, or by two named axes.

If states are combinations of values by name, like ``stock=3, ordered=5``, small maps of two axes
show some times, and some values of a third axis.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mmdp.core.shapes import AnyIntArray
from mmdp.core.text import TimeLabels, parse_named_axes, parse_named_values
from mmdp.insight.draw.axes import (
    LEGEND_BESIDE,
    MAX_LEGEND_LENGTH,
    MAX_TICK_LABELS,
    UNLABELED_TIMES,
    format_label,
    format_time_axis,
    new_axes,
    new_axis,
    to_png,
)
from mmdp.insight.draw.palette import ActionStyles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LEGEND_ACTIONS = 30  # actions in a legend
MAX_PANEL_TIMES, MAX_PANEL_ROWS = 4, 3  # small maps: times across, values of a third axis down
MAX_TICK_CHARS, CHAR_INCHES = 26, 0.08  # letters side by side below a small map; inches of one
MAX_WORD_TICKS = 12  # values of an axis that all have a label
NOTEBOOK_DPI = 80
NO_STATE = -1  # in a map of two axes: there is no such state


class PolicyMap(NamedTuple):
    """Actions (T, S) of a policy with the labels of rows and actions.

    Columns are times, or values of a quantity in ``x_range`` with the name of ``time_labels``.

    >>> policy_map = PolicyMap(np.array([[0, 1], [1, 1]]), ["low", "high"], ["wait", "treat"])
    >>> list(policy_map.find_runs(0)), policy_map.used_actions
    ([(0, 0, 0), (1, 1, 1)], [0, 1])
    """

    actions: AnyIntArray
    row_labels: Sequence[str]
    action_labels: Sequence[str]
    time_labels: TimeLabels = UNLABELED_TIMES
    x_range: tuple[float, float] | None = None

    @property
    def used_actions(self) -> list[int]:
        """The ids of the actions that occur."""
        return [int(a) for a in np.unique(self.actions)]

    def find_runs(self, row: int) -> list[tuple[int, int, int]]:
        """Find runs of equal actions of a state. Returns: (first time, last time, action) each."""
        groups = itertools.groupby(enumerate(self.actions[:, row].tolist()), key=lambda x: x[1])
        runs = [(action, [t for t, _ in run]) for action, run in groups]
        return [(run[0], run[-1], action) for action, run in runs]

    def to_html(self) -> str:
        """Render the map as a picture in HTML, for notebooks."""
        image = base64.b64encode(to_png(self.plot(), NOTEBOOK_DPI)).decode()
        times_text = f" by {self.time_labels.name} and state" if len(self.actions) > 1 else ""
        alt = escape(f"Actions{times_text}")
        return f'<img alt="{alt}" src="data:image/png;base64,{image}"/>'

    def plot(self, axis: Axes | None = None) -> Axes:
        """Plot the map on a matplotlib axis by time and state, with letters if they fit.

        Without an axis, states with named axes become small maps on a figure of their own.
        """
        named_axes, other_labels = parse_named_axes(self.row_labels)
        if axis is None and self.x_range is None and len(named_axes) > 1 and len(other_labels) < 2:
            return self._plot_panels(named_axes)
        (n_columns, n_rows), has_times = self.actions.shape, self.x_range is None
        axis = axis or new_axis(8.5, min(11.0, max(2.4, 1.2 + 0.2 * n_rows)))
        styles = ActionStyles(self.action_labels)
        _draw_mesh(axis, self.actions.T, styles, self.x_range)
        if n_columns == 1:
            axis.set_xticks([])
        elif has_times:
            axis.set_xlabel(format_time_axis(axis, self.time_labels))
        else:
            axis.set_xlabel(self.time_labels.name)
        axis.set_ylabel("state")
        tick_rows = _spaced_indices(n_rows, MAX_TICK_LABELS)
        axis.set_yticks(tick_rows, [format_label(self.row_labels[s]) for s in tick_rows])
        if has_times and n_columns <= 50 and n_rows <= 25:
            text_style = {"ha": "center", "va": "center", "fontsize": min(9.0, 380 / n_columns)}
            for s in range(n_rows):
                for first, last, a in self.find_runs(s):
                    color = styles.text_colors[a]
                    axis.text((first + last) / 2, s, styles.marks[a], color=color, **text_style)
        self._draw_legend(axis, styles)
        return axis

    def _plot_panels(self, named_axes: Mapping[str, list[str]]) -> Axes:
        """Plot small maps of the two longest axes on a figure of their own; return its first axis.

        Columns are some of the times, rows some values of a third axis; other axes have their
        middle value.
        """
        styles, table = ActionStyles(self.action_labels), self._tabulate(named_axes)
        longest = sorted(named_axes, key=lambda name: -len(named_axes[name]))[:2]
        middle = {name: len(x) // 2 for name, x in named_axes.items() if name not in longest}
        held_ids = [middle]
        if middle:
            third = next(iter(middle))
            ids = _spaced_indices(len(named_axes[third]), MAX_PANEL_ROWS)
            held_ids = [middle | {third: i} for i in ids]
        row_axis, column_axis = (x for x in named_axes if x in longest)
        varies = (table != table[0]).any()
        times = _spaced_indices(len(table), MAX_PANEL_TIMES) if varies else [0]
        axes = self._make_panel_axes(len(times), len(held_ids), named_axes[column_axis])
        for axis, (held, t) in zip(axes, itertools.product(held_ids, times), strict=True):
            index: list[Any] = [held.get(name, slice(None)) for name in named_axes]
            _draw_mesh(axis, table[t, *index], styles)
            title = [f"{name}={named_axes[name][i]}" for name, i in held.items()]
            title += [self.time_labels.describe_range(t)] if varies else []
            axis.set_title(format_label(", ".join(title), 40), fontsize="small")
            for matplotlib_axis, name in ((axis.yaxis, row_axis), (axis.xaxis, column_axis)):
                values, ticks = named_axes[name], _tick_values(named_axes[name])
                matplotlib_axis.set_ticks(
                    [values.index(x) for x in ticks], [format_label(x) for x in ticks]
                )
                matplotlib_axis.set_label_text(format_label(name))
            axis.label_outer()
        self._draw_legend(axes[len(times) - 1], styles)
        return axes[0]

    def _tabulate(self, named_axes: Mapping[str, list[str]]) -> AnyIntArray:
        """Return the actions (T, ...) by the values of all axes."""
        table = np.full((len(self.actions), *map(len, named_axes.values())), NO_STATE)
        for label, actions in zip(self.row_labels, self.actions.T, strict=True):
            if values := parse_named_values(label):
                index: list[Any] = [named_axes[name].index(x) for name, x in values.items()]
                table[:, *index] = actions
        return table

    def _make_panel_axes(self, n_columns: int, n_rows: int, x_values: list[str]) -> list[Axes]:
        """Make axes for small maps, with room for the legend and for words below them."""
        tick_lengths = [len(format_label(x)) for x in _tick_values(x_values)]
        is_vertical = sum(tick_lengths) > MAX_TICK_CHARS
        legend_length = max(len(self.action_labels[a]) for a in self.used_actions)
        width = 1.3 + 2.3 * n_columns + CHAR_INCHES * min(legend_length, MAX_LEGEND_LENGTH)
        height = 0.5 + 2.3 * n_rows + CHAR_INCHES * max(tick_lengths) * is_vertical
        axes = new_axes(n_columns, width, height, n_rows)
        for axis in axes:
            axis.tick_params("x", rotation=90 * is_vertical)
        return axes

    def _draw_legend(self, axis: Axes, styles: ActionStyles) -> None:
        """Draw a legend of the used actions right of the axis."""
        from matplotlib.patches import Patch

        handles = []
        for a in self.used_actions[:MAX_LEGEND_ACTIONS]:
            mark = f"{styles.marks[a]}  " if self.x_range is None else ""
            label = mark + format_label(self.action_labels[a], MAX_LEGEND_LENGTH)
            handles.append(Patch(color=styles.colors[a], label=label))
        if n_more := len(self.used_actions) - len(handles):
            handles.append(Patch(color="none", label=f"and {n_more} more"))
        axis.legend(handles=handles, title="action", **LEGEND_BESIDE)


def _draw_mesh(
    axis: Axes, cells: AnyIntArray, styles: ActionStyles, x_range: tuple[float, float] | None = None
) -> None:
    """Draw cells (rows, columns) in the colors of their actions."""
    from matplotlib.colors import ListedColormap

    n_rows, n_columns = cells.shape
    low, high = x_range or (0, n_columns - 1)
    half_step = (high - low) / max(n_columns - 1, 1) / 2 or 0.5
    axis.pcolormesh(
        np.linspace(low - half_step, high + half_step, n_columns + 1),
        np.arange(n_rows + 1) - 0.5,
        np.ma.masked_equal(cells, NO_STATE),
        cmap=ListedColormap(styles.colors),
        vmin=-0.5,
        vmax=len(styles.colors) - 0.5,
        rasterized=cells.size > 5000,
    )
    axis.invert_yaxis()


def _spaced_indices(count: int, max_count: int) -> list[int]:
    """Choose at most ``max_count`` of 0 .. count - 1, evenly, with the first and the last.

    >>> _spaced_indices(3, 4), _spaced_indices(26, 4)
    ([0, 1, 2], [0, 8, 17, 25])
    """
    return np.unique(np.linspace(0, count - 1, min(count, max_count)).round().astype(int)).tolist()


def _tick_values(values: list[str]) -> list[str]:
    """Choose the tick labels of a small map: all words, or some of the numbers.

    >>> _tick_values(["ill", "well", "dead"]), _tick_values([*"012345678"])
    (['ill', 'well', 'dead'], ['0', '2', '4', '6', '8'])
    """
    has_words = not all(re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", x) for x in values)
    return [values[i] for i in _spaced_indices(len(values), MAX_WORD_TICKS if has_words else 5)]
