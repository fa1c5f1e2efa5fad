"""Policies and policy classes: Markov, stationary, tree, controller and belief policies."""

from mmdp.policies.base import Policy
from mmdp.policies.classes import Belief, PolicyClass
from mmdp.policies.controller import Memory, MemoryPolicy
from mmdp.policies.markov import Markov, MarkovPolicy, require_markov
from mmdp.policies.planner import Planner, as_policy
from mmdp.policies.registry import POLICY_CLASSES, as_policy_class
from mmdp.policies.restricted import Fixed, Monotone, Tied
from mmdp.policies.stationary import Stationary, StationaryPolicy
from mmdp.policies.tree import Tree, TreePolicy

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
