"""The CPU kernel against the readable one, and that one against plain loops."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels import get_backend
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.core.kernels.cpu.threads import for_each, limit_blas_threads
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.testing import (
    BackendCase,
    check_backend,
    compute_plain_returns,
    make_random_model,
)
from tests.instances import list_seeds, n_examples, seed_ranges


@pytest.mark.parametrize("seeds", seed_ranges(12, 200))
def test_numba_equals_numpy_on_every_storage(seeds):
    check_backend(NumbaBackend(1, min_parallel_work=0), seeds=seeds)


@pytest.mark.parametrize("n_threads", [2, 3])
@pytest.mark.parametrize("seeds", seed_ranges(4, 40))
def test_threads_equal_numpy_on_every_storage(n_threads, seeds):
    check_backend(NumbaBackend(n_threads, min_parallel_work=0), seeds=seeds)


@pytest.mark.parametrize("n_models", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 41, 64, 100, 1500])
def test_every_width_of_the_model_loop(n_models):
    backend = NumbaBackend(2, min_parallel_work=0)
    for storage in ("dense", "sparse"):
        model = make_random_model(5, n_models=n_models, n_states=9, storage=storage)
        case = BackendCase(backend, model, model.horizon or 3, seed=5)
        case.check_passes()
        case.check_ascents()


@pytest.mark.parametrize("seed", list_seeds(15, 40))
def test_numpy_backend_equals_plain_loops(seed):
    model = make_random_model(seed)
    horizon = model.horizon or 1 + seed % 5
    policy = mmdp.policies.MarkovPolicy.random(model, horizon, seed)
    report = mmdp.evaluate(model, policy, backend="numpy")
    np.testing.assert_allclose(
        report.returns, compute_plain_returns(model, policy), rtol=1e-10, atol=1e-10
    )


def test_results_are_the_same_for_any_number_of_threads():
    for n_models in (5, 50):
        model = make_random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
        for method in ("cadp", "oracle"):
            reference, *others = [
                mmdp.solve(model, 12, method, backend=NumbaBackend(n, min_parallel_work=0))
                for n in (1, 2, 3, 5)
            ]
            for other in others:
                assert (reference.returns == other.returns).all()


def test_threads_may_solve_in_parallel():
    models = [make_random_model(s, n_models=20, n_states=8, horizon=0) for s in range(4)]
    expected = [mmdp.solve(m, 10, backend="numpy").value for m in models]
    values: dict[int, float] = {}

    def solve_repeatedly(i: int) -> None:
        for _ in range(5):
            values[i] = mmdp.solve(
                models[i], 10, backend=NumbaBackend(2, min_parallel_work=0)
            ).value

    threads = [threading.Thread(target=solve_repeatedly, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose([values[i] for i in range(4)], expected, rtol=1e-12)


def test_a_thread_pool_raises_errors_in_the_caller():
    def fail_on_piece(piece: int) -> None:
        if piece == 3:
            raise ZeroDivisionError("three")

    with pytest.raises(ZeroDivisionError, match="three"):
        for_each(3, fail_on_piece, list(range(9)))


# ------------------------------------------------------------------ ascents
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_lazy_sweeps_equal_full_sweeps(n_threads, storage):
    """Numpy's sweeps compute all rows at all steps; none of the choices may differ."""
    for seed in range(n_examples(60 if n_threads == 1 else 20)):
        size = {"n_states": 14 if seed % 3 else 9, "n_models": 12, "n_actions": 4}
        model = make_random_model(seed, storage=storage, **size)
        backend = NumbaBackend(n_threads, min_parallel_work=0)
        BackendCase(backend, model, model.horizon or 12, seed=seed).check_ascents()


def test_lazy_sweeps_with_unreachable_states_and_ties():
    for seed in range(n_examples(40)):
        model = make_random_model(
            seed, n_models=12, n_states=9, n_actions=4, has_masks=False, horizon=7 * (seed % 2)
        )
        r, rng = np.round(model.rewards), np.random.default_rng(seed)
        P = model.transitions.copy()
        P[..., 1, :] = P[..., 0, :]  # two actions that are the same
        r[..., 1] = r[..., 0]
        initial = np.eye(model.n_states)[rng.integers(model.n_states)]
        tied_model = mmdp.MMDP(P, r, initial=initial, weights=model.weights, discount=0.9)
        inits = [
            None,
            *(mmdp.policies.MarkovPolicy.random(tied_model, 7, k).table for k in range(4)),
        ]
        result, expected = (
            backend.prepare(tied_model.problem, 7).ascend(inits)
            for backend in (NumbaBackend(1), get_backend("numpy"))
        )
        for a, b in zip(result, expected, strict=True):
            assert (a.policy == b.policy).all()
            assert a.n_sweeps == b.n_sweeps


# ------------------------------------------------------------------ one model
@pytest.mark.parametrize("seed", list_seeds(15, 40))
def test_one_model_equals_numpy(seed):
    """Dense, sparse, masks, time, ties."""
    model = make_random_model(seed, n_models=1, n_states=7, storage=("dense", "sparse")[seed % 2])
    horizon = model.horizon or 6
    BackendCase(
        NumbaBackend(1 + seed % 3, min_parallel_work=0), model, horizon, seed=seed
    ).check_passes()
    x = model.problem
    ties = x._replace(r=np.round(x.r))
    policy = mmdp.policies.MarkovPolicy.random(model, horizon, 0).table
    for weights in (x.prior_weights(), get_backend("numpy").prepare(x, horizon).forward(policy)):
        result, expected = (
            k.prepare(ties, horizon).backward("weighted", weights=weights, policy=policy)
            for k in (NumbaBackend(1), get_backend("numpy"))
        )
        assert (result.actions == expected.actions).all()


def test_terminal_values_that_dwarf_all_others_lose_no_action():
    for seed in range(20):
        x = make_random_model(
            seed, n_models=1, n_states=9, n_actions=5, has_masks=False, horizon=0
        ).problem
        terminal = np.where(np.arange(9)[:, None] == seed % 9, (-1) ** seed * 1e16, 0.0)
        x = x._replace(terminal=terminal, discount=0.5)
        result, expected = (
            backend.prepare(x, 100).backward("weighted", weights=x.prior_weights())
            for backend in (NumbaBackend(1), get_backend("numpy"))
        )
        np.testing.assert_allclose(result.first_values, expected.first_values, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e36, 1e38, 1e40, 1e140])
def test_values_of_any_size_are_as_exact(scale):
    for seed in range(12):
        model = make_random_model(seed, n_models=9, n_states=8, n_actions=3, horizon=0)
        scaled_model = mmdp.MMDP(
            model.transitions,
            model.rewards * scale,
            weights=model.weights,
            allowed=model.allowed,
            discount=0.9,
        )
        result, expected = (
            mmdp.solve(scaled_model, 10, mmdp.methods.CADP(n_init=3), backend=backend, seed=1)
            for backend in (NumbaBackend(1), "numpy")
        )
        assert result.value == pytest.approx(expected.value, rel=1e-9)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("n_states", [6, 40])
def test_overflowing_values_read_no_foreign_memory(n_states):
    P = np.full((1, n_states, 3, n_states), 1 / n_states)
    x = mmdp.MMDP(P, np.full((1, n_states, 3), 1e307)).problem
    result = NumbaBackend(1).prepare(x, 200).backward("weighted", weights=x.prior_weights())
    assert result.actions is not None
    assert (result.actions < 3).all()


@pytest.mark.parametrize("n_models", [50, 130])  # models fall into other blocks of vectors
@pytest.mark.parametrize("method", ["two-way", "paper", "n_init", "oracle"])
def test_sweeps_are_the_same_for_any_number_of_threads(method, n_models):
    model = make_random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
    options = {"n_init": 6} if method == "n_init" else {"sweep_type": method}
    solver = mmdp.methods.Oracle() if method == "oracle" else mmdp.methods.CADP(**options)
    reference, *others = [
        mmdp.solve(model, 12, solver, backend=NumbaBackend(n, min_parallel_work=0), seed=1)
        for n in (1, 2, 5)
    ]
    for other in others:
        assert other.policy == reference.policy
        assert (other.returns == reference.returns).all()


# ---------------------------------------------------------------------- one model
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95, 1.0])
def test_the_optimum_of_one_model_is_that_of_all_actions(discount: float) -> None:
    """Actions that are left out cannot win, whatever ties, terminal values and scales there are."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        S, A, T = (int(rng.integers(1, n)) for n in (30, 7, 40))
        p = rng.dirichlet(np.full(S, rng.choice([0.05, 1.0])), (1, S, A))
        if seed % 3 == 0:
            p = np.where(p < 0.2 / S, 0.0, p)
            p /= p.sum(axis=-1, keepdims=True)
        r = rng.integers(0, 3, (1, S, A)) if seed % 2 else rng.normal(size=(1, S, A))
        allowed = rng.random((S, A)) < 0.7
        allowed[np.arange(S), rng.integers(0, A, S)] = True
        scale = 10.0 ** rng.integers(-6, 7)
        terminal = rng.normal(size=S) * scale * 10.0 ** rng.integers(-3, 9)
        model = mmdp.MMDP(p, scale * r, allowed=allowed, terminal=terminal, discount=discount)
        prior = model.problem.prior_weights()
        passes = [
            backend.prepare(model.problem, T).backward("weighted", weights=prior)
            for backend in (
                NumpyBackend(),
                NumbaBackend(1),
                NumbaBackend(2, min_parallel_work=0),
            )
        ]
        for induction in passes[1:]:
            assert (induction.actions == passes[0].actions).all()
            size = np.abs(passes[0].first_values).max()
            np.testing.assert_allclose(
                induction.first_values, passes[0].first_values, rtol=1e-12, atol=1e-12 * size
            )
        assert (passes[1].first_values == passes[2].first_values).all()


def test_the_optimum_of_one_model_of_events_is_that_of_its_tables() -> None:
    rng = np.random.default_rng(0)
    events = ExogenousEvents(
        rng.integers(6, size=(1, 6, 2, 3, 1)), rng.dirichlet(np.ones(3), (1, 1, 1)).swapaxes(2, 3)
    )
    model = mmdp.MMDP(events, rng.random((6, 2)), discount=0.9)
    solutions = [mmdp.solve(model, 9, "wsu", backend=name) for name in ("numpy", "numba")]
    assert solutions[0].policy == solutions[1].policy
    assert solutions[0].value == pytest.approx(solutions[1].value, rel=1e-12)


def test_blas_threads_are_limited_inside_a_block_alone() -> None:
    import threadpoolctl

    def count_threads() -> list[int]:
        pools = threadpoolctl.threadpool_info()
        return [x["num_threads"] for x in pools if x["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = count_threads()
        with limit_blas_threads(), limit_blas_threads():
            assert set(count_threads()) == {1}
        assert count_threads() == before != []
