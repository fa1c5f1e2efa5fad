"""Rules for every day: stationary policies, most of all over an infinite horizon.

With F_m = (I - gamma P_m)^-1, values v_m = F_m r_m and visits d_m = mu F_m of the current policy,
taking action a in state s instead moves the return of model m by exactly

    d_m(s) (q_m(s, a) - v_m(s)) / (1 - gamma (p_m(.|s, a) - p_m(.|s, pi)) x_m),   x_m = F_m e_s,

and F_m by a matrix of rank one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.clock import Stop, clock, seconds
from mmdp.kernels.endless import Endless, Factorised
from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Sweeps, Table
from mmdp.objective import Objective
from mmdp.search.context import Context
from mmdp.search.gradient import discounts_of, slopes
from mmdp.search.landscape import Changes, Landscape, Slope
from mmdp.search.tables import Tables, soft

Mask = npt.NDArray[np.bool_]

ROUNDS = 33  # rounds of one ascent, counted in plain multiply-adds: linear algebra is slower
AT_ONCE = 16  # decisions between two looks at the clock
SETTLED = 1e-4  # share by which these move values that are near their end
SINGLES = 20  # single changes that are tried before a search by gradient ends
EACH = 500  # single changes over a number of decisions: up to these, all of them are tried


class Rules(Landscape):
    """One action for every state, at all times: points are rows (S,) of actions."""

    starts: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "qmdp")
    sweeps = "single states"

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context)
        self.x = context.endless
        self.allowed: Mask = context.problem.allowed[0]
        self.complete = isinstance(self.x, Factorised)

    # ------------------------------------------------------------ starts
    def start(self, name: str, seed: int) -> IntArray:
        """The first row of WSU's policy over a long horizon, the average model's optimum, or what
        is best on average if the model becomes known after one step.
        """
        context = self.context
        if name == "wsu":
            row: IntArray = _wsu(context)
        elif name == "mvp":
            mean = context.model.mean_problem(context.problem.weights)
            # gamma, or less than 1: the average of models that end may go on for ever
            mean = mean._replace(discount=1 - 1 / self.x.lasts)
            row = Endless.of(mean, context.time.check).own().actions[0]
        elif name == "qmdp":
            values = context.model_optima.values
            next_known = np.tensordot(context.problem.weights, self.x.q(values), 1)
            row = np.where(self.allowed, next_known, -np.inf).argmax(axis=1)
        else:
            scores = np.random.default_rng(seed).random(self.allowed.shape)
            row = np.where(self.allowed, scores, -1.0).argmax(axis=1)
        return self.inside(row)

    def seconds(self, name: str) -> float:
        x = self.x.problem
        return seconds(x.n_models * x.n_states**2 * (x.n_states + x.n_actions), 0, ROUNDS)

    def optimum(self, model: int) -> IntArray:
        return self.inside(self.context.model_optima.actions[model])

    def inside(self, row: IntArray) -> IntArray:
        """The row with actions that are not open replaced by those that are."""
        legal = self.allowed[np.arange(len(row)), row]
        return np.where(legal, row, self.allowed.argmax(axis=1)).astype(np.int32)

    # ------------------------------------------------------------ steps
    def returns(self, point: IntArray) -> Array:
        return self.x.returns(point)

    def sizes(self, point: IntArray, rho: Array) -> Array:
        """(M,) the size of the discounted rewards that rho adds up."""
        r = self.x.r[:, np.arange(len(point)), point]
        size: Array = (self.x.visits(point) * np.abs(r)).sum(axis=1)
        return size

    def changes(self, point: IntArray, slope: Slope) -> Changes:
        if not isinstance(self.x, Factorised):
            return (yield from self._by_trial(point, slope.weights()))
        lam, here = self.context.problem.weights, _Exact(self.x, point.copy())
        for s in np.argsort(-(lam @ here.d), kind="stable"):
            open_ = np.flatnonzero(self.allowed[s])
            a = (yield here.changes(int(s))[open_][None])[0]
            if a >= 0:
                here.take(int(s), int(open_[a]))
            self._look(here.policy)
        return here.policy, self.x.returns(here.policy)

    def _look(self, row: IntArray) -> None:
        """Watch the clock; what a round has found so far is not lost."""
        try:
            self.context.check_time()
        except Stop:
            self.context.keep(row, self.context.worth(self.context.returns(row)))
            raise

    def _by_trial(self, point: IntArray, weights: Array) -> Changes:
        """Many states: change those that gain most by the gradient sum_m weights_m d_m q_m.

        All at once first, then half of them and so on, then some of them one by one.
        """
        x, v, d = self.x, self.x.values(point), self.x.visits(point)
        G = np.einsum("m,ms,msa->sa", weights, d, x.q(v) - v[:, :, None])
        rho = self.context.problem.returns(v.T)
        least = TIE * float(weights @ self.sizes(point, rho))
        return (yield from _tried(self, point, rho, np.where(self.allowed, G, -np.inf), least))


def _tried(landscape: Landscape, point: Table, rho: Array, G: Array, least: float) -> Changes:
    """The states whose action gains more than ``least`` by the gradient G (S, A), less that of the
    current one: all at once first, then half of them and so on, then some of them one by one.
    """
    best, gain = G.argmax(axis=1).astype(np.int32), G.max(axis=1)
    order = np.argsort(-gain, kind="stable")
    order = order[gain[order] > least]
    sizes = [len(order) >> k for k in range(len(order).bit_length())]
    for states in [*(order[:size] for size in sizes), *order[1:SINGLES, None]]:
        landscape.context.check_time()
        trial = point.copy()
        trial[..., states] = best[states]
        returns = landscape.returns(trial)
        if (yield (returns - rho)[None, None])[0] >= 0:
            return trial, returns
    return point, rho


class Daily(Tables):
    """One action for every state over a number of decisions: points are tables of equal rows."""

    starts: ClassVar[tuple[str, ...]] = ("wsu", "mvp")

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context, sweeps)
        self.allowed: Mask = np.logical_and.reduce(context.problem.allowed)
        self.complete = self.allowed.size <= EACH

    def start(self, name: str, seed: int) -> Table:
        table = super().start(name, seed)
        return self.inside(self.context.wsu()[0] if table is None else table)

    def seconds(self, name: str) -> float:
        passes = ROUNDS * (self.allowed.size if self.complete else SINGLES)
        return self.plan.problem.seconds(self.plan.horizon, passes)

    def inside(self, table: Table) -> IntArray:
        """The action that a state takes most of the time, at all times."""
        shares = soft(super().inside(table), self.allowed.shape[1]).mean(axis=0)
        row = np.where(self.allowed, shares, -1.0).argmax(axis=1).astype(np.int32)
        return np.repeat(row[None], self.plan.horizon, axis=0)

    def ascend(self, points: Iterable[Any], **options: Any) -> list[Ascent]:
        return Landscape.ascend(self, points, **options)

    def step(self, point: Table, returns: Array, objective: Objective) -> tuple[Table, Array]:
        return Landscape.step(self, point, returns, objective)

    def changes(self, point: Table, slope: Slope) -> Changes:
        """By the gradient, summed over time; if that is in vain, every action of every state."""
        weights, rows = slope.weights(), point.astype(np.int64)
        _, G, rho = slopes(self.plan.but(weights=weights), point)
        G = (discounts_of(self.context) * (G - np.take_along_axis(G, rows[..., None], 2))).sum(0)
        least = TIE * float(weights @ self.sizes(point, rho))
        G = np.where(self.allowed, G, -np.inf)
        found, returns = yield from _tried(self, point, rho, G, least)
        if found is point and self.complete:
            return (yield from self._each(point.copy(), rho, np.argsort(-G.max(axis=1))))
        return found, returns

    def _each(self, table: Table, rho: Array, order: npt.NDArray[Any]) -> Changes:
        for s in order:
            tables = np.repeat(table[None], int(self.allowed[s].sum()), axis=0)
            tables[:, :, s] = np.flatnonzero(self.allowed[s])[:, None]
            returns = np.array([self.returns(each) for each in tables])
            a = (yield (returns - rho)[None])[0]
            if a >= 0:
                table, rho = tables[a], returns[a]
            self.context.check_time()
        return table, rho


class RestrictedRules(Rules):
    """Some of the rules: whole rows are tried, block by block."""

    def seconds(self, name: str) -> float:
        x = self.x.problem
        return seconds(x.n_models * x.n_states**4 * x.n_actions, 0, ROUNDS)

    def options(self, row: IntArray) -> Iterator[IntArray]:
        """(k, S) alternatives, one block at a time; a row that is taken is there next time."""
        raise NotImplementedError

    def changes(self, point: IntArray, slope: Slope) -> Changes:
        row, rho = point.copy(), self.x.returns(point)
        for rows in self.options(row):
            returns = np.array([self.x.returns(each) for each in rows])
            a = (yield (returns - rho)[None])[0]
            if a >= 0:
                row[:], rho = rows[a], returns[a]
                self.context.keep(rows[a], self.context.worth(rho))
            self.context.check_time()
        return row, rho


def _wsu(context: Context) -> IntArray:
    """(S,) the first row of WSU's policy over many decisions, in half of the time at most."""
    until = (clock() + context.time.deadline) / 2
    steps = min(AT_ONCE, context.horizon)
    plan, prior = context.plan.but(horizon=steps), context.problem.prior_weights()
    for _ in range(-(-context.horizon // steps)):
        found, before = plan.backward("weighted", weights=prior), plan.problem.terminal
        plan = plan.but(terminal=found.first)
        still = np.abs(found.first - before).max() <= SETTLED * np.abs(found.first).max()
        if still or clock() > until:
            break
    return found.actions[0]


class TiedRules(RestrictedRules):
    """One action for all states of a group, at all times."""

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context)
        kind: Any = context.kind
        self.group = kind.group_of(context.model)
        count = int(self.group.max()) + 1
        members = [self.allowed[self.group == g] for g in range(count)]
        self.together = np.array([some.all(axis=0) for some in members])  # (groups, A)

    def inside(self, row: IntArray) -> IntArray:
        """Each group takes the action that most of its states take, among those open to all."""
        votes = np.array(
            [
                np.bincount(row[self.group == g], minlength=self.allowed.shape[1])
                for g in range(len(self.together))
            ]
        )
        return np.where(self.together, votes, -1).argmax(axis=1).astype(np.int32)[self.group]

    def options(self, row: IntArray) -> Iterator[IntArray]:
        for g, open_ in enumerate(self.together):
            a = np.flatnonzero(open_).astype(np.int32)
            yield np.where(self.group == g, a[:, None], row)


class MonotoneRules(RestrictedRules):
    """Actions that never fall along chains of states, at all times."""

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context)
        kind: Any = context.kind
        self.chains, self.order = kind.chains(context.model), kind.order(context.model)
        self.rank = np.argsort(self.order)

    def inside(self, row: IntArray) -> IntArray:
        """From the highest state down: the nearest action that leaves one to those below."""
        found = row.astype(np.int32).copy()
        for chain in self.chains:
            open_ = self.allowed[chain][:, self.order]  # by rank
            least, ceiling = [0], len(self.order)
            for each in open_:
                least.append(least[-1] + int(each[least[-1] :].argmax()))
            for s, each, floor in reversed(list(zip(chain, open_, least[1:], strict=True))):
                ranks = floor + np.flatnonzero(each[floor : ceiling + 1])
                ceiling = int(ranks[np.abs(ranks - self.rank[row[s]]).argmin()])
                found[s] = self.order[ceiling]
        return found

    def options(self, row: IntArray) -> Iterator[IntArray]:
        """Another action in a state, with the least changes elsewhere that keep it monotone."""
        for chain in self.chains:
            for i in range(len(chain)):
                rank, k = self.rank[row[chain]], np.arange(len(self.order))[:, None]
                below = np.arange(len(chain)) < i
                moved = self.order[np.where(below, np.minimum(rank, k), np.maximum(rank, k))]
                moved[:, i] = self.order
                rows = np.repeat(row[None], len(moved), axis=0)
                rows[:, chain] = moved
                yield rows[self.allowed[chain, moved].all(axis=1)]


class _Exact:
    """A row with its F, v and d; it is changed in place, one state at a time."""

    def __init__(self, x: Factorised, policy: IntArray) -> None:
        self.x, self.policy = x, policy
        self.F = x.inverse(policy)
        r = x.r[:, np.arange(len(policy)), policy]
        self.v = np.matmul(self.F, r[:, :, None])[:, :, 0]
        self.d = np.matmul(x.problem.initial.T[:, None], self.F)[:, 0]

    def changes(self, s: int) -> Array:
        """(A, M) what each action in state s adds to rho."""
        gamma, P = self.x.problem.discount, self.x.P[:, s]
        q = self.x.r[:, s] + gamma * np.matmul(P, self.v[:, :, None])[:, :, 0]
        self.delta = P - P[:, [self.policy[s]]]
        self.turn = 1.0 - gamma * np.matmul(self.delta, self.F[:, :, s, None])[:, :, 0]
        with np.errstate(divide="ignore", invalid="ignore"):  # actions that are not allowed
            self.step = (q - self.v[:, [s]]) / self.turn  # (M, A): how far v moves along x_m
        found: Array = (self.d[:, [s]] * self.step).T
        return found

    def take(self, s: int, a: int) -> None:
        """The action whose change was asked for last."""
        gamma = self.x.problem.discount
        column = self.F[:, :, s].copy()
        row = np.matmul(self.delta[:, [a]], self.F)[:, 0] * (gamma / self.turn[:, [a]])
        self.v += column * self.step[:, [a]]
        self.d += self.d[:, [s]] * row
        self.F += column[:, :, None] * row[:, None, :]
        self.policy[s] = a
