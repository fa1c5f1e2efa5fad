"""Continuous axes: what a policy is worth on its grid and without it, for test draws.

``PYTHONPATH=src python -m benchmarks.grids [car] [pole] [--points 41 81] [--seconds 300]``

MountainCar with unknown force and gravity (20 models, T = 200): for each grid, MVP, WSU and CADP
from the same train draws, on 200 test draws. Off the grid all policies drive from the same starts,
so differences are paired: the standard error is over the test draws. CartPole with unknown length
and mass of the pole (10 models, four axes): the share of episodes that last 200 steps off the grid.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

import mmdp

HORIZON, EPISODES = 200, 40
METHODS = ("mvp", "wsu", "cadp")


def played(policy: mmdp.Policy, test: mmdp.MMDP, episodes: int) -> npt.NDArray[np.float64]:
    """(M, episodes) returns off the grid; the same episodes for every policy."""
    found: npt.NDArray[np.float64] = test.function.play(
        test, policy.over(HORIZON).table, episodes, 0, True
    )
    return found


def car(points: Iterable[int], seconds: float, seed: int, tests: int) -> None:
    print(f"MountainCar, {tests} test draws, {EPISODES} starts each; ± is two standard errors")
    print("points  method   train grid   test grid    off grid   minus MVP (paired)   seconds")
    for n in points:
        train, test = mmdp.domains.mountain_car(n_test=tests, points=n, seed=seed)
        base: npt.NDArray[np.float64] | None = None
        for method in METHODS:
            began = time.perf_counter()
            solution = mmdp.solve(train, HORIZON, method, time_limit=seconds)
            took = time.perf_counter() - began
            on, off = mmdp.evaluate(solution, test).mean, played(solution.policy, test, EPISODES)
            base = off if base is None else base
            apart = (off - base).mean(axis=1)
            error = 2 * apart.std(ddof=1) / len(apart) ** 0.5
            print(
                f"{n:6}  {method:6} {solution.value:12.2f} {on:11.2f} {off.mean():11.2f}"
                f" {apart.mean():12.2f} ± {error:.2f} {took:12.0f}"
                + ("  (stopped)" if solution.status == mmdp.Status.TIME_LIMIT else ""),
                flush=True,
            )


def pole(points: Iterable[int]) -> None:
    print("CartPole, 50 test draws, 20 starts each")
    print(
        "points   states   method  on the grid   steps survived   episodes of 200 steps   seconds"
    )
    for n in points:
        train, test = mmdp.domains.cart_pole(10, 50, points=n)
        for method in METHODS[:2]:
            began = time.perf_counter()
            solution = mmdp.solve(train, HORIZON, method)
            off = played(solution.policy, test, 20)
            print(
                f"{n:6} {train.n_states:8,}   {method:6} {solution.value:12.1f} {off.mean():16.1f}"
                f" {(off == HORIZON).mean():23.1%} {time.perf_counter() - began:9.0f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["car", "pole"], default=["car", "pole"])
    parser.add_argument("--points", type=int, nargs="+", default=[41, 81, 161])
    parser.add_argument("--seconds", type=float, default=300.0, help="of a solve, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", type=int, default=200)
    given = parser.parse_args()
    if "car" in given.what:
        car(given.points, given.seconds, given.seed, given.tests)
    if "pole" in given.what:
        pole([5, 7, 9])


if __name__ == "__main__":
    main()
