"""How many starts CADP takes by default, and what they are worth."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.methods import SolveContext
from mmdp.core.search import multistart
from mmdp.core.search.spaces import MarkovSpace
from mmdp.core.testing import make_random_model


def make_small_model(seed: int) -> mmdp.MMDP:
    return make_random_model(seed, n_models=6, n_states=6, n_actions=4, horizon=0, has_masks=False)


def make_diverse_model(seed: int) -> mmdp.MMDP:
    """Models that have little in common, as in docs/how-good.md."""
    rng = np.random.default_rng(seed)
    P = np.zeros((15, 15, 4, 15))
    for s in range(15):
        for a in range(4):
            P[:, s, a, rng.choice(15, 4, replace=False)] = rng.dirichlet(np.ones(4), size=15)
    return mmdp.MMDP(P, rng.normal(size=(15, 15, 4)), discount=0.9, initial=np.eye(15)[0])


def count_improved(models: list[mmdp.MMDP], horizon: int) -> int:
    """On how many models several starts are better; never are they worse than others."""
    n_improved = 0
    for model in models:
        default_value, single_value, *gradient_values = (
            mmdp.solve(model, horizon, method, backend="numba").value
            for method in (
                mmdp.methods.CADP(),
                mmdp.methods.CADP(n_init=1),
                mmdp.methods.NaturalGradient(),
                mmdp.methods.MirrorAscent(),
            )
        )
        rounding = 1e-9 * max(1.0, abs(single_value))
        assert default_value >= single_value
        assert default_value >= max(gradient_values) - rounding
        n_improved += default_value > single_value + rounding
    return n_improved


def test_several_inits_are_never_worse_often_better():
    assert count_improved([make_small_model(seed) for seed in range(24)], 8) >= 8
    assert count_improved([make_diverse_model(seed) for seed in range(6)], 25) >= 4


@pytest.mark.slow
def test_two_hundred_instances():
    assert count_improved([make_small_model(seed) for seed in range(100)], 8) >= 34
    assert count_improved([make_diverse_model(seed) for seed in range(100)], 25) >= 67


def compute_default_n_init(model: mmdp.MMDP, T: int) -> int:
    space = MarkovSpace(SolveContext(model, T, kernels.get_backend("numpy")))
    return multistart.default_n_init(space.init_names, space.estimate_ascent_seconds)


def test_the_number_of_inits_falls_with_size():
    """At least two, unless one ascent takes long."""
    counts = [
        compute_default_n_init(make_random_model(1, n_models=m, n_states=9, horizon=0), T)
        for m, T in ((3, 4), (300, 100), (3000, 400), (3000, 500_000))
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 16
    assert counts[-2:] == [2, 1]


def test_a_gradient_init_costs_more():
    space = MarkovSpace(SolveContext(make_small_model(0), 8, kernels.get_backend("numpy")))
    assert (
        space.estimate_ascent_seconds("wsu")
        == space.estimate_ascent_seconds("random")
        < space.estimate_ascent_seconds("mirror")
    )


def test_one_init_on_request_or_with_paper_sweeps():
    model = make_small_model(0)
    for method in (
        mmdp.methods.CADP(sweep_type="paper"),
        mmdp.methods.CADP(init="mvp"),
        mmdp.methods.CADP(n_init=1),
    ):
        assert "inits" not in mmdp.solve(model, 8, method, backend="numpy").details
    details = mmdp.solve(model, 8, backend="numpy").details
    assert len(details["inits"]) == compute_default_n_init(model, 8) == 16


def test_a_time_limit_keeps_the_first_init():
    solution = mmdp.solve(
        make_small_model(1), 8, mmdp.methods.CADP(n_init=200), time_limit=1e-9, backend="numpy"
    )
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert solution.value >= mmdp.solve(make_small_model(1), 8, "wsu", backend="numpy").value - 1e-9


def test_inits_are_made_when_they_are_needed():
    """However many are asked for: the first ones are the same, and cost the same."""
    model = make_small_model(1)
    context = SolveContext(model, 3, kernels.get_backend("numpy"))
    few = list(multistart.iter_inits(MarkovSpace(context), "wsu", 40))
    tracemalloc.start()
    many = itertools.islice(multistart.iter_inits(MarkovSpace(context), "wsu", 10**6), 40)
    for a, b in zip(few, many, strict=True):
        assert a.name == b.name
        np.testing.assert_array_equal(a.candidate, b.candidate)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_a_search_accepts_a_fitting_init():
    model, T = make_random_model(0, n_states=3, horizon=0, discount=0.9, has_masks=False), 4
    method = mmdp.methods.CADP(init=mmdp.policies.StationaryPolicy([0, 1, 0]), n_init=1)
    assert mmdp.solve(model, np.inf, method).status is mmdp.Status.LOCAL_OPTIMUM
    randomized = mmdp.policies.StationaryPolicy(probabilities=np.eye(2)[[0, 1, 0]] * 0.8 + 0.1)
    same = mmdp.solve(model, np.inf, mmdp.methods.CADP(init=randomized, n_init=1))
    assert (same.trace == mmdp.solve(model, np.inf, method).trace).all()
    with pytest.raises(
        mmdp.InputError, match=r"infinite horizon, the horizon is 4; .*to_markov\(T\)"
    ):
        mmdp.solve(model, T, method)
    memory = mmdp.solve(model, T, policy_class=mmdp.policies.Memory(2)).policy
    for wrong in (memory, mmdp.solve(model, T, mmdp.methods.QMDP(n_episodes=2)).policy):
        with pytest.raises(mmdp.InputError, match="without memory"):
            mmdp.solve(model, T, mmdp.methods.CADP(init=wrong))
    with pytest.raises(mmdp.InputError, match="init must be text or a Planner, not 3"):
        mmdp.methods.CADP(init=3)
