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

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.kernels import Problem
from mmdp.kernels.cpu.threads import Team

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
THREADS_PAY_FROM = 5_000_000  # multiply-adds of a pass below which one thread is faster
NONE = np.empty((0, 1, 1, 1))
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Groups:
    """Disjoint pairs of models; the others stand alone. ``reach`` steps of ``width`` a side."""

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    reach: int = 24
    width: float = 0.25

    @property
    def grid(self) -> Array:
        """(2 K,) likelihood ratios exp(h g), g = -K..K-1; 1 alone where K is 0."""
        grid: Array = np.exp(self.width * np.arange(-self.reach, max(self.reach, 1)))
        return grid


def open_actions(problem: Problem, horizon: int) -> Mask:
    """(T, S, A): every allowed action at every time."""
    shape = (horizon, problem.n_states, problem.n_actions)
    return np.array(np.broadcast_to(problem.allowed, shape))


def frozen(problem: Problem) -> Problem:
    """The problem with read-only arrays: numba compiles once more for writable ones."""

    def view(x: Any) -> Any:
        if isinstance(x, np.ndarray) and x.flags.writeable:
            x = x.view()
            x.setflags(write=False)
        return x

    return Problem(*(view(x) for x in problem))


def reach_bounds(problem: Problem, mask: Mask, threads: int = 1) -> tuple[Array, Array]:
    """L and B (T, S, M): least and largest P[m, s at t] over policies inside ``mask``.

    By dynamic programming, one target (t, s) after the other; rounded outwards.
    """
    from mmdp.kernels.cpu import bounds as compiled

    x = frozen(problem)
    horizon, n_states, _ = mask.shape
    start = x.initial[:, None] * x.weights
    lo = np.empty((horizon, n_states, x.n_models))
    hi = np.empty_like(lo)
    team = Team.of(threads)
    if len(x.p) == 1 and (mask == mask[0]).all():
        team.each(
            lambda m: compiled.reach_stationary(
                m[0], m[1], x.indptr, x.indices, x.p[0], mask[0], start, lo, hi
            ),
            blocks(x.n_models, threads),
        )
    else:
        team.each(
            lambda s: compiled.reach_varying(
                s[0], s[1], x.indptr, x.indices, x.p, mask, start, lo, hi
            ),
            blocks(n_states, threads),
        )
    slack = 4 * EPS * (horizon + 1) * (n_states + 4)
    return lo * (1 - slack), hi * (1 + slack)


def blocks(size: int, count: int) -> list[tuple[int, int]]:
    """Ranges that cover 0..size."""
    edges = np.linspace(0, size, max(1, min(size, count)) + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(edges)]


class Relaxation:
    """D(y) for one set of open actions and one grouping of the models, with its subgradient.

    After :meth:`value`, ``u`` (T, S, A, M) holds the occupancy the groups chose, ``prices``
    (T, S, A) H and ``best`` (T, S) its maximiser.
    """

    def __init__(
        self, problem: Problem, mask: Mask, groups: Groups | None = None, *, threads: int = 1,
        reach: tuple[Array, Array] | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.mask, self.threads = frozen(problem), mask, threads
        self.set_reach(*(reach or reach_bounds(problem, mask, threads)))
        self.horizon = len(mask)
        shape = (*mask.shape, problem.n_models)
        self.u, self.prices = np.zeros(shape), np.zeros(mask.shape)
        self.best = np.zeros(mask.shape[:2], dtype=np.int32)
        self._own = np.zeros((*mask.shape[:2], problem.n_models), dtype=np.int16)
        self.group(groups)

    def set_reach(self, lo: Array, hi: Array) -> None:
        """Other reach bounds L and B; multipliers stay valid."""
        self.lo, self.hi = lo, hi
        self._per_hi = np.divide(1.0, hi, out=np.zeros_like(hi), where=hi > 1e-300)

    def group(self, groups: Groups | None) -> None:
        """Change the grouping; multipliers stay valid."""
        everyone = np.arange(self.problem.n_models)
        self.groups = groups
        paired = [] if groups is None else [groups.first, groups.second]
        alone = np.setdiff1d(everyone, np.concatenate(paired)) if paired else everyone
        self._alone = alone
        self._all_alone = len(alone) == len(everyone)

    def value(self, y: Array | None = None, *, subgradient: bool = True) -> float:
        """D(y); without y the bound of the groups alone (no prices)."""
        total = float(self.group_values(y, subgradient=subgradient).sum())
        return total if y is None else total + self._common(y)

    def moved_value(self, y: Array, d: Array, step: float, out: Array) -> float:
        """D at out = y moved by ``step`` along -d, written on the way; with its subgradient."""
        from mmdp.kernels.cpu import bounds as compiled

        if not self._all_alone:
            self._over_time(lambda t: compiled.move(*t, y, d, step, out))
            return self.value(out)
        total = float(self._own_values(y, True, d, step, out).sum())
        scale = self.problem.discount ** np.arange(self.horizon)
        return total + float(scale @ self.prices.max(axis=2).sum(axis=1))

    def _common(self, y: Array) -> float:
        """sum_{t,s} gamma^t max_a H: what the common policy is paid."""
        from mmdp.kernels.cpu import bounds as compiled

        x, out = self.problem, np.empty(self.horizon)
        self._over_time(
            lambda t: compiled.couple(
                *t, y, self.lo, self.hi, self.mask, x.discount, self.prices, self.best, out
            )
        )
        return float(out.sum())

    def _over_time(self, work: Callable[[tuple[int, int]], None]) -> None:
        """``work`` on blocks of time steps, side by side where that pays."""
        threads = self.threads if self.u.size >= THREADS_PAY_FROM // 10 else 1
        Team.of(threads).each(work, blocks(self.horizon, threads))

    def group_values(self, y: Array | None, *, subgradient: bool = False) -> Array:
        """The value of every group at the root: pairs first, then models that stand alone."""
        parts = []
        if self.groups is not None and len(self.groups.first):
            u = self.u if subgradient else None
            x = self.problem
            parts.append(pair_values(x, self.mask, self.groups, y, u, self.threads))
        if self._all_alone:
            parts.append(self._own_values(y, subgradient))
        elif len(self._alone):  # the odd one: a pair with itself
            twice = Groups(self._alone, self._alone, 0, 1.0)
            u = self.u if subgradient else None
            parts.append(pair_values(self.problem, self.mask, twice, y, u, 1))
        return np.concatenate(parts)

    def _own_values(
        self, y: Array | None, subgradient: bool, d: Array = NONE, step: float = 0.0,
        out: Array = NONE,
    ) -> Array:  # fmt: skip
        from mmdp.kernels.cpu import bounds as compiled
        from mmdp.kernels.cpu import steps as march

        x = self.problem
        start = x.initial[:, None] * x.weights
        v, n = np.empty((2, *start.shape)), np.empty((2, *start.shape))
        v[self.horizon % 2], n[0] = x.terminal, start
        pays = self.horizon * len(x.indices) * x.n_models >= THREADS_PAY_FROM
        threads = self.threads if pays else 1
        edges = march.edges(x.n_states, march.pieces(threads))

        def backward(marks: march.Marks, rank: int) -> None:
            compiled.own_backward(
                marks, rank, edges, x.indptr, x.indices, x.p, x.r, NONE if y is None else y, d,
                step, out, self.lo, self.hi, self.mask, x.discount, v, self._own, self.prices,
                self.best, np.empty(x.n_models),
            )  # fmt: skip

        def forward(m: tuple[int, int]) -> None:
            compiled.own_forward(
                *m, x.indptr, x.indices, x.p, self.mask, self._own, n, self.u, np.empty(x.n_models)
            )  # fmt: skip

        team = Team.of(threads)
        march.walk(team, len(x.indices) * x.n_models, backward)
        if subgradient:
            team.each(forward, blocks(x.n_models, threads))
        values: Array = (start * v[0]).sum(axis=0)
        return values

    def direction(self, y: Array, d: Array, keep: float) -> float:
        """d = keep d + the subgradient over B at y; <subgradient, d>, at most 0 at an end.

        Falls back on the subgradient alone where the old direction no longer falls.
        """
        from mmdp.kernels.cpu import bounds as compiled

        gamma, sizes = self.problem.discount, np.empty(self.horizon)
        for share in (keep, 0.0):
            self._over_time(
                lambda t, share=share: compiled.direction(  # type: ignore[misc]
                    *t, y, self.u, self.lo, self.hi, self._per_hi, self.mask, gamma, self.best,
                    share, d, sizes, np.empty(self.mask.shape[2]),
                )
            )  # fmt: skip
            size = float(sizes.sum())
            if size > 1e-300:
                return size
        return 0.0

    def rounding(self, y: Array | None) -> float:
        """What floating point can have taken from D(y): added to every reported bound."""
        x = self.problem
        scale = x.discount ** np.arange(self.horizon)
        own, common = float(np.abs(x.r).max(initial=0.0)), 0.0
        if y is not None:
            own += float(np.abs(y).max(initial=0.0))
            weights = np.abs(y).max(axis=2) * self.hi
            common = float(scale @ weights.sum(axis=(1, 2)))
        own = own * float(scale.sum()) + x.discount**self.horizon * float(np.abs(x.terminal).max())
        row = int(np.diff(x.indptr).max(initial=1))
        terms = (self.horizon + 1) * (row + 32) + x.n_models + x.n_states
        return EPS * (4 * terms * own + (x.n_models + self.mask.size + 8) * common)


def pair_values(
    problem: Problem, mask: Mask, groups: Groups, y: Array | None = None, u: Array | None = None,
    threads: int = 1,
) -> Array:  # fmt: skip
    """(n,) value of every pair at the root, (lambda_i + lambda_j) V_1(mu, prior); fills u."""
    from mmdp.kernels.cpu import bounds as compiled

    x = frozen(problem)
    same = np.where(groups.first == groups.second, 0.5, 1.0)
    first, second = (np.ascontiguousarray(g, dtype=np.int64) for g in (groups.first, groups.second))
    li, lj = x.weights[first] * same, x.weights[second] * same
    out = np.empty(len(first))
    nothing = np.empty((1, 1, 1, 1))
    scratch: Any = nothing if u is None else u

    def run(n: tuple[int, int]) -> None:
        part = slice(*n)
        compiled.pair_values(
            first[part], second[part], li[part], lj[part], groups.grid, groups.width, x.indptr,
            x.indices, x.p, x.r, nothing if y is None else y, y is not None, mask, x.discount,
            x.terminal, x.initial, u is not None, scratch, out[part],
        )  # fmt: skip

    Team.of(threads).each(run, blocks(len(first), 4 * threads if threads > 1 else 1))
    return out
