"""The best policy at each willingness to pay, with costs and effects kept separate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.core import notebook
from mmdp.core.arguments import check_arguments
from mmdp.core.methods import Method
from mmdp.core.model import MMDP
from mmdp.core.policies import Policy, PolicyClass, require_markov
from mmdp.core.solve import solve
from mmdp.core.text import format_number, pluralize
from mmdp.core.timing import propagate_interrupts
from mmdp.core.validate import check_horizon
from mmdp.insight.economics.comparators import (
    cost_effectiveness,
    find_duplicate,
    make_named_policies,
)
from mmdp.insight.economics.discounting import Amounts, OutcomeDiscounting
from mmdp.insight.economics.outcomes import CostEffectiveness, read_thresholds

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class WillingnessToPay:
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

    def __repr__(self) -> str:
        table = self.frontier.to_string(index=False, float_format=format_number, na_rep="")
        return f"{self._format_title()}\n{table}"

    def _repr_html_(self) -> str:
        """Render the frontier as HTML, for notebooks."""
        return notebook.render_frame(self._format_title(), self.frontier)

    def _format_title(self) -> str:
        """Format the title of the plot."""
        n_policies = pluralize(len(self.policies), "policy", "policies")
        return f"The best of {n_policies} by willingness to pay"

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
