"""Search spaces of Markov and stationary policies, and the registry of spaces by policy class.

A restriction of rows, tied or monotone, is an option of both. The return is linear in the whole row
pi_t of actions at one time. So CADP stays exact, and the return never falls, if each step takes the
best row among those that are open: argmax_f sum_s G_t(s, f(s)). Over an infinite horizon it is not
linear, and whole rows are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Unpack

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.evaluate import RankOneUpdate, take_actions
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.costs import estimate_stationary_seconds
from mmdp.core.kernels.infinite import DirectSolver
from mmdp.core.kernels.problem import TIE_RTOL, AscentResult, PolicyTable, SweepType, at_time
from mmdp.core.policies import MarkovPolicy, Monotone, PolicyClass, Stationary, Tied, Tree
from mmdp.core.search import gradient
from mmdp.core.search.context import SolveContext
from mmdp.core.search.rows import make_restriction
from mmdp.core.search.space import (
    AscentDirection,
    AscentLimits,
    BlockChanges,
    ChangeGenerator,
    SearchSpace,
    compute_gains,
    offer_alternatives,
)
from mmdp.core.search.trees import TreeSpace
from mmdp.core.shapes import Array, IntArray, Mask
from mmdp.core.timing import Stopwatch, TimeUp, solver_clock

ROUNDS_PER_ASCENT = 33  # most rounds of one ascent over a number of decisions
MAX_IMPROVEMENTS = 20  # improvements of a row by the initial weights
MAX_SINGLE_CHANGES = 20  # single changes that are tried before a search by gradient ends
MAX_EXHAUSTIVE = (
    500  # single changes over a number of decisions: up to these, all of them are tried
)
MAX_Q_BYTES = 2**31  # the most that q may take; beyond that a solve uses the paper's sweeps
ASCENT_PASSES = 12  # of one ascent
SWEEPS_TO_END = 2  # time of a sweep and of completing the policy after it, in sweeps


class MarkovSpace(SearchSpace):
    """Search space of Markov policies of allowed actions, with restricted rows or any.

    Tables that violate a restriction are searched as probabilities.
    """

    init_names: ClassVar[tuple[str, ...]] = ("wsu", "mvp", "mirror", "gradient")
    other_init_names = ("random", "uniform")

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.prepared = context.prepared
        self.restriction = make_restriction(context.policy_class, context.model)
        self.sweep_type: SweepType = choose_sweep_type(context, sweep_type)
        self.sweep_seconds = 0.0  # of the longest sweep so far

    def choose_row(self, G: Array, b: Array, incumbent: PolicyTable | None) -> IntArray:
        """Choose the best open row of a sweep, and check the time."""
        assert self.restriction is not None
        self.context.check_time()
        return self.restriction.choose_row(G, b, incumbent)

    def project(self, table: PolicyTable) -> PolicyTable:
        """Take allowed actions; return a table that violates the restriction as probabilities."""
        table = super().project(table)
        if (restriction := self.restriction) is None:
            return table
        probs = self.evaluator.to_probabilities(table)
        is_feasible = not is_randomized(table) and all(
            (restriction.choose_row(p, p, None) == row).all()
            for p, row in zip(probs, table, strict=True)
        )
        return table if is_feasible else probs

    def compute_init(self, name: str, seed: int) -> PolicyTable | None:
        """Compute the initial policy of that name; None stands for WSU."""
        model, T = self.context.model, self.context.horizon
        if name == "wsu":
            return None
        if name in gradient.GRADIENT_INITS:
            table: PolicyTable = gradient.ascend_and_round(self.context, name)
        elif name == "mvp":
            table = compute_mvp_actions(self.context)
        elif name == "random":
            table = MarkovPolicy.random(model, T, seed).table
        else:
            table = MarkovPolicy.uniform(model, T).table
        table = self.project(table)
        return table if self.restriction is None else self.evaluator.to_probabilities(table)

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
        candidate: PolicyTable | None,
        *,
        weights: Array | None = None,
        **limits: Unpack[AscentLimits],
    ) -> AscentResult:
        """Run CADP sweeps from a candidate to a local optimum of the (reweighted) mean.

        The trace of a restricted ascent begins with the first feasible policy. A compiled sweep
        does not look at the time, so none begins unless there is time for two.
        """
        prepared = self.prepared if weights is None else self.prepared.replace(weights=weights)
        choose_row = None if self.restriction is None else self.choose_row
        callback, start_time = limits.get("callback"), solver_clock()

        def check_time(table: PolicyTable, value: float) -> None:
            nonlocal start_time
            if callback is not None:
                callback(table, value)
            last_time, start_time = start_time, solver_clock()
            self.sweep_seconds = max(self.sweep_seconds, start_time - last_time)
            self.context.check_time(SWEEPS_TO_END * self.sweep_seconds)

        limits["callback"] = check_time
        optimum = prepared.ascend(
            [candidate], sweep_type=self.sweep_type, choose_row=choose_row, **limits
        )[0]
        is_infeasible = choose_row is not None and is_randomized(candidate)
        return optimum._replace(trace=optimum.trace[is_infeasible:])

    def iter_changes(self, candidate: PolicyTable, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single changes of actions, from the last time to the first.

        There are none if the backend can compile the round: it has made the changes then.
        """
        compilable_form = direction.objective.compilable_form
        if self.restriction is None and compilable_form is not None:
            improved = self.prepared.improve_objective(
                candidate, direction.rho, compilable_form, direction.tie_tolerance
            )
            if improved is not None:
                return improved
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
        """Iterate over the changes of one time and apply them to ``actions``.

        If rows are restricted, the best whole row for the risk weights, then single blocks.
        """
        if self.restriction is None:
            actions[:] = yield from offer_alternatives(self.prepared, d, q, actions)
            return
        restriction, states = self.restriction, np.arange(len(q))
        gains, visit_probs = compute_gains(self.prepared, d, q, actions)
        G = np.where(allowed, gains @ direction.risk_weights(), -np.inf)
        row = restriction.choose_row(G, visit_probs[:, None], actions)
        if (yield gains[states, row].sum(axis=0)[None, None])[0] >= 0:
            actions[:] = row
            gains -= gains[states, actions][:, None]
        membership = restriction.membership
        for block in np.argsort(-(membership @ visit_probs), kind="stable"):
            self.context.check_time()
            members = membership.indices[slice(*membership.indptr[block : block + 2])]
            max_gains = (gains[members] @ direction.risk_weights()).max(axis=1)
            if not direction.may_improve(max_gains.sum(keepdims=True)).any():
                continue
            rows = restriction.find_alternatives(int(block), actions, allowed)
            rows = rows[np.delete(rows == actions, members, axis=1).all(axis=1)]
            choice = (yield gains[members, rows[:, members]].sum(axis=1)[None])[0]
            if choice >= 0:
                actions[:] = rows[choice]


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


class StationarySpace(SearchSpace):
    """Search space of stationary policies, restricted or not; candidates are rows (S,)."""

    init_names = ("wsu", "mvp", "qmdp")
    sweep_type = "single states"

    def __init__(self, context: SolveContext, sweep_type: SweepType = "two-way") -> None:
        super().__init__(context)
        self.infinite_horizon = context.infinite_horizon
        self.restriction = make_restriction(context.policy_class, context.model)
        self.allowed = self.evaluator.allowed
        self.is_exhaustive = isinstance(self.infinite_horizon, DirectSolver)

    def project(self, row: IntArray) -> IntArray:
        """Return a feasible row near this one."""
        if self.restriction is None:
            return self.evaluator.project(row)
        return self.restriction.project(row, self.allowed)

    # ------------------------------------------------------------ initial policies
    def compute_init(self, name: str, seed: int) -> IntArray:
        """Compute an initial row: WSU's first row, the rows of MVP or QMDP, or random actions.

        WSU's first row over all decisions is the optimum if there is a single model.
        """
        context = self.context
        if name == "wsu" and context.problem.n_models == 1:
            row = context.model_optima.actions[0]
        elif name == "wsu":
            row = self._compute_wsu_row()
        elif name == "mvp":
            mean_problem = context.model.mean_problem(context.problem.weights)
            # gamma, or less than 1: the mean of proper models may be improper
            mean_problem = mean_problem._replace(
                discount=1 - 1 / self.infinite_horizon.effective_horizon
            )
            row = context.solve_models(mean_problem).actions[0]
        elif name == "qmdp":
            row = self._maximize_q(self.infinite_horizon.compute_q(context.model_optima.values))
        else:
            scores = np.random.default_rng(seed).random(self.allowed.shape)
            row = np.where(self.allowed, scores, -1.0).argmax(axis=1)
        return self.project(row)

    def _maximize_q(self, q: Array) -> IntArray:
        """Return the row (S,) of largest sum_m lambda_m q_m, from q (M, S, A)."""
        mean_q = np.tensordot(self.context.problem.weights, q, 1)
        return np.where(self.allowed, mean_q, -np.inf).argmax(axis=1).astype(np.int32)

    def _compute_wsu_row(self) -> IntArray:
        """Compute the row (S,) that WSU's improvement by the initial weights leaves as it is.

        It starts from the best rewards. If rows go in circles, or half of the time is up, it
        ends there.
        """
        stopwatch = Stopwatch(self.context.stopwatch.time_left / 2)
        infinite = self.infinite_horizon
        row = self._maximize_q(infinite.r)
        for _ in range(MAX_IMPROVEMENTS - 1):
            new_row = self._maximize_q(infinite.compute_q(infinite.compute_values(row)))
            if np.array_equal(row, new_row) or stopwatch.is_expired:
                break
            row = new_row
        return row

    def estimate_ascent_seconds(self, name: str) -> float:
        """Estimate the seconds of an ascent from the size of the problem."""
        seconds = estimate_stationary_seconds(self.infinite_horizon.problem.work)
        return seconds * (1 if self.restriction is None else self.allowed.size)

    def find_model_optimum(self, model_index: int) -> IntArray:
        """Return the optimal row of one model that never switches, projected to the space."""
        return self.project(self.context.model_optima.actions[model_index])

    # ------------------------------------------------------------ steps
    def compute_magnitudes(self, candidate: IntArray, returns: Array) -> Array:
        """Compute the sum of absolute discounted rewards of a row, (M,)."""
        r = self.infinite_horizon.r[:, np.arange(len(candidate)), candidate]
        return (self.infinite_horizon.compute_occupancy(candidate) * np.abs(r)).sum(axis=1)

    def iter_changes(self, candidate: IntArray, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single actions, by exact rank-one updates if the matrices fit in memory.

        If rows are restricted, over the exact gains of the alternatives to each block.
        """
        if (restriction := self.restriction) is not None:
            returns = self.compute_returns(candidate)
            return (
                yield from _try_blocks(
                    self,
                    candidate,
                    returns,
                    restriction.block_order,
                    lambda block, row: restriction.find_alternatives(block, row, self.allowed),
                )
            )
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
    if not space.is_exhaustive:
        return candidate, rho

    def find_alternatives(s: int, table: PolicyTable) -> PolicyTable:
        """Return tables with every allowed action of a state."""
        tables = np.repeat(table[None], int(space.allowed[s].sum()), axis=0)
        tables[:, :, s] = np.flatnonzero(space.allowed[s])[:, None]
        return tables

    return (yield from _try_blocks(space, candidate, rho, np.argsort(-gains), find_alternatives))


def _try_blocks(
    space: SearchSpace,
    candidate: PolicyTable,
    rho: Array,
    blocks: Iterable[int],
    find_alternatives: Callable[[int, PolicyTable], PolicyTable],
) -> ChangeGenerator:
    """Yield the exact gains of all alternatives to each block in turn, and take the chosen ones."""
    for block in blocks:
        trials = find_alternatives(int(block), candidate)
        returns = np.array([space.compute_returns(trial) for trial in trials])
        a = (yield (returns - rho)[None])[0]
        if a >= 0:
            candidate, rho = trials[a], returns[a]
            space.context.keep_best(candidate, space.context.objective_value(rho))
        space.context.check_time()
    return candidate, rho


class RepeatedRowSpace(MarkovSpace):
    """Search space of stationary policies over a finite horizon: tables (T, S) of equal rows."""

    init_names = SearchSpace.init_names
    ascend_mean = SearchSpace.ascend_mean

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


# Classes with coupled decisions, over a finite horizon; allowed actions are part of the prepared
# problem. Add your own policy class here.
MARKOV_SPACES: dict[type[PolicyClass], type[SearchSpace]] = {
    Tree: TreeSpace,
    Stationary: RepeatedRowSpace,
}


def make_space(context: SolveContext, sweep_type: SweepType = "two-way") -> SearchSpace:
    """Make the search space for the policy class and horizon of the context."""
    policy_class, class_type = context.policy_class, type(context.policy_class)
    is_handled = class_type in MARKOV_SPACES or isinstance(policy_class, (Tied, Monotone))
    has_mask = class_type.make_problem is not PolicyClass.make_problem
    if policy_class.is_restricted and not (is_handled or has_mask):
        name = class_type.__name__
        raise InputError(
            f"no search space is registered for the policy class {name}, which leaves out "
            f"policies; add MARKOV_SPACES[{name}] = its SearchSpace"
        )
    if not policy_class.is_infinite_horizon:
        return MARKOV_SPACES.get(class_type, MarkovSpace)(context, sweep_type)
    return (TreeSpace if class_type is Tree else StationarySpace)(context, sweep_type)
