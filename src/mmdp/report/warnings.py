"""What a reader should know before relying on the answer; the template has the words."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from mmdp.io.labels import coded
from mmdp.kernels import Problem
from mmdp.report.facts import Facts

FEW_MODELS = 30
TAIL_MODELS = 5  # in the worst tenth
OFTEN = 0.05  # a decision met with this probability is worth naming


class Place(NamedTuple):
    """A decision that often changes when the models are drawn again."""

    time: int
    state: str
    frequency: float


class Cautions:
    """One finding each; false, empty or None if there is nothing to say."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.model = facts, facts.model

    @property
    def no_start(self) -> bool:
        return not self.model.initial_given and self.model.n_states > 1

    @cached_property
    def relied_on(self) -> list[tuple[str | int, str | int]]:
        """(state, action) pairs never seen that the policy takes, the most frequent first."""
        facts = self.facts
        states = coded(s for s, _ in facts.unseen).ids(self.model.state_labels)
        actions = coded(a for _, a in facts.unseen).ids(self.model.action_labels)
        taken = facts.policy.actions[:, states] == actions
        chance = (facts.visited[:, states] * taken).sum(axis=0)
        known = np.flatnonzero((states >= 0) & (actions >= 0) & (chance > 0))
        return [facts.unseen[i] for i in known[np.argsort(-chance[known], kind="stable")]]

    @property
    def effective(self) -> float:
        """How many models of equal weight these are as good as."""
        return self.facts.effective_models

    @property
    def few_models(self) -> bool:
        return self.effective < FEW_MODELS

    @property
    def rough_tail(self) -> bool:
        return self.effective * 0.1 < TAIL_MODELS

    @cached_property
    def drop(self) -> float | None:
        """What the policy loses on test models, if that is more than chance."""
        tested, found = self.facts.held_out, self.facts.evaluation
        if tested is None:
            return None
        error = float(np.hypot(*(x.sd * np.sqrt((x.weights**2).sum()) for x in (found, tested))))
        drop = found.mean - tested.mean
        return drop if drop > max(2 * error, 0.0) else None

    @property
    def unstable(self) -> bool:
        found = self.facts.stability
        return found is not None and found.share >= 0.01

    @cached_property
    def shaky(self) -> list[Place]:
        """The decisions that come up and change most."""
        found = self.facts.stability
        if found is None:
            return []
        weight = np.where(found.visited >= OFTEN, found.frequency * found.visited, 0.0)
        times, states = np.unravel_index(np.argsort(-weight, axis=None)[:3], weight.shape)
        return [
            Place(t, self.model.state_labels[s], float(found.frequency[t, s]))
            for t, s in zip(times.tolist(), states.tolist(), strict=True)
            if weight[t, s] > 0
        ]

    @cached_property
    def gain(self) -> float | None:
        """How much more a method of the table returns than the given policy."""
        best = self.facts.best
        if self.facts.given is None or best is None or self.facts.aimed:
            return None
        gain = best.value - self.facts.evaluation.mean
        return gain if gain > 1e-9 * abs(best.value) else None

    @property
    def weightless(self) -> int:
        if self.model.drifts:  # another model may turn into it
            return 0
        return int((self.model.weights == 0).sum())

    @property
    def lacks_actions(self) -> bool:
        return bool(self.model.fields()["allow_missing"]) and _rows_are_missing(self.model.problem)


def _rows_are_missing(x: Problem) -> bool:
    filled = np.flatnonzero(np.diff(x.indptr))
    return bool((np.add.reduceat(x.p[0], x.indptr[filled], axis=0) < 0.5).any())
