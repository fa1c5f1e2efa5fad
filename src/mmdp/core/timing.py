"""Deadlines, compile time, Ctrl-C and progress.

:func:`solver_clock` stands still while a kernel compiles, so that compiling counts against no time
limit. When the time is up, :class:`TimeUp` is raised at the next check of the clock.

The first Ctrl-C is accepted: ``solve`` and ``bound`` return the best so far and say so. The next
one raises KeyboardInterrupt, so that pressing it twice ends any program.
"""

from __future__ import annotations

import copy
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, Self, TypeVar

from mmdp.core.text import format_duration

T = TypeVar("T")


# ---------------------------------------------------------------------- time
class TimeUp(Exception):
    """Exception that a check of the clock raises when the time is up."""


STOP_EXCEPTIONS = (TimeUp, KeyboardInterrupt)  # they end a search early

_compile_seconds = 0.0
_compile_lock = threading.RLock()
_compile_depth = 0
_compile_listeners: list[Callable[[], object]] = []


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
        start_time = time.perf_counter()
        try:
            yield
        finally:
            _compile_depth -= 1
            if _compile_depth == 0:
                _compile_seconds += time.perf_counter() - start_time


def add_compile_seconds(seconds: float) -> None:
    """Add seconds measured by a compiler that keeps its own time."""
    global _compile_seconds
    with _compile_lock:
        _compile_seconds += seconds


def notify_compilation() -> None:
    """Call the listeners: a kernel begins to compile code that no cache holds."""
    for listener in _compile_listeners:
        listener()


@contextmanager
def listen_for_compilation(listener: Callable[[], object]) -> Iterator[None]:
    """Call ``listener`` inside the block whenever a kernel compiles code that no cache holds."""
    _compile_listeners.append(listener)
    try:
        yield
    finally:
        _compile_listeners.remove(listener)


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


Callback = Callable[[Progress], object]


BAR_DELAY, BAR_INTERVAL = 2.0, 0.3  # seconds until a bar appears, and between its changes
_bar_callbacks: list[Callable[[str], object]] = []  # they show bars in place of stderr


@contextmanager
def redirect_bars(callback: Callable[[str], object]) -> Iterator[None]:
    """Send the text of progress bars to ``callback`` inside the block, not to stderr."""
    _bar_callbacks.append(callback)
    try:
        yield
    finally:
        _bar_callbacks.pop()


class ProgressBar:
    """Progress bar of a long function on stderr, in terminals and notebooks only."""

    def __init__(self, name: str, unit: str = "rows") -> None:
        self.name, self.unit, self.start_time, self.last_shown = (
            name,
            unit,
            time.perf_counter(),
            0.0,
        )

    def update(self, n_done: int, n_total: int) -> None:
        """Show the number of rows (or calls) that are done and the estimated time left."""
        now = time.perf_counter()
        if not n_done or now - self.start_time < BAR_DELAY or now - self.last_shown < BAR_INTERVAL:
            return
        remaining_text = format_duration((now - self.start_time) * (n_total - n_done) / n_done)
        text = f"{self.name}: {n_done:,} of {n_total:,} {self.unit}, {remaining_text} left"
        if _bar_callbacks:
            _bar_callbacks[-1](text)
        elif sys.stderr.isatty() or "ipykernel" in sys.modules:
            self.last_shown = now
            line = f"\r{'█' * (24 * n_done // n_total):░<24} {text:<54}"
            print(line, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self.start_time = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self.last_shown:
            print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- Ctrl-C
_was_interrupt_accepted = False  # the next one raises
_propagation_depth = 0  # blocks inside which every Ctrl-C raises


def accept_interrupt(exception: BaseException | None = None) -> None:
    """Return if this Ctrl-C may end the call with the best result so far; raise it otherwise.

    The first Ctrl-C returns, the next one raises. Exceptions of other types return too.
    """
    global _was_interrupt_accepted
    exception = KeyboardInterrupt() if exception is None else exception
    if not isinstance(exception, KeyboardInterrupt):
        return
    must_raise = (
        _was_interrupt_accepted or _propagation_depth or getattr(exception, "must_propagate", False)
    )
    _was_interrupt_accepted = not must_raise
    if must_raise:
        exception.must_propagate = True  # type: ignore[attr-defined]  # for others that catch it
        raise exception


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
        if not has_result():
            raise
        if accept_interrupts:
            accept_interrupt(exception)
        state.exception = exception


def run_uninterrupted(function: Callable[[], T], cancel: Callable[[], object] | None = None) -> T:
    """Run a function in another thread; a Ctrl-C is raised when the function has returned.

    With ``cancel`` the first Ctrl-C calls it, and the next one raises at once. Only the main thread
    receives Ctrl-C: in any other one the function runs directly.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    results: list[T] = []
    errors: list[BaseException] = []
    has_started = threading.Event()
    has_finished = threading.Event()  # a thread whose join() is interrupted would count as finished

    def run_and_store() -> None:
        has_started.set()
        try:
            results.append(function())
        except BaseException as exception:  # raised by the caller's thread below
            errors.append(exception)
        finally:
            has_finished.set()

    interrupt: KeyboardInterrupt | None = None
    thread = threading.Thread(target=run_and_store, name="mmdp-work", daemon=cancel is not None)
    while not has_finished.is_set():
        try:
            if thread.ident is None:
                thread.start()
            while not has_finished.wait(0.1):
                pass
        except KeyboardInterrupt as exception:
            if not has_started.wait(1.0) or (cancel is not None and interrupt is not None):
                raise
            if cancel is not None:
                cancel()
            interrupt = exception
    if interrupt is not None and cancel is None:
        raise interrupt
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def propagate_interrupts() -> Iterator[None]:
    """Raise every Ctrl-C inside the block, as the best so far of one solve is no result of many."""
    global _propagation_depth
    _propagation_depth += 1
    try:
        yield
    finally:
        _propagation_depth -= 1


def raise_if_interrupted(is_interrupted: object) -> None:
    """Raise KeyboardInterrupt if the flag of a deferred Ctrl-C is set."""
    if is_interrupted:
        raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this process; the process that started it handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class InterruptFlag:
    """A flag that a Ctrl-C inside the block sets; the Ctrl-C is handled as usual.

    >>> with InterruptFlag() as flag:
    ...     pass
    >>> flag.is_set
    False
    """

    is_set = False
    _previous_handler: Callable[[int, FrameType | None], object] | None = None

    def __enter__(self) -> Self:
        handler = signal.getsignal(signal.SIGINT)
        # only the main thread may set a handler; if Ctrl-C is ignored (nohup), that stays so
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._previous_handler = handler
            signal.signal(signal.SIGINT, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        self.is_set = True
        self._call_previous(signum, frame)

    def _call_previous(self, signum: int, frame: FrameType | None) -> None:
        if self._previous_handler is not None:
            self._previous_handler(signum, frame)


class DeferredInterrupt(InterruptFlag):
    """A flag that the first Ctrl-C sets without raising; the next one raises."""

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.is_set:
            self._call_previous(signum, frame)
        self.is_set = True
