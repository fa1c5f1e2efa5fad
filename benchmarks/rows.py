"""Measure and report: interleaved timing, fresh processes, and rows with a floor and an aim.

Contestants run in turn, round after round, so that each meets the same neighbours; minima are
compared.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numba
import numpy as np
import threadpoolctl  # type: ignore[import-untyped]

from mmdp.core.text import pluralize

ROOT = Path(__file__).resolve().parents[1]
K = TypeVar("K")


class UnavailableError(Exception):
    """A peer or a device is missing: rows are not run, which is no failure."""


# ------------------------------------------------------------------ time
@dataclass(frozen=True)
class Contestant:
    """What is timed: ``run``, once a round; seconds are multiplied by ``scale``.

    With ``has_own_clock`` the run returns the seconds that count.
    """

    run: Callable[[], object]
    n_blas_threads: int = 1
    scale: float = 1.0
    has_own_clock: bool = False


@dataclass(frozen=True)
class Times:
    """Seconds of one contestant, a run a round."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def median(self) -> float:
        return float(np.median(self.rounds))


def interleave(
    contestants: Mapping[K, Contestant],
    n_rounds: int,
    budget: float = math.inf,
    min_rounds: int = 3,
) -> dict[K, Times]:
    """Run all contestants in turn, ``n_rounds`` times over; the caller has compiled them.

    After ``budget`` seconds no further round begins, once there are ``min_rounds``.

    >>> slow = Contestant(lambda: time.sleep(0.002))
    >>> fast = Contestant(lambda: None)
    >>> times = interleave({"slow": slow, "fast": fast}, n_rounds=2)
    >>> times["slow"].best > times["fast"].best
    True
    """
    seconds: dict[K, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + budget
    for i in range(n_rounds):
        if i >= min_rounds and time.perf_counter() > end:
            break
        for name, contestant in contestants.items():
            with limit_blas_threads(contestant.n_blas_threads):
                seconds[name].append(_time(contestant))
    return {name: Times(tuple(rounds)) for name, rounds in seconds.items()}


def _time(contestant: Contestant) -> float:
    start = time.perf_counter()
    result = contestant.run()
    seconds = time.perf_counter() - start
    if contestant.has_own_clock:
        assert isinstance(result, float)
        seconds = result
    return seconds * contestant.scale


def add_times(parts: Sequence[Times]) -> Times:
    """Return the times of work that was timed in parts."""
    return Times(tuple(sum(seconds) for seconds in zip(*(x.rounds for x in parts), strict=True)))


def compute_spread(values: Sequence[float]) -> float:
    """Return the interquartile range relative to the median.

    >>> compute_spread([1.0, 1.0, 1.0, 1.0, 9.0]), compute_spread([2.0, 3.0])
    (0.0, 0.2)
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float((high - low) / abs(middle))


def limit_blas_threads(n_threads: int) -> AbstractContextManager[object]:
    """Run numpy's matmul on that many threads inside the ``with``."""
    return threadpoolctl.threadpool_limits(limits=n_threads, user_api="blas")


# ------------------------------------------------------------------ memory and processes
def read_memory(name: str) -> int:
    """Return bytes of this process (Linux): VmRSS is resident now, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def reset_peak_memory() -> None:
    """Let VmHWM begin again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def run_fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a fresh process; arguments and result are JSON."""
    code = (
        f"import json, sys; from {function.__module__} import {function.__name__} as f; "
        "print(json.dumps(f(*json.loads(sys.argv[1]))))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if process.returncode:
        raise RuntimeError((process.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(process.stdout.splitlines()[-1])


# ------------------------------------------------------------------ rows
@dataclass(frozen=True)
class Goal:
    """A floor and an aim: the figure shall be at least, at most, or between the two."""

    floor: float
    aim: float
    sense: Literal["min", "max", "range"] = "min"

    def judge(self, value: float) -> str:
        """
        >>> Goal(2, 3).judge(2.5), Goal(1.5, 1.2, "max").judge(1.6)
        ('ok', 'MISSED')
        >>> Goal(0.9, 1.1, "range").judge(1.0)
        'aim'
        """
        if self.sense == "range":
            return "aim" if self.floor <= value <= self.aim else "MISSED"
        sign = -1.0 if self.sense == "max" else 1.0
        if sign * value >= sign * self.aim:
            return "aim"
        return "ok" if sign * value >= sign * self.floor else "MISSED"

    def format(self, unit: str) -> tuple[str, str]:
        """Return the cells of the floor and the aim."""
        if self.sense == "range":
            return f"{self.floor:g} - {self.aim:g}", ""
        mark = "≤ " if self.sense == "max" else ""
        floor, aim = (format_figure(x, unit, short=True) for x in (self.floor, self.aim))
        return mark + floor, mark + aim


@dataclass(frozen=True)
class Row:
    """One figure; ``value`` is None if it was not measured, and ``note`` says why.

    ``low`` and ``high`` are the extreme rounds, ``details`` the parts of the figure.
    """

    check: str
    value: float | None
    unit: str = "×"
    n_threads: int | None = 1
    goal: Goal | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    section: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "not run" if self.value is None else self.goal.judge(self.value)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Row:
        fields = {key: value for key, value in document.items() if key != "verdict"}
        goal = fields.pop("goal")
        return Row(**fields, goal=None if goal is None else Goal(**goal))

    def format_cells(self) -> tuple[str, ...]:
        """Return check, threads, value, spread, floor, aim and verdict."""
        return (
            self.check,
            "" if self.n_threads is None else str(self.n_threads),
            "-" if self.value is None else format_figure(self.value, self.unit),
            "" if self.spread is None else f"{100 * self.spread:.0f}%",
            *(("", "") if self.goal is None else self.goal.format(self.unit)),
            self.verdict,
        )


def make_ratio_row(check: str, peer: Times, ours: Times, **fields: Any) -> Row:
    """Divide the peer's best time by ours; the spread is that of the rounds' ratios."""
    ratios = [p / o for p, o in zip(peer.rounds, ours.rounds, strict=True)]
    details = {"ours_seconds": ours.best, "peer_seconds": peer.best, **fields.pop("details", {})}
    return make_row(check, peer.best / ours.best, ratios, details=details, **fields)


def make_row(check: str, value: float, rounds: Sequence[float], **fields: Any) -> Row:
    """Return a row with the spread and the extremes of its rounds."""
    return Row(
        check, value, spread=compute_spread(rounds), low=min(rounds), high=max(rounds), **fields
    )


def format_figure(value: float, unit: str, short: bool = False) -> str:
    """Format a figure with three digits and its unit; ``short``: as few digits as needed.

    >>> format_figure(51.234, "×"), format_figure(0.834, "%"), format_figure(2e6, "steps/s")
    ('51.2 ×', '83%', '2.00e+06')
    >>> format_figure(2.5, "×", short=True)
    '2.5'
    """
    if unit == "%":
        return f"{100 * value:.0f}%"
    if unit == "steps/s":
        return f"{value:.0e}" if short else f"{value:.2e}"
    if short:
        return f"{value:g}"
    n_digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{n_digits}f} {unit}".rstrip()


HEADS = ("check", "threads", "value", "spread", "floor", "aim", "reached")
LINE = "{:48}{:>7}{:>10}{:>7}{:>10}{:>7}  {:7}"


def format_line(row: Row) -> str:
    """Return a line of at most 100 columns; a second one says why a figure is missing."""
    check, *cells = row.format_cells()
    line = LINE.format(check[:47], *cells).rstrip()
    return line if row.value is not None else f"{line}\n    {row.note[:96]}"


def format_markdown(rows: Iterable[Row]) -> str:
    """Return the rows as one Markdown table, a bold line for each section."""
    lines = [f"| {' | '.join(HEADS)} | |", "|---" * (len(HEADS) + 1) + "|"]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(f"| **{section}** {'| ' * len(HEADS)}|")
        *cells, verdict = row.format_cells()
        cells += ["**missed**" if verdict == "MISSED" else verdict, row.note]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def summarize(rows: Sequence[Row]) -> str:
    """Count the floors that were reached.

    >>> rows = [Row("a", 2.0, goal=Goal(1, 3)), Row("b", None, goal=Goal(1, 3)), Row("c", 1.0)]
    >>> summarize(rows), summarize(rows[2:])
    ('2 figures, 2 floors: 1 reached, 1 not run', '1 figure')
    """
    figures = pluralize(sum(row.value is not None for row in rows), "figure")
    verdicts = [row.verdict for row in rows if row.goal is not None]
    n_reached = sum(x in ("aim", "ok") for x in verdicts)
    counts = {
        "reached": n_reached,
        "missed": verdicts.count("MISSED"),
        "not run": verdicts.count("not run"),
    }
    parts = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    return f"{figures}, {len(verdicts)} floors: {parts}" if verdicts else figures


# ------------------------------------------------------------------ the machine
def describe_machine() -> dict[str, str | int]:
    """Return what the figures depend on, without the machine's name."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _read_cpu(),
        "cores": n_cores or 1,
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "memory_gb": _read_memory_size(),
    }


def format_machine(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {facts[name]}" for name in ("python", "numpy", "numba"))
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}\n"
        f"{versions[0].upper()}{versions[1:]}"
    )


def read_load() -> float | None:
    """Return the load over the last minute; None if the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _read_memory_size() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    except (AttributeError, OSError, ValueError):
        return 0


def _read_cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            facts = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines())
        facts = {name.strip(): value.strip() for name, value in facts.items()}
        return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"
    except (OSError, KeyError, ValueError):
        return platform.machine()
