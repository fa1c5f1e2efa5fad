"""Reference methods: WSU and MVP (Steimle et al. 2021), and Oracle, each model on its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.kernels.infinite import InfiniteHorizon
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.search.spaces import compute_mvp_actions
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

    name = "wsu"
    title = "one backward pass with the initial weights"
    covers_unreachable = True

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


@dataclass(frozen=True)
class MVP(WSU):
    """Mean value problem (Steimle et al. 2021): the optimal policy of the mean model.

    See :meth:`mmdp.MMDP.mean_model`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "mvp").value
    12.0
    """

    name = "mvp"
    title = "the optimal policy of the average model"

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

    name = "oracle"
    title = "each model solved on its own, as a bound"
    default_class = None
    best_status = Status.OPTIMAL

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        sharded_reason = spec.reason_if_sharded() if spec.is_infinite_horizon else None
        return spec.reason_if_risk() or spec.reason_if_coupled() or sharded_reason

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes: the policies, if they are kept."""
        return super().estimate_bytes(spec) // 2 * self.keep_policies

    def run(self, context: SolveContext) -> MethodResult:
        """Solve every model on its own."""
        status, policies = Status.OPTIMAL, None
        if context.policy_class.is_infinite_horizon:
            optima = context.model_optima
            policies, values = optima.actions[None] if self.keep_policies else None, optima.values.T
            if not optima.is_complete:  # these values are not those of the policies
                status = Status.TIME_LIMIT
                values = context.infinite_horizon.compute_values(optima.actions).T
        else:
            keep = ("actions",) if self.keep_policies else ()
            backward_pass = context.prepared.backward("per_model", keep=keep)
            values = backward_pass.first_values
            if self.keep_policies:
                policies = np.moveaxis(backward_pass.actions, 2, 1)
        returns = context.problem.compute_returns(values)
        return MethodResult(None, status, 1, model_policies=policies, returns=returns)
