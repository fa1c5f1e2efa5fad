"""Labels and ids: the one place where what a column says becomes ids from 0, and back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import InputError
from mmdp.words import some, suggested

Ints = npt.NDArray[np.int64]
Labels = tuple[str, ...]

_WHOLE = re.compile(r"(0|[1-9][0-9]{0,15})(\.0*)?")


def are_whole(texts: Iterable[str]) -> bool:
    """Whether all are ids: ``3`` or ``3.0``."""
    return all(_WHOLE.fullmatch(text) for text in texts)


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
        places = pd.Index(labels).get_indexer(pd.Index(self._texts)).astype(np.int64)
        return np.append(places, -1)[self.codes]

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


@dataclass(frozen=True)
class Names:
    """What the ids 0..size-1 of a kind (state, action or model) stand for.

    >>> names = Names("state", 2, ("up", "down"))
    >>> names.find(["down", "left"]).tolist(), names.of(1)
    ([1, -1], "'down'")
    """

    kind: str
    size: int
    labels: Labels | None

    def of(self, index: int) -> str:
        """The id or label as shown in messages."""
        return str(index) if self.labels is None else repr(self.labels[index])

    def shown(self, index: int) -> str | int:
        """The label, or the id if there are no labels."""
        return index if self.labels is None else self.labels[index]

    def find(self, values: pd.Series | Iterable[object]) -> Ints:
        """(rows,) the ids of labels, or of ids if there are no labels; -1 if unknown."""
        column = coded(values)
        if self.labels is not None:
            return column.ids(self.labels)
        given = pd.to_numeric(pd.Series(column.texts, dtype=object), errors="coerce")
        ids = given.to_numpy(np.float64)
        known = (ids == np.floor(ids)) & (ids >= 0) & (ids < self.size)
        return np.append(np.where(known, ids, -1), -1).astype(np.int64)[column.codes]

    def place(self, value: object) -> int:
        """The id of one label or id; an error that suggests the right one."""
        found = int(self.find([value])[0])
        if found < 0:
            raise InputError(self.unknown(value))
        return found

    def unknown(self, value: object) -> str:
        """What to say about a value that is none of them."""
        known = self.labels if self.labels is not None else [f"0..{self.size - 1}"]
        return f"unknown {self.kind} {suggested(str(value), known)}; the log has {some(known)}"
