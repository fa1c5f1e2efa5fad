"""Pairs of models: evaluate pairs, then match those with the largest total gain.

The gain of a pair is how much lower its value is than the sum of its models' own optima. The
first pairs that are evaluated are disjoint; given time, all pairs are.

The best matching is found by the assignment problem, where every model chooses another or
itself: its solution is a permutation, whose cycles are cut into pairs. That is the optimum unless
a cycle is odd.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.problem import ModelPairs
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.timing import measure_compilation, solver_clock

BATCH_SIZE = 16  # pairs that are evaluated before the clock is looked at
MAX_ASSIGNMENT_MODELS = 1_000  # above this, the first disjoint pairs are taken


def iter_pairs(models: IndexArray) -> Iterator[ModelPairs]:
    """Iterate over all pairs of models in batches; the first half of a round is disjoint.

    >>> sum(len(pairs.first) for pairs in iter_pairs(np.arange(5)))
    10
    """
    n = len(models)
    for distance in range(1, n // 2 + 1):
        positions = np.arange(distance) if 2 * distance == n else np.r_[0:n:2, 1:n:2]
        for start in range(0, len(positions), BATCH_SIZE):
            batch = positions[start : start + BATCH_SIZE]
            yield ModelPairs(models[batch], models[(batch + distance) % n])


class PairEvaluator:
    """Evaluates pairs of models and keeps their gains.

    ``weighted_optima`` (M,): the models' own optimal values times their weights.
    """

    def __init__(self, prepared: PreparedProblem, weighted_optima: Array, seed: int = 0) -> None:
        self.prepared, self.weighted_optima = prepared, weighted_optima
        self.models = np.flatnonzero(prepared.problem.weights > 0)
        self._remaining = iter_pairs(np.random.default_rng(seed).permutation(self.models))
        self.seconds_per_pair = 0.0
        self._evaluated = [(self.models[:0], self.models[:0], np.zeros(0))]

    def evaluate_pairs(self, deadline: float) -> bool:
        """Evaluate pairs until the deadline, at least a batch; return whether some are left."""
        for pairs in self._remaining:
            start_time = solver_clock()
            values = self.prepared.compute_pair_optima(pairs)
            own_values = self.weighted_optima[pairs.first] + self.weighted_optima[pairs.second]
            self._evaluated.append((pairs.first, pairs.second, own_values - values))
            self.seconds_per_pair = (solver_clock() - start_time) / len(values)
            if solver_clock() > deadline:
                return True
        return False

    def match_pairs(self) -> tuple[ModelPairs, float]:
        """Match evaluated pairs for a large total gain; return them and this gain."""
        first, second, gains = map(np.concatenate, zip(*self._evaluated, strict=True))
        if len(self.models) > MAX_ASSIGNMENT_MODELS:
            chosen = np.arange(min(len(gains), len(self.models) // 2))  # these are disjoint
        else:
            chosen = match_by_assignment(first, second, gains, len(self.weighted_optima))
        return ModelPairs(first[chosen], second[chosen]), float(gains[chosen].sum())


def match_by_assignment(i: IndexArray, j: IndexArray, gains: Array, n: int) -> IndexArray:
    """Return the indices of disjoint pairs from the optimal assignment, with its cycles split.

    >>> i, j, gain = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]), np.array([2.0, 3.0, 2.0, 0.0])
    >>> match_by_assignment(i, j, gain, 4)
    array([0, 2])
    """
    with measure_compilation():  # loads compiled code
        from scipy.optimize import linear_sum_assignment

    pair_index, gain_matrix = np.full((n, n), -1), np.full((n, n), -np.inf)
    pair_index[i, j] = pair_index[j, i] = np.arange(len(gains))
    gain_matrix[i, j] = gain_matrix[j, i] = gains
    np.fill_diagonal(gain_matrix, 0.0)
    _, partner = linear_sum_assignment(gain_matrix, maximize=True)
    is_free, chosen = partner != np.arange(n), [pair_index[0, :0]]
    for model in range(n):
        cycle = []
        while is_free[model]:
            is_free[model] = False
            cycle.append(pair_index[model, partner[model]])
            model = partner[model]
        if cycle:  # every second pair, from the offset with the largest gain
            size = len(cycle) // 2 * 2
            choices = [np.roll(cycle, -k)[:size:2] for k in range(len(cycle))]
            chosen.append(max(choices, key=lambda choice: float(gains[choice].sum())))
    return np.concatenate(chosen)
