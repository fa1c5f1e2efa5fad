"""Search spaces of policies of the state alone, over an infinite or a finite horizon."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mmdp.core.evaluate import RankOneUpdate, take_actions
from mmdp.core.kernels.costs import estimate_stationary_seconds
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.kernels.problem import TIE_RTOL, Array, IntArray, PolicyTable, SweepType
from mmdp.core.search.context import SolveContext
from mmdp.core.search.markov import MarkovSpace
from mmdp.core.search.space import AscentDirection, ChangeGenerator, SearchSpace
from mmdp.core.timing import TimeUp, solver_clock

ROUNDS_PER_ASCENT = 33  # most rounds of one ascent over a number of decisions
STEPS_PER_CHECK = 16  # decisions between two looks at the clock
SETTLED_TOL = 1e-4  # share by which these move values that are near their end
MAX_SINGLE_CHANGES = 20  # single changes that are tried before a search by gradient ends
MAX_EXHAUSTIVE = (
    500  # single changes over a number of decisions: up to these, all of them are tried
)


class StationarySpace(SearchSpace):
    """Search space of stationary policies; candidates are rows (S,) of actions."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "qmdp")
    sweep_type = "single states"

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.infinite_horizon = context.infinite_horizon
        self.allowed = self.evaluator.allowed
        self.is_exhaustive = isinstance(self.infinite_horizon, DirectSolver)

    # ------------------------------------------------------------ initial policies
    def compute_init(self, name: str, seed: int) -> IntArray:
        """Compute an initial row: WSU's first row, the rows of MVP or QMDP, or random actions.

        WSU's first row over all decisions is the optimum if there is a single model.
        """
        context = self.context
        if name == "wsu" and context.problem.n_models == 1:
            row = context.model_optima.actions[0]
        elif name == "wsu":
            row = _compute_wsu_row(context)
        elif name == "mvp":
            mean_problem = context.model.mean_problem(context.problem.weights)
            # gamma, or less than 1: the mean of proper models may be improper
            mean_problem = mean_problem._replace(
                discount=1 - 1 / self.infinite_horizon.effective_horizon
            )
            row = (
                InfiniteHorizon.from_problem(mean_problem, context.stopwatch.raise_if_expired)
                .compute_model_optima()
                .actions[0]
            )
        elif name == "qmdp":
            values = context.model_optima.values
            mean_q = np.tensordot(
                context.problem.weights, self.infinite_horizon.compute_q(values), 1
            )
            row = np.where(self.allowed, mean_q, -np.inf).argmax(axis=1)
        else:
            scores = np.random.default_rng(seed).random(self.allowed.shape)
            row = np.where(self.allowed, scores, -1.0).argmax(axis=1)
        return self.project(row)

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the size of the problem."""
        return estimate_stationary_seconds(self.infinite_horizon.problem.work)

    def find_model_optimum(self, model_index: int) -> IntArray:
        """Return the optimal row of one model that never switches, projected to the space."""
        return self.project(self.context.model_optima.actions[model_index])

    # ------------------------------------------------------------ steps
    def compute_magnitudes(self, candidate: IntArray, returns: Array) -> Array:
        """Compute the sum of absolute discounted rewards of a row, (M,)."""
        r = self.infinite_horizon.r[:, np.arange(len(candidate)), candidate]
        magnitudes: Array = (self.infinite_horizon.compute_occupancy(candidate) * np.abs(r)).sum(
            axis=1
        )
        return magnitudes

    def iter_changes(self, candidate: IntArray, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single actions, by exact rank-one updates if the matrices fit in memory."""
        if not isinstance(self.infinite_horizon, DirectSolver):
            return (yield from _try_by_gradient(self, candidate, direction.risk_weights()))
        lam = self.context.problem.weights
        update = RankOneUpdate(self.infinite_horizon, candidate.copy())
        for s in np.argsort(-(lam @ update.d), kind="stable"):
            allowed_actions = np.flatnonzero(self.allowed[s])
            a = (yield update.compute_changes(int(s))[allowed_actions][None])[0]
            if a >= 0:
                update.apply_change(int(s), int(allowed_actions[a]))
            self._check_time(update.policy)
        return update.policy, self.compute_returns(update.policy)

    def _check_time(self, row: IntArray) -> None:
        """Check the time limit; keep the current row as incumbent before stopping."""
        try:
            self.context.check_time()
        except TimeUp:
            self.context.keep_best(
                row, self.context.objective_value(self.context.compute_returns(row))
            )
            raise


def _try_by_gradient(
    space: StationarySpace | RepeatedRowSpace, candidate: PolicyTable, weights: Array
) -> ChangeGenerator:
    """Change the states with the largest gains by the gradient of the mean with these weights.

    All of them at once first, then half of them and so on, then some of them one by one; at last
    every action of every state, if the space is exhaustive.
    """
    rho, G, *_ = space.evaluator.compute_gradient(candidate, weights)
    G = np.where(
        space.allowed, G - take_actions(G[..., None], np.atleast_2d(candidate)[0]), -np.inf
    )
    best_actions, gains = G.argmax(axis=1).astype(np.int32), G.max(axis=1)
    order = np.argsort(-gains, kind="stable")
    order = order[gains[order] > TIE_RTOL * (weights @ space.compute_magnitudes(candidate, rho))]
    sizes = [len(order) >> k for k in range(len(order).bit_length())]
    for states in [*(order[:size] for size in sizes), *order[1:MAX_SINGLE_CHANGES, None]]:
        space.context.check_time()
        trial = candidate.copy()
        trial[..., states] = best_actions[states]
        returns = space.compute_returns(trial)
        if (yield (returns - rho)[None, None])[0] >= 0:
            return trial, returns
    for s in np.argsort(-gains) if space.is_exhaustive else ():  # every action of every state
        tables = np.repeat(candidate[None], int(space.allowed[s].sum()), axis=0)
        tables[:, :, s] = np.flatnonzero(space.allowed[s])[:, None]
        trial_returns = np.array([space.compute_returns(trial) for trial in tables])
        a = (yield (trial_returns - rho)[None])[0]
        if a >= 0:
            candidate, rho = tables[a], trial_returns[a]
        space.context.check_time()
    return candidate, rho


class RepeatedRowSpace(MarkovSpace):
    """Search space of stationary policies over a finite horizon: tables (T, S) of equal rows."""

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp")
    ascend_mean = SearchSpace.ascend_mean
    improve = SearchSpace.improve

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context, sweep_type)
        self.allowed = self.evaluator.allowed
        self.is_exhaustive = self.allowed.size <= MAX_EXHAUSTIVE

    def compute_init(self, name: str, seed: int) -> PolicyTable:
        """Compute an initial table and project it to equal rows."""
        table = super().compute_init(name, seed)
        return self.project(self.context.solve_wsu()[0] if table is None else table)

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the size of the problem."""
        passes = ROUNDS_PER_ASCENT * (
            self.allowed.size if self.is_exhaustive else MAX_SINGLE_CHANGES
        )
        return self.prepared.problem.estimate_seconds(self.prepared.horizon, passes)

    def project(self, table: PolicyTable) -> IntArray:
        """Take the most frequent action of each state at all times."""
        probs = self.evaluator.to_probabilities(table)
        row = np.where(self.allowed, probs, -1.0).argmax(axis=1).astype(np.int32)
        return np.repeat(row[None], self.prepared.horizon, axis=0)

    def iter_changes(self, candidate: PolicyTable, direction: AscentDirection) -> ChangeGenerator:
        """Change states by the summed gradient; if that fails, try every action of every state."""
        return (yield from _try_by_gradient(self, candidate, direction.risk_weights()))


def _compute_wsu_row(context: SolveContext) -> IntArray:
    """Compute the first row of WSU's policy over many decisions, (S,), in half of the time."""
    deadline = (solver_clock() + context.stopwatch.deadline) / 2
    n_steps = min(STEPS_PER_CHECK, context.horizon)
    prepared, prior_weights = (
        context.prepared.replace(horizon=n_steps),
        context.problem.prior_weights(),
    )
    for _ in range(-(-context.horizon // n_steps)):
        backward_pass, previous = (
            prepared.backward("weighted", weights=prior_weights),
            prepared.problem.terminal,
        )
        prepared = prepared.replace(terminal=backward_pass.first_values)
        is_settled = (
            np.abs(backward_pass.first_values - previous).max()
            <= SETTLED_TOL * np.abs(backward_pass.first_values).max()
        )
        if is_settled or solver_clock() > deadline:
            break
    return backward_pass.actions[0]
