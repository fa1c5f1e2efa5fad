"""The policy in a few sentences: when, which action, in which states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.measures.simplicity import Phase, Rule
from mmdp.report.desk import Desk
from mmdp.words import Times, counted, either, shortened

SELDOM = 1e-3  # share of the visits of a phase; states that come up less are not named
MOST_PLACES = 3  # states or ranges of states named for an action
MOST_PARTS = 8  # pairs of an action and where it is taken, in all phases together


class Part(NamedTuple):
    """An action, where it is taken (``in states 0–5``), and how often if actions are drawn."""

    action: str
    where: str
    share: float


class Sentence(NamedTuple):
    """One phase of the rule."""

    when: str
    parts: list[Part]


def in_words(desk: Desk, rule: Rule) -> list[Sentence]:
    """A sentence for each phase of the short rule; empty if it takes too many words."""
    found = list[Sentence]()
    for when, phase in zip(_times(rule, desk.model.times), rule.phases, strict=True):
        parts = _parts(desk, phase)
        if parts is None:
            return []
        found.append(Sentence(when, parts))
    return found if sum(len(x.parts) for x in found) <= MOST_PARTS else []


def usual_actions(desk: Desk, most: int = 3) -> list[tuple[str, float]]:
    """The actions that are taken most, and the share of the decisions that come up."""
    visited = desk.visited()
    if desk.policy.deterministic:
        taken = np.bincount(desk.policy.actions.ravel(), visited.ravel()) / visited.sum()
    else:
        taken = np.einsum("ts,tsa->a", visited, desk.policy.probabilities) / visited.sum()
    order = np.argsort(-taken, kind="stable")[:most].tolist()
    return [(desk.action_names[a], float(taken[a])) for a in order if taken[a] > 0]


def _times(rule: Rule, times: Times) -> list[str]:
    lengths = [phase.stop - phase.start for phase in rule.phases]
    if len(lengths) == 1:
        return ["At every step" if lengths[0] > 1 else "At the only step"]
    if times.labels:
        spans = [times.span(phase.start, phase.stop - 1) for phase in rule.phases]
        said = [f"{'at' if n == 1 else 'from'} {x}" for n, x in zip(lengths, spans, strict=True)]
        return [said[0][0].upper() + said[0][1:], *(f"then {x}" for x in said[1:])]
    steps = [counted(n, "step") for n in lengths]
    first = "At the first step" if lengths[0] == 1 else f"For the first {steps[0]}"
    last = "at the last step" if lengths[-1] == 1 else f"for the last {steps[-1]}"
    return [first, *(f"then for {x}" for x in steps[1:-1]), last]


def _parts(desk: Desk, phase: Phase) -> list[Part] | None:
    """The actions of a phase, the most frequent first, and their states; None if too many."""
    named = phase.visits >= SELDOM * phase.visits.sum()
    names, row = desk.action_names, phase.row
    weight = np.bincount(row[named], phase.visits[named], minlength=len(names))
    order = [int(a) for a in np.argsort(-weight, kind="stable") if weight[a] > 0]
    if len(order) == 1:
        share = _share(desk, phase, order[0], named)
        return [Part(names[order[0]], _everywhere(desk, named), share)]
    places = {a: _places(desk, np.flatnonzero(named & (row == a))) for a in order}
    if max(map(len, places.values())) > MOST_PLACES:
        return None
    there = {a: named & (row == a) for a in order}
    where = {a: _in(places[a], there[a]) for a in order}
    return [Part(names[a], where[a], _share(desk, phase, a, there[a])) for a in order]


def _in(places: list[str], there: npt.NDArray[np.bool_]) -> str:
    return f"in {'state' if there.sum() == 1 else 'states'} {either(places, ' and ')}"


def _everywhere(desk: Desk, named: npt.NDArray[np.bool_]) -> str:
    """Where the only action of a phase is taken: in words, if not every state decides."""
    deciding, places = desk.model.deciding, _places(desk, np.flatnonzero(named))
    if len(named) == 1:
        return ""
    if not deciding.all() and len(places) <= MOST_PLACES:
        return _in(places, named)
    return "in every state" if (named | ~deciding).all() else "in every state that comes up"


def _share(desk: Desk, phase: Phase, action: int, there: npt.NDArray[np.bool_]) -> float:
    """How often the action is taken in these states of a phase, if actions are drawn."""
    if desk.policy.deterministic:
        return 1.0
    times = slice(phase.start, phase.stop)
    visited = desk.visited()[times, there]
    taken = visited * desk.policy.probabilities[times, there, action]
    return float(taken.sum() / visited.sum())


def _places(desk: Desk, states: npt.NDArray[np.int64]) -> list[str]:
    """Some states in words: by label, or as ranges if they are numbered."""
    labels = desk.model.state_labels
    if not all(x.isdigit() for x in labels):
        return [shortened(labels[s]) for s in states]
    runs = np.split(states, np.flatnonzero(np.diff(states) > 1) + 1)
    ends = [dict.fromkeys((labels[run[0]], labels[run[-1]])) for run in runs]
    return ["–".join(pair) for pair in ends]
