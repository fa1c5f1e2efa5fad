"""Stationary policies over an infinite horizon, by exact changes of single states.

With F_m = (I - gamma P_m)^-1, values v_m = F_m r_m and visits d_m = mu F_m of the current policy,
taking action a in state s instead moves the return of model m by exactly

    d_m(s) (q_m(s, a) - v_m(s)) / (1 - gamma (p_m(.|s, a) - p_m(.|s, pi)) x_m),   x_m = F_m e_s,

and F_m by a matrix of rank one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mmdp.errors import InputError
from mmdp.kernels.compiling import clock
from mmdp.kernels.endless import Endless, Factorised
from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Problem, Table
from mmdp.methods import starts as start
from mmdp.methods.base import Context, Outcome, Stop
from mmdp.methods.objective_ascent import ASCENTS, Search
from mmdp.objective import Mean, Objective
from mmdp.policy import StationaryPolicy

if TYPE_CHECKING:
    from mmdp.methods.cadp import CADP

MOST = 32  # starts at most
BUDGET = 0.3  # seconds that all starts may take together, estimated by the rate below
RATE = 2e8  # multiply-adds per second
ROUNDS = 5  # that one ascent takes
BESIDE = 5.0  # seconds that a policy of time and state beside it may take, estimated
AT_ONCE = 16  # decisions between two looks at the clock
SINGLES = 20  # single changes that are tried before a search by gradient ends


def ascend(context: Context, options: CADP) -> Outcome:
    """The best end of several starts, with a policy of time and state beside it."""
    if options.polish:
        raise InputError("polish is not for stationary policies; leave it out")
    x = Endless.of(context.problem, context.check_time)
    mean = context.objective == Mean()
    count = affordable(x.problem) if mean else max(1, affordable(x.problem) // ASCENTS)
    count = count if options.starts == "auto" else options.starts
    tol = options.tol * x.problem.stakes(math.inf)
    search = StationarySearch(context, tol, options.max_iterations, x)
    names, ends = [], []
    for name, actions in starts(context, x, options.init, count):
        for end in [search.up(actions)] if mean else search.ends(actions):
            names.append(name)
            ends.append(end)
    outcome, _ = start.best_of(ends, names, "single states", x.rounding())
    return _beside(context, x, outcome) if mean else outcome


@dataclass(frozen=True)
class StationarySearch(Search):
    """The search of an objective over stationary policies; the mean leads up to it."""

    x: Endless

    def up(self, start: Table) -> Ascent:
        return self._climb(self.context, start)

    def aside(self, start: Table, objective: Objective) -> Table:
        return self._climb(self.context.quiet(objective=objective), start).policy

    def mean(self, start: Table, weights: Array) -> Table:
        return self._climb(self.context.quiet(weights=weights), start).policy

    def rungs(self) -> list[Objective]:
        return [Mean(), *super().rungs()]

    def _climb(self, context: Context, start: Table) -> Ascent:
        return climb(context, self.x, start, self.max_sweeps, self.tol)


def climb(
    context: Context, x: Endless, actions: IntArray, most: int = 1000, tol: float = 0.0
) -> Ascent:
    """The end of an ascent from these actions (S,)."""
    search = _by_single_states if isinstance(x, Factorised) else _by_gradient
    return search(context, x, actions, most, tol)


def affordable(problem: Problem) -> int:
    """How many starts a problem of this size gets."""
    x = problem
    one = ROUNDS * x.n_models * x.n_states**2 * (x.n_states + x.n_actions) / RATE
    return int(np.clip(BUDGET / one, 1, MOST))


def starts(
    context: Context, x: Endless, init: object, count: int
) -> Iterator[tuple[str, IntArray]]:
    """``init``, then the other starts in order, then optima of single models and random policies.

    In order: the first row of WSU's policy over a long horizon, the average model's optimum, and
    what is best on average if the model becomes known after one step.
    """
    own, open_ = functools.cache(x.own), context.problem.allowed[0]

    def average_model() -> IntArray:
        return Endless.of(context.model.mean_model().problem, x.check_time).own().actions[0]

    def next_known() -> IntArray:
        q = np.tensordot(context.problem.weights, x.q(own().values), 1)
        return np.where(open_, q, -np.inf).argmax(axis=1).astype(np.int32)

    made: dict[str, Callable[[], IntArray]] = {
        "wsu": lambda: _wsu(context), "mvp": average_model, "qmdp": next_known,
    }  # fmt: skip
    if isinstance(init, StationaryPolicy):
        init.check(context.model)
        given = init.actions
        made = {"given": lambda: given, **made}
    elif init == "random":
        made = {}
    elif isinstance(init, str) and init in made:
        made = {str(init): made[str(init)], **made}
    else:
        raise InputError(
            "a stationary search starts from wsu, mvp, qmdp, random or a StationaryPolicy, "
            f"not {init!r}"
        )
    yield from ((name, make()) for name, make in list(made.items())[:count])
    rng = np.random.default_rng(context.seed)
    models = [] if init == "random" else rng.permutation(np.flatnonzero(x.problem.weights)).tolist()
    for nth in range(count - len(made)):
        if nth % 2 == 0 and models:
            m = models.pop()
            yield f"model {context.model.model_labels[m]}", own().actions[m]
        else:
            scores = np.where(open_, rng.random(open_.shape), -1.0)
            yield "random", scores.argmax(axis=1).astype(np.int32)


def _wsu(context: Context) -> IntArray:
    """(S,) the first row of WSU's policy over as many decisions as half of the time allows."""
    x, T = context.problem, context.horizon
    until = math.inf if context.deadline is None else (clock() + context.deadline) / 2
    steps = min(AT_ONCE, T)
    for _ in range(-(-T // steps)):
        found = context.kernel.backward(x, steps, "weighted", weights=x.prior_weights())
        x = x._replace(terminal=found.first)
        if clock() > until:
            break
    assert found.actions is not None
    return found.actions[0]


# ---------------------------------------------------------------------- exact single changes
def _by_single_states(
    context: Context, x: Endless, actions: IntArray, most: int, tol: float = 0.0
) -> Ascent:
    """Rounds over all states, most visited first, until no single change improves."""
    assert isinstance(x, Factorised)
    policy, trace = actions.copy(), []
    for sweep in range(1, most + 1):
        point = Point(x, policy)
        trace.append(context.worth(point.rho))
        context.record(policy.copy(), trace[-1])
        if tol and len(trace) > 1 and trace[-1] - trace[-2] <= tol:
            return Ascent(policy, point.rho, trace[-1], trace, sweep, "tolerance")
        visited = context.problem.weights @ point.d
        improved = False
        for s in np.argsort(-visited, kind="stable"):
            improved |= point.improve(int(s), context)
            try:
                context.check_time()
            except Stop:
                context.record(policy.copy(), context.worth(point.rho))
                raise
        if not improved:
            return Ascent(policy, point.rho, trace[-1], trace, sweep, "maximum")
    rho = x.returns(policy)
    return Ascent(policy, rho, context.worth(rho), [*trace, context.worth(rho)], most, "limit")


class Point:
    """A policy with its F, v, d and returns rho; it is changed in place, one state at a time."""

    def __init__(self, x: Factorised, policy: IntArray) -> None:
        self.x, self.policy = x, policy
        self.F = x.inverse(policy)
        r = x.r[:, np.arange(len(policy)), policy]
        self.v = np.matmul(self.F, r[:, :, None])[:, :, 0]
        self.d = np.matmul(x.problem.initial, self.F)
        self.rho = self.v @ x.problem.initial
        self.size = float((self.d * np.abs(r)).sum(axis=1).max())  # of what rho sums up

    def improve(self, s: int, context: Context) -> bool:
        """Take the best action in state s; whether it is another one."""
        gamma, P = self.x.problem.discount, self.x.P[:, s]
        q = self.x.r[:, s] + gamma * np.matmul(P, self.v[:, :, None])[:, :, 0]
        delta = P - P[:, [self.policy[s]]]
        turn = 1.0 - gamma * np.matmul(delta, self.F[:, :, s, None])[:, :, 0]
        step = (q - self.v[:, [s]]) / turn  # (M, A): how far v moves along x_m
        worth = context.worths(self.rho + (self.d[:, [s]] * step).T)
        worth[~self.x.problem.allowed[0, s]] = -np.inf
        a = int(worth.argmax())
        now = float(worth[self.policy[s]])
        if not worth[a] > now + TIE * self.size:
            return False
        column = self.F[:, :, s].copy()
        row = np.matmul(delta[:, [a]], self.F)[:, 0] * (gamma / turn[:, [a]])
        self.v += column * step[:, [a]]
        self.d += self.d[:, [s]] * row
        self.F += column[:, :, None] * row[:, None, :]
        self.rho = self.v @ self.x.problem.initial
        self.policy[s] = a
        return True


# ---------------------------------------------------------------------- many states
def _by_gradient(
    context: Context, x: Endless, actions: IntArray, most: int, tol: float = 0.0
) -> Ascent:
    """Change the states that gain most by the gradient sum_m lambda_m d_m q_m.

    All at once first, then half of them and so on, until the exact return rises.
    """
    policy, returns = actions.copy(), x.returns(actions)
    trace = [context.worth(returns)]
    context.record(policy, trace[0])
    for sweep in range(1, most + 1):
        found = next(_better(context, x, policy, trace[-1]), None)
        if found is None:
            return Ascent(policy, returns, trace[-1], trace, sweep, "tolerance")
        policy, returns = found
        trace.append(context.worth(returns))
        context.record(policy, trace[-1])
        if tol and trace[-1] - trace[-2] <= tol:
            return Ascent(policy, returns, trace[-1], trace, sweep, "tolerance")
    return Ascent(policy, returns, trace[-1], trace, most, "limit")


def _better(
    context: Context, x: Endless, policy: IntArray, value: float
) -> Iterator[tuple[IntArray, Array]]:
    """Policies with a higher return, and their returns (M,)."""
    v, d = x.values(policy), x.visits(policy)
    F, lam = context.objective, context.problem.weights
    rho = F.counted(v @ context.problem.initial, context.own)
    weights = lam * F.tilt(rho, lam) if F.concave else lam
    G = np.einsum("m,ms,msa->sa", weights, d, x.q(v) - v[:, :, None])
    G = np.where(context.problem.allowed[0], G, -np.inf)
    best = G.argmax(axis=1).astype(np.int32)
    order = np.argsort(-G.max(axis=1), kind="stable")
    r = x.r[:, np.arange(len(policy)), policy]
    tie = TIE * float((d * np.abs(r)).sum(axis=1).max())
    order = order[G.max(axis=1)[order] > tie]
    sizes = [len(order) >> k for k in range(len(order).bit_length())]
    for states in [*(order[:size] for size in sizes), *order[1:SINGLES, None]]:
        context.check_time()
        trial = policy.copy()
        trial[states] = best[states]
        returns = x.returns(trial)
        if context.worth(returns) > value + tie:
            yield trial, returns


# ---------------------------------------------------------------------- the price
def _beside(context: Context, x: Endless, outcome: Outcome) -> Outcome:
    """The outcome with the value of a policy that depends on time for a long while.

    After that it follows the stationary policy, from which its ascent starts: both values are
    exact, and it is never the worse one. So the while may be as short as the time allows.
    """
    problem = context.problem
    affordable = int(BESIDE * start.RATE / (start.PASSES * 2 * problem.work(1)))
    T = max(1, min(context.horizon, affordable))
    after = np.ascontiguousarray(x.values(outcome.policy).T)
    again: Table = np.repeat(outcome.policy[None], T, axis=0)
    try:
        ends = context.kernel.ascend(
            problem._replace(terminal=after), T, [again, None],
            sweeps=start.affordable_sweeps(problem, T), watch=lambda *_: context.check_time(),
        )  # fmt: skip
    except Stop:  # the policy that was asked for is complete
        return outcome
    value = max(end.value for end in ends)
    return replace(outcome, details={**outcome.details, "unrestricted": value, "beside_steps": T})
