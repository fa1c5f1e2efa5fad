"""Policies for the worst models: values, proven gaps and test models, and what a sweep costs.

    python -m benchmarks.objectives [tails|sweeps|tiny] [--seconds 15]

``tails``: CVaR on the published models, for the mean's policy and for one of its own, with its
proof (``--seconds`` each) and its value on the test models, next to the reference figures.
``sweeps``: a sweep of CVaR over a sweep of the mean at POP size, on one thread.
``tiny``: how often the ascent is optimal on tiny random instances, by enumeration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise

import numpy as np

import mmdp
from benchmarks.instances import population
from benchmarks.timing import Contestant, interleave
from mmdp.kernels.cpu.climb import Climb
from mmdp.kernels.cpu.kernel import CpuPlan
from mmdp.kernels.problem import Array, Table
from mmdp.objective import as_objective
from mmdp.search.context import Context
from mmdp.search.landscape import climbed
from mmdp.search.tables import Tables
from mmdp.testing import all_policies, random_model, returns_of

ALPHAS = (0.5, 0.2, 0.1, 0.05, 0.01)
# Horizon, and by alpha the values that a plain ascent from the mean's policy reached.
REFERENCE = {
    "riverswim": (50, (123.60, 71.58, 57.39, 53.08, 50.63)),
    "hiv": (15, (31829.0, 23859.0, 19792.0, 16623.0, 11464.0)),
}


def tails(seconds: float) -> None:
    heads = ("case", "alpha", "mean's policy", "own policy", "reference", "own optima", "at most",
             "gap", "mean's, test", "own, test", "seconds")  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, (horizon, references) in REFERENCE.items():
        train, test = mmdp.domains.published(name)
        plain = mmdp.solve(train, horizon)
        tested = mmdp.evaluate(plain, test)
        for alpha, reference in zip(ALPHAS, references, strict=True):
            goal = mmdp.CVaR(alpha)
            own = mmdp.solve(train, horizon, objective=goal, certify=seconds)
            first = mmdp.bound(train, horizon, "oracle", objective=goal).value
            figures = (
                plain.evaluation.value(goal), own.value, reference, first, own.bound,
                f"{100 * (own.gap or 0):.3f}%", tested.value(goal),
                mmdp.evaluate(own, test).value(goal), own.seconds,
            )  # fmt: skip
            cells = [x if isinstance(x, str) else f"{x:.2f}" for x in figures]
            print(f"| {name}, T = {horizon} | {alpha:g} | {' | '.join(cells)} |", flush=True)


def sweeps(models: int = 1000) -> None:
    """From the mean's policy: the mean's own sweep, and the sweeps of an ascent of CVaR."""
    instance = population(models)
    model, horizon = instance.model, instance.horizon
    kernel = mmdp.kernels.get("numba", threads=1)
    context, goal = Context(model, horizon, kernel), mmdp.CVaR(0.1)
    start = context.plan.ascend([None], sweeps="paper")[0].policy
    assert isinstance(context.plan, CpuPlan)
    climb = Climb(context.plan, two_way=False)
    climb.open(start)
    climb.sweep(start)
    landscape, path = Tables(context), [start]
    while len(path) < 2 or (path[-1] != path[-2]).any():
        path.append(climbed(landscape, path[-1], landscape.returns(path[-1]), goal)[0])

    def again(policy: Table) -> Contestant:
        returns = landscape.returns(policy)
        return Contestant(lambda: climbed(landscape, policy, returns, goal))

    times = interleave(
        {
            "mean": Contestant(lambda: climb.sweep(start)), "first": again(path[0]),
            "last": again(path[-1]),
        },
        rounds=5,
    )  # fmt: skip
    mean = times.pop("mean").best
    moved = [int((a != b).sum()) for a, b in pairwise(path)]
    print(f"{instance.name}, T = {horizon}: a sweep of the mean takes {mean:.3f} s")
    for title, each in times.items():
        print(f"the {title} sweep of {goal} takes {each.best:.3f} s, {each.best / mean:.2f} of it")
    print(f"changes of action by sweep: {moved}")


def tiny(instances: int = 60) -> None:
    """How often the ascent is optimal, and how far off it is on average."""
    print("| objective | optimal | mean gap | with 16 starts | mean gap |\n|---|---|---|---|---|")
    for text in ("cvar:0.3", "worst", "regret:worst", "entropic:0.1", "var:0.3"):
        goal, cells = as_objective(text), []
        for starts in (1, 16):
            gaps = [_gap(seed, goal, starts) for seed in range(instances)]
            cells += [f"{np.mean(np.array(gaps) < 1e-9):.1%}", f"{np.mean(gaps):.4%}"]
        print(f"| {text} | {' | '.join(cells)} |", flush=True)


def _gap(seed: int, goal: mmdp.Objective, starts: int) -> float:
    """What a policy lacks to the best one, relative to the range of all policies."""
    model, horizon, every = _enumerated(seed)
    values = goal.value(goal.counted(every, lambda: every.max(axis=0)), model.weights)
    found = mmdp.solve(model, horizon, mmdp.CADP(starts=starts), objective=goal, backend="numpy")
    return max(float(values.max() - found.value), 0.0) / float(np.ptp(values) or 1.0)


def _enumerated(seed: int) -> tuple[mmdp.MMDP, int, Array]:
    """A tiny model, its horizon, and the returns (N, M) of all its policies."""
    model, horizon = random_model(seed, n_models=5, n_states=3, n_actions=2, horizon=0), 3
    return model, horizon, returns_of(all_policies(model, horizon), model)


WORK: dict[str, Callable[[float], None]] = {
    "tails": tails, "sweeps": lambda _: sweeps(), "tiny": lambda _: tiny(),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="tails", choices=tuple(WORK))
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    WORK[options.what](options.seconds)


if __name__ == "__main__":
    main()
