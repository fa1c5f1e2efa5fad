"""Peak memory of solves, a large case, and loading a file.

Memory is measured in a process of its own (Linux: resident memory and its high-water mark).
What is imported and compiled by a first small solve belongs to the program and is not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import mmdp
from benchmarks import timing
from benchmarks.core import sized
from benchmarks.fitting import forget_peak, status
from benchmarks.instances import sparse_model
from benchmarks.machine import Reader
from benchmarks.sizes import FULL, QUICK, Shape, Sizes
from benchmarks.table import Goal, Row, ratio_row
from benchmarks.timing import Contestant
from mmdp.kernels.cpu.kernel import NumbaKernel

LOAD_GOAL = Goal(1.5, 1.3, "most")
PEAK_GOAL = Goal(1.5, 1.2, "most")
ROOT = Path(__file__).resolve().parents[1]


# ------------------------------------------------------------------ loading
def loading(sizes: Sizes) -> Iterator[Row]:
    """mmdp.load of a CSV against bare pandas.read_csv of the same file."""
    import pandas as pd

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "training.csv"
        mmdp.io.save(sized(sizes, "POPS").model, file)
        rows = len(pd.read_csv(file))
        contestants = {
            "ours": Contestant(lambda: mmdp.load(file)),
            "pandas": Contestant(lambda: pd.read_csv(file)),
        }
        contestants["ours"].run()
        times = timing.interleave(contestants, sizes.rounds)
    yield ratio_row(
        "POPS: mmdp.load / pandas.read_csv", times["ours"], times["pandas"],
        LOAD_GOAL, threads=None,
        note=f"{rows:,} rows in {times['ours'].best:.3f} s, pandas {times['pandas'].best:.3f} s",
    )  # fmt: skip


# ------------------------------------------------------------------ peak memory
def memory(sizes: Sizes) -> Iterator[Row]:
    """Peak of a solve over the stored transitions, less what is kept for every time step."""
    kept = {"paper": "b and v: two T·M·S arrays", "two-way": "b, v and q: A + 2 T·M·S arrays"}
    for sweeps, less in kept.items():
        check = f"POP: peak / transitions, {sweeps}"
        try:
            found = _fresh("solve", sizes, sweeps)
        except RuntimeError as error:
            yield Row(check, None, threads=None, goal=PEAK_GOAL, note=str(error))
            continue
        value = (found["peak"] - found["kept"]) / found["stored"]
        yield Row(
            check, value, threads=None, goal=PEAK_GOAL, details=found,
            note=f"peak {found['peak'] / 1e6:.0f} MB, transitions {found['stored'] / 1e6:.0f} MB, "
            f"taken off {found['kept'] / 1e6:.0f} MB ({less})",
        )  # fmt: skip


def large(sizes: Sizes) -> Iterator[Row]:
    """The largest case: built in place, solved, its peak."""
    shape = sizes.large
    name = f"{shape.nonzeros / 1e6:.3g} million non-zeros"
    found = _fresh("large", sizes, "two-way")
    facts = f"M {shape.models}, S {shape.states}, A {shape.actions}, {shape.successors} per row"
    yield Row(
        f"{name}: peak memory", found["peak"] / 1e9, "GB", 2, details=found,
        note=f"{facts}, T = {shape.horizon}; transitions {found['stored'] / 1e9:.2f} GB, "
        f"the whole process {found['process'] / 1e9:.2f} GB",
    )  # fmt: skip
    yield Row(
        f"{name}: peak / transitions", (found["peak"] - found["kept"]) / found["stored"],
        threads=2, note="building and solving; b, v and q taken off",
    )  # fmt: skip
    yield Row(f"{name}: building the model", found["build"], "s", 1)
    yield Row(
        f"{name}: solve", found["seconds"], "s", 2, note=f"{found['sweeps']:.0f} two-way sweeps"
    )
    read, step = found["stored"] / found["read"] / 1e9, found["step"]
    yield Row(
        f"{name}: step, share of reading", found["read"] / step, "%", 2,
        note=f"{1e3 * step:.0f} ms per step; read at {read:.1f} GB/s",
    )  # fmt: skip
    yield from planned(step / found["stored"])


PLAN = Shape(models=1000, states=5000, actions=10, successors=40, horizon=50)


def planned(seconds_per_byte: float) -> Iterator[Row]:
    """The case that is planned on paper: its bytes, and a sweep at the speed just measured."""
    x, name = PLAN, f"{PLAN.nonzeros / 1e9:.0f} billion non-zeros, planned"
    p, b = 8 * x.nonzeros, 8 * x.horizon * x.models * x.states
    r = 8 * x.models * x.states * x.actions
    yield Row(
        f"{name}: memory", (p + b + r) / 1e9, "GB", 2,
        note=f"transitions {p / 1e9:.0f} GB, b {b / 1e9:.1f} GB, rewards {r / 1e9:.1f} GB; M "
        f"{x.models}, S {x.states}, A {x.actions}, {x.successors} per row, T = {x.horizon}",
    )  # fmt: skip
    read = p * x.horizon * (1 + 1 / x.actions)  # forward: the chosen rows alone
    yield Row(
        f"{name}: one sweep", read * seconds_per_byte, "s", 2,
        note="computed from the step above, not run; the paper's sweeps, since q would be "
        f"{8 * x.horizon * x.models * x.states * x.actions / 1e9:.0f} GB",
    )  # fmt: skip


def _fresh(what: str, sizes: Sizes, sweeps: str) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", what, sweeps]
    done = subprocess.run(
        [*command, *["--quick"] * (sizes == QUICK)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"not measured: {lines[-1]}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def measure(what: str, sizes: Sizes, sweeps: Any) -> dict[str, float]:
    """Bytes in this process: what the transitions take, what is kept per step, the peak."""
    kernel = NumbaKernel(2)
    method = mmdp.CADP(starts=1, sweeps=sweeps)
    small = sparse_model(Shape(200, 30, 3, 6, 3))
    mmdp.solve(small, 3, method, backend=kernel)
    if what == "large":
        forget_peak()
        empty, start = status("VmRSS"), time.perf_counter()
        model, T = sparse_model(sizes.large), sizes.large.horizon
        build = time.perf_counter() - start
    else:
        model, T = sized(sizes, "POP").model, sizes.horizon
        forget_peak()
        # the model's own bytes count, whatever else was left from making it does not
        empty, build = status("VmRSS") - model.problem.p.nbytes, 0.0
    start = time.perf_counter()
    found = mmdp.solve(model, T, method, backend=kernel)
    seconds = time.perf_counter() - start
    x = model.problem
    peak, taken = status("VmHWM"), found.details["sweeps_taken"]
    arrays = 2.0 if taken == "paper" else x.n_actions + 2
    speed = _speed(model, T, kernel) if what == "large" else {}
    return {
        **speed,
        "stored": x.p.nbytes,
        "kept": 8 * T * x.n_models * x.n_states * arrays,
        "peak": peak - empty,
        "process": peak,
        "seconds": seconds,
        "build": build,
        "sweeps": found.iterations,
    }


def _speed(model: mmdp.MMDP, horizon: int, kernel: NumbaKernel) -> dict[str, float]:
    """Seconds of a backward step and of reading the transitions, on two threads."""
    x = model.problem
    policy = np.zeros((horizon, x.n_states), dtype=np.int32)
    plan = kernel.plan(x, horizon)
    step = partial(plan.backward, "weighted", weights=plan.forward(policy), policy=policy)
    reader = Reader(x.p, 2, threads=2)
    reader.run()
    contestants = {
        "step": Contestant(step, scale=1 / horizon),
        "read": Contestant(reader.run, scale=1 / 2),
    }
    return {name: x.best for name, x in timing.interleave(contestants, 3).items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One measurement of memory, as JSON.")
    parser.add_argument("what", choices=("solve", "large"))
    parser.add_argument("sweeps", choices=("paper", "two-way"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    sizes = QUICK if given.quick else FULL
    print(json.dumps(measure(given.what, sizes, given.sweeps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
