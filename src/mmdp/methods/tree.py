"""Branch and bound: what the trees of ``exact`` have in common."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.bounds import closed
from mmdp.methods.base import Context
from mmdp.methods.cadp import CADP
from mmdp.search.ascent import Search
from mmdp.search.landscape import Landscape

if TYPE_CHECKING:
    from mmdp.methods.exact import Exact

Mask = npt.NDArray[np.bool_]


class Tree:
    """The open nodes, best bound first, and the incumbent (kept by the context).

    A node is a set of open actions, with a proven bound on the policies that take them.
    """

    over: ClassVar[str]  # which policies it bounds
    landscape: Landscape  # of the policies

    def __init__(self, context: Context, options: Exact, slack: float) -> None:
        self.context, self.options, self.slack = context, options, slack
        self.closing = closed.Closing(context.problem, context.decisions)
        self.nodes = 0
        self.heap: list[tuple[float, int, Mask, Any]] = []
        self.count = itertools.count()
        self.oracle = self.working = math.inf  # bounds: in closed form, of the node at work
        self.dropped = -math.inf  # the largest bound among nodes that were given up as good enough

    @property
    def value(self) -> float:
        return self.context.best_value

    @property
    def bound(self) -> float:
        """Proven: no policy is better than this."""
        waiting = -self.heap[0][0] if self.heap else -math.inf
        left = min(self.root_bound, max(waiting, self.working, self.dropped))
        return max(self.value + self.slack, left)

    @property
    def root_bound(self) -> float:
        """What was proven before the first node."""
        return self.oracle

    @property
    def tolerance(self) -> float:
        return max(self.closing(self.options.gap, self.value, self.oracle), 2 * self.slack)

    @property
    def proven(self) -> bool:
        return self.bound - self.value <= self.tolerance

    def details(self) -> dict[str, Any]:
        over = "history" if self.bound >= self.oracle else self.over  # a closed form is for all
        return {"bound": self.bound, "bounds": over, "nodes": self.nodes}

    def first_bound(self) -> None:
        """A bound to fall back on, however early the search is stopped."""
        raise NotImplementedError

    def first_incumbent(self) -> None:
        """CADP's best, from its starts; or from the policy on record."""
        context = self.context
        count = CADP(starts=self.options.starts).count(context.problem)
        Search(self.landscape, starts=count).run()

    def search(self) -> None:
        while self.heap and not self.proven and self.nodes < self.options.max_nodes:
            bound, _, mask, held = heapq.heappop(self.heap)
            self.working = -bound
            self.nodes += 1
            self.expand(-bound, mask, held)
            self.working = -math.inf

    def push(self, bound: float, mask: Mask, held: Any) -> None:
        """A node with what its bound begins from; given up if it cannot be much better."""
        if math.isfinite(self.value) and bound - self.value <= self.tolerance:
            self.dropped = max(self.dropped, bound)
        else:
            heapq.heappush(self.heap, (-bound, next(self.count), mask, held))

    def expand(self, bound: float, mask: Mask, held: Any) -> None:
        """Bound the node; close it, or split it."""
        raise NotImplementedError


def children(mask: Mask, place: tuple[int, ...]) -> list[Mask]:
    """One for each action that is open at a place: no other action is open there."""
    found = []
    for a in np.flatnonzero(mask[place]):
        child = mask.copy()
        child[place] = np.arange(mask.shape[-1]) == a
        found.append(child)
    return found
