"""Policies and policy classes: Markov, stationary, tree, controller and belief policies."""

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
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
from mmdp.core.text import did_you_mean, join_or

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
    if isinstance(policy_class, PolicyClass):
        return policy_class
    if isinstance(policy_class, type) and issubclass(policy_class, PolicyClass):
        return policy_class.make_default()
    if not isinstance(policy_class, str):
        raise InputError(
            "policy_class must be the name of a policy class or an object such as "
            f"mmdp.policies.Monotone(), not {policy_class!r}"
        )
    if policy_class not in POLICY_CLASSES:
        raise InputError(
            f"no policy class is called {did_you_mean(policy_class, POLICY_CLASSES)}; "
            f"choose {join_or(POLICY_CLASSES)}"
        )
    return POLICY_CLASSES[policy_class].make_default()
