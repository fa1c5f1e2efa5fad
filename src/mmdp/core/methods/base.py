"""The base class of methods, and the problem that a method is asked about.

A method derives from :class:`Method`: it has a ``name``, ``unsupported_reason(spec)``, which says
why it cannot solve a problem, and ``run(context)``, which returns a
:class:`mmdp.core.search.context.MethodResult`. Common reasons are defined by
:class:`ProblemSpec`; each is a clause about the method, or None if it does not apply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from mmdp.core.kernels import DEFAULT_N_PASSES, Problem
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.policies import Markov, PolicyClass, Stationary
from mmdp.core.search.context import MethodResult, SolveContext
from mmdp.core.solution import Status
from mmdp.core.timing import Callback, Progress, TimeUp

__all__ = [
    "Callback",
    "Method",
    "MethodResult",
    "ProblemSpec",
    "Progress",
    "SolveContext",
    "TimeUp",
]


@dataclass(frozen=True)
class ProblemSpec:
    """Problem to solve: a model, a horizon, an objective and a policy class.

    ``horizon`` is the number of decisions, None for the model's own, or infinite. ``policy_class``
    is adapted to it, and ``planning_horizon`` is the number of decisions to plan for. InputError
    if the class has no policies, or the model no values, over the horizon.
    """

    model: MMDP
    horizon: float | None
    objective: Objective
    policy_class: PolicyClass
    planning_horizon: int = field(init=False)

    def __post_init__(self) -> None:
        """Adapt the policy class to the horizon, and set the planning horizon."""
        set_field = object.__setattr__
        set_field(self, "policy_class", self.policy_class.for_horizon(self.horizon))
        set_field(
            self, "planning_horizon", self.policy_class.resolve_horizon(self.model, self.horizon)
        )

    @property
    def is_infinite_horizon(self) -> bool:
        """Whether the horizon is infinite."""
        return self.policy_class.is_infinite_horizon

    # ------------------------------------------------------------ reasons
    def reason_if_risk(self) -> str | None:
        """Return a reason if the objective is not the mean, otherwise None."""
        return None if self.objective.is_mean else f"it maximises the mean, not {self.objective}"

    def reason_if_coupled(self) -> str | None:
        """Return a reason if the class couples decisions or is randomized, otherwise None."""
        if self.policy_class.randomized:
            return "its policies take one action in each state, and this one may draw them"
        if self.policy_class.is_action_mask:
            return None
        return (
            f"it chooses each action by itself, which cannot make a {self.policy_class.name} policy"
        )

    def reason_if_not_belief(self) -> str | None:
        """Return a reason unless policies keep a belief, for the mean, over all models here."""
        if not self.policy_class.uses_belief:
            return f"it finds policies that keep a belief, not {self.policy_class.name} ones"
        return self.reason_if_risk() or self.reason_if_sharded()

    def reason_if_infinite(self) -> str | None:
        """Return a reason if the horizon is infinite, otherwise None."""
        return "it plans backwards from a last decision" if self.is_infinite_horizon else None

    def reason_if_switching(self, reason: str) -> str | None:
        """Return a reason if the models switch, otherwise None."""
        return self.model.problem.reason_if_switching(reason)

    def reason_if_sharded(self, subject: str = "it") -> str | None:
        """Return a reason if the models are spread over processes, otherwise None."""
        return self.model.problem.reason_if_sharded(subject)


class Method:
    """Base class of methods: an algorithm as a frozen dataclass of its options.

    :meth:`unsupported_reason` says what it can solve; :func:`mmdp.methods.list_capabilities` lists
    that for all methods.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # what it does, in one phrase
    default_class: ClassVar[PolicyClass | None] = Markov()  # the default; None: one per model
    best_status: ClassVar[Status | None] = None  # the most that it can prove about its policy
    can_resume: ClassVar[bool] = False  # whether it can go on from a policy that it found before
    covers_unreachable: ClassVar[bool] = False  # whether it also decides where no model goes
    ignores_rounding: ClassVar[bool] = False  # whether numpy and numba find the same policy
    min_passes: ClassVar[float] = DEFAULT_N_PASSES  # infinite: too many for plain numpy

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why the method cannot solve the problem, as a sentence about "it"; None if it can.

        Unless overridden, a method maximizes the mean backwards in time on ``context.prepared``.
        That suffices for switching models, and for models spread over processes.
        """
        return spec.reason_if_risk() or spec.reason_if_coupled() or spec.reason_if_infinite()

    @classmethod
    def default_class_for(cls, horizon: float | None) -> PolicyClass:
        """Return the policy class that the method finds by default over this horizon."""
        policy_class = cls.default_class or Markov()
        return (
            Stationary() if horizon == math.inf and not policy_class.uses_belief else policy_class
        )

    def run(self, context: SolveContext) -> MethodResult:
        """Solve the problem of the context and return the result."""
        raise NotImplementedError

    def estimate_passes(self, problem: Problem, horizon: int) -> float:
        """Estimate the passes over the problem that a solve takes, for ``backend="auto"``."""
        return self.min_passes

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes: values or weights by time, state and model."""
        problem = spec.model.problem
        return 8 * spec.planning_horizon * problem.terminal.size
