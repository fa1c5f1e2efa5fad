"""Threads that walk through the steps of a pass together."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mmdp.kernels.cpu import steps
from mmdp.kernels.cpu.jit import jit
from mmdp.kernels.cpu.threads import Team


@jit()
def _take(marks, rank, pieces, count):  # type: ignore[no-untyped-def]
    return steps.take(marks, rank, pieces, count)


@jit()
def _done(marks):  # type: ignore[no-untyped-def]
    steps.done(marks)


@jit()
def _relay(marks, rank, x, pieces, count):  # type: ignore[no-untyped-def]
    """Each step reads what the whole step before wrote."""
    n = x.shape[1]
    while True:
        step, piece = steps.take(marks, rank, pieces, count)
        if step >= count:
            return
        for i in range(n * piece // pieces, n * (piece + 1) // pieces):
            x[step + 1, i] = x[step, n - 1 - i] + i
        steps.done(marks)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_in_step_see_all_of_the_step_before(threads, monkeypatch):
    n, count, pieces = 50, 3000, 7
    expected = np.zeros(n)
    for _ in range(count):
        expected = expected[::-1] + np.arange(n)
    x = np.zeros((count + 1, n))
    monkeypatch.setattr(steps, "_alone_until", 0.0)
    steps.walk(Team.of(threads), n, lambda marks, rank: _relay(marks, rank, x, pieces, count))
    assert (x[-1] == expected).all()


def test_a_helper_that_never_comes_is_not_waited_for():
    """One thread alone walks through work that was cut for many."""
    x = np.zeros((11, 9))
    _relay(steps.new_marks(), 0, x, 8, 10)
    assert x[-1].any()


@pytest.mark.parametrize("times", [1, 30])
def test_all_but_one_leave_where_a_thread_is_held_up_often(times, monkeypatch):
    """Pieces that are taken and not finished for long: once is no reason to leave."""
    monkeypatch.setattr(steps, "_alone_until", 0.0)
    monkeypatch.setattr(steps, "_rest", 1e6)
    monkeypatch.setattr(steps, "SHORTEST", 1_000_000)
    x, seen, left = np.zeros((41, 9)), [], []

    def call(marks: steps.Marks, rank: int) -> None:
        seen.append(rank)
        if rank == 1:  # takes a piece, is held up, finishes it
            for _ in range(times):
                if _take(marks, rank, 2, 40)[0] == 40:
                    return
                time.sleep(0.02)
                _done(marks)
            return
        while not marks[steps._TAKEN]:
            time.sleep(0.001)
        _relay(marks, rank, x, 2, 40)
        left.append(bool(marks[steps._LEFT]))

    for _ in range(10):  # on a busy machine this thread may miss what the other one does
        steps.walk(Team.of(2), 0, call)
        if left[-1] == (times > 1):
            break
    assert sorted(set(seen)) == [0, 1]
    assert left[-1] == (times > 1)
    seen.clear()
    steps.walk(Team.of(2), 0, lambda marks, rank: seen.append(rank))
    assert sorted(seen) == ([0] if times > 1 else [0, 1])
    monkeypatch.setattr(steps, "_alone_until", 0.0)
    monkeypatch.setattr(steps, "_rest", 1e6)
