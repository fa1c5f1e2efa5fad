"""Named axes of states, actions and events: ranges, labels and grids, and their product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.memory import check_memory
from mmdp.core.text import join_first, join_or

Array = npt.NDArray[np.float64]
ValueArray = npt.NDArray[Any]  # numbers or labels
AxisValues = Mapping[str, ValueArray]  # by axis, one entry per row

RESERVED_NAMES = ("time", "state", "action", "model", "node")  # columns of tables and policies
POINT_TOLERANCE = 1e-9  # rounding allowed between a number and a point, in units of its axis


class DiscreteAxis:
    """An axis of separate values, all numbers or all text, in the order given."""

    n_corners: ClassVar[int] = 1

    def __init__(self, values: ValueArray) -> None:
        self.values = values
        self.values.setflags(write=False)
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]
        gaps = np.diff(self._sorted.astype(float)) if self.is_numeric else np.empty(0)
        self._min_gap = float(gaps.min()) if len(gaps) else 1.0
        self._is_range = (
            len(gaps) > 0 and values.dtype.kind == "i" and len(set(np.diff(values))) == 1
        )

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers; otherwise they are labels."""
        return self.values.dtype.kind != "U"

    def locate(self, x: ValueArray) -> tuple[ValueArray, npt.NDArray[np.bool_]]:
        """Find the index of each value on the axis, and which values are not on it.

        Returns: (n,) indices, (n,) bool.
        """
        if self._is_range and x.dtype.kind == "i":  # a range: nothing to search
            step = int(self.values[1] - self.values[0])
            positions = np.clip((x - self.values[0]) // step, 0, len(self.values) - 1)
            return positions, self.values[positions] != x
        if self.is_numeric:
            x = x.astype(float)
            midpoints = (self._sorted[1:].astype(float) + self._sorted[:-1]) / 2
            positions = np.searchsorted(midpoints, x)
            is_off = ~(
                np.abs(self._sorted[positions] - x) <= POINT_TOLERANCE * self._min_gap
            )  # NaN is off too
        else:
            positions = np.minimum(np.searchsorted(self._sorted, x), len(self._sorted) - 1)
            is_off = self._sorted[positions] != x
        return self._order[positions], is_off

    def clip(self, x: ValueArray) -> ValueArray:
        """Clip values (n,) to the ends of the axis."""
        return np.clip(x, self._sorted[0], self._sorted[-1])

    def suggest_remedy(self, x: float | str) -> str:
        """Suggest how to correct a value that is not on the axis."""
        if not isinstance(x, str) and self._sorted[0] < x < self._sorted[-1]:
            return "round it, or make the axis an mmdp.Grid"
        return "clip it, or extend the axis" if self.is_numeric else "use one of its labels"

    def __str__(self) -> str:
        if not self.is_numeric or len(self.values) < 4:
            return join_first(map(str, self.values))
        return f"{self._sorted[0]:g} to {self._sorted[-1]:g}"


class Grid:
    """A continuous axis from ``low`` to ``high`` with ``n_points`` evenly spaced points.

    A next state between two points goes to the corners of its cell with the weights of multilinear
    interpolation. A finer grid takes longer and comes closer to the problem without a grid, which
    ``mmdp.simulate(model, policy, off_grid=True)`` simulates. With ``wraps``, ``high`` is the same
    point as ``low``, as for an angle, and every number is on the axis.

    >>> import mmdp
    >>> mmdp.Grid(-1.2, 0.6, 4).values.round(2).tolist()
    [-1.2, -0.6, 0.0, 0.6]
    """

    n_corners: ClassVar[int] = 2

    @check_arguments
    def __init__(self, low: float, high: float, n_points: int, wraps: bool = False) -> None:
        if n_points < 2:
            raise InputError(f"n_points={n_points!r} is not a whole number >= 2; give at least 2")
        if not -math.inf < low < high < math.inf:
            raise InputError(f"Grid({low}, {high}): low must be below high, and both finite")
        check_memory(8 * int(n_points), f"a Grid of {n_points:,} points", ["take fewer"])
        self.low, self.high, self.n_points = float(low), float(high), int(n_points)
        self.wraps = bool(wraps)
        self.values: Array = np.linspace(self.low, self.high, self.n_points)
        self.values.setflags(write=False)

    is_numeric: ClassVar[bool] = True

    def locate(self, x: ValueArray) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Find the position of each value, in units of the spacing, and which are outside.

        Returns: (n,) positions from 0 to n_points - 1, fractions included; (n,) bool.
        """
        offsets = x.astype(float) - self.low
        if self.wraps:
            offsets %= self.high - self.low
        positions: Array = offsets * ((self.n_points - 1) / (self.high - self.low))
        is_off = ~(
            (positions >= -POINT_TOLERANCE) & (positions <= self.n_points - 1 + POINT_TOLERANCE)
        )
        return np.clip(np.where(is_off, 0.0, positions), 0.0, self.n_points - 1), is_off

    def clip(self, x: ValueArray) -> ValueArray:
        """Clip values (n,) to the ends of the axis."""
        return x if self.wraps else np.clip(x, self.low, self.high)

    def suggest_remedy(self, x: float | str) -> str:
        """Suggest how to correct a value that is not on the axis."""
        return "clip it, or extend the axis"

    def __repr__(self) -> str:
        return f"Grid({self.low:g}, {self.high:g}, {self.n_points})"

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


Axis = DiscreteAxis | Grid


class Axes(Mapping[str, Axis]):
    """Axes by name, and the ids of their combinations (the last axis varies fastest).

    >>> axes = Axes.parse({"stock": range(3), "mode": ["on", "off"]}, "states")
    >>> axes.make_labels()[3], axes.size
    ('stock=1, mode=off', 6)
    """

    def __init__(self, axes: dict[str, Axis]) -> None:
        self._axes = axes
        self.shape = tuple(len(axis.values) for axis in axes.values())
        self.size = math.prod(self.shape)
        self.n_corners = math.prod(axis.n_corners for axis in axes.values())

    @classmethod
    def parse(cls, axes: object, argument: str) -> Axes:
        """Parse the axes given for an argument: states, actions or events."""
        if not isinstance(axes, Mapping) or (not axes and argument != "events"):
            raise InputError(
                f"{argument} must be a dict of axes by name, like {argument}={{'x': range(5)}}, "
                f"not {axes!r}"
            )
        return cls(
            {
                _check_axis_name(name, argument): _make_axis(values, str(name))
                for name, values in axes.items()
            }
        )

    def __getitem__(self, name: str) -> Axis:
        return self._axes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def select(self, names: frozenset[str]) -> Axes:
        """Select the axes with these names, in their order."""
        return Axes({name: axis for name, axis in self.items() if name in names})

    def values_at(self, ids: ValueArray) -> dict[str, ValueArray]:
        """Get the values, by axis, of combinations given by id."""
        positions = np.unravel_index(ids, self.shape) if self else ()
        return {
            name: axis.values[axis_positions]
            for (name, axis), axis_positions in zip(self.items(), positions, strict=True)
        }

    def project_ids(self, full_axes: Axes, ids: ValueArray) -> npt.NDArray[np.int64]:
        """Convert ids of combinations of ``full_axes``, a superset, to ids of these axes."""
        positions = dict(zip(full_axes, np.unravel_index(ids, full_axes.shape), strict=True))
        own_positions = tuple(positions[name] for name in self)
        return (
            np.ravel_multi_index(own_positions, self.shape) if own_positions else np.zeros_like(ids)
        )

    def format_label(self, i: int) -> str:
        """Format a combination as text: ``stock=3, ordered=5``."""
        return ", ".join(f"{k}={_format_value(v)}" for k, v in self.values_at(np.array(i)).items())

    def make_labels(self) -> list[str]:
        """Make the labels of all combinations, in the order of their ids."""
        axis_labels = [
            [f"{name}={x}" for x in _format_values(axis.values)] for name, axis in self.items()
        ]
        return [", ".join(x) for x in product(*axis_labels)]

    def interpolate(self, values: AxisValues) -> tuple[npt.NDArray[np.int32], Array | None]:
        """Find the grid corners around each value, with interpolation weights.

        Values must be on the axes (see :meth:`DiscreteAxis.locate`).
        Returns: (n, C) ids of combinations; (n, C) weights, or None if C = 1.
        """
        return self.interpolate_positions(
            {name: axis.locate(values[name])[0] for name, axis in self.items()}
        )

    def interpolate_positions(
        self, positions: AxisValues
    ) -> tuple[npt.NDArray[np.int32], Array | None]:
        """Find the corners around positions (n,) on the axes, with interpolation weights."""
        if self.n_corners == 1:
            index = tuple(positions[name] for name in self)
            return np.ravel_multi_index(index, self.shape).astype(np.int32)[:, None], None
        ids: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        weights: Array = np.ones(1)
        for name, axis in self.items():
            axis_positions = positions[name]
            corner_positions, corner_weights = (
                axis_positions[:, None],
                np.ones((len(axis_positions), 1)),
            )
            if axis.n_corners == 2:
                lower = np.minimum(axis_positions.astype(np.int64), len(axis.values) - 2)
                fraction = axis_positions - lower
                corner_positions = lower[:, None] + np.arange(2)
                corner_weights = np.stack([1 - fraction, fraction], axis=1)
            size = len(axis.values)
            ids = (ids[..., :, None] * size + corner_positions[:, None, :]).reshape(
                len(axis_positions), -1
            )
            weights = (weights[..., :, None] * corner_weights[:, None, :]).reshape(
                len(axis_positions), -1
            )
        return ids.astype(np.int32), weights


def _check_axis_name(name: object, argument: str) -> str:
    """Refuse a name that is not an identifier, or that tables and policies use."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(
            f"{argument}: the axis name {name!r} is not an identifier; use letters, digits and _"
        )
    if name in RESERVED_NAMES:
        raise InputError(
            f"{argument}: the axis name {name!r} is a column of tables and policies; "
            f"use a name other than {join_or(RESERVED_NAMES)}"
        )
    return name


def _make_axis(spec: Any, name: str) -> Axis:
    """Make an axis of a Grid, a range or a list of values."""
    if isinstance(spec, Grid):
        return spec
    if isinstance(spec, range):
        check_memory(8 * len(spec), f"the states, actions or events of axis {name}")
    try:
        spec = spec if isinstance(spec, (range, np.ndarray)) else list(spec)
    except TypeError:
        raise InputError(
            f"axis {name}: {spec!r} is not a range, a list of values or an mmdp.Grid; give one"
        ) from None
    values, is_text = np.array(spec), {isinstance(x, str) for x in spec}
    if values.ndim != 1 or values.dtype.kind not in "biufU" or len(is_text) > 1:
        raise InputError(f"axis {name}: give values that are all numbers or all text, in one list")
    if not len(values):
        raise InputError(f"axis {name} has no values; give at least one")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"axis {name} has a value that is not finite; leave it out")
    if len(np.unique(values)) < len(values):
        duplicate = next(x for x in values.tolist() if (values == x).sum() > 1)
        raise InputError(f"axis {name} has {duplicate!r} twice; keep one of them")
    return DiscreteAxis(values)


def _format_value(value: object) -> str:
    """Format a value of an axis as a label."""
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _format_values(values: ValueArray) -> list[str]:
    """Format values with six digits, or with all if fewer would make two the same."""
    texts = [_format_value(x) for x in values]
    return texts if len(set(texts)) == len(texts) else [str(x) for x in values]
