"""The protocol of planners, and the wrapper that makes a planner a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.policies.base import Policy, PolicyMemory
from mmdp.core.policies.classes import Belief

if TYPE_CHECKING:
    from mmdp.core.model import MMDP


@runtime_checkable
class Planner(Protocol):
    """Protocol of objects that simulations can follow; decisions may depend on the whole history.

    Every :class:`mmdp.policies.Policy` is one. The planner itself is never changed by use, so
    several deployments can share one; all that a deployment remembers is in the memory that
    ``initial_memory`` and ``update`` return. Random choices come from the memory's own generator,
    which ``act`` and ``update`` advance.
    """

    @property
    def name(self) -> str:
        """Name of the policy in tables and messages."""
        ...

    @property
    def horizon(self) -> float:
        """Number of decisions."""
        ...

    def initial_memory(self, seed: int | None = 0) -> PolicyMemory:
        """Make the memory at the start of an episode; give each episode its own seed."""
        ...

    def act(self, memory: PolicyMemory, time: int, state: int) -> int:
        """Return the id of the action to take, given the memory, the time and the state."""
        ...

    def update(
        self,
        memory: PolicyMemory,
        time: int,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
    ) -> PolicyMemory:
        """Return the memory after observing the next state (and the reward)."""
        ...


class PlannerPolicy(Policy):
    """Policy that follows a user's planner step by step."""

    __slots__ = ("act", "horizon", "initial_memory", "name", "planner", "update")

    has_exact_returns = False
    policy_class = Belief()
    memory_note = "may depend on all that was seen"
    planner: Planner

    def __init__(self, planner: Planner) -> None:
        """Take the methods and the horizon of the planner."""
        attribute_names = ("act", "horizon", "initial_memory", "name", "update")
        self._set_attributes(
            planner=planner, **{name: getattr(planner, name) for name in attribute_names}
        )

    def check(self, model: MMDP, horizon: float | None = None) -> None:
        """Accept every model: the actions are checked when they are taken."""

    def __repr__(self) -> str:
        return repr(self.planner)


@check_arguments
def as_policy(policy: object, purpose: str, *remedies: str) -> Policy:
    """Return the policy of a Policy, Planner or Solution; InputError for other objects.

    ``purpose`` begins the message of the error.

    >>> as_policy(3, "simulate() takes a policy")
    Traceback (most recent call last):
    mmdp.core.errors.InputError: simulate() takes a policy, not int
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, Planner):
        return PlannerPolicy(policy)
    if (inner_policy := getattr(policy, "policy", None)) is not None:
        return as_policy(inner_policy, purpose, *remedies)
    raise InputError(f"{purpose}, not {type(policy).__name__}", remedies)
