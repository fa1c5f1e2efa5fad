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

from mmdp.clock import ignore_ctrl_c
from mmdp.errors import InputError
from mmdp.kernels.cpu.threads import default_threads, sharing

# numpy loads these when they are first used. A worker's other thread may be loading them at that
# moment, with pandas for example, and then the one that computes meets a RecursionError.
LOADED = numpy.ma, numpy.random

ALIGNED = 64  # bytes: arrays in a file begin at multiples of it
KEPT = 6  # things that a worker keeps
WATCH = 10.0  # seconds between two looks at the size of a cluster
FETCH = 600.0  # seconds that a worker waits for a thing
POLL = 1.0  # seconds between two looks at whether it is still there

Task = tuple[Any, Sequence[str]]  # what to do, and the names of the things it is done to
Call = Callable[..., Any]


class Lost(NamedTuple):
    """In place of an answer: the worker died, or the call could not be sent."""

    error: Exception


def spread(
    function: Call, tasks: Iterable[Task], things: Mapping[str, Any], *,
    executor: Executor | None = None, jobs: int = 1, folder: Path | None = None,
) -> Generator[tuple[Any, Any]]:  # fmt: skip
    """(task, answer) of every call, as they finish.

    Without an executor the calls run here, or in ``jobs`` processes. Files are written
    to a hidden folder inside ``folder``, which all workers must see, and removed at the end.

    A call that is lost with its worker is made again, and if it is lost again, once more at the
    end, alone. If that fails too, it is to blame, and its answer is :class:`Lost`. What
    ``function`` raises counts as lost too.

    >>> tasks = [(2, ["x"]), (3, ["x"])]
    >>> list(spread(pow, tasks, {"x": 5}))
    [(2, 32), (3, 243)]
    """
    tasks = list(tasks)
    own = Processes(jobs) if executor is None and jobs > 1 else None
    try:
        if executor is None and own is None:
            for task, names in tasks:
                yield task, function(task, *(things[name] for name in names))
            return
        start = partial(_Round, function, things, executor or own, folder)
        left = tasks
        for _ in range(2):
            if left:
                with closing(start()) as together:
                    left = yield from together.lost(left)
        for task in left:
            with closing(start()) as alone:
                yield from ((x[0], answer) for x, answer in alone.answers([task]))
    finally:
        forget()
        if own is not None:
            own.stop()


class _Round:
    """Calls that are made together, and the things that were sent for them."""

    def __init__(
        self, function: Call, things: Mapping[str, Any], executor: Any, folder: Path | None
    ) -> None:
        self.function, self.things, self.executor = function, things, executor
        client = dask_client(executor)
        self.sender: Any = _Files(folder) if client is None else _Cluster(client)
        self.sent: dict[str, Any] = {}
        self.running: set[Future[Any]] = set()

    def lost(self, tasks: Sequence[Task]) -> Generator[tuple[Any, Any], None, list[Task]]:
        """Yields the answers, and returns the tasks that have none."""
        left = []
        for task, answer in self.answers(tasks):
            if isinstance(answer, Lost):
                left.append(task)
            else:
                yield task[0], answer
        return left

    def answers(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        waiting, uses = iter(tasks), Counter(name for _, names in tasks for name in names)
        done: Queue[tuple[Task, Future[Any]]] = Queue()
        for _ in tasks:
            for task in islice(waiting, max(self._room() - len(self.running), 0)):
                future = self._submitted(task)
                self.running.add(future)
                future.add_done_callback(lambda x, task=task: done.put((task, x)))  # type: ignore[misc]
            task, future = self._next(done)
            self.running.discard(future)
            yield task, _answer(future)
            for name in task[1]:
                uses[name] -= 1
                if not uses[name]:
                    self.sender.drop(self.sent.pop(name, None))

    def _next(self, done: Queue[Any]) -> Any:
        """The next call that is done; all of them are if nobody is left to answer."""
        while True:
            try:
                return done.get(timeout=POLL)
            except Empty:
                if not self.sender.alive:
                    for future in list(self.running):
                        future.cancel()

    def _room(self) -> int:
        return self.executor.room if isinstance(self.executor, Processes) else self.sender.room

    def _submitted(self, task: Task) -> Future[Any]:
        what, names = task
        threads = getattr(self.executor, "threads", 1)
        try:
            for name in names:
                if name not in self.sent:
                    self.sent[name] = self.sender.send(self.things[name])
            sent = [self.sent[name] for name in names]
            return self.executor.submit(_called, self.function, what, threads, *sent)
        except InputError:
            raise
        except Exception as error:  # the executor is broken, or the cluster is gone
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    def close(self) -> None:
        for future in self.running:
            future.cancel()
        self.sender.close()


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result()
    except Exception as error:
        return Lost(error)


def _called(function: Call, task: Any, threads: int, *sent: Any) -> Any:
    """In the worker: the call, with the things that were sent for it."""
    things = [kept(x[0], x.open) for x in sent]
    with sharing(threads):
        return function(task, *things)


_kept: OrderedDict[str, Any] = OrderedDict()
_making = threading.RLock()


def kept(name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` gives, made once in this process; the last few are kept.

    >>> kept("x", lambda: [1]) is kept("x", lambda: [2])
    True
    >>> forget()
    """
    with _making:
        made = _kept.pop(name, None) or (make(),)
        held = _kept
        while len(held) >= KEPT:
            held.popitem(last=False)
        held[name] = made
        return made[0]


def forget() -> None:
    """Let go of what is kept.

    Waits for nobody: a cluster's worker runs it between the messages that ``make`` waits for.
    """
    global _kept
    _kept = OrderedDict()


# ---------------------------------------------------------------------- things as files
class Stored(NamedTuple):
    """A thing in a file."""

    path: str

    def open(self) -> Any:
        return opened(self.path)


def store(thing: Any, path: Path) -> None:
    """Write a thing so that :func:`opened` maps its arrays into memory instead of reading them."""
    buffers: list[pickle.PickleBuffer] = []
    facts = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    with path.open("wb") as file:
        pickle.dump((facts, [len(array) for array in arrays]), file)
        for array in arrays:
            file.write(bytes(-file.tell() % ALIGNED))
            file.write(array)


def opened(path: str) -> Any:
    """The thing in a file that :func:`store` wrote.

    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store({"x": np.arange(3)}, Path(folder) / "thing")
    ...     opened(f"{folder}/thing")["x"]
    array([0, 1, 2])
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(
            f"{path}: this worker does not see the file; give a folder that all workers share"
        ) from None
    with file:
        facts, sizes = pickle.load(file)
        start, arrays = file.tell(), []
        held = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for size in sizes:
            start += -start % ALIGNED
            arrays.append(held[start : start + size])
            start += size
    return pickle.loads(facts, buffers=arrays)


class _Files:
    """Things as files in a folder of their own."""

    room, alive = sys.maxsize, True

    def __init__(self, folder: Path | None) -> None:
        from mmdp.io.writing import hidden

        self._folder = hidden((folder or Path(tempfile.gettempdir())) / "models").absolute()
        self._folder.mkdir(mode=0o700)
        self._count = 0

    def send(self, thing: Any) -> Stored:
        self._count += 1
        path = self._folder / str(self._count)
        store(thing, path)
        return Stored(str(path))

    def drop(self, sent: Stored | None) -> None:
        if sent is not None:
            with suppress(OSError):
                os.unlink(sent.path)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


# ---------------------------------------------------------------------- Dask
def dask_client(executor: Any) -> Any:
    """The client behind an executor of Dask; None if it is another one."""
    if "distributed" not in sys.modules:
        return None
    from distributed.cfexecutor import ClientExecutor

    return executor._client if isinstance(executor, ClientExecutor) else None


class Scattered(NamedTuple):
    """A thing that Dask holds.

    It is no argument of the call. Dask drops copies of arguments that it finds too many and sends
    them again; a worker that keeps what it fetched does not mind.
    """

    key: str

    def open(self) -> Any:
        from distributed import Future, get_client, get_worker

        with suppress(KeyError):  # it may vanish while we look
            return get_worker().data[self.key]  # type: ignore[no-untyped-call]
        memory: Any = "memory"  # the way Dask's Variable makes a future of what is there
        held: Any = Future(self.key, get_client(), memory)  # type: ignore[no-untyped-call]
        return held.result(timeout=FETCH)


class _Cluster:
    """Things that Dask holds until they are dropped."""

    def __init__(self, client: Any) -> None:
        self._client, self._room, self._looked = client, 64, -math.inf
        self._held: dict[str, Any] = {}  # Dask keeps a value while we hold its future

    @property
    def room(self) -> int:
        """Calls to have under way: a few for every thread of the cluster, which may grow."""
        if self._client.status == "running" and time.monotonic() > self._looked + WATCH:
            self._looked = time.monotonic()
            with suppress(OSError):
                self._room = max(64, 4 * sum(self._client.nthreads().values()))
        return self._room

    @property
    def alive(self) -> bool:
        return self._client.status in ("running", "connecting")

    def send(self, thing: Any) -> Any:
        if not self.alive:
            raise ConnectionError("the connection to Dask's scheduler is lost")
        self._client.wait_for_workers(1)
        held = self._client.scatter(thing, hash=False)
        self._held[held.key] = held
        return Scattered(held.key)

    def drop(self, sent: Scattered | None) -> None:
        if sent is not None:
            del self._held[sent.key]

    def close(self) -> None:
        self._held.clear()
        if self.alive:
            with suppress(Exception):  # workers come and go
                self._client.run(forget)


# ---------------------------------------------------------------------- local processes
class ProcessDied(RuntimeError):
    """A process ended in the middle of a call."""


class Processes(ThreadPoolExecutor):
    """Processes on this machine that share its cores; one that dies is replaced.

    Each thread sends its calls to a process of its own through a pipe, which is all that connects
    them: a process that dies takes nothing but its call with it.
    """

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs, "mmdp-process")
        self.threads = max(1, default_threads() // jobs)
        self.room = 2 * jobs  # one call running and one waiting for each
        self._own, self._lock = threading.local(), threading.Lock()
        self._started: list[Any] | None = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._answer, (function, args, kwargs))

    def _answer(self, call: Any) -> Any:
        message = pickle.dumps(call)
        if not hasattr(self._own, "line"):
            self._start()
        try:
            self._own.line.send_bytes(message)
            message = self._own.line.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None
        answer, error = pickle.loads(message)
        if error is not None:
            raise error
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        with self._lock:
            if self._started is None:
                raise ProcessDied("the processes were stopped")
            self._own.line, theirs = context.Pipe()
            self._own.process = context.Process(target=_serve, args=(theirs,))
            self._own.process.start()
            self._started.append(self._own.process)
        theirs.close()

    def _ended(self) -> ProcessDied:
        del self._own.line
        self._own.process.join()
        code = self._own.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        return ProcessDied(f"the process that computed it {how}")

    def stop(self) -> None:
        """End the processes, whatever they are doing."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            started, self._started = self._started or [], None
        for process in started:
            process.kill()
            process.join()


def _serve(line: connection.Connection) -> None:
    """In a new process: answer calls, leave Ctrl-C to the study, and end with it."""
    ignore_ctrl_c()
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            line.send_bytes(_answered(line.recv_bytes()))


def _end_with_the_study() -> None:
    """End with the study, even in the middle of a call."""
    study = multiprocessing.parent_process()
    assert study is not None
    study.join()
    os._exit(0)


def _answered(message: bytes) -> bytes:
    """A pickled call's answer and None, or None and its error, pickled."""
    try:
        function, args, kwargs = pickle.loads(message)
        return pickle.dumps((function(*args, **kwargs), None))
    except BaseException as error:  # raised by the caller
        with suppress(Exception):
            answer = pickle.dumps((None, error))
            pickle.loads(answer)  # some errors cannot be made again from what they pickle
            return answer
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
