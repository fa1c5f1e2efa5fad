"""The specification of a problem, and common reasons why a method does not support it.

``method.unsupported_reason(spec)`` returns a reason or None. Common reasons are defined here; each
is a clause about the method, or None if it does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.policies import PolicyClass


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

    def reason_if_infinite(self) -> str | None:
        """Return a reason if the horizon is infinite, otherwise None."""
        return "it plans backwards from a last decision" if self.is_infinite_horizon else None

    def reason_if_switching(self, reason: str) -> str | None:
        """Return a reason if the models switch, otherwise None."""
        return self.model.problem.reason_if_switching(reason)

    def reason_if_sharded(self, subject: str = "it") -> str | None:
        """Return a reason if the models are spread over processes, otherwise None."""
        return self.model.problem.reason_if_sharded(subject)
