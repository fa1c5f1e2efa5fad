"""Every kernel against the readable one, and that one against plain loops."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.kernels.cpu import climb
from mmdp.kernels.cpu import steps as march
from mmdp.kernels.cpu.jit import jit
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.cpu.threads import Team
from mmdp.methods.base import Context, Start
from mmdp.methods.cadp import ascend_all
from mmdp.testing import check_kernel, plain_returns, random_model


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_numba_equals_numpy_on_every_storage(threads, monkeypatch):
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
    check_kernel(NumbaKernel(threads), seeds=range(200 if threads == 1 else 40))


@pytest.mark.parametrize("n_models", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 41, 64, 100, 1500])
def test_every_width_of_the_model_loop(n_models, monkeypatch):
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
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
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
    for n_models in (5, 50):
        model = random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
        for method in ("cadp", "oracle"):
            first, *others = [
                mmdp.solve(model, 12, method, backend=NumbaKernel(n)) for n in (1, 2, 3, 5)
            ]
            for other in others:
                assert (first.returns == other.returns).all()


def test_threads_may_solve_side_by_side(monkeypatch):
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
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
    monkeypatch.delitem(__import__("sys").modules, "mmdp.kernels.cpu.passes")
    assert kernels.get("auto", 1000).name == "numpy"
    assert kernels.get("auto", 10**9).name == "numba"


def test_an_unknown_backend_names_those_there_are():
    with pytest.raises(mmdp.InputError, match="no backend is called 'cuda'; choose one of auto"):
        kernels.get("cuda")


# ------------------------------------------------------------------ CADP's own sweeps
def instance(seed: int, storage: str = "auto") -> tuple[mmdp.MMDP, int]:
    """Every other one is wide enough for vectors and bounds, the others are of any shape."""
    size = {} if seed % 2 else {"n_states": 9, "n_models": 12, "n_actions": 4}
    model = random_model(seed, storage=storage, **size)
    return model, model.horizon or 1 + seed % 9


def tables(model: mmdp.MMDP, horizon: int, count: int) -> list[np.ndarray]:
    return [mmdp.MarkovPolicy.random(model, horizon, seed).table for seed in range(count)]


def assert_same_ascents(found, expected, *, exactly: bool = True) -> None:
    for a, b in zip(found, expected, strict=True):
        size = max(1.0, abs(b.value))
        assert abs(a.value - b.value) <= 1e-9 * size
        assert a.status is b.status
        if exactly:
            assert (a.policy == b.policy).all()
            assert a.sweeps == b.sweeps
            np.testing.assert_allclose(a.trace, b.trace, rtol=1e-10, atol=1e-10 * size)
            np.testing.assert_allclose(a.returns, b.returns, rtol=1e-10, atol=1e-10 * size)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("n_states", [None, 14])  # rows shorter and longer than climb.SHORT
def test_lazy_two_way_sweeps_equal_those_that_compute_everything(
    threads, storage, n_states, monkeypatch
):
    """Numpy's sweeps compute all rows at all steps; none of the choices may differ."""
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
    for seed in range(60 if threads == 1 else 20):
        model, horizon = instance(seed, storage)
        if n_states is not None:
            model = random_model(seed, storage=storage, n_states=n_states, n_models=9)
            horizon = model.horizon or 12
        starts = [Start("wsu", None), *(Start("", x) for x in tables(model, horizon, seed % 4))]
        found, expected = (
            ascend_all(Context(model, horizon, kernel), starts, 0.0, 1000, "two-way")
            for kernel in (NumbaKernel(threads), kernels.get("numpy"))
        )
        assert_same_ascents(found, expected)


def test_lazy_sweeps_where_states_are_out_of_reach_and_actions_tie():
    for seed in range(40):
        model = random_model(
            seed, n_models=12, n_states=9, n_actions=4, masks=False, horizon=7 * (seed % 2)
        )
        r, rng, horizon = np.round(model.rewards), np.random.default_rng(seed), 7
        P = model.transitions.copy()
        P[..., 1, :] = P[..., 0, :]  # two actions that are the same
        r[..., 1] = r[..., 0]
        start = np.eye(model.n_states)[rng.integers(model.n_states)]
        few = mmdp.MMDP(P, r, initial=start, weights=model.weights, discount=0.9)
        init = mmdp.MarkovPolicy.random(few, horizon, seed)
        starts = [
            Start("wsu", None),
            Start("", init.table),
            *(Start("", x) for x in tables(few, 7, 3)),
        ]
        for some in (starts, starts[1:]):
            found, expected = (
                ascend_all(Context(few, horizon, kernels.get(backend)), some, 0.0, 1000, "two-way")
                for backend in ("numba", "numpy")
            )
            assert_same_ascents(found, expected)


def test_more_changes_than_lines_of_the_bar_widen_bounds_only(monkeypatch):
    bar, age = np.zeros((4, 3)), np.array([[0, 1], [2, 3], [-1, 3]], dtype=np.int16)
    bar[:] = np.arange(4)[:, None]
    now = climb._line_up(bar, age, 3)
    assert now == 3
    assert bar[:, 0].tolist() == [0.0, 2.0, 3.0, 3.0]
    assert age.tolist() == [[0, 0], [1, 2], [-1, 2]]  # none at a later line than it was


@pytest.mark.parametrize("sweeps", ["paper", "two-way"])
def test_many_starts_take_their_own_steps(sweeps):
    """Later starts use what earlier ones left behind; none of their choices may differ."""
    for seed in range(30):
        model, horizon = instance(seed)
        starts = [Start("wsu", None), *(Start("", x) for x in tables(model, horizon, 7))]
        found, expected = (
            ascend_all(Context(model, horizon, kernel), starts, 0.0, 1000, sweeps)
            for kernel in (NumbaKernel(2), kernels.get("numpy"))
        )
        assert_same_ascents(found, expected)


def test_another_start_is_valued_by_its_weights_and_may_be_the_end_itself():
    for seed in range(20):
        model, horizon = instance(seed)
        kernel = NumbaKernel(1)
        climbing = kernel.climb(model.problem, horizon, None)
        climbing.open()
        while climbing.sweep()[0]:
            pass
        end = climbing.actions.copy()
        for table in (*tables(model, horizon, 2), end):
            policy = mmdp.MarkovPolicy.for_model(model, table)
            exact = float(plain_returns(model, policy) @ model.weights)
            assert climbing.restart(table) == pytest.approx(exact, rel=1e-9, abs=1e-9)
        assert not climbing.sweep()[0]
        assert (climbing.actions == end).all()


@pytest.mark.parametrize("sweeps", ["paper", "two-way"])
def test_mixed_precision_is_exact_about_its_policy(sweeps):
    for seed in range(60):
        model, horizon = instance(seed)
        method = mmdp.CADP(sweeps=sweeps, starts=1 if seed % 3 else 4)
        mixed = mmdp.solve(model, horizon, method, precision="mixed", seed=1)
        double = mmdp.solve(model, horizon, method, backend="numba", seed=1)
        size = max(1.0, abs(double.value))
        assert abs(mixed.value - double.value) <= 1e-9 * size
        assert mixed.status is mmdp.Status.LOCAL_OPTIMUM
        exact = plain_returns(model, mixed.policy)
        np.testing.assert_allclose(mixed.returns, exact, rtol=1e-11, atol=1e-11 * size)
        assert (np.diff(mixed.trace) >= -1e-12 * size).all()
        G = np.nan_to_num(mmdp.gradient(model, mixed.policy), nan=-np.inf)
        taken = np.take_along_axis(G, mixed.policy.actions[:, :, None].astype(int), axis=2)
        assert (taken >= G - 1e-9 * size).all()


def test_probabilities_too_small_for_32_bits_are_read_in_64():
    P = np.array([[[[1 - 1e-60, 1e-60]], [[0.0, 1.0]]]] * 4)
    model = mmdp.MMDP(P, np.ones((4, 2, 1)))
    kernel = NumbaKernel(precision="mixed")
    assert kernel._in_32_bits(model.problem.p) is None
    assert kernel.climb(model.problem, 3, None).ground.p is model.problem.p
    other = random_model(3, n_models=4)
    assert kernel._in_32_bits(other.problem.p).dtype == np.float32


def test_precision_is_checked_and_reaches_the_kernel():
    model = random_model(3)
    with pytest.raises(mmdp.InputError, match="no precision is called 'half'; choose double or"):
        mmdp.solve(model, 3 if model.horizon is None else None, precision="half")
    with pytest.raises(mmdp.InputError, match="backend 'numpy' has no mixed precision"):
        kernels.get("numpy", precision="mixed")
    with pytest.raises(mmdp.InputError, match="a kernel has its own precision"):
        kernels.get(NumbaKernel(), precision="mixed")
    assert kernels.get("auto", 10, "mixed").precision == "mixed"


@pytest.mark.parametrize("seed", range(40))
def test_one_model_equals_numpy(seed):
    """The path of a single model, whole rows at a time; dense, sparse, masks, time, ties."""
    monkey = random_model(seed, n_models=1, n_states=7, storage=("dense", "sparse")[seed % 2])
    horizon = monkey.horizon or 6
    check_kernel_on(NumbaKernel(1 + seed % 3), monkey, horizon, seed)
    x = monkey.problem
    ties = x._replace(r=np.round(x.r))
    for weights in (x.prior_weights(), kernels.get("numpy").forward(x, horizon, first(monkey))):
        found, expected = (
            k.backward(ties, horizon, "weighted", weights=weights, policy=first(monkey))
            for k in (NumbaKernel(1), kernels.get("numpy"))
        )
        assert (found.actions == expected.actions).all()


@pytest.mark.parametrize("seed", range(60))
def test_actions_of_one_model_are_eliminated_without_a_change(seed, monkeypatch):
    """Gains and costs, discounted or not, masks, equal actions, rows that lead nowhere."""
    monkeypatch.setattr("mmdp.kernels.cpu.passes.LONG", 0)
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
    storage = ("dense", "sparse")[seed % 2]
    x = random_model(seed, n_models=1, n_states=9, n_actions=5, storage=storage, horizon=0).problem
    r, p = (np.round(x.r) if seed % 4 == 0 else x.r) - (seed % 3 - 1) * 4.0, x.p.copy()
    if seed % 5 == 0:
        p[:, x.indptr[7] : x.indptr[8]] = 0.0
    if seed % 4 == 0 and x.dense:  # two actions that are the same
        rows = p.reshape(9, 5, 9)
        rows[:, 1], r[:, :, 1] = rows[:, 0], r[:, :, 0]
    x = x._replace(r=np.ascontiguousarray(r), p=p, discount=(0.6, 0.95, 1.0)[seed // 2 % 3])
    found, expected = (
        kernel.backward(x, 60, "weighted", weights=x.prior_weights())
        for kernel in (NumbaKernel(1 + seed % 3), kernels.get("numpy"))
    )
    assert (found.actions == expected.actions).all()
    np.testing.assert_allclose(found.first, expected.first, rtol=1e-12, atol=1e-12)


def test_terminal_values_that_dwarf_all_others_lose_no_action(monkeypatch):
    monkeypatch.setattr("mmdp.kernels.cpu.passes.LONG", 0)
    for seed in range(20):
        x = random_model(seed, n_models=1, n_states=9, n_actions=5, masks=False, horizon=0).problem
        terminal = np.where(np.arange(9)[:, None] == seed % 9, (-1) ** seed * 1e16, 0.0)
        x = x._replace(terminal=terminal, discount=0.5)
        found, expected = (
            kernel.backward(x, 100, "weighted", weights=x.prior_weights())
            for kernel in (NumbaKernel(1), kernels.get("numpy"))
        )
        np.testing.assert_allclose(found.first, expected.first, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e36, 1e38, 1e40, 1e200])
def test_values_beyond_the_range_of_32_bits_are_no_less_exact(scale):
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
    found = NumbaKernel(1).backward(x, 200, "weighted", weights=x.prior_weights())
    assert found.actions is not None
    assert (found.actions < 3).all()


def check_kernel_on(kernel, model, horizon, seed) -> None:
    from mmdp.testing import _check_passes

    _check_passes(kernel, model, horizon, seed, 1e-9)


def first(model: mmdp.MMDP) -> np.ndarray:
    return mmdp.MarkovPolicy.random(model, model.horizon or 6, 0).table


# ------------------------------------------------------------------ threads in step
@jit()
def _relay(marks, rank, x, pieces, steps):  # type: ignore[no-untyped-def]
    """Each step reads what the whole step before wrote."""
    n = x.shape[1]
    while True:
        step, piece = march.take(marks, rank, pieces, steps)
        if step >= steps:
            return
        for i in range(n * piece // pieces, n * (piece + 1) // pieces):
            x[step + 1, i] = x[step, n - 1 - i] + i
        march.done(marks)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_in_step_see_all_of_the_step_before(threads, monkeypatch):
    n, steps, pieces = 50, 3000, 7
    expected = np.zeros(n)
    for _ in range(steps):
        expected = expected[::-1] + np.arange(n)
    x = np.zeros((steps + 1, n))
    monkeypatch.setattr(march, "_alone_until", 0.0)
    march.walk(Team.of(threads), n, lambda marks, rank: _relay(marks, rank, x, pieces, steps))
    assert (x[-1] == expected).all()


def test_a_helper_that_never_comes_is_not_waited_for():
    """One thread alone walks through work that was cut for many."""
    x = np.zeros((11, 9))
    _relay(march.new_marks(), 0, x, 8, 10)
    assert x[-1].any()


@pytest.mark.parametrize("times", [1, 30])
def test_all_but_one_leave_where_a_thread_is_held_up_often(times, monkeypatch):
    """Pieces that are taken and not finished for long: once is no reason to leave."""
    monkeypatch.setattr(march, "_alone_until", 0.0)
    monkeypatch.setattr(march, "_rest", 0.5)
    monkeypatch.setattr(march, "SHORTEST", 1_000_000)
    x, seen, left = np.zeros((41, 9)), [], []

    def call(marks: march.Marks, rank: int) -> None:
        seen.append(rank)
        if rank == 1:  # takes a piece, is held up, finishes it
            for _ in range(times):
                if march.take(marks, rank, 2, 40)[0] == 40:
                    return
                time.sleep(0.02)
                march.done(marks)
            return
        while not marks[march._TAKEN]:
            time.sleep(0.001)
        _relay(marks, rank, x, 2, 40)
        left.append(bool(marks[march._LEFT]))

    march.walk(Team.of(2), 0, call)
    assert sorted(seen) == [0, 1]
    assert left == [times > 1]
    march.walk(Team.of(2), 0, lambda marks, rank: seen.append(rank))
    assert sorted(seen[2:]) == ([0] if times > 1 else [0, 1])
    monkeypatch.setattr(march, "_alone_until", 0.0)
    monkeypatch.setattr(march, "_rest", 0.5)


@pytest.mark.parametrize("n_models", [50, 130])  # models fall into other blocks of vectors
@pytest.mark.parametrize("method", ["two-way", "paper", "starts", "oracle"])
def test_sweeps_are_the_same_for_any_number_of_threads(method, n_models, monkeypatch):
    monkeypatch.setattr("mmdp.kernels.cpu.passes.THREADS_PAY_FROM", 0)
    model = random_model(11, n_models=n_models, n_states=17, n_actions=3, horizon=0)
    options = {"starts": 6} if method == "starts" else {"sweeps": method}
    chosen = mmdp.Oracle() if method == "oracle" else mmdp.CADP(**options)
    one, *others = [
        mmdp.solve(model, 12, chosen, backend=NumbaKernel(n), seed=1) for n in (1, 2, 5)
    ]
    for other in others:
        assert other.policy == one.policy
        assert (other.returns == one.returns).all()
