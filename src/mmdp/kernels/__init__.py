"""Kernels: the only numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import importlib.util
import os
import sys

from mmdp.errors import InputError
from mmdp.kernels.problem import Backward, Kernel, Problem

__all__ = ["BACKENDS", "Backward", "Kernel", "Problem", "get"]

BACKENDS = ("numpy", "numba", "jax")

PASSES = 20  # of a solve, unless a method says otherwise

# Loading and compiling the numba kernel takes about five seconds once, loading it half a second.
# numpy does this many seconds of work before that is worth it.
PATIENCE = 2.0
STEP, RATE = 1.5e-4, 5e8  # seconds per time step, and multiply-adds per second, of numpy

# On an H200 a first solve costs about 5 s (loading jax, compiling) and then 1/5 to 1/20 of the
# time of 16 CPU threads, which take 0.8 s for a solve of 2e9 multiply-adds per pass: below this
# much work per pass the CPU is done first.
ACCELERATOR_PAYS_FROM = 12_000_000_000


def get(
    backend: str | Kernel = "auto",
    problem: Problem | None = None,
    horizon: int = 1,
    *,
    passes: float = PASSES,
    threads: int | None = None,
) -> Kernel:
    """The kernel of that name.

    ``"auto"`` is numba, with two exceptions. Small work (``passes`` over this problem) is left
    to numpy as long as nothing has loaded numba: that takes longer than the work itself. And
    large problems go to jax if it is installed, sees a GPU or TPU and the problem fits there.
    All kernels agree up to rounding. ``threads`` are numba's.

    >>> get("numpy").name
    'numpy'
    """
    if not isinstance(backend, str):
        return backend
    if backend == "auto":
        backend = "numpy" if _numba_is_off() else "numba"
        if problem is not None and _left_to_numpy(problem, horizon, passes):
            backend = "numpy"
        elif problem is not None and _pays_on_accelerator(problem, horizon):
            backend = "jax"
    if backend == "numba":
        if _numba_is_off():
            raise InputError(
                "backend 'numba' needs its compiler, which NUMBA_DISABLE_JIT switches off; unset "
                "it or choose backend 'numpy'"
            )
        from mmdp.kernels.cpu.kernel import NumbaKernel

        return NumbaKernel(threads)
    if backend == "numpy":
        from mmdp.kernels.numpy_kernel import NumpyKernel

        return NumpyKernel()
    if backend == "jax":
        from mmdp.kernels.jax.kernel import JaxKernel

        return JaxKernel()
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


def _numba_is_off() -> bool:
    """Whether the environment switches numba's compiler off: the kernels need it."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _pays_on_accelerator(problem: Problem, horizon: int) -> bool:
    """Whether jax is here with an accelerator whose memory holds the transitions twice."""
    if problem.work(horizon) < ACCELERATOR_PAYS_FROM or importlib.util.find_spec("jax") is None:
        return False
    import jax

    try:
        device = jax.devices()[0]
        free = (device.memory_stats() or {}).get("bytes_limit", 0)
    except Exception:  # a broken driver is no reason to fail: the CPU is here
        return False
    return device.platform != "cpu" and 2 * problem.p.nbytes < free


_done_by_numpy = 0.0  # seconds, by the rates above


def _left_to_numpy(problem: Problem, horizon: int, passes: float) -> bool:
    """Whether numpy is done before numba is ready, work done in this process so far included."""
    global _done_by_numpy
    if "mmdp.kernels.cpu.kernel" in sys.modules:
        return False
    wanted = passes * (horizon * STEP + problem.work(horizon) / RATE)
    if _done_by_numpy + wanted > PATIENCE:
        return False
    _done_by_numpy += wanted
    return True
