"""How far one machine goes: models doubled until a device is full, and 2e9 non-zeros in parts.

``python -m benchmarks.scaling weak`` times the sweep of a dense problem whose models are doubled
until the device's memory is full, and then computes from the measured sweep what 8 and 64 such
devices would take for as many times the models: each adds its own models and the exchange of
(S, A) sums. Set ``XLA_PYTHON_CLIENT_MEM_FRACTION=0.95``, or jax leaves a quarter unused.

``python -m benchmarks.scaling parts --backend jax`` writes a banded problem as a folder of parts,
loads it and solves it, each in turn, and reports seconds and the process's peak memory.

Every line that is printed is a JSON document. ``--tiny`` tries the script on any machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mmdp
from benchmarks.fitting import forget_peak, status
from benchmarks.gpu import DISCOUNT, Report, Sizes, copy, machine, seconds
from benchmarks.instances import sparse_model
from benchmarks.sizes import Shape
from mmdp.kernels.jax.arrays import Arrays, double
from mmdp.kernels.jax.kernel import JaxKernel
from mmdp.kernels.jax.passes import backward, forward
from mmdp.kernels.jax.rows import Layout

DENSE, TINY_DENSE = Sizes(), Sizes(states=7, actions=3, horizon=5, models=16, copy_mb=8)
BANDED = Shape(models=1000, states=5000, actions=10, successors=40, horizon=50)
TINY_BANDED = Shape(models=100, states=50, actions=3, successors=6, horizon=5)
MODELS_PER_PART = 50


def tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


# ------------------------------------------------------------------ models doubled
def filled(sizes: Sizes, models: int, first: int = 0) -> Arrays:
    """A dense problem on the device: p and r are formulas of their place, held nowhere else."""
    S, A, M = sizes.states, sizes.actions, models

    def place(*shape: int) -> Any:
        return tuple(jax.lax.broadcasted_iota(jnp.float64, shape, i) for i in range(1, len(shape)))

    def p() -> Any:
        row, entry, model = place(1, S * A, S, M)
        angle = 2 * jnp.pi * entry / S + row + 0.37 * (model + first)
        return (1 + 0.9 * jnp.sin(angle)) / S  # the sines of a row add up to 0

    def r() -> Any:
        state, action, model = place(1, S, A, M)
        return jnp.cos(state + 2 * action + 0.11 * (model + first))

    return Arrays(
        p=jax.jit(p)(), after=None, owner=None, r=jax.jit(r)(),
        allowed=jnp.ones((1, S, A), bool), initial=jnp.full((S, M), 1.0 / S),
        weights=jnp.full(M, 1.0 / M), discount=np.float64(DISCOUNT), terminal=jnp.zeros((S, M)),
    )  # fmt: skip


def sweep_seconds(sizes: Sizes, models: int) -> tuple[float, float]:
    """Seconds of one of the paper's sweeps, and the error in the values of the last models."""
    x, tuning, T = filled(sizes, models), JaxKernel().tuning, sizes.horizon
    policy = jnp.zeros((T, sizes.states), jnp.int32)

    @jax.jit
    def sweep(x: Arrays, policy: Any) -> Any:
        on = Layout(x, tuning)
        b = forward(on, policy)[1]
        return backward(on, T, "weighted", b, policy, ("actions",))[1]

    @jax.jit
    def last(x: Arrays) -> Any:
        return backward(Layout(x, tuning), T, "own", None, None)[0][:, -4:]

    took = seconds(partial(sweep, x, policy), rounds=3, calls=2)
    found = np.array(last(x))
    del x
    return took, float(np.abs(found - last(filled(sizes, 4, models - 4))).max())


def weak(sizes: Sizes, most: int) -> None:
    """Models doubled until memory is full, then half as many more than the last that fitted."""
    report = Report()
    with contextlib.redirect_stdout(io.StringIO()):
        copy(report, sizes)
    tell(row="copy", gb_s=report.copy / 1e9)
    models, largest = sizes.models, None
    while models <= most and (found := measured(sizes, models, report.copy)):
        largest, models = found, 2 * models
    if largest is not None and models <= most:
        largest = measured(sizes, 3 * models // 4, report.copy) or largest
    if largest is not None:
        for devices in (1, 8, 64):
            tell(**projected(sizes, largest, devices))


def measured(sizes: Sizes, models: int, copy_rate: float) -> dict[str, Any] | None:
    """The sweep with this many models; None if they do not fit."""
    S, A, T = sizes.states, sizes.actions, sizes.horizon
    p = 8.0 * S * A * S * models
    row = {"row": "weak", "models": models, "horizon": T, "p_gb": p / 1e9}
    try:
        took, error = sweep_seconds(sizes, models)
    except jax.errors.JaxRuntimeError as full:
        tell(**row, failed=str(full).splitlines()[0][:200])
        return None
    read = p * T * (1 + 1 / A)  # all rows backward, the chosen rows forward
    stats = jax.devices()[0].memory_stats() or {}
    row |= {
        "ms_per_sweep": 1e3 * took, "gb_s": read / took / 1e9,
        "share_of_copy": read / took / copy_rate, "error": error,
        "device_peak_gb": stats.get("peak_bytes_in_use", 0) / 1e9,
        "device_limit_gb": stats.get("bytes_limit", 0) / 1e9,
    }  # fmt: skip
    tell(**row)
    return row


# Assumed, not measured: what one exchange costs between devices of one machine, and beyond it.
NODE = 8  # devices per machine
LATENCY = {"within": 15e-6, "between": 40e-6}  # seconds per exchange, however small
RATE = {"within": 300e9, "between": 25e9}  # bytes per second and device


def projected(sizes: Sizes, one: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """That many times the models on ``devices``: the measured sweep and the exchange, added."""
    S, A, T = sizes.states, sizes.actions, sizes.horizon
    link = "within" if devices <= NODE else "between"
    exchanged = 8 * (T * S * (A + 1) + 1) if devices > 1 else 0
    on_the_wire = 2 * (devices - 1) / devices * exchanged  # a ring's share of each device
    waiting = (T + 2) * LATENCY[link] * (devices > 1) + on_the_wire / RATE[link]
    alone = one["ms_per_sweep"] / 1e3
    return {
        "row": "projected", "devices": devices, "models": devices * one["models"],
        "exchanged_bytes_per_sweep": exchanged, "wire_bytes_per_device": on_the_wire,
        "assumed_latency_s": LATENCY[link], "assumed_bytes_per_s": RATE[link],
        "compute_ms": 1e3 * alone, "exchange_ms": 1e3 * waiting,
        "ms_per_sweep": 1e3 * (alone + waiting), "efficiency": alone / (alone + waiting),
        "arithmetic": f"{1e3 * alone:.4g} ms + {T + 2} x {1e6 * LATENCY[link]:.0f} us + "
        f"{on_the_wire:.0f} B / {RATE[link] / 1e9:.0f} GB/s",
    }  # fmt: skip


# ------------------------------------------------------------------ two billion non-zeros
def parts(shape: Shape, backend: str, folder: Path) -> None:
    """Write the parts, load them and solve, each with its seconds and this process's peak."""
    few = shape._replace(models=min(shape.models, MODELS_PER_PART))
    started = time.perf_counter()
    for i in range(shape.models // few.models):
        mmdp.save(sparse_model(few, seed=i), folder / f"part-{i:05}.npz")
    size = sum(file.stat().st_size for file in folder.iterdir())
    tell(row="written", seconds=time.perf_counter() - started, gb=size / 1e9, **shape._asdict())

    forget_peak()
    before, started = status("VmRSS"), time.perf_counter()
    model = mmdp.load(folder)
    x, peak = model.problem, status("VmHWM") - before
    tell(
        row="loaded", seconds=time.perf_counter() - started, non_zeros=x.p.size,
        model_gb=model.memory / 1e9, peak_gb=peak / 1e9, peak_over_model=peak / model.memory,
    )  # fmt: skip

    started = time.perf_counter()
    found = mmdp.solve(model, shape.horizon, mmdp.CADP(starts=1), backend=backend)
    stats = (jax.devices()[0].memory_stats() or {}) if backend == "jax" else {}
    tell(
        row="solved", backend=backend, seconds=time.perf_counter() - started,
        sweeps=found.iterations, sweeps_taken=found.details["sweeps_taken"], value=found.value,
        status=found.status.name, peak_gb=status("VmHWM") / 1e9,
        device_peak_gb=stats.get("peak_bytes_in_use", 0) / 1e9,
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("weak", "parts"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--backend", default="jax", help="of parts: jax or numba")
    parser.add_argument("--folder", type=Path, help="of parts: where to write them")
    given = parser.parse_args(arguments)
    tell(row="machine", **machine())
    if given.what == "weak":
        with double():
            weak(*((TINY_DENSE, 64) if given.tiny else (DENSE, 2**21)))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        parts(TINY_BANDED if given.tiny else BANDED, given.backend, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
