"""Every question becomes one about the mean over a number of decisions.

**No last decision**: many decisions, after which the model is known. Each model then has its own
optimum as terminal value, so no tail is left out, and every number of decisions gives a valid
bound.

**Other objectives**: a monotone F is at most F(rho*), with rho* (M,) the returns of the models' own
optimal policies. A concave one is also at most a tilted mean: for all weights xi of its envelope

    F(rho) <= sum_m lambda_m xi_m rho_m + penalty(xi),

so every bound on the mean with weights lambda xi bounds F. The best xi is found by fictitious play
between xi, which answers the average returns so far, and a policy, which answers the average xi by
CADP. Their averages approach the equilibrium, at which no other weights give a lower bound by much.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mmdp.bounds.ask import Ask
from mmdp.clock import Progress, Stop, clock, ending
from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel, Plan, Problem
from mmdp.kernels.endless import Endless, planning_horizon
from mmdp.kernels.problem import EPS, Array, Table
from mmdp.objective import Objective
from mmdp.solution import Bound

LEAST = 0.1  # least seconds for a search
FEW_PASSES = 20  # for the closed forms and one ascent
ROUNDS = 300  # most rounds of the play
SHARE = 0.25  # of the time for the play
CLOSE = 1e-9  # relative distance between both players at which it ends


# ---------------------------------------------------------------------- no last decision
def steps_that_fit(problem: Problem, seconds: float) -> int:
    """How many decisions before the model is known: as many as half the time has passes for.

    A rule by size, not by the clock.
    """
    fitting = int(max(seconds / 2, LEAST) / problem.seconds(1, 4 * FEW_PASSES))
    return max(1, min(planning_horizon(problem), fitting))


def ended(ask: Ask) -> Ask:
    """The question with the models' own optima as terminal values, in half of the time."""
    began, late = clock(), False

    def check_time() -> None:
        nonlocal late
        late = clock() > (began + ask.time.deadline) / 2
        if late:
            raise Stop

    x = Endless.of(ask.plan.problem, check_time)
    own = x.own()
    known = np.ascontiguousarray((own.values + own.above[:, None]).T)
    # the optima are then known from above only, and a regret needs the true ones
    method = "oracle" if late and ask.objective.regret else ask.method
    return replace(
        ask, plan=ask.plan.but(terminal=known), method=method, error=x.roundings(),
        time=ask.time.at_least(LEAST),
    )  # fmt: skip


# ---------------------------------------------------------------------- objectives
def check_bounded(objective: Objective, method: str = "best") -> None:
    """Refuse an objective that no bound, or not this one, is known for."""
    if objective.monotone is None:
        raise InputError(
            f"a bound on {objective} holds only if it is monotone; say mmdp.Custom(f, "
            "monotone=True) if no value falls when a return rises"
        )
    if not objective.monotone:
        raise InputError(
            f"no bound is known for {objective}, which is not monotone; solve without certify"
        )
    if not objective.concave and method not in ("best", "oracle"):
        raise InputError(
            f"{objective} is not concave, so {method} does not bound it",
            [Remedy("method", "oracle", do="use")],
        )


@dataclass(frozen=True)
class Tilted:
    """A question about a mean: with ``offset`` added, its bounds are bounds on the objective.

    ``most`` is F(rho*), a bound too; if it is the only one, ``ask`` is None.
    """

    objective: Objective
    ask: Ask | None
    offset: float = 0.0
    most: float = math.inf
    details: Mapping[str, Any] = field(default_factory=dict)

    def bound(self, found: Bound | None) -> Bound:
        """The bound on the mean as one on the objective."""
        bounds, details = {}, dict(self.details)
        if found is not None:
            bounds = {key: x + self.offset for key, x in found.details["bounds"].items()}
            details = {**found.details, **details}
            found = replace(found, value=found.value + self.offset)
        if self.most < math.inf:
            bounds["oracle"] = self.most
        if found is None or self.most <= found.value:
            found = Bound(self.most, "oracle", "history")
        return replace(found, details={**details, "bounds": bounds}, objective=self.objective)

    def lifted(self, progress: Progress) -> Progress:
        """Progress of a search on the mean, as progress on the objective."""
        best = self.details.get("incumbent", progress.best)
        most = min(self.most, progress.bound + self.offset)
        return progress._replace(value=best, best=best, bound=most)


def tilted(ask: Ask, kernel: Kernel) -> Tilted:
    """The question about the mean; the kernel lays out the models that its weights leave."""
    F, plan, x = ask.objective, ask.plan, ask.plan.problem
    error = np.zeros(x.n_models) if ask.error is None else ask.error
    if F.linear:
        return Tilted(F, ask, float(x.weights @ error))
    own = plan.returns(plan.backward("own").first)
    slack = 4 * x.roundings(plan.horizon) + error  # of the returns, and of F
    # no return is above rho*, so a regret needs no slack for the passes
    highest = error if F.regret else own + slack
    most = float(F.value(highest, x.weights))
    most += 4 * EPS * abs(most)  # of F itself
    if ask.method == "oracle" or not F.concave:
        return Tilted(F, None, most=most)
    play = Play(plan, F, own)
    with ending(answered=True) as end:
        play.run(ask.policy, clock() + SHARE * ask.time.left)
    if end.interrupted:
        return Tilted(F, None, most=most, details={"interrupted": True})
    weights = x.weights * play.xi
    offset = F.penalty(play.xi, x.weights) + float(weights @ slack)
    if F.regret:
        offset -= float(weights @ own)
    asked = replace(
        ask, plan=_of_some(plan, weights, kernel), policy=play.policy, target=-math.inf,
        time=ask.time.at_least(LEAST),
    )  # fmt: skip
    details = {"incumbent": play.best, "weights": weights, "rounds": play.rounds}
    return Tilted(F, asked, offset, most, details)


def _of_some(plan: Plan, weights: Array, kernel: Kernel) -> Plan:
    """The plan with other weights; models without one are left out: each costs time.

    They stay if a model with a weight may turn into them.
    """
    some, share = np.flatnonzero(weights > 0), weights / weights.sum()
    if len(some) == len(weights) or not plan.apart:
        return plan.but(weights=share)
    problem = plan.problem.some(some)._replace(weights=share[some])
    return kernel.plan(problem, plan.horizon)


class Play:
    """Fictitious play: ``xi`` (M,) are the weights found, ``best`` the most that F reached."""

    def __init__(self, plan: Plan, objective: Objective, own: Array) -> None:
        self.plan, self.problem = plan, plan.problem
        self.objective, self.own = objective, own
        self.policy: Table | None = None
        self.best, self.rounds = -np.inf, 0

    def run(self, policy: Table | None, until: float) -> None:
        """Rounds from a policy (None: the mean's) until both players agree or the time is up."""
        F, lam = self.objective, self.problem.weights
        self.policy, self.xi = policy, np.ones_like(lam)
        rho = self._answer(self.xi, until) if policy is None else self._rho(policy)
        self.xi = average = F.tilt(rho, lam)
        least, most = float(F.value(rho, lam)), np.inf
        for k in range(2, ROUNDS):
            answer = self._answer(average, until)
            self.rounds = k
            tilted = float((lam * average) @ answer) + F.penalty(average, lam)
            if tilted < most:
                most, self.xi = tilted, average
            rho = rho + (answer - rho) / k
            least = max(least, float(F.value(rho, lam)))
            # with the tilted weights: a model that does not count may have returns of another scale
            if most - least <= CLOSE * float((lam * self.xi) @ np.abs(rho)) or clock() > until:
                return
            average = average + (F.tilt(rho, lam) - average) / k

    def _answer(self, xi: Array, until: float) -> Array:
        """(M,) rho of CADP's policy for the weights lambda xi, or of the best when time is up."""

        def watch(policy: Table, value: float) -> None:
            self.policy = policy
            if clock() > until:
                raise Stop

        plan = self.plan.but(weights=self.problem.weights * xi)
        with contextlib.suppress(Stop):
            plan.ascend([self.policy], watch=watch)
        assert self.policy is not None
        return self._rho(self.policy)

    def _rho(self, policy: Table) -> Array:
        first = self.plan.backward("given", policy=policy).first
        rho = self.objective.counted(self.plan.returns(first), lambda: self.own)
        self.best = max(self.best, float(self.objective.value(rho, self.problem.weights)))
        return rho
