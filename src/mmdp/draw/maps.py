"""The map of a policy, a colour for each action: by time and state, or by two named axes.

If states are combinations of values by name, like ``stock=3, ordered=5``, small maps of two axes
show some times, and some values of the other axes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.draw.axes import IN_LEGEND, MOST_LABELS, UNNAMED, label, new_axes, new_axis, over_times
from mmdp.draw.palette import action_colours, ink_on, letters
from mmdp.words import Times, counted, named_axes, named_values, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ROW, LEFT, LETTER = 420, 16, 130, 7  # pixels in a notebook
MOST_STATES, MOST_CELLS = 40, 4000  # in a notebook
MOST_NAMED = 30  # actions in a legend
TIMES, OTHERS, SIDE = 4, 3, 41  # small maps: times, values of another axis, of a side in SVG
PANEL, GAP = 150, 28  # pixels of a small map, and around it
FITS, LETTER_SIZE = 26, 0.08  # letters side by side below a small map; inches of one
MOST_WORDS = 12  # values of an axis that all have a label
NONE = -1  # in a map of two axes: there is no such state


class Key:
    """Colours, marks and names of all actions of a problem, by their ids.

    >>> key = Key(["wait", "treat"])
    >>> key.colours[1], key.marks[1], key.inks[1]
    ('#E69F00', 'B', '#000000')
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.marks = list(names), letters(names)
        self.colours = action_colours(len(names))
        self.inks = [ink_on(colour) for colour in self.colours]


class Side(NamedTuple):
    """The name of an axis, and those of its values that are shown."""

    name: str
    values: list[str]


class Panel(NamedTuple):
    """A small map: ``cells[i, j]`` is the action at ``down.values[i]`` and ``across.values[j]``."""

    title: str
    cells: npt.NDArray[Any]
    down: Side
    across: Side


class NamedAxes:
    """States by their values on named axes; ``names`` has fewer than two if they have none.

    >>> axes = NamedAxes(["stock=0, way=1", "stock=2, way=1", "ended"])
    >>> axes.names, axes.values, axes.places.tolist(), axes.states
    (['stock', 'way'], [['0', '2'], ['1']], [[0, 0], [1, 0]], [0, 1])
    """

    def __init__(self, rows: Sequence[str]) -> None:
        axes, others = named_axes(rows)
        axes = axes if len(axes) > 1 and len(others) < 2 else {}
        self.names, self.values = list(axes), list(axes.values())
        self.states = [s for s, row in enumerate(rows) if axes and row not in others]
        at = {name: {x: i for i, x in enumerate(values)} for name, values in axes.items()}
        named = (named_values(rows[s]) for s in self.states)
        self.places = np.array([[at[name][x] for name, x in row.items()] for row in named])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.values))

    def panels(self, actions: npt.NDArray[Any], side: int, times: Times) -> list[list[Panel]]:
        """Maps of actions (T, S) by the two longest axes: a row of maps for each value of another.

        Axes beyond the third are held at their middle; at most ``side`` values of an axis.
        """
        down, across = sorted(sorted(range(len(self.shape)), key=lambda i: -self.shape[i])[:2])
        others = [i for i in range(len(self.shape)) if i not in (down, across)]
        table = np.full((len(actions), *self.shape), NONE)
        table[(slice(None), *self.places.T)] = actions[:, self.states]
        varies = (actions[:, self.states] != actions[0, self.states]).any()
        shown = _spread(len(actions), TIMES) if varies else [0]
        held: list[dict[int, int]] = [{i: self.shape[i] // 2 for i in others}]
        if others:
            held = [held[0] | {others[0]: j} for j in _spread(self.shape[others[0]], OTHERS)]
        chosen = [_spread(self.shape[i], side) for i in (down, across)]
        sides = [
            Side(self.names[i], [self.values[i][j] for j in some])
            for i, some in zip((down, across), chosen, strict=True)
        ]
        found = []
        for at in held:
            which = tuple(at.get(i, slice(None)) for i in range(len(self.shape)))
            fixed = [f"{self.names[i]}={self.values[i][j]}" for i, j in at.items()]
            titles = [", ".join([*fixed, *([times.span(t)] if varies else [])]) for t in shown]
            cells = [table[(t, *which)][np.ix_(*chosen)] for t in shown]
            found.append([Panel(*x, *sides) for x in zip(titles, cells, strict=True)])
        return found


def _spread(count: int, most: int) -> list[int]:
    """At most ``most`` of 0 .. count - 1, evenly, the first and the last among them.

    >>> _spread(3, 4), _spread(26, 4)
    ([0, 1, 2], [0, 8, 17, 25])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()


def _shown(values: list[str]) -> list[str]:
    """The values that an axis of a small map names: all words, or some of the numbers.

    >>> _shown(["ill", "well", "dead"]), _shown(["0", "1", "2", "3", "4", "5", "6", "7", "8"])
    (['ill', 'well', 'dead'], ['0', '2', '4', '6', '8'])
    """
    words = not all(re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", x) for x in values)
    return [values[i] for i in _spread(len(values), MOST_WORDS if words else 5)]


@dataclass(frozen=True, eq=False)
class PolicyMap:
    """Actions (T, S) with the labels of the rows and the names of all actions.

    Columns are ``times``, or what has their name if it lies between ``ends``.

    >>> found = PolicyMap(np.array([[0, 1], [1, 1]]), ["low", "high"], ["wait", "treat"])
    >>> list(found.runs(0)), found.used
    ([(0, 0, 0), (1, 1, 1)], [0, 1])
    """

    actions: npt.NDArray[Any]
    rows: Sequence[str]
    names: Sequence[str]
    times: Times = UNNAMED
    ends: tuple[float, float] | None = None

    @property
    def used(self) -> list[int]:
        """The actions that occur."""
        return [int(a) for a in np.unique(self.actions)]

    def runs(self, row: int) -> list[tuple[int, int, int]]:
        """First and last time of each run of equal actions, and the action."""
        times = groupby(enumerate(self.actions[:, row].tolist()), key=lambda x: x[1])
        found = [(action, [t for t, _ in run]) for action, run in times]
        return [(run[0], run[-1], action) for action, run in found]

    # -------------------------------------------------------------- for notebooks
    def html(self) -> str:
        """As SVG and text; hovering names a cell. Large maps are cut, and say so."""
        axes = NamedAxes(self.rows)
        if len(axes.names) > 1 and self.ends is None:
            return self._html_panels(axes)
        times, n_states = self.actions.shape
        rows = min(n_states, MOST_STATES)
        shown = min(times, max(1, MOST_CELLS // rows))
        part = replace(self, actions=self.actions[:shown, :rows], rows=self.rows[:rows])
        what = f"actions by state, {part._when(0, shown - 1)}" if times > 1 else "by state"
        left = [counted(n_states - rows, "more state")] * (rows < n_states)
        left += [counted(times - shown, "more time")] * (shown < times)
        more = f" (and {', '.join(left)})" if left else ""
        key = Key(self.names)
        drawn = "".join(part._row(s, key) for s in range(rows))
        return part._framed(drawn, LEFT + WIDTH, ROW * rows, f"{what}{more}", key)

    def _framed(self, drawn: str, width: int, height: int, what: str, key: Key) -> str:
        """A picture with its legend and a line about it."""
        legend = " ".join(
            f'<span style="white-space:nowrap"><span style="color:{key.colours[a]}">&#9632;</span> '
            f"{escape(shortened(self.names[a]))}</span>"
            for a in self.used
        )
        return (
            f'<div><svg role="img" aria-label="{escape(what)}" xmlns="http://www.w3.org/2000/svg" '
            f'width="{width}" height="{height}" font-size="12" font-family="sans-serif">{drawn}'
            f"</svg><div>{legend}</div><div>{escape(what)}</div></div>"
        )

    def _html_panels(self, axes: NamedAxes) -> str:
        key, panels = Key(self.names), axes.panels(self.actions, SIDE, self.times)
        drawn = "".join(
            f'<g transform="translate({j * (PANEL + GAP)},{i * (PANEL + GAP)})">'
            f"{self._panel(panel, key)}</g>"
            for i, row in enumerate(panels)
            for j, panel in enumerate(row)
        )
        width, height = (n * (PANEL + GAP) for n in (len(panels[0]), len(panels)))
        sides = panels[0][0].down, panels[0][0].across
        down, across = (f"{x.name} {x.values[0]} to {x.values[-1]}" for x in sides)
        what = f"actions by {down} (down) and {across} (across)"
        return self._framed(drawn, width, height, what, key)

    def _panel(self, panel: Panel, key: Key) -> str:
        """A small map: its title and a bar for every run of equal actions."""
        ys, xs = (np.linspace(0, PANEL, n + 1).round().astype(int) for n in panel.cells.shape)
        down, (across, columns) = panel.down, panel.across
        title = escape(shortened(panel.title, 28))
        parts = [f'<text x="0" y="12" fill="currentColor">{title}</text>']
        for i, row in enumerate(panel.cells.tolist()):
            for action, run in groupby(enumerate(row), key=lambda x: x[1]):
                places = [j for j, _ in run]
                if action == NONE:
                    continue
                ends = dict.fromkeys((columns[places[0]], columns[places[-1]]))
                there = f"{down.name}={down.values[i]}, {across}={' to '.join(ends)}"
                tip = f"{there}: {self.names[action]}"
                parts.append(
                    f'<rect x="{xs[places[0]]}" y="{18 + ys[i]}" '
                    f'width="{xs[places[-1] + 1] - xs[places[0]]}" height="{ys[i + 1] - ys[i]}" '
                    f'fill="{key.colours[action]}"><title>{escape(tip)}</title></rect>'
                )
        return "".join(parts)

    def _row(self, s: int, key: Key) -> str:
        """A state: its label and a bar for every run of equal actions."""
        state, unit = self.rows[s], WIDTH / len(self.actions)
        name = escape(shortened(state, LEFT // LETTER))
        parts = [f'<text x="0" y="{ROW * s + 12}" fill="currentColor">{name}</text>']
        for first, last, action in self.runs(s):
            what = f"{self._when(first, last)}: {shortened(self.names[action])}"
            tip = escape(f"{shortened(state)}, {what}")
            parts.append(
                f'<rect x="{LEFT + unit * first:.1f}" y="{ROW * s + 1}" '
                f'width="{unit * (last + 1 - first):.1f}" height="{ROW - 2}" '
                f'fill="{key.colours[action]}"><title>{tip}</title></rect>'
            )
        return "".join(parts)

    def _when(self, first: int, last: int) -> str:
        """The times from one column to another, or where they lie between the ends."""
        if self.ends is None:
            return self.times.span(first, last)
        places = np.linspace(*self.ends, len(self.actions))[[first, last]]
        return f"{self.times.name} {' to '.join(f'{x:.4g}' for x in places)}"

    # -------------------------------------------------------------- for plots
    def plot(self, axis: Axes | None = None) -> Axes:
        """On a matplotlib axis by time and state, with letters in the cells if they fit.

        Without an axis, states with named axes become small maps on a figure of their own.
        """
        axes = NamedAxes(self.rows) if axis is None and self.ends is None else None
        if axes is not None and len(axes.names) > 1:
            return self._plot_panels(axes.panels(self.actions, 1000, self.times))
        horizon, n_states = self.actions.shape
        if axis is None:
            axis = new_axis(8.5, min(11.0, max(2.4, 1.2 + 0.2 * n_states)))
        key = Key(self.names)
        self._mesh(axis, self.actions.T, key, self.ends)
        if horizon > 1 and self.ends is None:
            axis.set_xlabel(over_times(axis, self.times))
        elif horizon > 1:
            axis.set_xlabel(self.times.name)
        else:
            axis.set_xticks([])
        axis.set_ylabel("state")
        some = _spread(n_states, MOST_LABELS)
        axis.set_yticks(some, [label(self.rows[s]) for s in some])
        if self.ends is None and horizon <= 50 and n_states <= 25:
            for (t, s), a in np.ndenumerate(self.actions):
                axis.text(
                    t, s, key.marks[a], ha="center", va="center", fontsize=min(9.0, 380 / horizon),
                    color=key.inks[a],
                )  # fmt: skip
        self._legend(axis, key)
        return axis

    @staticmethod
    def _mesh(
        axis: Axes, cells: npt.NDArray[Any], key: Key, ends: tuple[float, float] | None = None
    ) -> None:
        """Cells (down, across) in the colours of their actions; ``ends`` of the columns, or ids."""
        from matplotlib.colors import ListedColormap

        low, high = ends or (0, cells.shape[1] - 1)
        half = (high - low) / max(cells.shape[1] - 1, 1) / 2 or 0.5
        axis.pcolormesh(
            np.linspace(low - half, high + half, cells.shape[1] + 1),
            np.arange(cells.shape[0] + 1) - 0.5,
            np.ma.masked_equal(cells, NONE), cmap=ListedColormap(key.colours), vmin=-0.5,
            vmax=len(key.colours) - 0.5, rasterized=cells.size > 5000,
        )  # fmt: skip
        axis.invert_yaxis()

    def _plot_panels(self, panels: list[list[Panel]]) -> Axes:
        rows, columns, key = len(panels), len(panels[0]), Key(self.names)
        across = [label(x) for x in _shown(panels[0][0].across.values)]
        upright = sum(map(len, across)) > FITS
        beside = max(len(label(self.names[a], IN_LEGEND)) for a in self.used)
        height = 0.5 + 2.3 * rows + upright * LETTER_SIZE * max(map(len, across))
        axes = new_axes(columns, 1.3 + LETTER_SIZE * beside + 2.3 * columns, height, rows)
        for axis, panel in zip(axes, (x for row in panels for x in row), strict=True):
            self._mesh(axis, panel.cells, key)
            axis.set_title(label(panel.title, 40), fontsize="small")
            for side, (name, values) in ((axis.yaxis, panel.down), (axis.xaxis, panel.across)):
                shown = _shown(values)
                side.set_ticks([values.index(x) for x in shown], [label(x) for x in shown])
                side.set_label_text(label(name))
            axis.tick_params("x", rotation=90 * upright)
            axis.label_outer()
        self._legend(axes[columns - 1], key)
        return axes[0]

    def _legend(self, axis: Axes, key: Key) -> None:
        from matplotlib.patches import Patch

        used = self.used
        marks = [f"{mark}  " if self.ends is None else "" for mark in key.marks]
        handles = [
            Patch(color=key.colours[a], label=f"{marks[a]}{label(self.names[a], IN_LEGEND)}")
            for a in used[:MOST_NAMED]
        ]
        if len(used) > MOST_NAMED:
            handles.append(Patch(color="none", label=f"and {len(used) - MOST_NAMED} more"))
        axis.legend(
            handles=handles, title="action", loc="upper left", bbox_to_anchor=(1.0, 1.0),
            frameon=False,
        )  # fmt: skip
