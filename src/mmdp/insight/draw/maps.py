"""Map of a policy, a color for each action: by time and state, or by two named axes.

If states are combinations of values by name, like ``stock=3, ordered=5``, small maps of two axes
show some times, and some values of the other axes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.text import TimeLabels, parse_named_axes, parse_named_values, pluralize, shorten
from mmdp.insight.draw.axes import (
    MAX_LEGEND_LENGTH,
    MAX_TICK_LABELS,
    UNLABELED_TIMES,
    format_label,
    format_time_axis,
    new_axes,
    new_axis,
)
from mmdp.insight.draw.palette import choose_text_color, make_action_colors, make_marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAP_WIDTH, ROW_HEIGHT, LABEL_WIDTH, CHAR_WIDTH = 420, 16, 130, 7  # pixels in a notebook
MAX_STATES, MAX_CELLS = 40, 4000  # in a notebook
MAX_LEGEND_ACTIONS = 30  # actions in a legend
# small maps: times, values of another axis, values of one side in SVG
MAX_PANEL_TIMES, MAX_PANEL_ROWS, MAX_PANEL_VALUES = 4, 3, 41
PANEL_SIZE, PANEL_GAP = 150, 28  # pixels of a small map, and around it
MAX_TICK_CHARS, CHAR_INCHES = 26, 0.08  # letters side by side below a small map; inches of one
MAX_WORD_TICKS = 12  # values of an axis that all have a label
NO_STATE = -1  # in a map of two axes: there is no such state


class ActionStyles:
    """Colors, marks and names of all actions of a problem, by their ids.

    >>> styles = ActionStyles(["wait", "treat"])
    >>> styles.colors[1], styles.marks[1], styles.text_colors[1]
    ('#E69F00', 'B', '#000000')
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels, self.marks = list(labels), make_marks(labels)
        self.colors = make_action_colors(len(labels))
        self.text_colors = [choose_text_color(color) for color in self.colors]


class MapAxis(NamedTuple):
    """The name of an axis and its displayed values."""

    name: str
    values: list[str]


class Panel(NamedTuple):
    """A small map with the actions ``cells`` (rows, columns) on two axes."""

    title: str
    cells: npt.NDArray[np.integer]
    row_axis: MapAxis
    column_axis: MapAxis


class NamedAxes:
    """Coordinates of states on named axes; ``names`` is empty if states have no such axes.

    >>> axes = NamedAxes(["stock=0, way=1", "stock=2, way=1", "ended"])
    >>> axes.names, axes.values, axes.coordinates.tolist(), axes.state_ids
    (['stock', 'way'], [['0', '2'], ['1']], [[0, 0], [1, 0]], [0, 1])
    """

    def __init__(self, row_labels: Sequence[str]) -> None:
        axes, other_labels = parse_named_axes(row_labels)
        axes = axes if len(axes) > 1 and len(other_labels) < 2 else {}
        self.names, self.values = list(axes), list(axes.values())
        self.state_ids = [s for s, row in enumerate(row_labels) if axes and row not in other_labels]
        value_index = {name: {x: i for i, x in enumerate(values)} for name, values in axes.items()}
        state_values = (parse_named_values(row_labels[s]) for s in self.state_ids)
        self.coordinates = np.array(
            [[value_index[name][x] for name, x in row.items()] for row in state_values]
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values on each axis."""
        return tuple(map(len, self.values))

    def make_panels(
        self, actions: npt.NDArray[np.integer], max_values: int, time_labels: TimeLabels
    ) -> list[list[Panel]]:
        """Make maps of actions (T, S) by the two longest axes: a row for each value of a third.

        Axes beyond the third are held at their middle; at most ``max_values`` values of an axis.
        """
        row_id, column_id = sorted(sorted(range(len(self.shape)), key=lambda i: -self.shape[i])[:2])
        other_axes = [i for i in range(len(self.shape)) if i not in (row_id, column_id)]
        table = np.full((len(actions), *self.shape), NO_STATE)
        table[(slice(None), *self.coordinates.T)] = actions[:, self.state_ids]
        varies = (actions[:, self.state_ids] != actions[0, self.state_ids]).any()
        panel_times = _spaced_indices(len(actions), MAX_PANEL_TIMES) if varies else [0]
        fixed_values: list[dict[int, int]] = [{i: self.shape[i] // 2 for i in other_axes}]
        if other_axes:
            fixed_values = [
                fixed_values[0] | {other_axes[0]: j}
                for j in _spaced_indices(self.shape[other_axes[0]], MAX_PANEL_ROWS)
            ]
        value_ids = [_spaced_indices(self.shape[i], max_values) for i in (row_id, column_id)]
        map_axes = [
            MapAxis(self.names[i], [self.values[i][j] for j in ids])
            for i, ids in zip((row_id, column_id), value_ids, strict=True)
        ]
        panels = []
        for fixed_ids in fixed_values:
            cell_index = tuple(fixed_ids.get(i, slice(None)) for i in range(len(self.shape)))
            fixed_texts = [f"{self.names[i]}={self.values[i][j]}" for i, j in fixed_ids.items()]
            titles = [
                ", ".join([*fixed_texts, *([time_labels.describe_range(t)] if varies else [])])
                for t in panel_times
            ]
            cells = [table[(t, *cell_index)][np.ix_(*value_ids)] for t in panel_times]
            panels.append([Panel(*x, *map_axes) for x in zip(titles, cells, strict=True)])
        return panels


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


@dataclass(frozen=True, eq=False)
class PolicyMap:
    """Actions (T, S) of a policy with the labels of rows and actions.

    Columns are times, or values of a quantity in ``x_range`` with the name of ``time_labels``.

    >>> policy_map = PolicyMap(np.array([[0, 1], [1, 1]]), ["low", "high"], ["wait", "treat"])
    >>> list(policy_map.find_runs(0)), policy_map.used_actions
    ([(0, 0, 0), (1, 1, 1)], [0, 1])
    """

    actions: npt.NDArray[np.integer]
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
        groups = groupby(enumerate(self.actions[:, row].tolist()), key=lambda x: x[1])
        runs = [(action, [t for t, _ in run]) for action, run in groups]
        return [(run[0], run[-1], action) for action, run in runs]

    # -------------------------------------------------------------- for notebooks
    def to_html(self) -> str:
        """Render the map as SVG in HTML with tooltips; large maps are cut, with a note."""
        axes = NamedAxes(self.row_labels)
        if len(axes.names) > 1 and self.x_range is None:
            return self._render_panels(axes)
        n_times, n_states = self.actions.shape
        n_rows = min(n_states, MAX_STATES)
        n_shown = min(n_times, max(1, MAX_CELLS // n_rows))
        visible = replace(
            self, actions=self.actions[:n_shown, :n_rows], row_labels=self.row_labels[:n_rows]
        )
        caption = (
            f"actions by state, {visible._format_columns(0, n_shown - 1)}"
            if n_times > 1
            else "by state"
        )
        omission_texts = [pluralize(n_states - n_rows, "more state")] * (n_rows < n_states)
        omission_texts += [pluralize(n_times - n_shown, "more time")] * (n_shown < n_times)
        omitted_text = f" (and {', '.join(omission_texts)})" if omission_texts else ""
        styles = ActionStyles(self.action_labels)
        svg_body = "".join(visible._render_row(s, styles) for s in range(n_rows))
        return visible._render_frame(
            svg_body,
            LABEL_WIDTH + MAP_WIDTH,
            ROW_HEIGHT * n_rows,
            f"{caption}{omitted_text}",
            styles,
        )

    def _render_frame(
        self, svg_body: str, width: int, height: int, caption: str, styles: ActionStyles
    ) -> str:
        """Render an SVG body with its legend and caption as HTML."""
        legend = " ".join(
            f'<span style="white-space:nowrap">'
            f'<span style="color:{styles.colors[a]}">&#9632;</span> '
            f"{escape(shorten(self.action_labels[a]))}</span>"
            for a in self.used_actions
        )
        return (
            f'<div><svg role="img" aria-label="{escape(caption)}" '
            'xmlns="http://www.w3.org/2000/svg" '
            f'width="{width}" height="{height}" font-size="12" font-family="sans-serif">{svg_body}'
            f"</svg><div>{legend}</div><div>{escape(caption)}</div></div>"
        )

    def _render_panels(self, axes: NamedAxes) -> str:
        """Render the small maps of named axes as HTML."""
        styles = ActionStyles(self.action_labels)
        panels = axes.make_panels(self.actions, MAX_PANEL_VALUES, self.time_labels)
        step = PANEL_SIZE + PANEL_GAP
        svg_body = "".join(
            f'<g transform="translate({j * step},{i * step})">'
            f"{self._render_panel(panel, styles)}</g>"
            for i, row in enumerate(panels)
            for j, panel in enumerate(row)
        )
        width, height = (n * step for n in (len(panels[0]), len(panels)))
        map_axes = panels[0][0].row_axis, panels[0][0].column_axis
        row_text, column_text = (f"{x.name} {x.values[0]} to {x.values[-1]}" for x in map_axes)
        caption = f"actions by {row_text} (down) and {column_text} (across)"
        return self._render_frame(svg_body, width, height, caption, styles)

    def _render_panel(self, panel: Panel, styles: ActionStyles) -> str:
        """Render a small map as SVG: its title and a bar for every run of equal actions."""
        ys, xs = (np.linspace(0, PANEL_SIZE, n + 1).round().astype(int) for n in panel.cells.shape)
        row_axis, (column_name, column_values) = panel.row_axis, panel.column_axis
        title = escape(shorten(panel.title, 28))
        parts = [f'<text x="0" y="12" fill="currentColor">{title}</text>']
        for i, row in enumerate(panel.cells.tolist()):
            for action, run in groupby(enumerate(row), key=lambda x: x[1]):
                run_columns = [j for j, _ in run]
                if action == NO_STATE:
                    continue
                range_values = dict.fromkeys(
                    (column_values[run_columns[0]], column_values[run_columns[-1]])
                )
                row_text = f"{row_axis.name}={row_axis.values[i]}"
                column_text = f"{column_name}={' to '.join(range_values)}"
                tooltip = f"{row_text}, {column_text}: {self.action_labels[action]}"
                x0, x1 = xs[run_columns[0]], xs[run_columns[-1] + 1]
                parts.append(
                    f'<rect x="{x0}" y="{18 + ys[i]}" '
                    f'width="{x1 - x0}" height="{ys[i + 1] - ys[i]}" '
                    f'fill="{styles.colors[action]}"><title>{escape(tooltip)}</title></rect>'
                )
        return "".join(parts)

    def _render_row(self, s: int, styles: ActionStyles) -> str:
        """Render a state as SVG: its label and a bar for every run of equal actions."""
        state, cell_width = self.row_labels[s], MAP_WIDTH / len(self.actions)
        name = escape(shorten(state, LABEL_WIDTH // CHAR_WIDTH))
        parts = [f'<text x="0" y="{ROW_HEIGHT * s + 12}" fill="currentColor">{name}</text>']
        for first, last, action in self.find_runs(s):
            action_text = (
                f"{self._format_columns(first, last)}: {shorten(self.action_labels[action])}"
            )
            tooltip = escape(f"{shorten(state)}, {action_text}")
            parts.append(
                f'<rect x="{LABEL_WIDTH + cell_width * first:.1f}" y="{ROW_HEIGHT * s + 1}" '
                f'width="{cell_width * (last + 1 - first):.1f}" height="{ROW_HEIGHT - 2}" '
                f'fill="{styles.colors[action]}"><title>{tooltip}</title></rect>'
            )
        return "".join(parts)

    def _format_columns(self, first: int, last: int) -> str:
        """Describe a range of columns by their times, or by their values in ``x_range``."""
        if self.x_range is None:
            return self.time_labels.describe_range(first, last)
        x_values = np.linspace(*self.x_range, len(self.actions))[[first, last]]
        return f"{self.time_labels.name} {' to '.join(f'{x:.4g}' for x in x_values)}"

    # -------------------------------------------------------------- for plots
    def plot(self, axis: Axes | None = None) -> Axes:
        """Plot the map on a matplotlib axis by time and state, with letters in cells if they fit.

        Without an axis, states with named axes become small maps on a figure of their own.
        """
        axes = NamedAxes(self.row_labels) if axis is None and self.x_range is None else None
        if axes is not None and len(axes.names) > 1:
            return self._plot_panels(axes.make_panels(self.actions, 1000, self.time_labels))
        horizon, n_states = self.actions.shape
        if axis is None:
            axis = new_axis(8.5, min(11.0, max(2.4, 1.2 + 0.2 * n_states)))
        styles = ActionStyles(self.action_labels)
        self._draw_mesh(axis, self.actions.T, styles, self.x_range)
        if horizon > 1 and self.x_range is None:
            axis.set_xlabel(format_time_axis(axis, self.time_labels))
        elif horizon > 1:
            axis.set_xlabel(self.time_labels.name)
        else:
            axis.set_xticks([])
        axis.set_ylabel("state")
        tick_rows = _spaced_indices(n_states, MAX_TICK_LABELS)
        axis.set_yticks(tick_rows, [format_label(self.row_labels[s]) for s in tick_rows])
        if self.x_range is None and horizon <= 50 and n_states <= 25:
            for (t, s), a in np.ndenumerate(self.actions):
                axis.text(
                    t,
                    s,
                    styles.marks[a],
                    ha="center",
                    va="center",
                    fontsize=min(9.0, 380 / horizon),
                    color=styles.text_colors[a],
                )
        self._draw_legend(axis, styles)
        return axis

    @staticmethod
    def _draw_mesh(
        axis: Axes,
        cells: npt.NDArray[np.integer],
        styles: ActionStyles,
        x_range: tuple[float, float] | None = None,
    ) -> None:
        """Draw cells (rows, columns) in the colors of their actions."""
        from matplotlib.colors import ListedColormap

        low, high = x_range or (0, cells.shape[1] - 1)
        half_step = (high - low) / max(cells.shape[1] - 1, 1) / 2 or 0.5
        axis.pcolormesh(
            np.linspace(low - half_step, high + half_step, cells.shape[1] + 1),
            np.arange(cells.shape[0] + 1) - 0.5,
            np.ma.masked_equal(cells, NO_STATE),
            cmap=ListedColormap(styles.colors),
            vmin=-0.5,
            vmax=len(styles.colors) - 0.5,
            rasterized=cells.size > 5000,
        )
        axis.invert_yaxis()

    def _plot_panels(self, panels: list[list[Panel]]) -> Axes:
        """Plot small maps on a figure of their own; return its first axis."""
        n_rows, n_columns, styles = len(panels), len(panels[0]), ActionStyles(self.action_labels)
        column_ticks = [format_label(x) for x in _tick_values(panels[0][0].column_axis.values)]
        is_vertical = sum(map(len, column_ticks)) > MAX_TICK_CHARS
        legend_chars = max(
            len(format_label(self.action_labels[a], MAX_LEGEND_LENGTH)) for a in self.used_actions
        )
        height = 0.5 + 2.3 * n_rows + is_vertical * CHAR_INCHES * max(map(len, column_ticks))
        axes = new_axes(
            n_columns, 1.3 + CHAR_INCHES * legend_chars + 2.3 * n_columns, height, n_rows
        )
        for axis, panel in zip(axes, (x for row in panels for x in row), strict=True):
            self._draw_mesh(axis, panel.cells, styles)
            axis.set_title(format_label(panel.title, 40), fontsize="small")
            for matplotlib_axis, (name, values) in (
                (axis.yaxis, panel.row_axis),
                (axis.xaxis, panel.column_axis),
            ):
                ticks = _tick_values(values)
                matplotlib_axis.set_ticks(
                    [values.index(x) for x in ticks], [format_label(x) for x in ticks]
                )
                matplotlib_axis.set_label_text(format_label(name))
            axis.tick_params("x", rotation=90 * is_vertical)
            axis.label_outer()
        self._draw_legend(axes[n_columns - 1], styles)
        return axes[0]

    def _draw_legend(self, axis: Axes, styles: ActionStyles) -> None:
        """Draw a legend of the used actions right of the axis."""
        from matplotlib.patches import Patch

        used_actions = self.used_actions
        marks = [f"{mark}  " if self.x_range is None else "" for mark in styles.marks]
        handles = [
            Patch(
                color=styles.colors[a],
                label=f"{marks[a]}{format_label(self.action_labels[a], MAX_LEGEND_LENGTH)}",
            )
            for a in used_actions[:MAX_LEGEND_ACTIONS]
        ]
        if len(used_actions) > MAX_LEGEND_ACTIONS:
            handles.append(
                Patch(color="none", label=f"and {len(used_actions) - MAX_LEGEND_ACTIONS} more")
            )
        axis.legend(
            handles=handles,
            title="action",
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
        )
