"""The CPU kernel against the readable one, and that one against plain loops."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import mmdp
from mmdp.kernels import get
from mmdp.kernels.cpu import kernel as kernel_of_the_cpu
from mmdp.kernels.cpu.induction import Elimination, induct
from mmdp.kernels.cpu.kernel import CpuPlan, NumbaKernel
from mmdp.kernels.cpu.threads import Team
from mmdp.kernels.problem import Problem
from mmdp.testing import (
    Case,
    check_kernel,
    plain_returns,
    random_events,
    random_model,
)
from tests.instances import shares


@pytest.mark.parametrize("seeds", shares(12, 200))
def test_numba_equals_numpy_on_every_storage(seeds):
    check_kernel(NumbaKernel(1, threads_pay_from=0), seeds=seeds)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("seeds", shares(4, 40))
def test_threads_equal_numpy_on_every_storage(threads, seeds):
    check_kernel(NumbaKernel(threads, threads_pay_from=0), seeds=seeds)


def test_passes_over_some_models_at_a_time_equal_numpy(monkeypatch):
    monkeypatch.setattr(kernel_of_the_cpu, "FEWEST", 2)
    monkeypatch.setattr(kernel_of_the_cpu, "IN_CACHE", 2**11)
    cut = []
    whole = CpuPlan._blockwise
    monkeypatch.setattr(
        CpuPlan, "_blockwise", lambda *args: cut.append(len(args[2])) or whole(*args)
    )
    for seed in range(60):
        for model in (random_model(seed), random_events(seed)):
            case = Case(NumbaKernel(2), model, model.horizon or 1 + seed % 7, seed=seed)
            case.passes()
            case.ascents()
    assert max(cut) > 2


@pytest.mark.parametrize("n_models", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 41, 64, 100, 1500])
def test_every_width_of_the_model_loop(n_models):
    kernel = NumbaKernel(2, threads_pay_from=0)
    for storage in ("dense", "sparse"):
        model = random_model(5, n_models=n_models, n_states=9, storage=storage)
        case = Case(kernel, model, model.horizon or 3, seed=5)
        case.passes()
        case.ascents()


@pytest.mark.parametrize("seed", range(40))
def test_numpy_kernel_equals_plain_loops(seed):
    model = random_model(seed)
    horizon = model.horizon or 1 + seed % 5
    policy = mmdp.MarkovPolicy.random(model, horizon, seed)
    report = mmdp.evaluate(policy, model, backend="numpy")
    np.testing.assert_allclose(report.returns, plain_returns(policy, model), rtol=1e-10, atol=1e-10)


def test_results_are_the_same_for_any_number_of_threads():
    for n_models in (5, 50):
        model = random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
        for method in ("cadp", "oracle"):
            first, *others = [
                mmdp.solve(model, 12, method, backend=NumbaKernel(n, threads_pay_from=0))
                for n in (1, 2, 3, 5)
            ]
            for other in others:
                assert (first.returns == other.returns).all()


def test_threads_may_solve_side_by_side():
    models = [random_model(s, n_models=20, n_states=8, horizon=0) for s in range(4)]
    expected = [mmdp.solve(m, 10, backend="numpy").value for m in models]
    found: dict[int, float] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = mmdp.solve(models[i], 10, backend=NumbaKernel(2, threads_pay_from=0)).value

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose([found[i] for i in range(4)], expected, rtol=1e-12)


def test_a_team_hands_errors_to_the_caller():
    def work(piece: int) -> None:
        if piece == 3:
            raise ZeroDivisionError("three")

    with pytest.raises(ZeroDivisionError, match="three"):
        Team.of(3).each(work, list(range(9)))


# ------------------------------------------------------------------ ascents
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_lazy_sweeps_equal_those_that_compute_everything(threads, storage):
    """Numpy's sweeps compute all rows at all steps; none of the choices may differ."""
    for seed in range(60 if threads == 1 else 20):
        size = {"n_states": 14 if seed % 3 else 9, "n_models": 12, "n_actions": 4}
        model = random_model(seed, storage=storage, **size)
        kernel = NumbaKernel(threads, threads_pay_from=0)
        Case(kernel, model, model.horizon or 12, seed=seed).ascents()


def test_lazy_sweeps_if_states_are_out_of_reach_and_actions_tie():
    for seed in range(40):
        model = random_model(
            seed, n_models=12, n_states=9, n_actions=4, masks=False, horizon=7 * (seed % 2)
        )
        r, rng = np.round(model.rewards), np.random.default_rng(seed)
        P = model.transitions.copy()
        P[..., 1, :] = P[..., 0, :]  # two actions that are the same
        r[..., 1] = r[..., 0]
        start = np.eye(model.n_states)[rng.integers(model.n_states)]
        few = mmdp.MMDP(P, r, initial=start, weights=model.weights, discount=0.9)
        starts = [None, *(mmdp.MarkovPolicy.random(few, 7, k).table for k in range(4))]
        found, expected = (
            kernel.plan(few.problem, 7).ascend(starts) for kernel in (NumbaKernel(1), get("numpy"))
        )
        for a, b in zip(found, expected, strict=True):
            assert (a.policy == b.policy).all()
            assert a.sweeps == b.sweeps


# ------------------------------------------------------------------ one model
@pytest.mark.parametrize("seed", range(40))
def test_one_model_equals_numpy(seed):
    """Dense, sparse, masks, time, ties."""
    model = random_model(seed, n_models=1, n_states=7, storage=("dense", "sparse")[seed % 2])
    horizon = model.horizon or 6
    Case(NumbaKernel(1 + seed % 3, threads_pay_from=0), model, horizon, seed=seed).passes()
    x = model.problem
    ties = x._replace(r=np.round(x.r))
    policy = mmdp.MarkovPolicy.random(model, horizon, 0).table
    for weights in (x.prior_weights(), get("numpy").plan(x, horizon).forward(policy)):
        found, expected = (
            k.plan(ties, horizon).backward("weighted", weights=weights, policy=policy)
            for k in (NumbaKernel(1), get("numpy"))
        )
        assert (found.actions == expected.actions).all()


def assert_eliminated_without_a_change(x: Problem, horizon: int, threads: int) -> None:
    rule = Elimination.of(x, long=0)
    actions, first = induct(x, horizon, Team.of(threads), rule)
    expected = get("numpy").plan(x, horizon).backward("weighted", weights=x.prior_weights())
    assert (actions == expected.actions).all()
    np.testing.assert_allclose(first, expected.first, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_actions_of_one_model_are_eliminated_without_a_change(seed):
    """Gains and costs, discounted or not, masks, equal actions, rows that lead nowhere."""
    storage = ("dense", "sparse")[seed % 2]
    x = random_model(seed, n_models=1, n_states=9, n_actions=5, storage=storage, horizon=0).problem
    r, p = (np.round(x.r) if seed % 4 == 0 else x.r) - (seed % 3 - 1) * 4.0, x.p.copy()
    if seed % 5 == 0:
        p[:, x.indptr[7] : x.indptr[8]] = 0.0
    if seed % 4 == 0 and x.dense:  # two actions that are the same
        rows = p.reshape(9, 5, 9)
        rows[:, 1], r[:, :, 1] = rows[:, 0], r[:, :, 0]
    x = x._replace(
        storage=x.storage._replace(p=p),
        r=np.ascontiguousarray(r),
        discount=(0.6, 0.95, 1.0)[seed // 2 % 3],
    )
    assert Elimination.of(x, long=0).pays
    assert_eliminated_without_a_change(x, 60, 1 + seed % 3)


def test_terminal_values_that_dwarf_all_others_lose_no_action():
    for seed in range(20):
        x = random_model(seed, n_models=1, n_states=9, n_actions=5, masks=False, horizon=0).problem
        terminal = np.where(np.arange(9)[:, None] == seed % 9, (-1) ** seed * 1e16, 0.0)
        x = x._replace(terminal=terminal, discount=0.5)
        assert not Elimination.of(x, long=0).pays
        found, expected = (
            kernel.plan(x, 100).backward("weighted", weights=x.prior_weights())
            for kernel in (NumbaKernel(1), get("numpy"))
        )
        np.testing.assert_allclose(found.first, expected.first, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e36, 1e38, 1e40, 1e140])
def test_values_of_any_size_are_as_exact(scale):
    for seed in range(12):
        model = random_model(seed, n_models=9, n_states=8, n_actions=3, horizon=0)
        large = mmdp.MMDP(
            model.transitions, model.rewards * scale, weights=model.weights, allowed=model.allowed,
            discount=0.9,
        )  # fmt: skip
        found, expected = (
            mmdp.solve(large, 10, mmdp.CADP(starts=3), backend=backend, seed=1)
            for backend in (NumbaKernel(1), "numpy")
        )
        assert found.value == pytest.approx(expected.value, rel=1e-9)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("n_states", [6, 40])
def test_values_that_overflow_read_no_memory_of_others(n_states):
    P = np.full((1, n_states, 3, n_states), 1 / n_states)
    x = mmdp.MMDP(P, np.full((1, n_states, 3), 1e307)).problem
    found = NumbaKernel(1).plan(x, 200).backward("weighted", weights=x.prior_weights())
    assert found.actions is not None
    assert (found.actions < 3).all()


@pytest.mark.parametrize("n_models", [50, 130])  # models fall into other blocks of vectors
@pytest.mark.parametrize("method", ["two-way", "paper", "starts", "oracle"])
def test_sweeps_are_the_same_for_any_number_of_threads(method, n_models):
    model = random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
    options = {"starts": 6} if method == "starts" else {"sweeps": method}
    chosen = mmdp.Oracle() if method == "oracle" else mmdp.CADP(**options)
    one, *others = [
        mmdp.solve(model, 12, chosen, backend=NumbaKernel(n, threads_pay_from=0), seed=1)
        for n in (1, 2, 5)
    ]
    for other in others:
        assert other.policy == one.policy
        assert (other.returns == one.returns).all()
