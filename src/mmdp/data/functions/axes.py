"""Named axes of states, actions and events: ranges, labels and grids, and their product."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, check_memory
from mmdp.core.shapes import AnyArray, Array, IntArray, Mask
from mmdp.core.text import join_first, join_or

AxisValues = Mapping[str, AnyArray]  # by axis, one entry per row

RESERVED_NAMES = ("time", "state", "action", "model", "node")  # columns of tables and policies
NUMBER_KINDS = "biuf"  # of numpy types
POINT_TOLERANCE = 1e-9  # rounding allowed between a number and a point, in units of its axis


class Axis:
    """An axis of states, actions or events: ``values`` from the lowest to the highest."""

    values: AnyArray
    n_corners: ClassVar[int] = 1  # points around a value between points

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers; otherwise they are labels."""
        return self.values.dtype.kind in NUMBER_KINDS

    @cached_property
    def labels(self) -> list[str]:
        """Texts of the values: numbers with six digits, or with all if two would be the same."""
        is_float = self.values.dtype.kind == "f"
        texts = [f"{x:.6g}" if is_float else str(x) for x in self.values]
        return texts if len(set(texts)) == len(texts) else [str(x) for x in self.values]

    @property
    def ends(self) -> tuple[Any, Any]:
        """Lowest and highest value."""
        return self.values.min(), self.values.max()

    def locate(self, x: AnyArray) -> tuple[AnyArray, Mask]:
        """Find the position of each value, and which values are not on the axis.

        Returns: (n,) indices of ``values``, with fractions on a grid; (n,) bool.
        """
        raise NotImplementedError

    def clip(self, x: AnyArray) -> AnyArray:
        """Clip values (n,) to the ends of the axis."""
        return np.clip(x, *self.ends)

    def suggest_remedy(self, x: Any) -> str:
        """Suggest how to correct a value that is not on the axis."""
        if not self.is_numeric:
            return "use one of its labels"
        if np.asarray(x).dtype.kind not in NUMBER_KINDS:
            return "give a number"
        if np.isnan(x):
            return "check the formula"
        if self.ends[0] < x < self.ends[1]:
            return "round it, or make the axis an mmdp.Grid"
        return "clip it, or extend the axis"

    def __str__(self) -> str:
        return "{:g} to {:g}".format(*self.ends)


class DiscreteAxis(Axis):
    """An axis of separate values, all numbers or all text, in the order given."""

    def __init__(self, values: AnyArray) -> None:
        self.values = values
        self.values.setflags(write=False)
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]
        self._upper_cuts, self._tolerance = self._sorted[1:], POINT_TOLERANCE
        if self.is_numeric and len(values) > 1:
            points = self._sorted.astype(float)
            self._upper_cuts = (points[1:] + points[:-1]) / 2
            self._tolerance *= float(np.diff(points).min())

    def locate(self, x: AnyArray) -> tuple[AnyArray, Mask]:
        """Find the index of each value on the axis, and which values are not on it."""
        if (x.dtype.kind in NUMBER_KINDS) != self.is_numeric:
            return np.zeros(len(x), np.int64), np.ones(len(x), bool)
        x = x if self.is_numeric else x.astype(str)
        positions = np.searchsorted(self._upper_cuts, x, side="right")
        nearest = self._sorted[positions]
        if self.is_numeric:  # NaN is off too
            return self._order[positions], ~(np.abs(nearest - x.astype(float)) <= self._tolerance)
        return self._order[positions], nearest != x

    def __str__(self) -> str:
        if not self.is_numeric or len(self.values) < 4:
            return join_first(map(str, self.values))
        return super().__str__()


class Grid(Axis):
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
        self.values = np.linspace(self.low, self.high, self.n_points)
        self.values.setflags(write=False)

    def locate(self, x: AnyArray) -> tuple[Array, Mask]:
        """Find the position of each value, in units of the spacing, and which are outside.

        Returns: (n,) positions from 0 to n_points - 1, fractions included; (n,) bool.
        """
        last = self.n_points - 1
        if x.dtype.kind not in NUMBER_KINDS:
            return np.zeros(len(x)), np.ones(len(x), bool)
        offsets = x.astype(float) - self.low
        if self.wraps:
            offsets %= self.high - self.low
        positions = offsets * (last / (self.high - self.low))
        is_off = ~((positions >= -POINT_TOLERANCE) & (positions <= last + POINT_TOLERANCE))
        return np.clip(np.where(is_off, 0.0, positions), 0.0, last), is_off

    def clip(self, x: AnyArray) -> AnyArray:
        """Clip values (n,) to the ends of the axis."""
        return x if self.wraps else super().clip(x)

    def __repr__(self) -> str:
        return f"Grid({self.low:g}, {self.high:g}, {self.n_points})"


class Axes(dict[str, Axis]):
    """Axes by name, and the ids of their combinations (the last axis varies fastest).

    >>> axes = Axes.parse({"stock": range(3), "mode": ["on", "off"]}, "states")
    >>> axes.make_labels()[3], axes.size
    ('stock=1, mode=off', 6)
    """

    def __init__(self, axes: Mapping[str, Axis]) -> None:
        super().__init__(axes)
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

    def select(self, names: Collection[str]) -> Axes:
        """Select the axes with these names, in their order."""
        return Axes({name: axis for name, axis in self.items() if name in names})

    def values_at(self, ids: AnyArray) -> dict[str, AnyArray]:
        """Get the values, by axis, of combinations given by id."""
        positions = np.unravel_index(ids, self.shape) if self else ()
        return {name: self[name].values[i] for name, i in zip(self, positions, strict=True)}

    @property
    def all_values(self) -> dict[str, AnyArray]:
        """Values, by axis, of all combinations."""
        return self.values_at(np.arange(self.size))

    def make_labels(self) -> list[str]:
        """Make the labels of all combinations, in the order of their ids."""
        axis_labels = [[f"{name}={x}" for x in axis.labels] for name, axis in self.items()]
        return [", ".join(x) for x in product(*axis_labels)]

    def locate(
        self,
        values: AxisValues,
        describe: Callable[[str, int], str] = lambda name, _: name,
        is_ignored: Mask | bool = False,
    ) -> dict[str, AnyArray]:
        """Find the positions of values (n,) on the axes; refuse others, unless they are ignored.

        ``describe`` formats an axis and a row for messages.
        """
        positions = {}
        for name, axis in self.items():
            positions[name], is_off = axis.locate(values[name])
            is_off &= ~np.asarray(is_ignored)
            if is_off.any():
                i = int(np.argmax(is_off))
                value = values[name][i]
                raise InputError(
                    f"{describe(name, i)} is {value}, which is not on its axis ({axis}); "
                    f"{axis.suggest_remedy(value)}"
                )
        return positions

    def find_corners(self, positions: AxisValues) -> tuple[IntArray, Array]:
        """Find the grid points around positions (n,) on the axes, with interpolation weights.

        Returns: (n, C) ids of combinations; (n, C) weights, or (1, 1) if C = 1.
        """
        ids, weights = np.zeros((1, 1), np.int64), np.ones((1, 1))
        for name, axis in self.items():
            corners, n_points, n = positions[name][:, None], len(axis.values), len(positions[name])
            if axis.n_corners == 2:
                lower = np.minimum(corners.astype(np.int64), n_points - 2)
                fraction = corners - lower
                corners = lower + np.arange(2)
                shares = np.concatenate([1 - fraction, fraction], axis=1)
                weights = (weights[:, :, None] * shares[:, None, :]).reshape(n, -1)
            ids = (ids[:, :, None] * n_points + corners[:, None, :]).reshape(n, -1)
        return ids.astype(np.int32), weights


def format_row(values: AxisValues, i: int) -> str:
    """Format the i-th row of values by axis: ``stock=3, ordered=5``."""
    return ", ".join(
        f"{k}={v[i]:.10g}" if v.dtype.kind == "f" else f"{k}={v[i]}" for k, v in values.items()
    )


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
