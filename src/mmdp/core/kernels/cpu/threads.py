"""A small pool of threads for code that releases the interpreter lock.

Workers sleep while there is nothing to do, take pieces of work one by one (so that another busy
program slows only one piece) and live until the process ends. Pools may be
used from several threads at once: each call brings its own pieces.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Task = TypeVar("Task")
_thread_limit: ContextVar[int] = ContextVar("thread_limit", default=0)


@contextmanager
def limit_threads(n_threads: int) -> Iterator[None]:
    """Limit backends made inside this block to that many threads.

    >>> with limit_threads(1):
    ...     default_n_threads()
    1
    """
    token = _thread_limit.set(n_threads)
    try:
        yield
    finally:
        _thread_limit.reset(token)


def default_n_threads() -> int:
    """Return MMDP_NUM_THREADS, else the limit of this caller, else the number of usable cores."""
    env_value = os.environ.get("MMDP_NUM_THREADS", "")
    if env_value.isdigit() and int(env_value) > 0:
        return int(env_value)
    if _thread_limit.get():
        return _thread_limit.get()
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split_edges(size: int, n_ranges: int) -> npt.NDArray[np.int64]:
    """Return the edges of ``n_ranges`` nearly equal ranges that cover 0..size."""
    return np.arange(n_ranges + 1) * size // n_ranges


def split_ranges(size: int, n_ranges: int) -> list[range]:
    """Split 0..size into at most ``n_ranges`` nearly equal ranges, none of them empty."""
    edges = split_edges(size, max(1, min(size, n_ranges))).tolist()
    return [range(*limits) for limits in pairwise(edges)]


class ThreadPool:
    """A pool of threads: ``ThreadPool.get(n).for_each(function, tasks)`` runs n tasks at a time."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _workers: ClassVar[list[threading.Thread]] = []
    _queue: ClassVar[SimpleQueue[_ParallelCall[Any]]] = SimpleQueue()
    _owner_pid: ClassVar[int] = 0

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def __len__(self) -> int:
        return self.n_threads

    @classmethod
    def get(cls, n_threads: int) -> ThreadPool:
        """Return a pool of that many threads, the caller's included."""
        if n_threads > 1:
            with cls._lock:
                if cls._owner_pid != os.getpid():  # a fork has the lists but not the threads
                    cls._workers, cls._queue, cls._owner_pid = [], SimpleQueue(), os.getpid()
                while len(cls._workers) < n_threads - 1:
                    worker = threading.Thread(
                        target=_run_worker, args=(cls._queue,), daemon=True, name="mmdp-worker"
                    )
                    worker.start()
                    cls._workers.append(worker)
        return cls(n_threads)

    def for_each(self, function: Callable[[Task], None], tasks: Sequence[Task]) -> None:
        """Call ``function`` with every task and wait for all; raise the error of one."""
        if self.n_threads == 1 or len(tasks) == 1:
            for task in tasks:
                function(task)
            return
        call = _ParallelCall(function, iter(tasks))
        for _ in range(min(self.n_threads, len(tasks)) - 1):
            self._queue.put(call)
        n_own = call.run()
        for _ in range(len(tasks) - n_own):  # a helper that comes too late finds nothing to do
            call.finished.get()
        if call.error is not None:
            raise call.error


class _ParallelCall(Generic[Task]):
    """One call of ``for_each``: tasks taken in turn by free threads."""

    def __init__(self, function: Callable[[Task], None], tasks: Iterator[Task]) -> None:
        self.function, self.tasks = function, tasks
        self.finished: SimpleQueue[None] = SimpleQueue()
        self.error: BaseException | None = None

    def run(self, on_done: Callable[[None], None] | None = None) -> int:
        """Work on tasks until none is left; return how many were done here."""
        count = 0
        for task in self.tasks:  # iterators of lists hand out items one at a time
            try:
                if self.error is None:  # after an error the rest is only counted
                    self.function(task)
            except BaseException as error:  # handed to the caller, who raises it
                self.error = error
            count += 1
            if on_done is not None:
                on_done(None)
        return count


def _run_worker(queue: SimpleQueue[_ParallelCall[Any]]) -> None:
    """Work on calls from the queue for ever."""
    while True:
        call = queue.get()
        call.run(call.finished.put)
        del call
