"""Exact: branch and bound over the actions of single states and times, with a proven gap.

The first policy is CADP's best. The root is the search of :func:`mmdp.bound` for the best bound;
where that becomes slow, the tree begins. A node is a set of open actions. Its bound is the
Lagrangian dual over pairs of models, with reach bounds L and B of the open actions only. Actions
that no better policy can take are closed by reduced cost and by probing, which often proves the
optimum without branching. CADP inside the node finds its incumbent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, check_arguments
from mmdp.core.bounds import closed_form
from mmdp.core.bounds.descent import SLOW_LEVEL, DualDescent
from mmdp.core.bounds.portfolio import BoundPortfolio
from mmdp.core.bounds.relaxation import LagrangianRelaxation, Mask
from mmdp.core.bounds.request import BoundRequest
from mmdp.core.evaluate import Evaluator
from mmdp.core.kernels.problem import Array, ModelPairs
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.branch_and_bound import BranchAndBound, split_node
from mmdp.core.methods.stationary_branch_and_bound import StationaryBranchAndBound
from mmdp.core.search.context import Details, get_stop_status
from mmdp.core.search.inits import InitCount
from mmdp.core.search.markov import MarkovSpace
from mmdp.core.solution import Status
from mmdp.core.timing import Progress, Stopwatch

NODE_LEVEL = 0.05  # level of the descent, a share of the gap, at which a node is split
ROOT_TIME_LIMIT = 30.0  # most for the searches at the root if there is no time limit
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

    name: ClassVar[str] = "exact"
    title: ClassVar[str] = "branch and bound over single actions"
    best_status: ClassVar[Status | None] = Status.OPTIMAL
    can_resume: ClassVar[bool] = True
    min_passes: ClassVar[float] = math.inf

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
        is_infinite = context.policy_class.is_infinite_horizon
        tree: BranchAndBound = (StationaryBranchAndBound if is_infinite else MarkovBranchAndBound)(
            context, self
        )
        status = Status.ITERATION_LIMIT
        with context.allow_stop() as stop_state:
            tree.compute_initial_bound()
            tree.find_incumbent()
            tree.search()
        if tree.is_closed:
            status = Status.OPTIMAL
        elif stop_state.exception is not None:
            status = get_stop_status(stop_state)
        return MethodResult(context.best_policy, status, tree.n_nodes, details=tree.details())


class MarkovBranchAndBound(BranchAndBound):
    """Branch and bound over Markov policies; the warm start of a node is its multipliers."""

    bound_scope: ClassVar[str] = "markov"

    def __init__(self, context: SolveContext, options: Exact) -> None:
        super().__init__(
            context, options, closed_form.estimate_rounding(context.problem, context.horizon)
        )
        self.space = MarkovSpace(context)
        has_limit = context.stopwatch.time_left < math.inf
        request = BoundRequest(
            context.prepared,
            "best",
            context.stopwatch if has_limit else Stopwatch(ROOT_TIME_LIMIT),
            seed=context.seed or 0,
            callback=self._report_root_progress,
        )
        self.root_portfolio = BoundPortfolio(request, rel_gap=options.rel_gap, min_level=SLOW_LEVEL)
        self.n_eliminated = 0
        self.pairs: ModelPairs | None = None

    @property
    def root_bound(self) -> float:
        """Smallest bound of the searches at the root."""
        return self.root_portfolio.best_bound

    def details(self) -> Details:
        """Return the details with the bounds at the root and the number of eliminated actions."""
        root_bounds = self.root_portfolio.bounds_found
        history_bound = min(bound for bound, scope in root_bounds.values() if scope == "history")
        return {
            **super().details(),
            "scope": "history" if self.bound >= history_bound else self.bound_scope,
            "root_bounds": {name: bound for name, (bound, _) in root_bounds.items()},
            "n_eliminated": self.n_eliminated
            + (self.root_portfolio.descent.n_eliminated if self.root_portfolio.descent else 0),
        }

    def compute_initial_bound(self) -> None:
        """Compute the closed-form bounds."""
        self.root_portfolio.compute_closed_forms()
        self.oracle_bound = self.root_portfolio.best_bound

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
        self.push_node(portfolio.best_bound, mask, warm_start)
        super().search()

    def push_node(self, bound: float, mask: Mask, warm_start: Array | None) -> None:
        """Add a node; drop its multipliers if those of all nodes take too much memory."""
        if (
            warm_start is not None
            and warm_start.nbytes * (len(self.heap) + 1) > MAX_MULTIPLIER_BYTES
        ):
            warm_start = None
        super().push_node(bound, mask, warm_start)

    def expand_node(self, bound: float, mask: Mask, warm_start: Array | None) -> None:
        """Bound a node by dual descent; prune it, or split it at one (t, s)."""
        prepared, deadline = (
            self.context.prepared.replace(allowed=mask),
            self.context.stopwatch.deadline,
        )
        relaxation = LagrangianRelaxation(prepared, self.pairs, deadline=deadline)
        descent = DualDescent(relaxation, self.value, [] if warm_start is None else [warm_start])
        descent.run(
            target=self.value,
            deadline=deadline,
            min_level=NODE_LEVEL,
            callback=partial(self.update_node_bound, bound, descent),
        )
        self.update_node_bound(bound, descent)
        self.n_eliminated += descent.n_eliminated
        if self.node_bound - self.value <= self.tolerance:
            self.pruned_bound = max(self.pruned_bound, self.node_bound)
            return
        self.ascend_within_node(relaxation.allowed_actions)
        self.branch_node(relaxation, descent.best_y, self.node_bound)

    def branch_node(
        self, relaxation: LagrangianRelaxation, multipliers: Array, bound: float
    ) -> None:
        """Split at the (t, s) where the groups disagree most, into one child for each action."""
        relaxation.evaluate(multipliers)
        action_use, allowed = relaxation.occupancy.sum(axis=3), relaxation.allowed_actions
        can_split = (allowed.sum(axis=2) > 1) & (relaxation.reach.hi.max(axis=2) > 0)
        score = np.where(
            can_split,
            relaxation.discount_powers[:, None] * (action_use.sum(axis=2) - action_use.max(axis=2)),
            -1.0,
        )
        if not can_split.any():
            self.ascend_within_node(allowed)  # one policy is left, and its value is known
            return
        t, s = np.unravel_index(int(score.argmax()), score.shape)
        for child in split_node(allowed, (int(t), int(s))):
            self.push_node(bound, child, multipliers.copy())

    def ascend_within_node(self, mask: Mask) -> None:
        """Run CADP within the node, from the incumbent projected to it."""
        prepared = self.context.prepared.replace(allowed=mask)
        init = Evaluator(prepared).project(self.context.best_policy)
        optimum = prepared.ascend([init], sweep_type="paper")[0]
        if optimum.value > self.value:
            self.context.record(optimum.policy, optimum.value)

    def _report_root_progress(self, progress: Progress) -> None:
        """Report progress at the root, once there is an incumbent."""
        if self.context.best_policy is not None:
            self.context.report_bound(self.bound, self.n_nodes)

    def update_node_bound(self, bound: float, descent: DualDescent) -> None:
        """Update the bound of the current node and report it."""
        self.node_bound = min(bound, descent.bound)
        self.context.report_bound(self.bound, self.n_nodes)

    def _time_share(self, fraction: float) -> float:
        """Return a share of time left, or of ROOT_TIME_LIMIT without a time limit, in seconds."""
        time_left = self.context.stopwatch.time_left
        return fraction * (ROOT_TIME_LIMIT if time_left == math.inf else max(time_left, 0.0))
