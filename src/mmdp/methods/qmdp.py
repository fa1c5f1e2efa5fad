"""QMDP: act as if the model became known after the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.arguments import checked
from mmdp.kernels.planner import VALUES, PlannerTables
from mmdp.methods.base import Context, Outcome
from mmdp.methods.belief import Planning, q_of_optima


@checked
@dataclass(frozen=True)
class QMDP(Planning):
    """argmax_a sum_m beta_m q*_{t,m}(s, a) with the exact belief beta (Littman et al. 1995).

    ``episodes`` per model are simulated for the value that ``solve`` reports; ``baseline`` is
    the CADP policy of the same models if it is known already (a control variate).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "qmdp", seed=0).value
    12.0
    """

    name: ClassVar[str] = "qmdp"
    title: ClassVar[str] = "as if the model were known after one step"

    def run(self, context: Context) -> Outcome:
        q, is_complete = q_of_optima(context)
        made = PlannerTables(VALUES, context.problem, q=q)
        baseline = self.baseline_outcome(context)
        return self.planned(context, made, baseline, is_complete=is_complete)
