"""Speed floors of the core: CADP against the authors' loops and against plain numpy.

    python benchmarks/core.py [--quick] [--json FILE]

Every ratio is peer seconds / our seconds of whole CADP runs on the same instance: WSU's pass,
then the same number of sweeps (forward and backward) on both sides. Ours is mmdp.solve with
all it does besides (two evaluations of the policy, the Solution). Building a model and
laying out arrays is not timed, for anybody. Runs are interleaved, everybody has the same
number of them, and minima are compared; everything is compiled before. The authors' loops
take minutes at POP size: there one sweep over some of the time steps is timed and multiplied
(marked "1 sweep, scaled"), since a step costs the same each time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmdp
from benchmarks import timing
from benchmarks.instances import Instance, population, riverswim
from benchmarks.peers import PEERS, Peer, cadp
from benchmarks.timing import Contestant
from mmdp.kernels.numba_kernel import NumbaKernel

MAX_SWEEPS = 6


@dataclass(frozen=True)
class Sizes:
    """How large and how often; ``scale_above``: models above which loops run one sweep only."""

    models: dict[str, int]
    states: int = 51
    horizon: int = 50
    rounds: int = 5
    loop_rounds: int = 2
    scale_above: int = 100
    scaled_steps: int = 50


FULL = Sizes({"RS": 100, "POPS": 100, "POP": 1000}, loop_rounds=3, scaled_steps=10)
QUICK = Sizes({"RS": 100, "POPS": 100, "POP": 300}, rounds=3, scaled_steps=5)
TINY = Sizes(
    {"RS": 5, "POPS": 5, "POP": 7}, states=23, horizon=4, rounds=1, loop_rounds=1,
    scale_above=5, scaled_steps=2,
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One ratio beside its floor and aim (None: reported only)."""

    check: str
    threads: int
    ratio: float
    low: float
    high: float
    floor: float | None
    aim: float | None
    ours_seconds: float
    peer_seconds: float
    sweeps: int
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.floor is None or self.aim is None:
            return ""
        if self.ratio >= self.aim:
            return "aim"
        return "floor" if self.ratio >= self.floor else "BELOW"


def ours(instance: Instance, threads: int) -> tuple[Contestant, int]:
    """Our run with the numba kernel, compiled, and the sweeps it takes."""
    kernel, method = NumbaKernel(threads=threads), mmdp.CADP(max_iterations=MAX_SWEEPS)
    model = instance.model
    sweeps = mmdp.solve(model, instance.horizon, method, backend=kernel).iterations
    run = lambda: mmdp.solve(model, instance.horizon, method, backend=kernel)
    return Contestant(run), sweeps


def against_loops(
    instance: Instance, sizes: Sizes, floor: float, aim: float, label: str
) -> list[Check]:
    """The authors' loops, as published and in a kind layout, on one thread."""
    mine, sweeps = ours(instance, threads=1)
    scaled = instance.shape[0] > sizes.scale_above
    contestants, parts = {"ours": mine}, dict[str, list[str]]()
    for name in ("authors' loops", "loops, kind layout"):
        _compile(name)
        passes = (
            _one_sweep(PEERS[name], instance, sizes, sweeps)
            if scaled
            else {"run": _whole_run(PEERS[name], instance, sweeps)}
        )
        parts[name] = [f"{name} {part}" for part in passes]
        contestants |= dict(zip(parts[name], passes.values(), strict=True))
    times = timing.interleave(contestants, sizes.loop_rounds)
    found = {name: timing.total([times[part] for part in parts[name]]) for name in parts}
    note = "1 sweep, scaled" if scaled else ""
    return [
        _check(f"{label} vs {name}", 1, times["ours"], found[name], goal, sweeps, note)
        for name, goal in (("authors' loops", (floor, aim)), ("loops, kind layout", None))
    ]


def _whole_run(make: Any, instance: Instance, sweeps: int) -> Contestant:
    peer: Peer = make(instance)
    return Contestant(lambda: cadp(peer, sweeps))


def _compile(name: str) -> None:
    cadp(PEERS[name](riverswim(models=2, states=3, horizon=2)), 1)


def _one_sweep(make: Any, instance: Instance, sizes: Sizes, sweeps: int) -> dict[str, Contestant]:
    """The passes of one sweep over some of the steps, scaled to the steps and passes of a run.

    WSU and n sweeps are n + 1 backward and n forward passes.
    """
    steps = min(sizes.scaled_steps, instance.horizon)
    peer: Peer = make(instance.shortened(steps))
    policy = peer.backward(peer.prior())[0]
    b = peer.forward(policy)
    return {
        "backward": Contestant(
            lambda: peer.backward(b), scale=(sweeps + 1) * instance.horizon / steps
        ),
        "forward": Contestant(
            lambda: peer.forward(policy), scale=sweeps * (instance.horizon - 1) / (steps - 1)
        ),
    }


def against_numpy(
    instance: Instance, sizes: Sizes, threads: int, floor: float, aim: float, label: str
) -> Check:
    """Plain numpy; on two threads the better of its matmul on one and on two."""
    mine, sweeps = ours(instance, threads)
    peer: Peer = PEERS["plain numpy"](instance)
    contestants = {"ours": mine}
    for count in range(1, threads + 1):
        contestants[f"numpy {count}"] = Contestant(lambda: cadp(peer, sweeps), blas_threads=count)
    found = timing.interleave(contestants, sizes.rounds)
    best = min((name for name in found if name != "ours"), key=lambda name: found[name].best)
    note = f"numpy on {best.split()[1]}" if threads > 1 else ""
    return _check(
        f"{label} vs plain numpy", threads, found["ours"], found[best], (floor, aim), sweeps, note
    )


def _check(
    label: str, threads: int, mine: timing.Times, peer: timing.Times,
    goal: tuple[float, float] | None, sweeps: int, note: str,
) -> Check:  # fmt: skip
    value, low, high = timing.ratio(peer, mine)
    floor, aim = goal if goal is not None else (None, None)
    return Check(
        label, threads, value, low, high, floor, aim, mine.best, peer.best, sweeps, note
    )  # fmt: skip


def core_checks(sizes: Sizes) -> Iterator[Check]:
    """All checks of the core, in the order of the table of floors, each as it is measured."""
    pops, pop = sizes.models["POPS"], sizes.models["POP"]
    size: dict[str, Any] = {"states": sizes.states, "horizon": sizes.horizon}
    river = riverswim(sizes.models["RS"], horizon=sizes.horizon)
    banded = {"POPS": population(pops, **size), "POP": population(pop, **size)}
    yield from against_loops(river, sizes, 25, 40, "RS")
    yield from against_loops(banded["POPS"], sizes, 35, 60, "POPS banded")
    yield from against_loops(banded["POP"], sizes, 50, 75, "POP banded")
    for name, instance in banded.items():
        yield against_numpy(instance, sizes, 1, 2.5, 5, f"{name} banded")
    for name, models in (("POPS", pops), ("POP", pop)):
        full = population(models, band=None, **size)
        for threads, floor, aim in ((1, 1.2, 1.5), (2, 1.8, 3.0)):
            yield against_numpy(full, sizes, threads, floor, aim, f"{name} dense")


def heading(sizes: Sizes) -> str:
    """The machine, the sizes, and the heads of the columns; 100 columns at most."""
    facts = timing.machine()
    counts = ", ".join(f"{name} {models} models" for name, models in sizes.models.items())
    columns = f"{'check':<34}{'threads':>8}{'ratio':>7}  {'rounds':<13}{'floor':>5}{'aim':>5}"
    return "\n".join(
        [
            f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}",
            ", ".join(f"{name} {facts[name]}" for name in ("python", "numpy", "numba")),
            f"{counts}; horizon {sizes.horizon}; float64",
            "ratio: seconds of the peer / ours, whole CADP runs with the same sweeps, minima",
            "",
            f"{columns}  reached",
        ]
    )


def row(c: Check) -> str:
    """One line of the table."""
    floor, aim = (f"{x:g}" if x is not None else "" for x in (c.floor, c.aim))
    spread = f"{c.low:.1f} - {c.high:.1f}"
    figures = f"{c.check:<34}{c.threads:>8}{c.ratio:>7.2f}  {spread:<13}{floor:>5}{aim:>5}"
    return f"{figures}  {c.verdict:<7}{c.note}".rstrip()


def as_json(checks: Sequence[Check], sizes: Sizes) -> dict[str, Any]:
    """Everything the table is made of."""
    rows = [asdict(check) | {"reached": check.verdict} for check in checks]
    return {"machine": timing.machine(), "sizes": asdict(sizes), "checks": rows}


def main(arguments: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speed floors of the core.")
    parser.add_argument("--quick", action="store_true", help="smaller POP, fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    options = parser.parse_args(arguments)
    chosen = sizes or (QUICK if options.quick else FULL)
    start = time.perf_counter()
    print(heading(chosen))
    checks = []
    for check in core_checks(chosen):
        print(row(check), flush=True)
        checks.append(check)
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(checks, chosen), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
