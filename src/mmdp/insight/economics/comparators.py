"""Named policies: their costs and effects in every model, their cohorts, the best at each price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mmdp.core.arguments import Label, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.methods import Method
from mmdp.core.model import MMDP
from mmdp.core.policies import MarkovPolicy, Policy, PolicyClass, require_markov
from mmdp.core.shapes import Array, IndexArray
from mmdp.core.solve import evaluate, solve
from mmdp.core.text import pluralize
from mmdp.core.timing import propagate_interrupts
from mmdp.core.validate import check_horizon, is_labeled, match_ids
from mmdp.insight.economics.discounting import Amounts, OutcomeDiscounting, check_no_terminal_values
from mmdp.insight.economics.outcomes import (
    CostEffectiveness,
    PrintedTable,
    read_thresholds,
)
from mmdp.insight.measures.decisions import model_weights


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

    for name, other in other_policies.items():
        pairs = ((evaluate(x, other).returns, evaluate(x, policy).returns) for x in outcome_models)
        if all(np.allclose(x, y, rtol=1e-9, atol=1e-12 * np.abs(y).max()) for x, y in pairs):
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


def _expand_strategy(strategy: Any, model: MMDP, horizon: int) -> IndexArray:
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


# ---------------------------------------------------------------------- the best at each price
@dataclass(frozen=True, eq=False, repr=False)
class WillingnessToPay(PrintedTable):
    """Policies and outcomes of :func:`willingness_to_pay`.

    ``policies`` by name, those that were given first; ``found_names``: the names of the others,
    which are of the ``policy_class`` asked for: a tree has its rule in words,
    ``policies["policy 1"].describe()``; ``outcomes``: cost and effect of each in each model
    (:class:`CostEffectiveness`, which also answers ``icers()``, ``evppi`` and ``evsi``);
    ``frontier``: one row per threshold with ``threshold, policy, effect, cost, nmb, probability,
    icer, evpi`` (:meth:`CostEffectiveness.frontier`); ``acceptability``: ``threshold, policy,
    probability, nmb, loss`` for every policy.
    """

    policies: Mapping[str, Policy]
    found_names: tuple[str, ...]
    outcomes: CostEffectiveness
    frontier: pd.DataFrame
    acceptability: pd.DataFrame

    def _make_table(self) -> tuple[str, pd.DataFrame]:
        """Make a title with the number of policies, and the frontier."""
        n_policies = pluralize(len(self.policies), "policy", "policies")
        return f"The best of {n_policies} by willingness to pay", self.frontier

    @property
    def effects(self) -> Array:
        """Effect (D, M) of each policy in each model."""
        return self.outcomes.effects

    @property
    def costs(self) -> Array:
        """Cost (D, M) of each policy in each model."""
        return self.outcomes.costs


@check_arguments
@propagate_interrupts()
def willingness_to_pay(
    model: MMDP,
    effects: Amounts,
    costs: Amounts,
    thresholds: Sequence[float],
    horizon: int | None = None,
    *,
    method: str | Method = "cadp",
    policy_class: str | PolicyClass | None = None,
    policies: Mapping[str, object] | None = None,
    discounting: OutcomeDiscounting = OutcomeDiscounting(),  # noqa: B008
) -> WillingnessToPay:
    """Find the best policy at each willingness to pay, and compare costs and effects of all.

    Parameters
    ----------
    model, effects, costs, discounting
        As for :func:`cost_effectiveness`.
    thresholds
        Willingness to pay for one unit of effect.
    policy_class
        Class of the policies that are found, as for :func:`mmdp.solve`, such as
        ``mmdp.policies.Tied``. The EVPI within that class is ``mmdp.measures.evpi(priced,
        method=mmdp.solve(priced, policy_class=policy_class))``, with ``priced`` from
        :meth:`OutcomeDiscounting.make_net_benefit_model`.
    policies
        Other policies to consider, by name: current practice, or fixed strategies such as
        ``{"never treat": "wait"}``; see :func:`cost_effectiveness`.

    A policy found at one threshold is considered at all others, so the frontier's effect never
    falls as the threshold grows. One with the cost and effect of another in every model is not
    listed again.

    >>> import mmdp, mmdp.economics
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]])
    >>> sweep = mmdp.economics.willingness_to_pay(
    ...     one, effects=[[0.0, 2.0]], costs=[[0.0, 100.0]], thresholds=[10, 80], horizon=1)
    >>> print(sweep.frontier[["threshold", "policy", "nmb", "icer"]].to_string(index=False))
     threshold   policy  nmb  icer
          10.0 policy 1  0.0   NaN
          80.0 policy 2 60.0  50.0
    """
    wtp_values = read_thresholds(thresholds)
    n_steps = check_horizon(model.horizon, horizon)
    named = make_named_policies(policies or {}, model, n_steps)
    outcome_models = discounting.make_outcome_models(model, effects, costs, n_steps)
    found_names: dict[str, Policy] = {}
    for wtp in wtp_values:
        net_benefit_model = discounting.make_net_benefit_model(model, effects, costs, wtp, n_steps)
        best = solve(net_benefit_model, n_steps, method, policy_class=policy_class)
        table = require_markov(best, "the sweep needs")
        if find_duplicate(table, named, outcome_models) is None:
            name = f"policy {len(found_names) + 1}"
            while name in named:
                name += " (found)"
            named[name], found_names[name] = table, best.policy
    outcomes = cost_effectiveness(model, effects, costs, named, n_steps, discounting=discounting)
    return WillingnessToPay(
        {**named, **found_names},
        tuple(found_names),
        outcomes,
        outcomes.frontier(wtp_values),
        outcomes.acceptability(wtp_values),
    )


# ---------------------------------------------------------------------- cohorts
@check_arguments
def cohort_trace(
    model: MMDP,
    policies: Mapping[str, object],
    horizon: int | None = None,
    *,
    groups: Sequence[Label] | None = None,
) -> pd.DataFrame:
    """Tabulate the share of a cohort in each state at each time, under each policy.

    Columns ``policy, time, state, share``. Labels of times, such as ages, come after the time.

    It is the mean over the models, with their weights. ``policies`` are given as for
    :func:`cost_effectiveness`; ``groups`` names a group for each state, to join those of a tunnel.
    :func:`mmdp.plots.cohort_trace` and :func:`mmdp.plots.survival` draw it.

    >>> import mmdp, mmdp.economics
    >>> P = [[[[0.5, 0.5], [0.8, 0.2]], [[0.0, 1.0], [0.0, 1.0]]]]
    >>> model = mmdp.MMDP(P, [[0, 0], [0, 0]], initial=[1, 0], states=["ill", "dead"],
    ...                   actions=["wait", "treat"])
    >>> trace = mmdp.economics.cohort_trace(model, {"never": "wait", "always": "treat"}, 3)
    >>> trace.pivot(index="time", columns=["policy", "state"], values="share").round(2).to_numpy()
    array([[1.  , 0.  , 1.  , 0.  ],
           [0.5 , 0.5 , 0.8 , 0.2 ],
           [0.25, 0.75, 0.64, 0.36]])
    """
    n_steps = check_horizon(model.horizon, horizon)
    state_groups = [str(x) for x in (model.state_labels if groups is None else groups)]
    if len(state_groups) != model.n_states:
        raise InputError(
            f"{len(state_groups)} groups for {model.n_states} states; give one for each"
        )
    rows = []
    for name, policy in make_named_policies(policies, model, n_steps).items():
        state_probs = pd.DataFrame(model_weights(model, policy).sum(axis=1))
        for state, shares in state_probs.T.groupby(state_groups, sort=False).sum().T.items():
            rows += [(name, t, state, x) for t, x in enumerate(shares.tolist())]
    frame = pd.DataFrame(rows, columns=["policy", "time", "state", "share"])
    return pd.DataFrame(model.time_labels.add_column(frame))
