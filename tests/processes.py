"""Processes that tests start: none outlives its test."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT = 600.0  # seconds until a process counts as stuck, whatever else the machine does


@contextmanager
def run_process(*command: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block at the latest, also if the block fails."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([*map(str, command)], text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def read_cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used so far, by Linux."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_cpu(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait until a process has used this many CPU seconds more, or has ended."""
    target = read_cpu_seconds(process.pid) + seconds
    while process.poll() is None and read_cpu_seconds(process.pid) < target:
        time.sleep(0.01)
