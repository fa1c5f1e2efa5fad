"""CADP over policies that people can carry out: tied, monotone, or fixed in part.

The return is linear in the whole row pi_t of actions at one time. So CADP stays exact, and the
return never falls, if each step takes the best row among those that are open:
argmax_f sum_s G_t(s, f(s)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp.bounds import closed
from mmdp.errors import InputError
from mmdp.kernels.numpy_kernel import choose
from mmdp.kernels.problem import TIE, Array, IntArray, Rows, Table, at
from mmdp.methods import objective_ascent
from mmdp.methods import starts as start
from mmdp.methods.base import Context, Outcome, Stop
from mmdp.model import MMDP
from mmdp.objective import Mean
from mmdp.policy import Monotone, PolicyKind, Tied

if TYPE_CHECKING:
    from mmdp.methods.cadp import CADP

Ints = npt.NDArray[np.int64]


def ascend(context: Context, options: CADP) -> Outcome:
    """The best end from CADP's starts and from its policy without the restriction."""
    if options.polish:
        raise InputError(f"polish does not keep a policy {context.kind.name}; leave it out")
    if context.objective != Mean():
        tol = options.tol * context.problem.stakes(context.horizon)
        search = RestrictedSearch(context, tol, options.max_iterations)
        outcome = objective_ascent.ascend(context, options, search)
        return priced(context, outcome, lambda: options.climb(context.free()))
    x, T = context.problem, context.horizon
    sweeps = start.affordable_sweeps(x, T, options.sweeps)
    names: list[str] = []
    free: list[Outcome] = []

    def tables() -> Iterator[Table | None]:
        for each in start.in_order(context, options.init, options.n_starts(x, T)):
            names.append(each.name)
            yield None if each.table is None else _soft(each.table, x.n_actions)
            if not free:  # a policy of the right kind is at hand, should the time be up
                free.append(options.climb(context.free()))
                context.details["unrestricted"] = context.worth(_returns_of(free[0]))
                names.append("unrestricted")
                yield _soft(free[0].policy, x.n_actions)

    ends = context.kernel.ascend(
        x, T, tables(), tol=options.tol * x.stakes(T), max_sweeps=options.max_iterations,
        sweeps=sweeps, rows=rows_of(context.kind, context.model), watch=context.record,
    )  # fmt: skip
    outcome, best = start.best_of(ends, names, sweeps, closed.rounding(x, T))
    place = next(i for i, end in enumerate(ends) if end is best)
    if outcome.trace and names[place] != "wsu":
        outcome = replace(outcome, trace=outcome.trace[1:])  # the start was not of this kind
    return priced(context, outcome, lambda: free[0])


def ascend_inside(context: Context, options: CADP) -> Outcome:
    """CADP over the actions that are open."""
    return priced(context, options.climb(context), lambda: options.climb(context.free()))


def priced(context: Context, outcome: Outcome, free: Callable[[], Outcome]) -> Outcome:
    """The outcome with the value of a policy that is free of the restriction.

    That is the better of what ``free`` finds and of an ascent from the restricted policy, so the
    restriction never seems to pay. If the time is up, the outcome has no such value.
    """
    try:
        value = max(context.worth(_returns_of(free())), _onward(context, outcome.policy))
    except Stop:  # the policy that was asked for is complete
        return outcome
    return replace(outcome, details={**outcome.details, "unrestricted": value})


def _returns_of(outcome: Outcome) -> Array:
    assert outcome.returns is not None
    return outcome.returns


def _onward(context: Context, policy: Table) -> float:
    """The value after an ascent from this policy that is free of the restriction."""
    x, T = context.model.problem, context.horizon

    def watch(*_: object) -> None:
        context.check_time()

    if context.objective == Mean():
        return context.kernel.ascend(x, T, [policy], watch=watch)[0].value
    search = objective_ascent.TableSearch(context.free(), 0.0, 1000)
    return search.climb(context.objective, policy, watch).value


def rows_of(kind: PolicyKind, model: MMDP) -> Rows:
    """The maximiser over the rows that the kind of policy leaves open."""
    if isinstance(kind, Tied):
        return tied_rows(kind.group_of(model))
    if isinstance(kind, Monotone):
        return monotone_rows(kind.chains(model), kind.order(model))
    return choose


def tied_rows(group: Ints) -> Rows:
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


def monotone_rows(chains: list[Ints], order: Ints) -> Rows:
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


# ---------------------------------------------------------------------- other objectives
class RestrictedSweeper(objective_ascent.Sweeper):
    """Sweeps that improve an objective by changes that the kind leaves open.

    At each time first the whole row that is best for the tilted weights, then single changes:
    the action of a group, or of one state as far as its neighbours in the chain allow.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, model = self.context.kind, self.context.model
        self.rows = rows_of(kind, model)
        if isinstance(kind, Tied):
            group = kind.group_of(model)
            self.blocks = [np.flatnonzero(group == g) for g in range(group.max() + 1)]
            self.chains: list[Ints] = []
            self.rank = np.arange(model.n_actions)
        else:
            assert isinstance(kind, Monotone)
            self.blocks = [np.array([s]) for s in range(model.n_states)]
            self.chains, self.rank = kind.chains(model), np.argsort(kind.order(model))
        self.next: dict[int, tuple[int | None, int | None]] = {
            int(s): (below, above)
            for chain in self.chains
            for below, s, above in zip([None, *chain[:-1]], chain, [*chain[1:], None], strict=True)
        }

    def _q(self, t: int, v: Array, actions: IntArray) -> Array:
        self.allowed = at(self.problem.allowed, t)
        return super()._q(t, v, actions)

    def _improve(self, d: Array, q: Array, actions: IntArray, rho: Array) -> Array:
        lam, F, states = self.problem.weights, self.objective, np.arange(len(q))
        gain = d[:, None] * (q - q[states, actions][:, None])  # (S, A, M)
        xi = F.tilt(rho, lam) if F.concave else np.ones_like(lam)
        row = self.rows(np.where(self.allowed, gain @ (lam * xi), -np.inf), d, actions)
        rho = self._take(states, gain[states, row].sum(axis=0)[None], row[None], actions, rho)
        gain -= gain[states, actions][:, None]
        for block in sorted(self.blocks, key=lambda block: -float((d[block] @ lam).sum())):
            choices = np.flatnonzero(self._open(block, actions)).astype(np.int32)
            together = gain[block].sum(axis=0) - gain[block, actions[block]].sum(axis=0)
            rho = self._take(block, together[choices], choices[:, None], actions, rho)
        return rho

    def _take(
        self, block: Ints, gains: Array, choices: IntArray, actions: IntArray, rho: Array
    ) -> Array:
        """Give the block the best of the choices (n, states or 1) with gains (n, M), if better."""
        lam, tie = self.problem.weights, self.tie(rho)
        values = self.objective.value(rho + gains, lam)
        best = int(values.argmax())
        if not values[best] > float(self.objective.value(rho, lam)) + tie:
            return rho
        actions[block] = choices[best]
        moved: Array = rho + gains[best]
        return moved

    def _open(self, block: Ints, actions: IntArray) -> npt.NDArray[np.bool_]:
        """(A,) actions that all states of the block may take beside the actions of the others."""
        open_: npt.NDArray[np.bool_] = np.logical_and.reduce(self.allowed[block])
        below, above = self.next.get(int(block[0]), (None, None))
        if below is not None:
            open_ = open_ & (self.rank >= self.rank[actions[below]])
        if above is not None:
            open_ = open_ & (self.rank <= self.rank[actions[above]])
        return open_


class RestrictedSearch(objective_ascent.TableSearch):
    """The search of an objective over policies of the kind."""

    sweeper = RestrictedSweeper

    def opened(self, start: Table | None) -> Table:
        if start is not None and _of_kind(self.context, start):
            return start
        soft = None if start is None else _soft(start, self.context.problem.n_actions)
        return self.mean(soft, self.context.problem.weights)

    def mean(self, start: Table | None, weights: Array) -> Table:
        x, T = self.context.problem._replace(weights=weights), self.context.horizon
        rows = rows_of(self.context.kind, self.context.model)
        return self.context.kernel.ascend(x, T, [start], rows=rows, watch=self._look)[0].policy


def _of_kind(context: Context, table: Table) -> bool:
    """Whether the restriction allows this policy: then its own row is the best for its actions."""
    if table.ndim == 3:
        return False
    rows, taken = rows_of(context.kind, context.model), np.eye(context.problem.n_actions)
    return all((rows(taken[row], taken[row], None) == row).all() for row in table)


def _soft(table: Table, n_actions: int) -> Array:
    """(T, S, A) probabilities of a policy that the restriction may not allow."""
    soft: Array = np.asarray(table if table.ndim == 3 else np.eye(n_actions)[table], dtype=float)
    return soft
