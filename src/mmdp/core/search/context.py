"""The context of one solve: the prepared problem, the objective, the clock and the incumbent.

A method reads the problem from the context, calls ``context.record(policy, value)`` after every
improvement, and returns a :class:`MethodResult`. It need not check the time: ``record`` raises
:class:`mmdp.core.timing.TimeUp` at the time limit, and ``solve`` returns the incumbent. The time
limit has no effect before there is an incumbent.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mmdp.core.evaluate import Evaluator, StationaryEvaluator, make_evaluator
from mmdp.core.kernels import Backend, PreparedProblem, Problem
from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.infinite import InfiniteHorizon, ModelOptima
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.model import MMDP
from mmdp.core.objectives import Mean, Objective
from mmdp.core.policies import Markov, PolicyClass, Stationary
from mmdp.core.shapes import Array, IntArray
from mmdp.core.solution import Status
from mmdp.core.timing import (
    Callback,
    DeferredInterrupt,
    InterruptFlag,
    Progress,
    StopState,
    Stopwatch,
    TimeUp,
    allow_stop,
    progress_line,
)

Candidate = Any  # a policy in the representation of its search: a table, controller or tree
Details = dict[str, Any]  # further results of a method, by name


@dataclass(frozen=True)
class MethodResult:
    """Result of a method: a policy (or its table), or one policy per model, with its status."""

    policy: Candidate
    status: Status
    n_iterations: int
    model_policies: IntArray | None = None
    returns: Array | None = None
    trace: list[float] | None = None  # None: everything that was recorded
    n_episodes: int | None = None  # per model, in the simulation of a planner
    covers_unreachable: bool = False  # whether the policy is the best in unreachable states too
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def required_returns(self) -> Array:
        """Returns of the policy, (M,), which every search provides."""
        assert self.returns is not None
        return self.returns

    def replace(self, **changes: Any) -> MethodResult:
        """Return a copy of the result with some fields changed."""
        return replace(self, **changes)


def get_stop_status(stop_state: StopState, otherwise: Status = Status.COMPLETED) -> Status:
    """Return the status of a search that the time limit or Ctrl-C may have stopped."""
    if stop_state.exception is None:
        return otherwise
    return Status.INTERRUPTED if stop_state.is_interrupted else Status.TIME_LIMIT


@dataclass(eq=False)
class SolveContext:
    """State of one solve: model, policy class, prepared problem, clock and incumbent.

    ``prepared`` is computed on first use. It has the actions that the policy class allows.
    """

    model: MMDP
    horizon: int
    backend: Backend
    _: KW_ONLY
    method: str = ""
    policy_class: PolicyClass = field(default_factory=Markov)
    objective: Objective = field(default_factory=Mean)
    seed: int | None = 0
    time_limit: InitVar[float | None] = None
    callback: Callback | None = None

    def __post_init__(self, time_limit: float | None) -> None:
        """Start the stopwatch."""
        self.stopwatch = Stopwatch(time_limit)
        self.interrupt_flag = InterruptFlag()
        self.can_stop = False  # whether there is a policy to return, here or outside
        self._reset_record()

    def _reset_record(self) -> None:
        """Clear the trace, the incumbent and the details."""
        self.trace: list[float] = []
        self.best_value = -np.inf
        self.best_policy: Candidate = None  # a table, or a controller
        self.n_iterations = 0
        self.details: Details = {}  # what is known should the time be up

    @property
    def is_infinite_horizon(self) -> bool:
        """Whether there is no last decision."""
        return self.policy_class.is_infinite_horizon

    @cached_property
    def problem(self) -> Problem:
        """Arrays of the problem, restricted to the actions that the class allows."""
        return self.policy_class.make_problem(self.model, self.horizon)

    @cached_property
    def prepared(self) -> PreparedProblem:
        """Problem prepared on the backend."""
        return self.backend.prepare(self.problem, self.horizon)

    @cached_property
    def infinite_horizon(self) -> InfiniteHorizon:
        """Solver for the infinite-horizon values of stationary policies."""
        return InfiniteHorizon.from_problem(self.problem, self.check_time)

    @property
    def evaluator(self) -> Evaluator:
        """Evaluator of the tables of the policy class over the horizon."""
        if self.is_infinite_horizon:
            return StationaryEvaluator(self.infinite_horizon)
        return make_evaluator(self.policy_class, self.prepared)

    @cached_property
    def model_optima(self) -> ModelOptima:
        """Optimum of each model over an infinite horizon, as far as the time allows."""
        return self.infinite_horizon.with_clock(
            self.stopwatch.raise_if_expired
        ).compute_model_optima()

    def solve_models(self, problem: Problem) -> ModelOptima:
        """Solve each model of another problem over an infinite horizon, as far as time allows."""
        solver = InfiniteHorizon.from_problem(problem, self.stopwatch.raise_if_expired)
        return solver.compute_model_optima()

    @property
    def has_model_optima(self) -> bool:
        """Whether the time sufficed for the optimum of each model."""
        return not self.is_infinite_horizon or self.model_optima.is_complete

    def compute_model_actions(self) -> IntArray:
        """Compute the optimal actions of each model, (T or 1, S, M)."""
        if self.is_infinite_horizon:
            return self.model_optima.actions.T[None]
        return self.prepared.backward("per_model", keep=("actions",)).actions

    @property
    def policy_horizon(self) -> float:
        """Number of decisions of a policy, infinite if there is no last one."""
        return math.inf if self.is_infinite_horizon else self.horizon

    @property
    def effective_horizon(self) -> float:
        """Number of decisions over which errors add up; its mean if episodes end by themselves."""
        if not self.is_infinite_horizon:
            return self.horizon
        return math.inf if self.problem.discount < 1 else self.infinite_horizon.effective_horizon

    @property
    def return_span(self) -> float:
        """Upper bound on the difference between two returns; tolerances are shares of it."""
        return (
            self.infinite_horizon.return_span()
            if self.is_infinite_horizon
            else self.problem.return_span(self.horizon)
        )

    def estimate_rounding(self, returns: Array) -> float:
        """Bound the floating-point error in the objective value of returns (M,).

        Models that do not count in the objective do not set its scale.
        """
        x = self.problem
        errors = (
            self.infinite_horizon.rounding_errors()
            if self.is_infinite_horizon
            else x.rounding_errors(self.horizon)
        )
        if self.objective.is_mean:
            return float(x.weights @ errors)
        shifted_values = self.objective_values(np.stack([returns + errors, returns - errors]))
        return float(np.abs(shifted_values - self.objective_values(returns)).max())

    def record(
        self, policy: PolicyTable | Controller, value: float, *, is_last: bool = False
    ) -> None:
        """Record an iterate and call back; raise TimeUp at the time limit unless it is the last."""
        self.trace.append(value)
        self.n_iterations = len(self.trace) - 1
        self.keep_best(policy, value)
        self._call_back(value)
        if not is_last:
            self.check_time()

    def keep_best(self, policy: Candidate, value: float) -> None:
        """Make the policy the incumbent if it is better than the present one."""
        self.can_stop = True
        if value > self.best_value or self.best_policy is None:
            self.best_value, self.best_policy = value, policy
            if "infinite_horizon" in vars(self):
                self.infinite_horizon.retain_cache()

    def report_step(self, step: str) -> None:
        """Show in the progress line what is done as long as there is no value."""
        if self.callback is not None and self.best_policy is None:
            progress_line.update(f"{self.method}, {step}")

    def report_bound(self, bound: float, n_nodes: int) -> None:
        """Call back with a proven bound and the node count; raise TimeUp at the time limit."""
        self._call_back(self.best_value, bound=bound, n_nodes=n_nodes)
        self.check_time()

    def _call_back(self, value: float, **bound: Any) -> None:
        """Call back with the progress so far."""
        if self.callback is not None:
            self.callback(
                Progress(
                    stage=self.method,
                    iteration=self.n_iterations,
                    value=value,
                    best_value=self.best_value,
                    elapsed=self.stopwatch.elapsed,
                    **bound,
                )
            )

    def check_time(self, min_seconds: float = 0.0) -> None:
        """Raise TimeUp if less than ``min_seconds`` are left and there is an incumbent.

        Of many processes, if the time is up in one of them.
        """
        is_late, is_pressed = self.problem.any_across_shards(
            self.stopwatch.is_expired or self.stopwatch.time_left < min_seconds,
            self.interrupt_flag.is_set,
        )
        if is_pressed:
            raise KeyboardInterrupt
        if is_late and self.can_stop:
            raise TimeUp

    def allow_stop(self) -> AbstractContextManager[StopState]:
        """Return a block that the time limit or Ctrl-C may end once there is an incumbent."""
        return allow_stop(lambda: self.best_policy is not None)

    def defer_interrupts(self) -> AbstractContextManager[InterruptFlag]:
        """Return a block in which Ctrl-C waits until all processes of a sharded model agree."""
        if self.problem.n_shards == 1:
            return nullcontext(self.interrupt_flag)
        self.interrupt_flag = DeferredInterrupt()
        return self.interrupt_flag

    def subcontext(
        self,
        policy_class: PolicyClass | None = None,
        *,
        objective: Objective | None = None,
        weights: Array | None = None,
    ) -> SolveContext:
        """Return a context for the same problem, seed and deadline with its own incumbent.

        For the mean, or another ``objective``, of policies of the same or another ``policy_class``;
        ``weights`` (M,) are other weights of the models.
        """
        child = copy.copy(self)
        child._reset_record()
        child.callback, child.objective = None, objective or Mean()
        if policy_class is not None:
            child.policy_class = policy_class
            child.prepared = self.prepared.replace(
                allowed=policy_class.make_problem(self.model, self.horizon).allowed
            )
        if weights is not None:
            child.prepared = child.prepared.replace(weights=weights)
        if "prepared" in vars(child):
            child.problem = child.prepared.problem
        for name in ("infinite_horizon", "model_optima"):  # they belong to the old problem
            child.__dict__.pop(name, None)
        return child

    def use_backend(self, backend: Backend) -> None:
        """Prepare the problem on another backend."""
        if backend.name != self.backend.name:
            self.backend, self.prepared = backend, backend.prepare(self.problem, self.horizon)

    def unrestricted_context(self) -> SolveContext:
        """Return a context for the same problem without the restriction of the policy class."""
        policy_class = Stationary() if self.is_infinite_horizon else Markov()
        return self.subcontext(policy_class, objective=self.objective)

    # ------------------------------------------------------------ the passes methods share
    def compute_mean(self, returns: Array) -> float:
        """Compute the mean return rho from the returns (M,) of the models."""
        return float(returns @ self.problem.weights)

    def objective_values(self, returns: Array, objective: Objective | None = None) -> Array:
        """Compute the objective values (...) of candidates with returns (..., M)."""
        measure = objective or self.objective
        return measure.value(
            measure.relative_returns(returns, self.oracle_returns), self.problem.weights
        )

    def objective_value(self, returns: Array, objective: Objective | None = None) -> float:
        """Compute the objective value of returns (M,)."""
        return float(self.objective_values(returns, objective))

    def oracle_returns(self) -> Array:
        """Return the return of each model's own optimal policy, (M,)."""
        return self._oracle_returns

    @cached_property
    def _oracle_returns(self) -> Array:
        """Return of each model's own optimal policy, (M,)."""
        x = self.model.problem
        if self.is_infinite_horizon:
            is_same = np.array_equal(self.problem.allowed, x.allowed)
            optima = self.model_optima if is_same and "model_optima" in vars(self) else None
            if optima is None or not optima.is_complete:  # a regret needs them whole
                optima = InfiniteHorizon.from_problem(x).compute_model_optima()
            return x.compute_returns(optima.values.T)
        return self.prepared.compute_returns(
            self.prepared.replace(allowed=x.allowed).backward("per_model").first_values
        )

    def compute_returns(self, policy: PolicyTable) -> Array:
        """Compute the exact return of a policy table on every model, (M,), ignoring time limit."""
        if self.is_infinite_horizon:
            return self.infinite_horizon.with_clock(lambda: None).compute_returns(policy)
        return self.evaluator.compute_returns(policy)

    def maximize_weighted(self, weights: Array) -> tuple[PolicyTable, Array]:
        """Maximize the weighted q backwards in time; return the actions (T, S) and returns (M,)."""
        backward_pass = self.prepared.backward("weighted", weights=weights)
        return backward_pass.actions, self.prepared.compute_returns(backward_pass.first_values)

    def solve_wsu(self) -> tuple[PolicyTable, Array]:
        """Compute the policy of WSU (Steimle et al. 2021) and its returns (M,)."""
        return self.maximize_weighted(self.problem.prior_weights(self.horizon))
