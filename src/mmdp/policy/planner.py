"""What can be followed: the protocol of policies, for objects of any class."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


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
