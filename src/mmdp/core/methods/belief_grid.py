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
(:func:`_compute_controller_returns`).
Rounds can go in circles and their controllers differ; the best of the last few is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mmdp.core.arguments import NonNegativeInt, Vector, check_arguments
from mmdp.core.bounds.portfolio import compute_first_bound
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.kernels.controller import MAX_NODES, Controller, estimate_sweep_bytes
from mmdp.core.kernels.infinite import InfiniteHorizon, find_truncation_horizon
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.planner import NODES, PlannerTables
from mmdp.core.kernels.problem import TIE_RTOL, Problem, at_time
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.belief import BeliefPlanner, BeliefState
from mmdp.core.model import MMDP
from mmdp.core.policies import Belief, MemoryPolicy
from mmdp.core.policies.base import NamedValues
from mmdp.core.search.context import get_stop_status
from mmdp.core.search.spaces import StationarySpace
from mmdp.core.shapes import Array, IndexArray, IntArray, NodeArray
from mmdp.core.solution import OPTIMALITY_GAP, Status
from mmdp.core.text import TimeLabels
from mmdp.core.validate import check_index, check_int, match_ids, parse_distribution

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.insight.draw.maps import PolicyMap


MAX_MODELS = 4
INTERIOR_SHIFT = (
    1e-6  # plans are chosen this far inside the simplex, so that they allow for every model
)
TAIL_WEIGHT = 1e-6  # weight of the decisions that an infinite horizon may leave out
N_LAST_CONTROLLERS = 4  # of an infinite horizon whose controllers are evaluated
MAP_COLUMNS = 101  # beliefs across a map
COARSENING_FACTOR = 4  # times fewer points of the grid before, with a time limit
N_COARSER_GRIDS = 3  # before the grid asked for, with a time limit


class BeliefGridPolicy(BeliefPlanner):
    """Belief policy with a plan at every time, state and grid point; BeliefGrid computes it.

    It keeps the exact belief, and follows the plan that was best at the start; its returns are
    exact, on any models. :meth:`best_action` and the map choose anew among the plans at any belief,
    which may be another action between the points of the grid.
    """

    has_exact_returns = True
    alpha_vectors: Array  # (T or 1, S, N, M) return of every plan in each model
    controller: Controller  # its nodes are the plans

    def __init__(
        self,
        model: MMDP,
        horizon: float,
        alpha_vectors: Array,
        controller: Controller,
    ) -> None:
        tables = PlannerTables(NODES, model.problem, controller=controller)
        super().__init__(BeliefGrid.name, model, horizon, tables, None)
        self._set_attributes(alpha_vectors=alpha_vectors, controller=controller)

    @property
    def defining_values(self) -> NamedValues:
        """Arrays of the controller, horizon and model fingerprint, by name."""
        models = self.model.fingerprint()
        return {**self.controller._asdict(), "horizon": self.horizon, "models": models}

    @property
    def _memory_policy(self) -> MemoryPolicy:
        """Finite-state controller of the plans, without their values."""
        return MemoryPolicy.for_model(self.model, self.controller)

    def to_dict(self) -> NamedValues:
        """Return the controller, the model fingerprint and the alpha vectors as JSON types."""
        models, alphas = self.model.fingerprint(), self.alpha_vectors.tolist()
        return {**self._memory_policy.to_dict(), "models": models, "alphas": alphas}

    def to_frame(self) -> pd.DataFrame:
        """Raise InputError: there is no table of actions."""
        raise InputError(
            f"{self!r} has no table of actions: it {self.memory_note}", ["write it as .json"]
        )

    def compute_returns(
        self, model: MMDP, backend: Backend, check_time: Callable[[], object] = lambda: None
    ) -> Array:
        """Compute the exact return on every model, as of a finite-state controller."""
        if self.horizon < math.inf:
            prepared = backend.prepare(model.problem, int(self.horizon))
            return prepared.compute_node_values(self.controller).returns
        return _compute_controller_returns(model.problem, self.controller, check_time)

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

    def _best_action_ids(self, time: int, state: int, weights: Array) -> IntArray:
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

    name = "grid"
    title = "plans on a grid of beliefs for 2 to 4 models"
    default_class = Belief()
    best_status = Status.OPTIMAL
    covers_unreachable = True

    def __post_init__(self) -> None:
        """Check the number of grid points."""
        check_int(self.max_points, "max_points")
        if not MAX_MODELS <= self.max_points < MAX_NODES:
            raise InputError(
                f"max_points must be {MAX_MODELS} to {MAX_NODES - 1}, not {self.max_points:,}"
            )

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        if not 2 <= (n_models := spec.model.n_models) <= MAX_MODELS:
            return f"its grid is for two to four models, not {n_models:,}"
        return spec.reason_if_not_belief()

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes: the sweeps over the points of the grid."""
        n_times = 1 if spec.is_infinite_horizon else spec.planning_horizon
        return estimate_sweep_bytes(spec.model.problem, n_times, self.max_points)

    def run(self, context: SolveContext) -> MethodResult:
        """Plan on grids (coarser ones first under a time limit); return best policy and bound."""
        alphas, controller, bound = _make_initial_plan(context)
        policy, returns = _make_policy(context, alphas, controller)
        rounding_error, n_points = context.estimate_rounding(returns), 1
        context.keep_best(policy, context.compute_mean(returns))
        n_coarser = N_COARSER_GRIDS if context.stopwatch.time_left < math.inf else 0
        with context.allow_stop() as stop_state:
            for k in range(n_coarser, -1, -1):
                if (max_points := self.max_points // COARSENING_FACTOR**k) < MAX_MODELS:
                    continue
                recursion = _GridRecursion(context, max_points)
                plans = recursion.solve()
                bound = min(bound, recursion.bound)
                for plan in plans:
                    new_policy, new_returns = _make_policy(context, *plan)
                    if context.compute_mean(new_returns - returns) >= -rounding_error:
                        policy, returns = new_policy, new_returns
                        n_points = len(recursion.grid.points)
        value = context.compute_mean(returns)
        bound = max(bound + rounding_error, value)
        is_closed = bound - value <= OPTIMALITY_GAP * abs(value) + 2 * rounding_error
        details = {"bound": bound, "scope": "history", "n_points": n_points}
        status = Status.OPTIMAL if is_closed else get_stop_status(stop_state)
        return MethodResult(policy, status, 1, returns=returns, details=details)


def _make_policy(
    context: SolveContext, alphas: Array, controller: Controller
) -> tuple[BeliefGridPolicy, Array]:
    """Make the policy of these plans and compute its returns (M,)."""
    model, backend = context.model, context.backend
    policy = BeliefGridPolicy(model, context.policy_horizon, alphas, controller)
    return policy, policy.compute_returns(model, backend, context.check_time)


def _make_initial_plan(context: SolveContext) -> tuple[Array, Controller, float]:
    """Make a plan that ignores the belief: its alpha vectors and controller, and a bound."""
    if context.is_infinite_horizon:
        optima, table = context.model_optima, StationarySpace(context).compute_init("wsu", 0)[None]
        values = context.infinite_horizon.compute_values(table[0]).T[None]
        optimal_returns = context.problem.compute_returns(optima.values.T) + optima.error_bound
        bound = context.compute_mean(optimal_returns)
    else:
        table = context.solve_wsu()[0]
        values = context.prepared.backward("policy", policy=table, keep=("values",)).values[:-1]
        bound = compute_first_bound(context.prepared)
    return values[:, :, None], Controller.from_tables(table), bound


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
    point_index: IndexArray  # (n + 1, ...) number of the point at x

    @classmethod
    def with_max_points(cls, n_models: int, max_points: int) -> SimplexGrid:
        """Make the finest grid with at most ``max_points`` points."""
        d = n_models - 1
        n = max(n for n in range(1, max_points) if comb(n + d, d) <= max_points)
        x = np.indices((n + 1,) * d).reshape(d, -1).T
        x = x[(np.diff(x, axis=1) <= 0).all(axis=1)]
        point_index = np.zeros((n + 1,) * d, np.int64)
        point_index[tuple(x.T)] = np.arange(len(x))
        return cls(n, -np.diff(x, axis=1, prepend=n, append=0) / n, point_index)

    def find_corners(self, beliefs: Array) -> tuple[IndexArray, Array]:
        """Find the corners (..., M) of the cell of each belief (..., M), and their weights."""
        n = self.resolution
        x = np.minimum(n * np.cumsum(beliefs[..., :0:-1], axis=-1)[..., ::-1], n)
        floor_x = np.floor(x)
        order = np.argsort(floor_x - x, axis=-1, kind="stable")  # the largest fraction first
        fractions = np.take_along_axis(x - floor_x, order, axis=-1)
        corner_weights = -np.diff(fractions, axis=-1, prepend=1, append=0)
        steps = np.cumsum(np.eye(x.shape[-1])[order], axis=-2)
        corners = floor_x[..., None, :] + np.insert(steps, 0, 0.0, axis=-2)
        # those outside have no share
        corners = np.minimum(corners, n).astype(np.int64)
        return self.point_index[tuple(np.moveaxis(corners, -1, 0))], corner_weights


class _GridRound(NamedTuple):
    """Result of one backward step: values from both sides, and the plans."""

    alphas: Array  # (S, N, M)
    upper: Array  # (S, N)
    actions: IntArray  # (S, N)
    node_transitions: NodeArray  # (S, N, S)


class _GridRecursion:
    """Backward recursions of alpha vectors (from below) and of the upper bound.

    The last point is the initial belief, which may differ by state.
    """

    def __init__(self, context: SolveContext, max_points: int) -> None:
        self.context, self.problem = context, context.problem
        x, states = self.problem, np.arange(self.problem.n_states)
        self.grid = SimplexGrid.with_max_points(x.n_models, max_points)
        self.table = x.storage.to_table()
        initial_belief = x.condition_on_initial(x.weights / x.weights.sum(), states)[:, None]
        points = np.broadcast_to(self.grid.points, (x.n_states, *self.grid.points.shape))
        self.beliefs = np.concatenate([points, initial_belief], axis=1)  # (S, N, M)
        inside = np.maximum(initial_belief, INTERIOR_SHIFT)
        self.interior_beliefs = (1 - INTERIOR_SHIFT) * self.beliefs + INTERIOR_SHIFT * inside
        # those of a model that does not vary with time are computed once
        self._locate_next = lru_cache(x.n_states * x.n_actions)(self._locate_next_beliefs)
        self.bound = 0.0

    def solve(self) -> list[tuple[Array, Controller]]:
        """Compute plans as alpha vectors (T or 1, S, N, M) and controllers, and set ``bound``.

        Over an infinite horizon rounds repeat until little changes; otherwise there is a plan for
        each of the last few.
        """
        problem, context, (S, N, _) = self.problem, self.context, self.beliefs.shape
        is_infinite = context.is_infinite_horizon
        lower_values = upper_values = problem.terminal
        n_rounds, n_kept = context.horizon, context.horizon
        if is_infinite:
            optima, infinite = context.model_optima, context.infinite_horizon
            lower_values = infinite.compute_values(optima.actions[0]).T
            upper_values = (optima.values + optima.error_bound[:, None]).T
            n_rounds, n_kept = find_truncation_horizon(problem, TAIL_WEIGHT)[0], N_LAST_CONTROLLERS
        alphas = np.repeat(lower_values[:, None], N, axis=1)
        upper = np.einsum("snm,sm->sn", self.beliefs, upper_values)
        rounds: list[_GridRound] = []  # the first time first
        for t in reversed(range(n_rounds)):
            next_alphas = problem.expect_models(alphas)
            backups = (self._backup_state(t, s, next_alphas, upper) for s in range(S))
            rounds.insert(0, _GridRound(*map(np.array, zip(*backups, strict=True))))
            del rounds[n_kept:]
            change = max(
                np.abs(rounds[0].alphas - alphas).max(), np.abs(rounds[0].upper - upper).max()
            )
            alphas, upper = rounds[0][:2]
            if is_infinite:
                min_change = TAIL_WEIGHT * OPTIMALITY_GAP * np.abs(upper).max()
                if change * infinite.effective_horizon <= min_change:
                    del rounds[1:]
                    break
        self.bound = float(problem.initial_joint().sum(axis=1) @ upper[:, -1])
        initial_nodes = np.full(S, N - 1, np.uint8)
        plans = []
        for plan in [[x] for x in reversed(rounds)] if is_infinite else [rounds]:
            alphas, _, actions, transitions = map(np.array, zip(*plan, strict=True))
            plans.append((alphas, Controller(actions, transitions, initial_nodes)))
        return plans

    def _locate_next_beliefs(self, t: int, row: int) -> tuple[IndexArray, Array]:
        """Find the corners (e, N, M) around the next beliefs of row s A + a, and their weights."""
        x, beliefs = self.problem, self.beliefs[row // self.problem.n_actions]
        next_beliefs = x.push_models(beliefs * self.table.get_row(t, row).p[:, None])
        probs = next_beliefs.sum(axis=2, keepdims=True)
        corners, weights = self.grid.find_corners(next_beliefs / np.where(probs > 0, probs, 1.0))
        return corners, weights * probs

    def _backup_state(
        self, t: int, s: int, next_alphas: Array, upper: Array
    ) -> tuple[Array, Array, IntArray, NodeArray]:
        """Compute alpha_t(s, .) (N, M), U_t(s, .) (N,), actions (N,) and next plans (N, S)."""
        self.context.check_time()
        x, interior = self.problem, self.interior_beliefs[s]
        n_times, points = len(self.table.p), np.arange(len(interior))
        q = np.full((x.n_actions, *interior.shape), -np.inf)
        upper_q = np.full(q.shape[:2], -np.inf)
        next_plans = np.repeat(points.astype(np.uint8)[:, None], x.n_states, axis=1)
        next_plans = np.repeat(next_plans[None], x.n_actions, axis=0)  # (A, N, S)
        for a in np.flatnonzero(at_time(x.allowed, t)[s]):
            row, r = s * x.n_actions + int(a), x.get_rewards(t, s, a)
            next_states, p = self.table.get_row(t, row)
            corners, weights = self._locate_next(t % n_times, row)
            expected = (weights * upper[next_states[:, None, None], corners]).sum(axis=(0, 2))
            upper_q[a] = self.beliefs[s] @ r + x.discount * expected
            joint, p = interior * p[:, None], p[:, None]
            best = (joint @ np.swapaxes(next_alphas[next_states], 1, 2)).argmax(axis=2)  # (e, N)
            followed_alphas = next_alphas[next_states[:, None], best]
            q[a] = r + x.discount * (p * followed_alphas).sum(axis=0)
            next_plans[a][:, next_states] = best.T
        values = np.einsum("anm,nm->na", q, interior)
        actions = choose_actions(values, values, None)
        return q[actions, points], upper_q.max(axis=0), actions, next_plans[actions, points]


def _compute_controller_returns(
    problem: Problem, controller: Controller, check_time: Callable[[], object]
) -> Array:
    """Compute the infinite-horizon returns (M,) of a controller, over states and nodes."""
    (_, S, N), (actions, node_transitions, initial_nodes) = controller.actions.shape, controller
    s, n = np.divmod(np.arange(S * N), N)
    a = actions[0].ravel()
    table = problem.storage.select_rows(s * problem.n_actions + a)
    entries = table.get_entry_rows()
    next_nodes = node_transitions[0][s[entries], n[entries], table.indices]
    next_pairs = (table.indices.astype(np.int64) * N + next_nodes).astype(np.int32)
    initial = np.zeros((S * N, problem.initial.shape[1]))
    initial[np.arange(S) * N + initial_nodes] = problem.initial
    controlled = problem._replace(
        storage=table._replace(indices=next_pairs, is_dense=False),
        r=problem.r[0][s, a][None, :, None],
        allowed=np.ones((1, S * N, 1), dtype=bool),
        initial=initial,
        terminal=np.zeros((S * N, problem.terminal.shape[1])),
    )
    infinite = InfiniteHorizon.from_problem(controlled, check_time)
    return infinite.compute_returns(np.zeros(S * N, np.int32))
