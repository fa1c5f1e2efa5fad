"""CADP: coordinate ascent and dynamic programming (algorithms 1 and 2 of the paper).

The algorithm itself is :meth:`mmdp.kernels.problem.Kernel.ascend`: the loop is in
:mod:`mmdp.kernels.ascent`, its passes in plain numpy in :mod:`mmdp.kernels.numpy_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from mmdp.bounds import closed
from mmdp.errors import InputError
from mmdp.kernels.problem import Ascent, Problem, Sweeps
from mmdp.methods import memory, objective_ascent, restricted, stationary
from mmdp.methods import starts as start
from mmdp.methods.base import Context, Method, Outcome
from mmdp.methods.polish import check_polish, polish
from mmdp.methods.wsu import WSU
from mmdp.objective import EVERY, Mean
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status
from mmdp.validate import check_whole

# the ascents to other kinds of policy; each takes the context and the options
ASCENTS: dict[str, Callable[[Context, CADP], Outcome]] = {
    "tied": restricted.ascend,
    "monotone": restricted.ascend,
    "fixed": restricted.ascend_inside,
    "memory": memory.grow,
    "stationary": stationary.ascend,
}


@dataclass(frozen=True)
class CADP(Method):
    """Alternate the model weights b of the current policy and a backward pass with them.

    The return never falls. The result is a local maximum: changing the action in a single
    state at a single time does not improve it.

    Parameters
    ----------
    init
        Where to start: ``"wsu"`` (as in the paper), ``"mvp"``, ``"random"``, ``"uniform"``,
        the rounded end of a short ``"mirror"`` or ``"gradient"`` ascent from the uniform policy,
        or a :class:`mmdp.MarkovPolicy`.
    starts
        Number of starts; the best result is returned. In this order: ``init``, WSU, MVP,
        mirror, gradient (as above), then in turn a single model's optimum (models drawn by
        weight, each once) and a random policy. ``"auto"`` takes up to 16, as many as take
        about a tenth of a second together. It goes by the size of the problem, not by the
        clock. With another ``init`` or the paper's sweeps it takes one. With several,
        ``details`` has ``start_values``, ``starts`` (their names), ``best_start`` and
        ``spread`` (min, mean, max).
    tol
        Stop when an iteration gains no more than this share of what is at stake, the range of
        the rewards times sum_t gamma^t; 0 continues to a local maximum.
    max_iterations
        Cap on the iterations of one start.
    sweeps
        ``"paper"``: an iteration is the forward pass for b and the improving backward pass of
        the paper. ``"two-way"``: from the second iteration on the forward pass improves the
        policy too, with q kept from the backward pass. That takes fewer iterations and may end
        in another local maximum. q has T * S * A * M numbers: if they take over 2 GiB, the
        paper's sweeps are used. ``details["sweeps_taken"]`` says which were.
    polish
        Seconds to spend at the end on leaving the local maximum: force another action in one
        state and time, run CADP around it, and release it. The result is never worse;
        ``details["polished"]`` is the gain, often 0.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, mmdp.CADP(init="mvp")).value
    7.0
    """

    init: str | MarkovPolicy = "wsu"
    starts: int | Literal["auto"] = "auto"
    tol: float = 0.0
    max_iterations: int = 1000
    sweeps: Sweeps = "two-way"
    polish: float = 0.0

    name: ClassVar[str] = "cadp"
    title: ClassVar[str] = "coordinate ascent and dynamic programming"
    drifts: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    proves: ClassVar[Status | None] = Status.LOCAL_OPTIMUM
    objectives: ClassVar[tuple[str, ...]] = EVERY
    resumes: ClassVar[bool] = True
    policies: ClassVar[tuple[str, ...]] = ("markov", *ASCENTS)

    def __post_init__(self) -> None:
        if self.starts != "auto":
            check_whole(self.starts, "starts")
        check_whole(self.max_iterations, "max_iterations")
        if self.sweeps not in ("paper", "two-way"):
            raise InputError(f'sweeps must be "paper" or "two-way", not {self.sweeps!r}')
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")
        check_polish(self.polish)

    def n_starts(self, problem: Problem, horizon: int) -> int:
        """How many starts a problem of this size gets."""
        if self.starts != "auto":
            return self.starts
        alone = problem.n_models == 1 or self.init != "wsu" or self.sweeps == "paper"
        return 1 if alone else start.affordable(problem, horizon)

    def passes(self, problem: Problem, horizon: int) -> float:
        return start.passes(self.n_starts(problem, horizon))

    def run(self, context: Context) -> Outcome:
        other = ASCENTS.get(context.kind.name)
        return self.climb(context) if other is None else other(context, self)

    def climb(self, context: Context) -> Outcome:
        """The search over every policy of time and state that ``context.problem`` allows."""
        if context.objective != Mean():
            return objective_ascent.ascend(context, self)
        x, T = context.problem, context.horizon
        count, sweeps = self.n_starts(x, T), start.affordable_sweeps(x, T, self.sweeps)
        if x.n_models == 1 and self.init == "wsu" and count == 1:
            # WSU's pass over one model is backward induction: there is nothing left to improve
            details = {"sweeps": 1, "sweeps_taken": "none"}
            return replace(WSU().run(context), status=Status.OPTIMAL, details=details)
        names: list[str] = []

        def tables() -> Any:
            for each in start.in_order(context, self.init, count):
                names.append(each.name)
                yield each.table

        ends = context.kernel.ascend(
            x, T, tables(), tol=self.tol * x.stakes(T), max_sweeps=self.max_iterations,
            sweeps=sweeps, watch=context.record,
        )  # fmt: skip
        outcome, best = start.best_of(ends, names, sweeps, closed.rounding(x, T))
        return self._polished(context, outcome, best) if self.polish else outcome

    def _polished(self, context: Context, outcome: Outcome, best: Ascent) -> Outcome:
        policy, value = polish(context, best.policy, seconds=self.polish)
        details = {**outcome.details, "polished": max(value - best.value, 0.0)}
        if not value > best.value:
            return replace(outcome, details=details)
        trace = [*best.trace, value]
        return replace(outcome, policy=policy, returns=None, trace=trace, details=details)
