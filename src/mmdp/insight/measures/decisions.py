"""A policy in numbers: model weights, gradient, a table of its decisions, near-optimal actions.

The table has the action, runner-up, margin, visit probability and agreement of models.
Near-optimal actions are those that cost little alone, and sets that are interchangeable.

With q and v of a policy and its model weights b, taking a at (t, s) alone moves the return of model
m by gamma^t b_{t,m}(s) / lambda_m (q_{t,m}(s, a) - v_{t,m}(s)), which is exact. Small losses add up
if people choose everywhere. So sets of interchangeable actions are proven by a backward pass in
which every model takes its own worst action of the sets,

    w_{t,m}(s) = min_{a in sets_t(s)} r_m(s, a) + gamma sum_s' p_m(s'|s, a) w_{t+1,m}(s'),

which is below the return of whatever is picked from them, for whatever reason. An objective that
never falls if a return rises is at least its value at these lower returns.

The sets hold the actions whose cost per visit, gamma^t sum_m b (v - q)^+ / sum_m b, is at most a
threshold; like that pass, it counts the models in which an action is worse. Bisection finds the
highest threshold.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.evaluate import ControllerEvaluator, Evaluator, StationaryEvaluator
from mmdp.core.kernels import Backend, PreparedProblem
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective, ObjectiveFunction
from mmdp.core.policies import MarkovPolicy, MemoryPolicy, Policy, require_markov
from mmdp.core.policies.markov import TablePolicy
from mmdp.core.search.context import Candidate
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.core.solution import Solution
from mmdp.core.solve import evaluate
from mmdp.core.text import ROUNDING_RTOL, format_number, format_percent, format_with_unit
from mmdp.insight.measures.stakes import ValueAtStake, choose_objective, value_at_stake

TIE_TOL = 1e-9  # q of two actions closer than this share of what is at stake are equally good
EPS = 1e-12  # of the value: a loss below it is rounding, and none
UNVISITED_WEIGHT = 1e-12  # factor of the prior weights, used where a policy never leads


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


class PolicyCells(NamedTuple):
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


# ---------------------------------------------------------------------- near-optimal actions
@dataclass(frozen=True, eq=False, repr=False)
class NearOptimalActions:
    """Sets of actions that are as good as those of a policy, up to a tolerance.

    ``tolerance`` is a share of the value at stake (``at_stake``), ``max_loss`` the same as an
    amount. ``loss`` (T, S, A) is the loss of objective value if the action is taken at that time
    and state alone, below 0 if it gains, NaN if it is not allowed; ``is_interchangeable``
    (T, S, A) are the actions that may be mixed freely, the policy's own among them. Whatever is
    picked from these, the value is at least ``guaranteed_value``. ``visit_probs`` (T, S) is the
    probability of meeting a decision, 0 if no action changes anything there. A stationary policy
    has T = 1 and shares of the discounted visits; its loss is that of taking the action in this
    state at all times. A policy with memory has its nodes after the states, as in (T, S, N, A),
    and moves between them as it would.
    """

    policy: Policy
    model: MMDP
    objective: Objective
    tolerance: float
    at_stake: ValueAtStake
    value: float
    guaranteed_value: float
    loss: Array
    is_interchangeable: Mask
    visit_probs: Array

    @property
    def max_loss(self) -> float:
        """The tolerated loss, in units of the value."""
        return self.tolerance * self.at_stake.amount

    @property
    def is_near_optimal_alone(self) -> Mask:
        """Actions (T, S, A) whose loss is at most ``max_loss`` if taken there alone."""
        return self.loss <= max(self.max_loss, EPS * abs(self.value))

    @property
    def share_interchangeable(self) -> float:
        """The share of visited decisions with two or more interchangeable actions."""
        return self._share_with_choice(self.is_interchangeable)

    @property
    def share_near_optimal_alone(self) -> float:
        """The share of visited decisions with two or more actions that are near-optimal alone."""
        return self._share_with_choice(self.is_near_optimal_alone)

    def _share_with_choice(self, action_sets: Mask) -> float:
        """Compute the share of visits at which a set (T, S, A) holds two or more actions."""
        total = self.visit_probs.sum()
        return float(self.visit_probs[action_sets.sum(axis=-1) > 1].sum() / total) if total else 0.0

    @property
    def description(self) -> str:
        """A sentence with the share of free decisions and the cost of using them."""
        limit_text = self.max_loss_text and f"at most {self.max_loss_text}"
        share = self.share_interchangeable
        if not share:
            return f"no decision is free if {limit_text or 'nothing'} may be lost"
        share_text = "all" if share > 1 - ROUNDING_RTOL else f"{format_percent(share)} of"
        cost_text = "their actions are equally good"
        if limit_text:
            cost_text = f"choosing among their actions at will costs {limit_text} in all"
        return f"{share_text} decisions are free: {cost_text}"

    @property
    def max_loss_text(self) -> str:
        """The tolerated loss as an amount and a share of the value at stake; empty if it is 0."""
        if not self.max_loss:
            return ""
        amount = format_with_unit(format_number(self.max_loss, 3), self.model.unit)
        return (
            f"{amount} ({100 * self.tolerance:g}% of what is at stake, {self.at_stake.description})"
        )

    def format_action_sets(self) -> npt.NDArray[np.object_]:
        """Join the labels of interchangeable actions, as in ``wait or treat``. Returns: (T, S)."""
        labels = np.array(self.model.action_labels, dtype=object)
        texts = np.empty(self.visit_probs.shape, dtype=object)
        for index in np.ndindex(*texts.shape):
            texts[index] = " or ".join(labels[self.is_interchangeable[index]])
        return texts

    def to_frame(self) -> pd.DataFrame:
        """Tabulate each time, state (and node) and allowed action.

        Columns ``time`` (if there is one), ``state``, ``node`` (of memory), ``action``, ``loss``,
        ``near_optimal_alone`` and ``interchangeable``.
        """
        times, states, *nodes, actions = index = np.nonzero(~np.isnan(self.loss))
        columns: dict[str, object] = {} if self.policy.horizon == math.inf else {"time": times}
        columns["state"] = np.array(self.model.state_labels, dtype=object)[states]
        if nodes:
            columns["node"] = nodes[0]
        columns["action"] = np.array(self.model.action_labels, dtype=object)[actions]
        columns["loss"] = self.loss[index]
        columns["near_optimal_alone"] = self.is_near_optimal_alone[index]
        columns["interchangeable"] = self.is_interchangeable[index]
        return pd.DataFrame(self.model.time_labels.add_column(columns))

    def __repr__(self) -> str:
        return f"NearOptimalActions({self.description})"


@check_arguments
def near_optimal_actions(
    model: MMDP,
    policy: Policy | Solution,
    tolerance: float = 0.01,
    *,
    objective: str | Objective | ObjectiveFunction | None = None,
    comparators: Mapping[str, Policy | Solution] | None = None,
    at_stake: ValueAtStake | None = None,
) -> NearOptimalActions:
    """Find the actions that may replace a policy's without losing more than a tolerance.

    Parameters
    ----------
    model
        The models that the policy is followed in.
    policy
        A policy that takes one action in each state (and node): of time and state, stationary
        or with nodes of memory; or a solution.
    tolerance
        The share of the value at stake that may be lost (:func:`mmdp.measures.value_at_stake`).
    objective
        The objective over the models; by default the solution's own, or the mean. It must never
        fall if a return rises.
    comparators
        Policies by name, such as current practice: the difference to the first is at stake.
        By default that to the best policy which always takes the same action.
    at_stake
        The value at stake, if it is known already.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0], [1.0]]]] * 2, [[[4.0, 3.98, 0]], [[4.0, 4.0, 0]]])
    >>> today = mmdp.policies.MarkovPolicy([[2]] * 3, n_actions=3)
    >>> near_optimal = mmdp.measures.near_optimal_actions(
    ...     two, mmdp.solve(two, 3), comparators={"today": today})
    >>> near_optimal.share_interchangeable, near_optimal.is_interchangeable[0, 0].tolist()
    (1.0, [True, True, False])
    """
    risk_measure = choose_objective(objective, policy)
    checked_policy, evaluator, candidate, policy_actions = _make_evaluator(policy, model)
    if not 0 <= tolerance < math.inf:
        raise InputError(
            f"tolerance={tolerance!r} is not a share of the value at stake; give a number of at "
            "least 0, such as 0.01"
        )
    if not risk_measure.is_monotone:
        raise InputError(
            "near-optimal actions need an objective that never falls if a return rises; "
            f"{risk_measure.name} may",
            ["say mmdp.objectives.CustomObjective(function, is_monotone=True) if it does not"],
        )
    evaluation = evaluate(model, checked_policy)

    def objective_value(returns: Array) -> Array:
        return risk_measure.value(
            risk_measure.relative_returns(returns, lambda: evaluation.oracle), model.weights
        )

    def compute_loss(gain: Array) -> Array:
        if risk_measure.is_mean:  # without rounding to the size of the value
            return 0.0 - gain @ model.weights  # no -0.0
        return value - objective_value(evaluation.returns + gain)

    value, allowed = evaluation.value(risk_measure), model.problem.allowed
    at_stake = at_stake or value_at_stake(
        model, policy, objective=risk_measure, comparators=comparators
    )
    rows = []
    for x in evaluator.iter_advantages(candidate):
        # per visit, in the models in which it is worse; with the prior weights if b is 0
        b = x.weights + UNVISITED_WEIGHT * model.weights
        losses = np.matmul(np.maximum(-x.gains, 0.0), b[..., None])[..., 0]
        costs = losses / b.sum(axis=-1)[..., None]
        rows.append((compute_loss(x.effects), costs, x.weights.sum(axis=-1)))
    loss, cost, visit_probs = (np.array(x[::-1]) for x in zip(*rows, strict=True))
    if checked_policy.horizon == math.inf:
        visit_probs /= visit_probs.sum()  # shares of the discounted visits
    if loss.ndim == 4:  # nodes
        allowed = allowed[:, :, None]
    loss[np.abs(loss) <= EPS * abs(value)] = 0.0  # rounding, also below 0
    cost = np.where(allowed, cost, np.inf)
    # a loss that is rounding is none: actions that are equally good may be mixed at tolerance 0
    max_loss = max(tolerance * at_stake.amount, EPS * abs(value))

    def compute_worst_value(sets: Mask) -> float:
        return float(objective_value(evaluator.compute_worst_returns(candidate, sets)))

    # the widest sets, by a threshold on the cost per visit, from which the worst picks do
    levels = np.unique(cost[np.isfinite(cost)])
    n_allowed = bisect_left(
        levels,
        True,
        key=lambda x: compute_worst_value(policy_actions | (cost <= x)) < value - max_loss,
    )
    is_interchangeable = policy_actions | np.isin(cost, levels[:n_allowed])
    return NearOptimalActions(
        checked_policy,
        model,
        risk_measure,
        tolerance,
        at_stake,
        value,
        compute_worst_value(is_interchangeable),
        np.where(allowed, loss, np.nan),
        is_interchangeable,
        model.mask_visits(visit_probs),
    )


def _make_evaluator(
    policy_or_solution: Policy | Solution, model: MMDP
) -> tuple[Policy, Evaluator, Candidate, Mask]:
    """Return the policy, its evaluator, what that evaluates, and the actions taken, (T, S, A)."""
    policy = getattr(policy_or_solution, "policy", policy_or_solution)
    if not isinstance(policy, (TablePolicy, MemoryPolicy)):  # refuse what has no table
        policy = require_markov(policy_or_solution, "near-optimal actions need")
    policy.check(model)
    one_hot, problem = np.eye(model.n_actions, dtype=bool), model.problem
    if isinstance(policy, TablePolicy) and not policy.is_deterministic:
        raise InputError(
            "near-optimal actions need a policy that takes one action in each state, but this one "
            "is randomized"
        )
    if policy.horizon == math.inf:
        solver = InfiniteHorizon.from_problem(problem)
        if not isinstance(solver, DirectSolver):
            raise InputError(
                "the model has too many states for near-optimal actions of a stationary policy",
                ["give policy.to_markov(T), the same over T decisions"],
            )
        return policy, StationaryEvaluator(solver), policy.actions, one_hot[policy.actions][None]
    horizon = int(policy.horizon)
    prepared = kernels.get_backend("auto", problem, horizon, n_passes=20).prepare(problem, horizon)
    if isinstance(policy, MemoryPolicy):
        return policy, ControllerEvaluator(prepared), policy.controller, one_hot[policy.actions]
    return policy, Evaluator(prepared), policy.actions, one_hot[policy.actions]
