"""Backends: all numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import importlib.util
import math
import sys

from mmdp.core.errors import InputError
from mmdp.core.kernels.costs import LOAD_SECONDS, estimate_backend_seconds
from mmdp.core.kernels.cpu.threads import is_numba_disabled
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.prepared import Backend, PreparedProblem
from mmdp.core.kernels.problem import BackwardResult, Problem
from mmdp.core.timing import BlockedInterrupt

__all__ = ["BACKENDS", "Backend", "BackwardResult", "PreparedProblem", "Problem", "get_backend"]

BACKENDS = ("numpy", "numba", "jax")

DEFAULT_N_PASSES = 20  # of a solve, unless its method says otherwise

# On an H200 a first solve costs about 5 s for loading jax and compiling, and then takes 1/5 to
# 1/20 of the time of 16 CPU threads. With fewer multiply-adds per pass the CPU finishes first.
MIN_ACCELERATOR_OPERATIONS = 12e9
ACCELERATOR_PACKAGES = ("jax_plugins", "libtpu")  # with which jax can see a GPU or TPU
PASS_SHARE = 0.5  # of the estimated passes that solves take in the median


def get_backend(
    backend: str | Backend = "auto",
    problem: Problem | None = None,
    horizon: int = 1,
    *,
    n_passes: float = DEFAULT_N_PASSES,
    n_threads: int | None = None,
    prefer_loaded: bool = False,
) -> Backend:
    """Return the backend of this name, or the one chosen for this problem by ``"auto"``.

    ``"auto"`` takes the backend on which ``n_passes`` over this problem are estimated to take
    least, loading compiled code included (see :mod:`mmdp.core.kernels.costs`). ``prefer_loaded``:
    loading does not count if this process has done so before. That is for work that gives the
    same result with numpy and numba, up to the rounding of values. Large problems are jax's if it
    is installed and sees a GPU or TPU that can hold them. ``n_threads`` is for numba only.

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
        if problem is not None and _should_use_accelerator(problem, horizon):
            backend = "jax"
        else:
            load_seconds = 0.0 if prefer_loaded and _is_numba_loaded() else LOAD_SECONDS
            is_small = problem is not None and _is_fast_in_numpy(
                problem, horizon, n_passes, load_seconds
            )
            backend = "numpy" if is_small or is_numba_disabled() else "numba"
    if backend in ("numba", "jax") and is_numba_disabled():
        raise InputError(
            f"backend {backend!r} needs numba's compiler, which NUMBA_DISABLE_JIT switches off; "
            "unset it or choose backend 'numpy'"
        )
    if backend == "numba":
        with BlockedInterrupt():  # libraries that are half loaded may fail from then on
            from mmdp.core.kernels.cpu.backend import NumbaBackend

        return NumbaBackend(n_threads)
    if backend == "numpy":
        return NumpyBackend()
    if backend == "jax":
        with BlockedInterrupt():
            from mmdp.core.kernels.jax.backend import JaxBackend

        return JaxBackend()
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


def _is_fast_in_numpy(problem: Problem, horizon: int, n_passes: float, load_seconds: float) -> bool:
    """Return whether numpy is done before compiled code, which first has to be loaded."""
    if n_passes == math.inf:  # the work is not in the passes: episodes, or a tree search
        return False
    numpy_seconds, numba_seconds = (
        estimate_backend_seconds(name, problem.work, horizon, PASS_SHARE * n_passes)
        for name in ("numpy", "numba")
    )
    return numpy_seconds <= numba_seconds + load_seconds


def _is_numba_loaded() -> bool:
    """Return whether this process has loaded the compiled code before."""
    return "mmdp.core.kernels.cpu.backend" in sys.modules


def _should_use_accelerator(problem: Problem, horizon: int) -> bool:
    """Return whether jax has an accelerator that can hold the transitions twice."""
    if (
        problem.model_transitions is not None  # single steps run on the CPU
        or problem.storage.n_entries * problem.n_models * horizon < MIN_ACCELERATOR_OPERATIONS
        or importlib.util.find_spec("jax") is None
        or not any(map(importlib.util.find_spec, ACCELERATOR_PACKAGES))
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
