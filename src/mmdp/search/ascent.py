"""CADP over any landscape: block coordinate ascent from several starts.

For the mean an ascent is made of sweeps. Other objectives F climb by single changes that improve
F itself. These can stop at the kinks of F (CVaR, worst case), so a search also goes down a ladder
of wider tails, and restarts from the end for the mean with the tilted weights lambda xi.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mmdp.clock import Stop
from mmdp.kernels.ascent import randomised
from mmdp.kernels.problem import Array, Ascent, Watch
from mmdp.objective import Objective
from mmdp.search.context import Context, Outcome
from mmdp.search.landscape import Landscape, Point
from mmdp.search.starts import Count, Start, affordable, best_of, in_order

Risen = dict[tuple[int, bytes], Ascent]  # keys: rung of the ladder and pickled point

TILTS = 8  # rounds of tilted weights at most
ASCENTS = 4  # ascents from one start for an objective, each in the time of a start for the mean


@dataclass(frozen=True)
class Search:
    """The ascents of one solve. Only those on the objective itself are recorded."""

    landscape: Landscape
    init: Any = "wsu"
    starts: Count = "auto"
    tol: float = 0.0  # in units of return
    max_sweeps: int = 1000
    free: Callable[[], Outcome] | None = None  # what is found without the restriction

    @property
    def context(self) -> Context:
        return self.landscape.context

    def run(self) -> Outcome:
        """The best end of all starts."""
        names: list[str] = []
        ends: list[Ascent] = []
        risen: Risen = {}
        if self.context.objective.linear:
            ends = self._mean(self._points(names), watch=self._record)
        else:
            for each in self._starts():
                for end in self.ends(self._opened(each.point), risen):
                    names.append(each.name)
                    ends.append(end)
        sweeps = self.landscape.sweeps if self.context.objective.linear else "single changes"
        best = max(ends, key=lambda end: end.value)
        return best_of(ends, names, sweeps, self.context.rounding(best.returns))

    def count(self) -> int:
        """How many starts there are."""
        if self.starts != "auto":
            return self.starts
        most = affordable(self.landscape.starts, self.landscape.seconds)
        return most if self.context.objective.linear else max(min(most, 2), most // ASCENTS)

    def _starts(self) -> Iterator[Start]:
        """All starts; after the first, what is found without the restriction."""
        free = self.free
        for each in in_order(self.landscape, self.init, self.count()):
            yield each
            if free is not None:
                found, free = self._found(free), None
                if found is not None:
                    yield Start("unrestricted", self.landscape.inside(found.policy))

    def _found(self, free: Callable[[], Outcome]) -> Outcome | None:
        try:
            return free()
        except Stop:  # what the search has by then is complete
            return None

    def _points(self, names: list[str]) -> Iterator[Point]:
        for each in self._starts():
            names.append(each.name)
            yield each.point

    def ends(self, start: Point, risen: Risen | None = None) -> Iterator[Ascent]:
        """Local optima of the objective: from the start, from the ladder's end, from tilts.

        ``risen``: the ends of earlier starts; a start that meets one goes on from its end.
        """
        risen = {} if risen is None else risen
        objective, lam = self.context.objective, self.context.problem.weights
        best = self._up(start, risen)
        yield best
        point, rungs = start, objective.ladder(lam)
        for i, rung in enumerate(rungs):
            point = self._risen(point, rung, i, self._look, risen).policy
        if rungs:
            found = self._up(point, risen)
            yield found
            best = max(best, found, key=lambda end: end.value)
        for _ in range(TILTS if objective.concave else 0):
            rho = objective.counted(best.returns, self.context.own)
            tilted = lam * objective.tilt(rho, lam)
            found = self._up(self._tilted(best.policy, tilted), risen)
            yield found
            if not found.value > best.value:
                return
            best = found

    # ------------------------------------------------------------ single ascents
    def _opened(self, start: Point) -> Point:
        """The point to begin with: a start itself, or the mean's end if it is none of the kind."""
        if start is None or randomised(start):
            return self._mean([start], watch=self._look)[0].policy
        return start

    def _up(self, start: Point, risen: Risen) -> Ascent:
        return self._risen(start, self.context.objective, -1, self._record, risen)

    def _risen(
        self, point: Point, objective: Objective, rung: int, watch: Watch, risen: Risen
    ) -> Ascent:
        """The end on a rung of the ladder, or of the objective itself (-1)."""
        key = rung, pickle.dumps(point)
        if key not in risen:
            risen[key] = self.landscape.rise(point, objective, **self._limits(), watch=watch)
        return risen[key]

    def _tilted(self, point: Point, weights: Array) -> Point:
        """The best end for the mean by other weights; for one model, also from its optimum.

        An ascent changes nothing where the policy does not lead in the models that count.
        """
        own = self.landscape.optimum(int(weights.argmax())) if (weights > 0).sum() == 1 else None
        points = [point] if own is None else [own, point]
        ends = self._mean(points, weights=weights, watch=self._look)
        return max(ends, key=lambda end: end.value).policy

    def _mean(self, points: Any, **options: Any) -> list[Ascent]:
        return self.landscape.ascend(points, **self._limits(), **options)

    def _limits(self) -> dict[str, Any]:
        return {"tol": self.tol, "max_sweeps": self.max_sweeps}

    def _record(self, point: Point, value: float) -> None:
        self.context.record(point, value)

    def _look(self, point: Point, value: float) -> None:
        """Watch the clock; the first policy of all is recorded, so that there is an answer."""
        context = self.context
        if context.best_policy is None:
            returns: Array = self.landscape.returns(point)
            context.record(point, context.worth(returns))
        context.check_time()
