"""Kernels: the only numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import sys

from mmdp.errors import InputError
from mmdp.kernels.problem import Backward, Kernel, Problem

__all__ = ["BACKENDS", "Backward", "Kernel", "Problem", "get"]

BACKENDS = ("numpy", "numba", "jax")


SMALL = 2_000_000  # multiply-adds a pass that numpy finishes while numba would still load


def get(backend: str | Kernel = "auto", work: int | None = None) -> Kernel:
    """The kernel of that name.

    ``"auto"`` is numba, except that a small problem (``work`` multiply-adds a pass) is left to
    numpy as long as nothing has loaded numba: that takes longer than such a solve. The two
    agree up to rounding.

    >>> get("numpy").name
    'numpy'
    """
    if not isinstance(backend, str):
        return backend
    if backend == "auto":
        backend = "numpy" if _left_to_numpy(work) else "numba"
    if backend == "numba":
        from mmdp.kernels.numba_kernel import NumbaKernel

        return NumbaKernel()
    if backend == "numpy":
        from mmdp.kernels.numpy_kernel import NumpyKernel

        return NumpyKernel()
    if backend == "jax":
        from mmdp.kernels.jax_kernel import JaxKernel

        return JaxKernel()
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


_done_by_numpy = 0


def _left_to_numpy(work: int | None) -> bool:
    """Small, numba not loaded, and not the umpteenth small problem in a row."""
    global _done_by_numpy
    if work is None or work > SMALL or "mmdp.kernels.numba_kernel" in sys.modules:
        return False
    _done_by_numpy += max(work, SMALL // 20)
    return _done_by_numpy <= 10 * SMALL
