"""mmdp info: a description of models, of the methods and of the system."""

from __future__ import annotations

import os
import platform
import textwrap
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdp._version import __version__
from mmdp.cli.console import (
    WIDTH,
    LiveLine,
    list_assumptions,
    pick,
    print_assumptions,
    print_facts,
    print_json,
    print_table,
)
from mmdp.cli.data import ADVANCED, Data
from mmdp.cli.signatures import command
from mmdp.core.methods.registry import list_capabilities, methods_by_feature
from mmdp.core.text import (
    format_bytes,
    format_duration,
    format_with_unit,
    join_or,
    pluralize,
    summarize_labels,
)

if TYPE_CHECKING:
    from mmdp import MMDP

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


@command("mmdp info", "mmdp info data/riverswim", "mmdp info models.npz --json", advanced=ADVANCED)
def info(data: Data | None = None, *, as_json: bool = False) -> None:
    """Describe DATA; without it, the methods and what mmdp runs on.

    Of DATA: its sizes, labels, rewards and storage, and what had to be assumed, such as an
    initial distribution that is not given.

    Of mmdp, for bug reports too: what each method can do, versions, threads, devices, and whether
    each backend computes what numpy does. A policy with a belief has to see what happens at every
    step; one without needs only the time and the state. --json has the options of each method.

    Parameters
    ----------
    data
        The models to describe.
    """
    if data is None:
        if as_json:
            methods = {row.name: row._asdict() for row in list_capabilities()}
            print_json({"methods": methods, "system": describe_system(quiet=True)})
        else:
            _print_methods()
            facts = describe_system(quiet=False)
            print_facts(
                "\nmmdp runs on", [(key, _format_value(value)) for key, value in facts.items()]
            )
        return
    model = data.read(quiet=as_json)
    if as_json:
        print_json({"data": data, **_describe_model(model)})
    else:
        print_facts(str(data), _format_facts(model))
        print_assumptions(model)


# ---------------------------------------------------------------- models
def _describe_model(model: MMDP) -> dict[str, Any]:
    """Everything that ``info`` knows about a model."""
    import numpy as np

    from mmdp.core.kernels.rewards import iter_blocks

    reward_blocks = [r[:, model.allowed[states]] for states, r in iter_blocks(model.problem.r)]
    reward_ranges = [(r.min(), r.max()) for r in reward_blocks if r.size]
    weights = model.weights
    return {
        **pick(model, "name horizon discount unit storage density citation"),
        "models": model.n_models,
        "states": model.n_states,
        "actions": model.n_actions,
        "times": {x.name: x.labels} if (x := model.time_labels).labels else None,
        "initial_given": model.has_initial,
        "initial_per_model": model.initial.ndim > 1,
        "initial_states": int(model.problem.initial.any(axis=1).sum()),
        "weights_uniform": bool(np.ptp(weights) <= 1e-12),
        "weights_range": [weights.min(), weights.max()],
        "not_allowed": int((~model.allowed).sum()),
        "pairs": model.allowed.size,
        "reward_range": [min(x for x, _ in reward_ranges), max(y for _, y in reward_ranges)],
        "next_rewards": model.has_next_rewards,
        "models_change": model.is_switching,
        "terminal": bool(model.terminal.any()),
        "memory": model.nbytes,
        "labels": {
            axis: getattr(model, f"{axis}_labels")
            for axis, has_own_labels in model.has_labels.items()
            if has_own_labels
        },
        "parameters": sorted(model.parameters),
        "warnings": list_assumptions(model),
    }


def _format_facts(model: MMDP) -> list[tuple[str, str]]:

    facts = _describe_model(model)
    lowest, highest = facts["weights_range"]
    low, high = (f"{x:,.6g}" for x in facts["reward_range"])
    reward_text = "per next state" if facts["next_rewards"] else "per state and action"
    has_labels = model.has_labels
    per_model_text = ", each model its own" if model.initial.ndim > 1 else ""
    rows = [
        ("models", summarize_labels(model.model_labels, has_labels["model"])),
        ("states", summarize_labels(model.state_labels, has_labels["state"])),
        ("actions", summarize_labels(model.action_labels, has_labels["action"])),
        ("horizon", f"{model.horizon} (time-varying)" if model.horizon else "any"),
        *model.time_labels.summary_rows,
        ("discount", f"{model.discount:g}"),
        (
            "initial",
            f"given, {pluralize(facts['initial_states'], 'state')} possible{per_model_text}"
            if model.has_initial
            else "uniform (not given)",
        ),
        ("weights", "uniform" if facts["weights_uniform"] else f"{lowest:.4g} to {highest:.4g}"),
        ("not allowed", f"{facts['not_allowed']:,} of {facts['pairs']:,} state-action pairs"),
        ("rewards", f"{low} to {format_with_unit(high, model.unit)}, {reward_text}"),
        ("storage", f"{model.storage}, density {model.density:.3g}, {format_bytes(model.nbytes)}"),
    ]
    if facts["models_change"]:
        rows.insert(1, ("change", "the model changes by a chain of its own"))
    if facts["terminal"]:
        rows.insert(-1, ("terminal", "values of ending in a state are given"))
    if facts["parameters"]:
        rows.append(("parameters", ", ".join(facts["parameters"])))
    if model.citation:
        rows.append(("source", model.citation))
    return rows


# ---------------------------------------------------------------- methods
def _print_methods() -> None:
    """Print a table of the methods and lists of those that support special problems."""
    rows = [
        (
            row.name,
            row.title,
            row.memory,
            row.best_status.name.lower().replace("_", " ") if row.best_status else "nothing",
        )
        for row in list_capabilities()
    ]
    print_table(("method", "what it does", "memory", "proves"), rows, n_left=4)
    print()
    for case, names in methods_by_feature().items():
        print(textwrap.fill(f"For {case}: {join_or(names, ' and ')}.", WIDTH))


# ---------------------------------------------------------------- the system
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


def _format_value(value: object) -> str:
    """Format a fact as text; a mapping becomes a list.

    >>> _format_value({"numpy": "2.1", "jax": None}), _format_value({})
    ('numpy 2.1, jax not installed', 'none')
    """
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{k} {v or 'not installed'}" for k, v in value.items()) or "none"


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


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
        return f"fails: {_format_error(error)}"
    seconds, compile_seconds = (
        time.perf_counter() - start_time,
        get_compile_seconds() - compile_start,
    )
    if abs(value - expected) > 1e-6 * abs(expected):
        return f"wrong: {value!r} instead of {expected!r}"
    compile_text = format_duration(compile_seconds)
    return f"works, {format_duration(seconds)}, of which {compile_text} compiling or loading"


def _describe_cache() -> str:
    """Describe the folder of compiled code and its contents."""
    try:
        from mmdp.core.kernels.cpu import passes

        compiled = [x for x in vars(passes).values() if hasattr(x, "stats")]
        folder = Path(compiled[0].stats.cache_path)
    except Exception as error:
        return f"none: {_format_error(error)}"
    files = list(folder.glob("*.nb[ic]")) if folder.is_dir() else []
    size = sum(file.stat().st_size for file in files)
    access_text = "writable" if os.access(folder, os.W_OK) else "not writable"
    return f"{folder} ({pluralize(len(files), 'file')}, {format_bytes(size)}, {access_text})"


def _describe_devices() -> str:
    import jax

    try:
        return ", ".join(f"{x.platform} {x.device_kind}" for x in jax.devices())
    except Exception as error:
        return f"none: {_format_error(error)}"
