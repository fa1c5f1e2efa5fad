"""Policies with memory, as whoever runs them sees them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Planner(Protocol):
    """A policy with memory: what it does may depend on everything seen so far.

    The planner itself is never changed by use, so several deployments can share one; all that
    a deployment remembers is in the memory that ``start`` makes and ``update`` returns. Random
    choices come from the memory's own generator, which ``act`` and ``update`` advance.
    """

    name: str
    horizon: int

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
