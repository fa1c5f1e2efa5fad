"""Actions where no model goes: they change no return, so a search leaves them as it found them.

A policy that is returned takes there what is best under the models' prior weights, given the rest:
the maximiser of sum_m lambda_m q_{t,m}(s, a).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mmdp.clock import Stop
from mmdp.kernels.events import Events
from mmdp.kernels.numpy.passes import choose
from mmdp.kernels.problem import IntArray, Problem, Table, at
from mmdp.search.context import Context, Outcome
from mmdp.search.tables import pick_of

Mask = npt.NDArray[np.bool_]
ROUNDS = 10  # at most, of a stationary policy: its actions depend on each other


def filled(context: Context, outcome: Outcome) -> Outcome:
    """The outcome with such actions filled in, and ``details["unreached"]``: where they are."""
    table, kind = outcome.policy, context.kind
    if not (isinstance(table, np.ndarray) and table.dtype.kind == "i"):
        return outcome
    if not (kind.masks or pick_of(kind, context.model)):
        return outcome
    there = reached(context.problem, table)
    if there.all():
        return outcome
    given = kind.decided(context.model, there)
    taken = table[..., None] == np.arange(context.problem.n_actions)
    open_ = np.where(given[..., None], taken, context.problem.allowed)
    found = (_stationary if kind.endless else _by_time)(context, table, open_)
    details = {**outcome.details, "unreached": ~there}
    return replace(outcome, policy=found, details=details)


def reached(problem: Problem, policy: Table) -> Mask:
    """(T, S) whether some model is there with a positive probability; (S,) if stationary."""
    x, endless = problem, policy.ndim == 1
    lead = (_by_events if isinstance(x.storage, Events) else _by_tables)(x)
    there: Mask = np.empty((1 if endless else len(policy), x.n_states), dtype=bool)
    now = (x.initial > 0).any(axis=1)
    for t, row in enumerate(np.atleast_2d(policy)):
        there[t] = now
        now = np.zeros_like(now)
        now[lead(t, there[t], row)] = True
    while endless and (now & ~there[0]).any():
        there[0] |= now
        now = np.zeros_like(now)
        now[lead(0, there[0], policy)] = True
    return there[0] if endless else there


def _by_tables(x: Problem) -> Callable[[int, Mask, Table], IntArray]:
    """The next states that a row of actions leads to at t from the states of a mask (S,)."""
    state, action = np.divmod(x.rows(), x.n_actions)
    possible: Mask = np.logical_or.reduce(x.everywhere((x.p > 0).any(axis=2)))  # (T or 1, nnz)
    return lambda t, now, row: x.indices[at(possible, t) & now[state] & (action == row[state])]


def _by_events(x: Problem) -> Callable[[int, Mask, Table], IntArray]:
    """The same without tables."""
    events = x.storage
    assert isinstance(events, Events)
    possible: Mask = np.logical_or.reduce(x.everywhere((events.chance > 0).any(axis=3)))

    def lead(t: int, now: Mask, row: Table) -> IntArray:
        e, s = events.at(t), np.flatnonzero(now)
        a = row[s]
        found = at(possible, t)[e.kind[s, a]][:, :, None] & (e.coefficient[s, a] > 0)
        return e.after[s, a][found]

    return lead


def _by_time(context: Context, table: Table, open_: Mask) -> IntArray:
    """One backward pass in which what is reached is decided already."""
    weights = context.problem.prior_weights(context.horizon)
    pick = pick_of(context.kind, context.model)
    found = context.plan.but(allowed=open_).backward("weighted", weights=weights, pick=pick)
    return found.actions


def _stationary(context: Context, table: Table, open_: Mask) -> IntArray:
    """Round after round until no action changes, or the time is up."""
    x, actions = context.endless, np.asarray(table, dtype=np.int32)
    pick = pick_of(context.kind, context.model) or choose
    prior = np.broadcast_to(x.problem.weights, (len(actions), x.problem.n_models))
    with suppress(Stop):
        for _ in range(ROUNDS):
            q = np.tensordot(x.problem.weights, x.q(x.values(actions)), 1)
            after = pick(np.where(open_[0], q, -np.inf), prior, actions)
            if (after == actions).all():
                break
            actions = after
            context.check_time()
    return actions
