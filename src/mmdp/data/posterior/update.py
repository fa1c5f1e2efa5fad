"""Model weights after observed steps: Bayes' rule, step by step.

beta_m is proportional to lambda_m prod_t p_m(s_{t+1} | s_t, a_t). If the initial distributions of
models differ, the first state of every episode counts too. If models switch, beta is multiplied by
K after each step, and once for each decision that was not observed.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, MMDPWarning, UnlikelyDataWarning
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.text import pluralize
from mmdp.core.validate import check_not_sharded
from mmdp.data.posterior.log import read_log
from mmdp.data.schema import TableSource

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

UNLIKELY_PROB = 1e-6  # probability of a step below which a warning is given


class FilterResult(NamedTuple):
    """Model weights (n + 1, M) before and after each step, and probabilities (n,) of the steps."""

    weights: Array
    probabilities: Array


class LoggedSteps(NamedTuple):
    """Logged transitions of a known model in the order of time, by ids."""

    state: IndexArray
    action: IndexArray
    next_state: IndexArray
    episode: IndexArray
    time: IndexArray  # the number of the decision
    rows: IndexArray  # row of the log
    source: TableSource

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return len(np.unique(self.episode))

    @property
    def weight_times(self) -> IndexArray:
        """Times (n + 1,) of the weights before the first step and after each."""
        return np.append(self.time[:1], self.time + 1)


@check_arguments
def weights_by_step(model: MMDP, log: object) -> Array:
    """Compute the model weights (n + 1, M) before the first of n logged steps, and after each.

    ``log`` is as for :func:`mmdp.fit`: a path, a DataFrame or a mapping of columns with ``state``,
    ``action`` and ``next_state`` (labels, or ids from 0), and ``episode`` and ``time`` if
    known. Whole numbers as times count decisions: switching models switch once for each decision,
    logged or not. A model that varies with time counts them from 0, others from the first one
    logged. Rewards in a log are not used.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
    >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
    >>> log = {"state": ["up", "up"], "action": [0, 0], "next_state": ["up", "down"]}
    >>> mmdp.posterior.weights_by_step(two, log).round(2).tolist()
    [[0.5, 0.5], [0.75, 0.25], [0.3, 0.7]]
    """
    return filter_weights(model, read_model_steps(model, log)).weights


@check_arguments
def predictive_probabilities(model: MMDP, log: object) -> Array:
    """Compute the probability (n,) of each logged step, given the steps before it.

    If it is small, no model explains the step. If the initial distributions of models differ, the
    first step of an episode includes its first state. ``log`` is as for :func:`weights_by_step`.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
    >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
    >>> log = {"state": ["up", "up"], "action": [0, 0], "next_state": ["up", "down"]}
    >>> mmdp.posterior.predictive_probabilities(two, log).round(2).tolist()
    [0.6, 0.25]
    """
    return filter_weights(model, read_model_steps(model, log)).probabilities


def read_model_steps(model: MMDP, log: object) -> LoggedSteps:
    """Read a log of steps of this model, in the order of time; ids count from 0.

    Times that are not whole numbers are replaced by the number of the decision.
    """
    axes = map(model.label_index, ("state", "action"))
    states, actions = (axis.labels or axis.size for axis in axes)
    try:
        parsed = read_log(log, states=states, actions=actions, is_of_model=True)
    except InputError as error:  # its arguments are those of fit
        raise InputError(error.message, [x for x in error.remedies if isinstance(x, str)]) from None
    source, frame, horizon = parsed.source, parsed.frame, model.horizon
    if "counts" in frame:
        source.fail(
            "has a column 'count', but a row must be one step; repeat rows, or drop the column"
        )
    source.fail_where(
        frame.duplicated(["episode", "time"]),
        "another step has this time",
        ["drop it", "number the episodes in a column 'episode'"],
    )
    frame = frame.sort_values("time", kind="stable")
    if (frame["time"] % 1).any():
        frame["time"] = frame.groupby("episode").cumcount()
    frame["time"] = frame["time"].astype(np.int64)
    if horizon is not None:
        is_outside = ~frame["time"].between(0, horizon - 1).sort_index()
        problem = f"its time is outside 0..{horizon - 1}, the horizon of the model"
        source.fail_where(is_outside, problem, ["count decisions from 0"])
    columns = {name: frame[name].to_numpy() for name in LoggedSteps._fields if name in frame}
    return LoggedSteps(**columns, rows=frame.index.to_numpy(), source=source)


def filter_weights(model: MMDP, steps: LoggedSteps) -> FilterResult:
    """Compute the model weights before and after each step, and the probability of each step."""
    problem = model.problem
    check_not_sharded(problem, "an update")
    switching_reason = problem.reason_if_switching(
        f"{steps.n_episodes} episodes at once need models that do not switch"
    )
    if switching_reason is not None and steps.n_episodes > 1:
        raise InputError(
            f"{steps.source.location}: {switching_reason}", ["update with one episode at a time"]
        )
    weights = problem.weights / problem.weights.sum()
    weights_by_time = [weights]
    is_started = pd.Series(steps.episode).duplicated()
    current_time = _get_start_time(model, steps)
    likelihoods, probabilities = _compute_likelihoods(model, steps), np.empty(len(steps.time))
    for i, time in enumerate(steps.time.tolist()):
        weights = problem.push_models(weights, time - current_time)
        is_first = not is_started[i] and (time == 0 or not model.horizon)
        if is_first and not problem.has_common_initial:
            weights = weights * problem.initial[steps.state[i]]
        weights = weights * likelihoods[i]
        probabilities[i] = weights.sum()
        if not probabilities[i] > 0:
            steps.source.fail(
                f"no model that is still possible explains {_describe_step(model, steps, i)}",
                int(steps.rows[i]),
                ["correct it", "add a model in which it can happen"],
            )
        weights, current_time = problem.push_models(weights / weights.sum()), time + 1
        weights_by_time.append(weights)
    n_unlikely = int((probabilities < UNLIKELY_PROB).sum())
    if n_unlikely:
        i = int(np.argmin(probabilities))
        others_text = f" (and {pluralize(n_unlikely - 1, 'other step')})" if n_unlikely > 1 else ""
        warnings.warn(
            f"{steps.source.location}, {steps.source.describe_row(int(steps.rows[i]))}"
            f"{others_text}: {_describe_step(model, steps, i)} had a probability of "
            f"{probabilities[i]:.1g} in all models together, so the weights mean little; check it, "
            "or add a model that explains it",
            UnlikelyDataWarning,
            stacklevel=3,
        )
    return FilterResult(np.array(weights_by_time), probabilities)


def warn_begins_anew(model: MMDP, steps: LoggedSteps) -> None:
    """Warn if the weights count as those before an episode, as in every further call."""
    begins = steps.time[0] == 0 or not model.horizon
    if begins and not model.problem.has_common_initial:
        reason = (
            "the initial distributions of the models differ, so "
            f"{model.state_labels[steps.state[0]]!r} counts as the first state of an episode"
        )
    elif not begins and model.is_switching:
        n_decisions = pluralize(int(steps.time[0]), "decision")
        reason = f"the weights are those at time 0, so models switch over the {n_decisions} before"
    else:
        return
    warnings.warn(
        f"{reason} in every call of update(); pass initial='last' to update step by step, or a log "
        "of whole episodes",
        MMDPWarning,
        stacklevel=4,
    )


def _get_start_time(model: MMDP, steps: LoggedSteps) -> int:
    """Get the time of the weights of the model, before the first step."""
    return 0 if model.horizon else int(steps.time[0])


def _compute_likelihoods(model: MMDP, steps: LoggedSteps) -> Array:
    """Compute the probability (n, M) of each step in each model."""
    sampler = model.problem.storage.make_sampler()
    rows = steps.state * model.n_actions + steps.action
    times = np.minimum(steps.time, model.problem.storage.n_times - 1)
    likelihoods = np.empty((len(rows), model.n_models))
    for t in np.unique(times):
        is_time = times == t
        likelihoods[is_time] = sampler.likelihood(int(t), rows[is_time], steps.next_state[is_time])
    return likelihoods


def _describe_step(model: MMDP, steps: LoggedSteps, i: int) -> str:
    """Format step i as action, state and next state."""
    s, s_next = (model.state_labels[x[i]] for x in (steps.state, steps.next_state))
    return f"{model.action_labels[steps.action[i]]!r} from {s!r} to {s_next!r}"


def update_model(model: MMDP, steps: LoggedSteps, weights: Array, initial: str | None) -> MMDP:
    """Replace the weights by those after the last step; see :meth:`mmdp.MMDP.update`."""
    new_model = model.replace(weights=weights)
    if initial is None:
        return new_model
    if steps.n_episodes > 1:
        raise InputError(
            f"{steps.source.location}: {steps.n_episodes} episodes have no last state in common",
            ["leave out initial='last'", "give one episode"],
        )
    initial_probs = np.zeros(model.n_states)
    initial_probs[steps.next_state[-1]] = 1.0
    n_decisions = int(steps.time[-1]) + 1 - _get_start_time(model, steps)
    return new_model.replace(initial=initial_probs).truncate_before(n_decisions)
