"""MVP, the mean value problem (Steimle et al. 2021): solve the MDP of the mean model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.core.kernels.infinite import InfiniteHorizon
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.methods.base import MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.wsu import WSU
from mmdp.core.search.markov import compute_mvp_actions
from mmdp.core.solution import Status


@dataclass(frozen=True)
class MVP(WSU):
    """Mean value problem (Steimle et al. 2021): the optimal policy of the mean model.

    See :meth:`mmdp.MMDP.mean_model`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "mvp").value
    12.0
    """

    name: ClassVar[str] = "mvp"
    title: ClassVar[str] = "the optimal policy of the average model"

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        return spec.reason_if_risk() or spec.reason_if_coupled()

    def find_policy(self, context: SolveContext) -> MethodResult:
        """Solve the mean model and evaluate its policy on every model."""
        status = Status.COMPLETED
        if context.policy_class.is_infinite_horizon:
            mean_problem = context.model.mean_model().problem.restrict_actions(
                context.problem.allowed
            )
            optimum = InfiniteHorizon.from_problem(
                mean_problem, context.stopwatch.raise_if_expired
            ).compute_model_optima()
            actions: PolicyTable = optimum.actions[0]
            status = status if optimum.is_complete else Status.TIME_LIMIT
        else:
            actions = compute_mvp_actions(context)
        return MethodResult(actions, status, 1, returns=context.compute_returns(actions))
