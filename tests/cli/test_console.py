"""Lines that show while work lasts, on a real terminal."""

from __future__ import annotations

import os
import sys

import pytest

from mmdp.cli.console import LiveLine, show_status
from tests.processes import TIMEOUT, run_process

pty = pytest.importorskip("pty", reason="needs a terminal of its own")


def run_on_terminal(code: str) -> tuple[str, str]:
    """stdout, and what a terminal on stderr is sent."""
    controller, terminal = pty.openpty()
    with run_process(sys.executable, "-c", code, stderr=terminal) as process:
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


NOTICE = (
    "from mmdp.cli import console\n"
    "console.SHOW_AFTER = 0.0\n"
    "with console.LiveLine('solving', quiet={quiet}) as live_line:\n"
    "    console.show_status('compiling for this machine, once')\n"
    "    {quiet} or live_line._timer.join()\n"
    "print('done')"
)


def test_a_notice_shows_in_the_live_line_and_goes_with_it() -> None:
    out, sent = run_on_terminal(NOTICE.format(quiet=False))
    assert out == "done\n"
    assert "compiling for this machine, once" in sent
    assert sent.rstrip("\r\n").endswith("\x1b[2K")  # the line is wiped at the end


def test_a_quiet_command_shows_no_notice() -> None:
    assert run_on_terminal(NOTICE.format(quiet=True)) == ("done\n", "")


def test_a_notice_outside_of_work_or_a_terminal_is_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_status("compiling")
    with LiveLine("solving") as live_line:
        show_status("compiling")
        live_line.show_step("RS: cadp", 1, 3)
    assert capsys.readouterr().err == ""
