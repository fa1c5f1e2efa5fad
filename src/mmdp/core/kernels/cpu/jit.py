"""Compilation of the CPU kernels: numba.njit, and what we use of numba beyond its manual.

The manual mentions neither ``_nrt`` (no code to count references: the kernels allocate nothing,
and the counts are atomic) nor ``no_cpython_wrapper`` and ``no_cfunc_wrapper`` (no code to call a
helper from Python or C), nor how numba finds out whether cached code is up to date, nor how it
begins to compile. If a version of numba lacks one of these, the kernels do without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from mmdp.core.timing import BlockedInterrupt, measure_compilation, notify_compilation

BASE_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
REASSOC_OPTIONS: dict[str, Any] = {**BASE_OPTIONS, "fastmath": {"contract", "reassoc"}}
FMA_OPTIONS: dict[str, Any] = {**BASE_OPTIONS, "fastmath": {"contract"}}


class _CompileListener(event.Listener):  # type: ignore[misc]
    """A listener that numba calls when it compiles, but not when it loads from its cache."""

    def on_start(self, event: Any) -> None:
        notify_compilation()

    def on_end(self, event: Any) -> None:
        """Do nothing."""


event.register("numba:compile", _CompileListener())  # type: ignore[no-untyped-call]


def jit(helper: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile with numba.njit, cached on disk if a cache can be written.

    ``helper``: called by compiled code only.
    """
    extra_options = {"_nrt": False, "no_cfunc_wrapper": True, "no_cpython_wrapper": helper}
    options |= {name: value for name, value in extra_options.items() if _has_option(name)}

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            compiled = numba.njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # read-only install and no user cache folder
            compiled = numba.njit(nogil=True, **options)(function)
        _set_source_stamp(compiled)
        return _compile_uninterrupted(compiled)

    return decorate


def _has_option(option: str) -> bool:
    """Return whether this version of numba has the option."""
    try:
        from numba.core.cpu import CPUTargetOptions
    except ImportError:
        return False
    return hasattr(CPUTargetOptions, option)


def _set_source_stamp(compiled: Any) -> None:
    """Make the cache of a function depend on all kernel files, whose code it contains.

    numba checks only the function's own file.
    """
    index: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _SOURCE_STAMPS


def _read_source_stamps() -> tuple[tuple[str, int, int], ...]:
    """Return name, time and size of all files with compiled code."""
    folder = Path(__file__).parent
    names = "problem.py", "sampling.py"
    files = sorted([*folder.glob("*.py"), *(folder.parent / name for name in names)])
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


_SOURCE_STAMPS = _read_source_stamps()


def _compile_uninterrupted(compiled: Any) -> Any:
    """Make a function compile before it heeds Ctrl-C, which inside LLVM can crash Python."""
    original = getattr(compiled, "_compile_for_args", None)
    if original is None:
        return compiled

    def compile_for_args(*args: Any, **kwargs: Any) -> Any:
        with measure_compilation(), BlockedInterrupt():
            return original(*args, **kwargs)

    compiled._compile_for_args = compile_for_args
    return compiled
