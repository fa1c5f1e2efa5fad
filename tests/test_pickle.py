"""Everything public pickles, small, and answers as before: results travel between processes."""

from __future__ import annotations

import importlib
import inspect
import pickle
from enum import Enum
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import economics, errors, measures, posterior
from mmdp.testing import random_model

MODULES = ("mmdp", "mmdp.methods", "mmdp.posterior", "mmdp.measures", "mmdp.domains",
           "mmdp.economics", "mmdp.kernels", "mmdp.bounds")  # fmt: skip
PLANNERS = ("qmdp", "rollout", "mixts", "pomcp")
# a protocol, a base class and what lives only while solve() runs: nothing of these travels
NOT_MADE = {"Planner", "Method", "Kernel", "Plan", "Context", "Objective", "PolicyKind", "Question"}


@cache
def model() -> mmdp.MMDP:
    return random_model(3, n_models=4, n_states=3, n_actions=2, horizon=0).replace(
        parameters={"rate": [1.0, 2.0, 3.0, 4.0]}, models=["a", "b", "c", "d"]
    )


@cache
def solution(method: str = "cadp") -> mmdp.Solution:
    options = {"episodes": 4} if method in PLANNERS else {}
    return mmdp.solve(model(), 4, mmdp.METHODS[method](**options))


def examples() -> dict[str, Any]:
    """One object of every public class, by its name."""
    found = solution()
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    rewards = model().rewards
    kernel = mmdp.kernels.get("numpy")
    made: dict[str, Any] = {
        "MMDP": model(), "MarkovPolicy": found.policy,
        "Memory": mmdp.Memory(2), "Solution": found,
        "MemoryPolicy": mmdp.solve(model(), 4, policy=mmdp.Memory(2)).policy,
        "Evaluation": mmdp.evaluate(found, model()), "Provenance": found.provenance,
        "Status": found.status, "Bound": mmdp.bound(model(), 4, "oracle"),
        "Progress": mmdp.Progress("cadp", 1, 2.0, 3.0, 4.0, 5.0, 6),
        "InputError": mmdp.InputError("wrong", ["mend it", errors.Remedy("horizon", 50)]),
        "Fit": posterior.fit(log, models=3),
        "Prior": mmdp.Prior(np.ones((3, 3)), support="seen"), "Rewards": mmdp.Rewards("normal"),
        "Stability": measures.stability(model(), 2, resamples=2),
        "Freedom": mmdp.freedom(found, model()), "Frontier": mmdp.frontier(model(), 2, [0.5]),
        "WillingnessToPay": economics.willingness_to_pay(model(), rewards, rewards**2, [1.0], 2),
        "Counting": economics.Counting(cost_rate=0.035), "Estimate": measures.Estimate(1.0, 0.1),
        "Stake": measures.Stake(2.0, "always wait", "£"),
        "CostEffectiveness": economics.CostEffectiveness.from_tables({"a": [1, 2]}, {"a": [3, 4]}),
        "Domain": mmdp.domains.two_models(), "Problem": model().problem,
        "Backward": kernel.plan(model().problem, 2).backward("own"),
        "Outcome": mmdp.methods.Outcome(None, found.status, 1),
        "Capabilities": mmdp.methods.capabilities()[0],
        "Tied": mmdp.Tied([0, 1, 1]), "Monotone": mmdp.Monotone(), "Fixed": mmdp.Fixed({0: 1}),
        "Tree": mmdp.Tree(3, {"age": [1, 2, 2]}),
        "TreePolicy": mmdp.solve(model(), 2, policy=mmdp.Tree(2)).policy,
        "Grid": mmdp.Grid(0, 1, 3), "Markov": mmdp.Markov(randomised=True),
        "Stationary": mmdp.Stationary(), "StationaryPolicy": mmdp.StationaryPolicy([0, 1, 0]),
    }  # fmt: skip
    objectives = (
        mmdp.Mean(), mmdp.CVaR(0.1), mmdp.VaR(0.1), mmdp.EVaR(0.1), mmdp.Entropic(2.0),
        mmdp.WorstCase(), mmdp.MeanCVaR(0.1, 0.5), mmdp.Custom(np.matmul, monotone=False),
    )  # fmt: skip
    made |= {type(x).__name__: x for x in objectives}
    return made | {type(x).__name__: x for x in (make() for make in mmdp.METHODS.values())}


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def same(a: Any, b: Any) -> bool:
    """Whether two objects say the same, part by part."""
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if hasattr(a, "equals"):
        return bool(a.equals(b))
    if isinstance(a, partial):
        return same(a.args, b.args)
    if isinstance(a, Enum) or not type(a).__module__.startswith("mmdp"):
        return bool(a == b)
    return same(a.__getstate__(), b.__getstate__())


def test_no_public_class_is_left_out() -> None:
    public = set()
    for name in MODULES:
        module = importlib.import_module(name)
        public |= {x for x in module.__all__ if inspect.isclass(getattr(module, x))}
    assert public - NOT_MADE == set(examples())


def test_a_copy_says_the_same() -> None:
    for name, thing in examples().items():
        again = copied(thing)
        assert type(again) is type(thing)
        assert same(thing, again), name


def test_names_that_are_functions_or_tables_pickle() -> None:
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                assert copied(thing) is thing or same(thing, copied(thing)), name


@pytest.mark.parametrize("method", PLANNERS)
def test_a_planner_decides_alike_after_its_journey(method: str) -> None:
    found = solution(method)
    again = copied(found)
    assert again.value == found.value
    here = mmdp.evaluate(found, model(), episodes=4, seed=3)
    there = mmdp.evaluate(again, model(), episodes=4, seed=3)
    np.testing.assert_array_equal(here.returns, there.returns)


def test_regret_travels_without_the_models() -> None:
    """The models are not sent along: a few numbers per model are."""
    train, test = mmdp.domains.riverswim(seed=0, n_train=50, n_test=1000)
    found = mmdp.solve(train, 20, "wsu")
    for thing in (found, mmdp.evaluate(found, test)):
        count = len(thing.returns)
        assert len(pickle.dumps(thing)) < 8 * 4 * count + 4 * 20 * train.n_states + 4000
        regret = getattr(thing, "evaluation", thing).regret
        assert (getattr(copied(thing), "evaluation", copied(thing)).regret == regret).all()


def test_an_evaluation_without_its_models_stays_so() -> None:
    alone = copied(mmdp.Evaluation(np.array([1.0]), np.array([1.0])))
    with pytest.raises(mmdp.InputError, match="regret needs the model"):
        _ = alone.regret


def test_errors_keep_their_remedies() -> None:
    error = errors.MemoryLimitError("too large", [errors.Remedy("horizon", do="shorten")])
    again = copied(error)
    assert str(again) == str(error)
    assert again.remedies[0].argument == "horizon"
