"""Actions in unreachable states, which do not affect the returns.

A policy that is returned takes there what is best under the models' prior weights, given the rest:
the maximiser of sum_m lambda_m q_{t,m}(s, a).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.numpy.passes import choose_actions
from mmdp.core.kernels.problem import IntArray, PolicyTable, Problem, at_time
from mmdp.core.search.context import MethodResult, SolveContext
from mmdp.core.search.markov import make_row_chooser
from mmdp.core.timing import TimeUp

Mask = npt.NDArray[np.bool_]
MAX_ROUNDS = 10  # at most, of a stationary policy: its actions depend on each other


def fill_unreachable(context: SolveContext, result: MethodResult) -> MethodResult:
    """Fill in the actions of unreachable states; ``details["unreachable"]`` marks these states."""
    table, policy_class = result.policy, context.policy_class
    if not (isinstance(table, np.ndarray) and table.dtype.kind == "i"):
        return result
    if not (policy_class.is_action_mask or make_row_chooser(policy_class, context.model)):
        return result
    is_reached = find_reachable_states(context.problem, table)
    if is_reached.all():
        return result
    is_determined = policy_class.find_determined(context.model, is_reached)
    is_taken = table[..., None] == np.arange(context.problem.n_actions)
    allowed = np.where(is_determined[..., None], is_taken, context.problem.allowed)
    actions = (_fill_stationary if policy_class.is_infinite_horizon else _fill_markov)(
        context, table, allowed
    )
    details = {**result.details, "unreachable": ~is_reached}
    return replace(result, policy=actions, details=details)


def find_reachable_states(problem: Problem, policy: PolicyTable) -> Mask:
    """Find the states that some model reaches under the policy, (T, S), or (S,) if stationary."""
    x, is_stationary = problem, policy.ndim == 1
    find_next_states = (
        _make_event_successors if isinstance(x.storage, ExogenousEvents) else _make_table_successors
    )(x)
    is_reached: Mask = np.empty((1 if is_stationary else len(policy), x.n_states), dtype=bool)
    frontier = (x.initial > 0).any(axis=1)
    for t, row in enumerate(np.atleast_2d(policy)):
        is_reached[t] = frontier
        frontier = np.zeros_like(frontier)
        frontier[find_next_states(t, is_reached[t], row)] = True
    while is_stationary and (frontier & ~is_reached[0]).any():
        is_reached[0] |= frontier
        frontier = np.zeros_like(frontier)
        frontier[find_next_states(0, is_reached[0], policy)] = True
    return is_reached[0] if is_stationary else is_reached


def _make_table_successors(problem: Problem) -> Callable[[int, Mask, PolicyTable], IntArray]:
    """Make the function that finds the next states of a row of actions from stored transitions.

    It reads the rows of the actions taken alone. All models of all processes count.
    """
    is_possible: Mask = np.logical_or.reduce(
        problem.all_gather((problem.p > 0).any(axis=2))
    )  # (T or 1, nnz)
    n_entries = np.diff(problem.indptr)

    def find_next_states(t: int, frontier: Mask, row: PolicyTable) -> IntArray:
        states = np.flatnonzero(frontier)
        pairs = states * problem.n_actions + row[states]
        n = n_entries[pairs]
        entries = np.arange(n.sum()) + np.repeat(problem.indptr[pairs] - n.cumsum() + n, n)
        next_states: IntArray = problem.indices[entries[at_time(is_possible, t)[entries]]]
        return next_states

    return find_next_states


def _make_event_successors(problem: Problem) -> Callable[[int, Mask, PolicyTable], IntArray]:
    """Make the function that finds the next states of a row of actions from exogenous events."""
    events = problem.storage
    assert isinstance(events, ExogenousEvents)
    is_possible: Mask = np.logical_or.reduce(problem.all_gather((events.probs > 0).any(axis=3)))

    def find_next_states(t: int, frontier: Mask, row: PolicyTable) -> IntArray:
        event_tables, s = events.at_time(t), np.flatnonzero(frontier)
        a = row[s]
        is_possible_event = at_time(is_possible, t)[event_tables.distribution_id[s, a]][
            :, :, None
        ] & (event_tables.corner_weights[s, a] > 0)
        return event_tables.next_states[s, a][is_possible_event]

    return find_next_states


def _fill_markov(context: SolveContext, table: PolicyTable, allowed: Mask) -> IntArray:
    """Choose the actions of unreachable states by one backward pass with the prior weights."""
    weights = context.problem.prior_weights(context.horizon)
    row_chooser = make_row_chooser(context.policy_class, context.model)
    backward_pass = context.prepared.replace(allowed=allowed).backward(
        "weighted", weights=weights, choose_row=row_chooser
    )
    return backward_pass.actions


def _fill_stationary(context: SolveContext, table: PolicyTable, allowed: Mask) -> IntArray:
    """Choose the actions of unreachable states by policy improvement until none changes."""
    x, actions = context.infinite_horizon, np.asarray(table, dtype=np.int32)
    row_chooser = make_row_chooser(context.policy_class, context.model) or choose_actions
    prior_weights = np.broadcast_to(x.problem.weights, (len(actions), x.problem.n_models))
    with suppress(TimeUp):
        for _ in range(MAX_ROUNDS):
            q = np.tensordot(x.problem.weights, x.compute_q(x.compute_values(actions)), 1)
            new_actions = row_chooser(np.where(allowed[0], q, -np.inf), prior_weights, actions)
            if (new_actions == actions).all():
                break
            actions = new_actions
            context.check_time()
    return actions
