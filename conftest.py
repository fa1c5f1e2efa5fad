"""Every test hears Ctrl-C, and has the time that it uses."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest

# Threads for the small matrices of tests would only wait for each other; read when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _ctrl_c() -> None:
    """Ctrl-C raises, here and in the processes of a test, though shells ignore it behind ``&``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits count the CPU seconds of this process: a busy machine cuts nothing short."""
    monkeypatch.setattr("mmdp.core.timing.time", SimpleNamespace(perf_counter=time.process_time))
