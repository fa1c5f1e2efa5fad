"""Kernels: the only numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, cast

from mmdp.errors import InputError
from mmdp.kernels.problem import Backward, Kernel, Problem

if TYPE_CHECKING:
    from mmdp.kernels.cpu.passes import Precision

__all__ = ["BACKENDS", "Backward", "Kernel", "Problem", "get"]

BACKENDS = ("numpy", "numba", "jax")


SMALL = 2_000_000  # multiply-adds a pass that numpy finishes while numba would still load


# On an H200 a first solve costs about 5 s (loading jax, compiling) and then 1/5 to 1/20 of the
# time of 16 CPU threads, which take 0.8 s for a solve of 2e9 multiply-adds a pass: below this much
# work a pass the CPU is done first.
ACCELERATOR_PAYS_FROM = 12_000_000_000


def get(
    backend: str | Kernel = "auto",
    work: int | None = None,
    precision: str = "double",
    *,
    solving: Problem | None = None,
) -> Kernel:
    """The kernel of that name, storing transitions in 64 or (``"mixed"``) 32 bits.

    ``"auto"`` is numba, with two exceptions. A small problem (``work`` multiply-adds a pass) is
    left to numpy as long as nothing has loaded numba: that takes longer than such a solve. And
    the whole solve of a large one (``solving``) goes to jax where it is installed, sees a GPU
    or TPU and the problem fits there. All agree up to rounding.

    >>> get("numpy").name
    'numpy'
    """
    if precision not in ("double", "mixed"):
        raise InputError(f"no precision is called {precision!r}; choose double or mixed")
    if not isinstance(backend, str):
        if precision != getattr(backend, "precision", "double") == "double":
            raise InputError("a kernel has its own precision: make it with precision='mixed'")
        return backend
    if backend == "auto":
        small = precision == "double" and _left_to_numpy(work)
        backend = "numpy" if small else "numba"
        if (
            (work or 0) >= ACCELERATOR_PAYS_FROM
            and solving is not None
            and _fits_accelerator(solving)
        ):
            backend = "jax"
    if backend == "numba":
        from mmdp.kernels.cpu.passes import NumbaKernel

        return NumbaKernel(precision=cast("Precision", precision))
    if backend == "numpy":
        from mmdp.kernels.numpy_kernel import NumpyKernel

        if precision == "mixed":
            raise InputError("backend 'numpy' has no mixed precision; choose numba or jax")
        return NumpyKernel()
    if backend == "jax":
        from mmdp.kernels.jax.kernel import JaxKernel

        return JaxKernel(cast("Precision", precision))
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


def _fits_accelerator(problem: Problem) -> bool:
    """Whether jax is here with an accelerator whose memory holds the transitions twice."""
    if importlib.util.find_spec("jax") is None:
        return False
    import jax

    try:
        device = jax.devices()[0]
        free = (device.memory_stats() or {}).get("bytes_limit", 0)
    except Exception:  # a broken driver is no reason to fail: the CPU is here
        return False
    return device.platform != "cpu" and 2 * problem.p.nbytes < free


_done_by_numpy = 0


def _left_to_numpy(work: int | None) -> bool:
    """Small, numba not loaded, and not the umpteenth small problem in a row."""
    global _done_by_numpy
    if work is None or work > SMALL or "mmdp.kernels.cpu.passes" in sys.modules:
        return False
    _done_by_numpy += max(work, SMALL // 20)
    return _done_by_numpy <= 10 * SMALL
