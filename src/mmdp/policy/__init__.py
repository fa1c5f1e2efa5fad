"""Policies: what a decision may depend on, what a method returns, and what is deployed."""

from mmdp.policy.base import Policy
from mmdp.policy.kinds import Belief, PolicyKind
from mmdp.policy.markov import Markov, MarkovPolicy, markov_policy
from mmdp.policy.memory import Memory, MemoryPolicy
from mmdp.policy.planner import Planner, followed
from mmdp.policy.restricted import Fixed, Monotone, Tied
from mmdp.policy.stationary import Stationary, StationaryPolicy
from mmdp.policy.table import KINDS, read_kind
from mmdp.policy.tree import Tree, TreePolicy

__all__ = [
    "KINDS", "Belief", "Fixed", "Markov", "MarkovPolicy", "Memory", "MemoryPolicy", "Monotone",
    "Planner", "Policy", "PolicyKind", "Stationary", "StationaryPolicy", "Tied", "Tree",
    "TreePolicy", "followed", "markov_policy", "read_kind",
]  # fmt: skip
