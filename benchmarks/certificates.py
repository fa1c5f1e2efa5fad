"""How close bounds come on the paper's domains, and what the exact methods prove.

    python -m benchmarks.certificates [bounds|steps|exact|polish] [--seconds 120]

``bounds``: value, bound, gap and the share of the wait-and-see gap closed, against time.
``steps``: one step of the dual against one CADP sweep. ``exact``: sizes proven in a minute.
``polish``: what leaving local maxima adds to CADP.
The published data is found as in the tests (MMDP_PAPER_DATA).
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import mmdp
from mmdp.bounds import bound
from mmdp.bounds.descent import Descent
from mmdp.bounds.relaxation import Relaxation
from mmdp.methods.exact import Exact
from mmdp.methods.milp import MILP

ROOT = Path(__file__).resolve().parents[1]


def published(name: str) -> mmdp.MMDP:
    given = os.environ.get("MMDP_PAPER_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data" / "cadp-uai2023"
    return mmdp.load(folder / name)


CASES: dict[str, tuple[Callable[[], mmdp.MMDP], int, float]] = {
    "RS published": (lambda: published("riverswim"), 50, 120.0),
    "HIV published": (lambda: published("hiv"), 15, 120.0),
    "inventory paper": (lambda: mmdp.domains.inventory(preset="paper").train, 50, 60.0),
    "POPS paper": (lambda: mmdp.domains.population_small().train, 50, 300.0),
}

MARKS = (1, 3, 10, 30, 60, 120, 300)


def bounds(seconds: float | None) -> None:
    """Bound after some seconds, gap and closed share of every case, as rows of docs/how-good.md."""
    marks = [mark for mark in MARKS if seconds is None or mark <= seconds]
    heads = ["case", "value", "oracle", *(f"{m} s" for m in marks), "gap", "closed"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, (load, horizon, limit) in CASES.items():
        model = load()
        solution = mmdp.solve(model, horizon)
        oracle = mmdp.solve(model, horizon, "oracle").value
        trace: list[mmdp.Progress] = []
        found = bound(
            model, horizon, time_limit=seconds or limit, incumbent=solution, callback=trace.append
        )
        last = max(trace[-1].seconds, found.seconds)
        seen = [[p.bound for p in trace if p.seconds <= mark] for mark in marks]
        after = [
            f"{x[-1]:.3f}" if x and mark <= last + 1 else ""
            for x, mark in zip(seen, marks, strict=True)
        ]
        value = solution.value
        gap, share = found.gap(value), found.closed(value, oracle)
        cells = [f"{name}, T = {horizon}", f"{value:.3f}", f"{oracle:.3f}", *after]
        cells += [f"{100 * gap:.3f}%", f"{100 * share:.1f}%"]
        print(f"| {' | '.join(cells)} |", flush=True)


def steps() -> None:
    """Seconds of one dual step over seconds of one CADP sweep, both with two threads."""
    for name, (load, horizon, _) in CASES.items():
        model = load()
        solution = mmdp.solve(model, horizon, backend="numba")
        x = Relaxation(model.problem, horizon, mmdp.kernels.get("numba", threads=2))
        search = Descent(x, solution.value)
        search.run(max_steps=2)
        paper = mmdp.CADP(sweeps="paper")
        dual, sweep = math.inf, math.inf
        for _ in range(8):  # in turn, so that a busy machine slows both
            dual = min(dual, _seconds(search.step))
            again = mmdp.solve(model, horizon, paper, backend="numba")
            sweep = min(sweep, again.seconds / (again.iterations + 1))
        print(f"{name:16s} step {dual:.5f} s, sweep {sweep:.5f} s, ratio {dual / sweep:.2f}")


def exact(seconds: float) -> None:
    """What is proven optimal within the time: branch and bound, MILP, MILP with plain L and B."""
    hiv, river = published("hiv"), published("riverswim")
    store = mmdp.domains.inventory(preset="paper").train
    cases = [
        ("HIV T=5, 50 models", hiv, 5),
        ("HIV T=8, 20 models", hiv.subset(range(20)), 8),
        ("HIV T=15, 50 models", hiv, 15),
        ("HIV T=20, 50 models", hiv, 20),
        ("RS T=10, 20 models", river.subset(range(20)), 10),
        ("RS T=20, 20 models", river.subset(range(20)), 20),
        ("inventory T=3, 10 models", store.subset(range(10)), 3),
    ]
    print("| instance | exact | milp | milp, plain L and B |\n|---|---|---|---|")
    for name, model, horizon in cases:
        cells = []
        for method in (Exact(), MILP(), MILP(tight=False)):
            found = mmdp.solve(model, horizon, method, time_limit=seconds, seed=0)
            gap = 100 * (found.details["bound"] - found.value) / abs(found.value)
            proven = found.status is mmdp.Status.OPTIMAL
            words = "" if proven else f", {gap:.3g}% open"
            cells.append(f"{found.seconds:.1f} s, {max(found.iterations, 1)} nodes{words}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def polish(seconds: float) -> None:
    """What polishing adds to CADP, by domain and on random instances."""
    for name, (load, horizon, _) in CASES.items():
        model = load()
        plain = mmdp.solve(model, horizon).value
        better = mmdp.solve(model, horizon, mmdp.CADP(polish=seconds)).value
        print(f"{name:16s} CADP {plain:.6f}, polished {better:.6f}, {better - plain:+.2e}")
    gains = []
    for seed in range(20):
        model = mmdp.domains.garnet(seed=seed).train
        plain = mmdp.solve(model, 25).value
        gains.append(mmdp.solve(model, 25, mmdp.CADP(polish=1.0)).value / plain - 1)
    gains.sort()
    print(f"garnet, 20 seeds, 1 s each: {100 * gains[0]:.3f}% to {100 * gains[-1]:.3f}%, "
          f"median {100 * gains[10]:.3f}%")  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


WORK: dict[str, Callable[[float | None], None]] = {
    "bounds": bounds,
    "steps": lambda _: steps(),
    "exact": lambda seconds: exact(seconds or 60.0),
    "polish": lambda seconds: polish(seconds or 10.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="bounds", choices=tuple(WORK))
    parser.add_argument("--seconds", type=float, default=None)
    options = parser.parse_args()
    WORK[options.what](options.seconds)


if __name__ == "__main__":
    main()
