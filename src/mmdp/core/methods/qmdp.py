"""QMDP: act as if the model became known after the next step (Littman et al. 1995)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.core.arguments import check_arguments
from mmdp.core.kernels.planner import VALUES, PlannerTables
from mmdp.core.methods.base import MethodResult, SolveContext
from mmdp.core.methods.belief import BeliefMethod, compute_oracle_q


@check_arguments
@dataclass(frozen=True)
class QMDP(BeliefMethod):
    """QMDP (Littman et al. 1995): argmax_a sum_m beta_m q*_{t,m}(s, a) with the exact belief beta.

    Parameters
    ----------
    n_episodes
        Number of episodes per model to simulate for the value of a policy with memory.
    baseline
        The CADP policy of the same models if it is known already (a control variate).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "qmdp", seed=0).value
    12.0
    """

    name: ClassVar[str] = "qmdp"
    title: ClassVar[str] = "as if the model were known after one step"

    def run(self, context: SolveContext) -> MethodResult:
        """Compute q* of every model."""
        q, is_complete = compute_oracle_q(context)
        tables = PlannerTables(VALUES, context.problem, q=q)
        baseline = self.solve_baseline(context)
        return self.make_planner_result(context, tables, baseline, is_complete=is_complete)
