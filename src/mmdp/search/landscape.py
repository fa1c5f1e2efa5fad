"""What a kind of policy must define so that it can be searched.

A *point* is a policy as its landscape holds it: a table of actions, a row, a controller.

- A **sweep** takes the best of every block in turn for a mean with given weights.
- **Changes** are alternatives of single blocks with what each adds to the returns rho (M,). They
  serve other objectives, and kinds without sweeps.

Both are exact: rho is linear in each block, and a stationary policy has a formula (see ``rules``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels.ascent import ascend, randomised
from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Sweeps, Watch
from mmdp.objective import Objective
from mmdp.policy import followed
from mmdp.search.context import Context

Point = Any
Mask = npt.NDArray[np.bool_]
# Yields changes (n, k, M): what alternative j of block i adds to rho; blocks that come together
# do not interact. Is sent the alternatives (n,) to take, -1 for none. Returns the new point and
# its returns (M,).
Changes = Generator[Array, IntArray, tuple[Point, Array]]


class Slope(NamedTuple):
    """Where the objective rises at the current rho."""

    weights: Callable[[], Array]  # (M,) lambda xi
    hopes: Callable[[Array], Mask]  # whether changes that add this to the tilted mean may pay


class Landscape:
    """The policies of one kind, for one problem; derive from this class.

    ``start``, ``seconds``, ``returns`` and ``changes`` are enough, with ``inside`` if the kind
    leaves out some policies. ``step`` and ``ascend`` are for kinds that know faster ways.
    :data:`mmdp.search.kinds.LANDSCAPES` says which landscape belongs to a kind.
    """

    starts: ClassVar[tuple[str, ...]] = ("wsu", "mvp")  # the first starts, by name
    others: ClassVar[tuple[str, ...]] = ("random",)  # further names that ``init`` may have
    sweeps: str = "single changes"  # what a step of an ascent is, in words
    complete: bool = True  # whether every single change is tried before an ascent ends

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        self.context = context

    def start(self, name: str, seed: int) -> Point:
        """The start of that name, computed when it is asked for."""
        raise NotImplementedError

    def seconds(self, name: str) -> float:
        """About how long a start of that name and the ascent from it take, by size alone."""
        raise NotImplementedError

    def given(self, policy: Any) -> Point:
        """The point of a policy that the user gave."""
        model, endless = self.context.model, self.context.kind.endless
        start = followed(policy, "a search starts from a name or a policy without memory")
        if start.memory:
            raise InputError(f"a search starts without memory, and {start!r} {start.memory}")
        start.check(model, math.inf if endless else self.context.horizon)
        return self.near(start.table_for(model))

    def near(self, table: Any) -> Point:
        """The point near a policy that was found or given.

        Rules are searched by single actions: a randomised one stands for its most probable ones.
        """
        drawn = self.context.kind.endless and randomised(table)
        return self.inside(table.argmax(axis=1) if drawn else table)

    def inside(self, point: Any) -> Point:
        """A point near one that the restriction may not allow."""
        return point

    def optimum(self, model: int) -> Point | None:
        """A point that is best for one model alone; None: a random one takes its place."""
        return None

    def returns(self, point: Point) -> Array:
        """(M,) exact returns."""
        raise NotImplementedError

    def changes(self, point: Point, slope: Slope) -> Changes:
        """Single changes from a copy of the point on."""
        raise NotImplementedError

    def sizes(self, point: Point, rho: Array) -> Array:
        """(M,) the sizes of what is summed up in rho: a change must exceed their rounding."""
        return np.abs(rho)

    def step(self, point: Point, returns: Array, objective: Objective) -> tuple[Point, Array]:
        """The point after one round of an ascent on the objective, and its returns."""
        return climbed(self, point, returns, objective)

    def ascend(
        self, points: Iterable[Point], *, weights: Array | None = None, tol: float = 0.0,
        max_sweeps: int = 1000, watch: Watch | None = None,
    ) -> list[Ascent]:  # fmt: skip
        """The end of an ascent on the mean from each point, with these weights of the models."""
        mean = Weighted(self.context.problem.weights if weights is None else weights)
        return [self.rise(x, mean, tol=tol, max_sweeps=max_sweeps, watch=watch) for x in points]

    def rise(
        self, point: Point, objective: Objective, *, tol: float = 0.0, max_sweeps: int = 1000,
        watch: Watch | None = None,
    ) -> Ascent:  # fmt: skip
        """The end of an ascent on an objective, step by step."""
        steps = Steps(self, objective)
        end = ascend(steps, point, tol, max_sweeps, watch, steps.worth)
        if end.end == "maximum" and not self.complete:
            return end._replace(end="tolerance")
        return end


class Steps:
    """The steps of a landscape for the ascent loop: see :class:`mmdp.kernels.ascent.Climber`."""

    def __init__(self, landscape: Landscape, objective: Objective) -> None:
        self.landscape, self.problem = landscape, landscape.context.problem
        self.objective = objective

    def open(self, start: Point) -> tuple[Point, Array]:
        self.returns = self.landscape.returns(start)
        return start, self.returns

    def sweep(self, point: Point) -> tuple[Point, Array]:
        found, self.returns = self.landscape.step(point, self.returns, self.objective)
        return found, self.returns

    def worth(self, returns: Array) -> float:
        return self.landscape.context.worth(returns, self.objective)


class Weighted(Objective):
    """A mean with weights (M,) of its own."""

    concave = False  # a product tells at once what a change is worth

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def value(self, returns: Array, weights: Array) -> Array:
        found: Array = returns @ self.weights
        return found


# ---------------------------------------------------------------------- one round of changes
class Tilt:
    """xi (M,) of an objective at rho, computed once as long as rho is the same array."""

    def __init__(self, objective: Objective, lam: Array) -> None:
        self.objective, self.lam = objective, lam
        self.rho: Array | None = None

    def __call__(self, rho: Array) -> Array:
        if rho is not self.rho:
            self.rho, self.xi = rho, self.objective.tilt(rho, self.lam)
        return self.xi


def climbed(
    landscape: Landscape, point: Point, returns: Array, objective: Objective
) -> tuple[Point, Array]:
    """The point after every single change that improves the objective, in turn; its returns."""
    context = landscape.context
    lam, rho = context.problem.weights, objective.counted(returns, context.own)
    tie, xi = rounding(objective, lam, rho, landscape.sizes(point, rho)), Tilt(objective, lam)
    slope = Slope(
        lambda: lam * xi(rho) if objective.concave else lam,
        lambda gains: gains > (tie if objective.concave else -np.inf),
    )
    changes = landscape.changes(point, slope)
    try:
        offered = next(changes)
        while True:
            chosen, rho = best_changes(objective, lam, rho, offered, tie, xi)
            offered = changes.send(chosen)
    except StopIteration as end:
        found: tuple[Point, Array] = end.value
        return found


def rounding(objective: Objective, lam: Array, rho: Array, sizes: Array) -> float:
    """The difference in F that is rounding: what a share of each size makes of it.

    So models that do not count in F do not set its scale.
    """
    error, F = TIE * sizes, objective.value
    return float(np.abs(F(np.stack([rho + error, rho - error]), lam) - F(rho, lam)).max())


def best_changes(
    objective: Objective, lam: Array, rho: Array, changes: Array, tie: float, xi: Tilt
) -> tuple[IntArray, Array]:
    """(n,) the alternative to take of each block, -1 for none, and rho (M,) after them.

    Blocks come in their order; an alternative is taken if it improves F by more than ``tie``.
    """
    F = objective.value
    chosen = np.full(len(changes), -1, np.int32)
    current, first = float(F(rho, lam)), 0
    while first < len(changes):
        hopeful = _most(objective, lam, rho, changes[first:], xi) > current + tie
        for i in first + np.flatnonzero(hopeful):
            candidates = rho + changes[i]
            values = F(candidates, lam)
            best = int(values.argmax())
            if values[best] > current + tie:
                chosen[i], rho, current = best, candidates[best], float(values[best])
                first = int(i) + 1
                break
        else:
            break
    return chosen, rho


def _most(objective: Objective, lam: Array, rho: Array, changes: Array, xi: Tilt) -> Array:
    """(n,) the most that F can be after one of the changes (n, k, M).

    If F is concave, F(rho + x) <= sum_m lambda_m xi_m (rho_m + x_m) + penalty(xi) with the xi of
    rho: a tilted mean bounds F, and most changes need no look at F itself.
    """
    if not objective.concave:
        return objective.value(rho + changes, lam).max(axis=1)
    most: Array = (changes @ (lam * xi(rho))).max(axis=1)
    return most + (lam * xi(rho)) @ rho + objective.penalty(xi(rho), lam)
