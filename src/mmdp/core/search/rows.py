"""Restrictions of rows, tied or monotone, over the spaces of Markov and of stationary policies.

The return is linear in the whole row pi_t of actions at one time. So CADP stays exact, and the
return never falls, if each step takes the best row among those that are open:
argmax_f sum_s G_t(s, f(s)). Over an infinite horizon it is not linear, and whole rows are tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.problem import TIE_RTOL, PolicyTable, RowChooser
from mmdp.core.model import MMDP
from mmdp.core.policies import Monotone, PolicyClass, Tied
from mmdp.core.shapes import Array, IndexArray, IntArray, Mask

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class TiedRows:
    """Rows with one action for all states of a group."""

    def __init__(self, group_ids: IndexArray) -> None:
        self.group_ids, self.first_members = group_ids, np.unique(group_ids, return_index=True)[1]
        self.membership = make_membership(group_ids)
        self.block_order = np.arange(len(self.first_members))

    def choose_row(self, G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        """Choose the best action of each group by the sum of G over its states."""
        # products with -inf would spoil the sums
        group_G = self.membership @ np.where(np.isfinite(G), G, 0.0)
        group_G[self.membership @ ~np.isfinite(G) > 0] = -np.inf
        incumbent_actions = None if incumbent is None else incumbent[self.first_members]
        actions = choose_actions(group_G, self.membership @ b, incumbent_actions)
        return actions[self.group_ids]

    def project(self, row: IntArray, allowed: Mask) -> IntArray:
        """Give each group the most frequent action of its states that all of them allow."""
        votes = np.where(allowed, np.eye(allowed.shape[1])[row], -np.inf)
        return self.choose_row(votes, votes, None)

    def find_alternatives(self, block: int, row: IntArray, allowed: Mask) -> IntArray:
        """Return rows with every action that all states of a group allow."""
        is_member = self.group_ids == block
        actions = np.flatnonzero(allowed[is_member].all(axis=0)).astype(np.int32)
        return np.where(is_member, actions[:, None], row)


class MonotoneRows:
    """Rows whose actions never decrease along chains of states, in an order of the actions."""

    def __init__(self, chains: list[IndexArray], order: IndexArray) -> None:
        self.chains, self.order, self.rank = chains, order, np.argsort(order)
        self.block_order = np.concatenate(chains)
        self.membership = make_membership(np.arange(len(self.block_order)))

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
        """Move the actions by as few ranks in all as keep the row monotone and allowed."""
        distance = np.abs(self.rank - self.rank[row][:, None])
        G = np.where(allowed, -distance, -np.inf)
        return self.choose_row(G, G, None)

    def find_alternatives(self, block: int, row: IntArray, allowed: Mask) -> IntArray:
        """Return rows with another action in a state and changes that keep them monotone."""
        chain = next(chain for chain in self.chains if block in chain)
        i = int((chain == block).argmax())
        ranks, k = self.rank[row[chain]], self.rank[:, None]  # of the actions in turn
        is_below = np.arange(len(chain)) < i
        actions = self.order[np.where(is_below, np.minimum(ranks, k), np.maximum(ranks, k))]
        actions[:, i] = np.arange(len(k))
        rows = np.repeat(row[None], len(actions), axis=0)
        rows[:, chain] = actions
        return rows[allowed[chain, actions].all(axis=1)]


def make_membership(block_ids: IndexArray) -> csr_matrix:
    """Make the matrix (blocks, n) of the members of each block from the block (n,) of each member.

    >>> make_membership(np.array([0, 1, 0])).toarray().tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    from scipy.sparse import csr_matrix

    n_members = len(block_ids)
    return csr_matrix((np.ones(n_members), (block_ids, np.arange(n_members))))


# The rows (S,) of actions that are open; the actions of a block of states change together, and
# ``membership`` (blocks, S) is 1 if the state belongs to the block. ``choose_row`` returns the open
# row with the largest sum of G (S, A), ``project`` an open row of allowed actions near another one,
# and ``find_alternatives`` the open rows (k, S) for the actions that a block may take.
RowRestriction = TiedRows | MonotoneRows


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


def _find_best_monotone(G: Array, incumbent: IndexArray | None) -> IndexArray:
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
