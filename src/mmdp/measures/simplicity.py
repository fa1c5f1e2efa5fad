"""Simpler policies beside one of time and state: a rule in a few phases, and what it gives up."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy
from mmdp.solve import evaluate, gradient

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_PHASES = 3
ENOUGH = 0.99  # share of the decisions that a short rule should tell
MOST_CUTS = 64  # times at which a phase may end
MOST_STATES = 200  # by which the phases are chosen
STEPS = 5  # of the search for one rule for all steps
MOST_ACTIONS = 20  # that are tried everywhere


@dataclass(frozen=True, eq=False)
class Phase:
    """From time ``start`` to before ``stop``: the action of each state, ``row`` (S,).

    ``visits`` (S,) is the expected number of visits in that time.
    """

    start: int
    stop: int
    row: Ints
    visits: Array


@dataclass(frozen=True, eq=False)
class Rule:
    """A policy in a few phases. ``share`` of the decisions that come up are those of the table."""

    phases: tuple[Phase, ...]
    policy: MarkovPolicy
    share: float


def short_rule(
    policy: MarkovPolicy, model: MMDP, visited: Array, phases: int = MOST_PHASES
) -> Rule:
    """The rule of at most ``phases`` phases that tells most of the decisions of a policy.

    ``visited`` (T, S) are probabilities of being in a state at a time. Within a phase a state has
    one action. The fewest phases that tell 99% of the decisions are taken.

    >>> import mmdp
    >>> model, _ = mmdp.domains.two_models()
    >>> table = mmdp.MarkovPolicy([[0] * model.n_states] * 3 + [[1] * model.n_states] * 2)
    >>> rule = short_rule(table, model, mmdp.model_weights(table, model).sum(axis=1))
    >>> [(phase.start, phase.stop) for phase in rule.phases], rule.share
    ([(0, 3), (3, 5)], 1.0)
    """
    actions = policy.actions.astype(np.int64)
    found = [_phase(actions, visited, *ends) for ends in pairwise(_cuts(actions, visited, phases))]
    table = np.concatenate([np.tile(x.row, (x.stop - x.start, 1)) for x in found])
    simple = _followed(table, policy, model)
    same = visited[simple.actions == actions].sum() / visited.sum()
    return Rule(tuple(found), simple, float(same))


def one_rule(policy: MarkovPolicy, model: MMDP, visited: Array) -> MarkovPolicy:
    """A rule that is the same at all steps: the usual action of each state, then improved.

    Each step of the search takes argmax_a sum_t G_t(s, a) in every state, as long as the mean
    return rises. It is a good rule of that kind, not always the best.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> one_rule(mmdp.MarkovPolicy([[1], [1], [0]]), two, np.ones((3, 1))).actions.tolist()
    [[0], [0], [0]]
    """
    best = short_rule(policy, model, visited, phases=1).policy
    value = evaluate(best, model).mean
    for _ in range(STEPS):
        G = np.nan_to_num(gradient(best, model).sum(axis=0), nan=-np.inf)  # NaN: not allowed
        row = best.actions[0].astype(np.int64)
        states = np.arange(len(row))
        gains = G.max(axis=1) - G[states, row]
        scale = float(np.abs(G[np.isfinite(G)]).max(initial=0.0))
        row = np.where(gains > 1e-12 * scale, G.argmax(axis=1), row)
        other = _followed(np.tile(row, (policy.horizon, 1)), policy, model)
        worth = evaluate(other, model).mean
        if not worth > value:
            break
        best, value = other, worth
    return best


def one_action(policy: MarkovPolicy, model: MMDP, visited: Array) -> MarkovPolicy | None:
    """The best policy that always takes the same action; None if no action is allowed everywhere.

    If there are more than 20 actions, those are tried that ``policy`` takes most.
    """
    used = np.bincount(policy.actions.ravel(), visited.ravel(), minlength=model.n_actions)
    allowed = np.all(model.problem.allowed, axis=(0, 1)).tolist()
    tried = [int(a) for a in np.argsort(-used, kind="stable") if allowed[a]][:MOST_ACTIONS]
    always = [_followed(np.full(policy.actions.shape, a), policy, model) for a in tried]
    return max(always, key=lambda x: evaluate(x, model).mean, default=None)


def _cuts(actions: Ints, visited: Array, most: int) -> list[int]:
    """Times at which phases begin, and the horizon: the fewest that tell enough."""
    states = np.argsort(-visited.sum(axis=0), kind="stable")[:MOST_STATES]
    actions, visited = actions[:, states], visited[:, states]
    changed = ((actions[1:] != actions[:-1]) * visited[1:]).sum(axis=1)
    strongest = np.argsort(-changed, kind="stable")[: MOST_CUTS - 1]
    times = np.array([0, *np.sort(strongest[changed[strongest] > 0] + 1), len(actions)])
    chosen = actions[:, :, None] == np.unique(actions)
    by_block = np.add.reduceat(visited[:, :, None] * chosen, times[:-1], axis=0)
    so_far = np.concatenate([np.zeros((1, *by_block.shape[1:])), np.cumsum(by_block, axis=0)])
    told = np.full((len(times), len(times)), -np.inf)  # decisions told by a phase from i to j
    for i in range(len(times) - 1):
        told[i, i + 1 :] = (so_far[i + 1 :] - so_far[i]).max(axis=2).sum(axis=1)
    best, paths = told[0], [[0, j] for j in range(len(times))]
    ends = [(best[-1], paths[-1])]  # by number of phases
    for _ in range(most - 1):
        longer = best[:, None] + told
        before = longer.argmax(axis=0)
        best, paths = longer.max(axis=0), [[*paths[i], j] for j, i in enumerate(before)]
        ends.append((best[-1], paths[-1]))
    enough = min(ENOUGH * visited.sum(), max(ends)[0]) * (1 - 1e-12)
    return [int(times[i]) for i in next(path for value, path in ends if value >= enough)]


def _phase(actions: Ints, visited: Array, start: int, stop: int) -> Phase:
    """The usual action of every state; a state that is never reached counts its times."""
    part, visits = actions[start:stop], visited[start:stop]
    tally = np.zeros((actions.shape[1], int(actions.max()) + 1))
    np.add.at(tally, (np.arange(actions.shape[1]), part), visits + 1e-12)
    return Phase(start, stop, tally.argmax(axis=1), visits.sum(axis=0))


def _followed(table: Ints, policy: MarkovPolicy, model: MMDP) -> MarkovPolicy:
    """The table as a policy; where an action is not allowed, the given policy decides."""
    allowed = np.broadcast_to(model.problem.allowed, (*table.shape, model.n_actions))
    open_ = np.take_along_axis(allowed, table[:, :, None], axis=2)[:, :, 0]
    return MarkovPolicy.for_model(model, np.where(open_, table, policy.actions).astype(np.int32))
