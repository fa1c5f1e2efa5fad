"""The request for a bound: prepared problem, objective, time limit and incumbent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat

from mmdp.core.arguments import FiniteFloat, check_type
from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.problem import Array, PolicyTable
from mmdp.core.objectives import Mean, Objective
from mmdp.core.policies import MarkovPolicy, Policy
from mmdp.core.solution import Solution
from mmdp.core.timing import Callback, Stopwatch

if TYPE_CHECKING:
    from mmdp.core.model import MMDP


@dataclass(frozen=True)
class BoundRequest:
    """Request for a bound on an objective.

    ``return_errors`` (M,) is the most by which the return of a model, or its optimum, may differ
    from that on the prepared problem, besides rounding there; None if neither does.
    """

    prepared: PreparedProblem
    method: str
    stopwatch: Stopwatch
    objective: Objective = Mean()  # noqa: RUF009 (frozen)
    is_infinite_horizon: bool = False
    incumbent_policy: PolicyTable | None = None  # a good one
    incumbent_value: float = -math.inf  # the value of a good one
    seed: int = 0
    callback: Callback | None = None
    return_errors: Array | None = None


def read_incumbent(
    incumbent: object, model: MMDP, horizon: int, *, is_infinite_horizon: bool = False
) -> tuple[PolicyTable | None, float]:
    """Convert a user's Solution, MarkovPolicy or number to a table, or to a value."""
    if isinstance(incumbent, Solution):
        policy = None if is_infinite_horizon else incumbent.markov_policy
        incumbent = incumbent.value if policy is None else policy
    if isinstance(incumbent, Policy) and incumbent.as_markov is not None:
        incumbent.as_markov.check(model, horizon)
        return incumbent.as_markov.to_table(model), -math.inf
    if incumbent is None:
        return None, -math.inf
    check_type("incumbent", incumbent, Solution | MarkovPolicy | FiniteFloat)
    assert isinstance(incumbent, SupportsFloat)
    return None, float(incumbent)
