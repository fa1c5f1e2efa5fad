"""Export of a policy as an Excel workbook that looks up decisions by formulas.

Labels are in cells of their own, never inside a formula, and always text. They are compared by
EXACT, since MATCH takes stars and question marks for wildcards and ignores case.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.policies.tree import DecisionNode, Leaf
from mmdp.insight.exports.code import iter_rows, list_feature_values
from mmdp.insight.exports.spec import PolicySpec

MAX_CELLS = 1_048_575  # rows below a heading
MAX_DEPTH, MAX_LENGTH = 60, 8000  # of a formula: Excel takes 64 levels and 8,192 characters
Sheet = Any  # a worksheet of openpyxl, which may not be installed
ERROR_TEXT = '"check what is typed above"'


class CellFormula(str):
    """Text that Excel computes; other text is stored as text."""


def render(spec: PolicySpec) -> bytes:
    """Render a policy as the bytes of an Excel workbook."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise InputError("Excel files need openpyxl; pip install 'mmdp[excel]'") from None
    _check_labels(spec)
    uses_tree = spec.tree is not None and _fits_formula(spec)
    if spec.table.size > MAX_CELLS and not uses_tree:
        raise InputError(
            "the tree is too deep for a formula of Excel; solve for fewer leaves, or choose python"
        )
    workbook = Workbook(write_only=True)
    front_sheet = workbook.create_sheet("Decide")
    front_sheet.column_dimensions["A"].width = front_sheet.column_dimensions["B"].width = 30
    _append_rows(front_sheet, _iter_front_rows(spec, uses_tree))
    _add_validation(front_sheet, spec)
    for title, rows in _make_sheets(spec, uses_tree).items():
        _append_rows(workbook.create_sheet(title), rows)
    file = io.BytesIO()
    workbook.save(file)
    return file.getvalue()


def _check_labels(spec: PolicySpec) -> None:
    """Refuse labels that Excel cannot store: control characters, very long ones."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    features = [spec.features[i] for i in spec.features_used]
    levels = (level for x in features if not x.is_ordered for level in map(str, x.levels))
    for label in (*spec.states, *spec.actions, *(x.name for x in features), *levels):
        if ILLEGAL_CHARACTERS_RE.search(label) or "\r" in label or len(label) > MAX_LENGTH:
            raise InputError(f"Excel cannot hold the label {label[:40]!r}; rename it")


def _append_rows(sheet: Sheet, rows: Iterator[Sequence[object]]) -> None:
    """Append rows of values to a worksheet."""
    for row in rows:
        sheet.append([_make_cell(sheet, value) for value in row])


def _make_cell(sheet: Sheet, value: object) -> object:
    """Make a cell; text that looks like a formula or an error is marked as text."""
    if not isinstance(value, str) or isinstance(value, CellFormula) or value[:1] not in ("=", "#"):
        return value
    from openpyxl.cell import WriteOnlyCell

    cell = WriteOnlyCell(sheet, value)
    cell.data_type, cell.number_format = "s", "@"
    return cell


def _add_validation(sheet: Sheet, spec: PolicySpec) -> None:
    """Add dropdown lists and limits to the input cells of the front sheet."""
    from openpyxl.worksheet.datavalidation import DataValidation

    for name, row in _input_rows(spec).items():
        if name.endswith("state"):
            validation = DataValidation(
                "list", f"={_format_column_range('States', 0, len(spec.states))}"
            )
        else:
            n_values = len(spec.table) if name == "time" else spec.n_nodes
            validation = DataValidation("whole", "0", str(n_values - 1), operator="between")
        validation.add(f"B{row}")
        sheet.data_validations.append(validation)


# ---------------------------------------------------------------------- what people see
def _input_rows(spec: PolicySpec) -> dict[str, int]:
    """Get the row of each input cell on the front sheet, by name."""
    names = [*spec.argument_names, *(["next state"] if spec.node_rows is not None else [])]
    return {name: row for row, name in enumerate(names, 2)}


def _iter_front_rows(spec: PolicySpec, uses_tree: bool) -> Iterator[Sequence[object]]:
    """Yield the rows of the front sheet: inputs, decision, next node, provenance."""
    inputs, S = _input_rows(spec), len(spec.states)
    yield [spec.provenance_lines[0]]
    for name, row in inputs.items():
        if name.endswith("state"):  # its place, from 1; 0 if there is none
            state_cells = _format_column_range("States", 0, S)
            formula = f"=SUMPRODUCT(EXACT({state_cells},$B${row})*(ROW({state_cells})-1))"
            yield [name, spec.states[0], CellFormula(formula)]
        else:
            yield [name, 0]
    row = len(inputs) + 2  # of the place of the decision
    state_cell = f"$C${inputs['state']}"
    yield ["row", CellFormula(f"={_format_row_formula(spec, inputs, state_cell)}")]
    row_cell = f"$B${row}"
    if uses_tree:
        yield from _iter_tree_rows(spec, inputs, row)
    elif spec.is_randomized:
        for a, action in enumerate(spec.actions):
            cells = _format_column_range("Rule", len(spec.argument_names) + a, spec.table.size)
            yield [action, CellFormula(f"=IFERROR(INDEX({cells},{row_cell}),{ERROR_TEXT})")]
    else:
        cells = _format_column_range("Rule", len(spec.argument_names), spec.table.size)
        yield ["action", CellFormula(f"=IFERROR(INDEX({cells},{row_cell}),{ERROR_TEXT})")]
    if spec.node_rows is not None:
        node_row_cells = _format_column_range("Rule", len(spec.argument_names) + 1, spec.table.size)
        next_node_cells, next_state_cell = (
            _format_column_range("Moves", 2, spec.node_rows.size),
            f"$C${inputs['next state']}",
        )
        node_row = f"INDEX({node_row_cells},{row_cell})*{S}+{next_state_cell}"
        next_node = f"IF({next_state_cell}<1,NA(),INDEX({next_node_cells},{node_row}))"
        yield ["next node", CellFormula(f"=IFERROR({next_node},{ERROR_TEXT})")]
        initial_node = (
            f"IF({state_cell}<1,NA(),INDEX({_format_column_range('States', 1, S)},{state_cell}))"
        )
        yield ["an episode begins in node", CellFormula(f"=IFERROR({initial_node},{ERROR_TEXT})")]
    for line in spec.provenance_lines[1:]:
        yield [line]


def _format_row_formula(spec: PolicySpec, inputs: dict[str, int], state_cell: str) -> str:
    """Format the formula of the table row, from 1; an error for bad inputs."""
    error_tests, row = [f"{state_cell}<1"], f"{state_cell}-1"
    for name, size in (("time", len(spec.table)), ("node", spec.n_nodes)):
        if name in spec.argument_names:
            cell = f"$B${inputs[name]}"
            error_tests += [f"{cell}<0", f"{cell}>{size - 1}", f"{cell}<>INT({cell})"]
            row_with_time = f"{cell}*{len(spec.states)}+{row}"
            row = row_with_time if name == "time" else f"({row})*{spec.n_nodes}+{cell}"
    return f"IF(OR({','.join(error_tests)}),NA(),{row}+1)"


# ---------------------------------------------------------------------- trees
def _iter_tree_rows(
    spec: PolicySpec, inputs: dict[str, int], row: int
) -> Iterator[Sequence[object]]:
    """Yield the rows that evaluate the tree: features, leaf, action."""
    assert spec.tree is not None
    S, A, state_cell = len(spec.states), len(spec.actions), f"$C${inputs['state']}"
    for j, i in enumerate(spec.features_used, 1):
        cells = _format_column_range("States", j, S)
        yield [
            spec.features[i].name,
            CellFormula(f"=IFERROR(INDEX({cells},{state_cell}),{ERROR_TEXT})"),
        ]
    leaf_row = row + len(spec.features_used) + 1
    yield ["leaf", CellFormula(f"={_format_tree_formula(spec, spec.tree)}")]
    first_column, last_column = (
        _column_letter(len(spec.features_used) + 1),
        _column_letter(len(spec.features_used) + A),
    )
    cells = f"States!${first_column}$2:${last_column}${S + 1}"
    formula = f"IF(ISERROR($B${row}),NA(),INDEX({cells},{state_cell},$B${leaf_row}))"
    yield ["action", CellFormula(f"=IFERROR({formula},{ERROR_TEXT})")]


def _format_tree_formula(spec: PolicySpec, node: DecisionNode) -> str:
    """Format a subtree as nested IF formulas that give the id of an action, from 1."""
    if isinstance(node, Leaf):
        return str(node.action + 1)
    feature, inputs = spec.features[node.feature], _input_rows(spec)
    if feature.is_time:
        cell = f"$B${inputs['time']}"
    else:
        cell = f"$B${len(inputs) + 3 + spec.features_used.index(node.feature)}"
    if feature.is_ordered:
        condition = f"{cell}<={float(feature.get_threshold(node.threshold_id))!r}"
    else:
        column = _column_letter(spec.features_used.index(node.feature))
        condition = f"EXACT({cell},Levels!${column}${node.threshold_id + 2})"
    branches = (_format_tree_formula(spec, x) for x in (node.if_true, node.if_false))
    return f"IF({condition},{','.join(branches)})"


def _fits_formula(spec: PolicySpec) -> bool:
    """Return whether the tree fits into one formula of Excel."""

    def compute_depth(node: DecisionNode) -> int:
        """Compute the depth of a subtree."""
        return (
            0
            if isinstance(node, Leaf)
            else 1 + max(compute_depth(node.if_true), compute_depth(node.if_false))
        )

    assert spec.tree is not None
    return (
        compute_depth(spec.tree) <= MAX_DEPTH
        and len(_format_tree_formula(spec, spec.tree)) <= MAX_LENGTH
    )


# ---------------------------------------------------------------------- what is looked up
def _make_sheets(spec: PolicySpec, uses_tree: bool) -> dict[str, Iterator[Sequence[object]]]:
    """Make the lookup sheets by title: rows of states, levels, table, nodes."""
    sheets = {"States": _iter_state_rows(spec, uses_tree)}
    if uses_tree:
        sheets["Levels"] = _iter_level_rows(spec)
    else:
        sheets["Rule"] = _iter_rule_rows(spec)
    if spec.node_rows is not None:
        sheets["Moves"] = _iter_node_rows(spec)
    return sheets


def _iter_state_rows(spec: PolicySpec, uses_tree: bool) -> Iterator[Sequence[object]]:
    """Yield the rows of the sheet of states: initial node, features, actions by leaf."""
    node_header = [] if spec.initial_nodes is None else ["begins in node"]
    feature_names = [spec.features[i].name for i in spec.features_used]
    leaf_headers = [f"leaf says {x}" for x in spec.actions]
    yield ["state", *node_header, *([*feature_names, *leaf_headers] if uses_tree else [])]
    feature_values = list_feature_values(spec)
    for s, state in enumerate(spec.states):
        initial_node = [] if spec.initial_nodes is None else [int(spec.initial_nodes[s])]
        leaf_actions = (
            spec.actions[spec.get_allowed_action(s, a)] for a in range(len(spec.actions))
        )
        yield [state, *initial_node, *([*feature_values[s], *leaf_actions] if uses_tree else [])]


def _iter_level_rows(spec: PolicySpec) -> Iterator[Sequence[object]]:
    """Yield the levels of the categorical features, one column each."""
    features = [spec.features[i] for i in spec.features_used]
    yield [x.name for x in features]
    for row in range(max((len(x.levels) for x in features), default=0)):
        yield [x.levels[row] if row < len(x.levels) else None for x in features]


def _iter_rule_rows(spec: PolicySpec) -> Iterator[Sequence[object]]:
    """Yield the rows of the policy table."""
    node_row_header = [] if spec.node_row_ids is None else ["node_row"]
    yield [
        *spec.argument_names,
        *(spec.actions if spec.is_randomized else ["action"]),
        *node_row_header,
    ]
    for position, shares, node_row in iter_rows(spec):
        row_values: list[object] = [spec.actions[a] for a, _ in shares]
        if spec.is_randomized:
            row_values = [dict(shares).get(a, 0.0) for a in range(len(spec.actions))]
        yield [*position, *row_values, *node_row]


def _iter_node_rows(spec: PolicySpec) -> Iterator[Sequence[object]]:
    """Yield the rows of the node transitions: node row id, next state, next node."""
    assert spec.node_rows is not None
    yield ["node_row", "next state", "next node"]
    for (row_id, s), node in np.ndenumerate(spec.node_rows):
        yield [row_id, spec.states[s], int(node)]


def _format_column_range(sheet: str, j: int, n_rows: int) -> str:
    """Format the address of a column's cells below its heading."""
    return f"{sheet}!${_column_letter(j)}$2:${_column_letter(j)}${n_rows + 1}"


def _column_letter(j: int) -> str:
    """Format a column index as letters.

    >>> _column_letter(0), _column_letter(25), _column_letter(26)
    ('A', 'Z', 'AA')
    """
    return (_column_letter(j // 26 - 1) if j >= 26 else "") + chr(ord("A") + j % 26)
