"""One solve: its question, its plan, its clock and its record.

A method reads the problem from the context, calls ``context.record(policy, value)`` after every
improvement, and returns an :class:`Outcome`. It need not watch the clock: ``record`` raises
:class:`Stop` when the time is up, and ``solve`` returns the best policy so far. The clock stops
nothing before there is a policy to return.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.clock import Callback, CtrlC, Ending, Held, Progress, Stop, Stopwatch, ending, pass_on
from mmdp.kernels import Kernel, Plan, Problem
from mmdp.kernels.controller import Controller
from mmdp.kernels.endless import Endless, Own
from mmdp.kernels.problem import Table
from mmdp.model import MMDP
from mmdp.objective import Mean, Objective
from mmdp.policy import Markov, PolicyKind, Stationary
from mmdp.solution import Status

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a method found: a policy or its table (see ``PolicyKind``), or per-model policies."""

    policy: Any
    status: Status
    iterations: int
    policies: npt.NDArray[np.int32] | None = None
    returns: Array | None = None
    errors: Array | None = None
    trace: list[float] | None = None  # None: everything that was recorded
    episodes: int | None = None  # per model, in the simulation of a planner
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def returns_known(self) -> Array:
        """(M,) returns, which a search always has."""
        assert self.returns is not None
        return self.returns

    def but(self, **changes: Any) -> Outcome:
        """The same with other parts."""
        return replace(self, **changes)


def early(end: Ending) -> Status:
    """The status of the best so far, by what ended the search."""
    return Status.INTERRUPTED if end.interrupted else Status.TIME_LIMIT


class Context:
    """The model, the kind of policy, the plan, the clock and the record of one solve.

    ``plan`` is laid out when it is first asked for. It has the actions that the kind leaves open.
    """

    def __init__(
        self, model: MMDP, horizon: int, kernel: Kernel, *, method: str = "",
        kind: PolicyKind | None = None, objective: Objective | None = None, seed: int | None = 0,
        time_limit: float | None = None, callback: Callback | None = None,
    ) -> None:  # fmt: skip
        self.model, self.horizon, self.kernel, self.method = model, horizon, kernel, method
        self.kind = Markov() if kind is None else kind
        self.objective: Objective = objective or Mean()
        self.seed, self.callback = seed, callback
        self.time = Stopwatch(time_limit)
        self.keys = CtrlC()
        self.may_stop = False  # whether there is a policy to return, here or outside
        self._blank()

    def _blank(self) -> None:
        self.trace: list[float] = []
        self.best_value = -np.inf
        self.best_policy: Any = None  # a table, or a controller
        self.iterations = 0
        self.details: dict[str, Any] = {}  # what is known should the time be up

    @cached_property
    def plan(self) -> Plan:
        return self.kernel.plan(self.kind.problem(self.model, self.horizon), self.horizon)

    @property
    def problem(self) -> Problem:
        """The arrays to plan on."""
        return self.plan.problem

    @cached_property
    def endless(self) -> Endless:
        """Values of policies that are the same at all times."""
        return Endless.of(self.problem, self.check_time)

    @cached_property
    def model_optima(self) -> Own:
        """Each model's own optimum without a last decision, as far as it is known in time."""
        return self.endless.timed(self.time.check).own()

    @property
    def decisions(self) -> float:
        """The decisions over which errors add up, on average if episodes end by themselves."""
        if not self.kind.endless:
            return self.horizon
        return math.inf if self.problem.discount < 1 else self.endless.lasts

    @property
    def stakes(self) -> float:
        """What is at stake: tolerances are shares of it."""
        return self.endless.stakes() if self.kind.endless else self.problem.stakes(self.horizon)

    def rounding(self, returns: Array) -> float:
        """The most by which floating-point error can have changed the value of returns (M,).

        Models that do not count in the objective do not set its scale.
        """
        x = self.problem
        errors = self.endless.roundings() if self.kind.endless else x.roundings(self.horizon)
        if self.objective.linear:
            return float(x.weights @ errors)
        moved = self.worths(np.stack([returns + errors, returns - errors]))
        return float(np.abs(moved - self.worths(returns)).max())

    def record(self, policy: Table | Controller, value: float, *, last: bool = False) -> None:
        """Note an iterate and call back; raises Stop if the time is up, unless it is the last."""
        self.trace.append(value)
        self.iterations = len(self.trace) - 1
        self.keep(policy, value)
        if self.callback is not None:
            self.callback(
                Progress(self.method, self.iterations, value, self.best_value, self.time.seconds)
            )
        if not last:
            self.check_time()

    def keep(self, policy: Any, value: float) -> None:
        """Keep a policy to return if the time is up, should it be the best so far."""
        self.may_stop = True
        if value > self.best_value or self.best_policy is None:
            self.best_value, self.best_policy = value, policy
            if "endless" in vars(self):
                self.endless.retain()

    def tell(self, bound: float, nodes: int) -> None:
        """Call back with a proven bound and the nodes of a tree; raises Stop if the time is up."""
        if self.callback is not None:
            value, seconds = self.best_value, self.time.seconds
            self.callback(
                Progress(self.method, self.iterations, value, value, seconds, bound, nodes)
            )
        self.check_time()

    def check_time(self) -> None:
        """Raise Stop if the time is up and there is a policy to return.

        Of many processes, if the time is up in one of them.
        """
        late, pressed = self.problem.anywhere(self.time.late, self.keys.pressed)
        pass_on(pressed)
        if late and self.may_stop:
            raise Stop

    def ending(self) -> AbstractContextManager[Ending]:
        """A block that the time or Ctrl-C may cut short once there is a policy."""
        return ending(lambda: self.best_policy is not None)

    def holding(self) -> AbstractContextManager[CtrlC]:
        """Inside, Ctrl-C waits until all processes agree, if each has a part of the models."""
        if self.problem.n_parts == 1:
            return nullcontext(self.keys)
        self.keys = Held()
        return self.keys

    def quiet(
        self, kind: PolicyKind | None = None, *, objective: Objective | None = None,
        weights: Array | None = None,
    ) -> Context:  # fmt: skip
        """The same problem, seed and deadline with a record of its own and no callback.

        For the mean, or another ``objective``, of policies of the same or another ``kind``;
        ``weights`` (M,) are other weights of the models.
        """
        inner = copy.copy(self)
        inner._blank()
        inner.callback, inner.objective = None, objective or Mean()
        if kind is not None:
            inner.kind = kind
            inner.plan = self.plan.but(allowed=kind.problem(self.model, self.horizon).allowed)
        if weights is not None:
            inner.plan = inner.plan.but(weights=weights)
        for name in ("endless", "model_optima"):  # they are of the plan before
            inner.__dict__.pop(name, None)
        return inner

    def use(self, kernel: Kernel) -> None:
        """Lay the problem out on another kernel."""
        if kernel.name != self.kernel.name:
            self.kernel, problem = kernel, self.problem
            self.plan = kernel.plan(problem, self.horizon)

    def free(self) -> Context:
        """The same question without a restriction of the policy, with a record of its own."""
        kind = Stationary() if self.kind.endless else Markov()
        return self.quiet(kind, objective=self.objective)

    # ------------------------------------------------------------ the passes methods share
    def mean(self, returns: Array) -> float:
        """rho from the returns (M,) of the models."""
        return float(returns @ self.problem.weights)

    def worths(self, returns: Array, objective: Objective | None = None) -> Array:
        """(...) the value of the objective for candidates with returns (..., M)."""
        chosen = objective or self.objective
        return chosen.value(chosen.counted(returns, self.own), self.problem.weights)

    def worth(self, returns: Array, objective: Objective | None = None) -> float:
        """The value of the objective from the returns (M,) of the models."""
        return float(self.worths(returns, objective))

    def own(self) -> Array:
        """(M,) return of each model's own optimal policy."""
        return self._own

    @cached_property
    def _own(self) -> Array:
        x = self.model.problem
        if self.kind.endless:
            return x.returns(Endless.of(x).own().values.T)  # a regret needs them whole
        return self.plan.returns(self.plan.but(allowed=x.allowed).backward("own").first)

    def returns(self, policy: Table) -> Array:
        """(M,) exact return of a policy table on every model, however long it takes."""
        if self.kind.endless:
            return self.endless.timed(lambda: None).returns(policy)
        return self.plan.returns(self.plan.backward("given", policy=policy).first)

    def weighted(self, weights: Array, incumbent: Table | None = None) -> tuple[Table, Array]:
        """The policy that maximises G with these weights, and its returns (M,)."""
        found = self.plan.backward("weighted", weights=weights, policy=incumbent)
        return found.actions, self.plan.returns(found.first)

    def wsu(self) -> tuple[Table, Array]:
        """WSU's policy and its returns (M,)."""
        return self.weighted(self.problem.prior_weights(self.horizon))
