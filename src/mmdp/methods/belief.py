"""Planners with memory: an exact belief over the models, updated at every step.

The state is seen, the model is latent. The belief beta_m is proportional to lambda_m times
the likelihood of what was seen; with M models it is exact and costs O(M) per step, without
particles. A transition that no model explains leaves the belief unchanged and is counted.
If models change, the belief is about the model that holds now: it moves on by K.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp import notebook
from mmdp.arguments import PositiveInt
from mmdp.clock import Stopwatch
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.planner import SAMPLED, VALUES, PlannerTables
from mmdp.kernels.problem import Problem, Table, at
from mmdp.methods.base import Context, Method, Outcome, Question, Stop
from mmdp.methods.cadp import CADP
from mmdp.model import MMDP
from mmdp.policy import Belief, MarkovPolicy, Policy, PolicyKind, StationaryPolicy
from mmdp.policy.base import labels_of
from mmdp.policy.markov import TablePolicy
from mmdp.search.unreached import filled
from mmdp.solution import Status
from mmdp.words import counted

Array = npt.NDArray[np.float64]

EPISODES = 20_000  # simulated in all, unless a number per model is given


@dataclass(frozen=True)
class Memory:
    """What a deployment remembers: belief (M,), the model drawn by u, unexplained steps."""

    belief: Array
    rng: np.random.Generator = field(repr=False)
    u: float = 0.0
    sampled: int = 0
    impossible: int = 0

    def draw(self) -> Memory:
        """With the model at which the running sum of the belief exceeds u."""
        total = np.cumsum(self.belief)
        return replace(self, sampled=int(np.searchsorted(total, self.u * total[-1])))


class BeliefPlanner(Policy):
    """A policy with memory, built by ``solve`` with a method of this kind.

    ``baseline`` is the CADP policy of the same models, used as control variate when the
    planner is simulated.
    """

    __slots__ = ("baseline", "horizon", "kernel", "model", "name", "tables")

    title = "the planner"
    exact = False
    memory = "remembers what it has seen"

    name: str
    horizon: float
    model: MMDP
    tables: PlannerTables
    baseline: TablePolicy
    kernel: Kernel

    def __init__(
        self, name: str, model: MMDP, horizon: float, tables: PlannerTables,
        baseline: TablePolicy, kernel: Kernel,
    ) -> None:  # fmt: skip
        self._set(
            name=name, model=model, horizon=horizon, tables=tables, baseline=baseline,
            kernel=kernel,
        )  # fmt: skip
        self._set_labels(model.n_states, **labels_of(model))

    @property
    def kind(self) -> Belief:
        return Belief().for_ever() if self.horizon == math.inf else Belief()

    @property
    def parts(self) -> dict[str, Any]:
        known = {"name": self.name, "horizon": self.horizon, "models": self.model.fingerprint()}
        return {**self.tables._asdict(), **known, "problem": None}

    def _lacks(self, model: MMDP) -> bool:
        return self.n_actions != model.n_actions

    def _check_actions(self, model: MMDP) -> None:
        if not (self.model.allowed <= model.allowed).all():
            raise InputError("the planner may take actions that the model does not allow")

    def tables_for(self, model: MMDP, horizon: int) -> PlannerTables:
        return self.tables

    def start(self, seed: int | None = 0) -> Memory:
        """A fresh memory with the prior belief; give each episode a seed of its own."""
        rng = np.random.default_rng(seed)
        return Memory(self.model.weights.copy(), rng, rng.random()).draw()

    def _seen(self, memory: Memory, time: int, state: int) -> Memory:
        """The memory after the first state, which says something if models do not begin alike."""
        x = self.tables.problem
        if time > 0 or x.same_start:
            return memory
        return replace(memory, belief=x.seen_first(memory.belief, state)).draw()

    def belief(self, memory: Memory, time: int, state: int) -> dict[str, float]:
        """The weight of every model by its label, once the state at this time is seen."""
        weights = self._seen(memory, time, state).belief
        return dict(zip(self.model.model_labels, weights.tolist(), strict=True))

    def act(self, memory: Memory, time: int, state: int) -> int:
        x, memory = self.tables, self._seen(memory, time, state)
        if x.mode == VALUES:
            allowed = np.flatnonzero(self.model.allowed[state])
            return int(allowed[(at(x.q, time)[state, allowed] @ memory.belief).argmax()])
        if x.mode == SAMPLED:
            return int(at(x.own, time)[state, memory.sampled])
        seed = int(memory.rng.integers(2**63))
        plan = self.kernel.plan(x.problem, int(self.horizon))
        return plan.search(x, time, state, memory.belief, seed)

    def update(
        self, memory: Memory, time: int, state: int, action: int, next_state: int,
        reward: float | None = None,
    ) -> Memory:  # fmt: skip
        x, memory = self.tables, self._seen(memory, time, state)
        likelihood = np.ones_like(memory.belief)
        if x.use_transitions:
            likelihood = _transition_likelihood(x.problem, time, state, action, next_state)
        if x.reward_sd > 0:
            if reward is None:
                raise InputError("this planner learns from rewards: pass reward= to update()")
            r = x.problem.r[min(time, len(x.problem.r) - 1), state, action]
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
        after = replace(memory, belief=belief)
        return replace(after, u=memory.rng.random()).draw() if x.each_step else after

    def _repr_html_(self) -> str:
        """For notebooks: what it is; its actions depend on the belief."""
        return notebook.facts(repr(self), [("baseline", repr(self.baseline))])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}, {self._lasts}, belief over "
            f"{counted(self.model.n_models, 'model')})"
        )

    @property
    def _lasts(self) -> str:
        endless = self.horizon == math.inf
        return "for ever" if endless else counted(int(self.horizon), "time step")


def _transition_likelihood(
    x: Problem, time: int, state: int, action: int, next_state: int
) -> Array:
    """(M,) probability of the observed transition under each model."""
    rows, after = np.array([state * x.n_actions + action]), np.array([next_state])
    return x.storage.moves().likelihood(time, rows, after)[0]


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
    episodes: PositiveInt | None = None
    baseline: TablePolicy | None = None

    finds: ClassVar[PolicyKind | None] = Belief()
    draws: ClassVar[bool] = False  # whether it acts by a model that it draws

    def lacks(self, question: Question) -> str | None:
        if self.draws and (reason := question.not_still("the model that it draws must stay true")):
            return reason
        if not question.kind.learns:
            return f"it finds policies that keep a belief, not {question.kind.name} ones"
        return question.not_mean() or question.not_whole()

    def bytes_held(self, question: Question) -> int:
        """q by time, state, action and model."""
        steps = 1 if question.endless else question.steps
        return 8 * steps * question.model.problem.terminal.size * question.model.n_actions

    def passes(self, problem: Problem, horizon: int) -> float:
        return max(self.least_passes, passes_of(problem, self.episodes))

    def baseline_outcome(self, context: Context) -> Outcome:
        """CADP's policy for the same models (or the policy given), outside the record.

        With a time limit it is the best after half of it.
        """
        known = self.baseline
        if known is not None:
            known.check(context.model, math.inf if context.kind.endless else context.horizon)
            if not known.deterministic:
                raise InputError("baseline must be a deterministic policy")
            return Outcome(known.actions, Status.COMPLETED, 1)
        inner = context.free()
        inner.time = Stopwatch(context.time.left / 2)
        try:
            found = CADP().run(inner)
        except Stop:
            found = Outcome(inner.best_policy, Status.TIME_LIMIT, inner.iterations)
        return filled(inner, found)

    def planned(
        self, context: Context, made: PlannerTables, baseline: Outcome, *, is_complete: bool = True
    ) -> Outcome:  # fmt: skip
        """The planner, its return still unknown; ``is_complete``: whether its tables are."""
        plain = StationaryPolicy if context.kind.endless else MarkovPolicy
        policy = plain.for_model(context.model, baseline.policy)
        horizon = math.inf if context.kind.endless else context.horizon
        planner = BeliefPlanner(self.name, context.model, horizon, made, policy, context.kernel)
        status = Status.COMPLETED if is_complete else Status.TIME_LIMIT
        return Outcome(planner, status, 1, episodes=self.episodes)


def q_of_optima(context: Context) -> tuple[Array, bool]:
    """(T or 1, S, A, M) q of each model's own optimum; whether all optima are known in time."""
    if not context.kind.endless:
        return context.plan.backward("own", keep=("q",)).q, True
    own = context.model_optima
    return np.moveaxis(context.endless.q(own.values), 0, 2)[None], own.is_complete


def q_of_policy(context: Context, policy: Table) -> Array:
    """(T or 1, S, A, M) q of a policy."""
    if not context.kind.endless:
        return context.plan.backward("given", policy=policy, keep=("q",)).q
    x = context.endless
    return np.moveaxis(x.q(x.values(policy)), 0, 2)[None]


def passes_of(problem: Problem, episodes: int | None, *, carry: bool = False) -> float:
    """The cost of planning and simulating, in passes.

    Every episode holds a belief over all models; episodes that carry it on run one by one.
    """
    count = EPISODES if episodes is None else episodes * problem.n_models
    return 20 + count * problem.n_models / 2**17 + (2 * count / problem.n_models if carry else 0)
