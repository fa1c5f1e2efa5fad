"""CADP against the authors' loops and against plain numpy: whole runs.

Every ratio is peer seconds / our seconds on the same instance. In the rows with a floor both
make WSU's pass and then the same number of the paper's sweeps (forward and backward). Ours is
mmdp.solve with all it does besides (evaluations of the policy, the Solution). The row "by
default" next to it is mmdp.solve as it comes, with two-way sweeps to its own local maximum.
Building a model and laying out arrays is not timed, for anybody. The loops take minutes at
POP size: there one sweep over some of the time steps is timed and multiplied ("scaled"), since
every step costs the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mmdp
from benchmarks import timing
from benchmarks.instances import BAND, Instance, population, riverswim
from benchmarks.peers import PEERS, Peer, cadp
from benchmarks.sizes import Sizes
from benchmarks.table import Goal, Row, ratio_row
from benchmarks.timing import Contestant
from mmdp.kernels.cpu.kernel import NumbaKernel

MAX_SWEEPS = 6
BUDGET = 12.0  # seconds of rounds for the rows of one instance
LOOPS = ("authors' loops", "loops, kind layout")
DEFAULT = "ours by default"
LOOP_GOALS = {"RS": Goal(25, 40), "POPS": Goal(35, 60), "POP": Goal(75, 100)}
NUMPY_GOALS: dict[str, dict[int, Goal | None]] = {  # by threads
    "banded": {1: Goal(2.5, 5), 2: None},
    "dense": {1: Goal(1.2, 1.5), 2: Goal(1.8, 3)},
}


def ours(instance: Instance, threads: int) -> tuple[Contestant, int]:
    """Our run of the paper's sweeps with the numba kernel, compiled, and the sweeps it takes."""
    kernel, method = NumbaKernel(threads=threads), mmdp.CADP("wsu", 1, 0.0, MAX_SWEEPS, "paper")
    model = instance.model
    sweeps = mmdp.solve(model, instance.horizon, method, backend=kernel).iterations
    run = lambda: mmdp.solve(model, instance.horizon, method, backend=kernel)
    return Contestant(run), sweeps


def by_default(instance: Instance, threads: int) -> Contestant:
    """mmdp.solve as it comes, compiled."""
    run = partial(mmdp.solve, instance.model, instance.horizon, backend=NumbaKernel(threads))
    run()
    return Contestant(run)


def sized(sizes: Sizes, name: str, band: bool = True) -> Instance:
    """The instance of that size: RS, POPS or POP."""
    if name == "RS":
        return riverswim(sizes.models["RS"], horizon=sizes.horizon)
    width = BAND if band else None
    return population(sizes.models[name], sizes.states, band=width, horizon=sizes.horizon)


# ------------------------------------------------------------------ the authors' loops
def loops(sizes: Sizes) -> Iterator[Row]:
    """The loops as published and in a kind layout, on one thread."""
    for name in LOOPS:
        _compile(name)
    for label, goal in LOOP_GOALS.items():
        yield from against_loops(sized(sizes, label), sizes, goal, label)


def against_loops(instance: Instance, sizes: Sizes, goal: Goal, label: str) -> Iterator[Row]:
    mine, sweeps = ours(instance, threads=1)
    scaled = instance.shape[0] > sizes.scale_above
    contestants = {"ours": mine, DEFAULT: by_default(instance, 1)}
    parts = dict[str, list[str]]()
    for name in LOOPS:
        passes = (
            _one_sweep(PEERS[name], instance, sizes, sweeps)
            if scaled
            else {"run": _whole_run(PEERS[name], instance, sweeps)}
        )
        parts[name] = [f"{name} {part}" for part in passes]
        contestants |= dict(zip(parts[name], passes.values(), strict=True))
    times = timing.interleave(contestants, sizes.loop_rounds, BUDGET, least=2)
    found = {name: timing.total([times[part] for part in parts[name]]) for name in parts}
    note = f"{sweeps} sweeps" + ", loops timed for some steps, scaled" * scaled
    more: dict[str, Any] = {"note": note, "details": {"sweeps": sweeps}}
    published, kind = LOOPS
    yield ratio_row(f"{label} vs {published}", found[published], times["ours"], goal, **more)
    yield ratio_row(f"{label} vs {kind}", found[kind], times["ours"], **more)
    yield ratio_row(
        f"{label}, {DEFAULT}, vs {published}", found[published], times[DEFAULT],
        note="two-way sweeps to our own local maximum",
    )  # fmt: skip


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


# ------------------------------------------------------------------ plain numpy
def plain_numpy(sizes: Sizes) -> Iterator[Row]:
    """Batched matmul with models first, on banded and on fully dense rows."""
    for kind, goals in NUMPY_GOALS.items():
        for name in ("POPS", "POP"):
            instance = sized(sizes, name, band=kind == "banded")
            yield from against_numpy(instance, sizes, goals, f"{name} {kind}")


def against_numpy(
    instance: Instance, sizes: Sizes, goals: dict[int, Goal | None], label: str
) -> Iterator[Row]:
    """Rows for one and two threads; two are compared with the better of numpy on one and two."""
    contestants: dict[str, Contestant] = {}
    for threads in goals:
        contestants[f"ours {threads}"], sweeps = ours(instance, threads)
        contestants[f"{DEFAULT} {threads}"] = by_default(instance, threads)
    peer: Peer = PEERS["plain numpy"](instance)
    for count in goals:
        contestants[f"numpy {count}"] = Contestant(lambda: cadp(peer, sweeps), blas_threads=count)
    times = timing.interleave(contestants, sizes.rounds, BUDGET)
    for threads, goal in goals.items():
        best = min(range(1, threads + 1), key=lambda count: times[f"numpy {count}"].best)
        note = f"{sweeps} sweeps" + f", numpy at its best on {best}" * (threads > 1)
        theirs, check = times[f"numpy {best}"], f"{label} vs plain numpy"
        yield ratio_row(check, theirs, times[f"ours {threads}"], goal, threads=threads, note=note)
        yield ratio_row(
            f"{label}, {DEFAULT}, vs plain numpy", theirs, times[f"{DEFAULT} {threads}"],
            threads=threads,
        )  # fmt: skip
