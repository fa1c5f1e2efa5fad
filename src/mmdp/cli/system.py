"""What mmdp runs on, for bug reports: printed by ``mmdp info``."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

from mmdp._version import __version__
from mmdp.cli.console import LiveLine, print_facts
from mmdp.core.text import format_bytes, format_duration, pluralize

PACKAGES = (
    "numpy",
    "scipy",
    "numba",
    "pandas",
    "highspy",
    "matplotlib",
    "click",
    "rich",
    "Jinja2",
    "jax",
    "pyarrow",
    "gymnasium",
)
SETTING_PREFIXES = ("MMDP_", "NUMBA_", "JAX_", "XLA_", "OMP_", "CUDA_VISIBLE")


def describe_system(*, quiet: bool) -> dict[str, object]:
    """Describe what mmdp runs on: versions, threads, devices, and whether each backend works.

    Each backend solves a small problem, whose value is compared with that of numpy. The first run
    compiles code, which takes some seconds.
    """
    with LiveLine("trying the backends", quiet=quiet):
        return {
            "mmdp": f"{__version__} in {Path(__file__).parents[1]}",
            "python": f"{platform.python_version()} ({platform.python_implementation()})",
            "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
            "packages": {name: _find_version(name) for name in PACKAGES},
            "threads": _describe_threads(),
            "settings": {
                k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTING_PREFIXES)
            },
            "numba": _try_backend("numba", "cadp"),
            "cache": _describe_cache(),
            "jax": _try_backend("jax", "wsu") if _find_version("jax") else "not installed",
            "devices": _describe_devices() if _find_version("jax") else "only through jax",
        }


def print_system() -> None:
    """Print what mmdp runs on, for bug reports."""
    facts = describe_system(quiet=False)
    print_facts("mmdp runs on", [(key, _format_value(value)) for key, value in facts.items()])


def _format_value(value: object) -> str:
    """Format a fact as text; a mapping becomes a list.

    >>> _format_value({"numpy": "2.1", "jax": None}), _format_value({})
    ('numpy 2.1, jax not installed', 'none')
    """
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{k} {v or 'not installed'}" for k, v in value.items()) or "none"


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _describe_threads() -> str:
    from mmdp.core.kernels.cpu.threads import default_n_threads

    return f"{pluralize(default_n_threads(), 'thread')} on {pluralize(os.cpu_count() or 1, 'core')}"


def _try_backend(backend: str, method: str) -> str:
    """Solve a small problem with a kernel, and compare with the plain one."""
    import mmdp
    from mmdp.core.timing import get_compile_seconds

    model, _ = mmdp.domains.two_models()
    expected = mmdp.solve(model, 5, method, backend="numpy").value
    start_time, compile_start = time.perf_counter(), get_compile_seconds()
    try:
        value = mmdp.solve(model, 5, method, backend=backend).value
    except Exception as error:  # whatever is broken belongs in the report
        return f"fails: {type(error).__name__}: {' '.join(str(error).split())}"
    seconds, compile_seconds = (
        time.perf_counter() - start_time,
        get_compile_seconds() - compile_start,
    )
    if abs(value - expected) > 1e-6 * abs(expected):
        return f"wrong: {value!r} instead of {expected!r}"
    compile_text = format_duration(compile_seconds)
    return f"works, {format_duration(seconds)}, of which {compile_text} compiling or loading"


def _describe_cache() -> str:
    """The folder of compiled code, and what is in it."""
    try:
        from mmdp.core.kernels.cpu import passes

        compiled = [x for x in vars(passes).values() if hasattr(x, "stats")]
        folder = Path(compiled[0].stats.cache_path)
    except Exception as error:
        return f"none: {type(error).__name__}: {' '.join(str(error).split())}"
    files = list(folder.glob("*.nb[ic]")) if folder.is_dir() else []
    size = sum(file.stat().st_size for file in files)
    access_text = "writable" if os.access(folder, os.W_OK) else "not writable"
    return f"{folder} ({pluralize(len(files), 'file')}, {format_bytes(size)}, {access_text})"


def _describe_devices() -> str:
    import jax

    try:
        return ", ".join(f"{x.platform} {x.device_kind}" for x in jax.devices())
    except Exception as error:
        return f"none: {type(error).__name__}: {' '.join(str(error).split())}"
