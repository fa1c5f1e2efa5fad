"""A policy as an Excel workbook that looks decisions up by formulas.

Labels are in cells of their own, never inside a formula, and always text. They are compared by
EXACT, since MATCH takes stars and question marks for wildcards and ignores case.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmdp.errors import InputError
from mmdp.exports.code import rows_of, values_of
from mmdp.exports.rule import Rule
from mmdp.policy.tree import Leaf, Node

LIMIT = 1_048_575  # rows below a heading
DEEPEST, LONGEST = 60, 8000  # of a formula: Excel takes 64 levels and 8,192 characters
CHECK = '"check what is typed above"'


class Formula(str):
    """Text that Excel computes; any other text is text, whatever it begins with."""


def written(rule: Rule) -> bytes:
    """The workbook."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise InputError("Excel files need openpyxl; pip install 'mmdp[excel]'") from None
    _check_labels(rule)
    by_tree = rule.tree is not None and _fits(rule)
    if rule.table.size > LIMIT and not by_tree:
        raise InputError(
            "the tree is too deep for a formula of Excel; solve for fewer leaves, or choose python"
        )
    book = Workbook(write_only=True)
    front = book.create_sheet("Decide")
    front.column_dimensions["A"].width = front.column_dimensions["B"].width = 30
    _fill(front, _front(rule, by_tree))
    _validate(front, rule)
    for title, rows in _sheets(rule, by_tree).items():
        _fill(book.create_sheet(title), rows)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def _check_labels(rule: Rule) -> None:
    """Refuse control characters and very long labels, which Excel does not keep."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    asked = [rule.features[i] for i in rule.asked]
    levels = (level for x in asked if not x.ordered for level in map(str, x.levels))
    for label in (*rule.states, *rule.actions, *(x.name for x in asked), *levels):
        if ILLEGAL_CHARACTERS_RE.search(label) or "\r" in label or len(label) > LONGEST:
            raise InputError(f"Excel cannot hold the label {label[:40]!r}; rename it")


def _fill(sheet: Any, rows: Iterator[Sequence[Any]]) -> None:
    for row in rows:
        sheet.append([_cell(sheet, value) for value in row])


def _cell(sheet: Any, value: Any) -> Any:
    """Text that openpyxl would take for a formula or an error says that it is text."""
    if not isinstance(value, str) or isinstance(value, Formula) or value[:1] not in ("=", "#"):
        return value
    from openpyxl.cell import WriteOnlyCell

    cell = WriteOnlyCell(sheet, value)
    cell.data_type, cell.number_format = "s", "@"
    return cell


def _validate(sheet: Any, rule: Rule) -> None:
    """Lists to choose from, and limits of what may be typed."""
    from openpyxl.worksheet.datavalidation import DataValidation

    for name, row in _inputs(rule).items():
        if name.endswith("state"):
            check = DataValidation("list", f"={_column('States', 0, len(rule.states))}")
        else:
            most = len(rule.table) if name == "time" else rule.nodes
            check = DataValidation("whole", "0", str(most - 1), operator="between")
        check.add(f"B{row}")
        sheet.data_validations.append(check)


# ---------------------------------------------------------------------- what people see
def _inputs(rule: Rule) -> dict[str, int]:
    """The row of each cell that is typed."""
    asked = [*rule.arguments, *(["next state"] if rule.ways is not None else [])]
    return {name: row for row, name in enumerate(asked, 2)}


def _front(rule: Rule, by_tree: bool) -> Iterator[Sequence[Any]]:
    inputs, S = _inputs(rule), len(rule.states)
    yield [rule.about[0]]
    for name, row in inputs.items():
        if name.endswith("state"):  # its place, from 1; 0 if there is none
            where = _column("States", 0, S)
            found = f"=SUMPRODUCT(EXACT({where},$B${row})*(ROW({where})-1))"
            yield [name, rule.states[0], Formula(found)]
        else:
            yield [name, 0]
    row = len(inputs) + 2  # of the place of the decision
    state = f"$C${inputs['state']}"
    yield ["row", Formula(f"={_place(rule, inputs, state)}")]
    place = f"$B${row}"
    if by_tree:
        yield from _by_tree(rule, inputs, row)
    elif rule.randomised:
        for a, action in enumerate(rule.actions):
            cells = _column("Rule", len(rule.arguments) + a, rule.table.size)
            yield [action, Formula(f"=IFERROR(INDEX({cells},{place}),{CHECK})")]
    else:
        cells = _column("Rule", len(rule.arguments), rule.table.size)
        yield ["action", Formula(f"=IFERROR(INDEX({cells},{place}),{CHECK})")]
    if rule.ways is not None:
        way = _column("Rule", len(rule.arguments) + 1, rule.table.size)
        nodes, to = _column("Moves", 2, rule.ways.size), f"$C${inputs['next state']}"
        step = f"IF({to}<1,NA(),INDEX({nodes},INDEX({way},{place})*{S}+{to}))"
        yield ["next node", Formula(f"=IFERROR({step},{CHECK})")]
        begins = f"IF({state}<1,NA(),INDEX({_column('States', 1, S)},{state}))"
        yield ["an episode begins in node", Formula(f"=IFERROR({begins},{CHECK})")]
    for line in rule.about[1:]:
        yield [line]


def _place(rule: Rule, inputs: dict[str, int], state: str) -> str:
    """A formula for the row of the table, from 1; an error if something is not known."""
    wrong, place = [f"{state}<1"], f"{state}-1"
    for name, most in (("time", len(rule.table)), ("node", rule.nodes)):
        if name in rule.arguments:
            cell = f"$B${inputs[name]}"
            wrong += [f"{cell}<0", f"{cell}>{most - 1}", f"{cell}<>INT({cell})"]
            time = f"{cell}*{len(rule.states)}+{place}"
            place = time if name == "time" else f"({place})*{rule.nodes}+{cell}"
    return f"IF(OR({','.join(wrong)}),NA(),{place}+1)"


# ---------------------------------------------------------------------- trees
def _by_tree(rule: Rule, inputs: dict[str, int], row: int) -> Iterator[Sequence[Any]]:
    """The features of the state, the leaf as the place of its action, and the action."""
    assert rule.tree is not None
    S, A, state = len(rule.states), len(rule.actions), f"$C${inputs['state']}"
    for j, i in enumerate(rule.asked, 1):
        cells = _column("States", j, S)
        yield [rule.features[i].name, Formula(f"=IFERROR(INDEX({cells},{state}),{CHECK})")]
    leaf = row + len(rule.asked) + 1
    yield ["leaf", Formula(f"={_nested(rule, rule.tree)}")]
    first, last = _letter(len(rule.asked) + 1), _letter(len(rule.asked) + A)
    cells = f"States!${first}$2:${last}${S + 1}"
    found = f"IF(ISERROR($B${row}),NA(),INDEX({cells},{state},$B${leaf}))"
    yield ["action", Formula(f"=IFERROR({found},{CHECK})")]


def _nested(rule: Rule, node: Node) -> str:
    if isinstance(node, Leaf):
        return str(node.action + 1)
    asked, inputs = rule.features[node.feature], _inputs(rule)
    if asked.timed:
        cell = f"$B${inputs['time']}"
    else:
        cell = f"$B${len(inputs) + 3 + rule.asked.index(node.feature)}"
    if asked.ordered:
        question = f"{cell}<={float(asked.level(node.cut))!r}"
    else:
        column = _letter(rule.asked.index(node.feature))
        question = f"EXACT({cell},Levels!${column}${node.cut + 2})"
    return f"IF({question},{_nested(rule, node.yes)},{_nested(rule, node.no)})"


def _fits(rule: Rule) -> bool:
    """Whether the tree fits into a formula."""

    def depth(node: Node) -> int:
        return 0 if isinstance(node, Leaf) else 1 + max(depth(node.yes), depth(node.no))

    assert rule.tree is not None
    return depth(rule.tree) <= DEEPEST and len(_nested(rule, rule.tree)) <= LONGEST


# ---------------------------------------------------------------------- what is looked up
def _sheets(rule: Rule, by_tree: bool) -> dict[str, Iterator[Sequence[Any]]]:
    found = {"States": _states(rule, by_tree)}
    if by_tree:
        found["Levels"] = _levels(rule)
    else:
        found["Rule"] = _rows(rule)
    if rule.ways is not None:
        found["Moves"] = _moves(rule)
    return found


def _states(rule: Rule, by_tree: bool) -> Iterator[Sequence[Any]]:
    first = [] if rule.first is None else ["begins in node"]
    names = [rule.features[i].name for i in rule.asked]
    leaves = [f"leaf says {x}" for x in rule.actions]
    yield ["state", *first, *([*names, *leaves] if by_tree else [])]
    values = values_of(rule)
    for s, state in enumerate(rule.states):
        node = [] if rule.first is None else [int(rule.first[s])]
        done = [] if rule.instead is None else [rule.actions[a] for a in rule.instead[s]]
        yield [state, *node, *([*values[s], *done] if by_tree else [])]


def _levels(rule: Rule) -> Iterator[Sequence[Any]]:
    """The categories that the tree asks for, a column for each feature."""
    columns = [rule.features[i] for i in rule.asked]
    yield [x.name for x in columns]
    for row in range(max((len(x.levels) for x in columns), default=0)):
        yield [x.levels[row] if row < len(x.levels) else None for x in columns]


def _rows(rule: Rule) -> Iterator[Sequence[Any]]:
    way = [] if rule.moves is None else ["way"]
    yield [*rule.arguments, *(rule.actions if rule.randomised else ["action"]), *way]
    for place, shares, by in rows_of(rule):
        done: list[Any] = [rule.actions[a] for a, _ in shares]
        if rule.randomised:
            done = [dict(shares).get(a, 0.0) for a in range(len(rule.actions))]
        yield [*place, *done, *by]


def _moves(rule: Rule) -> Iterator[Sequence[Any]]:
    assert rule.ways is not None
    yield ["way", "next state", "next node"]
    for (way, s), node in np.ndenumerate(rule.ways):
        yield [way, rule.states[s], int(node)]


def _column(sheet: str, j: int, rows: int) -> str:
    """The cells of a column below its heading."""
    return f"{sheet}!${_letter(j)}$2:${_letter(j)}${rows + 1}"


def _letter(j: int) -> str:
    """
    >>> _letter(0), _letter(25), _letter(26)
    ('A', 'Z', 'AA')
    """
    return (_letter(j // 26 - 1) if j >= 26 else "") + chr(ord("A") + j % 26)
