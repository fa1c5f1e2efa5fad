"""Compilation of the CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit, cached on disk where a cache can be written, else compiled in memory."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # read-only install and no user cache folder
            return numba.njit(nogil=True, **options)(function)

    return decorate
