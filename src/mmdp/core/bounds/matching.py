"""Pairs of models: evaluate pairs, then match those with the largest total gain.

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

from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.problem import Array, ModelPairs
from mmdp.core.timing import measure_compilation, solver_clock

Int64Array = npt.NDArray[np.int64]
COARSE_GRID = ModelPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), 8, 0.5)
FINE_COST_RATIO = 2.0  # times as long for a pair on the fine grid, which has three times the points
INITIAL_BATCH, QUICK_SECONDS = (
    16,
    0.1,
)  # pairs at first; seconds below which the next round has twice as many
MAX_ASSIGNMENT_MODELS = 1_000  # models above which pairs are taken greedily


def iter_round_robin(n: int, seed: int) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Iterate over the rounds of a round-robin of n models in random order; each pair occurs once.

    >>> sum(len(first) for first, _ in iter_round_robin(5, 0))
    10
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    size = n + n % 2  # if the number is odd, one sits out
    for k in rng.permutation(size - 1):
        rotation = (np.arange(size - 1) + k) % (size - 1)
        first = np.concatenate([[size - 1], rotation[1 : size // 2]])
        second = np.concatenate([[rotation[0]], rotation[: size // 2 - 1 : -1]])
        is_valid = (first < n) & (second < n)
        yield order[first[is_valid]], order[second[is_valid]]


class Matching(NamedTuple):
    """Disjoint pairs of models with their gains and the cost of evaluating them."""

    pairs: ModelPairs
    gains: Array  # how much lower the value of each is than the own optima of its models
    n_evaluated: int  # pairs that were evaluated
    seconds_per_pair: float  # per pair

    @property
    def refine_seconds(self) -> float:
        """Estimated seconds to evaluate all these pairs on the fine grid."""
        return FINE_COST_RATIO * self.seconds_per_pair * len(self.gains)


class PairEvaluator:
    """Evaluates pairs of models and keeps their gains.

    ``weighted_optima`` (M,): the models' own optimal values times their weights.
    """

    def __init__(
        self,
        prepared: PreparedProblem,
        weighted_optima: Array,
        *,
        seed: int = 0,
        grid: ModelPairs = COARSE_GRID,
    ) -> None:
        self.prepared, self.problem = prepared, prepared.problem
        self.weighted_optima, self.grid = weighted_optima, grid
        self.model_ids = np.flatnonzero(self.problem.weights > 0)
        self.start_time = solver_clock()
        self.n_evaluated, self.seconds, self._batch_size = 0, 0.0, INITIAL_BATCH
        self._evaluations: list[tuple[Int64Array, Int64Array, Array]] = []
        self._round: tuple[Int64Array, Int64Array] = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._rounds = (
            iter_round_robin(len(self.model_ids), seed) if len(self.model_ids) > 1 else iter(())
        )

    @property
    def seconds_per_pair(self) -> float:
        """Seconds per pair so far."""
        return self.seconds / max(self.n_evaluated, 1)

    def evaluate_pairs(
        self, deadline: float, reserved_pairs: float = 0.0, max_seconds: float = math.inf
    ) -> bool:
        """Evaluate pairs until the deadline, at least some; return whether there is time for more.

        ``reserved_pairs``: time for as many pairs is left over, unless it is over half of the time.
        Returns after ``max_seconds`` at the latest.
        """
        start_time = solver_clock()
        while self._has_next_round():
            reserved_seconds = reserved_pairs * self.seconds_per_pair
            needed_seconds = self._batch_size * self.seconds_per_pair
            needed_seconds += (
                reserved_seconds if reserved_seconds < 0.5 * (deadline - self.start_time) else 0.0
            )
            if self._evaluations and solver_clock() + needed_seconds > deadline:
                return False
            self._evaluate_batch()
            if solver_clock() - start_time > max_seconds:
                return True
        return False

    def _has_next_round(self) -> bool:
        """Return whether pairs are left, and start the next round if this one is done."""
        if not len(self._round[0]):
            self._round = next(self._rounds, self._round)
        return len(self._round[0]) > 0

    def _evaluate_batch(self) -> None:
        """Evaluate a batch of pairs of this round; double the batch size if that was quick."""
        start_time, (first, second) = solver_clock(), self._round
        i, j = self.model_ids[first[: self._batch_size]], self.model_ids[second[: self._batch_size]]
        self._round = first[self._batch_size :], second[self._batch_size :]
        values = self.prepared.compute_pair_optima(self.grid._replace(first=i, second=j))
        self._evaluations.append((i, j, self.weighted_optima[i] + self.weighted_optima[j] - values))
        elapsed_seconds = solver_clock() - start_time
        self.n_evaluated, self.seconds = self.n_evaluated + len(i), self.seconds + elapsed_seconds
        if elapsed_seconds < QUICK_SECONDS:
            self._batch_size = min(2 * self._batch_size, max(len(first), INITIAL_BATCH))

    def make_matching(self, greedy: bool = False) -> Matching:
        """Match evaluated pairs for a large total gain; ``greedy``: without optimization."""
        if not self._evaluations:
            return Matching(self.grid, np.zeros(0), 0, 0.0)
        i, j, gains = (np.concatenate(columns) for columns in zip(*self._evaluations, strict=True))
        pair_ids = _match_greedily(i, j, gains, self.problem.n_models)
        if not greedy and self.problem.n_models <= MAX_ASSIGNMENT_MODELS:
            by_assignment = _match_by_assignment(i, j, gains, self.problem.n_models)
            pair_ids = max(pair_ids, by_assignment, key=lambda pairs: float(gains[pairs].sum()))
        # those that were left over, and models that never were tried, in any order
        unmatched_models = np.setdiff1d(self.model_ids, np.concatenate([i[pair_ids], j[pair_ids]]))
        extra_pairs = unmatched_models[: len(unmatched_models) // 2 * 2].reshape(-1, 2)
        model_pairs = self.grid._replace(
            first=np.concatenate([i[pair_ids], extra_pairs[:, 0]]),
            second=np.concatenate([j[pair_ids], extra_pairs[:, 1]]),
        )
        chosen_gains = np.concatenate([gains[pair_ids], np.zeros(len(extra_pairs))])
        return Matching(model_pairs, chosen_gains, len(i), self.seconds_per_pair)


def _match_greedily(i: Int64Array, j: Int64Array, gains: Array, n: int) -> Int64Array:
    """Return the indices of disjoint pairs, chosen greedily by gain."""
    is_free, pair_ids = np.ones(n, dtype=bool), []
    for k in np.argsort(-gains, kind="stable"):
        if is_free[i[k]] and is_free[j[k]]:
            is_free[i[k]] = is_free[j[k]] = False
            pair_ids.append(k)
    return np.array(pair_ids)


def _match_by_assignment(i: Int64Array, j: Int64Array, gains: Array, n: int) -> Int64Array:
    """Return the indices of disjoint pairs from the optimal assignment, with its cycles split.

    >>> i, j, gain = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]), np.array([2.0, 3.0, 2.0, 0.0])
    >>> _match_by_assignment(i, j, gain, 4), _match_greedily(i, j, gain, 4)
    (array([0, 2]), array([1, 3]))
    """
    with measure_compilation():  # loads compiled code
        from scipy.optimize import linear_sum_assignment

    gain_matrix = np.full((n, n), -np.inf)
    gain_matrix[i, j] = gain_matrix[j, i] = gains
    np.fill_diagonal(gain_matrix, 0.0)
    _, partner = linear_sum_assignment(gain_matrix, maximize=True)
    pair_index = np.full(n, -1)  # the pair of a model and its partner
    for one, other in ((i, j), (j, i)):
        pair_ids = np.flatnonzero(partner[one] == other)
        pair_index[one[pair_ids]] = pair_ids
    return np.concatenate(
        [_split_cycle(pair_index[cycle], gains) for cycle in _iter_cycles(partner)]
    )


def _iter_cycles(partner: Int64Array) -> Iterator[Int64Array]:
    """Iterate over the cycles of a permutation."""
    is_visited = np.zeros(len(partner), dtype=bool)
    for start in range(len(partner)):
        current, cycle = start, []
        while not is_visited[current]:
            is_visited[current] = True
            cycle.append(current)
            current = int(partner[current])
        if cycle:
            yield np.array(cycle)


def _split_cycle(pairs: Int64Array, gains: Array) -> Int64Array:
    """Return every second pair of a cycle, from the offset with the largest gain."""
    n = len(pairs)
    choices = (np.roll(pairs, -k)[: n - n % 2 : 2] for k in range(n if n % 2 else 2))
    return max(choices, key=lambda choice: float(gains[choice].sum()))
