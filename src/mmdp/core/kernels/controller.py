"""Controllers: policies with a few nodes of memory, as plain arrays.

=========  ==============================================================  ==============
symbol     meaning                                                         shape
=========  ==============================================================  ==============
actions    pi_t(s, n), the action at t in state s and node n               (T, S, N)
eta        node_transitions: the node after the step from (s, n) to s'     (T, S, N, S')
initial    initial_nodes: the node of an episode's first state             (S,)
b          b_{t,m}(s, n) = P[model m, state s, node n at t]                (T, S, N, M)
v          v_{t,m}(s, n)                                                   (S, N, M)
D          sum_m b_m p_m(s'|s,a) v_{t+1,m}(s', n'), of a step and a node   (nnz, N, N')
=========  ==============================================================  ==============
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.core.kernels.problem import OptionalArray, Problem
from mmdp.core.shapes import AnyIntArray, Array, IntArray, NodeArray

MAX_NODES = 255  # nodes are numbered in bytes


class Controller(NamedTuple):
    """A policy with N nodes of memory; see the module's table."""

    actions: IntArray
    node_transitions: NodeArray
    initial_nodes: NodeArray

    @property
    def n_nodes(self) -> int:
        return self.actions.shape[2]

    @classmethod
    def from_tables(cls, *tables: AnyIntArray) -> Controller:
        """Make a controller with one node, never left, for each table (T, S) of actions."""
        actions = np.stack(tables, axis=2).astype(np.int32)
        T, S, N = actions.shape
        node_transitions = np.zeros((T, S, N, S), np.uint8)  # takes no time until it is written
        node_transitions[:, :, 1:] = np.arange(1, N, dtype=np.uint8)[:, None]
        return cls(actions, node_transitions, np.zeros(S, np.uint8))

    def add_node(self, table: AnyIntArray) -> Controller:
        """Return a copy with one more node, which acts by the table (T, S) and is never left."""
        T, S, N = self.actions.shape
        actions = np.concatenate([self.actions, table[:, :, None].astype(np.int32)], axis=2)
        self_loops = np.full((T, S, 1, S), N, np.uint8)
        return Controller(
            actions, np.concatenate([self.node_transitions, self_loops], axis=2), self.initial_nodes
        )

    def copy(self) -> Controller:
        return Controller(
            self.actions.copy(), self.node_transitions.copy(), self.initial_nodes.copy()
        )


class NodeValues(NamedTuple):
    """The result of a backward pass over a controller."""

    controller: Controller
    returns: Array  # (M,)
    values: OptionalArray  # (T + 1, S, N, M)


def estimate_sweep_bytes(problem: Problem, horizon: int, n_nodes: int) -> int:
    """Estimate the bytes of a sweep over a controller with ``n_nodes`` nodes."""
    n_cells = horizon * problem.n_states * n_nodes
    return n_cells * (16 * problem.n_models + problem.n_states + 4)
