"""Certificates: a solution with what was proven about it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from mmdp import kernels
from mmdp.bounds import closed
from mmdp.bounds.front import SECONDS, check_ask, searched
from mmdp.bounds.portfolio import for_every_policy
from mmdp.clock import Callback, Progress, Stop, Stopwatch, answer, ending
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.ascent import randomised
from mmdp.methods import Context, Method
from mmdp.methods.exact import Exact
from mmdp.methods.question import Question
from mmdp.methods.table import need_table
from mmdp.model import MMDP
from mmdp.objective import KINDS, Objective
from mmdp.solution import PROVEN, Bound, Solution, Status
from mmdp.validate import check_whole_model

TREE = 0.8  # share of a proof's time for the tree of exact if the horizon is infinite


def check_certify(
    certify: bool | float, method: Method, objective: Objective, model: MMDP, steps: int
) -> None:
    """Refuse what cannot be proven, before anything is solved."""
    yes_or_no = isinstance(certify, (bool, np.bool_))
    if not (yes_or_no or (isinstance(certify, (int, float, np.number)) and certify > 0)):
        raise InputError(f"certify must be True or a positive number of seconds, not {certify!r}")
    if certify:
        oracle = 'use mmdp.bound(model, horizon, "oracle")'
        check_whole_model(model.problem, "certify", [oracle])
        every = 'use mmdp.bound(model, horizon, "pairs"), which holds for every policy'
        need_table(type(method), "certify bounds", every)
        check_ask(model.problem, steps, "best", objective)


def certified(
    solution: Solution, context: Context, certify: bool | float, backend: str | Kernel,
    callback: Callback | None,
) -> Solution:  # fmt: skip
    """The solution with what is known of it, and what ``certify`` seconds prove.

    ``context`` is the one that found it: its problem is laid out already.
    """
    solution = _of_one_model(solution, context)
    if certify and solution.status is not Status.INTERRUPTED:
        seconds = SECONDS if isinstance(certify, (bool, np.bool_)) else float(certify)
        solution = _proven(solution, Proof(solution, context, seconds, backend, callback))
    if solution.certificate is None:
        return solution
    signed = dataclasses.replace(solution.certificate, model=context.model.fingerprint())
    return dataclasses.replace(solution, certificate=signed)


def _of_one_model(solution: Solution, context: Context) -> Solution:
    """Proven optimal if it is the optimum of the only model: then no objective has a better one."""
    F: Any = solution.objective
    plain = getattr(F, "inner", F).kind in KINDS
    if context.model.n_models > 1 or solution.status is not Status.LOCAL_OPTIMUM or not plain:
        return solution
    if float(solution.evaluation.regret[0]) > 2 * context.rounding(solution.returns):
        return solution
    return dataclasses.replace(solution, status=Status.OPTIMAL)


def _proven(solution: Solution, proof: Proof) -> Solution:
    """The solution with the least bound of its own and a searched one."""
    own = solution.certificate
    if solution.status is Status.OPTIMAL and own is not None:
        return solution
    with ending(answered=True) as end:
        found = proof.searched()
    if end.stop is not None:  # before any bound was found: the policy is kept
        return dataclasses.replace(solution, status=Status.INTERRUPTED)
    least = found if own is None or found.value < own.value else own
    _check_above(least, solution)
    status: Status = solution.status
    if least.value - solution.value <= proof.near(found, least):
        status = Status.OPTIMAL
    elif "interrupted" in found.details and status is not Status.OPTIMAL:
        status = Status.INTERRUPTED
    seconds = solution.seconds + found.seconds
    return dataclasses.replace(
        solution, certificate=least, status=status,
        provenance=dataclasses.replace(solution.provenance, seconds=seconds),
    )  # fmt: skip


def _check_above(bound: Bound, solution: Solution) -> None:
    """Refuse a function of the user that is above its bound: it is not monotone."""
    F, scale = solution.objective, max(abs(bound.value), abs(solution.value))
    if F.kind == "custom" and solution.value - bound.value > PROVEN * scale:
        raise InputError(
            f"{F} is {solution.value:.6g}, above its bound {bound.value:.6g}, so it is not "
            "monotone: its value falls when a return rises; solve without certify"
        )


@dataclasses.dataclass
class Proof:
    """The searches for a bound on how much better a solution could be."""

    solution: Solution
    context: Context
    seconds: float
    backend: str | Kernel
    callback: Callback | None

    @property
    def has_tree(self) -> bool:
        """Whether ``exact`` bounds every policy that this one is compared with."""
        context, kind = self.context, self.context.kind
        if self.solution.policy.memory or (kind.endless and kind.randomised):
            return False
        free = context.free()
        horizon = math.inf if kind.endless else context.horizon
        question = Question(context.model, horizon, context.objective, free.kind)
        return Exact().lacks(question) is None

    def searched(self) -> Bound:
        """What ``exact`` proves, or a search; both if the horizon is infinite.

        ``details["bounds"]`` has what was proven about every Markov policy.
        """
        tree = self._by_tree() if self.has_tree else None
        if tree is None:
            return self._by_search(self.seconds)
        if "interrupted" in tree.details or not self.context.kind.endless:
            return tree
        # a bound on every policy is worth some time in any case
        done = tree.gap(self.solution.value) <= PROVEN
        left = max((1 - TREE) * self.seconds, 0.0 if done else self.seconds - tree.seconds)
        found = self._by_search(left, tree)
        if found.value < tree.value:
            return found
        bounds = {"oracle": found.details["bounds"]["oracle"], found.method: found.value}
        return dataclasses.replace(
            tree, details={**found.details, "bounds": bounds}, seconds=tree.seconds + found.seconds
        )

    def _by_search(self, seconds: float, tree: Bound | None = None) -> Bound:
        """A bound on all policies of time and state, or on all if this one has a memory."""
        solution, context = self.solution, self.context
        F, method = solution.objective, "best"
        if solution.policy.memory:
            method = for_every_policy(context.model.problem, F)
        return searched(
            context.model, None if context.kind.endless else context.horizon, method, F, seconds,
            solution, self.backend, solve=context,
            callback=None if self.callback is None else self._relay(tree),
        )  # fmt: skip

    def _by_tree(self) -> Bound | None:
        """What ``exact`` proves from here on; None if it cannot."""
        context, solution = self.context, self.solution
        inner, policy = context.free(), context.best_policy
        passes = Exact.least_passes
        inner.use(kernels.get(self.backend, inner.problem, inner.horizon, passes=passes))
        inner.time = Stopwatch((TREE if context.kind.endless else 1.0) * self.seconds)
        if type(context.kind) is type(inner.kind) and not (policy is None or randomised(policy)):
            inner.best_policy, inner.best_value = policy, context.best_value
        inner.callback = None if self.callback is None else self._relay()
        starts: Any = "auto" if inner.best_policy is None else 1
        try:
            found = Exact(gap=PROVEN, starts=starts, polish=0.0).run(inner)
        except (InputError, Stop):  # too large for it, or for the time
            return None
        rho = solution.evaluation
        bounds = found.details.get("root", {"oracle": float(rho.oracle @ rho.weights)})
        details: dict[str, Any] = {"bounds": bounds, "nodes": found.details["nodes"]}
        if found.status is Status.INTERRUPTED:
            answer()
            details["interrupted"] = True
        # no policy at hand is above what is proven
        most = max(found.details["bound"], solution.value + self.context.rounding(solution.returns))
        return Bound(most, Exact.name, found.details["bounds"], details, inner.time.seconds)

    def near(self, found: Bound, least: Bound) -> float:
        """How close a bound must come to the value to prove that it is the best."""
        solution, context = self.solution, self.context
        oracle, F = found.details.get("bounds", {}).get("oracle", least.value), context.objective
        rho = F.counted(solution.returns, lambda: solution.evaluation.oracle)
        weights = context.model.weights
        closing = closed.Closing(context.model.problem, context.decisions)
        near = closing(
            PROVEN, solution.value, oracle, lambda error: float(F.value(rho + error, weights))
        )
        return max(near, 3 * context.rounding(solution.returns)) if self.has_tree else near

    def _relay(self, known: Bound | None = None) -> Callback:
        """A callback for a search, or for exact, that calls the one of solve()."""
        solution, callback = self.solution, self.callback
        assert callback is not None
        value, count = solution.value, solution.iterations
        most, spent = (math.inf, 0.0) if known is None else (known.value, known.seconds)

        def relay(p: Progress) -> None:
            bound = min(p.bound, most)
            seconds = solution.seconds + spent + p.seconds
            callback(Progress(solution.method, count, value, value, seconds, bound))

        return relay
