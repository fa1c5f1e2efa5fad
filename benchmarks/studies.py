"""Figures of the documentation that are no speed: bounds, proofs, coverage.

    python -m benchmarks.studies bounds [--seconds 1,5,20,60]
    python -m benchmarks.studies exact [--seconds 60]
    python -m benchmarks.studies certify [--seconds 3]
    python -m benchmarks.studies coverage [--logs 100]
    python -m benchmarks.studies limits [--seconds 3] [--states 200,2000,10000,100000]

``bounds``: the bound within a limit, the seconds it took, and its gap to CADP's value.
``exact``: what is proven optimal within the time.
``certify``: the gaps that ``certify_time`` and method ``exact`` leave within the same CPU seconds.
``coverage``: how often a 90% range over models fitted to a short log has the true return, for the
policy computed from the log (needs Gymnasium). ``limits``: the CPU seconds that solves take beyond
their limit, by method, horizon and number of states; limits count CPU seconds here, so that other
processes do not matter.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt

import mmdp
from mmdp.core.methods import METHODS
from mmdp.insight.paper.cases import CASES, SEED

Array = npt.NDArray[np.float64]
BOUNDS = ("pairs", "best")
PUBLISHED = (("HIV, T = 10", "hiv", 10), ("RS, T = 50", "riverswim", 50))


def print_table(heads: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    """Print a Markdown table line by line."""
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


# ------------------------------------------------------------------ bounds and proofs
def study_bounds(limits: list[float]) -> None:
    heads = ("case", "limit", "bound", "seconds", "value", "gap")
    print_table(heads, (row for name in CASES for row in list_bounds(name, limits)))


def list_bounds(name: str, limits: list[float]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each limit and method; everything is compiled before."""
    case = CASES[name]
    model, T = case.make_factory(SEED)().train, case.main_horizon
    value = mmdp.solve(model, T).value
    for method in BOUNDS:
        compute_bound(model.subset(range(min(4, model.n_models))), T, method, 0.5)
    for limit in limits:
        for method in BOUNDS:
            seconds, bound = compute_bound(model, T, method, limit)
            yield (
                name,
                f"{limit:g} s",
                method,
                f"{seconds:.2f}",
                f"{bound:.4f}",
                f"{(bound - value) / abs(value):.4%}",
            )


def compute_bound(model: mmdp.MMDP, horizon: int, method: Any, limit: float) -> tuple[float, float]:
    """Return seconds and the bound."""
    start = time.perf_counter()
    value = mmdp.bound(model, horizon, method, time_limit=limit).value
    return time.perf_counter() - start, value


def study_exact(seconds: float) -> None:
    hiv, river = (mmdp.domains.load_published(x).train for x in ("hiv", "riverswim"))
    cases = (
        ("HIV", hiv, 5, 50),
        ("HIV", hiv, 8, 20),
        ("HIV", hiv, 15, 50),
        ("HIV", hiv, 20, 50),
        ("RS", river, 10, 20),
    )
    methods = mmdp.methods.Exact(), mmdp.methods.MILP()

    def prove(model: mmdp.MMDP, horizon: int, method: Any) -> str:
        solution = mmdp.solve(model, horizon, method, time_limit=seconds, seed=0)
        gap = (solution.details["bound"] - solution.value) / abs(solution.value)
        gap_text = "" if solution.status is mmdp.Status.OPTIMAL else f", {gap:.3%} open"
        return f"{solution.seconds:.1f} s, {max(solution.iterations, 1)} nodes{gap_text}"

    rows = (
        (f"{name} T = {T}, {n} models", *(prove(x.subset(range(n)), T, m) for m in methods))
        for name, x, T, n in cases
    )
    print_table(("instance", "exact", "milp"), rows)


# ------------------------------------------------------------------ certificates
def make_random_instances() -> Iterator[tuple[str, mmdp.MMDP, float]]:
    """Yield ten models each: rows without zeros and nothing in common, then sparse rows."""
    rng = np.random.default_rng(0)
    for n_states, T in (
        (8, 20),
        (14, 10),
        (20, 15),
        (30, 8),
        (50, 5),
        (8, math.inf),
        (50, math.inf),
    ):
        p, r = rng.random((10, n_states, 4, n_states)), rng.random((10, n_states, 4))
        model = mmdp.MMDP(p / p.sum(axis=3, keepdims=True), r, discount=0.97)
        yield f"random, {n_states} states, T = {T}", model, T
    sparse = ((8, 10, 0.1), (20, 20, 1), (30, 12, 5), (40, 8, 0.1), (50, 5, 1), (40, math.inf, 1))
    for seed, (n_states, T, concentration) in enumerate(sparse):
        model = mmdp.domains.garnet(10, n_states, 4, 5, concentration, seed).train
        yield f"garnet, {n_states} states, T = {T}", model, T


def study_certify(seconds: float) -> None:
    instances = [(x, mmdp.domains.load_published(y).train, T) for x, y, T in PUBLISHED]
    clock = SimpleNamespace(perf_counter=time.process_time)

    def list_gaps() -> Iterator[tuple[Any, ...]]:
        for name, model, T in (*make_random_instances(), *instances):
            gaps = []
            for options in ({"certify_time": seconds}, {"method": "exact", "time_limit": seconds}):
                solution = mmdp.solve(model, T, seed=0, **options)
                gaps.append(f"{solution.gap:.3%}")
            yield name, *gaps

    with mock.patch("mmdp.core.timing.time", clock):
        small = mmdp.domains.garnet(n_models=3, n_states=8).train
        for T in (4, math.inf):
            mmdp.solve(small, T, certify_time=0.5)  # compiles
        print_table(("instance", "certify_time", "exact"), list_gaps())


# ------------------------------------------------------------------ time limits
OBJECTIVES = ("mean", "cvar:0.5")


def study_limits(limit: float, sizes: list[int]) -> None:
    heads = ("states", "horizon", "method", "class", "objective", "taken", "status")
    clock = SimpleNamespace(perf_counter=time.process_time)
    with mock.patch("mmdp.core.timing.time", clock):
        print_table(heads, (row for n in sizes for row in list_solves(n, limit)))


def list_policy_classes(n_states: int) -> dict[str, Any]:
    return {
        "": None,
        "stationary": mmdp.policies.Stationary(),
        "monotone": mmdp.policies.Monotone(),
        "tree": mmdp.policies.Tree(max_leaves=4, features={"state": range(n_states)}),
        "memory": mmdp.policies.Memory(2),
    }


def list_solves(n_states: int, limit: float) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each method, horizon, policy class and objective that goes together."""
    small, model = (
        mmdp.domains.garnet(n_models=3, n_states=n, n_actions=2, branching=3, discount=0.99).train
        for n in (20, n_states)
    )
    small_classes, classes = map(list_policy_classes, (20, n_states))
    for horizon, method, name, objective in itertools.product(
        (20, math.inf), METHODS, classes, OBJECTIVES
    ):
        small_options: Any = {"policy_class": small_classes[name], "objective": objective}
        options = {**small_options, "policy_class": classes[name], "time_limit": limit}
        try:
            mmdp.solve(small, horizon, method, time_limit=0.1, **small_options)  # compiles
            start = time.process_time()
            status = mmdp.solve(model, horizon, method, **options).status.name
        except mmdp.InputError:
            continue
        seconds = f"{time.process_time() - start:.2f} of {limit:g} s"
        yield f"{n_states:,}", horizon, method, name, objective, seconds, status


# ------------------------------------------------------------------ coverage
class TrueModel(NamedTuple):
    """p and r (S, A, S') of an environment, and the states that end an episode."""

    p: Array
    r: Array
    terminal: list[int]
    horizon: int
    discount: float

    def make_model(self) -> mmdp.MMDP:
        return mmdp.MMDP(
            [self.p],
            [(self.p * self.r).sum(axis=2)],
            initial=np.eye(len(self.p))[0],
            discount=self.discount,
        )


def make_ferry() -> TrueModel:
    p, r = np.zeros((2, 3, 3, 3))
    for s in (0, 1):
        p[s, 0, s] = 1
        for a, (sinks, fare) in ((1, (0.08, 1.0)), (2, (0.01, 0.6))):
            p[s, a, [1 - s, 2]], r[s, a, 1 - s] = (1 - sinks, sinks), fare
    p[2, :, 2] = 1
    return TrueModel(p, r, [2], 20, 0.95)


def make_lake() -> TrueModel:
    import gymnasium

    env: Any = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True).unwrapped
    S, A, terminal = env.observation_space.n, env.action_space.n, set[int]()
    p, r = np.zeros((2, S, A, S))
    for s, a in np.ndindex(S, A):
        for probability, after, reward, is_last in env.P[s][a]:
            p[s, a, after] += probability
            r[s, a, after] = reward
            terminal |= {int(after)} if is_last else set()
    for s in terminal:
        p[s], r[s] = np.eye(S)[s], 0
    return TrueModel(p, r, sorted(terminal), 60, 0.99)


def simulate_log(
    true: TrueModel, n_episodes: int, rng: np.random.Generator
) -> dict[str, list[Any]]:
    """Follow the best action half of the time, and a random one otherwise."""
    best, rows = mmdp.solve(true.make_model(), true.horizon).policy.actions[0], []
    S, A = true.p.shape[:2]
    for episode in range(n_episodes):
        s = 0
        for t in range(true.horizon):
            a = int(rng.integers(A)) if rng.random() < 0.5 else int(best[s])
            after = int(rng.choice(S, p=true.p[s, a]))
            rows.append((episode, t, s, a, after, true.r[s, a, after], after in true.terminal))
            s = after
            if s in true.terminal:
                break
    names = ("episode", "time", "state", "action", "next_state", "reward", "terminated")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def is_covered(true: TrueModel, log: dict[str, list[Any]], seed: int, **options: Any) -> bool:
    """Return whether nine tenths of the fitted models enclose the true return."""
    S, A = true.p.shape[:2]
    fitted = mmdp.fit(
        log,
        n_models=60,
        n_test_models=120,
        discount=true.discount,
        states=S,
        actions=A,
        initial=np.eye(S)[0],
        seed=seed,
        **options,
    )
    solution = mmdp.solve(fitted.train, true.horizon, "mvp", backend="numpy")
    low, high = np.quantile(mmdp.evaluate(fitted.test, solution).returns, [0.05, 0.95])
    value = mmdp.evaluate(true.make_model(), solution).mean
    return bool(low - 1e-9 <= value <= high + 1e-9)


def study_coverage(n_logs: int) -> None:
    cases: tuple[tuple[str, Callable[[], TrueModel], int], ...] = (
        ("the ferry", make_ferry, 3),
        ("the ferry", make_ferry, 10),
        ("FrozenLake, 4 by 4", make_lake, 10),
        ("FrozenLake, 4 by 4", make_lake, 40),
    )

    def measure(make: Callable[[], TrueModel], n_episodes: int) -> tuple[str, ...]:
        true = make()
        logs = [
            simulate_log(true, n_episodes, np.random.default_rng([i, n_episodes]))
            for i in range(n_logs)
        ]
        options: tuple[dict[str, Any], ...] = {}, {"support": "seen", "unseen": "forbid"}
        counts = (sum(is_covered(true, x, i, **o) for i, x in enumerate(logs)) for o in options)
        return tuple(f"{n / n_logs:.0%}" for n in counts)

    rows = ((name, n, *measure(make, n)) for name, make, n in cases)
    print_table(("environment", "episodes in a log", "by default", "support='seen'"), rows)


# ------------------------------------------------------------------ the command
def main(arguments: list[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("bounds", "exact", "certify", "coverage", "limits"))
    parser.add_argument("--seconds", help="time limits", metavar="S,...")
    parser.add_argument("--logs", type=int, default=20, metavar="N")
    parser.add_argument("--states", default="200,2000,10000,100000", metavar="N,...")
    options = parser.parse_args(arguments)
    sizes = [int(x) for x in options.states.split(",")]
    studies: dict[str, tuple[Callable[[list[float]], None], str]] = {
        "bounds": (study_bounds, "1,5,20,60"),
        "exact": (lambda limits: study_exact(limits[0]), "60"),
        "certify": (lambda limits: study_certify(limits[0]), "3"),
        "coverage": (lambda _: study_coverage(options.logs), "0"),
        "limits": (lambda limits: study_limits(limits[0], sizes), "3"),
    }
    run, default = studies[options.study]
    run([float(x) for x in (options.seconds or default).split(",")])


if __name__ == "__main__":
    main()
