"""Models from user functions: named axes, exogenous events and a step function."""

from __future__ import annotations

from mmdp.data.functions.axes import Grid
from mmdp.data.functions.step import from_step

__all__ = ["Grid", "from_step"]
