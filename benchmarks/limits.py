"""Whether time limits are kept, and what bounds prove within them, on the paper's domains.

    python -m benchmarks.limits [--seconds 1,5,20,60] [--cases RS,HIV,INV,POPS,POP]
    python -m benchmarks.limits --states 200,2000,10000,100000 --seconds 3

With ``--states`` every method solves a garnet of that many states over 20 decisions and without a
last one: a line says how many seconds of wall clock and of CPU a solve took, and how it ended.

One line per case, limit and kind of bound: the seconds that the call took, what it proves, and
its gap to CADP's value. ``certify`` is ``solve(certify=...)`` without the seconds of the solve.
The last column says how far the bound lies above the best single method, as a share of that
method's gap: for ``best`` it should be small. Everything is compiled before the clock starts.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import mmdp
from benchmarks.table import Columns
from mmdp.bounds import bound
from mmdp.methods import METHODS
from mmdp.paper.cases import CASES, SEED

SINGLE = ("pairs", "dual", "pair-dual", "lp")
TABLE = Columns(
    ("case", -6), ("limit", 6), ("  bound", -12), ("seconds", 9), ("value", 13), ("gap", 10),
    ("above", 9),
)  # fmt: skip


class Found(NamedTuple):
    """What one call gave; ``value`` is None if the method does not take this size."""

    seconds: float
    value: float | None = None


def measured(call: Callable[[], float]) -> Found:
    start = time.perf_counter()
    try:
        value = call()
    except mmdp.InputError:
        return Found(time.perf_counter() - start)
    return Found(time.perf_counter() - start, value)


def calls(
    model: mmdp.MMDP, horizon: int, limit: float, solving: float
) -> Iterator[tuple[str, Found]]:
    """Every way to a bound; ``solving``: the seconds that a solve takes."""
    for method in (*SINGLE, "best"):
        yield method, measured(lambda m=method: bound(model, horizon, m, time_limit=limit).value)  # type: ignore[misc]

    def certified() -> float:
        found = mmdp.solve(model, horizon, certify=limit).bound
        assert found is not None
        return found

    seconds, value = measured(certified)
    yield "certify", Found(seconds - solving, value)


def lines(name: str, limits: list[float]) -> Iterator[str]:
    case = CASES[name]
    model, *_ = case.models(SEED, None)
    few = model.subset(range(min(4, model.n_models)))
    for _ in calls(few, case.main, 0.5, 0.0):  # compiles
        pass
    mmdp.solve(model, case.main)
    start = time.perf_counter()
    reached = mmdp.solve(model, case.main).value
    solving = time.perf_counter() - start
    yield f"{name}: CADP reaches {reached:.6g} in {solving:.2f} s"
    for limit in limits:
        found = dict(calls(model, case.main, limit, solving))
        least = min(x.value for key, x in found.items() if key in SINGLE and x.value is not None)
        for method, (seconds, value) in found.items():
            cells = [name, f"{limit:g} s", f"  {method}", f"{seconds:.2f} s"]
            if value is not None:
                above = (value - least) / max(least - reached, 1e-9 * abs(reached))
                gap = (value - reached) / abs(reached)
                cells += [f"{value:.4f}", f"{100 * gap:.4f}%", f"{100 * above:+.1f}%"]
            yield TABLE.line(cells + [""] * (len(TABLE.heads) - len(cells)))


SOLVES = Columns(
    ("states", 8), ("horizon", 8), ("  method", -14), ("asked", 7), ("wall", 8), ("CPU", 8),
    ("  status", -16),
)  # fmt: skip


def solves(n_states: int, limits: list[float]) -> Iterator[str]:
    """Every method over a number of decisions and without a last one."""
    few, model = (
        mmdp.domains.garnet(n_models=3, n_states=n, n_actions=2, branching=3, discount=0.99).train
        for n in (20, n_states)
    )
    for horizon, method, limit in itertools.product((20, math.inf), METHODS, limits):
        try:
            mmdp.solve(few, horizon, method, time_limit=0.1)  # compiles
            wall, cpu = time.perf_counter(), time.process_time()
            status = mmdp.solve(model, horizon, method, time_limit=limit).status.name
        except mmdp.InputError:
            continue
        taken = time.perf_counter() - wall, time.process_time() - cpu
        yield SOLVES.line(
            [f"{n_states:,}", f"{horizon}", f"  {method}", f"{limit:g} s"]
            + [f"{x:.2f} s" for x in taken] + [f"  {status}"]
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", default="1,5,20,60")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--states")
    options = parser.parse_args()
    if options.states:
        print(SOLVES.head())
        for size in options.states.split(","):
            for line in solves(int(size), [float(x) for x in options.seconds.split(",")]):
                print(line, flush=True)
        return
    print(TABLE.head())
    for name in options.cases.split(","):
        for line in lines(name, [float(x) for x in options.seconds.split(",")]):
            print(line, flush=True)


if __name__ == "__main__":
    main()
