"""The backward and the forward pass, compiled whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mmdp.kernels.jax.arrays import (
    EVERYWHERE,
    Arrays,
    Traced,
    arrays_by_model,
    by_model,
    spread,
)
from mmdp.kernels.jax.rows import Layout, Tuning, at, fold, is_sharp, narrow
from mmdp.kernels.problem import TIE, Choice

Kept = dict[str, Traced]
ARRAYS = arrays_by_model(wide=False)
SHORT_TIE = 1e-6  # the same as TIE for sums of 32-bit numbers


def choose(G: Traced, incumbent: Traced | None = None, idle: Traced | None = None) -> Traced:
    """Maximisers of G over axis 1 (-inf: not allowed); see numpy.passes.choose."""
    best = fold(jnp.maximum, G, 1)
    size = fold(jnp.maximum, jnp.where(jnp.isfinite(G), jnp.abs(G), 0.0), 1)
    tie = TIE if G.dtype == jnp.float64 else SHORT_TIE
    tied = (best - tie * size)[:, None] <= G
    A = G.shape[1]
    number = jnp.arange(A, dtype=jnp.int32).reshape((1, -1) + (1,) * (G.ndim - 2))
    action = fold(jnp.minimum, jnp.where(tied, number, A - 1), 1)
    if incumbent is not None:
        keep = fold(jnp.logical_or, tied & (incumbent[:, None] == number), 1) | idle
        action = jnp.where(keep, incumbent, action)
    return action


def backward(
    on: Layout, horizon: int, choice: Choice, weights: Traced | None, policy: Traced | None,
    keep: Collection[str] = (),
) -> tuple[Traced, Kept]:  # fmt: skip
    """Values at the first step and what ``keep`` names, stacked over time.

    Kept q are those of all actions, whether allowed or not.
    """
    decide = _decider(on, choice, weights, policy)

    def step(v: Traced, t: Traced) -> tuple[Traced, Kept]:
        if choice == "given" and is_sharp(policy) and set(keep) <= {"values"}:
            assert policy is not None
            v = on.along(t, v, policy[t])
            return v, {"values": v} if keep else {}
        q = on.q(t, v)
        v, found = decide(t, q)
        found |= {"values": v, "q": q}
        return v, {name: found[name] for name in keep if name in found}

    steps = jnp.arange(horizon)
    unroll = min(on.tuning.unroll, horizon)
    return lax.scan(step, on.terminal(), steps, reverse=True, unroll=unroll)


def _decider(
    on: Layout, choice: Choice, weights: Traced | None, policy: Traced | None
) -> Callable[[Traced, Traced], tuple[Traced, Kept]]:
    """(t, q) -> v and what led to it, under a kind of choice."""
    idle = on.idle(weights) if choice == "weighted" and policy is not None else None

    def own(t: Traced, q: Traced) -> tuple[Traced, Kept]:
        masked = jnp.where(at(on.x.allowed, t)[..., None], q, -jnp.inf)
        actions = masked.argmax(axis=1).astype(jnp.int32)
        return fold(jnp.maximum, masked, 1), {"actions": actions}

    def weighted(t: Traced, q: Traced) -> tuple[Traced, Kept]:
        G = on.gradient(t, at(weights, t), q)
        incumbent = () if policy is None else (policy[t], at(idle, t))
        actions = choose(G, *incumbent)
        return on.average(actions, q), {"actions": actions, "gradient": G}

    def given(t: Traced, q: Traced) -> tuple[Traced, Kept]:
        assert policy is not None
        found = {} if weights is None else {"gradient": on.gradient(t, at(weights, t), q)}
        return on.average(policy[t], q), found

    return {"own": own, "weighted": weighted, "given": given}[choice]


def forward(
    on: Layout, policy: Traced, q: Traced | None = None, fresh: Traced = False
) -> tuple[Traced, Traced]:
    """The policy and b over time; with q of all steps, improved on the way unless ``fresh``."""

    def step(b: Traced, t: Traced) -> tuple[Traced, tuple[Traced, Traced]]:
        pi = policy[t]
        if q is not None:
            G, idle = on.gradient_and_idle(t, b, q[t])
            pi = choose(G, pi, idle | fresh)
        return on.flow(t, b, pi), (pi, b)

    horizon = len(policy)
    unroll = min(on.tuning.unroll, horizon)
    return lax.scan(step, on.start(), jnp.arange(horizon), unroll=unroll)[1]


# ------------------------------------------------------------------ single passes
@functools.partial(jax.jit, static_argnames=("horizon", "choice", "keep", "tuning"))
def run_backward(
    x: Arrays, weights: Traced | None, policy: Traced | None, *, horizon: int, choice: Choice,
    keep: tuple[str, ...], tuning: Tuning,
) -> Any:  # fmt: skip
    def run(x: Arrays, weights: Traced | None, policy: Traced | None) -> Any:
        return backward(narrow(x, tuning), horizon, choice, weights, policy, keep)

    own = {"actions": by_model(2)} if choice == "own" else {}
    found = {"values": by_model(2), "q": by_model(3), **own}
    kept = {name: found.get(name, EVERYWHERE) for name in keep}
    ins = (ARRAYS, by_model(2), EVERYWHERE)
    return spread(tuning.mesh, run, ins, (by_model(1), kept))(x, weights, policy)


@functools.partial(jax.jit, static_argnames=("tuning",))
def run_forward(x: Arrays, policy: Traced, *, tuning: Tuning) -> Any:
    run, ins = lambda x, policy: forward(narrow(x, tuning), policy)[1], (ARRAYS, EVERYWHERE)
    return spread(tuning.mesh, run, ins, by_model(2))(x, policy)


# ------------------------------------------------------------------ single steps
@functools.partial(jax.jit, static_argnames=("rewards", "tuning"))
def run_step(x: Arrays, t: Traced, v: Traced, *, rewards: bool, tuning: Tuning) -> Any:
    """q, or P v alone."""

    def run(x: Arrays, v: Traced) -> Traced:
        on = narrow(x, tuning)
        return on.q(t, v) if rewards else on.expect(t, v)

    return spread(tuning.mesh, run, (ARRAYS, by_model(1)), by_model(2))(x, v)


@functools.partial(jax.jit, static_argnames=("tuning",))
def run_push(x: Arrays, t: Traced, b: Traced, pi: Traced, *, tuning: Tuning) -> Any:
    run = lambda x, *given: narrow(x, tuning).flow(t, *given)
    ins = (ARRAYS, by_model(1), EVERYWHERE)
    return spread(tuning.mesh, run, ins, by_model(1))(x, b, pi)
