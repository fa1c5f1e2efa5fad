"""What can be followed: the protocol of policies, and objects of any class as policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.policy.base import Policy
from mmdp.policy.kinds import Belief

if TYPE_CHECKING:
    from mmdp.model import MMDP


@runtime_checkable
class Planner(Protocol):
    """What simulations, evaluations and agents can follow; it may depend on all that was seen.

    Every :class:`mmdp.policy.Policy` is one. The planner itself is never changed by use, so
    several deployments can share one; all that a deployment remembers is in the memory that
    ``start`` makes and ``update`` returns. Random choices come from the memory's own generator,
    which ``act`` and ``update`` advance.
    """

    @property
    def name(self) -> str: ...

    @property
    def horizon(self) -> float:
        """The number of decisions."""
        ...

    def start(self, seed: int | None = 0) -> Any:
        """A fresh memory, seeded; give each episode a seed of its own."""
        ...

    def act(self, memory: Any, time: int, state: int) -> int:
        """The action at this time and state."""
        ...

    def update(
        self, memory: Any, time: int, state: int, action: int, next_state: int,
        reward: float | None = None,
    ) -> Any:  # fmt: skip
        """The memory after seeing where the action led."""
        ...


class Followed(Policy):
    """A planner of any class as a policy: all that is known of it is what it does, step by step."""

    __slots__ = ("act", "horizon", "name", "planner", "start", "update")

    exact = False
    kind = Belief()
    memory = "may depend on all that was seen"
    planner: Planner

    def __init__(self, planner: Planner) -> None:
        own = ("act", "horizon", "name", "start", "update")
        self._set(planner=planner, **{name: getattr(planner, name) for name in own})

    def check(self, model: MMDP, horizon: float | None = None) -> None:
        """Its actions are checked when they are taken."""

    def __repr__(self) -> str:
        return repr(self.planner)


@checked
def followed(given: Any, purpose: str, *remedies: str) -> Policy:
    """The policy given, or that of a solution; ``purpose`` begins the sentence of a refusal.

    >>> followed(3, "simulate() takes a policy")
    Traceback (most recent call last):
    mmdp.errors.InputError: simulate() takes a policy, not int
    """
    if isinstance(given, Policy):
        return given
    if isinstance(given, Planner):
        return Followed(given)
    if (own := getattr(given, "policy", None)) is not None:
        return followed(own, purpose, *remedies)
    raise InputError(f"{purpose}, not {type(given).__name__}", remedies)
