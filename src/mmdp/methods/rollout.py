"""Belief rollout: one step of policy improvement on CADP with the exact belief."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.arguments import checked
from mmdp.kernels.planner import VALUES, PlannerTables
from mmdp.methods.base import Context, Outcome
from mmdp.methods.belief import Planning, q_of_policy
from mmdp.solution import Status


@checked
@dataclass(frozen=True)
class Rollout(Planning):
    """argmax_a sum_m beta_m q^pi_{t,m}(s, a) with pi from CADP.

    A policy improvement step on the belief MDP: on its own models it is never worse than CADP.
    ``episodes`` and ``baseline``: as in :class:`mmdp.QMDP`. If ``baseline`` is not
    CADP's policy, it is improved instead.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "rollout", seed=0).value
    12.0
    """

    name: ClassVar[str] = "rollout"
    title: ClassVar[str] = "one improvement of CADP by the exact belief"

    def run(self, context: Context) -> Outcome:
        baseline = self.baseline_outcome(context)
        made = PlannerTables(VALUES, context.problem, q=q_of_policy(context, baseline.policy))
        is_complete = baseline.status is not Status.TIME_LIMIT
        return self.planned(context, made, baseline, is_complete=is_complete)
