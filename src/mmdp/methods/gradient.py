"""First-order ascent on the return: natural policy gradient and mirror ascent.

Both move the randomised policy in log space, log pi <- log pi + eta * d, with a backtracking
line search on the exact return, and end with a rounding that cannot lose return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmdp.errors import InputError
from mmdp.kernels.problem import Problem, Table
from mmdp.methods.base import Array, Context, Method, Outcome, Stop
from mmdp.methods.initial import start_policy
from mmdp.policy import MarkovPolicy
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

    init: str | MarkovPolicy = "uniform"
    max_iterations: int = 200
    tol: float = 1e-6
    round: bool = True

    drifts: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    least_passes: ClassVar[float] = 600  # about three for each step of its line search

    def __post_init__(self) -> None:
        check_whole(self.max_iterations, "max_iterations")
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")

    def direction(self, point: _Point, discounts: Array) -> Array:
        raise NotImplementedError

    def run(self, context: Context) -> Outcome:
        discounts = _discounts(context)
        point = _Point.at(context, _start_logits(context, self.init))
        point, steps, status = self._climb(context, point, discounts)
        details = {
            "stationarity": point.stationarity(discounts),
            "randomised_value": point.value,
        }
        table: Table = point.policy
        if self.round:
            table, returns = context.weighted(point.b)
            details["rounded_value"] = context.mean(returns)
        return Outcome(table, status, steps, details=details)

    def _climb(
        self, context: Context, point: _Point, discounts: Array
    ) -> tuple[_Point, int, Status]:
        """Steps until stationary, stuck, or out of iterations or time."""
        size, step = None, 0
        enough = self.tol * context.problem.stakes(context.horizon)
        try:
            context.record(point.policy, point.value)
            for step in range(self.max_iterations):
                if point.stationarity(discounts) <= enough:
                    return point, step, Status.COMPLETED
                d = self.direction(point, discounts)
                size = size or 1.0 / float(np.abs(d).max())
                found, size = _line_search(context, point, d, size)
                if found is None:  # no step improves any more: this is as far as rounding allows
                    return point, step, Status.COMPLETED
                point = found
                context.record(point.policy, point.value)
        except Stop:
            return point, step, Status.TIME_LIMIT
        except KeyboardInterrupt:
            return point, step, Status.INTERRUPTED
        return point, self.max_iterations, Status.ITERATION_LIMIT


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

    def direction(self, point: _Point, discounts: Array) -> Array:
        mass = point.mass()[:, :, None]
        return np.divide(point.advantage, mass, out=np.zeros_like(point.advantage), where=mass > 0)


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

    def direction(self, point: _Point, discounts: Array) -> Array:
        result: Array = discounts * point.advantage
        return result


@dataclass(frozen=True)
class _Point:
    """A randomised policy with its value, weights b (T, S, M) and advantage (T, S, A).

    advantage = G - sum_a pi G, 0 if not allowed; subtracting the state's mean from the
    gradient changes neither the exponentiated step nor the optimum.
    """

    logits: Array
    policy: Array
    value: float
    b: Array
    advantage: Array
    problem: Problem

    @classmethod
    def at(cls, context: Context, logits: Array) -> _Point:
        policy = softmax(logits)
        b = context.kernel.forward(context.problem, context.horizon, policy)
        found = context.kernel.backward(
            context.problem, context.horizon, "given", policy=policy, weights=b, keep=("gradient",)
        )
        assert found.gradient is not None
        G = np.where(context.problem.allowed, found.gradient, 0.0)
        advantage = G - (policy * G).sum(axis=2, keepdims=True)
        x = context.problem
        advantage = np.where(x.allowed, advantage, 0.0)
        return cls(logits, policy, context.mean(x.returns(found.first)), b, advantage, x)

    def mass(self) -> Array:
        """(T, S) sum_m b, over the models of all parts."""
        total: Array = self.problem.everywhere(self.b.sum(axis=2)).sum(axis=0)
        return total

    def stationarity(self, discounts: Array) -> float:
        """sum_{t,s} gamma^t max_a advantage: 0 exactly at a stationary policy."""
        return float((discounts[:, :, 0] * self.advantage.max(axis=2)).sum())


def _line_search(
    context: Context, point: _Point, d: Array, size: float
) -> tuple[_Point | None, float]:
    """Shrink the step until the exact return rises; the next step tries twice as far."""
    for _ in range(60):
        trial = _Point.at(context, point.logits + size * d)
        if trial.value > point.value:
            return trial, 2.0 * size
        size *= 0.5
        context.check_time()
    return None, size


def softmax(logits: Array) -> Array:
    """(T, S, A) probabilities; -inf marks actions that are not allowed."""
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    result: Array = weights / weights.sum(axis=2, keepdims=True)
    return result


def _start_logits(context: Context, init: str | MarkovPolicy) -> Array:
    table, _ = start_policy(context, init, context.seed)
    if table.ndim == 2:
        sharp = MarkovPolicy(table, n_actions=context.model.n_actions).probabilities
        table = 0.9 * sharp + 0.1 * MarkovPolicy.uniform(context.model, context.horizon).table
    with np.errstate(divide="ignore"):
        return np.where(context.problem.allowed, np.log(table), -np.inf)


def _discounts(context: Context) -> Array:
    """(T, 1, 1) gamma^t."""
    return context.model.discount ** np.arange(context.horizon)[:, None, None].astype(float)
