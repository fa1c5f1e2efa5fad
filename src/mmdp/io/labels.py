"""Labels and ids: the one place where what a column says becomes ids from 0, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import validate
from mmdp.validate import are_whole as are_whole

Ints = npt.NDArray[np.int64]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Coded:
    """A column as codes (-1: missing) and the texts they stand for.

    Without ``texts`` the codes are ids themselves. ``ordered`` texts come in an order of their
    own, that of the categories.

    >>> column = coded(["up", "down", None, "up"])
    >>> column.codes.tolist(), column.ids(("down", "up")).tolist()
    ([0, 1, -1, 0], [1, 0, -1, 1])
    """

    codes: npt.NDArray[np.integer]
    texts: list[str] | None
    ordered: bool = False

    @property
    def whole(self) -> bool:
        """Whether the column holds ids."""
        return self.texts is None or are_whole(self.texts)

    def numbers(self) -> Ints:
        """(rows,) the ids that the column holds."""
        if self.texts is None:
            return self.codes.astype(np.int64, copy=False)
        return np.array([int(float(x)) for x in self.texts], dtype=np.int64)[self.codes]

    def blank(self, texts: Collection[str] = ("",)) -> npt.NDArray[np.bool_]:
        """(rows,) whether a cell is empty, or one of ``texts``, which mean the same."""
        empty = [i for i, text in enumerate(self.texts or ()) if text.strip() in texts]
        missing = self.codes < 0
        return missing | np.isin(self.codes, empty) if empty else missing

    def ids(self, labels: Sequence[str]) -> Ints:
        """(rows,) the place of each text among the labels; -1 if it is none of them."""
        names = validate.Labels("label", len(labels), tuple(labels))
        return np.append(names.find(self._texts), -1)[self.codes]

    def text(self, row: int) -> str:
        return self._texts[self.codes[row]]

    def used(self) -> list[str]:
        """The texts that occur: in their own order, or as they first appear."""
        texts, rows = self._texts, len(self.codes)
        first = np.full(len(texts) + 1, rows)  # the last place is for missing values
        first[self.codes[::-1]] = np.arange(rows - 1, -1, -1)
        there = np.flatnonzero(first[:-1] < rows)
        order = there if self.ordered else there[np.argsort(first[there])]
        return [texts[i] for i in order]

    @property
    def _texts(self) -> list[str]:
        if self.texts is not None:
            return self.texts
        return [str(i) for i in range(int(self.codes.max(initial=-1)) + 1)]


def coded(column: pd.Series | Iterable[object]) -> Coded:
    """A column of anything as codes and texts."""
    series = column if isinstance(column, pd.Series) else pd.Series(list(column), dtype=object)
    if isinstance(series.dtype, pd.CategoricalDtype):
        return Coded(series.cat.codes.to_numpy(), [str(x) for x in series.cat.categories], True)
    codes, uniques = pd.factorize(series)
    return Coded(codes, [str(x) for x in uniques])


def labels_of(parts: Iterable[Coded]) -> Labels:
    """The labels that occur in several columns, those of the first one first."""
    return tuple(dict.fromkeys(text for part in parts for text in part.used()))


class Names(validate.Labels):
    """What the ids of a kind stand for, looked up in columns.

    >>> Names("state", 2, ("up", "down")).find(["down", "left"]).tolist()
    [1, -1]
    """

    __slots__ = ()

    def find(self, values: pd.Series | Iterable[object]) -> Ints:
        """(rows,) the ids of labels, or of ids if there are no labels; -1 if unknown."""
        column = coded(values)
        return np.append(super().find(column.texts or ()), -1)[column.codes]
