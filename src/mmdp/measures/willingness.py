"""Cost and effect apart: the optimal policy by willingness to pay.

With k the price that one unit of effect is worth, the net monetary benefit of a policy is
NMB_k = k E - C. For each k the best policy is found; the cost-effectiveness acceptability curve
of a policy is the weight of the models in which it has the largest NMB_k among the policies
considered, and the frontier (Fenwick, Claxton and Sculpher, Health Economics 10(8), 2001) is
that weight for the policy of largest expected NMB_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import InputError
from mmdp.interrupts import unanswered
from mmdp.methods import Method
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy
from mmdp.solve import evaluate, solve

Array = npt.NDArray[np.float64]
TIE = 1e-9


@dataclass(frozen=True, eq=False)
class WillingnessToPay:
    """What :func:`willingness_to_pay` found.

    ``policies`` by name; ``effects`` and ``costs`` (D, M) of each policy in each model;
    ``frontier``: one row per threshold with ``threshold, policy, effect, cost, nmb,
    probability`` (the acceptability frontier) and ``icer`` (added cost per added effect against
    the policy of the next lower part of the frontier; missing if the policy does not
    change); ``acceptability``: threshold, policy, probability, nmb for every policy.
    """

    policies: Mapping[str, MarkovPolicy]
    effects: Array
    costs: Array
    frontier: pd.DataFrame
    acceptability: pd.DataFrame


@unanswered()
def willingness_to_pay(
    model: MMDP,
    effects: npt.ArrayLike,
    costs: npt.ArrayLike,
    thresholds: Sequence[float],
    horizon: int | None = None,
    *,
    method: str | Method = "cadp",
    policies: Mapping[str, MarkovPolicy] | None = None,
) -> WillingnessToPay:
    """Sweep the willingness to pay: the best policy at each threshold, and how certain it is.

    Parameters
    ----------
    model
        Gives transitions, initial distribution, weights and discount; its rewards are not used.
    effects, costs
        Effect and cost of an action, shaped like ``rewards`` of :class:`mmdp.MMDP`: (S, A),
        (M, S, A) or (T, M, S, A). Costs are positive.
    thresholds
        Willingness to pay for one unit of effect.
    policies
        Other policies to consider, by name, such as current practice.

    A policy found at one threshold is considered at all others, so the frontier's effect never
    falls as the threshold grows.

    >>> import mmdp, mmdp.measures
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]])
    >>> found = mmdp.measures.willingness_to_pay(
    ...     one, effects=[[0.0, 2.0]], costs=[[0.0, 100.0]], thresholds=[10, 80], horizon=1)
    >>> print(found.frontier[["threshold", "policy", "nmb", "icer"]].to_string(index=False))
     threshold   policy  nmb  icer
          10.0 policy 1  0.0   NaN
          80.0 policy 2 60.0  50.0
    """
    levels = _levels(thresholds)
    if model.terminal.any():
        raise InputError(
            "the model has terminal values, which are neither cost nor effect; put them into "
            "effects and costs and use model.replace(terminal=None)"
        )
    effect_model, cost_model = model.replace(rewards=effects), model.replace(rewards=costs)
    worth, price = np.asarray(effects, np.float64), np.asarray(costs, np.float64)
    if worth.shape != price.shape:
        worth, price = effect_model.rewards, cost_model.rewards
    known: dict[str, MarkovPolicy] = dict(policies or {})
    for level in levels:
        found = solve(model.replace(rewards=level * worth - price), horizon, method)
        if not isinstance(found.policy, MarkovPolicy):
            raise InputError(f"the sweep needs Markov policies; {found.method} has none")
        if not any(found.policy == other for other in known.values()):
            number = len(known) - len(policies or {}) + 1
            known[f"policy {number}"] = found.policy
    steps = found.policy.horizon
    for policy in known.values():
        policy.check(model, steps)
    e = np.stack([evaluate(x, effect_model).returns for x in known.values()])
    c = np.stack([evaluate(x, cost_model).returns for x in known.values()])
    names = list(known)
    acceptability = _acceptability(levels, names, e, c, model.weights)
    frontier = _frontier(levels, names, e @ model.weights, c @ model.weights, acceptability)
    return WillingnessToPay(known, e, c, frontier, acceptability)


def _levels(thresholds: Sequence[float]) -> Array:
    levels = np.unique(np.asarray(thresholds, dtype=np.float64))
    if levels.ndim != 1 or not levels.size or not np.isfinite(levels).all() or levels[0] < 0:
        raise InputError("thresholds must be finite numbers, none negative, at least one")
    return levels


def _acceptability(
    levels: Array, names: list[str], effects: Array, costs: Array, weights: Array
) -> pd.DataFrame:
    """Probability of being the best policy; models in which several are best share it."""
    rows: list[tuple[Any, ...]] = []
    for level in levels:
        nmb = level * effects - costs
        top = nmb.max(axis=0)
        winners = nmb >= top - TIE * np.maximum(1.0, np.abs(top))
        share = (winners / winners.sum(axis=0)) @ weights
        rows += zip([level] * len(names), names, share, nmb @ weights, strict=True)
    return pd.DataFrame(rows, columns=["threshold", "policy", "probability", "nmb"])


def _frontier(
    levels: Array, names: list[str], effect: Array, cost: Array, acceptability: pd.DataFrame
) -> pd.DataFrame:
    probability = acceptability["probability"].to_numpy().reshape(len(levels), -1)
    rows: list[tuple[Any, ...]] = []
    before: int | None = None
    for i, level in enumerate(levels):
        nmb = level * effect - cost
        top = nmb.max()
        tied = nmb >= top - TIE * max(1.0, abs(top))
        best = before if before is not None and tied[before] else int(tied.argmax())
        icer = np.nan
        if before is not None and best != before:
            icer = (cost[best] - cost[before]) / (effect[best] - effect[before])
        rows.append(
            (level, names[best], effect[best], cost[best], nmb[best], probability[i, best], icer)
        )
        before = best
    columns = ["threshold", "policy", "effect", "cost", "nmb", "probability", "icer"]
    return pd.DataFrame(rows, columns=columns)
