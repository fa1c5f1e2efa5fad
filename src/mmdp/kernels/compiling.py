"""The time spent compiling: it counts against no time limit, and listeners are told of it.

>>> before = spent()
>>> with compiling():
...     pass
>>> spent() >= before
True
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_spent = 0.0
_lock = threading.RLock()
_depth = 0
_listeners: list[Callable[[], object]] = []


def spent() -> float:
    """Seconds that this process has spent compiling so far."""
    return _spent


def clock() -> float:
    """Seconds, by a clock that stands still while a kernel compiles."""
    return time.perf_counter() - _spent


@contextmanager
def compiling() -> Iterator[None]:
    """Count this block as compiling (or loading compiled code); nested blocks count once."""
    global _spent, _depth
    with _lock:
        _depth += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                _spent += time.perf_counter() - started


def add(seconds: float) -> None:
    """Add seconds measured by a compiler that keeps its own time."""
    global _spent
    with _lock:
        _spent += seconds


def announce() -> None:
    """Tell the listeners that a kernel begins to compile something that no cache holds."""
    for listener in _listeners:
        listener()


@contextmanager
def listening(listener: Callable[[], object]) -> Iterator[None]:
    """Call ``listener`` whenever a kernel compiles something that no cache holds."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
