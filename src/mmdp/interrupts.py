"""Knowing that Ctrl-C came, even if the library answered it with its best so far."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interrupts:
    """Whether Ctrl-C came inside the block; it is handled as it would be without it.

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
        # only the main thread may set a handler; one that is ignored (nohup) stays so
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
