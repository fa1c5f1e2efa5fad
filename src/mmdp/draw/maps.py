"""The map of a policy: time to the right, a row for each state, a colour for each action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp.draw.axes import MOST_LABELS, label, new_axis
from mmdp.draw.palette import action_colours, ink_on, letters
from mmdp.words import counted, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ROW, LEFT, LETTER = 420, 16, 130, 7  # pixels in a notebook
MOST_STATES, MOST_CELLS = 40, 4000  # in a notebook
MOST_NAMED = 30  # actions in a legend


class Key:
    """Colours, marks and names of all actions of a problem, by their ids.

    >>> key = Key(["wait", "treat"])
    >>> key.colours[1], key.marks[1], key.inks[1]
    ('#E69F00', 'B', '#000000')
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.marks = list(names), letters(len(names))
        self.colours = action_colours(len(names))
        self.inks = [ink_on(colour) for colour in self.colours]


@dataclass(frozen=True, eq=False)
class PolicyMap:
    """Actions (T, S) with the labels of the rows and the names of all actions.

    Columns are times, unless ``across`` says what else lies between the ``ends``.

    >>> found = PolicyMap(np.array([[0, 1], [1, 1]]), ["low", "high"], ["wait", "treat"])
    >>> list(found.runs(0)), found.used
    ([(0, 0, 0), (1, 1, 1)], [0, 1])
    """

    actions: npt.NDArray[Any]
    rows: Sequence[str]
    names: Sequence[str]
    across: str = "time"
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
        times, n_states = self.actions.shape
        rows = min(n_states, MOST_STATES)
        shown = min(times, max(1, MOST_CELLS // rows))
        part = replace(self, actions=self.actions[:shown, :rows], rows=self.rows[:rows])
        what = f"actions by state, from {self.across} 0 to {shown - 1}" if times > 1 else "by state"
        if self.ends is not None:
            what = f"actions by state, {self.across} from {part._place(0)} to {part._place(-1)}"
        left = [counted(n_states - rows, "more state")] * (rows < n_states)
        left += [counted(times - shown, "more time")] * (shown < times)
        more = f" (and {', '.join(left)})" if left else ""
        key = Key(self.names)
        legend = " ".join(
            f'<span style="white-space:nowrap"><span style="color:{key.colours[a]}">&#9632;</span> '
            f"{escape(shortened(self.names[a]))}</span>"
            for a in part.used
        )
        return (
            f'<div><svg role="img" aria-label="{what}" xmlns="http://www.w3.org/2000/svg" '
            f'width="{LEFT + WIDTH}" height="{ROW * rows}" font-size="12" '
            f'font-family="sans-serif">{"".join(part._row(s, key) for s in range(rows))}'
            f"</svg><div>{legend}</div><div>{what}{more}</div></div>"
        )

    def _row(self, s: int, key: Key) -> str:
        """A state: its label and a bar for every run of equal actions."""
        state, unit = self.rows[s], WIDTH / len(self.actions)
        name = escape(shortened(state, LEFT // LETTER))
        parts = [f'<text x="0" y="{ROW * s + 12}" fill="currentColor">{name}</text>']
        for first, last, action in self.runs(s):
            when = f"time {first}" if first == last else f"times {first} to {last}"
            if self.ends is not None:
                when = f"{self.across} {self._place(first)} to {self._place(last)}"
            tip = escape(f"{shortened(state)}, {when}: {shortened(self.names[action])}")
            parts.append(
                f'<rect x="{LEFT + unit * first:.1f}" y="{ROW * s + 1}" '
                f'width="{unit * (last + 1 - first):.1f}" height="{ROW - 2}" '
                f'fill="{key.colours[action]}"><title>{tip}</title></rect>'
            )
        return "".join(parts)

    def _place(self, column: int) -> str:
        """Where a column lies between the ends."""
        assert self.ends is not None
        return f"{np.linspace(*self.ends, len(self.actions))[column]:.4g}"

    # -------------------------------------------------------------- for plots
    def plot(self, axis: Axes | None = None) -> Axes:
        """On a matplotlib axis, with letters in the cells if they fit."""
        from matplotlib.colors import ListedColormap

        horizon, n_states = self.actions.shape
        if axis is None:
            axis = new_axis(8.5, min(11.0, max(2.4, 1.2 + 0.2 * n_states)))
        key = Key(self.names)
        low, high = self.ends or (0, horizon - 1)
        half = (high - low) / max(horizon - 1, 1) / 2 or 0.5
        axis.pcolormesh(
            np.linspace(low - half, high + half, horizon + 1), np.arange(n_states + 1) - 0.5,
            self.actions.T,
            cmap=ListedColormap(key.colours), vmin=-0.5, vmax=len(key.colours) - 0.5,
            rasterized=self.actions.size > 5000,
        )  # fmt: skip
        axis.invert_yaxis()
        axis.set_xlabel(self.across)
        axis.set_ylabel("state")
        some = np.linspace(0, n_states - 1, min(n_states, MOST_LABELS)).round().astype(int)
        axis.set_yticks(np.unique(some), [label(self.rows[s]) for s in np.unique(some)])
        if self.ends is None and horizon <= 50 and n_states <= 25:
            for (t, s), a in np.ndenumerate(self.actions):
                axis.text(
                    t, s, key.marks[a], ha="center", va="center", fontsize=min(9.0, 380 / horizon),
                    color=key.inks[a],
                )  # fmt: skip
        self._legend(axis, key)
        return axis

    def _legend(self, axis: Axes, key: Key) -> None:
        from matplotlib.patches import Patch

        used = self.used
        marks = [f"{mark}  " if self.ends is None else "" for mark in key.marks]
        handles = [
            Patch(color=key.colours[a], label=f"{marks[a]}{label(self.names[a])}")
            for a in used[:MOST_NAMED]
        ]
        if len(used) > MOST_NAMED:
            handles.append(Patch(color="none", label=f"and {len(used) - MOST_NAMED} more"))
        axis.legend(
            handles=handles, title="action", loc="upper left", bbox_to_anchor=(1.0, 1.0),
            frameon=False,
        )  # fmt: skip
