"""The backend that runs on accelerators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any

import jax
import numpy as np

from mmdp.core.kernels.cpu.backend import CpuProblem
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.exchange import detect_lost_process
from mmdp.core.kernels.jax.arrays import (
    DeviceArrays,
    DevicePlacement,
    ProblemArrays,
    Traced,
    enable_float64,
    to_policy_table,
)
from mmdp.core.kernels.jax.ascent import DeviceSweeper
from mmdp.core.kernels.jax.changes import run_single_changes
from mmdp.core.kernels.jax.passes import run_backward, run_forward
from mmdp.core.kernels.jax.step_ops import Tuning
from mmdp.core.kernels.jax.windowed import Float32Sweeper, needs_windows
from mmdp.core.kernels.numpy.passes import TableSweeper
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import (
    ActionChoice,
    BackwardResult,
    PolicyTable,
    Problem,
)
from mmdp.core.shapes import Array, IntArray


class JaxBackend(BaseBackend):
    """The backend on a CPU, GPU or TPU by jax, in 64-bit arithmetic.

    Passes, ascents and rounds of single changes for an objective run there; single steps, bounds
    and episodes run on the CPU.

    Parameters
    ----------
    devices
        Devices to spread the models over (``jax.devices()``); the default one if None.

    The first call for a shape compiles for a second or so. A prepared problem holds its
    arrays on the device: the transitions go there once.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> JaxBackend().prepare(two.problem, 2).ascend([None])[0].value
    7.0
    """

    name = "jax"

    def __init__(self, devices: Sequence[jax.Device] | None = None) -> None:
        self.placement = DevicePlacement(None if devices is None else tuple(devices))
        self.tuning = Tuning.for_placement(self.placement)

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem | None:
        placement = self.placement
        if not problem.storage.is_compiled:
            return None
        if problem.n_shards > 1:  # spread over the devices of all processes
            placement = DevicePlacement(tuple(jax.devices()), problem.max_local_models)
        return JaxProblem(problem, horizon, placement, self.tuning._replace(mesh=placement.mesh))


class JaxProblem(CpuProblem):
    """A problem with tables on a device, or divided over several."""

    def __init__(
        self, problem: Problem, horizon: int, placement: DevicePlacement, tuning: Tuning
    ) -> None:
        super().__init__(problem, horizon, None)
        placement.check_memory(problem)
        self.placement, self.tuning = placement, tuning
        self.device_arrays = DeviceArrays(placement, problem)

    def _set_problem(self, problem: Problem, horizon: int) -> None:
        super()._set_problem(problem, horizon)
        self.device_arrays = self.device_arrays.copy_cache()

    def get_device_arrays(self) -> ProblemArrays:
        """Return the problem on the device."""
        return self.device_arrays.get_arrays(self.problem)

    def fetch_models(self, array: Traced) -> Array:
        """Copy an array (..., M) of this process's models to the host."""
        return self.placement.fetch(array, self.problem.r.shape[3])

    # ------------------------------------------------------------ passes
    def _run_backward(  # type: ignore[override]  # rows chosen in Python go to numpy
        self,
        choice: ActionChoice,
        weights: Array | None,
        policy: PolicyTable | None,
        keep: Collection[str],
    ) -> BackwardResult:
        problem, placement = self.problem, self.placement
        M = problem.r.shape[3]
        model_outputs = {"values", "q"} | ({"actions"} if choice == "per_model" else set())
        with enable_float64(), detect_lost_process():
            first_values, device_outputs = run_backward(
                self.get_device_arrays(),
                placement.put(weights, by_model=True),
                placement.put(to_policy_table(policy)),
                horizon=self.horizon,
                choice=choice,
                keep=tuple(sorted(keep)),
                tuning=self.tuning,
            )
            fetched = {
                name: placement.fetch(array, M if name in model_outputs else None)
                for name, array in device_outputs.items()
            }
            first_values = placement.fetch(first_values, M)
        if "values" in fetched:
            fetched["values"] = np.concatenate([fetched["values"], problem.terminal[None]])
        if "q" in fetched:
            fetched["q"] = np.where(problem.allowed[..., None], fetched["q"], -np.inf)
        return BackwardResult(first_values, **fetched)

    def forward(self, policy: PolicyTable) -> Array:
        with enable_float64(), detect_lost_process():
            x, table = self.get_device_arrays(), self.placement.put(to_policy_table(policy))
            return self.fetch_models(run_forward(x, table, tuning=self.tuning))

    # ------------------------------------------------------------ ascents
    def improve_objective(
        self, table: PolicyTable, rho: Array, formula: Any, min_gain: float
    ) -> tuple[IntArray, Array] | None:
        if self.tuning.mesh is not None:  # the order of the returns is that of all models
            return None
        with enable_float64():
            x, args = (
                self.get_device_arrays(),
                map(self.placement.put, (to_policy_table(table), rho)),
            )
            params, formula_class = (np.float64(min_gain), *astuple(formula)), type(formula)
            actions, returns = run_single_changes(
                x, *args, *params, formula_class=formula_class, tuning=self.tuning
            )
            return np.array(actions), np.array(returns)

    def make_sweeper(self, two_way: bool) -> TableSweeper:
        """Make sweeps that are compiled whole.

        The paper's sweeps over shared events are made window by window in 32-bit numbers if b
        takes more than MAX_WEIGHT_BYTES; the returns of their last policies are in 64 bits.
        """
        problem, placement, horizon = self.problem, self.placement, self.horizon
        is_paper_of_events = isinstance(problem.storage, ExogenousEvents) and not two_way
        if is_paper_of_events and placement.mesh is None and needs_windows(problem, horizon):
            return Float32Sweeper(self, two_way)
        per_model = horizon * problem.n_states * (1 + two_way * problem.n_actions)
        placement.check_memory(problem, extra_per_model=per_model)  # b, and q if it is kept
        return DeviceSweeper(self, two_way)
