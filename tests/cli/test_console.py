"""The line that shows while a command works, on a real terminal and in a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import TIMEOUT, run_process

pty = pytest.importorskip("pty", reason="needs a terminal of its own")

PROGRAM = """
from mmdp.cli import main
from mmdp.core import timing
from mmdp.core.search.context import SolveContext

timing.LINE_DELAY, timing.REFRESH_INTERVAL, timing.PLAIN_INTERVAL = 0.0, -1.0, 0.0
timing.ProgressLine._run = lambda line: None  # no thread: a line after every iteration
plain = SolveContext.record

def record(*args, **options):
    plain(*args, **options)
    timing.progress_line.refresh()

SolveContext.record = record
main()
"""
LINE = r"mmdp solve: cadp, value ([\d.,]+) \(\d+ s\)"  # longer on a busy machine
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Solve by the command; return its stdout, and what a terminal or a pipe on stderr is sent."""
    monkeypatch.delenv("MMDP_PROGRESS")
    (tmp_path / "two.py").write_text("import mmdp\nmodels = mmdp.domains.two_models()\n")
    solve = (sys.executable, "-c", PROGRAM, "solve", "two.py:models", "-T", "3")

    def run_on_terminal(*options: str) -> tuple[str, str]:
        controller, terminal = pty.openpty()
        with run_process(*solve, *options, cwd=tmp_path, stderr=terminal) as process:
            os.close(terminal)
            sent = b""
            while True:
                try:
                    part = os.read(controller, 4096)
                except OSError:  # the other end was closed
                    break
                if not part:
                    break
                sent += part
            os.close(controller)
            out, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0
        return out, sent.decode()

    def run_command(*options: str, is_terminal: bool = False) -> tuple[str, str]:
        if is_terminal:
            return run_on_terminal(*options)
        with run_process(*solve, *options, cwd=tmp_path) as process:
            return process.communicate(timeout=TIMEOUT)

    return run_command


def test_a_line_shows_on_a_terminal_and_goes(run: Run) -> None:
    out, sent = run(is_terminal=True)
    values = re.findall(LINE, sent)
    assert f"{float(values[-1]):.3f}" in out  # the value that the command prints
    assert re.search(r"\r +\r$", sent)  # the line is wiped at the end
    assert "\n" not in sent


def test_a_pipe_gets_plain_lines(run: Run) -> None:
    out, err = run("--json")
    assert out.startswith("{")
    assert all(re.fullmatch(LINE, line) for line in err.splitlines())
    assert len(err.splitlines()) >= 2


@pytest.mark.parametrize("is_terminal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_quiet_command_prints_nothing(run: Run, is_terminal: bool) -> None:
    assert run("--quiet", is_terminal=is_terminal) == ("", "")


@pytest.mark.parametrize("is_terminal", [pytest.param(True, marks=pytest.mark.slow), False])
def test_no_line_shows_if_none_is_wanted(
    run: Run, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMDP_PROGRESS", "0")
    assert run(is_terminal=is_terminal)[1] == ""
