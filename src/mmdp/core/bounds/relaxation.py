"""The Lagrangian relaxation of "one policy for all models" (the occupancy dual).

Every model m (or pair of models) may choose for itself, and pays y_{t,m}(s, a) for taking a;
the common policy is paid for it. With u_{t,m}(s, a) = P[m, s, a at t] and the reach bounds
L <= P[m, s at t] <= B, every Markov policy pi satisfies L pi <= u <= B pi, so for any y

    D(y) = sum_groups V_group(r - y) + sum_{t,s} gamma^t max_a H_{t,s}(a),
    H_{t,s}(a) = sum_m (B y+ - L y-)

bounds the value of every Markov policy. V_group is the optimum of one model (an MDP), or of
two models with a belief between them, which is at most the sum of theirs: pairs are tighter.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.problem import Array, ModelPairs, VisitBounds
from mmdp.core.kernels.rewards import max_abs_rewards
from mmdp.core.timing import TimeUp, solver_clock

Mask = npt.NDArray[np.bool_]
BLOCK_SIZE = 32  # states whose reach is found before the clock is looked at
EPS = float(np.finfo(np.float64).eps)


def expand_allowed(problem: Problem, horizon: int) -> Mask:
    """Return the allowed actions at every time as a new array, (T, S, A)."""
    shape = (horizon, problem.n_states, problem.n_actions)
    return np.array(np.broadcast_to(problem.allowed, shape))


def compute_reach_bounds(prepared: PreparedProblem, *, deadline: float = math.inf) -> VisitBounds:
    """Compute the least and largest P[m, s at t] over all policies, (T, S, M), rounded outwards.

    Raises TimeUp after the deadline.
    """
    blocks: list[VisitBounds] = []
    for first_state in range(0, prepared.problem.n_states, BLOCK_SIZE):
        if solver_clock() > deadline:
            raise TimeUp
        states = np.arange(prepared.problem.n_states)[first_state : first_state + BLOCK_SIZE]
        blocks.append(prepared.compute_visit_bounds(states))
    lo, hi = (np.concatenate(x, axis=1) for x in zip(*blocks, strict=True))
    rounding_error = 4 * EPS * (prepared.horizon + 1) * (prepared.problem.n_states + 4)
    return VisitBounds(lo * (1 - rounding_error), hi * (1 + rounding_error))


class LagrangianRelaxation:
    """Dual function D(y) for given allowed actions and pairs of models, with its subgradient.

    Models in none of the ``pairs`` stand alone. After :meth:`evaluate`, ``occupancy`` (T, S, A, M)
    is the one that models and pairs chose, ``common_payoffs`` (T, S, A) is H and ``best_actions``
    (T, S) its maximizer.
    """

    def __init__(
        self,
        prepared: PreparedProblem,
        pairs: ModelPairs | None = None,
        *,
        deadline: float = math.inf,
    ) -> None:
        self.prepared, self.horizon = prepared, prepared.horizon
        problem, horizon = prepared.problem, prepared.horizon
        self.discount_powers = problem.discount ** np.arange(horizon)
        self.occupancy = np.zeros((horizon, problem.n_states, problem.n_actions, problem.n_models))
        self.common_payoffs, self.best_actions = (
            np.zeros(self.occupancy.shape[:3]),
            np.zeros(self.occupancy.shape[:2], np.int32),
        )
        self.set_pairs(pairs)
        self.restrict_actions(problem.allowed, deadline)

    @property
    def problem(self) -> Problem:
        """Arrays of the prepared problem."""
        return self.prepared.problem

    @property
    def allowed_actions(self) -> Mask:
        """Allowed actions as a new array, (T, S, A)."""
        return expand_allowed(self.problem, self.horizon)

    def restrict_actions(self, allowed: Mask, deadline: float = math.inf) -> None:
        """Set the allowed actions and compute their reach bounds; multipliers stay valid."""
        start_time = solver_clock()
        self.prepared = self.prepared.replace(allowed=allowed)
        self.reach = compute_reach_bounds(self.prepared, deadline=deadline)
        # seconds to find them again for allowed actions that vary with time
        is_time_invariant = self.problem.storage.n_times == len(allowed) == 1
        self.reach_seconds = solver_clock() - start_time
        self.reach_seconds *= self.horizon / 2 if is_time_invariant else 1.0

    def set_pairs(self, pairs: ModelPairs | None) -> None:
        """Set the pairs of models, the others standing alone; multipliers stay valid."""
        if pairs is not None:
            is_alone = np.ones(self.problem.n_models, dtype=bool)
            is_alone[pairs.first] = is_alone[pairs.second] = False
            first, second = (
                np.append(x, np.flatnonzero(is_alone)) for x in (pairs.first, pairs.second)
            )
            pairs = pairs._replace(first=first, second=second)
        self.pairs = pairs

    def evaluate(self, y: Array | None = None, *, subgradient: bool = True) -> float:
        """Compute D(y); without y the bound of the groups alone."""
        total = self.evaluate_groups(y, subgradient=subgradient)
        if y is None:
            return total
        self.common_payoffs, self.best_actions = self.prepared.compute_common_term(y, self.reach)
        return total + float(self.discount_powers @ self.common_payoffs.max(axis=2).sum(axis=1))

    def evaluate_groups(
        self, y: Array | None, *, subgradient: bool = False, allowed: Mask | None = None
    ) -> float:
        """Compute the sum of the groups' values; ``allowed`` (T, S, A): over these actions."""
        prepared = self.prepared if allowed is None else self.prepared.replace(allowed=allowed)
        occupancy = self.occupancy if subgradient else None
        if self.pairs is None:
            return float(prepared.compute_weighted_optima(y, occupancy).sum())
        return float(prepared.compute_pair_optima(self.pairs, y, occupancy).sum())

    def update_direction(self, y: Array, d: Array, momentum: float) -> float:
        """Set d to momentum d + subgradient / B at y; return <subgradient, d>, <= 0 at an optimum.

        Falls back to the subgradient alone if the old direction no longer descends.
        """
        for weight in (momentum, 0.0):
            slope = self.prepared.update_direction(
                y, self.occupancy, self.best_actions, self.reach, weight, d
            )
            if slope > 1e-300:
                return slope
        return 0.0

    def estimate_rounding(self, y: Array | None) -> float:
        """Bound the floating-point error of D(y), which is added to every bound."""
        x = self.problem
        reward_size = float(x.weights @ max_abs_rewards(x.r))
        terminal_size = float(x.weights @ np.abs(x.terminal).max(axis=0))
        group_size, common_size = reward_size, 0.0
        if y is not None:
            group_size += float(np.abs(y).max(initial=0.0))
            payoff_sizes = np.abs(y).max(axis=2) * self.reach.hi
            common_size = float(self.discount_powers @ payoff_sizes.sum(axis=(1, 2)))
        group_size = (
            group_size * float(self.discount_powers.sum())
            + x.discount**self.horizon * terminal_size
        )
        row_length = x.storage.max_row_length
        n_terms = (self.horizon + 1) * (row_length + 32) + x.n_models + x.n_states
        return EPS * (
            4 * n_terms * group_size + (x.n_models + self.common_payoffs.size + 8) * common_size
        )
