"""The base of branch and bound, shared by the searches of ``exact``."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.bounds import closed_form
from mmdp.core.methods.base import SolveContext
from mmdp.core.methods.cadp import CADP
from mmdp.core.search.context import Details
from mmdp.core.search.multistart import MultiStart
from mmdp.core.search.space import SearchSpace

if TYPE_CHECKING:
    from mmdp.core.methods.exact import Exact

Mask = npt.NDArray[np.bool_]
WarmStart = Any  # the multipliers of a node, or the optima of its models


class BranchAndBound:
    """Branch and bound: a heap of nodes, largest bound first, and the incumbent of the context.

    A node is a set of allowed actions, with a proven bound on its policies.
    """

    bound_scope: ClassVar[str]  # which policies it bounds
    space: SearchSpace  # of the policies

    def __init__(self, context: SolveContext, options: Exact, rounding_error: float) -> None:
        self.context, self.options, self.rounding_error = context, options, rounding_error
        self.gap_tolerance = closed_form.GapTolerance(context.problem, context.effective_horizon)
        self.n_nodes = 0
        self.heap: list[tuple[float, int, Mask, WarmStart]] = []
        self.push_counter = itertools.count()
        self.oracle_bound = self.node_bound = (
            math.inf
        )  # bounds: in closed form, of the node at work
        self.pruned_bound = (
            -math.inf
        )  # the largest bound among nodes that were given up as good enough

    @property
    def value(self) -> float:
        """Value of the incumbent."""
        return self.context.best_value

    @property
    def bound(self) -> float:
        """Proven upper bound on the value of every policy."""
        open_bound = -self.heap[0][0] if self.heap else -math.inf
        tree_bound = min(self.root_bound, max(open_bound, self.node_bound, self.pruned_bound))
        return max(self.value + self.rounding_error, tree_bound)

    @property
    def root_bound(self) -> float:
        """Bound that was proven before branching."""
        return self.oracle_bound

    @property
    def tolerance(self) -> float:
        """Absolute gap at which the incumbent counts as optimal."""
        return max(
            self.gap_tolerance(self.options.rel_gap, self.value, self.oracle_bound),
            2 * self.rounding_error,
        )

    @property
    def is_closed(self) -> bool:
        """Whether the bound meets the value of the incumbent."""
        return self.bound - self.value <= self.tolerance

    def details(self) -> Details:
        """Return the bound, its scope and the node count as details of the result."""
        scope = (
            "history" if self.bound >= self.oracle_bound else self.bound_scope
        )  # a closed form is for all
        return {"bound": self.bound, "scope": scope, "n_nodes": self.n_nodes}

    def compute_initial_bound(self) -> None:
        """Compute a first bound, valid however early the search stops."""
        raise NotImplementedError

    def find_incumbent(self) -> None:
        """Find the first incumbent by CADP."""
        context = self.context
        n_init = CADP(n_init=self.options.n_init).choose_n_init(context.problem)
        MultiStart(self.space, n_init=n_init).run()

    def search(self) -> None:
        """Expand nodes until the gap is closed or the node limit is reached."""
        while self.heap and not self.is_closed and self.n_nodes < self.options.max_nodes:
            bound, _, mask, warm_start = heapq.heappop(self.heap)
            self.node_bound = -bound
            self.n_nodes += 1
            self.expand_node(-bound, mask, warm_start)
            self.node_bound = -math.inf

    def push_node(self, bound: float, mask: Mask, warm_start: WarmStart) -> None:
        """Add a node to the heap with its warm start, or prune it."""
        if math.isfinite(self.value) and bound - self.value <= self.tolerance:
            self.pruned_bound = max(self.pruned_bound, bound)
        else:
            heapq.heappush(self.heap, (-bound, next(self.push_counter), mask, warm_start))

    def expand_node(self, bound: float, mask: Mask, warm_start: WarmStart) -> None:
        """Compute the bound of a node, then prune or split it."""
        raise NotImplementedError


def split_node(mask: Mask, index: tuple[int, ...]) -> list[Mask]:
    """Split a mask into one for each action allowed at an index, where no other is allowed."""
    children = []
    for a in np.flatnonzero(mask[index]):
        child = mask.copy()
        child[index] = np.arange(mask.shape[-1]) == a
        children.append(child)
    return children
