"""POMCP: Monte Carlo tree search with an exact belief over the models (Silver and Veness 2010)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels.planner import TREE, PlannerTables
from mmdp.core.methods.base import MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.belief import BeliefMethod
from mmdp.core.search.context import Details
from mmdp.core.solution import Status


@check_arguments
@dataclass(frozen=True)
class POMCP(BeliefMethod):
    """Monte Carlo tree search by UCB (Silver and Veness 2010) with the exact belief at the root.

    The published algorithm has a particle filter; the exact belief cannot run out of particles.

    Parameters
    ----------
    n_queries
        Simulations per decision.
    leaf_value
        How a new leaf is valued: ``"cadp"`` by v^CADP_{t,m}(s) of the drawn model,
        ``"rollout"`` by simulating CADP's policy, ``"random"`` by simulating random actions
        (as in the published runs).
    exploration
        UCB constant as a multiple of the mean spread of q between actions at that time.
    n_episodes, baseline
        As in :class:`mmdp.methods.QMDP`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, mmdp.methods.POMCP(n_queries=20), seed=0).value
    12.0
    """

    n_queries: PositiveInt = 500
    leaf_value: Literal["cadp", "rollout", "random"] = "cadp"
    exploration: NonNegativeFloat = 1.0

    name: ClassVar[str] = "pomcp"
    title: ClassVar[str] = "tree search with the exact belief"
    min_passes: ClassVar[float] = math.inf
    uses_sampled_model: ClassVar[bool] = True

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        horizon_reason = (
            "it searches ahead to a last decision" if spec.is_infinite_horizon else None
        )
        return super().unsupported_reason(spec) or horizon_reason

    def run(self, context: SolveContext) -> MethodResult:
        """Compute the leaf values and exploration constants of tree search from CADP's policy."""
        if context.model.has_missing_actions:
            raise InputError(
                "pomcp needs every allowed action in every model; this model was built with "
                "allow_missing"
            )
        baseline = self.solve_baseline(context)
        actions, is_complete = baseline.policy, baseline.status is not Status.TIME_LIMIT
        backward_pass = context.prepared.backward("policy", policy=actions, keep=("values", "q"))
        options: Details = {
            "exploration": self.exploration * _compute_q_spread(backward_pass.q),
            "n_queries": self.n_queries,
        }
        if self.leaf_value != "random":
            options |= {
                "values": backward_pass.values,
                "uses_rollout": self.leaf_value == "rollout",
            }
        if self.leaf_value == "rollout":
            options["actions"] = actions
        tables = PlannerTables(TREE, context.problem, **options)
        return self.make_planner_result(context, tables, baseline, is_complete=is_complete)


def _compute_q_spread(q: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the mean of max_a q - min_a q over states and models, (T,)."""
    lowest = np.where(np.isfinite(q), q, np.inf).min(axis=2)
    result: npt.NDArray[np.float64] = (q.max(axis=2) - lowest).mean(axis=(1, 2))
    return result
