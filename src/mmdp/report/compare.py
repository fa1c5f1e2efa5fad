"""Policies side by side: the table and what ``compare.js`` draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.measures.safety import Frontier
from mmdp.objective import CVaR, Mean
from mmdp.policy import MarkovPolicy
from mmdp.report.desk import Desk
from mmdp.report.findings import Rival, difference
from mmdp.report.heatmap import HeatMap, packed
from mmdp.words import NOISE, apart

TAIL = 0.1
AVERAGE = "best on average"
MOST_MODELS = 1000  # in the picture of the returns
UNREACHED = 0x8000  # a bit above those of the place of the action


@dataclass(frozen=True, eq=False)
class Comparison:
    """The policies of a page, from the best on average over safer to simpler and other ones.

    ``rivals`` has all: the first ``along`` are points of the frontier, each once, then this one if
    it is none of them, the simpler and the others. ``used``: the actions that some of them take;
    ``start``: the two that are shown first, this one and one that was named, the safest or another.
    """

    desk: Desk
    rivals: list[Rival]
    along: int
    used: npt.NDArray[np.int64]
    start: tuple[int, int]

    def gained(self, rival: Rival) -> tuple[float, float]:
        """How much more a policy has than this one, on average and in the worst tenth."""
        here = self.desk.evaluation
        return difference(Mean(), rival.found, here), difference(CVaR(TAIL), rival.found, here)

    @property
    def columns(self) -> list[list[str]]:
        """Figures of all policies: average, worst tenth and worst model, then held-out ones."""
        every = [x.found for x in self.rivals]
        found = [[x.mean for x in every], [x.cvar(TAIL) for x in every], [x.worst for x in every]]
        tested = [x.held_out for x in self.rivals if x.held_out is not None]
        if tested:
            found += [[x.mean for x in tested], [x.cvar(TAIL) for x in tested]]
        return [apart(column, 5) for column in found]

    @property
    def safest(self) -> Rival:
        """The policy whose worst tenth is best; of two, the one that is better on average."""
        tails = np.array([x.found.cvar(TAIL) for x in self.rivals])
        near = np.flatnonzero(tails >= tails.max() - NOISE * np.abs(tails).max())
        return max((self.rivals[i] for i in near), key=lambda x: x.found.mean)

    def data(self, heat_map: HeatMap) -> dict[str, Any]:
        """What the script draws: the rows of the heat map's table in words."""
        model, shown = self.desk.model, heat_map.rows
        order = {s: i for i, s in enumerate(heat_map.states)}
        visits = [self.desk.visited(x.policy) for x in self.rivals]
        kept = _kept(model.n_models)
        place = [np.searchsorted(self.used, x.policy.actions) for x in self.rivals]
        return {
            "rows": [order[s] for s in shown],
            "along": self.along,
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


def compared(desk: Desk, found: Mapping[str, Any]) -> Comparison:
    """The policies that the sections found, side by side."""
    this, safer = desk.policy, found["frontier"]
    along = [] if safer is None else [_named(x, this) for x in _along(safer)]
    here = Rival("this policy", this, desk.evaluation, desk.held_out)
    rule = found["rule"]
    others = [found["answer"].short if rule is None else rule.rival, *(found["simpler"] or ())]
    others += [
        Rival(row.name, row.policy, row.found, row.held_out)
        for row in found["methods"].rows
        if row.policy is not None
    ]
    known = any(x.policy == this for x in along)
    rivals = [*along, *([] if known else [here]), *(x for x in others if x.policy != this)]
    states = desk.model.deciding
    used = np.unique(np.concatenate([x.policy.actions[:, states] for x in rivals]))
    return Comparison(desk, rivals, len(along), used, _start(desk, rivals, along))


def _named(rival: Rival, this: MarkovPolicy) -> Rival:
    return replace(rival, name=f"this policy ({rival.name})") if rival.policy == this else rival


def _start(desk: Desk, rivals: list[Rival], along: list[Rival]) -> tuple[int, int]:
    place = [x.policy == desk.policy for x in rivals].index(True)
    named = [i for i, x in enumerate(rivals) if x.name in desk.named]
    if named:
        return named[0], place
    if not along:
        return place, min(place + 1, len(rivals) - 1)
    safest = int(np.argmax([x.found.cvar(TAIL) for x in along]))
    return place, safest if safest != place else 0


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
    """The models that are drawn: all, or some of them evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_MODELS)).round().astype(np.int64))


def _figures(rival: Rival) -> dict[str, float]:
    found, tested = rival.found, rival.held_out
    shown = {"mean": found.mean, "tail": found.cvar(TAIL), "worst": found.worst}
    if tested is not None:
        shown |= {"test_mean": tested.mean, "test_tail": tested.cvar(TAIL)}
    return {name: float(x) for name, x in shown.items()}


def _differ(one: Rival, other: Rival, visited: npt.NDArray[np.float64]) -> float:
    """Share of the decisions that come up with one policy that the other takes differently."""
    if one.policy.deterministic and other.policy.deterministic:
        differs = 1.0 * (one.policy.actions != other.policy.actions)
    else:  # the least share of decisions that cannot be the same, however the dice fall
        differs = np.abs(one.policy.probabilities - other.policy.probabilities).sum(axis=2) / 2
    return float((visited * differs).sum() / visited.sum())


def _wins(one: Rival, other: Rival) -> float:
    """Weight of the models in which one policy returns clearly more than the other."""
    x, y = one.found, other.found
    return float(x.weights[x.returns > y.returns + 1e-9 * np.abs(y.returns)].sum())
