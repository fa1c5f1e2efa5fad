"""Models from user functions: named axes, exogenous events and a step function."""

from __future__ import annotations

from mmdp.functions.axes import Grid
from mmdp.functions.step import from_step

__all__ = ["Grid", "from_step"]
