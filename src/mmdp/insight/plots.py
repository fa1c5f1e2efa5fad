"""Plots: each function takes a matplotlib axis (or makes one) and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.policies.tree import Split, require_tree
from mmdp.core.text import format_number, format_percent
from mmdp.data.io.writing import write_atomic
from mmdp.insight.draw.axes import format_label, new_axes, new_axis, to_png, to_svg
from mmdp.insight.draw.curves import (
    acceptability_curves,
    check_length,
    cohort_trace,
    error_bars,
    expected_loss,
    methods_comparison,
    regret_distribution,
    returns_distribution,
    risk_frontier,
    survival,
    value_by_leaves,
    value_by_nodes,
    value_traces,
    weights_by_step,
    weights_over_time,
)
from mmdp.insight.draw.maps import PolicyMap
from mmdp.insight.draw.palette import ActionStyles

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mmdp.core.policies import Policy, TreePolicy
    from mmdp.core.solution import Solution

TREE_INDENT = 0.55  # inches

__all__ = [
    "acceptability_curves",
    "cohort_trace",
    "error_bars",
    "expected_loss",
    "methods_comparison",
    "new_axes",
    "new_axis",
    "policy_heatmap",
    "regret_distribution",
    "returns_distribution",
    "risk_frontier",
    "save_figure",
    "survival",
    "to_png",
    "to_svg",
    "tree",
    "value_by_leaves",
    "value_by_nodes",
    "value_traces",
    "weights_by_step",
    "weights_over_time",
]


@check_arguments
def policy_heatmap(
    policy: Policy | Solution,
    axis: Axes | None = None,
    *,
    states: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
) -> Axes:
    """Plot the actions of a policy by time (across) and state (down).

    If states have named axes, like ``stock=3, ordered=5``, and no ``axis`` is given, small maps of
    the two longest axes: a column for some of the times, a row for some values of the third axis.
    For a randomized policy it shows the most probable action. A stationary one has a single
    column, one with memory a row for each state and node, and one of
    :class:`mmdp.methods.BeliefGrid` the weight of a model across. ``states`` and ``actions`` are
    labels; by default those of the policy, or the ids if it has none.

    >>> import mmdp
    >>> policy = mmdp.policies.MarkovPolicy([[0, 1], [1, 1]], action_labels=["run", "fix"])
    >>> axis = policy_heatmap(policy)
    >>> [text.get_text() for text in axis.texts]
    ['A', 'B', 'B']
    """
    single_policy: Any = getattr(policy, "policy", policy)
    policy_map: PolicyMap = single_policy.to_map()
    if states is not None:
        check_length(states, len(policy_map.row_labels), "states", "one label for each row")
    if actions is not None:
        check_length(actions, len(policy_map.action_labels), "actions", "one label for each")
    return replace(
        policy_map,
        row_labels=states or policy_map.row_labels,
        action_labels=actions or policy_map.action_labels,
    ).plot(axis)


@check_arguments
def tree(
    policy: Unchecked[TreePolicy | Solution],
    leaf_table: pd.DataFrame | None = None,
    axis: Axes | None = None,
) -> Axes:
    """Plot a decision tree: the conditions of its splits and the actions of its leaves.

    With ``leaf_table``, as :func:`mmdp.measures.leaf_table` makes it, a leaf also says its share of
    the visits, and the cost of the second best action.

    >>> import mmdp
    >>> train, _ = mmdp.domains.load_published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy_class=mmdp.policies.Tree(2))
    >>> axis = tree(solution, mmdp.measures.leaf_table(train, solution))
    >>> [text.get_text() for text in axis.texts][:4]
    ['state is at most 3?', 'yes', 'swim left', '23% of visits; swim right would cost 3.99']
    """
    tree_policy = require_tree(policy, "the picture shows")
    action_names, styles = tree_policy.action_names, ActionStyles(tree_policy.action_names)
    leaf_records = iter([] if leaf_table is None else leaf_table.to_dict("records"))
    nodes = [(len(path), is_true, node) for path, is_true, node, _ in tree_policy.iter_nodes()]
    axis = axis or new_axis(9.0, 0.2 + 0.42 * len(nodes))
    axis.set(xlim=(0, 9), ylim=(len(nodes) - 0.4, -0.6))
    axis.axis("off")
    axis.set_title(tree_policy.fallback_text, fontsize=9, loc="left")
    row_of_depth: dict[int, int] = {}  # the row of the last split by its depth
    for i, (depth, is_true, node) in enumerate(nodes):
        x, branch = 0.3 + TREE_INDENT * depth, {True: "yes", False: "no", None: ""}[is_true]
        if depth:
            line_x, parent = x - TREE_INDENT, row_of_depth[depth - 1]
            axis.plot([line_x, line_x, x - 0.1], [parent + 0.3, i, i], color="black", linewidth=0.8)
            axis.text(line_x + 0.1, i - 0.05, branch, va="bottom", fontsize=8)
        box: dict[str, Any] = {"boxstyle": "round,pad=0.3", "facecolor": "none", "linewidth": 0.8}
        if isinstance(node, Split):
            row_of_depth[depth] = i
            condition = tree_policy.features[node.feature].format_condition(node.threshold_id)
            axis.text(x, i, f"{_shorten_middle(condition)}?", va="center", fontsize=10, bbox=box)
            continue
        name, color = format_label(action_names[node.action], 40), styles.text_colors[node.action]
        box["facecolor"] = styles.colors[node.action]
        leaf = axis.text(x, i, name, va="center", fontsize=10, color=color, bbox=box)
        note = _describe_leaf(next(leaf_records, None))
        axis.annotate(
            note, (1, 0.5), (12, 0), leaf, textcoords="offset points", va="center", fontsize=9
        )
    return axis


def _shorten_middle(text: str, max_length: int = 60) -> str:
    """Shorten a condition; it keeps its end, which has the number."""
    half = max_length // 2
    return format_label(text if len(text) <= max_length else f"{text[:half]}…{text[-half:]}", 99)


def _describe_leaf(record: dict[Any, Any] | None) -> str:
    """Describe the share of visits of a leaf and the loss of its second best action."""
    if record is None:
        return ""
    text = f"{format_percent(record['share'])} of visits"
    if not record["second_best"]:
        return text
    loss = record["loss"]
    cost_text = f"would cost {format_number(loss, 3)}" if loss > 0 else "is no worse"
    return f"{text}; {format_label(record['second_best'], 30)} {cost_text}"


@check_arguments
def save_figure(axis: Axes, path: str | Path) -> Path:
    """Write the axis' figure as ``.png`` or ``.svg``, whole or not at all.

    >>> import tempfile
    >>> save_figure(regret_distribution([0.0, 1.0]), tempfile.mkdtemp() + "/regret.svg").name
    'regret.svg'
    """
    target = Path(path)
    check_figure_suffix(target)
    content = to_png(axis) if target.suffix.lower() == ".png" else to_svg(axis)
    write_atomic(target, content)
    return target


def check_figure_suffix(path: Path) -> None:
    """Check that the name of a figure ends in .png or .svg."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: choose a name that ends in .png or .svg")
