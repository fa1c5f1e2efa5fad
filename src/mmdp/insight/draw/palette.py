"""Colors and marks of actions, the same in notebooks, plots and pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Okabe and Ito's colors, which most color-blind readers can tell apart; markers help too.
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ACTION_COLORS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#999999",
)
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
LATIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class ActionStyles:
    """Colors, marks and text colors of all actions of a problem, by their ids.

    >>> styles = ActionStyles(["wait", "treat"])
    >>> styles.colors[1], styles.marks[1], styles.text_colors
    ('#E69F00', 'B', ['#ffffff', '#000000'])
    """

    def __init__(self, labels: Sequence[str]) -> None:
        from matplotlib.colors import to_rgb

        self.colors, self.marks = make_action_colors(len(labels)), make_marks(labels)
        luminances = [
            0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
            for red, green, blue in map(to_rgb, self.colors)
        ]
        self.text_colors = ["#000000" if x > 0.22 else "#ffffff" for x in luminances]


def make_action_colors(n_actions: int) -> list[str]:
    """Make one color for each action: distinct ones for a few, dark to light for many.

    >>> make_action_colors(2), len(set(make_action_colors(25)))
    (['#0072B2', '#E69F00'], 25)
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if n_actions <= len(ACTION_COLORS):
        return list(ACTION_COLORS[:n_actions])
    viridis = colormaps["viridis"]
    return [to_hex(viridis(i / (n_actions - 1))) for i in range(n_actions)]


def make_marks(labels: Sequence[str]) -> list[str]:
    """Make a short mark for each action: a letter, or a number if there are too many.

    The letters are Greek if one of the others is a word of a name: "B  strategy A" would mislead.

    >>> make_marks(["wait", "treat"]), make_marks(["drug B", "drug A"]), make_marks(["x"] * 53)[-1]
    (['A', 'B'], ['α', 'β'], '53')
    """
    words = {word for label in labels for word in re.findall(r"\w+", label)}
    for alphabet in (LATIN, GREEK):
        if len(labels) <= len(alphabet) and words.isdisjoint(alphabet[: len(labels)]):
            return list(alphabet[: len(labels)])
    return [str(i + 1) for i in range(len(labels))]
