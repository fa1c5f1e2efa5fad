"""First-order ascent on the return; the steps are in :mod:`mmdp.search.gradient`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from mmdp.arguments import NonNegativeFloat, checked
from mmdp.clock import ending
from mmdp.errors import InputError
from mmdp.kernels.problem import Table
from mmdp.methods.base import Context, Method, Outcome
from mmdp.policy import Planner
from mmdp.search import gradient
from mmdp.search.context import early
from mmdp.search.starts import first
from mmdp.search.tables import Tables
from mmdp.solution import Status
from mmdp.validate import check_whole


@dataclass(frozen=True)
class _Ascent(Method):
    """Options shared by the gradient methods.

    Parameters
    ----------
    init
        ``"uniform"``, ``"wsu"``, ``"mvp"``, ``"random"`` or a policy; a deterministic start
        is mixed with a little of the uniform policy so that every action can grow.
    max_iterations
        Cap on accepted steps.
    tol
        Stop when the stationarity measure sum_{t,s} gamma^t max_a (G - sum_a pi G) is at most
        this share of what is at stake, the range of the rewards times sum_t gamma^t.
    round
        Return a deterministic policy; its return is never lower.
    """

    init: str | Planner = "uniform"
    max_iterations: int = 200
    tol: NonNegativeFloat = 1e-6
    round: bool = True

    resumes: ClassVar[bool] = True
    least_passes: ClassVar[float] = 600  # about three per step of the line search

    def __post_init__(self) -> None:
        check_whole(self.max_iterations, "max_iterations")
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")

    def run(self, context: Context) -> Outcome:
        start = first(Tables(context), self.init, context.seed or 0).point
        table: Table = context.wsu()[0] if start is None else start
        point = gradient.Iterate.at(context, gradient.start_logits(context, table))
        direction = gradient.DIRECTIONS[self.name]
        points, most = gradient.climb(context, point, direction, self.tol), self.max_iterations
        with ending() as end:
            for point in islice(points, most + 1):
                context.record(point.policy, point.value)
        steps = context.iterations
        status = Status.ITERATION_LIMIT if steps == most else Status.COMPLETED
        details = {
            "stationarity": point.stationarity(gradient.discounts_of(context)),
            "randomised_value": point.value,
        }
        table = point.policy
        if self.round:
            table, returns = context.weighted(point.b)
            details["rounded_value"] = context.mean(returns)
        return Outcome(table, early(end) if end.stop else status, steps, details=details)


@checked
@dataclass(frozen=True)
class Gradient(_Ascent):
    """Natural policy gradient: pi proportional to pi * exp(eta * A), A the mean advantage.

    A_t(s, a) = G_t(s, a) / b_t(s) - sum_a pi G / b, b_t(s) = sum_m b_{t,m}(s).

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> round(mmdp.solve(two, 2, "gradient").value, 6)
    7.0
    """

    name: ClassVar[str] = "gradient"
    title: ClassVar[str] = "natural policy gradient, exact line search"


@checked
@dataclass(frozen=True)
class Mirror(_Ascent):
    """Mirror ascent with the entropy map: pi proportional to pi * exp(eta * d rho / d pi).

    Without dividing by the state's probability it moves slowly in rarely visited states.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> round(mmdp.solve(two, 2, "mirror").value, 6)
    7.0
    """

    name: ClassVar[str] = "mirror"
    title: ClassVar[str] = "mirror ascent, exact line search"
