"""Belief policies: QMDP, rollout, MixTS and POMCP, with an exact belief over the models.

The state is seen, the model is latent. The belief beta_m is proportional to lambda_m times
the likelihood of what was seen; with M models it is exact and costs O(M) per step, without
particles. A transition that no model explains leaves the belief unchanged and is counted.
If models change, the belief is about the model that holds now: it moves on by K.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveFloat, PositiveInt, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels.planner import SAMPLED, TREE, VALUES, PlannerTables
from mmdp.core.kernels.problem import PolicyTable, Problem, at_time
from mmdp.core.kernels.rewards import iter_blocks
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext, TimeUp
from mmdp.core.methods.cadp import CADP
from mmdp.core.model import MMDP
from mmdp.core.policies import Belief, MarkovPolicy, Policy, StationaryPolicy
from mmdp.core.policies.base import NamedValues, get_label_kwargs
from mmdp.core.policies.markov import TablePolicy
from mmdp.core.search.context import Details
from mmdp.core.search.unreachable import fill_unreachable
from mmdp.core.shapes import Array
from mmdp.core.solution import Status
from mmdp.core.text import pluralize, render_facts
from mmdp.core.timing import Stopwatch

if TYPE_CHECKING:
    from mmdp.core.kernels.cpu.tree_search import TreeSearch


DEFAULT_TOTAL_EPISODES = 20_000  # simulated in all, unless a number per model is given


@dataclass(frozen=True)
class BeliefState:
    """Memory of a belief policy: belief (M,), sampled model, and count of unexplained steps."""

    belief: Array
    rng: np.random.Generator = field(repr=False)
    uniform: float = 0.0
    sampled_model: int = 0
    n_unexplained: int = 0

    def sample_model(self) -> BeliefState:
        """Return the memory with the model sampled from the belief by inverse transform."""
        cumulative = np.cumsum(self.belief)
        return replace(
            self, sampled_model=int(np.searchsorted(cumulative, self.uniform * cumulative[-1]))
        )


class BeliefPlanner(Policy):
    """Belief policy that a method of this module computes.

    ``control_variate`` is CADP's policy for the same models, used when the policy is simulated.
    """

    has_exact_returns = False
    memory_note = "remembers what it has seen"

    name: str = ""
    horizon: float = math.inf
    model: MMDP
    tables: PlannerTables
    control_variate: TablePolicy | None

    def __init__(
        self,
        name: str,
        model: MMDP,
        horizon: float,
        tables: PlannerTables,
        baseline: TablePolicy | None,
    ) -> None:
        self._set_attributes(
            name=name,
            model=model,
            horizon=horizon,
            tables=tables,
            control_variate=baseline,
        )
        self._set_labels(model.n_states, **get_label_kwargs(model))

    @property
    def policy_class(self) -> Belief:
        """Belief, for the horizon of the policy."""
        return Belief().for_horizon(self.horizon)

    @property
    def defining_values(self) -> NamedValues:
        """Tables, name, horizon and model fingerprint, which determine the policy."""
        metadata = {"name": self.name, "horizon": self.horizon, "models": self.model.fingerprint()}
        return {**self.tables._asdict(), **metadata, "problem": None}

    def _check_actions(self, model: MMDP) -> None:
        """Raise InputError if the model does not allow every action of the policy's own models."""
        if self.n_actions != model.n_actions:
            n_actions = pluralize(self.n_actions, "action")
            raise InputError(f"the planner has {n_actions}, and the model {model.n_actions}")
        if not (self.model.allowed <= model.allowed).all():
            raise InputError("the planner may take actions that the model does not allow")

    def make_simulation_tables(self, model: MMDP) -> PlannerTables:
        """Return the tables of the planner, which simulations read."""
        return self.tables

    def initial_memory(self, seed: int | None = 0) -> BeliefState:
        """Make the memory with the prior belief; give each episode its own seed."""
        rng = np.random.default_rng(seed)
        return BeliefState(self.model.weights.copy(), rng, rng.random()).sample_model()

    def _observe_initial_state(self, memory: BeliefState, time: int, state: int) -> BeliefState:
        """Condition the belief on the initial state, if the models differ in its distribution."""
        problem = self.tables.problem
        if time > 0 or problem.has_common_initial:
            return memory
        return replace(
            memory, belief=problem.condition_on_initial(memory.belief, state)
        ).sample_model()

    def belief_by_label(self, memory: BeliefState, time: int, state: int) -> dict[str, float]:
        """Return the belief by model label, after observing the state at this time."""
        belief = self._observe_initial_state(memory, time, state).belief
        return dict(zip(self.model.model_labels, belief.tolist(), strict=True))

    def act(self, memory: BeliefState, time: int, state: int) -> int:
        """Return the action id for the belief: by q-values, the sampled model, or tree search."""
        tables, memory = self.tables, self._observe_initial_state(memory, time, state)
        if tables.mode == VALUES:
            allowed = np.flatnonzero(self.model.allowed[state])
            return int(allowed[(at_time(tables.q, time)[state, allowed] @ memory.belief).argmax()])
        if tables.mode == SAMPLED:
            return int(at_time(tables.model_actions, time)[state, memory.sampled_model])
        seed = int(memory.rng.integers(2**63))
        return self._tree_search.choose_action(time, state, memory.belief, seed)

    @cached_property
    def _tree_search(self) -> TreeSearch:
        """The compiled search with its inputs, for one decision after the other."""
        from mmdp.core.kernels.cpu.tree_search import TreeSearch

        return TreeSearch(self.tables, int(self.horizon))

    def update(
        self,
        memory: BeliefState,
        time: int,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
    ) -> BeliefState:
        """Return the memory after a Bayes update with the observed transition (and reward)."""
        tables, memory = self.tables, self._observe_initial_state(memory, time, state)
        likelihood = np.ones_like(memory.belief)
        if tables.uses_transitions:
            pair = np.array([state * tables.problem.n_actions + action])
            sampler = tables.problem.storage.make_sampler()
            likelihood = sampler.likelihood(time, pair, np.array([next_state]))[0]
        if tables.reward_sd > 0:
            if reward is None:
                raise InputError("this planner learns from rewards: pass reward= to update()")
            z = ((reward - at_time(tables.problem.r, time)[state, action]) / tables.reward_sd) ** 2
            z = np.where(memory.belief * likelihood > 0, z, np.inf)
            if np.isfinite(z).any():
                likelihood = likelihood * np.exp(0.5 * (z.min() - z))
        belief = memory.belief * likelihood
        is_explained = belief.sum() > 0
        belief = belief / belief.sum() if is_explained else memory.belief
        next_memory = replace(
            memory,
            belief=tables.problem.push_models(belief),
            n_unexplained=memory.n_unexplained + (not is_explained),
        )
        if is_explained and tables.resamples_each_step:
            return replace(next_memory, uniform=memory.rng.random()).sample_model()
        return next_memory

    def _repr_html_(self) -> str:
        """Render the description for notebooks; a map of actions would depend on the belief."""
        return render_facts(repr(self), [("baseline", repr(self.control_variate))])

    def __repr__(self) -> str:
        """Return the name, the horizon and the number of models."""
        is_infinite = self.horizon == math.inf
        horizon = "infinite horizon" if is_infinite else pluralize(int(self.horizon), "time step")
        n_models = pluralize(self.model.n_models, "model")
        return f"{type(self).__name__}({self.name}, {horizon}, belief over {n_models})"


@dataclass(frozen=True)
class BeliefMethod(Method):
    """Base class of the methods that compute belief policies.

    Parameters
    ----------
    n_episodes
        Episodes per model simulated for the value that ``solve`` reports.
    baseline
        CADP's policy of the same models, if it is known already (a control variate).
    """

    _: KW_ONLY
    n_episodes: PositiveInt | None = None
    baseline: TablePolicy | None = None

    default_class = Belief()
    uses_sampled_model: ClassVar[bool] = False  # whether it acts by a model that it draws

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        if self.uses_sampled_model and (
            reason := spec.reason_if_switching("the model that it draws must stay true")
        ):
            return reason
        return spec.reason_if_not_belief()

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of q by time, state, action and model."""
        n_times = 1 if spec.is_infinite_horizon else spec.planning_horizon
        return 8 * n_times * spec.model.problem.terminal.size * spec.model.n_actions

    def estimate_passes(self, problem: Problem, horizon: int) -> float:
        """Estimate the passes over the problem, those of the simulation included."""
        return max(self.min_passes, estimate_planning_passes(problem, self.n_episodes))

    def solve_baseline(self, context: SolveContext) -> MethodResult:
        """Compute CADP's policy for the same models, or check the given one.

        With a time limit it is the best after half of it.
        """
        baseline = self.baseline
        if baseline is not None:
            baseline.check(context.model, context.policy_horizon)
            if not baseline.is_deterministic:
                raise InputError("baseline must be a deterministic policy")
            return MethodResult(baseline.actions, Status.COMPLETED, 1)
        subcontext = context.unrestricted_context()
        subcontext.stopwatch = Stopwatch(context.stopwatch.time_left / 2)
        try:
            result = CADP().run(subcontext)
        except TimeUp:
            result = MethodResult(
                subcontext.best_policy, Status.TIME_LIMIT, subcontext.n_iterations
            )
        return fill_unreachable(subcontext, result)

    def make_planner_result(
        self,
        context: SolveContext,
        tables: PlannerTables,
        baseline: MethodResult | None = None,
        *,
        is_complete: bool = True,
    ) -> MethodResult:
        """Make the result with a belief policy of these tables; its return is simulated later.

        ``baseline`` is CADP's policy if the tables depend on it, and thus on its being complete.
        """
        if baseline is not None:
            is_complete = baseline.status is not Status.TIME_LIMIT
        table = (baseline or self.solve_baseline(context)).policy
        policy_type = StationaryPolicy if context.is_infinite_horizon else MarkovPolicy
        planner = BeliefPlanner(
            self.name,
            context.model,
            context.policy_horizon,
            tables,
            policy_type.for_model(context.model, table),
        )
        status = Status.COMPLETED if is_complete else Status.TIME_LIMIT
        return MethodResult(planner, status, 1, n_episodes=self.n_episodes)


def compute_planner_q(context: SolveContext, policy: PolicyTable | None = None) -> Array:
    """Compute q of a policy, or of each model's optimum, in each model, (T or 1, S, A, M)."""
    if not context.is_infinite_horizon:
        return context.prepared.backward(
            "per_model" if policy is None else "policy", policy=policy, keep=("q",)
        ).q
    infinite = context.infinite_horizon
    values = context.model_optima.values if policy is None else infinite.compute_values(policy)
    return np.moveaxis(infinite.compute_q(values), 0, 2)[None]


def estimate_planning_passes(
    problem: Problem, n_episodes: int | None, *, carry_belief: bool = False
) -> float:
    """Estimate the cost of planning and simulating, in passes.

    Every episode holds a belief over all models; episodes that carry it on run one by one.
    """
    total_episodes = DEFAULT_TOTAL_EPISODES if n_episodes is None else n_episodes * problem.n_models
    return (
        20
        + total_episodes * problem.n_models / 2**17
        + (2 * total_episodes / problem.n_models if carry_belief else 0)
    )


# ---------------------------------------------------------------------- methods without a grid
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

    name = "qmdp"
    title = "as if the model were known after one step"

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

    name = "rollout"
    title = "one improvement of CADP by the exact belief"

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

    name = "mixts"
    title = "Thompson sampling over the models"
    uses_sampled_model = True

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

    name = "pomcp"
    title = "tree search with the exact belief"
    min_passes = math.inf
    uses_sampled_model = True

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        return super().unsupported_reason(spec) or spec.reason_if_infinite()

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
