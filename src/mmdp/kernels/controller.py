"""Controllers: policies with a few nodes of memory, as plain arrays.

=========  ==============================================================  ==============
symbol     meaning                                                         shape
=========  ==============================================================  ==============
actions    pi_t(s, n), the action at t in state s and node n               (T, S, N)
moves      eta_t(s, n, s'), the node after the step to s'                  (T, S, N, S')
first      the node that an episode begins in, by its state                (S,)
b          b_{t,m}(s, n) = P[model m, state s, node n at t]                (T, S, N, M)
v          v_{t,m}(s, n)                                                   (S, N, M)
D          sum_m b_m p_m(s'|s,a) v_{t+1,m}(s', n'), of a step and a node   (nnz, N, N')
=========  ==============================================================  ==============
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.kernels.problem import Array, IntArray, Kept, Problem

MOST_NODES = 255  # nodes are numbered in bytes

Nodes = npt.NDArray[np.uint8]


class Controller(NamedTuple):
    """A policy with N nodes; see the module's table."""

    actions: IntArray
    moves: Nodes
    first: Nodes

    @property
    def n_nodes(self) -> int:
        return self.actions.shape[2]

    @classmethod
    def of_tables(cls, *tables: npt.NDArray[np.integer]) -> Controller:
        """One node for each table (T, S) of actions, never left; it begins in the first."""
        actions = np.stack(tables, axis=2).astype(np.int32)
        T, S, N = actions.shape
        moves = np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None], (T, S, N, S)).copy()
        return cls(actions, moves, np.zeros(S, np.uint8))

    def with_node(self, table: npt.NDArray[np.integer]) -> Controller:
        """One node more, which acts by the table (T, S) and is never left; nothing leads there."""
        T, S, N = self.actions.shape
        actions = np.concatenate([self.actions, table[:, :, None].astype(np.int32)], axis=2)
        stay = np.full((T, S, 1, S), N, np.uint8)
        return Controller(actions, np.concatenate([self.moves, stay], axis=2), self.first)

    def copy(self) -> Controller:
        return Controller(self.actions.copy(), self.moves.copy(), self.first.copy())


class NodeValues(NamedTuple):
    """What a backward pass over a controller found."""

    controller: Controller
    returns: Array  # (M,)
    values: Kept  # (T + 1, S, N, M)


def bytes_of(problem: Problem, horizon: int, nodes: int) -> int:
    """Bytes that a sweep over a controller of that size holds: 2 T S N M numbers, and moves."""
    pairs = horizon * problem.n_states * nodes
    return pairs * (16 * problem.n_models + problem.n_states + 4)
