"""Which models to pair: evaluate pairs, then a matching of the largest total gain.

The gain of a pair is how much lower its value is than the sum of its models' own optima.
Pairs are evaluated in the rounds of a tournament: each round is a perfect matching, and
all rounds together are all pairs. Under a time limit only some rounds are played.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.bounds.lp import minimise
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import Array, Pairs

Ints = npt.NDArray[np.int64]
COARSE = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), 8, 0.5)
FIRST, AT_ONCE = 16, 0.1  # pairs evaluated at first; seconds up to which there are twice as many
EXACT_UP_TO = 8_000  # pairs among which the best matching is computed exactly


def rounds(n: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """The rounds of a tournament of n players in random order; each pair meets once.

    >>> sum(len(first) for first, _ in rounds(5, 0))
    10
    """
    rng = np.random.default_rng(seed)
    players = rng.permutation(n)
    size = n + n % 2  # with an odd number one sits out
    for k in rng.permutation(size - 1):
        others = (np.arange(size - 1) + k) % (size - 1)
        first = np.concatenate([[size - 1], others[1 : size // 2]])
        second = np.concatenate([[others[0]], others[: size // 2 - 1 : -1]])
        there = (first < n) & (second < n)
        yield players[first[there]], players[second[there]]


class Matching(NamedTuple):
    """Disjoint pairs of models, and what was learnt while they were chosen."""

    pairs: Pairs
    gain: float  # how much lower than the models' own optima their values are together
    tried: int  # pairs that were evaluated
    seconds: float  # that one of them took


def match(
    problem: Problem, horizon: int, kernel: Kernel, own: Array, *, deadline: float, seed: int = 0,
    grid: Pairs = COARSE,
) -> Matching:  # fmt: skip
    """Pairs of large total gain among those that could be evaluated until the deadline.

    own (M,): the models' own optimal values times their weights.
    """
    players = np.flatnonzero(problem.weights > 0)
    if len(players) < 2:
        return Matching(grid, 0.0, 0, 0.0)
    tried: list[tuple[Ints, Ints, Array]] = []
    started, size, count = clock(), FIRST, 0
    for first, second in rounds(len(players), seed):
        at = 0
        while at < len(first) and (not tried or clock() + size * _each(started, count) < deadline):
            part, began = slice(at, at + size), clock()
            i, j = players[first[part]], players[second[part]]
            value = kernel.pair_values(problem, horizon, grid._replace(first=i, second=j))
            tried.append((i, j, own[i] + own[j] - value))
            at, count = at + size, count + len(i)
            if clock() - began < AT_ONCE:
                size = min(2 * size, len(first))
        if at < len(first):
            break
    seconds = _each(started, count)
    i, j, gain = (np.concatenate(part) for part in zip(*tried, strict=True))
    taken = _best_matching(i, j, gain, problem.n_models, max(deadline - clock(), 0.1))
    # those that were left over, and models that never were tried, in any order
    left = np.setdiff1d(players, np.concatenate([i[taken], j[taken]]))
    rest = left[: len(left) // 2 * 2].reshape(-1, 2)
    chosen = grid._replace(
        first=np.concatenate([i[taken], rest[:, 0]]), second=np.concatenate([j[taken], rest[:, 1]])
    )
    return Matching(chosen, float(gain[taken].sum()), len(i), seconds)


def _each(started: float, count: int) -> float:
    """Seconds per pair so far."""
    return (clock() - started) / max(count, 1)


def _best_matching(i: Ints, j: Ints, gain: Array, n: int, seconds: float) -> npt.NDArray[np.bool_]:
    """Which pairs: by integer programming if they are few and there is time, else greedily."""
    chosen = _exact(i, j, gain, n, min(seconds, 5.0)) if len(i) <= EXACT_UP_TO else None
    return _greedy(i, j, gain, n) if chosen is None else chosen


def _greedy(i: Ints, j: Ints, gain: Array, n: int) -> npt.NDArray[np.bool_]:
    free, chosen = np.ones(n, dtype=bool), np.zeros(len(i), dtype=bool)
    for k in np.argsort(-gain, kind="stable"):
        if free[i[k]] and free[j[k]]:
            free[i[k]] = free[j[k]] = False
            chosen[k] = True
    return chosen


def _exact(i: Ints, j: Ints, gain: Array, n: int, seconds: float) -> npt.NDArray[np.bool_] | None:
    from scipy.sparse import coo_array

    edges = np.arange(len(i))
    rows = coo_array(
        (np.ones(2 * len(i)), (np.concatenate([i, j]), np.concatenate([edges, edges]))),
        shape=(n, len(i)),
    ).tocsr()
    found = minimise(
        -gain, rows, np.full(n, -np.inf), np.ones(n), np.ones(len(i)),
        integral=np.ones(len(i), dtype=bool), time_limit=seconds,
    )  # fmt: skip
    return None if found.x is None else found.x > 0.5
