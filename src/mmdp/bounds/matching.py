"""Which models to pair: evaluate pairs, then a matching of the largest total gain.

The gain of a pair is how much lower its value is than the sum of its models' own optima.
Pairs are evaluated in the rounds of a tournament: each round is a perfect matching, and
all rounds together are all pairs. Under a time limit only some rounds are played.

The best matching is found by the assignment problem, where every model chooses another or
itself: its solution is a permutation, whose cycles are cut into pairs. That is the optimum unless
a cycle is odd, and takes milliseconds for a hundred models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.clock import clock, compiling
from mmdp.kernels import Plan
from mmdp.kernels.problem import Array, Pairs

Ints = npt.NDArray[np.int64]
COARSE = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), 8, 0.5)
FINER = 2.0  # times as long for a pair on the fine grid, which has three times the points
FIRST, AT_ONCE = 16, 0.1  # pairs at first; seconds below which the next round has twice as many
MANY = 1_000  # models above which pairs are taken greedily


def rounds(n: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """The rounds of a tournament of n players in random order; each pair meets once.

    >>> sum(len(first) for first, _ in rounds(5, 0))
    10
    """
    rng = np.random.default_rng(seed)
    players = rng.permutation(n)
    size = n + n % 2  # if the number is odd, one sits out
    for k in rng.permutation(size - 1):
        others = (np.arange(size - 1) + k) % (size - 1)
        first = np.concatenate([[size - 1], others[1 : size // 2]])
        second = np.concatenate([[others[0]], others[: size // 2 - 1 : -1]])
        there = (first < n) & (second < n)
        yield players[first[there]], players[second[there]]


class Matching(NamedTuple):
    """Disjoint pairs of models, and what was learnt while they were chosen."""

    pairs: Pairs
    gain: Array  # how much lower the value of each is than the own optima of its models
    tried: int  # pairs that were evaluated
    seconds: float  # per pair

    @property
    def refining(self) -> float:
        """About how many seconds the values of all these pairs on the fine grid take."""
        return FINER * self.seconds * len(self.gain)


class Tournament:
    """The pairs that were evaluated so far; ``play`` evaluates more.

    own (M,): the models' own optimal values times their weights.
    """

    def __init__(self, plan: Plan, own: Array, *, seed: int = 0, grid: Pairs = COARSE) -> None:
        self.plan, self.problem = plan, plan.problem
        self.own, self.grid = own, grid
        self.players = np.flatnonzero(self.problem.weights > 0)
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
        value = self.plan.pair_values(self.grid._replace(first=i, second=j))
        self._games.append((i, j, self.own[i] + self.own[j] - value))
        took = clock() - began
        self.count, self.seconds = self.count + len(i), self.seconds + took
        if took < AT_ONCE:
            self._size = min(2 * self._size, max(len(first), FIRST))

    def matching(self, quick: bool = False) -> Matching:
        """Disjoint pairs of large total gain; ``quick``: taken greedily."""
        if not self._games:
            return Matching(self.grid, np.zeros(0), 0, 0.0)
        i, j, gain = (np.concatenate(part) for part in zip(*self._games, strict=True))
        taken = _greedy(i, j, gain, self.problem.n_models)
        if not quick and self.problem.n_models <= MANY:
            other = _assigned(i, j, gain, self.problem.n_models)
            taken = max(taken, other, key=lambda pairs: float(gain[pairs].sum()))
        # those that were left over, and models that never were tried, in any order
        left = np.setdiff1d(self.players, np.concatenate([i[taken], j[taken]]))
        rest = left[: len(left) // 2 * 2].reshape(-1, 2)
        chosen = self.grid._replace(
            first=np.concatenate([i[taken], rest[:, 0]]),
            second=np.concatenate([j[taken], rest[:, 1]]),
        )
        gains = np.concatenate([gain[taken], np.zeros(len(rest))])
        return Matching(chosen, gains, len(i), self.each)


def _greedy(i: Ints, j: Ints, gain: Array, n: int) -> Ints:
    """Which of the pairs: the best, then the best of those that are left, and so on."""
    free, chosen = np.ones(n, dtype=bool), []
    for k in np.argsort(-gain, kind="stable"):
        if free[i[k]] and free[j[k]]:
            free[i[k]] = free[j[k]] = False
            chosen.append(k)
    return np.array(chosen)


def _assigned(i: Ints, j: Ints, gain: Array, n: int) -> Ints:
    """Which of the pairs: those of the best assignment, its cycles cut so as to lose least.

    >>> i, j, gain = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]), np.array([2.0, 3.0, 2.0, 0.0])
    >>> _assigned(i, j, gain, 4), _greedy(i, j, gain, 4)
    (array([0, 2]), array([1, 3]))
    """
    with compiling():  # loads compiled code
        from scipy.optimize import linear_sum_assignment

    gains = np.full((n, n), -np.inf)
    gains[i, j] = gains[j, i] = gain
    np.fill_diagonal(gains, 0.0)
    _, partner = linear_sum_assignment(gains, maximize=True)
    pair = np.full(n, -1)  # the pair of a model and its partner
    for one, other in ((i, j), (j, i)):
        chosen = np.flatnonzero(partner[one] == other)
        pair[one[chosen]] = chosen
    return np.concatenate([_cut(pair[cycle], gain) for cycle in _cycles(partner)])


def _cycles(partner: Ints) -> Iterator[Ints]:
    """The cycles of a permutation."""
    seen = np.zeros(len(partner), dtype=bool)
    for start in range(len(partner)):
        at, cycle = start, []
        while not seen[at]:
            seen[at] = True
            cycle.append(at)
            at = int(partner[at])
        if cycle:
            yield np.array(cycle)


def _cut(pairs: Ints, gain: Array) -> Ints:
    """Every second pair of a cycle, begun where that gains most; none of a model alone."""
    n = len(pairs)
    turns = (np.roll(pairs, -k)[: n - n % 2 : 2] for k in range(n if n % 2 else 2))
    return max(turns, key=lambda turn: float(gain[turn].sum()))
