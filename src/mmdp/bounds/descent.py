"""Minimise D(y): preconditioned, deflected Polyak steps with a falling level.

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

from mmdp.bounds.relaxation import Mask, Relaxation
from mmdp.clock import clock
from mmdp.kernels.problem import Array, Pairs

KEEP = 0.7  # share of the last direction in the next one
LEVEL, PATIENCE = 0.5, 12  # first level, a share of the gap; steps without gain before it falls
PAIR_LEVEL, PAIR_PATIENCE = 0.15, 6  # the same for pairs of models, whose steps cost more
FALL = 0.6  # the factor by which a level falls
SMALLEST = 1e-4  # level, as a share of the gap, at which the search has converged

IN_CACHE = 2**15  # numbers that are moved at a time

TELL = 20  # steps between two calls of a watch
Watch = Callable[[], object]


@dataclass
class Descent:
    """The state of one search: best bound and multipliers, steps done, what was closed."""

    relaxation: Relaxation
    target: float
    y: Array = field(init=False)
    best_y: Array = field(init=False)
    d: Array = field(init=False)
    best: float = np.inf
    delta: float | None = None
    steps: int = 0
    closed: int = 0
    converged: bool = False
    _idle: int = 0
    _go: tuple[Array, Array, float] | None = None  # from where, along what, how far

    def __post_init__(self) -> None:
        shape = self.relaxation.u.shape
        self.y, self.best_y, self.d = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    @property
    def bound(self) -> float:
        """The best value of D so far, rounded up; never below the target.

        Policies that were cut off by closing actions are worth at most the target.
        """
        x = self.relaxation
        return max(self.best + x.rounding(self.best_y), self.target + x.rounding(None))

    def run(
        self, *, deadline: float = math.inf, max_steps: int = 100_000,
        enough: float = -np.inf, watch: Watch | None = None,
    ) -> None:  # fmt: skip
        """Steps until converged, out of time or steps, or the bound is at most ``enough``.

        ``deadline`` is a time of :func:`mmdp.clock.clock`.
        """
        last = self.steps + max_steps
        while self.steps < last and not self.converged and self.best > enough:
            self.step()
            if watch is not None and self.steps % TELL == 0:
                watch()
            if clock() > deadline:
                return

    def step(self) -> None:
        x = self.relaxation
        paired = x.pairs is not None
        if self._go is not None:
            move(*self._go, self.y)
        value = x.value(self.y)
        self.steps += 1
        if self.delta is None:
            self.delta = (PAIR_LEVEL if paired else LEVEL) * max(value - self.target, 0.0)
        if value < self.best:
            self._idle = 0 if value < self.best - 0.02 * self.delta else self._idle
            self.best = value
            here, self.y, self.best_y = self.y, self.best_y, self.y
        else:
            self._idle += 1
            here = self.y
        if self._idle >= (PAIR_PATIENCE if paired else PATIENCE):
            here, value = self.best_y, self._lower_level()
        self._turn(here, value)

    def _turn(self, here: Array, value: float) -> None:
        """Where to go from ``here``: the next step moves there and looks."""
        assert self.delta is not None
        aim = max(self.target, self.best - self.delta)
        self._go = None
        if self.best - self.target <= self.relaxation.rounding(None):
            self.converged = True  # only rounding is left; more steps would only inflate y
        else:
            size = self.relaxation.direction(here, self.d, KEEP)
            self.converged |= not size > 0
            if size > 0:
                self._go = here, self.d, (value - aim) / size
        if self._go is None:
            self.y[:] = here

    def _lower_level(self) -> float:
        assert self.delta is not None
        self.delta *= FALL
        self._idle = 0
        self.d[:] = 0.0
        self.converged = self.delta <= SMALLEST * max(self.best - self.target, 0.0)
        return self.relaxation.value(self.best_y)

    def regroup(self, pairs: Pairs | None) -> None:
        """Continue with other pairs of models; y is nearly optimal there, so steps begin small."""
        self.relaxation.group(pairs)
        self.delta = 0.0
        self.reopen(level=0.03)

    def start_at(self, candidates: list[Array]) -> None:
        """Begin at the best of y = 0 and the given multipliers."""
        least = self.relaxation.value(self.y, subgradient=False)
        for y in candidates:
            value = self.relaxation.value(y, subgradient=False)
            if value < least:
                least = value
                self.y[:] = y

    def reopen(self, level: float = 0.1) -> None:
        """Continue from the best y after the relaxation has changed; ``level``: of the gap."""
        self.best = min(self.best, self.relaxation.value(self.best_y))
        self.y[:] = self.best_y
        self.d[:] = 0.0
        self._go = None
        self.delta = max(self.delta or 0.0, level * max(self.best - self.target, 0.0))
        self._idle, self.converged = 0, False

    # ------------------------------------------------------------ closing actions
    def close_actions(self, probe_until: float | None = None) -> int:
        """Close what no policy better than the target can take; returns how many were closed.

        An action whose price falls short of the best by more than D - target is closed
        (reduced cost). With time until ``probe_until``, others are probed: D(y) with the
        action forced on every group.
        """
        x = self.relaxation
        value = x.value(self.best_y, subgradient=False)
        margin = max(value + x.rounding(self.best_y) - self.target, 0.0)
        still, top = x.open, x.prices.max(axis=2, keepdims=True)
        short = x.scale[:, None, None] * (top - np.where(still, x.prices, top))
        mask = still & ~(short > margin)
        if probe_until is not None:
            self._probe(mask, short, margin, probe_until)
        count = int(still.sum() - mask.sum())
        if count:
            self.restrict(mask)
        self.closed += count
        return count

    def _probe(self, mask: Mask, short: Array, margin: float, until: float) -> None:
        x = self.relaxation
        base = float(x.group_values(self.best_y).sum())
        reachable = x.reach.hi.max(axis=2) > 0
        open_ones = np.argwhere(mask & (mask.sum(axis=2) > 1)[:, :, None] & reachable[:, :, None])
        order = np.argsort(-short[tuple(open_ones.T)], kind="stable")
        for t, s, a in open_ones[order]:
            if clock() > until:
                return
            forced = x.open
            forced[t, s] = False
            forced[t, s, a] = True
            value = x.group_values(self.best_y, allowed=forced).sum()
            loss = base - float(value) + short[t, s, a]
            if loss > margin and mask[t, s].sum() > 1:
                mask[t, s, a] = False

    def restrict(self, mask: Mask) -> None:
        """Continue with fewer allowed actions and the reach bounds that they give."""
        self.relaxation.restrict(mask)
        self.reopen()


def move(y: Array, d: Array, step: float, out: Array) -> None:
    """out = y - step d, stopping at 0 if the sign would change (D has its kinks there)."""
    flat_y, flat_d, flat_out = (x.reshape(-1) for x in (y, d, out))
    for first in range(0, len(flat_y), IN_CACHE):
        part = slice(first, first + IN_CACHE)
        old = flat_y[part]
        new = old - step * flat_d[part]
        new *= old * new >= 0.0
        flat_out[part] = new
