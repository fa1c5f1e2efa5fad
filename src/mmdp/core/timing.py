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
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self, TypeVar

if TYPE_CHECKING:
    import rich.progress

T = TypeVar("T")


# ---------------------------------------------------------------------- time
class TimeUp(Exception):
    """Exception that a check of the clock raises when the time is up."""


Handler = Callable[[int, FrameType | None], object]
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


def listen_for_compilation(listener: Callable[[], object]) -> AbstractContextManager[None]:
    """Call ``listener`` inside the block whenever a kernel compiles code that no cache holds."""
    return _register(_compile_listeners, listener)


@contextmanager
def _register(callbacks: list[T], callback: T) -> Iterator[None]:
    """Keep a callback in a list inside the block."""
    callbacks.append(callback)
    try:
        yield
    finally:
        callbacks.remove(callback)


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


BAR_DELAY = 2.0  # seconds until a bar appears
_bar_callbacks: list[Callable[[str], object]] = []  # they show bars in place of stderr


def redirect_bars(callback: Callable[[str], object]) -> AbstractContextManager[None]:
    """Send the text of progress bars to ``callback`` inside the block, not to stderr."""
    return _register(_bar_callbacks, callback)


class ProgressBar:
    """Progress bar of a long function on stderr, in terminals and notebooks only."""

    _bar: rich.progress.Progress | None = None

    def __init__(self, name: str, unit: str = "rows") -> None:
        self.name, self.unit, self.start_time = name, unit, time.perf_counter()

    def update(self, n_done: int, n_total: int) -> None:
        """Show the number of rows (or calls) that are done and the estimated time left."""
        if not n_done or time.perf_counter() - self.start_time < BAR_DELAY:
            return
        text = f"{self.name}: {n_done:,} of {n_total:,} {self.unit}"
        if _bar_callbacks:
            _bar_callbacks[-1](text)
            return
        self._bar = self._bar or _start_bar()
        (task_id,) = self._bar.task_ids
        self._bar.update(task_id, completed=n_done, total=n_total, description=text)

    def __enter__(self) -> Self:
        self.start_time = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _start_bar() -> rich.progress.Progress:
    """Show a bar of one task; it shows nothing without a terminal or a notebook's widgets."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    is_shown = find_spec("ipywidgets") if console.is_jupyter else console.is_terminal
    bar = Progress(console=console, disable=not is_shown, transient=True)
    bar.add_task("")
    bar.start()
    return bar


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


def raise_if_interrupted(is_interrupted: object) -> None:
    """Raise KeyboardInterrupt if the flag of a deferred Ctrl-C is set."""
    if is_interrupted:
        raise KeyboardInterrupt


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


def run_cancellable(function: Callable[[], object], cancel: Callable[[], object]) -> bool:
    """Run a function in another thread; return whether Ctrl-C was pressed, which calls ``cancel``.

    The next Ctrl-C raises at once. Only the main thread receives Ctrl-C: in any other one the
    function runs directly.
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
            if flag.is_set:
                cancel()
    future.result()
    return flag.is_set
