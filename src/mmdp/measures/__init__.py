"""Decision measures: what a policy says, how sure it is, and what knowing more is worth.

The distribution of returns over models (quantiles, CVaR, regret) is in
:class:`mmdp.Evaluation`; the measures here need the model or more than one solve.
"""

from mmdp.measures.choices import Freedom, freedom
from mmdp.measures.information import Estimate, evpi, evppi, information_table
from mmdp.measures.memory import memory_gain, value_of_memory
from mmdp.measures.robustness import Stability, enough_models, stability
from mmdp.measures.safety import Frontier, frontier
from mmdp.measures.simplicity import leaf_table, value_of_leaves
from mmdp.measures.stakes import Stake, stake
from mmdp.measures.tables import policy_table

__all__ = [
    "Estimate", "Freedom", "Frontier", "Stability", "Stake", "enough_models", "evpi", "evppi",
    "freedom", "frontier", "information_table", "leaf_table", "memory_gain", "policy_table",
    "stability", "stake",
    "value_of_leaves", "value_of_memory",
]  # fmt: skip
