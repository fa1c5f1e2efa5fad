"""Policies: what a method returns and what is deployed."""

from mmdp.policy.markov import MarkovPolicy
from mmdp.policy.planner import Planner

__all__ = ["MarkovPolicy", "Planner"]
