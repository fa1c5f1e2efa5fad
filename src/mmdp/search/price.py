"""What a restriction of the policy costs: the value that is found without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmdp.clock import Stop
from mmdp.kernels.ascent import randomised
from mmdp.kernels.problem import Table
from mmdp.search.context import Context, Outcome
from mmdp.search.tables import PASSES, Tables, affordable_sweeps

COMPARING = 5.0  # seconds, estimated, for a policy of time and state to compare with


def priced(
    context: Context, outcome: Outcome, free: Callable[[], Outcome] | None = None
) -> Outcome:
    """The outcome with the value of a policy that is free of the restriction.

    That is the better of what ``free`` finds and of an ascent from the restricted policy, so the
    restriction never seems to gain. Trees of all sizes are compared with the same policy: an ascent
    starts from one of them only if it is better. If the time is up, what is known by then must
    suffice.
    """
    known, linear, start = [], context.objective.linear, outcome.policy
    if randomised(outcome.policy) and not linear:  # a free one that draws is not known
        context.details.pop("unrestricted", None)
        return outcome
    try:
        if free is not None:
            known.append(context.worth(free().returns_known))
            worse = known[0] >= context.worth(outcome.returns_known)
            start = free().policy if worse and context.kind.grows else start
        if not context.kind.endless:
            known.append(_onward(context, start))
        elif linear:
            known.append(_by_time(context, start))
    except Stop:  # the policy that was asked for is complete
        pass
    details = {**context.details, **outcome.details}
    return outcome.but(details={**details, "unrestricted": max(known)} if known else details)


def _onward(context: Context, policy: Table) -> float:
    """The value after an ascent from this policy that is free of the restriction."""
    landscape = Tables(context.free())

    def watch(*_: object) -> None:
        context.check_time()

    if context.objective.linear:
        return landscape.ascend([policy], watch=watch)[0].value
    return landscape.rise(policy, context.objective, watch=watch).value


def _by_time(context: Context, row: Table) -> float:
    """The value of a policy that depends on time for many steps and then follows the rule.

    Its ascent starts from the rule, and both values are exact, so it is never below the rule,
    however few the steps are.
    """
    affordable = int(COMPARING / context.problem.seconds(1, 2 * PASSES))
    T = max(1, min(context.horizon, affordable))
    after = np.ascontiguousarray(context.endless.values(row).T)
    plan = context.plan.but(terminal=after, horizon=T)
    context.details["compared_steps"] = T
    ends = plan.ascend(
        [np.repeat(row[None], T, axis=0), None], sweeps=affordable_sweeps(context),
        watch=lambda *_: context.check_time(),
    )  # fmt: skip
    return max(end.value for end in ends)
