"""Policies and policy classes: Markov, stationary, tree, controller and belief policies."""

from mmdp.core.arguments import as_instance, check_arguments
from mmdp.core.policies.base import Belief, Planner, Policy, PolicyClass, as_policy
from mmdp.core.policies.controller import Memory, MemoryPolicy
from mmdp.core.policies.markov import (
    Markov,
    MarkovPolicy,
    Stationary,
    StationaryPolicy,
    require_markov,
)
from mmdp.core.policies.restricted import Fixed, Monotone, Tied
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

POLICY_CLASSES: dict[str, type[PolicyClass]] = {
    policy_class.name: policy_class
    for policy_class in (Markov, Memory, Stationary, Tied, Monotone, Fixed, Tree, Belief)
}


@check_arguments
def as_policy_class(policy_class: object) -> PolicyClass:
    """Return the policy class for a name, a class or an object; InputError for anything else.

    >>> as_policy_class("markov"), as_policy_class(Monotone())
    (Markov(), Monotone(states=None, actions=None))
    """
    return as_instance(policy_class, POLICY_CLASSES, PolicyClass, "policy_class", "mmdp.policies")
