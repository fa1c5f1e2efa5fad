"""Ids for what a table names: states, actions, models and times, by number or by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import Remedy
from mmdp.io.labels import Coded, Ints, Labels, Names, coded, labels_of
from mmdp.io.reading import Source, numbers
from mmdp.io.rules import Rules
from mmdp.kernels.distributions import clip
from mmdp.support import Array
from mmdp.validate import ordered

KINDS = {"state": ("state", "next_state"), "action": ("action",), "model": ("model",)}


@dataclass
class Ids:
    """Transitions as ids: columns by role, and what the ids of each kind stand for.

    ``labels`` has the kinds that the table names by label; ``relabelled`` those among them
    whose labels are old ids with gaps.
    """

    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)
    relabelled: set[str] = field(default_factory=set)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, S, A)."""
        return self.sizes["model"], self.sizes["state"], self.sizes["action"]

    @property
    def horizon(self) -> int | None:
        return self.sizes.get("time")

    def lookup(self, kind: str, values: pd.Series, source: Source) -> Ints:
        """The ids meant by a column of a file that goes with the transitions."""
        names = Names(kind, self.sizes[kind], self.labels.get(kind))
        found = names.find(values)
        bad = np.flatnonzero(found < 0)
        if len(bad):
            limit = "" if names.labels is not None else f" (0..{names.size - 1})"
            row, value = int(values.index[bad[0]]), values.iloc[bad[0]]
            source.fail(f"no {kind} {value!r} in the transitions{limit}", row)
        return found


def encode(
    raw: Mapping[str, Any],
    source: Source,
    rules: Rules,
    labels: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Ids:
    """Ids of every row.

    ``labels`` may give the order of the labels (or names for ids) by ``states``, ``actions``
    and ``models``, ``sizes`` the number of a kind if some do not occur.
    """
    ids = Ids()
    columns = {"model": np.zeros(len(raw["state"]), dtype=np.int64), **raw}
    for kind, roles in KINDS.items():
        wanted = ordered(labels.get(f"{kind}s"), kind)
        parts = [columns[role] for role in roles]
        if all(_is_numeric(part) for part in parts):
            known = sizes.get(kind) if wanted is None else len(wanted)
            _put_numbers(ids, kind, roles, parts, source, known, rules.id_gaps == "relabel")
        else:
            codes, names = _from_labels(kind, parts, wanted, source)
            ids.labels[kind], ids.sizes[kind] = names, len(names)
            ids.columns |= dict(zip(roles, codes, strict=True))
    if "time" in raw:
        if not _is_numeric(raw["time"]):
            source.fail("times must be whole numbers from 0")
        _put_numbers(ids, "time", ("time",), [raw["time"]], source, None, False)
    for role in ("probability", "reward"):
        ids.columns[role] = _finite(raw[role], role, source)
    return ids


def _is_numeric(values: Any) -> bool:
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    kind = values.dtype.kind
    return kind in "iuf" or (
        kind == "O" and pd.api.types.infer_dtype(values, skipna=False) == "integer"
    )


def whole(values: Any, role: str, source: Source) -> Ints:
    """A numeric column as whole, non-negative ids."""
    if pd.api.types.is_extension_array_dtype(values):
        source.refuse(pd.isna(values), f"{role} is empty; ids are whole numbers from 0")
    array = np.asarray(values)
    if array.dtype.kind == "O":
        array = array.astype(np.float64)
    if array.dtype.kind == "f":
        source.refuse(
            ~np.isfinite(array) | (array != np.floor(array)),
            lambda i: f"{role} is {array[i]:g}, not a whole number; ids count from 0",
        )
        source.refuse(array >= 2.0**53, lambda i: f"{role} id {array[i]:g} is too large")
    array = array.astype(np.int64, copy=False)
    if array.min() < 0:
        row = int(np.argmax(array < 0))
        source.fail(f"{role} is {array[row]}; ids count from 0, none is negative", row)
    return array


def _put_numbers(
    ids: Ids, kind: str, roles: Sequence[str], parts: Sequence[Any], source: Source,
    known: int | None, relabel: bool,
) -> None:  # fmt: skip
    """Take ids as they are; gaps are filled by relabelling, or an error."""
    arrays = [whole(part, role, source) for part, role in zip(parts, roles, strict=True)]
    top = max(int(array.max()) for array in arrays)
    if known is not None and top < known:
        ids.sizes[kind] = known
    else:
        present = _present(arrays, top)
        if len(present) <= top:
            if not relabel:
                _fail_gap(kind, roles, arrays, present, source)
            arrays = [np.searchsorted(present, array) for array in arrays]
            ids.labels[kind] = tuple(map(str, present.tolist()))
            ids.relabelled.add(kind)
        ids.sizes[kind] = len(present)
    ids.columns |= dict(zip(roles, arrays, strict=True))


def _present(arrays: Sequence[Ints], top: int) -> Ints:
    """The ids that occur, sorted."""
    if top >= sum(map(len, arrays)):  # a gap for sure: never allocate by the largest id
        return np.unique(np.concatenate(arrays))
    seen = np.zeros(top + 1, dtype=bool)
    for array in arrays:
        seen[array] = True
    return np.flatnonzero(seen)


def _fail_gap(
    kind: str, roles: Sequence[str], arrays: Sequence[Ints], present: Ints, source: Source
) -> None:
    gap = int(np.argmax(present != np.arange(len(present))))
    after = int(present[gap])
    role, array = next((r, x) for r, x in zip(roles, arrays, strict=True) if (x == after).any())
    what = "time" if kind == "time" else f"{kind} id"
    remedies: list[str | Remedy] = ["number them from 0 without gaps", Remedy("id_gaps", "relabel")]
    source.fail(
        f"{role} is {after} but no {what} is {gap} ({len(present)} distinct, largest "
        f"{present[-1]})",
        int(np.argmax(array == after)),
        remedies[:1] if kind == "time" else remedies,
    )


def _from_labels(
    kind: str, parts: Sequence[Any], wanted: Labels | None, source: Source
) -> tuple[list[Ints], Labels]:
    """Ids from labels: in the wanted order, the categories' order, or as they first appear."""
    columns = [coded(pd.Series(part)) for part in parts]
    for column in columns:
        blank = column.blank(("",) if wanted is None else ())
        source.refuse(blank, f"a {kind} is empty; give its label or id")
    if wanted is None:
        ordered = all(column.ordered for column in columns)
        wanted = labels_of(replace(column, ordered=ordered) for column in columns)
    return [_among(wanted, kind, column, source) for column in columns], wanted


def _among(labels: Labels, kind: str, column: Coded, source: Source) -> Ints:
    ids = column.ids(labels)
    among = f"is not among the labels of {kind}s given"
    source.refuse(ids < 0, lambda i: f"{kind} {column.text(i)!r} {among}")
    return ids


def _finite(values: Any, role: str, source: Source) -> Array:
    array = numbers(pd.Series(values).reset_index(drop=True), role, source)
    with np.errstate(all="ignore"):
        suspicious = not np.isfinite(array.sum())  # one pass less if all is well
    if suspicious and not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array)))
        source.fail(f"{role} is {array[row]}; give a finite number", row)
    array = clip(array) if role == "probability" else array
    if role == "probability" and array.min() < 0:
        row = int(np.argmax(array < 0))
        source.fail(f"negative probability {array[row]:g}; it must be from 0 to 1", row)
    return array
