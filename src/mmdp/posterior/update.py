"""The weights of models after what was seen: Bayes' rule, step by step.

beta_m is proportional to lambda_m prod_t p_m(s_{t+1} | s_t, a_t). If models begin apart, the first
state of every episode counts too. If models change, beta moves on by K after each step, and once
for each decision that passed unseen.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.errors import InputError, UnlikelyData
from mmdp.posterior.log import Steps, read_steps
from mmdp.validate import check_whole_model
from mmdp.words import counted

if TYPE_CHECKING:
    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
UNLIKELY = 1e-6  # the probability of a step below which there is a warning


class Filtering(NamedTuple):
    """(n + 1, M) weights before the first step and after each; (n,) probabilities of the steps."""

    weights: Array
    probabilities: Array


@checked
def weights_by_step(model: MMDP, log: Any) -> Array:
    """(n + 1, M) weights of the models before the first of n logged steps, and after each.

    ``log`` is as for :func:`mmdp.fit`: a path, a DataFrame or a mapping of columns with ``state``,
    ``action`` and ``next_state`` (labels, or ids from 0), and ``episode`` and ``time`` if you have
    them. Whole numbers as times count decisions: models that change do so once for each that
    passed, seen or not. A model that varies with time counts them from 0, others from the first.
    Rewards in a log are not used.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
    >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
    >>> log = {"state": ["up", "up"], "action": [0, 0], "next_state": ["up", "down"]}
    >>> mmdp.posterior.weights_by_step(two, log).round(2).tolist()
    [[0.5, 0.5], [0.75, 0.25], [0.3, 0.7]]
    """
    return believed(model, steps_of(model, log)).weights


@checked
def predictive_probabilities(model: MMDP, log: Any) -> Array:
    """(n,) the probability of each logged step, given the steps before it.

    A small one says that no model explains the step. If models begin apart, the first step of an
    episode includes its first state. ``log`` is as for :func:`weights_by_step`.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
    >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
    >>> log = {"state": ["up", "up"], "action": [0, 0], "next_state": ["up", "down"]}
    >>> mmdp.posterior.predictive_probabilities(two, log).round(2).tolist()  # .75 .1 + .25 .7
    [0.6, 0.25]
    """
    return believed(model, steps_of(model, log)).probabilities


def steps_of(model: MMDP, log: Any) -> Steps:
    """The log of a model, in the order of time."""
    states, actions = (
        labels if model.labelled[kind] else len(labels)
        for kind, labels in (("state", model.state_labels), ("action", model.action_labels))
    )
    steps, horizon = read_steps(log, states, actions), model.horizon
    if horizon is not None:
        outside = np.empty(len(steps.time), bool)
        outside[steps.row] = (steps.time < 0) | (steps.time >= horizon)
        problem = f"its time is outside 0..{horizon - 1}, which the model varies over"
        steps.source.refuse(outside, problem, ["count decisions from 0"])
    return steps


def believed(model: MMDP, steps: Steps) -> Filtering:
    """The weights before the first step and after each, and the probability of each step."""
    x = model.problem
    check_whole_model(x, "an update")
    changes = x.not_still(f"{steps.episodes} episodes at once are for models that stay as they are")
    if changes is not None and steps.episodes > 1:
        raise InputError(f"{steps.source.place}: {changes}", ["update with one episode at a time"])
    weights = x.weights / x.weights.sum()
    found, begun, now = [weights], set(), _origin(model, steps)
    likelihoods, probabilities = _likelihoods(model, steps), np.empty(len(steps.time))
    for i, time in enumerate(steps.time.tolist()):
        weights = x.moved(weights, time - now)
        first = steps.episode[i] not in begun and (time == 0 or not model.horizon)
        if first and not x.same_start:
            weights = weights * x.initial[steps.state[i]]
        begun.add(steps.episode[i])
        weights = weights * likelihoods[i]
        probabilities[i] = weights.sum()
        if not probabilities[i] > 0:
            steps.source.fail(
                f"no model that is still possible explains {_shown(model, steps, i)}",
                int(steps.row[i]), ["correct it", "add a model in which it can happen"],
            )  # fmt: skip
        weights, now = x.moved(weights / weights.sum()), time + 1
        found.append(weights)
    _warn_unlikely(model, steps, probabilities)
    return Filtering(np.array(found), probabilities)


def _origin(model: MMDP, steps: Steps) -> int:
    """The time at which the weights of the model hold."""
    return 0 if model.horizon else int(steps.time[0])


def _likelihoods(model: MMDP, steps: Steps) -> Array:
    """(n, M) the probability of each step in each model."""
    x = model.problem
    times = steps.time if model.horizon else np.zeros_like(steps.time)
    found, rows = np.empty((len(times), x.n_models)), steps.state * x.n_actions + steps.action
    for t in np.unique(times):
        at = times == t
        found[at] = x.storage.moves().likelihood(int(t), rows[at], steps.next_state[at])
    return found


def _warn_unlikely(model: MMDP, steps: Steps, probabilities: Array) -> None:
    unlikely = int((probabilities < UNLIKELY).sum())
    if unlikely:
        i = int(np.argmin(probabilities))
        others = f" (and {counted(unlikely - 1, 'other step')})" if unlikely > 1 else ""
        warnings.warn(
            f"{steps.source.place}, {steps.source.at(int(steps.row[i]))}{others}: "
            f"{_shown(model, steps, i)} had a probability of {probabilities[i]:.1g} in all models "
            "together, so the weights mean little; check it, or add a model that explains it",
            UnlikelyData, stacklevel=4,
        )  # fmt: skip


def _shown(model: MMDP, steps: Steps, i: int) -> str:
    s, z = (model.state_labels[x[i]] for x in (steps.state, steps.next_state))
    return f"{model.action_labels[steps.action[i]]!r} from {s!r} to {z!r}"


def updated(model: MMDP, steps: Steps, weights: Array, initial: str | None) -> MMDP:
    """The model with the weights after the last step; see :meth:`mmdp.MMDP.update`."""
    found = model.replace(weights=weights)
    if initial is None:
        return found
    if initial != "last":
        raise InputError(f"initial must be 'last' or left out, not {initial!r}")
    if steps.episodes > 1:
        raise InputError(
            f"{steps.source.place}: {steps.episodes} episodes have no last state in common",
            ["leave out initial='last'", "give one episode"],
        )
    first = np.zeros(model.n_states)
    first[steps.next_state[-1]] = 1.0
    decided = int(steps.time[-1]) + 1 - _origin(model, steps)
    return found.replace(initial=first).later(decided)
