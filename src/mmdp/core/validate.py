"""Parse and check the arguments of a model; messages name the state, action and model."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence, Set, Sized
from typing import Any, Literal, NamedTuple, SupportsFloat, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Label, is_of_type
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.distributions import SUM_TOLERANCE, clip_rounding, normalize, rescale_sums
from mmdp.core.kernels.problem import Problem, Shard
from mmdp.core.kernels.rewards import EventRewards, Rewards, iter_blocks
from mmdp.core.memory import check_memory
from mmdp.core.text import TimeLabels, did_you_mean, join_first, pluralize, shorten
from mmdp.core.transitions import (
    Array,
    ModelShape,
    SparseTransitions,
    as_float_array,
    check_not_masked,
    move_models_last,
)

REWARD_RTOL = 1e-14  # relative difference of rewards that is rounding
LABEL_NBYTES = 250  # memory of a label while it is read: the value, its text, and copies
MAX_NESTING = 8  # lists within lists that are searched
MAX_VALUE = 1e150  # largest value: variances are squares, and doubles end at 1.8e308
AXES = ("state", "action", "model")
RESERVED_COLUMNS = (
    *AXES,
    "next_state",
    "label",
    "node",
    "policy",
    "share",
    "idstate",
    "idaction",
    "probability",
    "moves",
    "start",
)
_UNWRITABLE_CHARACTERS = re.compile("[\x00\ud800-\udfff]")
_ID_PATTERN = re.compile(r"(0|[1-9][0-9]{0,15})(\.0*)?")

# whether an action may be missing in some models; "partial": rows are a mean over such models
AllowMissing = bool | Literal["partial"]


class LabelIndex(NamedTuple):
    """Labels of the ids 0..size-1 of an axis (state, action or model); None: no labels.

    >>> names = LabelIndex("state", 2, ("up", "down"))
    >>> names.find_ids(["down", "left", 0]).tolist(), names.format_id(1)
    ([1, -1, 0], "'down'")
    """

    axis_name: str
    size: int
    labels: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, axis_name: str, size: int, labels: object) -> LabelIndex:
        """Parse and check the labels of an axis that a user gives."""
        parsed_labels = parse_labels(labels, axis_name)
        if parsed_labels is None:
            return cls(axis_name, size)
        if len(parsed_labels) != size:
            raise InputError(
                f"{len(parsed_labels)} {axis_name} labels for {pluralize(size, axis_name)}; "
                "give one to each"
            )
        if len(set(parsed_labels)) != size:
            duplicate = next(x for x in parsed_labels if parsed_labels.count(x) > 1)
            raise InputError(f"{axis_name} label {duplicate!r} is used twice; labels must differ")
        return cls(axis_name, size, parsed_labels)

    @property
    def names(self) -> tuple[str, ...]:
        """Labels in the order of ids; the ids as text if there are no labels."""
        return tuple(map(str, range(self.size))) if self.labels is None else self.labels

    @property
    def axis_labels(self) -> Sequence[object]:
        """Labels, or ids if there are none, as :func:`align_to_labels` takes them."""
        return range(self.size) if self.labels is None else self.labels

    def select_shard(self, shard: Shard | None) -> LabelIndex:
        """Select the models of a shard, under the labels they have among all."""
        if shard is None:
            return self
        names = self.names[shard.local_models]
        return LabelIndex(self.axis_name, len(names), names)

    def format_id(self, index: int) -> str:
        """Format an id, or its label in quotes, for messages."""
        return str(index) if self.labels is None else repr(self.labels[index])

    def get_label(self, index: int) -> str | int:
        """Get the label of an id, or the id if there are no labels."""
        return index if self.labels is None else self.labels[index]

    def find_ids(self, values: Iterable[object]) -> npt.NDArray[np.int64]:
        """Find the ids (n,) of labels or ids; -1 if unknown.

        Whole numbers are ids if not all values are labels and the labels are not numbers
        themselves. Text such as ``3`` or ``3.0`` is an id only if there are no labels.
        """
        value_list = list(values)
        if self.labels is None:
            return np.array([self._parse_id(x) for x in value_list], dtype=np.int64)
        ids_by_label = {label: i for i, label in enumerate(self.labels)}
        label_ids = [ids_by_label.get(str(x), -1) for x in value_list]
        if -1 in label_ids and not are_ids(self.labels):
            ids = [-1 if isinstance(x, str) else self._parse_id(x) for x in value_list]
            label_ids = [
                i if i >= 0 else label_id for i, label_id in zip(ids, label_ids, strict=True)
            ]
        return np.array(label_ids, dtype=np.int64)

    def _parse_id(self, value: object) -> int:
        """Parse a number or text to an id; -1 if it is none."""
        if isinstance(value, (bool, np.bool_)) or not are_ids([str(value).strip()]):
            return -1
        number = int(float(str(value)))
        return number if number < self.size else -1

    def get_id(self, value: object) -> int:
        """Get the id of one label or id; the error for an unknown one suggests a known one."""
        return self.get_ids([value])[0]

    def get_ids(self, values: Iterable[object]) -> list[int]:
        """Get the ids of labels or ids; the error for an unknown one suggests a known one."""
        value_list = list(values)
        ids: list[int] = self.find_ids(value_list).tolist()
        if -1 in ids:
            raise InputError(self.describe_unknown(value_list[ids.index(-1)]))
        return ids

    def describe_unknown(self, value: object) -> str:
        """Describe a value that is no label or id, with a suggestion, for an error."""
        choices = self.labels if self.labels is not None else [f"0..{self.size - 1}"]
        suggestion = did_you_mean(str(value), choices)
        return f"unknown {self.axis_name} {suggestion}; choose from {join_first(choices)}"


def are_ids(texts: Iterable[str]) -> bool:
    """Check whether all texts are ids: ``3`` or ``3.0``."""
    return all(_ID_PATTERN.fullmatch(text) for text in texts)


class ModelFields(NamedTuple):
    """Fields of a model besides transitions and rewards: arguments of MMDP, parsed.

    None stands for an initial distribution, labels and allowed actions that were not given.
    """

    initial: Array | None  # (S,) or (M, S)
    weights: Array  # (M,)
    discount: float
    terminal: Array  # (M, S)
    allowed: npt.NDArray[np.bool_] | None  # (S, A)
    model_transitions: Array | None  # (M, M)
    states: tuple[str, ...] | None
    actions: tuple[str, ...] | None
    models: tuple[str, ...] | None
    allow_missing: AllowMissing
    parameters: dict[str, Array]  # (M,) each
    name: str | None
    citation: str | None
    time_labels: dict[str, tuple[str, ...]] | None  # labels by the name of their axis
    unit: str | None
    quantity: str | None

    @classmethod
    def parse(
        cls, arguments: Mapping[str, object], shape: ModelShape, shard: Shard | None = None
    ) -> ModelFields:
        """Parse and check arguments of MMDP for models of shape (M, S, A)."""
        defaults = {"discount": 1.0, "allow_missing": False}
        all_arguments = dict.fromkeys(cls._fields) | defaults | dict(arguments)
        return cls(**_parse_fields(all_arguments, cls._fields, shape, shard))

    def parse_changes(
        self, changes: Mapping[str, object], shape: ModelShape, shard: Shard | None = None
    ) -> ModelFields:
        """Return a copy with some fields parsed anew, from arguments of MMDP."""
        return self._replace(**_parse_fields(self._asdict() | dict(changes), changes, shape, shard))

    def describe_index(self, m: int, s: int, a: int, t: int | None = None) -> str:
        """Describe a model, state and action by label: ``model 3, state 'sick', action 'B'``."""
        ids_by_axis = zip(("model", "state", "action"), (m, s, a), strict=True)
        text = ", ".join(
            f"{axis} {_format_label(getattr(self, f'{axis}s'), i)}" for axis, i in ids_by_axis
        )
        return text if t is None else f"{text}, time {t}"


def _parse_fields(
    arguments: Mapping[str, object], names: Iterable[str], shape: ModelShape, shard: Shard | None
) -> dict[str, Any]:
    """Parse some of the arguments of MMDP; the labels that they refer to are among them."""
    sizes = (shape[1], shape[2], shape[0] if shard is None else shard.n_models)
    states, actions, models = (
        LabelIndex.parse(axis, size, arguments[f"{axis}s"])
        for axis, size in zip(AXES, sizes, strict=True)
    )
    parsers: dict[str, Callable[[Any], object]] = {
        "states": lambda _: states.labels,
        "actions": lambda _: actions.labels,
        "models": lambda _: models.labels,
        "initial": lambda x: (
            None if x is None else parse_initial(x, models.select_shard(shard), states)
        ),
        "weights": lambda x: parse_distribution(x, "weights", models),
        "discount": parse_discount,
        "terminal": lambda x: parse_terminal(x, models.select_shard(shard), states),
        "allowed": lambda x: None if x is None else parse_allowed(x, states, actions),
        "model_transitions": lambda x: parse_model_transitions(x, models),
        "parameters": lambda x: parse_parameters(x, models),
        "name": lambda x: parse_text(x, "name"),
        "citation": lambda x: parse_text(x, "citation"),
        "unit": lambda x: parse_text(x, "unit"),
        "quantity": lambda x: x,
        "allow_missing": lambda x: x,
        "time_labels": lambda x: {y.name: y.labels} if (y := parse_time_labels(x)).labels else None,
    }
    return {name: parsers[name](arguments[name]) for name in names}


def check_field_names(
    fields: Mapping[str, object], other_names: Iterable[str] = ()
) -> Mapping[str, object]:
    """Return the fields that were given by name; refuse names that are no field.

    ``other_names``: arguments that a message may suggest beside the fields.
    """
    for name in fields:
        if name not in ModelFields._fields:
            raise InputError(
                f"there is no argument {did_you_mean(name, [*other_names, *ModelFields._fields])}"
            )
    return fields


def _format_label(labels: tuple[str, ...] | None, index: int) -> str:
    """Format an id, or its label in quotes, for messages."""
    return str(index) if labels is None else repr(labels[index])


def _describe_entry(
    fields: ModelFields, transitions: SparseTransitions, k: int, m: int, t: int | None
) -> str:
    """Describe a transition on the sparsity pattern, for messages."""
    row = int(np.searchsorted(transitions.indptr, k, side="right")) - 1
    n_actions = transitions.shape[2]
    text = fields.describe_index(m, row // n_actions, row % n_actions, t)
    return f"{text}, next state {_format_label(fields.states, int(transitions.indices[k]))}"


def _find_first_index(mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """Find the index of the first True."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


# ---------------------------------------------------------------------- names
def is_labeled(values: object) -> bool:
    """Check whether values have labels: a mapping, a Series or a DataFrame of pandas."""
    pandas = sys.modules.get("pandas")  # half loaded, if another thread is importing it
    classes = tuple(getattr(pandas, name, ()) for name in ("Series", "DataFrame"))
    return isinstance(values, (Mapping, *classes))


def match_ids(keys: Iterable[object], labels: Sequence[object], name: str) -> list[int]:
    """Find the ids of keys among the labels; refuse unknown and repeated keys.

    >>> match_ids(["b", "a"], ["a", "b"], "weights"), match_ids([1, 2], ["1", "2"], "weights")
    ([1, 0], [0, 1])
    """
    key_list, own_labels = (
        list(keys),
        None if isinstance(labels, range) else tuple(map(str, labels)),
    )
    label_index = LabelIndex("label", len(labels), own_labels)
    ids: list[int] = label_index.find_ids(key_list).tolist()
    known_ids: set[int] = set()
    for key, i in zip(key_list, ids, strict=True):
        if i < 0:
            raise InputError(
                f"{name}: the model has no label {did_you_mean(str(key), label_index.names)} here",
                [
                    "use its ids, or label it"
                    if own_labels is None
                    else f"use {join_first(own_labels)}"
                ],
            )
        if i in known_ids:
            raise InputError(f"{name}: {str(key)!r} is given twice; keep one of them")
        known_ids.add(i)
    return ids


def align_to_labels(
    values: Any, name: str, *axes: Sequence[object] | None, fill: float | None = None
) -> Any:
    """Convert labeled values to an array in the order of ``axes``; return others unchanged.

    ``axes`` are the labels of the last axes, None for ids. Lists are searched for what has
    labels. What is not named is ``fill``, or an error.

    >>> align_to_labels({"b": 1.0, "a": 2.0}, "weights", ["a", "b"]).tolist()
    [2.0, 1.0]
    >>> rewards = {"y": [0, 0], "x": {"b": 1, "a": 2}}
    >>> align_to_labels(rewards, "rewards", ["x", "y"], ["a", "b"]).tolist()
    [[2, 1], [0, 0]]
    """
    if isinstance(values, (list, tuple)):
        first_item = values
        for _ in range(MAX_NESTING):
            first_item = (
                first_item[0]
                if isinstance(first_item, (list, tuple)) and first_item
                else first_item
            )
        has_labels = is_labeled(first_item)
        return (
            [align_to_labels(x, name, *axes, fill=fill) for x in values] if has_labels else values
        )
    if not is_labeled(values):
        return values
    if hasattr(values, "columns"):
        keys, data, n_inner_axes = [values.index, values.columns], values.to_numpy(), 0
    else:
        pairs = list(values.items())
        keys = [[x for x, _ in pairs]]
        data = [align_to_labels(x, name, *axes, fill=fill) for _, x in pairs]
        n_inner_axes = np.asarray(data[0], dtype=object).ndim if data else 0
    if len(axes) < len(keys):
        return data
    axis_end = max(len(axes) - n_inner_axes, 1)  # the values have the axes after it
    key_axes = axes[axis_end - len(keys) : axis_end]
    labels = [range(len(k)) if x is None else x for k, x in zip(keys, key_axes, strict=True)]
    ids_by_axis = [match_ids(*pair, name) for pair in zip(keys, labels, strict=True)]
    for axis_labels, axis_ids in zip(labels, ids_by_axis, strict=True):
        missing_ids = set(range(len(axis_labels))).difference(axis_ids)
        if missing_ids and fill is None:
            count_text = f" and {len(missing_ids) - 1} more" if len(missing_ids) > 1 else ""
            raise InputError(
                f"{name}: no {str(axis_labels[min(missing_ids)])!r}{count_text}; name every one"
            )
    numbers: npt.NDArray[Any] = as_float_array(data, name)
    if np.asarray(data).dtype.kind in "biu":
        numbers = np.asarray(data)
    shape = [len(x) for x in labels] + [*numbers.shape[len(labels) :]]
    array = np.full(shape, fill or 0, dtype=numbers.dtype)
    array[np.ix_(*ids_by_axis)] = numbers
    return array


# ---------------------------------------------------------------------- rewards
def parse_rewards(
    rewards: object, next_rewards: object, transitions: SparseTransitions, fields: ModelFields
) -> tuple[Rewards | None, Array | None]:
    """Parse rewards to (T', S, A, M), or to values on the sparsity pattern (T', nnz, M)."""
    n_models, n_states, n_actions = transitions.shape
    states, actions = fields.states or range(n_states), fields.actions or range(n_actions)
    if isinstance(rewards, EventRewards) and next_rewards is None:
        transitions.horizon = transitions.horizon or (len(rewards) if len(rewards) > 1 else None)
        return rewards, None
    rewards = align_to_labels(rewards, "rewards", states, actions)
    next_rewards = align_to_labels(next_rewards, "next_rewards", states, actions, states)
    if (rewards is None) == (next_rewards is None):
        raise InputError("give exactly one of rewards (per state and action) and next_rewards")
    if next_rewards is not None:
        return None, _to_pattern_rewards(as_float_array(next_rewards, "next_rewards"), transitions)
    array = as_float_array(rewards, "rewards")
    model_shape, next_shape = (n_models, n_states, n_actions), (*transitions.shape, n_states)
    if array.shape == model_shape[1:]:
        return np.repeat(array[None, :, :, None], n_models, axis=3), None
    is_by_time = array.ndim == 4 and array.shape[1:] == model_shape
    is_by_time = is_by_time and transitions.horizon in (None, len(array))
    if array.shape == model_shape:
        return np.array(np.moveaxis(array[None], 1, 3), order="C"), None
    if is_by_time and array.shape == next_shape and transitions.horizon is None:
        raise InputError(
            f"rewards of shape {array.shape} could be per time (T, M, S, A) or per next state "
            "(M, S, A, S'); say next_rewards= for the latter, or give the transitions the "
            "leading time axis too for the former"
        )
    if is_by_time:
        transitions.horizon = len(array)
        return np.array(np.moveaxis(array, 1, 3), order="C"), None
    if array.shape == next_shape or (array.ndim == 5 and array.shape[1:] == next_shape):
        return None, _to_pattern_rewards(array, transitions)
    raise InputError(
        f"rewards of shape {array.shape} fit neither (S, A) = {model_shape[1:]}, (M, S, A) = "
        f"{model_shape}, (T, M, S, A) nor (M, S, A, S') = {next_shape}"
    )


def _to_pattern_rewards(array: Array, transitions: SparseTransitions) -> Array:
    """Convert rewards by next state to values on the sparsity pattern."""
    n_models, n_states, _ = transitions.shape
    next_shape = (*transitions.shape, n_states)
    if array.shape == next_shape[1:]:
        array = np.broadcast_to(array, next_shape)
    if array.shape == next_shape:
        array = array[None]
    elif array.ndim != 5 or array.shape[1:] != next_shape:
        raise InputError(
            f"next_rewards of shape {array.shape} do not fit (M, S, A, S') = {next_shape}"
        )
    else:
        transitions.horizon = transitions.horizon or len(array)
    flat = array.reshape(len(array), n_models, -1)
    return move_models_last(flat, None if transitions.is_dense else transitions.flat_indices)


def zero_impossible_rewards(
    pattern_rewards: Array | None, transitions: SparseTransitions
) -> Array | None:
    """Set infinite and NaN rewards of next states of probability 0 to 0."""
    if pattern_rewards is None or np.isfinite(pattern_rewards).all():
        return pattern_rewards
    p = (
        transitions.values
        if len(pattern_rewards) > 1
        else transitions.values.max(axis=0, keepdims=True)
    )
    return np.where((p == 0) & ~np.isfinite(pattern_rewards), 0.0, pattern_rewards)


def compute_expected_rewards(transitions: SparseTransitions, pattern_rewards: Array) -> Array:
    """Compute r(s, a) = sum_s' p(s'|s, a) r(s, a, s'), shape (T', S, A, M)."""
    n_models, n_states, n_actions = transitions.shape
    n_times = max(len(transitions.values), len(pattern_rewards))
    r = np.empty((n_times, n_states * n_actions, n_models))
    for rows, entries in transitions.iter_blocks():
        r[:, rows] = transitions.reduce_rows(
            np.add, transitions.values[:, entries] * pattern_rewards[:, entries], rows
        )
    return r.reshape(n_times, n_states, n_actions, n_models)


def drop_redundant_rewards(pattern_rewards: Array, transitions: SparseTransitions) -> Array | None:
    """Return the rewards, or None if they do not depend on the next state."""
    has_same_times = len(transitions.values) == len(pattern_rewards)

    def find_row_extremes(rows: slice, entries: slice) -> tuple[Array, Array]:
        """Find the highest and lowest reward of each row; infinite if there is none."""
        p, r = transitions.values[:, entries], pattern_rewards[:, entries]
        is_possible = (p if has_same_times else p.max(axis=0)) > 0
        return (
            transitions.reduce_rows(np.maximum, np.where(is_possible, r, -np.inf), rows, -np.inf),
            transitions.reduce_rows(np.minimum, np.where(is_possible, r, np.inf), rows, np.inf),
        )

    max_reward, min_reward = -np.inf, np.inf
    for block in transitions.iter_blocks():
        highest, lowest = find_row_extremes(*block)
        max_reward, min_reward = max(max_reward, highest.max()), min(min_reward, lowest.min())
    # published files carry rounding in their rewards: 999.99999 and 1000.00001 are the same
    tolerance = 1e-9 * max(max_reward - min_reward, 0.0)
    for block in transitions.iter_blocks():
        highest, lowest = find_row_extremes(*block)
        is_finite = np.isfinite(highest)
        if (highest - lowest > tolerance + REWARD_RTOL * np.abs(highest))[is_finite].any():
            return pattern_rewards
    return None


def infer_allowed(transitions: SparseTransitions) -> npt.NDArray[np.bool_]:
    """Find the actions (S, A) for which any model has a transition."""
    _, n_states, n_actions = transitions.shape
    if not transitions.is_dense:
        return (np.diff(transitions.indptr) > 0).reshape(n_states, n_actions)
    p = transitions.values.reshape(len(transitions.values), -1, n_states, transitions.shape[0])
    is_used: npt.NDArray[np.bool_] = p[0, :, :, 0].astype(bool).max(axis=1)
    is_used[~is_used] = p[:, ~is_used].any(
        axis=(0, 2, 3)
    )  # most often the first model has them all
    return is_used.reshape(n_states, n_actions)


def parse_allowed(
    allowed: object, states: LabelIndex, actions: LabelIndex
) -> npt.NDArray[np.bool_]:
    """Parse the allowed actions of each state into booleans, aligned to the labels."""
    check_not_masked(allowed, "allowed")
    mask = np.array(align_to_labels(allowed, "allowed", states.axis_labels, actions.axis_labels))
    if mask.shape != (states.size, actions.size):
        raise InputError(
            f"allowed has shape {mask.shape}; expected (states, actions) = "
            f"{states.size, actions.size}"
        )
    if mask.dtype != bool:
        if not np.isin(mask, (0, 1)).all():
            raise InputError("allowed must hold booleans")
        mask = mask.astype(bool)
    return cast("npt.NDArray[np.bool_]", mask)


def zero_disallowed(
    transitions: SparseTransitions, mask: npt.NDArray[np.bool_], fields: ModelFields
) -> SparseTransitions:
    """Set the transitions of actions that are not allowed to 0."""
    if not mask.any(axis=1).all():
        state = int(np.flatnonzero(~mask.any(axis=1))[0])
        raise InputError(
            f"state {_format_label(fields.states, state)} has no action",
            [
                "give every state at least one (an absorbing state gets an action that stays)",
                Remedy("dead_ends", "absorb", verb="load with"),
            ],
        )
    if mask.all():
        return transitions
    is_forbidden = np.repeat(~mask.reshape(-1), np.diff(transitions.indptr))
    if transitions.values[:, is_forbidden].any():
        values = transitions.values.copy()
        values[:, is_forbidden] = 0.0
        transitions.values = values
    return transitions


def check_transition_rows(
    transitions: SparseTransitions,
    mask: npt.NDArray[np.bool_],
    allow_missing: AllowMissing,
    fields: ModelFields,
    *,
    is_fixed: bool,
) -> None:
    """Check that every allowed row is a distribution in every model.

    Unless ``is_fixed``, rows whose sums are off by rounding or printed digits are normalized.
    """
    if _are_rows_valid(transitions, mask, allow_missing):
        return
    if not is_fixed:
        _normalize_rows(transitions, mask, allow_missing)
        if _are_rows_valid(transitions, mask, allow_missing):
            return
    n_actions = transitions.shape[2]
    n_times = (
        None if transitions.horizon is None or len(transitions.values) == 1 else transitions.horizon
    )
    sums = transitions.sum_rows(transitions.values)
    for is_invalid, description in (
        (~np.isfinite(transitions.values), "transition probability is"),
        (transitions.values < 0, "negative transition probability"),
    ):
        if is_invalid.any():
            t, k, m = _find_first_index(is_invalid)
            location = _describe_entry(fields, transitions, k, m, t if n_times else None)
            raise InputError(
                f"{description} {transitions.values[t, k, m]:g} at {location}; "
                "every probability must be a number from 0 to 1"
            )
    is_wrong = _find_invalid_sums(sums, mask.reshape(-1), allow_missing)
    t, row, m = _find_first_index(is_wrong)
    location = fields.describe_index(m, row // n_actions, row % n_actions, t if n_times else None)
    count_text = pluralize(int(is_wrong.sum()), "row")
    if sums[t, row, m] == 0:
        raise InputError(
            f"{location} has no transitions though other models have this action "
            f"({count_text} like it)",
            [
                "add them",
                Remedy("allowed", verb="forbid the action with"),
                Remedy("allow_missing", True),
                Remedy("missing_actions", "zero", verb="load with"),
            ],
        )
    raise InputError(
        f"probabilities sum to {sums[t, row, m]:.10g}, not 1, at {location} ({count_text} like it)",
        ["normalise the rows first", Remedy("normalize", True, verb="load with")],
    )


def _normalize_rows(
    transitions: SparseTransitions, mask: npt.NDArray[np.bool_], allow_missing: AllowMissing
) -> None:
    """Divide rows whose sums are off by more than rounding by their sums."""
    values = clip_rounding(transitions.values)
    sums = transitions.sum_rows(values)
    is_wrong = _find_invalid_sums(sums, mask.reshape(-1), allow_missing)
    lengths = np.diff(transitions.indptr)
    transitions.values = rescale_sums(values, np.where(is_wrong, sums, 1.0).repeat(lengths, axis=1))


def _are_rows_valid(
    transitions: SparseTransitions, mask: npt.NDArray[np.bool_], allow_missing: AllowMissing
) -> bool:
    """Check whether all allowed rows are distributions, block by block to save memory."""
    for rows, entries in transitions.iter_blocks():
        p = transitions.values[:, entries]
        if transitions.is_dense:  # twice as fast
            sums = p.reshape(len(p), -1, transitions.shape[1], transitions.shape[0]).sum(axis=2)
        else:
            sums = transitions.reduce_rows(np.add, p, rows)
        if (p.size and not p.min() >= 0) or not np.isfinite(sums).all():
            return False
        if _find_invalid_sums(sums, mask.reshape(-1)[rows], allow_missing).any():
            return False
    return True


def _find_invalid_sums(
    sums: Array, allowed: npt.NDArray[np.bool_], allow_missing: AllowMissing
) -> npt.NDArray[np.bool_]:
    """Find the row sums (T', rows, M) that are not those of a distribution."""
    is_wrong = np.abs(sums - 1.0) > SUM_TOLERANCE
    is_wrong &= allowed[:, None]
    if allow_missing == "partial":
        is_wrong &= sums > 1.0
    elif allow_missing:
        is_wrong &= sums != 0
    return is_wrong


def check_rewards(
    expected_rewards: Rewards | None,
    pattern_rewards: Array | None,
    transitions: SparseTransitions,
    mask: npt.NDArray[np.bool_],
    fields: ModelFields,
) -> None:
    """Refuse rewards that are not finite where the action is allowed."""
    has_event_rewards = isinstance(expected_rewards, EventRewards)
    rewards = (
        expected_rewards.reward if isinstance(expected_rewards, EventRewards) else expected_rewards
    )
    if (
        rewards is not None
        and not np.isfinite([rewards.min(initial=0.0), rewards.max(initial=0.0)]).all()
    ):
        is_invalid = ~np.isfinite(rewards) & mask[None, :, :, None]
        if is_invalid.any():
            t, s, a, i = _find_first_index(is_invalid)
            if has_event_rewards:
                state, action = _format_label(fields.states, s), _format_label(fields.actions, a)
                location = f"state {state}, action {action}, event {i}"
            else:
                location = fields.describe_index(i, s, a, t if len(rewards) > 1 else None)
            raise InputError(
                f"reward is {rewards[t, s, a, i]} at {location}; rewards must be finite"
            )
    if pattern_rewards is not None and not np.isfinite(pattern_rewards).all():
        t, k, m = _find_first_index(~np.isfinite(pattern_rewards))
        location = _describe_entry(
            fields, transitions, k, m, t if len(pattern_rewards) > 1 else None
        )
        raise InputError(
            f"reward is {pattern_rewards[t, k, m]} at {location}; rewards must be finite"
        )


def parse_distribution(values: object, name: str, labels: LabelIndex) -> Array:
    """Parse a distribution over an axis; None is uniform."""
    size, axis = labels.size, labels.axis_name
    if values is None:
        return np.full(size, 1.0 / size)
    array = as_float_array(align_to_labels(values, name, labels.axis_labels, fill=0.0), name)
    if array.shape != (size,):
        raise InputError(
            f"{name} has shape {array.shape}; expected one number per {axis}: ({size},)"
        )
    array = normalize(array)
    is_invalid = ~(array >= 0) | ~np.isfinite(array)
    if is_invalid.any():
        (i,) = _find_first_index(is_invalid)
        raise InputError(
            f"{name} is {array[i]} for {axis} {labels.format_id(i)}; it must be a probability"
        )
    if abs(array.sum() - 1.0) > SUM_TOLERANCE:
        raise InputError(
            f"{name} must sum to 1, not {array.sum():.10g}",
            ["divide by the sum", Remedy("normalize", True, verb="load with")],
        )
    return array.copy()


def parse_initial(values: object, models: LabelIndex, states: LabelIndex) -> Array:
    """Parse the initial distribution, (S,) or (M, S) if models differ."""
    if isinstance(values, str):
        values = _parse_shares(values, states)
    array = as_float_array(
        align_to_labels(values, "initial", models.axis_labels, states.axis_labels, fill=0.0),
        "initial",
    )
    if array.ndim < 2:
        return parse_distribution(values, "initial", states)
    if array.shape != (models.size, states.size):
        raise InputError(
            f"initial has shape {array.shape}; expected (states,) = ({states.size},) or "
            f"(models, states) = {models.size, states.size}"
        )
    rows = [
        parse_distribution(x, f"initial of model {models.format_id(m)}", states)
        for m, x in enumerate(array)
    ]
    return rows[0] if (array == array[0]).all() else np.array(rows)


def _parse_shares(text: str, states: LabelIndex) -> dict[str, float]:
    """Parse a state, or shares of states such as ``low=0.5,high=0.5``.

    Labels may contain ``=`` and commas themselves: a state is a label of the model.

    >>> stock = LabelIndex.parse("state", 2, ["stock=0, ordered=1", "stock=1, ordered=0"])
    >>> _parse_shares("stock=1,ordered=0", stock)
    {'stock=1, ordered=0': 1.0}
    >>> list(_parse_shares("stock=0,ordered=1=0.5,stock=1,ordered=0=0.5", stock).values())
    [0.5, 0.5]
    """

    def drop_spaces(label: str) -> str:
        return label.replace(" ", "")

    labels = {drop_spaces(name): name for name in states.names}
    if drop_spaces(text) in labels or "=" not in text:
        return {labels.get(drop_spaces(text), text): 1.0}
    shares, entry = {}, ""
    for part in text.split(","):
        entry += part
        label, _, share = entry.rpartition("=")
        if drop_spaces(label) in labels:
            with contextlib.suppress(ValueError):  # else a longer label may begin so
                shares[labels[drop_spaces(label)]] = float(share)
                entry = ""
                continue
        entry += ","
    if entry:
        raise InputError(
            f"initial: {entry[:-1]!r} is neither a state nor shares of states like "
            f"'low=0.5,high=0.5'; the states are {join_first(states.names)}"
        )
    return shares


def parse_model_transitions(values: npt.ArrayLike | None, models: LabelIndex) -> Array | None:
    """Parse the model transitions K (M, M); None if the model never switches."""
    if values is None:
        return None
    K = as_float_array(
        align_to_labels(values, "model_transitions", models.axis_labels, models.axis_labels),
        "model_transitions",
    )
    if K.shape != (models.size, models.size):
        raise InputError(
            f"model_transitions has shape {K.shape}; expected (models, models) = "
            f"{models.size, models.size}"
        )
    K = normalize(K)
    is_invalid = ~(K >= 0) | ~np.isfinite(K)
    if is_invalid.any():
        m, n = _find_first_index(is_invalid)
        raise InputError(
            f"model_transitions is {K[m, n]} from model {models.format_id(m)} to model "
            f"{models.format_id(n)}; it must be a probability"
        )
    is_wrong = np.abs(K.sum(axis=1) - 1.0) > SUM_TOLERANCE
    if is_wrong.any():
        (m,) = _find_first_index(is_wrong)
        raise InputError(
            f"model_transitions sum to {K[m].sum():.10g}, not 1, from model {models.format_id(m)}; "
            "divide each row by its sum"
        )
    return None if np.array_equal(K, np.eye(models.size)) else np.array(K, order="C")


def check_seed(seed: object) -> None:
    """Check that a seed is None or a whole number of at least 0."""
    if seed is not None:
        check_int(seed, "seed", 0)


def check_int(value: object, name: str, minimum: int = 1, item_bytes: int = 0) -> int:
    """Check that a value is a whole number of at least ``minimum``, and return it as int.

    A count of objects that take ``item_bytes`` must fit into memory.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < minimum:
        raise InputError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    check_memory(item_bytes * int(value), f"{name} = {value:,}", [f"take fewer {name}"])
    return int(value)


def check_index(value: int, size: float, name: str) -> None:
    """Check that an index is from 0 to ``size`` - 1."""
    if not 0 <= value < size:
        raise InputError(f"{name} must be from 0 to {size - 1:g}, not {value}")


def parse_discount(discount: SupportsFloat | str) -> float:
    """Parse a discount, a number from 0 to 1."""
    try:
        value = float(discount)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"discount must be a number from 0 to 1, not {shorten(discount)}"
        ) from None
    if not 0.0 <= value <= 1.0:
        raise InputError(f"discount must be from 0 to 1, not {value:g}")
    return value


def parse_terminal(terminal: npt.ArrayLike | None, models: LabelIndex, states: LabelIndex) -> Array:
    """Parse the terminal values to (M, S), in memory with models last."""
    n_models, n_states = models.size, states.size
    if terminal is None:
        return np.zeros((n_states, n_models)).T
    array = as_float_array(
        align_to_labels(terminal, "terminal", models.axis_labels, states.axis_labels), "terminal"
    )
    if array.shape == (n_states,):
        array = np.broadcast_to(array, (n_models, n_states))
    if array.shape != (n_models, n_states):
        raise InputError(
            f"terminal has shape {array.shape}; expected (states,) = ({n_states},) or "
            f"(models, states) = {n_models, n_states}"
        )
    if not np.isfinite(array).all():
        raise InputError("terminal values must be finite")
    return np.array(array, order="F")


def parse_parameters(
    parameters: Mapping[str, npt.ArrayLike] | None, models: LabelIndex
) -> dict[str, Array]:
    """Parse parameters to one number per model each, by name."""
    result: dict[str, Array] = {}
    for key, values in ({} if parameters is None else parameters).items():
        description = f"parameter {key!r}"
        array = as_float_array(
            align_to_labels(values, description, models.axis_labels), description
        ).copy()
        if array.shape != (models.size,):
            raise InputError(
                f"parameter {key!r} has shape {array.shape}; expected one value per model "
                f"({models.size},)"
            )
        array.setflags(write=False)
        result[str(key)] = array
    check_text(list(result), "parameter")
    return result


def parse_labels(labels: object, axis: str) -> tuple[str, ...] | None:
    """Parse labels to texts in their order; refuse a set, which has no order."""
    check_not_set(labels, axis)
    if labels is None:
        return None
    return tuple(check_text([str(x) for x in check_labels(labels, axis)], f"{axis} label"))


def check_not_set(labels: object, axis: str) -> None:
    """Refuse labels in a set, which has no order."""
    if isinstance(labels, Set) and not isinstance(labels, KeysView):
        raise InputError(f"the labels of {axis}s are a set, which has no order; give a list")


def check_text(texts: Sequence[str], name: str) -> Sequence[str]:
    """Refuse characters that no file can hold: NUL, and halves of characters (surrogates)."""
    if _UNWRITABLE_CHARACTERS.search("".join(texts)):
        text = next(x for x in texts if _UNWRITABLE_CHARACTERS.search(x))
        raise InputError(f"{name} {text!r} has a character that files cannot hold; remove it")
    return texts


def parse_text(text: object, name: str) -> str | None:
    """Parse a name, a unit or a citation; None stays None."""
    return None if text is None else check_text([str(text)], name)[0]


def is_list(value: object) -> TypeGuard[Iterable[object]]:
    """Check whether a value is a list of values, not a single one, a text or a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, (str, Mapping))


def check_labels(labels: object, axis: str) -> list[object]:
    """Check that labels are texts or numbers, and return them as a list."""
    if not isinstance(labels, Iterable):
        raise InputError(
            f"{axis} labels must be a sequence of text or numbers, not {shorten(labels)}"
        )
    if isinstance(labels, Sized):
        check_memory(LABEL_NBYTES * len(labels), f"{len(labels):,} {axis} labels", ["give fewer"])
    label_list = list(labels)
    for x in label_list:
        if type(x) is not str and not is_of_type(x, Label):
            raise InputError(f"{shorten(x)} is no {axis} label; give text or numbers, one for each")
    return label_list


def parse_time_labels(time_labels: object) -> TimeLabels:
    """Parse the labels of decisions: a list, or a list by the name of its axis.

    >>> parse_time_labels({"age": range(40, 42)}), parse_time_labels(range(9))
    (TimeLabels(name='age', labels=('40', '41')), TimeLabels(name='time', labels=()))
    """
    if time_labels is None or isinstance(time_labels, TimeLabels):
        return time_labels or TimeLabels()
    name, labels = "time", time_labels
    if isinstance(time_labels, Mapping):
        if len(time_labels) != 1:
            raise InputError('time_labels have one name, as in time_labels={"age": range(40, 90)}')
        ((name, labels),) = time_labels.items()
    if isinstance(labels, (str, Set, Mapping)) or not isinstance(labels, Iterable):
        raise InputError(f"time_labels are in order, such as range(40, 90), not {shorten(labels)}")
    name = check_text([str(name).strip()], "the name of time_labels")[0]
    if name in RESERVED_COLUMNS or not name:
        raise InputError(
            f"time_labels cannot be called {name!r}, which is a column of tables; rename them"
        )
    texts = [f"{x:.10g}" if isinstance(x, float) else str(x) for x in check_labels(labels, "time")]
    label_texts = tuple(check_text(texts, "label of a time"))
    if not label_texts:
        raise InputError("time_labels is empty; give at least one")
    is_default = name == "time" and label_texts == tuple(map(str, range(len(label_texts))))
    return TimeLabels(name, () if is_default else label_texts)


def check_horizon(model_horizon: int | None, horizon: float | None) -> int:
    """Check the horizon against that of a time-varying model, and return it."""
    if horizon is None:
        if model_horizon is None:
            raise InputError(
                "give the horizon: the number of decisions",
                [Remedy("horizon", 50, verb="for example")],
            )
        return model_horizon
    if isinstance(horizon, bool) or not isinstance(horizon, (int, np.integer)):
        raise InputError(f"horizon must be a whole number of decisions, not {horizon!r}")
    if horizon < 1:
        raise InputError(f"horizon must be at least 1, not {horizon}; give the number of decisions")
    if model_horizon is not None and horizon != model_horizon:
        raise InputError(
            f"the model varies over {model_horizon} time steps, so the horizon must be "
            f"{model_horizon}, not {horizon}"
        )
    return int(horizon)


def check_problem_size(problem: Problem, horizon: int, method_nbytes: int = 0) -> None:
    """Refuse a horizon whose policy does not fit into memory, or whose values into doubles.

    ``method_nbytes`` is the memory of the method; values are bounded by sum_t gamma^t max |r|.
    """
    x = problem
    nbytes = max(method_nbytes, 4 * horizon * x.n_states)
    check_memory(
        nbytes,
        f"a policy over {horizon:,} decisions",
        [Remedy("horizon", verb="shorten"), "spread the models over machines (docs: many hosts)"],
        models=sum(y.nbytes for y in (*x, *x.storage.get_arrays()) if isinstance(y, np.ndarray)),
    )
    extremes = (
        float(find_extreme(y)) for _, y in iter_blocks(x.r) for find_extreme in (np.max, np.min)
    )
    max_reward = max(extremes, key=abs)
    max_terminal = float(np.abs(x.terminal).max())
    effective_horizon = horizon if x.discount == 1 else (1 - x.discount**horizon) / (1 - x.discount)
    if not abs(max_reward) * min(effective_horizon, MAX_VALUE) + max_terminal <= MAX_VALUE:
        raise InputError(
            f"the largest reward is {max_reward:g} and the horizon {horizon:,}, so values would "
            f"pass {MAX_VALUE:g}, too large to compute with; give rewards in a larger unit"
        )


def check_not_sharded(
    problem: Problem, operation: str, remedies: Iterable[str | Remedy] = ()
) -> None:
    """Refuse a shard of the models for an operation that needs all of them in one process."""
    if reason := problem.reason_if_sharded(operation):
        raise InputError(reason, [*remedies, "load the models without shard="])
