"""Reference methods: WSU and MVP (Steimle et al. 2021), gradient ascents, and each model alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, check_arguments
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.policies import Planner
from mmdp.core.search import gradient
from mmdp.core.search.context import get_stop_status
from mmdp.core.search.multistart import make_first_init
from mmdp.core.search.spaces import MarkovSpace, compute_mvp_actions
from mmdp.core.solution import Status
from mmdp.core.timing import allow_stop


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
        if context.is_infinite_horizon:
            mean_problem = context.model.mean_model().problem.restrict_actions(
                context.problem.allowed
            )
            optimum = context.solve_models(mean_problem)
            actions: PolicyTable = optimum.actions[0]
            status = status if optimum.is_complete else Status.TIME_LIMIT
        else:
            actions = compute_mvp_actions(context)
        return MethodResult(actions, status, 1, returns=context.compute_returns(actions))


@dataclass(frozen=True)
class _GradientMethod(Method):
    """Base class of the gradient methods, with their options.

    Parameters
    ----------
    init
        ``"uniform"``, ``"wsu"``, ``"mvp"``, ``"random"`` or a policy; a deterministic start
        is mixed with a little of the uniform policy so that every action can grow.
    max_iter
        Cap on accepted steps.
    tol
        Stop when the stationarity measure sum_{t,s} gamma^t max_a (G - sum_a pi G) is at most
        this share of the return span, the range of the rewards times sum_t gamma^t.
    deterministic
        Return a deterministic policy; its return is never lower.
    """

    init: str | Planner = "uniform"
    max_iter: PositiveInt = 200
    tol: NonNegativeFloat = 1e-6
    deterministic: bool = True

    can_resume = True
    min_passes = 600  # about three per step of the line search

    def run(self, context: SolveContext) -> MethodResult:
        """Ascend from the initial policy, then round to a deterministic policy if asked."""
        init = make_first_init(MarkovSpace(context), self.init, context.seed or 0).candidate
        table: PolicyTable = context.solve_wsu()[0] if init is None else init
        iterate = gradient.GradientIterate.from_table(context, table)
        direction = gradient.DIRECTIONS[self.name]
        iterates = gradient.iter_gradient_ascent(context, iterate, direction, self.tol)
        with allow_stop() as stop_state:
            for iterate in islice(iterates, self.max_iter + 1):
                context.record(iterate.policy, iterate.value)
        n_steps = context.n_iterations
        status = Status.ITERATION_LIMIT if n_steps == self.max_iter else Status.COMPLETED
        details = {"stationarity": iterate.stationarity, "randomized_value": iterate.value}
        table = iterate.policy
        if self.deterministic:
            table, returns = context.maximize_weighted(context.prepared.forward(iterate.policy))
            details["rounded_value"] = context.compute_mean(returns)
        status = get_stop_status(stop_state, status)
        return MethodResult(table, status, n_steps, details=details)


@check_arguments
@dataclass(frozen=True)
class NaturalGradient(_GradientMethod):
    """Natural policy gradient (Kakade 2001): pi proportional to pi * exp(eta * A).

    A is the mean advantage, from the gradient of Theorem 4.1 of Su and Petrik (2023).

    A_t(s, a) = G_t(s, a) / b_t(s) - sum_a pi G / b, b_t(s) = sum_m b_{t,m}(s).

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> round(mmdp.solve(two, 2, "gradient").value, 6)
    7.0
    """

    name = "gradient"
    title = "natural policy gradient, exact line search"


@check_arguments
@dataclass(frozen=True)
class MirrorAscent(_GradientMethod):
    """Mirror ascent (Beck and Teboulle 2003): pi proportional to pi * exp(eta * d rho / d pi).

    The gradient is that of Theorem 4.1 of Su and Petrik (2023).

    Without dividing by the state's probability it moves slowly in rarely visited states.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> round(mmdp.solve(two, 2, "mirror").value, 6)
    7.0
    """

    name = "mirror"
    title = "mirror ascent, exact line search"


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
        if context.is_infinite_horizon:
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
