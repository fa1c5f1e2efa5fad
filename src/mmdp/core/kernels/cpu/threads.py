"""Threads for code that releases the interpreter lock.

Workers sleep while there is nothing to do, and take pieces of work one by one, so that another busy
program slows only one piece. They serve several threads at once: each call brings its own pieces.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from mmdp.core.shapes import IndexArray

MAX_HELPERS = 1024

Task = TypeVar("Task")
_thread_limit: ContextVar[int] = ContextVar("thread_limit", default=0)
_blas_lock = threading.RLock()


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


@functools.cache
def _get_blas_controller() -> Any:
    """Return the controller of the threads of numpy's linear algebra."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Let numpy's linear algebra use one thread inside this block.

    Its own threads spin: for small matrices on busy cores they take a hundred times as long. One
    thread at a time can be inside, because the limit holds for the whole process.
    """
    with _blas_lock, _get_blas_controller().limit(limits=1, user_api="blas"):
        yield


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


def is_numba_disabled() -> bool:
    """Return whether NUMBA_DISABLE_JIT switches off numba's compiler."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def split_edges(size: int, n_ranges: int) -> IndexArray:
    """Return the edges of ``n_ranges`` nearly equal ranges that cover 0..size."""
    return np.arange(n_ranges + 1) * size // n_ranges


def split_ranges(size: int, n_ranges: int) -> list[range]:
    """Split 0..size into at most ``n_ranges`` nearly equal ranges, none of them empty."""
    edges = split_edges(size, max(1, min(size, n_ranges))).tolist()
    return [range(*limits) for limits in pairwise(edges)]


def for_each(n_threads: int, function: Callable[[Task], None], tasks: Sequence[Task]) -> None:
    """Call ``function`` with every task on some threads and wait for all; raise the error of one.

    >>> squares = {}
    >>> for_each(2, lambda n: squares.update({n: n**2}), [1, 2, 3])
    >>> sorted(squares.values())
    [1, 4, 9]
    """
    remaining = iter(tasks)  # iterators of sequences hand out items one at a time

    def run_tasks() -> None:
        try:
            for task in remaining:
                function(task)
        finally:  # after an error nobody begins another
            for _ in remaining:
                pass

    n_helpers = min(n_threads, len(tasks)) - 1
    helpers = [_get_executor(os.getpid()).submit(run_tasks) for _ in range(n_helpers)]
    try:
        run_tasks()
    finally:  # a helper that comes too late finds nothing to do
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()


@functools.cache
def _get_executor(pid: int) -> ThreadPoolExecutor:
    """Return the threads of this process, which begin when they are needed; a fork has none."""
    return ThreadPoolExecutor(MAX_HELPERS, "mmdp-worker")
