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
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mmdp.clock import Stop, clock
from mmdp.kernels import Plan, Problem
from mmdp.kernels.problem import Array, Pairs, Reach
from mmdp.kernels.rewards import sizes

Mask = npt.NDArray[np.bool_]
QUICK = 0.1  # seconds; states whose reach is found at a time are doubled while it takes less
EPS = float(np.finfo(np.float64).eps)


def open_actions(problem: Problem, horizon: int) -> Mask:
    """(T, S, A): every allowed action at every time, as an array of its own."""
    shape = (horizon, problem.n_states, problem.n_actions)
    return np.array(np.broadcast_to(problem.allowed, shape))


def reach_bounds(plan: Plan, *, deadline: float = math.inf) -> Reach:
    """L and B (T, S, M): least and largest P[m, s at t] over all policies, rounded outwards.

    Raises Stop as soon as it is clear that they cannot be had until the deadline.
    """
    if deadline == math.inf:
        lo, hi = plan.reach()
    else:
        parts = list(_reach_of_some(plan, deadline))
        lo, hi = (np.concatenate(x, axis=1) for x in zip(*parts, strict=True))
    slack = 4 * EPS * (plan.horizon + 1) * (plan.problem.n_states + 4)
    return Reach(lo * (1 - slack), hi * (1 + slack))


def _reach_of_some(plan: Plan, deadline: float) -> Iterator[Reach]:
    """The reach bounds of all states, of some at a time."""
    started, done, size, n_states = clock(), 0, 1, plan.problem.n_states
    while done < n_states:
        began = clock()
        some = np.arange(done, min(done + size, n_states))
        yield plan.reach(some)
        done += len(some)
        each = (clock() - started) / done
        if clock() + (n_states - done) * each > deadline:
            raise Stop
        if clock() - began < QUICK:
            size *= 2


class Relaxation:
    """D(y) for one set of allowed actions and one grouping of the models, with its subgradient.

    Models that are in none of the ``pairs`` stand alone. After :meth:`value`, ``u``
    (T, S, A, M) holds the occupancy that the models and pairs chose, ``prices`` (T, S, A) H and
    ``best`` (T, S) its maximiser.
    """

    def __init__(
        self, plan: Plan, pairs: Pairs | None = None, *, reach: Reach | None = None,
        deadline: float = math.inf,
    ) -> None:  # fmt: skip
        self.plan, self.horizon = plan, plan.horizon
        problem, horizon = plan.problem, plan.horizon
        self.scale = problem.discount ** np.arange(horizon)
        self.u = np.zeros((horizon, problem.n_states, problem.n_actions, problem.n_models))
        self.prices, self.best = np.zeros(self.u.shape[:3]), np.zeros(self.u.shape[:2], np.int32)
        self.reach_seconds = 0.0  # to find reach bounds if allowed actions vary with time
        self.group(pairs)
        if reach is None:
            self.restrict(problem.allowed, deadline)
        else:
            self.reach = reach

    @property
    def problem(self) -> Problem:
        return self.plan.problem

    @property
    def open(self) -> Mask:
        """(T, S, A) the allowed actions, as an array of its own."""
        return open_actions(self.problem, self.horizon)

    def restrict(self, allowed: Mask, deadline: float = math.inf) -> None:
        """Other allowed actions, and the reach bounds that they give; multipliers stay valid."""
        started = clock()
        self.plan = self.plan.but(allowed=allowed)
        self.reach = reach_bounds(self.plan, deadline=deadline)
        steady = self.problem.storage.steps == len(allowed) == 1
        passes = self.horizon / 2 if steady else 1.0
        self.reach_seconds = passes * (clock() - started)

    def group(self, pairs: Pairs | None) -> None:
        """Change the grouping; multipliers stay valid."""
        self.pairs = pairs if pairs is not None and len(pairs.first) else None
        self._alone: Pairs | None = None
        if self.pairs is not None:
            paired = np.concatenate([self.pairs.first, self.pairs.second])
            alone = np.setdiff1d(np.arange(self.problem.n_models), paired)
            self._alone = Pairs(alone, alone, 0, 1.0)

    def value(self, y: Array | None = None, *, subgradient: bool = True) -> float:
        """D(y); without y the bound of the groups alone (no prices)."""
        total = float(self.group_values(y, subgradient=subgradient).sum())
        if y is None:
            return total
        self.prices, self.best = self.plan.common_prices(y, self.reach)
        return total + float(self.scale @ self.prices.max(axis=2).sum(axis=1))

    def group_values(
        self, y: Array | None, *, subgradient: bool = False, allowed: Mask | None = None
    ) -> Array:
        """The value of every group at the root: pairs first, then models that stand alone.

        ``allowed`` (T, S, A): over these actions instead.
        """
        plan = self.plan if allowed is None else self.plan.but(allowed=allowed)
        u = self.u if subgradient else None
        if self.pairs is None or self._alone is None:
            return plan.own_values(y, u)
        parts = [
            plan.pair_values(pairs, y, u) for pairs in (self.pairs, self._alone) if len(pairs.first)
        ]
        return np.concatenate(parts)

    def direction(self, y: Array, d: Array, keep: float) -> float:
        """d = keep d + the subgradient over B at y; <subgradient, d>, at most 0 at an end.

        Falls back to the subgradient alone if the old direction no longer descends.
        """
        for share in (keep, 0.0):
            size = self.plan.descend(y, self.u, self.best, self.reach, share, d)
            if size > 1e-300:
                return size
        return 0.0

    def rounding(self, y: Array | None) -> float:
        """The most by which floating-point error can have lowered D(y); added to every bound."""
        x = self.problem
        r = float(x.weights @ sizes(x.r))
        terminal = float(x.weights @ np.abs(x.terminal).max(axis=0))
        own, common = r, 0.0
        if y is not None:
            own += float(np.abs(y).max(initial=0.0))
            weights = np.abs(y).max(axis=2) * self.reach.hi
            common = float(self.scale @ weights.sum(axis=(1, 2)))
        own = own * float(self.scale.sum()) + x.discount**self.horizon * terminal
        row = x.storage.longest
        terms = (self.horizon + 1) * (row + 32) + x.n_models + x.n_states
        return EPS * (4 * terms * own + (x.n_models + self.prices.size + 8) * common)
