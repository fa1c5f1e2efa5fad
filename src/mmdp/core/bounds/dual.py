"""The Lagrangian relaxation of "one policy for all models" (the occupancy dual).

Every model m (or pair of models) may choose for itself, and pays y_{t,m}(s, a) for taking a;
the common policy is paid for it. With u_{t,m}(s, a) = P[m, s, a at t] and the reach bounds
L <= P[m, s at t] <= B, every Markov policy pi satisfies L pi <= u <= B pi, so for any y

    D(y) = sum_groups V_group(r - y) + sum_{t,s} gamma^t max_a H_{t,s}(a),
    H_{t,s}(a) = sum_m (B y+ - L y-)

bounds the value of every Markov policy. V_group is the optimum of one model (an MDP), or of
two models with a belief between them, which is at most the sum of theirs: pairs are tighter.

Over stationary policies and an infinite horizon it is the same without the time: u_m(s, a) is the
discounted number of times that m is the model, s the state and a the action, and L <= u_m(s) <= B
the least and the largest that any stationary policy makes of it.

D is minimized by deflected Polyak steps with a decreasing level.

A step aims at the best bound so far minus the level, but never below the value of the
incumbent policy, which no bound can pass. After steps without progress the search returns to
its best y and aims at less. Every y on the way is a valid bound, so the search can stop at
any time. With an incumbent, actions that no better policy can take are eliminated on the way
(reduced-cost fixing), which narrows L and B.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np

from mmdp.core.evaluate import Evaluator
from mmdp.core.kernels import PreparedProblem, Problem
from mmdp.core.kernels.infinite import DirectSolver, ModelOptima
from mmdp.core.kernels.problem import EPS, ModelPairs, PolicyTable, VisitBounds
from mmdp.core.kernels.rewards import max_abs_rewards
from mmdp.core.shapes import Array, Mask
from mmdp.core.timing import TimeUp, solver_clock

BLOCK_SIZE = 32  # states whose reach is found before the clock is looked at


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
        self.prepared, x = prepared, prepared.problem
        self.discount_powers = x.discount ** np.arange(prepared.horizon)
        self.occupancy = np.zeros((prepared.horizon, x.n_states, x.n_actions, x.n_models))
        self.common_payoffs: Array = np.zeros(self.occupancy.shape[:3])
        self.set_pairs(pairs)
        self.restrict_actions(x.allowed, deadline)

    @property
    def problem(self) -> Problem:
        """Arrays of the prepared problem."""
        return self.prepared.problem

    @property
    def allowed_actions(self) -> Mask:
        """Allowed actions as a new array, (T, S, A)."""
        return Evaluator(self.prepared).allowed.copy()

    def restrict_actions(self, allowed: Mask, deadline: float = math.inf) -> None:
        """Set the allowed actions and compute their reach bounds; multipliers stay valid."""
        start_time = solver_clock()
        self.prepared = self.prepared.replace(allowed=allowed)
        self.reach = compute_reach_bounds(self.prepared, deadline=deadline)
        # seconds to find them again for allowed actions that vary with time
        is_time_invariant = self.problem.storage.n_times == len(allowed) == 1
        n_repeats = self.prepared.horizon / 2 if is_time_invariant else 1.0
        self.reach_seconds = n_repeats * (solver_clock() - start_time)

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
        x, horizon = self.problem, self.prepared.horizon
        reward_size = float(x.weights @ max_abs_rewards(x.r))
        terminal_size = float(x.weights @ np.abs(x.terminal).max(axis=0))
        group_size, common_size = reward_size, 0.0
        if y is not None:
            group_size += float(np.abs(y).max(initial=0.0))
            payoff_sizes = np.abs(y).max(axis=2) * self.reach.hi
            common_size = float(self.discount_powers @ payoff_sizes.sum(axis=(1, 2)))
        group_size *= float(self.discount_powers.sum())
        group_size += x.discount**horizon * terminal_size
        n_terms = (horizon + 1) * (x.storage.max_row_length + 32) + x.n_models + x.n_states
        n_common_terms = x.n_models + self.common_payoffs.size + 8
        return EPS * (4 * n_terms * group_size + n_common_terms * common_size)


# ---------------------------------------------------------------------- stationary policies
class StationaryRelaxation(LagrangianRelaxation):
    """Dual function D(y) over the stationary policies of the allowed actions, y (1, S, A, M).

    ``optima`` are those of the last call, from which the next one begins. The reach bounds are
    0 and all visits until :meth:`restrict_actions` is given time for better ones.
    """

    reach_seconds = math.inf  # so a descent eliminates no actions

    def __init__(
        self, prepared: PreparedProblem, solver: DirectSolver, optima: ModelOptima
    ) -> None:
        x = prepared.problem
        self.solver, self.optima = solver, optima
        self._reach_optima: dict[tuple[int, int], ModelOptima] = {}
        max_visits = np.multiply(x.weights * solver.effective_horizon, solver.transient.T)
        hi = np.array(np.broadcast_to(max_visits, (1, x.n_states, x.n_models)))
        self.reach = VisitBounds(np.zeros_like(hi), hi)
        super().__init__(prepared.replace(horizon=1), deadline=-math.inf)

    def restrict_actions(self, allowed: Mask, deadline: float = math.inf) -> None:
        """Set the allowed actions (1, S, A), and narrow the reach bounds until the deadline.

        Those that are there must hold for these actions; multipliers stay valid.
        """
        self.prepared = self.prepared.replace(allowed=allowed)
        x, lo, hi = self.problem, self.reach.lo.copy(), self.reach.hi.copy()
        rounding_error = 4 * EPS * (x.n_states + 4)
        for s in range(x.n_states):
            if solver_clock() > deadline:
                break
            for sign, bounds, narrow in ((1.0, hi, np.minimum), (-1.0, lo, np.maximum)):
                r = np.zeros_like(self.solver.r)
                r[:, s] = sign * np.broadcast_to(self.solver.transient, r.shape[:2])[:, s, None]
                init = self._reach_optima.get((s, int(sign)))
                optima = _with_rewards(self.solver, r).compute_model_optima(allowed[0], init)
                self._reach_optima[s, int(sign)] = optima
                visits = sign * (x.compute_returns(optima.values.T) + optima.error_bound)
                bounds[0, s] = narrow(
                    bounds[0, s], x.weights * visits * (1 + sign * rounding_error)
                )
        self.reach = VisitBounds(lo, hi)

    def evaluate_groups(
        self, y: Array | None, *, subgradient: bool = False, allowed: Mask | None = None
    ) -> float:
        """Compute the sum of the models' values; ``allowed`` (1, S, A): over these actions."""
        x, solver = self.problem, self._with_multipliers(y)
        feasible = x.allowed if allowed is None else allowed
        self.optima = solver.compute_model_optima(feasible[0], self.optima)
        if subgradient:
            m, s = np.indices(self.optima.actions.shape)
            visits = x.weights[:, None] * solver.compute_occupancy(self.optima.actions)
            self.occupancy[:] = 0.0
            self.occupancy[0, s, self.optima.actions, m] = visits * solver.transient
        returns = x.compute_returns(self.optima.values.T) + self.optima.error_bound
        return float(x.weights @ returns)

    def estimate_rounding(self, y: Array | None) -> float:
        """Bound the floating-point error of D(y), which is added to every bound."""
        return self.solver.effective_horizon * super().estimate_rounding(y)

    def compute_advantage(self, policy: PolicyTable) -> Array:
        """Compute q - v (1, S, A, M) of a policy: multipliers with which all policies are equal."""
        values = self.solver.compute_values(policy)
        advantage = self.solver.compute_q(values) - values[:, :, None]
        advantage = np.moveaxis(advantage * self.solver.transient[:, :, None], 0, 2)
        return np.where(self.problem.allowed[..., None], advantage, 0.0)

    def bound_subset(self, y: Array | None, allowed: Mask) -> float:
        """Bound the policies of some allowed actions, with y and H of the last evaluation."""
        total = self.evaluate_groups(y, allowed=allowed) + self.estimate_rounding(y)
        if y is None:
            return total
        return total + float(np.where(allowed, self.common_payoffs, -np.inf).max(axis=2).sum())

    def estimate_losses(self, y: Array | None) -> Array:
        """Estimate how much D(y) falls (S, A) if an action must be taken in a state.

        It is what models lose in the states of their optimum, and what the common policy does. It
        is infinite for actions that are not allowed.
        """
        self.evaluate(y)
        q = self._with_multipliers(y).compute_q(self.optima.values)
        visits = self.occupancy[0].sum(axis=1)
        loss: Array = np.einsum("sm,msa->sa", visits, self.optima.values[:, :, None] - q)
        if y is not None:
            loss += self.common_payoffs[0].max(axis=1, keepdims=True) - self.common_payoffs[0]
        return np.where(self.problem.allowed[0], loss, np.inf)

    def _with_multipliers(self, y: Array | None) -> DirectSolver:
        """Return the solver for rewards r - y, without those after the end of an episode."""
        r = self.solver.r
        if y is not None:
            r = r - np.moveaxis(y[0], 2, 0) * self.solver.transient[:, :, None]
        return _with_rewards(self.solver, r)


def _with_rewards(solver: DirectSolver, r: Array) -> DirectSolver:
    """Return a copy of the solver for other rewards (M, S, A)."""
    clone = copy.copy(solver)
    clone.r, clone.last_cache, clone.retained_cache = r, {}, {}
    return clone


# ---------------------------------------------------------------------- descent
MOMENTUM = 0.7  # share of the last direction in the next one
INITIAL_LEVEL, LEVEL_DECAY = 0.2, 0.6  # first level, a share of the gap, and how it falls
MAX_IDLE_STEPS = 8  # steps without gain before it does
RESTART_LEVEL = 0.1  # least level, a share of the gap, after actions were eliminated
SLOW_LEVEL, MIN_LEVEL = 0.02, 1e-4  # levels at which the search is slow, and has converged
MAX_FAILED_PROBES = 30  # probes in turn that eliminate nothing before probing ends
REACH_SHARE = 0.05  # of the time left, at most, for new reach bounds
CALLBACK_INTERVAL = 20  # steps between two calls


class DualDescent:
    """State of one dual descent: best bound and multipliers, steps, eliminated actions.

    It begins at the best of y = 0 and the given multipliers, and ends once the bound reaches
    ``target`` or at the deadline, a time of :func:`mmdp.core.timing.solver_clock`.
    """

    def __init__(
        self,
        relaxation: LagrangianRelaxation,
        incumbent_value: float,
        multipliers: Sequence[Array] = (),
        *,
        deadline: float = math.inf,
        target: float = -math.inf,
        callback: Callable[[], object] = lambda: None,
    ) -> None:
        self.relaxation, self.incumbent_value = relaxation, incumbent_value
        self.deadline, self.target, self.callback = deadline, target, callback
        self.n_steps = self.n_eliminated = 0
        self.best_y, self.best_value = np.zeros(relaxation.occupancy.shape), math.inf
        for y in (self.best_y, *multipliers) if len(multipliers) else ():
            value = relaxation.evaluate(y, subgradient=False)
            if value < self.best_value:
                self.best_y, self.best_value = y, value
        self._restart(INITIAL_LEVEL)

    def _restart(self, initial_level: float) -> None:
        """Continue from the best y with a new level, a share of the gap."""
        self.y: Array = self.best_y
        self.d: Array = np.zeros(self.y.shape)
        self.level, self._initial_level, self._n_idle = math.inf, initial_level, 0

    @property
    def bound(self) -> float:
        """Smallest value of D so far, rounded up; never below the incumbent value.

        Policies that elimination has cut off have at most the incumbent value.
        """
        x = self.relaxation
        return max(
            self.best_value + x.estimate_rounding(self.best_y),
            self.incumbent_value + x.estimate_rounding(None),
        )

    @property
    def gap(self) -> float:
        """Difference of the smallest value of D so far and the incumbent value."""
        return max(self.best_value - self.incumbent_value, 0.0)

    def run(self, min_level: float = MIN_LEVEL) -> None:
        """Take steps and eliminate actions in turn.

        Ends when nothing is gained any more, or the level is below ``min_level``, a share of the
        gap.
        """
        for stop_level in dict.fromkeys((max(SLOW_LEVEL, min_level), min_level)):
            is_changed = True
            while is_changed:
                self.descend(stop_level)
                time_left = self.deadline - solver_clock()
                if self.best_value <= self.target or time_left <= 0:
                    return
                can_eliminate = self.relaxation.reach_seconds < REACH_SHARE * time_left
                is_changed = can_eliminate and self.eliminate_actions() > 0

    def descend(self, min_level: float = MIN_LEVEL) -> None:
        """Take steps to the level, the deadline or the target."""
        while self.level > min_level * self.gap and self.best_value > self.target:
            self.take_step()
            if self.n_steps % CALLBACK_INTERVAL == 0:
                self.callback()
            if solver_clock() > self.deadline:
                return

    def take_step(self) -> None:
        """Evaluate D at the multipliers, and move on from there or from the best ones."""
        value = self.relaxation.evaluate(self.y)
        self.n_steps += 1
        if not math.isfinite(self.level):  # the first step
            self.best_value = min(self.best_value, value)
            self.level = self._initial_level * self.gap
        self._n_idle = self._n_idle + 1 if value >= self.best_value - 0.02 * self.level else 0
        if value <= self.best_value:
            self.best_value, self.best_y = value, self.y
        if self._n_idle >= MAX_IDLE_STEPS:
            self.y, self.d, self._n_idle = self.best_y, np.zeros_like(self.d), 0
            self.level *= LEVEL_DECAY
            return
        slope = 0.0
        if self.gap > self.relaxation.estimate_rounding(None):  # more would only inflate y
            slope = self.relaxation.update_direction(self.y, self.d, MOMENTUM)
        if slope > 0:
            target = max(self.incumbent_value, self.best_value - self.level)
            self.y = step_without_sign_change(self.y, self.d, (value - target) / slope)
        else:
            self.level = 0.0

    # ------------------------------------------------------------ elimination
    def eliminate_actions(self) -> int:
        """Eliminate actions that no policy better than the incumbent takes; return their number.

        An action whose common payoff is below the best by more than D - incumbent value is
        eliminated (reduced-cost fixing). Others are probed until the deadline: D(y) with the
        action forced on every group.
        """
        x = self.relaxation
        value = x.evaluate(self.best_y, subgradient=False)
        margin = max(value + x.estimate_rounding(self.best_y) - self.incumbent_value, 0.0)
        allowed, max_payoff = x.allowed_actions, x.common_payoffs.max(axis=2, keepdims=True)
        reduced_costs = x.discount_powers[:, None, None] * (
            max_payoff - np.where(allowed, x.common_payoffs, max_payoff)
        )
        mask = allowed & ~(reduced_costs > margin)
        self._probe_actions(mask, reduced_costs, margin)
        n_eliminated = int(allowed.sum() - mask.sum())
        if n_eliminated:
            x.restrict_actions(mask)
            self._restart(RESTART_LEVEL)
        self.n_eliminated += n_eliminated
        return n_eliminated

    def _probe_actions(self, mask: Mask, reduced_costs: Array, margin: float) -> None:
        """Eliminate actions from the mask whose forced use lowers D by more than the margin."""
        x, n_failed = self.relaxation, 0
        base_value = x.evaluate_groups(self.best_y)
        is_reachable = x.reach.hi.max(axis=2) > 0
        cells = np.argwhere(mask & (mask.sum(axis=2) > 1)[:, :, None] & is_reachable[:, :, None])
        for t, s, a in cells[np.argsort(-reduced_costs[tuple(cells.T)], kind="stable")]:
            forced_mask = x.allowed_actions
            forced_mask[t, s] = np.arange(mask.shape[2]) == a
            loss = base_value - x.evaluate_groups(self.best_y, allowed=forced_mask)
            if loss + reduced_costs[t, s, a] > margin and mask[t, s].sum() > 1:
                mask[t, s, a] = False
                n_failed = 0
            else:
                n_failed += 1
            if n_failed == MAX_FAILED_PROBES or solver_clock() > self.deadline:
                return


def step_without_sign_change(y: Array, d: Array, step_size: float) -> Array:
    """Compute y - step d, stopping at 0 where the sign would change (D has kinks there)."""
    new_y = y - step_size * d
    with np.errstate(over="ignore"):  # the sign is right
        new_y *= y * new_y >= 0.0
    return new_y
