"""``backend="auto"``: estimates are those of the measurements, and a choice changes nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from benchmarks import backends

import mmdp
from mmdp.core import kernels
from mmdp.core.kernels.costs import (
    COSTS,
    LOAD_SECONDS,
    STATIONARY_COSTS,
    estimate_backend_seconds,
)
from mmdp.core.kernels.events import ExogenousEvents

N_QUICK, N_ALL = 36, 1000


def draw_problem(seed: int) -> tuple[mmdp.MMDP, float]:
    """Draw a model of any storage, often with ties, and its horizon."""
    rng = np.random.default_rng(seed)
    M, S, A, T, W = (int(rng.integers(1, n)) for n in (8, 9, 5, 9, 5))
    is_switching, has_ties = rng.random() < 0.25, rng.random() < 0.5
    chain = rng.dirichlet(np.ones(M), M) if is_switching else None
    storage_format = ("dense", "sparse", "deterministic", "events")[seed % 4]
    shape = (S, A, W) if storage_format == "events" else (M, S, A)
    rewards = rng.integers(3, size=shape).astype(float) if has_ties else rng.normal(size=shape)
    discount = 0.9 if rng.random() < 0.7 else 1.0
    options = {"discount": discount, "model_transitions": chain}
    if storage_format == "events":
        probs = np.moveaxis(rng.dirichlet(np.ones(W), (1, 1, M)), 2, 3)
        events = ExogenousEvents(rng.integers(S, size=(1, S, A, W, 1)), probs)
        model = mmdp.MMDP(events, events.make_rewards(rewards), **options)
    else:
        p = rng.dirichlet(np.ones(S), (M, S, A))
        if storage_format == "sparse":
            p *= rng.random((S, A, S)) < 0.5
            p[..., 0] += 1e-3
            p /= p.sum(axis=-1, keepdims=True)
        elif storage_format == "deterministic":
            p = np.eye(S)[rng.integers(S, size=(M, S, A))]
        model = mmdp.MMDP(p, rewards, **options)
    is_infinite = discount < 1 and not is_switching and rng.random() < 0.2
    return model, math.inf if is_infinite else T


@pytest.mark.parametrize("seeds", [
    range(N_QUICK), pytest.param(range(N_QUICK, N_ALL), marks=pytest.mark.slow)
])  # fmt: skip
def test_numpy_and_numba_give_the_same_policies_and_values(seeds):
    """So that a choice by what is loaded is none that a user sees."""
    for seed in seeds:
        model, horizon = draw_problem(seed)
        first, second = (mmdp.solve(model, horizon, backend=name) for name in ("numpy", "numba"))
        assert np.array_equal(first.policy.table, second.policy.table), seed
        scale = np.abs(first.evaluation.returns).max()
        for x, y in (
            (first.value, second.value),
            (first.evaluation.returns, second.evaluation.returns),
        ):
            assert np.abs(np.subtract(x, y)).max() <= 1e-12 * scale, seed


def test_costs_are_fitted_to_the_measurements():
    fitted = backends.fit_costs()
    assert {*fitted} == {*COSTS, "stationary"}
    for layout, costs in (COSTS | {"stationary": STATIONARY_COSTS}).items():
        np.testing.assert_allclose(costs, fitted[layout], rtol=6e-3, atol=1e-9)


def test_estimates_are_within_a_factor_of_the_measurements():
    """Most within a third, all within 4: sizes from 4 to 400 states, 1 to 100 models."""
    ratios = np.array(
        [
            1e-9 * np.dot((COSTS | {"stationary": STATIONARY_COSTS})[layout], operations) / seconds
            for layout, operations, seconds in backends.read_samples()
        ]
    )
    assert 0.2 < ratios.min() < ratios.max() < 2
    assert np.mean((ratios > 0.67) & (ratios < 1.5)) > 0.9


def choose(
    monkeypatch: pytest.MonkeyPatch, problem: kernels.Problem, n_passes: float, *, is_loaded: bool
) -> str:
    monkeypatch.setattr(kernels, "_is_numba_loaded", lambda: is_loaded)
    return kernels.get_backend("auto", problem, 20, n_passes=n_passes, prefer_loaded=True).name


def test_auto_counts_loading_until_the_code_is_loaded(monkeypatch):
    """The crossing is where numpy takes as long as numba and its loading."""
    for size in (
        backends.Size(x, 5, 10, 2, 10 if x == "dense" else 3, 20) for x in backends.FORMATS
    ):
        x = size.make_model().problem
        numpy_seconds, numba_seconds = (
            estimate_backend_seconds(name, x.work, 20) for name in ("numpy", "numba")
        )
        crossing = LOAD_SECONDS / (numpy_seconds - numba_seconds) / kernels.PASS_SHARE
        for n_passes, name in ((0.9 * crossing, "numpy"), (1.1 * crossing, "numba")):
            assert choose(monkeypatch, x, n_passes, is_loaded=False) == name
            assert choose(monkeypatch, x, n_passes, is_loaded=True) == "numba"
            assert kernels.get_backend("auto", x, 20, n_passes=n_passes).name == name


def test_starts_do_not_depend_on_what_is_loaded(monkeypatch):
    x = backends.Size("dense", 100, 51, 5, 51, 50).make_model().problem
    n_passes = []
    for is_loaded in (False, True):
        monkeypatch.setattr(kernels, "_is_numba_loaded", lambda value=is_loaded: value)
        n_passes.append(mmdp.methods.CADP().estimate_passes(x, 50))
    assert n_passes[0] == n_passes[1]


def estimate_smaller_seconds(size: backends.Size) -> float:
    return min(
        estimate_backend_seconds(name, size.make_work(), size.horizon)
        for name in ("numpy", "numba")
    )


@pytest.mark.parametrize(
    ("storage_format", "is_switching"), [*itertools.product(backends.FORMATS, (False, True))]
)
def test_estimates_grow_with_every_size(storage_format, is_switching):
    size = backends.Size(
        storage_format, 4, 40, 3, 40 if storage_format == "dense" else 3, 10, is_switching
    )
    seconds = estimate_smaller_seconds(size)
    for field in ("n_models", "n_states", "n_actions", "horizon"):
        larger = size._replace(**{field: 2 * getattr(size, field)})
        assert seconds < estimate_smaller_seconds(larger) < 5 * seconds


def test_only_results_that_are_the_same_on_both_go_by_what_is_loaded(monkeypatch):
    """An ascent of another objective may follow rounding errors to another local optimum."""
    monkeypatch.setattr(kernels, "_is_numba_loaded", lambda: True)
    model = backends.Size("dense", 3, 4, 2, 4, 3).make_model()
    questions = [
        {},
        {"objective": "cvar:0.5"},
        {"policy_class": mmdp.policies.Markov(randomized=True), "objective": "worst"},
        {"policy_class": "memory"},
        {"method": "gradient"},
    ]
    names = [mmdp.solve(model, 3, **question).provenance.backend for question in questions]
    assert names[0] == "numba"
    monkeypatch.setattr(kernels, "_is_numba_loaded", lambda: False)
    for question, name in zip(questions[1:], names[1:], strict=True):
        assert mmdp.solve(model, 3, **question).provenance.backend == name


def test_episodes_and_tree_searches_are_compiled_on_the_smallest_problem() -> None:
    """Their work is not in the passes, whose cost would say numpy."""
    problem = mmdp.MMDP([[[[1.0]]]], [[[1.0]]]).problem
    assert kernels.get_backend("auto", problem, 1).name == "numpy"
    for method in (mmdp.methods.POMCP(), mmdp.methods.Exact()):
        n_passes = method.estimate_passes(problem, 1)
        assert kernels.get_backend("auto", problem, 1, n_passes=n_passes).name == "numba"


def test_one_model_over_an_infinite_horizon_takes_no_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Policy iteration is done by linear algebra in numpy, however large the model is."""
    monkeypatch.setattr(kernels, "LOAD_SECONDS", 1e-6)
    model = mmdp.domains.garnet(1, 200, 5, branching=5, seed=0).train
    assert kernels.get_backend("auto", model.problem, 1, n_passes=1).name == "numba"
    assert mmdp.solve(model, math.inf).provenance.backend == "numpy"
