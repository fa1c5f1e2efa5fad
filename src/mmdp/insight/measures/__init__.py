"""Decision measures: value of information, near-optimal actions, stability, risk, simplicity.

The distribution of returns over models (quantiles, CVaR, regret) is in
:class:`mmdp.Evaluation`; the measures here need the model or more than one solve.
"""

from mmdp.insight.measures.decisions import (
    NearOptimalActions,
    model_weights,
    near_optimal_actions,
    policy_gradient,
    policy_table,
)
from mmdp.insight.measures.information import Estimate, evpi, evppi, voi_table
from mmdp.insight.measures.risk import (
    RiskFrontier,
    Stability,
    risk_frontier,
    sample_size_curve,
    stability,
)
from mmdp.insight.measures.simplicity import leaf_table, value_by_leaves, value_by_nodes
from mmdp.insight.measures.stakes import ValueAtStake, value_at_stake

__all__ = [
    "Estimate",
    "NearOptimalActions",
    "RiskFrontier",
    "Stability",
    "ValueAtStake",
    "evpi",
    "evppi",
    "leaf_table",
    "model_weights",
    "near_optimal_actions",
    "policy_gradient",
    "policy_table",
    "risk_frontier",
    "sample_size_curve",
    "stability",
    "value_at_stake",
    "value_by_leaves",
    "value_by_nodes",
    "voi_table",
]
