"""Every kernel against the readable one, and that one against plain loops."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.kernels.numba_kernel import NumbaKernel
from mmdp.kernels.threads import Team
from mmdp.testing import check_kernel, plain_returns, random_model


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_numba_equals_numpy_on_every_storage(threads, monkeypatch):
    monkeypatch.setattr("mmdp.kernels.numba_kernel.THREADS_PAY_FROM", 0)
    check_kernel(NumbaKernel(threads), seeds=range(200 if threads == 1 else 40))


@pytest.mark.parametrize("n_models", [1, 2, 3, 4, 5, 8, 33, 1500])
def test_every_width_of_the_model_loop(n_models, monkeypatch):
    monkeypatch.setattr("mmdp.kernels.numba_kernel.THREADS_PAY_FROM", 0)
    from mmdp.testing import _check_passes

    for storage in ("dense", "sparse"):
        model = random_model(5, n_models=n_models, n_states=9, storage=storage)
        _check_passes(NumbaKernel(2), model, model.horizon or 3, 5, 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_numpy_kernel_equals_plain_loops(seed):
    model = random_model(seed)
    horizon = model.horizon or 1 + seed % 5
    policy = mmdp.MarkovPolicy.random(model, horizon, seed)
    report = mmdp.evaluate(policy, model, backend="numpy")
    np.testing.assert_allclose(report.returns, plain_returns(model, policy), rtol=1e-10, atol=1e-10)


def test_results_are_the_same_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr("mmdp.kernels.numba_kernel.THREADS_PAY_FROM", 0)
    for n_models in (5, 50):
        model = random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
        for method in ("cadp", "oracle"):
            first, *others = [
                mmdp.solve(model, 12, method, backend=NumbaKernel(n)) for n in (1, 2, 3, 5)
            ]
            for other in others:
                assert (first.returns == other.returns).all()


def test_threads_may_solve_side_by_side(monkeypatch):
    monkeypatch.setattr("mmdp.kernels.numba_kernel.THREADS_PAY_FROM", 0)
    models = [random_model(s, n_models=20, n_states=8, horizon=0) for s in range(4)]
    expected = [mmdp.solve(m, 10, backend="numpy").value for m in models]
    found: dict[int, float] = {}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = mmdp.solve(models[i], 10, backend=NumbaKernel(2)).value

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


def test_small_problems_do_not_wait_for_numba(monkeypatch):
    monkeypatch.setattr(kernels, "_done_by_numpy", 0)
    monkeypatch.delitem(__import__("sys").modules, "mmdp.kernels.numba_kernel")
    assert kernels.get("auto", 1000).name == "numpy"
    assert kernels.get("auto", 10**9).name == "numba"


def test_an_unknown_backend_names_those_there_are():
    with pytest.raises(mmdp.InputError, match="no backend is called 'cuda'; choose one of auto"):
        kernels.get("cuda")
