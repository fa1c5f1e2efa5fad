"""mmdp: one policy that is good over every plausible model of the world.

Start with :func:`solve`, :func:`evaluate` and :func:`bound` on an :class:`MMDP`; the classes of
methods, objectives and policies are in ``mmdp.methods``, ``mmdp.objectives``, ``mmdp.policies``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mmdp._version import __version__
from mmdp.bounds import Bound, bound
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.simulate import simulate
from mmdp.solution import Evaluation, Solution, Status
from mmdp.solve import evaluate, solve
from mmdp.study import study

if TYPE_CHECKING:
    from mmdp import distributed as distributed
    from mmdp import domains as domains
    from mmdp import economics as economics
    from mmdp import interop as interop
    from mmdp import io as io
    from mmdp import measures as measures
    from mmdp import methods as methods
    from mmdp import objectives as objectives
    from mmdp import plots as plots
    from mmdp import policies as policies
    from mmdp import posterior as posterior
    from mmdp import report as report
    from mmdp import solution as solution
    from mmdp import testing as testing
    from mmdp.exports import export as export
    from mmdp.functions import Grid as Grid
    from mmdp.functions import from_step as from_step
    from mmdp.io import load as load
    from mmdp.io import load_policy as load_policy
    from mmdp.io import save as save
    from mmdp.io import save_policy as save_policy
    from mmdp.posterior import fit as fit
    from mmdp.posterior import from_samples as from_samples

# loaded on first use: they import numba, pandas or matplotlib
_LAZY_MODULES = {
    "distributed",
    "domains",
    "economics",
    "interop",
    "io",
    "measures",
    "methods",
    "objectives",
    "plots",
    "policies",
    "posterior",
    "report",
    "solution",
    "testing",
}
_LAZY_FUNCTIONS = {
    "Grid": "functions",
    "export": "exports",
    "fit": "posterior",
    "from_samples": "posterior",
    "from_step": "functions",
    "load": "io",
    "load_policy": "io",
    "save": "io",
    "save_policy": "io",
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


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"mmdp.{name}")
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(f"mmdp.{_LAZY_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'mmdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
