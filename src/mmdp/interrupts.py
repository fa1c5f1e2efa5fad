"""Notice Ctrl-C, even if the library answers it with the best result so far.

The first Ctrl-C is answered: ``solve`` and ``bound`` return the best so far and say so. The next
one raises KeyboardInterrupt, so that pressing it twice ends any program.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_answered = False  # whether the last Ctrl-C was answered, so that the next one raises
_unanswered = 0  # blocks inside which every Ctrl-C raises


def answer(stop: BaseException) -> None:
    """Return if ``stop`` may be answered with the best so far; else raise it."""
    global _answered
    if not isinstance(stop, KeyboardInterrupt):
        return
    again = _answered or _unanswered or getattr(stop, "again", False)
    _answered = not again
    if again:
        stop.again = True  # type: ignore[attr-defined]  # whoever else catches it passes it on
        raise stop


@contextmanager
def unanswered() -> Iterator[None]:
    """Inside the block every Ctrl-C raises: the best so far of one solve is no result of many."""
    global _unanswered
    _unanswered += 1
    try:
        yield
    finally:
        _unanswered -= 1


class Interrupts:
    """Whether Ctrl-C was pressed inside the block; it is handled as usual.

    >>> with Interrupts() as interrupts:
    ...     pass
    >>> interrupts.seen
    False
    """

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        # only the main thread may set a handler; if Ctrl-C is ignored (nohup), that stays so
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: Any) -> None:
        self.seen = True
        self._before(number, frame)


class Held(Interrupts):
    """The first Ctrl-C is only noted: who asks ``seen`` ends the work at a point that suits."""

    def _note(self, number: int, frame: Any) -> None:
        if self.seen:
            self._before(number, frame)
        self.seen = True
