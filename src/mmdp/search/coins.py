"""Policies that draw their actions: gradient ascent on the exact value from several starts.

An objective F has the gradient sum_m w_m d rho_m / d pi with w_m = dF / d rho_m. For the mean w are
the weights of the models. The return of a model is linear in what is done at one time and state, so
over a number of decisions a mean gains nothing by drawing. It does if a rule must stay the same for
ever, and other objectives may gain in any case.

Many objectives have kinks, and an ascent would stop there. So it climbs F as it is on average if
every return has an error of sd sigma, first a large one, then less and less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mmdp.kernels.ascent import randomised
from mmdp.kernels.endless import Endless
from mmdp.kernels.problem import Array, Table
from mmdp.search.context import Context, Outcome
from mmdp.search.gradient import climb, discounts_of, slopes, softmax
from mmdp.search.starts import affordable
from mmdp.solution import Status

STEPS, TOL = 60, 1e-9  # of an ascent at one sigma: at most, and the stationarity that is enough
SIGMAS = tuple(0.3 * 6.0**-k for k in range(8))  # shares of the spread of the returns
DRAWS = 32  # errors that are averaged over
MIXED = ("sharp 0.1", "sharp 0.5", "models", "uniform", *(f"random {k}" for k in range(4)))
PASSES = 3  # of one step: returns, b and G
NEGLIGIBLE = 1e-3  # share of what drawing earns, for which fewer actions are drawn
FEWER = 200  # tables that are tried for that at most

Weigh = Callable[[Array], Array]  # w (M,) by returns (M,)


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
class Tables:
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

    def slopes(self, policy: Array, weigh: Weigh) -> tuple[Array, Array, Array]:
        """The returns (M,), d F / d pi up to a number per state, and how often a state is met."""
        rho = self.returns(policy)
        b, G, _ = slopes(self.plan.but(weights=weigh(rho)), self.table(policy))
        gamma = discounts_of(self.context)
        return rho, gamma * G, gamma[:, :, 0] * self.plan.total(b)

    def models(self) -> Array:
        """Each model's own actions, as often as its weight."""
        own = self.plan.backward("own", keep=("actions",)).actions
        assert own is not None
        each = own[..., None] == np.arange(self.allowed.shape[-1])
        return np.einsum("tsma,m->tsa", each, self.context.problem.weights)

    def shares(self, table: Table) -> Array:
        """A table as probabilities."""
        if randomised(table):
            return np.asarray(table)
        taken: Array = np.eye(self.allowed.shape[-1])[table]
        return taken


class Daily(Tables):
    """Policies of the state alone, over a number of decisions: (S, A)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.allowed = self.allowed.all(axis=0)

    def table(self, policy: Array) -> Array:
        return np.repeat(policy[None], self.context.horizon, axis=0)

    def slopes(self, policy: Array, weigh: Weigh) -> tuple[Array, Array, Array]:
        rho, G, mass = super().slopes(policy, weigh)
        return rho, G.sum(axis=0), mass.sum(axis=0)

    def models(self) -> Array:
        found: Array = super().models().mean(axis=0)
        return found

    def shares(self, table: Table) -> Array:
        return super().shares(table[0])


class Rules(Tables):
    """Policies of the state alone, for ever: (S, A)."""

    def __init__(self, context: Context) -> None:
        self.context, self.allowed = context, context.problem.allowed[0]
        self.x = Endless.of(context.problem, context.check_time)

    def returns(self, policy: Array) -> Array:
        return self.x.returns(policy)

    def slopes(self, policy: Array, weigh: Weigh) -> tuple[Array, Array, Array]:
        """sum_m w_m d_m(s) q_m(s, a)."""
        x, v, d = self.x, self.x.values(policy), self.x.visits(policy)
        rho = self.context.problem.returns(v.T)
        w = weigh(rho)[:, None] * d
        return rho, np.einsum("ms,msa->sa", w, x.q(v)), w.sum(axis=0)

    def models(self) -> Array:
        each = self.x.own().actions[..., None] == np.arange(self.allowed.shape[-1])
        return np.einsum("msa,m->sa", each, self.context.problem.weights)


def _ground(context: Context) -> Tables:
    if context.kind.endless:
        return Rules(context)
    return (Tables if context.kind.name == "markov" else Daily)(context)


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
        """(M,) dF / d rho: tilted weights, or differences if F is not concave."""
        if self.F.concave:
            rho = self.F.counted(returns, self.context.own)
            found: Array = self.lam * self.F.tilt(rho + self.errors, self.lam).mean(axis=0)
            return found
        step = self.h * np.eye(len(self.lam))
        up, down = (self.context.worths(returns + sign * step) for sign in (1.0, -1.0))
        return (up - down) / (2 * self.h)


@dataclass(frozen=True)
class Toss:
    """A point of an ascent: ``value`` is that of the blurred objective, ``worth`` the exact one."""

    ground: Tables
    goal: Blurred
    logits: Array
    policy: Array
    value: float
    worth: float
    advantage: Array
    mass: Array

    @classmethod
    def at(cls, ground: Tables, goal: Blurred, logits: Array) -> Toss:
        policy = softmax(logits)
        rho, G, mass = ground.slopes(policy, goal.weights)
        advantage = np.where(
            np.isfinite(logits), G - (policy * G).sum(axis=-1, keepdims=True), 0.0
        )
        worth = ground.context.worth(rho)
        return cls(ground, goal, logits, policy, goal.worth(rho), worth, advantage, mass)

    def moved(self, context: Context, logits: Array) -> Toss:
        return self.at(self.ground, self.goal, logits)

    def stationarity(self, discounts: Array) -> float:
        return float(self.advantage.max(axis=-1).sum())


def _uphill(point: Toss, discounts: Array) -> Array:
    """The mean advantage of an action for those who are in its state."""
    mass = np.abs(point.mass)[..., None]
    return np.divide(point.advantage, mass, out=np.zeros_like(point.advantage), where=mass > 0)


def _ascents(context: Context, ground: Tables, start: Array) -> Iterator[Toss]:
    """The points on the way from a start, with less and less error."""
    with np.errstate(divide="ignore"):
        logits = np.log(start)
    rho = ground.returns(start)
    spread = float(np.ptp(rho)) or context.stakes
    for share in (0.0,) if context.objective.linear else SIGMAS:
        point = Toss.at(ground, Blurred(context, share * spread), logits)
        steps = 4 * STEPS if share == 0 else STEPS
        for point in islice(climb(context, point, _uphill, TOL), steps):
            yield point
        logits = point.logits


def _starts(context: Context, ground: Tables, sharp: Table) -> Iterator[Array]:
    """The best policy that draws nothing, mixed with some of the uniform one, and others."""
    x, steps = context.problem, STEPS * PASSES * (1 if context.objective.linear else len(SIGMAS))
    T = 1 if context.kind.endless else context.horizon
    count = affordable(MIXED, lambda name: x.seconds(T, steps))
    uniform = ground.allowed / ground.allowed.sum(axis=-1, keepdims=True)
    rng = np.random.default_rng(context.seed)
    for name in MIXED[:count]:
        what, _, share = name.partition(" ")
        if what == "sharp":
            yield float(share) * uniform + (1 - float(share)) * ground.shares(sharp)
        elif what == "models":
            yield 0.1 * uniform + 0.9 * ground.models()
        elif what == "uniform":
            yield uniform
        else:
            drawn = np.where(ground.allowed, rng.exponential(size=uniform.shape), 0.0)
            yield drawn / drawn.sum(axis=-1, keepdims=True)


def _fewer(context: Context, ground: Tables, policy: Array, least: float) -> Array:
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
