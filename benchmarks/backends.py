"""What a pass costs on each backend, and what ``backend="auto"`` loses against the better one.

``python -m benchmarks.backends measure`` times passes on a grid of sizes and writes ``costs.csv``;
``fit`` prints the coefficients of :mod:`mmdp.core.kernels.costs` from it; ``regret`` solves random
problems with each backend and with ``"auto"``, in a process that has loaded the compiled code
("warm") and in fresh ones ("cold"), and prints how much longer ``"auto"`` takes than the better.
All times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import threadpoolctl  # type: ignore[import-untyped]

import mmdp
from benchmarks.instances import Shape, make_sparse_model
from mmdp.core.kernels import get_backend
from mmdp.core.kernels.costs import Work
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import AscentResult
from mmdp.core.policies import Stationary
from mmdp.core.search.context import SolveContext
from mmdp.core.search.spaces import StationarySpace

Array = npt.NDArray[np.float64]

DATA = Path(__file__).with_name("costs.csv")
BACKENDS = ("numpy", "numba")
FORMATS = ("dense", "sparse", "events")
CALLS = ("solve", "evaluate", "infinite", "switching")
MAX_WORK = 3e6  # multiply-adds of a pass over a random problem
ROUNDS = 2  # of a measurement


class Size(NamedTuple):
    """A problem: ``n_outcomes`` next states or events per row."""

    format: str
    n_models: int
    n_states: int
    n_actions: int
    n_outcomes: int
    horizon: int
    is_switching: bool = False

    @property
    def work(self) -> float:
        return float(math.prod(self[1:6]))

    def make_work(self) -> Work:
        """Return the sizes that the estimates take."""
        n_entries = self.n_states * self.n_actions * self.n_outcomes
        sizes = self.n_models, self.n_states, self.n_actions
        return Work(self.format, *sizes, n_entries, self.n_outcomes, self.is_switching)

    def make_model(self, seed: int = 0) -> mmdp.MMDP:
        """Make a random model of this size."""
        _, M, S, A, K, T, is_switching = self
        rng = np.random.default_rng(seed)
        chain = 0.9 * np.eye(M) + 0.1 / M if is_switching else None
        if self.format == "events":
            events = ExogenousEvents(
                rng.integers(S, size=(1, S, A, K, 1)),
                np.moveaxis(rng.dirichlet(np.ones(K), (1, 1, M)), 2, 3),
            )
            rewards = events.make_rewards(rng.random((S, A, K)))
            return mmdp.MMDP(events, rewards, discount=0.95, model_transitions=chain)
        if self.format == "dense":
            transitions = rng.dirichlet(np.ones(S), (M, S, A))
            rewards = rng.random((M, S, A))
            return mmdp.MMDP(transitions, rewards, discount=0.95, model_transitions=chain)
        model = make_sparse_model(Shape(M, S, A, K, T), seed)
        return model.replace(discount=0.95, model_transitions=chain)


def measure_once(function: Callable[[], object]) -> float:
    """Measure the CPU seconds of a call."""
    start_time = time.process_time()
    function()
    return time.process_time() - start_time


def measure_seconds(function: Callable[[], object]) -> float:
    """Measure the CPU seconds of a call: the least of some rounds."""
    return min(measure_once(function) for _ in range(ROUNDS))


# ------------------------------------------------------------------ costs of passes
FIELDS = ("backend", *Size._fields, "pass_seconds")
MAX_GRID_WORK = 3e7  # multiply-adds of a pass
MAX_SWEEPS = 3


def iter_grid() -> Iterator[Size]:
    """Iterate over sizes of every format, with models that stay and models that change."""
    for is_switching, M, S, A, T in itertools.product(
        (False, True), (1, 8, 100), (4, 40, 400), (2, 8), (2, 40)
    ):
        for storage_format, K in (("dense", S), ("sparse", 3), ("events", 3), ("events", 30)):
            size = Size(storage_format, M, S, A, min(K, S), T, is_switching)
            if size.work <= MAX_GRID_WORK and not (is_switching and M == 1):
                yield size


def measure_pass(size: Size, backend_name: str) -> float:
    """Measure the seconds of one pass of an ascent, or of the only pass if there is one model."""
    problem = size.make_model().problem
    prepared = get_backend(backend_name, n_threads=1).prepare(problem, size.horizon)
    if size.n_models == 1:
        solve = partial(prepared.backward, "weighted", weights=problem.prior_weights())
        solve()  # compiles
        return measure_seconds(solve)

    def ascend() -> AscentResult:
        return prepared.ascend([None], max_sweeps=MAX_SWEEPS)[0]

    n_passes = 1 + 2 * ascend().n_sweeps  # compiles
    return measure_seconds(ascend) / n_passes


def measure_stationary(size: Size) -> float:
    """Measure the seconds of one ascent over stationary policies, from random ones."""
    model = size._replace(format="dense").make_model()
    space = StationarySpace(SolveContext(model, 1, get_backend("numpy"), policy_class=Stationary()))
    inits = [space.compute_init("random", seed) for seed in range(ROUNDS)]
    start_time = time.process_time()
    for init in inits:
        space.ascend_mean(init)
    return (time.process_time() - start_time) / ROUNDS


def measure_load() -> float:
    """Measure the seconds until compiled code from the cache has solved a tiny problem."""
    model = Size("sparse", 3, 6, 2, 2, 3).make_model()
    solve = partial(mmdp.solve, model, 3, mmdp.methods.CADP(n_init=1), backend="numba")
    measure_in_child(solve)  # compiles
    return min(measure_in_child(solve) for _ in range(ROUNDS))


def write_costs() -> None:
    """Measure all sizes on all backends and write them to the CSV file."""
    print(f"LOAD_SECONDS = {measure_load():.2g}")
    with DATA.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for size, backend in itertools.product(iter_grid(), BACKENDS):
            seconds = measure_pass(size, backend)
            writer.writerow([backend, *size[:-1], int(size.is_switching), f"{seconds:.3g}"])
        for M, S, A in itertools.product((1, 8, 60), (5, 30, 120, 240), (2, 6)):
            if M * S**2 * A <= MAX_GRID_WORK / 10:
                size = Size("stationary", M, S, A, S, 0)
                writer.writerow(["numpy", *size[:-1], 0, f"{measure_stationary(size):.3g}"])


def read_samples() -> Iterator[tuple[str, tuple[float, ...], float]]:
    """Read layouts, the operations of a pass (or of a stationary ascent), and seconds."""
    with DATA.open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = (int(row[name]) for name in Size._fields[1:-1])
            size = Size(row["format"], *numbers, is_switching=row["is_switching"] == "1")
            work, seconds = size.make_work(), float(row["pass_seconds"])
            if size.format == "stationary":
                yield size.format, work.count_stationary_operations(), seconds
            else:
                operations = work.count_operations(row["backend"], size.horizon)
                yield work.find_layout(row["backend"]), operations, seconds


def fit_costs() -> dict[str, Array]:
    """Fit the costs of each layout, in nanoseconds, by least squares of relative errors."""
    from scipy.optimize import nnls

    samples: dict[str, list[Array]] = {}
    for layout, operations, seconds in read_samples():
        samples.setdefault(layout, []).append(np.array(operations) / (1e9 * seconds))
    return {layout: nnls(np.array(rows), np.ones(len(rows)))[0] for layout, rows in samples.items()}


def print_costs() -> None:
    """Print the costs, and the estimates relative to the measurements."""
    costs, ratios = fit_costs(), {}
    for layout, operations, seconds in read_samples():
        ratios.setdefault(layout, []).append(1e-9 * np.dot(operations, costs[layout]) / seconds)
    for layout, values in costs.items():
        quantiles = np.quantile(ratios[layout], [0, 0.1, 0.5, 0.9, 1])
        print(f"# estimates relative to measurements: {' '.join(f'{x:.2f}' for x in quantiles)}")
        print(f'"{layout}": PassCosts({", ".join(f"{x:.3g}" for x in values)}),')


# ------------------------------------------------------------------ regret of "auto"
class Case(NamedTuple):
    """A random problem and what is asked of it."""

    call: str
    size: Size
    seed: int

    def make_call(self) -> Callable[[str], object]:
        """Make the model, and return the call by backend."""
        model, T = self.size.make_model(self.seed), self.size.horizon
        if self.call == "evaluate":
            policy = mmdp.policies.MarkovPolicy.random(model, T, self.seed)
            return lambda backend: mmdp.evaluate(model, policy, backend=backend)
        horizon = math.inf if self.call == "infinite" else T
        return lambda backend: mmdp.solve(model, horizon, backend=backend)


def draw_cases(n_cases: int, seed: int = 0) -> Iterator[Case]:
    """Draw problems of all formats and calls, with sizes uniform in their logarithms."""
    rng = np.random.default_rng(seed)
    kinds = itertools.cycle(itertools.product(CALLS, FORMATS))
    for n in range(n_cases):
        call, storage_format = next(kinds)
        while True:
            M, S, A, K, T = (
                round(math.exp(rng.uniform(math.log(low), math.log(high))))
                for low, high in ((1, 300), (3, 1000), (2, 10), (2, 100), (2, 200))
            )
            K = {"dense": S, "sparse": min(K, max(1, S // 2)), "events": K}[storage_format]
            size = Size(storage_format, M, S, A, K, T, call == "switching")
            is_allowed = call != "infinite" or S <= 250
            if size.work <= MAX_WORK / (20 if call == "switching" else 1) and is_allowed:
                break
        yield Case(call, size, n)


def measure_in_child(function: Callable[[], object]) -> float:
    """Measure the CPU seconds of a call in a copy of this process, which ends afterwards."""
    receiver, sender = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(sender, str(measure_once(function)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(sender)
    with os.fdopen(receiver) as file:
        return float(file.read())


def measure_regret(cases: list[Case], is_cold: bool) -> Iterator[tuple[Case, list[float]]]:
    """Yield the seconds of each case on every backend, and with ``"auto"`` last.

    In turn, round after round, so that all meet the same neighbours.
    """
    if not is_cold:
        for call, storage_format in itertools.product(CALLS, FORMATS):
            n_outcomes = 6 if storage_format == "dense" else 2
            for n_models in (1, 3):
                size = Size(storage_format, n_models, 6, 2, n_outcomes, 3, call == "switching")
                Case(call, size, 0).make_call()("numba")
    measure = measure_in_child if is_cold else measure_once
    for case in cases:
        call = case.make_call()
        rounds = [
            [measure(partial(call, name)) for name in (*BACKENDS, "auto")] for _ in range(ROUNDS)
        ]
        yield case, np.min(rounds, axis=0).tolist()


def print_regret(n_cases: int) -> None:
    """Print the ratio of ``"auto"`` to the better backend: median, 95% and worst."""
    cases = list(draw_cases(n_cases))
    print("| process | call | median | 95% | worst |\n|---|---|---|---|---|")
    for is_cold in (True, False):
        process, ratios, worst = "cold" if is_cold else "warm", {"all": []}, []
        for n, (case, seconds) in enumerate(measure_regret(cases, is_cold)):
            print(f"\r{process} {n}", end="", file=sys.stderr)
            ratio = max(1.0, seconds[-1] / min(seconds[:-1]))
            worst.append((ratio, case, seconds))
            for key in ("all", case.call):
                ratios.setdefault(key, []).append(ratio)
        for key, values in ratios.items():
            figures = np.quantile(values, [0.5, 0.95, 1.0])
            print("|", " | ".join([process, key, *(f"{x:.2f}" for x in figures)]), "|", flush=True)
        for ratio, case, seconds in sorted(worst, reverse=True)[:8]:
            print(f"<!-- {ratio:.2f} {case} {[round(x, 4) for x in seconds]} -->", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["measure", "fit", "regret"])
    parser.add_argument("--cases", type=int, default=200, help="random problems of regret")
    arguments = parser.parse_args()
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        if arguments.command == "measure":
            write_costs()
        elif arguments.command == "fit":
            print_costs()
        else:
            print_regret(arguments.cases)


if __name__ == "__main__":
    main()
