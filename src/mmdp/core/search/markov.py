"""Search spaces of Markov policies: unrestricted, tied or monotone.

The return is linear in the whole row pi_t of actions at one time. So CADP stays exact, and the
return never falls, if each step takes the best row among those that are open:
argmax_f sum_s G_t(s, f(s)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.problem import (
    TIE_RTOL,
    Array,
    AscentResult,
    Callback,
    IntArray,
    PolicyTable,
    RowChooser,
    SweepType,
    at_time,
)
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.policies import MarkovPolicy, Monotone, PolicyClass, Tied
from mmdp.core.search import gradient
from mmdp.core.search.context import SolveContext
from mmdp.core.search.space import (
    AscentDirection,
    BlockChanges,
    ChangeGenerator,
    SearchSpace,
    estimate_rounding,
)

Int64Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_Q_BYTES = 2**31  # the most that q may take; beyond that a solve uses the paper's sweeps
ASCENT_PASSES = 12  # of one ascent


class MarkovSpace(SearchSpace):
    """Search space of all Markov policies of allowed actions."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "mirror", "gradient")
    other_init_names: ClassVar[tuple[str, ...]] = ("random", "uniform")
    row_chooser: RowChooser | None = None  # maximizes over feasible rows; None: all are

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.prepared = context.prepared
        self.sweep_type: SweepType = choose_sweep_type(context, sweep_type)

    def compute_init(self, name: str, seed: int) -> PolicyTable | None:
        """Compute the initial policy of that name; None stands for WSU."""
        context = self.context
        if name == "wsu":
            return None
        if name in gradient.GRADIENT_INITS:
            return gradient.ascend_and_round(context, name)
        model, T = context.model, context.horizon
        if name == "mvp":
            table: PolicyTable = compute_mvp_actions(context)
        elif name == "random":
            table = MarkovPolicy.random(model, T, seed).table
        else:
            table = MarkovPolicy.uniform(model, T).table
        return self.project(table)

    @staticmethod
    def estimate_passes(name: str) -> int:
        """Estimate the passes of an ascent from the initial policy of that name."""
        return ASCENT_PASSES + (gradient.ASCENT_PASSES if name in gradient.GRADIENT_INITS else 0)

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the initial policy of that name."""
        return self.prepared.problem.estimate_seconds(
            self.prepared.horizon, self.estimate_passes(name)
        )

    def find_model_optimum(self, model_index: int) -> PolicyTable:
        """Compute the optimal policy of one model, projected to the space."""
        single_problem = self.context.model.problem.select_models(
            slice(model_index, model_index + 1)
        )
        prepared = self.context.backend.prepare(single_problem, self.context.horizon)
        actions = prepared.backward("per_model", keep=("actions",)).actions
        assert actions is not None
        return self.project(actions[:, :, 0])

    def project(self, table: PolicyTable) -> PolicyTable:
        """Replace actions that are not allowed by ones that are."""
        x = self.prepared.problem
        allowed = np.broadcast_to(x.allowed, (self.prepared.horizon, x.n_states, x.n_actions))
        if table.ndim == 2:
            is_allowed = np.take_along_axis(allowed, table[:, :, None].astype(np.int64), 2)[:, :, 0]
            return np.where(is_allowed, table, allowed.argmax(axis=2)).astype(np.int32)
        probs = np.where(allowed, table, 0.0)
        probs = np.where(probs.any(axis=2, keepdims=True), probs, allowed)
        return probs / probs.sum(axis=2, keepdims=True)

    def compute_returns(self, candidate: PolicyTable) -> Array:
        """Compute the exact return of a table on every model, (M,)."""
        return self.prepared.compute_returns(
            self.prepared.backward("policy", policy=candidate).first_values
        )

    def ascend_mean(
        self,
        candidates: Iterable[PolicyTable | None],
        *,
        weights: Array | None = None,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        callback: Callback | None = None,
    ) -> list[AscentResult]:
        """Run CADP sweeps from each candidate to a local optimum of the (reweighted) mean."""
        prepared = self.prepared if weights is None else self.prepared.replace(weights=weights)
        return prepared.ascend(
            candidates,
            tol=tol,
            max_sweeps=max_sweeps,
            sweep_type=self.sweep_type,
            choose_row=self.row_chooser,
            callback=callback,
        )

    def improve(
        self, candidate: PolicyTable, returns: Array, objective: Objective
    ) -> tuple[PolicyTable, Array]:
        """Run a round of single changes, compiled if the backend and the objective allow it."""
        if self.row_chooser is None and objective.compilable_form is not None:
            rho = objective.relative_returns(returns, self.context.oracle_returns)
            tie_tolerance = estimate_rounding(
                objective,
                self.prepared.problem.weights,
                rho,
                self.compute_magnitudes(candidate, rho),
            )
            improved = self.prepared.improve_objective(
                candidate, rho, objective.compilable_form, tie_tolerance
            )
            if improved is not None:
                return improved
        return super().improve(candidate, returns, objective)

    def iter_changes(self, candidate: PolicyTable, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single changes of actions, from the last time to the first."""
        x, prepared = self.prepared.problem, self.prepared
        d = prepared.forward_by_start(lambda prepared_start: prepared_start.forward(candidate))
        actions: IntArray = np.array(candidate, np.int32)
        states, v = np.arange(x.n_states), x.terminal
        for t in reversed(range(prepared.horizon)):
            self.context.check_time()  # a round takes much longer than a pass
            q, allowed = prepared.q_step(t, v), at_time(x.allowed, t)
            s, a = np.nonzero(~allowed)
            q[s, a] = q[s, actions[t, s]]  # an action that is not allowed changes nothing
            b = x.discount**t * d[t]
            if direction.may_improve(self._compute_gains(b, q, actions[t], direction)).any():
                yield from self._iter_row_changes(b, q, actions[t], allowed, direction)
            v = q[states, actions[t]]
        return actions, prepared.compute_returns(v)

    def _compute_gains(
        self, d: Array, q: Array, actions: IntArray, direction: AscentDirection
    ) -> Array:
        """Compute what each other action adds to the reweighted mean, (S, A)."""
        G = np.matmul(q, self.prepared.joint_weights(d, direction.risk_weights())[:, :, None])[
            :, :, 0
        ]
        gains: Array = G - G[np.arange(len(actions)), actions][:, None]
        return gains

    def _iter_row_changes(
        self, d: Array, q: Array, actions: IntArray, allowed: Mask, direction: AscentDirection
    ) -> BlockChanges:
        """Iterate over the changes of one time and apply them to ``actions``, top states first.

        After a change the gains are computed anew, since the direction of ascent may differ.
        """
        prepared = self.prepared
        visit_probs = prepared.credit_to_start(d, np.ones_like(q[:, 0]))  # (S, M)
        may_improve = None
        for s in np.argsort(-(visit_probs @ prepared.problem.weights), kind="stable"):
            if may_improve is None:
                gains = self._compute_gains(d, q, actions, direction)
                may_improve = np.logical_or.reduce(direction.may_improve(gains), axis=1)
            if may_improve[s]:
                change = q[s] - q[s, actions[s]]
                a = (yield prepared.credit_to_start(d[[s]][:, None], change[None]))[0]
                if a >= 0:
                    actions[s], may_improve = a, None


class RestrictedMarkovSpace(MarkovSpace):
    """Search space of Markov policies with restricted rows; projects tables to probabilities."""

    row_chooser: RowChooser

    def project(self, table: PolicyTable) -> PolicyTable:
        """Return a feasible table unchanged, and others as probabilities."""
        projected_table = super().project(table)
        return (
            projected_table
            if self._is_feasible(projected_table)
            else to_probabilities(projected_table, self.prepared.problem.n_actions)
        )

    def _is_feasible(self, table: PolicyTable) -> bool:
        """Return whether the table satisfies the restriction."""
        one_hot = np.eye(self.prepared.problem.n_actions)
        return not is_randomized(table) and all(
            (self.row_chooser(one_hot[row], one_hot[row], None) == row).all() for row in table
        )

    def compute_init(self, name: str, seed: int) -> PolicyTable | None:
        table = super().compute_init(name, seed)
        return None if table is None else to_probabilities(table, self.prepared.problem.n_actions)

    def _iter_row_changes(
        self, d: Array, q: Array, actions: IntArray, allowed: Mask, direction: AscentDirection
    ) -> BlockChanges:
        """Yield the best whole row for the risk weights, then single changes."""
        states = np.arange(len(q))
        visit_probs = self.prepared.credit_to_start(d, np.ones_like(q[:, 0]))  # (S, M)
        gains = self.prepared.credit_to_start(
            d[:, None], q - q[states, actions][:, None]
        )  # (S, A, M)
        row = self.row_chooser(
            np.where(allowed, gains @ direction.risk_weights(), -np.inf), visit_probs, actions
        )
        if (yield gains[states, row].sum(axis=0)[None, None])[0] >= 0:
            actions[:] = row
            gains -= gains[states, actions][:, None]
        yield from self._iter_block_changes(visit_probs, gains, actions, allowed)

    def _iter_block_changes(
        self, visit_probs: Array, gains: Array, actions: IntArray, allowed: Mask
    ) -> BlockChanges:
        """Iterate over single changes that keep the restriction, from gains (S, A, M)."""
        raise NotImplementedError

    def ascend_mean(
        self,
        candidates: Iterable[PolicyTable | None],
        *,
        weights: Array | None = None,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        callback: Callback | None = None,
    ) -> list[AscentResult]:
        """Run CADP sweeps; each trace begins with the first feasible policy."""
        randomized_flags: list[bool] = []

        def iter_and_flag() -> Iterator[PolicyTable | None]:
            for candidate in candidates:
                randomized_flags.append(is_randomized(candidate))
                yield candidate

        local_optima = super().ascend_mean(
            iter_and_flag(), weights=weights, tol=tol, max_sweeps=max_sweeps, callback=callback
        )
        return [
            optimum._replace(trace=optimum.trace[1:]) if was_randomized else optimum
            for optimum, was_randomized in zip(local_optima, randomized_flags, strict=True)
        ]


class TiedMarkovSpace(RestrictedMarkovSpace):
    """Search space of Markov policies with one action for all states of a group."""

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context, sweep_type)
        policy_class = context.policy_class
        assert isinstance(policy_class, Tied)
        group_ids = policy_class.get_group_ids(context.model)
        self.row_chooser = make_tied_chooser(group_ids)
        self.membership = np.eye(group_ids.max() + 1)[group_ids].T  # (groups, S)

    def _iter_block_changes(
        self, visit_probs: Array, gains: Array, actions: IntArray, allowed: Mask
    ) -> BlockChanges:
        """Yield the gains of every action of every group, and apply the choices."""
        group_gains = np.tensordot(self.membership, gains, 1)
        group_gains[self.membership @ ~allowed > 0] = 0.0
        order = np.argsort(
            -(self.membership @ (visit_probs @ self.prepared.problem.weights)), kind="stable"
        )
        choices = yield group_gains[order]
        for g in np.flatnonzero(choices >= 0):
            actions[self.membership[order[g]] > 0] = choices[g]


class MonotoneMarkovSpace(RestrictedMarkovSpace):
    """Search space of Markov policies whose actions never decrease along chains of states."""

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context, sweep_type)
        policy_class = context.policy_class
        assert isinstance(policy_class, Monotone)
        chains, order = (
            policy_class.get_state_chains(context.model),
            policy_class.get_action_order(context.model),
        )
        self.action_rank, self.row_chooser = np.argsort(order), make_monotone_chooser(chains, order)
        self.neighbors: dict[int, tuple[int | None, int | None]] = {
            int(s): (below, above)
            for chain in chains
            for below, s, above in zip([None, *chain[:-1]], chain, [*chain[1:], None], strict=True)
        }

    def _iter_block_changes(
        self, visit_probs: Array, gains: Array, actions: IntArray, allowed: Mask
    ) -> BlockChanges:
        """Yield the gains of the monotone actions of each state, and apply the choices."""
        for s in np.argsort(-(visit_probs @ self.prepared.problem.weights), kind="stable"):
            choices = np.flatnonzero(self._find_monotone_actions(int(s), actions, allowed))
            a = (yield gains[s, choices][None])[0]
            if a >= 0:
                actions[s] = choices[a]

    def _find_monotone_actions(self, s: int, actions: IntArray, allowed: Mask) -> Mask:
        """Return which actions state s may take, (A,), given those of its neighbors."""
        is_open: Mask = allowed[s].copy()
        below, above = self.neighbors.get(s, (None, None))
        if below is not None:
            is_open &= self.action_rank >= self.action_rank[actions[below]]
        if above is not None:
            is_open &= self.action_rank <= self.action_rank[actions[above]]
        return is_open


# ---------------------------------------------------------------------- rows
def make_row_chooser(policy_class: PolicyClass, model: MMDP) -> RowChooser | None:
    """Make the function that maximizes over feasible rows; None if every row is feasible."""
    if isinstance(policy_class, Tied):
        return make_tied_chooser(policy_class.get_group_ids(model))
    if isinstance(policy_class, Monotone):
        return make_monotone_chooser(
            policy_class.get_state_chains(model), policy_class.get_action_order(model)
        )
    return None


def make_tied_chooser(group_ids: Int64Array) -> RowChooser:
    """Make the function that chooses the action with the largest sum of G over each group."""
    first_members = np.unique(group_ids, return_index=True)[1]
    membership = np.eye(len(first_members))[group_ids].T

    def choose_row(G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        # products with -inf would spoil the sums
        group_G = membership @ np.where(np.isfinite(G), G, 0.0)
        group_G[membership @ ~np.isfinite(G) > 0] = -np.inf
        incumbent_actions = None if incumbent is None else incumbent[first_members]
        row: IntArray = choose_actions(group_G, membership @ b, incumbent_actions)[group_ids]
        return row

    return choose_row


def make_monotone_chooser(chains: list[Int64Array], order: Int64Array) -> RowChooser:
    """Make the function that chooses the best monotone row by dynamic programming.

    Along a chain s_1, s_2, ... the best total so far that ends with an action of rank k is
    F_i(k) = G(s_i, k) + max_{j <= k} F_{i-1}(j).
    """
    rank = np.argsort(order)

    def choose_row(G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        row = np.empty(len(G), dtype=np.int32)
        for chain in chains:
            ranked_G = G[chain][:, order]
            incumbent_ranks = None if incumbent is None else rank[incumbent[chain]]
            row[chain] = order[_find_best_monotone(ranked_G, incumbent_ranks)]
        return row

    return choose_row


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


def to_probabilities(table: PolicyTable, n_actions: int) -> Array:
    """Convert a policy table to probabilities (T, S, A)."""
    probs: Array = np.asarray(table if table.ndim == 3 else np.eye(n_actions)[table], dtype=float)
    return probs


# ---------------------------------------------------------------------- initial policies
def choose_sweep_type(context: SolveContext, sweep_type: SweepType = "two-way") -> SweepType:
    """Choose the sweeps: those of the paper if q is too large to keep in memory."""
    x = context.problem
    q_bytes = 8 * context.horizon * x.n_states * x.n_actions * x.n_models
    return sweep_type if q_bytes <= MAX_Q_BYTES else "paper"


def compute_mvp_actions(context: SolveContext) -> PolicyTable:
    """Compute the optimal actions (T, S) of the mean model, ties to the lowest action."""
    mean_problem = context.model.mean_problem(context.problem.weights)
    prepared = context.backend.prepare(
        mean_problem.restrict_actions(context.problem.allowed), context.horizon
    )
    backward_pass = prepared.backward("weighted", weights=mean_problem.prior_weights())
    return backward_pass.actions
