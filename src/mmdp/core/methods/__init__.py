"""The algorithms, one per module; METHODS maps names to the classes that solve() accepts."""

from __future__ import annotations

from mmdp.core.methods.registry import *  # noqa: F403
from mmdp.core.methods.registry import __all__ as __all__
