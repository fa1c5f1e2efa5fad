"""The backend that runs on accelerators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import jax
import numpy as np

from mmdp.core.kernels.ascent import ascend as ascend_with
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.cpu.backend import CpuEventProblem, CpuProblem
from mmdp.core.kernels.cpu.threads import default_n_threads
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.exchange import detect_lost_process
from mmdp.core.kernels.jax.arrays import DeviceArrays, DevicePlacement, Traced, enable_float64
from mmdp.core.kernels.jax.ascent import ascend
from mmdp.core.kernels.jax.changes import run_single_changes
from mmdp.core.kernels.jax.passes import run_backward, run_forward, run_push_forward, run_step
from mmdp.core.kernels.jax.step_ops import Tuning
from mmdp.core.kernels.jax.windowed import WindowedSweeper, needs_windows
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import (
    ActionChoice,
    Array,
    AscentOptions,
    AscentResult,
    BackwardResult,
    IntArray,
    PolicyTable,
    Problem,
    TableStorage,
)


class JaxBackend(BaseBackend):
    """The backend on a CPU, GPU or TPU by jax, in 64-bit arithmetic.

    Passes, single steps, ascents and rounds of single changes for an objective run there; bounds
    and episodes run on the CPU.

    Parameters
    ----------
    devices
        Devices to spread the models over (``jax.devices()``); the default one if None.
    tuning
        Options of the compiled code; chosen for the devices if None.

    The first call for a shape compiles for a second or so. A prepared problem holds its
    arrays on the device: the transitions go there once.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> JaxBackend().prepare(two.problem, 2).ascend([None])[0].value
    7.0
    """

    name = "jax"

    def __init__(
        self, devices: Sequence[jax.Device] | None = None, tuning: Tuning | None = None
    ) -> None:
        self.placement = DevicePlacement(None if devices is None else tuple(devices))
        self.tuning = Tuning.for_placement(self.placement) if tuning is None else tuning

    def prepare_storage(self, problem: Problem, horizon: int) -> PreparedProblem | None:
        problem_classes: dict[type, type[JaxProblem]] = {
            TableStorage: JaxProblem,
            ExogenousEvents: JaxEventProblem,
        }
        problem_class, placement = problem_classes.get(type(problem.storage)), self.placement
        if problem_class is None:
            return None
        if problem.n_shards > 1:  # spread over the devices of all processes
            placement = DevicePlacement(tuple(jax.devices()), problem.max_local_models)
        return problem_class(problem, horizon, placement, self.tuning._replace(mesh=placement.mesh))


class JaxProblem(CpuProblem):
    """A problem with tables on a device, or divided over several."""

    def __init__(
        self, problem: Problem, horizon: int, placement: DevicePlacement, tuning: Tuning
    ) -> None:
        super().__init__(problem, horizon, default_n_threads())
        placement.check_memory(problem)
        self.placement, self.tuning = placement, tuning
        self.device_arrays = DeviceArrays(placement, problem)

    def _set_problem(self, problem: Problem, horizon: int) -> None:
        super()._set_problem(problem, horizon)
        self.device_arrays = self.device_arrays.copy_cache()

    # ------------------------------------------------------------ one step
    def expect_next(self, t: int, v: Array) -> Array:
        return self._run_step(partial(run_step, rewards=False), t, v)

    def q_step(self, t: int, v: Array) -> Array:
        return self._run_step(partial(run_step, rewards=True), t, v)

    def push_forward(self, t: int, b: Array, policy_row: PolicyTable) -> Array:
        return self._run_step(run_push_forward, t, b, _to_policy_table(policy_row))

    def _run_step(
        self, function: Callable[..., Any], t: int, array: Array, *policy_row: Any
    ) -> Array:
        """Run one compiled step at time t with an array (S, M) and maybe a row of the policy."""
        with enable_float64(), detect_lost_process():
            x, put = self.device_arrays.get_arrays(self.problem), self.placement.put
            args = put(array, model_axis=1), *map(put, policy_row)
            return self._fetch_models(function(x, np.int32(t), *args, tuning=self.tuning))

    def _fetch_models(self, array: Traced) -> Array:
        fetched: Array = self.placement.fetch(array, self.problem.r.shape[3])
        return fetched

    # ------------------------------------------------------------ passes
    def _run_backward(  # type: ignore[override]  # rows chosen in Python go to numpy
        self,
        choice: ActionChoice,
        weights: Array | None,
        policy: PolicyTable | None,
        keep: Collection[str],
    ) -> BackwardResult:
        problem, placement = self.problem, self.placement
        outputs = {*keep} - ({"actions"} if choice == "policy" else set())
        outputs |= {"actions"} if choice == "weighted" else set()
        M = problem.r.shape[3]
        model_outputs = {"values", "q"} | ({"actions"} if choice == "per_model" else set())
        with enable_float64(), detect_lost_process():
            first_values, device_outputs = run_backward(
                self.device_arrays.get_arrays(problem),
                placement.put(weights, model_axis=-1),
                placement.put(_to_policy_table(policy)),
                horizon=self.horizon,
                choice=choice,
                keep=tuple(sorted(outputs)),
                tuning=self.tuning,
            )
            fetched = {
                name: placement.fetch(array, M if name in model_outputs else None)
                for name, array in device_outputs.items()
            }
            first_values = placement.fetch(first_values, M)
        actions, values, q = (fetched.get(name) for name in ("actions", "values", "q"))
        if choice == "policy" and "actions" in keep:
            is_table = policy is not None and policy.ndim == 2
            actions = np.zeros((self.horizon, problem.n_states), np.int32)
            actions[:] = policy if is_table else 0
        if values is not None:
            values = np.concatenate([values, problem.terminal[None]])
        if q is not None:
            q = np.where(problem.allowed[..., None], q, -np.inf)
        return BackwardResult(first_values, actions, values, fetched.get("gradient"), q)

    def forward(self, policy: PolicyTable) -> Array:
        with enable_float64(), detect_lost_process():
            x, table = (
                self.device_arrays.get_arrays(self.problem),
                self.placement.put(_to_policy_table(policy)),
            )
            return self._fetch_models(run_forward(x, table, tuning=self.tuning))

    # ------------------------------------------------------------ ascents
    def improve_objective(
        self, table: PolicyTable, rho: Array, formula: Any, min_gain: float
    ) -> tuple[IntArray, Array] | None:
        if self.tuning.mesh is not None:  # the order of the returns is that of all models
            return None
        with enable_float64():
            x, args = (
                self.device_arrays.get_arrays(self.problem),
                map(self.placement.put, (_to_policy_table(table), rho)),
            )
            params, formula_class = (np.float64(min_gain), *astuple(formula)), type(formula)
            actions, returns = run_single_changes(
                x, *args, *params, formula_class=formula_class, tuning=self.tuning
            )
            return np.array(actions), np.array(returns)

    def _run_ascents(  # type: ignore[override]
        self, inits: Iterable[PolicyTable | None], options: AscentOptions
    ) -> list[AscentResult]:
        """Run ascents in one compiled loop, or in blocks of sweeps if there is a callback."""
        problem, placement, horizon = self.problem, self.placement, self.horizon
        per_model = horizon * problem.n_states * (1 + options.two_way * problem.n_actions)
        placement.check_memory(problem, extra_per_model=per_model)  # b, and q if it is kept
        results = []
        for init in inits:
            with enable_float64():
                x, table = (
                    self.device_arrays.get_arrays(problem),
                    placement.put(_to_policy_table(init)),
                )
            with detect_lost_process():
                n_local_models = problem.r.shape[3]
                ascent = ascend(x, table, horizon, options, self.tuning, placement, n_local_models)
            results.append(ascent._replace(returns=problem.gather_models(ascent.returns)))
        return results


def _to_policy_table(policy: PolicyTable | None) -> PolicyTable | None:
    """Convert a policy, or one row of it, to 32-bit actions or 64-bit probabilities."""
    if policy is None:
        return None
    return np.asarray(policy, dtype=np.float64 if is_randomized(policy) else np.int32)


class JaxEventProblem(JaxProblem, CpuEventProblem):
    """A problem with shared events on a device."""

    def _run_ascents(  # type: ignore[override]
        self, inits: Iterable[PolicyTable | None], options: AscentOptions
    ) -> list[AscentResult]:
        """Run ascents; in 32-bit numbers, window by window, if b takes more than MAX_WEIGHT_BYTES.

        That is for the paper's sweeps; the returns of their last policies are in 64 bits.
        """
        is_single_device_paper = self.tuning.mesh is None and not options.two_way
        if not (is_single_device_paper and needs_windows(self.problem, self.horizon)):
            return super()._run_ascents(inits, options)
        with enable_float64():
            sweeper = WindowedSweeper(
                self.device_arrays.get_arrays(self.problem), self.problem, self.horizon, self.tuning
            )
        return [self._ascend_windowed(sweeper, init, options) for init in inits]

    def _ascend_windowed(
        self, sweeper: WindowedSweeper, init: PolicyTable | None, options: AscentOptions
    ) -> AscentResult:
        """Run an ascent in 32-bit numbers; compute its returns in 64 bits."""
        ascent = ascend_with(sweeper, init, *options.ascend_args)
        returns = self.compute_returns(self.backward("policy", policy=ascent.policy).first_values)
        value = float(returns @ self.problem.weights)
        return ascent._replace(returns=returns, value=value, is_single_precision=True)
