"""The search space of Markov policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Unpack

import numpy as np

from mmdp.core.evaluate import Mask, take_actions
from mmdp.core.kernels.problem import (
    Array,
    AscentResult,
    IntArray,
    PolicyTable,
    RowChooser,
    SweepType,
    at_time,
)
from mmdp.core.objectives import Objective
from mmdp.core.policies import MarkovPolicy
from mmdp.core.search import gradient
from mmdp.core.search.context import SolveContext
from mmdp.core.search.space import (
    AscentDirection,
    AscentLimits,
    BlockChanges,
    ChangeGenerator,
    SearchSpace,
    offer_alternatives,
)

MAX_Q_BYTES = 2**31  # the most that q may take; beyond that a solve uses the paper's sweeps
ASCENT_PASSES = 12  # of one ascent


class MarkovSpace(SearchSpace):
    """Search space of all Markov policies of allowed actions."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "mirror", "gradient")
    other_init_names: ClassVar[tuple[str, ...]] = ("random", "uniform")
    row_chooser: RowChooser | None = None  # maximizes over feasible rows; None: all are

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.prepared = context.prepared
        self.sweep_type: SweepType = choose_sweep_type(context, sweep_type)

    def compute_init(self, name: str, seed: int) -> PolicyTable | None:
        """Compute the initial policy of that name; None stands for WSU."""
        context = self.context
        if name == "wsu":
            return None
        if name in gradient.GRADIENT_INITS:
            return gradient.ascend_and_round(context, name)
        model, T = context.model, context.horizon
        if name == "mvp":
            table: PolicyTable = compute_mvp_actions(context)
        elif name == "random":
            table = MarkovPolicy.random(model, T, seed).table
        else:
            table = MarkovPolicy.uniform(model, T).table
        return self.project(table)

    @staticmethod
    def estimate_passes(name: str) -> int:
        """Estimate the passes of an ascent from the initial policy of that name."""
        return ASCENT_PASSES + (gradient.ASCENT_PASSES if name in gradient.GRADIENT_INITS else 0)

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the initial policy of that name."""
        return self.prepared.problem.estimate_seconds(
            self.prepared.horizon, self.estimate_passes(name)
        )

    def find_model_optimum(self, model_index: int) -> PolicyTable:
        """Compute the optimal policy of one model that never switches, projected to the space."""
        single_problem = self.context.model.problem.select_models(
            slice(model_index, model_index + 1)
        )
        prepared = self.context.backend.prepare(single_problem, self.context.horizon)
        actions = prepared.backward("per_model", keep=("actions",)).actions
        assert actions is not None
        return self.project(actions[:, :, 0])

    def ascend_mean(
        self,
        candidates: Iterable[PolicyTable | None],
        *,
        weights: Array | None = None,
        **limits: Unpack[AscentLimits],
    ) -> list[AscentResult]:
        """Run CADP sweeps from each candidate to a local optimum of the (reweighted) mean."""
        prepared = self.prepared if weights is None else self.prepared.replace(weights=weights)
        return prepared.ascend(
            candidates, sweep_type=self.sweep_type, choose_row=self.row_chooser, **limits
        )

    def improve(
        self, candidate: PolicyTable, returns: Array, objective: Objective
    ) -> tuple[PolicyTable, Array]:
        """Run a round of single changes, compiled if the backend and the objective allow it."""
        if self.row_chooser is None and objective.compilable_form is not None:
            direction = AscentDirection(self, candidate, returns, objective)
            improved = self.prepared.improve_objective(
                candidate, direction.rho, objective.compilable_form, direction.tie_tolerance
            )
            if improved is not None:
                return improved
        return super().improve(candidate, returns, objective)

    def iter_changes(self, candidate: PolicyTable, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single changes of actions, from the last time to the first."""
        x, d = self.prepared.problem, self.evaluator.compute_occupancy(candidate)
        actions: IntArray = np.array(candidate, np.int32)
        for t, q in self.evaluator.iter_q_values(actions):
            self.context.check_time()  # a round takes much longer than a pass
            b = x.discount**t * d[t]
            G = np.matmul(q, self.prepared.joint_weights(b, direction.risk_weights())[:, :, None])
            if direction.may_improve(G - take_actions(G, actions[t])[:, None]).any():
                yield from self._iter_row_changes(
                    b, q, actions[t], at_time(x.allowed, t), direction
                )
        return actions, self.prepared.compute_returns(take_actions(q, actions[0]))

    def _iter_row_changes(
        self, d: Array, q: Array, actions: IntArray, allowed: Mask, direction: AscentDirection
    ) -> BlockChanges:
        """Iterate over the changes of one time and apply them to ``actions``."""
        actions[:] = yield from offer_alternatives(self.prepared, d, q, actions)


# ---------------------------------------------------------------------- initial policies
def choose_sweep_type(context: SolveContext, sweep_type: SweepType = "two-way") -> SweepType:
    """Choose the sweeps: those of the paper if q is too large to keep in memory."""
    x = context.problem
    q_bytes = 8 * context.horizon * x.n_states * x.n_actions * x.n_models
    return sweep_type if q_bytes <= MAX_Q_BYTES else "paper"


def compute_mvp_actions(context: SolveContext) -> PolicyTable:
    """Compute the optimal actions (T, S) of the mean model, ties to the lowest action."""
    mean_problem = context.model.mean_problem(context.problem.weights)
    prepared = context.backend.prepare(
        mean_problem.restrict_actions(context.problem.allowed), context.horizon
    )
    backward_pass = prepared.backward("weighted", weights=mean_problem.prior_weights())
    return backward_pass.actions
