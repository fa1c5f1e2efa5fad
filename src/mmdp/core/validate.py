"""Parse and check the arguments of a model; messages name the state, action and model."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, KeysView, Mapping, Sequence, Set, Sized
from typing import Any, Literal, NamedTuple, SupportsFloat, TypeGuard

import numpy as np

from mmdp.core.arguments import Label, is_of_type
from mmdp.core.errors import InputError, NotNormalizedError, Remedy, check_memory
from mmdp.core.kernels.distributions import SUM_TOLERANCE, clip_rounding, normalize, rescale_sums
from mmdp.core.kernels.problem import Problem, Shard
from mmdp.core.kernels.rewards import EventRewards, Rewards, get_stored_array, iter_blocks
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.core.text import TimeLabels, did_you_mean, join_first, pluralize, shorten
from mmdp.core.transitions import ModelShape, SparseTransitions, as_float_array, move_models_last

REWARD_RTOL = 1e-14  # relative difference of rewards that is rounding
LABEL_NBYTES = 250  # memory of a label while it is read: the value, its text, and copies
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
            duplicate = Counter(parsed_labels).most_common(1)[0][0]
            raise InputError(f"{axis_name} label {duplicate!r} is used twice; labels must differ")
        return cls(axis_name, size, parsed_labels)

    @property
    def names(self) -> tuple[str, ...]:
        """Labels in the order of ids; the ids as text if there are no labels."""
        return tuple(map(str, self.axis_labels))

    @property
    def axis_labels(self) -> Sequence[str | int]:
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

    def find_ids(self, values: Iterable[object]) -> IndexArray:
        """Find the ids (n,) of labels or ids; -1 if unknown.

        Whole numbers are ids if not all values are labels and the labels are not numbers
        themselves. Text such as ``3`` or ``3.0`` is an id only if there are no labels.
        """
        value_list, labels = list(values), self.labels or ()
        ids_by_label = {label: i for i, label in enumerate(labels)}
        ids = [ids_by_label.get(str(x), -1) for x in value_list]
        if -1 in ids and not (labels and are_ids(labels)):
            own_ids = [
                -1 if labels and isinstance(x, str) else self._parse_id(x) for x in value_list
            ]
            ids = [i if i >= 0 else label_id for i, label_id in zip(own_ids, ids, strict=True)]
        return np.array(ids, dtype=np.int64)

    def _parse_id(self, value: object) -> int:
        """Parse a number or text to an id; -1 if it is none."""
        if isinstance(value, (bool, np.bool_)) or not are_ids([str(value).strip()]):
            return -1
        number = int(float(str(value)))
        return number if number < self.size else -1

    def get_ids(self, values: Iterable[object], purpose: str = "") -> list[int]:
        """Get the ids of labels or ids; the error for an unknown one suggests a known one.

        ``purpose`` begins its message.
        """
        value_list = list(values)
        ids: list[int] = self.find_ids(value_list).tolist()
        if -1 in ids:
            choices = [f"0..{self.size - 1}"] if self.labels is None else self.labels
            suggestion = did_you_mean(str(value_list[ids.index(-1)]), choices)
            raise InputError(
                f"{purpose}unknown {self.axis_name} {suggestion}; choose from {join_first(choices)}"
            )
        return ids


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
    allowed: Mask | None  # (S, A)
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
        cls, arguments: dict[str, Any], shape: ModelShape, shard: Shard | None = None
    ) -> ModelFields:
        """Parse and check arguments of MMDP for models of shape (M, S, A)."""
        check_field_names(arguments)
        x: dict[str, Any] = (
            dict.fromkeys(cls._fields) | {"discount": 1.0, "allow_missing": False} | arguments
        )
        sizes = (shape[1], shape[2], shape[0] if shard is None else shard.n_models)
        states, actions, models = (
            LabelIndex.parse(axis, size, x[f"{axis}s"])
            for axis, size in zip(AXES, sizes, strict=True)
        )
        local_models, time_labels = models.select_shard(shard), parse_time_labels(x["time_labels"])
        model_transitions = parse_model_transitions(x["model_transitions"], models)
        if model_transitions is not None and shard is not None:
            raise InputError(
                "models that switch cannot be divided into shards; load all of them in one process"
            )
        for name in ("name", "citation", "unit", "quantity"):
            x[name] = None if x[name] is None else str(x[name])
        return cls(**x)._replace(
            initial=parse_initial(x["initial"], local_models, states),
            weights=parse_distribution(x["weights"], "weights", models),
            discount=parse_discount(x["discount"]),
            terminal=parse_terminal(x["terminal"], local_models, states),
            allowed=parse_allowed(x["allowed"], states, actions),
            model_transitions=model_transitions,
            states=states.labels,
            actions=actions.labels,
            models=models.labels,
            parameters={
                str(name): parse_array(values, f"parameter {name!r}", models)
                for name, values in ({} if x["parameters"] is None else x["parameters"]).items()
            },
            time_labels={time_labels.name: time_labels.labels} if time_labels.labels else None,
        )

    def describe_index(self, **ids: int | None) -> str:
        """Describe ids by axis, with their labels: ``model 3, state 'sick', action 'B'``."""
        labels = {"model": self.models, "action": self.actions}
        labels |= dict.fromkeys(("state", "next_state"), self.states)
        return ", ".join(
            f"{axis.replace('_', ' ')} {LabelIndex(axis, 0, labels.get(axis)).format_id(i)}"
            for axis, i in ids.items()
            if i is not None
        )


def check_field_names(names: Iterable[str], other_names: Iterable[str] = ()) -> None:
    """Refuse names that are neither fields of a model nor ``other_names``."""
    known_names = [*other_names, *ModelFields._fields]
    for name in names:
        if name not in known_names:
            raise InputError(f"there is no argument {did_you_mean(name, known_names)}")


def _find_first_index(mask: Mask | np.bool_) -> tuple[int, ...]:
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
    key_list = list(keys)
    own_labels = None if isinstance(labels, range) else tuple(map(str, labels))
    ids = LabelIndex("label", len(labels), own_labels).get_ids(key_list, f"{name}: ")
    if len({*ids}) < len(ids):
        repeated_id = Counter(ids).most_common(1)[0][0]
        repeated = str(key_list[ids.index(repeated_id)])
        raise InputError(f"{name}: {repeated!r} is given twice; keep one of them")
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
        is_nested = len(values) > 0 and (
            isinstance(values[0], (list, tuple)) or is_labeled(values[0])
        )
        return [align_to_labels(x, name, *axes, fill=fill) for x in values] if is_nested else values
    if not is_labeled(values):
        return values
    # a DataFrame is a mapping of its rows, which are Series
    pairs = list(values.iterrows() if hasattr(values, "iterrows") else values.items())
    data = [align_to_labels(x, name, *axes, fill=fill) for _, x in pairs]
    n_inner_axes = np.asarray(data[0], dtype=object).ndim if data else 0
    axis_labels = axes[max(len(axes) - n_inner_axes, 1) - 1]
    labels = range(len(pairs)) if axis_labels is None else axis_labels
    ids = match_ids((key for key, _ in pairs), labels, name)
    missing_labels = [str(labels[i]) for i in sorted({*range(len(labels))}.difference(ids))]
    if missing_labels and fill is None:
        raise InputError(f"{name}: no {join_first(map(repr, missing_labels), 1)}; name every one")
    numbers: AnyArray = as_float_array(data, name)
    if np.asarray(data).dtype.kind in "biu":
        numbers = np.asarray(data)
    array = np.full((len(labels), *numbers.shape[1:]), fill or 0, dtype=numbers.dtype)
    array[ids] = numbers
    return array


# ---------------------------------------------------------------------- rewards
def parse_rewards(
    rewards: object, next_rewards: object, transitions: SparseTransitions, fields: ModelFields
) -> tuple[Rewards | None, Array | None]:
    """Parse rewards to (T', S, A, M), or to values on the sparsity pattern (T', nnz, M)."""
    if transitions.pattern_rewards is not None:
        if rewards is not None:
            raise InputError("give rewards per transition or per (state, action), not both")
        return None, transitions.pattern_rewards
    if (rewards is None) == (next_rewards is None):
        raise InputError("give exactly one of rewards (per state and action) and next_rewards")
    n_models, n_states, n_actions = transitions.shape
    if isinstance(rewards, EventRewards):
        return rewards, None
    states, actions = fields.states or range(n_states), fields.actions or range(n_actions)
    is_by_pair, axes, name, values = True, [states, actions], "rewards", rewards
    if next_rewards is not None:
        is_by_pair, axes, name, values = False, [*axes, states], "next_rewards", next_rewards
    array = as_float_array(align_to_labels(values, name, *axes), name)
    shape = (n_models, *map(len, axes))
    has_time = array.ndim > len(shape)
    if is_by_pair and array.shape == (*shape, n_states) and transitions.horizon is None:
        raise InputError(
            f"rewards of shape {array.shape} could be per time or per next state; say "
            "next_rewards= for the latter, or give the transitions an axis of times too"
        )
    if array.shape[has_time:] != shape and array.shape != shape[1:]:
        axis_names = "(models, states, actions" + ", next states" * (not is_by_pair)
        raise InputError(
            f"{name} of shape {array.shape} do not fit {axis_names}) = {shape}, which may come "
            "without models or after an axis of times"
        )
    if has_time:
        transitions.horizon = transitions.horizon or len(array)
    array = np.broadcast_to(array, (len(array) if has_time else 1, *shape))
    if is_by_pair:
        return np.array(np.moveaxis(array, 1, 3), order="C"), None
    flat_indices = None if transitions.is_dense else transitions.flat_indices
    return None, move_models_last(array.reshape(len(array), n_models, -1), flat_indices)


def _get_probabilities(transitions: SparseTransitions, pattern_rewards: Array) -> Array:
    """Get the probabilities, or their maxima over time if rewards do not vary with time."""
    p = transitions.values
    return p if len(p) == len(pattern_rewards) else p.max(axis=0, keepdims=True)


def zero_impossible_rewards(pattern_rewards: Array, transitions: SparseTransitions) -> Array:
    """Set infinite and NaN rewards of next states of probability 0 to 0."""
    if np.isfinite(pattern_rewards).all():
        return pattern_rewards
    is_impossible = _get_probabilities(transitions, pattern_rewards) == 0
    return np.where(is_impossible & ~np.isfinite(pattern_rewards), 0.0, pattern_rewards)


def compute_expected_rewards(transitions: SparseTransitions, pattern_rewards: Array) -> Array:
    """Compute r(s, a) = sum_s' p(s'|s, a) r(s, a, s'), shape (T', S, A, M)."""
    p = transitions.values
    r = transitions.reduce_rows(np.add, lambda k: p[:, k] * pattern_rewards[:, k])
    return r.reshape(len(r), *transitions.shape[1:], -1)


def drop_redundant_rewards(pattern_rewards: Array, transitions: SparseTransitions) -> Array | None:
    """Return the rewards, or None if they do not depend on the next state."""
    p = _get_probabilities(transitions, pattern_rewards)

    def find_extremes(ufunc: np.ufunc, fill_value: float) -> Array:
        """Find the highest or lowest reward of each row over its possible next states."""
        return transitions.reduce_rows(
            ufunc, lambda k: np.where(p[:, k] > 0, pattern_rewards[:, k], fill_value), fill_value
        )

    highest, lowest = find_extremes(np.maximum, -np.inf), find_extremes(np.minimum, np.inf)
    # published files carry rounding in their rewards: 999.99999 and 1000.00001 are the same
    tolerance = 1e-9 * max(highest.max() - lowest.min(), 0.0)
    is_possible = np.isfinite(highest)
    highest, lowest = highest[is_possible], lowest[is_possible]
    is_redundant = (highest - lowest <= tolerance + REWARD_RTOL * np.abs(highest)).all()
    return None if is_redundant else pattern_rewards


def check_rewards(
    rewards: Rewards | None,
    pattern_rewards: Array | None,
    transitions: SparseTransitions,
    allowed: Mask,
    fields: ModelFields,
) -> None:
    """Refuse rewards that are not finite where the action is allowed."""

    stored_rewards = None if rewards is None else get_stored_array(rewards)
    for values, is_relevant in ((stored_rewards, allowed[..., None]), (pattern_rewards, True)):
        if values is None or np.isfinite([values.min(initial=0.0), values.max(initial=0.0)]).all():
            continue
        is_invalid = ~np.isfinite(values) & is_relevant
        if is_invalid.any():
            t, *ids, last = index = _find_first_index(is_invalid)
            last_axis = "event" if isinstance(rewards, EventRewards) else "model"
            is_pair = len(ids) == 2
            cell = dict(zip(AXES, ids, strict=False)) if is_pair else transitions.locate_entry(*ids)
            time = t if len(values) > 1 else None
            location = fields.describe_index(**{last_axis: last}, **cell, time=time)
            raise InputError(f"reward is {values[index]} at {location}; rewards must be finite")


# ---------------------------------------------------------------------- transitions
def check_transitions(transitions: SparseTransitions, fields: ModelFields) -> tuple[Mask, Array]:
    """Check that every allowed row is a distribution; return allowed (S, A) and the row sums.

    By default an action is allowed if any model has a transition for it. Transitions of actions
    that are not allowed are set to 0. Unless the storage is custom, rows whose sums are off by
    rounding or printed digits are normalized.
    """
    _, n_states, n_actions = transitions.shape
    sums, lengths = transitions.sum_rows(), np.diff(transitions.indptr)
    allowed = fields.allowed
    if allowed is None:
        allowed = sums.any(axis=(0, 2)).reshape(n_states, n_actions)
    elif transitions.values[:, is_forbidden := np.repeat(~allowed.reshape(-1), lengths)].any():
        transitions.values = np.where(is_forbidden[:, None], 0.0, transitions.values)
    check_every_state_acts(allowed, fields)
    is_wrong = _find_wrong_sums(sums, allowed, fields.allow_missing)
    is_wrong_or_negative = is_wrong.any() or transitions.values.min(initial=0.0) < 0
    if is_wrong_or_negative and transitions.custom_storage is None:
        row_sums = np.where(is_wrong, sums, 1.0).repeat(lengths, axis=1)
        transitions.values = rescale_sums(clip_rounding(transitions.values), row_sums)
        sums = transitions.sum_rows()
        is_wrong = _find_wrong_sums(sums, allowed, fields.allow_missing)
    if is_wrong.any() or transitions.values.min(initial=0.0) < 0:
        raise _describe_wrong_rows(transitions, sums, is_wrong, fields)
    return allowed, sums


def check_every_state_acts(allowed: Mask, fields: ModelFields) -> None:
    """Refuse a state without an allowed action."""
    if (is_stuck := ~allowed.any(axis=1)).any():
        raise InputError(
            f"{fields.describe_index(state=int(is_stuck.argmax()))} has no action",
            [
                "give every state at least one (an absorbing state gets an action that stays)",
                Remedy("dead_ends", "absorb", verb="load with"),
            ],
        )


def _find_wrong_sums(sums: Array, allowed: Mask, allow_missing: AllowMissing) -> Mask:
    """Find the row sums (T', rows, M) that are not those of a distribution."""
    is_right = (sums > 1.0 - SUM_TOLERANCE) & (sums < 1.0 + SUM_TOLERANCE)
    if allow_missing == "partial":
        is_right |= sums <= 1.0
    elif allow_missing:
        is_right |= sums == 0
    return ~is_right & allowed.reshape(-1, 1)


def _describe_wrong_rows(
    transitions: SparseTransitions, sums: Array, is_wrong: Mask, fields: ModelFields
) -> InputError:
    """Make the error for the first entry or row that is not a probability or distribution."""
    values = transitions.values
    is_invalid = ~((values >= 0) & np.isfinite(values))
    has_invalid = is_invalid.any()
    index = t, i, m = _find_first_index(is_invalid if has_invalid else is_wrong)
    row = dict(zip(AXES, divmod(i, transitions.shape[2]), strict=False))
    cell, time = transitions.locate_entry(i) if has_invalid else row, t if len(values) > 1 else None
    location = fields.describe_index(model=m, **cell, time=time)
    if has_invalid:
        return InputError(
            f"transition probability {values[index]:g} at {location}; "
            "every probability must be a number from 0 to 1"
        )
    count_text = f"({pluralize(int(is_wrong.sum()), 'row')} in all)"
    if sums[index] == 0:
        return InputError(
            f"{location} has no transitions though other models have this action {count_text}",
            [
                "add them",
                Remedy("allowed", verb="forbid the action with"),
                Remedy("allow_missing", True),
                Remedy("missing_actions", "zero", verb="load with"),
            ],
        )
    return NotNormalizedError(
        f"probabilities sum to {sums[index]:.10g}, not 1, at {location} {count_text}", name="P"
    )


# ---------------------------------------------------------------------- fields
def parse_array(
    values: object,
    name: str,
    *axes: LabelIndex,
    fill: float | None = None,
    is_shared: bool = False,
) -> Array:
    """Parse numbers with these axes, by label; ``is_shared``: the first axis may be missing."""
    labels = (axis.axis_labels for axis in axes)
    array = as_float_array(align_to_labels(values, name, *labels, fill=fill), name)
    shape = tuple(axis.size for axis in axes)
    if array.shape != shape and not (is_shared and array.shape == shape[1:]):
        axis_names = " and ".join(axis.axis_name for axis in axes)
        raise InputError(
            f"{name} has shape {array.shape}; expected one number per {axis_names}: {shape}"
            + f", or {shape[1:]}" * is_shared
        )
    return array.copy()


def parse_distribution(
    values: object, name: str, *axes: LabelIndex, is_shared: bool = False
) -> Array:
    """Parse distributions over the last axis; None is uniform."""
    if values is None:
        return np.full(axes[-1].size, 1.0 / axes[-1].size)
    array = normalize(parse_array(values, name, *axes, fill=0.0, is_shared=is_shared))

    def locate(index: Iterable[int]) -> str:
        ids = zip(axes[-array.ndim :], index, strict=False)
        return "".join(f", {axis.axis_name} {axis.format_id(i)}" for axis, i in ids)

    is_invalid = ~((array >= 0) & np.isfinite(array))
    if is_invalid.any():
        index = _find_first_index(is_invalid)
        raise InputError(f"{name} is {array[index]}{locate(index)}; it must be a probability")
    sums = array.sum(axis=-1)
    is_wrong = np.asarray(np.abs(sums - 1.0) > SUM_TOLERANCE)
    if is_wrong.any():
        index = _find_first_index(is_wrong)
        raise NotNormalizedError(
            f"{name} must sum to 1, not {sums[index]:.10g}{locate(index)}", name=name
        )
    return array


def parse_initial(values: object, models: LabelIndex, states: LabelIndex) -> Array | None:
    """Parse the initial distribution, (S,) or (M, S) if models differ; None if not given."""
    if values is None:
        return None
    if isinstance(values, str):
        values = _parse_shares(values, states)
    array = parse_distribution(values, "initial", models, states, is_shared=True)
    return array[0] if array.ndim == 2 and (array == array[0]).all() else array


def _parse_shares(text: str, states: LabelIndex) -> dict[str, float]:
    """Parse a state, or shares of states such as ``low=0.5,high=0.5``.

    Labels may contain ``=`` and commas themselves: a state is a label of the model.

    >>> stock = LabelIndex.parse("state", 2, ["stock=0, ordered=1", "stock=1, ordered=0"])
    >>> _parse_shares("stock=1,ordered=0", stock)
    {'stock=1, ordered=0': 1.0}
    >>> list(_parse_shares("stock=0,ordered=1=0.5,stock=1,ordered=0=0.5", stock).values())
    [0.5, 0.5]
    """
    labels = {name.replace(" ", ""): name for name in states.names}
    compact_text = text.replace(" ", "")
    if compact_text in labels or "=" not in text:
        return {labels.get(compact_text, text): 1.0}
    label_pattern = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    pattern = rf"({label_pattern})=(\d*\.?\d+(?:e-?\d+)?)(?:,|$)"
    rest = re.sub(rf"^(?:{pattern})+", "", compact_text)
    if rest:
        raise InputError(
            f"initial: {rest!r} is neither a state nor shares of states like "
            f"'low=0.5,high=0.5'; the states are {join_first(states.names)}"
        )
    return {labels[label]: float(share) for label, share in re.findall(pattern, compact_text)}


def parse_model_transitions(values: object, models: LabelIndex) -> Array | None:
    """Parse the model transitions K (M, M); None if the model never switches."""
    if values is None:
        return None
    K = parse_distribution(values, "model_transitions", models, models)
    return None if np.array_equal(K, np.eye(models.size)) else K


def parse_allowed(values: object, states: LabelIndex, actions: LabelIndex) -> Mask | None:
    """Parse the allowed actions of each state into booleans; None if not given."""
    if values is None:
        return None
    array = parse_array(values, "allowed", states, actions)
    if not np.isin(array, (0, 1)).all():
        raise InputError("allowed must hold booleans")
    return array == 1


def parse_terminal(values: object, models: LabelIndex, states: LabelIndex) -> Array:
    """Parse the terminal values to (M, S), in memory with models last."""
    values = np.zeros(states.size) if values is None else values
    array = parse_array(values, "terminal", models, states, is_shared=True)
    if not np.isfinite(array).all():
        raise InputError("terminal values must be finite")
    return np.array(np.broadcast_to(array, (models.size, states.size)), order="F")


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


def parse_labels(labels: object, axis: str) -> tuple[str, ...] | None:
    """Parse labels to texts in their order; None stays None."""
    return None if labels is None else tuple(map(str, check_labels(labels, axis)))


def check_not_set(labels: object, axis: str) -> None:
    """Refuse labels in a set, which has no order."""
    if isinstance(labels, Set) and not isinstance(labels, KeysView):
        raise InputError(f"the labels of {axis}s are a set, which has no order; give a list")


def is_list(value: object) -> TypeGuard[Iterable[object]]:
    """Check whether a value is a list of values, not a single one, a text or a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, (str, Mapping))


def check_labels(labels: object, axis: str) -> list[object]:
    """Check that labels are texts or numbers that files can hold; return them as a list."""
    check_not_set(labels, axis)
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
    if _UNWRITABLE_CHARACTERS.search("".join(map(str, label_list))):
        x = next(x for x in label_list if _UNWRITABLE_CHARACTERS.search(str(x)))
        raise InputError(f"{axis} label {x!r} has a character that files cannot hold; remove it")
    return label_list


def parse_time_labels(time_labels: object) -> TimeLabels:
    """Parse the labels of decisions: a list, or a list by the name of its axis.

    >>> parse_time_labels({"age": range(40, 42)}), parse_time_labels(range(9))
    (TimeLabels(name='age', labels=('40', '41')), TimeLabels(name='time', labels=()))
    """
    if time_labels is None or isinstance(time_labels, TimeLabels):
        return time_labels or TimeLabels()
    labels_by_name = time_labels if isinstance(time_labels, Mapping) else {"time": time_labels}
    if len(labels_by_name) != 1:
        raise InputError('time_labels have one name, as in time_labels={"age": range(40, 90)}')
    ((name, labels),) = labels_by_name.items()
    if not is_list(labels) or isinstance(labels, Set):
        raise InputError(f"time_labels are in order, such as range(40, 90), not {shorten(labels)}")
    name = str(name).strip()
    if name in RESERVED_COLUMNS or not name:
        raise InputError(
            f"time_labels cannot be called {name!r}, which is a column of tables; rename them"
        )
    label_list = check_labels(labels, "time")
    texts = tuple(f"{x:.10g}" if isinstance(x, float) else str(x) for x in label_list)
    if not texts:
        raise InputError("time_labels is empty; give at least one")
    is_default = name == "time" and texts == tuple(map(str, range(len(texts))))
    return TimeLabels(name, () if is_default else texts)


def check_horizon(model_horizon: int | None, horizon: float | None) -> int:
    """Check the horizon against that of a time-varying model, and return it."""
    if horizon is None:
        if model_horizon is None:
            raise InputError(
                "give the horizon: the number of decisions",
                [Remedy("horizon", 50, verb="for example")],
            )
        return model_horizon
    n_decisions = check_int(horizon, "horizon")
    if model_horizon is not None and n_decisions != model_horizon:
        raise InputError(
            f"the model varies over {model_horizon} time steps, so the horizon must be "
            f"{model_horizon}, not {n_decisions}"
        )
    return n_decisions


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
    max_reward = max((float(y) for _, r in iter_blocks(x.r) for y in (r.max(), r.min())), key=abs)
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
