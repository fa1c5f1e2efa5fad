"""Belief policies for two to four models on a grid over the simplex of beliefs (Lovejoy 1991).

The value V_t(s, beta) is convex in the belief beta. Backwards in time, at every point of a grid:

- from above, by U_t(s, beta) = max_a beta r + gamma sum_s' |beta'| U_{t+1}(s', beta' / |beta'|)
  with beta'_m = beta_m p_m(s' | s, a). Between points U is linear on the simplices of Freudenthal's
  triangulation (Lovejoy 1991), which lies above a convex function.
- from below, by plans: a plan is what to do now and which plan follows each step. Its vector
  alpha_m is its return in model m, so max alpha beta over the plans can be reached. The best plan
  at each point is made of those of the points at t + 1.

Without a last decision both go on until little changes. U begins with what is best if the model
becomes known, so it falls, and is above at any time. The plans of one round follow each other:
a controller, whose returns are those of the models over states and plans
(:func:`_make_controlled_problem`).
Rounds can go in circles and their controllers differ; the best of the last few is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import NonNegativeInt, Vector, check_arguments
from mmdp.core.bounds.closed_form import compute_first_bound
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.kernels.controller import MAX_NODES, Controller, estimate_sweep_bytes
from mmdp.core.kernels.infinite import InfiniteHorizon, find_truncation_horizon
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.planner import NODES, PlannerTables
from mmdp.core.kernels.problem import TIE_RTOL, Problem, TableStorage, at_time, find_row_entries
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.belief import BeliefPlanner, BeliefState
from mmdp.core.model import MMDP
from mmdp.core.policies import Belief, MemoryPolicy, PolicyClass
from mmdp.core.policies.base import NamedValues
from mmdp.core.search.context import get_stop_status
from mmdp.core.search.spaces import StationarySpace
from mmdp.core.solution import OPTIMALITY_GAP, Status
from mmdp.core.text import TimeLabels
from mmdp.core.validate import check_index, check_int, match_ids, parse_distribution

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.insight.draw.maps import PolicyMap

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_MODELS = 4
INTERIOR_SHIFT = (
    1e-6  # plans are chosen this far inside the simplex, so that they allow for every model
)
TAIL_WEIGHT = 1e-6  # weight of the decisions that an infinite horizon may leave out
N_LAST_CONTROLLERS = 4  # of an infinite horizon whose controllers are evaluated
MAP_COLUMNS = 101  # beliefs across a map
COARSENING_FACTOR = 4  # times fewer points of the grid before, with a time limit


class BeliefGridPolicy(BeliefPlanner):
    """Belief policy with a plan at every time, state and grid point; BeliefGrid computes it.

    It keeps the exact belief, and follows the plan that was best at the start; its returns are
    exact, on any models. :meth:`best_action` and the map choose anew among the plans at any belief,
    which may be another action between the points of the grid.
    """

    has_exact_returns = True
    alpha_vectors: Array  # (T or 1, S, N, M) return of every plan in each model

    def __init__(
        self,
        model: MMDP,
        horizon: float,
        alpha_vectors: Array,
        controller: Controller,
        backend: Backend,
    ) -> None:
        tables = PlannerTables(NODES, model.problem, controller=controller)
        super().__init__(BeliefGrid.name, model, horizon, tables, None, backend)
        self._set_attributes(alpha_vectors=alpha_vectors)

    @property
    def controller(self) -> Controller:
        """Finite-state controller whose nodes are the plans."""
        assert self.tables.controller is not None
        return self.tables.controller

    @property
    def defining_values(self) -> NamedValues:
        """Arrays of the controller, horizon and model fingerprint, by name."""
        metadata = {"horizon": self.horizon, "models": self.model.fingerprint()}
        return {**self.controller._asdict(), **metadata}

    @property
    def table(self) -> npt.NDArray[np.int32]:  # type: ignore[override]
        """Actions, plan transitions and initial plans as one flat array."""
        return self._memory_policy.table

    @property
    def _memory_policy(self) -> MemoryPolicy:
        """Finite-state controller of the plans, without their values."""
        return MemoryPolicy.for_model(self.model, self.controller)

    def to_dict(self) -> NamedValues:
        """Return the controller, the model fingerprint and the alpha vectors as JSON types."""
        metadata = {"models": self.model.fingerprint(), "alphas": self.alpha_vectors.tolist()}
        return {**self._memory_policy.to_dict(), **metadata}

    def to_frame(self) -> pd.DataFrame:
        """Raise InputError: there is no table of actions."""
        raise InputError(
            f"{self!r} has no table of actions: it {self.memory_note}", ["write it as .json"]
        )

    def compute_returns(self, model: MMDP, backend: Backend) -> Array:
        """Compute the exact return on every model, as of a finite-state controller."""
        if self.horizon < math.inf:
            prepared = backend.prepare(model.problem, int(self.horizon))
            return prepared.compute_node_values(self.controller).returns
        return _compute_controller_returns(
            InfiniteHorizon.from_problem(model.problem).problem, self.controller
        )

    # ------------------------------------------------------------ who follows it
    def initial_memory(self, seed: int | None = 0) -> BeliefState:
        """Return the belief before the first decision, which samples no model."""
        return replace(super().initial_memory(seed), sampled_model=-1)

    def act(self, memory: BeliefState, time: int, state: int) -> int:
        """Return the action of the current node in the state."""
        return int(at_time(self.controller.actions, time)[state, self._current_node(memory, state)])

    def update(
        self,
        memory: BeliefState,
        time: int,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
    ) -> BeliefState:
        """Return the memory after a Bayes update and the transition to the next plan."""
        next_memory = super().update(memory, time, state, action, next_state, reward)
        transitions = at_time(self.controller.node_transitions, time)[state]
        node = transitions[self._current_node(memory, state), next_state]
        return replace(next_memory, sampled_model=int(node))

    def _current_node(self, memory: BeliefState, state: int) -> int:
        """Return the plan in memory; the initial plan at the start of an episode."""
        node = memory.sampled_model
        return int(self.controller.initial_nodes[state]) if node < 0 else node

    # ------------------------------------------------------------ who reads it
    @check_arguments
    def best_action(self, time: int, state: int | str, weights: Vector) -> str:
        """Return the label of the best action at a belief (M,).

        >>> import mmdp
        >>> policy = mmdp.solve(mmdp.domains.two_models().train, 9, "grid").policy
        >>> [policy.best_action(0, "1", [w, 1 - w]) for w in (0.1, 0.9)]
        ['2', '1']
        """
        s = match_ids([state], self.state_names, "the state")[0]
        belief = parse_distribution(weights, "weights", self.model.label_index("model"))
        return self.action_names[int(self._best_action_ids(time, s, belief))]

    def _best_action_ids(self, time: int, state: int, weights: Array) -> npt.NDArray[np.int32]:
        """Return the ids of the best actions (...) at beliefs (..., M)."""
        check_index(time, self.horizon, "time")
        best_plan = (weights @ at_time(self.alpha_vectors, time)[state].T).argmax(axis=-1)
        return at_time(self.controller.actions, time)[state, best_plan]

    @check_arguments
    def to_map(self, time: NonNegativeInt = 0) -> PolicyMap:
        """Return a map of the best action by state (down) and belief in a model (across).

        With two models it is the weight of the second. With more there is a row for each state and
        model, the others keeping their shares of the rest.
        """
        from mmdp.insight.draw.maps import PolicyMap

        model_labels, prior = self.model.model_labels, self.model.weights
        weight_grid, n_models = np.linspace(0.0, 1.0, MAP_COLUMNS)[:, None], len(model_labels)
        rows, columns = [], []
        for s in np.flatnonzero(self.model.has_choice):
            for m in range(n_models) if n_models > 2 else [n_models - 1]:
                other_weights = np.where(np.arange(n_models) == m, 0.0, np.maximum(prior, TIE_RTOL))
                weights = (
                    weight_grid * np.eye(n_models)[m]
                    + (1 - weight_grid) * other_weights / other_weights.sum()
                )
                rows.append(self.state_names[s] + f", model {model_labels[m]}" * (n_models > 2))
                columns.append(self._best_action_ids(time, int(s), weights))
        axis_label = f"weight of {model_labels[-1]}" if n_models == 2 else "weight of the model"
        return PolicyMap(
            np.array(columns).T, rows, self.action_names, TimeLabels(axis_label), (0.0, 1.0)
        )

    def describe(self) -> str:
        """Describe the best action at the first time, by the belief in a model."""
        policy_map = self.to_map()
        note = ", the others keeping their shares of the rest" * (self.model.n_models > 2)
        lines = [f"what to do now, by the {policy_map.time_labels.name}{note}:"]
        for s, row in enumerate(policy_map.row_labels):
            *head_runs, (_, _, last_action) = policy_map.find_runs(s)
            runs = [
                f"{policy_map.action_labels[a]} to {j / (MAP_COLUMNS - 1):g}"
                for _, j, a in head_runs
            ]
            lines.append(f"  {row}: {', '.join([*runs, policy_map.action_labels[last_action]])}")
        initial_states = np.flatnonzero(self.tables.problem.initial.any(axis=1))
        if len(initial_states) == 1:
            action = self.action_names[self.act(self.initial_memory(), 0, int(initial_states[0]))]
            lines.insert(0, f"in {self.state_names[initial_states[0]]}, where it starts: {action}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Render a map of the actions for notebooks."""
        return self.to_map().to_html()


@check_arguments
@dataclass(frozen=True)
class BeliefGrid(Method):
    """Belief policy for two to four models by grid-based value iteration (Lovejoy 1991).

    Also proves an upper bound on the value of every policy.

    Plans are computed at the points of a grid over the beliefs. The value of the policy is exact,
    and the bound holds for every policy, also with memory. A finer grid brings them closer; on
    hard problems they stay some percent apart, and :class:`mmdp.methods.QMDP` or
    :class:`mmdp.methods.Rollout` may find a better policy: compare. The policy has a map: actions
    by state and belief. With a time limit it plans on coarser grids first, and the incumbent may be
    one of theirs, or one without memory.

    Parameters
    ----------
    max_points
        The most points of the grid over the simplex; at most 254.

    >>> import mmdp
    >>> model, method = mmdp.domains.two_models().train, mmdp.methods.BeliefGrid(max_points=11)
    >>> solution = mmdp.solve(model, 9, method)
    >>> solution.value, solution.status.name
    (11.5, 'OPTIMAL')
    """

    max_points: int = 101

    name: ClassVar[str] = "grid"
    title: ClassVar[str] = "plans on a grid of beliefs for 2 to 4 models"
    default_class: ClassVar[PolicyClass | None] = Belief()
    best_status: ClassVar[Status | None] = Status.OPTIMAL
    covers_unreachable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the number of grid points."""
        check_int(self.max_points, "max_points")
        if not MAX_MODELS <= self.max_points < MAX_NODES:
            raise InputError(
                f"max_points must be {MAX_MODELS} to {MAX_NODES - 1}, not {self.max_points:,}"
            )

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        if not spec.policy_class.uses_belief:
            return f"it finds policies that keep a belief, not {spec.policy_class.name} ones"
        if not 2 <= (n_models := spec.model.n_models) <= MAX_MODELS:
            return f"its grid is for two to four models, not {n_models:,}"
        return spec.reason_if_risk() or spec.reason_if_sharded()

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes: the sweeps over the points of the grid."""
        n_times = 1 if spec.is_infinite_horizon else spec.planning_horizon
        return estimate_sweep_bytes(spec.model.problem, n_times, self.max_points)

    def run(self, context: SolveContext) -> MethodResult:
        """Plan on grids (coarser ones first under a time limit); return best policy and bound."""
        plans, bound = _make_initial_plan(context)
        best, n_points = self._make_policy(context, *plans), 1
        rounding_error = context.estimate_rounding(best[1])
        context.keep_best(best[0], context.compute_mean(best[1]))
        with context.allow_stop() as stop_state:
            for max_points in self._grid_sizes(context):
                recursion = _GridRecursion(context, max_points)
                policy, returns = self._make_policy(context, *recursion.solve())
                if context.compute_mean(returns) >= context.compute_mean(best[1]) - rounding_error:
                    best, n_points = (policy, returns), len(recursion.grid.points)
                bound = min(bound, recursion.bound)
        value = context.compute_mean(best[1])
        bound = max(bound + rounding_error, value)
        is_closed = bound - value <= OPTIMALITY_GAP * abs(value) + 2 * rounding_error
        status = Status.COMPLETED if stop_state.exception is None else get_stop_status(stop_state)
        details = {"bound": bound, "scope": "history", "n_points": n_points}
        return MethodResult(
            best[0], Status.OPTIMAL if is_closed else status, 1, returns=best[1], details=details
        )

    def _grid_sizes(self, context: SolveContext) -> list[int]:
        """Return the point counts of grids to plan on; under a time limit, coarser ones first."""
        sizes = [self.max_points]
        while (
            context.stopwatch.time_left < math.inf and sizes[0] // COARSENING_FACTOR >= MAX_MODELS
        ):
            sizes.insert(0, sizes[0] // COARSENING_FACTOR)
        return sizes

    def _make_policy(
        self, context: SolveContext, alpha_vectors: Array, controller: Controller
    ) -> tuple[BeliefGridPolicy, Array]:
        """Make the policy of these plans and compute its returns (M,)."""
        policy = BeliefGridPolicy(
            context.model, context.policy_horizon, alpha_vectors, controller, context.backend
        )
        return policy, policy.compute_returns(context.model, context.backend)


def _make_initial_plan(context: SolveContext) -> tuple[tuple[Array, Controller], float]:
    """Make a plan that ignores the belief, as a controller with its alpha vector, and a bound."""
    if context.policy_class.is_infinite_horizon:
        optima, table = context.model_optima, StationarySpace(context).compute_init("wsu", 0)[None]
        values = context.infinite_horizon.compute_values(table[0]).T[None]
        optimal_returns = context.problem.compute_returns(optima.values.T) + optima.error_bound
        bound = context.compute_mean(optimal_returns)
    else:
        table = context.solve_wsu()[0]
        values = context.prepared.backward("policy", policy=table, keep=("values",)).values[:-1]
        bound = compute_first_bound(context.prepared)
    return (values[:, :, None], Controller.from_tables(table)), bound


# ---------------------------------------------------------------------- the grid
class SimplexGrid(NamedTuple):
    """Regular grid over the simplex, with Freudenthal's triangulation.

    x_i = n sum_{k >= i} beta_k, for i > 0, makes the grid one of whole numbers n >= x_1 >= x_2 ...

    >>> grid = SimplexGrid.with_max_points(3, 6)
    >>> grid.resolution, grid.points[[0, -1]].tolist()
    (2, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> corners, shares = grid.find_corners(np.array([0.25, 0.5, 0.25]))
    >>> (shares @ grid.points[corners]).tolist()
    [0.25, 0.5, 0.25]
    """

    resolution: int
    points: Array  # (N, M)
    point_index: IntArray  # (n + 1, ...) number of the point at x

    @classmethod
    def with_max_points(cls, n_models: int, max_points: int) -> SimplexGrid:
        """Make the finest grid with at most ``max_points`` points."""
        n = max(
            n for n in range(1, max_points) if comb(n + n_models - 1, n_models - 1) <= max_points
        )
        x = np.indices((n + 1,) * (n_models - 1)).reshape(n_models - 1, -1).T
        x = x[(np.diff(x, axis=1) <= 0).all(axis=1)]
        point_index = np.zeros((n + 1,) * (n_models - 1), np.int64)
        point_index[tuple(x.T)] = np.arange(len(x))
        padded_levels = np.concatenate(
            [np.full((len(x), 1), n), x, np.zeros((len(x), 1), int)], axis=1
        )
        return cls(n, -np.diff(padded_levels, axis=1) / n, point_index)

    def find_corners(self, beliefs: Array) -> tuple[IntArray, Array]:
        """Find the corners (..., M) of the cell of each belief (..., M), and their weights."""
        x = np.minimum(
            self.resolution * np.cumsum(beliefs[..., :0:-1], axis=-1)[..., ::-1], self.resolution
        )
        floor_x = np.floor(x)
        order = np.argsort(floor_x - x, axis=-1, kind="stable")  # the largest fraction first
        fractions = np.take_along_axis(x - floor_x, order, axis=-1)
        ones, zeros = np.ones_like(fractions[..., :1]), np.zeros_like(fractions[..., :1])
        corner_weights = -np.diff(np.concatenate([ones, fractions, zeros], axis=-1), axis=-1)
        steps = np.cumsum(np.eye(x.shape[-1])[order], axis=-2)
        corners = np.concatenate([floor_x[..., None, :], floor_x[..., None, :] + steps], axis=-2)
        clipped_corners = np.minimum(corners, self.resolution).astype(
            np.int64
        )  # those outside have no share
        return self.point_index[tuple(np.moveaxis(clipped_corners, -1, 0))], corner_weights


class _GridRound(NamedTuple):
    """Result of one backward step, with the actions and transitions of the plans."""

    alphas: Array  # (S, N, M)
    upper: Array  # (S, N)
    actions: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # (S, N)
    node_transitions: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)  # (S, N, S)


class _BeliefSteps(NamedTuple):
    """Transitions of the beliefs at a state: e entries of the pattern, N points."""

    actions: IntArray  # (e,)
    next_states: npt.NDArray[np.int32]  # (e,) the next state
    p: Array  # (e, 1, M)
    joint_probs: Array  # (e, N, M) beta p at the points for plans, not scaled
    corners: IntArray  # (e, N, M)
    corner_weights: Array  # (e, N, M) times |beta'|


class _GridRecursion:
    """Backward recursions of alpha vectors (from below) and of the upper bound.

    The last point is the initial belief, which may differ by state.
    """

    def __init__(self, context: SolveContext, max_points: int) -> None:
        self.context, self.problem = context, context.problem
        self.check_time = context.check_time
        problem = self.problem
        self.grid = SimplexGrid.with_max_points(problem.n_models, max_points)
        self.table = problem.storage.to_table()
        initial_belief = problem.condition_on_initial(
            problem.weights / problem.weights.sum(), np.arange(problem.n_states)
        )[:, None]
        grid_beliefs = np.broadcast_to(
            self.grid.points, (problem.n_states, *self.grid.points.shape)
        )
        self.beliefs = np.concatenate([grid_beliefs, initial_belief], axis=1)  # (S, N, M)
        self.interior_beliefs = (1 - INTERIOR_SHIFT) * self.beliefs + INTERIOR_SHIFT * np.maximum(
            initial_belief, INTERIOR_SHIFT
        )
        self.bound = 0.0

    def solve(self) -> tuple[Array, Controller]:
        """Compute alpha vectors (T or 1, S, N, M) and plans, and set ``bound``.

        Over an infinite horizon rounds repeat until little changes. Otherwise the best of the last
        few is kept.
        """
        problem, context, (S, N, _) = self.problem, self.context, self.beliefs.shape
        is_infinite = context.policy_class.is_infinite_horizon
        if is_infinite:
            optima, infinite = context.model_optima, context.infinite_horizon
            lower_values = infinite.compute_values(optima.actions[0]).T
            upper_values = (optima.values + optima.error_bound[:, None]).T
            n_rounds = find_truncation_horizon(problem, TAIL_WEIGHT)[0]
        else:
            lower_values = upper_values = problem.terminal
            n_rounds = context.horizon
        rounds: list[_GridRound] = []  # the first time first
        last = _GridRound(
            np.repeat(lower_values[:, None], N, axis=1),
            np.einsum("snm,sm->sn", self.beliefs, upper_values),
        )
        steps: list[_BeliefSteps] = []
        for t in reversed(range(n_rounds)):
            if not steps or len(self.table.p) > 1:
                steps = [self._make_steps(at_time(self.table.p, t), s) for s in range(S)]
            next_alphas = problem.expect_models(last.alphas)
            backups = [
                self._backup_state(t, s, step, next_alphas, last.upper)
                for s, step in enumerate(steps)
            ]
            previous, last = last, _GridRound(*map(np.array, zip(*backups, strict=True)))
            rounds.insert(0, last)
            if is_infinite:
                del rounds[N_LAST_CONTROLLERS:]
                changes = (np.abs(x - y).max() for x, y in zip(last[:2], previous[:2], strict=True))
                min_change = TAIL_WEIGHT * OPTIMALITY_GAP * np.abs(last.upper).max()
                if max(changes) * infinite.effective_horizon <= min_change:
                    rounds = [last]
                    break
        self.bound = float(problem.initial_joint().sum(axis=1) @ last.upper[:, -1])
        initial_nodes = np.full(S, N - 1, np.uint8)
        plans = []
        for plan in [[x] for x in rounds] if is_infinite else [rounds]:
            alphas, _, actions, transitions = map(np.array, zip(*plan, strict=True))
            plans.append((alphas, Controller(actions, transitions, initial_nodes)))
        if len(plans) == 1:
            return plans[0]
        return max(
            plans,
            key=lambda plan: context.compute_mean(
                _compute_controller_returns(problem, plan[1], self.check_time)
            ),
        )

    def _make_steps(self, p: Array, s: int) -> _BeliefSteps:
        """Compute the transitions of all grid beliefs at state s."""
        self.check_time()
        problem, n_actions = self.problem, self.problem.n_actions
        indptr = self.table.indptr[s * n_actions : (s + 1) * n_actions + 1]
        entries = slice(indptr[0], indptr[-1])
        next_beliefs = problem.push_models(self.beliefs[s] * p[entries, None])
        probs = next_beliefs.sum(axis=2, keepdims=True)
        corners, corner_weights = self.grid.find_corners(
            next_beliefs / np.where(probs > 0, probs, 1.0)
        )
        return _BeliefSteps(
            np.repeat(np.arange(n_actions), np.diff(indptr)),
            self.table.indices[entries],
            p[entries, None],
            self.interior_beliefs[s] * p[entries, None],
            corners,
            corner_weights * probs,
        )

    def _backup_state(
        self, t: int, s: int, step: _BeliefSteps, next_alphas: Array, upper: Array
    ) -> tuple[Array, Array, npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Compute alpha_t(s, .) (N, M), U_t(s, .) (N,), actions (N,) and next plans (N, S)."""
        self.check_time()
        problem, points = self.problem, np.arange(len(self.beliefs[s]))
        r, is_disallowed = at_time(problem.r, t)[s], ~at_time(problem.allowed, t)[s]
        upper_q = r @ self.beliefs[s].T
        next_upper = upper[step.next_states[:, None, None], step.corners]
        np.add.at(
            upper_q, step.actions, problem.discount * (step.corner_weights * next_upper).sum(axis=2)
        )
        upper_q[is_disallowed] = -np.inf
        next_plans = (step.joint_probs @ np.swapaxes(next_alphas[step.next_states], 1, 2)).argmax(
            axis=2
        )  # (e, N)
        q = np.repeat(r[:, None], len(points), axis=1)  # (A, N, M)
        followed_alphas = next_alphas[step.next_states[:, None], next_plans]
        np.add.at(q, step.actions, problem.discount * step.p * followed_alphas)
        values = np.einsum("anm,nm->na", q, self.interior_beliefs[s])
        values[:, is_disallowed] = -np.inf
        best = choose_actions(values, values, None)
        shape = (problem.n_actions, len(points), problem.n_states)
        plan_transitions = np.broadcast_to(points[:, None], shape).astype(np.uint8)
        plan_transitions[step.actions, :, step.next_states] = next_plans
        return q[best, points], upper_q.max(axis=0), best, plan_transitions[best, points]


def _compute_controller_returns(
    problem: Problem, controller: Controller, check_time: Callable[[], object] = lambda: None
) -> Array:
    """Compute the infinite-horizon returns (M,) of a controller."""
    infinite = InfiniteHorizon.from_problem(
        _make_controlled_problem(problem, controller), check_time
    )
    return infinite.compute_returns(np.zeros(infinite.problem.n_states, np.int32))


def _make_controlled_problem(problem: Problem, controller: Controller) -> Problem:
    """Make the one-action problem over (state, node) that the controller induces."""
    (_, S, N), table = controller.actions.shape, problem.storage.to_table()
    s, n = np.divmod(np.arange(S * N), N)
    a = controller.actions[0].ravel()
    k, entry_rows = find_row_entries(table.indptr, s * problem.n_actions + a)
    next_states, indptr = (
        table.indices[k].astype(np.int64),
        np.searchsorted(entry_rows, np.arange(S * N + 1)),
    )
    next_pairs = (
        next_states * N + controller.node_transitions[0][s[entry_rows], n[entry_rows], next_states]
    )
    initial = np.zeros((S * N, problem.initial.shape[1]))
    initial[np.arange(S) * N + controller.initial_nodes] = problem.initial
    return problem._replace(
        storage=TableStorage(
            indptr, next_pairs.astype(np.int32), np.ascontiguousarray(table.p[:, k]), is_dense=False
        ),
        r=problem.r[0][s, a][None, :, None],
        allowed=np.ones((1, S * N, 1), dtype=bool),
        initial=initial,
        terminal=np.zeros((S * N, problem.terminal.shape[1])),
    )
