"""Threads that walk through the steps of a pass together, inside compiled code.

A pass has steps, and a step has pieces; a step may begin when the one before is done. ``take``
hands out pieces in order, and waits if a piece belongs to a step that may not
begin yet; ``done`` counts a finished piece. Nobody waits for a thread, only for pieces that a
running thread has taken: a helper that comes late or never costs nothing, and one thread alone
can do all of it.

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
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mmdp.kernels.cpu.jit import jit
from mmdp.kernels.cpu.threads import Team

Marks = npt.NDArray[np.int64]  # the counters of a pass, shared by its threads
Call = Callable[[Marks, int], None]

POSSIBLE = sys.platform != "win32"  # whether several threads may walk together
_TAKEN, _FINISHED, _HELD_UP, _WHERE, _LEFT, _PATIENCE = 0, 16, 32, 33, 34, 35  # slots, by line
OFTEN = 3, 8  # crowded: more than 3 steps, and more than one in 8 so far, were held up
PIECES = 2  # pieces per thread and step
SPINS = 256  # tries between two looks at the clock
NAP = 50  # microseconds that a waiting thread sleeps
SHORTEST = 300_000  # nanoseconds that any wait may last
NS_PER_WORK = 3.0  # the same per multiply-add of a piece: three times what it takes
_rest = 0.5  # seconds without helpers after it was crowded
_alone_until = 0.0
_fewer = 1  # threads until then: half of those that were too many


def new_marks(work: int = 0) -> Marks:
    """Counters of one pass, all at the start; ``work``: multiply-adds of a piece."""
    marks = np.zeros(48, dtype=np.int64)
    marks[_PATIENCE] = max(SHORTEST, int(NS_PER_WORK * work))
    return marks


def walk(team: Team, work: int, call: Call) -> None:
    """``call(marks, rank)`` on the threads of the team, for a pass of ``work`` per step.

    Rank 0 stays to the end; the others leave when it is crowded.
    """
    global _rest, _alone_until, _fewer
    marks = new_marks(work // pieces(len(team)))
    threads = len(team) if POSSIBLE else 1
    if time.monotonic() < _alone_until:
        threads = min(threads, _fewer)
    team.each(lambda rank: call(marks, rank), range(threads))
    if threads == 1:
        return
    if marks[_LEFT]:
        _alone_until, _fewer = time.monotonic() + _rest, threads // 2
        _rest = min(2 * _rest, 2.0)
    else:
        _rest = 0.5


def pieces(threads: int) -> int:
    """Pieces per step for that many threads: a few each, in case one is held up."""
    return 1 if threads == 1 else PIECES * threads


def edges(size: int, count: int) -> npt.NDArray[np.int64]:
    """The ends of ``count`` nearly equal ranges that cover 0..size; some may be empty."""
    return np.arange(count + 1) * size // count


def ranges(size: int, count: int) -> list[range]:
    """The same ranges, none of them empty: one for each of ``size`` things at most."""
    ends = edges(size, max(1, min(size, count))).tolist()
    return [range(*part) for part in pairwise(ends)]


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of array[index] of an int64 array and a literal or computed index."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic  # type: ignore[untyped-decorator]
def _add_one(typing: Any, array: Any, index: Any) -> Any:
    """array[index] += 1 atomically; returns the number before."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw(
            "add", _pointer(context, builder, signature, args), one, "seq_cst"
        )

    return types.int64(array, types.intp), code


@intrinsic  # type: ignore[untyped-decorator]
def _read(typing: Any, array: Any, index: Any) -> Any:
    """array[index] as other threads see it now."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", 8)

    return types.int64(array, types.intp), code


@intrinsic  # type: ignore[untyped-decorator]
def _set(typing: Any, array: Any, index: Any) -> Any:
    """array[index] = 1 for all threads to see."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        builder.store_atomic(one, _pointer(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp), code


@intrinsic  # type: ignore[untyped-decorator]
def _nap(typing: Any, microseconds: Any) -> Any:
    """Sleep, by the C library."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        function = cgutils.get_or_insert_function(builder.module, kind, "usleep")
        builder.call(function, [builder.trunc(args[0], ir.IntType(32))])
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def _clock(typing: Any) -> Any:
    """Nanoseconds of a monotonic clock, by the C library."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = ir.IntType(64)
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), whole.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        place = cgutils.alloca_once(builder, ir.ArrayType(whole, 2))  # type: ignore[no-untyped-call]
        first = builder.bitcast(place, whole.as_pointer())
        builder.call(function, [ir.Constant(ir.IntType(32), time.CLOCK_MONOTONIC), first])
        seconds = builder.load(first)
        rest = builder.load(builder.gep(first, [ir.Constant(whole, 1)]))
        return builder.add(builder.mul(seconds, ir.Constant(whole, 10**9)), rest)

    return types.int64(), code


@jit(helper=True)
def _wait_for(marks, count):  # type: ignore[no-untyped-def]
    """Until ``count`` pieces are finished."""
    if _read(marks, _FINISHED) >= count:
        return
    started, tries = _clock(), 0
    held_up = False
    while _read(marks, _FINISHED) < count:
        tries += 1
        if held_up or (tries % SPINS == 0 and _clock() - started > marks[_PATIENCE]):
            if not held_up and marks[_WHERE] != count:  # noted once for each step
                marks[_WHERE] = count
                _add_one(marks, _HELD_UP)
            held_up = True
            _nap(NAP)


@jit(helper=True)
def take(marks, rank, pieces, steps):  # type: ignore[no-untyped-def]
    """(step, piece) to work on next; step == steps when there is nothing left to do."""
    so_far = _read(marks, _TAKEN) // pieces
    if rank > 0 and _read(marks, _HELD_UP) > max(OFTEN[0], so_far // OFTEN[1]):
        _set(marks, _LEFT)
        return steps, 0
    number = _add_one(marks, _TAKEN)
    step = number // pieces
    if step >= steps:
        _wait_for(marks, steps * pieces)
        return steps, 0
    _wait_for(marks, step * pieces)
    return step, number - step * pieces


@jit(helper=True)
def done(marks):  # type: ignore[no-untyped-def]
    """One piece is finished: threads that take from the next step see what it wrote."""
    _add_one(marks, _FINISHED)
