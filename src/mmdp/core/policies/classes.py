"""The base of policy classes: which observations a decision may depend on.

``solve(policy_class=...)`` takes a :class:`PolicyClass`, or its name. It is a small frozen object
that says which policies are searched. It checks that a model has such policies and converts the
table that a method finds to a policy. ``Method.unsupported_reason`` says whether a method can find
one.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Problem
from mmdp.core.kernels.infinite import check_infinite_horizon, choose_planning_horizon
from mmdp.core.validate import check_horizon

if TYPE_CHECKING:
    from mmdp.core.model import MMDP
    from mmdp.core.policies.base import Policy

Mask = npt.NDArray[np.bool_]
Json = Any  # a value of JSON types
NamedValues = dict[str, Any]  # values of different types, by name
UserData = Any  # a list, array, mapping or pandas object that a user passes
SearchResult = Any  # the table, controller or tree that a search returns for a policy class

INFINITE_HORIZON_PASSES = 60  # one start and a policy of time and state, besides linear algebra
RANDOMIZED_PASSES = 1000  # of an ascent on probabilities


class PolicyClass:
    """Base class of policy classes: frozen dataclasses that say which policies are searched."""

    name: ClassVar[str]
    decision_inputs: str  # what a decision depends on, as the end of a sentence
    change_text: str = "change of the action"  # in "no change of the action improves it"
    single_change_text: str = ""  # the same for objectives other than the mean, if it differs
    is_infinite_horizon: bool = False  # whether there is no last decision
    randomized: bool = False  # whether actions may be drawn at random
    finite_horizon_reason: ClassVar[str] = ""  # why there must be one, as a clause
    is_action_mask: bool = False  # whether it only closes actions: one decision binds no other
    is_restricted: ClassVar[bool] = False  # whether some policies of time and state are left out
    can_initialize: ClassVar[bool] = True  # whether a search can start from a policy of this class
    uses_belief: ClassVar[bool] = False  # whether its policies keep a belief over the models
    uses_growth: ClassVar[bool] = (
        False  # whether a search begins with the smallest, and any given one
    )
    bound_scope: ClassVar[str] = ""  # which policies the bound of a solve covers, if not all

    @property
    def restriction_text(self) -> str:
        """Adjective for its policies, as in "being tied costs 3"."""
        return self.name

    def estimate_passes(self, markov_passes: float) -> float:
        """Estimate the passes of a solve from those that a Markov policy takes."""
        if self.is_infinite_horizon:
            return min(markov_passes, INFINITE_HORIZON_PASSES)
        return markov_passes + RANDOMIZED_PASSES * self.randomized

    @classmethod
    def make_default(cls) -> Self:
        """Make the policy class with its default settings, as selected by its name."""
        return cls()

    def with_infinite_horizon(self) -> PolicyClass:
        """Return the policy class for an infinite horizon, with decisions that ignore the time."""
        raise InputError(
            f"for an infinite horizon there are no {self.name} policies: "
            f"{self.finite_horizon_reason}",
            [Remedy("policy_class", "stationary"), "give the number of decisions"],
        )

    def for_horizon(self, horizon: float | None) -> PolicyClass:
        """Return the policy class for a horizon; InputError if it has no policies there."""
        if horizon == math.inf:
            return self.with_infinite_horizon()
        if self.is_infinite_horizon and horizon is not None:
            raise InputError(
                f"a {self.name} policy is for an infinite horizon, not for {horizon} decisions",
                [Remedy("horizon", math.inf), Remedy("policy_class", "markov")],
            )
        return self

    def resolve_horizon(self, model: MMDP, horizon: float | None) -> int:
        """Return the number of decisions to plan for.

        If there is no last one, that of the policy of time and state to compare with.
        """
        if self.is_infinite_horizon:
            check_infinite_horizon(model.problem, model.horizon, model.state_labels)
            return choose_planning_horizon(model.problem)
        return check_horizon(model.horizon, horizon)

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError unless the model has a policy of this class."""

    def make_problem(self, model: MMDP, horizon: int) -> Problem:
        """Return the arrays of the model, restricted to the actions that the class allows."""
        return model.problem

    def to_settings(self, model: MMDP, horizon: int) -> Json:
        """Return what distinguishes two classes of this name on the model, as JSON types."""
        return "randomized" if self.randomized else None

    def describe(self, model: MMDP, horizon: int) -> str:
        """Describe the restriction on the model in words; empty if there is none."""
        return ""

    def find_determined(self, model: MMDP, is_reached: Mask) -> Mask:
        """Find the states (..., S) whose action is determined by the actions in reached states."""
        return is_reached

    def make_policy(self, model: MMDP, table: SearchResult) -> Policy:
        """Make the policy for the table that a method found, with the labels of the model."""
        raise NotImplementedError

    def policy_to_table(self, policy: Policy, model: MMDP) -> SearchResult:
        """Return the table of a policy, from which a method can resume."""
        return policy.to_table(model)


class Belief(PolicyClass):
    """Policies that act on the state and on a belief over the models, updated at every step."""

    name: ClassVar[str] = "belief"
    decision_inputs = "everything seen so far"
    can_initialize: ClassVar[bool] = False
    uses_belief: ClassVar[bool] = True

    def with_infinite_horizon(self) -> Belief:
        """Return the policy class for an infinite horizon."""
        policy_class = Belief()
        policy_class.is_infinite_horizon = True
        return policy_class

    def estimate_passes(self, markov_passes: float) -> float:
        """Return the passes of a Markov policy: methods estimate their own."""
        return markov_passes

    def __repr__(self) -> str:
        return "Belief()"


def missing_settings_error(policy_class: type[PolicyClass], example: str) -> InputError:
    """Make the error for a policy class that is selected by name but needs settings."""
    names = ", ".join(setting.name for setting in fields(policy_class))  # type: ignore[arg-type]
    return InputError(
        f"a {policy_class.name} policy needs {names}", [f"pass policy_class={example}"]
    )
