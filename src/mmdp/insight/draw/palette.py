"""Colors and marks of actions, the same in notebooks, plots and pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Okabe and Ito's colors, which most color-blind readers can tell apart; markers help too.
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # lines
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TEXT_COLOR = "#010203"  # of text and axes: a page replaces it by its own color
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
VIRIDIS = (
    "#471365",
    "#482475",
    "#414487",
    "#355f8d",
    "#2a788e",
    "#21918c",
    "#22a884",
    "#44bf70",
    "#7ad151",
    "#bddf26",
    "#dfe318",
)
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
LATIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def make_action_colors(n_actions: int) -> list[str]:
    """Make one color for each action: distinct ones for a few, dark to light for many.

    >>> make_action_colors(2), len(set(make_action_colors(25)))
    (['#0072B2', '#E69F00'], 25)
    """
    if n_actions <= len(ACTION_COLORS):
        return list(ACTION_COLORS[:n_actions])
    return [_interpolate_viridis(i / (n_actions - 1)) for i in range(n_actions)]


def _interpolate_viridis(position: float) -> str:
    """Interpolate the color at a position from 0 to 1 on the viridis scale.

    >>> _interpolate_viridis(0.0), _interpolate_viridis(0.05), _interpolate_viridis(1.0)
    ('#471365', '#481c6d', '#dfe318')
    """
    i = min(int(position * (len(VIRIDIS) - 1)), len(VIRIDIS) - 2)
    fraction = position * (len(VIRIDIS) - 1) - i
    channels = zip(_parse_rgb(VIRIDIS[i]), _parse_rgb(VIRIDIS[i + 1]), strict=True)
    return "#" + "".join(f"{round(a + fraction * (b - a)):02x}" for a, b in channels)


def _parse_rgb(color: str) -> list[int]:
    """Parse a color "#rrggbb" to three numbers from 0 to 255."""
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


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


def choose_text_color(color: str) -> str:
    """Choose black or white text, whichever has more contrast on a color.

    >>> choose_text_color("#0072B2"), choose_text_color("#E69F00")
    ('#ffffff', '#000000')
    """
    red, green, blue = (x / 255 for x in _parse_rgb(color))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#000000" if luminance > 0.22 else "#ffffff"
