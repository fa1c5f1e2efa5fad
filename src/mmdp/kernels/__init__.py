"""Kernels: all numerical hot code, pure array functions behind one interface."""

from __future__ import annotations

import importlib.util
import os
import sys

from mmdp.errors import InputError, Remedy
from mmdp.kernels.problem import Backward, Kernel, Problem

__all__ = ["BACKENDS", "Backward", "Kernel", "Problem", "get"]

BACKENDS = ("numpy", "numba", "jax")

PASSES = 20  # that a solve takes, unless its method says otherwise

# The numba kernel takes about five seconds to compile, once, and half a second to load. Up to
# this many seconds of work in all are done by numpy instead.
PATIENCE = 2.0
STEP, RATE = 1.5e-4, 5e8  # numpy: seconds per time step, multiply-adds per second

# On an H200 a first solve costs about 5 s for loading jax and compiling, and then takes 1/5 to
# 1/20 of the time of 16 CPU threads. These take 0.8 s for a solve of 2e9 multiply-adds per
# pass, so with less work per pass than this the CPU finishes first.
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

    ``"auto"`` is numba, with two exceptions. Small work (``passes`` over this problem) goes to
    numpy as long as numba is not loaded, because loading takes longer than the work. Large
    problems go to jax if it is installed and sees a GPU or TPU that can hold them. All kernels
    agree up to rounding. ``threads`` is for numba only. If models change (``problem.drift``), the
    kernel is numpy's, whatever was asked for: no other knows how.

    >>> get("numpy").name
    'numpy'
    """
    drifts = problem is not None and problem.drift is not None
    if not isinstance(backend, str):
        if not callable(getattr(backend, "backward", None)):
            raise InputError(f"backend must be a name or a kernel, not {backend!r}")
        _check_part(backend.name, problem)
        return get("numpy") if drifts else backend
    if problem is not None and problem.part is not None:
        backend = "jax" if backend == "auto" else backend
        _check_part(backend, problem)
    if drifts and backend in ("auto", *BACKENDS):
        backend = "numpy"
    if backend == "auto":
        backend = "numpy" if _numba_is_off() else "numba"
        if problem is not None and _left_to_numpy(problem, horizon, passes):
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
        from mmdp.kernels.numpy_kernel import NumpyKernel

        return NumpyKernel()
    if backend == "jax":
        from mmdp.kernels.jax.kernel import JaxKernel

        return JaxKernel()
    raise InputError(f"no backend is called {backend!r}; choose one of auto, {', '.join(BACKENDS)}")


def _check_part(backend: str, problem: Problem | None) -> None:
    """Refuse a part of the models unless these processes hold all of them."""
    if problem is None or problem.part is None:
        return
    if backend != "jax":
        raise InputError(
            f"the model is {problem.part}, which backend {backend!r} cannot join with the others",
            [Remedy("backend", "jax", do="use")],
        )
    from mmdp.kernels.exchange import check_parts

    check_parts(problem)


def _numba_is_off() -> bool:
    """Whether the environment switches off numba's compiler, which the kernels need."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def _pays_on_accelerator(problem: Problem, horizon: int) -> bool:
    """Whether jax is installed and has an accelerator that can hold the transitions twice."""
    if problem.work(horizon) < ACCELERATOR_PAYS_FROM or importlib.util.find_spec("jax") is None:
        return False
    import jax

    try:
        device = jax.devices()[0]
        free = (device.memory_stats() or {}).get("bytes_limit", 0)
    except Exception:  # a broken driver is no reason to fail: there is the CPU
        return False
    return device.platform != "cpu" and 2 * problem.p.nbytes < free


_done_by_numpy = 0.0  # seconds, by the rates above


def _left_to_numpy(problem: Problem, horizon: int, passes: float) -> bool:
    """Whether numpy finishes before numba is ready, counting all its work in this process."""
    global _done_by_numpy
    if "mmdp.kernels.cpu.kernel" in sys.modules:
        return False
    wanted = passes * (horizon * STEP + problem.work(horizon) / RATE)
    if _done_by_numpy + wanted > PATIENCE:
        return False
    _done_by_numpy += wanted
    return True
