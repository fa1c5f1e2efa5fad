"""Named axes of states, actions and events: ranges, labels and grids, and their product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.words import either, some

Array = npt.NDArray[np.float64]
Values = Mapping[str, npt.NDArray[Any]]  # by axis, one entry per row

RESERVED = ("time", "state", "action", "model", "node")  # words of tables and of policies
AGREE = 1e-9  # how far from a point, in units of its axis, a number may be by rounding


class Points:
    """An axis of separate values, all numbers or all text, in the order given."""

    corners: ClassVar[int] = 1

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values
        self.values.setflags(write=False)
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]
        gaps = np.diff(self._sorted.astype(float)) if self.numeric else np.empty(0)
        self._unit = float(gaps.min()) if len(gaps) else 1.0
        self._even = len(gaps) > 0 and values.dtype.kind == "i" and len(set(np.diff(values))) == 1

    @property
    def numeric(self) -> bool:
        return self.values.dtype.kind != "U"

    def find(self, x: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The place (n,) of each value on the axis, and (n,) which values are not on it."""
        if self._even and x.dtype.kind == "i":  # a range: nothing to search
            step = int(self.values[1] - self.values[0])
            at = np.clip((x - self.values[0]) // step, 0, len(self.values) - 1)
            return at, self.values[at] != x
        if self.numeric:
            x = x.astype(float)
            middle = (self._sorted[1:].astype(float) + self._sorted[:-1]) / 2
            at = np.searchsorted(middle, x)
            off = ~(np.abs(self._sorted[at] - x) <= AGREE * self._unit)  # NaN is off too
        else:
            at = np.minimum(np.searchsorted(self._sorted, x), len(self._sorted) - 1)
            off = self._sorted[at] != x
        return self._order[at], off

    def clipped(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values (n,), those beyond an end put on it."""
        return np.clip(x, self._sorted[0], self._sorted[-1])

    def remedy(self, x: Any) -> str:
        """What helps against a value that is not on the axis."""
        if self.numeric and self._sorted[0] < x < self._sorted[-1]:
            return "round it, or make the axis an mmdp.Grid"
        return "clip it, or extend the axis" if self.numeric else "use one of its labels"

    def __str__(self) -> str:
        if not self.numeric or len(self.values) < 4:
            return some(map(str, self.values))
        return f"{self._sorted[0]:g} to {self._sorted[-1]:g}"


class Grid:
    """A continuous axis from ``low`` to ``high`` with evenly spaced points.

    What lies between two points is shared by them: a next state goes to the corners of its cell
    with weights that keep every function that is linear along each axis (multilinear
    interpolation). A finer grid takes longer and comes closer to the problem without a grid, which
    ``mmdp.simulate(policy, model, off_grid=True)`` plays. With ``wraps``, ``high`` is ``low``
    again, as for an angle, and every number has its place.

    >>> import mmdp
    >>> mmdp.Grid(-1.2, 0.6, 4).values.round(2).tolist()
    [-1.2, -0.6, 0.0, 0.6]
    """

    corners: ClassVar[int] = 2

    @checked
    def __init__(self, low: float, high: float, points: int, wraps: bool = False) -> None:
        if points < 2:
            raise InputError(f"a Grid needs a whole number of at least 2 points, not {points!r}")
        if not -math.inf < low < high < math.inf:
            raise InputError(f"a Grid goes from low to high, not from {low} to {high}")
        self.low, self.high, self.points = float(low), float(high), int(points)
        self.wraps = bool(wraps)
        self.values: Array = np.linspace(low, high, points)
        self.values.setflags(write=False)

    numeric: ClassVar[bool] = True

    def find(self, x: npt.NDArray[Any]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """The place (n,) from 0 to points - 1, between points too; and (n,) what is outside."""
        above = x.astype(float) - self.low
        if self.wraps:
            above %= self.high - self.low
        at: Array = above * ((self.points - 1) / (self.high - self.low))
        off = ~((at >= -AGREE) & (at <= self.points - 1 + AGREE))
        return np.clip(np.where(off, 0.0, at), 0.0, self.points - 1), off

    def clipped(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values (n,), those beyond an end put on it."""
        return x if self.wraps else np.clip(x, self.low, self.high)

    def remedy(self, x: Any) -> str:
        return "clip it, or extend the axis"

    def __repr__(self) -> str:
        return f"Grid({self.low:g}, {self.high:g}, {self.points})"

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


Axis = Points | Grid


class Axes(Mapping[str, Axis]):
    """Axes by name, and the ids of their combinations: the last axis varies fastest.

    >>> axes = Axes.read({"stock": range(3), "mode": ["on", "off"]}, "states")
    >>> axes.labels()[3], axes.size
    ('stock=1, mode=off', 6)
    """

    def __init__(self, axes: dict[str, Axis]) -> None:
        self._axes = axes
        self.shape = tuple(len(axis.values) for axis in axes.values())
        self.size = math.prod(self.shape)
        self.corners = math.prod(axis.corners for axis in axes.values())

    @classmethod
    def read(cls, given: Any, what: str) -> Axes:
        """Axes as a user gives them for ``what``: states, actions or events."""
        if not isinstance(given, Mapping) or (not given and what != "events"):
            raise InputError(
                f"{what} must be a dict of axes by name, like {what}={{'x': range(5)}}, not "
                f"{given!r}"
            )
        return cls({_name(name, what): _axis(values, str(name)) for name, values in given.items()})

    def __getitem__(self, name: str) -> Axis:
        return self._axes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def only(self, names: frozenset[str]) -> Axes:
        """Some of the axes, in their order."""
        return Axes({name: axis for name, axis in self.items() if name in names})

    def at(self, ids: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The values of combinations by axis."""
        places = np.unravel_index(ids, self.shape) if self else ()
        return {name: axis.values[i] for (name, axis), i in zip(self.items(), places, strict=True)}

    def ids_of(self, whole: Axes, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The ids here of combinations of ``whole``, which has more axes."""
        places = dict(zip(whole, np.unravel_index(ids, whole.shape), strict=True))
        mine = tuple(places[name] for name in self)
        return np.ravel_multi_index(mine, self.shape) if mine else np.zeros_like(ids)

    def label(self, i: int) -> str:
        """``stock=3, ordered=5``."""
        return ", ".join(f"{k}={_text(v)}" for k, v in self.at(np.array(i)).items())

    def labels(self) -> list[str]:
        parts = [[f"{name}={x}" for x in _texts(axis.values)] for name, axis in self.items()]
        return [", ".join(x) for x in product(*parts)]

    def place(self, values: Values) -> tuple[npt.NDArray[np.int32], Array | None]:
        """((n, C) ids of the corners around values (n,), (n, C) their weights; None if C = 1).

        Values must be on the axes (see :meth:`Points.find`).
        """
        return self.corners_of({name: axis.find(values[name])[0] for name, axis in self.items()})

    def corners_of(
        self, places: Mapping[str, npt.NDArray[Any]]
    ) -> tuple[npt.NDArray[np.int32], Array | None]:
        """The same of places (n,) on the axes."""
        if self.corners == 1:
            whole = tuple(places[name] for name in self)
            return np.ravel_multi_index(whole, self.shape).astype(np.int32)[:, None], None
        ids: npt.NDArray[Any] = np.zeros(1, np.int64)
        weights: Array = np.ones(1)
        for name, axis in self.items():
            at = places[name]
            low, share = at[:, None], np.ones((len(at), 1))
            if axis.corners == 2:
                floor = np.minimum(at.astype(np.int64), len(axis.values) - 2)
                up = at - floor
                low = floor[:, None] + np.arange(2)
                share = np.stack([1 - up, up], axis=1)
            size = len(axis.values)
            ids = (ids[..., :, None] * size + low[:, None, :]).reshape(len(at), -1)
            weights = (weights[..., :, None] * share[:, None, :]).reshape(len(at), -1)
        return ids.astype(np.int32), weights


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"an axis of {what} is called {name!r}; give it a name like a variable's")
    if name in RESERVED:
        raise InputError(
            f"an axis of {what} is called {name!r}, a word that tables and policies need; "
            f"call it something other than {either(RESERVED)}"
        )
    return name


def _axis(given: Any, name: str) -> Axis:
    if isinstance(given, Grid):
        return given
    try:
        given = given if isinstance(given, (range, np.ndarray)) else list(given)
    except TypeError:
        raise InputError(
            f"axis {name}: {given!r} is neither a range, a list of values nor an mmdp.Grid"
        ) from None
    values, kinds = np.array(given), {isinstance(x, str) for x in given}
    if values.ndim != 1 or values.dtype.kind not in "biufU" or len(kinds) > 1:
        raise InputError(f"axis {name}: give values that are all numbers or all text")
    if not len(values):
        raise InputError(f"axis {name} has no values; give at least one")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"axis {name} has a value that is not finite; leave it out")
    if len(np.unique(values)) < len(values):
        twice = next(x for x in values.tolist() if (values == x).sum() > 1)
        raise InputError(f"axis {name} has {twice!r} twice; keep one of them")
    return Points(values)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _texts(values: npt.NDArray[Any]) -> list[str]:
    """Values as people read them; all digits if fewer would not tell them apart."""
    texts = [_text(x) for x in values]
    return texts if len(set(texts)) == len(texts) else [str(x) for x in values]
