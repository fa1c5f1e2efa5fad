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


def worst_case(returns: Array, weights: Array) -> float:
    return float(returns.min())


def make_cvar(level: float) -> Callable[[Array, Array], float]:
    """The mean over the worst models of that weight in all."""

    def value(returns: Array, weights: Array) -> float:
        order = np.argsort(returns)
        weight_before = np.cumsum(weights[order]) - weights[order]
        tail_weights = np.clip(level - weight_before, 0.0, weights[order])
        return float(tail_weights @ returns[order]) / level

    return value


def quantile(returns: Array, weights: Array, level: float) -> float:
    order = np.argsort(returns)
    return float(returns[order][np.cumsum(weights[order]) >= level - 1e-12][0])


@dataclass(frozen=True, eq=False)
class ReferenceModel:
    """Models P (M, S, A, S'), r (M, S, A), with weights; T decisions from ``initial`` (S,)."""

    P: Array
    r: Array
    initial: Array
    weights: Array
    discount: float
    T: int

    def compute_returns(self, table: Array) -> Array:
        """(M,) returns of actions (T, S)."""
        states, returns = np.arange(self.P.shape[1]), np.zeros(len(self.P))
        x = np.tile(self.initial, (len(self.P), 1))
        for t, row in enumerate(table):
            returns += self.discount**t * (x * self.r[:, states, row]).sum(axis=1)
            x = np.einsum("ms,msn->mn", x, self.P[:, states, row])
        return returns

    def compute_joint(self, table: Array) -> Array:
        """(T, M, S) probability of each model and state."""
        states, joint = np.arange(self.P.shape[1]), []
        x = self.weights[:, None] * self.initial
        for row in table:
            joint.append(x)
            x = np.einsum("ms,msn->mn", x, self.P[:, states, row])
        return np.array(joint)

    def compute_model_optima(self) -> Array:
        """(M,) the best return in each model, by backward induction."""
        v = np.zeros(self.P.shape[:2])
        for _ in range(self.T):
            v = (self.r + self.discount * np.einsum("msan,mn->msa", self.P, v)).max(axis=2)
        return v @ self.initial

    def compute_controller_returns(
        self, initial_nodes: Array, actions: Array, node_transitions: Array
    ) -> Array:
        """(M,) returns of a policy with nodes of memory: the chain over states and nodes."""
        S, N, returns = self.P.shape[1], actions.shape[2], np.zeros(len(self.P))
        for m, (P, r) in enumerate(zip(self.P, self.r, strict=True)):
            x = np.zeros((S, N))
            x[np.arange(S), initial_nodes] = self.initial
            for t in range(self.T):
                x_next = np.zeros_like(x)
                for s, n, s2 in itertools.product(range(S), range(N), range(S)):
                    a = actions[t, s, n]
                    returns[m] += (s2 == 0) * self.discount**t * x[s, n] * r[s, a]
                    x_next[s2, node_transitions[t, s, n, s2]] += x[s, n] * P[s, a, s2]
                x = x_next
        return returns

    def compute_best_history_value(self) -> float:
        """The mean of the best policy that may use all it has seen: all histories."""

        def value(t: int, s: int, b: Array) -> float:
            if t == self.T:
                return 0.0
            q_values = []
            for a in range(self.P.shape[2]):
                next_value = sum(
                    value(t + 1, n, b * self.P[:, s, a, n]) for n in range(self.P.shape[1])
                )
                q_values.append(float(b @ self.r[:, s, a]) + self.discount * next_value)
            return max(q_values)

        return sum(value(0, s, self.weights * p) for s, p in enumerate(self.initial))

    def list_markov_tables(self) -> Array:
        """(K, T, S) all policies of time and state."""
        S, A = self.P.shape[1:3]
        tables = itertools.product(range(A), repeat=self.T * S)
        return np.array(list(tables)).reshape(-1, self.T, S)

    def list_tree_tables(self) -> Array:
        """(K, T, S) all trees of at most two leaves over the time and the numbered state."""
        S, A = self.P.shape[1:3]
        time, state = np.indices((self.T, S))
        conditions = [
            x <= threshold
            for x, n_values in ((time, self.T), (state, S))
            for threshold in range(n_values)
        ]
        pairs = itertools.product(conditions, range(A), range(A))
        return np.unique([np.where(condition, a, b) for condition, a, b in pairs], axis=0)
