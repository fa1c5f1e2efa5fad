"""Actions in unreachable states, which do not affect the returns.

A policy that is returned takes there what is best under the models' prior weights, given the rest:
the maximiser of sum_m lambda_m q_{t,m}(s, a).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from mmdp.core.evaluate import Mask
from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.problem import IntArray, PolicyTable
from mmdp.core.search.context import MethodResult, SolveContext
from mmdp.core.search.rows import make_restriction
from mmdp.core.timing import TimeUp

MAX_ROUNDS = 10  # at most, of a stationary policy: its actions depend on each other


def fill_unreachable(context: SolveContext, result: MethodResult) -> MethodResult:
    """Fill in the actions of unreachable states; ``details["unreachable"]`` marks these states."""
    table, policy_class = result.policy, context.policy_class
    if not (isinstance(table, np.ndarray) and table.dtype.kind == "i"):
        return result
    restriction = make_restriction(policy_class, context.model)
    if not (policy_class.is_action_mask or restriction):
        return result
    is_reached = find_reachable_states(context.prepared, table)
    if is_reached.all():
        return result
    is_determined = policy_class.find_determined(context.model, is_reached)
    is_taken = table[..., None] == np.arange(context.problem.n_actions)
    allowed = np.where(is_determined[..., None], is_taken, context.problem.allowed)
    prior, actions = context.problem.prior_weights(), np.asarray(table, dtype=np.int32)
    choose_row = None if restriction is None else restriction.choose_row
    with suppress(TimeUp):
        for _ in range(MAX_ROUNDS if policy_class.is_infinite_horizon else 1):
            old_actions = actions
            actions = context.evaluator.improve_mean(old_actions, prior, allowed, choose_row)
            if (actions == old_actions).all():
                break
            context.check_time()
    return replace(result, policy=actions, details={**result.details, "unreachable": ~is_reached})


def find_reachable_states(prepared: PreparedProblem, policy: PolicyTable) -> Mask:
    """Find the states that some model reaches under the policy, (T, S), or (S,) if stationary."""
    x, rows = prepared.problem, np.atleast_2d(policy).astype(np.int32)

    def find_next_states(t: int, is_reached: Mask) -> Mask:
        b = np.repeat(is_reached[:, None].astype(np.float64), x.n_models, axis=1)
        is_next = (prepared.push_forward(t, b, rows[t]) > 0).any(axis=1)
        return np.logical_or.reduce(x.all_gather(is_next))

    is_reached: Mask = np.array([(x.initial > 0).any(axis=1)])
    for t in range(len(rows) - 1):
        is_reached = np.vstack([is_reached, find_next_states(t, is_reached[t])])
    while policy.ndim == 1:  # until no state is new
        is_next = is_reached | find_next_states(0, is_reached[0])
        if (is_next == is_reached).all():
            return is_reached[0]
        is_reached = is_next
    return is_reached
