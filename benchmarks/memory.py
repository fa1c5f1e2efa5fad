"""Memory and input: peaks of solves, of building models and of fits, and loading a file.

Peaks are measured in a process of their own (Linux: resident memory and its high-water mark). What
a first small call imports and compiles belongs to the program and is not counted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

import mmdp
from benchmarks.cpu import prepare_step
from benchmarks.instances import FULL, QUICK, Shape, Sizes, make_instance, make_sparse_model
from benchmarks.rows import (
    Contestant,
    Row,
    interleave,
    make_ratio_row,
    read_memory,
    reset_peak_memory,
    run_fresh,
)
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.data.posterior import fit, fit_folder, from_samples


def measure_loading(sizes: Sizes) -> Iterator[Row]:
    """Compare mmdp.load of a CSV with bare pandas.read_csv of the same file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "training.csv"
        mmdp.io.save(make_instance(sizes, "POPS").model, file)
        n_rows = len(pd.read_csv(file))
        contestants = {
            "ours": Contestant(lambda: mmdp.load(file)),
            "pandas": Contestant(lambda: pd.read_csv(file)),
        }
        contestants["ours"].run()
        times = interleave(contestants, sizes.n_rounds)
    yield make_ratio_row(
        "POPS: mmdp.load / pandas.read_csv",
        times["ours"],
        times["pandas"],
        n_threads=None,
        note=f"{n_rows:,} rows in {times['ours'].best:.3f} s",
    )


# ------------------------------------------------------------------ solves
def measure_peak(sizes: Sizes) -> Iterator[Row]:
    """Compare the peak of a solve with the transitions, less the arrays kept for every time."""
    for sweeps, arrays in (("paper", "b and v"), ("two-way", "b, v and q")):
        x = run_fresh(solve_fresh, "POP", sweeps, sizes.is_trial)
        yield Row(
            f"POP: peak / transitions, {sweeps}",
            (x["peak"] - x["kept"]) / x["stored"],
            n_threads=None,
            details=x,
            note=f"peak {x['peak'] / 1e6:.0f} MB, transitions {x['stored'] / 1e6:.0f} MB, "
            f"{arrays} {x['kept'] / 1e6:.0f} MB",
        )


def measure_large(sizes: Sizes) -> Iterator[Row]:
    """Build and solve a large sparse problem."""
    x, shape = run_fresh(solve_fresh, "large", "two-way", sizes.is_trial), sizes.large
    name = f"{shape.n_nonzeros / 1e6:.3g} million non-zeros"
    facts = ", ".join(f"{key} {value}" for key, value in shape._asdict().items())
    yield Row(f"{name}: peak", x["peak"] / 1e9, "GB", 2, details=x, note=facts)
    share = (x["peak"] - x["kept"]) / x["stored"]
    yield Row(f"{name}: peak / transitions", share, n_threads=2, note="b, v and q taken off")
    yield Row(f"{name}: building the model", x["build"], "s", 1)
    yield Row(f"{name}: solve", x["seconds"], "s", 2, note=f"{x['sweeps']} two-way sweeps")
    yield Row(f"{name}: step, share of reading", x["read"] / x["step"], "%", 2)


def solve_fresh(case: str, sweeps: Any, is_trial: bool) -> dict[str, float]:
    """Solve in this process; returns bytes stored and kept by time, the peak, and seconds."""
    sizes = QUICK if is_trial else FULL
    backend, method = NumbaBackend(2), mmdp.methods.CADP(n_init=1, sweep_type=sweeps)
    mmdp.solve(make_sparse_model(Shape(200, 30, 3, 6, 3)), 3, method, backend=backend)
    start = time.perf_counter()
    if case == "large":
        reset_peak_memory()
        start_memory = read_memory("VmRSS")
        model, T = make_sparse_model(sizes.large), sizes.large.horizon
    else:
        model, T = make_instance(sizes, case).model, sizes.horizon
        reset_peak_memory()
        # the model's own bytes count, what was left from making it does not
        start_memory = read_memory("VmRSS") - model.problem.p.nbytes
    build = time.perf_counter() - start
    start = time.perf_counter()
    solution = mmdp.solve(model, T, method, backend=backend)
    seconds, peak = time.perf_counter() - start, read_memory("VmHWM") - start_memory
    x = model.problem
    n_arrays = 2 if solution.details["sweep_type"] == "paper" else x.n_actions + 2
    speed: dict[str, float] = {}
    if case == "large":
        step, read = prepare_step(model, T, 2)
        times = interleave({"step": step, "read": read}, 3)
        speed = {name: times[name].best for name in times}
    return speed | {
        "stored": x.p.nbytes,
        "kept": 8 * T * x.n_models * x.n_states * n_arrays,
        "peak": peak,
        "seconds": seconds,
        "build": build,
        "sweeps": solution.iterations,
    }


# ------------------------------------------------------------------ building
N_SUCCESSORS, N_AGES = 8, 76
Build = Callable[[], mmdp.MMDP]


def prepare_dense(share: float) -> Build:
    """Draw an array of 50 models × 716 states × 25 actions at ``share`` 1: 5 GB."""
    S, A = max(4, int(716 * share**0.5)), 25
    p = np.random.default_rng(0).random((50, S, A, S))
    p /= p.sum(axis=-1, keepdims=True)
    return lambda: mmdp.MMDP(p, np.zeros((S, A)))


def draw_coordinates(share: float) -> dict[str, Any]:
    """Draw an entry per transition: 500 models × 2,000 states × 8 actions at ``share`` 1."""
    M, S, A = max(2, int(500 * share)), 2000 if share > 1e-3 else 50, 8
    m, s, a, k = (x.reshape(-1) for x in np.indices((M, S, A, N_SUCCESSORS)))
    p = np.random.default_rng(0).random((M, S, A, N_SUCCESSORS))
    p /= p.sum(axis=-1, keepdims=True)
    return {
        "model": m,
        "state": s,
        "action": a,
        "next_state": (s * 7 + a + 31 * k) % S,
        "probability": p.reshape(-1),
        "shape": (M, S, A),
    }


def prepare_coordinates(share: float) -> Build:
    entries = draw_coordinates(share)
    rewards = np.zeros(entries["shape"][1:])
    return lambda: mmdp.MMDP.from_coordinates(**entries, rewards=rewards)


def prepare_matrices(share: float) -> Build:
    """Arrange these entries as scipy matrices by model and action."""
    entries = draw_coordinates(share)
    M, S, A = entries["shape"]
    row, column, p = (
        entries[x].reshape(M, S, A, N_SUCCESSORS).transpose(0, 2, 1, 3).reshape(M, A, -1)
        for x in ("state", "next_state", "probability")
    )
    matrices = [
        [scipy.sparse.csr_array((p[m, a], (row[m, a], column[m, a])), (S, S)) for a in range(A)]
        for m in range(M)
    ]
    return lambda: mmdp.MMDP(matrices, np.zeros((S, A)))


def prepare_samples(share: float) -> Build:
    """Use a function of 1,000 parameter samples, 78 states and 76 ages at ``share`` 1."""
    S, A, n_samples = 78, 2, max(2, int(1000 * share))
    indptr = np.arange(S + 1) * N_SUCCESSORS
    indices = np.sort((np.arange(S)[:, None] + 5 * np.arange(N_SUCCESSORS)) % S, axis=1)

    def build(x: dict[str, Any]) -> tuple[Any, Any]:
        p = 1 + x["risk"] * np.random.default_rng(0).random((N_AGES, A, S, N_SUCCESSORS))
        p /= p.sum(axis=-1, keepdims=True)
        nest = [
            [
                scipy.sparse.csr_array((y.reshape(-1), indices.reshape(-1), indptr), (S, S))
                for y in by_action
            ]
            for by_action in p
        ]
        return nest, np.zeros((S, A))

    risk = np.random.default_rng(1).random(n_samples)
    return lambda: from_samples({"risk": risk}, build, vectorized=False)


INPUTS: dict[str, Callable[[float], Build]] = {
    "dense": prepare_dense,
    "coordinates": prepare_coordinates,
    "matrices": prepare_matrices,
    "samples": prepare_samples,
}


def measure_building(sizes: Sizes) -> Iterator[Row]:
    """Compare the peak of building a model, beyond its input, with the finished model."""
    for name in INPUTS:
        x = run_fresh(build_fresh, name, sizes.input_share)
        yield Row(
            f"from {name}: peak / model",
            x["peak"] / x["model"],
            n_threads=None,
            details=x,
            note=f"{x['entries']:,} non-zeros, {x['model'] / 1e6:.0f} MB in {x['seconds']:.2f} s",
        )


def build_fresh(name: str, share: float) -> dict[str, float]:
    INPUTS[name](1e-6)()  # what a first model imports belongs to the program
    build = INPUTS[name](share)
    reset_peak_memory()
    start_memory, start = read_memory("VmRSS"), time.perf_counter()
    model = build()
    seconds, peak = time.perf_counter() - start, read_memory("VmHWM") - start_memory
    return {
        "seconds": seconds,
        "peak": peak,
        "model": model.nbytes,
        "entries": model.problem.p.size,
    }


# ------------------------------------------------------------------ fits
FORMATS = ("frame", "csv", "parquet")


def measure_fitting(sizes: Sizes) -> Iterator[Row]:
    """Time fits to a long log, and compare their peak with the log as a DataFrame.

    "fit" is mmdp.fit, "folder" the same with the models written as CSV, as ``mmdp fit`` does.
    """
    for name in FORMATS:
        for target in ("fit", "folder"):
            x = run_fit(name, target, sizes.n_log_rows, 20 if sizes.is_trial else 200)
            check, note = f"{target} of a log, {name}", f"{sizes.n_log_rows:,} rows"
            yield Row(f"{check}: seconds", x["seconds"], "s", None, note=note)
            note = f"a table of {x['table'] / 1e6:.1f} MB"
            yield Row(f"{check}: peak / table", x["ratio"], n_threads=None, note=note)


def make_log(n_rows: int) -> pd.DataFrame:
    """Draw a walk over 50 states with 4 actions, in episodes of 20 steps."""
    rng = np.random.default_rng(0)
    state = rng.integers(50, size=n_rows)
    columns = {
        "episode": np.arange(n_rows) // 20,
        "time": np.arange(n_rows) % 20,
        "state": state,
        "action": rng.integers(4, size=n_rows),
        "next_state": (state + rng.integers(10, size=n_rows)) % 50,
        "reward": rng.normal(size=n_rows),
    }
    return pd.DataFrame(columns)


def write_log(log: pd.DataFrame, folder: Path, name: str) -> Any:
    """Write the log in a format; a frame stays as it is."""
    path = folder / f"log.{name}"
    if name == "csv":
        log.to_csv(path, index=False)
    elif name == "parquet":
        log.to_parquet(path, index=False)
    return log if name == "frame" else path


def run_fit(name: str, target: str, n_rows: int, n_models: int) -> dict[str, float]:
    """Fit in a fresh process; returns seconds, bytes of the table, and the peak relative to it."""
    log = make_log(n_rows)
    table = int(log.memory_usage(deep=True, index=False).sum())
    with tempfile.TemporaryDirectory() as folder:
        path = "" if name == "frame" else str(write_log(log, Path(folder), name))
        x: dict[str, float] = run_fresh(fit_fresh, name, target, n_rows, n_models, path)
    # a frame was there before
    return x | {"table": table, "ratio": x["peak"] / table + (name == "frame")}


def fit_fresh(name: str, target: str, n_rows: int, n_models: int, path: str) -> dict[str, float]:
    log = path or make_log(n_rows)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        # what a first fit imports and allocates belongs to the program
        fit_folder(write_log(make_log(1000), folder, name), folder / "first", n_models=2)
        reset_peak_memory()
        start_memory, start = read_memory("VmRSS"), time.perf_counter()
        if target == "fit":
            fit(log, n_models=n_models)
        else:
            fit_folder(log, folder / "models", n_models=n_models)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "peak": read_memory("VmHWM") - start_memory}
