"""Compilation of the CPU kernels: numba.njit, and what we use of numba beyond its manual.

The manual mentions neither ``_nrt`` (no code to count references: the kernels allocate nothing,
and the counts are atomic) nor ``no_cpython_wrapper`` (no code to call a helper from Python), nor
how numba finds out whether cached code is up to date, nor how it begins to compile. If a version
of numba lacks one of these, the kernels do without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import event

from mmdp.clock import announce, compiling, to_the_end

FAST: dict[str, Any] = {"error_model": "numpy"}
SUMS: dict[str, Any] = {**FAST, "fastmath": {"contract", "reassoc"}}
FUSED: dict[str, Any] = {**FAST, "fastmath": {"contract"}}


class _Announcer(event.Listener):  # type: ignore[misc]
    """numba reports when it compiles; it does not if its cache has the code."""

    def on_start(self, event: Any) -> None:
        announce()

    def on_end(self, event: Any) -> None:
        """Nothing to do."""


event.register("numba:compile", _Announcer())  # type: ignore[no-untyped-call]


def jit(helper: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba.njit, cached on disk if a cache can be written, else compiled in memory.

    ``helper``: called by compiled code only.
    """
    private = {"_nrt": False, **({"no_cpython_wrapper": True} if helper else {})}
    options |= {name: value for name, value in private.items() if _known(name)}

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            compiled = numba.njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # read-only install and no user cache folder
            compiled = numba.njit(nogil=True, **options)(function)
        _stamp(compiled)
        return _shielded(compiled)

    return decorate


def _known(option: str) -> bool:
    """Whether this version of numba has the option."""
    try:
        from numba.core.cpu import CPUTargetOptions
    except ImportError:
        return False
    return hasattr(CPUTargetOptions, option)


def _stamp(compiled: Any) -> None:
    """Let a cached function depend on all kernel files: it contains code that it calls.

    numba checks only the function's own file.
    """
    index: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _SOURCES


def _sources() -> tuple[tuple[str, int, int], ...]:
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), here.parent / "problem.py"])
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


_SOURCES = _sources()


def _shielded(compiled: Any) -> Any:
    """Compile in a separate thread: Ctrl-C in the middle of LLVM's work can crash Python."""
    plain = getattr(compiled, "_compile_for_args", None)
    if plain is None:
        return compiled

    def compile_for_args(*args: Any, **kwargs: Any) -> Any:
        with compiling():
            return to_the_end(lambda: plain(*args, **kwargs))

    compiled._compile_for_args = compile_for_args
    return compiled
