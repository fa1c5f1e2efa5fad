"""mmdp: one policy that is good over every plausible model of the world.

Start with :func:`solve`, :func:`evaluate` and :func:`bound` on an :class:`MMDP`; the classes of
methods, objectives and policies are in ``mmdp.methods``, ``mmdp.objectives``, ``mmdp.policies``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mmdp._version import __version__
from mmdp.core.bounds import Bound, bound
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.simulate import simulate
from mmdp.core.solution import Evaluation, Solution, Status
from mmdp.core.solve import evaluate, solve
from mmdp.insight.study import study

if TYPE_CHECKING:
    from mmdp import (
        distributed,
        domains,
        economics,
        interop,
        io,
        measures,
        methods,
        objectives,
        plots,
        policies,
        posterior,
        report,
        solution,
        testing,
    )
    from mmdp.data.functions import Grid, from_step
    from mmdp.data.io import load, load_policy, save, save_policy
    from mmdp.data.posterior import fit, from_samples
    from mmdp.insight.exports import export

# loaded on first use, as modules are: they import numba, pandas or matplotlib
_LAZY_FUNCTIONS = {
    "Grid": "data.functions",
    "export": "insight.exports",
    "fit": "data.posterior",
    "from_samples": "data.posterior",
    "from_step": "data.functions",
    "load": "data.io",
    "load_policy": "data.io",
    "save": "data.io",
    "save_policy": "data.io",
}

__all__ = [
    "MMDP",
    "Bound",
    "Evaluation",
    "Grid",
    "InputError",
    "Solution",
    "Status",
    "__version__",
    "bound",
    "distributed",
    "domains",
    "economics",
    "evaluate",
    "export",
    "fit",
    "from_samples",
    "from_step",
    "interop",
    "io",
    "load",
    "load_policy",
    "measures",
    "methods",
    "objectives",
    "plots",
    "policies",
    "posterior",
    "report",
    "save",
    "save_policy",
    "simulate",
    "solution",
    "solve",
    "study",
    "testing",
]


def __getattr__(name: str) -> object:
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(f"mmdp.{_LAZY_FUNCTIONS[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"mmdp.{name}")
    raise AttributeError(f"module 'mmdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
