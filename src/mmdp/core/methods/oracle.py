"""Oracle: each model solved on its own, as if the true model were known (wait and see)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.policies import PolicyClass
from mmdp.core.solution import Status


@check_arguments
@dataclass(frozen=True)
class Oracle(Method):
    """Optimal policy and value of each model (Oracle of Su and Petrik 2023; wait and see).

    No single policy has a higher mean return.

    Parameters
    ----------
    keep_policies
        Whether to keep the policies, of the models in this process if they are spread over several;
        without them only values are found, in less memory.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 1, "oracle").returns.tolist()
    [3.0, 5.0]
    """

    keep_policies: bool = True

    name: ClassVar[str] = "oracle"
    title: ClassVar[str] = "each model solved on its own, as a bound"
    default_class: ClassVar[PolicyClass | None] = None
    best_status: ClassVar[Status | None] = Status.OPTIMAL

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        sharded_reason = spec.reason_if_sharded() if spec.is_infinite_horizon else None
        return spec.reason_if_risk() or spec.reason_if_coupled() or sharded_reason

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes: the policies, if they are kept."""
        return super().estimate_bytes(spec) // 2 * self.keep_policies

    def run(self, context: SolveContext) -> MethodResult:
        """Solve every model on its own."""
        if context.policy_class.is_infinite_horizon:
            optima = context.model_optima
            policies = optima.actions[None] if self.keep_policies else None
            status, values = Status.OPTIMAL, optima.values
            if not optima.is_complete:  # these values are not those of the policies
                status, values = (
                    Status.TIME_LIMIT,
                    context.infinite_horizon.compute_values(optima.actions),
                )
            returns = context.problem.compute_returns(values.T)
            return MethodResult(None, status, 1, model_policies=policies, returns=returns)
        keep = ("actions",) if self.keep_policies else ()
        backward_pass = context.prepared.backward("per_model", keep=keep)
        returns = context.problem.compute_returns(backward_pass.first_values)
        policies = None
        if backward_pass.actions is not None:
            policies = np.moveaxis(backward_pass.actions, 2, 1)
        return MethodResult(None, Status.OPTIMAL, 1, model_policies=policies, returns=returns)
