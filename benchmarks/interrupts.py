"""How long every long command goes on after Ctrl-C, at random moments of its run.

    python -m benchmarks.interrupts [--moments 5] [--commands solve,bound] [--seed 0]

Moments are CPU seconds after the program was loaded, drawn from 0 to 5, so that a busy machine
interrupts the same work. One line per command: for every moment the seconds from Ctrl-C to the end
and, in brackets, the CPU seconds that they took, which other programs hardly change. An exit
status other than 130 is shown after them. The commands are those of ``tests/cli/test_ctrl_c.py``.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cli.test_ctrl_c import COMMANDS, PROGRAM, prepare
from tests.processes import PATIENCE, cpu_seconds, running, wait_for_cpu

from benchmarks.table import Columns

LAST = 5.0  # CPU seconds, the latest moment
LOOK = 0.01  # seconds between two looks at the process


def interrupted(arguments: list[str], place: Path, moment: float) -> str:
    """The cell for one moment."""
    quiet = {"stderr": subprocess.DEVNULL, "cwd": place}
    with running(sys.executable, "-c", PROGRAM, *arguments, **quiet) as process:
        assert process.stdout is not None
        process.stdout.readline()  # "loaded"
        wait_for_cpu(process, moment)
        before, sent = cpu_seconds(process.pid), time.perf_counter()
        process.send_signal(signal.SIGINT)
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            took = time.perf_counter() - sent
            if ended:
                break
            if took > PATIENCE:
                process.kill()
            time.sleep(LOOK)
        process.returncode = os.waitstatus_to_exitcode(status)
    spent = usage.ru_utime + usage.ru_stime - before
    code = "" if process.returncode == 130 else f" exit {process.returncode}"
    return f"{took:.1f} ({spent:.1f}){code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--moments", type=int, default=5)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    draw = random.Random(options.seed)
    moments = sorted(LAST * draw.random() for _ in range(options.moments))
    table = Columns(("command", -9), *((f"{moment:.1f} s", 18) for moment in moments))
    print(table.head())
    for name in options.commands.split(","):
        cells = [name]
        for moment in moments:
            place = prepare(Path(tempfile.mkdtemp(prefix="mmdp-interrupts-")))
            try:
                cells.append(interrupted(COMMANDS[name], place, moment))
            finally:
                shutil.rmtree(place)
        print(table.line(cells), flush=True)


if __name__ == "__main__":
    main()
