"""The weights of models after what was seen: Bayes' rule, step by step.

beta_m is proportional to lambda_m prod_t p_m(s_{t+1} | s_t, a_t). If models begin apart, the first
state of every episode counts too. If models change, beta moves on by K after each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.posterior.log import Steps, read_steps
from mmdp.validate import check_whole_model

if TYPE_CHECKING:
    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]


@checked
def weights_by_step(model: MMDP, log: Any) -> Array:
    """(n + 1, M) weights of the models before the first of n logged steps, and after each.

    ``log`` is as for :func:`mmdp.fit`: a path, a DataFrame or a mapping of columns with ``state``,
    ``action`` and ``next_state`` (labels, or ids from 0), and ``episode`` and ``time`` if you have
    them. A model that varies with time reads ``time`` as the number of the decision, from 0.
    Rewards in a log are not used.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
    >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
    >>> log = {"state": ["up", "up"], "action": [0, 0], "next_state": ["up", "down"]}
    >>> mmdp.posterior.weights_by_step(two, log).round(2).tolist()
    [[0.5, 0.5], [0.75, 0.25], [0.3, 0.7]]
    """
    return believed(model, steps_of(model, log))


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


def believed(model: MMDP, steps: Steps) -> Array:
    """(n + 1, M) the weights before the first step and after each."""
    x = model.problem
    check_whole_model(x, "an update")
    changes = x.not_still(f"{steps.episodes} episodes at once are for models that stay as they are")
    if changes is not None and steps.episodes > 1:
        raise InputError(f"{steps.source.place}: {changes}", ["update with one episode at a time"])
    found, begun, weights = [x.weights / x.weights.sum()], set(), x.weights
    times = steps.time if model.horizon else np.zeros_like(steps.time)
    seen, rows = np.empty((len(times), x.n_models)), steps.state * x.n_actions + steps.action
    for t in np.unique(times):
        at = times == t
        seen[at] = x.storage.moves().likelihood(int(t), rows[at], steps.next_state[at])
    for i, (episode, likelihood) in enumerate(zip(steps.episode.tolist(), seen, strict=True)):
        if episode not in begun and not x.same_start:
            weights = weights * x.initial[steps.state[i]]
        begun.add(episode)
        weights = weights * likelihood
        if not weights.sum() > 0:
            _fail(model, steps, i)
        weights = x.moved(weights / weights.sum())
        found.append(weights)
    return np.array(found)


def _fail(model: MMDP, steps: Steps, i: int) -> NoReturn:
    s, z = (model.state_labels[x[i]] for x in (steps.state, steps.next_state))
    step = f"{model.action_labels[steps.action[i]]!r} from {s!r} to {z!r}"
    steps.source.fail(
        f"no model that is still possible explains {step}", int(steps.row[i]),
        ["correct it", "add a model in which it can happen"],
    )  # fmt: skip


def updated(model: MMDP, steps: Steps, initial: str | None) -> MMDP:
    """The model with the weights after the last step; see :meth:`mmdp.MMDP.update`."""
    found = model.replace(weights=believed(model, steps)[-1])
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
    decided = int(steps.time[-1]) + 1 if model.horizon else len(steps.state)
    return found.replace(initial=first).later(decided)
