"""Exact: branch and bound over the actions of single states and times, with a proven gap.

A node is a set of open actions. Its bound is the Lagrangian dual over pairs of models (see
:mod:`mmdp.bounds`), with reach bounds L and B of the open actions only. Actions that no
better policy can take are closed by reduced cost and by probing, which often proves the
optimum without branching. CADP inside the node finds its incumbent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mmdp.bounds import closed
from mmdp.bounds.descent import Descent
from mmdp.bounds.matching import match
from mmdp.bounds.relaxation import Mask, Relaxation
from mmdp.clock import clock
from mmdp.errors import InputError
from mmdp.kernels.problem import Array, Pairs
from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.methods.stationary_tree import StationaryTree
from mmdp.methods.tree import Tree, children
from mmdp.search.context import early
from mmdp.search.polish import ascend_inside, check_polish, polish
from mmdp.search.starts import in_order
from mmdp.search.tables import Tables
from mmdp.solution import Status
from mmdp.validate import check_whole

ROOT_STEPS, NODE_STEPS = 400, 60
KEEP_BYTES = 512 * 1024**2  # most memory for the multipliers of open nodes


@dataclass(frozen=True)
class Exact(Method):
    """Prove how good the best Markov (or deterministic stationary) policy is, and find it.

    Stationary policies that draw their actions may be better than the best deterministic one.
    Stops when the bound is within ``gap`` of the value (status OPTIMAL), at the time limit or
    after ``max_nodes``. The solution's ``bound`` is proven in every case.

    Parameters
    ----------
    gap
        Gap at which the answer counts as optimal, relative to |value| (or, if that is near
        zero, to a thousandth of the largest possible return).
    starts
        CADP starts for the first incumbent.
    polish
        Seconds to spend on leaving the local maximum of the first incumbent, as in
        :class:`mmdp.CADP`. None: a tenth of the time limit, or 3 without one.
    max_nodes
        Cap on the nodes of the tree.

    >>> import mmdp
    >>> from mmdp.methods.exact import Exact
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> found = mmdp.solve(two, 2, Exact())
    >>> found.value, found.status.name
    (7.0, 'OPTIMAL')
    """

    gap: float = 1e-8
    starts: int = 8
    polish: float | None = None
    max_nodes: int = 100_000

    name: ClassVar[str] = "exact"
    title: ClassVar[str] = "branch and bound over single actions"
    proves: ClassVar[Status | None] = Status.OPTIMAL
    resumes: ClassVar[bool] = True
    least_passes: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        if not self.gap >= 0:
            raise InputError(f"gap must be at least 0, not {self.gap}")
        check_whole(self.starts, "starts")
        check_whole(self.max_nodes, "max_nodes")
        if self.polish is not None:
            check_polish(self.polish)

    def lacks(self, question: Question) -> str | None:
        taken_apart = question.not_still("its bounds plan for each model by itself")
        return question.not_mean() or question.not_mask() or taken_apart or question.not_whole()

    def run(self, context: Context) -> Outcome:
        endless = context.kind.endless
        tree: Tree = (StationaryTree if endless else TimeTree)(context, self)
        status = Status.ITERATION_LIMIT
        with context.ending() as end:
            tree.first_bound()
            tree.first_incumbent()
            tree.search()
        if tree.proven:
            status = Status.OPTIMAL
        elif end.stop is not None:
            status = early(end)
        return Outcome(context.best_policy, status, tree.nodes, details=tree.details())


class TimeTree(Tree):
    """Policies of time and state: a node is held with the multipliers to start from."""

    over: ClassVar[str] = "markov"

    def __init__(self, context: Context, options: Exact) -> None:
        super().__init__(context, options, closed.rounding(context.problem, context.horizon))
        self.closed = 0
        self.pairs: Pairs | None = None
        self.own: Array | None = None

    def details(self) -> dict[str, Any]:
        return {**super().details(), "closed": self.closed}

    def first_bound(self) -> None:
        """The closed forms."""
        self.own, self.oracle = closed.first_bound(self.context.plan)

    def first_incumbent(self) -> None:
        context = self.context
        landscape = Tables(context)
        tables = (each.point for each in in_order(landscape, "wsu", self.options.starts))
        ends = landscape.ascend(tables, watch=context.record)
        seconds = self._share(0.1) if self.options.polish is None else self.options.polish
        if seconds:
            best = max(ends, key=lambda end: end.value)
            polish(context, best.policy, seconds=seconds)

    def search(self) -> None:
        if self.proven:  # one model, one action or one step: a closed form is exact
            return
        until = clock() + self._share(0.2)
        assert self.own is not None
        coarse = match(self.context.plan, self.own, deadline=until).pairs
        self.pairs = Pairs(coarse.first, coarse.second)
        self.push(self.oracle, self.context.problem.allowed, None)
        super().search()

    def push(self, bound: float, mask: Mask, held: Array | None) -> None:
        if held is not None and held.nbytes * (len(self.heap) + 1) > KEEP_BYTES:
            held = None
        super().push(bound, mask, held)

    def expand(self, bound: float, mask: Mask, held: Array | None) -> None:
        """Bound the node; close it, or split it at one (t, s)."""
        root = self.nodes == 1
        plan, deadline = self.context.plan.but(allowed=mask), self.context.time.deadline
        x = Relaxation(plan, self.pairs, deadline=deadline)
        search = Descent(x, self.value)
        if held is not None:
            search.y[:] = held
        steps = ROOT_STEPS if root else NODE_STEPS
        for _ in range(20 if root else 4):
            before = search.bound if search.steps else bound
            search.run(
                max_steps=steps, enough=self.value, deadline=self.context.time.deadline,
                watch=partial(self.report, bound, search),
            )  # fmt: skip
            self.report(bound, search)
            if self.working - self.value <= self.tolerance:
                self.dropped = max(self.dropped, self.working)
                return
            closed = search.close_actions(self._probe_until())
            self.closed += closed
            self.incumbent_inside(x.open)
            search.target = max(search.target, self.value)
            if not closed and before - search.bound < 0.1 * (before - self.value):
                break
        self.branch(x, search.best_y, min(bound, search.bound))

    def branch(self, x: Relaxation, y: Array, bound: float) -> None:
        """One child for every open action of the (t, s) where the groups disagree most."""
        x.value(y)
        taken, still = x.u.sum(axis=3), x.open
        split = (still.sum(axis=2) > 1) & (x.reach.hi.max(axis=2) > 0)
        score = np.where(split, x.scale[:, None] * (taken.sum(axis=2) - taken.max(axis=2)), -1.0)
        if not split.any():
            # one policy is left, and its value is known
            actions = still.argmax(axis=2).astype(np.int32)
            ascend_inside(self.context, still, actions)
            return
        t, s = np.unravel_index(int(score.argmax()), score.shape)
        for child in children(still, (int(t), int(s))):
            self.push(bound, child, y.copy())

    def incumbent_inside(self, mask: Mask) -> None:
        """CADP restricted to the node, from the incumbent moved into it."""
        best = self.context.best_policy
        actions = np.where(
            np.take_along_axis(mask, best[:, :, None].astype(np.int64), 2)[:, :, 0],
            best, mask.argmax(axis=2),
        ).astype(np.int32)  # fmt: skip
        ascend_inside(self.context, mask, actions)

    def report(self, bound: float, search: Descent) -> None:
        self.working = min(bound, search.bound)
        self.context.tell(self.bound, self.nodes)

    def _share(self, share: float) -> float:
        """Seconds: a share of the time limit, or of half a minute if there is none."""
        left = self.context.time.left
        return share * (30.0 if left == math.inf else max(left, 0.0))

    def _probe_until(self) -> float:
        return clock() + max(0.05 * self.context.time.seconds, self._share(0.02))
