"""Trees against all trees, and what a tree must keep to."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mmdp
from mmdp.kernels import get
from mmdp.objective import as_objective
from mmdp.policy.tree import Feature
from mmdp.search.context import Context
from mmdp.search.trees import Few, Trees
from mmdp.testing import random_model, returns_of

T, S, A = 4, 5, 3


def all_tables(allowed: npt.NDArray[np.bool_], times: int = T) -> npt.NDArray[np.int32]:
    """(n, T, S) what all trees of up to three leaves do that ask about the state and the time."""
    n, every = len(allowed), np.ones((times, len(allowed)), bool)
    asked = [every & (np.arange(n) <= k) for k in range(n - 1)]
    asked += [every & (np.arange(times) <= k)[:, None] for k in range(times - 1)]
    parts = [(every,), *((q, ~q) for q in asked)]
    for q, r in itertools.product(asked, repeat=2):
        parts += [(q & r, q & ~r, ~q), (q, ~q & r, ~q & ~r)]
    open_ = [np.where(allowed[:, a], a, allowed.argmax(axis=1)) for a in range(allowed.shape[1])]
    found: dict[bytes, Any] = {}
    for regions in parts:
        for actions in itertools.product(open_, repeat=len(regions)):
            table = sum(np.where(x, row, 0) for x, row in zip(regions, actions, strict=True))
            found[table.tobytes()] = table
    return np.array([*found.values()])


def gap(seed: int, goal: str = "mean") -> float:
    """What the tree that is found lacks to the best of all, as a share of its value."""
    model, F = (
        random_model(seed, n_models=5, n_states=S, n_actions=A, horizon=0),
        as_objective(goal),
    )
    every = F.value(returns_of(all_tables(model.allowed), model), model.weights)
    found = mmdp.solve(model, T, policy=mmdp.Tree(3), objective=goal, backend="numpy")
    exact = returns_of(found.policy.actions[None], model)[0]
    np.testing.assert_allclose(found.returns, exact, rtol=1e-9)
    assert found.value <= every.max() + 1e-9 * abs(every.max())
    return float((every.max() - found.value) / abs(every.max()))


def test_trees_are_near_the_best_of_all() -> None:
    assert np.sum([gap(seed) <= 1e-3 for seed in range(100, 120)]) >= 17


@pytest.mark.slow
def test_ninety_of_a_hundred_trees_are_near_the_best_of_all() -> None:
    assert np.sum([gap(seed) <= 1e-3 for seed in range(100)]) >= 90
    assert np.sum([gap(seed, "cvar:0.3") <= 1e-3 for seed in range(40)]) >= 34


@pytest.fixture(scope="module")
def swim() -> mmdp.MMDP:
    return mmdp.domains.published("riverswim").train


def test_two_leaves_on_riverswim(swim: mmdp.MMDP) -> None:
    """The best of all rules with one cut, by trying them."""
    found = mmdp.solve(swim, 50, policy=mmdp.Tree(2))
    rows = np.array(
        [np.where(np.arange(20) <= k, a, b) for k in range(20) for a, b in ((0, 1), (1, 0))]
    )
    values = [mmdp.evaluate(mmdp.StationaryPolicy(row).over(50), swim).mean for row in rows]
    assert found.value >= max(values) - 1e-9
    assert found.policy.text() == "if state is at most 3: swim left\notherwise: swim right"
    assert found.details["leaves"] == 2
    assert found.details["features"] == ["state", "time"]


GOALS = ("mean", "cvar:0.2", "worst", "var:0.3")
SLOW = [
    pytest.param(goal, horizon, seed, marks=pytest.mark.slow)
    for goal in GOALS for horizon in (T, math.inf) for seed in range(4, 7)
]  # fmt: skip


@pytest.mark.parametrize(
    ("goal", "horizon", "seed"), [("mean", T, 3), ("mean", math.inf, 3), ("cvar:0.3", T, 3), *SLOW]
)
def test_more_leaves_are_never_worse(goal: str, horizon: float, seed: int) -> None:
    model = random_model(seed, n_models=4, n_states=5, n_actions=3, horizon=0, discount=0.8)
    asked: dict[str, Any] = {"objective": goal, "backend": "numpy"}
    solutions = [mmdp.solve(model, horizon, policy=mmdp.Tree(n), **asked) for n in (1, 2, 3)]
    values = [x.value for x in solutions]
    assert values == sorted(values)
    assert solutions[-1].details["value_by_leaves"] == pytest.approx(values, rel=1e-12)
    for most, x in enumerate(solutions, 1):
        assert x.policy.n_leaves == x.details["leaves"] <= most
        assert x.price is not None
        exact = mmdp.evaluate(x.policy.rows, model, backend="numpy")  # by itself, without its tree
        np.testing.assert_allclose(x.returns, exact.returns, rtol=1e-9)


def test_the_price_holds() -> None:
    """It is never negative, nor more than what is proven of every policy."""
    for seed in range(6):
        model = random_model(seed, n_models=4, n_states=4, n_actions=2, horizon=0, discount=0.9)
        found = mmdp.solve(model, 5, policy=mmdp.Tree(2), certify=0.2, backend="numpy")
        free = mmdp.solve(model, 5, backend="numpy")
        assert found.value + found.price >= free.value - 1e-9
        assert found.bound >= found.value + found.price - 1e-9


def test_a_rule_for_every_day() -> None:
    """The best rule of two leaves that does not ask about the time, by trying all."""
    for seed in range(8):
        model = random_model(seed, n_models=4, n_states=S, n_actions=A, horizon=0, masks=False)
        found = mmdp.solve(model, T, policy=mmdp.Tree(2, time=False), backend="numpy")
        assert (found.policy.actions == found.policy.actions[0]).all()
        rows = [
            np.where(np.arange(S) <= k, a, b)
            for k in range(S) for a, b in itertools.product(range(A), repeat=2)
        ]  # fmt: skip
        tables = np.repeat(np.array(rows)[:, None], T, axis=1)
        best = float((returns_of(tables, model) @ model.weights).max())
        assert best - 1e-9 <= found.value <= best + 1e-9 or abs(found.value / best - 1) < 1e-3


@pytest.mark.parametrize("horizon", [3, math.inf])
@pytest.mark.parametrize("time", [True, False])
def test_a_rule_that_no_single_question_improves(horizon: float, time: bool) -> None:
    """One action pays if two answers are the same, the other if they differ; a third does not
    matter. All that a question adds on its own is 0, for every action.
    """
    bits = np.array([*itertools.product(range(2), repeat=3)])
    same = bits[:, 0] == bits[:, 2]
    R = np.stack([np.where(same, 1.0, -1.0), np.where(same, -1.0, 1.0)], axis=1)
    stay = np.broadcast_to(np.eye(8)[:, None], (2, 8, 2, 8))
    model = mmdp.MMDP(stay, np.stack([R, 3 * R]), discount=0.5, initial=np.full(8, 1 / 8))
    features = {f"bit {i}": bits[:, i] for i in range(3)}
    found = mmdp.solve(model, horizon, policy=mmdp.Tree(4, features, time), backend="numpy")
    assert found.value == pytest.approx(4.0 if horizon == math.inf else 3.5)
    assert found.details["value_by_leaves"][:2] == pytest.approx([0, 0])
    assert found.policy.n_leaves == 4


def test_pairs_of_questions_are_summed_up() -> None:
    """The sums over two answers, by masks, of features by number, by category and by time."""
    rng = np.random.default_rng(0)
    model = random_model(1, n_models=2, n_states=6, n_actions=3, horizon=0, masks=False)
    features = {"size": [3, 1, 2, 2, 5, 4], "site": [*"abcabd"]}
    context = Context(model, 4, get("numpy"), kind=mmdp.Tree(3, features))
    trees = Trees(context)
    W, region = rng.normal(size=(4, 6, 3)), rng.random((4, 6)) < 0.7
    for f, first in enumerate(trees.features):
        for g, sums in trees._crossed(f, W, region):
            second = trees.features[g]
            for c, d in itertools.product(range(first.n_cuts), range(second.n_cuts)):
                yes, too = first.yes(c), second.yes(d)
                parts = [[yes & too, yes & ~too], [~yes & too, ~yes & ~too]]
                exact = [[W[region & x].sum(axis=0) for x in row] for row in parts]
                np.testing.assert_allclose(sums[:, c, :, d], exact, atol=1e-12)


def test_some_questions_stand_for_many() -> None:
    feature = Feature.of("size", range(100))
    few = Few.of(feature, 5)
    assert len(few.cuts) == 5
    for i, cut in enumerate(few.cuts):
        np.testing.assert_array_equal(few.sides[0, i, few.bins], feature.yes(cut)[0])
    words = Feature.of("site", [*"abcdefgh"])
    few = Few.of(words, 3)
    for i, cut in enumerate(few.cuts):
        np.testing.assert_array_equal(few.sides[0, i, few.bins], words.yes(cut)[0])


def test_trees_repeat_and_keep_to_the_time(swim: mmdp.MMDP) -> None:
    one, two = (mmdp.solve(swim, 10, policy=mmdp.Tree(3), seed=7, backend="numpy") for _ in "ab")
    assert one.policy == two.policy
    late = mmdp.solve(swim, 50, policy=mmdp.Tree(6), time_limit=1e-9, backend="numpy")
    assert late.status is mmdp.Status.TIME_LIMIT
    assert late.policy.n_leaves == 1
    assert late.value == pytest.approx(mmdp.evaluate(late.policy, swim).mean)


def test_a_tree_over_models_that_change() -> None:
    model = random_model(2, n_models=3, n_states=4, n_actions=2, horizon=0)
    changing = mmdp.MMDP(
        model.transitions, model.rewards, model_transitions=np.full((3, 3), 1 / 3), discount=0.9
    )
    found = mmdp.solve(changing, 4, policy=mmdp.Tree(3), backend="numpy")
    assert found.value == pytest.approx(mmdp.evaluate(found.policy.over(4), changing).mean)


@pytest.mark.parametrize("horizon", [3, math.inf])
def test_a_tree_of_one_action(horizon: float) -> None:
    model = random_model(2, n_models=3, n_states=4, n_actions=1, horizon=0, discount=0.9)
    found = mmdp.solve(model, horizon, policy=mmdp.Tree(3), backend="numpy")
    assert found.policy.n_leaves == 1
    assert not found.policy.actions.any()


def test_more_leaves_than_there_are_cells_change_nothing() -> None:
    rng = np.random.default_rng(0)
    P, r = rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.normal(size=(2, 3, 2))
    model = mmdp.MMDP(P, r, states=["s 0", "s 1", "s 2"])
    nine, many = (mmdp.solve(model, 3, policy=mmdp.Tree(leaves=n)) for n in (9, 10**9))
    assert many.value == nine.value
    assert many.policy.text() == nine.policy.text()
    assert len(many.details["value_by_leaves"]) == 9
