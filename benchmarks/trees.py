"""Small trees for all models: value, price, test models and seconds by the number of leaves.

    python -m benchmarks.trees [--only WORDS] [--leaves 8]

WORDS select parts by their names, such as "RS", "POPS inf cvar", "perishable" or "brute". "fitted"
is a tree with as many leaves that scikit-learn fits afterwards to CADP's table, each time and state
weighted by what is at stake there; it is left out if scikit-learn is not installed. "brute" counts
how often trees of three leaves are within 0.1% of the best of all such trees, by enumeration, on
100 tiny instances. "perishable" is De Moor's problem over 50 models with at most six leaves, in
words.
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
GOALS = ("mean", "cvar:0.1")
HEADS = ("case", "horizon", "objective", "leaves", "value", "price", "fitted", "test", "seconds")
LEAVES, FAR = 6, 300  # leaves of the perishable rule; times that stand for all


def rows(case: str, steps: float, goal: str, most: int) -> None:
    """A line for each number of leaves, all from one solve; seconds are those since the last."""
    make, _, features = CASES[case]
    train, test = make()
    table = mmdp.value_of_leaves(train, steps, most, features=features, objective=goal, test=test)
    free = mmdp.solve(train, steps, objective=goal)
    for x in table.itertuples():
        afterwards = fitted(free, train, x.leaves, features)
        figures = (x.value, x.price, afterwards, x.test, x.seconds)
        cells = " | ".join(f"{y:.3f}" for y in figures)
        below = " (above)" if afterwards > x.value + 1e-9 * abs(x.value) else ""
        print(f"| {case} | {steps} | {goal} | {x.leaves} | {cells}{below} |", flush=True)


def fitted(free: mmdp.Solution, model: mmdp.MMDP, leaves: int, features: Any) -> float:
    """The value of scikit-learn's tree; not a number if there is none."""
    if leaves < 2 or importlib.util.find_spec("sklearn") is None:
        return math.nan
    from sklearn.tree import DecisionTreeClassifier  # type: ignore[import-not-found]

    table = np.atleast_2d(free.policy.actions)
    ends = free.policy.horizon < math.inf
    G = mmdp.gradient(free.policy if ends else free.policy.over(FAR), model)
    G = np.sort(np.nan_to_num(G, nan=-np.inf), axis=2)
    stakes = G[:, :, -1] - G[:, :, -2]
    stakes = stakes if ends else stakes.sum(axis=0, keepdims=True)
    columns = mmdp.Tree(leaves, features, time=ends).features_of(model, len(table))
    X = np.stack([
        np.broadcast_to(np.array(x.values)[:, None] if x.timed else x.values, table.shape)
        for x in columns
    ], axis=2).reshape(-1, len(columns))  # fmt: skip
    tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0)
    tree.fit(X, table.reshape(-1), stakes.reshape(-1))
    actions = tree.predict(X).reshape(free.policy.actions.shape)
    followed = type(free.policy).for_model(model, actions)
    return mmdp.evaluate(followed, model).value(free.objective)


def perishable() -> None:
    """What a rule of at most six leaves gives up, and the rule."""
    train, test = mmdp.domains.perishable(n_train=50)
    for steps in (50, math.inf):
        table = mmdp.value_of_leaves(train, steps, LEAVES, test=test)
        best = table.iloc[-1]
        print(f"\nperishable stock, horizon {steps}: {table.attrs['text']}")
        print(table[["leaves", "value", "price", "test", "seconds"]].to_string(index=False))
        print(
            f"costs {best['price']:.4f} ({100 * best['share']:.4f}%):\n{best['rule']}", flush=True
        )


def brute() -> None:
    for goal, count in (("mean", 100), ("cvar:0.3", 100)):
        near = sum(gap(seed, goal) <= 1e-3 for seed in range(count))
        print(f"{goal}: {near} of {count} trees of three leaves are within 0.1% of the best of all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS")
    parser.add_argument("--leaves", type=int, default=8, metavar="N")
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        return all(word in name.split() for word in options.only.split())

    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for case, (_, horizon, _) in CASES.items():
        for steps in (horizon, math.inf):
            for goal in GOALS:
                if wanted(f"{case} {steps} {goal.split(':')[0]}"):
                    rows(case, steps, goal, options.leaves)
    for part in (perishable, brute):
        if wanted(part.__name__):
            part()


if __name__ == "__main__":
    main()
