"""Policies that draw their actions: ascent on the exact value from several starts.

The return of a model is linear in what is done at one time and state, so over a number of decisions
a mean gains nothing by drawing. It does if a rule must stay the same, and other objectives F may
gain in any case. With the derivatives J_m = d rho_m / d pi of the returns:

- the mean climbs along its gradient sum_m lambda_m J_m;
- a concave F has kinks, at which a gradient ends. So each step is a linear program: the best F of
  the returns rho + J d, which tilted means bound from above, for d in a box (a trust region);
- any other F climbs as it is on average if every return has an error of sd sigma, less and less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from mmdp.kernels.ascent import randomised
from mmdp.kernels.problem import Array, Table
from mmdp.search.context import Context, Outcome
from mmdp.search.gradient import climb, discounts_of, softmax
from mmdp.search.starts import affordable
from mmdp.solution import Status

STEPS, TOL = 200, 1e-9  # of an ascent at most, and the stationarity that is enough
SIGMAS = (0.3, 0.03, 0.003)  # shares of the spread of the returns
DRAWS = 32  # errors that are averaged over
MIXED = ("sharp 0.1", "models 0.1", "uniform 1", "sharp 0.5", *(f"random {k}" for k in range(4)))
PROGRAMS, CUTS, KEPT = 40, 12, 40  # linear steps, new tilts in one of them, tilts that are kept
WORKING = 0.1  # share of what a linear step promises that it must earn
NARROW = 1e-7  # the smallest box
NEGLIGIBLE = 1e-3  # share of what drawing earns, for which fewer actions are drawn
FEWER = 200  # tables that are tried for that at most


def tossed(context: Context, sharp: Outcome) -> Outcome:
    """The best policy that may draw its actions; ``sharp``, which draws none, if that is as good.

    ``details["tossing"]`` is what drawing earns compared with ``sharp``.
    """
    base = context.worth(sharp.returns_known)
    nothing = sharp.but(details={**sharp.details, "tossing": 0.0})
    if context.objective.linear and context.kind.name == "markov":
        return nothing
    ground, best, value, trace = _ground(context), None, base, [base]
    for start in _starts(context, ground, sharp.policy):
        for point in _ascents(context, ground, start):
            context.details["tossing"] = max(context.best_value, point.worth) - base
            context.record(ground.table(point.policy), point.worth)
            if point.worth > value:
                best, value = point.policy, point.worth
                trace.append(value)
    if best is None or not value - base > 2 * context.rounding(sharp.returns_known):
        return nothing
    best = _fewer(context, ground, best, value - NEGLIGIBLE * (value - base))
    value = context.worth(ground.returns(best))
    for point in _ascents(context, ground, best):  # once more with the actions that are left
        if point.worth > value:
            best, value = point.policy, point.worth
    return Outcome(
        ground.table(best), Status.COMPLETED, len(trace), returns=ground.returns(best),
        trace=[*trace, value], details={**sharp.details, "tossing": value - base},
    )  # fmt: skip


# ---------------------------------------------------------------------- where it climbs
class ByTime:
    """Policies of time and state: (T, S, A)."""

    def __init__(self, context: Context) -> None:
        self.context, self.plan = context, context.plan
        self.allowed = np.broadcast_to(
            context.problem.allowed, (context.horizon, *context.problem.allowed.shape[1:])
        )

    def table(self, policy: Array) -> Array:
        """What a method returns."""
        return policy

    def returns(self, policy: Array) -> Array:
        return self.context.returns(self.table(policy))

    def slopes(self, policy: Array) -> tuple[Array, Array, Array]:
        """The returns (M,), J (..., S, A, M) less its mean per state, and visits (..., S)."""
        plan, table, gamma = self.plan, self.table(policy), discounts_of(self.context)
        d = plan.by_start(lambda each: each.forward(table))
        found = plan.backward("given", policy=table, keep=("q", "values"))
        gain = np.where(np.isfinite(found.q), found.q - found.values[:-1, :, None], 0.0)
        J = np.array([plan.felt(d[t][:, None], x) for t, x in enumerate(gain)])
        mass = np.array([plan.felt(x, np.ones_like(gain[0, :, 0])) for x in d])
        visits = gamma[:, :, 0] * (mass @ plan.problem.weights)
        return plan.returns(found.first), gamma[..., None] * J, visits

    def models(self) -> Array:
        """Each model's own actions, as often as its weight."""
        own = self.plan.backward("own", keep=("actions",)).actions
        each = own[..., None] == np.arange(self.allowed.shape[-1])
        return np.einsum("tsma,m->tsa", each, self.context.problem.weights)

    def shares(self, table: Table) -> Array:
        """A table as probabilities."""
        if randomised(table):
            return np.asarray(table)
        taken: Array = np.eye(self.allowed.shape[-1])[table]
        return taken


class EveryDay(ByTime):
    """Policies of the state alone, over a number of decisions: (S, A)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.allowed = np.logical_and.reduce(self.allowed)

    def table(self, policy: Array) -> Array:
        return np.repeat(policy[None], self.context.horizon, axis=0)

    def slopes(self, policy: Array) -> tuple[Array, Array, Array]:
        rho, J, visits = super().slopes(policy)
        return rho, J.sum(axis=0), visits.sum(axis=0)

    def models(self) -> Array:
        found: Array = super().models().mean(axis=0)
        return found

    def shares(self, table: Table) -> Array:
        return super().shares(table[0])


class ForEver(ByTime):
    """Policies of the state alone, for ever: (S, A)."""

    def __init__(self, context: Context) -> None:
        self.context, self.allowed = context, context.problem.allowed[0]
        self.x = context.endless

    def returns(self, policy: Array) -> Array:
        return self.x.returns(policy)

    def slopes(self, policy: Array) -> tuple[Array, Array, Array]:
        """J = d_m(s) (q_m(s, a) - v_m(s))."""
        x, v, d = self.x, self.x.values(policy), self.x.visits(policy)
        J = np.moveaxis(d[:, :, None] * (x.q(v) - v[:, :, None]), 0, 2)
        problem = self.context.problem
        return problem.returns(v.T), J, problem.weights @ d

    def models(self) -> Array:
        own = self.context.model_optima.actions
        each = own[..., None] == np.arange(self.allowed.shape[-1])
        return np.einsum("msa,m->sa", each, self.context.problem.weights)


def _ground(context: Context) -> ByTime:
    if context.kind.endless:
        return ForEver(context)
    return (ByTime if context.kind.name == "markov" else EveryDay)(context)


# ---------------------------------------------------------------------- ascents
class Blurred:
    """F of returns with errors of sd sigma, on average over draws: a function without kinks."""

    def __init__(self, context: Context, sigma: float) -> None:
        self.context, self.F = context, context.objective
        self.lam = context.problem.weights
        draws = np.random.default_rng(context.seed).normal(size=(DRAWS, len(self.lam)))
        self.errors, self.h = sigma * draws if sigma else np.zeros((1, len(self.lam))), sigma

    def worth(self, returns: Array) -> float:
        return float(self.context.worths(returns + self.errors).mean())

    def weights(self, returns: Array) -> Array:
        """(M,) dF / d rho, by differences."""
        if self.F.linear:
            return self.lam
        step = self.h * np.eye(len(self.lam))
        up, down = (self.context.worths(returns + sign * step) for sign in (1.0, -1.0))
        return (up - down) / (2 * self.h)


@dataclass(frozen=True)
class Toss:
    """A point of an ascent: ``value`` is that of the blurred objective, ``worth`` the exact one."""

    ground: ByTime
    goal: Blurred
    logits: Array
    policy: Array
    value: float
    worth: float
    advantage: Array
    mass: Array

    @classmethod
    def at(cls, ground: ByTime, goal: Blurred, logits: Array) -> Toss:
        policy = softmax(logits)
        rho, J, mass = ground.slopes(policy)
        advantage = np.where(np.isfinite(logits), J @ goal.weights(rho), 0.0)
        worth = ground.context.worth(rho)
        return cls(ground, goal, logits, policy, goal.worth(rho), worth, advantage, mass)

    def moved(self, context: Context, logits: Array) -> Toss:
        return self.at(self.ground, self.goal, logits)

    def stationarity(self, discounts: Array) -> float:
        return float(self.advantage.max(axis=-1).sum())


def _uphill(point: Toss, discounts: Array) -> Array:
    """The mean advantage of an action for those who are in its state."""
    mass = point.mass[..., None]
    return np.divide(point.advantage, mass, out=np.zeros_like(point.advantage), where=mass > 0)


class Found(NamedTuple):
    policy: Array
    worth: float


def _ascents(context: Context, ground: ByTime, start: Array) -> Iterator[Found | Toss]:
    """The points on the way from a start."""
    F, rho = context.objective, ground.returns(start)
    if F.concave and not F.linear:
        return _by_programs(context, ground, start)
    shares = (0.0,) if F.linear else SIGMAS
    return _by_gradient(context, ground, start, [x * float(np.ptp(rho)) for x in shares])


def _by_gradient(
    context: Context, ground: ByTime, start: Array, sigmas: list[float]
) -> Iterator[Toss]:
    """With less and less error."""
    with np.errstate(divide="ignore"):
        logits = np.log(start)
    for sigma in sigmas:
        first = Toss.at(ground, Blurred(context, sigma), logits)
        for point in islice(climb(context, first, _uphill, TOL), STEPS):
            logits = point.logits
            yield point


def _by_programs(context: Context, ground: ByTime, start: Array) -> Iterator[Found]:
    """The box becomes wider after a step that earns what it promised, and narrower otherwise."""
    policy, width, program = start, 1.0, Program(context, ground)
    rho, J, _ = ground.slopes(policy)
    worth = context.worth(rho)
    for _ in range(PROGRAMS):
        yield Found(policy, worth)
        step, promise = program.step(rho, J, policy, width)
        while True:
            if promise <= TOL * abs(worth) or width < NARROW:
                return
            trial = np.maximum(policy + step, 0.0)
            trial /= trial.sum(axis=-1, keepdims=True)
            found = context.worth(ground.returns(trial))
            if found - worth >= WORKING * promise:
                break
            context.check_time()
            width /= 4
            step, promise = program.step(rho, J, policy, width)
        policy, worth, width = trial, found, min(2 * width, 1.0)
        rho, J, _ = ground.slopes(policy)
    yield Found(policy, worth)


class Program:
    """max z: z <= sum_m w_m (rho_m + (J d)_m) + c for tilts (w, c) found so far, d in a box."""

    def __init__(self, context: Context, ground: ByTime) -> None:
        from scipy.sparse import csr_array

        self.context, self.allowed = context, ground.allowed
        self.free = np.flatnonzero(self.allowed)
        n, size = len(self.free), self.allowed.shape[-1]
        places = csr_array((np.ones(n), (self.free // size, range(n))))
        self.sums = csr_array(
            (places.data, places.indices, places.indptr), (places.shape[0], n + 1)
        )
        self.tilts: list[tuple[Array, float]] = []

    def step(self, returns: Array, J: Array, policy: Array, width: float) -> tuple[Array, float]:
        """The step (..., S, A) and how much it adds to F if returns are linear."""
        from scipy.optimize import linprog

        F, lam = self.context.objective, self.context.problem.weights
        rho = F.counted(returns, self.context.own)
        J, pi = J.reshape(-1, len(lam))[self.free], policy.ravel()[self.free]
        box = np.stack([np.maximum(-pi, -width), np.minimum(1 - pi, width)], axis=1)
        limits = np.vstack([box, [[-np.inf, np.inf]]])
        now, x, step = float(F.value(rho, lam)), np.zeros_like(lam), np.zeros(self.allowed.size)
        for _ in range(CUTS):
            xi = F.tilt(rho + x, lam)
            self.tilts = [*self.tilts[-KEPT:], (lam * xi, F.penalty(xi, lam))]
            w, c = (np.array(part) for part in zip(*self.tilts, strict=True))
            found = linprog(  # type: ignore[call-overload]
                np.append(np.zeros(len(pi)), -1.0),
                np.hstack([-w @ J.T, np.ones((len(w), 1))]), w @ rho + c,
                self.sums, np.zeros(self.sums.shape[0]), limits,
            )  # fmt: skip
            if found.x is None:
                break
            d, z = found.x[:-1], found.x[-1]
            x, step[self.free] = d @ J, d
            if z - now <= (1 + WORKING) * (float(F.value(rho + x, lam)) - now):
                break
        return step.reshape(policy.shape), float(F.value(rho + x, lam)) - now


def _starts(context: Context, ground: ByTime, sharp: Table) -> Iterator[Array]:
    """The best policy that draws nothing, mixed with some of the uniform one, and others."""
    T = 1 if context.kind.endless else context.horizon
    count = min(len(MIXED), affordable(MIXED, lambda name: context.problem.seconds(T, STEPS)))
    uniform = ground.allowed / ground.allowed.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng(context.seed)
    for name in MIXED[:count]:
        what, _, share = name.partition(" ")
        if what == "random":
            drawn = np.where(ground.allowed, rng.exponential(size=uniform.shape), 0.0)
            yield drawn / drawn.sum(axis=-1, keepdims=True)
            continue
        near = {"sharp": ground.shares(sharp), "uniform": uniform}
        mixed = near[what] if what in near else ground.models()
        yield float(share) * uniform + (1 - float(share)) * mixed


def _fewer(context: Context, ground: ByTime, policy: Array, least: float) -> Array:
    """The policy with as few draws as keep its value at ``least``: half of the places at once,
    then a quarter and so on, those that are nearly decided first.
    """
    tries = 0

    def good(trial: Array) -> bool:
        nonlocal tries
        tries += 1
        context.check_time()
        return context.worth(ground.returns(trial)) >= least

    kept = np.where(policy < NEGLIGIBLE, 0.0, policy)
    kept /= kept.sum(axis=-1, keepdims=True)
    policy = kept if good(kept) else policy
    shape, rows = policy.shape, policy.reshape(-1, policy.shape[-1])
    open_ = np.flatnonzero(rows.max(axis=1) < 1)
    groups = [open_[np.argsort(-rows[open_].max(axis=1), kind="stable")]]
    while groups and tries < FEWER:
        group = groups.pop()
        trial = rows.copy()
        trial[group] = np.eye(shape[-1])[rows[group].argmax(axis=1)]
        if good(trial.reshape(shape)):
            rows = trial
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return rows.reshape(shape)
