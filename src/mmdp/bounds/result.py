"""What bound() returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Optimum = Literal["markov", "history"]


@dataclass(frozen=True)
class Bound:
    """A proven upper bound on the value of the best policy.

    ``bounds`` says which optimum: ``"history"`` bounds every policy, also those that learn
    from what they see; ``"markov"`` bounds the policies of time and state. ``value`` is
    rounded outwards: the error of floating point is added.

    >>> from mmdp.bounds import Bound
    >>> Bound(103.0, "oracle", "history").gap(100.0)
    0.03
    """

    value: float
    method: str
    bounds: Optimum
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def gap(self, value: float) -> float:
        """(bound - value) / |value|: how far a policy of that value can be from the best."""
        if self.value <= value:
            return 0.0
        return (self.value - value) / abs(value) if value else float("inf")

    def closed(self, value: float, oracle: float) -> float:
        """(oracle - bound) / (oracle - value): the share of the wait-and-see gap it closes."""
        if oracle <= value:
            return 1.0
        return (oracle - self.value) / (oracle - value)

    def __repr__(self) -> str:
        kind = "any policy" if self.bounds == "history" else "any Markov policy"
        return f"Bound({self.value:,.10g} for {kind}; {self.method}, {self.seconds:.3g} s)"
