"""What a reader should know before relying on the answer."""

from __future__ import annotations

import numpy as np

from mmdp.report.facts import Facts
from mmdp.report.words import label
from mmdp.words import counted, joined, number, percent

FEW_MODELS = 30
TAIL_MODELS = 5  # in the worst tenth
OFTEN = 0.05  # a decision met with this probability is worth naming


def warnings(facts: Facts) -> list[str]:
    """One HTML sentence or two each, the weightiest first."""
    return [
        text
        for check in (_start, _unseen, _few_models, _held_out, _unstable, _improvable, _model)
        for text in check(facts)
    ]


def _start(facts: Facts) -> list[str]:
    if facts.model.initial_given or facts.model.n_states == 1:
        return []
    return [
        "No initial distribution was given: every state counts as equally likely at the start. "
        "Values and the policy may change with the true start."
    ]


def _unseen(facts: Facts) -> list[str]:
    """Pairs that the log never had: all of them, and those that the policy relies on."""
    if not facts.unseen:
        return []
    n_pairs = int(facts.model.allowed.sum())
    told = [
        f"{counted(len(facts.unseen), 'state-action pair')} of {n_pairs:,} were never seen in the "
        "data; what happens there comes from the prior alone."
    ]
    relied = _relied_on(facts)
    if relied:
        told.append(f"The policy itself takes such actions: {joined(relied, 4)}.")
    return told


def _relied_on(facts: Facts) -> list[str]:
    model = facts.model
    states = {name: i for i, name in enumerate(model.state_labels)}
    actions = {name: i for i, name in enumerate(model.action_labels)}
    found = []
    for state, action in facts.unseen:
        s, a = states.get(str(state)), actions.get(str(action))
        if s is None or a is None:
            continue
        taken = facts.policy.actions[:, s] == a
        chance = float(facts.cells.visited[:, s][taken].sum())
        if chance > 0:
            found.append((chance, f"{label(action)} in state {label(state)}"))
    return [text for _, text in sorted(found, key=lambda x: -x[0])]


def _few_models(facts: Facts) -> list[str]:
    model, told = facts.model, []
    effective = 1 / float((model.weights**2).sum())
    if model.n_models == 1:
        return ["There is only one model, so nothing here is about uncertainty between models."]
    if effective < FEW_MODELS:
        told.append(
            f"There are few models ({number(round(effective, 1), 3)} of equal weight"
            f"{'' if effective > model.n_models - 0.5 else f', {model.n_models} in all'}): the "
            "policy may fit these models rather than the uncertainty they stand for. "
            "Draw more, and look at held-out models."
        )
    elif effective * 0.1 < TAIL_MODELS:
        told.append(
            f"The worst tenth of the models is about {number(round(effective * 0.1, 1), 2)} "
            "models, so the CVaR is rough."
        )
    return told


def _held_out(facts: Facts) -> list[str]:
    tested, found = facts.held_out, facts.evaluation
    if tested is None:
        return []
    error = float(np.hypot(*(x.sd / np.sqrt(_effective(x.weights)) for x in (found, tested))))
    drop = found.mean - tested.mean
    if drop <= 2 * error or drop <= 0:
        return []
    return [
        f"On the held-out models the policy returns {number(drop)} less than on its own models, "
        "more than chance explains: too few models, or other ones."
    ]


def _effective(weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return 1 / float((weights**2).sum())


def _unstable(facts: Facts) -> list[str]:
    found = facts.stability
    if found is None or found.share < 0.01:
        return []
    shaky = np.where(found.visited >= OFTEN, found.frequency * found.visited, 0.0)
    places = []
    for place in np.argsort(-shaky, axis=None)[:3]:
        t, s = (int(i) for i in np.unravel_index(place, shaky.shape))
        if shaky[t, s] > 0:
            places.append(
                f"time {t}, state {label(facts.model.state_labels[s])} "
                f"({percent(found.frequency[t, s])} of resamples)"
            )
    first = f", first of all at {joined(places)}" if places else ""
    return [
        f"{percent(found.share)} of the decisions that come up change when the models are drawn "
        f"again{first}. Using such another policy costs {number(float(found.losses.mean()), 2)} on "
        "average."
    ]


def _improvable(facts: Facts) -> list[str]:
    """A given policy that a method of the table beats, or that one change improves."""
    told = []
    if facts.given is not None and facts.best is not None:
        gain = facts.best.value - facts.evaluation.mean
        if gain > 1e-9 * max(1.0, abs(facts.best.value)):
            told.append(
                f"The policy was given; {facts.best.method.upper()} finds one that returns "
                f"{number(gain)} more."
            )
    return told


def _model(facts: Facts) -> list[str]:
    told, weights = [], facts.model.weights
    if (weights == 0).any():
        told.append(f"{counted(int((weights == 0).sum()), 'model')} of weight 0 had no say.")
    if facts.model.fields()["allow_missing"] and _lacks_actions(facts):
        told.append(
            "Some models lack actions that others have; an episode that takes one there ends with "
            "nothing more."
        )
    return told


def _lacks_actions(facts: Facts) -> bool:
    x = facts.model.problem
    filled = np.flatnonzero(np.diff(x.indptr))
    return bool((np.add.reduceat(x.p[0], x.indptr[filled], axis=0) < 0.5).any())
