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

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.kernels import Problem

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
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
        """(2 K + 1,) likelihood ratios exp(h g)."""
        grid: Array = np.exp(self.width * np.arange(-self.reach, self.reach + 1))
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
    from mmdp.kernels import bounds_kernel as compiled
    from mmdp.kernels.threads import Team

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
        self.lo, self.hi = reach or reach_bounds(problem, mask, threads)
        self.horizon = len(mask)
        shape = (*mask.shape, problem.n_models)
        self.u, self.prices = np.zeros(shape), np.zeros(mask.shape)
        self.best = np.zeros(mask.shape[:2], dtype=np.int32)
        self._own = np.zeros((*mask.shape[:2], problem.n_models), dtype=np.int16)
        self.group(groups)

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
        from mmdp.kernels import bounds_kernel as compiled

        total = float(self.group_values(y, subgradient=subgradient).sum())
        if y is None:
            return total
        return total + float(
            compiled.couple(
                y, self.lo, self.hi, self.mask, self.problem.discount, self.prices, self.best
            )
        )

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

    def _own_values(self, y: Array | None, subgradient: bool) -> Array:
        from mmdp.kernels import bounds_kernel as compiled
        from mmdp.kernels.threads import Team

        x = self.problem
        start = x.initial[:, None] * x.weights
        v, n = np.empty((2, *start.shape)), np.empty((2, *start.shape))
        v[self.horizon % 2], n[0] = x.terminal, start

        def run(m: tuple[int, int]) -> None:
            compiled.own_backward(
                m[0], m[1], x.indptr, x.indices, x.p, x.r, self.u if y is None else y,
                y is not None, self.mask, x.discount, v, self._own,
            )  # fmt: skip
            if subgradient:
                compiled.own_forward(
                    m[0], m[1], x.indptr, x.indices, x.p, self.mask, self._own, n, self.u
                )

        Team.of(self.threads).each(run, blocks(x.n_models, self.threads))
        values: Array = (start * v[0]).sum(axis=0)
        return values

    def step(self, y: Array, d: Array, keep: float, excess: float) -> bool:
        """Move y along -d by the Polyak step for ``excess`` = D(y) - target; False at d = 0."""
        from mmdp.kernels import bounds_kernel as compiled

        size = compiled.direction(
            y, self.u, self.lo, self.hi, self.mask, self.problem.discount, self.best, keep, d
        )
        if not size > 1e-300:
            d[:] = 0.0
            return False
        compiled.move(y, d, excess / size)
        return True

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
    from mmdp.kernels import bounds_kernel as compiled
    from mmdp.kernels.threads import Team

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
