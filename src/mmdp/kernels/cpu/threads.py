"""A small team of threads for code that releases the interpreter lock.

Workers sleep while there is nothing to do, take pieces of work one by one (so that another busy
program slows only one piece) and live until the process ends. Teams may be
used from several threads at once: each call brings its own pieces.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, ClassVar

_share: ContextVar[int] = ContextVar("share", default=0)


@contextmanager
def sharing(threads: int) -> Iterator[None]:
    """Kernels made inside this block use that many threads, because others use the cores too.

    >>> with sharing(1):
    ...     default_threads()
    1
    """
    before = _share.set(threads)
    try:
        yield
    finally:
        _share.reset(before)


def default_threads() -> int:
    """``MMDP_NUM_THREADS``, else this caller's share, else the cores that it may use."""
    asked = os.environ.get("MMDP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if _share.get():
        return _share.get()
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Team:
    """``Team.of(n).each(function, pieces)`` runs function(piece) for all, on n threads."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _workers: ClassVar[list[threading.Thread]] = []
    _inbox: ClassVar[SimpleQueue[_Call]] = SimpleQueue()
    _owner: ClassVar[int] = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    @classmethod
    def of(cls, size: int) -> Team:
        """A team of that many threads, the caller's included; workers start on first need."""
        if size > 1:
            with cls._lock:
                if cls._owner != os.getpid():  # a fork has the lists but not the threads
                    cls._workers, cls._inbox, cls._owner = [], SimpleQueue(), os.getpid()
                while len(cls._workers) < size - 1:
                    worker = threading.Thread(
                        target=_work, args=(cls._inbox,), daemon=True, name="mmdp-worker"
                    )
                    worker.start()
                    cls._workers.append(worker)
        return cls(size)

    def each(self, function: Callable[[Any], None], pieces: Sequence[Any]) -> None:
        """Run ``function`` on every piece; returns when all are done, or raises what one raised."""
        if self.size == 1 or len(pieces) == 1:
            for piece in pieces:
                function(piece)
            return
        call = _Call(function, iter(pieces))
        for _ in range(min(self.size, len(pieces)) - 1):
            self._inbox.put(call)
        own = call.run()
        for _ in range(len(pieces) - own):  # a helper that comes too late finds nothing to do
            call.finished.get()
        if call.error is not None:
            raise call.error


class _Call:
    """One ``each``: pieces taken in turn by threads that are free."""

    def __init__(self, function: Callable[[Any], None], pieces: Iterator[Any]) -> None:
        self.function, self.pieces = function, pieces
        self.finished: SimpleQueue[None] = SimpleQueue()
        self.error: BaseException | None = None

    def run(self, after: Callable[[None], None] | None = None) -> int:
        """Work on pieces until none is left; returns how many were done here."""
        count = 0
        for piece in self.pieces:  # iterators of lists hand out items one at a time
            try:
                if self.error is None:  # after an error the rest is only counted
                    self.function(piece)
            except BaseException as error:  # handed to the caller, who raises it
                self.error = error
            count += 1
            if after is not None:
                after(None)
        return count


def _work(inbox: SimpleQueue[_Call]) -> None:
    while True:
        call = inbox.get()
        call.run(call.finished.put)
        del call
