"""CADP: coordinate ascent and dynamic programming (algorithms 1 and 2 of the paper).

The search is in :mod:`mmdp.search.ascent`, the loop over sweeps in :mod:`mmdp.kernels.ascent`, and
the passes of a sweep in plain numpy in :mod:`mmdp.kernels.numpy.passes`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mmdp.arguments import NonNegativeFloat, checked
from mmdp.errors import InputError
from mmdp.kernels.problem import Problem, Sweeps
from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.methods.wsu import WSU
from mmdp.policy import Memory, Planner, Stationary
from mmdp.search import charts
from mmdp.search.ascent import Search
from mmdp.search.coins import tossed
from mmdp.search.kinds import landscape_of
from mmdp.search.landscape import Landscape
from mmdp.search.polish import check_polish, polish
from mmdp.search.price import priced
from mmdp.search.starts import Count, affordable, padded
from mmdp.search.tables import Tables
from mmdp.search.trees import Trees, grow
from mmdp.solution import Status
from mmdp.validate import check_whole


@checked
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
        Number of starts; the best result is returned. In this order: ``init``, WSU, MVP, mirror,
        gradient (as above), then in turn a single model's optimum (models drawn by weight, each
        once) and a random policy. ``"auto"`` takes up to 16, as many as fit into about a second,
        and at least two unless one ascent takes over ten seconds. It goes by the size of the
        problem, not by the clock. With another ``init`` or the paper's sweeps it takes one. With
        several, ``details`` has ``start_values``, ``starts`` (their names), ``best_start`` and
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

    init: str | Planner = "wsu"
    starts: Count = "auto"
    tol: NonNegativeFloat = 0.0
    max_iterations: int = 1000
    sweeps: Sweeps = "two-way"
    polish: float = 0.0

    name: ClassVar[str] = "cadp"
    title: ClassVar[str] = "coordinate ascent and dynamic programming"
    proves: ClassVar[Status | None] = Status.LOCAL_OPTIMUM
    resumes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.starts != "auto":
            check_whole(self.starts, "starts")
        check_whole(self.max_iterations, "max_iterations")
        if self.sweeps not in ("paper", "two-way"):
            raise InputError(f'sweeps must be "paper" or "two-way", not {self.sweeps!r}')
        if not self.tol >= 0:
            raise InputError(f"tol must be at least 0, not {self.tol}")
        check_polish(self.polish)

    def lacks(self, question: Question) -> str | None:
        kind, goal = question.kind, question.objective
        if kind.learns:
            return "its policies keep no belief"
        if self.polish:
            single = question.not_mean() or question.not_mask() or question.not_ending()
            return (
                "polish is for the mean and single actions"
                if single
                else question.not_whole("polish")
            )
        if not goal.linear:
            return question.not_whole(f"objective {goal}")
        if kind.restricted or not kind.masks:
            return question.not_whole(f"a {kind.name} policy")
        return None

    def bytes_held(self, question: Question) -> int:
        whole, steps = super().bytes_held(question), question.steps
        if question.objective.linear:  # weights in windows, if those of all times do not fit
            return whole * min(steps, 2 * math.isqrt(steps) + 2) // steps
        whole *= question.model.problem.copies_by_start  # for single changes
        drawn = question.kind.randomised and not question.endless  # by action too
        return whole * (question.model.n_actions if drawn else 1)

    def count(self, problem: Problem) -> Count:
        """How many starts there are: one if more cannot help, or were not what the paper does."""
        alone = problem.n_models == 1 or self.init != "wsu" or self.sweeps == "paper"
        return 1 if self.starts == "auto" and alone else self.starts

    def passes(self, problem: Problem, horizon: int) -> float:
        count, passes = self.count(problem), Tables.passes
        if count == "auto":
            count = affordable(Tables.starts, lambda name: problem.seconds(horizon, passes(name)))
        return sum(map(passes, padded(Tables.starts, count)))

    def run(self, context: Context) -> Outcome:
        if isinstance(context.kind, Memory):
            markov = self._found(context, Tables(context, self.sweeps))
            limits: Any = {"tol": self.tol, "max_sweeps": self.max_iterations}
            return charts.grow(context, markov, **limits) if context.kind.nodes > 1 else markov
        landscape = landscape_of(context, self.sweeps)
        rule = type(context.kind) is Stationary and context.kind.endless
        if rule or not context.kind.restricted:
            found = self._found(context, landscape)
            return priced(context, found) if rule else found

        @functools.cache
        def unrestricted() -> Outcome:
            """What CADP finds without the restriction: a start, and what to compare with."""
            inner = context.free()
            found = self._found(inner, landscape_of(inner, self.sweeps))
            context.details["unrestricted"] = context.worth(found.returns_known)
            return found

        if isinstance(landscape, Trees):
            tol = self.tol * context.stakes
            search = Search(landscape, self.init, tol=tol, max_sweeps=self.max_iterations)
            found = grow(search, unrestricted)
            table = found.but(policy=found.policy.table)
            return priced(context, table, unrestricted).but(policy=found.policy)
        found = self._found(context, landscape, unrestricted)
        return priced(context, found, unrestricted)

    def _found(
        self, context: Context, landscape: Landscape, free: Callable[[], Outcome] | None = None
    ) -> Outcome:
        """The best end of a search over the landscape; polished if that was asked for."""
        count, finite = self.count(context.problem), not context.kind.endless
        plain = finite and context.objective.linear and not context.kind.restricted
        if context.problem.n_models == 1 == count and self.init == "wsu" and plain:
            # WSU's pass over one model is backward induction: there is nothing left to improve
            details = {"sweeps": 1, "sweeps_taken": "none"}
            return WSU().run(context).but(status=Status.OPTIMAL, details=details)
        tol = self.tol * context.stakes
        outcome = Search(landscape, self.init, count, tol, self.max_iterations, free).run()
        if context.kind.randomised:
            return tossed(context, outcome)
        return self._polished(context, outcome) if self.polish else outcome

    def _polished(self, context: Context, outcome: Outcome) -> Outcome:
        before = context.mean(outcome.returns_known)
        policy, value = polish(context, outcome.policy, seconds=self.polish)
        details = {**outcome.details, "polished": max(value - before, 0.0)}
        if not value > before:
            return outcome.but(details=details)
        trace = [*(outcome.trace or []), value]
        returns = context.returns(policy)
        return outcome.but(policy=policy, returns=returns, trace=trace, details=details)
