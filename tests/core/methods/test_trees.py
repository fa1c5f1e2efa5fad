"""Trees against all trees, and what a tree must keep to."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.methods import SolveContext
from mmdp.core.objectives import as_objective
from mmdp.core.policies.tree import Leaf
from mmdp.core.search.trees import Region, TreeSpace
from mmdp.core.testing import compute_returns, make_random_model

T, S, A = 4, 5, 3


def enumerate_tree_tables(
    allowed: npt.NDArray[np.bool_], n_times: int = T
) -> npt.NDArray[np.int32]:
    """(n, T, S) what all trees of up to three leaves do that ask about the state and the time."""
    n, everywhere = len(allowed), np.ones((n_times, len(allowed)), bool)
    conditions = [everywhere & (np.arange(n) <= k) for k in range(n - 1)]
    conditions += [everywhere & (np.arange(n_times) <= k)[:, None] for k in range(n_times - 1)]
    partitions = [(everywhere,), *((q, ~q) for q in conditions)]
    for q, r in itertools.product(conditions, repeat=2):
        partitions += [(q & r, q & ~r, ~q), (q, ~q & r, ~q & ~r)]
    rows_by_action = [
        np.where(allowed[:, a], a, allowed.argmax(axis=1)) for a in range(allowed.shape[1])
    ]
    tables: dict[bytes, Any] = {}
    for regions in partitions:
        for actions in itertools.product(rows_by_action, repeat=len(regions)):
            table = sum(np.where(x, row, 0) for x, row in zip(regions, actions, strict=True))
            tables[table.tobytes()] = table
    return np.array([*tables.values()])


def compute_gap(seed: int, objective: str = "mean") -> float:
    """What the tree that is found lacks to the best of all, as a share of its value."""
    model, F = (
        make_random_model(seed, n_models=5, n_states=S, n_actions=A, horizon=0),
        as_objective(objective),
    )
    values = F.value(compute_returns(model, enumerate_tree_tables(model.allowed)), model.weights)
    solution = mmdp.solve(
        model, T, policy_class=mmdp.policies.Tree(3), objective=objective, backend="numpy"
    )
    exact = compute_returns(model, solution.policy.actions[None])[0]
    np.testing.assert_allclose(solution.returns, exact, rtol=1e-9)
    assert solution.value <= values.max() + 1e-9 * abs(values.max())
    return float((values.max() - solution.value) / abs(values.max()))


def test_trees_are_near_the_best_of_all() -> None:
    assert np.sum([compute_gap(seed) <= 1e-3 for seed in range(100, 120)]) >= 17


@pytest.mark.slow
def test_ninety_of_a_hundred_trees_are_near_the_best_of_all() -> None:
    assert np.sum([compute_gap(seed) <= 1e-3 for seed in range(100)]) >= 90
    assert np.sum([compute_gap(seed, "cvar:0.3") <= 1e-3 for seed in range(40)]) >= 34


@pytest.fixture(scope="module")
def riverswim() -> mmdp.MMDP:
    return mmdp.domains.load_published("riverswim").train


def test_two_leaves_on_riverswim(riverswim: mmdp.MMDP) -> None:
    """The best of all rules with one cut, by trying them."""
    solution = mmdp.solve(riverswim, 50, policy_class=mmdp.policies.Tree(2))
    rows = np.array(
        [np.where(np.arange(20) <= k, a, b) for k in range(20) for a, b in ((0, 1), (1, 0))]
    )
    values = [
        mmdp.evaluate(riverswim, mmdp.policies.StationaryPolicy(row).to_markov(50)).mean
        for row in rows
    ]
    assert solution.value >= max(values) - 1e-9
    assert solution.policy.describe() == "if state is at most 3: swim left\notherwise: swim right"
    assert solution.details["n_leaves"] == 2
    assert solution.details["features"] == ["state", "time"]


OBJECTIVES = ("mean", "cvar:0.2", "worst", "var:0.3")
SLOW_CASES = [
    pytest.param(goal, horizon, seed, marks=pytest.mark.slow)
    for goal in OBJECTIVES
    for horizon in (T, math.inf)
    for seed in range(4, 7)
]


@pytest.mark.parametrize(
    ("objective", "horizon", "seed"),
    [("mean", T, 3), ("mean", math.inf, 3), ("cvar:0.3", T, 3), *SLOW_CASES],
)
def test_more_leaves_are_never_worse(objective: str, horizon: float, seed: int) -> None:
    model = make_random_model(seed, n_models=4, n_states=5, n_actions=3, horizon=0, discount=0.8)
    solve_kwargs: dict[str, Any] = {"objective": objective, "backend": "numpy"}
    solutions = [
        mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(n), **solve_kwargs)
        for n in (1, 2, 3)
    ]
    values = [x.value for x in solutions]
    assert values == sorted(values)
    assert solutions[-1].details["value_by_leaves"] == pytest.approx(values, rel=1e-12)
    for max_leaves, x in enumerate(solutions, 1):
        assert x.policy.n_leaves == x.details["n_leaves"] <= max_leaves
        assert x.restriction_cost is not None
        exact = mmdp.evaluate(
            model, x.policy.table_policy, backend="numpy"
        )  # by itself, without its tree
        np.testing.assert_allclose(x.returns, exact.returns, rtol=1e-9)


def test_the_restriction_cost_holds() -> None:
    """It is never negative, nor more than what is proven of every policy."""
    for seed in range(6):
        model = make_random_model(
            seed, n_models=4, n_states=4, n_actions=2, horizon=0, discount=0.9
        )
        solution = mmdp.solve(
            model, 5, policy_class=mmdp.policies.Tree(2), certify_time=0.2, backend="numpy"
        )
        unrestricted = mmdp.solve(model, 5, backend="numpy")
        assert solution.value + solution.restriction_cost >= unrestricted.value - 1e-9
        assert solution.bound >= solution.value + solution.restriction_cost - 1e-9


def test_the_best_tree_without_time() -> None:
    """The best rule of two leaves that does not ask about the time, by trying all."""
    for seed in range(8):
        model = make_random_model(
            seed, n_models=4, n_states=S, n_actions=A, horizon=0, has_masks=False
        )
        solution = mmdp.solve(
            model, T, policy_class=mmdp.policies.Tree(2, use_time=False), backend="numpy"
        )
        assert (solution.policy.actions == solution.policy.actions[0]).all()
        rows = [
            np.where(np.arange(S) <= k, a, b)
            for k in range(S)
            for a, b in itertools.product(range(A), repeat=2)
        ]
        tables = np.repeat(np.array(rows)[:, None], T, axis=1)
        best = float((compute_returns(model, tables) @ model.weights).max())
        assert best - 1e-9 <= solution.value <= best + 1e-9 or abs(solution.value / best - 1) < 1e-3


@pytest.mark.parametrize("horizon", [3, math.inf])
@pytest.mark.parametrize("use_time", [True, False])
def test_a_tree_that_no_single_split_improves(horizon: float, use_time: bool) -> None:
    """One action pays if two answers are the same, the other if they differ; a third does not
    matter. All that a question adds on its own is 0, for every action.
    """
    bits = np.array([*itertools.product(range(2), repeat=3)])
    is_equal = bits[:, 0] == bits[:, 2]
    R = np.stack([np.where(is_equal, 1.0, -1.0), np.where(is_equal, -1.0, 1.0)], axis=1)
    stay = np.broadcast_to(np.eye(8)[:, None], (2, 8, 2, 8))
    model = mmdp.MMDP(stay, np.stack([R, 3 * R]), discount=0.5, initial=np.full(8, 1 / 8))
    features = {f"bit {i}": bits[:, i] for i in range(3)}
    solution = mmdp.solve(
        model, horizon, policy_class=mmdp.policies.Tree(4, features, use_time), backend="numpy"
    )
    assert solution.value == pytest.approx(4.0 if horizon == math.inf else 3.5)
    assert solution.details["value_by_leaves"][:2] == pytest.approx([0, 0])
    assert solution.policy.n_leaves == 4


def test_trees_repeat_and_respect_time_limits(riverswim: mmdp.MMDP) -> None:
    one, two = (
        mmdp.solve(riverswim, 10, policy_class=mmdp.policies.Tree(3), seed=7, backend="numpy")
        for _ in "ab"
    )
    assert one.policy == two.policy
    stopped = mmdp.solve(
        riverswim, 50, policy_class=mmdp.policies.Tree(6), time_limit=1e-9, backend="numpy"
    )
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert stopped.policy.n_leaves == 1
    assert stopped.value == pytest.approx(mmdp.evaluate(riverswim, stopped.policy).mean)


def test_a_tree_over_switching_models() -> None:
    model = make_random_model(2, n_models=3, n_states=4, n_actions=2, horizon=0)
    switching = mmdp.MMDP(
        model.transitions, model.rewards, model_transitions=np.full((3, 3), 1 / 3), discount=0.9
    )
    solution = mmdp.solve(switching, 4, policy_class=mmdp.policies.Tree(3), backend="numpy")
    assert solution.value == pytest.approx(
        mmdp.evaluate(switching, solution.policy.to_markov(4)).mean
    )


@pytest.mark.parametrize("horizon", [3, math.inf])
def test_a_tree_of_one_action(horizon: float) -> None:
    model = make_random_model(2, n_models=3, n_states=4, n_actions=1, horizon=0, discount=0.9)
    solution = mmdp.solve(model, horizon, policy_class=mmdp.policies.Tree(3), backend="numpy")
    assert solution.policy.n_leaves == 1
    assert not solution.policy.actions.any()


def test_more_leaves_than_there_are_cells_change_nothing() -> None:
    rng = np.random.default_rng(0)
    P, r = rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.normal(size=(2, 3, 2))
    model = mmdp.MMDP(P, r, states=["s 0", "s 1", "s 2"])
    nine_leaves, many_leaves = (
        mmdp.solve(model, 3, policy_class=mmdp.policies.Tree(max_leaves=n)) for n in (9, 10**9)
    )
    assert many_leaves.value == nine_leaves.value
    assert many_leaves.policy.describe() == nine_leaves.policy.describe()
    assert len(many_leaves.details["value_by_leaves"]) == 9


@pytest.mark.parametrize("use_time", [True, False])
def test_splits_gain_what_their_parts_sum_to(use_time: bool) -> None:
    """Sums by axis, over numbers, categories and times, against sums over each part."""
    model = make_random_model(1, n_models=2, n_states=S, n_actions=A, horizon=0)
    features = {"size": [3, 1, 2, 2, 5], "kind": list("abcab"), "side": list("lrrlr")}
    tree = mmdp.policies.Tree(4, features=features, use_time=use_time)
    space = TreeSpace(SolveContext(model, T, kernels.get_backend("numpy"), policy_class=tree))
    rng = np.random.default_rng(0)
    W, times = rng.normal(size=(space.n_rows, S, A)), np.ones(space.n_rows, bool)
    times[-1:] = not use_time
    region = Region(times, np.array([True, True, False, True, True]))

    def sum_part(part: Region) -> npt.NDArray[np.float64]:
        return W[part.times][:, part.states].sum(axis=(0, 1))

    splits = [*space._iter_splits(W, region, lambda sums: sums.max(axis=-1))]
    assert len({split for _, split in splits}) > 20
    for gain, split in splits:
        parts = [x for x in space.iter_nodes(split, region) if isinstance(x.node, Leaf)]
        part_sums = [sum_part(x.region) for x in parts]
        total = sum(x.max() for x in part_sums) - sum_part(region).max()
        assert gain == pytest.approx(total, abs=1e-12)
        assert [x.node.action for x in parts] == [x.argmax() for x in part_sums]
