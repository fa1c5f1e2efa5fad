"""Threads for code that releases the interpreter lock.

Workers sleep while there is nothing to do and take pieces of work one by one, so that another busy
program slows only one piece. Several threads may share them: each call brings its own pieces.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

MAX_WORKERS = 1024  # begun as they are needed

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


class ThreadPool:
    """A number of threads: ``ThreadPool(n).for_each(function, tasks)`` runs n tasks at a time.

    The caller is one of them.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def __len__(self) -> int:
        return self.n_threads

    def for_each(self, function: Callable[[Task], object], tasks: Sequence[Task]) -> None:
        """Call ``function`` with every task and wait for all; raise the error of one."""
        remaining = iter(tasks)  # iterators of lists hand out items one at a time

        def work() -> None:
            try:
                for task in remaining:
                    function(task)
            except BaseException:
                list(remaining)  # nobody begins another
                raise

        n_helpers = min(self.n_threads, len(tasks)) - 1
        helpers = [_get_executor(os.getpid()).submit(work) for _ in range(n_helpers)]
        try:
            work()
        finally:  # a helper that has not begun is not needed
            begun = [helper for helper in helpers if not helper.cancel()]
            wait(begun)
        for helper in begun:
            helper.result()


@functools.cache
def _get_executor(process_id: int) -> ThreadPoolExecutor:
    """Return the workers of this process; a fork has none of those of its parent."""
    return ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="mmdp-worker")
