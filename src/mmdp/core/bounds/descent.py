"""Minimize the Lagrangian dual D(y) by deflected Polyak steps with a decreasing level.

A step aims at the best bound so far minus ``delta``, but never below the value of the
incumbent policy, which no bound can pass. After steps without progress the search returns to
its best y and aims at less. Every y on the way is a valid bound, so the search can stop at
any time. With an incumbent, actions that no better policy can take are closed on the way
(reduced-cost fixing), which narrows L and B.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mmdp.core.bounds.relaxation import LagrangianRelaxation, Mask
from mmdp.core.kernels.problem import Array, ModelPairs
from mmdp.core.timing import solver_clock

MOMENTUM = 0.7  # share of the last direction in the next one
INITIAL_LEVEL, MAX_IDLE_STEPS = (
    0.5,
    12,
)  # first level, a share of the gap; steps without gain before it falls
PAIR_INITIAL_LEVEL, PAIR_MAX_IDLE_STEPS = (
    0.15,
    6,
)  # the same for pairs of models, whose steps cost more
LEVEL_DECAY = 0.6  # the factor by which a level falls
MIN_LEVEL = 1e-4  # level, as a share of the gap, at which the search has converged

BLOCK_SIZE = 2**15  # numbers that are moved at a time

CALLBACK_INTERVAL = 20  # steps between two calls of a watch
StepCallback = Callable[[], object]


@dataclass
class DualDescent:
    """State of one dual descent: best bound and multipliers, steps, eliminated actions."""

    relaxation: LagrangianRelaxation
    incumbent_value: float
    y: Array = field(init=False)
    best_y: Array = field(init=False)
    d: Array = field(init=False)
    best_value: float = np.inf
    delta: float | None = None
    n_steps: int = 0
    n_eliminated: int = 0
    has_converged: bool = False
    _n_idle_steps: int = 0
    _next_move: tuple[Array, Array, float] | None = None  # from where, along what, how far

    def __post_init__(self) -> None:
        shape = self.relaxation.occupancy.shape
        self.y, self.best_y, self.d = np.zeros(shape), np.zeros(shape), np.zeros(shape)

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

    def run(
        self,
        *,
        deadline: float = math.inf,
        max_steps: int = 100_000,
        target: float = -np.inf,
        callback: StepCallback | None = None,
    ) -> None:
        """Take steps until converged, out of time or steps, or the bound reaches ``target``.

        ``deadline`` is a time of :func:`mmdp.core.timing.solver_clock`.
        """
        last_step = self.n_steps + max_steps
        while self.n_steps < last_step and not self.has_converged and self.best_value > target:
            self.take_step()
            if callback is not None and self.n_steps % CALLBACK_INTERVAL == 0:
                callback()
            if solver_clock() > deadline:
                return

    def take_step(self) -> None:
        """Move to the next multipliers, evaluate D there, and set the next direction."""
        x = self.relaxation
        has_pairs = x.pairs is not None
        if self._next_move is not None:
            step_without_sign_change(*self._next_move, self.y)
        value = x.evaluate(self.y)
        self.n_steps += 1
        if self.delta is None:
            self.delta = (PAIR_INITIAL_LEVEL if has_pairs else INITIAL_LEVEL) * max(
                value - self.incumbent_value, 0.0
            )
        if value < self.best_value:
            self._n_idle_steps = (
                0 if value < self.best_value - 0.02 * self.delta else self._n_idle_steps
            )
            self.best_value = value
            origin, self.y, self.best_y = self.y, self.best_y, self.y
        else:
            self._n_idle_steps += 1
            origin = self.y
        if self._n_idle_steps >= (PAIR_MAX_IDLE_STEPS if has_pairs else MAX_IDLE_STEPS):
            origin, value = self.best_y, self._lower_level()
        self._set_direction(origin, value)

    def _set_direction(self, origin: Array, value: float) -> None:
        """Choose the direction and the step length of the next move from ``origin``."""
        assert self.delta is not None
        target = max(self.incumbent_value, self.best_value - self.delta)
        self._next_move = None
        if self.best_value - self.incumbent_value <= self.relaxation.estimate_rounding(None):
            self.has_converged = True  # only rounding is left; more steps would only inflate y
        else:
            slope = self.relaxation.update_direction(origin, self.d, MOMENTUM)
            self.has_converged |= not slope > 0
            if slope > 0:
                self._next_move = origin, self.d, (value - target) / slope
        if self._next_move is None:
            self.y[:] = origin

    def _lower_level(self) -> float:
        """Lower the level after steps without progress, and return to the best multipliers."""
        assert self.delta is not None
        self.delta *= LEVEL_DECAY
        self._n_idle_steps = 0
        self.d[:] = 0.0
        self.has_converged = self.delta <= MIN_LEVEL * max(
            self.best_value - self.incumbent_value, 0.0
        )
        return self.relaxation.evaluate(self.best_y)

    def change_pairs(self, pairs: ModelPairs | None) -> None:
        """Continue with other pairs of models, from nearly optimal multipliers with small steps."""
        self.relaxation.set_pairs(pairs)
        self.delta = 0.0
        self.restart(level=0.03)

    def initialize_at(self, candidates: list[Array]) -> None:
        """Start at the best of y = 0 and the given multipliers."""
        best_value = self.relaxation.evaluate(self.y, subgradient=False)
        for y in candidates:
            value = self.relaxation.evaluate(y, subgradient=False)
            if value < best_value:
                best_value = value
                self.y[:] = y

    def restart(self, level: float = 0.1) -> None:
        """Continue from the best y after the relaxation changed; ``level``: share of the gap."""
        self.best_value = min(self.best_value, self.relaxation.evaluate(self.best_y))
        self.y[:] = self.best_y
        self.d[:] = 0.0
        self._next_move = None
        self.delta = max(
            self.delta or 0.0, level * max(self.best_value - self.incumbent_value, 0.0)
        )
        self._n_idle_steps, self.has_converged = 0, False

    # ------------------------------------------------------------ closing actions
    def eliminate_actions(self, probe_deadline: float | None = None) -> int:
        """Eliminate actions that no policy better than the incumbent takes; return their number.

        An action whose common payoff is below the best by more than D - incumbent value is
        eliminated (reduced-cost fixing). Until ``probe_deadline`` others are probed: D(y) with the
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
        if probe_deadline is not None:
            self._probe_actions(mask, reduced_costs, margin, probe_deadline)
        n_eliminated = int(allowed.sum() - mask.sum())
        if n_eliminated:
            self.restrict_actions(mask)
        self.n_eliminated += n_eliminated
        return n_eliminated

    def _probe_actions(
        self, mask: Mask, reduced_costs: Array, margin: float, deadline: float
    ) -> None:
        """Eliminate actions from the mask whose forced use lowers D by more than the margin."""
        x = self.relaxation
        base_value = float(x.evaluate_groups(self.best_y).sum())
        is_reachable = x.reach.hi.max(axis=2) > 0
        cells = np.argwhere(mask & (mask.sum(axis=2) > 1)[:, :, None] & is_reachable[:, :, None])
        order = np.argsort(-reduced_costs[tuple(cells.T)], kind="stable")
        for t, s, a in cells[order]:
            if solver_clock() > deadline:
                return
            forced_mask = x.allowed_actions
            forced_mask[t, s] = False
            forced_mask[t, s, a] = True
            value = x.evaluate_groups(self.best_y, allowed=forced_mask).sum()
            loss = base_value - float(value) + reduced_costs[t, s, a]
            if loss > margin and mask[t, s].sum() > 1:
                mask[t, s, a] = False

    def restrict_actions(self, mask: Mask) -> None:
        """Continue with fewer allowed actions and their reach bounds."""
        self.relaxation.restrict_actions(mask)
        self.restart()


def step_without_sign_change(y: Array, d: Array, step_size: float, out: Array) -> None:
    """Compute out = y - step d, stopping at 0 where the sign would change (D has kinks there)."""
    flat_y, flat_d, flat_out = (x.reshape(-1) for x in (y, d, out))
    for first in range(0, len(flat_y), BLOCK_SIZE):
        block = slice(first, first + BLOCK_SIZE)
        old = flat_y[block]
        new = old - step_size * flat_d[block]
        with np.errstate(over="ignore"):  # the sign is right
            new *= old * new >= 0.0
        flat_out[block] = new
