"""The backward and the forward pass, compiled whole."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mmdp.core.kernels.jax.arrays import (
    PROBLEM_SPECS,
    REPLICATED,
    ProblemArrays,
    Traced,
    model_spec,
    shard_over_models,
)
from mmdp.core.kernels.jax.step_ops import (
    StepOps,
    Tuning,
    at_time,
    is_deterministic,
    make_step_ops,
    reduce_actions,
)
from mmdp.core.kernels.problem import TIE_RTOL, ActionChoice

KeptArrays = dict[str, Traced]
TIE_RTOL_FLOAT32 = 1e-6  # the same as TIE for sums of 32-bit numbers


def choose_actions(
    G: Traced, incumbent: Traced | None = None, is_unvisited: Traced | None = None
) -> Traced:
    """Maximize G over axis 1 (-inf: not allowed); see numpy.passes.choose_actions."""
    best = reduce_actions(jnp.maximum, G)
    scale = reduce_actions(jnp.maximum, jnp.where(jnp.isfinite(G), jnp.abs(G), 0.0))
    rtol = TIE_RTOL if G.dtype == jnp.float64 else TIE_RTOL_FLOAT32
    is_tied = (best - rtol * scale)[:, None] <= G
    action_ids = jnp.arange(G.shape[1], dtype=jnp.int32)
    action = reduce_actions(jnp.minimum, jnp.where(is_tied, action_ids, len(action_ids) - 1))
    if incumbent is not None:
        keeps_incumbent = (
            reduce_actions(jnp.logical_or, is_tied & (incumbent[:, None] == action_ids))
            | is_unvisited
        )
        action = jnp.where(keeps_incumbent, incumbent, action)
    return action


def backward(
    ops: StepOps,
    horizon: int,
    choice: ActionChoice,
    weights: Traced | None,
    policy: Traced | None,
    keep: Collection[str] = (),
    v: Traced | None = None,
) -> tuple[Traced, KeptArrays]:
    """Run a backward pass; return the values at the first step and the arrays that ``keep`` names.

    Kept q are those of all actions, whether allowed or not. v: the values after the last step, by
    default the terminal ones.
    """
    is_table = is_deterministic(policy)
    is_unvisited = (
        ops.is_unvisited(weights) if choice == "weighted" and policy is not None else None
    )

    def step(v: Traced, t: Traced) -> tuple[Traced, KeptArrays]:
        pi = None if policy is None else policy[t]
        if choice == "policy" and is_table and set(keep) <= {"values"}:
            v = ops.evaluate_step(t, v, pi)
            return v, {"values": v} if keep else {}
        q = ops.q_step(t, v)
        outputs = {"q": q}
        if weights is not None:
            outputs["gradient"] = ops.compute_gradient(t, at_time(weights, t), q)
        if choice == "per_model":
            masked = jnp.where(ops.at_time(ops.x.allowed, t)[..., None], q, -jnp.inf)
            outputs["actions"] = masked.argmax(axis=1).astype(jnp.int32)
            v = reduce_actions(jnp.maximum, masked)
        elif choice == "weighted":
            incumbent = () if is_unvisited is None else (pi, at_time(is_unvisited, t))
            outputs["actions"] = choose_actions(outputs["gradient"], *incumbent)
            v = ops.average_q(outputs["actions"], q)
        else:
            v = ops.average_q(pi, q)
        outputs["values"] = v
        return v, {name: outputs[name] for name in keep if name in outputs}

    last_values = ops.x.terminal if v is None else v
    unroll = min(ops.tuning.unroll, horizon)
    return lax.scan(step, last_values, jnp.arange(horizon), reverse=True, unroll=unroll)


def forward(
    ops: StepOps,
    policy: Traced,
    q: Traced | None = None,
    skip_improvement: Traced = False,
    b: Traced | None = None,
) -> tuple[Traced, Traced]:
    """Compute b over time under a policy; improve the policy on the way if q is given.

    b: that at the first step, by default the initial one.
    """

    def step(b: Traced, t: Traced) -> tuple[Traced, tuple[Traced, Traced]]:
        pi = policy[t]
        if q is not None:
            G, is_unvisited = ops.gradient_and_unvisited(t, b, q[t])
            pi = choose_actions(G, pi, is_unvisited | skip_improvement)
        return ops.push_forward(t, b, pi), (pi, b)

    horizon = len(policy)
    unroll = min(ops.tuning.unroll, horizon)
    first_weights = ops.x.initial * ops.x.weights if b is None else b
    return lax.scan(step, first_weights, jnp.arange(horizon), unroll=unroll)[1]


# ------------------------------------------------------------------ single passes
@functools.partial(jax.jit, static_argnames=("horizon", "choice", "keep", "tuning"))
def run_backward(
    x: ProblemArrays,
    weights: Traced | None,
    policy: Traced | None,
    *,
    horizon: int,
    choice: ActionChoice,
    keep: tuple[str, ...],
    tuning: Tuning,
) -> Any:
    def run(x: ProblemArrays, weights: Traced | None, policy: Traced | None) -> Any:
        return backward(make_step_ops(x, tuning), horizon, choice, weights, policy, keep)

    action_specs = {"actions": model_spec(2)} if choice == "per_model" else {}
    model_specs = {"values": model_spec(2), "q": model_spec(3), **action_specs}
    out_specs = {name: model_specs.get(name, REPLICATED) for name in keep}
    in_specs = (PROBLEM_SPECS, model_spec(2), REPLICATED)
    return shard_over_models(tuning.mesh, run, in_specs, (model_spec(1), out_specs))(
        x, weights, policy
    )


@functools.partial(jax.jit, static_argnames=("tuning",))
def run_forward(x: ProblemArrays, policy: Traced, *, tuning: Tuning) -> Traced:
    run, in_specs = (
        lambda x, policy: forward(make_step_ops(x, tuning), policy)[1],
        (PROBLEM_SPECS, REPLICATED),
    )
    return shard_over_models(tuning.mesh, run, in_specs, model_spec(2))(x, policy)
