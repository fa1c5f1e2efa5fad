"""What a reader should know before relying on the answer; the template has the words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmdp.io.labels import coded
from mmdp.kernels import Problem
from mmdp.measures import Stability
from mmdp.report.desk import Desk
from mmdp.report.findings import Methods

FEW_MODELS = 30
TAIL_MODELS = 5  # in the worst tenth
OFTEN = 0.05  # a decision met with this probability is worth naming
SOME = 0.01  # a share of decisions that change from which it is worth a warning


class Place(NamedTuple):
    """A decision that often changes when the models are drawn again."""

    time: int
    state: str
    frequency: float


@dataclass(frozen=True)
class Cautions:
    """One finding each; false, empty or None if there is nothing to say."""

    no_start: bool
    relied_on: list[tuple[str | int, str | int]]  # pairs never seen that the policy takes
    effective: float  # models of equal weight that these are as good as
    few_models: bool
    rough_tail: bool
    drop: float | None  # what the policy loses on test models, if that is more than chance
    shaky: list[Place] | None  # what changes most, if some decisions change
    gain: float | None  # how much more a method of the table returns than the given policy
    weightless: int
    lacks_actions: bool


def cautions(desk: Desk, found: Mapping[str, Any]) -> Cautions:
    model, effective = desk.model, found["asked"].effective
    weightless = model.n_models - len(model.problem.becoming(np.flatnonzero(model.weights)))
    missing = bool(model.fields()["allow_missing"]) and _rows_are_missing(model.problem)
    return Cautions(
        not model.initial_given and model.n_states > 1, _relied_on(desk), effective,
        effective < FEW_MODELS, effective * 0.1 < TAIL_MODELS, _drop(desk),
        _shaky(found["resamples"], model.state_labels), _gain(desk, found["methods"]), weightless,
        missing,
    )  # fmt: skip


def _relied_on(desk: Desk) -> list[tuple[str | int, str | int]]:
    """(state, action) pairs never seen that the policy takes, the most frequent first."""
    states = coded(s for s, _ in desk.unseen).ids(desk.model.state_labels)
    actions = coded(a for _, a in desk.unseen).ids(desk.model.action_labels)
    taken = desk.policy.actions[:, states] == actions
    chance = (desk.visited()[:, states] * taken).sum(axis=0)
    known = np.flatnonzero((states >= 0) & (actions >= 0) & (chance > 0))
    return [desk.unseen[i] for i in known[np.argsort(-chance[known], kind="stable")]]


def _drop(desk: Desk) -> float | None:
    tested, found = desk.held_out, desk.evaluation
    if tested is None:
        return None
    error = float(np.hypot(*(x.sd * np.sqrt((x.weights**2).sum()) for x in (found, tested))))
    drop = found.mean - tested.mean
    return drop if drop > max(2 * error, 0.0) else None


def _shaky(found: Stability | None, states: tuple[str, ...]) -> list[Place] | None:
    if found is None or found.share < SOME:
        return None
    weight = np.where(found.visited >= OFTEN, found.frequency * found.visited, 0.0)
    times, places = np.unravel_index(np.argsort(-weight, axis=None)[:3], weight.shape)
    return [
        Place(t, states[s], float(found.frequency[t, s]))
        for t, s in zip(times.tolist(), places.tolist(), strict=True)
        if weight[t, s] > 0
    ]


def _gain(desk: Desk, found: Methods) -> float | None:
    if not desk.given or found.best is None or desk.aimed:
        return None
    gain = found.best.value - desk.evaluation.mean
    return gain if gain > 1e-9 * abs(found.best.value) else None


def _rows_are_missing(x: Problem) -> bool:
    filled = np.flatnonzero(np.diff(x.indptr))
    return bool((np.add.reduceat(x.p[0], x.indptr[filled], axis=0) < 0.5).any())
