"""Lines that show while work lasts, on a real terminal."""

from __future__ import annotations

import os
import sys

import pytest

from mmdp.cli.console import Steps, Working, notice
from tests.processes import PATIENCE, running

pty = pytest.importorskip("pty", reason="needs a terminal of its own")


def on_a_terminal(code: str) -> tuple[str, str]:
    """stdout, and what a terminal on stderr is sent."""
    ours, theirs = pty.openpty()
    with running(sys.executable, "-c", code, stderr=theirs) as process:
        os.close(theirs)
        sent = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            sent += part
        os.close(ours)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return out, sent.decode()


NOTICE = (
    "from mmdp.cli import console\n"
    "console.SHOW_AFTER = 0.0\n"
    "with console.Working('solving', quiet={quiet}) as working:\n"
    "    console.notice('compiling for this machine, once')\n"
    "    {quiet} or working._timer.join()\n"
    "print('done')"
)


def test_a_notice_shows_in_the_live_line_and_goes_with_it() -> None:
    out, sent = on_a_terminal(NOTICE.format(quiet=False))
    assert out == "done\n"
    assert "compiling for this machine, once" in sent
    assert sent.rstrip("\r\n").endswith("\x1b[2K")  # the line is wiped at the end


def test_a_quiet_command_shows_no_notice() -> None:
    assert on_a_terminal(NOTICE.format(quiet=True)) == ("done\n", "")


def test_a_notice_outside_of_work_or_a_terminal_is_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notice("compiling")
    with Working("solving"):
        notice("compiling")
    with Steps() as steps:
        steps.say("RS: cadp", 1, 3)
        notice("compiling")
    assert capsys.readouterr().err == "  1/3 RS\n"
