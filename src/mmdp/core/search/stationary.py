"""Search spaces of stationary policies.

With F_m = (I - gamma P_m)^-1, values v_m = F_m r_m and visits d_m = mu F_m of the current policy,
taking action a in state s instead moves the return of model m by exactly

    d_m(s) (q_m(s, a) - v_m(s)) / (1 - gamma (p_m(.|s, a) - p_m(.|s, pi)) x_m),   x_m = F_m e_s,

and F_m by a matrix of rank one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.costs import estimate_stationary_seconds
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.kernels.problem import (
    TIE_RTOL,
    Array,
    AscentResult,
    Callback,
    IntArray,
    PolicyTable,
    SweepType,
)
from mmdp.core.objectives import Objective
from mmdp.core.policies import Monotone, Tied
from mmdp.core.search.context import SolveContext
from mmdp.core.search.gradient import compute_gradient, make_discount_powers
from mmdp.core.search.markov import MarkovSpace, to_probabilities
from mmdp.core.search.space import AscentDirection, ChangeGenerator, SearchSpace
from mmdp.core.timing import TimeUp, solver_clock

Mask = npt.NDArray[np.bool_]

ROUNDS_PER_ASCENT = 33  # most rounds of one ascent over a number of decisions
STEPS_PER_CHECK = 16  # decisions between two looks at the clock
SETTLED_TOL = 1e-4  # share by which these move values that are near their end
MAX_SINGLE_CHANGES = 20  # single changes that are tried before a search by gradient ends
MAX_EXHAUSTIVE = (
    500  # single changes over a number of decisions: up to these, all of them are tried
)


class StationarySpace(SearchSpace):
    """Search space of stationary policies; candidates are rows (S,) of actions."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "qmdp")
    sweep_type = "single states"

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.infinite_horizon = context.infinite_horizon
        self.allowed: Mask = context.problem.allowed[0]
        self.is_exhaustive = isinstance(self.infinite_horizon, DirectSolver)

    # ------------------------------------------------------------ initial policies
    def compute_init(self, name: str, seed: int) -> IntArray:
        """Compute an initial row: WSU's first row, the rows of MVP or QMDP, or random actions."""
        context = self.context
        if name == "wsu":
            row: IntArray = _compute_wsu_row(context)
        elif name == "mvp":
            mean_problem = context.model.mean_problem(context.problem.weights)
            # gamma, or less than 1: the mean of proper models may be improper
            mean_problem = mean_problem._replace(
                discount=1 - 1 / self.infinite_horizon.effective_horizon
            )
            row = (
                InfiniteHorizon.from_problem(mean_problem, context.stopwatch.raise_if_expired)
                .compute_model_optima()
                .actions[0]
            )
        elif name == "qmdp":
            values = context.model_optima.values
            mean_q = np.tensordot(
                context.problem.weights, self.infinite_horizon.compute_q(values), 1
            )
            row = np.where(self.allowed, mean_q, -np.inf).argmax(axis=1)
        else:
            scores = np.random.default_rng(seed).random(self.allowed.shape)
            row = np.where(self.allowed, scores, -1.0).argmax(axis=1)
        return self.project(row)

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the size of the problem."""
        return estimate_stationary_seconds(self.infinite_horizon.problem.work)

    def find_model_optimum(self, model_index: int) -> IntArray:
        """Return the optimal row of one model, projected to the space."""
        return self.project(self.context.model_optima.actions[model_index])

    def project(self, row: IntArray) -> IntArray:
        """Replace actions that are not allowed by ones that are."""
        is_allowed = self.allowed[np.arange(len(row)), row]
        return np.where(is_allowed, row, self.allowed.argmax(axis=1)).astype(np.int32)

    # ------------------------------------------------------------ steps
    def compute_returns(self, candidate: IntArray) -> Array:
        return self.infinite_horizon.compute_returns(candidate)

    def compute_magnitudes(self, candidate: IntArray, rho: Array) -> Array:
        """Compute the sum of absolute discounted rewards of a row, (M,)."""
        r = self.infinite_horizon.r[:, np.arange(len(candidate)), candidate]
        magnitudes: Array = (self.infinite_horizon.compute_occupancy(candidate) * np.abs(r)).sum(
            axis=1
        )
        return magnitudes

    def iter_changes(self, candidate: IntArray, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single actions, by exact rank-one updates if the matrices fit in memory."""
        if not isinstance(self.infinite_horizon, DirectSolver):
            return (yield from self._try_by_gradient(candidate, direction.risk_weights()))
        lam, update = (
            self.context.problem.weights,
            _RankOneUpdate(self.infinite_horizon, candidate.copy()),
        )
        for s in np.argsort(-(lam @ update.d), kind="stable"):
            allowed_actions = np.flatnonzero(self.allowed[s])
            a = (yield update.compute_changes(int(s))[allowed_actions][None])[0]
            if a >= 0:
                update.apply_change(int(s), int(allowed_actions[a]))
            self._check_time(update.policy)
        return update.policy, self.infinite_horizon.compute_returns(update.policy)

    def _check_time(self, row: IntArray) -> None:
        """Check the time limit; keep the current row as incumbent before stopping."""
        try:
            self.context.check_time()
        except TimeUp:
            self.context.keep_best(
                row, self.context.objective_value(self.context.compute_returns(row))
            )
            raise

    def _try_by_gradient(self, candidate: IntArray, weights: Array) -> ChangeGenerator:
        """Change the states with the largest gradient gains sum_m weights_m d_m q_m.

        All at once first, then half of them and so on, then some of them one by one.
        """
        x, v, d = (
            self.infinite_horizon,
            self.infinite_horizon.compute_values(candidate),
            self.infinite_horizon.compute_occupancy(candidate),
        )
        G = np.einsum("m,ms,msa->sa", weights, d, x.compute_q(v) - v[:, :, None])
        rho = self.context.problem.compute_returns(v.T)
        min_gain = TIE_RTOL * float(weights @ self.compute_magnitudes(candidate, rho))
        return (
            yield from _try_state_sets(
                self, candidate, rho, np.where(self.allowed, G, -np.inf), min_gain
            )
        )


def _try_state_sets(
    space: SearchSpace, candidate: PolicyTable, rho: Array, G: Array, min_gain: float
) -> ChangeGenerator:
    """Change the states whose gain by the gradient G (S, A) exceeds ``min_gain``.

    All of them at once first, then half of them and so on, then some of them one by one.
    """
    best_actions, gains = G.argmax(axis=1).astype(np.int32), G.max(axis=1)
    order = np.argsort(-gains, kind="stable")
    order = order[gains[order] > min_gain]
    sizes = [len(order) >> k for k in range(len(order).bit_length())]
    for states in [*(order[:size] for size in sizes), *order[1:MAX_SINGLE_CHANGES, None]]:
        space.context.check_time()
        trial = candidate.copy()
        trial[..., states] = best_actions[states]
        returns = space.compute_returns(trial)
        if (yield (returns - rho)[None, None])[0] >= 0:
            return trial, returns
    return candidate, rho


class RepeatedRowSpace(MarkovSpace):
    """Search space of stationary policies over a finite horizon: tables (T, S) of equal rows."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp")

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context, sweep_type)
        self.allowed: Mask = np.logical_and.reduce(context.problem.allowed)
        self.is_exhaustive = self.allowed.size <= MAX_EXHAUSTIVE

    def compute_init(self, name: str, seed: int) -> PolicyTable:
        """Compute an initial table and project it to equal rows."""
        table = super().compute_init(name, seed)
        return self.project(self.context.solve_wsu()[0] if table is None else table)

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the size of the problem."""
        passes = ROUNDS_PER_ASCENT * (
            self.allowed.size if self.is_exhaustive else MAX_SINGLE_CHANGES
        )
        return self.prepared.problem.estimate_seconds(self.prepared.horizon, passes)

    def project(self, table: PolicyTable) -> IntArray:
        """Take the most frequent action of each state at all times."""
        probs = to_probabilities(super().project(table), self.allowed.shape[1]).mean(axis=0)
        row = np.where(self.allowed, probs, -1.0).argmax(axis=1).astype(np.int32)
        return np.repeat(row[None], self.prepared.horizon, axis=0)

    def ascend_mean(
        self,
        candidates: Iterable[PolicyTable | None],
        *,
        weights: Array | None = None,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        callback: Callback | None = None,
    ) -> list[AscentResult]:
        return SearchSpace.ascend_mean(
            self,
            candidates,
            weights=weights,
            tol=tol,
            max_sweeps=max_sweeps,
            callback=callback,
        )

    def improve(
        self, candidate: PolicyTable, returns: Array, objective: Objective
    ) -> tuple[PolicyTable, Array]:
        return SearchSpace.improve(self, candidate, returns, objective)

    def iter_changes(self, candidate: PolicyTable, direction: AscentDirection) -> ChangeGenerator:
        """Change states by the summed gradient; if that fails, try every action of every state."""
        weights, actions = direction.risk_weights(), candidate.astype(np.int64)
        _, G, rho = compute_gradient(self.prepared.replace(weights=weights), candidate)
        G = (
            make_discount_powers(self.context) * (G - np.take_along_axis(G, actions[..., None], 2))
        ).sum(0)
        min_gain = TIE_RTOL * float(weights @ self.compute_magnitudes(candidate, rho))
        G = np.where(self.allowed, G, -np.inf)
        trial, returns = yield from _try_state_sets(self, candidate, rho, G, min_gain)
        if trial is candidate and self.is_exhaustive:
            return (
                yield from self._try_each_state(candidate.copy(), rho, np.argsort(-G.max(axis=1)))
            )
        return trial, returns

    def _try_each_state(
        self, table: PolicyTable, rho: Array, order: npt.NDArray[np.int64]
    ) -> ChangeGenerator:
        """Yield the exact gains of every action of each state, and apply the choices."""
        for s in order:
            tables = np.repeat(table[None], int(self.allowed[s].sum()), axis=0)
            tables[:, :, s] = np.flatnonzero(self.allowed[s])[:, None]
            returns = np.array([self.compute_returns(trial) for trial in tables])
            a = (yield (returns - rho)[None])[0]
            if a >= 0:
                table, rho = tables[a], returns[a]
            self.context.check_time()
        return table, rho


class RestrictedStationarySpace(StationarySpace):
    """Search space of restricted stationary policies; whole rows are tried, block by block."""

    def estimate_ascent_seconds(self, name: str) -> float:
        x = self.infinite_horizon.problem
        return x.n_states * x.n_actions * estimate_stationary_seconds(x.work)

    def iter_alternatives(self, row: IntArray) -> Iterator[IntArray]:
        """Iterate over alternative rows (k, S), one block at a time; row may change in between."""
        raise NotImplementedError

    def iter_changes(self, candidate: IntArray, direction: AscentDirection) -> ChangeGenerator:
        """Yield the exact gains of the alternative rows, and apply the choices."""
        row, rho = candidate.copy(), self.infinite_horizon.compute_returns(candidate)
        for rows in self.iter_alternatives(row):
            returns = np.array([self.infinite_horizon.compute_returns(trial) for trial in rows])
            a = (yield (returns - rho)[None])[0]
            if a >= 0:
                row[:], rho = rows[a], returns[a]
                self.context.keep_best(rows[a], self.context.objective_value(rho))
            self.context.check_time()
        return row, rho


def _compute_wsu_row(context: SolveContext) -> IntArray:
    """Compute the first row of WSU's policy over many decisions, (S,), in half of the time."""
    deadline = (solver_clock() + context.stopwatch.deadline) / 2
    n_steps = min(STEPS_PER_CHECK, context.horizon)
    prepared, prior_weights = (
        context.prepared.replace(horizon=n_steps),
        context.problem.prior_weights(),
    )
    for _ in range(-(-context.horizon // n_steps)):
        backward_pass, previous = (
            prepared.backward("weighted", weights=prior_weights),
            prepared.problem.terminal,
        )
        prepared = prepared.replace(terminal=backward_pass.first_values)
        is_settled = (
            np.abs(backward_pass.first_values - previous).max()
            <= SETTLED_TOL * np.abs(backward_pass.first_values).max()
        )
        if is_settled or solver_clock() > deadline:
            break
    return backward_pass.actions[0]


class TiedStationarySpace(RestrictedStationarySpace):
    """Search space of stationary policies with one action for all states of a group."""

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        policy_class = context.policy_class
        assert isinstance(policy_class, Tied)
        self.group_ids = policy_class.get_group_ids(context.model)
        n_groups = int(self.group_ids.max()) + 1
        members = [self.allowed[self.group_ids == g] for g in range(n_groups)]
        self.common_allowed = np.array(
            [member_rows.all(axis=0) for member_rows in members]
        )  # (groups, A)

    def project(self, row: IntArray) -> IntArray:
        """Give each group the most frequent action of its states that all of them allow."""
        votes = np.array(
            [
                np.bincount(row[self.group_ids == g], minlength=self.allowed.shape[1])
                for g in range(len(self.common_allowed))
            ]
        )
        return (
            np.where(self.common_allowed, votes, -1).argmax(axis=1).astype(np.int32)[self.group_ids]
        )

    def iter_alternatives(self, row: IntArray) -> Iterator[IntArray]:
        """Iterate over the rows with another action in one group."""
        for g, allowed in enumerate(self.common_allowed):
            a = np.flatnonzero(allowed).astype(np.int32)
            yield np.where(self.group_ids == g, a[:, None], row)


class MonotoneStationarySpace(RestrictedStationarySpace):
    """Search space of stationary policies whose actions never decrease along chains of states."""

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        policy_class = context.policy_class
        assert isinstance(policy_class, Monotone)
        self.chains, self.action_order = (
            policy_class.get_state_chains(context.model),
            policy_class.get_action_order(context.model),
        )
        self.action_rank = np.argsort(self.action_order)

    def project(self, row: IntArray) -> IntArray:
        """Move each action to the nearest one that keeps the row monotone and allowed."""
        projected_row = row.astype(np.int32).copy()
        for chain in self.chains:
            allowed_by_rank = self.allowed[chain][:, self.action_order]  # by rank
            min_ranks, max_rank = [0], len(self.action_order)
            for allowed_ranks in allowed_by_rank:
                min_ranks.append(min_ranks[-1] + int(allowed_ranks[min_ranks[-1] :].argmax()))
            for s, allowed_ranks, min_rank in reversed(
                list(zip(chain, allowed_by_rank, min_ranks[1:], strict=True))
            ):
                ranks = min_rank + np.flatnonzero(allowed_ranks[min_rank : max_rank + 1])
                max_rank = int(ranks[np.abs(ranks - self.action_rank[row[s]]).argmin()])
                projected_row[s] = self.action_order[max_rank]
        return projected_row

    def iter_alternatives(self, row: IntArray) -> Iterator[IntArray]:
        """Iterate over rows with another action in a state and changes that keep them monotone."""
        for chain in self.chains:
            for i in range(len(chain)):
                rank, k = self.action_rank[row[chain]], np.arange(len(self.action_order))[:, None]
                is_below = np.arange(len(chain)) < i
                alternatives = self.action_order[
                    np.where(is_below, np.minimum(rank, k), np.maximum(rank, k))
                ]
                alternatives[:, i] = self.action_order
                rows = np.repeat(row[None], len(alternatives), axis=0)
                rows[:, chain] = alternatives
                yield rows[self.allowed[chain, alternatives].all(axis=1)]


class _RankOneUpdate:
    """Row with its inverse F, values v and occupancy d, updated for one state at a time."""

    def __init__(self, solver: DirectSolver, policy: IntArray) -> None:
        self.solver, self.policy = solver, policy
        self.F = solver.compute_inverse(policy)
        r = solver.r[:, np.arange(len(policy)), policy]
        self.v = np.matmul(self.F, r[:, :, None])[:, :, 0]
        self.d = np.matmul(solver.problem.initial.T[:, None], self.F)[:, 0]

    def compute_changes(self, s: int) -> Array:
        """Compute what each action in state s adds to rho, (A, M)."""
        gamma, P = self.solver.problem.discount, self.solver.P[:, s]
        q = self.solver.r[:, s] + gamma * np.matmul(P, self.v[:, :, None])[:, :, 0]
        self.transition_change = P - P[:, [self.policy[s]]]
        self.denominator = (
            1.0 - gamma * np.matmul(self.transition_change, self.F[:, :, s, None])[:, :, 0]
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # actions that are not allowed
            self.value_step = (
                q - self.v[:, [s]]
            ) / self.denominator  # (M, A): how far v moves along x_m
        changes: Array = (self.d[:, [s]] * self.value_step).T
        return changes

    def apply_change(self, s: int, a: int) -> None:
        """Set the action of state s, after :meth:`compute_changes` of that state."""
        gamma = self.solver.problem.discount
        column = self.F[:, :, s].copy()
        row = np.matmul(self.transition_change[:, [a]], self.F)[:, 0] * (
            gamma / self.denominator[:, [a]]
        )
        self.v += column * self.value_step[:, [a]]
        self.d += self.d[:, [s]] * row
        self.F += column[:, :, None] * row[:, None, :]
        self.policy[s] = a
