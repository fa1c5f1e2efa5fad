"""POMCP: Monte Carlo tree search with an exact belief over the models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mmdp.arguments import NonNegativeFloat, checked
from mmdp.errors import InputError
from mmdp.kernels.planner import TREE, PlannerTables
from mmdp.methods.base import Context, Outcome, Question
from mmdp.methods.belief import Planning
from mmdp.solution import Status
from mmdp.validate import check_whole


@checked
@dataclass(frozen=True)
class POMCP(Planning):
    """UCB search on (action, next state), models drawn from the belief at the root.

    The root belief is exact, so there is no particle filter to run dry (Silver and Veness
    2010 use particles).

    Parameters
    ----------
    queries
        Simulations per decision.
    leaf
        How a new leaf is valued: ``"cadp"`` by v^CADP_{t,m}(s) of the drawn model,
        ``"rollout"`` by simulating CADP's policy, ``"random"`` by simulating random actions
        (as in the published runs).
    exploration
        UCB constant as a multiple of the mean spread of q between actions at that time.
    episodes, baseline
        As in :class:`mmdp.QMDP`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, mmdp.POMCP(queries=20), seed=0).value
    12.0
    """

    queries: int = 500
    leaf: Literal["cadp", "rollout", "random"] = "cadp"
    exploration: NonNegativeFloat = 1.0

    name: ClassVar[str] = "pomcp"
    title: ClassVar[str] = "tree search with the exact belief"
    least_passes: ClassVar[float] = math.inf
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self.queries, "queries")
        if self.leaf not in ("cadp", "rollout", "random"):
            raise InputError(f'leaf must be "cadp", "rollout" or "random", not {self.leaf!r}')
        if not self.exploration >= 0:
            raise InputError(f"exploration must be at least 0, not {self.exploration}")

    def lacks(self, question: Question) -> str | None:
        ends = "it searches ahead to a last decision" if question.endless else None
        return super().lacks(question) or ends

    def run(self, context: Context) -> Outcome:
        if context.model.has_missing:
            raise InputError(
                "pomcp needs every allowed action in every model; this model was built with "
                "allow_missing"
            )
        baseline = self.baseline_outcome(context)
        actions, is_complete = baseline.policy, baseline.status is not Status.TIME_LIMIT
        found = context.plan.backward("given", policy=actions, keep=("values", "q"))
        parts: dict[str, Any] = {
            "exploration": self.exploration * _spread(found.q),
            "queries": self.queries,
        }
        if self.leaf != "random":
            parts |= {"values": found.values, "by_rollout": self.leaf == "rollout"}
        if self.leaf == "rollout":
            parts["actions"] = actions
        made = PlannerTables(TREE, context.problem, **parts)
        return self.planned(context, made, baseline, is_complete=is_complete)


def _spread(q: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(T,) mean over states and models of max_a q - min_a q, over the allowed actions."""
    lowest = np.where(np.isfinite(q), q, np.inf).min(axis=2)
    result: npt.NDArray[np.float64] = (q.max(axis=2) - lowest).mean(axis=(1, 2))
    return result
