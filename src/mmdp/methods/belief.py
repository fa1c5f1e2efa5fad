"""Planners with memory: an exact belief over the models, updated at every step.

The state is seen, the model is latent. The belief beta_m is proportional to lambda_m times
the likelihood of what was seen; with M models it is exact and costs O(M) per step, without
particles. A transition that no model explains leaves the belief unchanged and is counted.
If models change, the belief is that over the model that holds now: it moves on by K.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.compiling import clock
from mmdp.kernels.planner import SAMPLED, VALUES, PlannerTables
from mmdp.kernels.problem import Problem, at
from mmdp.methods.base import Context, Method, Outcome, Stop
from mmdp.methods.cadp import CADP
from mmdp.methods.unreached import filled
from mmdp.model import MMDP
from mmdp.policy import Markov, MarkovPolicy
from mmdp.solution import Status

Array = npt.NDArray[np.float64]

EPISODES = 20_000  # simulated over all models, unless a number per model is given


@dataclass(frozen=True)
class Memory:
    """What a deployment remembers: belief (M,), sampled model, unexplained steps."""

    belief: Array
    rng: np.random.Generator = field(repr=False)
    sampled: int = 0
    impossible: int = 0


class BeliefPlanner:
    """A policy with memory, built by ``solve`` with a method of this kind.

    It follows the :class:`mmdp.policy.Planner` protocol: ``start``, ``act``, ``update``.
    ``baseline`` is the CADP policy of the same models, used as control variate when the
    planner is simulated.
    """

    def __init__(
        self, name: str, model: MMDP, horizon: int, tables: PlannerTables,
        baseline: MarkovPolicy, kernel: Kernel,
    ) -> None:  # fmt: skip
        self.name, self.model, self.horizon = name, model, horizon
        self.tables, self.baseline, self.kernel = tables, baseline, kernel

    def start(self, seed: int | None = 0) -> Memory:
        """A fresh memory with the prior belief; give each episode a seed of its own."""
        rng = np.random.default_rng(seed)
        belief = self.model.weights.copy()
        return Memory(belief, rng, self._sample(belief, rng))

    def act(self, memory: Memory, time: int, state: int) -> int:
        x = self.tables
        if x.mode == VALUES:
            allowed = np.flatnonzero(self.model.allowed[state])
            return int(allowed[(x.q[time, state, allowed] @ memory.belief).argmax()])
        if x.mode == SAMPLED:
            return int(x.own[time, state, memory.sampled])
        seed = int(memory.rng.integers(2**63))
        return self.kernel.search(x, self.horizon, time, state, memory.belief, seed)

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
            r = at(x.problem.r, time)[state, action]
            z = ((reward - r) / x.reward_sd) ** 2
            alive = memory.belief * likelihood > 0
            if alive.any():
                near = np.exp(0.5 * (z[alive].min() - np.where(alive, z, np.inf)))
                likelihood = likelihood * near
        belief = memory.belief * likelihood
        total = belief.sum()
        if not total > 0:
            held = x.problem.moved(memory.belief)
            return replace(memory, belief=held, impossible=memory.impossible + 1)
        belief = x.problem.moved(belief / total)
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
    result: Array = at(x.p, time)[k]
    return result


@dataclass(frozen=True)
class Planning(Method):
    """What the methods with memory have in common.

    Parameters
    ----------
    episodes
        Episodes per model simulated for the value that ``solve`` reports.
    baseline
        CADP's policy of the same models, if it is known already (a control variate).
    """

    _: KW_ONLY
    episodes: int | None = None
    baseline: MarkovPolicy | None = None

    memory: ClassVar[Literal["none", "belief"]] = "belief"
    policies: ClassVar[tuple[str, ...]] = ("belief",)

    def passes(self, problem: Problem, horizon: int) -> float:
        return max(self.least_passes, passes_of(problem, self.episodes))

    def baseline_actions(self, context: Context) -> npt.NDArray[Any]:
        """(T, S) actions of CADP on the same models (or the policy given), outside the record.

        With a time limit the best after half of it: any policy will do.
        """
        known = self.baseline
        if known is not None:
            known.check(context.model, context.horizon)
            if not known.deterministic:
                raise InputError("baseline must be a deterministic policy")
            return known.actions
        inner = context.quiet(Markov())
        if context.deadline is not None:
            inner.deadline = (clock() + context.deadline) / 2
        try:
            found = CADP().run(inner)
        except Stop:
            found = Outcome(inner.best_policy, Status.TIME_LIMIT, inner.iterations)
        table: npt.NDArray[Any] = filled(inner, found).policy
        return table

    def planned(
        self, context: Context, made: PlannerTables, actions: npt.NDArray[Any]
    ) -> Outcome:  # fmt: skip
        """The planner, its return still unknown, with CADP's actions as its baseline."""
        baseline = MarkovPolicy.for_model(context.model, actions)
        planner = BeliefPlanner(
            self.name, context.model, context.horizon, made, baseline, context.kernel
        )
        return Outcome(planner, Status.COMPLETED, 1, episodes=self.episodes)


def passes_of(problem: Problem, episodes: int | None, *, carry: bool = False) -> float:
    """The cost, in passes, of planning and of simulating so many episodes per model.

    Every episode holds a belief over all models; episodes that carry it on run one by one.
    """
    count = EPISODES if episodes is None else episodes * problem.n_models
    return 20 + count * problem.n_models / 2**17 + (2 * count / problem.n_models if carry else 0)
