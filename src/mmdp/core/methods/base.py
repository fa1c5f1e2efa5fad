"""The base class of methods.

A method derives from :class:`Method`: it has a ``name``, ``unsupported_reason(spec)``, which says
why it cannot solve a problem, and ``run(context)``, which returns a
:class:`mmdp.core.search.context.MethodResult`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels import DEFAULT_N_PASSES, Problem
from mmdp.core.methods.spec import ProblemSpec
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

Array = npt.NDArray[np.float64]


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
