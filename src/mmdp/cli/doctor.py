"""mmdp doctor: what a bug report should say about the machine."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from mmdp._version import __version__
from mmdp.cli import options
from mmdp.cli.console import Working, show_facts, show_json
from mmdp.cli.options import command
from mmdp.words import counted, duration, readable_bytes

PACKAGES = (
    "numpy", "scipy", "numba", "pandas", "highspy", "matplotlib", "click", "rich", "Jinja2", "jax",
    "pyarrow", "gymnasium",
)  # fmt: skip
SETTINGS = ("MMDP_", "NUMBA_", "JAX_", "XLA_", "OMP_", "CUDA_VISIBLE")


@command("mmdp doctor", "mmdp doctor --json")
@options.as_json
def doctor(as_json: bool) -> None:
    """Show what mmdp runs on, for bug reports.

    Versions, threads, GPU, the folder of compiled code, and whether each kernel computes what the
    plain one does. The first run compiles code, which takes some seconds.
    """
    with Working("trying the kernels", quiet=as_json):
        found = {
            "mmdp": f"{__version__} in {Path(__file__).parents[1]}",
            "python": f"{platform.python_version()} ({platform.python_implementation()})",
            "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
            "packages": {name: _version(name) for name in PACKAGES},
            "threads": _threads(),
            "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)},
            "numba": _trial("numba", "cadp"),
            "cache": _cache(),
            "jax": _trial("jax", "wsu") if _version("jax") else "not installed",
            "devices": _devices() if _version("jax") else "only through jax",
        }
    if as_json:
        show_json(found)
    else:
        show_facts("mmdp doctor", [(key, _text(value)) for key, value in found.items()])


def _text(value: Any) -> str:
    """
    >>> _text({"numpy": "2.1", "jax": None}), _text({})
    ('numpy 2.1, jax not installed', 'none')
    """
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{k} {v or 'not installed'}" for k, v in value.items()) or "none"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _threads() -> str:
    from mmdp.kernels.cpu.threads import default_threads

    return f"{counted(default_threads(), 'thread')} on {counted(os.cpu_count() or 1, 'core')}"


def _trial(backend: str, method: str) -> str:
    """Solve a small problem with a kernel, and compare with the plain one."""
    import mmdp
    from mmdp.clock import spent

    model, _ = mmdp.domains.two_models()
    expected = mmdp.solve(model, 5, method, backend="numpy").value
    begun, compiling = time.perf_counter(), spent()
    try:
        value = mmdp.solve(model, 5, method, backend=backend).value
    except Exception as error:  # whatever is broken belongs in the report
        return f"fails: {type(error).__name__}: {' '.join(str(error).split())}"
    took, compiled = time.perf_counter() - begun, spent() - compiling
    if abs(value - expected) > 1e-6 * abs(expected):
        return f"wrong: {value!r} instead of {expected!r}"
    return f"works, {duration(took)}, of which {duration(compiled)} compiling or loading"


def _cache() -> str:
    """The folder of compiled code, and what is in it."""
    try:
        from mmdp.kernels.cpu import passes

        compiled = [x for x in vars(passes).values() if hasattr(x, "stats")]
        folder = Path(compiled[0].stats.cache_path)
    except Exception as error:
        return f"none: {type(error).__name__}: {' '.join(str(error).split())}"
    files = list(folder.glob("*.nb[ic]")) if folder.is_dir() else []
    size = sum(file.stat().st_size for file in files)
    state = "writable" if os.access(folder, os.W_OK) else "not writable"
    return f"{folder} ({counted(len(files), 'file')}, {readable_bytes(size)}, {state})"


def _devices() -> str:
    import jax

    try:
        return ", ".join(f"{x.platform} {x.device_kind}" for x in jax.devices())
    except Exception as error:
        return f"none: {type(error).__name__}: {' '.join(str(error).split())}"
