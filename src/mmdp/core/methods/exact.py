"""Exact: branch and bound over the actions of single states and times, with a proven gap.

The first policy is CADP's best. The root is the search of :func:`mmdp.bound` for the best bound;
where that becomes slow, the tree begins. A node is a set of open actions. Its bound is the
Lagrangian dual over pairs of models, with reach bounds L and B of the open actions only. Actions
that no better policy can take are closed by reduced cost and by probing, which often proves the
optimum without branching. CADP inside the node finds its incumbent.

Over an infinite horizon a node bounds its stationary policies by the same dual without the time,
or by the models' own optima where multipliers close little of the gap at the root. No action is
closed there.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, check_arguments
from mmdp.core.bounds.dual import (
    SLOW_LEVEL,
    DualDescent,
    LagrangianRelaxation,
    StationaryRelaxation,
)
from mmdp.core.bounds.portfolio import BoundPortfolio, GapTolerance
from mmdp.core.errors import InputError
from mmdp.core.evaluate import Evaluator
from mmdp.core.kernels.infinite import DirectSolver
from mmdp.core.kernels.problem import ModelPairs
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.cadp import CADP
from mmdp.core.search.context import Details, get_stop_status
from mmdp.core.search.multistart import InitCount, MultiStart
from mmdp.core.search.space import SearchSpace
from mmdp.core.search.spaces import MarkovSpace, StationarySpace
from mmdp.core.shapes import Array, IntArray, Mask
from mmdp.core.solution import Status
from mmdp.core.text import format_bytes
from mmdp.core.timing import Progress, Stopwatch, solver_clock

WarmStart = Any  # the multipliers of a node; over an infinite horizon after the models' optima
NODE_LEVEL = 0.05  # level of the descent, a share of the gap, at which a node is split
STATIONARY_LEVEL = 0.1  # the same over stationary policies
FIRST_NODES = 300  # nodes without multipliers, over stationary policies
ROOT_SHARE, NODE_SHARE = 0.2, 0.05  # of the time left, at most, for reach bounds or the root's dual
ROOT_TIME_LIMIT = 30.0  # of the searches at the root if there is no time limit
MAX_MULTIPLIER_BYTES = 512 * 1024**2  # most memory for the multipliers of open nodes


@check_arguments
@dataclass(frozen=True)
class Exact(Method):
    """Branch and bound for the best Markov (or deterministic stationary) policy, with a proof.

    After Steimle, Ahluwalia et al. (2021) over a finite horizon and Ahluwalia et al. (2021) over an
    infinite one; the bounds are those of :func:`mmdp.bound`.

    Stationary policies that draw their actions may be better than the best deterministic one.
    Stops when the bound is within ``rel_gap`` of the value (status OPTIMAL), at the time limit or
    after ``max_nodes``. The solution's ``bound`` is proven in every case;
    ``details["root_bounds"]`` has the bounds before the first node, by method.

    Parameters
    ----------
    rel_gap
        Gap at which the answer counts as optimal, relative to |value| (or, if that is near
        zero, to a thousandth of the largest possible return).
    n_init
        Initial policies of CADP for the first incumbent, as in :class:`mmdp.methods.CADP`.
    max_nodes
        Cap on the nodes of the tree.

    >>> import mmdp
    >>> from mmdp.core.methods.exact import Exact
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> found = mmdp.solve(two, 2, Exact())
    >>> found.value, found.status.name
    (7.0, 'OPTIMAL')
    """

    rel_gap: NonNegativeFloat = 1e-8
    n_init: InitCount = "auto"
    max_nodes: PositiveInt = 100_000

    name = "exact"
    title = "branch and bound over single actions"
    best_status = Status.OPTIMAL
    can_resume = True
    min_passes = math.inf

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem; None if it can."""
        switching_reason = spec.reason_if_switching("its bounds plan for each model by itself")
        return (
            spec.reason_if_risk()
            or spec.reason_if_coupled()
            or switching_reason
            or spec.reason_if_sharded()
        )

    def run(self, context: SolveContext) -> MethodResult:
        """Run branch and bound; return the incumbent with its proven bound."""
        tree: MarkovBranchAndBound | StationaryBranchAndBound
        if context.is_infinite_horizon:
            tree = StationaryBranchAndBound(context, self)
        else:
            tree = MarkovBranchAndBound(context, self)
        n_init = CADP(n_init=self.n_init).choose_n_init(context.problem)
        with context.allow_stop() as stop_state:
            tree.compute_initial_bound()
            MultiStart(tree.space, n_init=n_init).run()
            tree.search()
        status = get_stop_status(stop_state, Status.ITERATION_LIMIT)
        status = Status.OPTIMAL if tree.is_closed else status
        return MethodResult(context.best_policy, status, tree.n_nodes, details=tree.details())


class BranchAndBound:
    """Branch and bound: a heap of nodes, largest bound first, and the incumbent of the context.

    A node is a set of allowed actions, with a proven bound on its policies and a warm start.
    """

    bound_scope: ClassVar[str]  # which policies it bounds
    space: SearchSpace  # of the policies

    def __init__(self, context: SolveContext, options: Exact) -> None:
        self.context, self.options = context, options
        self.rounding_error = context.estimate_rounding(np.zeros(context.problem.n_models))
        self.gap_tolerance = GapTolerance(context.problem, context.effective_horizon)
        self.n_nodes = 0
        self.heap: list[tuple[float, int, Mask, WarmStart]] = []
        self.push_counter = itertools.count()
        self.oracle_bound = self.root_bound = math.inf  # in closed form, and before branching
        self.node_bound, self.pruned_bound = math.inf, -math.inf  # at work, and the largest pruned

    @property
    def value(self) -> float:
        """Value of the incumbent."""
        return self.context.best_value

    @property
    def bound(self) -> float:
        """Proven upper bound on the value of every policy."""
        open_bound = -self.heap[0][0] if self.heap else -math.inf
        tree_bound = min(self.root_bound, max(open_bound, self.node_bound, self.pruned_bound))
        return max(self.value + self.rounding_error, tree_bound)

    @property
    def history_bound(self) -> float:
        """Bound on history-dependent policies."""
        return self.oracle_bound

    @property
    def is_closed(self) -> bool:
        """Whether the bound meets the value of the incumbent."""
        return self.is_within_tolerance(self.bound)

    def is_within_tolerance(self, bound: float) -> bool:
        """Return whether the incumbent counts as optimal where this bound holds."""
        tolerance = self.gap_tolerance(self.options.rel_gap, self.value, self.oracle_bound)
        return bound - self.value <= max(tolerance, 2 * self.rounding_error)

    def details(self) -> Details:
        """Return the bound, its scope and the node count as details of the result."""
        scope = "history" if self.bound >= self.history_bound else self.bound_scope
        return {"bound": self.bound, "scope": scope, "n_nodes": self.n_nodes}

    def expand_nodes(self, max_nodes: int) -> None:
        """Expand nodes until the gap is closed or there were this many."""
        while self.heap and not self.is_closed and self.n_nodes < max_nodes:
            bound, _, mask, warm_start = heapq.heappop(self.heap)
            self.node_bound = -bound
            self.n_nodes += 1
            self.expand_node(mask, warm_start)
            self.node_bound = -math.inf

    def push_node(self, bound: float, mask: Mask, warm_start: WarmStart) -> None:
        """Add a node to the heap, or prune it."""
        if math.isfinite(self.value) and self.is_within_tolerance(bound):
            self.pruned_bound = max(self.pruned_bound, bound)
        else:
            heapq.heappush(self.heap, (-bound, next(self.push_counter), mask, warm_start))

    def expand_node(self, mask: Mask, warm_start: WarmStart) -> None:
        """Improve ``node_bound`` of a node, then prune or split it."""
        raise NotImplementedError

    def minimize_dual(
        self,
        relaxation: LagrangianRelaxation,
        multipliers: list[Array],
        min_level: float,
        deadline: float = math.inf,
    ) -> DualDescent:
        """Improve ``node_bound`` by dual descent from given multipliers."""
        bound = self.node_bound

        def report_progress() -> None:
            """Update the bound of the node and report it."""
            self.node_bound = min(bound, descent.bound)
            self.report_bound()

        descent = DualDescent(
            relaxation,
            self.value,
            multipliers,
            deadline=min(deadline, self.context.stopwatch.deadline),
            target=self.value,
            callback=report_progress,
        )
        descent.run(min_level)
        report_progress()
        return descent

    def keep_multipliers(self, multipliers: Array | None) -> Array | None:
        """Return the multipliers, or None if those of all nodes would take too much memory."""
        n_bytes = 0 if multipliers is None else multipliers.nbytes * (len(self.heap) + 1)
        return None if n_bytes > MAX_MULTIPLIER_BYTES else multipliers

    def report_bound(self) -> None:
        """Report the bound, and check the time."""
        self.context.report_bound(self.bound, self.n_nodes)


def split_node(mask: Mask, index: tuple[int | np.intp, ...]) -> list[Mask]:
    """Split a mask into one for each action allowed at an index, where no other is allowed."""
    children = []
    for a in np.flatnonzero(mask[index]):
        child = mask.copy()
        child[index] = np.arange(mask.shape[-1]) == a
        children.append(child)
    return children


class MarkovBranchAndBound(BranchAndBound):
    """Branch and bound over Markov policies; the warm start of a node is its multipliers."""

    bound_scope = "markov"

    def __init__(self, context: SolveContext, options: Exact) -> None:
        super().__init__(context, options)
        self.space = MarkovSpace(context)
        has_limit = context.stopwatch.time_left < math.inf
        self.root_portfolio = BoundPortfolio(
            context.prepared,
            "best",
            context.stopwatch if has_limit else Stopwatch(ROOT_TIME_LIMIT),
            self._report_root_progress,
            seed=context.seed or 0,
            rel_gap=options.rel_gap,
            min_level=SLOW_LEVEL,
        )
        self.n_eliminated = 0
        self.pairs: ModelPairs | None = None

    @property
    def history_bound(self) -> float:
        """Smallest bound at the root on history-dependent policies."""
        return self.root_portfolio.history_bound

    def details(self) -> Details:
        """Return the details with the bounds at the root and the number of eliminated actions."""
        portfolio, descent = self.root_portfolio, self.root_portfolio.descent
        return {
            **super().details(),
            "root_bounds": dict(portfolio.bounds_found),
            "n_eliminated": self.n_eliminated + (descent.n_eliminated if descent else 0),
        }

    def compute_initial_bound(self) -> None:
        """Compute the closed-form bounds, valid however early the search stops."""
        self.root_portfolio.compute_closed_forms()
        self.oracle_bound = self.root_bound

    def search(self) -> None:
        """Search for a bound at the root, and branch once that becomes slow."""
        portfolio = self.root_portfolio
        portfolio.incumbent_policy, portfolio.incumbent_value = self.context.best_policy, self.value
        portfolio.run_best()
        if self.is_closed:
            return
        mask, warm_start = self.context.problem.allowed, None
        if portfolio.descent is not None:
            relaxation, warm_start = portfolio.descent.relaxation, portfolio.descent.best_y
            mask, self.pairs = relaxation.allowed_actions, relaxation.pairs
        self.push_node(self.root_bound, mask, warm_start)
        self.expand_nodes(self.options.max_nodes)

    def expand_node(self, mask: Mask, warm_start: Array | None) -> None:
        """Bound a node by dual descent; prune it, or split it at one (t, s)."""
        prepared = self.context.prepared.replace(allowed=mask)
        deadline = self.context.stopwatch.deadline
        relaxation = LagrangianRelaxation(prepared, self.pairs, deadline=deadline)
        multipliers = [] if warm_start is None else [warm_start]
        descent = self.minimize_dual(relaxation, multipliers, NODE_LEVEL)
        self.n_eliminated += descent.n_eliminated
        if self.is_within_tolerance(self.node_bound):
            self.pruned_bound = max(self.pruned_bound, self.node_bound)
            return
        self.ascend_within_node(relaxation.allowed_actions)
        self.branch_node(relaxation, descent.best_y)

    def branch_node(self, relaxation: LagrangianRelaxation, multipliers: Array) -> None:
        """Split at the (t, s) where the groups disagree most, into one child for each action.

        If nowhere can be split, one policy is left, whose value is known.
        """
        relaxation.evaluate(multipliers)
        action_use, allowed = relaxation.occupancy.sum(axis=3), relaxation.allowed_actions
        can_split = (allowed.sum(axis=2) > 1) & (relaxation.reach.hi.max(axis=2) > 0)
        disagreement = action_use.sum(axis=2) - action_use.max(axis=2)
        score = np.where(can_split, relaxation.discount_powers[:, None] * disagreement, -1.0)
        index = np.unravel_index(score.argmax(), score.shape)
        for child in split_node(allowed, index) if can_split.any() else ():
            self.push_node(self.node_bound, child, self.keep_multipliers(multipliers))

    def ascend_within_node(self, mask: Mask) -> None:
        """Run CADP within the node, from the incumbent projected to it."""
        prepared = self.context.prepared.replace(allowed=mask)
        init = Evaluator(prepared).project(self.context.best_policy)
        optimum = prepared.ascend([init], sweep_type="paper")[0]
        if optimum.value > self.value:
            self.context.record(optimum.policy, optimum.value)

    def _report_root_progress(self, progress: Progress) -> None:
        """Keep the bound, and report it once there is an incumbent."""
        self.root_bound = progress.bound
        if self.context.best_policy is not None:
            self.report_bound()


class StationaryBranchAndBound(BranchAndBound):
    """Branch and bound over deterministic stationary policies.

    In the first nodes (y is None) every model takes its own optimum over the allowed actions
    (1, S, A). If D(y) at the root is below their bound, the tree begins anew with multipliers,
    which each node improves. A node is split at the state where agreeing costs most.
    """

    bound_scope = "deterministic stationary"

    def __init__(self, context: SolveContext, options: Exact) -> None:
        self.space = StationarySpace(context)
        solver, x = self.space.infinite_horizon, context.problem
        if not isinstance(solver, DirectSolver):
            n_bytes = 8 * x.n_models * x.n_states**2 * x.n_actions
            raise InputError(
                f"exact would need transitions of {format_bytes(n_bytes)} as full matrices; "
                "solve with cadp"
            )
        self.solver = solver
        super().__init__(context, options)

    def compute_initial_bound(self) -> None:
        """Compute the Oracle bound, valid however early the search stops."""
        optima, x = self.context.model_optima, self.context.problem
        self.relaxation = StationaryRelaxation(self.context.prepared, self.solver, optima)
        self.root_reach = self.relaxation.reach
        returns = x.compute_returns(optima.values.T) + optima.error_bound
        self.oracle_bound = self.context.compute_mean(returns) + self.rounding_error
        self.root_bound = self.oracle_bound

    def search(self) -> None:
        """Expand some nodes; then minimize the dual at the root, and expand more."""
        x, context, max_nodes = self.relaxation, self.context, self.options.max_nodes
        optima, allowed = context.model_optima, context.problem.allowed
        self.push_node(self.root_bound, allowed, (optima, None))
        self.node_bound = -math.inf
        self.expand_nodes(min(FIRST_NODES, max_nodes))
        if self.is_closed or self.n_nodes == max_nodes:
            return
        tree_bound = self.node_bound = self.bound
        x.optima, x.reach = optima, self.root_reach
        x.restrict_actions(allowed, self._share_time(ROOT_SHARE))
        self.root_reach, advantage = x.reach, x.compute_advantage(context.best_policy)
        multipliers = [theta * advantage for theta in (1.0, 0.3)]
        descent = self.minimize_dual(x, multipliers, SLOW_LEVEL, self._share_time(ROOT_SHARE))
        self.root_bound = self.node_bound
        if self.root_bound < tree_bound:
            self.heap.clear()
            self.push_node(self.root_bound, allowed, (optima, descent.best_y))
        self.node_bound = -math.inf
        self.expand_nodes(max_nodes)

    def expand_node(self, mask: Mask, warm_start: WarmStart) -> None:
        """Try the policy with the smallest losses, and split the state where it loses most."""
        x, (x.optima, y) = self.relaxation, warm_start
        x.reach = self.root_reach
        x.restrict_actions(mask, -math.inf if y is None else self._share_time(NODE_SHARE))
        if y is not None:
            y = self.minimize_dual(x, [y], STATIONARY_LEVEL).best_y
        loss = x.estimate_losses(y)
        actions: IntArray = loss.argmin(axis=1).astype(np.int32)
        if self.context.compute_mean(self.solver.compute_returns(actions)) > self.value:
            self.space.ascend_mean(actions, callback=self.context.record)
        s = np.where(mask[0].sum(axis=1) > 1, loss.min(axis=1), -1.0).argmax()
        self.report_bound()
        if mask[0, s].sum() > 1:  # otherwise one policy is left, whose value is known
            warm_start = x.optima, self.keep_multipliers(y)
            for child in split_node(mask, (0, s)):
                x.optima = warm_start[0]
                bound = min(x.bound_subset(y, child), self.node_bound)
                self.push_node(bound, child, (x.optima, warm_start[1]))

    def _share_time(self, share: float) -> float:
        """Return the deadline that leaves a share of the time from now on."""
        time_left = self.context.stopwatch.time_left
        return solver_clock() + share * (time_left if time_left < math.inf else ROOT_TIME_LIMIT)
