"""Costs and effects kept separate: the best policy at each willingness to pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp import notebook
from mmdp.arguments import checked
from mmdp.clock import unanswered
from mmdp.economics.comparators import cost_effectiveness, named_policies, twin
from mmdp.economics.counting import Amounts, Counting
from mmdp.economics.outcomes import CostEffectiveness, read_thresholds
from mmdp.methods import Method
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy, PolicyKind, markov_policy
from mmdp.solve import solve
from mmdp.validate import check_horizon
from mmdp.words import counted, number

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class WillingnessToPay:
    """What :func:`willingness_to_pay` found.

    ``policies`` by name, those that were given first; ``found``: the names of the others;
    ``outcomes``: cost and effect of each in each model
    (:class:`CostEffectiveness`, which also answers ``icers()``, ``evppi`` and ``evsi``);
    ``frontier``: one row per threshold with ``threshold, policy, effect, cost, nmb, probability,
    icer, evpi`` (:meth:`CostEffectiveness.frontier`); ``acceptability``: ``threshold, policy,
    probability, nmb, loss`` for every policy.
    """

    policies: Mapping[str, MarkovPolicy]
    found: tuple[str, ...]
    outcomes: CostEffectiveness
    frontier: pd.DataFrame
    acceptability: pd.DataFrame

    def __repr__(self) -> str:
        shown = self.frontier.to_string(index=False, float_format=number, na_rep="")
        return f"{self._title()}\n{shown}"

    def _repr_html_(self) -> str:
        """For notebooks: the frontier."""
        return notebook.table(self._title(), self.frontier)

    def _title(self) -> str:
        known = counted(len(self.policies), "policy", "policies")
        return f"The best of {known} by willingness to pay"

    @property
    def effects(self) -> Array:
        """(D, M) effect of each policy in each model."""
        return self.outcomes.effects

    @property
    def costs(self) -> Array:
        """(D, M) cost of each policy in each model."""
        return self.outcomes.costs


@checked
@unanswered()
def willingness_to_pay(
    model: MMDP,
    effects: Amounts,
    costs: Amounts,
    thresholds: Sequence[float],
    horizon: int | None = None,
    *,
    method: str | Method = "cadp",
    policy: str | PolicyKind | None = None,
    policies: Mapping[str, Any] | None = None,
    counting: Counting = Counting(),  # noqa: B008
) -> WillingnessToPay:
    """Sweep the willingness to pay: the best policy at each threshold, and how certain it is.

    Parameters
    ----------
    model, effects, costs, counting
        As for :func:`cost_effectiveness`.
    thresholds
        Willingness to pay for one unit of effect.
    policy
        Kind of the policies that are found, as for :func:`mmdp.solve`, such as ``mmdp.Tied``.
        What knowing the model is worth within that kind:
        ``mmdp.measures.evpi(priced, method=mmdp.solve(priced, policy=kind))``, with ``priced``
        from :meth:`Counting.net_benefit`.
    policies
        Other policies to consider, by name: current practice, or fixed strategies such as
        ``{"never treat": "wait"}``; see :func:`cost_effectiveness`.

    A policy found at one threshold is considered at all others, so the frontier's effect never
    falls as the threshold grows. One with the cost and effect of another in every model is not
    listed again.

    >>> import mmdp, mmdp.economics
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]])
    >>> found = mmdp.economics.willingness_to_pay(
    ...     one, effects=[[0.0, 2.0]], costs=[[0.0, 100.0]], thresholds=[10, 80], horizon=1)
    >>> print(found.frontier[["threshold", "policy", "nmb", "icer"]].to_string(index=False))
     threshold   policy  nmb  icer
          10.0 policy 1  0.0   NaN
          80.0 policy 2 60.0  50.0
    """
    levels = read_thresholds(thresholds)
    steps = check_horizon(model.horizon, horizon)
    known = named_policies(policies or {}, model, steps)
    parts = counting.models(model, effects, costs, steps)
    found: list[str] = []
    for level in levels:
        priced = counting.net_benefit(model, effects, costs, level, steps)
        best = markov_policy(solve(priced, steps, method, policy=policy), "the sweep needs")
        if twin(best, known, parts) is None:
            found.append(_fresh(f"policy {len(found) + 1}", known))
            known[found[-1]] = best
    outcomes = cost_effectiveness(model, effects, costs, known, steps, counting=counting)
    return WillingnessToPay(
        known, tuple(found), outcomes, outcomes.frontier(levels), outcomes.acceptability(levels)
    )


def _fresh(name: str, known: Mapping[str, Any]) -> str:
    """The name, marked if someone has it already."""
    return name if name not in known else _fresh(f"{name} (found)", known)
