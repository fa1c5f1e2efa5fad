"""QMDP: act as if the model became known after the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.kernels import Problem
from mmdp.kernels.planner import VALUES, PlannerTables
from mmdp.methods.base import Context, Method, Outcome
from mmdp.methods.belief import cadp_baseline, passes_of, planned
from mmdp.policy import MarkovPolicy


@dataclass(frozen=True)
class QMDP(Method):
    """argmax_a sum_m beta_m q*_{t,m}(s, a) with the exact belief beta (Littman et al. 1995).

    ``episodes`` per model are simulated for the value that ``solve`` reports; ``baseline`` is
    the CADP policy of the same models where it is known already (a control variate).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "qmdp", seed=0).value
    12.0
    """

    episodes: int | None = None
    baseline: MarkovPolicy | None = None

    name: ClassVar[str] = "qmdp"

    def passes(self, problem: Problem, horizon: int) -> float:
        return passes_of(problem, self.episodes)

    def run(self, context: Context) -> Outcome:
        q = context.kernel.backward(context.problem, context.horizon, "own", keep_q=True).q
        assert q is not None
        made = PlannerTables(VALUES, context.problem, q=q)
        return planned(
            context, self.name, made, cadp_baseline(context, self.baseline), self.episodes
        )
