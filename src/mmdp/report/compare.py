"""Policies side by side: the table and what ``compare.js`` draws."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.measures.safety import Frontier
from mmdp.report.facts import Facts, Rival
from mmdp.report.heatmap import HeatMap, packed
from mmdp.solve import model_weights

TAIL = 0.1
AVERAGE = "best on average"
MOST_MODELS = 1000  # in the picture of the returns
UNREACHED = 0x8000  # a bit beside the place of the action


class Comparison:
    """The policies of a page, from the best on average over safer to simpler and other ones."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @cached_property
    def along(self) -> list[Rival]:
        """The points of the frontier, each once; empty if it was not computed."""
        found = self.facts.frontier
        return [] if found is None else [self._named(x) for x in _along(found)]

    def _named(self, rival: Rival) -> Rival:
        same = rival.policy == self.facts.policy
        return replace(rival, name=f"this policy ({rival.name})") if same else rival

    @cached_property
    def rivals(self) -> list[Rival]:
        """All policies: those of the frontier first, then this one, the simpler and the others."""
        facts, along = self.facts, self.along
        here = Rival("this policy", facts.policy, facts.evaluation, facts.held_out)
        others = [
            Rival(row.name, row.policy, row.found, row.held_out)
            for row in facts.rows
            if row.policy is not None
        ]
        others = [x for x in (*facts.simpler, *others) if x.policy != facts.policy]
        known = any(x.policy == facts.policy for x in along)
        return [*along, *([] if known else [here]), *others]

    @cached_property
    def used(self) -> npt.NDArray[np.int64]:
        """The actions that some of the policies take."""
        states = self.facts.model.deciding
        return np.unique(np.concatenate([x.policy.actions[:, states] for x in self.rivals]))

    @property
    def start(self) -> tuple[int, int]:
        """The two policies that are shown first: this one, and the safest or another one."""
        this = [x.policy == self.facts.policy for x in self.rivals].index(True)
        if not self.along:
            return this, min(this + 1, len(self.rivals) - 1)
        safest = int(np.argmax([x.found.cvar(TAIL) for x in self.along]))
        return this, safest if safest != this else 0

    @staticmethod
    def gained(value: float, other: float) -> float:
        """The difference of two figures; 0 if it is rounding."""
        return 0.0 if np.isclose(value, other, rtol=1e-9, atol=0.0) else value - other

    def data(self, heat_map: HeatMap) -> dict[str, Any]:
        """What the script draws: the rows of the heat map's table in words."""
        model, shown = self.facts.model, heat_map.rows
        order = {s: i for i, s in enumerate(heat_map.states)}
        visits = [model_weights(x.policy, model).sum(axis=1) * model.deciding for x in self.rivals]
        kept = _kept(model.n_models)
        place = [np.searchsorted(self.used, x.policy.actions) for x in self.rivals]
        return {
            "rows": [order[s] for s in shown],
            "along": len(self.along),
            "start": self.start,
            "names": [" ".join(x.name.split()) for x in self.rivals],
            "models": [" ".join(model.model_labels[m].split()) for m in kept],
            "figures": [_figures(x) for x in self.rivals],
            "returns": [packed(x.found.returns[kept], "<f4") for x in self.rivals],
            "place": [
                packed((x | np.where(v > 0, 0, UNREACHED))[:, shown], "<u2")
                for x, v in zip(place, visits, strict=True)
            ],
            "differ": [
                [_differ(x, y, v) for y in self.rivals]
                for x, v in zip(self.rivals, visits, strict=True)
            ],
            "wins": [[_wins(x, y) for y in self.rivals] for x in self.rivals],
        }


def _along(found: Frontier) -> list[Rival]:
    """Points of a frontier with other returns than the one before; it stands for those after."""
    points: list[Rival] = []
    for i, point in enumerate(found.points):
        share = f"{100 * getattr(point.objective, 'alpha', 1.0):g}%"
        if points and np.allclose(points[-1].found.returns, point.returns, rtol=1e-9):
            name = points[-1].name.split(" to ")[0]
            if name != AVERAGE:
                points[-1] = replace(points[-1], name=f"{name} to {share}")
            continue
        tested = found.tests[i] if found.tests else None
        name = f"best for the worst {share}" if points else AVERAGE
        points.append(Rival(name, point.policy, point.evaluation, tested))
    return points


def _kept(count: int) -> npt.NDArray[np.int64]:
    """The models that are drawn: all, or every so many."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_MODELS)).round().astype(np.int64))


def _figures(rival: Rival) -> dict[str, float]:
    found, tested = rival.found, rival.held_out
    told = {"mean": found.mean, "tail": found.cvar(TAIL), "worst": found.worst}
    if tested is not None:
        told |= {"test_mean": tested.mean, "test_tail": tested.cvar(TAIL)}
    return {name: float(x) for name, x in told.items()}


def _differ(one: Rival, other: Rival, visited: npt.NDArray[np.float64]) -> float:
    """Share of the decisions that come up with one policy that the other takes differently."""
    differs = one.policy.actions != other.policy.actions
    return float(visited[differs].sum() / visited.sum())


def _wins(one: Rival, other: Rival) -> float:
    """Weight of the models in which one policy returns clearly more than the other."""
    x, y = one.found, other.found
    return float(x.weights[x.returns > y.returns + 1e-9 * np.abs(y.returns)].sum())
