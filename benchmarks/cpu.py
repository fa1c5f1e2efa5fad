"""Speed on a CPU: first calls, whole solves against peers, and the kernel against the machine.

A ratio is peer seconds / our seconds on the same instance. In rows with a floor both make WSU's
pass and then the same number of the paper's sweeps. Ours is mmdp.solve with all it does besides
(evaluations of the policy, the Solution). A row "by default" is mmdp.solve as it comes, from one
initial policy, with two-way sweeps to its own local optimum. Building models and arranging arrays
is not timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

import mmdp
from benchmarks.instances import (
    Instance,
    Sizes,
    make_dense_mdp,
    make_instance,
    make_perishable,
    make_riverswim,
    make_sparse_mdp,
    make_sparse_model,
)
from benchmarks.peers import PEERS, TOOLBOXES, run_cadp
from benchmarks.rows import (
    ROOT,
    Contestant,
    Row,
    Times,
    UnavailableError,
    add_times,
    interleave,
    make_ratio_row,
    make_row,
)
from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.core.kernels.cpu.threads import limit_threads
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.search.context import SolveContext
from mmdp.core.search.spaces import MarkovSpace
from mmdp.insight.paper.cases import CASES, SEED

Array = npt.NDArray[np.float64]
THREADS = (1, 2)
MAX_SWEEPS = 6
BUDGET = 12.0  # seconds of rounds for the rows of one instance
LOOPS = ("authors' loops", "loops, contiguous layout")


# ------------------------------------------------------------------ first calls
BOUND_TIME = 2.0
_MODEL = """
import mmdp
from benchmarks.instances import make_population
model = make_population({models}, {states}, horizon={horizon}).model
"""
_CALLS = {
    "default solve": "mmdp.solve(model, {horizon})",
    "bound": f"mmdp.bound(model, {{horizon}}, time_limit={BOUND_TIME})",
    "planner simulation": "mmdp.solve(model, {horizon}, mmdp.methods.QMDP(n_episodes=20))",
    "solve by numba": 'mmdp.solve(model, {horizon}, backend="numba")',
}


def measure_first_calls(sizes: Sizes) -> Iterator[Row]:
    """Time each call from the start of Python, with an empty cache and with what that left."""
    size = {"models": sizes.n_models["POPS"], "states": sizes.n_states, "horizon": sizes.horizon}
    for name, call in _CALLS.items():
        code = (_MODEL + call).format(**size)
        yield _time_first(f"first {name}", [sys.executable, "-c", code])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mmdp"]
        write = [*command, "domain", "riverswim", "--out", f"{folder}/rs"]
        subprocess.run(write, check=True, capture_output=True, cwd=ROOT)
        command += ["solve", f"{folder}/rs", "--horizon", "50", "--out", f"{folder}/p.csv"]
        yield _time_first("first mmdp solve, riverswim", command)


def _time_first(check: str, command: list[str]) -> Row:
    with tempfile.TemporaryDirectory() as cache:
        first, second = (_time_command(command, cache) for _ in range(2))
    note = f"{second:.2f} s the next time, in another process"
    return Row(check, first, "s", None, note=note)


def _time_command(command: list[str], cache: str) -> float:
    start = time.perf_counter()
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
    )
    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError((process.stderr.strip().splitlines() or ["no message"])[-1])
    return seconds


# ------------------------------------------------------------------ whole solves against peers
def prepare_paper(instance: Instance, n_threads: int) -> tuple[Contestant, int]:
    """Return our solve with the paper's sweeps, compiled, and the sweeps it takes."""
    method = mmdp.methods.CADP("wsu", n_init=1, max_iter=MAX_SWEEPS, sweep_type="paper")
    backend = NumbaBackend(n_threads)
    solve = partial(mmdp.solve, instance.model, instance.horizon, method, backend=backend)
    return Contestant(solve), solve().iterations


def prepare_default(instance: Instance, n_threads: int) -> Contestant:
    """Return mmdp.solve from one initial policy, otherwise as it comes, compiled."""
    method = mmdp.methods.CADP(n_init=1)

    def solve() -> mmdp.Solution:
        with limit_threads(n_threads):
            return mmdp.solve(instance.model, instance.horizon, method)

    solve()
    return Contestant(solve)


def measure_loops(sizes: Sizes) -> Iterator[Row]:
    """Compare with the authors' loops, as published and in a contiguous layout, on one thread."""
    for name in LOOPS:  # compiles
        run_cadp(PEERS[name](make_riverswim(n_models=2, n_states=3, horizon=2)), 1)
    for label in sizes.n_models:
        instance = make_instance(sizes, label)
        ours, n_sweeps = prepare_paper(instance, 1)
        contestants = {"ours": ours, "default": prepare_default(instance, 1)}
        is_scaled = instance.shape[0] > sizes.max_loop_models
        parts: dict[str, list[str]] = {}
        for name in LOOPS:
            passes = _split_loops(name, instance, sizes, n_sweeps, is_scaled)
            parts[name] = [f"{name} {part}" for part in passes]
            contestants |= dict(zip(parts[name], passes.values(), strict=True))
        times = interleave(contestants, sizes.n_loop_rounds, BUDGET, min_rounds=2)
        note = f"{n_sweeps} sweeps" + ", loops timed for some steps, scaled" * is_scaled
        for name in LOOPS:
            loops = add_times([times[part] for part in parts[name]])
            yield make_ratio_row(f"{label} vs {name}", loops, times["ours"], note=note)
            if name == LOOPS[0]:
                check = f"{label} by default vs {name}"
                yield make_ratio_row(check, loops, times["default"])


def _split_loops(
    name: str, instance: Instance, sizes: Sizes, n_sweeps: int, is_scaled: bool
) -> dict[str, Contestant]:
    """Return a whole run; or the passes of a sweep over some steps, scaled to those of a run.

    WSU and n sweeps are n + 1 backward and n forward passes.
    """
    if not is_scaled:
        peer = PEERS[name](instance)
        return {"run": Contestant(lambda: run_cadp(peer, n_sweeps))}
    n_steps = min(sizes.n_loop_steps, instance.horizon)
    part = PEERS[name](instance.truncate(n_steps))
    policy = part.backward(part.prior())[0]
    b = part.forward(policy)
    scale = instance.horizon / n_steps, (instance.horizon - 1) / (n_steps - 1)
    return {
        "backward": Contestant(lambda: part.backward(b), scale=(n_sweeps + 1) * scale[0]),
        "forward": Contestant(lambda: part.forward(policy), scale=n_sweeps * scale[1]),
    }


def measure_numpy(sizes: Sizes) -> Iterator[Row]:
    """Compare with batched matmul, models first; two threads with numpy's better of one and two."""
    for pattern in ("banded", "dense"):
        for name in ("POPS", "POP"):
            instance = make_instance(sizes, name, pattern)
            peer = PEERS["plain numpy"](instance)
            contestants: dict[str, Contestant] = {}
            for n in THREADS:
                contestants[f"ours {n}"], n_sweeps = prepare_paper(instance, n)
                contestants[f"default {n}"] = prepare_default(instance, n)
                run = partial(run_cadp, peer, n_sweeps)
                contestants[f"peer {n}"] = Contestant(run, n_blas_threads=n)
            times = interleave(contestants, sizes.n_rounds, BUDGET)
            for n in THREADS:
                numpy_times, check = _best_peer(times, n), f"{name} {pattern}"
                yield make_ratio_row(
                    f"{check} vs plain numpy",
                    numpy_times,
                    times[f"ours {n}"],
                    n_threads=n,
                    note=f"{n_sweeps} sweeps",
                )
                yield make_ratio_row(
                    f"{check} by default vs plain numpy",
                    numpy_times,
                    times[f"default {n}"],
                    n_threads=n,
                )


def _best_peer(times: dict[str, Times], n_threads: int) -> Times:
    return min((times[f"peer {n}"] for n in range(1, n_threads + 1)), key=lambda x: x.best)


def measure_single_model(sizes: Sizes) -> Iterator[Row]:
    """Compare one model over a finite horizon with the toolboxes for one model."""
    models = {
        "dense": make_dense_mdp(*sizes.dense_mdp),
        "sparse": make_sparse_mdp(*sizes.sparse_mdp),
    }
    for pattern, single in models.items():
        for name, prepare in TOOLBOXES.items():
            try:
                run = prepare(single, sizes.mdp_horizon)
            except ImportError as missing:
                words = f"{name} is not installed: pip install 'mmdp[bench]'"
                raise UnavailableError(words) from missing
            contestants: dict[str, Contestant] = {}
            for n in THREADS:
                backend = NumbaBackend(n)
                solve = partial(mmdp.solve, single.model, sizes.mdp_horizon, backend=backend)
                contestants[f"ours {n}"] = Contestant(solve)
                contestants[f"peer {n}"] = Contestant(run, n_blas_threads=n)
            for contestant in contestants.values():
                contestant.run()
            times = interleave(contestants, sizes.n_rounds)
            for n in THREADS:
                yield make_ratio_row(
                    f"one model, {pattern} vs {name}",
                    _best_peer(times, n),
                    times[f"ours {n}"],
                    n_threads=n,
                    note=f"{single.r.shape[0]} × {single.r.shape[1]}, T = {sizes.mdp_horizon}",
                )


# ------------------------------------------------------------------ bandwidth and growth
@numba.njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _sum(x):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total


class Reader:
    """Reads an array over and over on some threads, each its own part: nothing but reading."""

    def __init__(self, array: Array, n_passes: int, n_threads: int) -> None:
        self.parts = np.array_split(array.reshape(-1), n_threads)
        self.n_passes, self.pool = n_passes, ThreadPoolExecutor(n_threads)

    def run(self) -> float:
        return sum(self.pool.map(self._read, self.parts))

    def _read(self, part: Array) -> float:
        return sum(_sum(part) for _ in range(self.n_passes))


def prepare_step(model: mmdp.MMDP, horizon: int, n_threads: int) -> tuple[Contestant, Contestant]:
    """Return a backward step, and one reading of the transitions on as many threads."""
    x, prepared = model.problem, NumbaBackend(n_threads).prepare(model.problem, horizon)
    policy = np.zeros((horizon, x.n_states), dtype=np.int32)
    step = partial(prepared.backward, "weighted", weights=prepared.forward(policy), policy=policy)
    reader = Reader(x.p, horizon, n_threads)
    contestants = Contestant(step, scale=1 / horizon), Contestant(reader.run, scale=1 / horizon)
    for contestant in contestants:
        contestant.run()
    return contestants


def measure_bandwidth(sizes: Sizes) -> Iterator[Row]:
    """Measure the share of the bandwidth of plain reading that the backward step reaches."""
    for pattern in ("banded", "dense"):
        model = make_instance(sizes, "POP", pattern).model
        n_bytes = model.problem.p.nbytes
        contestants: dict[str, Contestant] = {}
        for n in THREADS:
            step, read = prepare_step(model, sizes.horizon, n)
            contestants |= {f"step {n}": step, f"read {n}": read}
        times = interleave(contestants, sizes.n_rounds, BUDGET)
        for n in THREADS:
            step_times, read_times = times[f"step {n}"], times[f"read {n}"]
            rate = n_bytes / read_times.best / 1e9
            yield make_ratio_row(
                f"POP {pattern}: backward step, share of reading",
                read_times,
                step_times,
                unit="%",
                n_threads=n,
                details={"read_gb_s": rate, "bytes": n_bytes},
                note=f"{1e3 * step_times.best:.2f} ms per step; {n_bytes / 1e6:.0f} MB read at "
                f"{rate:.1f} GB/s",
            )
        check = f"POP {pattern}: step, 2 threads vs 1"
        yield make_ratio_row(check, times["step 1"], times["step 2"], n_threads=2)


def measure_growth(sizes: Sizes) -> Iterator[Row]:
    """Fit slopes of log time over log work, beside those of plainly reading the transitions.

    One thread reads caches three times as fast as memory, so two threads are timed.
    """
    method, backend, n_threads = (
        mmdp.methods.CADP(max_iter=1, sweep_type="paper"),
        NumbaBackend(2),
        2,
    )
    for axis, shapes in sizes.growth.items():
        work = np.array([shape.n_nonzeros * shape.horizon for shape in shapes], dtype=float)
        contestants = {}
        for shape in shapes:
            model = make_sparse_model(shape)
            run = partial(mmdp.solve, model, shape.horizon, method, backend=backend)
            run()
            reader = Reader(model.problem.p, 2 * shape.horizon, n_threads)
            contestants |= {f"{shape}": Contestant(run), f"read {shape}": Contestant(reader.run)}
        times = interleave(contestants, sizes.n_rounds, BUDGET)
        best = [times[f"{shape}"].best for shape in shapes]
        rounds = zip(*(times[f"{shape}"].rounds for shape in shapes), strict=True)
        read_slope = fit_slope(work, [times[f"read {shape}"].best for shape in shapes])
        yield make_row(
            f"log-log slope in {axis}",
            fit_slope(work, best),
            [fit_slope(work, seconds) for seconds in rounds],
            unit="",
            n_threads=n_threads,
            note=f"{work[0]:.1e} to {work[-1]:.1e} multiply-adds per pass, {1e3 * best[0]:.3g} ms "
            f"to {best[-1]:.3g} s; slope of plain reading {read_slope:.2f}",
        )


def fit_slope(x: Sequence[float] | Array, y: Sequence[float]) -> float:
    """Return the slope of the line through log x, log y.

    >>> round(fit_slope([1.0, 10.0, 100.0], [2.0, 20.0, 200.0]), 6)
    1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# ------------------------------------------------------------------ sweeps
def measure_two_way(sizes: Sizes) -> Iterator[Row]:
    """Time solves with two-way sweeps, whole and until they have the value of the paper's.

    A domain on which two-way sweeps end lower counts as 0.
    """
    ratios: dict[str, list[float]] = {"to its value": [], "whole solve": []}
    for name in sizes.domains:
        case = CASES[name]
        model, T = case.make_factory(SEED)().train, sizes.domain_horizon or case.main_horizon
        solves = {
            x: partial(
                mmdp.solve,
                model,
                T,
                mmdp.methods.CADP(n_init=1, sweep_type=x),
                backend=NumbaBackend(1),
            )
            for x in ("paper", "two-way")
        }
        paper, ours = (solve() for solve in solves.values())
        target = paper.value - 1e-9 * abs(paper.value)
        contestants = {f"{x} whole solve": Contestant(solve) for x, solve in solves.items()}
        contestants |= {
            f"{x} to its value": Contestant(
                partial(time_to_value, solve, target), has_own_clock=True
            )
            for x, solve in solves.items()
        }
        times = interleave(contestants, 40 * sizes.n_rounds, BUDGET / 4)
        note = f"{paper.iterations} sweeps to {ours.iterations}, value {ours.value:.6g}"
        for part, values in ratios.items():
            check = f"{name}: two-way vs the paper's, {part}"
            row = make_ratio_row(check, times[f"paper {part}"], times[f"two-way {part}"], note=note)
            if part == "to its value" and ours.value < target:
                row = Row(check, 0.0, note=f"{note}: ends lower")
            values.append(row.value or 0.0)
            yield row
    for part, values in ratios.items():
        check, note = f"two-way vs the paper's, median {part}", f"over {len(values)} domains"
        yield make_row(check, float(np.median(values)), values, note=note)


def time_to_value(solve: Callable[..., mmdp.Solution], target: float) -> float:
    """Return the seconds after which a solve has a policy of that value."""
    reached: list[float] = []

    def record_time(progress: mmdp.solution.Progress) -> None:
        if progress.best_value >= target and not reached:
            reached.append(progress.elapsed)

    solution = solve(callback=record_time)
    return reached[0] if reached else solution.seconds


def measure_cvar_sweep(sizes: Sizes) -> Iterator[Row]:
    """Compare sweeps of an ascent of CVaR from the mean's policy with a sweep of the mean."""
    instance, objective = make_instance(sizes, "POP"), mmdp.objectives.CVaR(0.1)
    context = SolveContext(instance.model, instance.horizon, NumbaBackend(1))
    policy = context.prepared.ascend([None], sweep_type="paper")[0].policy
    sweeper, space = context.prepared.make_sweeper(two_way=False), MarkovSpace(context)
    sweeper.initialize(policy)
    sweeper.sweep(policy)
    path = [policy]
    while len(path) < 2 or (path[-1] != path[-2]).any():
        returns = space.compute_returns(path[-1])
        path.append(space.improve(path[-1], returns, objective)[0])
    contestants = {"mean": Contestant(lambda: sweeper.sweep(policy))}
    for name, candidate in (("first", path[0]), ("last", path[-1])):
        inputs = candidate, space.compute_returns(candidate), objective
        run = partial(space.improve, *inputs)
        contestants[name] = Contestant(run)
    times = interleave(contestants, sizes.n_rounds, BUDGET)
    note = f"{1e3 * times['mean'].best:.3g} ms for the mean; {len(path) - 1} sweeps of CVaR"
    for name in ("first", "last"):
        check = f"POP: {name} sweep of CVaR / sweep of the mean"
        yield make_ratio_row(check, times[name], times["mean"], note=note)


def measure_controller_sweep(sizes: Sizes) -> Iterator[Row]:
    """Compare a sweep over a controller of N nodes with N² of the paper's sweeps."""
    instance = make_instance(sizes, "POPS")
    model, T = instance.model, instance.horizon
    tables = [mmdp.policies.MarkovPolicy.random(model, T, seed).actions for seed in range(5)]
    for n_threads in THREADS:
        prepared = NumbaBackend(n_threads).prepare(model.problem, T)

        def sweep_markov(prepared: PreparedProblem = prepared) -> None:
            b = prepared.forward(tables[0])
            prepared.backward("weighted", weights=b, policy=tables[0])

        def sweep_nodes(controller: Controller, prepared: PreparedProblem = prepared) -> None:
            b = prepared.compute_node_weights(controller)[1]
            prepared.compute_node_values(controller, b)

        runs = {1: sweep_markov} | {
            n: partial(sweep_nodes, make_controller(tables[:n])) for n in (2, 5)
        }
        for run in runs.values():
            run()
        times = interleave(
            {f"{n}": Contestant(x, scale=1 / n**2) for n, x in runs.items()}, sizes.n_rounds, BUDGET
        )
        for n in (2, 5):
            check = f"POPS: sweep of {n} nodes / {n**2} sweeps"
            yield make_ratio_row(check, times[f"{n}"], times["1"], n_threads=n_threads)


def make_controller(tables: Sequence[PolicyTable]) -> Controller:
    """Return a controller with random node transitions, so that every node has weight."""
    controller = Controller.from_tables(*tables)
    nodes = np.random.default_rng(0).integers(0, len(tables), controller.node_transitions.shape)
    return controller._replace(node_transitions=nodes.astype(np.uint8))


def measure_events(sizes: Sizes) -> Iterator[Row]:
    """Compare a backward step over exogenous events with numpy, one event after the other."""
    model, horizon = make_perishable(*sizes.perishable), 4
    x = model.problem.storage
    assert isinstance(x, ExogenousEvents)
    next_states, p = x.next_states[0, ..., 0], x.probs[0, 0]
    prepared = NumbaBackend(2).prepare(model.problem, horizon)
    policy = np.zeros((horizon, model.n_states), np.int32)
    b, v = prepared.forward(policy), np.random.default_rng(0).normal(size=model.terminal.T.shape)

    def add_events() -> None:
        q = np.zeros((*next_states.shape[:2], model.n_models))
        for w in range(next_states.shape[2]):
            q += p[w] * v[next_states[:, :, w]]

    step = partial(prepared.backward, "weighted", weights=b, policy=policy)
    step()
    times = interleave(
        {"numpy": Contestant(add_events), "ours": Contestant(step, scale=1 / horizon)},
        sizes.n_rounds,
        BUDGET,
    )
    yield make_ratio_row(
        "events: backward step vs plain numpy",
        times["numpy"],
        times["ours"],
        n_threads=2,
        note=f"{' × '.join(map(str, next_states.shape))} × {model.n_models} models, "
        f"{times['ours'].best:.3g} s",
    )


# ------------------------------------------------------------------ neighbours and rollouts
@contextmanager
def keep_busy(n_processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run processes that only count, for as long as the block lasts."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        while len(processes) < n_processes:
            processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        time.sleep(0.3)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_neighbours(sizes: Sizes) -> Iterator[Row]:
    """Compare medians of two threads and one while two other processes take all cores."""
    for name in sizes.n_models:
        contestants = {f"{n}": prepare_default(make_instance(sizes, name), n) for n in THREADS}
        single_results = interleave(contestants, 3)
        with keep_busy(2):
            times = interleave(contestants, 2 * sizes.n_rounds, BUDGET)
        two, one = times["2"], times["1"]
        yield make_row(
            f"{name}: 2 threads / 1, beside 2 busy neighbours",
            two.median / one.median,
            [x / y for x, y in zip(two.rounds, one.rounds, strict=True)],
            n_threads=2,
            note=f"medians {two.median:.3g} s and {one.median:.3g} s; without neighbours "
            f"{single_results['2'].best:.3g} s and {single_results['1'].best:.3g} s",
        )


def measure_rollouts(sizes: Sizes) -> Iterator[Row]:
    """Simulate episodes with exact beliefs, in steps per second."""
    model, T, n_episodes = make_instance(sizes, "POPS").model, sizes.horizon, sizes.n_episodes
    policy = mmdp.solve(model, T).policy
    planners: dict[str, Any] = {"QMDP": mmdp.methods.QMDP, "rollout": mmdp.methods.Rollout}
    contestants: dict[tuple[str, int], Contestant] = {}
    for name, make in planners.items():
        planner = mmdp.solve(model, T, make(n_episodes=2, baseline=policy), seed=0).policy
        for n in THREADS:
            run = partial(
                mmdp.simulate,
                model,
                planner,
                n_episodes=n_episodes,
                seed=0,
                control_variate=False,
                n_threads=n,
            )
            run()
            contestants[name, n] = Contestant(run, scale=1 / (model.n_models * n_episodes * T))
    for (name, n), times in interleave(contestants, sizes.n_rounds, BUDGET).items():
        rates = [1 / seconds for seconds in times.rounds]
        check = f"POPS: belief rollouts, {name}"
        yield make_row(check, max(rates), rates, unit="steps/s", n_threads=n)
