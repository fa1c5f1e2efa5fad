"""Ctrl-C: the first gives the best so far, the next one raises, and nothing swallows both."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import measures
from mmdp.bounds import lp
from mmdp.clock import answer, unanswered
from mmdp.kernels import Plan, Problem
from mmdp.kernels.numpy.kernel import NumpyKernel
from mmdp.methods import Context, Method, Outcome
from mmdp.testing import random_model
from tests.processes import PATIENCE

MODEL = random_model(3, n_models=6, n_states=4, n_actions=3, horizon=0, discount=0.9)


class Interrupted(Method):
    """Ctrl-C after the first policy."""

    name = "interrupted"

    def run(self, context: Context) -> Outcome:
        policy, returns = context.wsu()
        context.record(policy, context.mean(returns))
        raise KeyboardInterrupt


def pressed(*_: Any) -> None:
    raise KeyboardInterrupt


def until_raised(call: Callable[[], Any]) -> list[Any]:
    """What twelve calls returned before KeyboardInterrupt ended them."""
    found = []
    try:
        for _ in range(12):
            found.append(call())  # noqa: PERF401
    except KeyboardInterrupt:
        return found
    raise AssertionError("nothing was raised")


# ---------------------------------------------------------------------- the rule
def test_every_second_interruption_is_raised() -> None:
    answer(KeyboardInterrupt())
    again = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        answer(again)
    with pytest.raises(KeyboardInterrupt):  # whoever catches it on its way passes it on
        answer(again)
    answer(KeyboardInterrupt())
    answer(TimeoutError())


def test_none_is_answered_inside_a_block() -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), unanswered():
            answer(KeyboardInterrupt())
    answer(KeyboardInterrupt())


@pytest.mark.parametrize(
    "call",
    [
        lambda: mmdp.solve(MODEL, 4, Interrupted()),
        lambda: mmdp.solve(MODEL, 4, callback=pressed),
        lambda: mmdp.solve(MODEL, 4, "gradient", callback=pressed),
        lambda: mmdp.solve(MODEL, 4, "exact", callback=pressed),
        lambda: mmdp.solve(MODEL, 4, "milp", callback=pressed),
    ],
    ids=["method", "cadp", "gradient", "exact", "milp"],
)
def test_a_loop_over_solves_ends(call: Callable[[], mmdp.Solution]) -> None:
    """Ctrl-C at every one of twelve solves: one is answered, the second ends the loop."""
    solutions = until_raised(call)
    assert [x.status for x in solutions] == [mmdp.Status.INTERRUPTED]
    assert solutions[0].value >= mmdp.solve(MODEL, 4, "wsu").value - 1e-9


def test_a_loop_over_bounds_ends() -> None:
    found = until_raised(lambda: mmdp.bound(MODEL, 4, time_limit=5, callback=pressed))
    assert len(found) == 1
    assert found[0].details["interrupted"]


def test_no_proof_is_begun_after_an_interruption() -> None:
    solution = mmdp.solve(MODEL, 4, Interrupted(), certify=1000)
    assert solution.status is mmdp.Status.INTERRUPTED
    assert solution.certificate is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: measures.stability(MODEL, 3, method=Interrupted()),
        lambda: measures.enough_models(MODEL, horizon=3, method=Interrupted()),
        lambda: measures.evpi(MODEL, 3, method=Interrupted()),
        lambda: mmdp.report.write(MODEL, "never.html", horizon=3, methods=[Interrupted()]),
    ],
    ids=["stability", "enough", "evpi", "report"],
)
def test_the_best_so_far_of_one_solve_is_no_result_of_many(
    call: Callable[[], Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- simulations
class Slow(NumpyKernel):
    """Ctrl-C when a planner has simulated some parts of its episodes."""

    name = "slow"

    def __init__(self, parts: int) -> None:
        self.parts = parts

    def plan(self, problem: Problem, horizon: int) -> Plan:
        made = super().plan(problem, horizon)
        plain = made.simulate

        def simulate(*args: Any, **options: Any) -> Any:
            self.parts -= 1
            if self.parts == -1:
                raise KeyboardInterrupt
            return plain(*args, **options)

        vars(made)["simulate"] = simulate
        return made


def test_an_interrupted_simulation_keeps_what_was_simulated() -> None:
    method = mmdp.QMDP(episodes=200)
    found = mmdp.solve(MODEL, 4, method, backend=Slow(parts=2))
    assert found.status is mmdp.Status.INTERRUPTED
    done = found.details["episodes"]
    assert 4 <= done < 200
    assert found.details["episodes_wanted"] == 200
    same = mmdp.solve(MODEL, 4, mmdp.QMDP(episodes=done), backend="numpy")
    np.testing.assert_allclose(found.returns, same.returns, rtol=1e-12)
    with pytest.raises(KeyboardInterrupt):
        mmdp.solve(MODEL, 4, method, backend=Slow(parts=2))
    with pytest.raises(KeyboardInterrupt):  # there is nothing to keep
        mmdp.solve(MODEL, 4, method, backend=Slow(parts=0))


def test_an_evaluation_has_no_best_so_far() -> None:
    planner = mmdp.solve(MODEL, 4, mmdp.QMDP(episodes=4)).policy
    with pytest.raises(KeyboardInterrupt):
        mmdp.evaluate(planner, MODEL, episodes=200, backend=Slow(parts=2))


# ---------------------------------------------------------------------- HiGHS
class Solver:
    """Ctrl-C while it works; works on until it is told to stop, or, if deaf, after that too."""

    def __init__(self, listens: bool) -> None:
        self.listens, self.told, self.left = listens, threading.Event(), threading.Event()

    def run(self) -> None:
        signal.raise_signal(signal.SIGINT)
        assert self.told.wait(PATIENCE)
        if not self.listens:
            signal.raise_signal(signal.SIGINT)
            assert self.left.wait(PATIENCE)

    def cancelSolve(self) -> None:
        self.told.set()


def test_the_solver_stops_when_asked() -> None:
    for _ in range(20):  # also while its thread is started
        assert lp._run(Solver(listens=True))


def test_a_solver_that_does_not_listen_is_left() -> None:
    solver = Solver(listens=False)
    with pytest.raises(KeyboardInterrupt):
        lp._run(solver)
    solver.left.set()


@pytest.mark.parametrize(
    "call",
    [lambda: mmdp.value_of_memory(MODEL, 4, (1, 2)), lambda: mmdp.measures.evpi(MODEL, 4)],
    ids=["value_of_memory", "evpi"],
)
def test_a_measure_of_several_solves_raises_at_once(
    call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        presses = iter([KeyboardInterrupt()])

        def once(_: Context, presses: Any = presses) -> None:
            for press in presses:
                raise press

        monkeypatch.setattr(Context, "check_time", once)
        with pytest.raises(KeyboardInterrupt):
            call()
