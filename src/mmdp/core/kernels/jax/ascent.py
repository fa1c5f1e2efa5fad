"""CADP in compiled blocks of sweeps; between blocks the host looks at the best so far."""

from __future__ import annotations

import functools
import time
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mmdp.core.kernels.jax.arrays import (
    PROBLEM_SPECS,
    REPLICATED,
    DevicePlacement,
    ProblemArrays,
    Traced,
    enable_float64,
    model_spec,
    shard_over_models,
)
from mmdp.core.kernels.jax.passes import backward, forward
from mmdp.core.kernels.jax.step_ops import StepOps, Tuning, is_deterministic, make_step_ops
from mmdp.core.kernels.problem import AscentOptions, AscentResult, IntArray

MAX_BLOCK_SWEEPS = 256  # sweeps per block
CALLBACK_SECONDS = 0.03  # seconds per block if there is a callback

RUNNING, LOCAL_OPTIMUM, TOLERANCE = range(3)
STOP_REASONS: tuple[Literal["limit", "local_optimum", "tolerance"], ...] = (
    "limit",
    "local_optimum",
    "tolerance",
)


# ------------------------------------------------------------------ on the device
class AscentState(NamedTuple):
    """The state of an ascent."""

    policy: Traced  # (T, S)
    returns: Traced  # (M,)
    value: Traced
    n_sweeps: Traced
    stop_reason: Traced
    q: Traced | None  # (T, S, A, M) of the policy, if forward passes improve too


# how its arrays lie on several devices
STATE = AscentState(REPLICATED, model_spec(0), REPLICATED, REPLICATED, REPLICATED, model_spec(3))


@functools.partial(jax.jit, static_argnames=("horizon", "two_way", "tuning"))
def _initialize(
    x: ProblemArrays, init: Traced | None, *, horizon: int, two_way: bool, tuning: Tuning
) -> tuple[AscentState, Traced]:
    """Compute the first state of an ascent, and the values (1 or 2,) that led to it.

    The policy is that of WSU if there is no init. A randomized one is swept once, which makes it
    deterministic.
    """
    run = functools.partial(_initialize_shard, horizon=horizon, two_way=two_way, tuning=tuning)
    return shard_over_models(tuning.mesh, run, (PROBLEM_SPECS, REPLICATED), (STATE, REPLICATED))(
        x, init
    )


def _initialize_shard(
    x: ProblemArrays, init: Traced | None, *, horizon: int, two_way: bool, tuning: Tuning
) -> tuple[AscentState, Traced]:
    ops = make_step_ops(x, tuning)
    keep = ("actions", "q") if two_way else ("actions",)
    earlier_values = []
    if is_deterministic(init):
        first_values, _ = backward(ops, horizon, "policy", None, init)
        outputs = {"actions": init}
        if two_way:  # replaced by the first sweep; has its layout over devices
            shape = (horizon, ops.S, ops.A, first_values.shape[-1])
            outputs["q"] = jnp.broadcast_to(0.0 * first_values[:, None], shape)
    else:
        weights = x.weights[None, None]
        if init is not None:
            first_values, _ = backward(ops, horizon, "policy", None, init)
            earlier_values = [ops.mean_return(ops.compute_returns(first_values))]
            weights = forward(ops, init)[1]
        first_values, outputs = backward(ops, horizon, "weighted", weights, None, keep)
    returns = ops.compute_returns(first_values)
    value = ops.mean_return(returns)
    n_sweeps, stop_reason = jnp.int32(len(earlier_values)), jnp.int32(RUNNING)
    state = AscentState(outputs["actions"], returns, value, n_sweeps, stop_reason, outputs.get("q"))
    return state, jnp.stack([*earlier_values, value])


@functools.partial(jax.jit, static_argnames=("tuning",), donate_argnames=("state",))
def _run_sweeps(
    x: ProblemArrays, state: AscentState, tol: Traced, max_sweeps: Traced, *, tuning: Tuning
) -> tuple[AscentState, Traced]:
    """Run up to ``max_sweeps`` sweeps; return the state and the values after them."""
    run = functools.partial(_run_sweeps_shard, tuning=tuning)
    in_specs = (PROBLEM_SPECS, STATE, REPLICATED, REPLICATED)
    return shard_over_models(tuning.mesh, run, in_specs, (STATE, REPLICATED))(
        x, state, tol, max_sweeps
    )


def _run_sweeps_shard(
    x: ProblemArrays, state: AscentState, tol: Traced, max_sweeps: Traced, *, tuning: Tuning
) -> tuple[AscentState, Traced]:
    ops = make_step_ops(x, tuning)
    keep = ("actions",) if state.q is None else ("actions", "q")

    def is_running(loop: tuple[AscentState, Traced, Traced]) -> Traced:
        state, _, n = loop
        return (n < max_sweeps) & (state.stop_reason == RUNNING)

    def sweep(loop: tuple[AscentState, Traced, Traced]) -> tuple[AscentState, Traced, Traced]:
        state, trace, n = loop
        policy, b = forward(ops, state.policy, state.q, skip_improvement=state.n_sweeps == 0)
        first_values, outputs = backward(ops, len(policy), "weighted", b, policy, keep)
        state = _accept_improvement(ops, state, outputs, ops.compute_returns(first_values), tol)
        return state, trace.at[n].set(state.value), n + 1

    return lax.while_loop(is_running, sweep, (state, jnp.zeros(MAX_BLOCK_SWEEPS), 0))[:2]


def _accept_improvement(
    ops: StepOps, state: AscentState, outputs: dict[str, Traced], returns: Traced, tol: Traced
) -> AscentState:
    """Return the state after a sweep: the new actions if the value rises, else the old ones."""
    new_policy, value = outputs["actions"], ops.mean_return(returns)
    gain = value - state.value
    is_optimum = (new_policy == state.policy).all() | (gain <= 0)
    stop_reason = jnp.where(is_optimum, LOCAL_OPTIMUM, jnp.where(gain <= tol, TOLERANCE, RUNNING))
    return AscentState(
        policy=jnp.where(is_optimum, state.policy, new_policy),
        returns=jnp.where(is_optimum, state.returns, returns),
        value=jnp.where(is_optimum, state.value, value),
        n_sweeps=state.n_sweeps + 1,
        stop_reason=stop_reason.astype(jnp.int32),
        q=outputs.get("q"),
    )


# ------------------------------------------------------------------ on the host
def ascend(
    x: ProblemArrays,
    init: Traced | None,
    horizon: int,
    options: AscentOptions,
    tuning: Tuning,
    placement: DevicePlacement,
    n_models: int,
) -> AscentResult:
    """Run CADP from one init; the returns are those of this process's models."""
    ascent = _Ascent(x, init, horizon, options.two_way, tuning)
    callback, max_sweeps = options.callback, MAX_BLOCK_SWEEPS if options.callback is None else 1
    if callback is not None:
        ascent.run_sweeps(
            options.tol, 0
        )  # compiles now, so that the times below are those of sweeps
        callback(ascent.policy, ascent.value)
    while ascent.stop_code == RUNNING and ascent.n_sweeps < options.max_sweeps:
        start_time = time.perf_counter()
        has_improved = ascent.run_sweeps(
            options.tol, min(max_sweeps, options.max_sweeps - ascent.n_sweeps)
        )
        seconds = time.perf_counter() - start_time
        if callback is not None:
            if (
                placement.max_local_models is None
            ):  # several processes must not go by their own clocks
                max_sweeps = max(
                    1,
                    min(
                        2 * max_sweeps,
                        MAX_BLOCK_SWEEPS,
                        int(max_sweeps * CALLBACK_SECONDS / seconds),
                    ),
                )
            if has_improved:
                callback(ascent.policy, ascent.value)
    returns = placement.fetch(ascent.state.returns, n_models)
    return AscentResult(
        ascent.policy,
        returns,
        ascent.value,
        ascent.trace,
        ascent.n_sweeps,
        STOP_REASONS[ascent.stop_code],
    )


class _Ascent:
    """An ascent from one policy: its state on the device, and its trace on the host."""

    def __init__(
        self, x: ProblemArrays, init: Traced | None, horizon: int, two_way: bool, tuning: Tuning
    ) -> None:
        self.x, self.tuning = x, tuning
        with enable_float64():
            self.state, initial_trace = _initialize(
                x, init, horizon=horizon, two_way=two_way, tuning=tuning
            )
            self.trace: list[float] = np.asarray(initial_trace).tolist()
        self.n_sweeps, self.stop_code = len(self.trace) - 1, RUNNING

    @property
    def policy(self) -> IntArray:
        """The best policy so far, (T, S) actions."""
        return np.array(self.state.policy)

    @property
    def value(self) -> float:
        """The value of the best policy so far."""
        return self.trace[-1]

    def run_sweeps(self, tol: float, max_sweeps: int) -> bool:
        """Run up to ``max_sweeps`` sweeps; return whether one of them improved the policy."""
        with enable_float64():
            self.state, trace = _run_sweeps(self.x, self.state, tol, max_sweeps, tuning=self.tuning)
            trace, n_sweeps, stop_code = jax.device_get(
                (trace, self.state.n_sweeps, self.state.stop_reason)
            )
        n_improved = int(n_sweeps) - self.n_sweeps - (int(stop_code) == LOCAL_OPTIMUM)
        self.n_sweeps, self.stop_code = int(n_sweeps), int(stop_code)
        self.trace += trace[:n_improved].tolist()
        return n_improved > 0
