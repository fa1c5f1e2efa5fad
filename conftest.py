"""Every test hears Ctrl-C, has the time that it uses, and renders pictures of pages if it looks at them."""

from __future__ import annotations

import os
import signal
import time
from html import escape
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


@pytest.fixture(autouse=True)
def _blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have blank pictures, unless a test has a browser or the mark ``pictures``."""
    if "browser" not in request.fixturenames and not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr("mmdp.insight.report.figures.to_inline_svg", _make_blank_picture)


def _make_blank_picture(_: object, title: str, __: str) -> str:
    return f'<svg role="img" aria-label="{escape(title)}"></svg>'
