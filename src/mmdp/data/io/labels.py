"""Conversion of columns of labels or ids to ids from 0, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import validate
from mmdp.core.validate import are_ids

IntArray = npt.NDArray[np.int64]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class CodedColumn:
    """A column as codes (-1: missing) and the category of each code.

    Without ``categories`` the codes are ids themselves. If ``is_ordered``, the categories come in
    an order of their own.

    >>> column = encode_column(["up", "down", None, "up"])
    >>> column.codes.tolist(), column.find_ids(("down", "up")).tolist()
    ([0, 1, -1, 0], [1, 0, -1, 1])
    """

    codes: npt.NDArray[np.integer]
    categories: list[str] | None
    is_ordered: bool = False

    @property
    def has_ids(self) -> bool:
        """Whether the column holds ids, not labels."""
        return self.categories is None or are_ids(self.categories)

    def parse_ids(self) -> IntArray:
        """Parse the ids (rows,) that the column holds."""
        if self.categories is None:
            return self.codes.astype(np.int64, copy=False)
        return np.array([int(float(x)) for x in self.categories], dtype=np.int64)[self.codes]

    def is_blank(self, blank_texts: Collection[str] = ("",)) -> npt.NDArray[np.bool_]:
        """Find the cells (rows,) that are missing or one of ``blank_texts``."""
        blank_codes = [
            i for i, text in enumerate(self.categories or ()) if text.strip() in blank_texts
        ]
        is_missing = self.codes < 0
        return is_missing | np.isin(self.codes, blank_codes) if blank_codes else is_missing

    def find_ids(self, labels: Sequence[str]) -> IntArray:
        """Find the index (rows,) of each cell among labels; -1 if it is none of them."""
        label_index = validate.LabelIndex("label", len(labels), tuple(labels))
        return np.append(label_index.find_ids(self._category_texts), -1)[self.codes]

    def get_text(self, row: int) -> str:
        """Get the text of a cell."""
        return self._category_texts[self.codes[row]]

    def find_used_categories(self) -> list[str]:
        """List the categories that occur: in their own order, or in order of appearance."""
        categories, n_rows = self._category_texts, len(self.codes)
        first_rows = np.full(len(categories) + 1, n_rows)  # the last entry is for missing values
        first_rows[self.codes[::-1]] = np.arange(n_rows - 1, -1, -1)
        used_codes = np.flatnonzero(first_rows[:-1] < n_rows)
        order = used_codes if self.is_ordered else used_codes[np.argsort(first_rows[used_codes])]
        return [categories[i] for i in order]

    @property
    def _category_texts(self) -> list[str]:
        if self.categories is not None:
            return self.categories
        return [str(i) for i in range(int(self.codes.max(initial=-1)) + 1)]


def encode_column(column: pd.Series | Iterable[object]) -> CodedColumn:
    """Encode a column of any values as codes and categories."""
    series = column if isinstance(column, pd.Series) else pd.Series(list(column), dtype=object)
    if isinstance(series.dtype, pd.CategoricalDtype):
        return CodedColumn(
            series.cat.codes.to_numpy(), [str(x) for x in series.cat.categories], True
        )
    codes, uniques = pd.factorize(series)
    return CodedColumn(codes, [str(x) for x in uniques])


def collect_labels(columns: Iterable[CodedColumn]) -> Labels:
    """Collect the labels that occur in several columns, those of the first one first."""
    return tuple(
        dict.fromkeys(text for column in columns for text in column.find_used_categories())
    )


class ColumnLabels(validate.LabelIndex):
    """Labels of an axis, looked up in columns.

    >>> ColumnLabels("state", 2, ("up", "down")).find_ids(["down", "left"]).tolist()
    [1, -1]
    """

    __slots__ = ()

    def find_ids(self, values: pd.Series | Iterable[object]) -> IntArray:
        """Find the ids (rows,) of labels, or of ids if there are no labels; -1 if unknown."""
        column = encode_column(values)
        return np.append(super().find_ids(column.categories or ()), -1)[column.codes]
