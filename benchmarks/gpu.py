"""The jax kernel on an accelerator: passes, solves by every entrance, many starts, against a CPU.

Run ``PYTHONPATH=src python -m benchmarks.gpu --json gpu.json``; ``--tiny`` is a quick trial on
any machine. Bytes are counted as the fewest that must move: p once per time step in a backward
pass, the chosen rows of p once in a forward pass; the share is of the bandwidth of a large copy
on the same card in the same run. A section that fails prints its error and the next one runs.
Data is random: times depend on sizes and patterns, not on the numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import mmdp
from mmdp import kernels
from mmdp.kernels.jax.arrays import Arrays, double
from mmdp.kernels.jax.kernel import JaxKernel, JaxPlan
from mmdp.kernels.jax.passes import backward, forward
from mmdp.kernels.jax.rows import Layout
from mmdp.kernels.problem import Problem, Stored

DISCOUNT = 0.9


@dataclass(frozen=True)
class Sizes:
    """What is timed; ``tiny`` is for trying the script."""

    states: int = 51
    actions: int = 5
    horizon: int = 50
    models: int = 1000
    entrance_models: int = 3000
    many: int = 20_000
    sparse_states: int = 500
    successors: int = 5
    starts: int = 64
    copy_mb: int = 4096
    crossover: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000)


TINY = Sizes(7, 3, 5, 16, 20, 40, 30, 5, 4, 8, (2, 8))


@dataclass
class Report:
    """The rows measured so far, printed as they come."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    copy: float = float("nan")  # bytes/s

    def add(self, name: str, **figures: Any) -> None:
        self.rows.append({"row": name, **figures})
        parts = [f"{key} {_shown(value)}" for key, value in figures.items()]
        print(f"{name:<44} {'  '.join(parts)}", flush=True)

    def timed(self, name: str, seconds: float, moved: float | None = None, **more: Any) -> None:
        """A row with its time, and with its bandwidth if the bytes moved are known."""
        figures: dict[str, Any] = {"ms": seconds * 1e3}
        if moved is not None:
            figures |= {"gb_s": moved / seconds / 1e9, "share": moved / seconds / self.copy}
        self.add(name, **figures, **more)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def seconds(run: Callable[[], Any], rounds: int = 5, calls: int = 5) -> float:
    """Best time of a call whose result stays on the device; calls of a round are queued."""
    _wait(run())
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            last = run()
        _wait(last)
        found.append((time.perf_counter() - start) / calls)
    return min(found)


def _wait(result: Any) -> None:
    jax.block_until_ready(result)  # type: ignore[no-untyped-call]


def wall(run: Callable[[], Any], rounds: int = 3) -> float:
    """Best time of a call that returns host arrays."""
    run()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


# ------------------------------------------------------------------ instances
def dense_problem(sizes: Sizes, models: int, seed: int = 0) -> Problem:
    """Random rows without zeros."""
    S, A = sizes.states, sizes.actions
    rng = np.random.default_rng(seed)
    p = rng.random((S * A, S, models)) ** 4
    p /= p.sum(axis=1, keepdims=True)
    indptr = np.arange(S * A + 1, dtype=np.int64) * S
    indices = np.tile(np.arange(S, dtype=np.int32), S * A)
    return _problem(rng, indptr, indices, p.reshape(1, -1, models), S, A, True)


def sparse_problem(sizes: Sizes, models: int, seed: int = 0) -> Problem:
    """A few random successors per row, the same in all models."""
    S, A, n = sizes.sparse_states, sizes.actions, sizes.successors
    rng = np.random.default_rng(seed)
    p = rng.random((S * A, n, models)) ** 2
    p /= p.sum(axis=1, keepdims=True)
    indices = np.sort(rng.random((S * A, S)).argpartition(n, axis=1)[:, :n], axis=1)
    indptr = np.arange(S * A + 1, dtype=np.int64) * n
    flat = indices.astype(np.int32).reshape(-1)
    return _problem(rng, indptr, flat, p.reshape(1, -1, models), S, A, False)


def _problem(
    rng: np.random.Generator, indptr: Any, indices: Any, p: Any, S: int, A: int, dense: bool
) -> Problem:
    M = p.shape[2]
    return Problem(
        Stored(indptr, indices, p, dense), r=rng.normal(size=(1, S, A, M)),
        allowed=np.ones((1, S, A), dtype=bool), initial=np.full((S, 1), 1.0 / S),
        weights=np.full(M, 1.0 / M), discount=DISCOUNT, terminal=np.zeros((S, M)),
    )  # fmt: skip


def made_on_device(sizes: Sizes, models: int) -> Arrays:
    """A dense problem whose p never is on the host."""
    S, A, M = sizes.states, sizes.actions, models
    one, two = jax.random.split(jax.random.key(0))

    @jax.jit
    def draw(key: Any) -> Any:
        p = jax.random.uniform(key, (1, S * A, S, M), jnp.float64)
        return p / p.sum(axis=2, keepdims=True)

    return Arrays(
        p=draw(one), after=None, owner=None, r=jax.random.normal(two, (1, S, A, M), jnp.float64),
        allowed=jnp.ones((1, S, A), bool), initial=jnp.full((S, M), 1.0 / S),
        weights=jnp.full(M, 1.0 / M), discount=np.float64(DISCOUNT), terminal=jnp.zeros((S, M)),
    )  # fmt: skip


def held(problem: Problem, horizon: int) -> Arrays:
    """The problem on the device."""
    plan = JaxKernel().plan(problem, horizon)
    assert isinstance(plan, JaxPlan)
    return plan.held.arrays(problem)


# ------------------------------------------------------------------ passes on the device
def report_passes(report: Report, name: str, x: Arrays, horizon: int) -> None:
    """A backward pass, a forward pass and both in one compiled call."""
    S, A = x.allowed.shape[1:]
    policy = jnp.asarray(np.random.default_rng(1).integers(0, A, (horizon, S), dtype=np.int32))
    tuning = JaxKernel().tuning

    def fore(x: Arrays, policy: Any) -> Any:
        return forward(Layout(x, tuning), policy)[1]

    def back(x: Arrays, b: Any, policy: Any) -> Any:
        return backward(Layout(x, tuning), horizon, "weighted", b, policy, ("actions",))

    b = jax.jit(fore)(x, policy)
    runs = {
        "backward": partial(jax.jit(back), x, b, policy),
        "forward": partial(jax.jit(fore), x, policy),
        "sweep": partial(jax.jit(lambda x, policy: back(x, fore(x, policy), policy)), x, policy),
    }
    full = float(x.p.size * x.p.dtype.itemsize * horizon)
    moved = {"backward": full, "forward": full / A, "sweep": full + full / A}
    for part, run in runs.items():
        report.timed(f"{name}, {part}", seconds(run), moved[part])


# ------------------------------------------------------------------ sections
def copy(report: Report, sizes: Sizes) -> None:
    n = sizes.copy_mb * 1_000_000 // 8
    source = jnp.arange(n, dtype=jnp.float64)
    found = seconds(partial(jax.jit(lambda x: x + 1.0), source))
    report.copy = 16.0 * n / found
    report.add("copy, read and write", ms=found * 1e3, gb_s=report.copy / 1e9)


def population(report: Report, sizes: Sizes) -> None:
    """The paper's largest domain: passes, and the whole climb."""
    x, T = dense_problem(sizes, sizes.models), sizes.horizon
    report_passes(report, "POP double", held(x, T), T)
    climb = partial(JaxKernel().plan(x, T).ascend, [None])
    report.timed("POP ascent, host to host", wall(climb), sweeps=climb()[0].sweeps)


def many_models(report: Report, sizes: Sizes) -> None:
    x = made_on_device(sizes, sizes.many)
    report_passes(report, f"{sizes.many} models double", x, sizes.horizon)


def sparse(report: Report, sizes: Sizes) -> None:
    x = held(sparse_problem(sizes, sizes.models), sizes.horizon)
    report_passes(report, f"sparse S={sizes.sparse_states} M={sizes.models}", x, sizes.horizon)


def entrances(report: Report, sizes: Sizes) -> None:
    """The same solve by every entrance, once compiled; each sends p to the device once."""
    x, T = dense_problem(sizes, sizes.entrance_models), sizes.horizon
    p = np.moveaxis(x.p.reshape(sizes.states, sizes.actions, sizes.states, -1), -1, 0)
    model = mmdp.MMDP(p, np.moveaxis(x.r[0], -1, 0), initial=x.initial[:, 0], discount=DISCOUNT)
    plain = partial(mmdp.solve, model, T, backend="jax")
    title = f"{sizes.entrance_models} models, solve"
    base = wall(plain, rounds=5)
    report.timed(title, base, sweeps=plain().iterations)
    for name, run in {
        "with a callback": partial(plain, callback=lambda progress: None),
        "with a time limit": partial(plain, time_limit=600.0),
    }.items():
        found = wall(run, rounds=5)
        report.timed(f"{title} {name}", found, times_plain=found / base)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        mmdp.save(model, file)
        found = min(by_command(file, T)["seconds"] for _ in range(4))
    report.timed(f"{title} by the command line", found, times_plain=found / base)


def tails(report: Report, sizes: Sizes) -> None:
    """CVaR of the paper's largest domain: the first solve, which compiles, and the next ones."""
    found = mmdp.domains.population if sizes.models > 100 else mmdp.domains.population_small
    solve = partial(
        mmdp.solve, found().train, sizes.horizon, objective=mmdp.CVaR(0.1), backend="jax"
    )
    started = time.perf_counter()
    solve()
    first = time.perf_counter() - started
    report.timed("POP CVaR(0.1), solve", wall(solve, 2), first_call_s=first, value=solve().value)


def by_command(file: Path, horizon: int) -> Any:
    """What ``mmdp solve`` says about its solution, in this process: what is compiled stays so."""
    from mmdp.__main__ import main

    line = ["mmdp", "solve", str(file), "-T", str(horizon), "--backend", "jax", "--json"]
    out = io.StringIO()
    with (
        patch.object(sys, "argv", line),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return json.loads(out.getvalue())


def many_starts(report: Report, sizes: Sizes) -> None:
    """K starts together against K starts one by one."""
    x, T = dense_problem(sizes, sizes.models), sizes.horizon
    rng, kernel = np.random.default_rng(0), JaxKernel()
    shape = (sizes.starts, T, x.n_states)
    starts = list(rng.integers(0, x.n_actions, shape, dtype=np.int32))
    alone = JaxKernel(tuning=kernel.tuning._replace(wide=False))
    for count in sorted({min(8, sizes.starts), sizes.starts}):
        together = wall(partial(kernel.plan(x, T).ascend, starts[:count]), rounds=2)
        apart = wall(partial(alone.plan(x, T).ascend, starts[:count]), rounds=2)
        ratio = {"times_faster_than_separate": apart / together}
        report.timed(f"POP {count} starts, whole ascents", together, **ratio)


def crossover(report: Report, sizes: Sizes) -> None:
    """Whole ascents from WSU, host to host, p on the device already, against numba here."""
    cpu, gpu, T = kernels.get("numba"), JaxKernel(), sizes.horizon
    for models in sizes.crossover:
        x = dense_problem(sizes, models)
        started = time.perf_counter()
        climb, plain = (partial(kernel.plan(x, T).ascend, [None]) for kernel in (gpu, cpu))
        found = climb()[0]
        first = time.perf_counter() - started
        ours, theirs = wall(climb), wall(plain, rounds=2)
        expected = plain()[0]
        report.timed(
            f"crossover M={models}", ours, numba_ms=theirs * 1e3, ratio=theirs / ours,
            first_call_s=first, sweeps=f"{found.sweeps}/{expected.sweeps}",
            difference=abs(found.value - expected.value) / max(1.0, abs(expected.value)),
            threads=getattr(cpu, "threads", 1),
        )  # fmt: skip


# ------------------------------------------------------------------ the run
SECTIONS = (copy, population, tails, entrances, many_models, sparse, many_starts, crossover)


def guarded(report: Report, name: str, run: Callable[[], None]) -> None:
    """Run; an error becomes a row, and the next section goes on."""
    try:
        run()
    except Exception as error:
        report.add(f"{name} FAILED", error=f"{type(error).__name__}: {str(error)[:300]}")


def machine() -> dict[str, str]:
    return {
        "device": jax.devices()[0].device_kind,
        "platform": jax.devices()[0].platform,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The rows as markdown."""
    yield "| | ms | GB/s | share of copy | other |"
    yield "|---|---|---|---|---|"
    for row in rows:
        shown = {key: _shown(value) for key, value in row.items() if key != "row"}
        main = [shown.pop(key, "") for key in ("ms", "gb_s", "share")]
        other = ", ".join(f"{key} {value}" for key, value in shown.items())
        yield f"| {row['row']} | {' | '.join(main)} | {other} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    chosen = parser.parse_args(arguments)
    report, sizes = Report(), TINY if chosen.tiny else Sizes()
    print(machine(), flush=True)
    started = time.perf_counter()
    for section in SECTIONS:
        if section.__name__ in chosen.only:
            with double():
                guarded(report, section.__name__, partial(section, report, sizes))
            spent = time.perf_counter() - started
            print(f"-- {section.__name__} done at {spent:.0f} s", flush=True)
            if chosen.json:  # after every section: what is measured is never lost
                result = {"machine": machine(), "rows": report.rows}
                chosen.json.write_text(json.dumps(result, indent=1, default=str))
    print("\n".join(table(report.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
