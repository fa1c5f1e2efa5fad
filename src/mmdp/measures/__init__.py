"""Decision measures: value of information, near-optimal actions, stability, risk, simplicity.

The distribution of returns over models (quantiles, CVaR, regret) is in
:class:`mmdp.Evaluation`; the measures here need the model or more than one solve.
"""

from mmdp.measures.gradients import model_weights, policy_gradient
from mmdp.measures.information import Estimate, evpi, evppi, voi_table
from mmdp.measures.memory import value_by_nodes, with_memory_gain
from mmdp.measures.near_optimal import NearOptimalActions, near_optimal_actions
from mmdp.measures.risk import RiskFrontier, risk_frontier
from mmdp.measures.robustness import Stability, sample_size_curve, stability
from mmdp.measures.simplicity import leaf_table, value_by_leaves
from mmdp.measures.stakes import ValueAtStake, value_at_stake
from mmdp.measures.tables import policy_table

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
    "with_memory_gain",
]
