"""One time step in both layouts: row sums P v, their transpose, and sums over models or actions."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mmdp.core.kernels.jax.arrays import MODEL_AXIS, DevicePlacement, ProblemArrays, Traced

MAX_UNROLLED_TERMS = 64  # terms up to which a sum is written out, to have many loads under way
MAX_UNROLLED_NUMBERS = 2**16  # of all models in such a sum; with more, a reduction is faster
MAX_UNROLLED_ACTIONS = (
    16  # actions up to which a reduction is written out, so that it fuses with what reads it
)


class Tuning(NamedTuple):
    """Options of the compiled code; results differ by rounding only.

    unroll: time steps per iteration of a loop. mesh: the devices that models are spread over, if
    there are several.
    """

    unroll: int = 1
    mesh: jax.sharding.Mesh | None = None

    @staticmethod
    def for_placement(placement: DevicePlacement) -> Tuning:
        """Choose the tuning for these devices."""
        return Tuning(2 if "cuda" in str(placement.local_device).lower() else 1)


def at_time(array: Traced, t: Traced) -> Traced:
    """Return the slice at time t of an array whose time axis may have length 1."""
    return array[0] if array.shape[0] == 1 else array[t]


def gather(array: Traced, *index: Traced) -> Traced:
    return array.at[index].get(mode="promise_in_bounds")


def reduce_actions(combine: Any, x: Traced) -> Traced:
    """Combine the actions, axis 1, by a function of two arrays."""
    if x.shape[1] > MAX_UNROLLED_ACTIONS:
        return combine.reduce(x, axis=1)
    slices = (lax.index_in_dim(x, a, 1, keepdims=False) for a in range(x.shape[1]))
    return functools.reduce(combine, slices)


def is_unrolled(n_terms: int, n_models: int) -> bool:
    """Return whether a sum over terms that are arrays (R, M) is written out."""
    return n_terms <= MAX_UNROLLED_TERMS and n_terms * n_models <= MAX_UNROLLED_NUMBERS


def is_deterministic(policy: Traced | None) -> bool:
    """Return whether a policy is a table of actions, not of probabilities."""
    return policy is not None and jnp.issubdtype(policy.dtype, jnp.integer)


def one_hot(action: Traced, n_actions: int) -> Traced:
    """Convert actions (S,) to probabilities (S, A)."""
    return action[:, None] == jnp.arange(n_actions, dtype=action.dtype)


class StepOps:
    """The operations of one time step, with models last.

    A deterministic policy reads its own rows only.
    """

    def __init__(self, x: ProblemArrays, tuning: Tuning, start_time: Traced = 0) -> None:
        self.x, self.tuning, self.start_time = x, tuning, start_time
        self.S, self.A = x.allowed.shape[1:]
        self.next_states: Traced = x.next_states

    def at_time(self, array: Traced, t: Traced) -> Traced:
        """Return the slice of an array of the problem at time t, counted from the start time."""
        return at_time(array, self.start_time + t)

    def q_step(self, t: Traced, v: Traced) -> Traced:
        """Compute q = r + gamma P v of all actions."""
        return self.at_time(self.x.r, t) + self.x.discount * self.expect_next(t, v)

    def expect_next(self, t: Traced, v: Traced) -> Traced:
        """Compute P v of all actions."""
        return self._expect(self.at_time(self.x.p, t), v).reshape(self.S, self.A, v.shape[-1])

    def sum_devices(self, local_sum: Traced) -> Traced:
        """Sum over all devices the sums over their models: all that they exchange."""
        return local_sum if self.tuning.mesh is None else lax.psum(local_sum, MODEL_AXIS)

    def compute_gradient(self, t: Traced, b: Traced, q: Traced) -> Traced:
        """Compute G = sum_m b q; -inf if not allowed."""
        return self._mask_disallowed(t, self.sum_devices(self._sum_local_models(b, q)))

    def is_unvisited(self, b: Traced) -> Traced:
        """Return whether no model has weight, at one or all times."""
        return self.sum_devices(b.sum(axis=-1)) == 0

    def gradient_and_unvisited(self, t: Traced, b: Traced, q: Traced) -> tuple[Traced, Traced]:
        """Compute G and whether states are unvisited, with one exchange."""
        if self.tuning.mesh is None:
            return self.compute_gradient(t, b, q), self.is_unvisited(b)
        weight = b.sum(axis=-1, keepdims=True)
        sums = self.sum_devices(jnp.concatenate([self._sum_local_models(b, q), weight], axis=1))
        return self._mask_disallowed(t, sums[:, :-1]), sums[:, -1] == 0

    def _sum_local_models(self, b: Traced, q: Traced) -> Traced:
        return (b[:, None] * q).sum(axis=-1)

    def _mask_disallowed(self, t: Traced, G: Traced) -> Traced:
        return jnp.where(self.at_time(self.x.allowed, t), G, -jnp.inf)

    def average_q(self, pi: Traced, q: Traced) -> Traced:
        """Compute sum_a pi q for actions or probabilities pi."""
        sharp = is_deterministic(pi)
        weight = (one_hot(pi, self.A) if sharp else pi)[..., None]
        return reduce_actions(jnp.add, jnp.where(weight, q, 0.0) if sharp else weight * q)

    def push_forward(self, t: Traced, b: Traced, pi: Traced) -> Traced:
        """Compute b at t + 1 from b at t under actions or probabilities ``pi``."""
        p, rows = self.at_time(self.x.p, t), self._select_rows(pi)
        if rows is not None:
            return self._push(p, b, rows)
        pi = one_hot(pi, self.A).astype(b.dtype) if is_deterministic(pi) else pi
        return self._push(p, (b[:, None] * pi[..., None]).reshape(-1, b.shape[-1]))

    def evaluate_step(self, t: Traced, v: Traced, action: Traced) -> Traced:
        """Compute v = r + gamma P v of the given actions (S,) alone."""
        rows = self._select_rows(action)
        if rows is None:
            return self.average_q(action, self.q_step(t, v))
        r = gather(self.at_time(self.x.r, t), jnp.arange(self.S), action)
        return r + self.x.discount * self._expect(self.at_time(self.x.p, t), v, rows)

    def compute_returns(self, first_values: Traced) -> Traced:
        """Compute the returns of every model from the values at the first step."""
        return (self.x.initial * first_values).sum(axis=0)

    def _select_rows(self, pi: Traced) -> Traced | None:
        """Return (S,) rows s * A + a if they can be computed on their own, else None."""
        if not is_deterministic(pi) or self.x.part_rows is not None:
            return None
        return jnp.arange(self.S, dtype=jnp.int32) * self.A + pi

    def _expect(self, p: Traced, v: Traced, rows: Traced | None = None) -> Traced:
        """Compute sum_s' p v of every row, or of ``rows``."""
        next_states = (
            self.next_states
            if self.next_states is None or rows is None
            else gather(self.next_states, rows)
        )

        def term(e: int) -> Traced:
            p_e = p[:, e] if rows is None else gather(p, rows, e)
            return p_e * (v[e] if next_states is None else gather(v, next_states[:, e]))

        if is_unrolled(*p.shape[1:]):
            return self._merge_parts(functools.reduce(operator.add, map(term, range(p.shape[1]))))
        p = p if rows is None else gather(p, rows)
        return self._merge_parts(
            (p * (v if next_states is None else gather(v, next_states))).sum(axis=1)
        )

    def _merge_parts(self, parts: Traced) -> Traced:
        """Add the sums of the parts of each row."""
        if self.x.part_rows is None:
            return parts
        whole = jnp.zeros((self.S * self.A, *parts.shape[1:]), parts.dtype)
        return whole.at[self.x.part_rows].add(
            parts, indices_are_sorted=True, mode="promise_in_bounds"
        )

    def _push(self, p: Traced, mass: Traced, rows: Traced | None = None) -> Traced:
        """Compute the next b: the sum of p times mass over all rows, or over ``rows``."""
        if self.x.part_rows is not None:
            mass = gather(mass, self.x.part_rows)
        if self.next_states is None:
            return self._push_dense(p, mass, rows)
        next_states = self.next_states if rows is None else gather(self.next_states, rows)
        p = p if rows is None else gather(p, rows)
        b = jnp.zeros((self.S, mass.shape[-1]), mass.dtype)
        return b.at[next_states].add(p * mass[:, None], mode="promise_in_bounds")

    def _push_dense(self, p: Traced, mass: Traced, rows: Traced | None) -> Traced:
        if not is_unrolled(*mass.shape):
            p = p if rows is None else gather(p, rows)
            return (p * mass[:, None]).sum(axis=0)

        def term(i: int) -> Traced:
            row = p[i] if rows is None else lax.dynamic_index_in_dim(p, rows[i], 0, keepdims=False)
            return row * mass[i]

        return functools.reduce(operator.add, map(term, range(len(mass))))


class EventStepOps(StepOps):
    """The operations of one time step with shared events: p (K, W, M), next_states (R, W C)."""

    def q_step(self, t: Traced, v: Traced) -> Traced:
        if self.x.r.ndim != 3:  # rewards by row, not by event
            return super().q_step(t, v)
        return self._sum_events(t, v, with_rewards=True).reshape(self.S, self.A, v.shape[-1])

    def expect_next(self, t: Traced, v: Traced) -> Traced:
        return self._sum_events(t, v).reshape(self.S, self.A, v.shape[-1])

    def evaluate_step(self, t: Traced, v: Traced, action: Traced) -> Traced:
        rows = self._select_rows(action)
        if self.x.r.ndim == 3:
            return self._sum_events(t, v, rows, with_rewards=True)
        r = gather(self.at_time(self.x.r, t), jnp.arange(self.S), action)
        return r + self.x.discount * self._sum_events(t, v, rows)

    def push_forward(self, t: Traced, b: Traced, pi: Traced) -> Traced:
        rows, mass = self._select_rows(pi), b
        if rows is None:
            mass = (b[:, None] * pi[..., None]).reshape(-1, b.shape[-1])

        def add_event(e: Traced, next_b: Traced) -> Traced:
            p, next_states = self._get_event(t, e, rows, b.dtype)
            return next_b.at[next_states].add(p * mass, mode="promise_in_bounds")

        return self._loop_events(add_event, jnp.zeros_like(b))

    def _sum_events(
        self, t: Traced, v: Traced, rows: Traced | None = None, *, with_rewards: bool = False
    ) -> Traced:
        """Compute (R, M) P v, or P (reward + gamma v), of every row or of ``rows``."""

        def add_event(e: Traced, total: Traced) -> Traced:
            p, next_states = self._get_event(t, e, rows, v.dtype)
            return total + p * (
                self._add_rewards(t, e, rows, gather(v, next_states))
                if with_rewards
                else gather(v, next_states)
            )

        size = self.next_states.shape[1] if rows is None else len(rows)
        return self._loop_events(add_event, jnp.zeros((size, v.shape[-1]), v.dtype))

    def _add_rewards(self, t: Traced, e: Traced, rows: Traced | None, v: Traced) -> Traced:
        """Compute (R, M) reward + gamma v of the e-th corner of all events."""
        reward, w = self.at_time(self.x.r, t), e // (self.next_states.shape[2] // self.x.p.shape[2])
        reward = reward[:, w] if rows is None else gather(reward, rows, w)
        return reward[:, None].astype(v.dtype) + self.x.discount * v

    def _get_event(self, t: Traced, e: Traced, rows: Traced | None, dtype: Any) -> Any:
        """Return probability (R or 1, M) and next state (R,) of the e-th corner of all events."""
        x = self.x
        next_states, (ids, corner_weights) = (
            self.at_time(self.next_states, t),
            (
                array if array is None else self.at_time(array, t)
                for array in (x.distribution_id, x.corner_weights)
            ),
        )
        n_corners = next_states.shape[1] // x.p.shape[2]
        p = self.at_time(x.p, t)[:, e // n_corners].astype(dtype)
        if ids is not None:
            p = gather(p, ids if rows is None else gather(ids, rows))
        if corner_weights is not None:
            weight = corner_weights[:, e] if rows is None else gather(corner_weights, rows, e)
            p = p * weight[:, None].astype(dtype)
        return p, next_states[:, e] if rows is None else gather(next_states, rows, e)

    def _loop_events(self, add_event: Any, total: Traced) -> Traced:
        """Loop over events, several of them unrolled."""
        n_events = self.next_states.shape[2]
        n_loops = n_events // MAX_UNROLLED_TERMS if n_events > MAX_UNROLLED_TERMS else 0

        def add_block(k: Traced, total: Traced) -> Traced:
            for n in range(MAX_UNROLLED_TERMS):
                total = add_event(k * MAX_UNROLLED_TERMS + n, total)
            return total

        total = lax.fori_loop(0, n_loops, add_block, total) if n_loops else total
        for e in range(n_loops * MAX_UNROLLED_TERMS, n_events):
            total = add_event(e, total)
        return total


def make_step_ops(x: ProblemArrays, tuning: Tuning, start_time: Traced = 0) -> StepOps:
    """Choose the operations for the layout of these arrays; times count from ``start_time``."""
    has_events = x.next_states is not None and x.next_states.ndim == 3
    return (EventStepOps if has_events else StepOps)(x, tuning, start_time)
