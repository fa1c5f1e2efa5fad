"""The kernel against the machine: bandwidth, 32 bits, starts side by side, sweeps, neighbours."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

import mmdp
from benchmarks import timing
from benchmarks.core import BUDGET, sized
from benchmarks.sizes import Sizes
from benchmarks.table import Goal, Row, ratio_row
from benchmarks.timing import Contestant, Times
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.paper.cases import CASES, SEED

THREADS = (1, 2)
BUSY = 2  # neighbours
SHARE_GOALS = {1: Goal(0.80, 0.90), 2: Goal(0.75, 0.85)}  # by threads
SWEEPS_GOAL = Goal(1.5, 2.5)
BESIDE_GOAL = Goal(1.5, 1.0, "most")
ROLLOUT_GOAL = Goal(2e6, 4e6)


# ------------------------------------------------------------------ bandwidth
@numba.njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _sum(x):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total


class Reader:
    """Reads an array over and over on some threads, each its own part: nothing but reading."""

    def __init__(self, array: npt.NDArray[np.float64], passes: int, threads: int) -> None:
        self.parts = np.array_split(array.reshape(-1), threads)
        self.passes, self.pool = passes, ThreadPoolExecutor(threads)

    def run(self) -> float:
        return sum(self.pool.map(self._read, self.parts))

    def _read(self, part: npt.NDArray[np.float64]) -> float:
        return sum(_sum(part) for _ in range(self.passes))


def bandwidth(sizes: Sizes) -> Iterator[Row]:
    """Share of the bandwidth of plain reading that the backward step reaches."""
    yield from _shares(sizes, "banded", SHARE_GOALS)
    yield from _shares(sizes, "dense", {})


def _shares(sizes: Sizes, kind: str, goals: dict[int, Goal]) -> Iterator[Row]:
    x, T = sized(sizes, "POP", band=kind == "banded").model.problem, sizes.horizon
    policy = np.zeros((T, x.n_states), dtype=np.int32)
    b = NumbaKernel(2).plan(x, T).forward(policy)
    contestants: dict[str, Contestant] = {}
    for threads in THREADS:
        plan = NumbaKernel(threads).plan(x, T)
        step = partial(plan.backward, "weighted", weights=b, policy=policy)
        reader = Reader(x.p, T, threads)
        contestants[f"step {threads}"] = Contestant(step, scale=1 / T)
        contestants[f"read {threads}"] = Contestant(reader.run, scale=1 / T)
    for one in contestants.values():
        one.run()
    times = timing.interleave(contestants, sizes.rounds, BUDGET)
    for threads in THREADS:
        read, step_times = times[f"read {threads}"], times[f"step {threads}"]
        rate = x.p.nbytes / read.best / 1e9
        row = ratio_row(
            f"POP {kind}: backward step, share of reading", read, step_times, goals.get(threads),
            unit="%", threads=threads, details={"read_gb_s": rate, "bytes": x.p.nbytes},
            note=f"{1e3 * step_times.best:.2f} ms per step; {x.p.nbytes / 1e6:.0f} MB read "
            f"at {rate:.1f} GB/s",
        )  # fmt: skip
        yield row
    yield ratio_row(
        f"POP {kind}: step, 2 threads vs 1", times["step 1"], times["step 2"], threads=2
    )


# ------------------------------------------------------------------ two-way sweeps
def two_way(sizes: Sizes) -> Iterator[Row]:
    """Time to the value that the paper's sweeps end with, or a better one."""
    reach: list[float] = []
    whole: list[float] = []
    for name in sizes.domains:
        reached, solved = _sweeps_on(name, sizes)
        yield reached
        yield solved
        reach.append(reached.value or 0.0)
        whole.append(solved.value or 0.0)
    count = f"median over {len(reach)} domains"
    yield Row(
        "two-way vs the paper's, median to its value", float(np.median(reach)), note=count,
        spread=timing.spread(reach), low=min(reach),
        high=max(reach),
    )  # fmt: skip
    yield Row(
        "two-way vs the paper's, median whole solve", float(np.median(whole)),
        goal=SWEEPS_GOAL, note=count,
        spread=timing.spread(whole), low=min(whole), high=max(whole),
    )  # fmt: skip


def _sweeps_on(name: str, sizes: Sizes) -> tuple[Row, Row]:
    """Rows of one domain: to the paper's value, and whole solves, each with its maximum proven."""
    case, kernel = CASES[name], NumbaKernel(1)
    model = case.models(SEED, None)[0]
    T = sizes.domain_horizon or case.main
    methods: dict[str, Any] = {x: mmdp.CADP(starts=1, sweeps=x) for x in ("paper", "two-way")}  # type: ignore[arg-type]
    solved = {x: mmdp.solve(model, T, method, backend=kernel) for x, method in methods.items()}
    paper, ours = solved["paper"], solved["two-way"]
    target = paper.value - 1e-9 * abs(paper.value)
    solves = {x: partial(mmdp.solve, model, T, m, backend=kernel) for x, m in methods.items()}
    contestants = {f"{x} whole": Contestant(solve) for x, solve in solves.items()}
    for x, solve in solves.items():
        contestants[f"{x} reach"] = Contestant(partial(_reach, solve, target), own_clock=True)
    times = timing.interleave(contestants, 40 * sizes.rounds, BUDGET / 4)
    facts = f"{paper.iterations} sweeps to {ours.iterations}, value {ours.value:.6g}"
    gain = (ours.value - paper.value) / max(1.0, abs(paper.value))
    note = f"{facts} ({gain:+.1e})" if abs(gain) > 1e-9 else f"{facts}, the same"
    rows = {
        part: ratio_row(
            f"{name}: two-way vs the paper's, {words}", times[f"paper {part}"],
            times[f"two-way {part}"], note=note,
        )
        for part, words in (("reach", "to its value"), ("whole", "whole solve"))
    }  # fmt: skip
    if ours.value < target:  # never gets there
        lower = f"{note}: ends lower, counted as 0"
        rows["reach"] = Row(f"{name}: two-way vs the paper's, to its value", 0.0, note=lower)
    return rows["reach"], rows["whole"]


def _reach(solve: Callable[..., mmdp.Solution], target: float) -> float:
    """Seconds after which a solve has a policy of that value."""
    seen: list[float] = []

    def note(progress: mmdp.Progress) -> None:
        if progress.best >= target and not seen:
            seen.append(progress.seconds)

    found = solve(callback=note)
    return seen[0] if seen else found.seconds


# ------------------------------------------------------------------ busy neighbours
@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that only count, for as long as the block lasts."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        while len(running) < count:
            running.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        time.sleep(0.3)
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def neighbours(sizes: Sizes) -> Iterator[Row]:
    """Two threads against one while all cores are taken."""
    for name in ("RS", "POPS", "POP"):
        instance = sized(sizes, name)
        solves = {
            f"{threads}": partial(
                mmdp.solve, instance.model, sizes.horizon, backend=NumbaKernel(threads)
            )
            for threads in THREADS
        }
        alone = {key: _best(solve) for key, solve in solves.items()}
        with busy(BUSY):
            times = timing.interleave(
                {key: Contestant(solve) for key, solve in solves.items()}, 2 * sizes.rounds, BUDGET
            )
        yield _beside(name, times, alone)


def _beside(name: str, times: dict[str, Times], alone: dict[str, float]) -> Row:
    note = (
        f"medians {times['2'].median:.3g} s and {times['1'].median:.3g} s; "
        f"without neighbours {alone['2']:.3g} s and {alone['1']:.3g} s"
    )
    ratios = [x / y for x, y in zip(times["2"].rounds, times["1"].rounds, strict=True)]
    return Row(
        f"{name}: 2 threads / 1, beside {BUSY} busy neighbours",
        times["2"].median / times["1"].median, threads=2, goal=BESIDE_GOAL, note=note,
        spread=timing.spread(ratios), low=min(ratios), high=max(ratios),
    )  # fmt: skip


def _best(run: Callable[[], object], rounds: int = 3) -> float:
    run()
    return timing.interleave({"x": Contestant(run)}, rounds)["x"].best


# ------------------------------------------------------------------ rollouts
def rollouts(sizes: Sizes) -> Iterator[Row]:
    """Simulated episodes with exact beliefs, in steps per second."""
    instance = sized(sizes, "POPS")
    model, T = instance.model, sizes.horizon
    policy = mmdp.solve(model, T).policy
    planners: dict[str, Any] = {
        "QMDP": mmdp.QMDP(episodes=2, baseline=policy),
        "rollout": mmdp.Rollout(episodes=2, baseline=policy),
    }
    contestants: dict[str, Contestant] = {}
    for name, method in planners.items():
        planner = mmdp.solve(model, T, method, seed=0).policy
        assert planner is not None
        for threads in THREADS:
            run = partial(
                mmdp.simulate, planner, model, episodes=sizes.episodes, seed=0, control=False,
                threads=threads,
            )  # fmt: skip
            run()
            contestants[f"{name} {threads}"] = Contestant(run)
    times = timing.interleave(contestants, sizes.rounds, BUDGET)
    steps = model.n_models * sizes.episodes * T
    for name in planners:
        for threads in THREADS:
            rates = [steps / seconds for seconds in times[f"{name} {threads}"].rounds]
            yield Row(
                f"POPS: belief rollouts, {name}", max(rates), "steps/s", threads, ROLLOUT_GOAL,
                timing.spread(rates), min(rates), max(rates),
            )  # fmt: skip
