"""MixTS: Thompson sampling over the models (Hong et al. 2022), adapted to observed states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mmdp.core.arguments import PositiveFloat, check_arguments
from mmdp.core.kernels import Problem
from mmdp.core.kernels.planner import SAMPLED, PlannerTables
from mmdp.core.kernels.rewards import iter_blocks
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.belief import BeliefMethod, estimate_planning_passes


@check_arguments
@dataclass(frozen=True)
class MixTS(BeliefMethod):
    """Thompson sampling over models (Hong et al. 2022), as in Algorithm 3 of Su and Petrik (2023).

    Samples a model from the belief and follows its optimal policy. The published adaptation is
    ``likelihood="reward", carry_belief=True``.

    Parameters
    ----------
    resample
        ``"episode"``: one draw for a whole episode, as in the paper; ``"step"``: a draw at
        every step.
    likelihood
        What the belief learns from: ``"transition"`` (the next state), ``"reward"`` (as in the
        published adaptation) or ``"both"``.
    carry_belief
        Keep the belief from one simulated episode to the next, as the published adaptation
        does; otherwise every episode starts from the prior.
    reward_sd
        Standard deviation of the reward around r_m(s, a) in the reward likelihood; by default
        the spread of r(s, a) between the models.
    n_episodes, baseline
        As in :class:`mmdp.methods.QMDP`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, mmdp.methods.MixTS(resample="step"), seed=0).value
    12.0
    """

    resample: Literal["episode", "step"] = "episode"
    likelihood: Literal["transition", "reward", "both"] = "transition"
    carry_belief: bool = False
    reward_sd: PositiveFloat | None = None

    name: ClassVar[str] = "mixts"
    title: ClassVar[str] = "Thompson sampling over the models"
    uses_sampled_model: ClassVar[bool] = True

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes, as of a method with values by model."""
        return Method.estimate_bytes(self, spec)

    def estimate_passes(self, problem: Problem, horizon: int) -> float:
        """Estimate the passes over the problem, those of the simulation included."""
        return estimate_planning_passes(problem, self.n_episodes, carry_belief=self.carry_belief)

    def run(self, context: SolveContext) -> MethodResult:
        """Compute the optimal actions of every model and the reward likelihood."""
        problem, is_complete = context.problem, True
        if context.policy_class.is_infinite_horizon:
            optima = context.model_optima
            oracle_actions, is_complete = optima.actions.T[None], optima.is_complete
        else:
            oracle_actions = context.prepared.backward("per_model", keep=("actions",)).actions
        reward_sd = 0.0
        if self.likelihood != "transition":
            allowed = problem.allowed[0]
            variances = [r.var(axis=-1)[:, allowed[states]] for states, r in iter_blocks(problem.r)]
            spread = float(np.sqrt(np.concatenate(variances, axis=1).mean()))
            reward_sd = self.reward_sd or spread or 1.0
        tables = PlannerTables(
            SAMPLED,
            problem,
            model_actions=oracle_actions,
            resamples_each_step=self.resample == "step",
            carries_belief=self.carry_belief,
            reward_sd=reward_sd,
            uses_transitions=self.likelihood != "reward",
        )
        baseline = self.solve_baseline(context)
        return self.make_planner_result(context, tables, baseline, is_complete=is_complete)
