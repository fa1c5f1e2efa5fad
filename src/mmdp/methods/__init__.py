"""The algorithms, one per module; METHODS maps names to the classes that solve() accepts."""

from __future__ import annotations

from mmdp.methods.base import Callback, Method, MethodResult, Progress, SolveContext
from mmdp.methods.belief_grid import BeliefGrid
from mmdp.methods.cadp import CADP
from mmdp.methods.exact import Exact
from mmdp.methods.gradient import MirrorAscent, NaturalGradient
from mmdp.methods.milp import MILP
from mmdp.methods.mixts import MixTS
from mmdp.methods.mvp import MVP
from mmdp.methods.oracle import Oracle
from mmdp.methods.pomcp import POMCP
from mmdp.methods.qmdp import QMDP
from mmdp.methods.registry import METHODS, Capabilities, list_capabilities, methods_supporting
from mmdp.methods.rollout import Rollout
from mmdp.methods.spec import ProblemSpec
from mmdp.methods.wsu import WSU

__all__ = [
    "CADP",
    "METHODS",
    "MILP",
    "MVP",
    "POMCP",
    "QMDP",
    "WSU",
    "BeliefGrid",
    "Callback",
    "Capabilities",
    "Exact",
    "Method",
    "MethodResult",
    "MirrorAscent",
    "MixTS",
    "NaturalGradient",
    "Oracle",
    "ProblemSpec",
    "Progress",
    "Rollout",
    "SolveContext",
    "list_capabilities",
    "methods_supporting",
]
