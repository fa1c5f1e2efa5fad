"""The interface of search spaces: what a policy class defines so that it can be searched.

A *candidate* is a policy in the representation of its search space: a table of actions, a row, a
controller.

- A **sweep** takes the best of every block in turn for a mean with given weights.
- **Changes** are alternatives of single blocks with what each adds to the returns rho (M,). They
  serve other objectives, and policy classes without sweeps.

Both are exact: rho is linear in each block (Corollary 4.2 of Su and Petrik 2023), and stationary
policies have a closed formula (see :mod:`mmdp.core.evaluate`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import ClassVar, TypedDict, Unpack

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.ascent import ascend, is_randomized
from mmdp.core.kernels.problem import TIE_RTOL, AscentResult, Callback, SweepType
from mmdp.core.objectives import Objective
from mmdp.core.policies import as_policy
from mmdp.core.search.context import Candidate, SolveContext
from mmdp.core.shapes import AnyIntArray, Array, IntArray, Mask

# Yields changes (n, k, M): what alternative j of block i adds to rho; blocks that come together
# do not interact. Is sent the alternatives (n,) to take, -1 for none. Returns the new point and
# its returns (M,).
ChangeGenerator = Generator[Array, IntArray, tuple[Candidate, Array]]
BlockChanges = Generator[Array, IntArray, None]  # the same for the blocks of one time

BLOCKS_PER_BOUND = 64  # blocks whose changes are bounded at a time


class AscentLimits(TypedDict, total=False):
    """Options of an ascent: the gain of a sweep that is enough, in units of return, and so on."""

    tol: float
    max_sweeps: int
    callback: Callback


class AscentDirection:
    """Where an objective F rises from the current returns rho (M,), which move with every change.

    If F is concave, F(rho + x) <= F(rho) + sum_m lambda_m xi_m x_m with the dual density xi of rho:
    a reweighted mean bounds the gain, and most changes need no look at F itself.
    """

    def __init__(
        self, space: SearchSpace, candidate: Candidate, returns: Array, objective: Objective
    ) -> None:
        self.objective, self.lam = objective, space.context.problem.weights
        self.rho = objective.relative_returns(returns, space.context.oracle_returns)
        self.xi_returns: Array | None = None  # the returns that xi belongs to
        # what rounding can change; models that do not count in F do not set its scale
        error = TIE_RTOL * space.compute_magnitudes(candidate, returns)
        shifted_values = self._value(np.stack([self.rho + error, self.rho - error]))
        self.tie_tolerance = float(np.abs(shifted_values - self._value(self.rho)).max())

    def _value(self, rho: Array) -> Array:
        """Compute F of returns (..., M)."""
        return self.objective.value(rho, self.lam)

    def risk_weights(self) -> Array:
        """Return the risk weights lambda xi (M,) at the current returns; lambda if not concave."""
        if not self.objective.is_concave:
            return self.lam
        if self.xi_returns is not self.rho:
            self.xi, self.xi_returns = self.objective.dual_density(self.rho, self.lam), self.rho
        return self.lam * self.xi

    def may_improve(self, gains: Array) -> Mask:
        """Return which gains of the mean with the risk weights may improve F."""
        return gains > (self.tie_tolerance if self.objective.is_concave else -np.inf)

    def select_changes(self, changes: Array) -> IntArray:
        """Choose an alternative of each block from changes (n, k, M), -1 for none, and move rho.

        Blocks are visited in order; an alternative is taken if it improves F by more than
        ``tie_tolerance``.
        """
        choices, start = np.full(len(changes), -1, np.int32), 0
        current = float(self._value(self.rho))
        while start < len(changes):
            max_gains = self._bound_gains(changes[start : start + BLOCKS_PER_BOUND], current)
            blocks = start + np.flatnonzero(max_gains > self.tie_tolerance)
            start += len(max_gains)
            n_tried, n_next = 0, 1
            while n_tried < len(blocks):  # ever more at a time, as long as none improves
                tried = blocks[n_tried : n_tried + n_next]
                candidates = self.rho + changes[tried]
                values = self._value(candidates)
                improving = np.flatnonzero(values.max(axis=1) > current + self.tie_tolerance)
                if len(improving):
                    i = improving[0]
                    start, best = int(tried[i]) + 1, int(values[i].argmax())
                    self.rho, current = candidates[i, best], float(values[i, best])
                    choices[tried[i]] = best
                    break
                n_tried, n_next = n_tried + n_next, 2 * n_next
        return choices

    def _bound_gains(self, changes: Array, current: float) -> Array:
        """Bound what one of the changes (n, k, M) of each block adds to F, ``current``, (n,)."""
        if not self.objective.is_concave:
            return self._value(self.rho + changes).max(axis=1) - current
        return (changes @ self.risk_weights()).max(axis=1)


class SearchSpace:
    """Base class of search spaces: the policies of one class on one problem.

    A subclass defines ``compute_init``, ``estimate_ascent_seconds`` and ``iter_changes``, with
    ``compute_returns`` if candidates are no tables and ``project`` if the class is restricted.
    ``improve`` and ``ascend_mean`` are overridden where faster algorithms exist.
    :data:`mmdp.core.search.spaces.MARKOV_SPACES` maps policy classes to search spaces.
    """

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp")  # the first initial policies
    other_init_names: ClassVar[tuple[str, ...]] = (
        "random",
    )  # further names that ``init`` may have
    sweep_type: str = "single changes"  # what a step of an ascent is, in words
    is_exhaustive: bool = True  # whether every single change is tried before an ascent ends

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        self.context, self.evaluator = context, context.evaluator

    def compute_init(self, name: str, seed: int) -> Candidate:
        """Compute the initial candidate of that name."""
        raise NotImplementedError

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of computing an initial candidate and ascending from it."""
        raise NotImplementedError

    def from_policy(self, policy: object) -> Candidate:
        """Convert a user's policy to a candidate; InputError if it has memory or does not fit."""
        model = self.context.model
        init_policy = as_policy(policy, "a search starts from a name or a policy without memory")
        if init_policy.memory_note:
            raise InputError(
                f"a search starts without memory, and {init_policy!r} {init_policy.memory_note}"
            )
        init_policy.check(model, self.context.policy_horizon)
        return self.from_table(init_policy.to_table(model))

    def from_table(self, table: Candidate) -> Candidate:
        """Convert a policy table to the nearest candidate.

        Rules are searched by single actions: a randomised one stands for its most probable ones.
        """
        has_probs = self.context.is_infinite_horizon and is_randomized(table)
        return self.project(table.argmax(axis=1) if has_probs else table)

    def project(self, candidate: Candidate) -> Candidate:
        """Return a feasible candidate near one that may violate the restriction."""
        return self.evaluator.project(candidate)

    def find_model_optimum(self, model_index: int) -> Candidate | None:
        """Return the optimum of one model that never switches; None: use a random candidate."""
        return None

    def compute_returns(self, candidate: Candidate) -> Array:
        """Compute the exact return of a candidate on every model, (M,)."""
        return self.evaluator.compute_returns(candidate)

    def iter_changes(self, candidate: Candidate, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single changes of a copy of the candidate."""
        raise NotImplementedError

    def compute_magnitudes(self, candidate: Candidate, returns: Array) -> Array:
        """Compute the size of terms summed in returns (M,); a change must exceed their rounding."""
        return np.abs(returns)

    def improve(
        self, candidate: Candidate, returns: Array, objective: Objective
    ) -> tuple[Candidate, Array]:
        """Run one round of an ascent on the objective; return the candidate and its returns.

        Every single change that improves the objective is applied in turn.
        """
        direction = AscentDirection(self, candidate, returns, objective)
        changes = self.iter_changes(candidate, direction)
        try:
            batch = next(changes)
            while True:
                batch = changes.send(direction.select_changes(batch))
        except StopIteration as end:
            return end.value

    def ascend(self, candidate: Candidate, **limits: Unpack[AscentLimits]) -> AscentResult:
        """Ascend on the objective of the solve from a candidate."""
        if self.context.objective.is_mean:
            return self.ascend_mean(candidate, **limits)
        return self.ascend_objective(candidate, self.context.objective, **limits)

    def ascend_mean(
        self,
        candidate: Candidate,
        *,
        weights: Array | None = None,
        **limits: Unpack[AscentLimits],
    ) -> AscentResult:
        """Ascend on the mean with these model weights from a candidate."""
        weighted_mean = WeightedMean(self.context.problem.weights if weights is None else weights)
        return self.ascend_objective(candidate, weighted_mean, **limits)

    def ascend_objective(
        self,
        candidate: Candidate,
        objective: Objective,
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        callback: Callback | None = None,
        target: float = -math.inf,
        gain_share: float = 0.0,
    ) -> AscentResult:
        """Ascend on the objective from a candidate until no change improves it.

        An ascent that is not going to reach the ``target`` soon ends earlier, and so does one with
        a sweep that gains at most ``gain_share`` of what all have gained.
        """
        sweeper, limits = SpaceSweeper(self, objective), (tol, max_sweeps, callback)
        optimum = ascend(sweeper, candidate, *limits, sweeper.objective_value, target, gain_share)
        if optimum.stop_reason == "local_optimum" and not self.is_exhaustive:
            return optimum._replace(stop_reason="tolerance")
        return optimum


class SpaceSweeper:
    """Adapter from a search space to the ascent loop in :mod:`mmdp.core.kernels.ascent`."""

    def __init__(self, space: SearchSpace, objective: Objective) -> None:
        self.space, self.problem = space, space.context.problem
        self.objective = objective

    def initialize(self, init: Candidate) -> tuple[Candidate, Array]:
        """Return the initial candidate and its returns."""
        self.returns = self.space.compute_returns(init)
        return init, self.returns

    def sweep(self, policy: Candidate) -> tuple[Candidate, Array]:
        """Improve the candidate by one round; return it and its returns."""
        improved, self.returns = self.space.improve(policy, self.returns, self.objective)
        return improved, self.returns

    def objective_value(self, returns: Array) -> float:
        """Compute the objective value of returns (M,)."""
        return self.space.context.objective_value(returns, self.objective)


class WeightedMean(Objective):
    """Mean of the returns with given weights (M,), as an objective."""

    is_concave = False  # a product tells at once what a change is worth

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def value(self, returns: Array, weights: Array) -> Array:
        """Compute the weighted mean of returns (..., M)."""
        return returns @ self.weights


def compute_gains(
    prepared: PreparedProblem, d: Array, values: Array, current: AnyIntArray
) -> tuple[Array, Array]:
    """Compute what values (n, k, M) add to rho beyond those of the current choices, and visits."""
    advantages = values - values[np.arange(len(current)), current][:, None]
    visit_probs = prepared.credit_to_start(d, np.ones_like(values[:, 0]))
    return (
        prepared.credit_to_start(d[:, None], advantages),
        visit_probs @ prepared.problem.weights,
    )


def offer_alternatives(
    prepared: PreparedProblem, d: Array, values: Array, current: AnyIntArray
) -> Generator[Array, IntArray, IntArray]:
    """Yield the gains of alternatives to the current choices (n,); return the new choices (n,).

    ``values`` (n, k, M) are those of the alternatives of blocks that are reached with weights d;
    the most probable blocks come first.
    """
    gains, visit_probs = compute_gains(prepared, d, values, current)
    order = np.argsort(-visit_probs, kind="stable")
    chosen = np.empty(len(current), np.int32)
    chosen[order] = yield gains[order]
    return np.where(chosen >= 0, chosen, current)
