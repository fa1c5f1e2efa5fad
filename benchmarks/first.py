"""What a new user waits for: first calls in fresh processes with an empty cache folder.

    python -m benchmarks.first

Seconds from the start of Python to the answer, imports and compiling included. The problem has
100 models, 51 states, 5 actions and banded rows, T = 50; the command line solves riverswim.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.table import Goal, Row

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 2.0  # seconds given to the bound, on top of what the first call takes

_MODEL = """
import mmdp
from benchmarks.instances import population
model = population({models}, {states}, horizon={horizon}).model
"""
_CALLS = {
    "default solve": ("mmdp.solve(model, {horizon})", Goal(6.0, 4.0, "most")),
    "bound": (
        f"mmdp.bound(model, {{horizon}}, time_limit={LIMIT})",
        Goal(6.0 + LIMIT, 4.0 + LIMIT, "most"),
    ),
    "planner simulation": (
        'mmdp.solve(model, {horizon}, mmdp.QMDP(episodes=20))', Goal(6.0, 4.0, "most")
    ),
    "solve by numba": ('mmdp.solve(model, {horizon}, backend="numba")', None),
}  # fmt: skip
COMMAND_GOAL = Goal(2.0, 1.0, "most")
GOALS = [*(goal for _, goal in _CALLS.values() if goal is not None), COMMAND_GOAL]


def first(sizes: Sizes) -> Iterator[Row]:
    """Each call twice: with an empty cache folder, then with what the first one left there."""
    for name, (call, goal) in _CALLS.items():
        code = (_MODEL + call).format(
            models=sizes.models["POPS"], states=sizes.states, horizon=sizes.horizon
        )
        yield from _twice(f"first {name}", [sys.executable, "-c", code], goal)
    with tempfile.TemporaryDirectory() as folder:
        mmdp = [sys.executable, "-m", "mmdp"]
        made = [*mmdp, "domain", "riverswim", "--out", f"{folder}/rs"]
        subprocess.run(made, check=True, capture_output=True, cwd=ROOT)
        command = [*mmdp, "solve", f"{folder}/rs", "--horizon", "50", "--out", f"{folder}/p.csv"]
        yield from _twice("mmdp solve, riverswim", command, COMMAND_GOAL)


def _twice(name: str, command: list[str], goal: Goal | None) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        cold, warm = (_seconds(command, environment) for _ in range(2))
    note = f"{warm:.2f} s the next time, in another process"
    yield Row(f"{name}, empty caches", cold, "s", None, goal, note=note)


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return seconds


if __name__ == "__main__":
    for row in first(QUICK if "--quick" in sys.argv else FULL):
        print(f"{row.check:40} {row.value:6.2f} s   {row.note}")
