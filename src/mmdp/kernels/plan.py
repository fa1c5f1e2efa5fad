"""Plans: a problem laid out once on a machine, for everything that is computed from it.

A :class:`Plan` owns what is made from a problem's arrays: matrices, arrays on a device, threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, runtime_checkable

import numpy as np

from mmdp.kernels.numpy.bounds import Bounds
from mmdp.kernels.numpy.controllers import Controllers
from mmdp.kernels.numpy.episodes import Episodes
from mmdp.kernels.problem import Array, Problem, Row, Table


class Plan(Controllers, Bounds, Episodes):
    """Everything that is computed from a problem, by ``expect`` and ``push``.

    The operator is in :mod:`mmdp.kernels.operator`, the passes over time in
    :mod:`mmdp.kernels.numpy.passes`, the rest in the other files of that folder. Controllers,
    occupancies and pairs read the tables of the storage instead, episodes its moves.
    """


class Drifting(Plan):
    """Any plan whose models change by the chain K after every step.

    v is worth K v before the change, and b moves on by K. The kernel's own fused passes do not
    apply, so all passes are those of :class:`Plan`, on the machine of the plan inside.
    """

    apart = False

    def __init__(self, inner: Plan, problem: Problem) -> None:
        super().__init__(problem, inner.horizon)
        self.inner = inner

    def expect(self, t: int, v: Array) -> Array:
        return self.inner.expect(t, self.problem.ahead(v))

    def push(self, t: int, b: Array, row: Table) -> Array:
        return self.problem.moved(self.inner.push(t, b, row))

    def rows(self, t: int, s: int, a: int) -> Row:
        return self.inner.rows(t, s, a)

    def by_start(self, found: Callable[[Self], Array]) -> Array:
        """(..., M, M): by the model now and, last, the model at the start."""
        return np.stack([found(self.but(weights=e)) for e in np.eye(self.problem.n_models)], -1)

    def felt(self, d: Array, x: Array) -> Array:
        return np.einsum("...mk,...m->...k", d, x)

    def rising(self, d: Array, weights: Array) -> Array:
        return d @ weights


@runtime_checkable
class Kernel(Protocol):
    """A machine: it lays out problems. :class:`Machine` is one to derive from."""

    name: str

    def plan(self, problem: Problem, horizon: int) -> Plan: ...


class Machine:
    """A kernel with plans of its own for the storages that it knows.

    Other storages are laid out in plain numpy. Models that change are an adapter around that.
    """

    name: str

    def lay_out(self, problem: Problem, horizon: int) -> Plan | None:
        """The plan of models that never change; None if the storage is not known here."""
        return None

    def plan(self, problem: Problem, horizon: int) -> Plan:
        """The problem over ``horizon`` decisions, laid out once for everything that follows."""
        still = problem._replace(drift=None)
        made = self.lay_out(still, horizon) or still.storage.plan(still, horizon)
        return made if problem.drift is None else Drifting(made, problem)
