"""CADP for objectives other than the mean: exact coordinate ascent on any F(rho).

Taking action a in state s at time t moves the return of every model by exactly

    gamma^t d_{t,m}(s) (q_{t,m}(s, a) - q_{t,m}(s, pi_t(s))),   d = P_m[s at t],

so a backward pass can try every single change of the policy on F itself. F never falls, and the
ascent ends when no single change improves it. Single changes can stop at the kinks of F (CVaR,
worst case). So a search also goes down a ladder of wider tails, and restarts from the policy that
CADP finds for the tilted weights lambda xi of its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mmdp.bounds import closed
from mmdp.errors import InputError
from mmdp.kernels import ascent
from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Problem, Table, Watch, at
from mmdp.methods import starts as start
from mmdp.methods.base import Context, Outcome
from mmdp.objective import Objective

if TYPE_CHECKING:
    from mmdp.methods.cadp import CADP

TILTS = 8  # rounds of tilted weights at most
ASCENTS = 4  # from one start, in the time of as many starts for the mean


def ascend(context: Context, options: CADP, search: TableSearch | None = None) -> Outcome:
    """From CADP's policy for the mean, or from a given one, up the objective itself."""
    if options.polish:
        raise InputError("polish is for the mean; leave it out, or take more starts")
    tol = options.tol * context.problem.stakes(context.horizon)
    search = search or TableSearch(context, tol, options.max_iterations)
    count = options.n_starts(context.problem, context.horizon)
    if options.starts == "auto":
        count = max(1, count // ASCENTS)
    names: list[str] = []
    ends: list[Ascent] = []
    for each in start.in_order(context, options.init, count, ("wsu", "mvp")):
        for end in search.ends(search.opened(each.table)):
            names.append(each.name)
            ends.append(end)
    rounding = closed.rounding(context.problem, context.horizon)
    return start.best_of(ends, names, "backward", rounding)[0]


@dataclass
class Sweeper:
    """Sweeps that improve an objective (see :class:`mmdp.kernels.ascent.Climber`)."""

    context: Context
    objective: Objective

    def __post_init__(self) -> None:
        self.problem = self.context.problem
        self.alone = self.problem._replace(weights=np.ones(self.problem.n_models))  # b is d

    def open(self, start: Table | None) -> tuple[Table, Array]:
        assert start is not None
        self.returns = self.context.returns(start)
        return start, self.returns

    def worth(self, returns: Array) -> float:
        """F of the returns (M,)."""
        return self.context.worth(returns, self.objective)

    def sweep(self, policy: Table) -> tuple[IntArray, Array]:
        x, T = self.problem, self.context.horizon
        d = self.context.kernel.forward(self.alone, T, policy)
        actions: IntArray = np.array(policy, np.int32)
        rho = self.objective.counted(self.returns, self.context.own)
        states, v = np.arange(x.n_states), x.terminal
        for t in reversed(range(T)):
            self.context.check_time()  # a sweep takes long beside a pass
            q = self._q(t, v, actions[t])
            rho = self._improve(x.discount**t * d[t], q, actions[t], rho)
            v = q[states, actions[t]]
        self.returns = x.returns(v)
        return actions, self.returns

    def _q(self, t: int, v: Array, actions: IntArray) -> Array:
        """(S, A, M) q at t if v (S, M) follows; an action that is not allowed changes nothing."""
        step = at_time(self.problem, t)._replace(terminal=v)
        found = self.context.kernel.backward(step, 1, "given", policy=actions[None], keep=("q",))
        assert found.q is not None
        s, a = np.nonzero(~step.allowed[0])
        found.q[0, s, a] = found.q[0, s, actions[s]]
        return found.q[0]

    def _improve(self, d: Array, q: Array, actions: IntArray, rho: Array) -> Array:
        """Take the best action in one state after the other; rho (M,) of the new policy.

        States come in the order of their weight. A change is taken if it improves F.
        """
        lam, F = self.problem.weights, self.objective.value
        states = np.argsort(-(d @ lam), kind="stable")
        change = q[states] - q[states, actions[states]][:, None]
        change *= d[states][:, None]
        current, tie, first = float(F(rho, lam)), self.tie(rho), 0
        while first < len(states):
            hopeful = self._most(rho, change[first:]) > current + tie
            for k in first + np.flatnonzero(hopeful):
                candidates = rho + change[k]
                values = F(candidates, lam)
                best = int(values.argmax())
                if values[best] > current + tie:
                    actions[states[k]], rho, current = best, candidates[best], float(values[best])
                    first = int(k) + 1
                    break
            else:
                break
        return rho

    def tie(self, rho: Array) -> float:
        """The difference in F that is rounding: what a share of each return makes of it.

        So models that do not count in F do not set its scale.
        """
        F, lam, error = self.objective.value, self.problem.weights, TIE * np.abs(rho)
        return float(np.abs(F(np.stack([rho + error, rho - error]), lam) - F(rho, lam)).max())

    def _most(self, rho: Array, change: Array) -> Array:
        """(n,) the most that F can be after one of the changes (n, A, M).

        If F is concave, F(rho + x) <= sum_m lambda_m xi_m (rho_m + x_m) + penalty(xi) with the xi
        of rho: a tilted mean bounds F, and most changes need no look at F itself.
        """
        lam, F = self.problem.weights, self.objective
        if not F.concave:
            return F.value(rho + change, lam).max(axis=1)
        xi = F.tilt(rho, lam)
        return (lam * xi) @ rho + F.penalty(xi, lam) + (change @ (lam * xi)).max(axis=1)


def at_time(problem: Problem, t: int) -> Problem:
    """The problem of time t alone."""
    x = problem
    return x._replace(p=at(x.p, t)[None], r=at(x.r, t)[None], allowed=at(x.allowed, t)[None])


@dataclass(frozen=True)
class Search:
    """Ascents of one solve: from a policy down the ladder, and round after round of tilts.

    Only ascents ``up`` the objective itself are recorded.
    """

    context: Context
    tol: float
    max_sweeps: int

    def up(self, start: Table) -> Ascent:
        """The end of an ascent on the objective."""
        raise NotImplementedError

    def aside(self, start: Table, objective: Objective) -> Table:
        """The end of an ascent on another objective."""
        raise NotImplementedError

    def mean(self, start: Table, weights: Array) -> Table:
        """The end of an ascent on the mean with these weights of the models."""
        raise NotImplementedError

    def rungs(self) -> list[Objective]:
        """Objectives that lead up to this one, the easiest first."""
        return self.context.objective.ladder(self.context.problem.weights)

    def ends(self, start: Table) -> Iterator[Ascent]:
        """Local optima of the objective: from the start, from the ladder's end, from tilts."""
        objective, lam = self.context.objective, self.context.problem.weights
        best = self.up(start)
        yield best
        policy, rungs = start, self.rungs()
        for rung in rungs:
            policy = self.aside(policy, rung)
        if rungs:
            found = self.up(policy)
            yield found
            best = max(best, found, key=lambda end: end.value)
        for _ in range(TILTS if objective.concave else 0):
            rho = objective.counted(best.returns, self.context.own)
            found = self.up(self.mean(best.policy, lam * objective.tilt(rho, lam)))
            yield found
            if not found.value > best.value:
                return
            best = found


class TableSearch(Search):
    """The search over policies of time and state, by sweeps."""

    sweeper: ClassVar[type[Sweeper]] = Sweeper

    def opened(self, start: Table | None) -> Table:
        """The policy to begin with: a deterministic start itself, else CADP's end from it."""
        if start is None or start.ndim == 3:
            return self.mean(start, self.context.problem.weights)
        return start

    def climb(self, objective: Objective, start: Table, watch: Watch) -> Ascent:
        sweeper = self.sweeper(self.context, objective)
        return ascent.ascend(sweeper, start, self.tol, self.max_sweeps, watch, sweeper.worth)

    def up(self, start: Table) -> Ascent:
        return self.climb(self.context.objective, start, self.context.record)

    def aside(self, start: Table, objective: Objective) -> Table:
        return self.climb(objective, start, self._look).policy

    def mean(self, start: Table | None, weights: Array) -> Table:
        x = self.context.problem._replace(weights=weights)
        return self.context.kernel.ascend(
            x, self.context.horizon, [start], max_sweeps=self.max_sweeps, watch=self._look
        )[0].policy

    def _look(self, policy: Table, value: float) -> None:
        """Watch the clock; the first policy of all is recorded, so that there is an answer."""
        if self.context.best_policy is None:
            self.context.record(policy, self.context.worth(self.context.returns(policy)))
        self.context.check_time()
