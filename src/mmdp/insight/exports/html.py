"""Export of a policy as one HTML page for a phone; it works offline and prints."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from mmdp.core.model import MMDP
from mmdp.core.policies import TreePolicy
from mmdp.core.shapes import Mask
from mmdp.core.text import (
    format_number,
    format_percent,
    format_with_unit,
    parse_named_axes,
    parse_named_values,
)
from mmdp.insight.draw.flowchart import format_ranges
from mmdp.insight.exports.spec import PolicySpec, as_json, find_unique_rows, render_code
from mmdp.insight.measures.decisions import near_optimal_actions
from mmdp.insight.pages import render_page

NEAR_OPTIMAL_TOLERANCE = 0.01  # share of the value at stake that a free choice may lose
MAX_CARD_LINES = 600  # the most lines of a card
MIN_VISIT_PROB = 1e-9  # less likely visits are too rare for figures
BIDI_MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
MAX_LABELS = 2_000  # the most labels that a field offers to choose from


def render(spec: PolicySpec) -> str:
    """Render a policy as an HTML page."""
    model, policy, title, initial_state = spec.model, spec.policy, "What to do", 0
    axes, other_labels = parse_named_axes(spec.states)
    used_axes, action_costs, picture = _find_used_axes(spec, axes), None, ""
    if model is not None:
        title = strip_bidi(f"{model.name}: what to do") if model.name else title
        initial_state = int(model.problem.initial_joint().sum(axis=1).argmax())
        action_costs = None if spec.is_randomized else _make_action_costs(spec, model)
        picture = strip_bidi(policy.to_flow_chart(model).to_svg()) if spec.has_nodes else ""
    first_state = spec.states[initial_state]
    constants = {
        "ARGUMENTS": spec.argument_names,
        "AXES": [*axes.items()],
        "OTHER_LABELS": other_labels,
        "INITIAL_STATE": initial_state,
        "ACTION_COSTS": action_costs,
        "BIDI_MARKS": BIDI_MARKS,
        "USED_AXES": [x in used_axes for x in axes],
    }
    declarations = "\n".join(f"const {name} = {as_json(x)};" for name, x in constants.items())
    is_tree = isinstance(policy, TreePolicy)
    return render_page(
        "exports/card.html.j2",
        spec=spec,
        time_labels=policy.time_labels,
        axes=axes,
        other_labels=other_labels,
        used_axes=used_axes,
        title=title,
        varies_with_time=spec.has_nodes or bool((spec.table != spec.table[:1]).any()),
        unused_axes=[x for x in axes if x not in used_axes],
        max_labels=MAX_LABELS,
        initial_values=parse_named_values(first_state) or dict.fromkeys([*axes][:1], first_state),
        action_costs=action_costs,
        card=[] if is_tree else _make_card(spec),
        tree_text=strip_bidi(policy.describe()) if is_tree else "",
        picture=Markup(picture),
        functions=Markup(
            f'"use strict";\n{render_code(spec, "functions.js.j2")}\n{declarations}\n'
        ),
    )


def _find_used_axes(spec: PolicySpec, axes: Mapping[str, list[str]]) -> list[str]:
    """Find the state axes that the actions depend on; all if there are nodes."""
    used_axes = [*axes]
    if spec.has_nodes:
        return used_axes
    values = {s: x for s, label in enumerate(spec.states) if (x := parse_named_values(label))}
    table = pd.DataFrame(values.values(), columns=used_axes)
    choices = pd.Series([spec.table[:, s].tobytes() for s in values])
    tree_features = {spec.features[i].name for i in spec.features_used}
    for axis in sorted(axes, key=tree_features.__contains__):  # what the tree does not ask first
        others = [table[x] for x in used_axes if x != axis]
        if choices.groupby(others or np.zeros(len(table))).nunique().max() == 1:
            used_axes.remove(axis)
    return used_axes


def _find_choices(spec: PolicySpec, model: MMDP) -> Mask:
    """Find the times and states (T, S) in which actions differ in the models."""
    return model.mask_visits(np.ones(spec.table.shape[:2])) > 0


def strip_bidi(text: str) -> str:
    """Remove the bidirectional control characters from a text.

    >>> strip_bidi("\u202etxt.exe is harmless")
    'txt.exe is harmless'
    """
    return text.translate(dict.fromkeys(map(ord, BIDI_MARKS)))


def _make_action_costs(spec: PolicySpec, model: MMDP) -> dict[str, object]:
    """Compute the cost of the second-best action, and interchangeable actions, by cell.

    The place of that action is -1 if nobody gets there and -2 if there is nothing to decide. Its
    cost is that of one visit, or of all visits if the rule is the same at all times.
    """
    near_optimal = near_optimal_actions(
        model, spec.policy, NEAR_OPTIMAL_TOLERANCE, objective=spec.objective
    )
    # reports take shares of what the best policy found has: a restricted one may have less
    has_shares = not spec.policy.policy_class.is_restricted
    max_loss_text = limit_text = near_optimal.max_loss_text
    if limit_text and not has_shares:
        limit_text = format_with_unit(format_number(near_optimal.max_loss, 3), model.unit)
    # a model may have actions that are not used
    loss, is_interchangeable = (
        x.reshape(*spec.table.shape, -1)[..., : len(spec.actions)]
        for x in (near_optimal.loss, near_optimal.is_interchangeable)
    )
    other_losses = np.where(np.isnan(loss), np.inf, loss)
    np.put_along_axis(other_losses, spec.table[..., None], np.inf, axis=3)
    visit_probs, min_loss = near_optimal.visit_probs.reshape(spec.table.shape), other_losses.min(3)
    has_choice = _find_choices(spec, model)[:, :, None] & np.isfinite(min_loss)
    is_known = has_choice & (visit_probs > MIN_VISIT_PROB)
    divisor = np.where(is_known, visit_probs, 1.0) if spec.uses_time else 1.0
    cost = np.where(is_known, min_loss, 0.0) / divisor
    cost[np.abs(cost) < 1e-9 * abs(near_optimal.value)] = 0.0
    next_actions = np.where(is_known, other_losses.argmin(axis=3), np.where(has_choice, -1, -2))
    action_sets, set_ids = find_unique_rows(is_interchangeable)
    round_cost = np.vectorize(lambda x: float(f"{x:.3g}"), otypes=[float])
    return {
        "next": spec.to_nested_lists(next_actions),
        "cost": spec.to_nested_lists(round_cost(cost)),
        "action_sets": [np.flatnonzero(row).tolist() for row in action_sets],
        "set_ids": spec.to_nested_lists(set_ids),
        "stake": near_optimal.at_stake.amount if has_shares else 0.0,
        "max_loss_text": strip_bidi(limit_text),
        "text": strip_bidi(near_optimal.description.replace(max_loss_text, limit_text)),
        "amount_template": strip_bidi(format_with_unit("0", model.unit)),
    }


def _make_card(spec: PolicySpec) -> list[list[str]]:
    """Make the heading and rows of the whole policy; empty if there are too many."""
    times = spec.policy.time_labels
    columns = {
        "State": True,
        "Node": spec.has_nodes,
        times.name.capitalize() if times.labels else "Times": spec.uses_time,
        "What to do": True,
        "Next node": spec.has_nodes,
    }
    lines = [[*columns], *itertools.islice(_iter_card_lines(spec), MAX_CARD_LINES + 1)]
    if len(lines) > MAX_CARD_LINES + 1:
        return []
    return [[strip_bidi(x) for x in itertools.compress(line, columns.values())] for line in lines]


def _iter_card_lines(spec: PolicySpec) -> Iterator[list[str]]:
    """Yield rows of the card: state, node, times, action, next nodes."""
    node_row_ids = spec.node_row_ids if spec.has_nodes else np.zeros_like(spec.table)
    states: Sequence[int] = range(len(spec.states))
    if spec.model is not None:
        states = np.flatnonzero(_find_choices(spec, spec.model).any(axis=0)).tolist()
    for s, n in itertools.product(states, range(spec.n_nodes)):
        cells = enumerate(zip(spec.table[:, s, n], node_row_ids[:, s, n], strict=True))
        for (choice, node_row), run in itertools.groupby(cells, lambda cell: cell[1]):
            times = [t for t, _ in run]
            times_text = spec.policy.time_labels.format_range(times[0], times[-1])
            action_text = ", ".join(
                spec.actions[a] + (f" {format_percent(share)}" if share < 1 else "")
                for a, share in spec.choices[choice]
            )
            node_text = _describe_next_nodes(spec, node_row) if spec.has_nodes else ""
            yield [spec.states[s], f"{n}", times_text, action_text, node_text]


def _describe_next_nodes(spec: PolicySpec, node_row: int) -> str:
    """Describe the next nodes of a node row by the next state."""
    next_nodes = spec.node_rows[node_row]
    clauses = [
        f"{x} if {format_ranges(np.flatnonzero(next_nodes == x), spec.states)}"
        for x in np.unique(next_nodes)
    ]
    return f"{next_nodes[0]}" if len(clauses) == 1 else "; ".join(clauses)
