"""Policy specification: one description from which every export target is written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdp._version import __version__
from mmdp.core.objectives import Mean, Objective
from mmdp.core.policies import MemoryPolicy, Policy, TreePolicy, require_markov
from mmdp.core.policies.tree import DecisionNode, Split
from mmdp.core.shapes import AnyArray, IndexArray
from mmdp.core.solution import SCOPE_NAMES, Bound, Solution
from mmdp.core.solve import evaluate
from mmdp.core.text import format_bound, format_number, format_with_unit, pluralize, shorten

if TYPE_CHECKING:
    from mmdp.core.model import MMDP

ActionShares = tuple[tuple[int, float], ...]  # action ids, each with its probability


class PolicySpec:
    """Actions by (time, state, node) with labels and provenance, ready to export.

    ``table`` (T, S, N) has indices into ``choices``; T is 1 if the horizon is infinite, N is 1
    without memory. ``node_row_ids`` (T, S, N) has indices into ``node_rows`` (W, S'): the node
    after the transition to s'. ``initial_nodes`` (S,) is the node that an episode begins in; the
    three are empty without memory. ``tree`` is that of a decision tree whose leaves have the
    actions of the table in every state, and ``features_used`` the features that it splits on.
    ``argument_names``: ``time`` if used, ``state``, ``node`` if there is memory.
    """

    node_row_ids = node_rows = np.zeros((0, 0), np.int64)
    initial_nodes: IndexArray = np.zeros(0, np.int64)
    tree: DecisionNode | None = None

    def __init__(
        self, source: Policy | Solution, model: MMDP | None = None, bound: Bound | None = None
    ) -> None:
        policy: Any = source.policy if isinstance(source, Solution) else source
        # refuse what has no table, with the reason
        if not getattr(policy, "has_exact_returns", False) or policy.policy_class.uses_belief:
            require_markov(source, "an exported file holds", requirement="a table of actions")
        if model is not None:
            policy.check(model)
        self.source, self.policy, self.model = source, policy, model
        self.states: list[str] = policy.state_names
        self.actions: list[str] = policy.action_names
        self.objective: Objective = source.objective or (
            Mean() if bound is None else bound.objective
        )
        self.provenance_lines = _describe_provenance(source, policy, model, bound, self.objective)
        self.uses_time: bool = policy.horizon < math.inf
        self.has_nodes = isinstance(policy, MemoryPolicy)
        self.is_randomized = not (self.has_nodes or policy.is_deterministic)
        self.choices: list[ActionShares] = [((a, 1.0),) for a in range(policy.n_actions)]
        if self.has_nodes:
            self.table: IndexArray = policy.actions.astype(np.int64)
            self.node_rows, self.node_row_ids = find_unique_rows(
                policy.node_transitions.astype(np.int64)
            )
            self.initial_nodes = policy.initial_nodes.astype(np.int64)
        else:
            table = policy.table if self.uses_time else policy.table[None]
            if self.is_randomized:
                rows, table = find_unique_rows(table)
                self.choices = [
                    tuple((int(a), float(row[a])) for a in np.flatnonzero(row)) for row in rows
                ]
            self.table = table.astype(np.int64)[:, :, None]
        if isinstance(policy, TreePolicy) and policy.is_deterministic and _is_exact(policy):
            self.tree = policy.tree
        self.features = policy.features if self.tree is not None else ()
        self.features_used = sorted(find_used_features(self.tree))
        self.n_nodes = self.table.shape[2]
        self.argument_names = ["time"] * self.uses_time + ["state"] + ["node"] * self.has_nodes

    def to_nested_lists(self, table: npt.NDArray[np.generic]) -> list[object]:
        """Convert a table (T, S, N) to nested lists without the unused axes."""
        dropped_axes = (0,) * (not self.uses_time) + (2,) * (not self.has_nodes)
        return table.squeeze(axis=dropped_axes).tolist()

    def iter_cells(self) -> Iterator[tuple[list[int | str], ActionShares, list[int]]]:
        """Yield each cell: arguments, action shares, node row id if there is memory."""
        for (t, s, n), choice_id in np.ndenumerate(self.table):
            arguments = [*[t] * self.uses_time, self.states[s], *[n] * self.has_nodes]
            node_row = [int(self.node_row_ids[t, s, n])] if self.has_nodes else []
            yield arguments, self.choices[choice_id], node_row


def find_used_features(tree: DecisionNode | None) -> set[int]:
    """Find the indices of the features that a subtree splits on."""
    if not isinstance(tree, Split):
        return set()
    return {tree.feature} | find_used_features(tree.if_true) | find_used_features(tree.if_false)


def find_unique_rows(table: AnyArray) -> tuple[AnyArray, IndexArray]:
    """Find the different rows of an array along its last axis, and the index of each row."""
    rows, ids = np.unique(table.reshape(-1, table.shape[-1]), axis=0, return_inverse=True)
    return rows, ids.reshape(table.shape[:-1])


def _is_exact(policy: TreePolicy) -> bool:
    """Return whether the leaves alone make the table, by thresholds that code can hold.

    If a state does not allow the action of its leaf, its table has another.
    """
    levels = [x for i in find_used_features(policy.tree) for x in policy.features[i].levels]
    has_finite_levels = all(isinstance(x, str) or math.isfinite(x) for x in levels)
    return has_finite_levels and bool((policy.leaf_actions == policy.table).all())


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
        last, times = int(policy.horizon) - 1, policy.time_labels
        labels_text = f" ({times.describe_range(0, last)})" if times.labels else ""
        times_text = f"; times count from 0 to {last}{labels_text}"
    size_text = f"{pluralize(policy.n_states, 'state')} and {pluralize(policy.n_actions, 'action')}"
    inputs = policy.policy_class.decision_inputs
    if isinstance(policy, TreePolicy):
        asked = [policy.features[i].name for i in sorted(find_used_features(policy.tree))]
        inputs = f"questions about {' and '.join(asked)}" if asked else "nothing"
    lines = [f"Decisions depend on {inputs}: {size_text}{times_text}."]
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
