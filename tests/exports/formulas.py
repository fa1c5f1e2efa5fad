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
SIGNS = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, "<>": operator.ne, "+": operator.add,
    "-": operator.sub, "*": operator.mul,
}  # fmt: skip
LEVELS = (("<", ">", "<=", "<>"), ("+", "-"), ("*",))
Lazy = Callable[[], Any]


def _both(sign: Callable[[Any, Any], Any], a: Lazy, b: Lazy) -> Any:
    return sign(a(), b())


class Wrong(Exception):
    """An error value, such as #N/A."""


class Workbook:
    """A workbook whose front sheet is computed when it is asked."""

    def __init__(self, file: Path) -> None:
        import openpyxl

        self.book = openpyxl.load_workbook(file)
        self.front = self.book["Decide"]
        self.row = {row[0].value: row[0].row for row in self.front.iter_rows()}
        self.blocks: dict[str, Any] = {}
        self.parsed: dict[str, Lazy] = {}

    def ask(self, given: dict[str, Any]) -> None:
        for name, value in given.items():
            cell = self.front.cell(self.row[name], 2, value)
            cell.data_type = "s" if isinstance(value, str) else "n"

    def answer(self, name: str) -> Any:
        return self.value(self.front.cell(self.row[name], 2))

    def value(self, cell: Any) -> Any:
        if cell.data_type != "f":
            return cell.value
        if cell.value not in self.parsed:
            self.tokens = TOKEN.findall(cell.value)
            assert "".join(self.tokens) == cell.value[1:], cell.value
            self.parsed[cell.value] = self._compared()
            assert not self.tokens
        return self.parsed[cell.value]()

    def at(self, place: str) -> Any:
        """The value of a cell, or an array (rows, columns)."""
        if place in self.blocks:
            return self.blocks[place]
        sheet, _, cells = place.replace("$", "").rpartition("!")
        found = (self.book[sheet] if sheet else self.front)[cells]
        if not isinstance(found, tuple):
            return self.value(found)
        values = [[x.value for x in row] for row in found]
        return self.blocks.setdefault(place, np.array(values, dtype=object))

    # ------------------------------------------------------------ formulas, from the outside in
    def _compared(self, level: int = 0) -> Lazy:
        if level == len(LEVELS):
            return self._atom()
        found = self._compared(level + 1)
        while self.tokens and self.tokens[0] in LEVELS[level]:
            sign = SIGNS[self.tokens.pop(0)]
            found = partial(_both, sign, found, self._compared(level + 1))
        return found

    def _atom(self) -> Lazy:
        token = self.tokens.pop(0)
        if token == "(":
            found = self._compared()
            assert self.tokens.pop(0) == ")"
            return found
        if token[0] == '"':
            return lambda: token[1:-1]
        if "$" in token:
            return lambda: self.at(token)
        if token[0].isdigit():
            return lambda: float(token)
        assert self.tokens.pop(0) == "("
        taken: list[Lazy] = []
        while self.tokens[0] != ")":
            taken.append(self._compared())
            if self.tokens[0] == ",":
                self.tokens.pop(0)
        self.tokens.pop(0)
        return lambda: getattr(self, f"_{token.lower()}")(*taken)

    # ------------------------------------------------------------ functions
    def _if(self, asked: Lazy, yes: Lazy, no: Lazy) -> Any:
        return yes() if asked() else no()

    def _iferror(self, found: Lazy, other: Lazy) -> Any:
        try:
            return found()
        except Wrong:
            return other()

    def _iserror(self, found: Lazy) -> bool:
        try:
            found()
        except Wrong:
            return True
        return False

    def _na(self) -> Any:
        raise Wrong

    def _or(self, *asked: Lazy) -> bool:
        return max(x() for x in asked)  # asks all of them, as Excel does

    def _int(self, x: Lazy) -> float:
        return np.floor(x())

    def _exact(self, a: Lazy, b: Lazy) -> Any:
        return np.asarray(a() == b()) if isinstance(a(), np.ndarray) else a() == b()

    def _row(self, cells: Lazy) -> Any:
        return np.arange(2, 2 + len(cells()))[:, None]  # all our columns begin in row 2

    def _sumproduct(self, x: Lazy) -> float:
        return float(x().sum())

    def _index(self, cells: Lazy, row: Lazy, column: Lazy = lambda: 1) -> Any:
        found, i, j = cells(), row(), column()
        if not (1 <= i <= len(found) and 1 <= j <= found.shape[1]):
            raise Wrong
        return found[int(i) - 1, int(j) - 1]
