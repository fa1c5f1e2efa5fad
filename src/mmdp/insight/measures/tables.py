"""A policy in numbers: the model weights and the gradient of the paper, and a table of decisions.

The table has the action, runner-up, margin, visit probability and agreement of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.kernels import Backend, PreparedProblem
from mmdp.core.model import MMDP
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.shapes import AnyArray, Array, IndexArray
from mmdp.core.solution import Solution
from mmdp.insight.measures.near_optimal import near_optimal_actions

TIE_TOL = 1e-9  # q of two actions closer than this share of what is at stake are equally good


@check_arguments
def model_weights(
    model: MMDP, policy: Unchecked[MarkovPolicy | Solution], *, backend: str | Backend = "auto"
) -> Array:
    """Compute the model weights b_{t,m}(s) = P[model is m, state at t is s] under a Markov policy.

    These are definition 4.1 of the paper.

    Returns
    -------
    (T, M, S) floats; they sum to 1 over models and states at every time.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]], initial=[1, 0])
    >>> mmdp.measures.model_weights(one, mmdp.policies.MarkovPolicy([[0, 0], [0, 0]]))[1].tolist()
    [[0.5, 0.5]]
    """
    policy = require_markov(policy, "model weights need")
    return np.moveaxis(prepare_policy(model, policy, backend).forward(policy.to_table(model)), 2, 1)


@check_arguments
def policy_gradient(
    model: MMDP, policy: Unchecked[MarkovPolicy | Solution], *, backend: str | Backend = "auto"
) -> Array:
    """Compute the gradient of the mean return, d rho / d pi_t(s, a), at a Markov policy.

    By the paper's first theorem it is gamma^t sum_m b_{t,m}(s) q_{t,m}(s, a).

    Returns
    -------
    (T, S, A) floats; NaN for actions that are not allowed.

    >>> import mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> mmdp.measures.policy_gradient(one, mmdp.policies.MarkovPolicy([[0], [1]])).tolist()
    [[[3.5, 4.5]], [[1.0, 1.5]]]
    """
    policy = require_markov(policy, "the gradient needs")
    prepared, table = prepare_policy(model, policy, backend), policy.to_table(model)
    b = prepared.forward(table)
    backward_pass = prepared.backward("policy", policy=table, weights=b, keep=("gradient",))
    discount_factors = model.discount ** np.arange(policy.horizon)[:, None, None].astype(float)
    return discount_factors * np.where(model.allowed, backward_pass.gradient, np.nan)


def prepare_policy(
    model: MMDP, policy: MarkovPolicy, backend: str | Backend = "auto", n_passes: int = 2
) -> PreparedProblem:
    """Check a policy and prepare the model for the passes that evaluate it."""
    policy.check(model)
    problem = model.problem
    resolved_backend = kernels.get_backend(backend, problem, policy.horizon, n_passes=n_passes)
    return resolved_backend.prepare(problem, policy.horizon)


@check_arguments
def policy_table(
    model: MMDP, solution: Unchecked[Solution | MarkovPolicy], *, tolerance: float | None = None
) -> pd.DataFrame:
    """Tabulate a Markov policy: one row per time and state.

    Columns:

    - ``time``, ``state``, ``action`` (the most probable one of a randomized policy);
    - ``runner_up`` and ``margin``: the best other action and how much less it returns, in
      units of return from that time on. With the model weights b of the policy and
      q_{t,m}(s, a), G_t(s, a) = sum_m b_{t,m}(s) q_{t,m}(s, a), and the margin is
      (G_t(s, action) - G_t(s, runner_up)) / sum_m b_{t,m}(s): the loss when only this
      decision is changed. A negative margin says that the runner-up is better. Missing
      if there is no other action, if none changes anything, or if the state cannot be reached at
      that time;
    - ``visit_prob``: the probability of being in the state at that time;
    - ``agreement``: the weight of the models whose own optimal policy may take this action there;
    - ``near_optimal``, if a ``tolerance`` is given: the interchangeable actions if that
      share of what is at stake may be lost (:func:`mmdp.measures.near_optimal_actions`).

    >>> import mmdp, mmdp.measures
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]],
    ...                 actions=["wait", "treat"])
    >>> print(mmdp.measures.policy_table(two, mmdp.solve(two, 1)).to_string(index=False))
     time state action runner_up  margin  visit_prob  agreement
        0     0   wait     treat     2.0         1.0        0.5
    """
    policy = require_markov(solution, "a policy table shows")
    cells = compute_policy_cells(policy, model)
    labels = np.array([*model.action_labels, None], dtype=object)
    columns = {
        "action": labels[policy.actions],
        "runner_up": labels[cells.runner_up],
        "margin": cells.margin,
        "visit_prob": cells.visit_probs,
        "agreement": cells.agreement,
    }
    if tolerance is not None:
        near_optimal = near_optimal_actions(model, solution, tolerance)
        columns["near_optimal"] = near_optimal.format_action_sets()
    return tabulate_decisions(model, columns)


def tabulate_decisions(model: MMDP, columns: Mapping[str, AnyArray]) -> pd.DataFrame:
    """Tabulate arrays (T, S) with the time and the state of each row."""
    times, states = np.indices(next(iter(columns.values())).shape).reshape(2, -1)
    state_labels = np.array(model.state_labels, dtype=object)
    index = {"time": times, "state": state_labels[states]}
    values = {name: array.reshape(-1) for name, array in columns.items()}
    return pd.DataFrame(model.time_labels.add_column(index | values))


@dataclass(frozen=True, eq=False)
class PolicyCells:
    """The columns of :func:`policy_table` as arrays (T, S).

    ``runner_up`` holds action ids, -1 if there is none; ``margin`` is NaN then.
    """

    visit_probs: Array
    margin: Array
    runner_up: IndexArray
    agreement: Array


def compute_policy_cells(policy: MarkovPolicy, model: MMDP) -> PolicyCells:
    """Compute visit probabilities, margins, runners-up and agreement of a Markov policy."""
    prepared, table = prepare_policy(model, policy, n_passes=4), policy.to_table(model)
    b = prepared.forward(table)
    gradient = prepared.backward("policy", policy=table, weights=b, keep=("gradient",)).gradient
    actions, visit_probs = policy.actions.astype(np.int64), b.sum(axis=2)
    is_taken = actions[:, :, None] == np.arange(model.n_actions)
    others = np.where(is_taken, -np.inf, gradient)
    best, visits = others.max(axis=2), model.mask_visits(visit_probs)
    is_defined = np.isfinite(best) & (visits > 0)
    loss = gradient[is_taken].reshape(best.shape) - np.where(is_defined, best, 0.0)
    margin = np.divide(loss, visits, out=np.full(visits.shape, np.nan), where=is_defined)
    runner_up = np.where(is_defined, others.argmax(axis=2), -1)
    return PolicyCells(visit_probs, margin, runner_up, _compute_agreement(prepared, actions))


def _compute_agreement(prepared: PreparedProblem, actions: IndexArray) -> Array:
    """Compute the weight (T, S) of the models in which the action is optimal from there on."""
    problem, horizon = prepared.problem, len(actions)
    values = prepared.backward("per_model", keep=("values",)).values
    agreement = np.empty(actions.shape)
    # (M,) for each model its own: one with large rewards leaves the others as they are
    scale = np.minimum(problem.return_span(horizon), problem.max_abs_returns(horizon))
    tolerance = np.maximum(TIE_TOL * scale, problem.rounding_errors(horizon))
    states = np.arange(problem.n_states)
    for t in range(horizon):
        q = np.where(problem.allowed[0, :, :, None], prepared.q_step(t, values[t + 1]), -np.inf)
        best = q.max(axis=1)
        agreement[t] = (q[states, actions[t]] >= best - tolerance) @ problem.weights
    return agreement
