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

from mmdp.core.errors import InputError
from mmdp.core.kernels.infinite import DirectSolver, ModelOptima
from mmdp.core.kernels.problem import Array
from mmdp.core.methods.base import SolveContext
from mmdp.core.methods.branch_and_bound import BranchAndBound, Mask, split_node
from mmdp.core.search.stationary import StationarySpace
from mmdp.core.text import format_bytes

if TYPE_CHECKING:
    from mmdp.core.methods.exact import Exact


class StationaryBranchAndBound(BranchAndBound):
    """Branch and bound over deterministic stationary policies; warm starts are model optima."""

    bound_scope: ClassVar[str] = "deterministic stationary"

    def __init__(self, context: SolveContext, options: Exact) -> None:
        self.space = StationarySpace(context)
        solver = self.space.infinite_horizon
        if not isinstance(solver, DirectSolver):
            n_bytes = (
                8 * context.model.n_models * context.model.n_states**2 * context.model.n_actions
            )
            raise InputError(
                f"exact would need transitions of {format_bytes(n_bytes)} as full matrices; "
                "solve with cadp"
            )
        self.solver = solver
        super().__init__(context, options, context.compute_mean(solver.rounding_errors()))

    def compute_initial_bound(self) -> None:
        """Compute the Oracle bound and push the root."""
        optima = self.context.model_optima
        self.oracle_bound, self.node_bound = self.compute_bound(optima), -math.inf
        self.push_node(self.oracle_bound, self.context.problem.allowed[0], optima)

    def compute_bound(self, optima: ModelOptima) -> float:
        """Compute the mean of the models' own optima, rounded up."""
        problem = self.context.problem
        return (
            float(problem.weights @ (problem.compute_returns(optima.values.T) + optima.error_bound))
            + self.rounding_error
        )

    def push_child(self, mask: Mask, optima: ModelOptima) -> None:
        """Push a child with the smaller of its own bound and that of its parent."""
        self.push_node(min(self.compute_bound(optima), self.node_bound), mask, optima)

    def expand_node(self, bound: float, mask: Mask, warm_start: ModelOptima) -> None:
        """Try the policy with the smallest losses, and split the state where it loses most."""
        loss = self.compute_losses(mask, warm_start)
        actions = loss.argmin(axis=1)
        cost = loss[np.arange(len(loss)), actions]
        self.try_policy(actions.astype(np.int32))
        s = int(np.where(mask.sum(axis=1) > 1, cost, -1.0).argmax())
        self.context.report_bound(self.bound, self.n_nodes)
        if mask[s].sum() > 1:  # otherwise one policy is left, whose value is known
            for child in split_node(mask, (s,)):
                self.push_child(child, self.solver.compute_model_optima(child, warm_start))

    def compute_losses(self, mask: Mask, optima: ModelOptima) -> Array:
        """Compute what models lose by each action in the states of their optimum, (S, A)."""
        occupancy = self.context.problem.weights[:, None] * self.solver.compute_occupancy(
            optima.actions
        )
        value_loss = optima.values[:, :, None] - self.solver.compute_q(optima.values)
        return np.where(mask, np.einsum("ms,msa->sa", occupancy, value_loss), np.inf)

    def try_policy(self, actions: npt.NDArray[np.int32]) -> None:
        """Ascend from these actions if they are better than the incumbent."""
        value = self.context.compute_mean(self.solver.compute_returns(actions))
        if value > self.value:
            self.record_incumbent(actions, value)
            self.ascend(actions)

    def ascend(self, actions: npt.NDArray[np.int32]) -> None:
        """Ascend to a local optimum and record it if it is better."""
        subcontext = self.context.subcontext()
        try:
            self.space.ascend_mean([actions], callback=subcontext.record)
        finally:  # also if the time is up
            self.record_incumbent(subcontext.best_policy, subcontext.best_value)

    def record_incumbent(self, actions: npt.NDArray[np.int32], value: float) -> None:
        """Record actions that are better than the incumbent."""
        if value > self.value:
            self.context.record(actions, value)
