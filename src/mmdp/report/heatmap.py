"""The policy as a heat map: what ``heatmap.js`` draws, and the same in words."""

from __future__ import annotations

import base64
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp import plots
from mmdp.report.facts import Facts

MOST_CELLS = 400_000  # of the heat map; beyond that the least visited states are left out
MOST_ROWS = 60  # of the table in words
MANY_STATES = 80  # the heat map begins with the most visited ones


class HeatMap:
    """Which states are shown, and what each cell says; ``used`` actions have a colour."""

    def __init__(self, facts: Facts, used: npt.NDArray[np.int64]) -> None:
        self.facts, self.used = facts, used
        self.looks = {
            "action": "action", "margin": "margin over the runner-up",
            "probability": "probability of being there", "agree": "models that agree",
        }  # fmt: skip
        if facts.stability is not None:
            self.looks["changes"] = "changes when models are redrawn"

    @cached_property
    def states(self) -> list[int]:
        """The states of the map in their order: those with a decision, if they are not too many."""
        most = max(1, MOST_CELLS // self.facts.horizon)
        return np.sort(self.facts.most_visited[:most]).tolist()

    @property
    def left_out(self) -> int:
        """States with a decision that are too many to show."""
        return len(self.facts.most_visited) - len(self.states)

    @property
    def idle(self) -> list[str]:
        """The states in which no action changes anything."""
        labels = self.facts.model.state_labels
        return [labels[s] for s in np.flatnonzero(~self.facts.model.deciding)]

    @property
    def choice(self) -> bool:
        """Whether the reader may choose between the most visited states and all."""
        return len(self.states) > MANY_STATES

    @property
    def rows(self) -> list[int]:
        """The states of the table in words, in their order."""
        return np.sort(self.facts.most_visited[:MOST_ROWS]).tolist()

    @cached_property
    def visits(self) -> npt.NDArray[np.float64]:
        """(S,) expected number of visits."""
        return self.facts.visited.sum(axis=0)

    @property
    def share(self) -> float:
        """Share of the decisions that come up in the states of the table."""
        return float(self.visits[self.rows].sum()) / max(float(self.visits.sum()), 1e-300)

    def runs(self, state: int) -> list[tuple[int, int, str]]:
        """(first time, last time, action) while the action stays the same."""
        column = self.facts.policy.actions[:, state]
        starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]])).tolist()
        ends = [*(start - 1 for start in starts[1:]), len(column) - 1]
        names = self.facts.action_names
        return [(t, u, names[int(column[t])]) for t, u in zip(starts, ends, strict=True)]

    def data(self) -> dict[str, Any]:
        """What the script draws; arrays as base64 of their bytes, times first."""
        facts, states = self.facts, self.states
        cells, actions = facts.cells, facts.policy.actions
        used, place = self.used, np.searchsorted(self.used, actions)
        colours = plots.action_colours(len(used))
        order = {s: i for i, s in enumerate(states)}
        numbers = {"margin": cells.margin, "probability": cells.visited, "agree": cells.agree}
        if facts.stability is not None:
            numbers["changes"] = facts.stability.frequency
        return {
            "horizon": facts.horizon,
            "states": [" ".join(facts.model.state_labels[s].split()) for s in states],
            "actions": [" ".join(text.split()) for text in facts.action_names],
            "used": used.tolist(),
            "marks": plots.letters(len(used)),
            "colours": colours,
            "inks": [plots.ink_on(colour) for colour in colours],
            "place": packed(place[:, states], "<u2"),
            "runner": packed(cells.runner_up[:, states], "<i4"),
            "numbers": {name: packed(x[:, states], "<f4") for name, x in numbers.items()},
            "most_visited": [order[s] for s in facts.most_visited[:MOST_ROWS].tolist()],
        }


def packed(array: npt.NDArray[np.generic], kind: str) -> str:
    """The bytes of an array as text, which ``unpack`` of ``maps.js`` reads."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()
