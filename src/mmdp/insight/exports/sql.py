"""Export of a policy as tables of standard SQL (SQLite, PostgreSQL, DuckDB)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsInt

import numpy as np

from mmdp.insight.exports.code import format_comments, iter_rows
from mmdp.insight.exports.spec import PolicySpec

ROWS_PER_INSERT = 500  # rows of an INSERT
COLUMN_TYPES = {
    "time": "INTEGER",
    "node": "INTEGER",
    "next_node": "INTEGER",
    "node_row": "INTEGER",
    "share": "DOUBLE PRECISION",
}  # TEXT otherwise


def render(spec: PolicySpec) -> str:
    """Render a policy as an SQL script."""
    condition = " AND ".join(f"{x} = ?" for x in spec.argument_names)
    share_column = ["share"] if spec.is_randomized else []
    usage_lines = [
        f"Ask: SELECT {', '.join(['action', *share_column])} FROM policy WHERE {condition};"
    ]
    usage_lines.append("No row: an argument is not known.")
    if spec.node_rows is not None:
        usage_lines.append(
            "The node that an episode begins in: SELECT node FROM policy_initial_nodes "
            "WHERE state = ?;"
        )
        usage_lines.append(
            "The node after a step: SELECT next_node FROM policy_node_rows JOIN policy "
            f"USING (node_row) WHERE {condition} AND next_state = ?;"
        )
    usage_lines.append("A backslash is a plain character, as the standard has it.")
    return "\n".join(
        [
            *format_comments("--", [*spec.provenance_lines, *usage_lines]),
            *_iter_statements(spec),
            "",
        ]
    )


def _iter_statements(spec: PolicySpec) -> Iterator[str]:
    """Yield the SQL statements that create and fill the tables."""
    yield "BEGIN;"
    key_columns = [*spec.argument_names, *(["action"] if spec.is_randomized else [])]
    row_id = ["node_row"] if spec.node_rows is not None else []
    value_columns = ["share"] if spec.is_randomized else ["action", *row_id]
    rows = (
        [*position, spec.actions[action], *node_row, *([share] if spec.is_randomized else [])]
        for position, shares, node_row in iter_rows(spec)
        for action, share in shares
    )
    yield from _iter_table_statements("policy", key_columns, value_columns, rows)
    if spec.node_rows is not None and spec.initial_nodes is not None:
        node_transitions = (
            (row_id, spec.states[s], node) for (row_id, s), node in np.ndenumerate(spec.node_rows)
        )
        yield from _iter_table_statements(
            "policy_node_rows", ["node_row", "next_state"], ["next_node"], node_transitions
        )
        initial_rows = zip(spec.states, spec.initial_nodes, strict=True)
        yield from _iter_table_statements("policy_initial_nodes", ["state"], ["node"], initial_rows)
    yield "COMMIT;"


def _iter_table_statements(
    name: str,
    key_columns: Sequence[str],
    value_columns: Sequence[str],
    rows: Iterable[Sequence[str | SupportsInt]],
) -> Iterator[str]:
    """Yield the statements that create and fill one table."""
    columns = ", ".join(
        f"{x} {COLUMN_TYPES.get(x, 'TEXT')} NOT NULL" for x in (*key_columns, *value_columns)
    )
    yield f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(key_columns)}));"
    row_texts = [f"({', '.join(map(format_literal, row))})" for row in rows]
    for i in range(0, len(row_texts), ROWS_PER_INSERT):
        values_text = ",\n".join(row_texts[i : i + ROWS_PER_INSERT])
        yield f"INSERT INTO {name} VALUES\n{values_text};"


def format_literal(value: str | SupportsInt) -> str:
    """Format a value as an SQL literal.

    >>> format_literal("it's"), format_literal(3), format_literal(0.5)
    ("'it''s'", '3', '0.5')
    """
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
