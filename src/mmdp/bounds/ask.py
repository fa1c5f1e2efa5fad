"""What a bound is asked about: a laid-out problem, an objective, a time and an incumbent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from mmdp.clock import Callback, Stopwatch
from mmdp.errors import InputError
from mmdp.kernels import Plan
from mmdp.kernels.problem import Array, Table
from mmdp.objective import Mean, Objective
from mmdp.solution import Solution

if TYPE_CHECKING:
    from mmdp.model import MMDP


@dataclass(frozen=True)
class Ask:
    """A question to the searches.

    ``error`` (M,) is the most by which the return of a model, or its optimum, may differ from that
    on the plan, besides rounding there; None if neither does.
    """

    plan: Plan
    method: str
    time: Stopwatch
    objective: Objective = Mean()  # noqa: RUF009 (frozen)
    endless: bool = False
    policy: Table | None = None  # a good one
    target: float = -math.inf  # the value of a good one
    seed: int = 0
    callback: Callback | None = None
    error: Array | None = None


def read_incumbent(
    given: Any, model: MMDP, steps: int, *, endless: bool = False
) -> tuple[Table | None, float]:
    """A user's Solution, MarkovPolicy or number as a table, or as a value; tables need an end."""
    policy = getattr(given, "markov", None)
    if isinstance(given, Solution) and (endless or policy is None):
        given, policy = given.value, None
    if policy is not None:
        policy.check(model, steps)
        return policy.table_for(model), -math.inf
    if given is None:
        return None, -math.inf
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError("incumbent must be a Solution, a MarkovPolicy or a number")
    if not math.isfinite(given):
        raise InputError(f"the incumbent's value must be finite, not {given}")
    return None, float(given)
