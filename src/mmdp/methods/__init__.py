"""The algorithms, one per file; METHODS maps the names that solve() accepts."""

from __future__ import annotations

from mmdp.methods.base import Callback, Context, Method, Outcome, Progress
from mmdp.methods.belief_grid import BeliefGrid
from mmdp.methods.cadp import CADP
from mmdp.methods.exact import Exact
from mmdp.methods.gradient import Gradient, Mirror
from mmdp.methods.milp import MILP
from mmdp.methods.mixts import MixTS
from mmdp.methods.mvp import MVP
from mmdp.methods.oracle import Oracle
from mmdp.methods.pomcp import POMCP
from mmdp.methods.qmdp import QMDP
from mmdp.methods.question import Question
from mmdp.methods.rollout import Rollout
from mmdp.methods.table import METHODS, Capabilities, able, capabilities
from mmdp.methods.wsu import WSU

__all__ = [
    "CADP", "METHODS", "MILP", "MVP", "POMCP", "QMDP", "WSU", "BeliefGrid", "Callback",
    "Capabilities", "Context", "Exact", "Gradient", "Method", "Mirror", "MixTS", "Oracle",
    "Outcome", "Progress", "Question", "Rollout", "able", "capabilities",
]  # fmt: skip
