"""Spread calls over local processes or any executor; a large object travels once to each worker.

A call is ``function(task, *objects)``. The task is small and is sent every time. The objects are
large and are shared by many calls. Dask holds them; for any other executor an object is a file
that workers map into memory if it is large, so that those of one machine read the same copy. Local
processes and mapped files are those of joblib.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy

from mmdp.core.errors import InputError
from mmdp.core.kernels.cpu.threads import default_n_threads, limit_threads

if TYPE_CHECKING:
    from distributed import Client
    from joblib.externals.loky.reusable_executor import _ReusablePoolExecutor as ReusablePool

# numpy loads these when they are first used. A worker's other thread may be loading them at that
# moment, with pandas for example, and then the one that computes meets a RecursionError.
PRELOADED_MODULES = numpy.ma, numpy.random

MAX_RUNNING = 1000  # calls that an executor has at a time
MAX_LOADED = 6  # objects that a worker keeps
MIN_MAPPED_SIZE = 10_000_000  # bytes; numba takes longer to look at mapped arrays
POLL_INTERVAL = 1.0  # seconds between two looks at whether a cluster is still there
IDLE_TIMEOUT = 60  # seconds after which a process without a call ends

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


class Call(NamedTuple, Generic[TaskT]):
    """A task, and the names of the objects that it is about."""

    task: TaskT
    names: Sequence[str]


class LostTask(NamedTuple):
    """Result of a call whose worker died, or that could not be sent."""

    error: Exception


def map_tasks(
    function: Callable[..., ResultT],
    calls: Iterable[Call[TaskT]],
    shared_objects: Mapping[str, object],
    *,
    executor: Executor | None = None,
    n_jobs: int = 1,
    folder: Path | None = None,
) -> Generator[tuple[TaskT, ResultT | LostTask]]:
    """Call a function for every task in worker processes; yield (task, result) as they finish.

    Without an executor the calls run here, or in ``n_jobs`` processes. The workers of an executor
    must see ``folder``, where shared objects are files until the end.

    A call that is lost is made again. As a process that dies takes the calls of the others with
    it, those that are lost twice are made once more, each alone. If that fails too, the result is
    :class:`LostTask`. What ``function`` raises counts as lost too.

    >>> list(map_tasks(pow, [Call(2, ["x"]), Call(3, ["x"])], {"x": 5}))
    [(2, 32), (3, 243)]
    """
    if executor is None and n_jobs == 1:
        for task, names in calls:
            yield task, function(task, *(shared_objects[name] for name in names))
        return
    batches = [list(calls)]
    for n_losses in range(3):
        lost_calls: list[Call[TaskT]] = []
        for batch in batches:
            results = _run_batch(function, batch, shared_objects, executor, n_jobs, folder)
            with closing(results):
                for call, result in results:
                    if isinstance(result, LostTask) and n_losses < 2:
                        lost_calls.append(call)
                    else:
                        yield call.task, result
        batches = [[call] for call in lost_calls] if n_losses else [lost_calls]


def _run_batch(
    function: Callable[..., ResultT],
    calls: Iterable[Call[TaskT]],
    shared_objects: Mapping[str, object],
    executor: Executor | None,
    n_jobs: int,
    folder: Path | None,
) -> Generator[tuple[Call[TaskT], ResultT | LostTask]]:
    """Yield the calls and their results as they finish."""
    is_local, client = executor is None, get_dask_client(executor)
    n_threads = max(1, default_n_threads() // n_jobs) if is_local else 1
    max_running = 2 * n_jobs if is_local else MAX_RUNNING
    waiting, running = deque(calls), dict[Future[ResultT], Call[TaskT]]()
    references: dict[str, object] = {}

    def submit(call: Call[TaskT]) -> Future[ResultT]:
        try:
            for name in call.names:
                if name not in references:
                    references[name] = _send_object(shared_objects[name], client, temp_folder)
            objects = [references[name] for name in call.names]
            pool = executor or start_processes(n_jobs)
            return pool.submit(_call_with_objects, function, call.task, n_threads, *objects)
        except Exception as error:  # the executor is broken, or the cluster is gone
            future: Future[ResultT] = Future()
            future.set_exception(error)
            return future

    with tempfile.TemporaryDirectory(
        prefix=".models-", dir=None if is_local or client else folder, ignore_cleanup_errors=True
    ) as temp_folder:
        try:
            while waiting or running:
                while waiting and len(running) < max_running:
                    call = waiting.popleft()
                    running[submit(call)] = call
                for future in wait(running, POLL_INTERVAL, FIRST_COMPLETED).done:
                    result: ResultT | LostTask
                    try:
                        result = future.result()
                    except BrokenExecutor:
                        message = "the process that computed it died, every time"
                        result = LostTask(RuntimeError(message))
                    except Exception as error:
                        result = LostTask(error)
                    yield running.pop(future), result
                if client is not None and client.status not in ("running", "connecting"):
                    _cancel(running)
        finally:
            _cancel(running)
            _load_object.cache_clear()
            if is_local:
                start_processes(n_jobs).shutdown(kill_workers=True)


def _cancel(futures: Iterable[Future[ResultT]]) -> None:
    for future in list(futures):
        future.cancel()


# ---------------------------------------------------------------------- shared objects
class MappedFile(NamedTuple):
    """Reference to a shared object in a file."""

    path: str


def _send_object(obj: object, client: Client | None, folder: str) -> object:
    """Send an object to the workers; return the argument by which they get it."""
    import joblib

    if client is not None:
        client.wait_for_workers(1)
        return client.scatter([obj], broadcast=True, hash=False)[0]  # type: ignore[no-untyped-call]
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        joblib.dump(obj, file)
    return MappedFile(file.name)


@lru_cache(MAX_LOADED)
def _load_object(path: str) -> object:
    """Read an object from a file; the arrays of a large one are mapped into memory."""
    import joblib

    try:
        is_large = os.path.getsize(path) > MIN_MAPPED_SIZE
        return joblib.load(path, mmap_mode="r" if is_large else None)
    except FileNotFoundError:
        raise InputError(
            f"{path}: this worker does not see the file; give a folder that all workers share"
        ) from None


def _call_with_objects(
    function: Callable[..., ResultT], task: object, n_threads: int, *references: object
) -> ResultT:
    """Make a call in the worker, with the objects that were sent for it."""
    with limit_threads(n_threads):
        return function(
            task, *(_load_object(x.path) if isinstance(x, MappedFile) else x for x in references)
        )


def get_dask_client(executor: Executor | None) -> Client | None:
    """Get the client of an executor of Dask; None for other executors."""
    if "distributed" not in sys.modules:
        return None
    from distributed.cfexecutor import ClientExecutor

    return executor._client if isinstance(executor, ClientExecutor) else None


def start_processes(n_jobs: int) -> ReusablePool:
    """Return the processes that are running; start them if there are none, or if one has died.

    They ignore Ctrl-C, which the process that started them handles.
    """
    from joblib.externals.loky import get_reusable_executor

    ignore_ctrl_c = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    return get_reusable_executor(n_jobs, timeout=IDLE_TIMEOUT, **ignore_ctrl_c)
