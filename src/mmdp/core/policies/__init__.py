"""Policies and policy classes: Markov, stationary, tree, controller and belief policies."""

from mmdp.core.policies.base import Policy
from mmdp.core.policies.classes import Belief, PolicyClass
from mmdp.core.policies.controller import Memory, MemoryPolicy
from mmdp.core.policies.markov import Markov, MarkovPolicy, require_markov
from mmdp.core.policies.planner import Planner, as_policy
from mmdp.core.policies.registry import POLICY_CLASSES, as_policy_class
from mmdp.core.policies.restricted import Fixed, Monotone, Tied
from mmdp.core.policies.stationary import Stationary, StationaryPolicy
from mmdp.core.policies.tree import Tree, TreePolicy

__all__ = [
    "POLICY_CLASSES",
    "Belief",
    "Fixed",
    "Markov",
    "MarkovPolicy",
    "Memory",
    "MemoryPolicy",
    "Monotone",
    "Planner",
    "Policy",
    "PolicyClass",
    "Stationary",
    "StationaryPolicy",
    "Tied",
    "Tree",
    "TreePolicy",
    "as_policy",
    "as_policy_class",
    "require_markov",
]
