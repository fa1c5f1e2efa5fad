"""The cost of a restriction: the value of a policy without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.search.context import MethodResult, SolveContext
from mmdp.core.search.markov import ASCENT_PASSES, MarkovSpace, choose_sweep_type
from mmdp.core.search.space import AscentLimits
from mmdp.core.timing import TimeUp

COMPARISON_SECONDS = 5.0  # seconds, estimated, for a policy of time and state to compare with


def add_unrestricted_value(
    context: SolveContext,
    result: MethodResult,
    solve_unrestricted: Callable[[], MethodResult] | None = None,
) -> MethodResult:
    """Add the value of an unrestricted policy to the details of a result.

    That is the better of what ``solve_unrestricted`` finds and of an ascent from the restricted
    policy, so the restriction never seems to gain. Trees of all sizes are compared with the same
    policy: an ascent starts from one of them only if it is better. If the time is up, what is known
    by then must suffice.
    """
    values, is_linear, init = [], context.objective.is_mean, result.policy
    if is_randomized(result.policy) and not is_linear:  # a free one that draws is not known
        context.details.pop("unrestricted_value", None)
        return result
    try:
        if solve_unrestricted is not None:
            values.append(context.objective_value(solve_unrestricted().required_returns))
            is_unrestricted_better = values[0] >= context.objective_value(result.required_returns)
            init = (
                solve_unrestricted().policy
                if is_unrestricted_better and context.policy_class.uses_growth
                else init
            )
        if not context.policy_class.is_infinite_horizon:
            values.append(_ascend_unrestricted(context, init))
        elif is_linear:
            values.append(_ascend_markov_prefix(context, init))
    except TimeUp:  # the policy that was asked for is complete
        pass
    details = {**context.details, **result.details}
    return result.replace(
        details={**details, "unrestricted_value": max(values)} if values else details
    )


def _ascend_unrestricted(context: SolveContext, policy: PolicyTable) -> float:
    """Compute the value after an unrestricted ascent from this policy."""
    space = MarkovSpace(context.unrestricted_context())
    limits: AscentLimits = {"callback": lambda *_: context.check_time()}
    if context.objective.is_mean:
        return space.ascend_mean([policy], **limits)[0].value
    return space.ascend_objective(policy, context.objective, **limits).value


def _ascend_markov_prefix(context: SolveContext, row: PolicyTable) -> float:
    """Compute the value of a policy that is Markov for some steps and then follows the row.

    Its ascent starts from the rule, and both values are exact, so it is never below the rule,
    however few the steps are.
    """
    context.check_time()
    seconds = min(COMPARISON_SECONDS, context.stopwatch.time_left)
    max_horizon = int(seconds / context.problem.estimate_seconds(1, 2 * ASCENT_PASSES))
    T = max(1, min(context.horizon, max_horizon))
    terminal_values = np.ascontiguousarray(context.infinite_horizon.compute_values(row).T)
    prepared = context.prepared.replace(terminal=terminal_values, horizon=T)
    context.details["comparison_horizon"] = T
    local_optima = prepared.ascend(
        [np.repeat(row[None], T, axis=0), None],
        sweep_type=choose_sweep_type(context),
        callback=lambda *_: context.check_time(),
    )
    return max(optimum.value for optimum in local_optima)
