"""Branch and bound over the states of a stationary policy, with a proven gap.

A node is a set of open actions (S, A). Its bound lets every model take its own optimum over
them. If all models agree, that is one policy, and the node is done; otherwise it is split at the
state where agreeing costs most.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp.bounds import closed
from mmdp.errors import InputError
from mmdp.kernels.endless import Factorised, Own
from mmdp.kernels.problem import Array
from mmdp.methods.base import Context
from mmdp.search.rules import Rules
from mmdp.search.starts import affordable, in_order
from mmdp.words import readable_bytes

if TYPE_CHECKING:
    from mmdp.methods.exact import Exact

Mask = npt.NDArray[np.bool_]


class StationaryTree:
    """The open nodes, best bound first, and the incumbent (kept by the context)."""

    def __init__(self, context: Context, options: Exact) -> None:
        self.context, self.options = context, options
        self.rules = Rules(context)
        x = self.rules.x
        if not isinstance(x, Factorised):
            size = 8 * context.model.n_models * context.model.n_states**2 * context.model.n_actions
            raise InputError(
                f"exact would need transitions of {readable_bytes(size)} as full matrices; "
                "solve with cadp"
            )
        self.x, self.slack = x, float(context.problem.weights @ x.roundings())
        self.nodes = 0
        self.heap: list[tuple[float, int, Mask, Own]] = []
        self.count = itertools.count()
        self.oracle = self.working = math.inf  # bounds: every model by itself, the node at work
        self.dropped = -math.inf  # the largest bound among nodes that were given up as good enough

    @property
    def value(self) -> float:
        return self.context.best_value

    @property
    def bound(self) -> float:
        """Proven: no deterministic stationary policy is better than this."""
        waiting = -self.heap[0][0] if self.heap else -math.inf
        return max(self.value, waiting, self.working, self.dropped) + self.slack

    @property
    def tolerance(self) -> float:
        x, gap = self.context.problem, self.options.gap
        near = closed.closing(gap, self.value, self.oracle, x, math.inf)
        return max(near, 2 * self.slack)

    @property
    def proven(self) -> bool:
        return self.bound - self.value <= self.tolerance

    def details(self) -> dict[str, Any]:
        # what the first node has holds for every policy
        over = "history" if self.bound >= self.oracle else "deterministic stationary"
        return {"bound": self.bound, "bounds": over, "nodes": self.nodes}

    def first_bound(self) -> None:
        """Every model by itself."""
        mask = self.context.problem.allowed[0]
        own = self.x.own()
        self.push(mask, own)
        self.working = -math.inf
        self.oracle = self.bound

    def first_incumbent(self) -> None:
        context = self.context
        most = max(self.options.starts, affordable(self.rules.starts, self.rules.seconds))
        for start in in_order(self.rules, "wsu", most):
            self.note(start.point, context.mean(self.x.returns(start.point)))
            self.climb(start.point)

    def search(self) -> None:
        while self.heap and not self.proven and self.nodes < self.options.max_nodes:
            bound, _, mask, own = heapq.heappop(self.heap)
            self.working = -bound
            self.expand(mask, own)
            self.working = -math.inf

    def push(self, mask: Mask, own: Own) -> None:
        x = self.context.problem
        bound = min(float(x.weights @ (own.values @ x.initial + own.above)), self.working)
        if math.isfinite(self.value) and bound - self.value <= self.tolerance:
            self.dropped = max(self.dropped, bound)
        else:
            heapq.heappush(self.heap, (-bound, next(self.count), mask, own))

    def expand(self, mask: Mask, own: Own) -> None:
        """Try the policy that costs the models least; split where it costs most."""
        self.nodes += 1
        loss = self.losses(mask, own)
        agreed = loss.argmin(axis=1)
        cost = loss[np.arange(len(loss)), agreed]
        self.improve(agreed.astype(np.int32))
        s = int(np.where(mask.sum(axis=1) > 1, cost, -1.0).argmax())
        self.context.tell(self.bound, self.nodes)
        if mask[s].sum() == 1:  # one policy is left, and its value is known
            return
        for a in np.flatnonzero(mask[s]):
            child = mask.copy()
            child[s] = False
            child[s, a] = True
            self.push(child, self.x.own(child, own))

    def losses(self, mask: Mask, own: Own) -> Array:
        """(S, A) what models lose that take a where their own optimum visits s; inf if closed."""
        visits = self.context.problem.weights[:, None] * self.x.visits(own.actions)
        worse = own.values[:, :, None] - self.x.q(own.values)
        return np.where(mask, np.einsum("ms,msa->sa", visits, worse), np.inf)

    def improve(self, actions: npt.NDArray[np.int32]) -> None:
        """Climb from these actions if they are better than the incumbent."""
        value = self.context.mean(self.x.returns(actions))
        if value > self.value:
            self.note(actions, value)
            self.climb(actions)

    def climb(self, actions: npt.NDArray[np.int32]) -> None:
        inner = self.context.quiet()
        try:
            self.rules.ascend([actions], watch=inner.record)
        finally:  # also if the time is up
            self.note(inner.best_policy, inner.best_value)

    def note(self, actions: npt.NDArray[np.int32], value: float) -> None:
        if value > self.value:
            self.context.record(actions, value)
