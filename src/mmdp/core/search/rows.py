"""Restrictions of rows, tied or monotone, over the spaces of Markov and of stationary policies.

The return is linear in the whole row pi_t of actions at one time. So CADP stays exact, and the
return never falls, if each step takes the best row among those that are open:
argmax_f sum_s G_t(s, f(s)). Over an infinite horizon it is not linear, and whole rows are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import tee
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt

from mmdp.core.evaluate import Mask
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.costs import estimate_stationary_seconds
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.problem import (
    TIE_RTOL,
    Array,
    AscentResult,
    IntArray,
    PolicyTable,
    RowChooser,
    SweepType,
)
from mmdp.core.model import MMDP
from mmdp.core.policies import Monotone, PolicyClass, Tied
from mmdp.core.search.context import SolveContext
from mmdp.core.search.markov import MarkovSpace
from mmdp.core.search.space import (
    AscentDirection,
    AscentLimits,
    BlockChanges,
    ChangeGenerator,
    compute_gains,
)
from mmdp.core.search.stationary import StationarySpace

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Int64Array = npt.NDArray[np.int64]


class RowRestriction:
    """Rows (S,) of actions that are open; the actions of a block of states change together."""

    membership: csr_matrix  # (blocks, S) 1 if the state belongs to the block
    block_order: Int64Array  # (blocks,) in which blocks are tried

    def choose_row(self, G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        """Choose the open row with the largest sum of G (S, A); ties go to the incumbent."""
        raise NotImplementedError

    def project(self, row: IntArray, allowed: Mask) -> IntArray:
        """Return an open row of allowed actions near this one."""
        raise NotImplementedError

    def find_alternatives(self, block: int, row: IntArray, allowed: Mask) -> IntArray:
        """Return the open rows (k, S) for the actions that a block may take."""
        raise NotImplementedError


class TiedRows(RowRestriction):
    """Rows with one action for all states of a group."""

    def __init__(self, group_ids: Int64Array) -> None:
        self.group_ids, self.first_members = group_ids, np.unique(group_ids, return_index=True)[1]
        self.membership = _make_membership(group_ids)
        self.block_order = np.arange(len(self.first_members))

    def choose_row(self, G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        # products with -inf would spoil the sums
        group_G = self.membership @ np.where(np.isfinite(G), G, 0.0)
        group_G[self.membership @ ~np.isfinite(G) > 0] = -np.inf
        incumbent_actions = None if incumbent is None else incumbent[self.first_members]
        actions = choose_actions(group_G, self.membership @ b, incumbent_actions)
        row: IntArray = actions[self.group_ids]
        return row

    def project(self, row: IntArray, allowed: Mask) -> IntArray:
        """Give each group the most frequent action of its states that all of them allow."""
        votes = np.where(allowed, np.eye(allowed.shape[1])[row], -np.inf)
        return self.choose_row(votes, votes, None)

    def find_alternatives(self, block: int, row: IntArray, allowed: Mask) -> IntArray:
        is_member = self.group_ids == block
        actions = np.flatnonzero(allowed[is_member].all(axis=0)).astype(np.int32)
        return np.where(is_member, actions[:, None], row)


class MonotoneRows(RowRestriction):
    """Rows whose actions never decrease along chains of states, in an order of the actions."""

    def __init__(self, chains: list[Int64Array], order: Int64Array) -> None:
        self.chains, self.order, self.rank = chains, order, np.argsort(order)
        self.block_order = np.concatenate(chains)
        self.membership = _make_membership(np.arange(len(self.block_order)))
        self.places = {s: (chain, i) for chain in chains for i, s in enumerate(chain.tolist())}

    def choose_row(self, G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        """Choose the best row by dynamic programming.

        Along a chain s_1, s_2, ... the best total so far that ends with an action of rank k is
        F_i(k) = G(s_i, k) + max_{j <= k} F_{i-1}(j).
        """
        row = np.empty(len(G), dtype=np.int32)
        for chain in self.chains:
            incumbent_ranks = None if incumbent is None else self.rank[incumbent[chain]]
            ranks = _find_best_monotone(G[chain][:, self.order], incumbent_ranks)
            row[chain] = self.order[ranks]
        return row

    def project(self, row: IntArray, allowed: Mask) -> IntArray:
        """Move each action to the nearest one that keeps the row monotone and allowed."""
        projected_row = row.astype(np.int32).copy()
        for chain in self.chains:
            allowed_by_rank = allowed[chain][:, self.order]
            min_ranks, max_rank = [0], len(self.order)
            for allowed_ranks in allowed_by_rank:
                min_ranks.append(min_ranks[-1] + int(allowed_ranks[min_ranks[-1] :].argmax()))
            for s, allowed_ranks, min_rank in reversed(
                list(zip(chain, allowed_by_rank, min_ranks[1:], strict=True))
            ):
                ranks = min_rank + np.flatnonzero(allowed_ranks[min_rank : max_rank + 1])
                max_rank = int(ranks[np.abs(ranks - self.rank[row[s]]).argmin()])
                projected_row[s] = self.order[max_rank]
        return projected_row

    def find_alternatives(self, block: int, row: IntArray, allowed: Mask) -> IntArray:
        """Return rows with another action in a state and changes that keep them monotone."""
        chain, i = self.places[block]
        ranks, k = self.rank[row[chain]], self.rank[:, None]  # of the actions in turn
        is_below = np.arange(len(chain)) < i
        actions = self.order[np.where(is_below, np.minimum(ranks, k), np.maximum(ranks, k))]
        actions[:, i] = np.arange(len(k))
        rows = np.repeat(row[None], len(actions), axis=0)
        rows[:, chain] = actions
        return rows[allowed[chain, actions].all(axis=1)]


def _make_membership(block_ids: Int64Array) -> csr_matrix:
    """Make the matrix (blocks, S) of the states of each block from the block (S,) of each state."""
    from scipy.sparse import csr_matrix

    n_states = len(block_ids)
    return csr_matrix((np.ones(n_states), (block_ids, np.arange(n_states))))


def make_restriction(policy_class: PolicyClass, model: MMDP) -> RowRestriction | None:
    """Make the restriction of the rows of a policy class; None if every row is open."""
    if isinstance(policy_class, Tied):
        return TiedRows(policy_class.get_group_ids(model))
    if isinstance(policy_class, Monotone):
        return MonotoneRows(
            policy_class.get_state_chains(model), policy_class.get_action_order(model)
        )
    return None


def make_row_chooser(policy_class: PolicyClass, model: MMDP) -> RowChooser:
    """Make the function that chooses the best row of a policy class."""
    restriction = make_restriction(policy_class, model)
    return choose_actions if restriction is None else restriction.choose_row


def _find_best_monotone(G: Array, incumbent: Int64Array | None) -> Int64Array:
    """Find ranks (n,) that never decrease and maximize the sum of G (n, A)."""
    n = len(G)
    F = np.array(G)
    for i in range(1, n):
        F[i] += np.maximum.accumulate(F[i - 1])
    scale = np.abs(np.where(np.isfinite(G), G, 0.0)).max(axis=1).sum()
    if incumbent is not None and G[np.arange(n), incumbent].sum() >= F[-1].max() - TIE_RTOL * scale:
        return incumbent
    ranks = np.empty(n, dtype=np.int64)
    rank_limit = G.shape[1]
    for i in reversed(range(n)):
        ranks[i] = F[i, :rank_limit].argmax()
        rank_limit = ranks[i] + 1
    return ranks


# ---------------------------------------------------------------------- search spaces
class RestrictedMarkovSpace(MarkovSpace):
    """Search space of Markov policies with restricted rows; projects tables to probabilities."""

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context, sweep_type)
        restriction = make_restriction(context.policy_class, context.model)
        assert restriction is not None
        self.restriction = restriction

    def row_chooser(self, G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        """Choose the best open row of a sweep, and check the time."""
        self.context.check_time()
        return self.restriction.choose_row(G, b, incumbent)

    def project(self, table: PolicyTable) -> PolicyTable:
        """Return a feasible table unchanged, and others as probabilities."""
        table, restriction = super().project(table), self.restriction
        one_hot = np.eye(self.prepared.problem.n_actions)
        is_feasible = not is_randomized(table) and all(
            (restriction.choose_row(one_hot[row], one_hot[row], None) == row).all() for row in table
        )
        return table if is_feasible else self.evaluator.to_probabilities(table)

    def compute_init(self, name: str, seed: int) -> PolicyTable | None:
        table = super().compute_init(name, seed)
        return None if table is None else self.evaluator.to_probabilities(table)

    def _iter_row_changes(
        self, d: Array, q: Array, actions: IntArray, allowed: Mask, direction: AscentDirection
    ) -> BlockChanges:
        """Yield the best whole row for the risk weights, then changes of single blocks."""
        restriction, states = self.restriction, np.arange(len(q))
        gains, visit_probs = compute_gains(self.prepared, d, q, actions)
        G = np.where(allowed, gains @ direction.risk_weights(), -np.inf)
        row = restriction.choose_row(G, visit_probs[:, None], actions)
        if (yield gains[states, row].sum(axis=0)[None, None])[0] >= 0:
            actions[:] = row
            gains -= gains[states, actions][:, None]
        for block in np.argsort(-(restriction.membership @ visit_probs), kind="stable"):
            members = restriction.membership[[block]].indices
            max_gains = (gains[members] @ direction.risk_weights()).max(axis=1)
            if not direction.may_improve(max_gains.sum(keepdims=True)).any():
                continue
            rows = restriction.find_alternatives(int(block), actions, allowed)
            rows = rows[np.delete(rows == actions, members, axis=1).all(axis=1)]
            choice = (yield gains[members, rows[:, members]].sum(axis=1)[None])[0]
            if choice >= 0:
                actions[:] = rows[choice]

    def ascend_mean(
        self,
        candidates: Iterable[PolicyTable | None],
        *,
        weights: Array | None = None,
        **limits: Unpack[AscentLimits],
    ) -> list[AscentResult]:
        """Run CADP sweeps; each trace begins with the first feasible policy."""
        candidates, inits = tee(candidates)
        local_optima = super().ascend_mean(candidates, weights=weights, **limits)
        return [
            optimum._replace(trace=optimum.trace[1:]) if is_randomized(init) else optimum
            for optimum, init in zip(local_optima, inits, strict=True)
        ]


class RestrictedStationarySpace(StationarySpace):
    """Search space of restricted stationary policies; whole rows are tried, block by block."""

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        restriction = make_restriction(context.policy_class, context.model)
        assert restriction is not None
        self.restriction = restriction

    def estimate_ascent_seconds(self, name: str) -> float:
        x = self.infinite_horizon.problem
        return x.n_states * x.n_actions * estimate_stationary_seconds(x.work)

    def project(self, row: IntArray) -> IntArray:
        return self.restriction.project(row, self.allowed)

    def iter_changes(self, candidate: IntArray, direction: AscentDirection) -> ChangeGenerator:
        """Yield the exact gains of the alternative rows, and apply the choices."""
        row, rho = candidate.copy(), self.compute_returns(candidate)
        for block in self.restriction.block_order:
            rows = self.restriction.find_alternatives(int(block), row, self.allowed)
            returns = np.array([self.compute_returns(trial) for trial in rows])
            a = (yield (returns - rho)[None])[0]
            if a >= 0:
                row[:], rho = rows[a], returns[a]
                self.context.keep_best(rows[a], self.context.objective_value(rho))
            self.context.check_time()
        return row, rho
