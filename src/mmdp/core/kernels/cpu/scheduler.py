"""Threads that walk through the steps of a pass together, inside compiled code.

A pass has steps, and a step has pieces; a step may begin when the one before is done. The
function ``take_piece`` hands out pieces in order, and waits if a piece belongs to a step that may
not begin yet; ``finish_piece`` counts a finished piece. Nobody waits for a thread, only for pieces
that a running thread has taken: a helper that comes late or never costs nothing, and one thread
alone can do all of it.

A thread that loses its core in the middle of a piece holds up all others, and if other programs
are busy that happens at every step. So a wait has a limit, a few times what a piece takes: a
thread that waits longer stops spinning and counts it. Now and then that happens on any machine.
If it happens more often, the machine is crowded: all but one thread leave the pass, and the next
passes get half as many threads, for half a second, then longer each time.
If the C library lacks the calls for that (Windows), there are no helpers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mmdp.core.kernels.cpu.jit import jit
from mmdp.core.kernels.cpu.threads import for_each

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

    Intrinsic = tuple[Signature, Callable[..., ir.Value]]  # a type, and the code for it

Counters = npt.NDArray[np.int64]  # the counters of a pass, shared by its threads
ThreadFunction = Callable[[Counters, int], None]

CAN_SHARE_STEPS = sys.platform != "win32"  # whether several threads may walk together
_N_TAKEN = 0
_N_FINISHED = 16
_N_DELAYED = 32
_LAST_DELAYED = 33
_HELPERS_LEFT = 34
_MAX_WAIT = 35
_CLOCK = 48  # from here on seconds and nanoseconds, as each thread last read them
CROWDED_LIMITS = 3, 8  # crowded: more than 3 steps, and more than one in 8 so far, were held up
PIECES_PER_THREAD = 2  # pieces per thread and step
SPINS_PER_CLOCK_CHECK = 256  # tries between two looks at the clock
SLEEP_MICROSECONDS = 50  # microseconds that a waiting thread sleeps
MIN_WAIT_NS = 300_000  # nanoseconds that any wait may last
WAIT_NS_PER_OPERATION = 3.0  # the same per multiply-add of a piece: three times what it takes
_backoff_seconds = 0.5  # seconds without helpers after it was crowded
_crowded_until = 0.0
_crowded_threads = 1  # threads until then: half of those that were too many


def make_counters(n_threads: int = 1, work: int = 0) -> Counters:
    """Make the counters of one pass; ``work`` is the number of multiply-adds of a piece."""
    counters = np.zeros(_CLOCK + 2 * n_threads, dtype=np.int64)
    counters[_MAX_WAIT] = max(MIN_WAIT_NS, int(WAIT_NS_PER_OPERATION * work))
    return counters


def run_steps(n_threads: int, work: int, function: ThreadFunction) -> None:
    """Call ``function(counters, rank)`` on some threads, for a pass of ``work`` per step.

    Rank 0 stays to the end; the others leave when it is crowded.
    """
    global _backoff_seconds, _crowded_until, _crowded_threads
    counters = make_counters(n_threads, work // count_pieces(n_threads))
    if not CAN_SHARE_STEPS:
        n_threads = 1
    elif time.monotonic() < _crowded_until:
        n_threads = min(n_threads, _crowded_threads)
    for_each(n_threads, lambda rank: function(counters, rank), range(n_threads))
    if n_threads == 1:
        return
    if counters[_HELPERS_LEFT]:
        _crowded_until, _crowded_threads = time.monotonic() + _backoff_seconds, n_threads // 2
        _backoff_seconds = min(2 * _backoff_seconds, 2.0)
    else:
        _backoff_seconds = 0.5


def count_pieces(n_threads: int) -> int:
    """Return the number of pieces per step for that many threads."""
    return 1 if n_threads == 1 else PIECES_PER_THREAD * n_threads


def _make_atomic(emit: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Any:
    """Make a function (array, index) of an int64 array, whose code ``emit`` writes."""

    @intrinsic  # type: ignore[untyped-decorator]
    def run_atomic(typing: Context, array: types.Type, index: object) -> Intrinsic:
        def codegen(
            context: BaseContext,
            builder: ir.IRBuilder,
            signature: Signature,
            args: Sequence[ir.Value],
        ) -> ir.Value:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            return emit(builder, builder.gep(data, [args[1]]))

        return types.int64(array, types.intp), codegen

    return run_atomic


_ONE = ir.Constant(ir.IntType(64), 1)
# add 1 to array[index], and return the number before; read array[index] as others see it now
_increment = _make_atomic(lambda builder, x: builder.atomic_rmw("add", x, _ONE, "seq_cst"))
_read_atomic = _make_atomic(lambda builder, x: builder.load_atomic(x, "acquire", 8))
_sleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))  # microseconds, in C
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 0)


@jit(helper=True)
def _read_clock(counters, rank):  # type: ignore[no-untyped-def]
    """Return the nanoseconds of a monotonic clock, by the C library."""
    i = _CLOCK + 2 * rank
    _clock_gettime(_MONOTONIC, counters[i:].ctypes.data)
    return counters[i] * 10**9 + counters[i + 1]


@jit(helper=True)
def _wait_until_finished(counters, rank, n_pieces):  # type: ignore[no-untyped-def]
    """Wait until ``n_pieces`` pieces are finished."""
    if _read_atomic(counters, _N_FINISHED) >= n_pieces:
        return
    start, n_tries = _read_clock(counters, rank), 0
    is_delayed = False
    while _read_atomic(counters, _N_FINISHED) < n_pieces:
        n_tries += 1
        if is_delayed or (
            n_tries % SPINS_PER_CLOCK_CHECK == 0
            and _read_clock(counters, rank) - start > counters[_MAX_WAIT]
        ):
            if not is_delayed and counters[_LAST_DELAYED] != n_pieces:  # noted once for each step
                counters[_LAST_DELAYED] = n_pieces
                _increment(counters, _N_DELAYED)
            is_delayed = True
            _sleep(SLEEP_MICROSECONDS)


@jit(helper=True)
def take_piece(counters, rank, n_pieces, n_steps):  # type: ignore[no-untyped-def]
    """Return (step, piece) to work on next; step is n_steps if nothing is left."""
    steps_begun = _read_atomic(counters, _N_TAKEN) // n_pieces
    if rank > 0 and _read_atomic(counters, _N_DELAYED) > max(
        CROWDED_LIMITS[0], steps_begun // CROWDED_LIMITS[1]
    ):
        _increment(counters, _HELPERS_LEFT)
        return n_steps, 0
    number = _increment(counters, _N_TAKEN)
    step = number // n_pieces
    if step >= n_steps:
        _wait_until_finished(counters, rank, n_steps * n_pieces)
        return n_steps, 0
    _wait_until_finished(counters, rank, step * n_pieces)
    return step, number - step * n_pieces


@jit(helper=True)
def finish_piece(counters):  # type: ignore[no-untyped-def]
    """Count a piece as finished, so that threads of the next step see its results."""
    _increment(counters, _N_FINISHED)
