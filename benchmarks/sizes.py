"""How large and how often: the sizes of a full run and of a quick trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Shape(NamedTuple):
    """A sparse problem: ``successors`` next states per row, in every model."""

    models: int
    states: int
    actions: int
    successors: int
    horizon: int

    @property
    def nonzeros(self) -> int:
        return self.models * self.states * self.actions * self.successors


LARGE = Shape(models=1000, states=1000, actions=5, successors=40, horizon=10)


def _paper() -> dict[str, int]:
    return {"RS": 100, "POPS": 100, "POP": 1000}


def _growth() -> dict[str, tuple[Shape, ...]]:
    """Two decades each, around POPS and POP."""
    steps = (1, 3, 10, 32, 100)
    return {
        "models M": tuple(Shape(32 * k, 51, 5, 22, 10) for k in steps),
        "states S (non-zeros)": tuple(Shape(100, 50 * k, 5, 8, 10) for k in steps),
        "horizon T": tuple(Shape(100, 51, 5, 22, 20 * k) for k in steps),
    }


@dataclass(frozen=True)
class Sizes:
    """``scale_above``: models above which the loops run one sweep over ``scaled_steps`` only."""

    models: dict[str, int] = field(default_factory=_paper)
    states: int = 51
    horizon: int = 50
    rounds: int = 7
    loop_rounds: int = 3
    scale_above: int = 100
    scaled_steps: int = 6
    one_dense: tuple[int, int] = (500, 10)
    one_sparse: tuple[int, int, int] = (5000, 10, 10)
    one_horizon: int = 100
    starts: int = 8
    domains: tuple[str, ...] = ("RS", "POP", "POPS", "INV", "HIV")
    domain_horizon: int | None = None  # None: the horizon of the paper's main table
    episodes: int = 200  # per model, of simulated rollouts
    growth: dict[str, tuple[Shape, ...]] = field(default_factory=_growth)
    large: Shape = LARGE


FULL = Sizes()
QUICK = Sizes(
    models={"RS": 5, "POPS": 5, "POP": 7}, states=23, horizon=4, rounds=2, loop_rounds=1,
    scale_above=5, scaled_steps=2, one_dense=(12, 3), one_sparse=(40, 3, 4), one_horizon=5,
    starts=3, domains=("RS", "HIV"), domain_horizon=5, episodes=4,
    growth={
        "models M": tuple(Shape(m, 8, 2, 3, 2) for m in (4, 40, 400)),
        "states S (non-zeros)": tuple(Shape(4, s, 2, 3, 2) for s in (5, 50, 500)),
        "horizon T": tuple(Shape(4, 8, 2, 3, t) for t in (2, 20, 200)),
    },
    large=Shape(20, 50, 3, 6, 4),
)  # fmt: skip
