"""The jax kernel on an accelerator: times, bandwidth, many starts, where it beats the CPU.

Run ``PYTHONPATH=src python benchmarks/gpu.py --json gpu.json``; ``--tiny`` is a quick trial
on any machine. Bytes are counted as the fewest that must move: p once a time step in a
backward pass, the chosen rows of p once in a forward pass; the share is of the bandwidth of a
large copy on the same card in the same run. A row that fails prints its error and the next
row runs. Data is random: times depend on sizes and patterns, not on the numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from mmdp.kernels.jax import kernel as jk
from mmdp.kernels.jax.kernel import Arrays, JaxKernel, Tuning
from mmdp.kernels.problem import Kernel, Problem

DISCOUNT = 0.9
PARTS = ("backward", "forward", "sweep")


@dataclass(frozen=True)
class Sizes:
    """What is timed; ``tiny`` is for trying the script."""

    states: int = 51
    actions: int = 5
    horizon: int = 50
    models: int = 1000
    many: int = 20_000
    sparse_states: int = 500
    successors: int = 5
    starts: int = 64
    copy_mb: int = 4096
    crossover: tuple[int, ...] = (10, 30, 100, 300, 1000, 3000)


TINY = Sizes(7, 3, 5, 16, 40, 30, 5, 4, 8, (2, 8))


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
        """A row with its time, and bandwidth where the bytes moved are known."""
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
    """A few random successors a row, the same in all models."""
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
    problem = Problem(
        indptr=indptr, indices=indices, p=p, r=rng.normal(size=(1, S, A, M)),
        allowed=np.ones((1, S, A), dtype=bool), initial=np.full(S, 1.0 / S),
        weights=np.full(M, 1.0 / M), discount=DISCOUNT, terminal=np.zeros((S, M)), dense=dense,
    )  # fmt: skip
    for array in problem:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)  # arrays that cannot change are sent once
    return problem


def made_on_device(sizes: Sizes, models: int, store: Any) -> Arrays:
    """A dense problem whose p never is on the host."""
    S, A, M = sizes.states, sizes.actions, models
    one, two = jax.random.split(jax.random.key(0))

    @jax.jit
    def draw(key: Any) -> Any:
        p = jax.random.uniform(key, (1, S * A, S, M), store)
        return p / p.sum(axis=2, keepdims=True)

    return Arrays(
        p=draw(one), after=None, owner=None, r=jax.random.normal(two, (1, S, A, M), jnp.float64),
        allowed=jnp.ones((S, A), bool), initial=jnp.full(S, 1.0 / S),
        weights=jnp.full(M, 1.0 / M), discount=np.float64(DISCOUNT), terminal=jnp.zeros((S, M)),
    )  # fmt: skip


# ------------------------------------------------------------------ passes on the device
@dataclass(frozen=True)
class Passes:
    """Compiled passes over arrays that lie on the device."""

    x: Arrays
    horizon: int
    tuning: Tuning
    starts: int = 0  # 0: one policy, narrow layout

    @property
    def wide(self) -> bool:
        return self.starts > 0

    @property
    def policy(self) -> Any:
        S, A = self.x.allowed.shape
        shape = (self.horizon, S, self.starts) if self.wide else (self.horizon, S)
        return jnp.asarray(np.random.default_rng(1).integers(0, A, shape, dtype=np.int32))

    def forward(self, x: Arrays, policy: Any) -> Any:
        return jk._forward_pass(x, self.horizon, policy, None, self.tuning, self.wide)[1]

    def backward(self, x: Arrays, b: Any, policy: Any) -> Any:
        keep = frozenset({"actions"})
        return jk._backward_pass(
            x, self.horizon, "weighted", b, policy, keep, self.tuning, self.wide
        )

    def sweep(self, x: Arrays, policy: Any) -> Any:
        return self.backward(x, self.forward(x, policy), policy)

    def times(
        self, parts: Sequence[str] = PARTS, options: dict[str, Any] | None = None
    ) -> dict[str, float]:
        """Seconds of a backward pass, a forward pass and both in one compiled call."""
        policy, run = self.policy, partial(_compiled, options=options)
        found = {}
        if "backward" in parts:
            forward = run(self.forward, self.x, policy)
            found["backward"] = seconds(run(self.backward, self.x, forward(), policy))
            found["forward"] = seconds(forward)
        if "sweep" in parts:
            found["sweep"] = seconds(run(self.sweep, self.x, policy))
        return found


def _compiled(function: Any, *arguments: Any, options: dict[str, Any] | None) -> Callable[[], Any]:
    compiled = jax.jit(function).lower(*arguments).compile(compiler_options=options)
    return lambda: compiled(*arguments)


def _moved(x: Arrays, horizon: int) -> dict[str, float]:
    """Bytes that a pass must read of p."""
    full = float(x.p.size * x.p.dtype.itemsize * horizon)
    part = full / x.allowed.shape[1]
    return {"backward": full, "forward": part, "sweep": full + part}


def report_passes(
    report: Report, name: str, passes: Passes, parts: Sequence[str] = PARTS, options: Any = None
) -> None:
    moved = _moved(passes.x, passes.horizon)
    for part, found in passes.times(parts, options).items():
        report.timed(f"{name}, {part}", found, moved[part])


# ------------------------------------------------------------------ sections
def copy(report: Report, sizes: Sizes) -> None:
    n = sizes.copy_mb * 1_000_000 // 8
    source = jnp.arange(n, dtype=jnp.float64)
    found = seconds(_compiled(lambda x: x + 1.0, source, options=None))
    report.copy = 16.0 * n / found
    report.add("copy, read and write", ms=found * 1e3, gb_s=report.copy / 1e9)


def equality(report: Report, sizes: Sizes) -> None:
    """The compiled solve against the numpy and numba kernels, from WSU and random starts."""
    from mmdp.kernels.cpu.kernel import NumbaKernel
    from mmdp.kernels.numpy_kernel import NumpyKernel

    worst, different = 0.0, 0
    for seed in range(8):
        for make in (dense_problem, sparse_problem):
            small = Sizes(9, 3, 8, 12, sparse_states=14, successors=3)
            x = make(small, small.models, seed)
            starts = _random_starts(x, 8, 4)
            found = JaxKernel(tuning=Tuning(wide=True)).cadp(x, 8, starts)
            for kernel in (NumpyKernel(), NumbaKernel(1)):
                for k, start in enumerate(starts):
                    policy, value, _ = plain_cadp(kernel, x, 8, start)
                    for ends, n in ((found, k), (JaxKernel().cadp(x, 8, start[None]), 0)):
                        worst = max(worst, abs(ends.values[n] - value) / max(1.0, abs(value)))
                        different += int((policy != ends.policies[n]).any())
    report.add("equality with numpy and numba, 256 solves", worst=worst, policies=different)


def plain_cadp(
    kernel: Kernel, x: Problem, horizon: int, policy: Any = None
) -> tuple[Any, float, int]:
    """CADP by passes of any kernel: (policy, value, sweeps)."""
    if policy is None:
        policy = kernel.backward(x, horizon, "weighted", weights=x.prior_weights()).actions
    first = kernel.backward(x, horizon, "given", policy=policy).first
    value = float(x.returns(first) @ x.weights)
    sweep, gains = 0, True
    while gains:
        sweep += 1
        b = kernel.forward(x, horizon, policy)
        found = kernel.backward(x, horizon, "weighted", weights=b, policy=policy)
        assert found.actions is not None
        new = float(x.returns(found.first) @ x.weights)
        gains = not np.array_equal(found.actions, policy) and new > value
        if gains:
            policy, value = found.actions, new
    return policy, value, sweep


def _random_starts(x: Problem, horizon: int, count: int) -> npt.NDArray[np.int32]:
    shape = (count, horizon, x.n_states)
    return np.random.default_rng(0).integers(0, x.n_actions, shape, dtype=np.int32)


def population(report: Report, sizes: Sizes) -> None:
    """The paper's largest domain: passes in 64 and 32 bits, and the whole solve."""
    x, T = dense_problem(sizes, sizes.models), sizes.horizon
    for precision in ("double", "mixed"):
        kernel = JaxKernel(precision)  # type: ignore[arg-type]
        passes = Passes(kernel.arrays(x), T, kernel.tuning)
        report_passes(report, f"POP {precision}", passes)
    kernel = JaxKernel()
    solve = partial(kernel.cadp, x, T)
    found = solve()
    report.timed("POP whole solve, host to host", wall(solve), sweeps=int(found.sweeps[0]))


def variants(report: Report, sizes: Sizes) -> None:
    """The same passes written and compiled in other ways."""
    problem, T = dense_problem(sizes, sizes.models), sizes.horizon
    x, wide = JaxKernel().arrays(problem), JaxKernel().arrays(problem, wide=True)
    graphs = "xla_gpu_enable_command_buffer"
    many = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
    cases: list[tuple[str, Passes, Any]] = [
        ("rows by the compiler, written out", Passes(x, T, ours(rows=False)), None),
        ("rows by the compiler, reduce", Passes(x, T, ours(rows=False, chain=0)), None),
        ("unroll 1", Passes(x, T, ours(unroll=1)), None),
        ("unroll 5", Passes(x, T, ours(unroll=5)), None),
        ("models first, matmul", Passes(wide, T, ours(), starts=1), None),
        ("graphs off", Passes(x, T, ours()), {graphs: ""}),
        ("graphs with loops", Passes(x, T, ours()), {graphs: many}),
        ("small graphs", Passes(x, T, ours()), {"xla_gpu_graph_min_graph_size": 1}),
        ("unroll 5, graphs with loops", Passes(x, T, ours(unroll=5)), {graphs: many}),
    ]
    for name, passes, options in cases:
        run = partial(report_passes, report, f"POP {name}", passes, ["backward"], options)
        guarded(report, f"POP {name}", run)


def ours(**changes: Any) -> Tuning:
    """The tuning that a solve on this device takes, with changes."""
    return JaxKernel().tuning._replace(**changes)


def many_models(report: Report, sizes: Sizes) -> None:
    for name, store in (("double", jnp.float64), ("mixed", jnp.float32)):
        x = made_on_device(sizes, sizes.many, store)
        title = f"{sizes.many} models {name}"
        report_passes(report, title, Passes(x, sizes.horizon, ours()))
        plain = Passes(x, sizes.horizon, ours(rows=False))
        report_passes(report, f"{title}, rows by the compiler", plain, ["backward"])


def sparse(report: Report, sizes: Sizes) -> None:
    x = JaxKernel().arrays(sparse_problem(sizes, sizes.models))
    name = f"sparse S={sizes.sparse_states} M={sizes.models}"
    report_passes(report, name, Passes(x, sizes.horizon, ours()))
    plain = Passes(x, sizes.horizon, ours(rows=False))
    report_passes(report, f"{name}, rows by the compiler", plain, ["backward"])


def many_starts(report: Report, sizes: Sizes) -> None:
    """K starts in one go against one: a sweep on the device, and whole solves."""
    problem, T, K = dense_problem(sizes, sizes.models), sizes.horizon, sizes.starts
    kernel = JaxKernel(tuning=Tuning(wide=True))
    one = Passes(kernel.arrays(problem), T, ours()).times(["sweep"])["sweep"]
    for k in sorted({2, 8, K}):
        passes = Passes(kernel.arrays(problem, wide=True), T, ours(), starts=k)
        found = passes.times(["sweep"])["sweep"]
        report.timed(f"POP {k} starts, sweep", found, times_faster_than_separate=k * one / found)
    starts = _random_starts(problem, T, K)
    together = wall(lambda: kernel.cadp(problem, T, starts), rounds=2)
    alone = wall(lambda: kernel.cadp(problem, T, starts[:1]), rounds=2)
    report.timed(f"POP {K} starts, whole solves", together, one_alone_ms=alone * 1e3)


def crossover(report: Report, sizes: Sizes) -> None:
    """Whole solves from WSU, host to host, p on the device already, against numba here."""
    from mmdp.kernels.cpu.kernel import NumbaKernel

    cpu, gpu, T = NumbaKernel(), JaxKernel(), sizes.horizon
    for models in sizes.crossover:
        x = dense_problem(sizes, models)
        start = time.perf_counter()
        found = gpu.cadp(x, T)
        first = time.perf_counter() - start
        ours = wall(partial(gpu.cadp, x, T))
        start = time.perf_counter()
        gpu.forget()
        _wait(gpu.arrays(x).p)
        sent = time.perf_counter() - start
        _, value, sweeps = plain_cadp(cpu, x, T)
        theirs = wall(partial(plain_cadp, cpu, x, T), rounds=2)
        report.timed(
            f"crossover M={models}", ours, numba_ms=theirs * 1e3, ratio=theirs / ours,
            first_call_s=first, send_ms=sent * 1e3, sweeps=f"{found.sweeps[0]}/{sweeps}",
            difference=abs(float(found.values[0]) - value) / max(1.0, abs(value)),
            threads=cpu.threads,
        )  # fmt: skip


# ------------------------------------------------------------------ the run
SECTIONS = (copy, equality, population, many_models, sparse, many_starts, crossover, variants)


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
    with jk._double():
        for section in SECTIONS:
            if section.__name__ in chosen.only:
                guarded(report, section.__name__, partial(section, report, sizes))
                JaxKernel.forget()
                spent = time.perf_counter() - started
                print(f"-- {section.__name__} done at {spent:.0f} s", flush=True)
                if chosen.json:  # after every section: what is measured is never lost
                    result = {"machine": machine(), "rows": report.rows}
                    chosen.json.write_text(json.dumps(result, indent=1, default=str))
    print("\n".join(table(report.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
