"""Named policies side by side: how each is given, and what it costs and gives in every model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import checked
from mmdp.economics.counting import Amounts, Counting, check_no_terminal
from mmdp.economics.outcomes import CostEffectiveness
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solve import evaluate
from mmdp.validate import check_horizon, ids_of, is_named


@checked
def cost_effectiveness(
    model: MMDP,
    effects: Amounts,
    costs: Amounts,
    policies: Mapping[str, Any],
    horizon: int | None = None,
    *,
    counting: Counting = Counting(),  # noqa: B008
) -> CostEffectiveness:
    """Cost and effect of named policies in every model.

    Parameters
    ----------
    model
        Gives transitions, initial distribution, weights, discount and parameters; its rewards
        are not used.
    effects, costs
        Effect and cost of an action, shaped like ``rewards`` of :class:`mmdp.MMDP`: (S, A),
        (M, S, A) or (T, M, S, A). Costs are positive. With what happens on transitions, such as
        the cost of dying: ``{"rewards": (S, A), "next_rewards": (S, A, S')}``, or one of them.
    policies
        By name. A value is a policy or a solution, or a fixed strategy: one action (its label or
        id) at all times, a list with the action at each time, or a mapping of state to action.
        States that allow one action only need no mention.
    horizon
        Number of decisions.
    counting
        Separate discount rates, half-cycle or Simpson weights: :class:`Counting`.

    >>> import mmdp, mmdp.economics
    >>> P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    >>> model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], states=["ill", "dead"],
    ...                   actions=["wait", "treat"])
    >>> found = mmdp.economics.cost_effectiveness(
    ...     model, effects=[[1, 1], [0, 0]], costs=[[0, 100], [0, 0]], horizon=3,
    ...     policies={"never treat": "wait", "treat once": ["treat", "wait", "wait"]})
    >>> print(found.icers()[["policy", "cost", "effect", "icer"]].round(2).to_string(index=False))
         policy  cost  effect   icer
    never treat   0.0    1.75    NaN
     treat once 100.0    2.20 222.22
    """
    if not policies:
        raise InputError("name at least one policy, such as {'never treat': 'wait'}")
    steps = check_horizon(model.horizon, horizon)
    check_no_terminal(model)
    known = named_policies(policies, model, steps)
    effect_model, cost_model = counting.models(model, effects, costs, steps)
    return CostEffectiveness(
        tuple(known),
        np.stack([evaluate(x, effect_model).returns for x in known.values()]),
        np.stack([evaluate(x, cost_model).returns for x in known.values()]),
        model.weights,
        model.parameters,
    )


def twin(
    policy: MarkovPolicy, others: Mapping[str, MarkovPolicy], parts: Sequence[MMDP]
) -> str | None:
    """The name of another policy with the same effect and the same cost in every model.

    ``parts`` are the two models of :meth:`Counting.models`.
    """
    own = [evaluate(policy, part).returns for part in parts]
    for name, other in others.items():
        found = [evaluate(other, part).returns for part in parts]
        if all(
            np.allclose(x, y, rtol=1e-9, atol=1e-12 * np.abs(y).max())
            for x, y in zip(found, own, strict=True)
        ):
            return name
    return None


# ---------------------------------------------------------------------- policies by name
def named_policies(given: Mapping[str, Any], model: MMDP, horizon: int) -> dict[str, MarkovPolicy]:
    """Policies of the model, from policies and fixed strategies; see :func:`cost_effectiveness`."""
    found = {}
    for name, rule in given.items():
        try:
            if is_named(rule) or isinstance(rule, (str, int, np.integer, Sequence)):
                policy = MarkovPolicy.for_model(model, _fixed(rule, model, horizon))
            else:
                policy = markov_policy(rule, "a comparison needs", horizon)
            policy.check(model, horizon)
        except InputError as error:
            raise error.at(f"policy {str(name)!r}") from None
        found[str(name)] = policy
    return found


def _fixed(rule: Any, model: MMDP, horizon: int) -> npt.NDArray[np.int64]:
    """(T, S) actions of a fixed strategy; the only action of a state that has no choice."""
    single = model.allowed.sum(axis=1) == 1
    table = np.tile(np.where(single, model.allowed.argmax(axis=1), -1), (horizon, 1))
    if is_named(rule):
        states = ids_of(rule.keys(), model.names("state").axis, "the rule")
        table[:, states] = model.names("action").all(action for _, action in rule.items())
        if (table < 0).any():
            left = model.state_labels[int(np.argmax(table[0] < 0))]
            raise InputError(f"no action for state {left!r}; name every state that has a choice")
        return table
    by_time = rule if isinstance(rule, Sequence) and not isinstance(rule, str) else [rule] * horizon
    if len(by_time) != horizon:
        raise InputError(f"{len(by_time)} actions for {horizon} decisions; give one for each")
    actions = np.array(model.names("action").all(by_time))
    return np.where(table < 0, actions[:, None], table)
