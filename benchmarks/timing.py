"""Timing by interleaved runs: every contestant meets the same neighbours, minima are compared."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numba
import numpy as np
import threadpoolctl  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Contestant:
    """What is timed: ``run``, once a round; seconds are multiplied by ``scale``.

    With ``own_clock`` the run says itself how many seconds count.
    """

    run: Callable[[], object]
    blas_threads: int = 1
    scale: float = 1.0
    own_clock: bool = False


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
    contestants: Mapping[str, Contestant], rounds: int, budget: float = math.inf, least: int = 3
) -> dict[str, Times]:
    """Run all contestants in turn, ``rounds`` times over; the caller has compiled them.

    When ``budget`` seconds are over, no round is begun any more but the ``least`` first ones.

    >>> slow = Contestant(lambda: time.sleep(0.002))
    >>> fast = Contestant(lambda: None)
    >>> found = interleave({"slow": slow, "fast": fast}, rounds=2)
    >>> found["slow"].best > found["fast"].best
    True
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + budget
    for done in range(rounds):
        if done >= least and time.perf_counter() > end:
            break
        for name, one in contestants.items():
            with blas_threads(one.blas_threads):
                found[name].append(_seconds(one))
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def _seconds(one: Contestant) -> float:
    start = time.perf_counter()
    said = one.run()
    seconds = time.perf_counter() - start
    if one.own_clock:
        assert isinstance(said, float)
        seconds = said
    return seconds * one.scale


def total(parts: Sequence[Times]) -> Times:
    """The times of work that was timed in parts."""
    return Times(tuple(sum(seconds) for seconds in zip(*(x.rounds for x in parts), strict=True)))


def ratio(peer: Times, ours: Times) -> tuple[float, float, float]:
    """(ratio of the minima, lowest and highest ratio of a round): how often ours fits in peer."""
    each = [p / o for p, o in zip(peer.rounds, ours.rounds, strict=True)]
    return peer.best / ours.best, min(each), max(each)


def spread(values: Sequence[float]) -> float:
    """The middle half of the values, relative to their median.

    >>> spread([1.0, 1.0, 1.0, 1.0, 9.0]), spread([2.0, 3.0])
    (0.0, 0.2)
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float((high - low) / abs(middle))


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Numpy's matmul on that many threads inside the ``with``."""
    return threadpoolctl.threadpool_limits(limits=count, user_api="blas")


def machine() -> dict[str, str | int]:
    """What the figures depend on; nothing that names the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_name(),
        "cores": cores or 1,
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "memory_gb": _memory_gb(),
    }


def load() -> float | None:
    """Programs that want a core, over the last minute; None if the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _memory_gb() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    except (AttributeError, OSError, ValueError):
        return 0


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            facts = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines())
        facts = {name.strip(): value.strip() for name, value in facts.items()}
        return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"
    except (OSError, KeyError, ValueError):
        return platform.machine()
