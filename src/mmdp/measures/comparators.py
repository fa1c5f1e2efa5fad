"""Named policies side by side: how each is given, and how costs and effects add up over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.measures.economics import CostEffectiveness, read_thresholds
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, markov_policy
from mmdp.solve import evaluate
from mmdp.validate import check_horizon, ids_of, is_named
from mmdp.words import either, some, suggested

Array = npt.NDArray[np.float64]
WithinCycle = Literal["none", "half-cycle", "simpson"]
CORRECTIONS = ("none", "half-cycle", "simpson")


@dataclass(frozen=True)
class Counting:
    """How the costs and effects of different times are added up.

    Parameters
    ----------
    effect_rate, cost_rate
        Discount rate per step, such as 0.035: what happens at time t counts (1 + rate)^-t. None:
        the discount of the model.
    within_cycle
        ``"half-cycle"``: the first and the last time count half (the trapezium rule).
        ``"simpson"``: 1/3, 4/3, 2/3, ..., 4/3, 1/3 (Simpson's rule; Elbasha and Chhatwal, Medical
        Decision Making 36(1), 2016). The times are the rows of a cohort trace, so n cycles need a
        horizon of n + 1. Simpson's weights count what policies cost and give. No policy is
        optimised for them, as it would act every second time: that takes half-cycle weights.

    >>> from mmdp.measures import Counting
    >>> Counting(within_cycle="half-cycle").times(5).tolist()
    [0.5, 1.0, 1.0, 1.0, 0.5]
    >>> (3 * Counting(within_cycle="simpson").times(5)).round(9).tolist()
    [1.0, 4.0, 2.0, 4.0, 1.0]
    """

    effect_rate: float | None = None
    cost_rate: float | None = None
    within_cycle: WithinCycle = "none"

    def __post_init__(self) -> None:
        for name in ("effect_rate", "cost_rate"):
            rate = getattr(self, name)
            if rate is not None and not (isinstance(rate, (int, float)) and 0 <= rate < 0.5):
                raise InputError(
                    f"{name} is a discount rate per step from 0 to below 0.5, such as 0.035, not "
                    f"{rate!r}; a discount factor g is the rate 1/g - 1"
                )
        given = self.within_cycle
        if not isinstance(given, str) or given not in CORRECTIONS:
            told = suggested(given, CORRECTIONS) if isinstance(given, str) else type(given).__name__
            raise InputError(f"within_cycle is {either(CORRECTIONS)}, not {told}")

    @property
    def told(self) -> str:
        """In words.

        >>> from mmdp.measures import Counting
        >>> Counting(effect_rate=0.015, cost_rate=0.035).told
        'effects are discounted by 1.5% per step and costs by 3.5% per step'
        """
        effects, costs = (
            "as in the models" if rate is None else f"by {100 * rate:g}% per step"
            for rate in (self.effect_rate, self.cost_rate)
        )  # fmt: skip
        weights = {
            "none": "", "half-cycle": "; the first and the last time count half",
            "simpson": "; times have Simpson's weights, and half-cycle weights in the search for "
            "policies, which could otherwise act every second time",
        }[self.within_cycle]  # fmt: skip
        return f"effects are discounted {effects} and costs {costs}{weights}"

    def times(self, horizon: int) -> Array:
        """(T,) weight of each time, without discount."""
        weights = np.ones(horizon)
        if self.within_cycle == "half-cycle":
            if horizon < 2:
                raise InputError("the half-cycle correction needs a horizon of 2 or more: n + 1")
            weights[[0, -1]] = 0.5
        elif self.within_cycle == "simpson":
            if horizon < 3 or horizon % 2 == 0:
                raise InputError(
                    "Simpson's rule needs an even number of cycles, so an odd horizon of 3 or "
                    f"more; it is {horizon}; choose another, or the half-cycle correction"
                )
            weights[1:-1] = np.where(np.arange(1, horizon - 1) % 2, 4 / 3, 2 / 3)
            weights[[0, -1]] = 1 / 3
        return weights

    def models(
        self, model: MMDP, effects: npt.ArrayLike, costs: npt.ArrayLike, horizon: int
    ) -> tuple[MMDP, MMDP]:
        """The model with effects as rewards, and with costs; both with the same discount."""
        plain = _rewarded(model, effects, "effects"), _rewarded(model, costs, "costs")
        if self == Counting():
            return plain
        counted = []
        for part, rate in zip(plain, (self.effect_rate, self.cost_rate), strict=True):
            factor = model.discount if rate is None else 1 / (1 + rate)
            weights = self.times(horizon) * factor ** np.arange(horizon)
            rewards = weights[:, None, None, None] * part.rewards
            counted.append(part.replace(rewards=rewards, discount=1.0))
        return counted[0], counted[1]

    def net_benefit(
        self,
        model: MMDP,
        effects: npt.ArrayLike,
        costs: npt.ArrayLike,
        threshold: float,
        horizon: int | None = None,
    ) -> MMDP:
        """The model whose rewards are the net monetary benefit at one willingness to pay.

        Solve it, bound it or report about it like any other model. With rates or within-cycle
        weights its rewards vary with time and its discount is 1; only then does the horizon matter.
        In place of Simpson's weights it has half-cycle weights, which cannot alternate.

        >>> import mmdp
        >>> from mmdp.measures import Counting
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0, 0]])
        >>> yearly = Counting(effect_rate=0.0, cost_rate=0.25)
        >>> priced = yearly.net_benefit(one, [[0, 2]], [[0, 100]], threshold=45, horizon=3)
        >>> priced.rewards[:, 0, 0, 1].round(9).tolist()
        [-10.0, 10.0, 26.0]
        >>> mmdp.solve(priced).policy.actions[:, 0].tolist()
        [0, 1, 1]
        """
        (level,) = read_thresholds([threshold])
        steps = 0 if self == Counting() else check_horizon(model.horizon, horizon)
        check_no_terminal(model)
        smooth = self
        if self.within_cycle == "simpson":
            self.times(steps)  # refuse a horizon for which nothing could be counted
            smooth = replace(self, within_cycle="half-cycle")
        worth, price = smooth.models(model, effects, costs, steps)
        e, c = worth.rewards, price.rewards
        axes = max(e.ndim, c.ndim)
        e, c = (x.reshape((1,) * (axes - x.ndim) + x.shape) for x in (e, c))
        return worth.replace(rewards=level * e - c)


def cost_effectiveness(
    model: MMDP,
    effects: npt.ArrayLike,
    costs: npt.ArrayLike,
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
        (M, S, A) or (T, M, S, A). Costs are positive.
    policies
        By name. A value is a policy or a solution, or a fixed strategy: one action (its label or
        id) at all times, a list with the action at each time, or a mapping of state to action.
        States that allow one action only need no mention.
    horizon
        Number of decisions.
    counting
        Separate discount rates, half-cycle or Simpson weights: :class:`Counting`.

    >>> import mmdp, mmdp.measures
    >>> P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    >>> model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], states=["ill", "dead"],
    ...                   actions=["wait", "treat"])
    >>> found = mmdp.measures.cost_effectiveness(
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


def _rewarded(model: MMDP, given: npt.ArrayLike, what: str) -> MMDP:
    try:
        return model.replace(rewards=given)
    except InputError as error:
        raise error.at(what) from None


def check_no_terminal(model: MMDP) -> None:
    if model.terminal.any():
        raise InputError(
            "the model has terminal values, which are neither cost nor effect; put them into "
            "effects and costs and use model.replace(terminal=None)"
        )


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
        states = ids_of(rule.keys(), model.state_labels, "the rule")
        for s, (_, action) in zip(states, rule.items(), strict=True):
            table[:, s] = _place(action, model)
        if (table < 0).any():
            left = model.state_labels[int(np.argmax(table[0] < 0))]
            raise InputError(f"no action for state {left!r}; name every state that has a choice")
        return table
    by_time = rule if isinstance(rule, Sequence) and not isinstance(rule, str) else [rule] * horizon
    if len(by_time) != horizon:
        raise InputError(f"{len(by_time)} actions for {horizon} decisions; give one for each")
    actions = np.array([_place(action, model) for action in by_time])
    return np.where(table < 0, actions[:, None], table)


def _place(given: Any, model: MMDP) -> int:
    """The id of an action, from its label or its id."""
    labels = model.action_labels
    if isinstance(given, (int, np.integer)) and 0 <= given < len(labels):
        return int(given)
    if str(given) in labels:
        return labels.index(str(given))
    raise InputError(f"no action {suggested(str(given), labels)}; the model has {some(labels)}")
