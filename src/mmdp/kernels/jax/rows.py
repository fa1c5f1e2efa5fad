"""One time step in both layouts: row sums P v, their transpose, and sums over models or actions."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from mmdp.kernels.jax.arrays import MODELS, Arrays, Place, Traced

WRITTEN_OUT = 64  # terms up to which a sum is written out, to have many loads under way
FEW = 16  # actions up to which a reduction is written out, so that it fuses with what reads it


class Tuning(NamedTuple):
    """How the work is written for the compiler; results differ by rounding only.

    unroll: time steps per iteration of a loop. wide: several starts share each reading of p;
    together: the bytes that q or b of these may take. mesh: the devices that models are spread
    over, if there are several.
    """

    unroll: int = 1
    wide: bool = False
    together: int = 2**30
    mesh: Any = None

    @staticmethod
    def suited(place: Place) -> Tuning:
        """The tuning for these devices. A CPU gains nothing from starts that run together."""
        cuda = "cuda" in str(place.here).lower()
        return Tuning(2 if cuda else 1, place.here.platform != "cpu")


def at(array: Traced, t: Traced) -> Traced:
    """The slice at time t of an array whose time axis may have length 1."""
    return array[0] if array.shape[0] == 1 else array[t]


def take(array: Traced, *where: Any) -> Traced:
    return array.at[where].get(mode="promise_in_bounds")


def fold(combine: Any, x: Traced, axis: int) -> Traced:
    """``combine`` over the actions."""
    size = x.shape[axis]
    if size > FEW:
        return combine.reduce(x, axis=axis)
    parts = [lax.index_in_dim(x, a, axis, keepdims=False) for a in range(size)]
    return functools.reduce(combine, parts)


def is_sharp(policy: Traced | None) -> bool:
    """Whether a policy is a table of actions, not of probabilities."""
    return policy is not None and jnp.issubdtype(policy.dtype, jnp.integer)


def one_hot(action: Traced, n_actions: int) -> Traced:
    """(S,) -> (S, A), or (S, K) -> (S, A, K)."""
    a = jnp.arange(n_actions, dtype=action.dtype)
    return action[:, None] == a.reshape((1, -1) + (1,) * (action.ndim - 1))


class Layout:
    """What the passes do at one time step, for one policy and with models last.

    A deterministic policy reads its own rows only.
    """

    models_of_b, models_of_q = -1, -1  # axes of the models

    def __init__(self, x: Arrays, tuning: Tuning) -> None:
        self.x, self.tuning = x, tuning
        self.S, self.A = x.allowed.shape[1:]

    def q(self, t: Traced, v: Traced) -> Traced:
        """q = r + gamma P v of all actions (eq. value of state-action)."""
        return at(self.x.r, t) + self.x.discount * self.expect(t, v)

    def expect(self, t: Traced, v: Traced) -> Traced:
        """P v of all actions."""
        expected = self._expect(at(self.x.p, t), v)
        return expected.reshape((*v.shape[:-2], self.S, self.A, v.shape[-1]))

    def total(self, here: Traced) -> Traced:
        """The sum over all devices of sums over their models: all that they exchange."""
        return here if self.tuning.mesh is None else lax.psum(here, MODELS)

    def mean(self, returns: Traced) -> Traced:
        """rho from the returns of the models."""
        return self.total(self.x.weights @ returns)

    def gradient(self, t: Traced, b: Traced, q: Traced) -> Traced:
        """G = sum_m b q; -inf if not allowed."""
        return self._masked(t, self.total(self._sum(b, q)))

    def idle(self, b: Traced) -> Traced:
        """Whether no model has weight, at one or all times."""
        return self.total(b.sum(axis=self.models_of_b)) == 0

    def gradient_and_idle(self, t: Traced, b: Traced, q: Traced) -> tuple[Traced, Traced]:
        """Both at one time, by one exchange."""
        if self.tuning.mesh is None:
            return self.gradient(t, b, q), self.idle(b)
        weight = b.sum(axis=self.models_of_b)
        both = self.total(jnp.concatenate([self._sum(b, q), weight[:, None]], axis=1))
        return self._masked(t, both[:, :-1]), both[:, -1] == 0

    def _sum(self, b: Traced, q: Traced) -> Traced:
        return (jnp.expand_dims(b, -2) * q).sum(axis=self.models_of_q)

    def _masked(self, t: Traced, G: Traced) -> Traced:
        allowed = at(self.x.allowed, t)
        return jnp.where(allowed.reshape(allowed.shape + (1,) * (G.ndim - 2)), G, -jnp.inf)

    def average(self, pi: Traced, q: Traced) -> Traced:
        """sum_a pi q, pi being actions or probabilities."""
        weight = self._over_models(one_hot(pi, self.A) if is_sharp(pi) else pi)
        terms = jnp.where(weight, q, 0.0) if weight.dtype == bool else weight * q
        return fold(jnp.add, terms, terms.ndim - 2)

    def flow(self, t: Traced, b: Traced, pi: Traced) -> Traced:
        """b at t + 1 from b at t under actions or probabilities ``pi`` (eq. belief)."""
        p, rows = at(self.x.p, t), self._rows(pi)
        if rows is not None:
            return self._push(p, b, rows)
        pi = one_hot(pi, self.A).astype(b.dtype) if is_sharp(pi) else pi
        mass = jnp.expand_dims(b, -2) * self._over_models(pi)  # (.., S, A, ..)
        return self._push(p, mass.reshape(*b.shape[:-2], -1, b.shape[-1]))

    def along(self, t: Traced, v: Traced, action: Traced) -> Traced:
        """v = r + gamma P v of the given actions (S,) alone."""
        rows = self._rows(action)
        if rows is None:
            return self.average(action, self.q(t, v))
        r = take(at(self.x.r, t), jnp.arange(self.S), action)
        return r + self.x.discount * self._expect(at(self.x.p, t), v, rows)

    def start(self) -> Traced:
        """b at the first step."""
        return self.x.initial * self.x.weights

    def terminal(self) -> Traced:
        """v after the last step."""
        return self.x.terminal

    def returns(self, first: Traced) -> Traced:
        """Returns of every model, from the values at the first step."""
        return (self.x.initial * first).sum(axis=0)

    def _over_models(self, pi: Traced) -> Traced:
        """Probabilities of actions with the axes of q."""
        return pi[..., None]

    def _rows(self, pi: Traced) -> Traced | None:
        """(S,) rows s * A + a if they can be computed on their own, else None."""
        if not is_sharp(pi) or self.x.owner is not None:
            return None
        return jnp.arange(self.S, dtype=jnp.int32) * self.A + pi

    def _expect(self, p: Traced, v: Traced, rows: Traced | None = None) -> Traced:
        """sum_s' p v of every row, or of ``rows``."""
        after = self.x.after if self.x.after is None or rows is None else take(self.x.after, rows)

        def term(e: int) -> Traced:
            p_e = p[:, e] if rows is None else take(p, rows, e)
            return p_e * (v[e] if after is None else take(v, after[:, e]))

        if p.shape[1] <= WRITTEN_OUT:
            return self._merged(functools.reduce(operator.add, map(term, range(p.shape[1]))))
        p = p if rows is None else take(p, rows)
        return self._merged((p * (v if after is None else take(v, after))).sum(axis=1))

    def _merged(self, parts: Traced) -> Traced:
        """Sums of whole rows from the sums of their parts."""
        return parts if self.x.owner is None else merged(parts, self.x.owner, self.S * self.A, 0)

    def _push(self, p: Traced, mass: Traced, rows: Traced | None = None) -> Traced:
        """sum over all rows, or over ``rows``, of p mass: the next b."""
        if self.x.owner is not None:
            mass = take(mass, self.x.owner)
        if self.x.after is None:
            return self._push_dense(p, mass, rows)
        after = self.x.after if rows is None else take(self.x.after, rows)
        p = p if rows is None else take(p, rows)
        b = jnp.zeros((self.S, mass.shape[-1]), mass.dtype)
        return b.at[after].add(p * mass[:, None], mode="promise_in_bounds")

    def _push_dense(self, p: Traced, mass: Traced, rows: Traced | None) -> Traced:
        if len(mass) > WRITTEN_OUT:
            p = p if rows is None else take(p, rows)
            return (p * mass[:, None]).sum(axis=0)

        def term(i: int) -> Traced:
            row = p[i] if rows is None else lax.dynamic_index_in_dim(p, rows[i], 0, keepdims=False)
            return row * mass[i]

        return functools.reduce(operator.add, map(term, range(len(mass))))


class Shared(Layout):
    """One policy, events that all models share: p (K, W, M), after (R, W C) at each t."""

    def __init__(self, x: Arrays, tuning: Tuning) -> None:
        super().__init__(x, tuning)
        self.after: Traced = x.after
        self.pays = x.r.ndim == 3  # events, not rows

    def q(self, t: Traced, v: Traced) -> Traced:
        if not self.pays:
            return super().q(t, v)
        return self._sums(t, v, pays=True).reshape(self.S, self.A, v.shape[-1])

    def expect(self, t: Traced, v: Traced) -> Traced:
        return self._sums(t, v).reshape(self.S, self.A, v.shape[-1])

    def along(self, t: Traced, v: Traced, action: Traced) -> Traced:
        rows = self._rows(action)
        if self.pays:
            return self._sums(t, v, rows, pays=True)
        r = take(at(self.x.r, t), jnp.arange(self.S), action)
        return r + self.x.discount * self._sums(t, v, rows)

    def flow(self, t: Traced, b: Traced, pi: Traced) -> Traced:
        rows, mass = self._rows(pi), b
        if rows is None:
            mass = (b[:, None] * pi[..., None]).reshape(-1, b.shape[-1])

        def add(e: Traced, new: Traced) -> Traced:
            p, after = self._event(t, e, rows, b.dtype)
            return new.at[after].add(p * mass, mode="promise_in_bounds")

        return self._over_events(add, jnp.zeros_like(b))

    def _sums(
        self, t: Traced, v: Traced, rows: Traced | None = None, *, pays: bool = False
    ) -> Traced:
        """(R, M) P v of every row, or of ``rows``; with what events pay, P (reward + gamma v)."""

        def add(e: Traced, total: Traced) -> Traced:
            p, after = self._event(t, e, rows, v.dtype)
            return total + p * (self._paid(t, e, rows, take(v, after)) if pays else take(v, after))

        size = self.after.shape[1] if rows is None else len(rows)
        return self._over_events(add, jnp.zeros((size, v.shape[-1]), v.dtype))

    def _paid(self, t: Traced, e: Traced, rows: Traced | None, v: Traced) -> Traced:
        """(R, M) reward + gamma v of the e-th corner of all events."""
        reward, w = at(self.x.r, t), e // (self.after.shape[2] // self.x.p.shape[2])
        reward = reward[:, w] if rows is None else take(reward, rows, w)
        return reward[:, None].astype(v.dtype) + self.x.discount * v

    def _event(self, t: Traced, e: Traced, rows: Traced | None, dtype: Any) -> Any:
        """Probability (R or 1, M) and next state (R,) of the e-th corner of all events."""
        x = self.x
        after, (kind, shares) = (
            at(self.after, t),
            (y if y is None else at(y, t) for y in (x.kind, x.shares)),
        )
        corners = after.shape[1] // x.p.shape[2]
        p = at(x.p, t)[:, e // corners].astype(dtype)
        if kind is not None:
            p = take(p, kind if rows is None else take(kind, rows))
        if shares is not None:
            share = shares[:, e] if rows is None else take(shares, rows, e)
            p = p * share[:, None].astype(dtype)
        return p, after[:, e] if rows is None else take(after, rows, e)

    def _over_events(self, add: Any, total: Traced) -> Traced:
        """Event after event, some of them written out at a time."""
        count = self.after.shape[2]
        loops = count // WRITTEN_OUT if count > WRITTEN_OUT else 0

        def some(k: Traced, total: Traced) -> Traced:
            for n in range(WRITTEN_OUT):
                total = add(k * WRITTEN_OUT + n, total)
            return total

        total = lax.fori_loop(0, loops, some, total) if loops else total
        for e in range(loops * WRITTEN_OUT, count):
            total = add(e, total)
        return total


def narrow(x: Arrays, tuning: Tuning) -> Layout:
    """The layout of one policy."""
    shared = x.after is not None and x.after.ndim == 3
    return Shared(x, tuning) if shared else Layout(x, tuning)


# ------------------------------------------------------------------ several policies
class Wide(Layout):
    """K deterministic policies, models first: matrix products that read p once for all of them."""

    models_of_b, models_of_q = -3, -4

    def __init__(self, x: Arrays, tuning: Tuning, policies: int) -> None:
        super().__init__(x, tuning)
        self.K = policies

    def start(self) -> Traced:
        b = self.x.weights[:, None, None] * self.x.initial
        return jnp.broadcast_to(b, (*b.shape[:2], self.K))

    def terminal(self) -> Traced:
        v = self.x.terminal
        return jnp.broadcast_to(v, (*v.shape[:2], self.K))

    def returns(self, first: Traced) -> Traced:
        return (self.x.initial * first).sum(axis=1)

    def _over_models(self, pi: Traced) -> Traced:
        return pi

    def _rows(self, pi: Traced) -> None:
        return None

    def _expect(self, p: Traced, v: Traced, rows: Traced | None = None) -> Traced:
        after = self.x.after
        if after is None:
            return p @ v

        def term(e: int) -> Traced:
            return p[:, :, e, None] * take(v, slice(None), after[:, e])

        if p.shape[2] <= WRITTEN_OUT:
            parts = functools.reduce(operator.add, map(term, range(p.shape[2])))
        else:
            parts = (p[..., None] * take(v, slice(None), after)).sum(axis=2)
        owner = self.x.owner
        return parts if owner is None else merged(parts, owner, self.S * self.A, 1)

    def _push(self, p: Traced, mass: Traced, rows: Traced | None = None) -> Traced:
        if self.x.owner is not None:
            mass = take(mass, slice(None), self.x.owner)
        if self.x.after is None:
            return jnp.einsum("mrn,mrk->mnk", p, mass)
        b = jnp.zeros((p.shape[0], self.S, self.K), mass.dtype)
        flow = p[..., None] * mass[:, :, None, :]
        return b.at[:, self.x.after].add(flow, mode="promise_in_bounds")


def merged(parts: Traced, owner: Traced, rows: int, axis: int) -> Traced:
    """Sums of whole rows from the sums of their parts, along ``axis``."""
    shape = (*parts.shape[:axis], rows, *parts.shape[axis + 1 :])
    where = (*(slice(None),) * axis, owner)
    whole = jnp.zeros(shape, parts.dtype)
    return whole.at[where].add(parts, indices_are_sorted=True, mode="promise_in_bounds")
