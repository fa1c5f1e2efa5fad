"""The algorithms, one per module; METHODS maps names to the classes that solve() accepts."""

from __future__ import annotations

from mmdp.core.methods.base import Callback, Method, MethodResult, Progress, SolveContext
from mmdp.core.methods.belief_grid import BeliefGrid
from mmdp.core.methods.cadp import CADP
from mmdp.core.methods.exact import Exact
from mmdp.core.methods.gradient import MirrorAscent, NaturalGradient
from mmdp.core.methods.milp import MILP
from mmdp.core.methods.mixts import MixTS
from mmdp.core.methods.mvp import MVP
from mmdp.core.methods.oracle import Oracle
from mmdp.core.methods.pomcp import POMCP
from mmdp.core.methods.qmdp import QMDP
from mmdp.core.methods.registry import METHODS, Capabilities, list_capabilities, methods_supporting
from mmdp.core.methods.rollout import Rollout
from mmdp.core.methods.spec import ProblemSpec
from mmdp.core.methods.wsu import WSU

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
