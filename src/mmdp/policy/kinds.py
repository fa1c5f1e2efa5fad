"""What a decision may depend on: the base of all kinds of policy.

``solve(policy=...)`` takes a :class:`PolicyKind`, or its name. A kind is a small frozen object
that says which policies are looked for. It checks that a model has such policies and turns what
a method found into a policy. Whether a method can find one is asked by ``Method.lacks``.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, Remedy
from mmdp.kernels import Problem
from mmdp.kernels.endless import check_endless, planning_horizon
from mmdp.validate import check_horizon

if TYPE_CHECKING:
    from mmdp.model import MMDP
    from mmdp.policy.base import Policy

Mask = npt.NDArray[np.bool_]

ENDLESS_PASSES = 30  # one start and a policy of time and state, besides linear algebra
DRAWING_PASSES = 1000  # of an ascent on probabilities


class PolicyKind:
    """A kind of policy: derive a frozen dataclass of its settings from this class."""

    name: ClassVar[str]
    title: str  # what a decision depends on, as the end of a sentence
    change: str = "change of the action"  # in "no change of the action improves it"
    single_change: str = ""  # the same for objectives other than the mean, if it differs
    endless: bool = False  # whether there is no last decision
    randomised: bool = False  # whether actions may be drawn at random
    ends: ClassVar[str] = ""  # why there must be one, as a clause
    masks: bool = False  # whether it only closes actions: one decision binds no other
    restricted: ClassVar[bool] = False  # whether some policies of time and state are left out
    starts: ClassVar[bool] = True  # whether a search can begin with a policy of this kind
    learns: ClassVar[bool] = False  # whether its policies keep a belief over the models
    grows: ClassVar[bool] = False  # whether a search begins with the smallest, and any given one
    proven: ClassVar[str] = ""  # which policies the bound of a solve covers, if not all

    @property
    def being(self) -> str:
        """What its policies are, as in "being tied costs 3"."""
        return self.name

    def passes(self, of_tables: float) -> float:
        """About how many passes a solve takes; ``of_tables``: for policies of time and state."""
        if self.endless:
            return min(of_tables, ENDLESS_PASSES)
        return of_tables + DRAWING_PASSES * self.randomised

    @classmethod
    def by_name(cls) -> Self:
        """The kind that its name alone stands for."""
        return cls()

    def for_ever(self) -> PolicyKind:
        """The same kind for an infinite horizon: its policies do not depend on the time."""
        raise InputError(
            f"for an infinite horizon there are no {self.name} policies: {self.ends}",
            [Remedy("policy", "stationary"), "give the number of decisions"],
        )

    def over(self, horizon: float | None) -> PolicyKind:
        """This kind over a horizon; InputError if it has no policies there."""
        if horizon == math.inf:
            return self.for_ever()
        if self.endless and horizon is not None:
            raise InputError(
                f"a {self.name} policy is for an infinite horizon, not for {horizon} decisions",
                [Remedy("horizon", math.inf), Remedy("policy", "markov")],
            )
        return self

    def steps(self, model: MMDP, horizon: float | None) -> int:
        """The number of decisions to plan for.

        If there is no last one, that of the policy of time and state to compare with.
        """
        if self.endless:
            check_endless(model.problem, model.horizon, model.state_labels)
            return planning_horizon(model.problem)
        return check_horizon(model.horizon, horizon)

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError unless ``model`` has a policy of this kind."""

    def problem(self, model: MMDP, horizon: int) -> Problem:
        """The arrays to plan on."""
        return model.problem

    def settings(self, model: MMDP, horizon: int) -> Any:
        """What distinguishes two kinds of this name on ``model``, in JSON's types."""
        return "randomised" if self.randomised else None

    def text(self, model: MMDP, horizon: int) -> str:
        """What was asked of its policies on ``model``, in words; empty if nothing."""
        return ""

    def decided(self, model: MMDP, there: Mask) -> Mask:
        """(..., S) where the actions at the places ``there`` determine the action."""
        return there

    def policy_of(self, model: MMDP, table: Any) -> Policy:
        """The policy that a method's table stands for, with the labels of ``model``."""
        raise NotImplementedError

    def table_of(self, policy: Policy, model: MMDP) -> Any:
        """What a method would have found, had it found ``policy``: a solve goes on from it."""
        return policy.table_for(model)


class Belief(PolicyKind):
    """Policies that keep a belief over the models and learn from what they see."""

    name: ClassVar[str] = "belief"
    title = "everything seen so far"
    starts: ClassVar[bool] = False
    learns: ClassVar[bool] = True

    def for_ever(self) -> Belief:
        kind = Belief()
        kind.endless = True
        return kind

    def passes(self, of_tables: float) -> float:
        return of_tables

    def __repr__(self) -> str:
        return "Belief()"


def needs_settings(kind: type[PolicyKind], example: str) -> InputError:
    """The error for a name in place of an object with settings."""
    names = ", ".join(x.name for x in fields(kind))  # type: ignore[arg-type]
    return InputError(f"a {kind.name} policy needs {names}", [f"pass policy={example}"])
