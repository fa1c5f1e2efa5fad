"""Spread calls over local processes or any executor; a large object travels once to each worker.

A call is ``function(task, *things)``. The task is small and is sent every time. Things are large
and are shared by many calls, so they are sent by name. Dask holds them, and a worker fetches them
once. For any other executor a thing is a file that workers map into memory: on one machine they
all read the same copy.

Local processes are a pool of our own, :class:`Processes`. In those of ``concurrent.futures`` and
loky the death of one process fails every call that waits; pebble loses one call, as we do, but if
the program is killed, its processes finish their calls, and those of the others stay for ever. All
three share locks between processes, which somebody has to remove after a kill. What is left to
write without them is a pipe for each process.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from multiprocessing import connection
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

import numpy

from mmdp.core.errors import InputError
from mmdp.core.kernels.cpu.threads import default_n_threads, limit_threads
from mmdp.core.timing import ignore_interrupts

# numpy loads these when they are first used. A worker's other thread may be loading them at that
# moment, with pandas for example, and then the one that computes meets a RecursionError.
PRELOADED_MODULES = numpy.ma, numpy.random

ALIGNMENT = 64  # bytes: arrays in a file begin at multiples of it
MAX_CACHED = 6  # things that a worker keeps
CLUSTER_POLL_INTERVAL = 10.0  # seconds between two looks at the size of a cluster
FETCH_TIMEOUT = 600.0  # seconds that a worker waits for a thing
POLL_INTERVAL = 1.0  # seconds between two looks at whether it is still there

Task = tuple[Any, Sequence[str]]  # what to do, and the names of the things it is done to
TaskFunction = Callable[..., Any]


class LostTask(NamedTuple):
    """Result of a call whose worker died, or that could not be sent."""

    error: Exception


def map_tasks(
    function: TaskFunction,
    tasks: Iterable[Task],
    shared_objects: Mapping[str, Any],
    *,
    executor: Executor | None = None,
    n_jobs: int = 1,
    folder: Path | None = None,
) -> Generator[tuple[Any, Any]]:
    """Call a function for every task in worker processes; yield (task, result) as they finish.

    Without an executor the calls run here, or in ``n_jobs`` processes. Files are written
    to a hidden folder inside ``folder``, which all workers must see, and removed at the end.

    A call that is lost with its worker is made again, and if it is lost again, once more at the
    end, alone. If that fails too, its result is :class:`LostTask`. What
    ``function`` raises counts as lost too.

    >>> tasks = [(2, ["x"]), (3, ["x"])]
    >>> list(map_tasks(pow, tasks, {"x": 5}))
    [(2, 32), (3, 243)]
    """
    tasks = list(tasks)
    pool = ProcessPool(n_jobs) if executor is None and n_jobs > 1 else None
    try:
        if executor is None and pool is None:
            for task, names in tasks:
                yield task, function(task, *(shared_objects[name] for name in names))
            return
        make_batch = partial(_TaskBatch, function, shared_objects, executor or pool, folder)
        remaining_tasks = tasks
        for _ in range(2):
            if remaining_tasks:
                with closing(make_batch()) as batch:
                    remaining_tasks = yield from batch.run_and_collect_lost(remaining_tasks)
        for task in remaining_tasks:
            with closing(make_batch()) as single_batch:
                yield from (
                    (done_task[0], result)
                    for done_task, result in single_batch.iter_results([task])
                )
    finally:
        clear_cache()
        if pool is not None:
            pool.stop()


class _TaskBatch:
    """A batch of calls, and the shared objects that were sent for them."""

    def __init__(
        self,
        function: TaskFunction,
        shared_objects: Mapping[str, Any],
        executor: Any,
        folder: Path | None,
    ) -> None:
        self.function, self.shared_objects, self.executor = function, shared_objects, executor
        client = get_dask_client(executor)
        self.transport: Any = _FileTransport(folder) if client is None else _DaskTransport(client)
        self.references: dict[str, Any] = {}
        self.running: set[Future[Any]] = set()

    def run_and_collect_lost(
        self, tasks: Sequence[Task]
    ) -> Generator[tuple[Any, Any], None, list[Task]]:
        """Yield the results, and return the tasks that were lost."""
        lost_tasks = []
        for task, result in self.iter_results(tasks):
            if isinstance(result, LostTask):
                lost_tasks.append(task)
            else:
                yield task[0], result
        return lost_tasks

    def iter_results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        pending_tasks, n_uses = iter(tasks), Counter(name for _, names in tasks for name in names)
        finished_queue: Queue[tuple[Task, Future[Any]]] = Queue()
        for _ in tasks:
            for task in islice(pending_tasks, max(self._get_max_pending() - len(self.running), 0)):
                future = self._submit_task(task)
                self.running.add(future)
                future.add_done_callback(lambda x, task=task: finished_queue.put((task, x)))  # type: ignore[misc]
            task, future = self._wait_for_next(finished_queue)
            self.running.discard(future)
            yield task, _get_result(future)
            for name in task[1]:
                n_uses[name] -= 1
                if not n_uses[name]:
                    self.transport.drop(self.references.pop(name, None))

    def _wait_for_next(self, finished_queue: Queue[Any]) -> Any:
        """Wait for the next finished call; cancel all if the workers are gone."""
        while True:
            try:
                return finished_queue.get(timeout=POLL_INTERVAL)
            except Empty:
                if not self.transport.is_alive:
                    for future in list(self.running):
                        future.cancel()

    def _get_max_pending(self) -> int:
        return (
            self.executor.max_pending
            if isinstance(self.executor, ProcessPool)
            else self.transport.max_pending
        )

    def _submit_task(self, task: Task) -> Future[Any]:
        payload, names = task
        n_threads = getattr(self.executor, "n_threads", 1)
        try:
            for name in names:
                if name not in self.references:
                    self.references[name] = self.transport.send(self.shared_objects[name])
            task_references = [self.references[name] for name in names]
            return self.executor.submit(
                _call_with_shared, self.function, payload, n_threads, *task_references
            )
        except InputError:
            raise
        except Exception as error:  # the executor is broken, or the cluster is gone
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    def close(self) -> None:
        for future in self.running:
            future.cancel()
        self.transport.close()


def _get_result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except Exception as error:
        return LostTask(error)


def _call_with_shared(function: TaskFunction, task: Any, n_threads: int, *references: Any) -> Any:
    """Make a call in the worker, with the shared objects that were sent for it."""
    shared_objects = [memoize(reference[0], reference.load) for reference in references]
    with limit_threads(n_threads):
        return function(task, *shared_objects)


_cache: OrderedDict[str, Any] = OrderedDict()
_cache_lock = threading.RLock()


def memoize(key: str, make: Callable[[], Any]) -> Any:
    """Return the result of ``make()``, computed once per key; the last few are cached.

    >>> memoize("x", lambda: [1]) is memoize("x", lambda: [2])
    True
    >>> clear_cache()
    """
    with _cache_lock:
        entry = _cache.pop(key, None) or (make(),)
        cache = _cache
        while len(cache) >= MAX_CACHED:
            cache.popitem(last=False)
        cache[key] = entry
        return entry[0]


def clear_cache() -> None:
    """Drop all cached objects.

    Waits for nobody: a cluster's worker runs it between the messages that ``make`` waits for.
    """
    global _cache
    _cache = OrderedDict()


# ---------------------------------------------------------------------- things as files
class MappedFile(NamedTuple):
    """Reference to a shared object in a file."""

    path: str

    def load(self) -> Any:
        return load_object(self.path)


def dump_object(obj: Any, path: Path) -> None:
    """Write an object to a file whose arrays :func:`load_object` maps into memory."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    with path.open("wb") as file:
        pickle.dump((pickled, [len(array) for array in arrays]), file)
        for array in arrays:
            file.write(bytes(-file.tell() % ALIGNMENT))
            file.write(array)


def load_object(path: str) -> Any:
    """Read an object that :func:`dump_object` wrote; its arrays are mapped into memory.

    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dump_object({"x": np.arange(3)}, Path(folder) / "thing")
    ...     load_object(f"{folder}/thing")["x"]
    array([0, 1, 2])
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(
            f"{path}: this worker does not see the file; give a folder that all workers share"
        ) from None
    with file:
        pickled, sizes = pickle.load(file)
        start, arrays = file.tell(), []
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for size in sizes:
            start += -start % ALIGNMENT
            arrays.append(view[start : start + size])
            start += size
    return pickle.loads(pickled, buffers=arrays)


class _FileTransport:
    """Transport of shared objects as files in a temporary folder."""

    max_pending, is_alive = sys.maxsize, True

    def __init__(self, folder: Path | None) -> None:
        from mmdp.data.io.writing import temp_name

        self._folder = temp_name((folder or Path(tempfile.gettempdir())) / "models").absolute()
        self._folder.mkdir(mode=0o700)
        self._n_sent = 0

    def send(self, obj: Any) -> MappedFile:
        self._n_sent += 1
        path = self._folder / str(self._n_sent)
        dump_object(obj, path)
        return MappedFile(str(path))

    def drop(self, reference: MappedFile | None) -> None:
        if reference is not None:
            with suppress(OSError):
                os.unlink(reference.path)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


# ---------------------------------------------------------------------- Dask
def get_dask_client(executor: Any) -> Any:
    """Get the client of an executor of Dask; None for other executors."""
    if "distributed" not in sys.modules:
        return None
    from distributed.cfexecutor import ClientExecutor

    return executor._client if isinstance(executor, ClientExecutor) else None


class DaskReference(NamedTuple):
    """Reference to a shared object that Dask holds.

    It is no argument of the call. Dask drops copies of arguments that it finds too many and sends
    them again; a worker that keeps what it fetched does not mind.
    """

    key: str

    def load(self) -> Any:
        from distributed import Future, get_client, get_worker

        with suppress(KeyError):  # it may vanish while we look
            return get_worker().data[self.key]  # type: ignore[no-untyped-call]
        memory: Any = "memory"  # the way Dask's Variable makes a future of what is there
        future: Any = Future(self.key, get_client(), memory)  # type: ignore[no-untyped-call]
        return future.result(timeout=FETCH_TIMEOUT)


class _DaskTransport:
    """Transport of shared objects that Dask holds until they are dropped."""

    def __init__(self, client: Any) -> None:
        self._client, self._max_pending, self._last_poll = client, 64, -math.inf
        self._futures: dict[str, Any] = {}  # Dask keeps a value while we hold its future

    @property
    def max_pending(self) -> int:
        """Number of calls to submit ahead: a few for every thread of the cluster."""
        if (
            self._client.status == "running"
            and time.monotonic() > self._last_poll + CLUSTER_POLL_INTERVAL
        ):
            self._last_poll = time.monotonic()
            with suppress(OSError):
                self._max_pending = max(64, 4 * sum(self._client.nthreads().values()))
        return self._max_pending

    @property
    def is_alive(self) -> bool:
        return self._client.status in ("running", "connecting")

    def send(self, obj: Any) -> Any:
        if not self.is_alive:
            raise ConnectionError("the connection to Dask's scheduler is lost")
        self._client.wait_for_workers(1)
        future = self._client.scatter(obj, hash=False)
        self._futures[future.key] = future
        return DaskReference(future.key)

    def drop(self, reference: DaskReference | None) -> None:
        if reference is not None:
            del self._futures[reference.key]

    def close(self) -> None:
        self._futures.clear()
        if self.is_alive:
            with suppress(Exception):  # workers come and go
                self._client.run(clear_cache)


# ---------------------------------------------------------------------- local processes
class ProcessDiedError(RuntimeError):
    """Error of a call whose process ended before it returned."""


class ProcessPool(ThreadPoolExecutor):
    """Processes on this machine that share its cores; one that dies is replaced.

    Each thread sends its calls to a process of its own through a pipe, which is all that connects
    them: a process that dies takes nothing but its call with it.
    """

    def __init__(self, n_jobs: int) -> None:
        super().__init__(n_jobs, "mmdp-process")
        self.n_threads = max(1, default_n_threads() // n_jobs)
        self.max_pending = 2 * n_jobs  # one call running and one waiting for each
        self._thread_local, self._lock = threading.local(), threading.Lock()
        self._processes: list[Any] | None = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._call_process, (function, args, kwargs))

    def _call_process(self, call: Any) -> Any:
        message = pickle.dumps(call)
        if not hasattr(self._thread_local, "pipe"):
            self._start_process()
        try:
            self._thread_local.pipe.send_bytes(message)
            message = self._thread_local.pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._make_died_error() from None
        result, error = pickle.loads(message)
        if error is not None:
            raise error
        return result

    def _start_process(self) -> None:
        context = multiprocessing.get_context("spawn")
        with self._lock:
            if self._processes is None:
                raise ProcessDiedError("the processes were stopped")
            self._thread_local.pipe, child_pipe = context.Pipe()
            self._thread_local.process = context.Process(target=_serve_calls, args=(child_pipe,))
            self._thread_local.process.start()
            self._processes.append(self._thread_local.process)
        child_pipe.close()

    def _make_died_error(self) -> ProcessDiedError:
        del self._thread_local.pipe
        self._thread_local.process.join()
        code = self._thread_local.process.exitcode or 0
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        return ProcessDiedError(f"the process that computed it {cause}")

    def stop(self) -> None:
        """Kill the processes at once."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            processes, self._processes = self._processes or [], None
        for process in processes:
            process.kill()
            process.join()


def _serve_calls(pipe: connection.Connection) -> None:
    """Run the calls of a pipe in a new process, until the pipe is closed."""
    ignore_interrupts()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_run_pickled_call(pipe.recv_bytes()))


def _exit_with_parent() -> None:
    """End this process when its parent ends, even in the middle of a call."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _run_pickled_call(message: bytes) -> bytes:
    """Run a pickled call; return (result, None) or (None, error), pickled."""
    try:
        function, args, kwargs = pickle.loads(message)
        return pickle.dumps((function(*args, **kwargs), None))
    except BaseException as error:  # raised by the caller
        with suppress(Exception):
            reply = pickle.dumps((None, error))
            pickle.loads(reply)  # some errors cannot be made again from what they pickle
            return reply
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
