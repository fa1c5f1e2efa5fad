"""WSU, weight-select-update (Steimle et al. 2021): one backward pass with the initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.solution import Status


@dataclass(frozen=True)
class WSU(Method):
    """Weight-select-update (Steimle et al. 2021): maximize sum_m lambda_m q_{t,m}(s, a) backwards.

    Equation (7) of Su and Petrik (2023).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "wsu").value
    12.0
    """

    name: ClassVar[str] = "wsu"
    title: ClassVar[str] = "one backward pass with the initial weights"
    covers_unreachable: ClassVar[bool] = True

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes: one table of actions."""
        return 4 * spec.planning_horizon * spec.model.n_states

    def find_policy(self, context: SolveContext) -> MethodResult:
        """Compute the actions (T, S) and their returns."""
        actions, returns = context.solve_wsu()
        return MethodResult(actions, Status.COMPLETED, 1, returns=returns)

    def run(self, context: SolveContext) -> MethodResult:
        """Compute the policy and record it."""
        result = self.find_policy(context)
        context.record(result.policy, context.compute_mean(result.required_returns), is_last=True)
        return result
