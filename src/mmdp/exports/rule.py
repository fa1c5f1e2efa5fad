"""One description of a policy, from which every target is written."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp._version import __version__
from mmdp.draw.axes import UNNAMED
from mmdp.errors import InputError
from mmdp.objective import Mean, Objective
from mmdp.policy import MemoryPolicy, Policy, TreePolicy, markov_policy
from mmdp.policy.tree import Feature, Leaf, Node
from mmdp.solution import POLICIES, Bound, Solution
from mmdp.solve import evaluate
from mmdp.words import Times, at_most, counted, number, shortened

if TYPE_CHECKING:
    from mmdp.measures import Freedom
    from mmdp.model import MMDP

Ints = npt.NDArray[np.int64]
FREE = 0.01  # share of what is at stake that may be lost where people are free to choose
Shares = tuple[tuple[int, float], ...]  # actions by their place, each with its share


@dataclass(frozen=True)
class Rule:
    """What to do at each (time, state, node), and where it came from.

    ``table`` (T, S, N) has the place of what is done among the ``choices``; T is 1 if there is no
    last decision, N is 1 without memory. ``moves`` (T, S, N) has the place of a row of ``ways``
    (W, S'): the node after the step to s'. ``first`` (S,) is the node that an episode begins in.

    A tree has its ``features``, those of the time too, and ``instead`` (S, A): what is done in a
    state whose leaf says a, which differs from a where the state does not allow it.
    """

    states: list[str]
    actions: list[str]
    timed: bool
    choices: list[Shares]
    table: Ints
    about: list[str]
    randomised: bool = False
    moves: Ints | None = None
    ways: Ints | None = None
    first: Ints | None = None
    tree: Node | None = None
    features: tuple[Feature, ...] = ()
    instead: Ints | None = None
    words: str = ""
    times: Times = UNNAMED
    name: str = ""  # of the models
    begins: int = 0  # a state that episodes begin in, if the models say it
    drawn: Callable[[], str] | None = None  # a picture, SVG
    freedom: Callable[[], Freedom] | None = None  # what other actions cost in the models
    decides: npt.NDArray[np.bool_] | None = None  # (T, S) where actions differ in the models

    @property
    def nodes(self) -> int:
        return self.table.shape[2]

    @property
    def arguments(self) -> list[str]:
        """What a decision is asked by: ``time`` if it matters, ``state``, ``node`` if any."""
        node = ["node"] if self.ways is not None else []
        return [*(["time"] if self.timed else []), "state", *node]

    def nested(self, table: Ints) -> Any:
        """A table (T, S, N) as lists, without the axes that are not asked by."""
        drop = (0,) * (not self.timed) + (2,) * (self.ways is None)
        return table.squeeze(axis=drop).tolist()

    @functools.cached_property
    def asked(self) -> list[int]:
        """The places of the features of states that the tree asks about."""
        return sorted(x for x in _asked(self.tree) if not self.features[x].timed)

    @property
    def asks_time(self) -> bool:
        return any(self.features[x].timed for x in _asked(self.tree))


def _asked(tree: Node | None) -> set[int]:
    if tree is None or isinstance(tree, Leaf):
        return set()
    return {tree.feature} | _asked(tree.yes) | _asked(tree.no)


def rule_of(
    given: Policy | Solution, model: MMDP | None = None, bound: Bound | None = None
) -> Rule:
    """The description of a policy, or of the one that a solution has."""
    policy: Any = given.policy if isinstance(given, Solution) else given
    # refuse what has no table, with the reason
    if not getattr(policy, "exact", False) or policy.kind.learns:
        markov_policy(given, "an exported file holds", needed="a table of actions")
    if model is not None:
        policy.check(model)
    states, actions = policy.state_names, policy.action_names
    _check_labels("state", states)
    _check_labels("action", actions)
    parts: dict[str, Any] = {
        "states": states, "actions": actions, "timed": policy.horizon < math.inf,
        "about": _about(given, policy, model, bound),
        "choices": [((a, 1.0),) for a in range(len(actions))], "times": policy.times,
    }  # fmt: skip
    if model is not None:
        parts["name"] = model.name
        parts["begins"] = int(model.problem.start().sum(axis=1).argmax())
        steps = int(policy.horizon) if parts["timed"] else 1
        parts["decides"] = model.decisions(np.ones((steps, len(states)))) > 0
        parts["freedom"] = lambda: _freedom(policy, model, _goal(given, bound))
    if isinstance(policy, MemoryPolicy):
        ways, moves = np.unique(
            policy.moves.reshape(-1, len(states)).astype(np.int64), axis=0, return_inverse=True
        )
        table = policy.actions.astype(np.int64)
        first = policy.first.astype(np.int64)
        if model is not None:
            parts["drawn"] = lambda: policy.flow_chart(model).svg()
        return Rule(**parts, table=table, moves=moves.reshape(table.shape), ways=ways, first=first)
    table = policy.table if parts["timed"] else policy.table[None]
    if not policy.deterministic:
        rows, place = np.unique(table.reshape(-1, len(actions)), axis=0, return_inverse=True)
        parts["choices"] = [tuple((int(a), float(r[a])) for a in np.flatnonzero(r)) for r in rows]
        return Rule(**parts, table=place.reshape(*table.shape[:2], 1), randomised=True)
    found = Rule(**parts, table=table.astype(np.int64)[:, :, None])
    return _with_tree(found, policy) if isinstance(policy, TreePolicy) else found


def _goal(given: Policy | Solution, bound: Bound | None) -> Objective:
    """What it was solved for, as far as it is known."""
    return given.objective or (Mean() if bound is None else bound.objective)


def _freedom(policy: Policy, model: MMDP, goal: Objective) -> Freedom:
    from mmdp.measures import freedom

    return freedom(policy, model, FREE, objective=goal)


def _with_tree(rule: Rule, policy: TreePolicy) -> Rule:
    """The rule with its tree, if that and what a state does instead make the whole table."""
    done = rule.table[:, :, 0]
    leaf = np.broadcast_to(policy.leaf_actions, done.shape)
    instead = np.tile(np.arange(len(rule.actions)), (len(rule.states), 1))
    s = np.broadcast_to(np.arange(done.shape[1]), done.shape)
    instead[s, leaf] = done
    asked = [policy.features[x] for x in _asked(policy.tree)]
    finite = all(math.isfinite(x) for f in asked if f.ordered for x in map(float, f.levels))
    if (instead[s, leaf] != done).any() or not finite:
        return rule
    return replace(
        rule, tree=policy.tree, features=policy.features, instead=instead, words=policy.text()
    )


def _check_labels(what: str, labels: Sequence[str]) -> None:
    if len({*labels}) < len(labels):
        twice = next(x for i, x in enumerate(labels) if x in labels[:i])
        raise InputError(f"two {what}s are called {twice!r}; give each a name of its own")


def _about(
    given: Policy | Solution, policy: Policy, model: MMDP | None, bound: Bound | None
) -> list[str]:
    """What the rule is, for which models, its value and bound: sentences of one line each."""
    ends = policy.horizon < math.inf
    size = f"{counted(policy.n_states, 'state')} and {counted(policy.n_actions, 'action')}"
    last = int(policy.horizon) - 1 if ends else 0
    named = f" ({policy.times.span(0, last)})" if policy.times.labels else ""
    steps = f"; times count from 0 to {last}{named}" if ends else ", at all times"
    lines = [f"What to do, by {policy.kind.title}: {size}{steps}."]
    goal, value = _goal(given, bound), None
    unit = f" {model.unit}" if model is not None and model.unit else ""
    if isinstance(given, Solution):
        lines.append(f"Computed by {given.method} for {counted(len(given.returns), 'model')}.")
        value, bound = given.value, given.certificate or bound
    elif model is not None:
        lines.append(f"For {counted(model.n_models, 'model')}.")
        value = evaluate(policy, model).value(goal)
    if value is not None:
        lines.append(f"Its value on these models ({goal}) is {number(value, 8)}{unit}.")
    elif given.objective is not None:
        lines.append(f"Solved for {goal}.")
    if bound is not None:
        lines.append(
            f"Proven: no {POLICIES[bound.bounds]} has more than {at_most(bound.value, 8)}{unit}."
        )
    if model is not None:
        lines.append(f"Fingerprint of the models: {model.fingerprint()}.")
    return [shortened(line, 400) for line in (*lines, f"Written by mmdp {__version__}.")]
