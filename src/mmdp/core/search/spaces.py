"""The registry of search spaces by policy class."""

from __future__ import annotations

from mmdp.core.kernels.problem import SweepType
from mmdp.core.policies import Monotone, PolicyClass, Stationary, Tied, Tree
from mmdp.core.search.context import SolveContext
from mmdp.core.search.markov import MarkovSpace
from mmdp.core.search.rows import RestrictedMarkovSpace, RestrictedStationarySpace
from mmdp.core.search.space import SearchSpace
from mmdp.core.search.stationary import RepeatedRowSpace, StationarySpace
from mmdp.core.search.trees import TreeSpace

# Classes with coupled decisions; allowed actions are part of the prepared problem. Add your own
# policy class here.
MARKOV_SPACES: dict[type[PolicyClass], type[SearchSpace]] = {
    Monotone: RestrictedMarkovSpace,
    Tied: RestrictedMarkovSpace,
    Tree: TreeSpace,
    Stationary: RepeatedRowSpace,
}
STATIONARY_SPACES: dict[type[PolicyClass], type[SearchSpace]] = {
    Monotone: RestrictedStationarySpace,
    Tied: RestrictedStationarySpace,
    Tree: TreeSpace,
}


def make_space(context: SolveContext, sweep_type: SweepType = "two-way") -> SearchSpace:
    """Make the search space for the policy class and horizon of the context."""
    policy_class = type(context.policy_class)
    space_class = (
        STATIONARY_SPACES.get(policy_class, StationarySpace)
        if context.policy_class.is_infinite_horizon
        else MARKOV_SPACES.get(policy_class, MarkovSpace)
    )
    return space_class(context, sweep_type)
