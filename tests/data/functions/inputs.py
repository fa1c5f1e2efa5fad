"""Types of the arguments of user functions in these tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Inputs = Mapping[str, Any]  # values by axis, or parameters by name
