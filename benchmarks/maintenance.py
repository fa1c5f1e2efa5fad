"""Stationary rules proven optimal: machine maintenance, and random models of several sizes.

    python -m benchmarks.maintenance [machine|random] [--instances 3] [--seconds 60]
        [--models 10 30 100] [--concentration 1 5 9] [--states 8 20 50 100] [--jobs 1]

``machine``: the problem of Delage and Mannor (Operations Research 58(1), 2010) with models drawn
around it, as in the branch and bound of Ahluwalia, Steimle and Denton. ``random``: rows drawn
uniformly and normalised, rewards uniform in 0 to 1, 4 actions, discount .97. Models begin apart.
Each line has the instances of a size: how many are proven optimal within the time, the median
seconds of those, and the gap of the others. An infinite horizon, rules that depend on the state.
With ``--jobs`` that many instances run side by side, each in a process with one thread.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

import mmdp

REPAIRS = ((0.6, 0.1), (0.576, 0.124), (0.6286, 0.0714))  # to a short and to a long repair
WEAR, BROKEN, SHORT, LONG = 8, 7, 8, 9


def nominal() -> tuple[np.ndarray, np.ndarray]:
    """(10, 4, 10) transitions and (10, 4) rewards of the machine as it is believed to be."""
    p = np.zeros((10, 4, 10))
    for s in range(WEAR):
        worse = min(s + 1, BROKEN)
        p[s, 0, s] += 0.2
        p[s, 0, worse] += 0.8
        for a, (good, bad) in enumerate(REPAIRS, 1):
            p[s, a, SHORT], p[s, a, LONG] = good, bad
            p[s, a, worse] += 1 - good - bad
    p[SHORT, 0, 0], p[SHORT, 0, SHORT], p[LONG, 0, LONG] = 0.8, 0.2, 1.0
    p[SHORT, 1:, SHORT] = 1.0
    for a, (good, _) in enumerate(REPAIRS, 1):
        p[LONG, a, SHORT], p[LONG, a, LONG] = good, 1 - good
    rewards = np.zeros((10, 4))
    rewards[[BROKEN, SHORT, LONG]] = [[-10.0], [-2.0], [-20.0]]
    return p, rewards


def machine(models: int, concentration: float, seed: int) -> mmdp.MMDP:
    """Models whose rows are Dirichlet(concentration x nominal) draws, each with its own start."""
    (mean, rewards), rng = nominal(), np.random.default_rng([seed, models])
    p = np.zeros((models, *mean.shape))
    for s, a in np.ndindex(mean.shape[:2]):
        to = np.flatnonzero(mean[s, a])
        p[:, s, a, to] = rng.dirichlet(concentration * mean[s, a, to], size=models)
    initial = rng.dirichlet(np.ones(len(mean)), size=models)
    return mmdp.MMDP(p, rewards, initial=initial, discount=0.97)


def random(models: int, states: int, seed: int, actions: int = 4) -> mmdp.MMDP:
    rng = np.random.default_rng([seed, models, states])
    p = rng.random((models, states, actions, states))
    rewards, initial = rng.random((models, states, actions)), rng.random((models, states))
    return mmdp.MMDP(
        p / p.sum(axis=-1, keepdims=True), rewards, discount=0.97,
        initial=initial / initial.sum(axis=1, keepdims=True),
    )  # fmt: skip


def solved(name: str, models: int, size: float, seed: int, seconds: float) -> tuple[float, float]:
    """Seconds until an instance is proven optimal, or infinity; the gap in percent."""
    made = machine(models, size, seed) if name == "machine" else random(models, int(size), seed)
    found = mmdp.solve(made, math.inf, "exact", time_limit=seconds)
    if found.status is mmdp.Status.OPTIMAL:
        return found.seconds, 0.0
    return math.inf, 100 * (found.details["bound"] - found.value) / abs(found.value)


def line(name: str, found: Iterable[tuple[float, float]]) -> str:
    """One row of the table: proven, median seconds, mean and largest gap of the others."""
    taken, gaps = zip(*found, strict=True)
    proven, left = [x for x in taken if x < math.inf], [x for x in gaps if x > 0]
    median = f"{statistics.median(proven):.2f}" if proven else ""
    gap = f"{statistics.mean(left):.3g}% ({max(left):.3g}%)" if left else ""
    return f"| {name} | {len(proven)} of {len(taken)} | {median} | {gap} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("machine", "random"), default="machine")
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--models", type=int, nargs="+")
    parser.add_argument("--concentration", type=float, nargs="+", default=[1.0, 5.0, 9.0])
    parser.add_argument("--states", type=int, nargs="+", default=[8, 20, 50, 100])
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    is_machine = given.what == "machine"
    counts = given.models or ((10, 30, 100) if is_machine else (2, 5, 10))
    word = "concentration {:g}" if is_machine else "{:g} states"
    print(
        "| instances | proven | median seconds | gap of the others (largest) |\n|---|---|---|---|"
    )
    os.environ |= dict.fromkeys(
        ("MMDP_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    )
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        sizes = itertools.product(counts, given.concentration if is_machine else given.states)
        rows = {
            f"{models} models, {word.format(size)}": [
                pool.submit(solved, given.what, models, size, seed, given.seconds)
                for seed in range(given.instances)
            ]
            for models, size in sizes
        }
        for name, futures in rows.items():
            print(line(name, (x.result() for x in futures)), flush=True)


if __name__ == "__main__":
    main()
