"""mmdp info: a description of models, of the methods and of the system."""

from __future__ import annotations

import os
import platform
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Any

import mmdp
from mmdp.cli.console import ADVANCED, Data, pick, print_facts, print_json, print_table
from mmdp.cli.signatures import command
from mmdp.core.methods.registry import list_capabilities, methods_by_feature
from mmdp.core.text import format_with_unit, join_or, pluralize
from mmdp.core.timing import progress_line

PACKAGES = "numpy scipy numba pandas highspy matplotlib click rich Jinja2 jax pyarrow gymnasium"
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
    if data is not None:
        model = data.read()
        facts = _describe_model(model)
        if as_json:
            print_json({"data": data, **facts})
        else:
            print_facts(data, [*model.summary_rows, *_format_facts(facts)])
        return
    with progress_line.open("info"):
        system = describe_system()
    if as_json:
        methods = {row.name: row._asdict() for row in list_capabilities()}
        print_json({"methods": methods, "system": system})
        return
    _print_methods()
    print_facts("\nmmdp runs on", [(key, _format_value(value)) for key, value in system.items()])


# ---------------------------------------------------------------- models
def _describe_model(model: mmdp.MMDP) -> dict[str, Any]:
    """Everything that ``info`` knows about a model."""
    from mmdp.core.kernels.rewards import iter_blocks

    blocks = (r[:, model.allowed[states]] for states, r in iter_blocks(model.problem.r))
    ranges = [(r.min(), r.max()) for r in blocks if r.size]
    return {
        **pick(model, "name horizon discount unit storage density citation"),
        "models": model.n_models,
        "states": model.n_states,
        "actions": model.n_actions,
        "time_labels": {x.name: x.labels} if (x := model.time_labels).labels else None,
        "initial_given": model.has_initial,
        "initial_per_model": model.initial.ndim > 1,
        "initial_states": int(model.problem.initial.any(axis=1).sum()),
        "weights_range": [model.weights.min(), model.weights.max()],
        "not_allowed": int((~model.allowed).sum()),
        "pairs": model.allowed.size,
        "reward_range": [min(x for x, _ in ranges), max(x for _, x in ranges)],
        "next_rewards": model.has_next_rewards,
        "models_change": model.is_switching,
        "terminal": bool(model.terminal.any()),
        "n_bytes": model.nbytes,
        "labels": {
            axis: getattr(model, f"{axis}_labels") for axis, x in model.has_labels.items() if x
        },
        "parameters": sorted(model.parameters),
    }


def _format_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Format what the model itself does not say in its summary."""
    low, high = (f"{x:,.6g}" for x in facts["reward_range"])
    lowest, highest = (f"{x:.4g}" for x in facts["weights_range"])
    texts = {
        "initial states": pluralize(facts["initial_states"], "state"),
        "weights": "uniform" if lowest == highest else f"{lowest} to {highest}",
        "not allowed": f"{facts['not_allowed']:,} of {facts['pairs']:,} state-action pairs",
        "rewards": f"{low} to {format_with_unit(high, facts['unit'])}",
        "change": "the model changes by a chain of its own" * facts["models_change"],
        "terminal": "values of ending in a state are given" * facts["terminal"],
        "parameters": ", ".join(facts["parameters"]),
        "source": facts["citation"] or "",
    }
    return [(name, text) for name, text in texts.items() if text]


# ---------------------------------------------------------------- methods
def _print_methods() -> None:
    """Print a table of the methods and lists of those that support special problems."""
    rows = []
    for x in list_capabilities():
        proof = "nothing" if x.best_status is None else x.best_status.name
        rows.append((x.name, x.title, x.memory, proof.lower().replace("_", " ")))
    print_table(("method", "what it does", "memory", "proves"), rows, n_left=4)
    print()
    for case, names in methods_by_feature().items():
        print(textwrap.fill(f"For {case}: {join_or(names, ' and ')}.", 80))


# ---------------------------------------------------------------- the system
def describe_system() -> dict[str, object]:
    """Describe what mmdp runs on: versions, threads, devices, and whether each backend works.

    Each backend solves a small problem, whose value is compared with that of numpy. The first run
    compiles code, which takes some seconds.
    """
    from mmdp.core.kernels.cpu.threads import default_n_threads

    versions = {name: _find_version(name) for name in PACKAGES.split()}
    settings = {k: x for k, x in sorted(os.environ.items()) if k.startswith(SETTING_PREFIXES)}
    n_threads, n_cores = default_n_threads(), os.cpu_count() or 1
    return {
        "mmdp": f"{mmdp.__version__} in {Path(__file__).parents[1]}",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "packages": versions,
        "threads": f"{pluralize(n_threads, 'thread')} on {pluralize(n_cores, 'core')}",
        "settings": settings,
        "numba": _try_backend("numba", "cadp"),
        "jax": _try_backend("jax", "wsu") if versions["jax"] else "not installed",
    }


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


def _try_backend(backend: str, method: str) -> str:
    """Solve a small problem with a backend, and compare with the plain one."""
    model, _ = mmdp.domains.two_models()
    expected = mmdp.solve(model, 5, method, backend="numpy").value
    try:
        value = mmdp.solve(model, 5, method, backend=backend).value
        devices = ""
        if backend == "jax":
            import jax

            devices = ": " + ", ".join(f"{x.platform} {x.device_kind}" for x in jax.devices())
    except Exception as error:  # whatever is broken belongs in the report
        return f"fails: {type(error).__name__}: {' '.join(str(error).split())}"
    is_right = abs(value - expected) <= 1e-6 * abs(expected)
    return f"works{devices}" if is_right else f"wrong: {value!r} instead of {expected!r}"
