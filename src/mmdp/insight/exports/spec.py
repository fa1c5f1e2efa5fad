"""Policy specification: one description from which every export target is written."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp._version import __version__
from mmdp.core.errors import InputError
from mmdp.core.objectives import Mean, Objective
from mmdp.core.policies import MemoryPolicy, Policy, TreePolicy, require_markov
from mmdp.core.policies.tree import DecisionNode, Feature, Leaf
from mmdp.core.solution import SCOPE_NAMES, Bound, Solution
from mmdp.core.solve import evaluate
from mmdp.core.text import format_bound, format_number, format_with_unit, pluralize, shorten

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

Ints = npt.NDArray[np.int64]
ActionShares = tuple[tuple[int, float], ...]  # action ids, each with its probability


def make_empty() -> Ints:
    """Make a table of nodes without entries."""
    return np.zeros((0, 0), np.int64)


@dataclass(frozen=True, eq=False)
class PolicySpec:
    """Actions by (time, state, node) with labels and provenance, ready to export.

    ``table`` (T, S, N) has indices into ``choices``; T is 1 if the horizon is infinite, N is 1
    without memory. ``node_row_ids`` (T, S, N) has indices into ``node_rows`` (W, S'): the node
    after the transition to s'. ``initial_nodes`` (S,) is the node that an episode begins in.
    ``tree`` is that of a decision tree whose leaves have the actions of the table in every state.
    """

    source: Policy | Solution
    policy: Any
    model: MMDP | None
    objective: Objective
    provenance_lines: list[str]
    choices: list[ActionShares]
    table: Ints
    node_row_ids: Ints = field(default_factory=make_empty)
    node_rows: Ints = field(default_factory=make_empty)
    initial_nodes: Ints = field(default_factory=make_empty)
    tree: DecisionNode | None = None

    @property
    def states(self) -> list[str]:
        """Labels of the states."""
        return self.policy.state_names  # type: ignore[no-any-return]

    @property
    def actions(self) -> list[str]:
        """Labels of the actions."""
        return self.policy.action_names  # type: ignore[no-any-return]

    @property
    def uses_time(self) -> bool:
        """Whether a decision is asked by the time too."""
        return self.policy.horizon < math.inf  # type: ignore[no-any-return]

    @property
    def is_randomized(self) -> bool:
        """Whether decisions are shares of actions."""
        return not (self.has_nodes or self.policy.is_deterministic)

    @property
    def has_nodes(self) -> bool:
        """Whether the policy has nodes of memory."""
        return self.node_rows.size > 0

    @property
    def n_nodes(self) -> int:
        """Number of nodes of memory."""
        return self.table.shape[2]

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features of the tree."""
        return () if self.tree is None else self.policy.features

    @property
    def argument_names(self) -> list[str]:
        """Arguments of a decision: ``time`` if used, ``state``, ``node`` if there is memory."""
        return ["time"] * self.uses_time + ["state"] + ["node"] * self.has_nodes

    @functools.cached_property
    def features_used(self) -> list[int]:
        """Indices of the features that the tree splits on."""
        return sorted(find_used_features(self.tree))

    def to_nested_lists(self, table: npt.NDArray[np.generic]) -> list[object]:
        """Convert a table (T, S, N) to nested lists without the unused axes."""
        dropped_axes = (0,) * (not self.uses_time) + (2,) * (not self.has_nodes)
        lists: list[object] = table.squeeze(axis=dropped_axes).tolist()
        return lists

    def iter_cells(self) -> Iterator[tuple[list[int | str], ActionShares, list[int]]]:
        """Yield each cell: arguments, action shares, node row id if there is memory."""
        for (t, s, n), choice_id in np.ndenumerate(self.table):
            position: dict[str, int | str] = {"time": t, "state": self.states[s], "node": n}
            node_row = [int(self.node_row_ids[t, s, n])] if self.has_nodes else []
            yield [position[x] for x in self.argument_names], self.choices[choice_id], node_row


def find_used_features(tree: DecisionNode | None) -> set[int]:
    """Find the indices of the features that a subtree splits on."""
    if tree is None or isinstance(tree, Leaf):
        return set()
    return {tree.feature} | find_used_features(tree.if_true) | find_used_features(tree.if_false)


def make_spec(
    source: Policy | Solution, model: MMDP | None = None, bound: Bound | None = None
) -> PolicySpec:
    """Make the specification of a policy, or of the policy of a solution."""
    policy: Any = source.policy if isinstance(source, Solution) else source
    # refuse what has no table, with the reason
    if not getattr(policy, "has_exact_returns", False) or policy.policy_class.uses_belief:
        require_markov(source, "an exported file holds", requirement="a table of actions")
    if model is not None:
        policy.check(model)
    _check_labels("state", policy.state_names)
    _check_labels("action", policy.action_names)
    objective = source.objective or (Mean() if bound is None else bound.objective)
    lines = _describe_provenance(source, policy, model, bound, objective)
    make = functools.partial(PolicySpec, source, policy, model, objective, lines)
    choices: list[ActionShares] = [((a, 1.0),) for a in range(policy.n_actions)]
    if isinstance(policy, MemoryPolicy):
        node_rows, node_row_ids = find_unique_rows(policy.node_transitions.astype(np.int64))
        table, initial_nodes = policy.actions.astype(np.int64), policy.initial_nodes
        return make(choices, table, node_row_ids, node_rows, initial_nodes.astype(np.int64))
    table = policy.table if policy.horizon < math.inf else policy.table[None]
    if policy.is_deterministic:
        tree = policy.tree if isinstance(policy, TreePolicy) and _is_exact(policy) else None
        return make(choices, table.astype(np.int64)[:, :, None], tree=tree)
    rows, choice_ids = find_unique_rows(table)
    shares = [tuple((int(a), float(row[a])) for a in np.flatnonzero(row)) for row in rows]
    return make(shares, choice_ids[:, :, None])


def find_unique_rows(table: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """Find the different rows of an array along its last axis, and the index of each row."""
    rows, ids = np.unique(table.reshape(-1, table.shape[-1]), axis=0, return_inverse=True)
    return rows, ids.reshape(table.shape[:-1])


def _is_exact(policy: TreePolicy) -> bool:
    """Return whether the leaves alone make the table, by thresholds that code can hold.

    If a state does not allow the action of its leaf, its table has another.
    """
    levels = [policy.features[i].levels for i in find_used_features(policy.tree)]
    numbers = [float(x) for row in levels for x in row if not isinstance(x, str)]
    leaf_actions = np.broadcast_to(policy.leaf_actions, np.atleast_2d(policy.table).shape)
    return all(map(math.isfinite, numbers)) and bool((leaf_actions == policy.table).all())


def _check_labels(axis: str, labels: Sequence[str]) -> None:
    """Refuse labels that occur twice."""
    if len({*labels}) < len(labels):
        duplicate = next(x for i, x in enumerate(labels) if x in labels[:i])
        raise InputError(f"two {axis}s are called {duplicate!r}; give each a name of its own")


def _describe_provenance(
    source: Policy | Solution,
    policy: Policy,
    model: MMDP | None,
    bound: Bound | None,
    objective: Objective,
) -> list[str]:
    """Describe policy, models, value and bound in sentences of one line each."""
    times_text = ", at all times"
    if policy.horizon < math.inf:
        last = int(policy.horizon) - 1
        has_labels = bool(policy.time_labels.labels)
        labels_text = f" ({policy.time_labels.describe_range(0, last)})" * has_labels
        times_text = f"; times count from 0 to {last}{labels_text}"
    size_text = f"{pluralize(policy.n_states, 'state')} and {pluralize(policy.n_actions, 'action')}"
    lines = [f"Decisions depend on {policy.policy_class.decision_inputs}: {size_text}{times_text}."]
    value, unit = None, None if model is None else model.unit
    if isinstance(source, Solution):
        lines.append(f"Computed by {source.method} for {pluralize(len(source.returns), 'model')}.")
        value, bound = source.value, source.certificate or bound
    elif model is not None:
        lines.append(f"For {pluralize(model.n_models, 'model')}.")
        value = evaluate(model, policy).value(objective)
    if value is not None:
        value_text = format_with_unit(format_number(value, 8), unit)
        lines.append(f"Its value on these models ({objective.name}) is {value_text}.")
    elif source.objective is not None:
        lines.append(f"Solved for the {objective.name}.")
    if bound is not None:
        bound_text = format_with_unit(format_bound(bound.value, 8), unit)
        lines.append(f"Proven: no {SCOPE_NAMES[bound.scope]} has more than {bound_text}.")
    if model is not None:
        lines.append(f"Fingerprint of the models: {model.fingerprint()}.")
    return [shorten(line, 400) for line in (*lines, f"Written by mmdp {__version__}.")]
