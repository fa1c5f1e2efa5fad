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
from mmdp.core import errors
from mmdp.core.testing import make_random_model
from mmdp.data import posterior
from mmdp.insight import economics, measures

MODULES = (
    "mmdp",
    "mmdp.methods",
    "mmdp.objectives",
    "mmdp.policies",
    "mmdp.posterior",
    "mmdp.solution",
    "mmdp.measures",
    "mmdp.domains",
    "mmdp.economics",
    "mmdp.core.kernels",
    "mmdp.core.bounds",
)
PLANNERS = ("qmdp", "rollout", "mixts", "pomcp")
# a protocol, a base class and what lives only while solve() runs: nothing of these travels
NOT_MADE = {
    "Planner",
    "Policy",
    "Belief",
    "Method",
    "Backend",
    "PreparedProblem",
    "SolveContext",
    "Objective",
    "PolicyClass",
    "ProblemSpec",
}


@cache
def make_model() -> mmdp.MMDP:
    return make_random_model(3, n_models=4, n_states=3, n_actions=2, horizon=0).replace(
        parameters={"rate": [1.0, 2.0, 3.0, 4.0]}, models=["a", "b", "c", "d"]
    )


@cache
def make_solution(method: str = "cadp") -> mmdp.Solution:
    options = {"n_episodes": 4} if method in PLANNERS else {}
    return mmdp.solve(make_model(), 4, mmdp.methods.METHODS[method](**options))


def make_examples() -> dict[str, Any]:
    """One object of every public class, by its name."""
    solved = make_solution()
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    rewards = make_model().rewards
    kernel = mmdp.core.kernels.get_backend("numpy")
    objects: dict[str, Any] = {
        "MMDP": make_model(),
        "MarkovPolicy": solved.policy,
        "Memory": mmdp.policies.Memory(2),
        "Solution": solved,
        "MemoryPolicy": mmdp.solve(make_model(), 4, policy_class=mmdp.policies.Memory(2)).policy,
        "Evaluation": mmdp.evaluate(make_model(), solved),
        "Provenance": solved.provenance,
        "Status": solved.status,
        "Bound": mmdp.bound(make_model(), 4, "oracle"),
        "Progress": mmdp.solution.Progress("cadp", 1, 2.0, 3.0, 4.0, 5.0, 6),
        "InputError": mmdp.InputError("wrong", ["mend it", errors.Remedy("horizon", 50)]),
        "Fit": posterior.fit(log, n_models=3),
        "Stability": measures.stability(make_model(), 2, n_resamples=2),
        "NearOptimalActions": mmdp.measures.near_optimal_actions(make_model(), solved),
        "RiskFrontier": mmdp.measures.risk_frontier(make_model(), 2, [0.5]),
        "WillingnessToPay": economics.willingness_to_pay(
            make_model(), rewards, rewards**2, [1.0], 2
        ),
        "OutcomeDiscounting": economics.OutcomeDiscounting(cost_rate=0.035),
        "Estimate": measures.Estimate(1.0, 0.1),
        "ValueAtStake": measures.ValueAtStake(2.0, "always wait", "£"),
        "CostEffectiveness": economics.CostEffectiveness.from_tables({"a": [1, 2]}, {"a": [3, 4]}),
        "Domain": mmdp.domains.two_models(),
        "Problem": make_model().problem,
        "BackwardResult": kernel.prepare(make_model().problem, 2).backward("per_model"),
        "MethodResult": mmdp.methods.MethodResult(None, solved.status, 1),
        "Capabilities": mmdp.methods.list_capabilities()[0],
        "Tied": mmdp.policies.Tied([0, 1, 1]),
        "Monotone": mmdp.policies.Monotone(),
        "Fixed": mmdp.policies.Fixed({0: 1}),
        "Tree": mmdp.policies.Tree(3, {"age": [1, 2, 2]}),
        "TreePolicy": mmdp.solve(make_model(), 2, policy_class=mmdp.policies.Tree(2)).policy,
        "Grid": mmdp.Grid(0, 1, 3),
        "Markov": mmdp.policies.Markov(randomized=True),
        "Stationary": mmdp.policies.Stationary(),
        "StationaryPolicy": mmdp.policies.StationaryPolicy([0, 1, 0]),
    }
    objectives = (
        mmdp.objectives.Mean(),
        mmdp.objectives.CVaR(0.1),
        mmdp.objectives.VaR(0.1),
        mmdp.objectives.EVaR(0.1),
        mmdp.objectives.Entropic(2.0),
        mmdp.objectives.WorstCase(),
        mmdp.objectives.MeanCVaR(0.1, 0.5),
        mmdp.objectives.CVaR(0.2).on_regret(),
        mmdp.objectives.CustomObjective(np.matmul, is_monotone=False),
    )
    objects |= {type(x).__name__: x for x in objectives}
    return objects | {
        type(x).__name__: x for x in (make() for make in mmdp.methods.METHODS.values())
    }


def pickle_copy(item: Any) -> Any:
    return pickle.loads(pickle.dumps(item))


def is_same(a: Any, b: Any) -> bool:
    """Whether two objects say the same, part by part."""
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if hasattr(a, "equals"):
        return bool(a.equals(b))
    if inspect.ismethod(a):
        return a.__func__ is b.__func__ and is_same(a.__self__, b.__self__)
    if isinstance(a, partial):
        return is_same(a.args, b.args)
    if isinstance(a, Enum) or not type(a).__module__.startswith("mmdp"):
        return bool(a == b)
    return is_same(a.__getstate__(), b.__getstate__())


def test_no_public_class_is_left_out() -> None:
    public = set()
    for name in MODULES:
        module = importlib.import_module(name)
        public |= {x for x in module.__all__ if inspect.isclass(getattr(module, x))}
    assert public - NOT_MADE == set(make_examples())


def test_a_copy_says_the_same() -> None:
    for name, item in make_examples().items():
        copied_item = pickle_copy(item)
        assert type(copied_item) is type(item)
        assert is_same(item, copied_item), name


def test_names_that_are_functions_or_tables_pickle() -> None:
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            item = getattr(module, name)
            if not inspect.ismodule(item):
                assert pickle_copy(item) is item or is_same(item, pickle_copy(item)), name


@pytest.mark.parametrize("method", PLANNERS)
def test_a_planner_decides_alike_after_pickling(method: str) -> None:
    original = make_solution(method)
    copied = pickle_copy(original)
    assert copied.value == original.value
    evaluation = mmdp.evaluate(make_model(), original, n_episodes=4, seed=3)
    copied_evaluation = mmdp.evaluate(make_model(), copied, n_episodes=4, seed=3)
    np.testing.assert_array_equal(evaluation.returns, copied_evaluation.returns)


def test_regret_is_pickled_without_the_models() -> None:
    """The models are not sent along: a few numbers per model are."""
    train, test = mmdp.domains.riverswim(seed=0, n_train=50, n_test=1000)
    solution = mmdp.solve(train, 20, "wsu")
    for item in (solution, mmdp.evaluate(test, solution)):
        count = len(item.returns)
        assert len(pickle.dumps(item)) < 8 * 4 * count + 4 * 20 * train.n_states + 4000
        regret = getattr(item, "evaluation", item).regret
        assert (getattr(pickle_copy(item), "evaluation", pickle_copy(item)).regret == regret).all()


def test_an_evaluation_without_its_models_stays_so() -> None:
    single_evaluation = pickle_copy(mmdp.Evaluation(np.array([1.0]), np.array([1.0])))
    with pytest.raises(mmdp.InputError, match="regret needs the model"):
        _ = single_evaluation.regret


def test_errors_keep_their_remedies() -> None:
    error = errors.MemoryLimitError("too large", [errors.Remedy("horizon", verb="shorten")])
    copied_error = pickle_copy(error)
    assert str(copied_error) == str(error)
    assert copied_error.remedies[0].argument == "horizon"
