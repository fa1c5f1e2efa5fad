"""CADP in compiled blocks of sweeps; between blocks the host looks at the best so far."""

from __future__ import annotations

import functools
import time
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mmdp.kernels.jax.arrays import (
    EVERYWHERE,
    Arrays,
    Place,
    Traced,
    arrays_by_model,
    by_model,
    double,
    spread,
)
from mmdp.kernels.jax.passes import backward, forward
from mmdp.kernels.jax.rows import Layout, Tuning, Wide, is_sharp, narrow
from mmdp.kernels.problem import Ascent, IntArray, Job

LONGEST = 256  # sweeps per block
WATCHED = 0.03  # seconds per block if there is a watch

RUNNING, MAXIMUM, TOLERANCE = range(3)
ENDS: tuple[Literal["limit", "maximum", "tolerance"], ...] = ("limit", "maximum", "tolerance")


# ------------------------------------------------------------------ on the device
class State(NamedTuple):
    """The state of ascents: policy (T, S[, K]), returns (M[, K]), the others () or (K,)."""

    policy: Traced
    returns: Traced
    value: Traced
    sweeps: Traced
    end: Traced
    q: Traced | None  # q of the policy, if forward passes improve too

    @staticmethod
    def by_model(wide: bool) -> State:
        """How its arrays lie on several devices."""
        same = EVERYWHERE
        return State(same, by_model(0), same, same, same, by_model(1 if wide else 3))


def _layout(x: Arrays, tuning: Tuning, policy: Traced | None) -> Layout:
    if tuning.wide:
        assert policy is not None
        return Wide(x, tuning, policy.shape[-1])
    return narrow(x, tuning)


@functools.partial(jax.jit, static_argnames=("horizon", "two_way", "tuning"))
def _open(
    x: Arrays, start: Traced | None, *, horizon: int, two_way: bool, tuning: Tuning
) -> tuple[State, Traced]:
    """The state at the start, and the values that led to it (1 or 2[, K]).

    WSU if there is no start. The first sweep of a randomised one makes it deterministic.
    """
    run = functools.partial(_opened, horizon=horizon, two_way=two_way, tuning=tuning)
    ins = (arrays_by_model(tuning.wide), EVERYWHERE)
    return spread(tuning.mesh, run, ins, (State.by_model(tuning.wide), EVERYWHERE))(x, start)


def _opened(
    x: Arrays, start: Traced | None, *, horizon: int, two_way: bool, tuning: Tuning
) -> tuple[State, Traced]:
    on = _layout(x, tuning, start)
    keep = ("actions", "q") if two_way else ("actions",)
    before = []
    if is_sharp(start):
        first, _ = backward(on, horizon, "given", None, start)
        found = {"actions": start}
        if two_way:  # replaced by the first sweep; has its layout over devices
            shape = (horizon, *first.shape[:-1], on.A, first.shape[-1])
            found["q"] = jnp.broadcast_to(0.0 * jnp.expand_dims(first, -2), shape)
    else:
        weights = x.weights[None, None]
        if start is not None:
            first, _ = backward(on, horizon, "given", None, start)
            before = [on.mean(on.returns(first))]
            weights = forward(on, start)[1]
        first, found = backward(on, horizon, "weighted", weights, None, keep)
    returns = on.returns(first)
    value = on.mean(returns)
    sweeps = jnp.full(value.shape, len(before), jnp.int32)
    end = jnp.full(value.shape, RUNNING, jnp.int32)
    state = State(found["actions"], returns, value, sweeps, end, found.get("q"))
    return state, jnp.stack([*before, value])


@functools.partial(jax.jit, static_argnames=("tuning",), donate_argnames=("state",))
def _block(
    x: Arrays, state: State, tol: Traced, most: Traced, *, tuning: Tuning
) -> tuple[State, Traced]:
    """Up to ``most`` sweeps, and (LONGEST[, K]) the values after them."""
    run, lie = functools.partial(_swept, tuning=tuning), State.by_model(tuning.wide)
    ins = (arrays_by_model(tuning.wide), lie, EVERYWHERE, EVERYWHERE)
    return spread(tuning.mesh, run, ins, (lie, EVERYWHERE))(x, state, tol, most)


def _swept(
    x: Arrays, state: State, tol: Traced, most: Traced, *, tuning: Tuning
) -> tuple[State, Traced]:
    on = _layout(x, tuning, state.policy)
    keep = ("actions",) if state.q is None else ("actions", "q")

    def unfinished(loop: tuple[State, Traced, Traced]) -> Traced:
        state, _, n = loop
        return (n < most) & (state.end == RUNNING).any()

    def sweep(loop: tuple[State, Traced, Traced]) -> tuple[State, Traced, Traced]:
        state, trace, n = loop
        policy, b = forward(on, state.policy, state.q, fresh=state.sweeps == 0)
        first, found = backward(on, len(policy), "weighted", b, policy, keep)
        state = _judged(on, state, found, on.returns(first), tol)
        return state, trace.at[n].set(state.value), n + 1

    trace = jnp.zeros((LONGEST, *state.value.shape))
    return lax.while_loop(unfinished, sweep, (state, trace, 0))[:2]


def _judged(
    on: Layout, state: State, found: dict[str, Traced], returns: Traced, tol: Traced
) -> State:
    """The state after a sweep that found these actions: taken only if the value rises."""
    improved, value = found["actions"], on.mean(returns)
    gain, running = value - state.value, state.end == RUNNING
    still = (improved == state.policy).all(axis=(0, 1)) | (gain <= 0)
    end = jnp.where(still, MAXIMUM, jnp.where(gain <= tol, TOLERANCE, RUNNING))
    taken = running & ~still
    return State(
        policy=jnp.where(taken, improved, state.policy),
        returns=jnp.where(taken, returns, state.returns),
        value=jnp.where(taken, value, state.value),
        sweeps=state.sweeps + running,
        end=jnp.where(running, end, state.end),
        q=found.get("q"),
    )


# ------------------------------------------------------------------ on the host
def ascend(
    x: Arrays, start: Traced | None, horizon: int, job: Job, tuning: Tuning, place: Place,
    models: int,
) -> list[Ascent]:  # fmt: skip
    """CADP from one start, or from the K starts (T, S, K) of a wide layout together.

    Returns are those of this process's ``models``.
    """
    ascents = _Ascents(x, start, horizon, job.two_way, tuning)
    watch, most = job.watch, LONGEST if job.watch is None else 1
    if watch is not None:
        ascents.climb(job.tol, 0)  # compiles now, so that the times below are those of sweeps
        watch(*ascents.best())
    while ascents.running and ascents.made < job.max_sweeps:
        began = time.perf_counter()
        improved = ascents.climb(job.tol, min(most, job.max_sweeps - ascents.made))
        seconds = time.perf_counter() - began
        if watch is not None:
            if place.longest is None:  # several processes must not go by their own clocks
                most = max(1, min(2 * most, LONGEST, int(most * WATCHED / seconds)))
            if improved:
                watch(*ascents.best())
    return ascents.results(place, models)


class _Ascents:
    """Ascents that run together: their state on the device and what the host knows of it."""

    def __init__(
        self, x: Arrays, start: Traced | None, horizon: int, two_way: bool, tuning: Tuning
    ) -> None:
        self.x, self.tuning = x, tuning
        with double():
            self.state, opening = _open(x, start, horizon=horizon, two_way=two_way, tuning=tuning)
            opened = np.asarray(opening)
        self.traces: list[list[float]] = opened.reshape(len(opened), -1).T.tolist()
        self.sweeps = np.full(len(self.traces), len(opened) - 1)
        self.ends = np.full(len(self.traces), RUNNING)
        self.shown: tuple[IntArray, float] | None = None

    @property
    def running(self) -> bool:
        return bool((self.ends == RUNNING).any())

    @property
    def made(self) -> int:
        """Sweeps of those that are running."""
        return int(self.sweeps.max())

    def climb(self, tol: float, most: int) -> bool:
        """Up to ``most`` sweeps; whether one of them improved a policy."""
        with double():
            self.state, trace = _block(self.x, self.state, tol, most, tuning=self.tuning)
            trace, sweeps, ends = jax.device_get((trace, self.state.sweeps, self.state.end))
        made, self.sweeps = np.atleast_1d(sweeps) - self.sweeps, np.atleast_1d(sweeps)
        self.ends = np.atleast_1d(ends)
        taken = np.maximum(made - (self.ends == MAXIMUM), 0)
        for n, known, new in zip(taken, self.traces, trace.reshape(LONGEST, -1).T, strict=True):
            known += new[:n].tolist()
        return bool(taken.any())

    def best(self) -> tuple[IntArray, float]:
        """The best policy so far and its value; the policy is copied only if it is new."""
        values = [trace[-1] for trace in self.traces]
        k = int(np.argmax(values))
        if self.shown is None or values[k] > self.shown[1]:
            self.shown = self._policies()[k], values[k]
        return self.shown

    def results(self, place: Place, models: int) -> list[Ascent]:
        returns = place.fetch(self.state.returns, models, axis=0).reshape(models, -1).T
        parts = zip(self._policies(), returns, self.traces, self.sweeps, self.ends, strict=True)
        return [
            Ascent(policy, own, trace[-1], trace, int(sweeps), ENDS[end])
            for policy, own, trace, sweeps, end in parts
        ]

    def _policies(self) -> IntArray:
        """(K, T, S)."""
        table = np.asarray(self.state.policy)
        return np.ascontiguousarray(np.moveaxis(table.reshape(*table.shape[:2], -1), -1, 0))
