"""Rollout (Bertsekas and Castañon 1999): one policy improvement on CADP with the exact belief."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.core.arguments import check_arguments
from mmdp.core.kernels.planner import VALUES, PlannerTables
from mmdp.core.methods.base import MethodResult, SolveContext
from mmdp.core.methods.belief import BeliefMethod, compute_policy_q
from mmdp.core.solution import Status


@check_arguments
@dataclass(frozen=True)
class Rollout(BeliefMethod):
    """Rollout (Bertsekas and Castañon 1999): argmax_a sum_m beta_m q^pi_{t,m}(s, a), pi from CADP.

    A policy improvement step on the belief MDP: on its own models it is never worse than CADP.
    ``n_episodes`` and ``baseline``: as in :class:`mmdp.methods.QMDP`. If ``baseline`` is not
    CADP's policy, it is improved instead.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "rollout", seed=0).value
    12.0
    """

    name: ClassVar[str] = "rollout"
    title: ClassVar[str] = "one improvement of CADP by the exact belief"

    def run(self, context: SolveContext) -> MethodResult:
        """Compute q of CADP's policy in every model."""
        baseline = self.solve_baseline(context)
        tables = PlannerTables(
            VALUES, context.problem, q=compute_policy_q(context, baseline.policy)
        )
        is_complete = baseline.status is not Status.TIME_LIMIT
        return self.make_planner_result(context, tables, baseline, is_complete=is_complete)
