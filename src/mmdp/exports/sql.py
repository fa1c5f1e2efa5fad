"""A policy as tables of standard SQL (SQLite, PostgreSQL, DuckDB)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mmdp.exports.code import comments, rows_of
from mmdp.exports.rule import Rule

AT_ONCE = 500  # rows of an INSERT
KINDS = {"time": "INTEGER", "node": "INTEGER", "next_node": "INTEGER", "way": "INTEGER",
         "share": "DOUBLE PRECISION"}  # fmt: skip  # TEXT otherwise


def written(rule: Rule) -> str:
    """The text of the script."""
    asked = " AND ".join(f"{x} = ?" for x in rule.arguments)
    share = ["share"] if rule.randomised else []
    ask = [f"Ask: SELECT {', '.join(['action', *share])} FROM policy WHERE {asked};"]
    ask.append("No row: an argument is not known.")
    if rule.ways is not None:
        ask.append(
            "The node that an episode begins in: SELECT node FROM policy_start WHERE state = ?;"
        )
        ask.append(
            "The node after a step: SELECT next_node FROM policy_moves JOIN policy USING (way) "
            f"WHERE {asked} AND next_state = ?;"
        )
    ask.append("A backslash is a plain character, as the standard has it.")
    return "\n".join([*comments("--", [*rule.about, *ask]), *_statements(rule), ""])


def _statements(rule: Rule) -> Iterator[str]:
    yield "BEGIN;"
    key = [*rule.arguments, *(["action"] if rule.randomised else [])]
    way = ["way"] if rule.ways is not None else []
    rest = ["share"] if rule.randomised else ["action", *way]
    rows = (
        [*place, rule.actions[action], *by, *([share] if rule.randomised else [])]
        for place, shares, by in rows_of(rule)
        for action, share in shares
    )
    yield from _table("policy", key, rest, rows)
    if rule.ways is not None and rule.first is not None:
        moves = ((way, rule.states[s], node) for (way, s), node in np.ndenumerate(rule.ways))
        yield from _table("policy_moves", ["way", "next_state"], ["next_node"], moves)
        begin = zip(rule.states, rule.first, strict=True)
        yield from _table("policy_start", ["state"], ["node"], begin)
    yield "COMMIT;"


def _table(
    name: str, key: Sequence[str], rest: Sequence[str], rows: Iterable[Sequence[Any]]
) -> Iterator[str]:
    columns = ", ".join(f"{x} {KINDS.get(x, 'TEXT')} NOT NULL" for x in (*key, *rest))
    yield f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(key)}));"
    every = [f"({', '.join(map(literal, row))})" for row in rows]
    for i in range(0, len(every), AT_ONCE):
        listed = ",\n".join(every[i : i + AT_ONCE])
        yield f"INSERT INTO {name} VALUES\n{listed};"


def literal(value: Any) -> str:
    """A value of SQL.

    >>> literal("it's"), literal(3), literal(0.5)
    ("'it''s'", '3', '0.5')
    """
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
