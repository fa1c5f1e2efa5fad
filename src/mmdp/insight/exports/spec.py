"""Policy specification, from which every export target is written, and the code of a policy.

Code is Python, JavaScript or SQL: the templates ``*.j2`` of this folder.
"""

from __future__ import annotations

import functools
import json
import keyword
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment

from mmdp._version import __version__
from mmdp.core.model import MMDP
from mmdp.core.objectives import Mean, Objective
from mmdp.core.policies import MemoryPolicy, Policy, TreePolicy, require_markov
from mmdp.core.policies.tree import DecisionNode, Feature, Split
from mmdp.core.shapes import AnyArray, IndexArray
from mmdp.core.solution import SCOPE_NAMES, Bound, Solution
from mmdp.core.solve import evaluate
from mmdp.core.text import format_bound, format_number, format_with_unit, pluralize, shorten
from mmdp.insight.pages import make_environment

# Words of some language, and what a file of ours uses inside the rule, in small letters.
KEYWORDS = """
arguments auto await boolean byte case catch char checkchoice checkint checknumber const
debugger default delete do double enum eval export extends
extern false final float function goto implements inline int interface let long module
native new none null number package private protected public register restrict return short signed
sizeof static strcmp struct super switch this throw time transient true typedef typeof undefined
union unsigned var void volatile
"""
RESERVED_NAMES = {*KEYWORDS.split(), *keyword.kwlist}

ActionShares = tuple[tuple[int, float], ...]  # action ids, each with its probability


class PolicySpec:
    """Actions by (time, state, node) with labels and provenance, ready to export.

    ``table`` (T, S, N) has indices into ``choices``; T is 1 if the horizon is infinite, N is 1
    without memory. ``node_row_ids`` (T, S, N) has indices into ``node_rows`` (W, S'): the node
    after the transition to s'. ``initial_nodes`` (S,) is the node that an episode begins in; the
    three are empty without memory. ``tree`` is that of a decision tree whose leaves have the
    actions of the table in every state, and ``features_used`` the features that it splits on.
    ``argument_names``: ``time`` if used, ``state``, ``node`` if there is memory.
    """

    node_row_ids = node_rows = np.zeros((0, 0), np.int64)
    initial_nodes: IndexArray = np.zeros(0, np.int64)
    tree: DecisionNode | None = None

    def __init__(
        self, source: Policy | Solution, model: MMDP | None = None, bound: Bound | None = None
    ) -> None:
        policy: Any = source.policy if isinstance(source, Solution) else source
        # refuse what has no table, with the reason
        if not getattr(policy, "has_exact_returns", False) or policy.policy_class.uses_belief:
            require_markov(source, "an exported file holds", requirement="a table of actions")
        if model is not None:
            policy.check(model)
        self.source, self.policy, self.model = source, policy, model
        self.states: list[str] = policy.state_names
        self.actions: list[str] = policy.action_names
        self.objective: Objective = source.objective or (
            Mean() if bound is None else bound.objective
        )
        self.provenance_lines = _describe_provenance(source, policy, model, bound, self.objective)
        self.uses_time: bool = policy.horizon < math.inf
        self.has_nodes = isinstance(policy, MemoryPolicy)
        self.is_randomized = not (self.has_nodes or policy.is_deterministic)
        self.choices: list[ActionShares] = [((a, 1.0),) for a in range(policy.n_actions)]
        if self.has_nodes:
            self.table: IndexArray = policy.actions.astype(np.int64)
            self.node_rows, self.node_row_ids = find_unique_rows(
                policy.node_transitions.astype(np.int64)
            )
            self.initial_nodes = policy.initial_nodes.astype(np.int64)
        else:
            table = policy.table if self.uses_time else policy.table[None]
            if self.is_randomized:
                rows, table = find_unique_rows(table)
                self.choices = [
                    tuple((int(a), float(row[a])) for a in np.flatnonzero(row)) for row in rows
                ]
            self.table = table.astype(np.int64)[:, :, None]
        if isinstance(policy, TreePolicy) and policy.is_deterministic and _is_exact(policy):
            self.tree = policy.tree
        self.features = policy.features if self.tree is not None else ()
        self.features_used = sorted(find_used_features(self.tree))
        self.n_nodes = self.table.shape[2]
        self.argument_names = ["time"] * self.uses_time + ["state"] + ["node"] * self.has_nodes

    def to_nested_lists(self, table: npt.NDArray[np.generic]) -> list[object]:
        """Convert a table (T, S, N) to nested lists without the unused axes."""
        dropped_axes = (0,) * (not self.uses_time) + (2,) * (not self.has_nodes)
        return table.squeeze(axis=dropped_axes).tolist()

    def iter_cells(self) -> Iterator[tuple[list[int | str], ActionShares, list[int]]]:
        """Yield each cell: arguments, action shares, node row id if there is memory."""
        for (t, s, n), choice_id in np.ndenumerate(self.table):
            arguments = [*[t] * self.uses_time, self.states[s], *[n] * self.has_nodes]
            node_row = [int(self.node_row_ids[t, s, n])] if self.has_nodes else []
            yield arguments, self.choices[choice_id], node_row


def find_used_features(tree: DecisionNode | None) -> set[int]:
    """Find the indices of the features that a subtree splits on."""
    if not isinstance(tree, Split):
        return set()
    return {tree.feature} | find_used_features(tree.if_true) | find_used_features(tree.if_false)


def find_unique_rows(table: AnyArray) -> tuple[AnyArray, IndexArray]:
    """Find the different rows of an array along its last axis, and the index of each row."""
    rows, ids = np.unique(table.reshape(-1, table.shape[-1]), axis=0, return_inverse=True)
    return rows, ids.reshape(table.shape[:-1])


def _is_exact(policy: TreePolicy) -> bool:
    """Return whether the leaves alone make the table, by thresholds that code can hold.

    If a state does not allow the action of its leaf, its table has another.
    """
    levels = [x for i in find_used_features(policy.tree) for x in policy.features[i].levels]
    has_finite_levels = all(isinstance(x, str) or math.isfinite(x) for x in levels)
    return has_finite_levels and bool((policy.leaf_actions == policy.table).all())


def _describe_provenance(
    source: Policy | Solution,
    policy: Policy,
    model: MMDP | None,
    bound: Bound | None,
    objective: Objective,
) -> list[str]:
    """Describe policy, models, value and bound in sentences of one line each."""
    times_text = ", at all times"
    if policy.horizon < math.inf:
        last, times = int(policy.horizon) - 1, policy.time_labels
        labels_text = f" ({times.describe_range(0, last)})" if times.labels else ""
        times_text = f"; times count from 0 to {last}{labels_text}"
    size_text = f"{pluralize(policy.n_states, 'state')} and {pluralize(policy.n_actions, 'action')}"
    inputs = policy.policy_class.decision_inputs
    if isinstance(policy, TreePolicy):
        asked = [policy.features[i].name for i in sorted(find_used_features(policy.tree))]
        inputs = f"questions about {' and '.join(asked)}" if asked else "nothing"
    lines = [f"Decisions depend on {inputs}: {size_text}{times_text}."]
    value, unit = None, None if model is None else model.unit
    if isinstance(source, Solution):
        lines.append(f"Computed by {source.method} for {pluralize(len(source.returns), 'model')}.")
        value, bound = source.value, source.certificate or bound
    elif model is not None:
        lines.append(f"For {pluralize(model.n_models, 'model')}.")
        value = evaluate(model, policy).value(objective)
    if value is not None:
        value_text = format_with_unit(format_number(value, 8), unit)
        lines.append(f"Its value on these models ({objective.name}) is {value_text}.")
    elif source.objective is not None:
        lines.append(f"Solved for the {objective.name}.")
    if bound is not None:
        bound_text = format_with_unit(format_bound(bound.value, 8), unit)
        lines.append(f"Proven: no {SCOPE_NAMES[bound.scope]} has more than {bound_text}.")
    if model is not None:
        lines.append(f"Fingerprint of the models: {model.fingerprint()}.")
    return [shorten(line, 400) for line in (*lines, f"Written by mmdp {__version__}.")]


# ---------------------------------------------------------------------- code
def render_code(spec: PolicySpec, template: str) -> str:
    """Render a policy by a template of this folder."""
    rows = (
        [*arguments, spec.actions[a], *node_row, *[share] * spec.is_randomized]
        for arguments, shares, node_row in spec.iter_cells()
        for a, share in shares
    )
    return (
        _make_environment()
        .get_template(f"exports/{template}")
        .render(
            spec=spec,
            names=make_feature_names(spec),
            tables=make_lookup_tables(spec),
            rows=rows,
            node_rows=(
                (i, spec.states[s], node) for (i, s), node in np.ndenumerate(spec.node_rows)
            ),
            initial_nodes=zip(spec.states, spec.initial_nodes, strict=False),
        )
    )


@functools.cache
def _make_environment() -> Environment:
    """Make the Jinja2 environment of code, in which nothing is escaped but by these filters."""
    environment = make_environment().overlay(autoescape=False, keep_trailing_newline=True)
    environment.filters = environment.filters | {
        "comment": format_comment,
        "json": as_json,
        "python": repr,
        "python_lines": _format_python_lines,
        "sql": format_sql_literal,
        "threshold": get_threshold,
    }
    return environment


def make_feature_names(spec: PolicySpec) -> dict[int, str]:
    """Make a valid variable name in every language for each feature of the tree.

    >>> from mmdp import policies
    >>> from mmdp.core.policies.tree import Feature, Leaf, Split
    >>> two = Feature.from_values("blood pressure", [1, 2]), Feature.from_values("class", [1, 2])
    >>> tree = Split(0, 0, Leaf(0), Split(1, 0, Leaf(0), Leaf(1)))
    >>> make_feature_names(PolicySpec(
    ...     policies.TreePolicy(policies.MarkovPolicy([[0, 1]]), tree, two)))
    {0: 'blood_pressure', 1: 'class_'}
    """
    names: dict[int, str] = {}
    for i in sorted(spec.features_used, key=lambda i: not spec.features[i].is_time):
        name = re.sub(r"\W+", "_", spec.features[i].name, flags=re.ASCII).strip("_") or "feature"
        name = f"x{name}" if name[0].isdigit() else name
        while name.lower() in RESERVED_NAMES or name in names.values():
            name += "_"
        names[i] = "time" if spec.features[i].is_time else name
    return names


def make_lookup_tables(spec: PolicySpec) -> dict[str, object]:
    """Make the constants of the exported program by name: labels and tables."""
    tables: dict[str, object] = {"STATES": spec.states, "ACTIONS": spec.actions}
    tables["TABLE"] = spec.to_nested_lists(spec.table)
    if spec.is_randomized:
        tables["CHOICES"] = spec.choices
    if spec.has_nodes:
        tables["NODE_ROW_IDS"] = spec.to_nested_lists(spec.node_row_ids)
        tables["NODE_ROWS"] = spec.node_rows.tolist()
        tables["INITIAL_NODES"] = spec.initial_nodes.tolist()
    return tables


def get_threshold(node: Split, feature: Feature) -> float | str:
    """Get the threshold or level that a split compares with, as int if it is one."""
    threshold = feature.get_threshold(node.threshold_id)
    is_integer = isinstance(threshold, float) and threshold.is_integer() and abs(threshold) < 2**31
    return int(threshold) if is_integer else threshold


def format_comment(line: str, prefix: str) -> str:
    """Format a line as a comment that cannot end early or continue on the next line."""
    return f"{prefix} {' '.join(line.split())}".rstrip("\\ ")


def _format_python_lines(value: object) -> str:
    """Format a value as Python code; a list has a line for each item."""
    if not isinstance(value, list):
        return repr(value)
    return "\n".join(["[", *(f"    {x!r}," for x in value), "]"])


def as_json(value: object) -> str:
    """Encode a value as ASCII JSON that is safe inside an HTML page.

    >>> as_json("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def format_sql_literal(value: object) -> str:
    """Format a value as an SQL literal.

    >>> format_sql_literal("it's"), format_sql_literal(3), format_sql_literal(0.5)
    ("'it''s'", '3', '0.5')
    """
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
