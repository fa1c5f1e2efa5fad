"""Plots: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.arguments import Read, checked
from mmdp.draw.axes import new_axes, new_axis, png, svg
from mmdp.draw.curves import (
    acceptability_curves,
    check_length,
    cohort_trace,
    errors_by,
    expected_loss,
    frontier,
    methods_comparison,
    regret_distribution,
    returns_distribution,
    survival,
    traces,
    value_of_leaves,
    value_of_memory,
    weights_by_step,
    weights_over_time,
)
from mmdp.draw.maps import PolicyMap
from mmdp.draw.trees import Row
from mmdp.draw.trees import tree as draw_tree
from mmdp.errors import InputError
from mmdp.io.writing import write_whole
from mmdp.policy.tree import Split, tree_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.policy import Policy, TreePolicy
    from mmdp.solution import Solution

__all__ = [
    "acceptability_curves", "cohort_trace", "errors_by", "expected_loss", "frontier",
    "methods_comparison", "new_axes", "new_axis", "png", "policy_heatmap", "regret_distribution",
    "returns_distribution", "save", "survival", "svg", "traces", "tree", "value_of_leaves",
    "value_of_memory", "weights_by_step", "weights_over_time",
]  # fmt: skip


@checked
def policy_heatmap(
    policy: Policy | Solution,
    axis: Axes | None = None,
    *,
    states: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
) -> Axes:
    """The action by time (across) and state (down), with letters in the cells if they fit.

    If states have named axes, like ``stock=3, ordered=5``, and no ``axis`` is given, small maps of
    the two longest axes: a column for some of the times, a row for some values of the third axis.
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
    if states is not None:
        check_length(states, len(drawn.rows), "states", "one label for each row")
    if actions is not None:
        check_length(actions, len(drawn.names), "actions", "one label for each")
    return replace(drawn, rows=states or drawn.rows, names=actions or drawn.names).plot(axis)


@checked
def tree(
    policy: Read[TreePolicy | Solution],
    leaves: pd.DataFrame | None = None,
    axis: Axes | None = None,
) -> Axes:
    """A small tree: its questions in words, and at each leaf the action in its colour.

    With ``leaves``, the table of :func:`mmdp.measures.leaf_table`, a leaf also says its share of
    the visits, and what the second best action would cost there.

    >>> import mmdp
    >>> train, _ = mmdp.domains.published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy=mmdp.Tree(2))
    >>> axis = tree(solution, mmdp.measures.leaf_table(solution, train))
    >>> [text.get_text() for text in axis.texts][:4]
    ['state is at most 3?', 'yes', 'swim left', '23% of visits; swim right would cost 3.99']
    """
    shown = tree_of(policy, "the picture shows")
    facts = iter([] if leaves is None else leaves.to_dict("records"))
    rows = []
    for path, yes, node, _ in shown.nodes():
        place = len(path), yes
        if isinstance(node, Split):
            rows.append(Row(*place, shown.features[node.feature].asked(node.cut)))
            continue
        known: dict[Any, Any] = next(facts, {})
        rows.append(Row(
            *place, shown.action_names[node.action], node.action, known.get("share"),
            known.get("stakes"), known.get("instead") or "",
        ))  # fmt: skip
    drawn = draw_tree(rows, shown.action_names, axis)
    drawn.set_title(shown.fallback_text, fontsize=9, loc="left")
    return drawn


@checked
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
