"""Ctrl-C, and the line of progress.

The first Ctrl-C gives the best so far, the next one raises, and nothing swallows both.
"""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core import timing
from mmdp.core.arguments import check_arguments
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.methods import Method, MethodResult, SolveContext
from mmdp.core.testing import make_random_model
from mmdp.core.timing import (
    Progress,
    accept_interrupt,
    progress_line,
    propagate_interrupts,
    run_cancellable,
    show_progress,
    solver_clock,
)
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


def test_the_solver_stops_at_the_deadline() -> None:
    cancelled = threading.Event()
    was_interrupted = run_cancellable(
        lambda: cancelled.wait(TIMEOUT), cancelled.set, deadline=solver_clock()
    )
    assert cancelled.is_set()
    assert not was_interrupted


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


# ---------------------------------------------------------------------- progress
class Terminal(io.StringIO):
    """A terminal, or a file if ``is_terminal`` is false, and the line that stands there."""

    is_terminal = True

    def isatty(self) -> bool:
        return self.is_terminal

    @property
    def line(self) -> str:
        """What the last line shows: text after a carriage return goes over what was there."""
        shown = ""
        for text in self.getvalue().split("\r"):
            shown = text + shown[len(text) :]
        return shown.rstrip()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(timing, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.delenv("MMDP_PROGRESS")
    monkeypatch.setenv("COLUMNS", "80")
    return terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the one line, which tests refresh themselves."""
    assert progress_line.calls == []
    clock = Clock()
    monkeypatch.setattr(timing.ProgressLine, "_run", lambda line: None)
    monkeypatch.setattr(progress_line, "clock", clock)
    monkeypatch.setattr(progress_line, "_thread", None)
    return clock


def test_a_line_appears_after_two_seconds_and_goes(terminal: Terminal, clock: Clock) -> None:
    with progress_line.open("solve") as call:
        clock.now += 1.9
        progress_line.refresh()
        assert terminal.getvalue() == ""
        clock.now += 0.2
        progress_line.refresh()
        assert terminal.line == "mmdp solve (2 s)"
        call.activity = Progress("cadp", 3, 1.0, 1234.5, bound=1300.0)
        clock.now += 7
        progress_line.refresh()
        assert terminal.line == (
            "mmdp solve: cadp, value 1,234.500, at most 1,300.000, gap 5.4% (9 s)"
        )
        call.activity = "wsu"
        progress_line.refresh()
        assert "cadp" in terminal.line  # not yet
        clock.now += 1
        progress_line.refresh()
        assert terminal.line == "mmdp solve: wsu (10 s)"
        progress_line.wipe()
        assert terminal.line == ""
        clock.now += 1
        call.activity = "x" * 100
        progress_line.refresh()
        assert len(terminal.line) == 79
    assert terminal.line == ""


def test_a_solve_says_what_it_does_before_the_first_value(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[object] = []
    monkeypatch.setattr(progress_line, "update", texts.append)
    mmdp.solve(MODEL, 4, policy_class=mmdp.policies.Fixed({0: 0}), backend="numpy")
    assert texts == ["cadp, preparing the models", "cadp, initial policy 1 (wsu)"]


def test_inner_calls_join_the_line(terminal: Terminal, clock: Clock) -> None:
    with progress_line.open("study"):
        progress_line.update("3 of 12")
        clock.now += 5
        with progress_line.open("solve"), progress_line.open("bound"):
            progress_line.update("pairs")
            progress_line.refresh()
            assert terminal.line == "mmdp study: 3 of 12; pairs (5 s)"
        clock.now += 1
        progress_line.refresh()
        assert terminal.line == "mmdp study: 3 of 12 (6 s)"
    with progress_line.open("solve"):
        progress_line.refresh()
        assert terminal.line == ""  # the two seconds begin anew


@pytest.mark.parametrize(
    ("setting", "is_terminal", "n_lines"),
    [("", False, 0), ("1", False, 3), ("0", False, 0), ("0", True, 0), ("1", True, 1)],
)
def test_where_a_line_is_shown(
    setting: str,
    is_terminal: bool,
    n_lines: int,
    terminal: Terminal,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MMDP_PROGRESS", setting)
    terminal.is_terminal = is_terminal
    with progress_line.open("solve"):
        for _ in range(35):
            clock.now += 1
            progress_line.refresh()
        lines = [f"mmdp solve ({n} s)" for n in (10, 20, 30)]
        assert terminal.line.splitlines() == (
            ["mmdp solve (35 s)"] if n_lines == 1 else lines[:n_lines]
        )


def test_a_notebook_shows_the_line(terminal: Terminal, clock: Clock) -> None:
    notebook = type("OutStream", (Terminal,), {"__module__": "ipykernel.iostream"})
    terminal.__class__ = notebook
    terminal.is_terminal = False
    with progress_line.open("solve"):
        clock.now += 3
        progress_line.refresh()
        assert terminal.line == "mmdp solve (3 s)"
    assert terminal.line == ""


@pytest.mark.parametrize("has_parent", [True, False])
def test_worker_processes_are_silent(
    has_parent: bool, terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = object() if has_parent else None
    monkeypatch.setattr("multiprocessing.parent_process", lambda: parent)
    with progress_line.open("solve"):
        clock.now += 3
        progress_line.refresh()
        assert (terminal.line == "") is has_parent


def test_threads_are_silent(terminal: Terminal, clock: Clock) -> None:
    def work() -> None:
        with progress_line.open("evaluate"):
            progress_line.update("in a thread")
            assert [x.name for x in progress_line.calls] == ["solve"]

    with ThreadPoolExecutor() as pool, progress_line.open("solve"):
        show = show_progress()
        pool.submit(work).result()
        clock.now += 3
        progress_line.refresh()
        assert terminal.line == "mmdp solve (3 s)"
        pool.submit(show, "milp").result()  # a callback that another thread calls
        clock.now += 3
        progress_line.refresh()
        assert terminal.line == "mmdp solve: milp (6 s)"


@pytest.mark.parametrize("stream", ["none", "closed", "full", "bare"])
def test_calls_work_without_a_sound_stderr(
    stream: str, terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(terminal, "write", refuse)
    streams = {"none": None, "closed": closed, "full": terminal, "bare": object()}
    monkeypatch.setattr(timing, "sys", SimpleNamespace(stderr=streams[stream]))
    with progress_line.open("solve"):
        clock.now += 3
        progress_line.refresh()
    assert progress_line.calls == []


def test_an_interrupt_ends_the_line(terminal: Terminal, clock: Clock) -> None:
    @check_arguments
    def solve() -> None:
        clock.now += 3
        progress_line.refresh()
        assert terminal.line.endswith(".solve (3 s)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), progress_line.open("study"):
        solve()
    assert terminal.line == ""
    assert progress_line.calls == []


def test_a_thread_refreshes_the_line_while_a_call_lasts(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, clock = threading.Event(), Clock()
    line = timing.ProgressLine(clock)
    monkeypatch.setattr(timing, "REFRESH_INTERVAL", 0.001)
    monkeypatch.setattr(terminal, "flush", written.set)
    with line.open("solve"):
        thread = line._thread
        clock.now += 2
        assert written.wait(TIMEOUT)
    assert terminal.line == ""
    assert thread is not None
    thread.join(TIMEOUT)  # it ends when no call is left
    assert line._thread is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_begins_anew() -> None:
    with progress_line.open("study"), progress_line._lock:
        if (pid := os.fork()) == 0:
            is_new = not progress_line.calls and progress_line._lock.acquire(blocking=False)
            os._exit(0 if is_new else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_public_functions_show_what_they_do(terminal: Terminal, clock: Clock) -> None:
    lines: list[str] = []

    def refresh(_: object) -> None:
        clock.now += 3
        progress_line.refresh()
        lines.append(terminal.line)

    plain = mmdp.solve(MODEL, 4, certify_time=5)
    solution = mmdp.solve(MODEL, 4, certify_time=5, callback=refresh)
    assert lines[0].startswith(f"mmdp solve: cadp, value {solution.trace[0]:.4f}")
    assert f"value {solution.value:.4f}, at most {solution.bound:.4f}" in lines[-1]
    assert terminal.line == ""
    assert (plain.value, plain.bound, plain.status) == (
        solution.value,
        solution.bound,
        solution.status,
    )
    lines.clear()
    mmdp.study(MODEL, 4, ["wsu", "mvp"], callback=refresh)
    assert [line.partition(",")[0] for line in lines] == [
        "mmdp study: 1 of 2",
        "mmdp study: 2 of 2",
    ]
    lines.clear()
    mmdp.bound(MODEL, 4, time_limit=5, callback=refresh)
    assert all(line.startswith("mmdp bound: ") and "at most" in line for line in lines)
    assert lines
