"""Ctrl-C: the first gives the best so far, the next one raises, and nothing swallows both."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.methods import Method, MethodResult, SolveContext
from mmdp.core.testing import make_random_model
from mmdp.core.timing import accept_interrupt, propagate_interrupts, run_cancellable
from mmdp.insight import measures
from tests.processes import TIMEOUT

MODEL = make_random_model(3, n_models=6, n_states=4, n_actions=3, horizon=0, discount=0.9)


class InterruptedMethod(Method):
    """Ctrl-C after the first policy."""

    name = "interrupted"

    def run(self, context: SolveContext) -> MethodResult:
        policy, returns = context.solve_wsu()
        context.record(policy, context.compute_mean(returns))
        raise KeyboardInterrupt


def press_ctrl_c(*_: Any) -> None:
    raise KeyboardInterrupt


def call_until_interrupted(call: Callable[[], Any]) -> list[Any]:
    """What twelve calls returned before KeyboardInterrupt ended them."""
    results = []
    try:
        for _ in range(12):
            results.append(call())  # noqa: PERF401
    except KeyboardInterrupt:
        return results
    raise AssertionError("nothing was raised")


# ---------------------------------------------------------------------- the rule
def test_every_second_interruption_is_raised() -> None:
    accept_interrupt(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as second_interrupt:
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # whoever catches it on its way passes it on
        accept_interrupt(second_interrupt.value)
    accept_interrupt(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        accept_interrupt(KeyboardInterrupt())
    accept_interrupt(KeyboardInterrupt())
    accept_interrupt(TimeoutError())


def test_every_interrupt_is_raised_inside_a_block() -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), propagate_interrupts():
            accept_interrupt(KeyboardInterrupt())
    accept_interrupt(KeyboardInterrupt())


@pytest.mark.parametrize(
    "call",
    [
        lambda: mmdp.solve(MODEL, 4, InterruptedMethod()),
        lambda: mmdp.solve(MODEL, 4, callback=press_ctrl_c),
        lambda: mmdp.solve(MODEL, 4, "gradient", callback=press_ctrl_c),
        lambda: mmdp.solve(MODEL, 4, "exact", callback=press_ctrl_c),
        lambda: mmdp.solve(MODEL, 4, "milp", callback=press_ctrl_c),
    ],
    ids=["method", "cadp", "gradient", "exact", "milp"],
)
def test_a_loop_over_solves_ends(call: Callable[[], mmdp.Solution]) -> None:
    """Ctrl-C at every one of twelve solves: one is answered, the second ends the loop."""
    solutions = call_until_interrupted(call)
    assert [x.status for x in solutions] == [mmdp.Status.INTERRUPTED]
    assert solutions[0].value >= mmdp.solve(MODEL, 4, "wsu").value - 1e-9


def test_a_loop_over_bounds_ends() -> None:
    bounds = call_until_interrupted(
        lambda: mmdp.bound(MODEL, 4, time_limit=5, callback=press_ctrl_c)
    )
    assert len(bounds) == 1
    assert bounds[0].details["is_interrupted"]


def test_no_proof_is_begun_after_an_interruption() -> None:
    solution = mmdp.solve(MODEL, 4, InterruptedMethod(), certify_time=1000)
    assert solution.status is mmdp.Status.INTERRUPTED
    assert solution.certificate is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: measures.stability(MODEL, 3, method=InterruptedMethod()),
        lambda: measures.sample_size_curve(MODEL, horizon=3, method=InterruptedMethod()),
        lambda: measures.evpi(MODEL, 3, method=InterruptedMethod()),
        lambda: mmdp.report.write(MODEL, "never.html", horizon=3, methods=[InterruptedMethod()]),
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
class InterruptedBackend(NumpyBackend):
    """Ctrl-C when a planner has simulated some parts of its episodes."""

    name = "slow"

    def __init__(self, n_parts: int) -> None:
        self.n_parts = n_parts

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        prepared = super().prepare(problem, horizon)
        original = prepared.simulate

        def simulate(*args: Any, **options: Any) -> Any:
            self.n_parts -= 1
            if self.n_parts == -1:
                raise KeyboardInterrupt
            return original(*args, **options)

        vars(prepared)["simulate"] = simulate
        return prepared


def test_an_interrupted_simulation_keeps_what_was_simulated() -> None:
    method = mmdp.methods.QMDP(n_episodes=200)
    solution = mmdp.solve(MODEL, 4, method, backend=InterruptedBackend(n_parts=2))
    assert solution.status is mmdp.Status.INTERRUPTED
    n_episodes = solution.details["n_episodes"]
    assert 4 <= n_episodes < 200
    assert solution.details["n_episodes_requested"] == 200
    same_solution = mmdp.solve(MODEL, 4, mmdp.methods.QMDP(n_episodes=n_episodes), backend="numpy")
    np.testing.assert_allclose(solution.returns, same_solution.returns, rtol=1e-12)
    with pytest.raises(KeyboardInterrupt):
        mmdp.solve(MODEL, 4, method, backend=InterruptedBackend(n_parts=2))
    with pytest.raises(KeyboardInterrupt):  # there is nothing to keep
        mmdp.solve(MODEL, 4, method, backend=InterruptedBackend(n_parts=0))


def test_an_evaluation_has_no_best_so_far() -> None:
    planner = mmdp.solve(MODEL, 4, mmdp.methods.QMDP(n_episodes=4)).policy
    with pytest.raises(KeyboardInterrupt):
        mmdp.evaluate(MODEL, planner, n_episodes=200, backend=InterruptedBackend(n_parts=2))


# ---------------------------------------------------------------------- HiGHS
class FakeSolver:
    """Ctrl-C while it works; works on until it is told to stop, or, if deaf, after that too."""

    def __init__(self, can_cancel: bool) -> None:
        self.can_cancel, self.cancelled, self.released = (
            can_cancel,
            threading.Event(),
            threading.Event(),
        )

    def run(self) -> None:
        signal.raise_signal(signal.SIGINT)
        assert self.cancelled.wait(TIMEOUT)
        if not self.can_cancel:
            signal.raise_signal(signal.SIGINT)
            assert self.released.wait(TIMEOUT)

    def cancelSolve(self) -> None:
        self.cancelled.set()


def _run(solver: FakeSolver) -> bool:
    return run_cancellable(solver.run, solver.cancelSolve)


def test_the_solver_stops_when_asked() -> None:
    for _ in range(20):  # also while its thread is started
        assert _run(FakeSolver(can_cancel=True))


def test_a_solver_that_does_not_listen_is_left() -> None:
    solver = FakeSolver(can_cancel=False)
    with pytest.raises(KeyboardInterrupt):
        _run(solver)
    solver.released.set()


@pytest.mark.parametrize(
    "call",
    [lambda: mmdp.measures.value_by_nodes(MODEL, 4, (1, 2)), lambda: mmdp.measures.evpi(MODEL, 4)],
    ids=["value_of_memory", "evpi"],
)
def test_a_measure_of_several_solves_raises_at_once(
    call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        presses = iter([KeyboardInterrupt()])

        def once(_: SolveContext, presses: Any = presses) -> None:
            for press in presses:
                raise press

        monkeypatch.setattr(SolveContext, "check_time", once)
        with pytest.raises(KeyboardInterrupt):
            call()
