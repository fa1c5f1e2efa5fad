"""The picture of a small tree: a row for each question and each leaf, indented by the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mmdp.draw.axes import label, new_axis
from mmdp.draw.maps import Key
from mmdp.draw.palette import INK
from mmdp.words import counted, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, STEP, LETTER, PAD = 0.42, 0.55, 0.08, 0.16  # inches: a row, an indent, a letter, around text
QUESTION, DONE, NOTE = 61, 40, 30  # characters at most: a question, an action, another action
END = QUESTION // 2


class Row(NamedTuple):
    """A question or a leaf (``action``), after ``depth`` answers, the last being ``yes`` or no.

    ``text`` is the question, or what is done. Of a leaf: the share of the visits, and what the
    second best action, ``instead``, would cost there; None if not known.
    """

    depth: int
    yes: bool | None
    text: str
    action: int | None = None
    share: float | None = None
    stakes: float | None = None
    instead: str = ""

    @property
    def note(self) -> str:
        parts = [] if self.share is None else [f"{percent(self.share)} of visits"]
        if self.stakes is not None and self.instead:
            costs = f"would cost {number(self.stakes, 3)}" if self.stakes > 0 else "is no worse"
            parts.append(f"{label(self.instead, NOTE)} {costs}")
        return "; ".join(parts)

    @property
    def left(self) -> float:
        return STEP * self.depth + PAD

    @property
    def shown(self) -> str:
        if self.action is not None:
            return label(self.text, DONE)
        text = self.text
        if len(text) > QUESTION:  # it keeps its end, which has the number
            text = f"{text[:END]}…{text[-END:]}"
        return label(text, QUESTION) + "?"

    @property
    def right(self) -> float:
        return self.left + LETTER * len(self.shown) + 2 * PAD


def tree(rows: Sequence[Row], names: Sequence[str], axis: Axes | None = None) -> Axes:
    """Boxes with questions in words, and below each what follows from yes and from no.

    A leaf has the colour of its action among all actions, ``names``. ``rows`` come in the order of
    reading: a question, all that follows from yes, all that follows from no.

    >>> low = Row(1, True, "order", 0, 0.25, 3.0, "wait")
    >>> axis = tree([Row(0, None, "stock is at most 5"), low, Row(1, False, "wait", 1)], [*"ow"])
    >>> [text.get_text() for text in axis.texts][:4]
    ['stock is at most 5?', 'yes', 'order', '25% of visits; wait would cost 3']
    """
    key, notes = Key(names), max(x.right for x in rows) + PAD
    width = notes + LETTER * max(len(x.note) for x in rows) + PAD
    axis = axis or new_axis(max(width, 4.0), ROW * len(rows) + 0.2)
    axis.set(xlim=(0, width), ylim=(len(rows) - 0.4, -0.6))
    axis.axis("off")
    leaves = sum(x.action is not None for x in rows)
    axis.set_gid(f"tree of {counted(leaves, 'leaf', 'leaves')}")
    above: dict[int, int] = {}  # the row of the last question by its depth
    for i, row in enumerate(rows):
        if row.depth:
            _arm(axis, rows[above[row.depth - 1]], above[row.depth - 1], row, i)
        above[row.depth] = i
        box: dict[str, Any] = {"boxstyle": "round,pad=0.3", "edgecolor": INK, "linewidth": 0.8}
        box["facecolor"] = key.colours[row.action] if row.action is not None else "none"
        axis.text(
            row.left + PAD, i, row.shown, va="center", fontsize=10,
            color=key.inks[row.action] if row.action is not None else INK, bbox=box,
        )  # fmt: skip
        if row.note:
            axis.text(notes, i, row.note, va="center", fontsize=9, color=INK)
    return axis


def _arm(axis: Axes, parent: Row, at: int, row: Row, i: int) -> None:
    """From a question down to what follows from an answer."""
    x = parent.left + 0.1
    axis.plot([x, x, row.left + 0.05], [at + 0.3, i, i], color=INK, linewidth=0.8)
    axis.text(
        (x + row.left) / 2 + 0.05, i - 0.05, "yes" if row.yes else "no", ha="center", va="bottom",
        fontsize=8, color=INK,
    )  # fmt: skip
