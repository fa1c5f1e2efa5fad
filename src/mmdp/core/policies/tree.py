"""Decision-tree policies: splits on features of the state and on the time, an action at each leaf.

A tree splits on features of the state (named axes, columns that users give, or the state's number)
and on the time. pi_t(s) is the action of the leaf where (t, s) ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np

from mmdp.core.arguments import PositiveInt, check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.model import MMDP
from mmdp.core.policies.base import Json, NamedValues, UserData
from mmdp.core.policies.markov import MarkovPolicy, TablePolicy
from mmdp.core.policies.restricted import RestrictedMarkov, read_state_values
from mmdp.core.shapes import IndexArray, IntArray, Mask
from mmdp.core.text import TimeLabels, join_first, join_or, parse_named_values, pluralize
from mmdp.core.validate import LabelIndex, is_labeled

TIME_KEY = "time"
ENDED_LABEL = "ended"  # the state in which it is all over
_NUMBERED_LABEL = re.compile(r"(.*?)\s*(-?\d+(?:\.\d+)?)")  # "stock 12": a name and a number
_NAME_WITH_UNIT = re.compile(r"(.*\S)\s*[(\[]([^()\[\]]+)[)\]]")  # "weight (kg)": a name and a unit


# ---------------------------------------------------------------------- trees
class Leaf(NamedTuple):
    """Leaf of a decision tree, with the action to take."""

    action: int


class Split(NamedTuple):
    """Inner node of a decision tree: a test of one feature and the two subtrees."""

    feature: int
    threshold_id: int  # yes up to this level; of categories, at this level
    if_true: Leaf | Split
    if_false: Leaf | Split


DecisionNode = Leaf | Split


class TreeWithTable(NamedTuple):
    """Decision tree with the table of its actions, (T, S), or (S,) over an infinite horizon."""

    table: IntArray
    tree: DecisionNode


class NodeDescription(NamedTuple):
    """Tree node with the conditions on its path and the times and states that reach it.

    ``is_true_branch`` is None at the root; ``region`` is (T, S), or (1, S) over an infinite
    horizon.
    """

    conditions: tuple[str, ...]
    is_true_branch: bool | None
    node: DecisionNode
    region: Mask


def count_leaves(tree: DecisionNode) -> int:
    """Count the leaves of a tree."""
    return 1 if isinstance(tree, Leaf) else count_leaves(tree.if_true) + count_leaves(tree.if_false)


def replace_actions(tree: DecisionNode, actions: Iterator[int]) -> DecisionNode:
    """Replace the actions of the leaves, in the order of :meth:`TreePolicy.iter_nodes`."""
    if isinstance(tree, Leaf):
        return Leaf(int(next(actions)))
    if_true = replace_actions(tree.if_true, actions)
    return tree._replace(if_true=if_true, if_false=replace_actions(tree.if_false, actions))


# ---------------------------------------------------------------------- features
@dataclass(frozen=True, eq=False)
class Feature:
    """Feature that a tree can split on: numbers or categories of the states, or the time.

    ``codes`` has the index of each value in ``levels``. A split of numbers tests whether a value is
    at most a level, or at most the midpoint to the next one if ``is_continuous``; a split of
    categories tests whether it equals one.

    >>> stock = Feature.from_values("stock", [0, 5, 10])
    >>> stock.format_condition(1), stock.evaluate_split(1).tolist()
    ('stock is at most 5', [[True, True, False]])
    >>> Feature.from_values("region", ["north", "south", "north"]).format_condition(0)
    'region is north'
    """

    name: str
    codes: IndexArray
    levels: tuple[float, ...] | tuple[str, ...]
    is_continuous: bool = False
    time_labels: TimeLabels | None = None  # what the levels, numbers of decisions, are called

    @classmethod
    def from_times(cls, time_labels: TimeLabels, horizon: int) -> Feature:
        """Make the feature of the time, with the labels of the times.

        >>> Feature.from_times(TimeLabels("age", ("40", "41")), 9).format_condition(5)
        'age is at most 45'
        >>> month = Feature.from_times(TimeLabels("month", ("Jan", "Feb")), 2)
        >>> month.format_condition(0, is_true=False)
        'month is after Jan'
        """
        name, levels = time_labels.name, tuple(map(float, range(horizon)))
        labels = tuple(time_labels.get_labels(horizon)) if time_labels.labels else ()
        return cls(name, np.arange(horizon), levels, time_labels=TimeLabels(name, labels))

    @classmethod
    def from_values(
        cls, name: str, values: Iterable[UserData], *, is_continuous: bool = False
    ) -> Feature:
        """Make a feature from its value in each state."""
        value_list = list(values)
        try:
            numbers = [
                math.nan if isinstance(value, (bool, np.bool_)) else float(value)
                for value in value_list
            ]
        except (TypeError, ValueError):
            numbers = [math.nan]
        if not any(map(math.isnan, numbers)):
            levels, codes = np.unique(numbers, return_inverse=True)
            return cls(name, codes.reshape(-1), tuple(levels.tolist()), is_continuous)
        texts = [str(value) for value in value_list]
        code_by_text = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return cls(name, np.array([code_by_text[text] for text in texts]), tuple(code_by_text))

    @property
    def is_time(self) -> bool:
        """Whether the feature is the time."""
        return self.time_labels is not None

    @property
    def file_key(self) -> str:
        """Name of the feature in files, "time" for the time."""
        return TIME_KEY if self.is_time else self.name

    @property
    def is_ordered(self) -> bool:
        """Whether the feature is numeric."""
        return not isinstance(self.levels[0], str)

    @property
    def n_thresholds(self) -> int:
        """Number of possible splits on the feature."""
        return len(self.levels) - (self.is_ordered or len(self.levels) == 2)

    @property
    def values(self) -> list[UserData]:
        """Value of the feature in each state, or at each time."""
        return [self.levels[code] for code in self.codes]

    def evaluate_split(self, threshold_id: int) -> Mask:
        """Return where the test of a split is true, bool (1, S) or (T, 1)."""
        result: Mask = self.codes <= threshold_id if self.is_ordered else self.codes == threshold_id
        return result[:, None] if self.is_time else result[None]

    def get_threshold(self, threshold_id: int) -> float | str:
        """Return the number or category that a split compares with.

        >>> Feature.from_values("mass", [0.0, 2.5, 5.0], is_continuous=True).get_threshold(1)
        3.75
        """
        level = self.levels[threshold_id]
        if isinstance(level, str) or not self.is_continuous:
            return level
        return (level + float(self.levels[threshold_id + 1])) / 2

    def format_condition(self, threshold_id: int, is_true: bool = True) -> str:
        """Format the test of a split as a clause, or its negation.

        A unit at the end of the name goes with the number.

        >>> Feature.from_values("body weight (kg)", [50, 75]).format_condition(0, is_true=False)
        'body weight is above 50 kg'
        """
        threshold = self.get_threshold(threshold_id)
        if isinstance(threshold, str):
            return f"{self.name} is {'' if is_true else 'not '}{threshold}"
        text, next_text = (f"{value:.12g}" for value in (threshold, self.levels[threshold_id + 1]))
        value_text = text if text != next_text else repr(threshold)
        comparisons = ("above", "at most")
        if self.time_labels is not None:
            value_text = self.time_labels.get_label(threshold_id)
            if self.time_labels.is_categorical:
                comparisons = ("after", "at or before")
        match = _NAME_WITH_UNIT.fullmatch(self.name)
        name, unit = (match[1], f" {match[2]}") if match else (self.name, "")
        return f"{name} is {comparisons[is_true]} {value_text}{unit}"


def get_columns(features: Iterable[Feature]) -> dict[str, list[UserData]]:
    """Return the values by state of the features other than the time, by name."""
    return {feature.name: feature.values for feature in features if not feature.is_time}


# ---------------------------------------------------------------------- the policy class
@check_arguments
@dataclass(frozen=True, eq=False)
class Tree(RestrictedMarkov):
    """Decision trees of bounded size that split on features of the state and on the time.

    Parameters
    ----------
    max_leaves
        Search decision trees with at most that many leaves. More leaves are never worse.
    features
        What a tree may ask about the state: a CSV file with a column ``state`` and columns of
        numbers or categories. Or a DataFrame with a row for each state (its label as the index, or
        in a column ``state``), or a mapping from names to such columns. By default the named axes
        of the model, or else the number of the state if its labels are numbers or end in one, as in
        "stock 3".
    use_time
        Whether trees may split on the time too. Otherwise, and over an infinite horizon, they are
        stationary.

    Where a state does not allow the action of its leaf, the first action that it allows is taken,
    in the order of the model's actions.

    >>> import mmdp
    >>> train, _ = mmdp.domains.load_published("riverswim")
    >>> solution = mmdp.solve(train, 50, policy_class=mmdp.policies.Tree(max_leaves=2))
    >>> print(solution.policy.describe())
    if state is at most 3: swim left
    otherwise: swim right
    """

    max_leaves: PositiveInt = 6
    features: UserData = None
    use_time: bool = True

    name: ClassVar[str] = "tree"
    restriction_text: ClassVar[str] = "a tree"
    stationary_text: ClassVar[str] = "a stationary tree"
    uses_growth: ClassVar[bool] = True
    is_action_mask = False
    decision_inputs = "a few questions about the time and the state"
    change_text = "change that was tried of a question or an action"

    def __post_init__(self) -> None:
        """Read the features from a CSV file if a path is given."""
        if isinstance(self.features, (str, Path)):
            from mmdp.data.io.reading import load_features

            object.__setattr__(self, "features", load_features(self.features))

    def estimate_passes(self, markov_passes: float) -> float:
        """Estimate the passes of a solve: those of a Markov policy and more for each leaf."""
        return super().estimate_passes(markov_passes) + 500.0 * self.max_leaves

    def make_features(self, model: MMDP, horizon: int) -> tuple[Feature, ...]:
        """Make the features with more than one value that a tree can split on in the model."""
        columns = self._read_columns(model)
        continuous_names = () if model.step_spec is None else model.step_spec.grid_axes
        features = [
            Feature.from_values(x, column, is_continuous=x in continuous_names)
            for x, column in columns.items()
        ]
        if self.has_time_feature:
            conflict = next((x for x in (TIME_KEY, model.time_labels.name) if x in columns), None)
            if conflict is not None:
                raise InputError(
                    f"a feature is called {conflict!r}, as the time is; give it another name"
                )
            features.append(Feature.from_times(model.time_labels, horizon))
        return tuple(x for x in features if len(x.levels) > 1)

    @property
    def has_time_feature(self) -> bool:
        """Whether trees may split on the time."""
        return self.use_time and not self.is_infinite_horizon

    def _read_columns(self, model: MMDP) -> dict[str, list[UserData]]:
        """Return the values of each feature in the order of the states."""
        if self.features is None:
            return _columns_from_labels(model)
        if not is_labeled(self.features):
            raise InputError(
                "features must be a table by state: a DataFrame, a CSV file or a mapping from "
                f"names to columns, not {type(self.features).__name__}"
            )
        frame = self.features
        if "state" in getattr(frame, "columns", ()):
            frame = frame.set_index("state")
        names = [*map(str, frame.keys())]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise InputError(f"two features are called {duplicate!r}; give each a name of its own")
        columns = {
            name: _read_column(name, column, model)
            for name, (_, column) in zip(names, frame.items(), strict=True)
        }
        is_constant = all(len(set(map(str, column))) < 2 for column in columns.values())
        if is_constant and model.n_states > 1:
            raise InputError("the features are the same in all states; give one that differs")
        return columns

    def describe(self, model: MMDP, horizon: int) -> str:
        """Describe the size limit and the features."""
        names = [feature.name for feature in self.make_features(model, horizon)]
        size_text = pluralize(self.max_leaves, "leaf", "leaves")
        return f"at most {size_text}, by {join_or(names, ' and ')}"

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError unless the model has features to split on."""
        self.make_features(model, horizon)

    def make_policy(self, model: MMDP, table: TreeWithTable) -> TreePolicy:  # type: ignore[override]
        """Make the policy of a tree and its table, with the labels of the model."""
        table_policy = super().make_policy(model, table.table)
        features = self.make_features(model, 1 if self.is_infinite_horizon else len(table.table))
        return TreePolicy(table_policy, table.tree, features)

    def policy_to_table(self, policy: TreePolicy, model: MMDP) -> TreeWithTable:  # type: ignore[override]
        """Return the tree of a policy and its table, from which a method can resume."""
        return TreeWithTable(policy.to_table(model), policy.tree)


def _columns_from_labels(model: MMDP) -> dict[str, list[UserData]]:
    """Derive features from the state labels: named values, or a number.

    A state that says nothing and in which actions change nothing, such as ``ended``, goes with
    another.
    """
    labels = model.state_labels
    rows = [parse_named_values(label) or _parse_numbered_label(label) for label in labels]
    reference = next(filter(None, rows), {})
    if not all(rows):
        choices = zip(rows, model.has_choice, strict=True)
        rows = [row or ({} if has_choice else reference) for row, has_choice in choices]
    for label, row in zip(labels, rows, strict=True):
        if not row or row.keys() != reference.keys():
            raise InputError(
                f"there is nothing to split on: the states have names, such as {label!r}, whose "
                "order need not mean anything",
                [Remedy("features", "features.csv", verb="pass a table by state:")],
            )
    return {name: [row[name] for row in rows] for name in reference}


def _parse_numbered_label(label: str) -> dict[str, str]:
    """Split a label such as "stock 12" into a name and a number."""
    match = _NUMBERED_LABEL.fullmatch(label)
    return {match[1] or "state": match[2]} if match else {}


def _read_column(name: str, column: UserData, model: MMDP) -> list[UserData]:
    """Return the values of a feature in the order of the states, (S,)."""
    feature_text = f"feature {name!r}"
    if isinstance(column, str) or not hasattr(column, "__len__"):
        raise InputError(
            f"{feature_text} is one value, {column!r}; give a column with one per state"
        )
    return read_state_values(column, feature_text, model)


# ---------------------------------------------------------------------- the policy
class TreePolicy(TablePolicy):
    """Decision-tree policy with the table of its actions; immutable.

    :meth:`describe` returns the tree in words, and :meth:`to_markov` its table.

    Parameters
    ----------
    table_policy
        The table of actions: a :class:`mmdp.policies.MarkovPolicy`, or over an infinite horizon a
        :class:`mmdp.policies.StationaryPolicy`.
    tree, features
        The tree that gives the table, apart from states that do not allow the action of their leaf.
    fallback_actions
        Actions by rank: such a state takes the first of them that it allows. By default those of
        the table, in the order of the actions.

    >>> from mmdp.core.policies import MarkovPolicy
    >>> stock, order = Feature.from_values("stock", [0, 5, 10]), ["order", "wait"]
    >>> rows = MarkovPolicy([[0, 1, 1]] * 4, action_labels=order)
    >>> policy = TreePolicy(rows, Split(0, 0, Leaf(0), Leaf(1)), [stock])
    >>> policy
    TreePolicy(4 time steps, 3 states, 2 actions, 2 leaves on stock)
    >>> print(policy.describe())
    if stock is at most 0: order
    otherwise: wait
    """

    table_policy: TablePolicy
    tree: DecisionNode
    features: tuple[Feature, ...]
    fallback_actions: tuple[int, ...]
    has_rules: ClassVar[bool] = True

    def __init__(
        self,
        table_policy: TablePolicy,
        tree: DecisionNode,
        features: Iterable[Feature],
        fallback_actions: Iterable[int] | None = None,
    ) -> None:
        self._set_attributes(**vars(table_policy), axes=table_policy.axes)
        self._set_attributes(table_policy=table_policy, tree=tree, features=tuple(features))
        # a leaf has the action that the table takes there, if it takes a single one
        actions = np.atleast_2d(self.actions)
        sets = [(node.action, np.unique(actions[region])) for node, region in self._iter_leaves()]
        leaf_actions = (taken[0] if len(taken) == 1 else action for action, taken in sets)
        self._set_attributes(tree=replace_actions(tree, leaf_actions))
        off_leaf_actions = np.unique(actions[actions != self.leaf_actions]).tolist()
        fallback = off_leaf_actions if fallback_actions is None else map(int, fallback_actions)
        self._set_attributes(fallback_actions=tuple(fallback))
        if not {*off_leaf_actions} <= {*self.fallback_actions}:
            raise InputError(
                f"the fallback {self.fallback_actions} lacks actions of the table: "
                f"{off_leaf_actions}"
            )

    # ------------------------------------------------------------ what it is
    @property
    def policy_class(self) -> Tree:
        """Tree class with the size and the features of this tree."""
        columns, uses_time = get_columns(self.features), any(x.is_time for x in self.features)
        return Tree(self.n_leaves, columns or None, uses_time).for_horizon(self.horizon)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return count_leaves(self.tree)

    @property
    def as_markov(self) -> MarkovPolicy | None:
        """Markov policy with the same actions; None for an infinite horizon."""
        return self.table_policy.as_markov

    @property
    def defining_values(self) -> NamedValues:
        """Table of actions and text of the tree, by name: equal policies have equal ones."""
        return {**super().defining_values, "rule": self.describe()}

    # ------------------------------------------------------------ who reads it
    def iter_nodes(self) -> Iterator[NodeDescription]:
        """Iterate over all nodes, each after its parent."""
        full_region = np.ones(np.atleast_2d(self.actions).shape, dtype=bool)
        stack = [NodeDescription((), None, self.tree, full_region)]
        while stack:
            yield (parent := stack.pop())
            if isinstance(split := parent.node, Split):
                feature = self.features[split.feature]
                is_true = feature.evaluate_split(split.threshold_id)
                for branch, child in ((False, split.if_false), (True, split.if_true)):
                    condition = feature.format_condition(split.threshold_id, branch)
                    conditions, region = (*parent.conditions, condition), is_true == branch
                    stack.append(NodeDescription(conditions, branch, child, parent.region & region))

    def _iter_leaves(self) -> Iterator[tuple[Leaf, Mask]]:
        """Iterate over the leaves, with the times and states that reach them."""
        return ((x.node, x.region) for x in self.iter_nodes() if isinstance(x.node, Leaf))

    @property
    def leaf_actions(self) -> IntArray:
        """Action of the leaf by time and state, (T, S); T is 1 over an infinite horizon."""
        actions = np.empty_like(np.atleast_2d(self.actions))
        for leaf, region in self._iter_leaves():
            actions[region] = leaf.action
        return actions

    def describe(self) -> str:
        """Describe the tree in words: one split or action per line.

        The last line says what is done where a state does not allow the action of its leaf.
        """
        lines = []
        for conditions, is_true_branch, node, _ in self.iter_nodes():
            prefix = "always" if is_true_branch is None else "otherwise"
            prefix = f"if {conditions[-1]}" if is_true_branch else prefix
            action_text = f" {self.action_names[node.action]}" if isinstance(node, Leaf) else ""
            if conditions or action_text:
                lines.append(f"{'    ' * (len(conditions) - 1)}{prefix}:{action_text}")
        return "\n".join([*lines, self.fallback_text]).rstrip("\n")

    @property
    def fallback_text(self) -> str:
        """Sentence on states that do not allow the action of their leaf; empty if all do."""
        names = [self.action_names[a] for a in self.fallback_actions]
        action_text = (
            f"the first allowed of {', '.join(names)}" if len(names) > 1 else "".join(names)
        )
        return f"where that is not allowed: {action_text}" if names else ""

    def to_dict(self) -> NamedValues:
        """Return the table, the tree and its features as a dict of JSON types."""
        return {
            **super().to_dict(),
            "features": get_columns(self.features),
            "time": any(feature.is_time for feature in self.features),
            "tree": self._node_to_dict(self.tree),
            "fallback": self.fallback_actions,
        }

    def _node_to_dict(self, node: DecisionNode) -> Json:
        """Return a leaf as its action, a split as a dict of its test and subtrees."""
        if isinstance(node, Leaf):
            return int(node.action)
        feature = self.features[node.feature]
        comparison = "at most" if feature.is_ordered else "is"
        return {
            "if": feature.file_key,
            comparison: feature.get_threshold(node.threshold_id),
            "then": self._node_to_dict(node.if_true),
            "else": self._node_to_dict(node.if_false),
        }

    @classmethod
    def from_dict(
        cls,
        table_policy: TablePolicy,
        features: Mapping[str, Json],
        uses_time: bool,
        tree: Json,
        fallback_actions: Iterable[int] | None = None,
    ) -> Self:
        """Make the policy from the parts that :meth:`to_dict` writes."""
        feature_list = [Feature.from_values(name, values) for name, values in features.items()]
        if any(len(feature.codes) != table_policy.n_states for feature in feature_list):
            raise InputError(f"a feature does not have {pluralize(table_policy.n_states, 'value')}")
        if uses_time:
            feature_list.append(
                Feature.from_times(table_policy.time_labels, int(table_policy.horizon))
            )
        index_by_key = {feature.file_key: i for i, feature in enumerate(feature_list)}

        def parse_node(node: Json) -> DecisionNode:
            """Parse a JSON node into a Leaf or Split; InputError if its action does not exist."""
            if not isinstance(node, dict):
                if not 0 <= int(node) < table_policy.n_actions:
                    raise InputError(f"the tree has an action {node}, which does not exist")
                return Leaf(int(node))
            f = index_by_key[node["if"]]
            feature = feature_list[f]
            threshold = node["at most"] if feature.is_ordered else node["is"]
            if threshold not in feature.levels:
                feature = feature_list[f] = replace(feature, is_continuous=True)
            thresholds = [*map(feature.get_threshold, range(feature.n_thresholds))]
            if_true, if_false = parse_node(node["then"]), parse_node(node["else"])
            return Split(f, thresholds.index(threshold), if_true, if_false)

        return cls(table_policy, parse_node(tree), feature_list, fallback_actions)

    def reorder(self, table_policy: TablePolicy) -> TreePolicy:
        """Return the tree for the same table with states and actions in another order."""
        states = _find_indices(table_policy.state_names, self.state_names)
        actions = _find_indices(self.action_names, table_policy.action_names)
        features = (
            Feature.from_times(table_policy.time_labels, len(feature.levels))
            if feature.is_time
            else replace(feature, codes=feature.codes[states])
            for feature in self.features
        )

        leaf_actions = (actions[leaf.action] for leaf, _ in self._iter_leaves())
        tree = replace_actions(self.tree, leaf_actions)
        return TreePolicy(table_policy, tree, features, [actions[a] for a in self.fallback_actions])

    @property
    def _repr_suffix(self) -> str:
        """Number of leaves and the features in use, for ``repr``."""
        splits = (x.node for x in self.iter_nodes() if isinstance(x.node, Split))
        names = dict.fromkeys(self.features[split.feature].name for split in splits)
        leaves_text = pluralize(self.n_leaves, "leaf", "leaves")
        return f"{leaves_text} on {join_first(names, 6)}" if names else leaves_text


def require_tree(policy: object, purpose: str) -> TreePolicy:
    """Return the tree policy of a policy or Solution; InputError if it has none.

    ``purpose`` begins the message of the error.
    """
    tree_policy = getattr(policy, "policy", policy)
    if isinstance(tree_policy, TreePolicy):
        return tree_policy
    raise InputError(
        f"{purpose} a tree, not a {type(tree_policy).__name__}",
        ["solve with policy_class=mmdp.policies.Tree(max_leaves=6), or mmdp solve --max-leaves 6"],
    )


def _find_indices(names: list[str], reference: list[str]) -> list[int]:
    """Return the index of each name in the reference; 0, 1, ... if some are not there."""
    ids = LabelIndex("label", len(reference), tuple(reference)).find_ids(names)
    return ids.tolist() if (ids >= 0).all() else [*range(len(names))]
