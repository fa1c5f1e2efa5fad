"""Time limits: kept by every method, and an unfinished result says so.

By a clock on which only the work counted here takes time: passes, steps of an iteration,
factorisations, episodes and states of a grid.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.kernels import infinite
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.kernels.numpy.passes import Passes, TableSweeper
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.methods import METHODS, SolveContext
from mmdp.core.methods.belief_grid import _GridRecursion
from mmdp.core.methods.registry import supports
from mmdp.core.objectives import Mean
from mmdp.core.search.rows import MonotoneRows
from mmdp.core.search.trees import TreeSpace
from mmdp.core.testing import make_random_model
from mmdp.core.timing import TimeUp

INF = math.inf
LIMIT = 6.0  # seconds
MODEL = make_random_model(
    5, n_models=3, n_states=4, n_actions=2, horizon=0, discount=0.9, has_masks=False
)
POLICY_CLASSES: dict[str, Any] = {
    "free": None,
    "stationary": mmdp.policies.Stationary(),
    "monotone": mmdp.policies.Monotone(),
    "tied": mmdp.policies.Tied([0, 0, 1, 1]),
    "tree": mmdp.policies.Tree(max_leaves=2),
    "memory": mmdp.policies.Memory(2),
    "randomized": mmdp.policies.Stationary(randomized=True),
}

QUICK_OPTIONS: dict[str, dict[str, int]] = {  # options for which a solve without a limit is quick
    "grid": {"max_points": 11},
    "exact": {"max_nodes": 30},
    "gradient": {"max_iter": 9},
    "mirror": {"max_iter": 9},
    "qmdp": {"n_episodes": 4},
    "rollout": {"n_episodes": 4},
    "mixts": {"n_episodes": 4},
    "pomcp": {"n_episodes": 4, "n_queries": 4},
}


def make_method(name: str) -> Any:
    return METHODS[name](**QUICK_OPTIONS.get(name, {}))


@pytest.fixture
def start_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[float]]:
    """A function that makes a pass, or the values of a policy, take so many seconds."""

    def start(seconds: float) -> list[float]:
        clock = [0.0]
        fake = types.SimpleNamespace(perf_counter=lambda: clock[0])
        monkeypatch.setattr("mmdp.core.timing.time", fake)

        def slow_down(owner: type, name: str, duration: float) -> None:
            original = getattr(owner, name)

            def timed(*args: Any, **options: Any) -> Any:
                clock[0] += duration
                return original(*args, **options)

            monkeypatch.setattr(owner, name, timed)

        for name in ("backward", "forward"):
            slow_down(Passes, name, seconds)
        for name in ("compute_inverse", "_build_matrix"):
            slow_down(DirectSolver, name, seconds / 2)
        slow_down(PreparedProblem, "simulate", seconds / 4)
        slow_down(_GridRecursion, "_backup_state", seconds / 20)
        original_step = InfiniteHorizon._make_step

        def make_slow_step(self: InfiniteHorizon, system: Any) -> Any:
            step_once = original_step(self, system)

            def slow_step(x: Any) -> Any:
                start = clock[0]
                product = step_once(x)
                clock[0] = start + seconds / 100
                return product

            return slow_step

        monkeypatch.setattr(InfiniteHorizon, "_make_step", make_slow_step)
        return clock

    return start


def list_cases() -> list[Any]:
    """Method, horizon, kind of policy and bytes of matrices, as far as a method has them."""
    combinations = []
    for name, horizon, class_name in itertools.product(METHODS, (5, INF), POLICY_CLASSES):
        # HiGHS has a clock of its own
        if name != "milp" and supports(
            make_method(name), MODEL, horizon, Mean(), POLICY_CLASSES[class_name]
        ):
            sizes = [2**28, 0] if horizon == INF and name != "exact" else [2**28]
            combinations += [(name, horizon, class_name, size) for size in sizes]
    return combinations


@pytest.mark.parametrize("seconds", [0.02, 0.5])
@pytest.mark.parametrize(("name", "horizon", "class_name", "max_matrix_bytes"), list_cases())
def test_unfinished_results_say_so_and_limits_hold(
    name: str,
    horizon: float,
    class_name: str,
    max_matrix_bytes: int,
    seconds: float,
    start_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(infinite, "MAX_MATRIX_BYTES", max_matrix_bytes)
    options: Any = {"policy_class": POLICY_CLASSES[class_name], "backend": "numpy"}
    clock = start_clock(seconds)
    solution = mmdp.solve(MODEL, horizon, make_method(name), time_limit=LIMIT, **options)
    assert clock[0] <= LIMIT + 1 + 4 * seconds  # what is at work when the time is up, and returns
    if solution.status not in (mmdp.Status.TIME_LIMIT, mmdp.Status.ITERATION_LIMIT):
        clock = start_clock(0.0)
        completed = mmdp.solve(MODEL, horizon, make_method(name), **options)
        assert solution.status is completed.status
        assert solution.value == pytest.approx(completed.value, rel=1e-9)
    if solution.policy is not None and getattr(solution.policy, "has_exact_returns", True):
        exact = mmdp.evaluate(MODEL, solution.policy, backend="numpy").mean
        assert solution.value == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("policy_class", "objective", "owner", "name"),
    [
        (mmdp.policies.Tree(max_leaves=3), "mean", TreeSpace, "_iter_side_sums"),
        (mmdp.policies.Monotone(), "cvar:0.5", MonotoneRows, "find_alternatives"),
    ],
)
def test_a_search_with_slow_parts_keeps_its_limit(
    policy_class: Any, objective: str, owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fits of trees, and changes of restricted rows, look at the clock themselves."""
    original, clock = getattr(owner, name), [0.0]

    def take_a_second(*args: Any) -> Any:
        clock[0] += 1.0
        return original(*args)

    fake = types.SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("mmdp.core.timing.time", fake)
    monkeypatch.setattr(owner, name, take_a_second)
    options: Any = {"policy_class": policy_class, "objective": objective, "backend": "numpy"}
    model = make_random_model(5, n_models=3, n_states=12, n_actions=2, horizon=0, has_masks=False)
    solution = mmdp.solve(model, 3, time_limit=3.0, **options)
    assert solution.status is mmdp.Status.TIME_LIMIT
    assert clock[0] <= 5.0


def test_no_sweep_begins_that_cannot_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps, and what completes a policy after them, do not look at the clock."""
    clock, original_sweep = [0.0], TableSweeper.sweep
    fake = types.SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("mmdp.core.timing.time", fake)

    def take_a_second(self: TableSweeper, policy: Any) -> Any:
        clock[0] += 1.0
        return original_sweep(self, policy)

    monkeypatch.setattr(TableSweeper, "sweep", take_a_second)
    for limit in (3.5, 6.0):
        clock[0] = 0.0
        solution = mmdp.solve(
            MODEL, 9, mmdp.methods.CADP(n_init=50), time_limit=limit, backend="numpy"
        )
        assert solution.status is mmdp.Status.TIME_LIMIT
        assert limit - 3.0 <= clock[0] <= limit - 1.0


@pytest.mark.parametrize("solver_class", [DirectSolver, InfiniteHorizon])
def test_every_stop_leaves_a_policy(
    solver_class: type[InfiniteHorizon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However early the time is up: the clock is looked at once more each time."""
    monkeypatch.setattr(infinite, "MAX_MATRIX_BYTES", 2**28 if solver_class is DirectSolver else 0)
    best = mmdp.solve(MODEL, INF, "oracle").value
    for n_checks in range(0, 60, 3):
        for name in ("cadp", "mvp", "oracle", "grid"):
            ticks = itertools.count()
            is_expired = property(lambda _, ticks=ticks, n_checks=n_checks: next(ticks) >= n_checks)
            monkeypatch.setattr("mmdp.core.timing.Stopwatch.is_expired", is_expired)
            solution = mmdp.solve(MODEL, INF, make_method(name), time_limit=1.0, backend="numpy")
            assert solution.value <= best + 1e-9
            if next(ticks) <= n_checks:
                assert solution.status is not mmdp.Status.TIME_LIMIT


def test_infinite_horizon_mvp_equals_value_iteration() -> None:
    """Against value iteration on the average model."""
    solution = mmdp.solve(MODEL, INF, "mvp", time_limit=1e-9)
    assert solution.status is mmdp.Status.TIME_LIMIT
    P = np.tensordot(MODEL.weights, MODEL.transitions, 1)
    r = np.tensordot(MODEL.weights, MODEL.rewards, 1)
    v = np.zeros(MODEL.n_states)
    for _ in range(2000):
        q = r + MODEL.discount * P @ v
        v = q.max(axis=1)
    completed = mmdp.solve(MODEL, INF, "mvp", time_limit=1e9)
    assert completed.status is mmdp.Status.COMPLETED
    assert completed.policy.actions.tolist() == q.argmax(axis=1).tolist()


def test_the_clock_stops_nothing_before_there_is_a_policy() -> None:
    context = SolveContext(MODEL, 4, kernels.get_backend("numpy"), time_limit=1e-9)
    context.check_time()
    with pytest.raises(TimeUp):
        context.stopwatch.raise_if_expired()
    policy, returns = context.solve_wsu()
    context.keep_best(policy, context.compute_mean(returns))
    with pytest.raises(TimeUp):
        context.check_time()
    with pytest.raises(TimeUp):  # also inside, where the record is another
        context.subcontext().check_time()


@pytest.mark.parametrize("discount", [0.5, 0.99, 0.9999])
def test_iterative_values_equal_linear_algebra(discount: float) -> None:
    model = make_random_model(7, n_models=2, n_states=30, n_actions=2, horizon=0, discount=discount)
    row = np.arange(30) % 2
    row = np.where(model.allowed[np.arange(30), row], row, model.allowed.argmax(axis=1))
    row = row.astype(np.int32)
    values, occupancy = (
        getattr(InfiniteHorizon(model.problem), x)(row)
        for x in ("compute_values", "compute_occupancy")
    )
    for m in range(2):
        P, r = model.transitions[m, np.arange(30), row], model.problem.r[0][np.arange(30), row, m]
        A = np.eye(30) - discount * P
        np.testing.assert_allclose(values[m], np.linalg.solve(A, r), rtol=1e-10)
        expected_occupancy = np.linalg.solve(A.T, model.problem.get_initial(m))
        np.testing.assert_allclose(occupancy[m], expected_occupancy, rtol=1e-9, atol=1e-12)


def test_memory_copies_longer_than_the_time_left_are_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mmdp.core.search.controllers.COPY_SECONDS", 1e9)
    options: Any = {"policy_class": mmdp.policies.Memory(2), "backend": "numpy"}
    assert mmdp.solve(MODEL, 5, **options).status is mmdp.Status.LOCAL_OPTIMUM
    stopped = mmdp.solve(MODEL, 5, time_limit=1e6, **options)
    assert stopped.status is mmdp.Status.TIME_LIMIT
    assert stopped.value == pytest.approx(mmdp.solve(MODEL, 5, backend="numpy").value, rel=1e-12)


def test_monotone_rows_of_many_states_take_little_memory() -> None:
    n_states = 100_000
    restriction = MonotoneRows([np.arange(n_states)], np.arange(2))
    assert restriction.membership.data.nbytes <= 8 * n_states
    G = np.zeros((n_states, 2))
    G[: n_states // 2, 0] = G[n_states // 2 :, 1] = 1.0
    assert restriction.choose_row(G, G, None).tolist() == G.argmax(axis=1).tolist()
