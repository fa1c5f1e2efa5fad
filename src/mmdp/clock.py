"""One stopwatch: deadlines, time spent compiling, Ctrl-C, progress, and what work costs.

:func:`clock` stands still while a kernel compiles, so that no time limit pays for it. When the
time is up, :class:`Stop` is raised where the clock is looked at.

The first Ctrl-C is answered: ``solve`` and ``bound`` return the best so far and say so. The next
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
from typing import Any, NamedTuple, Self

from mmdp.words import duration

# ---------------------------------------------------------------------- what work costs
# for the compiled kernels on a few threads; numpy takes up to five times as long
RATE, STEP = 4e9, 1e-5  # multiply-adds per second, and the overhead of a time step in seconds


def seconds(work: float, steps: float, passes: float = 1.0) -> float:
    """About how long ``passes`` take, each of ``work`` multiply-adds and ``steps`` time steps.

    A rule by size: the same on every machine and for every kernel, so that whatever depends on it
    can be repeated.

    >>> seconds(4e9, 0, passes=2)
    2.0
    """
    return passes * (work / RATE + steps * STEP)


# ---------------------------------------------------------------------- time
class Stop(Exception):
    """The time is up: raised where the clock is looked at."""


EARLY = (Stop, KeyboardInterrupt)  # what cuts a search short

_spent = 0.0
_lock = threading.RLock()
_depth = 0
_listeners: list[Callable[[], object]] = []


def clock() -> float:
    """Seconds, by a clock that stands still while a kernel compiles."""
    return time.perf_counter() - _spent


class Stopwatch:
    """The seconds of one call, and those left until its deadline, a time of :func:`clock`.

    >>> Stopwatch().left, Stopwatch(limit=0.0).late
    (inf, True)
    """

    def __init__(self, limit: float | None = None) -> None:
        self.started = time.perf_counter()
        self.deadline = math.inf if limit is None else clock() + limit

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return self.deadline - clock()

    @property
    def late(self) -> bool:
        return self.left < 0

    def check(self) -> None:
        """Raise Stop if the time is up."""
        if self.late:
            raise Stop

    def at_least(self, seconds: float) -> Stopwatch:
        """A copy with at least these seconds left."""
        other = copy.copy(self)
        other.deadline = max(self.deadline, clock() + seconds)
        return other


def spent() -> float:
    """Seconds that this process has spent compiling so far."""
    return _spent


@contextmanager
def compiling() -> Iterator[None]:
    """Count this block as compiling (or loading compiled code); nested blocks count once.

    >>> before = spent()
    >>> with compiling():
    ...     pass
    >>> spent() >= before
    True
    """
    global _spent, _depth
    with _lock:
        _depth += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                _spent += time.perf_counter() - started


def add(seconds: float) -> None:
    """Add seconds measured by a compiler that keeps its own time."""
    global _spent
    with _lock:
        _spent += seconds


def announce() -> None:
    """Tell the listeners that a kernel begins to compile something that no cache holds."""
    for listener in _listeners:
        listener()


@contextmanager
def listening(listener: Callable[[], object]) -> Iterator[None]:
    """Call ``listener`` whenever a kernel compiles something that no cache holds."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


# ---------------------------------------------------------------------- progress
def gap(bound: float, value: float) -> float:
    """(bound - value) / |value|, the one meaning of a gap; 0 if the value meets its bound.

    >>> gap(103.0, 100.0), gap(-9.0, -10.0), gap(1.0, 0.0)
    (0.03, 0.1, inf)
    """
    if bound <= value:
        return 0.0
    return (bound - value) / abs(value) if value else math.inf


class Progress(NamedTuple):
    """What a callback sees: of ``solve`` after each iteration, of ``bound`` when a bound falls.

    For ``bound``, value and best are those of the incumbent, -inf if there is none yet.
    """

    method: str
    iteration: int  # counted over all starts
    value: float
    best: float
    seconds: float
    bound: float = math.nan  # the proven upper bound so far, if there is one
    nodes: int = 0  # exact methods: the size of the tree

    @property
    def gap(self) -> float:
        """(bound - best) / |best|; nan without both."""
        known = self.best > -math.inf and not math.isnan(self.bound)
        return gap(self.bound, self.best) if known else math.nan


Callback = Callable[[Progress], object]


SHOW_AFTER, AGAIN = 2.0, 0.3  # seconds until a bar appears, and between its changes
_heard: list[Callable[[str], object]] = []  # who shows bars in place of stderr, latest last


@contextmanager
def heard(by: Callable[[str], object]) -> Iterator[None]:
    """Inside the block the text of bars goes to the function ``by``, not to stderr."""
    _heard.append(by)
    try:
        yield
    finally:
        _heard.pop()


class Bar:
    """Progress of a function that takes long, on stderr; in terminals and notebooks only."""

    def __init__(self, name: str) -> None:
        self.name, self.began, self.said = name, time.perf_counter(), 0.0

    def at(self, done: int, total: int) -> None:
        """Show how many rows are done, and about how long the others will take."""
        now = time.perf_counter()
        if not done or now - self.began < SHOW_AFTER or now - self.said < AGAIN:
            return
        left = duration((now - self.began) * (total - done) / done)
        text = f"{self.name}: {done:,} of {total:,} rows, {left} left"
        if _heard:
            _heard[-1](text)
        elif sys.stderr.isatty() or "ipykernel" in sys.modules:
            self.said = now
            line = f"\r{'█' * (24 * done // total):░<24} {text:<54}"
            print(line, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self.said:
            print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- Ctrl-C
_answered = False  # whether the last Ctrl-C was answered, so that the next one raises
_unanswered = 0  # blocks inside which every Ctrl-C raises


def answer(stop: BaseException | None = None) -> None:
    """Return if ``stop``, or a Ctrl-C noticed otherwise, may be answered with the best so far.

    Otherwise raise it.
    """
    global _answered
    stop = KeyboardInterrupt() if stop is None else stop
    if not isinstance(stop, KeyboardInterrupt):
        return
    again = _answered or _unanswered or getattr(stop, "again", False)
    _answered = not again
    if again:
        stop.again = True  # type: ignore[attr-defined]  # others that catch it pass it on
        raise stop


class Ending:
    """How a block ended: ``stop`` is what cut it short, None if nothing did."""

    stop: BaseException | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C cut it short."""
        return isinstance(self.stop, KeyboardInterrupt)


@contextmanager
def ending(
    keep: Callable[[], object] = lambda: True, *, answered: bool = False
) -> Iterator[Ending]:
    """A block that the time or Ctrl-C may cut short, if there is something to ``keep`` by then.

    If it is ``answered``, the next Ctrl-C raises.

    >>> with ending() as end:
    ...     raise Stop
    >>> end.stop is not None, end.interrupted
    (True, False)
    """
    end = Ending()
    try:
        yield end
    except EARLY as stop:
        if not keep():
            raise
        if answered:
            answer(stop)
        end.stop = stop


def to_the_end(work: Callable[[], Any], cancel: Callable[[], object] | None = None) -> Any:
    """Run in another thread, which Ctrl-C cannot interrupt; it is raised when the work is done.

    With ``cancel`` the first Ctrl-C only calls that, and the next one raises at once. Only the
    main thread receives Ctrl-C: in any other one the work runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    result: list[Any] = []
    error: list[BaseException] = []
    begun = threading.Event()
    done = threading.Event()  # a thread whose join() is interrupted would count as finished

    def run() -> None:
        begun.set()
        try:
            result.append(work())
        except BaseException as caught:  # raised by the caller's thread below
            error.append(caught)
        finally:
            done.set()

    interrupted: KeyboardInterrupt | None = None
    thread = threading.Thread(target=run, name="mmdp-work", daemon=cancel is not None)
    while not done.is_set():
        try:
            if thread.ident is None:
                thread.start()
            while not done.wait(0.1):
                pass
        except KeyboardInterrupt as caught:
            if not begun.wait(1.0) or (cancel is not None and interrupted is not None):
                raise
            if cancel is not None:
                cancel()
            interrupted = caught
    if interrupted is not None and cancel is None:
        raise interrupted
    if error:
        raise error[0]
    return result[0]


@contextmanager
def unanswered() -> Iterator[None]:
    """Inside the block every Ctrl-C raises: the best so far of one solve is no result of many."""
    global _unanswered
    _unanswered += 1
    try:
        yield
    finally:
        _unanswered -= 1


def pass_on(pressed: object) -> None:
    """Raise the Ctrl-C that was ``pressed``, if one was, where it was only noted before."""
    if pressed:
        raise KeyboardInterrupt


def ignore_ctrl_c() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class CtrlC:
    """Whether Ctrl-C was pressed inside the block; it is handled as usual.

    >>> with CtrlC() as keys:
    ...     pass
    >>> keys.pressed
    False
    """

    pressed = False
    _before: Any = None

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGINT)
        # only the main thread may set a handler; if Ctrl-C is ignored (nohup), that stays so
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: Any) -> None:
        self.pressed = True
        self._before(number, frame)


class Held(CtrlC):
    """The first Ctrl-C is only noted: work that checks ``pressed`` ends at a convenient point."""

    def _note(self, number: int, frame: Any) -> None:
        if self.pressed:
            self._before(number, frame)
        self.pressed = True
