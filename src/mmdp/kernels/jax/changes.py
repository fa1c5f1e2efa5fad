"""A round of single changes for an objective, in one compiled call.

The same as :func:`mmdp.search.landscape.climbed` over the tables of
:class:`mmdp.search.tables.Tables`, which is the specification.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mmdp.kernels.jax.arrays import Arrays, Traced
from mmdp.kernels.jax.passes import forward
from mmdp.kernels.jax.rows import Tuning, at, narrow


class Stand(NamedTuple):
    """Where a round stands: rho (M,), its value F and its tilt xi (M,)."""

    rho: Traced
    value: Traced
    xi: Traced


@functools.partial(jax.jit, static_argnames=("kind", "tuning"))
def run_changes(
    x: Arrays, policy: Traced, rho: Traced, tie: Traced, *numbers: Traced, kind: type,
    tuning: Tuning,
) -> tuple[Traced, Traced]:  # fmt: skip
    """The policy (T, S) after every single change that improves F, in turn; its returns (M,).

    kind, numbers: the dataclass of F and what is in it, so that all F of a kind are compiled once.
    """
    F: Any = object.__new__(kind)  # the numbers were checked before
    vars(F).update(zip((field.name for field in fields(kind)), numbers, strict=True))
    on, last = narrow(x, tuning), len(policy) - 1
    ones = x._replace(weights=jnp.ones_like(x.weights))
    d = forward(narrow(ones, tuning), policy)[1]

    def back(i: Traced, found: Any) -> Any:
        t, (v, policy, stand) = last - i, found
        q = on.q(t, v)
        # an action that is not allowed changes nothing
        q = jnp.where(at(x.allowed, t)[..., None], q, on.average(policy[t], q)[:, None])
        row, stand = _row(x, q, x.discount**t * d[t], policy[t], stand, tie, F)
        return on.average(row, q), policy.at[t].set(row), stand

    here = Stand(rho, *_judged(F, rho, x.weights))
    v, policy, _ = lax.fori_loop(0, last + 1, back, (on.terminal(), policy, here))
    return policy, on.returns(v)


def _judged(F: Any, rho: Traced, weights: Traced) -> tuple[Traced, Traced]:
    return F.value(rho, weights), F.tilt(rho, weights)


def _row(
    x: Arrays, q: Traced, b: Traced, row: Traced, stand: Stand, tie: Traced, F: Any
) -> tuple[Traced, Stand]:
    """The changes of one time, from q (S, A, M) and b (S, M) of weights 1; heavy states first."""
    states = jnp.arange(len(q))
    order = jnp.argsort(-(b @ x.weights))

    def hopeful(place: Traced, row: Traced, stand: Stand) -> Traced:
        """The next place in the order where the tilt says that a change may pay; S if none."""
        G = ((b * x.weights * stand.xi)[:, None] * q).sum(axis=2)
        hopes = (G - G[states, row][:, None] > tie).any(axis=1)[order] & (states >= place)
        return jnp.where(hopes.any(), hopes.argmax(), len(q))

    def change(found: Any) -> Any:
        place, row, stand = found
        s = order[place]
        candidates = stand.rho + b[s] * (q[s] - q[s, row[s]])
        values, xi = _judged(F, candidates, x.weights)
        a = values.argmax()
        better = values[a] > stand.value + tie
        new = Stand(candidates[a], values[a], xi[a])
        row = row.at[s].set(jnp.where(better, a.astype(row.dtype), row[s]))
        stand = Stand(*(jnp.where(better, y, old) for y, old in zip(new, stand, strict=True)))
        return hopeful(place + 1, row, stand), row, stand

    start = hopeful(jnp.zeros_like(order[0]), row, stand), row, stand
    return lax.while_loop(lambda found: found[0] < len(q), change, start)[1:]
