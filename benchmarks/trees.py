"""Small trees for all models: value, price, test models and seconds by the number of leaves.

    python -m benchmarks.trees [RS HIV INV POPS] [--leaves 1-8] [--objective mean]
                               [--objective cvar:0.1] [--endless] [--brute]

"fitted" is a tree with as many leaves that scikit-learn fits afterwards to CADP's table, each time
and state weighted by what is at stake there; it is left out if scikit-learn is not installed.
``--brute`` counts how often trees of three leaves are within 0.1% of the best of all such trees,
by enumeration, on 100 tiny instances.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.methods.test_trees import gap

import mmdp
from mmdp.domains import Domain

# the domain, its horizon, and what there is to ask about if the labels do not say it
CASES: dict[str, tuple[Callable[[], Domain], int, Any]] = {
    "RS": (lambda: mmdp.domains.published("riverswim"), 50, None),
    "HIV": (lambda: mmdp.domains.published("hiv"), 15, {"stage": range(4)}),
    "INV": (mmdp.domains.inventory, 50, None),
    "POPS": (mmdp.domains.population_small, 50, None),
}
HEADS = ("case", "horizon", "objective", "leaves", "value", "price", "fitted", "test", "seconds")


def rows(case: str, horizon: float, goal: str, leaves: range) -> None:
    """A row for each number of leaves."""
    make, steps, features = CASES[case]
    train, test = make()
    steps, objective = (horizon or steps), mmdp.objective.as_objective(goal)
    free = mmdp.solve(train, steps, objective=objective)
    for n in leaves:
        found = mmdp.solve(train, steps, policy=mmdp.Tree(n, features), objective=objective)
        tested = worth(objective, found, test)
        afterwards = math.nan if steps == math.inf else fitted(free, train, n, features)
        figures = (found.value, found.price or 0.0, afterwards, tested, found.seconds)
        cells = " | ".join(f"{x:.3f}" for x in figures)
        print(f"| {case} | {steps} | {goal} | {n} | {cells} |", flush=True)


def fitted(free: Any, model: mmdp.MMDP, leaves: int, features: Any) -> float:
    """The value of scikit-learn's tree; not a number if there is none."""
    if leaves < 2 or importlib.util.find_spec("sklearn") is None:
        return math.nan
    from sklearn.tree import DecisionTreeClassifier  # type: ignore[import-not-found]

    table, T = free.policy.actions, len(free.policy.actions)
    columns = mmdp.Tree(leaves, features).features_of(model, T)
    X = np.stack([
        np.broadcast_to(np.array(x.values)[:, None] if x.timed else x.values, table.shape)
        for x in columns
    ], axis=2)  # fmt: skip
    G = np.sort(mmdp.gradient(free.policy, model), axis=2)
    tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0)
    tree.fit(
        X.reshape(-1, len(columns)), table.reshape(-1), (G[:, :, -1] - G[:, :, -2]).reshape(-1)
    )
    actions = tree.predict(X.reshape(-1, len(columns))).reshape(table.shape)
    return worth(free.objective, mmdp.MarkovPolicy.for_model(model, actions), model)


def worth(objective: mmdp.Objective, policy: Any, model: mmdp.MMDP) -> float:
    """The value of a policy, or of a solution's, on some models."""
    found = mmdp.evaluate(policy, model)
    rho = objective.counted(found.returns, lambda: found.oracle)
    return float(objective.value(rho, model.weights))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--leaves", default="1-8", metavar="1-8")
    parser.add_argument("--objective", action="append", metavar="GOAL")
    parser.add_argument("--endless", action="store_true", help="a rule for every day, for ever")
    parser.add_argument("--brute", action="store_true")
    options = parser.parse_args()
    if options.brute:
        near = sum(gap(seed) <= 1e-3 for seed in range(100))
        print(f"{near} of 100 trees of three leaves are within 0.1% of the best of all")
        return
    low, high = map(int, options.leaves.split("-"))
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for case in options.cases:
        for goal in options.objective or ["mean"]:
            rows(case, math.inf if options.endless else 0, goal, range(low, high + 1))


if __name__ == "__main__":
    main()
