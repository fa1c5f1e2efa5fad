"""Which models to pair: evaluate pairs, then a matching of the largest total gain.

The gain of a pair is how much lower its value is than the sum of its models' own optima.
Pairs are evaluated in the rounds of a tournament: each round is a perfect matching, and
all rounds together are all pairs. Under a time limit only some rounds are played.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.bounds.lp import interruptible, minimise
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
    gain: Array  # of each: how much lower its value is than the own optima of its models
    tried: int  # pairs that were evaluated
    seconds: float  # that one of them took


class Tournament:
    """The pairs that were evaluated so far; ``play`` evaluates more.

    own (M,): the models' own optimal values times their weights.
    """

    def __init__(
        self, problem: Problem, horizon: int, kernel: Kernel, own: Array, *, seed: int = 0,
        grid: Pairs = COARSE,
    ) -> None:  # fmt: skip
        self.problem, self.horizon, self.kernel = problem, horizon, kernel
        self.own, self.grid = own, grid
        self.players = np.flatnonzero(problem.weights > 0)
        self.started = clock()
        self.count, self.seconds, self._size = 0, 0.0, FIRST
        self._games: list[tuple[Ints, Ints, Array]] = []
        self._round: tuple[Ints, Ints] = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._rounds = rounds(len(self.players), seed) if len(self.players) > 1 else iter(())

    @property
    def each(self) -> float:
        """Seconds per pair so far."""
        return self.seconds / max(self.count, 1)

    def play(self, deadline: float, keep: float = 0.0, most: float = math.inf) -> bool:
        """Evaluate pairs until the deadline, some at least; whether there is time for more.

        ``keep``: as many pairs could be evaluated afterwards, unless they take half the time.
        After ``most`` seconds it pauses.
        """
        began = clock()
        while self._next_round():
            kept = keep * self.each
            needed = self._size * self.each
            needed += kept if kept < 0.5 * (deadline - self.started) else 0.0
            if self._games and clock() + needed > deadline:
                return False
            self._evaluate()
            if clock() - began > most:
                return True
        return False

    def _next_round(self) -> bool:
        if not len(self._round[0]):
            self._round = next(self._rounds, self._round)
        return len(self._round[0]) > 0

    def _evaluate(self) -> None:
        """Some pairs of this round; twice as many next time if that was quick."""
        began, (first, second) = clock(), self._round
        i, j = self.players[first[: self._size]], self.players[second[: self._size]]
        self._round = first[self._size :], second[self._size :]
        value = self.kernel.pair_values(
            self.problem, self.horizon, self.grid._replace(first=i, second=j)
        )
        self._games.append((i, j, self.own[i] + self.own[j] - value))
        took = clock() - began
        self.count, self.seconds = self.count + len(i), self.seconds + took
        if took < AT_ONCE:
            self._size = min(2 * self._size, max(len(first), FIRST))

    def matching(self, seconds: float) -> Matching:
        """Disjoint pairs of large total gain."""
        if not self._games:
            return Matching(self.grid, np.zeros(0), 0, 0.0)
        i, j, gain = (np.concatenate(part) for part in zip(*self._games, strict=True))
        taken = _best_matching(i, j, gain, self.problem.n_models, seconds)
        # those that were left over, and models that never were tried, in any order
        left = np.setdiff1d(self.players, np.concatenate([i[taken], j[taken]]))
        rest = left[: len(left) // 2 * 2].reshape(-1, 2)
        chosen = self.grid._replace(
            first=np.concatenate([i[taken], rest[:, 0]]),
            second=np.concatenate([j[taken], rest[:, 1]]),
        )
        gains = np.concatenate([gain[taken], np.zeros(len(rest))])
        return Matching(chosen, gains, len(i), self.each)


def match(
    problem: Problem, horizon: int, kernel: Kernel, own: Array, *, deadline: float, seed: int = 0,
) -> Matching:  # fmt: skip
    """Pairs of large total gain among those that could be evaluated until the deadline."""
    tournament = Tournament(problem, horizon, kernel, own, seed=seed)
    tournament.play(deadline)
    return tournament.matching(max(deadline - clock(), 0.1))


def _best_matching(i: Ints, j: Ints, gain: Array, n: int, seconds: float) -> npt.NDArray[np.bool_]:
    """Which pairs: by integer programming if they are few and there is time, else greedily."""
    small = len(i) <= EXACT_UP_TO and seconds > 0
    chosen = _exact(i, j, gain, n, min(max(seconds, 0.1), 5.0)) if small else None
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
    found = interruptible(minimise(
        -gain, rows, np.full(n, -np.inf), np.ones(n), np.ones(len(i)),
        integral=np.ones(len(i), dtype=bool), time_limit=seconds,
    ))  # fmt: skip
    return None if found.x is None else found.x > 0.5
