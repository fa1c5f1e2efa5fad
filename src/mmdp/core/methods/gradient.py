"""Gradient methods: natural policy gradient and mirror ascent, with exact line search."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, check_arguments
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.methods.base import Method, MethodResult, SolveContext
from mmdp.core.policies import Planner
from mmdp.core.search import gradient
from mmdp.core.search.context import get_stop_status
from mmdp.core.search.multistart import make_first_init
from mmdp.core.search.spaces import MarkovSpace
from mmdp.core.solution import Status
from mmdp.core.timing import allow_stop


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
        iterate = gradient.GradientIterate.from_logits(
            gradient.SmoothedObjective(context), gradient.table_to_logits(context, table)
        )
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
