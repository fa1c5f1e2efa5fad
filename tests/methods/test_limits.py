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
from mmdp import kernels
from mmdp.clock import Stop
from mmdp.kernels import endless
from mmdp.kernels.endless import Factorised, Iterated
from mmdp.kernels.numpy.episodes import Episodes
from mmdp.kernels.numpy.passes import Passes
from mmdp.methods import METHODS, Context
from mmdp.methods.belief_grid import _Recursion
from mmdp.methods.table import can
from mmdp.objective import Mean
from mmdp.testing import random_model

INF = math.inf
LIMIT = 6.0  # seconds
MODEL = random_model(5, n_models=3, n_states=4, n_actions=2, horizon=0, discount=0.9, masks=False)
KINDS: dict[str, Any] = {
    "free": None, "stationary": mmdp.Stationary(), "monotone": mmdp.Monotone(),
    "tied": mmdp.Tied([0, 0, 1, 1]), "tree": mmdp.Tree(leaves=2),
    "memory": mmdp.Memory(2), "randomised": mmdp.Stationary(randomised=True),
}  # fmt: skip

SHORT: dict[str, dict[str, int]] = {  # options for which a solve without a limit is quick
    "grid": {"points": 11}, "exact": {"max_nodes": 30}, "gradient": {"max_iterations": 9},
    "mirror": {"max_iterations": 9}, "qmdp": {"episodes": 4}, "rollout": {"episodes": 4},
    "mixts": {"episodes": 4}, "pomcp": {"episodes": 4, "queries": 4},
}  # fmt: skip


def method(name: str) -> Any:
    return METHODS[name](**SHORT.get(name, {}))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[float]]:
    """A function that makes a pass, or the values of a policy, take so many seconds."""

    def begin(seconds: float) -> list[float]:
        now = [0.0]
        fake = types.SimpleNamespace(perf_counter=lambda: now[0])
        monkeypatch.setattr("mmdp.clock.time", fake)

        def slow(owner: type, name: str, cost: float) -> None:
            work = getattr(owner, name)

            def timed(*args: Any, **options: Any) -> Any:
                now[0] += cost
                return work(*args, **options)

            monkeypatch.setattr(owner, name, timed)

        for name in ("backward", "forward"):
            slow(Passes, name, seconds)
        for name in ("inverse", "_matrix"):
            slow(Factorised, name, seconds / 2)
        slow(Episodes, "simulate", seconds / 4)
        slow(_Recursion, "_from_below", seconds / 20)
        step = Iterated._step

        def slow_steps(self: Iterated, policy: Any, transposed: bool) -> Any:
            move, rounds = step(self, policy, transposed)

            def moved(x: Any) -> Any:
                now[0] += seconds / 100
                return move(x)

            return moved, rounds

        monkeypatch.setattr(Iterated, "_step", slow_steps)
        return now

    return begin


def cases() -> list[Any]:
    """Method, horizon, kind of policy and bytes of matrices, as far as a method has them."""
    found = []
    for name, horizon, kind in itertools.product(METHODS, (5, INF), KINDS):
        # HiGHS has a clock of its own
        if name != "milp" and can(method(name), MODEL, horizon, Mean(), KINDS[kind]):
            sizes = [2**28, 0] if horizon == INF and name != "exact" else [2**28]
            found += [(name, horizon, kind, size) for size in sizes]
    return found


@pytest.mark.parametrize("seconds", [0.02, 0.5])
@pytest.mark.parametrize(("name", "horizon", "kind", "matrices"), cases())
def test_an_unfinished_result_says_so_and_limits_are_kept(
    name: str, horizon: float, kind: str, matrices: int, seconds: float, clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(endless, "MATRICES", matrices)
    options: Any = {"policy": KINDS[kind], "backend": "numpy"}
    now = clock(seconds)
    found = mmdp.solve(MODEL, horizon, method(name), time_limit=LIMIT, **options)
    assert now[0] <= LIMIT + 1 + 4 * seconds  # what is at work when the time is up, and returns
    if found.status not in (mmdp.Status.TIME_LIMIT, mmdp.Status.ITERATION_LIMIT):
        now = clock(0.0)
        whole = mmdp.solve(MODEL, horizon, method(name), **options)
        assert found.status is whole.status
        assert found.value == pytest.approx(whole.value, rel=1e-9)
    if found.policy is not None and getattr(found.policy, "exact", True):
        exact = mmdp.evaluate(found.policy, MODEL, backend="numpy").mean
        assert found.value == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("kind", [Factorised, Iterated])
def test_every_stop_leaves_a_policy(kind: type[Iterated], monkeypatch: pytest.MonkeyPatch) -> None:
    """However early the time is up: the clock is looked at once more each time."""
    monkeypatch.setattr(endless, "MATRICES", 2**28 if kind is Factorised else 0)
    best = mmdp.solve(MODEL, INF, "oracle").value
    for looks in range(0, 60, 3):
        for name in ("cadp", "mvp", "oracle", "grid"):
            ticks = itertools.count()
            late = property(lambda _, ticks=ticks, looks=looks: next(ticks) >= looks)
            monkeypatch.setattr("mmdp.clock.Stopwatch.late", late)
            found = mmdp.solve(MODEL, INF, method(name), time_limit=1.0, backend="numpy")
            assert found.value <= best + 1e-9
            if next(ticks) <= looks:
                assert found.status is not mmdp.Status.TIME_LIMIT


def test_mvp_without_a_last_decision_is_unfinished_or_the_optimum_of_the_average() -> None:
    """Against value iteration on the average model."""
    found = mmdp.solve(MODEL, INF, "mvp", time_limit=1e-9)
    assert found.status is mmdp.Status.TIME_LIMIT
    P = np.tensordot(MODEL.weights, MODEL.transitions, 1)
    r = np.tensordot(MODEL.weights, MODEL.rewards, 1)
    v = np.zeros(MODEL.n_states)
    for _ in range(2000):
        q = r + MODEL.discount * P @ v
        v = q.max(axis=1)
    whole = mmdp.solve(MODEL, INF, "mvp", time_limit=1e9)
    assert whole.status is mmdp.Status.COMPLETED
    assert whole.policy.actions.tolist() == q.argmax(axis=1).tolist()


def test_the_clock_stops_nothing_before_there_is_a_policy() -> None:
    context = Context(MODEL, 4, kernels.get("numpy"), time_limit=1e-9)
    context.check_time()
    with pytest.raises(Stop):
        context.time.check()
    policy, returns = context.wsu()
    context.keep(policy, context.mean(returns))
    with pytest.raises(Stop):
        context.check_time()
    with pytest.raises(Stop):  # also inside, where the record is another
        context.quiet().check_time()


@pytest.mark.parametrize("discount", [0.5, 0.99, 0.9999])
def test_iterated_values_are_those_of_linear_algebra(discount: float) -> None:
    model = random_model(7, n_models=2, n_states=30, n_actions=2, horizon=0, discount=discount)
    row = np.arange(30) % 2
    row = np.where(model.allowed[np.arange(30), row], row, model.allowed.argmax(axis=1))
    row = row.astype(np.int32)
    values, visits = (getattr(Iterated(model.problem), x)(row) for x in ("values", "visits"))
    for m in range(2):
        P, r = model.transitions[m, np.arange(30), row], model.problem.r[0][np.arange(30), row, m]
        A = np.eye(30) - discount * P
        np.testing.assert_allclose(values[m], np.linalg.solve(A, r), rtol=1e-10)
        start = np.linalg.solve(A.T, model.problem.begins(m))
        np.testing.assert_allclose(visits[m], start, rtol=1e-9, atol=1e-12)
