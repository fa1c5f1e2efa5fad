"""Code generation common to Python and JavaScript: names, tables, trees as nested ifs."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mmdp.core.policies.tree import DecisionNode, Leaf, Split
from mmdp.insight.exports.spec import ActionShares, PolicySpec

# Words of some language, and what a file of ours uses inside the rule, in small letters.
KEYWORDS = """
allowed arguments auto await boolean byte case catch char checkchoice checkint checknumber const
debugger decide_by_features decidebyfeatures default delete do double enum eval export extends
extern false final firstallowed float function goto implements inline int interface let long module
native new none null number package private protected public register restrict return short signed
sizeof static strcmp struct super switch this throw time transient true typedef typeof undefined
union unsigned var void volatile
"""
RESERVED_NAMES = {*KEYWORDS.split(), *keyword.kwlist}


def make_feature_names(spec: PolicySpec) -> dict[int, str]:
    """Make a valid variable name in every language for each feature of the tree.

    >>> from mmdp.core.policies.tree import Feature, Leaf, Split
    >>> import numpy as np
    >>> two = (Feature.from_values("blood pressure", [1, 2]), Feature.from_values("class", [1, 2]))
    >>> tree = Split(0, 0, Leaf(0), Split(1, 0, Leaf(0), Leaf(1)))
    >>> table = np.zeros((1, 2, 1), int)
    >>> spec = PolicySpec(
    ...     ["a", "b"], ["x", "y"], False, [], table, [], tree=tree, features=two
    ... )
    >>> make_feature_names(spec)
    {0: 'blood_pressure', 1: 'class_'}
    """
    names: dict[int, str] = {}
    for i in spec.features_used:
        name = re.sub(r"\W+", "_", spec.features[i].name, flags=re.ASCII).strip("_") or "feature"
        name = f"x{name}" if name[0].isdigit() else name
        while name.lower() in RESERVED_NAMES or name in names.values():
            name += "_"
        names[i] = name
    return names


def render_tree(
    spec: PolicySpec,
    format_value: Callable[[object], str],
    equals_sign: str,
    return_template: str,
    if_template: str,
    block_end: str = "",
) -> Iterator[str]:
    """Render the tree as lines of nested ifs that return actions."""
    names = make_feature_names(spec)

    def format_condition(node: Split) -> str:
        sign = "<=" if spec.features[node.feature].is_ordered else equals_sign
        return f"{names.get(node.feature, 'time')} {sign} {format_value(get_threshold(spec, node))}"

    assert spec.tree is not None
    format_action = lambda action: return_template.format(format_value(spec.actions[action]))
    return iter_branch_lines(spec.tree, format_condition, format_action, if_template, block_end)


def iter_branch_lines(
    node: DecisionNode,
    format_condition: Callable[[Split], str],
    format_action: Callable[[int], str],
    if_template: str,
    block_end: str = "",
    indent: str = "    ",
) -> Iterator[str]:
    """Yield the lines of a subtree as nested ifs; each leaf returns."""
    if isinstance(node, Leaf):
        yield indent + format_action(node.action)
        return
    yield indent + if_template.format(format_condition(node))
    yield from iter_branch_lines(
        node.if_true, format_condition, format_action, if_template, block_end, indent + "    "
    )
    if block_end:
        yield indent + block_end
    yield from iter_branch_lines(
        node.if_false, format_condition, format_action, if_template, block_end, indent
    )


def get_threshold(spec: PolicySpec, node: Split) -> float | str:
    """Get the threshold or level that a split compares with, as int if it is one."""
    threshold = spec.features[node.feature].get_threshold(node.threshold_id)
    is_integer = isinstance(threshold, float) and threshold.is_integer() and abs(threshold) < 2**31
    return int(threshold) if is_integer else threshold


def make_lookup_tables(spec: PolicySpec) -> dict[str, object]:
    """Make the constants of the exported program by name: labels and tables.

    A tree has the values that it asks about for each state and, if some do not allow the action of
    their leaf, what those allow and what is taken then.
    """
    tables: dict[str, object] = {"STATES": spec.states, "ACTIONS": spec.actions}
    if spec.tree is None:
        tables["TABLE"] = spec.to_nested_lists(spec.table)
    else:
        tables["FEATURES"] = list_feature_values(spec)
    if spec.allowed is not None and spec.needs_mask:
        masked_states = np.flatnonzero(~spec.allowed.all(axis=1)).tolist()
        tables["ALLOWED"] = {
            s: [spec.actions[a] for a in np.flatnonzero(spec.allowed[s])] for s in masked_states
        }
        tables["FALLBACK"] = [spec.actions[a] for a in spec.fallback]
    if spec.is_randomized:
        tables["CHOICES"] = spec.choices
    if (
        spec.node_rows is not None
        and spec.node_row_ids is not None
        and spec.initial_nodes is not None
    ):
        tables |= {
            "NODE_ROW_IDS": spec.to_nested_lists(spec.node_row_ids),
            "NODE_ROWS": spec.node_rows.tolist(),
        }
        tables["INITIAL_NODES"] = spec.initial_nodes.tolist()
    return tables


def make_argument_checks(spec: PolicySpec, state_check: str, int_check: str) -> dict[str, str]:
    """Make the code that checks each argument and converts it to an index."""
    sizes = {"time": len(spec.table), "node": spec.n_nodes}
    return {
        x: f"{state_check}(state)" if x == "state" else f'{int_check}({x}, {sizes[x]}, "{x}")'
        for x in spec.argument_names
    }


def make_tree_signature(
    spec: PolicySpec,
    format_value: Callable[[object], str],
    int_check: str,
    number_check: str,
    choice_check: str,
) -> tuple[str, list[str]]:
    """Make the arguments of the tree's function, and the code that checks each.

    What the state allows comes last, if it matters, and is checked where it is used.
    """
    names = make_feature_names(spec)
    checks = [f'{int_check}(time, {len(spec.table)}, "time")'] * spec.tree_uses_time
    for i, name in names.items():
        feature = spec.features[i]
        check_name, choices_text = (
            (number_check, "")
            if feature.is_ordered
            else (choice_check, f", {format_value(list(feature.levels))}")
        )
        checks.append(f"{check_name}({name}, {format_value(feature.name)}{choices_text})")
    named = ["time"] * spec.tree_uses_time + [*names.values()] + ["allowed"] * spec.needs_mask
    return ", ".join(named), checks


def list_feature_values(spec: PolicySpec) -> list[list[object]]:
    """List the values of the tree's features for each state."""
    columns = [spec.features[i].values for i in spec.features_used]
    return [[column[s] for column in columns] for s in range(len(spec.states))]


def iter_rows(spec: PolicySpec) -> Iterator[tuple[list[int | str], ActionShares, list[int]]]:
    """Yield the table by row: arguments, action shares, node row id if there is memory."""
    for (t, s, n), choice_id in np.ndenumerate(spec.table):
        position: dict[str, int | str] = {"time": t, "state": spec.states[s], "node": n}
        node_row = [] if spec.node_row_ids is None else [int(spec.node_row_ids[t, s, n])]
        yield [position[x] for x in spec.argument_names], spec.choices[choice_id], node_row


def format_comments(prefix: str, lines: Sequence[str]) -> list[str]:
    """Format lines as comments that cannot end early or continue on the next line."""
    return [f"{prefix} {' '.join(line.split())}".rstrip("\\ ") for line in lines]


def as_json(value: object) -> str:
    """Encode a value as ASCII JSON that is safe inside an HTML page.

    >>> as_json("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
