"""Simpler policies than one of time and state: rules in a few phases or with a few leaves, and what
they give up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mmdp.errors import InputError
from mmdp.kernels.endless import Endless
from mmdp.kernels.numpy.passes import choose
from mmdp.kernels.problem import Pick
from mmdp.model import MMDP
from mmdp.objective import Mean, Objective, as_objective
from mmdp.policy import Markov, MarkovPolicy, PolicyKind, Tree, TreePolicy
from mmdp.policy.tree import Leaf, tree_of
from mmdp.search.tables import pick_of
from mmdp.solution import Solution
from mmdp.solve import evaluate, gradient, model_weights, solve
from mmdp.validate import check_whole
from mmdp.words import counted, number, percent

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_PHASES = 3
ENOUGH = 0.99  # share of the decisions that a short rule should get right
MOST_CUTS = 64  # times at which a phase may end
MOST_STATES = 200  # by which the phases are chosen
STEPS = 5  # of the search for one rule for all steps
MOST_ACTIONS = 20  # that are tried everywhere


def value_of_leaves(
    model: MMDP,
    horizon: float | None = None,
    leaves: int | Sequence[int] = 8,
    *,
    features: Any = None,
    time: bool = True,
    objective: Objective | str = "mean",
    test: MMDP | None = None,
    **options: Any,
) -> pd.DataFrame:
    """What each further leaf of a tree earns: the best rule found with each number of leaves.

    Parameters
    ----------
    model, horizon, objective
        As for :func:`mmdp.solve`.
    leaves
        The most leaves, for all numbers from 1 on; or the numbers to show.
    features, time
        What a tree may ask about (see :class:`mmdp.Tree`).
    test
        Test models to evaluate the rules on.
    options
        Others of :func:`mmdp.solve`, such as ``certify``, ``time_limit`` and ``seed``.

    One solve grows them all, each from smaller ones, so the value never falls. Columns: ``leaves``,
    ``value``, ``gain`` over the row before, ``price`` (how much less it has than the best policy
    found that is no tree) and that as a ``share`` of that policy's value, ``gap`` to a proven bound
    as a share of the same value if one was asked for, ``test``, the ``seconds`` that its growth
    took, and the ``rule`` in words. ``attrs["elbow"]`` is
    the number of leaves after which further ones earn the least: its value lies highest above the
    straight line from the first to the last. ``attrs["text"]`` says it in a sentence,
    ``attrs["policies"]`` are the policies; :func:`mmdp.plots.value_of_leaves` draws the table.

    >>> import mmdp
    >>> train, _ = mmdp.domains.published("riverswim")
    >>> table = mmdp.value_of_leaves(train, 50, 3)
    >>> table["value"].round(2).tolist(), table.attrs["elbow"]
    ([196.23, 200.22, 200.22], 2)
    """
    counts = [*range(1, leaves + 1)] if isinstance(leaves, int) else sorted({*leaves})
    if not counts:
        raise InputError("leaves is empty; give numbers of leaves, such as (1, 2, 3)")
    for count in counts:
        check_whole(count, "leaves")
    kind = Tree(counts[-1], features, time)
    found = solve(model, horizon, policy=kind, objective=objective, **options)
    rules = found.details.get("grown") or [found.policy]  # stopped early: what there is
    counts = [n for n in counts if n <= len(rules)] or [1]
    shown = [rules[n - 1] for n in counts]
    values = np.array([evaluate(x, model).value(found.objective) for x in shown])
    free = found.details.get("unrestricted", np.nan)
    size = abs(free) or np.nan  # nothing is a share of 0
    columns: dict[str, Any] = {
        "leaves": counts, "value": values, "gain": np.diff(values, prepend=np.nan),
        "price": free - values, "share": (free - values) / size,
    }  # fmt: skip
    if found.bound is not None:
        columns["gap"] = (found.bound - values) / size
    if test is not None:
        columns["test"] = [evaluate(x, test).value(found.objective) for x in shown]
    spent = found.details.get("seconds_by_leaves") or [found.seconds]
    columns["seconds"] = [spent[n - 1] for n in counts]
    frame = pd.DataFrame({**columns, "rule": [x.text() for x in shown]})
    line = np.interp(counts, [counts[0], counts[-1]], [values[0], values[-1]])
    above = values - line
    highest = len(counts) - 1 - int(above[::-1].argmax())  # on a line every leaf earns as much
    elbow = int((values == values[highest]).argmax())
    frame.attrs |= {"elbow": counts[elbow], "policies": shown, "text": _elbow_text(frame, elbow)}
    return frame


def leaf_table(
    policy: TreePolicy | Solution, model: MMDP, *, objective: Objective | str | None = None
) -> pd.DataFrame:
    """One row per leaf of a tree: when it holds, what it does, how often and how much it matters.

    ``when`` has the answers that lead there, ``share`` the visits to it among all, over the models
    and times (discounted if there is no last decision). ``instead`` is the second best action for
    the whole leaf, and ``stakes`` what taking it there would cost: exact, all else unchanged, by
    ``objective`` (by default the solution's, otherwise the mean). Negative stakes mean that the
    other action is better.

    >>> import mmdp
    >>> train, _ = mmdp.domains.published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy=mmdp.Tree(2))
    >>> table = mmdp.measures.leaf_table(solution, train)
    >>> table[["when", "action"]].values.tolist()
    [['state is at most 3', 'swim left'], ['state is above 3', 'swim right']]
    >>> table["share"].round(2).tolist(), table["stakes"].round(1).tolist()
    ([0.23, 0.77], [4.0, 150.5])
    """
    tree = tree_of(policy, "leaf_table() needs")
    tree.check(model)
    goal = policy.objective if objective is None and isinstance(policy, Solution) else objective
    F, visited = as_objective(goal or "mean"), _visited(tree, model)
    value, rows = evaluate(tree, model).value(F), []
    for when, _, leaf, region in tree.nodes():
        if not isinstance(leaf, Leaf):
            continue
        tables = ((a, _with(tree, model, region, a)) for a in range(model.n_actions))
        others = {  # but for those that the leaf takes already, or that are allowed nowhere in it
            a: evaluate(tree.rows.of_table(x, **tree.labels), model).value(F)
            for a, x in tables
            if not np.array_equal(x, tree.table)
        }
        best = max(others, key=others.__getitem__, default=None)
        rows.append({
            "when": ", ".join(when) or "always", "action": model.action_labels[leaf.action],
            "share": visited[region].sum() / visited.sum(),
            "instead": None if best is None else model.action_labels[best],
            "stakes": np.nan if best is None else value - others[best],
        })  # fmt: skip
    return pd.DataFrame(rows)


def _visited(tree: TreePolicy, model: MMDP) -> Array:
    """(T, S) or (1, S) how often each state is visited, over the models by weight."""
    if tree.markov is not None:
        return model_weights(tree.markov, model).sum(axis=1)
    visits = Endless.of(model.problem).visits(tree.table_for(model))
    return (model.weights @ visits)[None]


def _with(tree: TreePolicy, model: MMDP, region: Mask, action: int) -> npt.NDArray[np.int32]:
    """The table with another action in a region, where it is allowed."""
    there = region & model.allowed[:, action]
    return np.where(there, np.int32(action), np.atleast_2d(tree.table)).reshape(tree.table.shape)


def _elbow_text(frame: pd.DataFrame, elbow: int) -> str:
    """What the best place to stop gives up, and what the leaves after it earn."""
    here, last = frame.iloc[elbow], frame.iloc[-1]
    at = counted(int(here["leaves"]), "leaf", "leaves")
    text = f"the elbow is at {at}: " if len(frame) > 1 else f"{at}: "
    text += number(here["value"], 6)
    if here["price"] > 0:
        less = number(here["price"]) if math.isnan(here["share"]) else percent(here["share"])
        text += f", {less} below the best policy found"
    more = int(last["leaves"] - here["leaves"])
    if not more:
        return text
    earned = last["value"] - here["value"]
    by = f"{text}; {counted(more, 'further leaf', 'further leaves')}"
    return f"{by} can earn {number(earned)} more" if earned > 0 else f"{by} earned nothing"


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
    policy: MarkovPolicy, model: MMDP, visited: Array, phases: int = MOST_PHASES,
    kind: PolicyKind = Markov(),  # noqa: B008
) -> Rule:  # fmt: skip
    """The rule of at most ``phases`` phases that gets most decisions of a policy right.

    ``visited`` (T, S) are probabilities of being in a state at a time. Within a phase a state has
    one action. The rule has the fewest phases that get 99% of the decisions right, and is of the
    same ``kind`` as the policy.

    >>> import mmdp
    >>> model, _ = mmdp.domains.two_models()
    >>> table = mmdp.MarkovPolicy([[0] * model.n_states] * 3 + [[1] * model.n_states] * 2)
    >>> rule = short_rule(table, model, mmdp.model_weights(table, model).sum(axis=1))
    >>> [(phase.start, phase.stop) for phase in rule.phases], rule.share
    ([(0, 3), (3, 5)], 1.0)
    """
    actions = policy.actions.astype(np.int64)
    cuts = pairwise(_cuts(actions, visited, phases))
    usual = pick_of(kind, model) or choose
    open_: Mask = np.logical_or.reduce(kind.problem(model, policy.horizon).allowed)
    found = [_phase(actions, visited, *ends, open_, usual) for ends in cuts]
    table = np.concatenate([np.tile(x.row, (x.stop - x.start, 1)) for x in found])
    simple = _followed(table, policy, model, kind)
    same = visited[simple.actions == actions].sum() / visited.sum()
    return Rule(tuple(found), simple, float(same))


def one_rule(
    policy: MarkovPolicy, model: MMDP, visited: Array,
    kind: PolicyKind = Markov(),  # noqa: B008
) -> MarkovPolicy:  # fmt: skip
    """A rule that is the same at all steps: the usual action of each state, then improved.

    Each step of the search takes argmax_a sum_t G_t(s, a) in every state, or the best row of the
    ``kind``, as long as the mean return rises. It is a good rule, not always the best.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> one_rule(mmdp.MarkovPolicy([[1], [1], [0]]), two, np.ones((3, 1))).actions.tolist()
    [[0], [0], [0]]
    """
    best = short_rule(policy, model, visited, 1, kind).policy
    value, better = evaluate(best, model).mean, pick_of(kind, model) or choose
    for _ in range(STEPS):
        G = np.nan_to_num(gradient(best, model).sum(axis=0), nan=-np.inf)  # NaN: not allowed
        row = better(G, np.ones_like(G), best.actions[0]).astype(np.int64)
        other = _followed(np.tile(row, (policy.horizon, 1)), policy, model, kind)
        worth = evaluate(other, model).mean
        if not worth > value:
            break
        best, value = other, worth
    return best


def own_rules(policy: MarkovPolicy, model: MMDP) -> Array:
    """(M,) about the best return in each model of a rule that is the same at all steps.

    The better end of two searches: from the policy, and from the model's rule for ever.
    """
    own = np.empty(model.n_models)
    for m in range(model.n_models):
        one = model.subset([m])
        starts = [policy]
        if model.discount < 1 and model.horizon is None:
            starts.append(solve(one, math.inf).policy.over(policy.horizon))
        rules = [one_rule(x, one, model_weights(x, one).sum(axis=1)) for x in starts]
        own[m] = max(evaluate(x, one).mean for x in (policy, *rules))
    return own


def one_action(
    policy: MarkovPolicy, model: MMDP, visited: Array,
    kind: PolicyKind = Markov(), objective: Objective = Mean(),  # noqa: B008
) -> MarkovPolicy | None:  # fmt: skip
    """The best policy that always takes the same action; None if no action is open everywhere.

    If there are more than 20 actions, those are tried that ``policy`` takes most.
    """
    used = np.bincount(policy.actions.ravel(), visited.ravel(), minlength=model.n_actions)
    allowed = np.all(kind.problem(model, policy.horizon).allowed, axis=(0, 1)).tolist()
    tried = [int(a) for a in np.argsort(-used, kind="stable") if allowed[a]][:MOST_ACTIONS]
    always = [_followed(np.full(policy.actions.shape, a), policy, model, kind) for a in tried]
    return max(always, key=lambda x: evaluate(x, model).value(objective), default=None)


def _cuts(actions: Ints, visited: Array, most: int) -> list[int]:
    """Times at which phases begin, and the horizon: the fewest that get enough right."""
    states = np.argsort(-visited.sum(axis=0), kind="stable")[:MOST_STATES]
    actions, visited = actions[:, states], visited[:, states]
    changed = ((actions[1:] != actions[:-1]) * visited[1:]).sum(axis=1)
    strongest = np.argsort(-changed, kind="stable")[: MOST_CUTS - 1]
    times = np.array([0, *np.sort(strongest[changed[strongest] > 0] + 1), len(actions)])
    chosen = actions[:, :, None] == np.unique(actions)
    by_block = np.add.reduceat(visited[:, :, None] * chosen, times[:-1], axis=0)
    so_far = np.concatenate([np.zeros((1, *by_block.shape[1:])), np.cumsum(by_block, axis=0)])
    covered = np.full((len(times), len(times)), -np.inf)  # right in a phase from i to j
    for i in range(len(times) - 1):
        covered[i, i + 1 :] = (so_far[i + 1 :] - so_far[i]).max(axis=2).sum(axis=1)
    best, paths = covered[0], [[0, j] for j in range(len(times))]
    ends = [(best[-1], paths[-1])]  # by number of phases
    for _ in range(most - 1):
        longer = best[:, None] + covered
        before = longer.argmax(axis=0)
        best, paths = longer.max(axis=0), [[*paths[i], j] for j, i in enumerate(before)]
        ends.append((best[-1], paths[-1]))
    enough = min(ENOUGH * visited.sum(), max(ends)[0]) * (1 - 1e-12)
    return [int(times[i]) for i in next(path for value, path in ends if value >= enough)]


def _phase(actions: Ints, visited: Array, start: int, stop: int, open_: Mask, usual: Pick) -> Phase:
    """The usual action of every state; a state that is never reached counts its times."""
    part, visits = actions[start:stop], visited[start:stop]
    tally = np.where(open_, 0.0, -np.inf)
    np.add.at(tally, (np.arange(actions.shape[1]), part), visits + 1e-12)
    row = usual(tally, np.ones_like(tally), None).astype(np.int64)
    return Phase(start, stop, row, visits.sum(axis=0))


def _followed(table: Ints, policy: MarkovPolicy, model: MMDP, kind: PolicyKind) -> MarkovPolicy:
    """The table as a policy; where an action is not open, the given policy decides."""
    open_actions = kind.problem(model, policy.horizon).allowed
    allowed = np.broadcast_to(open_actions, (*table.shape, model.n_actions))
    open_ = np.take_along_axis(allowed, table[:, :, None], axis=2)[:, :, 0]
    return MarkovPolicy.for_model(model, np.where(open_, table, policy.actions).astype(np.int32))
