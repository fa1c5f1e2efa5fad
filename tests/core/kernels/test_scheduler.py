"""Threads that walk through the steps of a pass together."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mmdp.core.kernels.cpu import scheduler
from mmdp.core.kernels.cpu.jit import jit


@jit()
def _take_piece(counters, rank, n_pieces, n_steps):  # type: ignore[no-untyped-def]
    return scheduler.take_piece(counters, rank, n_pieces, n_steps)


@jit()
def _mark_done(counters):  # type: ignore[no-untyped-def]
    scheduler.finish_piece(counters)


@jit()
def _run_relay(counters, rank, x, n_pieces, n_steps):  # type: ignore[no-untyped-def]
    """Each step reads what the whole step before wrote."""
    n = x.shape[1]
    while True:
        step, piece = scheduler.take_piece(counters, rank, n_pieces, n_steps)
        if step >= n_steps:
            return
        for i in range(n * piece // n_pieces, n * (piece + 1) // n_pieces):
            x[step + 1, i] = x[step, n - 1 - i] + i
        scheduler.finish_piece(counters)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_see_all_of_the_previous_step(n_threads, monkeypatch):
    n, n_steps, n_pieces = 50, 3000, 7
    expected = np.zeros(n)
    for _ in range(n_steps):
        expected = expected[::-1] + np.arange(n)
    x = np.zeros((n_steps + 1, n))
    monkeypatch.setattr(scheduler, "_crowded_until", 0.0)
    scheduler.run_steps(
        n_threads,
        n,
        lambda counters, rank: _run_relay(counters, rank, x, n_pieces, n_steps),
    )
    assert (x[-1] == expected).all()


def test_an_absent_helper_thread_is_not_waited_for():
    """One thread alone walks through work that was cut for many."""
    x = np.zeros((11, 9))
    _run_relay(scheduler.make_counters(), 0, x, 8, 10)
    assert x[-1].any()


@pytest.mark.parametrize("n_delays", [1, 30])
def test_helpers_leave_if_a_thread_is_often_delayed(n_delays, monkeypatch):
    """Pieces that are taken and not finished for long: once is no reason to leave."""
    monkeypatch.setattr(scheduler, "_crowded_until", 0.0)
    monkeypatch.setattr(scheduler, "_backoff_seconds", 1e6)
    monkeypatch.setattr(scheduler, "MIN_WAIT_NS", 1_000_000)
    x, ranks, has_left = np.zeros((41, 9)), [], []

    def run_rank(counters: scheduler.Counters, rank: int) -> None:
        ranks.append(rank)
        if rank == 1:  # takes a piece, is held up, finishes it
            for _ in range(n_delays):
                if _take_piece(counters, rank, 2, 40)[0] == 40:
                    return
                time.sleep(0.02)
                _mark_done(counters)
            return
        while not counters[scheduler._N_TAKEN]:
            time.sleep(0.001)
        _run_relay(counters, rank, x, 2, 40)
        has_left.append(bool(counters[scheduler._HELPERS_LEFT]))

    for _ in range(10):  # on a busy machine this thread may miss what the other one does
        scheduler.run_steps(2, 0, run_rank)
        if has_left[-1] == (n_delays > 1):
            break
    assert sorted(set(ranks)) == [0, 1]
    assert has_left[-1] == (n_delays > 1)
    ranks.clear()
    scheduler.run_steps(2, 0, lambda counters, rank: ranks.append(rank))
    assert sorted(ranks) == ([0] if n_delays > 1 else [0, 1])
    monkeypatch.setattr(scheduler, "_crowded_until", 0.0)
    monkeypatch.setattr(scheduler, "_backoff_seconds", 1e6)
