"""A policy as the simulator takes it: plain arrays, models last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.problem import Problem
from mmdp.core.shapes import Array, IntArray

ACTIONS, PROBABILITIES, VALUES, SAMPLED, TREE, NODES = range(6)


class PlannerTables(NamedTuple):
    """A policy as the arrays that a simulation needs; absent ones have length 0.

    ``mode``: ACTIONS or PROBABILITIES (Markov), NODES (a controller), VALUES (argmax of
    sum_m beta q), SAMPLED (act by the optimal policy of a model drawn from beta), TREE (search).
    beta (M',) is the belief over the planner's own M' models, which need not be the models it
    is simulated in.
    """

    mode: int
    problem: Problem  # of the planner's models
    actions: IntArray = np.zeros((0, 1), dtype=np.int32)  # (T or 1, S); tree rollouts: (T, S)
    probabilities: Array = np.zeros((0, 1, 1))  # (T or 1, S, A)
    controller: Controller | None = None
    q: Array = np.zeros((0, 1, 1, 1))  # (T or 1, S, A, M')
    model_actions: IntArray = np.zeros(
        (0, 1, 1), dtype=np.int32
    )  # (T or 1, S, M'): each model's optimum
    values: Array = np.zeros((0, 1, 1))  # (T + 1, S, M'): leaf values of the search
    exploration: Array = np.zeros(0)  # (T,) UCB constant
    n_queries: int = 0
    uses_rollout: bool = False  # TREE: leaves are valued by simulation instead of by ``values``
    resamples_each_step: bool = False  # SAMPLED: draw the model anew at every step
    carries_belief: bool = False  # SAMPLED: keep the belief from one episode to the next
    reward_sd: float = 0.0  # > 0: rewards enter the likelihood, Normal around r_m(s, a)
    uses_transitions: bool = True  # whether transitions enter the likelihood

    @property
    def uses_belief(self) -> bool:
        """Whether actions depend on beta."""
        return self.mode in (VALUES, SAMPLED, TREE)
