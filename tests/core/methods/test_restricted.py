"""Tied, monotone and fixed policies against brute force."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.methods import SolveContext
from mmdp.core.methods.base import TimeUp
from mmdp.core.objectives import as_objective
from mmdp.core.search import multistart
from mmdp.core.search.multistart import Init
from mmdp.core.search.rows import MonotoneRows, TiedRows
from mmdp.core.search.space import SearchSpace
from mmdp.core.solution import describe_restriction_cost
from mmdp.core.testing import compute_mean_returns, enumerate_policies, make_random_model
from mmdp.core.text import format_bound
from mmdp.core.timing import Stopwatch
from tests.instances import seed_ranges

MODEL_OPTIONS = {"has_masks": False, "horizon": 0}


def is_monotone(row: np.ndarray, chains: list[np.ndarray], order: np.ndarray) -> bool:
    rank = np.argsort(order)
    return all((np.diff(rank[row[chain]]) >= 0).all() for chain in chains)


def find_best_sum(G: np.ndarray, is_allowed: Callable[[np.ndarray], bool]) -> float:
    """The largest sum of G over the rows that are open, by trying all rows."""
    n_states, n_actions = G.shape
    rows = map(np.array, itertools.product(range(n_actions), repeat=n_states))
    return max(G[np.arange(n_states), row].sum() for row in rows if is_allowed(row))


# ---------------------------------------------------------------------- one row
@pytest.mark.parametrize("seed", range(20))
def test_a_monotone_row_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(5, 3))
    if seed % 2:
        G[rng.random(G.shape) < 0.2] = -np.inf
    chains = [rng.permutation(5)] if seed % 3 else [np.array([3, 0]), np.array([1, 2, 4])]
    order = rng.permutation(3)
    best = find_best_sum(G, lambda row: is_monotone(row, chains, order))
    best_row = MonotoneRows(chains, order).choose_row(G, np.ones((5, 1)), None)
    if np.isfinite(best):
        assert is_monotone(best_row, chains, order)
        assert G[np.arange(5), best_row].sum() == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
def test_a_tied_row_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    G, group = rng.normal(size=(5, 3)), np.array([0, 1, 0, 2, 1])
    G[2, 1] = -np.inf
    tied = [np.flatnonzero(group == g) for g in range(3)]
    best = find_best_sum(G, lambda row: all(len(set(row[x])) == 1 for x in tied))
    best_row = TiedRows(group).choose_row(G, np.ones((5, 1)), None)
    assert G[np.arange(5), best_row].sum() == pytest.approx(best)


def test_a_tied_choice_keeps_the_incumbent() -> None:
    G, b = np.array([[1.0, 1.0], [0.0, 0.0]]), np.ones((2, 1))
    incumbent = np.array([1, 1])
    for choose_row in (
        TiedRows(np.array([0, 0])).choose_row,
        MonotoneRows([np.arange(2)], np.arange(2)).choose_row,
    ):
        assert choose_row(G, b, incumbent).tolist() == [1, 1]
        assert choose_row(G, b, None).tolist() == [0, 0]


# ---------------------------------------------------------------------- whole solves
CASES = {
    "monotone": (
        mmdp.policies.Monotone(),
        lambda p: (np.diff(p, axis=-1) >= 0).all(axis=(-1, -2)),
    ),
    "falling": (
        mmdp.policies.Monotone(actions=[2, 1, 0]),
        lambda p: (np.diff(p, axis=-1) <= 0).all(axis=(-1, -2)),
    ),
    "tied": (
        mmdp.policies.Tied(["a", "b", "a"]),
        lambda p: (p[..., 0] == p[..., 2]).all(axis=-1),
    ),
    "fixed": (mmdp.policies.Fixed([-1, 2, -1]), lambda p: (p[..., 1] == 2).all(axis=-1)),
}


@pytest.mark.parametrize("name", CASES)
def test_restricted_policies_against_enumeration(name: str) -> None:
    policy_class, is_allowed = CASES[name]
    n_optimal = 0
    for seed in range(25):
        model = make_random_model(seed, n_models=4, n_states=3, n_actions=3, **MODEL_OPTIONS)
        policies = enumerate_policies(model, 2)
        values = compute_mean_returns(model, policies)
        best = values[is_allowed(policies)].max()
        solution = mmdp.solve(model, 2, policy_class=policy_class, backend="numpy")
        assert is_allowed(solution.policy.actions)
        assert solution.value <= best + 1e-9
        assert (np.diff(solution.trace) >= 0).all()
        unrestricted_value = solution.details["unrestricted_value"]
        assert solution.value <= unrestricted_value <= values.max() + 1e-9
        assert solution.restriction_cost == unrestricted_value - solution.value
        n_optimal += solution.value >= best - 1e-9
    assert n_optimal >= 24


@pytest.mark.parametrize("objective", ["cvar:0.3", "regret:worst", "var:0.4"])
@pytest.mark.parametrize("name", ["monotone", "tied", "fixed"])
def test_objectives_of_restricted_policies(name: str, objective: str) -> None:
    policy_class, is_allowed = CASES[name]
    F, n_optimal = as_objective(objective), 0
    for seed in range(5):
        model = make_random_model(seed, n_models=4, n_states=3, n_actions=3, **MODEL_OPTIONS)
        oracle_returns = mmdp.solve(model, 2, "oracle", backend="numpy").returns
        policies = [x for x in enumerate_policies(model, 2) if is_allowed(x)]
        single_models = [model.replace(weights=np.eye(4)[m]) for m in range(4)]
        returns = np.stack(
            [compute_mean_returns(x, np.array(policies)) for x in single_models], axis=-1
        )
        rho = returns - oracle_returns if F.uses_regret else returns
        best = float(F.value(rho, model.weights).max())
        solution = mmdp.solve(model, 2, policy_class=policy_class, objective=F, backend="numpy")
        assert is_allowed(solution.policy.actions)
        assert solution.value <= best + 1e-9
        assert (np.diff(solution.trace) >= 0).all()
        assert solution.value <= solution.details["unrestricted_value"]
        n_optimal += solution.value >= best - 1e-9
    assert n_optimal >= 3


def test_local_optima_have_no_better_monotone_row() -> None:
    model = make_random_model(5, n_models=6, n_states=4, n_actions=3, **MODEL_OPTIONS)
    solution = mmdp.solve(
        model, 4, mmdp.methods.CADP(n_init=1), policy_class=mmdp.policies.Monotone()
    )
    assert solution.status is mmdp.Status.LOCAL_OPTIMUM
    assert solution.status_text == "no other monotone rule at a single time improves it"
    rows = [np.array(x) for x in itertools.product(range(3), repeat=4) if list(x) == sorted(x)]
    for t, row in itertools.product(range(4), rows):
        changed = solution.policy.actions.copy()
        changed[t] = row
        assert compute_mean_returns(model, changed[None])[0] <= solution.value + 1e-9


def test_backends_agree_on_restricted_ascents() -> None:
    model = make_random_model(2, n_models=5, n_states=4, n_actions=3, **MODEL_OPTIONS)
    choose_row = MonotoneRows([np.arange(4)], np.arange(3)).choose_row
    results = [
        mmdp.core.kernels.get_backend(name)
        .prepare(model.problem, 5)
        .ascend([None], choose_row=choose_row)[0]
        for name in ("numpy", "numba")
    ]
    assert results[0].policy.tolist() == results[1].policy.tolist()


def test_the_restriction_cost_is_shown_with_its_bound() -> None:
    model = make_random_model(0, n_models=4, n_states=3, n_actions=3, **MODEL_OPTIONS)
    solution = mmdp.solve(
        model, 3, policy_class=mmdp.policies.Tied([0, 0, 0]), certify_time=0.5, backend="numpy"
    )
    assert solution.restriction_cost is not None
    assert 0 < solution.restriction_cost <= solution.bound - solution.value + 1e-12
    assert "being tied costs" in repr(solution)
    assert "at most" in solution.restriction_cost_text
    assert mmdp.solve(model, 3).restriction_cost is None


def test_a_time_limit_gives_a_policy_of_the_class() -> None:
    model = make_random_model(3, n_models=4, n_states=4, n_actions=3, **MODEL_OPTIONS)
    stopped = mmdp.solve(model, 5, policy_class=mmdp.policies.Monotone(), time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert (np.diff(stopped.policy.actions, axis=1) >= 0).all()


def test_other_options_of_cadp_keep_the_restriction() -> None:
    model = make_random_model(3, n_models=4, n_states=4, n_actions=3, **MODEL_OPTIONS)
    for method in (
        mmdp.methods.CADP(init="random"),
        mmdp.methods.CADP(init="uniform", n_init=3),
        mmdp.methods.CADP(sweep_type="paper"),
        mmdp.methods.CADP(init=mmdp.policies.MarkovPolicy.random(model, 5)),
    ):
        for policy_class in (mmdp.policies.Monotone(), mmdp.policies.Fixed({0: 2, 1: [0, 1]})):
            actions = mmdp.solve(model, 5, method, policy_class=policy_class).policy.actions
            if policy_class.name == "monotone":
                assert (np.diff(actions, axis=1) >= 0).all()
            else:
                assert (actions[:, 0] == 2).all()
                assert (actions[:, 1] < 2).all()


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_a_slow_restriction_cost_keeps_the_status(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SolveContext.unrestricted_context

    def make_expired_context(context: SolveContext) -> SolveContext:
        subcontext = original(context)
        subcontext.stopwatch = Stopwatch(-1.0)
        return subcontext

    model = make_random_model(1, n_models=4, n_states=3, n_actions=2, **MODEL_OPTIONS)
    policy_class = mmdp.policies.Fixed([0, -1, -1])
    completed = mmdp.solve(model, 4, policy_class=policy_class, objective=objective)
    monkeypatch.setattr(SolveContext, "unrestricted_context", make_expired_context)
    solution = mmdp.solve(model, 4, policy_class=policy_class, objective=objective)
    assert solution.status is completed.status is mmdp.Status.LOCAL_OPTIMUM
    assert solution.value <= completed.value  # the free policy would have been a start too
    assert solution.restriction_cost is None


def test_the_restriction_cost_is_a_difference_of_values() -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    solution = mmdp.solve(model, 1, policy_class=mmdp.policies.Fixed([0]), certify_time=1)
    assert solution.restriction_cost == 1
    assert solution.restriction_cost_text == "being fixed costs 1, at most 1"
    costless = mmdp.solve(model, 1, policy_class=mmdp.policies.Fixed([1]))
    assert costless.restriction_cost_text == "being fixed costs nothing"
    text = describe_restriction_cost(
        solution.provenance.policy_class, 2.0, 3.0, 3.0, suffix=lambda x: f" [{x:g}]"
    )
    assert text == "being fixed costs 1 [1], at most 1"
    text = describe_restriction_cost(solution.provenance.policy_class, 2.0, None, 2.5)
    assert text == "being fixed costs at most 0.500"


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_the_cost_of_stationary_classes_says_what_it_is_compared_with(objective: str) -> None:
    model = make_random_model(3, n_models=3, n_states=4, n_actions=2, horizon=0, discount=0.9)
    other = "policy of time and state" if objective == "mean" else "stationary policy"
    for policy_class, subject in (
        (mmdp.policies.Tied([0, 0, 1, 1]), "stationary and tied"),
        (mmdp.policies.Tree(max_leaves=1, features={"x": [0, 1, 2, 3]}), "a stationary tree"),
        (mmdp.policies.Fixed([0, -1, -1, -1]), "stationary and fixed"),
    ):
        model_inf = model.replace(terminal=None)
        solution = mmdp.solve(model_inf, math.inf, policy_class=policy_class, objective=objective)
        text = solution.restriction_cost_text
        assert re.fullmatch(f"being {subject} costs .+ against the best {other} found", text), text
        finite = mmdp.solve(model, 3, policy_class=policy_class, objective=objective)
        assert "against" not in finite.restriction_cost_text
        assert "stationary" not in finite.restriction_cost_text
    solution = mmdp.solve(model_inf, math.inf, objective="mean")
    assert solution.restriction_cost_text.startswith("being stationary costs")
    assert "against" not in solution.restriction_cost_text


@pytest.mark.parametrize("seeds", seed_ranges(15, 400))
def test_restriction_costs_hold_for_values_near_zero(seeds: range) -> None:
    """Against the best of all policies, tied and free; rewards are moved so that values near 0."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        model = make_random_model(seed, n_models=3, n_states=3, n_actions=2, **MODEL_OPTIONS)
        tied_value = mmdp.solve(
            model, 2, policy_class=mmdp.policies.Tied([0, 0, 1]), backend="numpy"
        ).value
        discounts = model.discount ** np.arange(3)
        shift = (tied_value + rng.normal() * rng.choice([0, 0.1, 1, 10])) / discounts.sum()
        model = model.replace(rewards=model.rewards - shift, terminal=model.terminal - shift)
        solution = mmdp.solve(model, 2, policy_class=mmdp.policies.Tied([0, 0, 1]), backend="numpy")
        values = compute_mean_returns(model, enumerate_policies(model, 2))
        oracle_bound = mmdp.bound(model, 2, "oracle", backend="numpy")
        text = dataclasses.replace(solution, certificate=oracle_bound).restriction_cost_text
        match = re.fullmatch(r"being tied costs (nothing|[\d.e-]+), at most ([\d.e-]+)", text)
        assert match is not None, text
        cost, max_cost = match.groups()
        unrestricted_value = solution.details["unrestricted_value"]
        assert float(max_cost) >= values.max() - solution.value - 1e-12
        if cost != "nothing":
            assert float(cost) <= float(max_cost)
            assert float(cost) == pytest.approx(unrestricted_value - solution.value, rel=6e-3)
            assert unrestricted_value <= values.max() + 1e-9


def test_the_restriction_cost_is_shown_after_a_limit() -> None:
    """What is not known is said to be so; a free policy that was found, or a proof, is used."""
    model = make_random_model(3, n_models=4, n_states=4, n_actions=3, **MODEL_OPTIONS)
    policy_class = mmdp.policies.Tied([0, 0, 1, 1])
    stopped = mmdp.solve(model, 5, policy_class=policy_class, time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert stopped.restriction_cost_text == "being tied costs an unknown amount"
    oracle_bound = mmdp.bound(model, 5, "oracle")
    text = dataclasses.replace(stopped, certificate=oracle_bound).restriction_cost_text
    assert text == f"being tied costs at most {format_bound(oracle_bound.value - stopped.value, 3)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mmdp.core.search.multistart.iter_inits", stop_before_third(multistart.iter_inits)
        )
        stopped_at_third = mmdp.solve(
            model, 5, mmdp.methods.CADP(n_init=4), policy_class=policy_class
        )
    assert stopped_at_third.status is mmdp.Status.TIME_LIMIT
    assert (
        stopped_at_third.details["unrestricted_value"]
        >= mmdp.solve(model, 5, mmdp.methods.CADP(n_init=4)).value - 1e-9
    )
    assert mmdp.solve(model, 5).restriction_cost_text == ""


def stop_before_third(iter_inits: Callable[..., Iterator[Init]]) -> Callable[..., Iterator[Init]]:
    """The starts of a search; the time of the restricted one is up before the third."""

    def iter_until_third(space: SearchSpace, *rest: Any) -> Iterator[Init]:
        for i, init in enumerate(iter_inits(space, *rest)):
            if i == 2 and space.context.policy_class.is_restricted:
                raise TimeUp
            yield init

    return iter_until_third
