"""Plots: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.draw.axes import new_axes, new_axis, png, svg
from mmdp.draw.curves import (
    acceptability_curves,
    errors_by,
    expected_loss,
    frontier,
    methods_comparison,
    regret_distribution,
    returns_distribution,
    traces,
    value_of_memory,
    weights_by_step,
    weights_over_time,
)
from mmdp.draw.maps import PolicyMap
from mmdp.errors import InputError
from mmdp.io.writing import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mmdp.policy import Policy
    from mmdp.solution import Solution

__all__ = [
    "acceptability_curves", "errors_by", "expected_loss", "frontier", "methods_comparison",
    "new_axes", "new_axis", "png", "policy_heatmap", "regret_distribution",
    "returns_distribution", "save", "svg", "traces", "value_of_memory", "weights_by_step",
    "weights_over_time",
]  # fmt: skip


def policy_heatmap(
    policy: Policy | Solution,
    axis: Axes | None = None,
    *,
    states: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
) -> Axes:
    """The action by time (across) and state (down), with letters in the cells if they fit.

    For a randomised policy it shows the most probable action. A stationary one has a single
    column, one with memory a row for each state and node, and one of
    :class:`mmdp.BeliefGrid` the weight of a model across. ``states`` and ``actions`` are
    labels; by default those of the policy, or the ids if it has none.

    >>> import mmdp
    >>> axis = policy_heatmap(mmdp.MarkovPolicy([[0, 1], [1, 1]], action_labels=["run", "fix"]))
    >>> [text.get_text() for text in axis.texts]
    ['A', 'B', 'B', 'B']
    """
    shown: Any = getattr(policy, "policy", policy)
    drawn: PolicyMap = shown.map()
    return replace(drawn, rows=states or drawn.rows, names=actions or drawn.names).plot(axis)


def save(axis: Axes, path: str | Path) -> Path:
    """Write the axis' figure as ``.png`` or ``.svg``, whole or not at all.

    >>> import tempfile
    >>> save(regret_distribution([0.0, 1.0]), tempfile.mkdtemp() + "/regret.svg").name
    'regret.svg'
    """
    target = Path(path)
    check_ending(target)
    content = png(axis) if target.suffix.lower() == ".png" else svg(axis)
    write_whole(target, content)
    return target


def check_ending(path: Path) -> None:
    """Refuse a name that is not a picture's before the work begins."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: choose a name that ends in .png or .svg")
