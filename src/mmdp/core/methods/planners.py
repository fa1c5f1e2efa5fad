"""Belief policies: QMDP, rollout, MixTS and POMCP, with the exact belief over the models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveFloat, PositiveInt, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels import Problem
from mmdp.core.kernels.planner import SAMPLED, TREE, VALUES, PlannerTables
from mmdp.core.kernels.rewards import iter_blocks
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.belief import (
    BeliefMethod,
    compute_planner_q,
    estimate_planning_passes,
)
from mmdp.core.search.context import Details


@check_arguments
@dataclass(frozen=True)
class QMDP(BeliefMethod):
    """QMDP (Littman et al. 1995): argmax_a sum_m beta_m q*_{t,m}(s, a) with the exact belief beta.

    Parameters
    ----------
    n_episodes
        Number of episodes per model to simulate for the value of a policy with memory.
    baseline
        The CADP policy of the same models if it is known already (a control variate).

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "qmdp", seed=0).value
    12.0
    """

    name: ClassVar[str] = "qmdp"
    title: ClassVar[str] = "as if the model were known after one step"

    def run(self, context: SolveContext) -> MethodResult:
        """Compute q* of every model."""
        tables = PlannerTables(VALUES, context.problem, q=compute_planner_q(context))
        return self.make_planner_result(context, tables, is_complete=context.has_model_optima)


@check_arguments
@dataclass(frozen=True)
class Rollout(BeliefMethod):
    """Rollout (Bertsekas and Castañon 1999): argmax_a sum_m beta_m q^pi_{t,m}(s, a), pi from CADP.

    A policy improvement step on the belief MDP: on its own models it is never worse than CADP.
    ``n_episodes`` and ``baseline``: as in :class:`mmdp.methods.QMDP`. If ``baseline`` is not
    CADP's policy, it is improved instead.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, "rollout", seed=0).value
    12.0
    """

    name: ClassVar[str] = "rollout"
    title: ClassVar[str] = "one improvement of CADP by the exact belief"

    def run(self, context: SolveContext) -> MethodResult:
        """Compute q of CADP's policy in every model."""
        baseline = self.solve_baseline(context)
        q = compute_planner_q(context, baseline.policy)
        return self.make_planner_result(
            context, PlannerTables(VALUES, context.problem, q=q), baseline
        )


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
        problem, reward_sd = context.problem, 0.0
        model_actions = context.compute_model_actions()
        if self.likelihood != "transition":
            allowed = problem.allowed[0]
            variances = [r.var(axis=-1)[:, allowed[states]] for states, r in iter_blocks(problem.r)]
            spread = float(np.sqrt(np.concatenate(variances, axis=1).mean()))
            reward_sd = self.reward_sd or spread or 1.0
        tables = PlannerTables(
            SAMPLED,
            problem,
            model_actions=model_actions,
            resamples_each_step=self.resample == "step",
            carries_belief=self.carry_belief,
            reward_sd=reward_sd,
            uses_transitions=self.likelihood != "reward",
        )
        return self.make_planner_result(context, tables, is_complete=context.has_model_optima)


@check_arguments
@dataclass(frozen=True)
class POMCP(BeliefMethod):
    """Monte Carlo tree search by UCB (Silver and Veness 2010) with the exact belief at the root.

    The published algorithm has a particle filter; the exact belief cannot run out of particles.

    Parameters
    ----------
    n_queries
        Simulations per decision.
    leaf_value
        How a new leaf is valued: ``"cadp"`` by v^CADP_{t,m}(s) of the drawn model,
        ``"rollout"`` by simulating CADP's policy, ``"random"`` by simulating random actions
        (as in the published runs).
    exploration
        UCB constant as a multiple of the mean spread of q between actions at that time.
    n_episodes, baseline
        As in :class:`mmdp.methods.QMDP`.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> mmdp.solve(one, 4, mmdp.methods.POMCP(n_queries=20), seed=0).value
    12.0
    """

    n_queries: PositiveInt = 500
    leaf_value: Literal["cadp", "rollout", "random"] = "cadp"
    exploration: NonNegativeFloat = 1.0

    name: ClassVar[str] = "pomcp"
    title: ClassVar[str] = "tree search with the exact belief"
    min_passes: ClassVar[float] = math.inf
    uses_sampled_model: ClassVar[bool] = True

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        horizon_reason = (
            "it searches ahead to a last decision" if spec.is_infinite_horizon else None
        )
        return super().unsupported_reason(spec) or horizon_reason

    def run(self, context: SolveContext) -> MethodResult:
        """Compute the leaf values and exploration constants of tree search from CADP's policy."""
        if context.model.has_missing_actions:
            raise InputError(
                "pomcp needs every allowed action in every model; this model was built with "
                "allow_missing"
            )
        baseline = self.solve_baseline(context)
        actions = baseline.policy
        backward_pass = context.prepared.backward("policy", policy=actions, keep=("values", "q"))
        lowest = np.where(np.isfinite(q := backward_pass.q), q, np.inf).min(axis=2)
        options: Details = {} if self.leaf_value == "random" else {"values": backward_pass.values}
        if self.leaf_value == "rollout":
            options |= {"uses_rollout": True, "actions": actions}
        tables = PlannerTables(
            TREE,
            context.problem,
            exploration=self.exploration * (q.max(axis=2) - lowest).mean(axis=(1, 2)),
            n_queries=self.n_queries,
            **options,
        )
        return self.make_planner_result(context, tables, baseline)
