"""Backends: all numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import importlib.util
import os

from mmdp.core.errors import InputError
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.prepared import Backend, PreparedProblem
from mmdp.core.kernels.problem import BackwardResult, Problem

__all__ = ["BACKENDS", "Backend", "BackwardResult", "PreparedProblem", "Problem", "get_backend"]

BACKENDS = ("numpy", "numba", "jax")

DEFAULT_N_PASSES = 20  # of a solve, unless its method says otherwise

# By the estimate of timing.estimate_seconds; numpy takes up to five times as long. Numba takes five
# seconds to compile, once, and half a second to load: so small work is numpy's.
MAX_NUMPY_SECONDS = 0.5
# On an H200 a first solve costs about 5 s for loading jax and compiling, and then takes 1/5 to
# 1/20 of the time of 16 CPU threads. With less than this per pass the CPU finishes first.
MIN_ACCELERATOR_SECONDS = 3.0


def get_backend(
    backend: str | Backend = "auto",
    problem: Problem | None = None,
    horizon: int = 1,
    *,
    n_passes: float = DEFAULT_N_PASSES,
    n_threads: int | None = None,
) -> Backend:
    """Return the backend of this name, or the one chosen for this problem by ``"auto"``.

    ``"auto"`` depends on the size of the work alone (``n_passes`` over this problem): numpy if
    it is small, because numba takes longer to load; jax if it is large, and jax is installed and
    sees a GPU or TPU that can hold the problem; numba otherwise. All backends agree up to rounding.
    ``n_threads`` is for numba only.

    >>> get_backend("numpy").name
    'numpy'
    """
    if not isinstance(backend, str):
        if not callable(getattr(backend, "prepare", None)):
            raise InputError(
                f"backend must be one of auto, {', '.join(BACKENDS)}, or an object with a method "
                f"prepare(problem, horizon), not {backend!r}"
            )
        if problem is not None:
            problem.resolve_backend(backend.name)
        return backend
    if problem is not None:
        backend = problem.resolve_backend(backend)
    if backend == "auto":
        backend = "numba"
        if (
            problem is not None and problem.estimate_seconds(horizon, n_passes) <= MAX_NUMPY_SECONDS
        ) or _is_numba_disabled():
            backend = "numpy"
        elif problem is not None and _should_use_accelerator(problem, horizon):
            backend = "jax"
    if backend in ("numba", "jax") and _is_numba_disabled():
        raise InputError(
            f"backend {backend!r} needs numba's compiler, which NUMBA_DISABLE_JIT switches off; "
            "unset it or choose backend 'numpy'"
        )
    if backend == "numba":
        from mmdp.core.kernels.cpu.backend import NumbaBackend

        return NumbaBackend(n_threads)
    if backend == "numpy":
        return NumpyBackend()
    if backend == "jax":
        from mmdp.core.kernels.jax.backend import JaxBackend

        return JaxBackend()
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


def _is_numba_disabled() -> bool:
    """Return whether NUMBA_DISABLE_JIT switches off numba's compiler."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _should_use_accelerator(problem: Problem, horizon: int) -> bool:
    """Return whether jax has an accelerator that can hold the transitions twice."""
    if (
        problem.estimate_seconds(horizon) < MIN_ACCELERATOR_SECONDS
        or importlib.util.find_spec("jax") is None
    ):
        return False
    import jax

    try:
        device = jax.devices()[0]
        capacity = (device.memory_stats() or {}).get("bytes_limit", 0)
    except Exception:  # a broken driver is no reason to fail: there is the CPU
        return False
    size = sum(array.nbytes for array in problem.storage.get_arrays())
    return device.platform != "cpu" and 2 * size < capacity
