"""The algorithms, one per file; METHODS maps the names that solve() accepts."""

from __future__ import annotations

from mmdp.methods.base import Callback, Context, Method, Outcome, Progress
from mmdp.methods.cadp import CADP
from mmdp.methods.exact import Exact
from mmdp.methods.gradient import Gradient, Mirror
from mmdp.methods.milp import MILP
from mmdp.methods.mixts import MixTS
from mmdp.methods.mvp import MVP
from mmdp.methods.oracle import Oracle
from mmdp.methods.pomcp import POMCP
from mmdp.methods.qmdp import QMDP
from mmdp.methods.rollout import Rollout
from mmdp.methods.wsu import WSU

METHODS: dict[str, type[Method]] = {
    "cadp": CADP,
    "wsu": WSU,
    "mvp": MVP,
    "gradient": Gradient,
    "mirror": Mirror,
    "oracle": Oracle,
    "qmdp": QMDP,
    "mixts": MixTS,
    "pomcp": POMCP,
    "rollout": Rollout,
    "exact": Exact,
    "milp": MILP,
}

PLANNERS = ("qmdp", "mixts", "pomcp", "rollout")  # policies with memory
MARKOV_METHODS = ("cadp", "wsu", "mvp", "gradient", "mirror")

__all__ = [
    "CADP", "MARKOV_METHODS", "METHODS", "MILP", "MVP", "PLANNERS", "POMCP", "QMDP", "WSU",
    "Callback", "Context", "Exact", "Gradient", "Method", "Mirror", "MixTS", "Oracle", "Outcome",
    "Progress", "Rollout",
]  # fmt: skip
