"""Export of a policy as Python, JavaScript or SQL: the templates ``*.j2`` of this folder."""

from __future__ import annotations

import functools
import json
import keyword
import re

import numpy as np
from jinja2 import Environment

from mmdp.core.policies.tree import Feature, Split
from mmdp.insight.exports.spec import PolicySpec
from mmdp.insight.pages import make_environment

TEMPLATES = {"python": "rule.py.j2", "javascript": "rule.js.j2", "sql": "rule.sql.j2"}
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
