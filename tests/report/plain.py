"""Plain numpy for a small problem, without mmdp: what every figure of a page is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def mean(returns: Array, weights: Array) -> float:
    return float(returns @ weights)


def worst(returns: Array, weights: Array) -> float:
    return float(returns.min())


def tail(level: float) -> Callable[[Array, Array], float]:
    """The mean over the worst models of that weight in all."""

    def value(returns: Array, weights: Array) -> float:
        order = np.argsort(returns)
        before = np.cumsum(weights[order]) - weights[order]
        taken = np.clip(level - before, 0.0, weights[order])
        return float(taken @ returns[order]) / level

    return value


def quantile(returns: Array, weights: Array, level: float) -> float:
    order = np.argsort(returns)
    return float(returns[order][np.cumsum(weights[order]) >= level - 1e-12][0])


@dataclass(frozen=True, eq=False)
class Plain:
    """Models P (M, S, A, S'), r (M, S, A), with weights; T decisions from ``initial`` (S,)."""

    P: Array
    r: Array
    initial: Array
    weights: Array
    discount: float
    T: int

    def returns(self, table: Array) -> Array:
        """(M,) returns of actions (T, S)."""
        states, found = np.arange(self.P.shape[1]), np.zeros(len(self.P))
        x = np.tile(self.initial, (len(self.P), 1))
        for t, row in enumerate(table):
            found += self.discount**t * (x * self.r[:, states, row]).sum(axis=1)
            x = np.einsum("ms,msn->mn", x, self.P[:, states, row])
        return found

    def joint(self, table: Array) -> Array:
        """(T, M, S) probability of each model and state."""
        states, found = np.arange(self.P.shape[1]), []
        x = self.weights[:, None] * self.initial
        for row in table:
            found.append(x)
            x = np.einsum("ms,msn->mn", x, self.P[:, states, row])
        return np.array(found)

    def oracle(self) -> Array:
        """(M,) the best return in each model, by backward induction."""
        v = np.zeros(self.P.shape[:2])
        for _ in range(self.T):
            v = (self.r + self.discount * np.einsum("msan,mn->msa", self.P, v)).max(axis=2)
        return v @ self.initial

    def with_nodes(self, first: Array, actions: Array, moves: Array) -> Array:
        """(M,) returns of a policy with nodes of memory: the chain over states and nodes."""
        S, N, found = self.P.shape[1], actions.shape[2], np.zeros(len(self.P))
        for m, (P, r) in enumerate(zip(self.P, self.r, strict=True)):
            x = np.zeros((S, N))
            x[np.arange(S), first] = self.initial
            for t in range(self.T):
                after = np.zeros_like(x)
                for s, n, s2 in itertools.product(range(S), range(N), range(S)):
                    a = actions[t, s, n]
                    found[m] += (s2 == 0) * self.discount**t * x[s, n] * r[s, a]
                    after[s2, moves[t, s, n, s2]] += x[s, n] * P[s, a, s2]
                x = after
        return found

    def best_with_memory(self) -> float:
        """The mean of the best policy that may use all it has seen: all histories."""

        def value(t: int, s: int, b: Array) -> float:
            if t == self.T:
                return 0.0
            found = []
            for a in range(self.P.shape[2]):
                later = sum(value(t + 1, n, b * self.P[:, s, a, n]) for n in range(self.P.shape[1]))
                found.append(float(b @ self.r[:, s, a]) + self.discount * later)
            return max(found)

        return sum(value(0, s, self.weights * p) for s, p in enumerate(self.initial))

    def tables(self) -> Array:
        """(K, T, S) all policies of time and state."""
        S, A = self.P.shape[1:3]
        every = itertools.product(range(A), repeat=self.T * S)
        return np.array(list(every)).reshape(-1, self.T, S)

    def trees(self) -> Array:
        """(K, T, S) all trees of at most two leaves over the time and the numbered state."""
        S, A = self.P.shape[1:3]
        time, state = np.indices((self.T, S))
        asked = [x <= cut for x, most in ((time, self.T), (state, S)) for cut in range(most)]
        pairs = itertools.product(asked, range(A), range(A))
        return np.unique([np.where(yes, a, b) for yes, a, b in pairs], axis=0)
