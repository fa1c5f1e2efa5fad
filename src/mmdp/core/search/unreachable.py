"""Actions in unreachable states, which do not affect the returns.

A policy that is returned takes there what is best under the models' prior weights, given the rest:
the maximiser of sum_m lambda_m q_{t,m}(s, a).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mmdp.core.kernels.array_cache import ArrayCache
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import PolicyTable, Problem, at_time, find_row_entries
from mmdp.core.search.context import MethodResult, SolveContext, get_stop_status
from mmdp.core.search.rows import make_restriction
from mmdp.core.search.spaces import make_space
from mmdp.core.shapes import Mask
from mmdp.core.solution import Status
from mmdp.core.timing import allow_stop

_cache = ArrayCache[Mask]()  # transitions that are possible in some model
MAX_ROUNDS = 10  # at most, of a stationary policy: its actions depend on each other


def fill_unreachable(context: SolveContext, result: MethodResult) -> MethodResult:
    """Fill in the actions of unreachable states; ``details["unreachable"]`` marks these states.

    A single change that leads into them may pay then, so a local optimum is improved once more.
    """
    table, policy_class = result.policy, context.policy_class
    if not (isinstance(table, np.ndarray) and table.dtype.kind == "i"):
        return result
    restriction = make_restriction(policy_class, context.model)
    if not (policy_class.is_action_mask or restriction):
        return result
    is_reached = find_reachable_states(context.problem, table)
    if is_reached.all():
        return result
    details = {**result.details, "unreachable": ~is_reached}
    if result.covers_unreachable:
        return replace(result, details=details)
    is_determined = policy_class.find_determined(context.model, is_reached)
    is_taken = table[..., None] == np.arange(context.problem.n_actions)
    allowed = np.where(is_determined[..., None], is_taken, context.problem.allowed)
    prior, actions = context.problem.prior_weights(), np.asarray(table, dtype=np.int32)
    choose_row = None if restriction is None else restriction.choose_row
    with allow_stop(accept_interrupts=True) as stop_state:
        for i in range(MAX_ROUNDS if policy_class.is_infinite_horizon else 1):
            if i:
                context.check_time()
            old_actions = actions
            actions = context.evaluator.improve_mean(old_actions, prior, allowed, choose_row)
            if (actions == old_actions).all():
                break
        if result.status is Status.LOCAL_OPTIMUM and (actions != table).any():
            optimum = make_space(context).ascend(actions, callback=lambda *_: context.check_time())
            if optimum.value > context.objective_value(result.required_returns):
                better = replace(result, policy=optimum.policy, returns=optimum.returns)
                return fill_unreachable(context, better)
    status = result.status
    if status is Status.LOCAL_OPTIMUM:
        status = get_stop_status(stop_state, status)
    return replace(result, policy=actions, status=status, details=details)


def find_reachable_states(problem: Problem, policy: PolicyTable) -> Mask:
    """Find the states that some model reaches under the policy, (T, S), or (S,) if stationary."""
    x, storage, rows = problem, problem.storage, np.atleast_2d(policy)
    probs = storage.probs if isinstance(storage, ExogenousEvents) else x.p
    is_possible_here = _cache.get_or_make(probs, None, lambda: np.any(probs > 0, axis=-1))
    is_possible = np.logical_or.reduce(x.all_gather(is_possible_here))  # in some model

    def find_next_states(t: int, is_reached: Mask) -> Mask:
        s, is_possible_now = np.flatnonzero(is_reached), at_time(is_possible, t)
        a = rows[t, s]
        if isinstance(storage, ExogenousEvents):
            events = storage.at_time(t)
            has_event = is_possible_now[events.distribution_id[s, a]]
            is_corner = has_event[:, :, None] & (events.corner_weights[s, a] > 0)
            next_states = events.next_states[s, a][is_corner]
        elif x.is_dense:
            S, A = x.n_states, x.n_actions
            return np.logical_or.reduce(is_possible_now.reshape(S, A, S)[s, a])
        else:
            k, _ = find_row_entries(x.indptr, s * x.n_actions + a)
            next_states = x.indices[k[is_possible_now[k]]]
        is_next = np.zeros_like(is_reached)
        is_next[next_states] = True
        return is_next

    is_reached: list[Mask] = [np.logical_or.reduce(x.initial > 0, axis=1)]
    for t in range(len(rows) - 1):
        is_repeated = (
            t > 0
            and storage.n_times == 1
            and np.array_equal(is_reached[t], is_reached[t - 1])
            and np.array_equal(rows[t], rows[t - 1])
        )
        is_reached.append(is_reached[t] if is_repeated else find_next_states(t, is_reached[t]))
    while policy.ndim == 1:  # until no state is new
        is_known = is_reached[0] | find_next_states(0, is_reached[0])
        if (is_known == is_reached[0]).all():
            return is_known
        is_reached = [is_known]
    return np.array(is_reached)
