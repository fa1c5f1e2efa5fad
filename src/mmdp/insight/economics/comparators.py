"""Comparison of named policies by their costs and effects in every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.policies import MarkovPolicy, require_markov
from mmdp.core.solve import evaluate
from mmdp.core.validate import check_horizon, is_labeled, match_ids
from mmdp.insight.economics.discounting import Amounts, OutcomeDiscounting, check_no_terminal_values
from mmdp.insight.economics.outcomes import CostEffectiveness


@check_arguments
def cost_effectiveness(
    model: MMDP,
    effects: Amounts,
    costs: Amounts,
    policies: Mapping[str, object],
    horizon: int | None = None,
    *,
    discounting: OutcomeDiscounting = OutcomeDiscounting(),  # noqa: B008
) -> CostEffectiveness:
    """Compute the cost and the effect of named policies in every model.

    Parameters
    ----------
    model
        Gives transitions, initial distribution, weights, discount and parameters; its rewards
        are not used.
    effects, costs
        Effect and cost of an action, shaped like ``rewards`` of :class:`mmdp.MMDP`: (S, A),
        (M, S, A) or (T, M, S, A). Costs are positive. With amounts of transitions, such as
        the cost of dying: ``{"rewards": (S, A), "next_rewards": (S, A, S')}``, or one of them.
    policies
        By name. A value is a policy or a solution, or a fixed strategy: one action (its label or
        id) at all times, a list with the action at each time, or a mapping of state to action.
        States that allow one action only need no mention.
    horizon
        Number of decisions.
    discounting
        Separate discount rates, half-cycle or Simpson weights: :class:`OutcomeDiscounting`.

    >>> import mmdp, mmdp.economics
    >>> P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    >>> model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], states=["ill", "dead"],
    ...                   actions=["wait", "treat"])
    >>> outcomes = mmdp.economics.cost_effectiveness(
    ...     model, effects=[[1, 1], [0, 0]], costs=[[0, 100], [0, 0]], horizon=3,
    ...     policies={"never treat": "wait", "treat once": ["treat", "wait", "wait"]})
    >>> table = outcomes.icers()[["policy", "cost", "effect", "icer"]]
    >>> print(table.round(2).to_string(index=False))
         policy  cost  effect   icer
    never treat   0.0    1.75    NaN
     treat once 100.0    2.20 222.22
    """
    if not policies:
        raise InputError(
            "policies is empty; name at least one policy, such as {'never treat': 'wait'}"
        )
    n_steps = check_horizon(model.horizon, horizon)
    check_no_terminal_values(model)
    named = make_named_policies(policies, model, n_steps)
    effect_returns, cost_returns = (
        np.stack([evaluate(outcome_model, policy).returns for policy in named.values()])
        for outcome_model in discounting.make_outcome_models(model, effects, costs, n_steps)
    )
    outcomes = effect_returns, cost_returns, model.weights, model.parameters
    return CostEffectiveness(tuple(named), *outcomes)


def find_duplicate(
    policy: MarkovPolicy, other_policies: Mapping[str, MarkovPolicy], outcome_models: Sequence[MMDP]
) -> str | None:
    """Find the name of another policy with the same effect and the same cost in every model.

    ``outcome_models`` are those of :meth:`OutcomeDiscounting.make_outcome_models`.
    """

    def has_same_returns(other: MarkovPolicy, outcome_model: MMDP) -> bool:
        x, y = (evaluate(outcome_model, z).returns for z in (other, policy))
        return np.allclose(x, y, rtol=1e-9, atol=1e-12 * np.abs(y).max())

    for name, other in other_policies.items():
        if all(has_same_returns(other, x) for x in outcome_models):
            return name
    return None


# ---------------------------------------------------------------------- policies by name
def make_named_policies(
    strategies: Mapping[str, object], model: MMDP, horizon: int
) -> dict[str, MarkovPolicy]:
    """Make Markov policies by name from policies, solutions and fixed strategies."""
    named = {}
    for name, strategy in strategies.items():
        try:
            if is_labeled(strategy) or isinstance(strategy, (str, int, np.integer, Sequence)):
                policy = MarkovPolicy.for_model(model, _expand_strategy(strategy, model, horizon))
            else:
                policy = require_markov(strategy, "a comparison needs", horizon)
            policy.check(model, horizon)
        except InputError as error:
            raise error.with_location(f"policy {str(name)!r}") from None
        named[str(name)] = policy
    return named


def _expand_strategy(strategy: Any, model: MMDP, horizon: int) -> npt.NDArray[np.int64]:
    """Expand a fixed strategy to actions (T, S); states with one action take that."""
    is_forced = model.allowed.sum(axis=1) == 1
    table = np.tile(np.where(is_forced, model.allowed.argmax(axis=1), -1), (horizon, 1))
    if is_labeled(strategy):
        states = match_ids(strategy.keys(), model.label_index("state").axis_labels, "the rule")
        table[:, states] = model.label_index("action").get_ids(x for _, x in strategy.items())
        if (table < 0).any():
            missing = model.state_labels[int(np.argmax(table[0] < 0))]
            raise InputError(
                f"no action for state {missing!r}; give one for each state that has a choice"
            )
        return table
    is_single = isinstance(strategy, str) or not isinstance(strategy, Sequence)
    by_time = [strategy] * horizon if is_single else strategy
    if len(by_time) != horizon:
        raise InputError(f"{len(by_time)} actions for {horizon} decisions; give one for each")
    actions = np.array(model.label_index("action").get_ids(by_time))
    return np.where(table < 0, actions[:, None], table)
