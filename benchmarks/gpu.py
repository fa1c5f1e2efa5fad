"""The jax kernel on an accelerator: passes, solves against a CPU, exogenous events, and scaling.

Bytes are counted as the fewest that must move: p once per time step in a backward pass, the chosen
rows of p once in a forward pass. A share is of the bandwidth of a large copy on the same device in
the same run. A quick trial runs on any device that jax has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import mmdp
from benchmarks.instances import Sizes, make_perishable, make_population, make_sparse_model
from benchmarks.peers import time_mdpax
from benchmarks.rows import (
    Contestant,
    Row,
    UnavailableError,
    interleave,
    make_ratio_row,
    read_memory,
    reset_peak_memory,
)
from mmdp.data.domains import _perishable

try:
    import jax
    import jax.numpy as jnp

    from mmdp.core.kernels.jax import windowed
    from mmdp.core.kernels.jax.arrays import ProblemArrays, enable_float64
    from mmdp.core.kernels.jax.backend import JaxBackend
    from mmdp.core.kernels.jax.passes import backward, forward
    from mmdp.core.kernels.jax.step_ops import StepOps
except ImportError:
    HAS_JAX = False
else:
    HAS_JAX = True

N_ACTIONS, DISCOUNT = 5, 0.9
MODELS_PER_SHARD = 50
N_STEPS, N_DEMANDS = 20, 31  # of the comparison with mdpax


def require_device(sizes: Sizes) -> str:
    """Return the name of the accelerator; a trial takes any device."""
    if not HAS_JAX or (not sizes.is_trial and jax.devices()[0].platform == "cpu"):
        raise UnavailableError("no GPU with jax here; --merge FILE takes bench.json of another run")
    return str(jax.devices()[0].device_kind)


def time_queued(run: Callable[[], Any], n_rounds: int = 5, n_calls: int = 5) -> float:
    """Return the best time of a call whose result stays on the device."""
    jax.block_until_ready(run())
    seconds = []
    for _ in range(n_rounds):
        start = time.perf_counter()
        for _ in range(n_calls):
            result = run()
        jax.block_until_ready(result)
        seconds.append((time.perf_counter() - start) / n_calls)
    return min(seconds)


def measure_copy(sizes: Sizes) -> float:
    """Return the bytes per second of a large copy, reads and writes added."""
    n = sizes.copy_mb * 1_000_000 // 8
    source = jnp.arange(n, dtype=jnp.float64)
    return 16.0 * n / time_queued(partial(jax.jit(lambda x: x + 1.0), source))


def fill_device(sizes: Sizes, n_models: int, first: int = 0) -> ProblemArrays:
    """Make a dense problem on the device: p and r are formulas of their indices."""
    S, A, M = sizes.n_states, N_ACTIONS, n_models

    def index(*shape: int) -> Any:
        return tuple(jax.lax.broadcasted_iota(jnp.float64, shape, i) for i in range(1, len(shape)))

    def make_p() -> Any:
        row, entry, model = index(1, S * A, S, M)
        angle = 2 * jnp.pi * entry / S + row + 0.37 * (model + first)
        return (1 + 0.9 * jnp.sin(angle)) / S  # the sines of a row add up to 0

    def make_r() -> Any:
        state, action, model = index(1, S, A, M)
        return jnp.cos(state + 2 * action + 0.11 * (model + first))

    return ProblemArrays(
        p=jax.jit(make_p)(),
        next_states=None,
        part_rows=None,
        r=jax.jit(make_r)(),
        allowed=jnp.ones((1, S, A), bool),
        initial=jnp.full((S, M), 1.0 / S),
        weights=jnp.full(M, 1.0 / M),
        discount=np.float64(DISCOUNT),
        terminal=jnp.zeros((S, M)),
    )


def time_passes(x: ProblemArrays, horizon: int) -> dict[str, tuple[float, float]]:
    """Return seconds, and bytes that must move, of the passes and of a sweep of both."""
    S, A = x.allowed.shape[1:]
    policy = jnp.asarray(np.random.default_rng(1).integers(0, A, (horizon, S), dtype=np.int32))
    make_ops = partial(StepOps, tuning=JaxBackend().tuning)

    def run_forward(x: ProblemArrays, policy: Any) -> Any:
        return forward(make_ops(x), policy)[1]

    def run_backward(x: ProblemArrays, b: Any, policy: Any) -> Any:
        return backward(make_ops(x), horizon, "weighted", b, policy, ("actions",))

    def run_sweep(x: ProblemArrays, policy: Any) -> Any:
        return run_backward(x, run_forward(x, policy), policy)

    n_bytes = float(x.p.nbytes * horizon)
    b = jax.jit(run_forward)(x, policy)
    return {
        "backward": (time_queued(partial(jax.jit(run_backward), x, b, policy)), n_bytes),
        "sweep": (time_queued(partial(jax.jit(run_sweep), x, policy)), n_bytes * (1 + 1 / A)),
    }


def measure_gpu(sizes: Sizes) -> Iterator[Row]:
    """Time passes and solves; the crossover is with numba on all cores."""
    device, T = require_device(sizes), sizes.horizon
    with enable_float64():
        copy = measure_copy(sizes)
        for name, n_models in (("POP", sizes.n_models["POP"]), ("many", sizes.n_many_models)):
            for part, (seconds, n_bytes) in time_passes(fill_device(sizes, n_models), T).items():
                note = f"{n_models:,} models, {n_bytes / seconds / 1e9:.0f} GB/s on {device}"
                share, check = n_bytes / seconds / copy, f"GPU, {name} models, {part}"
                yield Row(check, 1e3 * seconds, "ms", None, note=note)
                yield Row(f"{check}: share of copying", share, "%", None, note=note)
    domain = mmdp.domains.population_small if sizes.is_trial else mmdp.domains.population
    solve = partial(
        mmdp.solve, domain().train, T, objective=mmdp.objectives.CVaR(0.1), backend="jax"
    )
    start = time.perf_counter()
    value, first = solve().value, time.perf_counter() - start
    seconds = interleave({"solve": Contestant(solve)}, 2)["solve"].best
    note = f"first call {first:.1f} s, value {value:.6g}, on {device}"
    yield Row("GPU, population, CVaR(0.1), solve", seconds, "s", None, note=note)
    yield from measure_repeated_solve(sizes, device)
    cpu = mmdp.core.kernels.get_backend("numba")
    for n_models in sizes.crossover:
        problem = make_population(n_models, sizes.n_states, band=None, horizon=T).model.problem
        runs = {k.name: partial(k.prepare(problem, T).ascend, [None]) for k in (JaxBackend(), cpu)}
        for run in runs.values():
            run()
        times = interleave({name: Contestant(run) for name, run in runs.items()}, 3)
        n_threads = getattr(cpu, "n_threads", 1)
        yield make_ratio_row(
            f"GPU, {n_models:,} models, ascent vs numba",
            times["numba"],
            times["jax"],
            n_threads=n_threads,
            note=f"{1e3 * times['jax'].best:.3g} ms on {device}",
        )


def measure_repeated_solve(sizes: Sizes, device: str) -> Iterator[Row]:
    """Solve the same model again and again: its arrays are on the device already."""
    n_models, T = sizes.n_models["POP"], sizes.horizon
    model = make_population(n_models, sizes.n_states, band=None, horizon=T).model
    for name, method in (
        ("one init", mmdp.methods.CADP(n_init=1)),
        ("default", mmdp.methods.CADP()),
    ):
        solve = partial(mmdp.solve, model, T, method, backend="jax")
        start = time.perf_counter()
        solution, first = solve(), time.perf_counter() - start
        seconds = interleave({"solve": Contestant(solve)}, 5)["solve"].best
        n_sweeps = solution.details.get("n_total_sweeps", solution.details["n_sweeps"])
        note = f"{n_models:,} models, first call {first:.1f} s, {n_sweeps} sweeps, on {device}"
        check = f"GPU, POP models, repeated solve, {name}"
        yield Row(check, 1e3 * seconds, "ms", None, note=note)


# ------------------------------------------------------------------ exogenous events
def measure_gpu_events(sizes: Sizes) -> Iterator[Row]:
    """Ascend by the paper's sweeps over a million states; compare one model with mdpax."""
    device, model = require_device(sizes), make_perishable(*sizes.gpu_perishable)
    times = [time.perf_counter()]
    record_time = lambda policy, value: times.append(time.perf_counter())
    prepared = JaxBackend().prepare(model.problem, sizes.horizon)
    with patch.object(windowed, "MAX_WEIGHT_BYTES", 0):  # the same code in a trial
        (result,) = prepared.ascend([None], sweep_type="paper", callback=record_time)
    seconds = sorted(end - start for start, end in pairwise(times[2:])) or [0.0]
    note = (
        f"{model.n_states:,} states on {device}, {result.n_sweeps} sweeps, value {result.value:.6g}"
    )
    yield Row("GPU, events, median sweep", seconds[len(seconds) // 2], "s", None, note=note)
    yield Row("GPU, events, to the local optimum", time.perf_counter() - times[0], "s", None)
    for n_ages in sizes.mdpax_ages:
        yield compare_mdpax(n_ages, device)


def compare_mdpax(n_ages: int, device: str) -> Row:
    try:
        peer, values = time_mdpax(n_ages, N_DEMANDS, discount=0.99, n_steps=N_STEPS)
    except ImportError as missing:
        raise UnavailableError("mdpax is not installed") from missing
    samples = {"mean": np.array([4.0]), "variation": np.array([0.5])}
    with patch.object(_perishable, "N_DEMANDS", N_DEMANDS):
        model = _perishable.make_models(samples, n_ages, 2, "fifo")
    run = partial(JaxBackend().prepare(model.problem, N_STEPS).backward, "per_model")
    np.testing.assert_allclose(run().first_values[:, 0], values, rtol=1e-6)
    ours = interleave({"ours": Contestant(run, scale=1 / N_STEPS)}, 3)["ours"].best
    return Row(
        f"GPU, {model.n_states:,} states vs mdpax",
        peer / ours,
        n_threads=None,
        note=f"{ours:.2g} s per iteration, mdpax {peer:.2g} s, on {device}",
    )


# ------------------------------------------------------------------ scaling
def measure_weak_scaling(sizes: Sizes) -> Iterator[Row]:
    """Double the models of a dense problem until the device is full; time the paper's sweep.

    Set ``XLA_PYTHON_CLIENT_MEM_FRACTION=0.95``, or jax leaves a quarter of the memory unused.
    """
    device, n_models = require_device(sizes), sizes.n_models["POP"]
    with enable_float64():
        copy = measure_copy(sizes)
        while n_models <= sizes.max_weak_models:
            n_bytes = 8 * sizes.n_states**2 * N_ACTIONS * n_models
            check, note = f"GPU, {n_models:,} models, sweep", f"{n_bytes / 1e9:.3g} GB on {device}"
            try:
                seconds, moved = time_passes(fill_device(sizes, n_models), sizes.horizon)["sweep"]
            except jax.errors.JaxRuntimeError as full:
                yield Row(check, None, "ms", None, note=f"{note}: {str(full).splitlines()[0][:60]}")
                return
            note += f", {moved / seconds / copy:.0%} of copying"
            yield Row(check, 1e3 * seconds, "ms", None, note=note)
            n_models *= 2


def measure_shards(sizes: Sizes) -> Iterator[Row]:
    """Write a sparse problem in shards, load it and solve it on the device."""
    device, shape = require_device(sizes), sizes.shards
    part = shape._replace(n_models=min(shape.n_models, MODELS_PER_SHARD))
    note = ", ".join(f"{key} {value}" for key, value in shape._asdict().items())
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for i in range(shape.n_models // part.n_models):
            mmdp.save(make_sparse_model(part, seed=i), Path(folder) / f"part-{i:05}.npz")
        yield Row("shards: write", time.perf_counter() - start, "s", None, note=note)
        reset_peak_memory()
        start_memory, start = read_memory("VmRSS"), time.perf_counter()
        model = mmdp.load(folder)
        yield Row("shards: load", time.perf_counter() - start, "s", None)
        peak = (read_memory("VmHWM") - start_memory) / model.nbytes
        yield Row("shards: peak of loading / model", peak, n_threads=None)
    start = time.perf_counter()
    solution = mmdp.solve(model, shape.horizon, mmdp.methods.CADP(n_init=1), backend="jax")
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9
    note = f"{solution.iterations} sweeps on {device}; {peak:.1f} GB there"
    yield Row("shards: solve", time.perf_counter() - start, "s", None, note=note)
