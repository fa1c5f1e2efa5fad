"""Planners that remember: an exact belief over the models, updated at every step.

The state is seen, the model is latent. The belief beta_m is proportional to lambda_m times
the likelihood of what was seen; with M models it is exact at O(M) a step, no particles. A
transition that no model explains leaves the belief as it is and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels.problem import Problem
from mmdp.methods.base import Context, Outcome
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Memory:
    """What one deployment remembers: the belief (M,), the sampled model, the unexplained."""

    belief: Array
    rng: np.random.Generator = field(repr=False)
    sampled: int = 0
    impossible: int = 0


class BeliefPlanner:
    """A policy with memory, built by ``solve`` with qmdp, rollout, mixts or pomcp.

    It follows the :class:`mmdp.policy.Planner` protocol: ``start``, ``act``, ``update``.
    ``baseline`` is the CADP policy of the same models, used as control variate when the
    planner is simulated.
    """

    def __init__(
        self, name: str, model: MMDP, horizon: int, tables: Any, baseline: MarkovPolicy
    ) -> None:
        self.name, self.model, self.horizon = name, model, horizon
        self.tables, self.baseline = tables, baseline

    def start(self, seed: int | None = None) -> Memory:
        """A fresh memory with the prior belief."""
        rng = np.random.default_rng(seed)
        belief = self.model.weights.copy()
        return Memory(belief, rng, self._sample(belief, rng))

    def act(self, memory: Memory, time: int, state: int) -> int:
        from mmdp.kernels.cpu import episodes as rollouts

        x = self.tables
        if x.mode == rollouts.VALUES:
            q = x.q[time, state] @ memory.belief
            return int(np.where(self.model.allowed[state], q, -np.inf).argmax())
        if x.mode == rollouts.SAMPLED:
            return int(x.own[time, state, memory.sampled])
        return rollouts.search_action(x, self.horizon, time, state, memory.belief, memory.rng)

    def update(
        self, memory: Memory, time: int, state: int, action: int, next_state: int,
        reward: float | None = None,
    ) -> Memory:  # fmt: skip
        x = self.tables
        likelihood = np.ones_like(memory.belief)
        if x.use_transitions:
            likelihood = _transition_likelihood(x.problem, time, state, action, next_state)
        if x.reward_sd > 0:
            if reward is None:
                raise InputError("this planner learns from rewards: pass reward= to update()")
            r = x.problem.r[time if len(x.problem.r) > 1 else 0, state, action]
            z = ((reward - r) / x.reward_sd) ** 2
            alive = memory.belief * likelihood > 0
            if alive.any():
                near = np.exp(0.5 * (z[alive].min() - np.where(alive, z, np.inf)))
                likelihood = likelihood * near
        belief = memory.belief * likelihood
        total = belief.sum()
        if not total > 0:
            return replace(memory, impossible=memory.impossible + 1)
        belief /= total
        sampled = self._sample(belief, memory.rng) if x.each_step else memory.sampled
        return replace(memory, belief=belief, sampled=sampled)

    @staticmethod
    def _sample(belief: Array, rng: np.random.Generator) -> int:
        return int(np.searchsorted(np.cumsum(belief), rng.random() * belief.sum()))

    def __repr__(self) -> str:
        return (
            f"BeliefPlanner({self.name}, {self.horizon} time steps, belief over "
            f"{self.model.n_models} models)"
        )


def _transition_likelihood(
    x: Problem, time: int, state: int, action: int, next_state: int
) -> Array:
    """(M,) probability of the observed transition under each model."""
    row = state * x.n_actions + action
    start, stop = x.indptr[row], x.indptr[row + 1]
    k = start + np.searchsorted(x.indices[start:stop], next_state)
    if k == stop or x.indices[k] != next_state:
        return np.zeros(x.n_models)
    result: Array = x.p[time if len(x.p) > 1 else 0, k]
    return result


def cadp_baseline(context: Context, known: MarkovPolicy | None = None) -> npt.NDArray[Any]:
    """(T, S) actions of CADP on the same models (or the policy given), outside the record."""
    if known is not None:
        known.check(context.model, context.horizon)
        if not known.deterministic:
            raise InputError("baseline must be a deterministic policy")
        return known.actions
    x, T = context.problem, context.horizon
    return context.kernel.ascend(x, T, [None], sweeps="paper")[0].policy


def tables(mode: int, problem: Problem, **parts: Any) -> Any:
    """PlannerTables with everything that is not given absent."""
    from mmdp.kernels.cpu import episodes as rollouts

    empty: dict[str, Any] = {
        "actions": rollouts.EMPTY_2, "probabilities": rollouts.EMPTY_3, "q": rollouts.EMPTY_4,
        "own": rollouts.EMPTY_3I, "values": rollouts.EMPTY_3, "cdf": rollouts.EMPTY_3,
        "exploration": np.zeros(0), "queries": 0, "by_rollout": False, "each_step": False,
        "carry": False, "reward_sd": 0.0, "use_transitions": True,
    }  # fmt: skip
    return rollouts.PlannerTables(mode, problem, **{**empty, **parts})


def finish(
    context: Context, name: str, made: Any, actions: npt.NDArray[Any], episodes: int | None
) -> Outcome:
    """The planner with its simulated return on the models it was built from."""
    from mmdp.simulate import simulate

    baseline = MarkovPolicy.for_model(context.model, actions)
    planner = BeliefPlanner(name, context.model, context.horizon, made, baseline)
    report = simulate(
        planner, context.model, episodes=episodes, seed=context.seed or 0,
        check_time=context.check_time if context.deadline is not None else None,
    )  # fmt: skip
    whole = report.details["episodes"] == report.details["episodes_wanted"]
    status = Status.COMPLETED if whole else Status.TIME_LIMIT
    return Outcome(
        planner, status, 1, returns=report.returns, errors=report.errors,
        details=report.details,
    )  # fmt: skip
