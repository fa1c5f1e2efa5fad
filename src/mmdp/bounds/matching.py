"""Which models to pair: evaluate pairs, then a matching of the largest total gain.

The gain of a pair is how much lower its value is than the sum of its models' own optima.
Pairs are evaluated in the rounds of a tournament: each round is a perfect matching, and
all rounds together are all pairs. Under a time limit only some rounds are played.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mmdp.bounds.lp import minimise
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import Array, Pairs

Ints = npt.NDArray[np.int64]
COARSE = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), 8, 0.5)
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


def match(
    problem: Problem, horizon: int, kernel: Kernel, own: Array, *, deadline: float, seed: int = 0,
    grid: Pairs = COARSE,
) -> tuple[Pairs, int]:  # fmt: skip
    """Pairs of large total gain among those that could be evaluated, and how many that were.

    own (M,): the models' own optimal values times their weights.
    """
    firsts, seconds, gains = [], [], []
    started = clock()
    players = np.flatnonzero(problem.weights > 0)
    if len(players) < 2:
        return grid, 0
    for first, second in rounds(len(players), seed):
        i, j = players[first], players[second]
        value = kernel.pair_values(problem, horizon, grid._replace(first=i, second=j))
        firsts.append(i)
        seconds.append(j)
        gains.append(own[i] + own[j] - value)
        now = clock()
        if now + (now - started) / len(firsts) > deadline:
            break
    i, j, gain = np.concatenate(firsts), np.concatenate(seconds), np.concatenate(gains)
    chosen = _best_matching(i, j, gain, problem.n_models)
    first, second = (np.ascontiguousarray(chosen[:, k]) for k in (0, 1))
    return grid._replace(first=first, second=second), len(i)


def _best_matching(i: Ints, j: Ints, gain: Array, n: int) -> Ints:
    """(pairs, 2): exact by integer programming where that is small, else greedy; then filled."""
    chosen = _exact(i, j, gain, n) if len(i) <= EXACT_UP_TO else None
    if chosen is None:
        chosen = _greedy(i, j, gain, n)
    pairs = np.stack([i[chosen], j[chosen]], axis=1)
    left = np.setdiff1d(np.unique(np.concatenate([i, j])), pairs)
    rest = left[: len(left) // 2 * 2].reshape(-1, 2)
    return np.concatenate([pairs, rest])


def _greedy(i: Ints, j: Ints, gain: Array, n: int) -> npt.NDArray[np.bool_]:
    free, chosen = np.ones(n, dtype=bool), np.zeros(len(i), dtype=bool)
    for k in np.argsort(-gain, kind="stable"):
        if free[i[k]] and free[j[k]]:
            free[i[k]] = free[j[k]] = False
            chosen[k] = True
    return chosen


def _exact(i: Ints, j: Ints, gain: Array, n: int) -> npt.NDArray[np.bool_] | None:
    from scipy.sparse import coo_array

    edges = np.arange(len(i))
    rows = coo_array(
        (np.ones(2 * len(i)), (np.concatenate([i, j]), np.concatenate([edges, edges]))),
        shape=(n, len(i)),
    ).tocsr()
    found = minimise(
        -gain, rows, np.full(n, -np.inf), np.ones(n), np.ones(len(i)),
        integral=np.ones(len(i), dtype=bool), time_limit=5.0,
    )  # fmt: skip
    return None if found.x is None else found.x > 0.5
