"""The policy as a heat map: what ``heatmap.js`` draws, and the same in words."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.draw.maps import Key, PolicyMap
from mmdp.measures import Stability
from mmdp.report.desk import Desk
from mmdp.words import named_axes

MOST_CELLS = 400_000  # of the heat map; beyond that the least visited states are left out
MOST_ROWS = 60  # of the table in words
MANY_STATES = 40  # the heat map begins with the most visited ones
MOST_GROUPS = 60  # values of a named axis by which states can be chosen


class HeatMap:
    """Which states are shown, and what each cell says; ``used`` actions have a colour.

    ``states``: those of the map in their order, with a decision and not too many; ``left_out``:
    how many are too many; ``idle``: labels of those in which no action changes anything;
    ``rows``: the states of the table in words, and ``listed`` the same in the table's order, the
    most visited first if there are many; ``first``: those that the map begins with, in which
    ``share`` of the decisions come up; ``groups``: values by which states can be chosen, by axis;
    ``visits`` (S,): expected number of visits.
    """

    def __init__(
        self, desk: Desk, used: npt.NDArray[np.int64], stability: Stability | None
    ) -> None:
        self.desk, self.used, self.stability = desk, used, stability
        self.looks = {
            "action": "action", "margin": "margin over the runner-up",
            "probability": "probability of being there", "agree": "models that agree",
        }  # fmt: skip
        if stability is not None:
            self.looks["changes"] = "changes when models are redrawn"
        self.map = PolicyMap(desk.policy.actions, desk.model.state_labels, desk.action_names)
        deciding = desk.model.deciding
        self.visits = desk.visited().sum(axis=0)
        order = np.argsort(-self.visits, kind="stable")
        self.most_visited = order[deciding[order]]  # with a decision, the most visited first
        self.states = np.sort(self.most_visited[: max(1, MOST_CELLS // desk.horizon)]).tolist()
        self.left_out = len(self.most_visited) - len(self.states)
        self.idle = [desk.model.state_labels[s] for s in np.flatnonzero(~deciding)]
        top = self.most_visited[:MOST_ROWS]
        reached = top[: max(1, int((self.visits[top] > 0).sum()))]
        self.rows = np.sort(top).tolist()
        self.choice = len(reached) < len(self.states) > MANY_STATES
        self.first = np.sort(reached).tolist() if self.choice else self.states
        self.listed = top.tolist() if self.choice else self.rows
        self.share = float(self.visits[self.first].sum()) / max(float(self.visits.sum()), 1e-300)
        axes = named_axes([desk.model.state_labels[s] for s in self.states])[0]
        self.groups = {x: y for x, y in axes.items() if len(axes) > 1 and len(y) <= MOST_GROUPS}

    def runs(self, state: int) -> list[tuple[str, str]]:
        """Times while the action stays the same, and the action."""
        names, times = self.desk.action_names, self.desk.model.times
        return [(times.run(t, u), names[a]) for t, u, a in self.map.runs(state)]

    def data(self) -> dict[str, Any]:
        """What the script draws; arrays as base64 of their bytes, times first."""
        desk, states = self.desk, self.states
        cells, actions = desk.cells(), desk.policy.actions
        used, place = self.used, np.searchsorted(self.used, actions)
        key = Key(desk.action_names)
        order = {s: i for i, s in enumerate(states)}
        numbers = {"margin": cells.margin, "probability": cells.visited, "agree": cells.agree}
        if self.stability is not None:
            numbers["changes"] = self.stability.frequency
        return {
            "times": [" ".join(x.split()) for x in desk.model.times.first(desk.horizon)],
            "clock": desk.model.times.name,
            "steady": desk.steady,
            "states": [" ".join(desk.model.state_labels[s].split()) for s in states],
            "actions": [" ".join(text.split()) for text in desk.action_names],
            "used": used.tolist(),
            "marks": [key.marks[a] for a in used],
            "colours": [key.colours[a] for a in used],
            "inks": [key.inks[a] for a in used],
            "place": packed(place[:, states], "<u2"),
            "runner": packed(cells.runner_up[:, states], "<i4"),
            "numbers": {name: packed(x[:, states], "<f4") for name, x in numbers.items()},
            "first": [order[s] for s in self.first],
        }


def packed(array: npt.NDArray[np.generic], kind: str) -> str:
    """The bytes of an array as text, which ``unpack`` of ``maps.js`` reads."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()
