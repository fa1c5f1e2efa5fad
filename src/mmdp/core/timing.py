"""Deadlines, compile time, Ctrl-C and progress.

:func:`solver_clock` stands still while a kernel compiles, so that compiling counts against no time
limit. When the time is up, :class:`TimeUp` is raised at the next check of the clock.

The first Ctrl-C is accepted: ``solve`` and ``bound`` return the best so far and say so. They leave
a handler of SIGINT that raises the next one through everything, so that pressing it twice ends any
program. Nothing else is kept: what sets the handler again, as a notebook does for every cell,
begins anew.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, NoReturn, Self, TypeVar

from mmdp.core.text import clip_middle, format_bound_percent, format_column

T = TypeVar("T")


# ---------------------------------------------------------------------- time
class TimeUp(Exception):
    """Exception that a check of the clock raises when the time is up."""


Handler = Callable[[int, FrameType | None], object]
STOP_EXCEPTIONS = (TimeUp, KeyboardInterrupt)  # they end a search early

_compile_seconds = 0.0
_compile_lock = threading.RLock()
_compile_depth = 0


def solver_clock() -> float:
    """Return the seconds of a clock that stands still while a kernel compiles."""
    return time.perf_counter() - _compile_seconds


class Stopwatch:
    """Elapsed seconds of one call and the time left until its deadline.

    >>> Stopwatch().time_left, Stopwatch(time_limit=0.0).is_expired
    (inf, True)
    """

    def __init__(self, time_limit: float | None = None) -> None:
        self.start_time = time.perf_counter()
        self.deadline = math.inf if time_limit is None else solver_clock() + time_limit

    @property
    def elapsed(self) -> float:
        """Seconds since the start, those of compiling included."""
        return time.perf_counter() - self.start_time

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, those of compiling not counted."""
        return self.deadline - solver_clock()

    @property
    def is_expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.time_left < 0

    def raise_if_expired(self) -> None:
        """Raise TimeUp if the deadline has passed."""
        if self.is_expired:
            raise TimeUp

    def with_min_time(self, seconds: float) -> Stopwatch:
        """Return a copy with at least these seconds left."""
        stopwatch = copy.copy(self)
        stopwatch.deadline = max(self.deadline, solver_clock() + seconds)
        return stopwatch


def get_compile_seconds() -> float:
    """Return the seconds that this process has spent compiling so far."""
    return _compile_seconds


@contextmanager
def measure_compilation() -> Iterator[None]:
    """Count the time of this block as compile time; nested blocks count once.

    >>> before = get_compile_seconds()
    >>> with measure_compilation():
    ...     pass
    >>> get_compile_seconds() >= before
    True
    """
    global _compile_seconds, _compile_depth
    with _compile_lock:
        _compile_depth += 1
        start_time, activity = time.perf_counter(), progress_line.current_call.activity
        try:
            yield
        finally:
            _compile_depth -= 1
            if _compile_depth == 0:
                _compile_seconds += time.perf_counter() - start_time
                progress_line.update(activity)


def add_compile_seconds(seconds: float) -> None:
    """Add seconds measured by a compiler that keeps its own time."""
    global _compile_seconds
    with _compile_lock:
        _compile_seconds += seconds


def notify_compilation() -> None:
    """Show in the progress line that a kernel compiles code that no cache holds."""
    progress_line.update("compiling for this machine, once")


# ---------------------------------------------------------------------- progress
def compute_gap(bound: float, value: float) -> float:
    """Compute the relative gap (bound - value) / abs(value); 0 if the value meets its bound.

    >>> compute_gap(103.0, 100.0), compute_gap(-9.0, -10.0), compute_gap(1.0, 0.0)
    (0.03, 0.1, inf)
    """
    if bound <= value:
        return 0.0
    return (bound - value) / abs(value) if value else math.inf


class Progress(NamedTuple):
    """Progress of ``solve`` after an iteration, or of ``bound`` when a bound falls.

    For ``bound``, value and best_value are those of the incumbent, -inf if there is none yet.
    """

    stage: str
    iteration: int  # counted over all ascents
    value: float
    best_value: float
    bound: float = math.nan  # the proven upper bound so far, if there is one
    n_nodes: int = 0  # exact methods: the size of the tree
    elapsed: float = 0.0  # seconds

    @property
    def gap(self) -> float:
        """Relative gap (bound - best_value) / abs(best_value); NaN without both."""
        has_both = self.best_value > -math.inf and not math.isnan(self.bound)
        return compute_gap(self.bound, self.best_value) if has_both else math.nan

    def __str__(self) -> str:
        """Format the progress as a line shows it.

        >>> print(Progress("cadp", 3, 204.7, 204.7, bound=206.0))
        cadp, value 204.7000, at most 206.0000, gap 0.64%
        """
        value_text, bound_text = format_column([self.best_value, self.bound], round_up=[1])
        parts = [self.stage]
        if math.isfinite(self.best_value):
            parts.append(f"value {value_text}")
        if math.isfinite(self.bound):
            parts.append(f"at most {bound_text}")
        if math.isfinite(self.gap):
            parts.append(f"gap {format_bound_percent(self.gap)}")
        return ", ".join(parts)


Callback = Callable[[Progress], object]

LINE_DELAY = 2.0  # seconds of a call after which the line appears
REFRESH_INTERVAL = 0.25  # seconds between two changes of the line
PLAIN_INTERVAL = 10.0  # seconds between two lines if stderr is neither a terminal nor a notebook


@dataclass
class RunningCall:
    """A call that is running, and what it does: a text, or an object with one."""

    name: str
    activity: object = ""


class ProgressLine:
    """One line on stderr about the calls that are running, once the outermost takes two seconds.

    Calls of threads and of worker processes are not shown. ``MMDP_PROGRESS=0`` turns the line off.
    With ``MMDP_PROGRESS=1``, which the command sets, there is a plain line every ten seconds where
    stderr is neither a terminal nor a notebook.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget all calls; a forked process has no thread that shows them."""
        self.calls: list[RunningCall] = []
        self.interval, self.start_time, self.due_time, self.shown_text = math.inf, 0.0, 0.0, ""
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def open(self, name: str, *, is_shown: bool = True) -> Iterator[RunningCall]:
        """Show a call while the block lasts, in the line of the calls around it if there are any.

        >>> with ProgressLine().open("solve") as call:
        ...     call.activity = "cadp, value 204.7"
        """
        call, depth = RunningCall(name), len(self.calls)
        if threading.current_thread() is not threading.main_thread():
            yield call
            return
        try:
            with self._lock:
                self.calls.append(call)
                if depth == 0:
                    self._start(is_shown)
            yield call
        finally:
            with self._lock:
                del self.calls[depth:]
                if depth == 0:
                    self.wipe()

    @property
    def current_call(self) -> RunningCall:
        """Innermost call of this thread."""
        is_main = threading.current_thread() is threading.main_thread()
        return self.calls[-1] if is_main and self.calls else RunningCall("")

    def update(self, activity: object) -> None:
        """Set what the innermost call does."""
        self.current_call.activity = activity

    def refresh(self) -> None:
        """Write the line if it is time to."""
        now = self.clock()
        if now < self.due_time:
            return
        self.due_time = now + self.interval
        outermost, *others = self.calls
        activities = [str(outermost.activity)]
        for call in others:  # the name of a function says something only if nothing else does
            activities.append(str(call.activity) or ("" if any(activities) else call.name))
        text = ": ".join(
            filter(None, [f"mmdp {outermost.name}", "; ".join(filter(None, activities))])
        )
        self._write(f"{text} ({now - self.start_time:.0f} s)")

    def wipe(self) -> None:
        """Remove the line before something else is printed; it comes again."""
        with self._lock:
            if self.shown_text:
                self._write("")

    def _start(self, is_shown: bool) -> None:
        """Begin to show a call, if there is where to show it."""
        self.interval = _choose_interval() if is_shown else math.inf
        self.start_time = self.clock()
        self.due_time = self.start_time + max(self.interval, LINE_DELAY)
        if self.interval < math.inf and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mmdp-progress", daemon=True)
            with suppress(RuntimeError):  # no more threads
                self._thread.start()

    def _run(self) -> None:
        """Refresh the line as long as a call is running."""
        never = threading.Event()
        while not never.wait(REFRESH_INTERVAL):
            with self._lock:
                if not self.calls:
                    self._thread = None
                    return
                self.refresh()

    def _write(self, text: str) -> None:
        """Write the line; on a terminal or in a notebook in place of the one before."""
        line = f"{text}\n"
        if self.interval < PLAIN_INTERVAL:
            text = clip_middle(text, shutil.get_terminal_size().columns - 1)
            line = f"\r{text.ljust(len(self.shown_text))}" + "\r" * (not text)
            self.shown_text = text
        with suppress(OSError, ValueError):  # stderr is closed
            sys.stderr.write(line)
            sys.stderr.flush()


def _choose_interval() -> float:
    """Choose the seconds between two lines on stderr; infinite if nothing is to be shown."""
    setting, stream = os.environ.get("MMDP_PROGRESS"), sys.stderr
    try:
        is_live = stream.isatty() or type(stream).__module__ == "ipykernel.iostream"
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        return math.inf
    if setting == "0" or not (is_live or setting == "1"):
        return math.inf
    import multiprocessing

    if multiprocessing.parent_process() is not None:
        return math.inf
    return REFRESH_INTERVAL if is_live else PLAIN_INTERVAL


progress_line = ProgressLine()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=progress_line.reset)


def show_progress(callback: Callable[[T], object] | None = None) -> Callable[[T], object]:
    """Make a callback that shows what it gets in the progress line, and calls ``callback``."""
    call = progress_line.current_call

    def show(progress: T) -> None:
        call.activity = progress
        if callback is not None:
            callback(progress)

    return show


# ---------------------------------------------------------------------- Ctrl-C
_propagation_depth = 0  # blocks inside which every Ctrl-C raises


class RepeatedInterrupt(KeyboardInterrupt):
    """The Ctrl-C after one that was accepted; nothing accepts it."""


class _RaiseRepeated:
    """Handler of SIGINT after a Ctrl-C was accepted: it raises the next one and goes."""

    def __init__(self, previous_handler: Handler) -> None:
        self.previous_handler = previous_handler

    def __call__(self, *_: object) -> NoReturn:
        signal.signal(signal.SIGINT, self.previous_handler)
        raise RepeatedInterrupt


def accept_interrupt(exception: BaseException | None = None) -> None:
    """Return if this Ctrl-C may end the call with the best result so far; raise it otherwise.

    The first Ctrl-C returns, the next one raises. Exceptions of other types return too.
    """
    exception = KeyboardInterrupt() if exception is None else exception
    if not isinstance(exception, KeyboardInterrupt):
        return
    handler = get_interrupt_handler()
    if isinstance(handler, _RaiseRepeated):
        handler()
    if _propagation_depth or isinstance(exception, RepeatedInterrupt):
        raise exception
    if handler is not None:
        signal.signal(signal.SIGINT, _RaiseRepeated(handler))


class StopState:
    """How a block ended: ``exception`` is the one that ended it early, None if it was complete."""

    exception: BaseException | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the block early."""
        return isinstance(self.exception, KeyboardInterrupt)


@contextmanager
def allow_stop(
    has_result: Callable[[], object] = lambda: True, *, accept_interrupts: bool = False
) -> Iterator[StopState]:
    """Let TimeUp or Ctrl-C end the block early, if ``has_result()`` is true by then.

    With ``accept_interrupts`` the Ctrl-C counts as accepted, and the next one raises.

    >>> with allow_stop() as state:
    ...     raise TimeUp
    >>> state.exception is not None, state.is_interrupted
    (True, False)
    """
    state = StopState()
    try:
        yield state
    except STOP_EXCEPTIONS as exception:
        if not has_result() or isinstance(exception, RepeatedInterrupt):
            raise
        if accept_interrupts:
            accept_interrupt(exception)
        state.exception = exception


@contextmanager
def propagate_interrupts() -> Iterator[None]:
    """Raise every Ctrl-C inside the block, as the best so far of one solve is no result of many."""
    global _propagation_depth
    _propagation_depth += 1
    try:
        yield
    finally:
        _propagation_depth -= 1


def get_interrupt_handler() -> Handler | None:
    """Return what Ctrl-C calls; None if it is ignored (nohup), or if this is another thread."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    return handler if is_main and callable(handler) else None


class InterruptFlag:
    """A flag that a Ctrl-C inside the block sets; the Ctrl-C is handled as usual.

    >>> with InterruptFlag() as flag:
    ...     pass
    >>> flag.is_set
    False
    """

    is_set = False
    n_deferred = 0.0  # how many times Ctrl-C does nothing but set the flag
    _previous_handler: Handler | None = None

    def __enter__(self) -> Self:
        self._previous_handler = get_interrupt_handler()
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        self.is_set, self.n_deferred = True, self.n_deferred - 1
        if self.n_deferred < 0 and self._previous_handler is not None:
            self._previous_handler(signum, frame)


class DeferredInterrupt(InterruptFlag):
    """A flag that the first Ctrl-C sets without raising; the next one raises."""

    n_deferred = 1.0


class BlockedInterrupt(InterruptFlag):
    """A block in which Ctrl-C does nothing; it is handled at the end of the block."""

    n_deferred = math.inf

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.is_set:
            signal.raise_signal(signal.SIGINT)


def run_cancellable(
    function: Callable[[], object], cancel: Callable[[], object], deadline: float = math.inf
) -> bool:
    """Run a function in another thread; return whether Ctrl-C was pressed, which calls ``cancel``.

    The deadline, of ``solver_clock()``, calls it too. The next Ctrl-C raises at once. Only the main
    thread receives Ctrl-C: in any other one the function runs directly.
    """
    if get_interrupt_handler() is None:
        function()
        return False
    future: Future[object] = Future()

    def run_and_store() -> None:
        try:
            future.set_result(function())
        except BaseException as exception:  # raised by the caller's thread below
            future.set_exception(exception)

    with DeferredInterrupt() as flag:
        threading.Thread(target=run_and_store, name="mmdp-work", daemon=True).start()
        while not wait([future], timeout=0.1).done:
            if flag.is_set or solver_clock() > deadline:
                cancel()
    future.result()
    return flag.is_set
