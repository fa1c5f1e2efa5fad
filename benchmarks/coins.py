"""What drawing actions at random earns: random instances, and the domains by objective.

    python -m benchmarks.coins [random RS HIV INV POPS] [--seconds 120]

Random instances have 2 to 6 models and 3 states; the best rule that draws nothing is found by
enumeration, and the bound is one on every policy. The domains: rules for ever ("stationary", the
mean, the worst case and CVaR 10%), and tables over the usual horizon (worst case and CVaR 10%).
"""

from __future__ import annotations

import argparse
import itertools
import math
import time

import numpy as np

import mmdp
from benchmarks.trees import CASES

COUNT = 100
CLEAR = 1e-6  # share of |value| above which drawing earns something


def instance(seed: int) -> mmdp.MMDP:
    rng = np.random.default_rng(seed)
    M, S, A = int(rng.integers(2, 7)), 3, int(rng.integers(2, 4))
    return mmdp.MMDP(
        rng.dirichlet(np.full(S, 0.3), size=(M, S, A)), rng.normal(size=(M, S, A)), discount=0.95,
        initial=rng.dirichlet(np.ones(S)), weights=rng.dirichlet(np.ones(M)),
    )  # fmt: skip


def enumerated(model: mmdp.MMDP, objective: str) -> float:
    """The most that a rule which draws nothing is worth."""
    rows = itertools.product(range(model.n_actions), repeat=model.n_states)
    return max(
        mmdp.evaluate(mmdp.StationaryPolicy(row, n_actions=model.n_actions), model).value(objective)
        for row in rows
    )


def on_random(objective: str) -> None:
    below = above = clear = 0
    earned, took = [], 0.0
    for seed in range(COUNT):
        model = instance(seed)
        begun = time.perf_counter()
        found = mmdp.solve(
            model, math.inf, objective=objective, policy=mmdp.Stationary(randomised=True)
        )
        took += time.perf_counter() - begun
        best = enumerated(model, objective)
        bound = mmdp.bound(model, math.inf, "pairs", objective=objective, time_limit=0.1).value
        below += found.value < best - 1e-9 * abs(best)
        above += found.value > bound
        clear += found.value > best + CLEAR * abs(best)
        earned.append((found.value - best) / (bound - best) if bound > best else 0.0)
    print(
        f"{COUNT} instances, {objective}: below enumeration {below}, above a bound {above}, "
        f"drawing earns something in {clear}, on average {np.mean(earned):.1%} of the distance "
        f"to the bound, at most {max(earned):.1%}; {took / COUNT:.2f} s each",
        flush=True,
    )


def on_case(case: str, seconds: float) -> None:
    make, steps, _ = CASES[case]
    train, _ = make()
    asked = [(math.inf, mmdp.Stationary(True), x) for x in ("mean", "worst", "cvar:0.1")]
    asked += [(steps, mmdp.Markov(True), x) for x in ("worst", "cvar:0.1")]
    for horizon, kind, objective in asked:
        begun = time.perf_counter()
        found = mmdp.solve(train, horizon, objective=objective, policy=kind, time_limit=seconds)
        took, gain = time.perf_counter() - begun, found.details.get("tossing", 0.0)
        places = len(found.policy.drawn_at) if gain > 0 else 0
        print(
            f"| {case} | {horizon} | {objective} | {found.value - gain:,.3f} | {found.value:,.3f} "
            f"| {gain / abs(found.value - gain):.2%} | {places} of {found.policy.actions.size} "
            f"| {found.status.name} | {took:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["random", *CASES], metavar="CASE")
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    if "random" in options.cases:
        for objective in ("mean", "worst"):
            on_random(objective)
    print("| case | horizon | objective | draws none | draws | gain | places | status | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in [x for x in options.cases if x != "random"]:
        on_case(case, options.seconds)


if __name__ == "__main__":
    main()
