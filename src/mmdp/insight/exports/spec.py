"""Policy specification: one description from which every export target is written."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from mmdp.core.text import (
    TimeLabels,
    format_bound,
    format_number,
    format_with_unit,
    pluralize,
    shorten,
)
from mmdp.insight.draw.axes import UNLABELED_TIMES

if TYPE_CHECKING:
    from mmdp.core.model import MMDP
    from mmdp.insight.measures import NearOptimalActions

Ints = npt.NDArray[np.int64]
NEAR_OPTIMAL_TOLERANCE = 0.01  # share of the value at stake that a free choice may lose
ActionShares = tuple[tuple[int, float], ...]  # action ids, each with its probability


@dataclass(frozen=True)
class PolicySpec:
    """Actions by (time, state, node) with labels and provenance, ready to export.

    ``table`` (T, S, N) has indices into ``choices``; T is 1 if the horizon is infinite, N is 1
    without memory. ``node_row_ids`` (T, S, N) has indices into ``node_rows`` (W, S'): the node
    after the transition to s'. ``initial_nodes`` (S,) is the node that an episode begins in.

    A tree has its ``features``, those of the time too. If ``allowed`` (S, A) excludes the action of
    the leaf, the first allowed action of ``fallback`` is taken.
    """

    states: list[str]
    actions: list[str]
    uses_time: bool
    choices: list[ActionShares]
    table: Ints
    provenance_lines: list[str]
    is_randomized: bool = False
    node_row_ids: Ints | None = None
    node_rows: Ints | None = None
    initial_nodes: Ints | None = None
    tree: DecisionNode | None = None
    features: tuple[Feature, ...] = ()
    allowed: npt.NDArray[np.bool_] | None = None
    fallback: tuple[int, ...] = ()
    tree_text: str = ""
    time_labels: TimeLabels = UNLABELED_TIMES
    model_name: str = ""  # of the models
    initial_state: int = 0  # a state that episodes begin in, if the models say it
    draw_svg: Callable[[], str] | None = None  # a picture, SVG
    find_near_optimal: Callable[[], NearOptimalActions] | None = (
        None  # what other actions cost in the models
    )
    has_choice: npt.NDArray[np.bool_] | None = None  # (T, S) where actions differ in the models

    @property
    def n_nodes(self) -> int:
        """Number of nodes of memory."""
        return self.table.shape[2]

    @property
    def argument_names(self) -> list[str]:
        """Arguments of a decision: ``time`` if used, ``state``, ``node`` if there is memory."""
        node = ["node"] if self.node_rows is not None else []
        return [*(["time"] if self.uses_time else []), "state", *node]

    def to_nested_lists(self, table: npt.NDArray[np.generic]) -> list[object]:
        """Convert a table (T, S, N) to nested lists without the unused axes."""
        dropped_axes = (0,) * (not self.uses_time) + (2,) * (self.node_rows is None)
        lists: list[object] = table.squeeze(axis=dropped_axes).tolist()
        return lists

    @functools.cached_property
    def features_used(self) -> list[int]:
        """Indices of the state features that the tree splits on."""
        return sorted(x for x in _find_used_features(self.tree) if not self.features[x].is_time)

    @property
    def tree_uses_time(self) -> bool:
        """Whether the tree has a split on the time."""
        return any(self.features[x].is_time for x in _find_used_features(self.tree))

    @property
    def needs_mask(self) -> bool:
        """Whether some state does not allow the action of its leaf."""
        return self.allowed is not None and not self.allowed.all()

    def get_allowed_action(self, state: int, leaf_action: int) -> int:
        """Get the action taken in a state whose leaf has this action."""
        assert self.allowed is not None
        return next(a for a in (leaf_action, *self.fallback) if self.allowed[state, a])


def _find_used_features(tree: DecisionNode | None) -> set[int]:
    """Find the indices of the features that a subtree splits on."""
    if tree is None or isinstance(tree, Leaf):
        return set()
    return {tree.feature} | _find_used_features(tree.if_true) | _find_used_features(tree.if_false)


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
    states, actions = policy.state_names, policy.action_names
    _check_labels("state", states)
    _check_labels("action", actions)
    fields: dict[str, Any] = {
        "states": states,
        "actions": actions,
        "uses_time": policy.horizon < math.inf,
        "provenance_lines": _describe_provenance(source, policy, model, bound),
        "choices": [((a, 1.0),) for a in range(len(actions))],
        "time_labels": policy.time_labels,
    }
    if model is not None:
        fields["model_name"] = model.name
        fields["initial_state"] = int(model.problem.initial_joint().sum(axis=1).argmax())
        n_times = int(policy.horizon) if fields["uses_time"] else 1
        fields["has_choice"] = model.mask_visits(np.ones((n_times, len(states)))) > 0
        fields["find_near_optimal"] = lambda: _find_near_optimal(
            source, model, _find_objective(source, bound)
        )
    if isinstance(policy, MemoryPolicy):
        node_rows, node_row_ids = np.unique(
            policy.node_transitions.reshape(-1, len(states)).astype(np.int64),
            axis=0,
            return_inverse=True,
        )
        table = policy.actions.astype(np.int64)
        initial_nodes = policy.initial_nodes.astype(np.int64)
        if model is not None:
            fields["draw_svg"] = lambda: policy.to_flow_chart(model).to_svg()
        return PolicySpec(
            **fields,
            table=table,
            node_row_ids=node_row_ids.reshape(table.shape),
            node_rows=node_rows,
            initial_nodes=initial_nodes,
        )
    table = policy.table if fields["uses_time"] else policy.table[None]
    if not policy.is_deterministic:
        choice_rows, choice_ids = np.unique(
            table.reshape(-1, len(actions)), axis=0, return_inverse=True
        )
        fields["choices"] = [
            tuple((int(a), float(r[a])) for a in np.flatnonzero(r)) for r in choice_rows
        ]
        return PolicySpec(
            **fields, table=choice_ids.reshape(*table.shape[:2], 1), is_randomized=True
        )
    spec = PolicySpec(**fields, table=table.astype(np.int64)[:, :, None])
    return _add_tree(spec, policy, model) if isinstance(policy, TreePolicy) else spec


def _find_objective(source: Policy | Solution, bound: Bound | None) -> Objective:
    """Find the objective of a policy, solution or bound; the mean if unknown."""
    return source.objective or (Mean() if bound is None else bound.objective)


def _find_near_optimal(
    source: Policy | Solution, model: MMDP, objective: Objective
) -> NearOptimalActions:
    """Find the near-optimal actions of a policy within 1% of the value at stake."""
    from mmdp.insight.measures import near_optimal_actions

    return near_optimal_actions(model, source, NEAR_OPTIMAL_TOLERANCE, objective=objective)


def _add_tree(spec: PolicySpec, policy: TreePolicy, model: MMDP | None) -> PolicySpec:
    """Add the tree to a specification if tree, mask and fallback reproduce the table.

    The mask excludes what the table avoids; the models, if given, must exclude it too.
    """
    actions = spec.table[:, :, 0]
    leaf_actions = np.broadcast_to(policy.leaf_actions, actions.shape)
    s = np.broadcast_to(np.arange(actions.shape[1]), actions.shape)
    allowed = np.ones((len(spec.states), len(spec.actions)), dtype=bool)
    other = actions != leaf_actions
    allowed[s[other], leaf_actions[other]] = False
    for rank, a in enumerate(
        policy.fallback_actions
    ):  # what ranks before the action taken is not allowed
        allowed[np.ix_(s[other & (actions == a)], policy.fallback_actions[:rank])] = False
    features = [policy.features[x] for x in _find_used_features(policy.tree)]
    is_finite = all(
        math.isfinite(x) for f in features if f.is_ordered for x in map(float, f.levels)
    )
    is_reproduced = allowed[s, actions].all() and (
        model is None or not (model.allowed & ~allowed).any()
    )
    if not (is_reproduced and is_finite):
        return spec
    return replace(
        spec,
        tree=policy.tree,
        features=policy.features,
        allowed=allowed,
        fallback=policy.fallback_actions,
        tree_text=policy.describe(),
    )


def _check_labels(axis: str, labels: Sequence[str]) -> None:
    """Refuse labels that occur twice."""
    if len({*labels}) < len(labels):
        duplicate = next(x for i, x in enumerate(labels) if x in labels[:i])
        raise InputError(f"two {axis}s are called {duplicate!r}; give each a name of its own")


def _describe_provenance(
    source: Policy | Solution, policy: Policy, model: MMDP | None, bound: Bound | None
) -> list[str]:
    """Describe policy, models, value and bound in sentences of one line each."""
    is_finite = policy.horizon < math.inf
    size_text = f"{pluralize(policy.n_states, 'state')} and {pluralize(policy.n_actions, 'action')}"
    last_time = int(policy.horizon) - 1 if is_finite else 0
    times_text = (
        f" ({policy.time_labels.describe_range(0, last_time)})" if policy.time_labels.labels else ""
    )
    horizon_text = (
        f"; times count from 0 to {last_time}{times_text}" if is_finite else ", at all times"
    )
    inputs_text = f"Decisions depend on {policy.policy_class.decision_inputs}"
    lines = [f"{inputs_text}: {size_text}{horizon_text}."]
    objective, value = _find_objective(source, bound), None
    unit = None if model is None else model.unit
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
