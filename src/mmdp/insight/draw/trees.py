"""Drawing of a small decision tree: a row for each split and each leaf, indented by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmdp.core.text import format_number, format_percent, pluralize
from mmdp.insight.draw.axes import format_label, new_axis
from mmdp.insight.draw.maps import ActionStyles
from mmdp.insight.draw.palette import TEXT_COLOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_HEIGHT, INDENT, CHAR_WIDTH, PADDING = 0.42, 0.55, 0.08, 0.16  # inches
MAX_SPLIT_LENGTH, MAX_ACTION_LENGTH, MAX_NOTE_LENGTH = 61, 40, 30  # characters
SPLIT_END_LENGTH = MAX_SPLIT_LENGTH // 2


class TreeRow(NamedTuple):
    """A split or a leaf (with an ``action``) at a depth; ``if_true`` is the branch it is on.

    ``text`` is the condition, or the label of the action. A leaf may have its share of the visits
    and the loss of its ``second_best`` action; None if not known.
    """

    depth: int
    if_true: bool | None
    text: str
    action: int | None = None
    share: float | None = None
    loss: float | None = None
    second_best: str = ""

    @property
    def note(self) -> str:
        """The share of visits of a leaf and the loss of its second best action, in words."""
        parts = [] if self.share is None else [f"{format_percent(self.share)} of visits"]
        if self.loss is not None and self.second_best:
            cost_text = (
                f"would cost {format_number(self.loss, 3)}" if self.loss > 0 else "is no worse"
            )
            parts.append(f"{format_label(self.second_best, MAX_NOTE_LENGTH)} {cost_text}")
        return "; ".join(parts)

    @property
    def left(self) -> float:
        """Left border of the row in inches."""
        return INDENT * self.depth + PADDING

    @property
    def display_text(self) -> str:
        """The text of the row, shortened; a split as a question."""
        if self.action is not None:
            return format_label(self.text, MAX_ACTION_LENGTH)
        text = self.text
        if len(text) > MAX_SPLIT_LENGTH:  # it keeps its end, which has the number
            text = f"{text[:SPLIT_END_LENGTH]}…{text[-SPLIT_END_LENGTH:]}"
        return format_label(text, MAX_SPLIT_LENGTH) + "?"

    @property
    def right(self) -> float:
        """Right border of the row in inches."""
        return self.left + CHAR_WIDTH * len(self.display_text) + 2 * PADDING


def draw_tree(
    rows: Sequence[TreeRow], action_labels: Sequence[str], axis: Axes | None = None
) -> Axes:
    """Draw a decision tree: boxes with conditions, and below each its two branches.

    A leaf has the color of its action among all actions. ``rows`` come in depth-first order: a
    split, all rows of its yes branch, all rows of its no branch.

    >>> low = TreeRow(1, True, "order", 0, 0.25, 3.0, "wait")
    >>> high = TreeRow(1, False, "wait", 1)
    >>> axis = draw_tree([TreeRow(0, None, "stock is at most 5"), low, high], [*"ow"])
    >>> [text.get_text() for text in axis.texts][:4]
    ['stock is at most 5?', 'yes', 'order', '25% of visits; wait would cost 3']
    """
    styles, note_x = ActionStyles(action_labels), max(tree_row.right for tree_row in rows) + PADDING
    width = note_x + CHAR_WIDTH * max(len(tree_row.note) for tree_row in rows) + PADDING
    axis = axis or new_axis(max(width, 4.0), ROW_HEIGHT * len(rows) + 0.2)
    axis.set(xlim=(0, width), ylim=(len(rows) - 0.4, -0.6))
    axis.axis("off")
    n_leaves = sum(tree_row.action is not None for tree_row in rows)
    axis.set_gid(f"tree of {pluralize(n_leaves, 'leaf', 'leaves')}")
    row_by_depth: dict[int, int] = {}  # the row of the last split by its depth
    for i, row in enumerate(rows):
        if row.depth:
            _draw_branch(
                axis, rows[row_by_depth[row.depth - 1]], row_by_depth[row.depth - 1], row, i
            )
        row_by_depth[row.depth] = i
        box: dict[str, str | float] = {
            "boxstyle": "round,pad=0.3",
            "edgecolor": TEXT_COLOR,
            "linewidth": 0.8,
        }
        box["facecolor"] = styles.colors[row.action] if row.action is not None else "none"
        axis.text(
            row.left + PADDING,
            i,
            row.display_text,
            va="center",
            fontsize=10,
            color=styles.text_colors[row.action] if row.action is not None else TEXT_COLOR,
            bbox=box,
        )
        if row.note:
            axis.text(note_x, i, row.note, va="center", fontsize=9, color=TEXT_COLOR)
    return axis


def _draw_branch(
    axis: Axes, parent: TreeRow, parent_index: int, row: TreeRow, row_index: int
) -> None:
    """Draw the line from a split to one of its branches, with yes or no."""
    x = parent.left + 0.1
    axis.plot(
        [x, x, row.left + 0.05],
        [parent_index + 0.3, row_index, row_index],
        color=TEXT_COLOR,
        linewidth=0.8,
    )
    axis.text(
        (x + row.left) / 2 + 0.05,
        row_index - 0.05,
        "yes" if row.if_true else "no",
        ha="center",
        va="bottom",
        fontsize=8,
        color=TEXT_COLOR,
    )
