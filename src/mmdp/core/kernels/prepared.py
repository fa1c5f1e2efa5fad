"""Prepared problems: a problem with all that a backend makes from its arrays.

A :class:`PreparedProblem` owns matrices, arrays on a device and threads, for all computations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, runtime_checkable

import numpy as np

from mmdp.core.kernels.numpy.bounds import BoundPasses
from mmdp.core.kernels.numpy.controllers import ControllerPasses
from mmdp.core.kernels.numpy.episodes import EpisodeSimulator
from mmdp.core.kernels.problem import Array, PolicyTable, Problem, TransitionRow


class PreparedProblem(ControllerPasses, BoundPasses, EpisodeSimulator):
    """All operations of a problem that was prepared on a backend.

    The operator is in :mod:`mmdp.core.kernels.operator`, the passes over time in
    :mod:`mmdp.core.kernels.numpy.passes`, the rest in the other files of that folder. Controllers,
    occupancies and pairs read the tables of the storage instead, episodes its samplers.
    """


class SwitchingProblem(PreparedProblem):
    """A prepared problem whose models change by the chain K after every step.

    v is worth K v before the change, and b moves on by K. The fused passes of the backend do
    not apply, so all passes are those of :class:`PreparedProblem`, by steps of ``base``.
    """

    has_independent_models = False

    def __init__(self, base: PreparedProblem, problem: Problem) -> None:
        super().__init__(problem, base.horizon)
        self.base = base

    def expect_next(self, t: int, v: Array) -> Array:
        return self.base.expect_next(t, self.problem.expect_models(v))

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        return self.problem.push_models(self.base.push_forward(t, b, policy_row))

    def get_row(self, t: int, s: int, a: int) -> TransitionRow:
        return self.base.get_row(t, s, a)

    def forward_by_start(self, run_forward: Callable[[Self], Array]) -> Array:
        """Run a forward pass for each initial model; return (..., M, M), the initial model last."""
        return np.stack(
            [run_forward(self.replace(weights=unit)) for unit in np.eye(self.problem.n_models)], -1
        )

    def credit_to_start(self, d: Array, gains: Array) -> Array:
        return np.einsum("...mk,...m->...k", d, gains)

    def joint_weights(self, d: Array, weights: Array) -> Array:
        return d @ weights


@runtime_checkable
class Backend(Protocol):
    """A way to compute: it prepares problems. Derive from :class:`BaseBackend` to write one."""

    name: str

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        """Prepare a problem over ``horizon`` decisions."""
        ...


class BaseBackend:
    """A backend that prepares the storages it knows; numpy prepares the others.

    Models that change become a :class:`SwitchingProblem` around that.
    """

    name: str

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem | None:
        """Prepare models that never change; return None if the storage is not supported here."""
        return None

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        """Prepare a problem over ``horizon`` decisions for everything that follows."""
        without_switching = problem._replace(model_transitions=None)
        prepared = self.prepare_storage(
            without_switching, horizon
        ) or without_switching.storage.prepare(without_switching, horizon)
        return (
            prepared if problem.model_transitions is None else SwitchingProblem(prepared, problem)
        )
