"""CADP's sweeps, each compiled whole; q of two-way sweeps stays on the device."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from mmdp.core.kernels.exchange import detect_lost_process
from mmdp.core.kernels.jax.arrays import (
    PROBLEM_SPECS,
    REPLICATED,
    ProblemArrays,
    Traced,
    enable_float64,
    model_spec,
    shard_over_models,
    to_policy_table,
)
from mmdp.core.kernels.jax.passes import backward, forward, run_backward
from mmdp.core.kernels.jax.step_ops import Tuning, is_deterministic, make_step_ops
from mmdp.core.kernels.numpy.passes import TableSweeper
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.shapes import Array, IntArray

if TYPE_CHECKING:
    from mmdp.core.kernels.jax.backend import JaxProblem


class DeviceSweeper(TableSweeper):
    """Sweeps on the device."""

    prepared: JaxProblem
    last: tuple[PolicyTable | None, Traced] = (None, None)  # policy, here and there

    def initialize(self, init: PolicyTable | None) -> tuple[PolicyTable, Array]:
        prepared, put = self.prepared, self.prepared.placement.put
        self.is_first_sweep, self.q = True, None  # its memory is free for the next one
        with enable_float64(), detect_lost_process():
            first_values, outputs = run_backward(
                prepared.get_device_arrays(),
                put(self.problem.prior_weights(), by_model=True) if init is None else None,
                put(to_policy_table(init)),
                horizon=prepared.horizon,
                choice="weighted" if init is None else "policy",
                keep=(("actions",) if init is None else ()) + (("q",) if self.two_way else ()),
                tuning=prepared.tuning,
            )
            self.q = outputs.get("q")
            if init is None:
                init = self._fetch_actions(outputs["actions"])
            return init, prepared.compute_returns(prepared.fetch_models(first_values))

    def sweep(self, policy: PolicyTable) -> tuple[IntArray, Array]:
        prepared, (last_policy, table) = self.prepared, self.last
        with enable_float64(), detect_lost_process():
            if policy is not last_policy:
                table = prepared.placement.put(to_policy_table(policy))
            actions, returns, self.q = _sweep(
                prepared.get_device_arrays(),
                table,
                self.q,
                self.is_first_sweep,
                tuning=prepared.tuning,
            )
            self.is_first_sweep = False
            returns.copy_to_host_async()
            policy = self._fetch_actions(actions)
            return policy, self.problem.gather_models(prepared.fetch_models(returns))

    def _fetch_actions(self, actions: Traced) -> IntArray:
        policy = np.array(actions)
        self.last = policy, actions
        return policy


@functools.partial(jax.jit, static_argnames=("tuning",), donate_argnames=("q",))
def _sweep(
    x: ProblemArrays, policy: Traced, q: Traced | None, is_first: Traced, *, tuning: Tuning
) -> tuple[Traced, Traced, Traced | None]:
    """Compute actions (T, S), returns (M,) and q; with q the forward pass improves too.

    The forward pass of the first sweep does not.
    """

    def run(x: ProblemArrays, policy: Traced, q: Traced, is_first: Traced) -> tuple[Traced, ...]:
        ops, keep = make_step_ops(x, tuning), ("actions",) if q is None else ("actions", "q")
        is_table = is_deterministic(policy)
        policy, b = forward(ops, policy, q if is_table else None, skip_improvement=is_first)
        incumbent = policy if is_table else None
        first_values, outputs = backward(ops, len(policy), "weighted", b, incumbent, keep)
        return outputs["actions"], ops.compute_returns(first_values), outputs.get("q")

    in_specs = (PROBLEM_SPECS, REPLICATED, model_spec(3), REPLICATED)
    out_specs = (REPLICATED, model_spec(0), model_spec(3))
    return shard_over_models(tuning.mesh, run, in_specs, out_specs)(
        x, policy, q, jnp.asarray(is_first)
    )
