"""Reading and checking the parts of a model, with messages that name the place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Label, fits
from mmdp.errors import InputError, Remedy
from mmdp.kernels.distributions import SUM_TOLERANCE, clip, normalize, scale
from mmdp.kernels.problem import Part, Problem
from mmdp.kernels.rewards import ByEvent, Rewards, blocks
from mmdp.support import (
    Array,
    Shape,
    Support,
    check_memory,
    float_array,
    models_last,
    refuse_masked,
)
from mmdp.words import Times, counted, shortened, some, suggested

ROUNDING = 1e-14  # relative difference of rewards that is rounding
DEEPEST = 8  # lists within lists that are searched
LARGEST = 1e150  # largest value: variances are squares, and doubles end at 1.8e308
KINDS = ("state", "action", "model")
COLUMNS = (
    *KINDS, "next_state", "label", "node", "policy", "share", "idstate", "idaction", "probability",
    "moves", "start",
)  # fmt: skip
_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")
_WHOLE = re.compile(r"(0|[1-9][0-9]{0,15})(\.0*)?")

# whether an action may be missing in some models; "partial": rows are a mean over such models
Missing = bool | Literal["partial"]


class Labels(NamedTuple):
    """What the ids 0..size-1 of a kind (state, action or model) stand for; None: numbers.

    >>> names = Labels("state", 2, ("up", "down"))
    >>> names.find(["down", "left", 0]).tolist(), names.of(1)
    ([1, -1, 0], "'down'")
    """

    kind: str
    size: int
    labels: tuple[str, ...] | None = None

    @classmethod
    def read(cls, kind: str, size: int, labels: Any) -> Labels:
        """Labels as a user gives them, checked."""
        own = ordered(labels, kind)
        if own is None:
            return cls(kind, size)
        if len(own) != size:
            raise InputError(
                f"{len(own)} {kind} labels for {counted(size, kind)}; give one to each"
            )
        if len(set(own)) != size:
            twice = next(x for x in own if own.count(x) > 1)
            raise InputError(f"{kind} label {twice!r} is used twice; labels must differ")
        return cls(kind, size, own)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size))) if self.labels is None else self.labels

    @property
    def axis(self) -> Sequence[object]:
        """The labels, or the ids: an axis for :func:`by_label`."""
        return range(self.size) if self.labels is None else self.labels

    def here(self, part: Part | None) -> Labels:
        """The models of a part alone, under the names they have among all."""
        if part is None:
            return self
        names = self.names[part.models_here]
        return Labels(self.kind, len(names), names)

    def of(self, index: int) -> str:
        """The id or label as shown in messages."""
        return str(index) if self.labels is None else repr(self.labels[index])

    def shown(self, index: int) -> str | int:
        """The label, or the id if there are no labels."""
        return index if self.labels is None else self.labels[index]

    def find(self, values: Iterable[object]) -> npt.NDArray[np.int64]:
        """(n,) the ids of labels or ids; -1 if unknown.

        Whole numbers are ids if not all values are labels and the labels are not numbers
        themselves. Text such as ``3`` or ``3.0`` is an id only if there are no labels.
        """
        given = list(values)
        if self.labels is None:
            return np.array([self._number(x) for x in given], dtype=np.int64)
        place = {label: i for i, label in enumerate(self.labels)}
        found = [place.get(str(x), -1) for x in given]
        if -1 in found and not are_whole(self.labels):
            ids = [-1 if isinstance(x, str) else self._number(x) for x in given]
            found = [i if i >= 0 else at for i, at in zip(ids, found, strict=True)]
        return np.array(found, dtype=np.int64)

    def _number(self, value: object) -> int:
        if isinstance(value, (bool, np.bool_)) or not are_whole([str(value).strip()]):
            return -1
        number = int(float(str(value)))
        return number if number < self.size else -1

    def place(self, value: object) -> int:
        """The id of one label or id; an error that suggests the right one."""
        return self.all([value])[0]

    def all(self, values: Iterable[object]) -> list[int]:
        """The ids of labels or ids, all known; an error that suggests the right one."""
        given = list(values)
        found: list[int] = self.find(given).tolist()
        if -1 in found:
            raise InputError(self.unknown(given[found.index(-1)]))
        return found

    def unknown(self, value: object) -> str:
        """What to say about a value that is none of them."""
        known = self.labels if self.labels is not None else [f"0..{self.size - 1}"]
        return f"unknown {self.kind} {suggested(str(value), known)}; choose from {some(known)}"


def are_whole(texts: Iterable[str]) -> bool:
    """Whether all are ids: ``3`` or ``3.0``."""
    return all(_WHOLE.fullmatch(text) for text in texts)


class Fields(NamedTuple):
    """What a model has beyond transitions and rewards: arguments of MMDP, given or checked."""

    initial: Any = None
    weights: Any = None
    discount: Any = 1.0
    terminal: Any = None
    allowed: Any = None
    model_transitions: Any = None
    states: Any = None
    actions: Any = None
    models: Any = None
    allow_missing: Missing = False
    parameters: Any = None
    name: str | None = None
    citation: str | None = None
    times: Any = None  # labels by the name of their axis
    unit: str | None = None
    quantity: str | None = None

    def read(self, shape: Shape, part: Part | None, only: Iterable[str] = ()) -> Fields:
        """Checked, as arrays, for the models (M, S, A) here; ``only`` these if any are named.

        None remains of an initial distribution, labels and allowed actions that are not given.
        """
        sizes = (shape[1], shape[2], shape[0] if part is None else part.models)
        states, actions, models = (
            Labels.read(kind, size, getattr(self, f"{kind}s"))
            for kind, size in zip(KINDS, sizes, strict=True)
        )
        readers: dict[str, Callable[[Any], Any]] = {
            "states": lambda _: states.labels,
            "actions": lambda _: actions.labels,
            "models": lambda _: models.labels,
            "initial": lambda x: None if x is None else read_initial(x, models.here(part), states),
            "weights": lambda x: read_distribution(x, "weights", models),
            "discount": read_discount,
            "terminal": lambda x: read_terminal(x, models.here(part), states),
            "allowed": lambda x: None if x is None else read_allowed(x, states, actions),
            "model_transitions": lambda x: read_model_transitions(x, models),
            "parameters": lambda x: read_parameters(x, models),
            "name": lambda x: read_word(x, "name"),
            "citation": lambda x: read_word(x, "citation"),
            "unit": lambda x: read_word(x, "unit"),
            "times": lambda x: {y.name: y.labels} if (y := read_times(x)).labels else None,
        }
        chosen = set(only) or set(self._fields)
        return self._replace(
            **{name: read(getattr(self, name)) for name, read in readers.items() if name in chosen}
        )

    def place(self, m: int, s: int, a: int, t: int | None = None) -> str:
        """``model 3, state 'sick', action 'B'``."""
        at = zip(("model", "state", "action"), (m, s, a), strict=True)
        place = ", ".join(f"{kind} {_label(getattr(self, f'{kind}s'), i)}" for kind, i in at)
        return place if t is None else f"{place}, time {t}"


def known_fields(given: Mapping[str, Any], others: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return the fields that were given by name; refuse names that are no field.

    ``others``: arguments that a message may suggest beside the fields.
    """
    for name in given:
        if name not in Fields._fields:
            raise InputError(f"there is no argument {suggested(name, [*others, *Fields._fields])}")
    return given


def _label(labels: tuple[str, ...] | None, index: int) -> str:
    return str(index) if labels is None else repr(labels[index])


def _entry_place(fields: Fields, support: Support, k: int, m: int, t: int | None) -> str:
    row = int(np.searchsorted(support.indptr, k, side="right")) - 1
    n_actions = support.shape[2]
    place = fields.place(m, row // n_actions, row % n_actions, t)
    return f"{place}, next state {_label(fields.states, int(support.indices[k]))}"


def _first(where: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))


# ---------------------------------------------------------------------- names
def is_named(values: Any) -> bool:
    """Whether values have labels of their own: a mapping, a Series or a DataFrame of pandas."""
    pandas = sys.modules.get("pandas")
    return isinstance(values, Mapping) or (
        pandas is not None and isinstance(values, (pandas.Series, pandas.DataFrame))
    )


def ids_of(keys: Iterable[object], labels: Sequence[object], what: str) -> list[int]:
    """The places of keys among the labels (see :meth:`Labels.find`), all known, none twice.

    >>> ids_of(["b", "a"], ["a", "b"], "weights"), ids_of([1, 2], ["1", "2"], "weights")
    ([1, 0], [0, 1])
    """
    given, own = list(keys), None if isinstance(labels, range) else tuple(map(str, labels))
    names = Labels("label", len(labels), own)
    found: list[int] = names.find(given).tolist()
    seen: set[int] = set()
    for key, at in zip(given, found, strict=True):
        if at < 0:
            raise InputError(
                f"{what}: the model has no label {suggested(str(key), names.names)} here",
                ["use its ids, or label it" if own is None else f"use {some(own)}"],
            )
        if at in seen:
            raise InputError(f"{what}: {str(key)!r} is given twice; keep one of them")
        seen.add(at)
    return found


def by_label(
    values: Any, what: str, *axes: Sequence[object] | None, fill: float | None = None
) -> Any:
    """What has labels of its own as an array in the order of ``axes``; anything else as it is.

    ``axes`` are the labels of the last axes, None for ids. Lists are searched for what has
    labels. What is not named is ``fill``, or an error.

    >>> by_label({"b": 1.0, "a": 2.0}, "weights", ["a", "b"]).tolist()
    [2.0, 1.0]
    >>> by_label({"y": [0, 0], "x": {"b": 1, "a": 2}}, "rewards", ["x", "y"], ["a", "b"]).tolist()
    [[2, 1], [0, 0]]
    """
    if isinstance(values, (list, tuple)):
        first = values
        for _ in range(DEEPEST):
            first = first[0] if isinstance(first, (list, tuple)) and first else first
        named = is_named(first)
        return [by_label(x, what, *axes, fill=fill) for x in values] if named else values
    if not is_named(values):
        return values
    if hasattr(values, "columns"):
        keys, data, deeper = [values.index, values.columns], values.to_numpy(), 0
    else:
        pairs = list(values.items())
        keys = [[x for x, _ in pairs]]
        data = [by_label(x, what, *axes, fill=fill) for _, x in pairs]
        deeper = np.asarray(data[0], dtype=object).ndim if data else 0
    if len(axes) < len(keys):
        return data
    end = max(len(axes) - deeper, 1)  # the values have the axes after it
    last = axes[end - len(keys) : end]
    labels = [range(len(k)) if x is None else x for k, x in zip(keys, last, strict=True)]
    places = [ids_of(*pair, what) for pair in zip(keys, labels, strict=True)]
    for known, found in zip(labels, places, strict=True):
        absent = set(range(len(known))).difference(found)
        if absent and fill is None:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            raise InputError(f"{what}: no {str(known[min(absent)])!r}{more}; name every one")
    numbers: npt.NDArray[Any] = float_array(data, what)
    if np.asarray(data).dtype.kind in "biu":
        numbers = np.asarray(data)
    shape = [len(x) for x in labels] + [*numbers.shape[len(labels) :]]
    array = np.full(shape, fill or 0, dtype=numbers.dtype)
    array[np.ix_(*places)] = numbers
    return array


# ---------------------------------------------------------------------- rewards
def read_rewards(
    rewards: Any, next_rewards: Any, support: Support, fields: Fields
) -> tuple[Rewards | None, Array | None]:
    """Rewards as ((T',) S, A, M) or as values on the pattern (T', nnz, M)."""
    n_models, n_states, n_actions = support.shape
    states, actions = fields.states or range(n_states), fields.actions or range(n_actions)
    if isinstance(rewards, ByEvent) and next_rewards is None:
        support.horizon = support.horizon or (len(rewards) if len(rewards) > 1 else None)
        return rewards, None
    rewards = by_label(rewards, "rewards", states, actions)
    next_rewards = by_label(next_rewards, "next_rewards", states, actions, states)
    if (rewards is None) == (next_rewards is None):
        raise InputError("give exactly one of rewards (per state and action) and next_rewards")
    if next_rewards is not None:
        return None, _next_rewards_on_pattern(float_array(next_rewards, "next_rewards"), support)
    array = float_array(rewards, "rewards")
    per_model, per_next = (n_models, n_states, n_actions), (*support.shape, n_states)
    if array.shape == per_model[1:]:
        return np.repeat(array[None, :, :, None], n_models, axis=3), None
    fits_time = array.ndim == 4 and array.shape[1:] == per_model
    fits_time = fits_time and support.horizon in (None, len(array))
    if array.shape == per_model:
        return np.array(np.moveaxis(array[None], 1, 3), order="C"), None
    if fits_time and array.shape == per_next and support.horizon is None:
        raise InputError(
            f"rewards of shape {array.shape} could be per time (T, M, S, A) or per next state "
            "(M, S, A, S'); say next_rewards= for the latter, or give the transitions the "
            "leading time axis too for the former"
        )
    if fits_time:
        support.horizon = len(array)
        return np.array(np.moveaxis(array, 1, 3), order="C"), None
    if array.shape == per_next or (array.ndim == 5 and array.shape[1:] == per_next):
        return None, _next_rewards_on_pattern(array, support)
    raise InputError(
        f"rewards of shape {array.shape} fit neither (S, A) = {per_model[1:]}, (M, S, A) = "
        f"{per_model}, (T, M, S, A) nor (M, S, A, S') = {per_next}"
    )


def _next_rewards_on_pattern(array: Array, support: Support) -> Array:
    n_models, n_states, _ = support.shape
    per_next = (*support.shape, n_states)
    if array.shape == per_next[1:]:
        array = np.broadcast_to(array, per_next)
    if array.shape == per_next:
        array = array[None]
    elif array.ndim != 5 or array.shape[1:] != per_next:
        raise InputError(
            f"next_rewards of shape {array.shape} do not fit (M, S, A, S') = {per_next}"
        )
    else:
        support.horizon = support.horizon or len(array)
    flat = array.reshape(len(array), n_models, -1)
    return models_last(flat, None if support.dense else support.keys)


def without_impossible(per_next: Array | None, support: Support) -> Array | None:
    """Rewards per next state, 0 in place of NaN and the like where the probability is 0."""
    if per_next is None or np.isfinite(per_next).all():
        return per_next
    p = support.values if len(per_next) > 1 else support.values.max(axis=0, keepdims=True)
    return np.where((p == 0) & ~np.isfinite(per_next), 0.0, per_next)


def expected_rewards(support: Support, per_next: Array) -> Array:
    """(T', S, A, M) r(s, a) = sum_s' p(s'|s, a) r(s, a, s')."""
    n_models, n_states, n_actions = support.shape
    times = max(len(support.values), len(per_next))
    r = np.empty((times, n_states * n_actions, n_models))
    for rows, at in support.blocks():
        r[:, rows] = support.reduced(np.add, support.values[:, at] * per_next[:, at], rows)
    return r.reshape(times, n_states, n_actions, n_models)


def per_next_worth_keeping(per_next: Array, support: Support) -> Array | None:
    """None if the reward of a row is the same for every possible next state."""
    same = len(support.values) == len(per_next)

    def ends(rows: slice, at: slice) -> tuple[Array, Array]:
        """The highest and lowest reward of each row; infinite if there is none."""
        p, r = support.values[:, at], per_next[:, at]
        possible = (p if same else p.max(axis=0)) > 0
        return (
            support.reduced(np.maximum, np.where(possible, r, -np.inf), rows, -np.inf),
            support.reduced(np.minimum, np.where(possible, r, np.inf), rows, np.inf),
        )

    top, bottom = -np.inf, np.inf
    for block in support.blocks():
        highest, lowest = ends(*block)
        top, bottom = max(top, highest.max()), min(bottom, lowest.min())
    # published files carry rounding in their rewards: 999.99999 and 1000.00001 are the same
    least = 1e-9 * max(top - bottom, 0.0)
    for block in support.blocks():
        highest, lowest = ends(*block)
        known = np.isfinite(highest)
        if (highest - lowest > least + ROUNDING * np.abs(highest))[known].any():
            return per_next
    return None


def inferred_allowed(support: Support) -> npt.NDArray[np.bool_]:
    """(S, A) whether any model has a transition for an action."""
    _, n_states, n_actions = support.shape
    if not support.dense:
        return (np.diff(support.indptr) > 0).reshape(n_states, n_actions)
    p = support.values.reshape(len(support.values), -1, n_states, support.shape[0])
    used: npt.NDArray[np.bool_] = p[0, :, :, 0].astype(bool).max(axis=1)
    used[~used] = p[:, ~used].any(axis=(0, 2, 3))  # most often the first model has them all
    return used.reshape(n_states, n_actions)


def read_allowed(allowed: Any, states: Labels, actions: Labels) -> npt.NDArray[np.bool_]:
    refuse_masked(allowed, "allowed")
    mask = np.array(by_label(allowed, "allowed", states.axis, actions.axis))
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


def drop_disallowed(support: Support, mask: npt.NDArray[np.bool_], fields: Fields) -> Support:
    """Zero what `allowed` forbids, so that no kernel can take it."""
    if not mask.any(axis=1).all():
        state = int(np.flatnonzero(~mask.any(axis=1))[0])
        raise InputError(
            f"state {_label(fields.states, state)} has no action",
            [
                "give every state at least one (an absorbing state gets an action that stays)",
                Remedy("dead_ends", "absorb", do="load with"),
            ],
        )
    if mask.all():
        return support
    forbidden = np.repeat(~mask.reshape(-1), np.diff(support.indptr))
    if support.values[:, forbidden].any():
        values = support.values.copy()
        values[:, forbidden] = 0.0
        support.values = values
    return support


def check_rows(
    support: Support, mask: npt.NDArray[np.bool_], allow_missing: Missing, fields: Fields,
    *, fixed: bool,
) -> None:  # fmt: skip
    """Every allowed row is a distribution in every model: no negative, sums to 1.

    Unless its values are ``fixed``, the support is normalized as far as rounding and printed
    digits explain.
    """
    if _rows_fine(support, mask, allow_missing):
        return
    if not fixed:
        _normalize_rows(support, mask, allow_missing)
        if _rows_fine(support, mask, allow_missing):
            return
    n_actions = support.shape[2]
    times = None if support.horizon is None or len(support.values) == 1 else support.horizon
    sums = support.row_sums(support.values)
    for bad, what in (
        (~np.isfinite(support.values), "transition probability is"),
        (support.values < 0, "negative transition probability"),
    ):
        if bad.any():
            t, k, m = _first(bad)
            place = _entry_place(fields, support, k, m, t if times else None)
            raise InputError(
                f"{what} {support.values[t, k, m]:g} at {place}; every probability must be a "
                "number from 0 to 1"
            )
    wrong = _wrong(sums, mask.reshape(-1), allow_missing)
    t, row, m = _first(wrong)
    place = fields.place(m, row // n_actions, row % n_actions, t if times else None)
    count = counted(int(wrong.sum()), "row")
    if sums[t, row, m] == 0:
        raise InputError(
            f"{place} has no transitions though other models have this action ({count} like it)",
            [
                "add them",
                Remedy("allowed", do="forbid the action with"),
                Remedy("allow_missing", True),
                Remedy("missing_actions", "zero", do="load with"),
            ],
        )
    raise InputError(
        f"probabilities sum to {sums[t, row, m]:.10g}, not 1, at {place} ({count} like it)",
        ["normalise the rows first", Remedy("normalize", True, do="load with")],
    )


def _normalize_rows(support: Support, mask: npt.NDArray[np.bool_], allow_missing: Missing) -> None:
    values = clip(support.values)
    sums = support.row_sums(values)
    wrong = _wrong(sums, mask.reshape(-1), allow_missing)
    lengths = np.diff(support.indptr)
    support.values = scale(values, np.where(wrong, sums, 1.0).repeat(lengths, axis=1))


def _rows_fine(support: Support, mask: npt.NDArray[np.bool_], allow_missing: Missing) -> bool:
    """Whether all rows are valid; in blocks, as all sums together can be as large as the model."""
    for rows, at in support.blocks():
        p = support.values[:, at]
        if support.dense:  # twice as fast
            sums = p.reshape(len(p), -1, support.shape[1], support.shape[0]).sum(axis=2)
        else:
            sums = support.reduced(np.add, p, rows)
        if (p.size and not p.min() >= 0) or not np.isfinite(sums).all():
            return False
        if _wrong(sums, mask.reshape(-1)[rows], allow_missing).any():
            return False
    return True


def _wrong(
    sums: Array, allowed: npt.NDArray[np.bool_], allow_missing: Missing
) -> npt.NDArray[np.bool_]:
    """(T', rows, M) which sums are not those of a distribution."""
    wrong = np.abs(sums - 1.0) > SUM_TOLERANCE
    wrong &= allowed[:, None]
    if allow_missing == "partial":
        wrong &= sums > 1.0
    elif allow_missing:
        wrong &= sums != 0
    return wrong


def check_rewards(
    expected: Rewards | None, per_next: Array | None, support: Support,
    mask: npt.NDArray[np.bool_], fields: Fields,
) -> None:  # fmt: skip
    by_event = isinstance(expected, ByEvent)
    y = expected.reward if isinstance(expected, ByEvent) else expected
    if y is not None and not np.isfinite([y.min(initial=0.0), y.max(initial=0.0)]).all():
        bad = ~np.isfinite(y) & mask[None, :, :, None]
        if bad.any():
            t, s, a, i = _first(bad)
            place = f"state {_label(fields.states, s)}, action {_label(fields.actions, a)}"
            if by_event:
                place = f"{place}, event {i}"
            else:
                place = fields.place(i, s, a, t if len(y) > 1 else None)
            raise InputError(f"reward is {y[t, s, a, i]} at {place}; rewards must be finite")
    if per_next is not None and not np.isfinite(per_next).all():
        t, k, m = _first(~np.isfinite(per_next))
        place = _entry_place(fields, support, k, m, t if len(per_next) > 1 else None)
        raise InputError(f"reward is {per_next[t, k, m]} at {place}; rewards must be finite")


def read_distribution(values: Any, what: str, names: Labels) -> Array:
    """One probability for each of the names; the same for all if none are given."""
    size, of = names.size, names.kind
    if values is None:
        return np.full(size, 1.0 / size)
    array = float_array(by_label(values, what, names.axis, fill=0.0), what)
    if array.shape != (size,):
        raise InputError(f"{what} has shape {array.shape}; expected one number per {of}: ({size},)")
    array = normalize(array)
    bad = ~(array >= 0) | ~np.isfinite(array)
    if bad.any():
        (i,) = _first(bad)
        raise InputError(f"{what} is {array[i]} for {of} {names.of(i)}; it must be a probability")
    if abs(array.sum() - 1.0) > SUM_TOLERANCE:
        raise InputError(
            f"{what} must sum to 1, not {array.sum():.10g}",
            ["divide by the sum", Remedy("normalize", True, do="load with")],
        )
    return array.copy()


def read_initial(values: Any, models: Labels, states: Labels) -> Array:
    """(S,), or (M, S) if each model has its own."""
    array = float_array(by_label(values, "initial", models.axis, states.axis, fill=0.0), "initial")
    if array.ndim < 2:
        return read_distribution(values, "initial", states)
    if array.shape != (models.size, states.size):
        raise InputError(
            f"initial has shape {array.shape}; expected (states,) = ({states.size},) or "
            f"(models, states) = {models.size, states.size}"
        )
    rows = [read_distribution(x, f"initial of model {models.of(m)}", states)
            for m, x in enumerate(array)]  # fmt: skip
    return rows[0] if (array == array[0]).all() else np.array(rows)


def read_model_transitions(values: npt.ArrayLike | None, models: Labels) -> Array | None:
    """K (M, M), whose rows are distributions; None if every model stays as it is."""
    if values is None:
        return None
    K = float_array(
        by_label(values, "model_transitions", models.axis, models.axis), "model_transitions"
    )
    if K.shape != (models.size, models.size):
        raise InputError(
            f"model_transitions has shape {K.shape}; expected (models, models) = "
            f"{models.size, models.size}"
        )
    K = normalize(K)
    bad = ~(K >= 0) | ~np.isfinite(K)
    if bad.any():
        m, n = _first(bad)
        raise InputError(
            f"model_transitions is {K[m, n]} from model {models.of(m)} to model "
            f"{models.of(n)}; it must be a probability"
        )
    wrong = np.abs(K.sum(axis=1) - 1.0) > SUM_TOLERANCE
    if wrong.any():
        (m,) = _first(wrong)
        raise InputError(
            f"model_transitions sum to {K[m].sum():.10g}, not 1, from model {models.of(m)}; "
            "divide each row by its sum"
        )
    return None if np.array_equal(K, np.eye(models.size)) else np.array(K, order="C")


def check_seed(seed: Any) -> None:
    """A seed is None or a whole number of at least 0."""
    if seed is not None:
        check_whole(seed, "seed", 0)


def check_whole(value: Any, what: str, least: int = 1) -> int:
    """A whole number of at least ``least``; anything else is an InputError."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        raise InputError(f"{what} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def read_discount(discount: Any) -> float:
    try:
        value = float(discount)
    except (TypeError, ValueError):
        raise InputError(f"discount must be a number from 0 to 1, not {discount!r}") from None
    if not 0.0 <= value <= 1.0:
        raise InputError(f"discount must be from 0 to 1, not {value:g}")
    return value


def read_terminal(terminal: npt.ArrayLike | None, models: Labels, states: Labels) -> Array:
    """(M, S), in memory with models last."""
    n_models, n_states = models.size, states.size
    if terminal is None:
        return np.zeros((n_states, n_models)).T
    array = float_array(by_label(terminal, "terminal", models.axis, states.axis), "terminal")
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


def read_parameters(
    parameters: Mapping[str, npt.ArrayLike] | None, models: Labels
) -> dict[str, Array]:
    result: dict[str, Array] = {}
    for key, values in ({} if parameters is None else parameters).items():
        what = f"parameter {key!r}"
        array = float_array(by_label(values, what, models.axis), what).copy()
        if array.shape != (models.size,):
            raise InputError(
                f"parameter {key!r} has shape {array.shape}; expected one value per model "
                f"({models.size},)"
            )
        array.setflags(write=False)
        result[str(key)] = array
    check_text(list(result), "parameter")
    return result


def ordered(labels: Iterable[object] | None, what: str) -> tuple[str, ...] | None:
    """Labels as text in their order, which a set does not have."""
    refuse_set(labels, what)
    if labels is None:
        return None
    return tuple(check_text([str(x) for x in refuse_no_labels(labels, what)], f"{what} label"))


def refuse_set(labels: object, what: str) -> None:
    if isinstance(labels, Set) and not isinstance(labels, KeysView):
        raise InputError(f"the labels of {what}s are a set, which has no order; give a list")


def check_text(texts: Sequence[str], what: str) -> Sequence[str]:
    """Refuse characters that no file can hold: NUL, and halves of characters (surrogates)."""
    if _UNWRITABLE.search("".join(texts)):
        text = next(x for x in texts if _UNWRITABLE.search(x))
        raise InputError(f"{what} {text!r} has a character that files cannot hold; remove it")
    return texts


def read_word(text: Any, what: str) -> str | None:
    """A name, a unit or a citation."""
    return None if text is None else check_text([str(text)], what)[0]


def is_list(given: object) -> bool:
    """Whether there are several values, one after the other, rather than one."""
    return isinstance(given, Iterable) and not isinstance(given, (str, Mapping))


def refuse_no_labels(labels: Iterable[object], what: str) -> list[object]:
    """The labels, none of which is a list, an array or missing."""
    given = list(labels)
    for x in given:
        if type(x) is not str and not fits(x, Label):
            raise InputError(
                f"{shortened(x)} is no {what} label; give text or numbers, one for each"
            )
    return given


def read_times(times: Any) -> Times:
    """What decisions are called, as a user gives it: labels, or labels by the name of their axis.

    >>> read_times({"age": range(40, 42)}), read_times(range(9))
    (Times(name='age', labels=('40', '41')), Times(name='time', labels=()))
    """
    if times is None or isinstance(times, Times):
        return times or Times()
    name, labels = "time", times
    if isinstance(times, Mapping):
        if len(times) != 1:
            raise InputError('times have one name, as in times={"age": range(40, 90)}')
        ((name, labels),) = times.items()
    if isinstance(labels, (str, Set, Mapping)) or not isinstance(labels, Iterable):
        raise InputError(
            f"times are labels in order, such as range(40, 90), not {shortened(labels)}"
        )
    name = check_text([str(name).strip()], "the name of times")[0]
    if name in COLUMNS or not name:
        raise InputError(f"times cannot be called {name!r}, which is a column of tables; rename it")
    texts = [
        f"{x:.10g}" if isinstance(x, float) else str(x) for x in refuse_no_labels(labels, "time")
    ]
    given = tuple(check_text(texts, "label of a time"))
    if not given:
        raise InputError("times is empty; give at least one")
    plain = name == "time" and given == tuple(map(str, range(len(given))))
    return Times(name, () if plain else given)


def check_horizon(own: int | None, horizon: float | None) -> int:
    """The number of decisions, checked against the model's own if it varies with time."""
    if horizon is None:
        if own is None:
            raise InputError(
                "give the horizon: the number of decisions",
                [Remedy("horizon", 50, do="for example")],
            )
        return own
    if isinstance(horizon, bool) or not isinstance(horizon, (int, np.integer)):
        raise InputError(f"horizon must be a whole number of decisions, not {horizon!r}")
    if horizon < 1:
        raise InputError(f"horizon must be at least 1, not {horizon}; give the number of decisions")
    if own is not None and horizon != own:
        raise InputError(
            f"the model varies over {own} time steps, so the horizon must be {own}, not {horizon}"
        )
    return int(horizon)


def check_extent(problem: Problem, horizon: int, held: int = 0) -> None:
    """Refuse a horizon whose policy does not fit into memory, or whose values into doubles.

    ``held`` are the bytes that a method needs; values are bounded by sum_t gamma^t max |r|.
    """
    x = problem
    size = max(held, 4 * horizon * x.n_states)
    check_memory(
        size, f"a policy over {horizon:,} decisions",
        [Remedy("horizon", do="shorten"), "spread the models over machines (docs: many hosts)"],
        models=sum(y.nbytes for y in (*x, *x.storage.arrays()) if isinstance(y, np.ndarray)),
    )  # fmt: skip
    ends = (float(end(y)) for _, y in blocks(x.r) for end in (np.max, np.min))
    largest = max(ends, key=abs)
    last = float(np.abs(x.terminal).max())
    steps = horizon if x.discount == 1 else (1 - x.discount**horizon) / (1 - x.discount)
    if not abs(largest) * min(steps, LARGEST) + last <= LARGEST:
        raise InputError(
            f"the largest reward is {largest:g} and the horizon {horizon:,}, so values would "
            f"pass {LARGEST:g}, too large to compute with; give rewards in a larger unit"
        )


def check_whole_model(problem: Problem, what: str, remedies: Iterable[str | Remedy] = ()) -> None:
    """Refuse a part of the models for what needs all of them in one process."""
    if reason := problem.not_whole(what):
        raise InputError(reason, [*remedies, "load the models without part="])
