"""Branch and bound over the states of a stationary policy, with a proven gap.

A node is a set of open actions (S, A). Its bound lets every model take its own optimum over
them. If all models agree, that is one policy, and the node is done; otherwise it is split at the
state where agreeing costs most.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels.endless import Factorised, Own
from mmdp.kernels.problem import Array
from mmdp.methods.base import Context
from mmdp.methods.tree import Mask, Tree, children
from mmdp.search.rules import Rules
from mmdp.words import readable_bytes

if TYPE_CHECKING:
    from mmdp.methods.exact import Exact


class StationaryTree(Tree):
    """Deterministic stationary policies: a node is held with the models' own optima."""

    over: ClassVar[str] = "deterministic stationary"

    def __init__(self, context: Context, options: Exact) -> None:
        self.landscape = Rules(context)
        x = self.landscape.x
        if not isinstance(x, Factorised):
            size = 8 * context.model.n_models * context.model.n_states**2 * context.model.n_actions
            raise InputError(
                f"exact would need transitions of {readable_bytes(size)} as full matrices; "
                "solve with cadp"
            )
        self.x = x
        super().__init__(context, options, context.mean(x.roundings()))

    def first_bound(self) -> None:
        """Every model by itself."""
        own = self.context.model_optima
        self.oracle, self.working = self.most(own), -math.inf
        self.push(self.oracle, self.context.problem.allowed[0], own)

    def most(self, own: Own) -> float:
        """The mean of the models' own optima, rounded up."""
        x = self.context.problem
        return float(x.weights @ (x.returns(own.values.T) + own.above)) + self.slack

    def hold(self, mask: Mask, own: Own) -> None:
        self.push(min(self.most(own), self.working), mask, own)

    def expand(self, bound: float, mask: Mask, held: Own) -> None:
        """Try the policy that costs the models least; split where it costs most."""
        loss = self.losses(mask, held)
        agreed = loss.argmin(axis=1)
        cost = loss[np.arange(len(loss)), agreed]
        self.improve(agreed.astype(np.int32))
        s = int(np.where(mask.sum(axis=1) > 1, cost, -1.0).argmax())
        self.context.tell(self.bound, self.nodes)
        if mask[s].sum() > 1:  # otherwise one policy is left, whose value is known
            for child in children(mask, (s,)):
                self.hold(child, self.x.own(child, held))

    def losses(self, mask: Mask, own: Own) -> Array:
        """(S, A) what models lose by taking a where their own optimum visits s; inf if closed."""
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
            self.landscape.ascend([actions], watch=inner.record)
        finally:  # also if the time is up
            self.note(inner.best_policy, inner.best_value)

    def note(self, actions: npt.NDArray[np.int32], value: float) -> None:
        if value > self.value:
            self.context.record(actions, value)
