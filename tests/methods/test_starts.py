"""How many starts CADP takes by default, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.methods import Context
from mmdp.search import starts
from mmdp.search.tables import Tables
from mmdp.testing import random_model


def small(seed: int) -> mmdp.MMDP:
    return random_model(seed, n_models=6, n_states=6, n_actions=4, horizon=0, masks=False)


def wide(seed: int) -> mmdp.MMDP:
    """Models that have little in common, as in docs/how-good.md."""
    rng = np.random.default_rng(seed)
    P = np.zeros((15, 15, 4, 15))
    for s in range(15):
        for a in range(4):
            P[:, s, a, rng.choice(15, 4, replace=False)] = rng.dirichlet(np.ones(4), size=15)
    return mmdp.MMDP(P, rng.normal(size=(15, 15, 4)), discount=0.9, initial=np.eye(15)[0])


def compare(models: list[mmdp.MMDP], horizon: int) -> int:
    """On how many models several starts are better; never are they worse than others."""
    better = 0
    for model in models:
        auto, one, *gradients = (
            mmdp.solve(model, horizon, method, backend="numba").value
            for method in (mmdp.CADP(), mmdp.CADP(starts=1), mmdp.Gradient(), mmdp.Mirror())
        )
        rounding = 1e-9 * max(1.0, abs(one))
        assert auto >= one
        assert auto >= max(gradients) - rounding
        better += auto > one + rounding
    return better


def test_several_starts_are_never_worse_and_often_better():
    assert compare([small(seed) for seed in range(24)], 8) >= 8
    assert compare([wide(seed) for seed in range(6)], 25) >= 4


@pytest.mark.slow
def test_two_hundred_instances():
    assert compare([small(seed) for seed in range(100)], 8) >= 34
    assert compare([wide(seed) for seed in range(100)], 25) >= 67


def affordable(model: mmdp.MMDP, T: int) -> int:
    tables = Tables(Context(model, T, kernels.get("numpy")))
    return starts.affordable(tables.starts, tables.seconds)


def test_the_number_of_starts_falls_with_the_size_alone():
    """At least two, unless one ascent takes long."""
    counts = [
        affordable(random_model(1, n_models=m, n_states=9, horizon=0), T)
        for m, T in ((3, 4), (300, 100), (3000, 400), (3000, 500_000))
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 16
    assert counts[-2:] == [2, 1]


def test_a_gradient_start_counts_for_more():
    landscape = Tables(Context(small(0), 8, kernels.get("numpy")))
    assert landscape.seconds("wsu") == landscape.seconds("random") < landscape.seconds("mirror")


def test_one_start_if_asked_for_or_if_the_paper_is_followed():
    model = small(0)
    for method in (mmdp.CADP(sweeps="paper"), mmdp.CADP(init="mvp"), mmdp.CADP(starts=1)):
        assert "starts" not in mmdp.solve(model, 8, method, backend="numpy").details
    found = mmdp.solve(model, 8, backend="numpy").details
    assert len(found["starts"]) == affordable(model, 8) == 16


def test_a_time_limit_keeps_the_first_start():
    found = mmdp.solve(small(1), 8, mmdp.CADP(starts=200), time_limit=1e-9, backend="numpy")
    assert found.status is mmdp.Status.TIME_LIMIT
    assert found.value >= mmdp.solve(small(1), 8, "wsu", backend="numpy").value - 1e-9


def test_a_search_starts_from_a_policy_that_fits():
    model, T = random_model(0, n_states=3, horizon=0, discount=0.9, masks=False), 4
    one = mmdp.CADP(init=mmdp.StationaryPolicy([0, 1, 0]), starts=1)
    assert mmdp.solve(model, np.inf, one).status is mmdp.Status.LOCAL_OPTIMUM
    drawn = mmdp.StationaryPolicy(probabilities=np.eye(2)[[0, 1, 0]] * 0.8 + 0.1)
    same = mmdp.solve(model, np.inf, mmdp.CADP(init=drawn, starts=1))
    assert (same.trace == mmdp.solve(model, np.inf, one).trace).all()
    with pytest.raises(mmdp.InputError, match=r"infinite horizon, the horizon is 4; .*over\(T\)"):
        mmdp.solve(model, T, one)
    memory = mmdp.solve(model, T, policy=mmdp.Memory(2)).policy
    for wrong in (memory, mmdp.solve(model, T, mmdp.QMDP(episodes=2)).policy):
        with pytest.raises(mmdp.InputError, match="without memory"):
            mmdp.solve(model, T, mmdp.CADP(init=wrong))
    with pytest.raises(mmdp.InputError, match="init must be text or a Planner, not 3"):
        mmdp.CADP(init=3)
