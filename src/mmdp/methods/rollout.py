"""Belief rollout: one step of policy improvement on CADP with the exact belief."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmdp.kernels import Problem
from mmdp.kernels.planner import VALUES, PlannerTables
from mmdp.methods.base import Context, Method, Outcome
from mmdp.methods.belief import cadp_baseline, passes_of, planned
from mmdp.policy import MarkovPolicy


@dataclass(frozen=True)
class Rollout(Method):
    """argmax_a sum_m beta_m q^pi_{t,m}(s, a) with pi from CADP.

    A policy improvement step on the belief MDP: on the models it was built from it is never
    worse than CADP. ``episodes`` and ``baseline``: as in :class:`mmdp.QMDP`; another policy than
    CADP's may be given as ``baseline`` and is improved on.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "rollout", seed=0).value
    12.0
    """

    episodes: int | None = None
    baseline: MarkovPolicy | None = None

    name: ClassVar[str] = "rollout"

    def passes(self, problem: Problem, horizon: int) -> float:
        return passes_of(problem, self.episodes)

    def run(self, context: Context) -> Outcome:
        actions = cadp_baseline(context, self.baseline)
        q = context.kernel.backward(
            context.problem, context.horizon, "given", policy=actions, keep_q=True
        ).q
        assert q is not None
        made = PlannerTables(VALUES, context.problem, q=q)
        return planned(context, self.name, made, actions, self.episodes)
