"""What a decision may depend on: the base of all kinds of policy.

``solve(policy=...)`` takes a :class:`PolicyKind`, or its name. A kind is a small frozen object
that says which policies are looked for. It checks that a model has such policies and turns what
a method found into a policy. Methods name the kinds that they can find (``Method.policies``).
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel, Problem
from mmdp.validate import check_horizon

if TYPE_CHECKING:
    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]


class PolicyKind:
    """A kind of policy: derive a frozen dataclass of its settings from this class."""

    name: ClassVar[str]
    title: ClassVar[str]  # what a decision depends on, as the end of a sentence
    change: ClassVar[str] = "change of the action"  # what a local maximum has no better one of
    single_change: ClassVar[str] = ""  # the same for objectives other than the mean, if it differs
    endless: ClassVar[bool] = False  # whether there is no last decision
    restricted: ClassVar[bool] = False  # whether some policies of time and state are left out
    starts: ClassVar[bool] = True  # whether a search can begin with a policy of this kind

    @property
    def more_passes(self) -> float:
        """About how many passes it takes besides those of a solve without memory."""
        return 0.0

    @classmethod
    def by_name(cls) -> Self:
        """The kind that its name alone stands for."""
        return cls()

    def steps(self, model: MMDP, horizon: float | None) -> int:
        """The number of decisions to plan for, from the horizon that was asked for."""
        if horizon == math.inf:
            raise InputError(
                f"for an infinite horizon there are stationary policies only, no {self.name} ones",
                [Remedy("policy", "stationary"), "give the number of decisions"],
            )
        return check_horizon(model.horizon, horizon)

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError unless ``model`` has a policy of this kind."""

    def problem(self, model: MMDP, horizon: int) -> Problem:
        """The arrays to plan on."""
        return model.problem

    def settings(self, model: MMDP, horizon: int) -> Any:
        """What tells apart two kinds of this name on ``model``, as JSON holds it."""
        return None

    def told(self, model: MMDP, horizon: int) -> str:
        """What was asked of its policies on ``model``, in words; empty if nothing."""
        return ""

    def policy_of(self, model: MMDP, table: Any) -> ExactPolicy:
        """The policy that a method's table stands for, with the labels of ``model``."""
        raise NotImplementedError


class Belief(PolicyKind):
    """Policies that keep a belief over the models and learn from what they see."""

    name: ClassVar[str] = "belief"
    title: ClassVar[str] = "everything seen so far"
    starts: ClassVar[bool] = False

    def __repr__(self) -> str:
        return "Belief()"


@runtime_checkable
class ExactPolicy(Protocol):
    """A policy whose return on any models can be computed without simulation."""

    @property
    def kind(self) -> PolicyKind: ...

    @property
    def horizon(self) -> float:
        """The number of decisions; infinite if there is no last one."""
        ...

    def check(self, model: MMDP) -> None:
        """Raise InputError unless this policy can be followed in ``model``."""
        ...

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        """(M,) its exact return on every model."""
        ...


def needs_settings(kind: type[PolicyKind], example: str) -> InputError:
    """The error for a name in place of an object with settings."""
    names = ", ".join(x.name for x in fields(kind))  # type: ignore[arg-type]
    return InputError(f"a {kind.name} policy needs {names}", [f"pass policy={example}"])
