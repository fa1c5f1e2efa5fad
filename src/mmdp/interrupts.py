"""Notice Ctrl-C, even if the library answers it with the best result so far."""

from __future__ import annotations

import signal
import threading
from typing import Any


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
