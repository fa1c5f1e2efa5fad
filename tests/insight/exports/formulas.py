"""What Excel computes in our workbooks: only the functions that they use, errors as exceptions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

TOKEN = re.compile(
    r'"[^"]*"|(?:[A-Z]\w*!)?\$[A-Z]+\$\d+(?::\$[A-Z]+\$\d+)?|[A-Z]+(?=\()|\d+(?:\.\d+)?(?:e[+-]?\d+)?'
    r"|<=|<>|[-+*(),<>]"
)
OPERATORS = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    "<>": operator.ne,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
PRECEDENCE = (("<", ">", "<=", "<>"), ("+", "-"), ("*",))
Lazy = Callable[[], Any]


def _apply_operator(function: Callable[[Any, Any], Any], a: Lazy, b: Lazy) -> Any:
    return function(a(), b())


class FormulaError(Exception):
    """An error value, such as #N/A."""


class Workbook:
    """A workbook whose front sheet is computed when it is asked."""

    def __init__(self, file: Path) -> None:
        import openpyxl

        self.book = openpyxl.load_workbook(file)
        self.front_sheet = self.book["Decide"]
        self.row_by_name = {row[0].value: row[0].row for row in self.front_sheet.iter_rows()}
        self.ranges: dict[str, Any] = {}
        self.parsed_formulas: dict[str, Lazy] = {}

    def set_inputs(self, inputs: dict[str, Any]) -> None:
        for name, value in inputs.items():
            cell = self.front_sheet.cell(self.row_by_name[name], 2, value)
            cell.data_type = "s" if isinstance(value, str) else "n"

    def read_output(self, name: str) -> Any:
        return self.compute_cell(self.front_sheet.cell(self.row_by_name[name], 2))

    def compute_cell(self, cell: Any) -> Any:
        if cell.data_type != "f":
            return cell.value
        if cell.value not in self.parsed_formulas:
            self.tokens = TOKEN.findall(cell.value)
            assert "".join(self.tokens) == cell.value[1:], cell.value
            self.parsed_formulas[cell.value] = self._parse_level()
            assert not self.tokens
        return self.parsed_formulas[cell.value]()

    def read_range(self, address: str) -> Any:
        """The value of a cell, or an array (rows, columns)."""
        if address in self.ranges:
            return self.ranges[address]
        sheet, _, cells = address.replace("$", "").rpartition("!")
        cell_or_rows = (self.book[sheet] if sheet else self.front_sheet)[cells]
        if not isinstance(cell_or_rows, tuple):
            return self.compute_cell(cell_or_rows)
        values = [[x.value for x in row] for row in cell_or_rows]
        return self.ranges.setdefault(address, np.array(values, dtype=object))

    # ------------------------------------------------------------ formulas, from the outside in
    def _parse_level(self, level: int = 0) -> Lazy:
        if level == len(PRECEDENCE):
            return self._parse_atom()
        expression = self._parse_level(level + 1)
        while self.tokens and self.tokens[0] in PRECEDENCE[level]:
            function = OPERATORS[self.tokens.pop(0)]
            expression = partial(
                _apply_operator, function, expression, self._parse_level(level + 1)
            )
        return expression

    def _parse_atom(self) -> Lazy:
        token = self.tokens.pop(0)
        if token == "(":
            expression = self._parse_level()
            assert self.tokens.pop(0) == ")"
            return expression
        if token[0] == '"':
            return lambda: token[1:-1]
        if "$" in token:
            return lambda: self.read_range(token)
        if token[0].isdigit():
            return lambda: float(token)
        assert self.tokens.pop(0) == "("
        arguments: list[Lazy] = []
        while self.tokens[0] != ")":
            arguments.append(self._parse_level())
            if self.tokens[0] == ",":
                self.tokens.pop(0)
        self.tokens.pop(0)
        return lambda: getattr(self, f"_{token.lower()}")(*arguments)

    # ------------------------------------------------------------ functions
    def _if(self, condition: Lazy, if_true: Lazy, if_false: Lazy) -> Any:
        return if_true() if condition() else if_false()

    def _iferror(self, value: Lazy, fallback: Lazy) -> Any:
        try:
            return value()
        except FormulaError:
            return fallback()

    def _iserror(self, value: Lazy) -> bool:
        try:
            value()
        except FormulaError:
            return True
        return False

    def _na(self) -> Any:
        raise FormulaError

    def _or(self, *conditions: Lazy) -> bool:
        return max(x() for x in conditions)  # asks all of them, as Excel does

    def _int(self, x: Lazy) -> float:
        return np.floor(x())

    def _exact(self, a: Lazy, b: Lazy) -> Any:
        return np.asarray(a() == b()) if isinstance(a(), np.ndarray) else a() == b()

    def _row(self, cells: Lazy) -> Any:
        return np.arange(2, 2 + len(cells()))[:, None]  # all our columns begin in row 2

    def _sumproduct(self, x: Lazy) -> float:
        return float(x().sum())

    def _index(self, cells: Lazy, row: Lazy, column: Lazy = lambda: 1) -> Any:
        values, i, j = cells(), row(), column()
        if not (1 <= i <= len(values) and 1 <= j <= values.shape[1]):
            raise FormulaError
        return values[int(i) - 1, int(j) - 1]
