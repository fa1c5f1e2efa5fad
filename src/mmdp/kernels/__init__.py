"""Kernels: all numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import importlib.util
import os

from mmdp.errors import InputError
from mmdp.kernels.numpy.kernel import NumpyKernel
from mmdp.kernels.plan import Kernel, Plan
from mmdp.kernels.problem import Backward, Problem

__all__ = ["BACKENDS", "Backward", "Kernel", "Plan", "Problem", "get"]

BACKENDS = ("numpy", "numba", "jax")

PASSES = 20  # of a solve, unless its method says otherwise

# By the estimate of mmdp.clock.seconds; numpy takes up to five times as long. The numba kernel
# takes about five seconds to compile, once, and half a second to load: so small work is numpy's.
QUICK = 0.5
# On an H200 a first solve costs about 5 s for loading jax and compiling, and then takes 1/5 to
# 1/20 of the time of 16 CPU threads. With less than this per pass the CPU finishes first.
ACCELERATOR = 3.0


def get(
    backend: str | Kernel = "auto",
    problem: Problem | None = None,
    horizon: int = 1,
    *,
    passes: float = PASSES,
    threads: int | None = None,
) -> Kernel:
    """The kernel of that name.

    ``"auto"`` depends on the size of the work alone (``passes`` over this problem): numpy if it is
    small, because numba takes longer to load; jax if it is large, and jax is installed and sees a
    GPU or TPU that can hold the problem; numba otherwise. All kernels agree up to rounding.
    ``threads`` is for numba only.

    >>> get("numpy").name
    'numpy'
    """
    if not isinstance(backend, str):
        if not callable(getattr(backend, "plan", None)):
            raise InputError(f"backend must be a name or a kernel, not {backend!r}")
        if problem is not None:
            problem.joined_by(backend.name)
        return backend
    if problem is not None:
        backend = problem.joined_by(backend)
    if backend == "auto":
        backend = "numba"
        if (problem is not None and problem.seconds(horizon, passes) <= QUICK) or _numba_is_off():
            backend = "numpy"
        elif problem is not None and _pays_on_accelerator(problem, horizon):
            backend = "jax"
    if backend in ("numba", "jax") and _numba_is_off():
        raise InputError(
            f"backend {backend!r} needs numba's compiler, which NUMBA_DISABLE_JIT switches off; "
            "unset it or choose backend 'numpy'"
        )
    if backend == "numba":
        from mmdp.kernels.cpu.kernel import NumbaKernel

        return NumbaKernel(threads)
    if backend == "numpy":
        return NumpyKernel()
    if backend == "jax":
        from mmdp.kernels.jax.kernel import JaxKernel

        return JaxKernel()
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


def _numba_is_off() -> bool:
    """Whether the environment switches off numba's compiler, which the kernels need."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _pays_on_accelerator(problem: Problem, horizon: int) -> bool:
    """Whether jax is installed and has an accelerator that can hold the transitions twice."""
    if problem.seconds(horizon) < ACCELERATOR or importlib.util.find_spec("jax") is None:
        return False
    import jax

    try:
        device = jax.devices()[0]
        free = (device.memory_stats() or {}).get("bytes_limit", 0)
    except Exception:  # a broken driver is no reason to fail: there is the CPU
        return False
    held = sum(array.nbytes for array in problem.storage.arrays())
    return device.platform != "cpu" and 2 * held < free
