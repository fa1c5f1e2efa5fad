"""Tables of actions by time and state: free, tied or monotone.

The return is linear in the whole row pi_t of actions at one time. So CADP stays exact, and the
return never falls, if each step takes the best row among those that are open:
argmax_f sum_s G_t(s, f(s)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.kernels.ascent import randomised
from mmdp.kernels.numpy.passes import choose
from mmdp.kernels.problem import TIE, Array, Ascent, IntArray, Pick, Sweeps, Table, Watch, at
from mmdp.model import MMDP
from mmdp.objective import Objective
from mmdp.policy import MarkovPolicy, Monotone, PolicyKind, Tied
from mmdp.search import gradient
from mmdp.search.context import Context
from mmdp.search.landscape import Changes, Landscape, Slope, rounding

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KEEP_BYTES = 2**31  # the most that q may take; beyond that a solve uses the paper's sweeps
PASSES = 12  # of one ascent


class Tables(Landscape):
    """Every policy of time and state that the plan allows."""

    starts: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "mirror", "gradient")
    others: ClassVar[tuple[str, ...]] = ("random", "uniform")
    pick: Any = None  # how to choose a row; None: every row is open

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context)
        self.plan = context.plan
        self.sweeps: Sweeps = affordable_sweeps(context, sweeps)

    def start(self, name: str, seed: int) -> Table | None:
        context = self.context
        if name == "wsu":
            return None
        if name in gradient.STARTS:
            return gradient.rounded_end(context, name)
        model, T = context.model, context.horizon
        if name == "mvp":
            table: Table = mvp_actions(context)
        elif name == "random":
            table = MarkovPolicy.random(model, T, seed).table
        else:
            table = MarkovPolicy.uniform(model, T).table
        return self.inside(table)

    @staticmethod
    def passes(name: str) -> int:
        """About how many passes an ascent from this start takes."""
        return PASSES + (gradient.PASSES if name in gradient.STARTS else 0)

    def seconds(self, name: str) -> float:
        return self.plan.problem.seconds(self.plan.horizon, self.passes(name))

    def optimum(self, model: int) -> Table:
        alone = self.context.model.problem.some(slice(model, model + 1))
        plan = self.context.kernel.plan(alone, self.context.horizon)
        own = plan.backward("own", keep=("actions",)).actions
        assert own is not None
        return self.inside(own[:, :, 0])

    def inside(self, table: Table) -> Table:
        """The policy with actions that are not open replaced by those that are."""
        x = self.plan.problem
        open_ = np.broadcast_to(x.allowed, (self.plan.horizon, x.n_states, x.n_actions))
        if table.ndim == 2:
            legal = np.take_along_axis(open_, table[:, :, None].astype(np.int64), 2)[:, :, 0]
            return np.where(legal, table, open_.argmax(axis=2)).astype(np.int32)
        kept = np.where(open_, table, 0.0)
        kept = np.where(kept.any(axis=2, keepdims=True), kept, open_)
        return kept / kept.sum(axis=2, keepdims=True)

    def returns(self, point: Table) -> Array:
        return self.plan.returns(self.plan.backward("given", policy=point).first)

    def ascend(
        self, points: Iterable[Table | None], *, weights: Array | None = None, tol: float = 0.0,
        max_sweeps: int = 1000, watch: Watch | None = None,
    ) -> list[Ascent]:  # fmt: skip
        plan = self.plan if weights is None else self.plan.but(weights=weights)
        return plan.ascend(
            points, tol=tol, max_sweeps=max_sweeps, sweeps=self.sweeps, pick=self.pick, watch=watch
        )

    def step(self, point: Table, returns: Array, objective: Objective) -> tuple[Table, Array]:
        """In one call on machines that compile it, unless Python functions pick rows or judge."""
        if self.pick is None and objective.formula is not None:
            rho = objective.counted(returns, self.context.own)
            tie = rounding(objective, self.plan.problem.weights, rho, self.sizes(point, rho))
            found = self.plan.changed(point, rho, objective.formula, tie)
            if found is not None:
                return found
        return super().step(point, returns, objective)

    def changes(self, point: Table, slope: Slope) -> Changes:
        """From the last time to the first: what each action of one time adds."""
        x, plan = self.plan.problem, self.plan
        d = plan.by_start(lambda each: each.forward(point))
        actions: IntArray = np.array(point, np.int32)
        states, v = np.arange(x.n_states), x.terminal
        for t in reversed(range(plan.horizon)):
            self.context.check_time()  # a round takes much longer than a pass
            q, allowed = plan.step(t, v), at(x.allowed, t)
            s, a = np.nonzero(~allowed)
            q[s, a] = q[s, actions[t, s]]  # an action that is not allowed changes nothing
            b = x.discount**t * d[t]
            if slope.hopes(self._gains(b, q, actions[t], slope)).any():
                yield from self._row(b, q, actions[t], allowed, slope)
            v = q[states, actions[t]]
        return actions, plan.returns(v)

    def _gains(self, d: Array, q: Array, actions: IntArray, slope: Slope) -> Array:
        """(S, A) what other actions than these (S,) add to the tilted mean."""
        G = np.matmul(q, self.plan.rising(d, slope.weights())[:, :, None])[:, :, 0]
        gains: Array = G - G[np.arange(len(actions)), actions][:, None]
        return gains

    def _row(self, d: Array, q: Array, actions: IntArray, allowed: Mask, slope: Slope) -> Any:
        """The changes of one time, which are made in ``actions`` (S,); heavy states first.

        After a change the objective may rise elsewhere, so it is asked again which may pay.
        """
        plan = self.plan
        chance = plan.felt(d, np.ones_like(q[:, 0]))  # (S, M)
        hopeful = None
        for s in np.argsort(-(chance @ plan.problem.weights), kind="stable"):
            if hopeful is None:
                gains = self._gains(d, q, actions, slope)
                hopeful = np.logical_or.reduce(slope.hopes(gains), axis=1)
            if hopeful[s]:
                change = q[s] - q[s, actions[s]]
                a = (yield plan.felt(d[[s]][:, None], change[None]))[0]
                if a >= 0:
                    actions[s], hopeful = a, None


class Restricted(Tables):
    """Tables whose rows are restricted; a start need not be of the kind, so it is made soft."""

    def inside(self, table: Table) -> Table:
        """A table of the kind as it is, others as probabilities."""
        found = super().inside(table)
        return found if self._allows(found) else soft(found, self.plan.problem.n_actions)

    def _allows(self, table: Table) -> bool:
        """Whether the table is of the kind: then its own rows are the best for its actions."""
        taken = np.eye(self.plan.problem.n_actions)
        return not randomised(table) and all(
            (self.pick(taken[row], taken[row], None) == row).all() for row in table
        )

    def start(self, name: str, seed: int) -> Table | None:
        table = super().start(name, seed)
        return None if table is None else soft(table, self.plan.problem.n_actions)

    def _row(self, d: Array, q: Array, actions: IntArray, allowed: Mask, slope: Slope) -> Any:
        """The whole row that is best for the tilted weights, then single changes."""
        states = np.arange(len(q))
        chance = self.plan.felt(d, np.ones_like(q[:, 0]))  # (S, M)
        gain = self.plan.felt(d[:, None], q - q[states, actions][:, None])  # (S, A, M)
        row = self.pick(np.where(allowed, gain @ slope.weights(), -np.inf), chance, actions)
        if (yield gain[states, row].sum(axis=0)[None, None])[0] >= 0:
            actions[:] = row
            gain -= gain[states, actions][:, None]
        yield from self._blocks(chance, gain, actions, allowed)

    def _blocks(self, chance: Array, gain: Array, actions: IntArray, allowed: Mask) -> Any:
        """Single changes that the kind leaves open; gain (S, A, M) of the actions (S,)."""
        raise NotImplementedError

    def ascend(self, points: Iterable[Table | None], **options: Any) -> list[Ascent]:
        """The trace begins with the first policy of the kind."""
        others: list[bool] = []

        def noted() -> Iterator[Table | None]:
            for point in points:
                others.append(randomised(point))
                yield point

        ends = super().ascend(noted(), **options)
        return [
            end._replace(trace=end.trace[1:]) if other else end
            for end, other in zip(ends, others, strict=True)
        ]


class TiedTables(Restricted):
    """One action for all states of a group, at each time."""

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context, sweeps)
        kind: Any = context.kind
        group = kind.group_of(context.model)
        self.pick = tied_rows(group)
        self.member = np.eye(group.max() + 1)[group].T  # (groups, S)

    def _blocks(self, chance: Array, gain: Array, actions: IntArray, allowed: Mask) -> Any:
        change = np.tensordot(self.member, gain, 1)
        change[self.member @ ~allowed > 0] = 0.0
        order = np.argsort(-(self.member @ (chance @ self.plan.problem.weights)), kind="stable")
        chosen = yield change[order]
        for g in np.flatnonzero(chosen >= 0):
            actions[self.member[order[g]] > 0] = chosen[g]


class MonotoneTables(Restricted):
    """Actions that never fall along chains of states, at each time."""

    def __init__(self, context: Context, sweeps: Sweeps = "two-way") -> None:
        super().__init__(context, sweeps)
        kind: Any = context.kind
        chains, order = kind.chains(context.model), kind.order(context.model)
        self.rank, self.pick = np.argsort(order), monotone_rows(chains, order)
        self.next: dict[int, tuple[int | None, int | None]] = {
            int(s): (below, above)
            for chain in chains
            for below, s, above in zip([None, *chain[:-1]], chain, [*chain[1:], None], strict=True)
        }

    def _blocks(self, chance: Array, gain: Array, actions: IntArray, allowed: Mask) -> Any:
        for s in np.argsort(-(chance @ self.plan.problem.weights), kind="stable"):
            choices = np.flatnonzero(self._open(int(s), actions, allowed))
            a = (yield gain[s, choices][None])[0]
            if a >= 0:
                actions[s] = choices[a]

    def _open(self, s: int, actions: IntArray, allowed: Mask) -> Mask:
        """(A,) whether the state may take an action, given those of its neighbours."""
        open_: Mask = allowed[s].copy()
        below, above = self.next.get(s, (None, None))
        if below is not None:
            open_ &= self.rank >= self.rank[actions[below]]
        if above is not None:
            open_ &= self.rank <= self.rank[actions[above]]
        return open_


# ---------------------------------------------------------------------- rows
def pick_of(kind: PolicyKind, model: MMDP) -> Pick | None:
    """The maximiser over the rows that the kind of policy leaves open; None if all are."""
    if isinstance(kind, Tied):
        return tied_rows(kind.group_of(model))
    if isinstance(kind, Monotone):
        return monotone_rows(kind.chains(model), kind.order(model))
    return None


def tied_rows(group: Ints) -> Pick:
    """One action for all states of a group (S,): the best for the sum of G over the group."""
    first = np.unique(group, return_index=True)[1]
    member = np.eye(len(first))[group].T

    def choose_row(G: Array, b: Array, incumbent: npt.NDArray[Any] | None) -> IntArray:
        # products with -inf would spoil the sums
        together = member @ np.where(np.isfinite(G), G, 0.0)
        together[member @ ~np.isfinite(G) > 0] = -np.inf
        kept = None if incumbent is None else incumbent[first]
        row: IntArray = choose(together, member @ b, kept)[group]
        return row

    return choose_row


def monotone_rows(chains: list[Ints], order: Ints) -> Pick:
    """Actions that never fall along each chain of states, in the order (A,) of actions.

    Along a chain s_1, s_2, ... the best total so far that ends with an action of rank k is
    F_i(k) = G(s_i, k) + max_{j <= k} F_{i-1}(j).
    """
    rank = np.argsort(order)

    def choose_row(G: Array, b: Array, incumbent: npt.NDArray[Any] | None) -> IntArray:
        row = np.empty(len(G), dtype=np.int32)
        for chain in chains:
            ranked = G[chain][:, order]
            kept = None if incumbent is None else rank[incumbent[chain]]
            row[chain] = order[_best_rise(ranked, kept)]
        return row

    return choose_row


def _best_rise(G: Array, incumbent: Ints | None) -> Ints:
    """(n,) ranks that never fall and maximise the sum of G (n, A); ties as in :func:`choose`."""
    n = len(G)
    F = np.array(G)
    for i in range(1, n):
        F[i] += np.maximum.accumulate(F[i - 1])
    scale = np.abs(np.where(np.isfinite(G), G, 0.0)).max(axis=1).sum()
    if incumbent is not None and G[np.arange(n), incumbent].sum() >= F[-1].max() - TIE * scale:
        return incumbent
    ranks = np.empty(n, dtype=np.int64)
    top = G.shape[1]
    for i in reversed(range(n)):
        ranks[i] = F[i, :top].argmax()
        top = ranks[i] + 1
    return ranks


def soft(table: Table, n_actions: int) -> Array:
    """(T, S, A) probabilities of a policy that the restriction may not allow."""
    shares: Array = np.asarray(table if table.ndim == 3 else np.eye(n_actions)[table], dtype=float)
    return shares


# ---------------------------------------------------------------------- starts
def affordable_sweeps(context: Context, sweeps: Sweeps = "two-way") -> Sweeps:
    """The sweeps to use: the paper's if q would be too large to keep."""
    x = context.problem
    q_bytes = 8 * context.horizon * x.n_states * x.n_actions * x.n_models
    return sweeps if q_bytes <= KEEP_BYTES else "paper"


def mvp_actions(context: Context) -> Table:
    """(T, S) actions of the mean model's optimal policy, ties to the lowest action."""
    mean = context.model.mean_problem(context.problem.weights)
    plan = context.kernel.plan(mean.restricted(context.problem.allowed), context.horizon)
    found = plan.backward("weighted", weights=mean.prior_weights())
    return found.actions
