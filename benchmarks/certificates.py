"""How close bounds come on the paper's domains, and what the exact methods prove.

    python -m benchmarks.certificates [bounds|steps|exact] [--seconds 120]

``bounds``: value, bound, gap and the share of the wait-and-see gap closed, against time.
``steps``: one step of the dual against one CADP sweep. ``exact``: sizes proven in a minute.
The published data is found as in the tests (MMDP_PAPER_DATA).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import mmdp
from mmdp.bounds import bound
from mmdp.bounds.descent import Descent
from mmdp.bounds.front import BoundProgress
from mmdp.bounds.relaxation import Relaxation, open_actions
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


def bounds(seconds: float | None) -> None:
    """Gap and closed share of every case, with the trace of the bound."""
    print(f"{'case':16s} {'value':>11s} {'bound':>11s} {'gap %':>8s} {'closed %':>8s} {'s':>6s}")
    for name, (load, horizon, limit) in CASES.items():
        model = load()
        solution = mmdp.solve(model, horizon)
        oracle = mmdp.solve(model, horizon, "oracle").value
        trace: list[BoundProgress] = []
        found = bound(
            model, horizon, time_limit=seconds or limit, incumbent=solution, callback=trace.append
        )
        value = solution.value
        print(
            f"{name:16s} {value:11.4f} {found.value:11.4f} {100 * found.gap(value):8.4f} "
            f"{100 * found.closed(value, oracle):8.2f} {found.seconds:6.1f}  {found.method}"
        )
        for mark in (1, 3, 10, 30, 100):
            seen = [p for p in trace if p.seconds <= mark]
            if seen and trace[-1].seconds > mark:
                gap = 100 * (seen[-1].value - value) / abs(value)
                print(f"    after {mark:3d} s: {seen[-1].value:.4f}, gap {gap:.4f} %")


def steps() -> None:
    """Seconds of one dual step over seconds of one CADP sweep, both with two threads."""
    for name, (load, horizon, _) in CASES.items():
        model = load()
        solution = mmdp.solve(model, horizon, backend="numba")
        x = Relaxation(model.problem, open_actions(model.problem, horizon), threads=2)
        search = Descent(x, solution.value)
        search.run(max_steps=2)
        dual = min(_seconds(search.step) for _ in range(8))
        sweep = min(
            solution.seconds / (solution.iterations + 1)
            for solution in (mmdp.solve(model, horizon, backend="numba") for _ in range(3))
        )
        print(f"{name:16s} step {dual:.5f} s, sweep {sweep:.5f} s, ratio {dual / sweep:.2f}")


def exact(seconds: float) -> None:
    """What is proven optimal within the time: branch and bound, MILP, MILP with plain L and B."""
    hiv, river = published("hiv"), published("riverswim")
    cases = [
        ("HIV T=5, 50 models", hiv, 5),
        ("HIV T=8, 20 models", hiv.subset(range(20)), 8),
        ("HIV T=15, 50 models", hiv, 15),
        ("RS T=10, 20 models", river.subset(range(20)), 10),
        ("RS T=20, 20 models", river.subset(range(20)), 20),
    ]
    for name, model, horizon in cases:
        for method in (Exact(), MILP(), MILP(tight=False)):
            label = method.name + ("" if getattr(method, "tight", True) else " plain")
            found = mmdp.solve(model, horizon, method, time_limit=seconds, seed=0)
            limit = found.details["bound"]
            gap = 100 * (limit - found.value) / abs(found.value)
            print(
                f"{name:20s} {label:10s} {found.value:12.4f} {found.status.name:10s} "
                f"gap {gap:8.4f} % nodes {found.iterations:6d} {found.seconds:6.1f} s",
                flush=True,
            )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="bounds", choices=("bounds", "steps", "exact"))
    parser.add_argument("--seconds", type=float, default=None)
    options = parser.parse_args()
    if options.what == "bounds":
        bounds(options.seconds)
    elif options.what == "steps":
        steps()
    else:
        exact(options.seconds or 60.0)


if __name__ == "__main__":
    main()
