"""A round of single changes for an objective, in one compiled call.

The same as :meth:`mmdp.core.search.space.SearchSpace.improve` over the tables of
:class:`mmdp.core.search.spaces.MarkovSpace`, which is the specification.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from mmdp.core.kernels.jax.arrays import ProblemArrays, Traced
from mmdp.core.kernels.jax.passes import forward
from mmdp.core.kernels.jax.step_ops import Tuning, at_time, make_step_ops


class Formula(Protocol):
    """An objective F that jax can compile."""

    def value(self, returns: Traced, weights: Traced) -> Traced:
        """Return F of returns (..., M)."""
        ...

    def dual_density(self, returns: Traced, weights: Traced) -> Traced:
        """Return xi (..., M); lambda_m xi_m is a supergradient of F at these returns."""
        ...


class RoundState(NamedTuple):
    """The state of a round: rho (M,), its value F and its dual density xi (M,)."""

    rho: Traced
    value: Traced
    xi: Traced


@functools.partial(jax.jit, static_argnames=("formula_class", "tuning"))
def run_single_changes(
    x: ProblemArrays,
    policy: Traced,
    rho: Traced,
    min_gain: Traced,
    *params: Traced,
    formula_class: type,
    tuning: Tuning,
) -> tuple[Traced, Traced]:
    """Improve F by one change of an action after the other; return the policy and its returns.

    formula_class, params: the dataclass of F and its numbers, so that it is compiled once for all.
    """
    F: Formula = object.__new__(formula_class)  # the numbers were checked before
    vars(F).update(zip((field.name for field in fields(formula_class)), params, strict=True))
    ops, last_time = make_step_ops(x, tuning), len(policy) - 1
    unweighted = x._replace(weights=jnp.ones_like(x.weights))
    d = forward(make_step_ops(unweighted, tuning), policy)[1]

    def improve_time(
        i: Traced, carry: tuple[Traced, Traced, RoundState]
    ) -> tuple[Traced, Traced, RoundState]:
        t, (v, policy, state) = last_time - i, carry
        q = ops.q_step(t, v)
        # an action that is not allowed changes nothing
        q = jnp.where(at_time(x.allowed, t)[..., None], q, ops.average_q(policy[t], q)[:, None])
        row, state = _improve_row(x, q, x.discount**t * d[t], policy[t], state, min_gain, F)
        return ops.average_q(row, q), policy.at[t].set(row), state

    state = RoundState(rho, *_evaluate_formula(F, rho, x.weights))
    v, policy, _ = lax.fori_loop(0, last_time + 1, improve_time, (x.terminal, policy, state))
    return policy, ops.compute_returns(v)


def _evaluate_formula(F: Formula, rho: Traced, weights: Traced) -> tuple[Traced, Traced]:
    return F.value(rho, weights), F.dual_density(rho, weights)


def _improve_row(
    x: ProblemArrays,
    q: Traced,
    b: Traced,
    row: Traced,
    state: RoundState,
    min_gain: Traced,
    F: Formula,
) -> tuple[Traced, RoundState]:
    """Improve the actions of one time from q (S, A, M) and b (S, M), heavy states first."""
    states = jnp.arange(len(q))
    order = jnp.argsort(-(b @ x.weights))

    def find_promising(position: Traced, row: Traced, state: RoundState) -> Traced:
        """Return the next position at which a change may improve F; S if none."""
        G = ((b * x.weights * state.xi)[:, None] * q).sum(axis=2)
        may_improve = (G - G[states, row][:, None] > min_gain).any(axis=1)[order] & (
            states >= position
        )
        return jnp.where(may_improve.any(), may_improve.argmax(), len(q))

    def try_change(
        carry: tuple[Traced, Traced, RoundState],
    ) -> tuple[Traced, Traced, RoundState]:
        position, row, state = carry
        s = order[position]
        candidates = state.rho + b[s] * (q[s] - q[s, row[s]])
        values, xi = _evaluate_formula(F, candidates, x.weights)
        a = values.argmax()
        is_better = values[a] > state.value + min_gain
        new_state = RoundState(candidates[a], values[a], xi[a])
        row = row.at[s].set(jnp.where(is_better, a.astype(row.dtype), row[s]))
        state = RoundState(
            *(jnp.where(is_better, y, old) for y, old in zip(new_state, state, strict=True))
        )
        return find_promising(position + 1, row, state), row, state

    initial_carry = find_promising(jnp.zeros_like(order[0]), row, state), row, state
    return lax.while_loop(lambda carry: carry[0] < len(q), try_change, initial_carry)[1:]
