"""The question of a solve, and what a method may lack to answer it.

A method is asked by ``method.lacks(question)``, which returns a reason or None. Common reasons are
written here, once; each is the end of a sentence about the method, or None if it does not apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mmdp.model import MMDP
from mmdp.objective import Objective
from mmdp.policy import PolicyKind


@dataclass(frozen=True)
class Question:
    """Which policy of a kind is best for a model, over a horizon and by an objective?

    ``horizon`` is the number of decisions, None for the model's own, or infinite. ``kind`` becomes
    the one for that horizon, and ``steps`` is the number of decisions to plan for. InputError if
    the kind has no policies, or the model no values, over the horizon.
    """

    model: MMDP
    horizon: float | None
    objective: Objective
    kind: PolicyKind
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "kind", self.kind.over(self.horizon))
        put(self, "steps", self.kind.steps(self.model, self.horizon))

    @property
    def endless(self) -> bool:
        """Whether there is no last decision."""
        return self.kind.endless

    # ------------------------------------------------------------ reasons
    def not_mean(self) -> str | None:
        """For methods that maximise the mean only."""
        return None if self.objective.linear else f"it maximises the mean, not {self.objective}"

    def not_mask(self) -> str | None:
        """For methods that choose the action of each state, and each time, by itself."""
        if self.kind.randomised:
            return "its policies take one action in each state, and this one may draw them"
        if self.kind.masks:
            return None
        return f"it chooses each action by itself, which cannot make a {self.kind.name} policy"

    def not_ending(self) -> str | None:
        """For methods that plan backwards in time."""
        return "it plans backwards from a last decision" if self.endless else None

    def not_still(self, why: str) -> str | None:
        """For methods that need models that never change; ``why`` they do."""
        return self.model.problem.not_still(why)

    def not_whole(self, what: str = "it") -> str | None:
        """For what needs all models in one process."""
        return self.model.problem.not_whole(what)
