"""Models from functions of the user's own: named axes, events and what they do."""

from __future__ import annotations

from mmdp.functions.axes import Grid
from mmdp.functions.step import from_step

__all__ = ["Grid", "from_step"]
