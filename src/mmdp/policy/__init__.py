"""Policies: what a decision may depend on, what a method returns, and what is deployed."""

from mmdp.policy.kinds import Belief, ExactPolicy, PolicyKind
from mmdp.policy.markov import Markov, MarkovPolicy
from mmdp.policy.memory import Memory, MemoryPolicy
from mmdp.policy.planner import Planner
from mmdp.policy.restricted import Fixed, Monotone, Tied
from mmdp.policy.stationary import Stationary, StationaryPolicy
from mmdp.policy.table import KINDS, read_kind

PolicyTable = MarkovPolicy | StationaryPolicy | MemoryPolicy  # what a file can hold

__all__ = [
    "KINDS", "Belief", "ExactPolicy", "Fixed", "Markov", "MarkovPolicy", "Memory", "MemoryPolicy",
    "Monotone", "Planner", "PolicyKind", "PolicyTable", "Stationary",
    "StationaryPolicy", "Tied", "read_kind",
]  # fmt: skip
