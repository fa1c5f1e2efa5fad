"""Tied, monotone and fixed policies against brute force."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.clock import Stopwatch
from mmdp.methods import Context
from mmdp.methods.base import Stop
from mmdp.objective import as_objective
from mmdp.search import ascent
from mmdp.search.landscape import Landscape
from mmdp.search.starts import Start
from mmdp.search.tables import monotone_rows, tied_rows
from mmdp.testing import all_policies, random_model, values_of
from mmdp.words import at_most
from tests.instances import shares

FREE = {"masks": False, "horizon": 0}


def rises(row: np.ndarray, chains: list[np.ndarray], order: np.ndarray) -> bool:
    rank = np.argsort(order)
    return all((np.diff(rank[row[chain]]) >= 0).all() for chain in chains)


def best_sum(G: np.ndarray, open_: Callable[[np.ndarray], bool]) -> float:
    """The largest sum of G over the rows that are open, by trying all rows."""
    n_states, n_actions = G.shape
    rows = map(np.array, itertools.product(range(n_actions), repeat=n_states))
    return max(G[np.arange(n_states), row].sum() for row in rows if open_(row))


# ---------------------------------------------------------------------- one row
@pytest.mark.parametrize("seed", range(20))
def test_a_monotone_row_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(5, 3))
    if seed % 2:
        G[rng.random(G.shape) < 0.2] = -np.inf
    chains = [rng.permutation(5)] if seed % 3 else [np.array([3, 0]), np.array([1, 2, 4])]
    order = rng.permutation(3)
    best = best_sum(G, lambda row: rises(row, chains, order))
    found = monotone_rows(chains, order)(G, np.ones((5, 1)), None)
    if np.isfinite(best):
        assert rises(found, chains, order)
        assert G[np.arange(5), found].sum() == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
def test_a_tied_row_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    G, group = rng.normal(size=(5, 3)), np.array([0, 1, 0, 2, 1])
    G[2, 1] = -np.inf
    tied = [np.flatnonzero(group == g) for g in range(3)]
    best = best_sum(G, lambda row: all(len(set(row[x])) == 1 for x in tied))
    found = tied_rows(group)(G, np.ones((5, 1)), None)
    assert G[np.arange(5), found].sum() == pytest.approx(best)


def test_a_tied_choice_keeps_the_incumbent() -> None:
    G, b = np.array([[1.0, 1.0], [0.0, 0.0]]), np.ones((2, 1))
    incumbent = np.array([1, 1])
    for rows in (tied_rows(np.array([0, 0])), monotone_rows([np.arange(2)], np.arange(2))):
        assert rows(G, b, incumbent).tolist() == [1, 1]
        assert rows(G, b, None).tolist() == [0, 0]


# ---------------------------------------------------------------------- whole solves
CASES = {
    "monotone": (mmdp.Monotone(), lambda p: (np.diff(p, axis=-1) >= 0).all(axis=(-1, -2))),
    "falling": (
        mmdp.Monotone(actions=[2, 1, 0]),
        lambda p: (np.diff(p, axis=-1) <= 0).all(axis=(-1, -2)),
    ),
    "tied": (mmdp.Tied(["a", "b", "a"]), lambda p: (p[..., 0] == p[..., 2]).all(axis=-1)),
    "fixed": (mmdp.Fixed([-1, 2, -1]), lambda p: (p[..., 1] == 2).all(axis=-1)),
}


@pytest.mark.parametrize("name", CASES)
def test_restricted_policies_against_enumeration(name: str) -> None:
    kind, holds = CASES[name]
    found = 0
    for seed in range(25):
        model = random_model(seed, n_models=4, n_states=3, n_actions=3, **FREE)
        every = all_policies(model, 2)
        values = values_of(every, model)
        best = values[holds(every)].max()
        solution = mmdp.solve(model, 2, policy=kind, backend="numpy")
        assert holds(solution.policy.actions)
        assert solution.value <= best + 1e-9
        assert (np.diff(solution.trace) >= 0).all()
        free = solution.details["unrestricted"]
        assert solution.value <= free <= values.max() + 1e-9
        assert solution.price == free - solution.value
        found += solution.value >= best - 1e-9
    assert found >= 24


@pytest.mark.parametrize("objective", ["cvar:0.3", "regret:worst", "var:0.4"])
@pytest.mark.parametrize("name", ["monotone", "tied", "fixed"])
def test_objectives_of_restricted_policies(name: str, objective: str) -> None:
    kind, holds = CASES[name]
    F, found = as_objective(objective), 0
    for seed in range(5):
        model = random_model(seed, n_models=4, n_states=3, n_actions=3, **FREE)
        own = mmdp.solve(model, 2, "oracle", backend="numpy").returns
        every = [x for x in all_policies(model, 2) if holds(x)]
        alone = [model.replace(weights=np.eye(4)[m]) for m in range(4)]
        returns = np.stack([values_of(np.array(every), x) for x in alone], axis=-1)
        rho = returns - own if F.regret else returns
        best = float(F.value(rho, model.weights).max())
        solution = mmdp.solve(model, 2, policy=kind, objective=F, backend="numpy")
        assert holds(solution.policy.actions)
        assert solution.value <= best + 1e-9
        assert (np.diff(solution.trace) >= 0).all()
        assert solution.value <= solution.details["unrestricted"]
        found += solution.value >= best - 1e-9
    assert found >= 3


def test_a_local_maximum_has_no_better_monotone_rule_at_any_time() -> None:
    model = random_model(5, n_models=6, n_states=4, n_actions=3, **FREE)
    solution = mmdp.solve(model, 4, mmdp.CADP(starts=1), policy=mmdp.Monotone())
    assert solution.status is mmdp.Status.LOCAL_OPTIMUM
    assert solution.outcome == "no other monotone rule at a single time improves it"
    rows = [np.array(x) for x in itertools.product(range(3), repeat=4) if list(x) == sorted(x)]
    for t, row in itertools.product(range(4), rows):
        other = solution.policy.actions.copy()
        other[t] = row
        assert values_of(other[None], model)[0] <= solution.value + 1e-9


def test_kernels_agree_on_restricted_ascents() -> None:
    model = random_model(2, n_models=5, n_states=4, n_actions=3, **FREE)
    rows = monotone_rows([np.arange(4)], np.arange(3))
    ends = [
        mmdp.kernels.get(name).plan(model.problem, 5).ascend([None], pick=rows)[0]
        for name in ("numpy", "numba")
    ]
    assert ends[0].policy.tolist() == ends[1].policy.tolist()


def test_the_price_is_told_with_its_bound() -> None:
    model = random_model(0, n_models=4, n_states=3, n_actions=3, **FREE)
    solution = mmdp.solve(model, 3, policy=mmdp.Tied([0, 0, 0]), certify=0.5, backend="numpy")
    assert solution.price is not None
    assert 0 < solution.price <= solution.bound - solution.value + 1e-12
    assert "being tied costs" in repr(solution)
    assert "at most" in solution.price_text
    assert mmdp.solve(model, 3).price is None


def test_a_time_limit_gives_a_policy_of_the_kind() -> None:
    model = random_model(3, n_models=4, n_states=4, n_actions=3, **FREE)
    stopped = mmdp.solve(model, 5, policy=mmdp.Monotone(), time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert (np.diff(stopped.policy.actions, axis=1) >= 0).all()


def test_other_options_of_cadp_keep_the_restriction() -> None:
    model = random_model(3, n_models=4, n_states=4, n_actions=3, **FREE)
    for method in (
        mmdp.CADP(init="random"), mmdp.CADP(init="uniform", starts=3), mmdp.CADP(sweeps="paper"),
        mmdp.CADP(init=mmdp.MarkovPolicy.random(model, 5)),
    ):  # fmt: skip
        for kind in (mmdp.Monotone(), mmdp.Fixed({0: 2, 1: [0, 1]})):
            found = mmdp.solve(model, 5, method, policy=kind).policy.actions
            if kind.name == "monotone":
                assert (np.diff(found, axis=1) >= 0).all()
            else:
                assert (found[:, 0] == 2).all()
                assert (found[:, 1] < 2).all()


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_a_finished_search_stays_finished_if_its_price_takes_too_long(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Context.free

    def late(context: Context) -> Context:
        inner = free(context)
        inner.time = Stopwatch(-1.0)
        return inner

    model = random_model(1, n_models=4, n_states=3, n_actions=2, **FREE)
    kind = mmdp.Fixed([0, -1, -1])
    whole = mmdp.solve(model, 4, policy=kind, objective=objective)
    monkeypatch.setattr(Context, "free", late)
    found = mmdp.solve(model, 4, policy=kind, objective=objective)
    assert found.status is whole.status is mmdp.Status.LOCAL_OPTIMUM
    assert found.value <= whole.value  # the free policy would have been a start too
    assert found.price is None


def test_the_price_is_an_amount() -> None:
    model = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    found = mmdp.solve(model, 1, policy=mmdp.Fixed([0]), certify=1)
    assert found.price == 1
    assert found.price_text == "being fixed costs 1, at most 1"
    free = mmdp.solve(model, 1, policy=mmdp.Fixed([1]))
    assert free.price_text == "being fixed costs nothing"
    assert found.describe_price(lambda x: f" [{x:g}]") == "being fixed costs 1 [1], at most 1"


@pytest.mark.parametrize("seeds", shares(60, 400))
def test_no_price_is_false_if_values_have_both_signs(seeds: range) -> None:
    """Against the best of all policies, tied and free; rewards are moved so that values near 0."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        model = random_model(seed, n_models=3, n_states=3, n_actions=2, **FREE)
        near = mmdp.solve(model, 2, policy=mmdp.Tied([0, 0, 1]), backend="numpy").value
        steps = model.discount ** np.arange(3)
        move = (near + rng.normal() * rng.choice([0, 0.1, 1, 10])) / steps.sum()
        model = model.replace(rewards=model.rewards - move, terminal=model.terminal - move)
        solution = mmdp.solve(model, 2, policy=mmdp.Tied([0, 0, 1]), backend="numpy")
        values = values_of(all_policies(model, 2), model)
        proven = mmdp.bound(model, 2, "oracle", backend="numpy")
        text = dataclasses.replace(solution, certificate=proven).price_text
        told = re.fullmatch(r"being tied costs (nothing|[\d.e-]+), at most ([\d.e-]+)", text)
        assert told is not None, text
        cost, most = told.groups()
        free = solution.details["unrestricted"]
        assert float(most) >= values.max() - solution.value - 1e-12
        if cost != "nothing":
            assert float(cost) <= float(most)
            assert float(cost) == pytest.approx(free - solution.value, rel=6e-3)
            assert free <= values.max() + 1e-9


def test_the_price_is_told_after_a_time_limit() -> None:
    """What is not known is said to be so; a free policy that was found, or a proof, is used."""
    model = random_model(3, n_models=4, n_states=4, n_actions=3, **FREE)
    kind = mmdp.Tied([0, 0, 1, 1])
    stopped = mmdp.solve(model, 5, policy=kind, time_limit=1e-9)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert stopped.price_text == "being tied costs an unknown amount"
    proven = mmdp.bound(model, 5, "oracle")
    bounded = dataclasses.replace(stopped, certificate=proven).price_text
    assert bounded == f"being tied costs at most {at_most(proven.value - stopped.value, 3)}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mmdp.search.ascent.in_order", late_after_two(ascent.in_order))
        later = mmdp.solve(model, 5, mmdp.CADP(starts=4), policy=kind)
    assert later.status is mmdp.Status.TIME_LIMIT
    assert later.details["unrestricted"] >= mmdp.solve(model, 5, mmdp.CADP(starts=4)).value - 1e-9
    assert mmdp.solve(model, 5).price_text == ""


def late_after_two(in_order: Callable[..., Iterator[Start]]) -> Callable[..., Iterator[Start]]:
    """The starts of a search; the time of the restricted one is up before the third."""

    def starts(landscape: Landscape, *rest: Any) -> Iterator[Start]:
        for i, each in enumerate(in_order(landscape, *rest)):
            if i == 2 and landscape.context.kind.restricted:
                raise Stop
            yield each

    return starts
