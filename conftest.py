"""Every test hears Ctrl-C and has the time that it uses; few render pictures; what is slow."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from html import escape
from itertools import combinations, count
from time import process_time  # some tests replace time.process_time
from types import SimpleNamespace
from typing import Any

import pytest

# Threads for the small matrices of tests would only wait for each other; read when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Without the slow tests, others take fewer random instances: tests/instances.py."""
    if "not slow" in config.option.markexpr:
        os.environ["MMDP_FEW_EXAMPLES"] = "1"


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases of a test with the mark ``pairs`` are slow if others have all pairs of their values."""
    cases_by_test = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairs"):
            cases_by_test[item.nodeid.partition("[")[0]].append(item)
    for cases in cases_by_test.values():
        for item in set(cases) - set(choose_pairs(cases)):
            item.add_marker("slow")


def choose_pairs(cases: list[Any]) -> Iterator[Any]:
    """Choose cases until all pairs of values are there, the case with most new ones first."""
    pairs = {
        item: {*combinations(sorted((k, repr(x)) for k, x in item.callspec.params.items()), 2)}
        for item in cases
    }
    missing = set().union(*pairs.values())
    while missing:
        best = max(cases, key=lambda item: len(pairs[item] & missing))
        missing -= pairs[best]
        yield best


@pytest.fixture(autouse=True)
def _ctrl_c() -> None:
    """Ctrl-C raises, here and in the processes of a test, though shells ignore it behind ``&``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits count the CPU seconds of this process: a busy machine cuts nothing short.

    A look at the clock takes 2 ns, also where the system's clock moves in steps.
    """
    looks = count()

    def perf_counter() -> float:
        return process_time() + 2e-9 * next(looks)

    monkeypatch.setattr("mmdp.core.timing.time", SimpleNamespace(perf_counter=perf_counter))


@pytest.fixture(autouse=True)
def _blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have blank pictures, unless a test has a browser or the mark ``pictures``."""
    if "browser" not in request.fixturenames and not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr("mmdp.insight.report.figures.to_inline_svg", _make_blank_picture)


def _make_blank_picture(_: object, title: str, __: str) -> str:
    return f'<svg role="img" aria-label="{escape(title)}"></svg>'
