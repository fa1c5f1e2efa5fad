"""Export of a policy as an Excel workbook that looks up decisions by formulas.

Labels are in cells of their own, never inside a formula, and always text. They are compared by
EXACT, since MATCH takes stars and question marks for wildcards and ignores case.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mmdp.core.errors import InputError
from mmdp.insight.exports.spec import PolicySpec

MAX_LENGTH = 8000  # letters of a label
Sheet = Any  # a worksheet of openpyxl, which may not be installed
ERROR_TEXT = '"check what is typed above"'


class CellFormula(str):
    """Text that Excel computes; other text is stored as text."""


def render(spec: PolicySpec) -> bytes:
    """Render a policy as the bytes of an Excel workbook."""
    try:
        from openpyxl import Workbook
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
    except ImportError:
        raise InputError("Excel files need openpyxl; pip install 'mmdp[excel]'") from None
    for label in (*spec.states, *spec.actions):
        if ILLEGAL_CHARACTERS_RE.search(label) or "\r" in label or len(label) > MAX_LENGTH:
            raise InputError(f"Excel cannot hold the label {label[:40]!r}; rename it")
    workbook = Workbook(write_only=True)
    front_sheet = workbook.create_sheet("Decide")
    front_sheet.column_dimensions["A"].width = front_sheet.column_dimensions["B"].width = 30
    _append_rows(front_sheet, _iter_front_rows(spec))
    _add_validation(front_sheet, spec)
    state_columns: list[list[object]] = [["state", *spec.states]]
    if spec.has_nodes:
        state_columns.append(["begins in node", *spec.initial_nodes.tolist()])
    _append_rows(workbook.create_sheet("States"), zip(*state_columns, strict=True))
    _append_rows(workbook.create_sheet("Rule"), _iter_rule_rows(spec))
    if spec.has_nodes:
        _append_rows(workbook.create_sheet("Moves"), _iter_node_rows(spec))
    file = io.BytesIO()
    workbook.save(file)
    return file.getvalue()


def _append_rows(sheet: Sheet, rows: Iterable[Sequence[object]]) -> None:
    """Append rows of values; text that looks like a formula or an error is marked as text."""
    from openpyxl.cell import WriteOnlyCell

    def make_cell(value: object) -> object:
        if isinstance(value, CellFormula) or not str(value).startswith(("=", "#")):
            return value
        cell = WriteOnlyCell(sheet, value)
        cell.data_type, cell.number_format = "s", "@"
        return cell

    for row in rows:
        sheet.append([make_cell(value) for value in row])


def _add_validation(sheet: Sheet, spec: PolicySpec) -> None:
    """Add dropdown lists and limits to the input cells of the front sheet."""
    from openpyxl.worksheet.datavalidation import DataValidation

    sizes = {"time": len(spec.table), "node": spec.n_nodes}
    for name, row in _input_rows(spec).items():
        if name in sizes:
            validation = DataValidation("whole", "0", str(sizes[name] - 1), operator="between")
        else:
            validation = DataValidation("list", f"={_format_range('States', 0, len(spec.states))}")
        validation.add(f"B{row}")
        sheet.data_validations.append(validation)


# ---------------------------------------------------------------------- what people see
def _input_rows(spec: PolicySpec) -> dict[str, int]:
    """Get the row of each input cell on the front sheet, by name."""
    names = [*spec.argument_names, *["next state"] * spec.has_nodes]
    return {name: row for row, name in enumerate(names, 2)}


def _iter_front_rows(spec: PolicySpec) -> Iterator[Sequence[object]]:
    """Yield the rows of the front sheet: inputs, decision, next node, provenance."""
    inputs, S = _input_rows(spec), len(spec.states)
    n_arguments, n_cells = len(spec.argument_names), spec.table.size
    yield spec.provenance_lines[:1]
    for name, row in inputs.items():
        if name.endswith("state"):  # its place, from 1; 0 if there is none
            state_cells = _format_range("States", 0, S)
            formula = f"=SUMPRODUCT(EXACT({state_cells},$B${row})*(ROW({state_cells})-1))"
            yield name, spec.states[0], CellFormula(formula)
        else:
            yield name, 0
    state_cell, row_cell = f"$C${inputs['state']}", f"$B${len(inputs) + 2}"
    yield "row", CellFormula(f"={_format_row_formula(spec, inputs, state_cell)}")
    for i, name in enumerate(spec.actions if spec.is_randomized else ["action"]):
        yield _look_up(name, "Rule", n_arguments + i, n_cells, row_cell)
    if spec.has_nodes:
        next_state_cell = f"$C${inputs['next state']}"
        rule_cells = _format_range("Rule", n_arguments + 1, n_cells)
        index = f"INDEX({rule_cells},{row_cell})*{S}+{next_state_cell}"
        yield _look_up("next node", "Moves", 2, spec.node_rows.size, index, next_state_cell)
        yield _look_up("an episode begins in node", "States", 1, S, state_cell, state_cell)
    for line in spec.provenance_lines[1:]:
        yield [line]


def _format_row_formula(spec: PolicySpec, inputs: dict[str, int], state_cell: str) -> str:
    """Format the formula of the table row, from 1; an error for bad inputs."""
    error_tests, row = [f"{state_cell}<1"], f"{state_cell}-1"
    for name, size in (("time", len(spec.table)), ("node", spec.n_nodes)):
        if name in inputs:
            cell = f"$B${inputs[name]}"
            error_tests += [f"{cell}<0", f"{cell}>{size - 1}", f"{cell}<>INT({cell})"]
            row_with_time = f"{cell}*{len(spec.states)}+{row}"
            row = row_with_time if name == "time" else f"({row})*{spec.n_nodes}+{cell}"
    return f"IF(OR({','.join(error_tests)}),NA(),{row}+1)"


def _look_up(
    name: str, sheet: str, column: int, n_rows: int, index: str, state_cell: str = ""
) -> tuple[str, CellFormula]:
    """Make a name and the formula of a cell of a column, which says what to do if it fails."""
    formula = f"INDEX({_format_range(sheet, column, n_rows)},{index})"
    formula = f"IF({state_cell}<1,NA(),{formula})" if state_cell else formula
    return name, CellFormula(f"=IFERROR({formula},{ERROR_TEXT})")


def _format_range(sheet: str, column: int, n_rows: int) -> str:
    """Format the address of a column's cells below its heading."""
    from openpyxl.utils import get_column_letter

    letter = get_column_letter(column + 1)
    return f"{sheet}!${letter}$2:${letter}${n_rows + 1}"


# ---------------------------------------------------------------------- what is looked up
def _iter_rule_rows(spec: PolicySpec) -> Iterator[Sequence[object]]:
    """Yield the rows of the policy table."""
    values = spec.actions if spec.is_randomized else ["action"]
    yield [*spec.argument_names, *values, *["node_row"] * spec.has_nodes]
    for arguments, shares, node_row in spec.iter_cells():
        row_values: list[object] = [spec.actions[a] for a, _ in shares]
        if spec.is_randomized:
            row_values = [dict(shares).get(a, 0.0) for a in range(len(spec.actions))]
        yield [*arguments, *row_values, *node_row]


def _iter_node_rows(spec: PolicySpec) -> Iterator[Sequence[object]]:
    """Yield the rows of the node transitions: node row id, next state, next node."""
    yield ["node_row", "next state", "next node"]
    for (row_id, s), node in np.ndenumerate(spec.node_rows):
        yield [row_id, spec.states[s], int(node)]
