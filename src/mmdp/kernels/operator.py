"""The one operator, q = r + gamma P v and its transpose, of a problem laid out on a machine.

A new way to store models, or a new machine, writes ``expect`` and ``push``; everything else is
written in terms of them in plain numpy, which is the specification, and overridden where a fused
pass pays. Symbols as in :mod:`mmdp.kernels.problem`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmdp.kernels.problem import Array, IntArray, Problem, Row, Table, at, frozen
from mmdp.kernels.rewards import ByEvent, Rewards


class Operator:
    """A problem over a number of decisions, laid out once."""

    def __init__(self, problem: Problem, horizon: int) -> None:
        problem.check(horizon)
        self.problem, self.horizon = problem, horizon

    # ------------------------------------------------------------ what a storage or machine writes
    def expect(self, t: int, v: Array) -> Array:
        """(S, A, M) sum_s' p(s'|s, a) v(s') for every model, from v (S, M)."""
        raise NotImplementedError

    def push(self, t: int, b: Array, row: Table) -> Array:
        """(S, M) b at t + 1 from b at t under actions (S,) or probabilities (S, A)."""
        raise NotImplementedError

    def rows(self, t: int, s: int, a: int) -> Row:
        """Where (s, a) leads at time t; by pushing a unit vector, which is slow."""
        x = self.problem
        b = np.zeros((x.n_states, x.n_models))
        b[s] = 1.0
        pi = np.zeros((x.n_states, x.n_actions))
        pi[s, a] = 1.0
        p = self.push(t, b, pi)
        after = np.flatnonzero(p.any(axis=1)).astype(np.int32)
        return Row(after, p[after])

    # ------------------------------------------------------------ written once
    def step(self, t: int, v: Array) -> Array:
        """(S, A, M) q = r + gamma P v at time t if v (S, M) follows."""
        q: Array = at(self.problem.r, t) + self.problem.discount * self.expect(t, v)
        return q

    def changed(
        self, table: Table, rho: Array, formula: Any, tie: float
    ) -> tuple[IntArray, Array] | None:
        """A table (T, S) after every single change that improves F by more than ``tie``, in turn,
        and its returns (M,); None if that is not compiled here.

        rho (M,): what counts at the table. formula: the dataclass of F, with value and tilt.
        """
        return None

    def total(self, values: Array) -> Array:
        """(...) the sum of values (..., M) over all models."""
        return np.asarray(self.problem.everywhere(values.sum(axis=-1)).sum(axis=0))

    def by_start(self, found: Callable[[Self], Array]) -> Array:
        """What a forward pass finds if every model had weight 1; see :meth:`felt`."""
        return found(self.but(weights=np.ones_like(self.problem.weights)))

    def felt(self, d: Array, x: Array) -> Array:
        """(..., M) what x (..., M), gained at places reached with d of :meth:`by_start`, adds to
        the returns.
        """
        felt: Array = d * x
        return felt

    def rising(self, d: Array, weights: Array) -> Array:
        """(S, M) b such that sum_m b x is what x adds to the returns with these weights (M,)."""
        return d * weights

    def returns(self, first: Array) -> Array:
        """(M,) return of every model from the values (S, M) at the first step."""
        return self.problem.returns(first)

    def but(
        self,
        *,
        weights: Array | None = None,
        initial: Array | None = None,
        rewards: Rewards | None = None,
        terminal: Array | None = None,
        allowed: npt.NDArray[np.bool_] | None = None,
        discount: float | None = None,
        horizon: int | None = None,
    ) -> Self:
        """The same layout with other numbers, or over fewer decisions; nothing is laid out again.

        rewards: (T or 1, S, A, M). terminal: (S, M). allowed: (T or 1, S, A).
        """
        new = {"weights": weights, "initial": initial, "r": rewards, "terminal": terminal}
        changed: Any = {
            name: y if isinstance(y, ByEvent) else frozen(np.asarray(y))
            for name, y in new.items()
            if y is not None
        }
        problem = self.problem._replace(**changed)
        if discount is not None:
            problem = problem._replace(discount=discount)
        if allowed is not None:
            problem = problem.restricted(allowed)
        other = copy.copy(self)
        other._change(problem, self.horizon if horizon is None else horizon)
        return other

    def _change(self, problem: Problem, horizon: int) -> None:
        """Take these numbers: the transitions are those of before."""
        self.problem, self.horizon = problem, horizon
