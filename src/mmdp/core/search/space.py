"""The interface of search spaces: what a policy class defines so that it can be searched.

A *candidate* is a policy in the representation of its search space: a table of actions, a row, a
controller.

- A **sweep** takes the best of every block in turn for a mean with given weights.
- **Changes** are alternatives of single blocks with what each adds to the returns rho (M,). They
  serve other objectives, and policy classes without sweeps.

Both are exact: rho is linear in each block (Corollary 4.2 of Su and Petrik 2023), and stationary
policies have a closed formula (see :mod:`mmdp.core.search.stationary`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.kernels.ascent import ascend, is_randomized
from mmdp.core.kernels.problem import TIE_RTOL, Array, AscentResult, Callback, IntArray, SweepType
from mmdp.core.objectives import Objective
from mmdp.core.policies import as_policy
from mmdp.core.search.context import Candidate, SolveContext

Mask = npt.NDArray[np.bool_]
# Yields changes (n, k, M): what alternative j of block i adds to rho; blocks that come together
# do not interact. Is sent the alternatives (n,) to take, -1 for none. Returns the new point and
# its returns (M,).
ChangeGenerator = Generator[Array, IntArray, tuple[Candidate, Array]]
BlockChanges = Generator[Array, IntArray, None]  # the same for the blocks of one time


class AscentDirection(NamedTuple):
    """Risk weights at the current returns, and the test whether a gain may improve objective."""

    risk_weights: Callable[[], Array]  # (M,) lambda xi
    may_improve: Callable[[Array], Mask]  # whether gains of the reweighted mean may improve F


class SearchSpace:
    """Base class of search spaces: the policies of one class on one problem.

    A subclass defines ``compute_init``, ``estimate_ascent_seconds``, ``compute_returns`` and
    ``iter_changes``, with ``project`` if the class is restricted. ``improve`` and ``ascend_mean``
    are overridden where faster algorithms exist. :data:`mmdp.core.search.spaces.MARKOV_SPACES` maps
    policy classes to search spaces.
    """

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp")  # the first initial policies
    other_init_names: ClassVar[tuple[str, ...]] = (
        "random",
    )  # further names that ``init`` may have
    sweep_type: str = "single changes"  # what a step of an ascent is, in words
    is_exhaustive: bool = True  # whether every single change is tried before an ascent ends

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        self.context = context

    def compute_init(self, name: str, seed: int) -> Candidate:
        """Compute the initial candidate of that name."""
        raise NotImplementedError

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of computing an initial candidate and ascending from it."""
        raise NotImplementedError

    def from_policy(self, policy: object) -> Candidate:
        """Convert a user's policy to a candidate; InputError if it has memory or does not fit."""
        model, is_infinite = self.context.model, self.context.policy_class.is_infinite_horizon
        init_policy = as_policy(policy, "a search starts from a name or a policy without memory")
        if init_policy.memory_note:
            raise InputError(
                f"a search starts without memory, and {init_policy!r} {init_policy.memory_note}"
            )
        init_policy.check(model, math.inf if is_infinite else self.context.horizon)
        return self.from_table(init_policy.to_table(model))

    def from_table(self, table: Candidate) -> Candidate:
        """Convert a policy table to the nearest candidate.

        Rules are searched by single actions: a randomised one stands for its most probable ones.
        """
        has_probs = self.context.policy_class.is_infinite_horizon and is_randomized(table)
        return self.project(table.argmax(axis=1) if has_probs else table)

    def project(self, candidate: Candidate) -> Candidate:
        """Return a feasible candidate near one that may violate the restriction."""
        return candidate

    def find_model_optimum(self, model_index: int) -> Candidate | None:
        """Return a candidate that is optimal for one model; None: use a random one."""
        return None

    def compute_returns(self, candidate: Candidate) -> Array:
        """Compute the exact return of a candidate on every model, (M,)."""
        raise NotImplementedError

    def iter_changes(self, candidate: Candidate, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single changes of a copy of the candidate."""
        raise NotImplementedError

    def compute_magnitudes(self, candidate: Candidate, rho: Array) -> Array:
        """Compute the size of terms summed in rho, (M,); a change must exceed their rounding."""
        return np.abs(rho)

    def improve(
        self, candidate: Candidate, returns: Array, objective: Objective
    ) -> tuple[Candidate, Array]:
        """Run one round of an ascent on the objective; return the candidate and its returns."""
        return improve_once(self, candidate, returns, objective)

    def ascend_mean(
        self,
        candidates: Iterable[Candidate],
        *,
        weights: Array | None = None,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        callback: Callback | None = None,
    ) -> list[AscentResult]:
        """Ascend on the mean with these model weights from each candidate."""
        weighted_mean = WeightedMean(self.context.problem.weights if weights is None else weights)
        return [
            self.ascend_objective(
                candidate, weighted_mean, tol=tol, max_sweeps=max_sweeps, callback=callback
            )
            for candidate in candidates
        ]

    def ascend_objective(
        self,
        candidate: Candidate,
        objective: Objective,
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        callback: Callback | None = None,
    ) -> AscentResult:
        """Ascend on the objective from a candidate until no change improves it."""
        sweeper = SpaceSweeper(self, objective)
        optimum = ascend(sweeper, candidate, tol, max_sweeps, callback, sweeper.objective_value)
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
        result: Array = returns @ self.weights
        return result


# ---------------------------------------------------------------------- one round of changes
class CachedDualDensity:
    """Dual density xi (M,) of an objective, cached for the last array of returns."""

    def __init__(self, objective: Objective, lam: Array) -> None:
        self.objective, self.lam = objective, lam
        self.rho: Array | None = None

    def __call__(self, rho: Array) -> Array:
        if rho is not self.rho:
            self.rho, self.xi = rho, self.objective.dual_density(rho, self.lam)
        return self.xi


def improve_once(
    space: SearchSpace, candidate: Candidate, returns: Array, objective: Objective
) -> tuple[Candidate, Array]:
    """Apply every single change that improves objective, in turn; return candidate and returns."""
    context = space.context
    lam, rho = context.problem.weights, objective.relative_returns(returns, context.oracle_returns)
    tie_tolerance, xi = (
        estimate_rounding(objective, lam, rho, space.compute_magnitudes(candidate, rho)),
        CachedDualDensity(objective, lam),
    )
    direction = AscentDirection(
        lambda: lam * xi(rho) if objective.is_concave else lam,
        lambda gains: gains > (tie_tolerance if objective.is_concave else -np.inf),
    )
    changes = space.iter_changes(candidate, direction)
    try:
        batch = next(changes)
        while True:
            choices, rho = select_changes(objective, lam, rho, batch, tie_tolerance, xi)
            batch = changes.send(choices)
    except StopIteration as end:
        result: tuple[Candidate, Array] = end.value
        return result


def estimate_rounding(objective: Objective, lam: Array, rho: Array, magnitudes: Array) -> float:
    """Bound the change of the objective that rounding of the returns can cause.

    Models that do not count in the objective do not set its scale.
    """
    error, F = TIE_RTOL * magnitudes, objective.value
    return float(np.abs(F(np.stack([rho + error, rho - error]), lam) - F(rho, lam)).max())


def select_changes(
    objective: Objective,
    lam: Array,
    rho: Array,
    changes: Array,
    tie_tolerance: float,
    xi: CachedDualDensity,
) -> tuple[IntArray, Array]:
    """Choose the alternative of each block, (n,), -1 for none; return them and the new rho (M,).

    Blocks are visited in order; an alternative is taken if it improves F by more than
    ``tie_tolerance``.
    """
    F = objective.value
    choices = np.full(len(changes), -1, np.int32)
    current, start = float(F(rho, lam)), 0
    while start < len(changes):
        may_improve = (
            _bound_changes(objective, lam, rho, changes[start:], xi) > current + tie_tolerance
        )
        for i in start + np.flatnonzero(may_improve):
            candidates = rho + changes[i]
            values = F(candidates, lam)
            best = int(values.argmax())
            if values[best] > current + tie_tolerance:
                choices[i], rho, current = best, candidates[best], float(values[best])
                start = int(i) + 1
                break
        else:
            break
    return choices, rho


def _bound_changes(
    objective: Objective, lam: Array, rho: Array, changes: Array, xi: CachedDualDensity
) -> Array:
    """Bound the objective after one of the changes (n, k, M) of each block, (n,).

    If F is concave, F(rho + x) <= sum_m lambda_m xi_m (rho_m + x_m) + penalty(xi) with the xi of
    rho: a reweighted mean bounds F, and most changes need no look at F itself.
    """
    if not objective.is_concave:
        return objective.value(rho + changes, lam).max(axis=1)
    bound: Array = (changes @ (lam * xi(rho))).max(axis=1)
    return bound + (lam * xi(rho)) @ rho + objective.penalty(xi(rho), lam)
