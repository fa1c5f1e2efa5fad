"""Colours and marks: an action has the same ones in notebooks, plots and pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Okabe and Ito's colours, which most colour-blind readers can tell apart; markers help too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # lines
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#010203"  # of text and axes: a page replaces it by its own colour
ACTIONS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999",
)  # fmt: skip
VIRIDIS = (
    "#471365", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70",
    "#7ad151", "#bddf26", "#dfe318",
)  # fmt: skip
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def action_colours(count: int) -> list[str]:
    """One colour for each action of a problem: distinct ones for a few, dark to light for many.

    >>> action_colours(2), len(set(action_colours(25)))
    (['#0072B2', '#E69F00'], 25)
    """
    if count <= len(ACTIONS):
        return list(ACTIONS[:count])
    return [_between(i / (count - 1)) for i in range(count)]


def _between(share: float) -> str:
    """The colour at a share of the way along viridis.

    >>> _between(0.0), _between(0.05), _between(1.0)
    ('#471365', '#481c6d', '#dfe318')
    """
    i = min(int(share * (len(VIRIDIS) - 1)), len(VIRIDIS) - 2)
    part = share * (len(VIRIDIS) - 1) - i
    ends = zip(_rgb(VIRIDIS[i]), _rgb(VIRIDIS[i + 1]), strict=True)
    return "#" + "".join(f"{round(a + part * (b - a)):02x}" for a, b in ends)


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def letters(names: Sequence[str]) -> list[str]:
    """A short mark per action: a letter, or a number if there are not enough letters.

    The letters are Greek if one of the others is a word of a name: "B  strategy A" would mislead.

    >>> letters(["wait", "treat"]), letters(["drug B", "drug A"]), letters(["x"] * 53)[-1]
    (['A', 'B'], ['α', 'β'], '53')
    """
    words = {word for name in names for word in re.findall(r"\w+", name)}
    for alphabet in (LETTERS, GREEK):
        if len(names) <= len(alphabet) and words.isdisjoint(alphabet[: len(names)]):
            return list(alphabet[: len(names)])
    return [str(i + 1) for i in range(len(names))]


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour.

    >>> ink_on("#0072B2"), ink_on("#E69F00")
    ('#ffffff', '#000000')
    """
    red, green, blue = (x / 255 for x in _rgb(colour))
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#000000" if light > 0.22 else "#ffffff"
