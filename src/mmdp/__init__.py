"""mmdp: one policy that is good over every plausible model of the world."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mmdp._version import __version__
from mmdp.bounds import Bound, bound
from mmdp.errors import InputError
from mmdp.methods import (
    CADP,
    METHODS,
    MILP,
    MVP,
    POMCP,
    QMDP,
    WSU,
    BeliefGrid,
    Exact,
    Gradient,
    Mirror,
    MixTS,
    Oracle,
    Progress,
    Rollout,
)
from mmdp.model import MMDP
from mmdp.objective import (
    Custom,
    CVaR,
    Entropic,
    EVaR,
    Mean,
    MeanCVaR,
    Objective,
    VaR,
    WorstCase,
)
from mmdp.policy import (
    Fixed,
    Markov,
    MarkovPolicy,
    Memory,
    MemoryPolicy,
    Monotone,
    Planner,
    PolicyKind,
    Stationary,
    StationaryPolicy,
    Tied,
    Tree,
    TreePolicy,
)
from mmdp.simulate import simulate
from mmdp.solution import Evaluation, Provenance, Solution, Status
from mmdp.solve import evaluate, gradient, model_weights, solve
from mmdp.study import study

if TYPE_CHECKING:
    from mmdp import domains as domains
    from mmdp import economics as economics
    from mmdp import ecosystem as ecosystem
    from mmdp import hosts as hosts
    from mmdp import io as io
    from mmdp import measures as measures
    from mmdp import plots as plots
    from mmdp import posterior as posterior
    from mmdp import report as report
    from mmdp import testing as testing
    from mmdp.exports import export as export
    from mmdp.functions import Grid as Grid
    from mmdp.functions import from_step as from_step
    from mmdp.io import load as load
    from mmdp.io import load_policy as load_policy
    from mmdp.io import save as save
    from mmdp.io import save_policy as save_policy
    from mmdp.measures import freedom as freedom
    from mmdp.measures import frontier as frontier
    from mmdp.measures import value_of_leaves as value_of_leaves
    from mmdp.measures import value_of_memory as value_of_memory
    from mmdp.posterior import Prior as Prior
    from mmdp.posterior import Rewards as Rewards
    from mmdp.posterior import fit as fit
    from mmdp.posterior import from_draws as from_draws

__all__ = [
    "CADP",
    "METHODS",
    "MILP",
    "MMDP",
    "MVP",
    "POMCP",
    "QMDP",
    "WSU",
    "BeliefGrid",
    "Bound",
    "CVaR",
    "Custom",
    "EVaR",
    "Entropic",
    "Evaluation",
    "Exact",
    "Fixed",
    "Gradient",
    "Grid",
    "InputError",
    "Markov",
    "MarkovPolicy",
    "Mean",
    "MeanCVaR",
    "Memory",
    "MemoryPolicy",
    "Mirror",
    "MixTS",
    "Monotone",
    "Objective",
    "Oracle",
    "Planner",
    "PolicyKind",
    "Prior",
    "Progress",
    "Provenance",
    "Rewards",
    "Rollout",
    "Solution",
    "Stationary",
    "StationaryPolicy",
    "Status",
    "Tied",
    "Tree",
    "TreePolicy",
    "VaR",
    "WorstCase",
    "__version__",
    "bound",
    "domains",
    "economics",
    "ecosystem",
    "evaluate",
    "export",
    "fit",
    "freedom",
    "from_draws",
    "from_step",
    "frontier",
    "gradient",
    "hosts",
    "io",
    "load",
    "load_policy",
    "measures",
    "model_weights",
    "plots",
    "posterior",
    "report",
    "save",
    "save_policy",
    "simulate",
    "solve",
    "study",
    "testing",
    "value_of_leaves",
    "value_of_memory",
]  # fmt: skip

_MODULES = {
    "domains", "economics", "ecosystem", "hosts", "io", "measures", "plots", "posterior", "report",
    "testing",
}  # fmt: skip  # loaded on first use: they import pandas etc.
_ELSEWHERE = {
    "Grid": "functions", "Prior": "posterior", "Rewards": "posterior", "export": "exports",
    "fit": "posterior", "freedom": "measures", "from_draws": "posterior",
    "from_step": "functions", "frontier": "measures", "load": "io",
    "load_policy": "io", "save": "io", "save_policy": "io",
    "value_of_leaves": "measures", "value_of_memory": "measures",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"mmdp.{name}")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(f"mmdp.{_ELSEWHERE[name]}"), name)
    raise AttributeError(f"module 'mmdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
