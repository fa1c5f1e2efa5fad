"""Near-optimal actions: those that cost little alone, and sets that are interchangeable.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import kernels
from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels.infinite import DirectSolver, InfiniteHorizon
from mmdp.core.kernels.problem import at_time
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective, ObjectiveFunction, as_objective
from mmdp.core.policies import MemoryPolicy, Policy, require_markov
from mmdp.core.policies.markov import TablePolicy
from mmdp.core.solution import Solution
from mmdp.core.solve import evaluate
from mmdp.core.text import ROUNDING_RTOL, format_number, format_percent, format_with_unit
from mmdp.insight.measures.stakes import ValueAtStake, value_at_stake

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

EPS = 1e-12  # of the value: a loss below it is rounding, and none
UNVISITED_WEIGHT = 1e-12  # factor of the prior weights, used where a policy never leads


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
        result: Mask = self.loss <= max(self.max_loss, EPS * abs(self.value))
        return result

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
        max_loss_text = self.max_loss_text
        if not self.share_interchangeable:
            limit_text = f"at most {max_loss_text}" if max_loss_text else "nothing"
            return f"no decision is free if {limit_text} may be lost"
        share = self.share_interchangeable
        share_text = "all" if share > 1 - ROUNDING_RTOL else f"{format_percent(share)} of"
        subject = f"{share_text} decisions are free"
        if not max_loss_text:
            return f"{subject}: their actions are equally good"
        return (
            f"{subject}: choosing among their actions at will costs at most {max_loss_text} in all"
        )

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
        index = np.nonzero(~np.isnan(self.loss))
        columns: dict[str, npt.NDArray[np.generic]] = (
            {} if self.policy.horizon == math.inf else {"time": index[0]}
        )
        columns["state"] = np.array(self.model.state_labels, dtype=object)[index[1]]
        if self.loss.ndim == 4:
            columns["node"] = index[2]
        columns["action"] = np.array(self.model.action_labels, dtype=object)[index[-1]]
        arrays = {
            "loss": self.loss,
            "near_optimal_alone": self.is_near_optimal_alone,
            "interchangeable": self.is_interchangeable,
        }
        columns |= {name: array[index] for name, array in arrays.items()}
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
    if objective is None:
        objective = policy.objective if isinstance(policy, Solution) else "mean"
    risk_measure, evaluator = as_objective(objective), _make_evaluator(policy, model)
    if not 0 <= tolerance < math.inf:
        raise InputError(
            f"tolerance={tolerance!r} is not a share of the value at stake; give a number of at "
            "least 0, such as 0.01"
        )
    if not risk_measure.is_monotone:
        raise InputError(
            "near-optimal actions need an objective that never falls if a return rises; "
            f"{risk_measure.name} may",
            ["say mmdp.objectives.Custom(function, monotone=True) if it does not"],
        )
    evaluation = evaluate(model, evaluator.policy)

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
    effects = [(compute_loss(gain), *others) for gain, *others in evaluator.iter_action_effects()]
    loss, cost, visit_probs = (np.array(x) for x in zip(*effects, strict=True))
    if loss.ndim == 4:  # nodes
        allowed = allowed[:, :, None]
    loss[np.abs(loss) <= EPS * abs(value)] = 0.0  # rounding, also below 0
    cost = np.where(allowed, cost, np.inf)
    # a loss that is rounding is none: actions that are equally good may be mixed at tolerance 0
    max_loss = max(tolerance * at_stake.amount, EPS * abs(value))
    is_interchangeable, guaranteed_value = _find_widest_sets(
        evaluator, cost, objective_value, value - max_loss
    )
    return NearOptimalActions(
        evaluator.policy,
        model,
        risk_measure,
        tolerance,
        at_stake,
        value,
        guaranteed_value,
        np.where(allowed, loss, np.nan),
        is_interchangeable,
        model.mask_visits(visit_probs),
    )


def _find_widest_sets(
    evaluator: _SetEvaluator,
    cost: Array,
    objective_value: Callable[[Array], Array],
    min_value: float,
) -> tuple[Mask, float]:
    """Find the widest sets (T, S, A), by a threshold on the cost per visit, with a proven value.

    Returns: the sets, and the objective value of the worst picks from them, at least min_value.
    """
    widest_sets, guaranteed_value = (
        evaluator.policy_actions,
        float(objective_value(evaluator.worst_returns(evaluator.policy_actions))),
    )
    levels = np.unique(cost[np.isfinite(cost)])
    low, high = -1, len(levels)  # low is wide enough, high too wide
    while high - low > 1:
        middle = (low + high) // 2
        sets = evaluator.policy_actions | (cost <= levels[middle])
        value = float(objective_value(evaluator.worst_returns(sets)))
        if value >= min_value:
            low, widest_sets, guaranteed_value = middle, sets, value
        else:
            high = middle
    return widest_sets, guaranteed_value


# ---------------------------------------------------------------------- policies
class _SetEvaluator(Protocol):
    """Evaluator of sets of actions around a policy with actions ``policy_actions`` (T, S, A)."""

    policy_actions: Mask

    @property
    def policy(self) -> Policy:
        """The policy that the sets are around."""

    def iter_action_effects(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield for each time the effects of one changed action.

        They are the change of the returns (S, A, M), the cost per visit (S, A) and the visit
        probabilities (S,).
        """

    def worst_returns(self, action_sets: Mask) -> Array:
        """Bound the returns (M,) of any picks from the sets from below."""


def _make_evaluator(policy_or_solution: Policy | Solution, model: MMDP) -> _SetEvaluator:
    """Make the evaluator for the policy class: Markov, stationary or with memory."""
    policy = policy_or_solution
    if isinstance(policy, Solution):
        policy = policy.policy
    if not policy.has_exact_returns:  # refuse a policy without a table
        require_markov(policy_or_solution, "near-optimal actions need")
    policy.check(model)
    if isinstance(policy, MemoryPolicy):
        return _ControllerEvaluator(policy, model)
    assert isinstance(policy, TablePolicy)
    if not policy.is_deterministic:
        raise InputError(
            "near-optimal actions need a policy that takes one action in each state, but this one "
            "is randomized"
        )
    return (_StationaryEvaluator if policy.horizon == math.inf else _FiniteEvaluator)(policy, model)


class _FiniteEvaluator:
    """Evaluator for a Markov policy with a finite horizon."""

    def __init__(self, policy: TablePolicy | MemoryPolicy, model: MMDP) -> None:
        problem, horizon = model.problem, int(policy.horizon)
        backend = kernels.get_backend("auto", problem, horizon, n_passes=20)
        self.policy, self.prepared = policy, backend.prepare(problem, horizon)
        self.policy_actions = np.eye(problem.n_actions, dtype=bool)[policy.actions]

    def iter_action_effects(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield the effects of changed actions by one forward and one backward pass."""
        prepared, problem, actions = self.prepared, self.prepared.problem, self.policy.actions
        b = prepared.forward(actions)
        d = prepared.forward_by_start(lambda other: other.forward(actions))
        v = prepared.backward("policy", policy=actions, keep=("values",)).values
        for t in range(prepared.horizon):
            q = np.where(
                at_time(problem.allowed, t)[:, :, None], prepared.q_step(t, v[t + 1]), v[t][:, None]
            )
            gain = problem.discount**t * (q - q[np.arange(len(q)), actions[t]][:, None])
            yield (
                prepared.credit_to_start(d[t][:, None], gain),
                _cost_per_visit(gain, b[t], problem.weights),
                b[t].sum(axis=1),
            )

    def worst_returns(self, action_sets: Mask) -> Array:
        """Bound the returns by the negated optima of the models with negated rewards."""
        prepared, problem = self.prepared, self.prepared.problem
        negated = prepared.replace(
            rewards=-problem.r, terminal=-problem.terminal, allowed=action_sets
        )
        return -negated.compute_returns(negated.backward("per_model").first_values)


class _ControllerEvaluator(_FiniteEvaluator):
    """Evaluator for a finite-state controller: q (S, N, A, M) under its node transitions."""

    def iter_action_effects(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield the effects of changed actions of each node."""
        assert isinstance(self.policy, MemoryPolicy)
        prepared, problem, controller = self.prepared, self.prepared.problem, self.policy.controller
        b = prepared.compute_node_weights(controller)[1]
        d = prepared.forward_by_start(lambda other: other.compute_node_weights(controller)[1])
        v, effects = self._terminal_values(), []
        for t in reversed(range(prepared.horizon)):
            q = prepared.compute_node_q(t, v, controller)
            v = np.take_along_axis(q, controller.actions[t][:, :, None, None], axis=2)
            gain = problem.discount**t * np.where(
                at_time(problem.allowed, t)[:, None, :, None], q - v, 0.0
            )
            v = v[:, :, 0]
            gains = prepared.credit_to_start(d[t][:, :, None], gain)
            effects.append((gains, _cost_per_visit(gain, b[t], problem.weights), b[t].sum(axis=2)))
        yield from reversed(effects)

    def worst_returns(self, action_sets: Mask) -> Array:
        """Bound the returns by a backward pass that takes the worst action of each set."""
        assert isinstance(self.policy, MemoryPolicy)
        prepared, v, controller = self.prepared, self._terminal_values(), self.policy.controller
        for t in reversed(range(prepared.horizon)):
            q = prepared.compute_node_q(t, v, controller)
            v = np.where(action_sets[t][..., None], q, np.inf).min(axis=2)
        return prepared.compute_returns(v[np.arange(len(v)), controller.initial_nodes])

    def _terminal_values(self) -> Array:
        """Repeat the terminal values for each node. Returns: (S, N, M)."""
        assert isinstance(self.policy, MemoryPolicy)
        terminal = self.prepared.problem.terminal
        return np.repeat(terminal[:, None], self.policy.n_nodes, axis=1)


class _StationaryEvaluator:
    """Evaluator for a stationary policy with an infinite horizon."""

    def __init__(self, policy: TablePolicy, model: MMDP) -> None:
        solver = InfiniteHorizon.from_problem(model.problem)
        if not isinstance(solver, DirectSolver):
            raise InputError(
                "the model has too many states for near-optimal actions of a stationary policy",
                ["give policy.to_markov(T), the same over T decisions"],
            )
        self.policy, self.solver = policy, solver
        self.policy_actions = np.eye(model.n_actions, dtype=bool)[policy.actions][None]

    def iter_action_effects(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield the effects of one changed state, by :mod:`mmdp.core.search.stationary`."""
        solver, pi, gamma = self.solver, self.policy.actions, self.solver.problem.discount
        s, b = np.arange(len(pi)), solver.compute_occupancy(pi).T  # (S, M)
        q, revisits = (
            solver.compute_q(solver.compute_values(pi)),
            np.einsum("msaz,mzs->msa", solver.P, solver.compute_inverse(pi)),
        )
        gain, extra_revisits = (
            np.moveaxis(y - y[:, s, pi][:, :, None], 0, 2) for y in (q, revisits)
        )
        gain, extra_revisits = (
            np.where(solver.problem.allowed[0][:, :, None], y, 0.0) for y in (gain, extra_revisits)
        )
        weights = solver.problem.weights
        occupancy = b @ weights
        visit_share = occupancy / occupancy.sum()
        yield (
            b[:, None] * gain / (1 - gamma * extra_revisits),
            _cost_per_visit(gain, b * weights, weights),
            visit_share,
        )

    def worst_returns(self, action_sets: Mask) -> Array:
        """Bound the returns by the negated optima of the models with negated rewards."""
        problem = self.solver.problem
        optima = InfiniteHorizon.from_problem(problem._replace(r=-problem.r)).compute_model_optima(
            action_sets[0]
        )
        return -(problem.compute_returns(optima.values.T) + optima.error_bound)


def _cost_per_visit(gain: Array, b: Array, weights: Array) -> Array:
    """Compute sum_m b (-gain)^+ / sum_m b; with the prior weights if b (..., M) is 0.

    Returns: (..., A).
    """
    b = b + UNVISITED_WEIGHT * weights
    loss = np.matmul(np.maximum(-gain, 0.0), b[..., None])[..., 0]
    cost: Array = loss / b.sum(axis=-1)[..., None]
    return cost
