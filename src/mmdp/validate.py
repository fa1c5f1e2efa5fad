"""Reading and checking the parts of a model, with messages that name the place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, KeysView, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError, Remedy
from mmdp.kernels.problem import Problem
from mmdp.support import Array, Support, check_memory, float_array, refuse_masked
from mmdp.words import counted, suggested

ROW_SUM_TOLERANCE = 1e-8
ROUNDING = 1e-14  # relative difference of rewards that is rounding
SUMS_AT_ONCE = 200_000  # row sums that are checked together
DEEPEST = 8  # lists within lists that are searched
LARGEST = 1e150  # value: variances are squares, and doubles end at 1.8e308

# may an action be missing in some models; "partial": rows are a mean over such models
Missing = bool | Literal["partial"]


class Labels(NamedTuple):
    """Labels of states, actions and models (None: numbered), and places named with them."""

    states: tuple[str, ...] | None
    actions: tuple[str, ...] | None
    models: tuple[str, ...] | None

    @classmethod
    def read(
        cls, shape: tuple[int, int, int], states: Any = None, actions: Any = None,
        models: Any = None,
    ) -> Labels:  # fmt: skip
        """The labels given for (M, S, A), checked."""
        return cls(
            read_labels(states, shape[1], "state"),
            read_labels(actions, shape[2], "action"),
            read_labels(models, shape[0], "model"),
        )

    def state(self, index: int) -> str:
        return _label(self.states, index)

    def place(self, m: int, s: int, a: int, t: int | None = None) -> str:
        """``model 3, state 'sick', action 'B'``."""
        place = (
            f"model {_label(self.models, m)}, state {_label(self.states, s)}, "
            f"action {_label(self.actions, a)}"
        )
        return place if t is None else f"{place}, time {t}"


def _label(labels: tuple[str, ...] | None, index: int) -> str:
    return str(index) if labels is None else repr(labels[index])


def _entry_place(labels: Labels, support: Support, k: int, m: int, t: int | None) -> str:
    row = int(np.searchsorted(support.indptr, k, side="right")) - 1
    n_actions = support.shape[2]
    place = labels.place(m, row // n_actions, row % n_actions, t)
    return f"{place}, next state {labels.state(int(support.indices[k]))}"


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
    """The places of keys among the labels; whole numbers are ids if not all keys are labels.

    >>> ids_of(["b", "a"], ["a", "b"], "weights"), ids_of([1, 2], ["1", "2"], "weights")
    ([1, 0], [0, 1])
    """
    given, place = list(keys), {str(label): i for i, label in enumerate(labels)}
    if all(str(key) in place for key in given):
        found = [place[str(key)] for key in given]
    else:
        found = [
            int(key)
            if isinstance(key, (int, np.integer))
            and not isinstance(key, bool)
            and 0 <= key < len(place)
            else place.get(str(key), -1)
            for key in given
        ]
    seen: set[int] = set()
    for key, at in zip(given, found, strict=True):
        if at < 0:
            raise InputError(
                f"{what}: the model has no label {suggested(str(key), place)}",
                ["use its ids, or label it" if isinstance(labels, range) else "use its labels"],
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
        keys, data = [values.index, values.columns], values.to_numpy()
    else:
        pairs = list(values.items())
        keys, data = [[key for key, _ in pairs]], [x for _, x in pairs]
    if len(axes) < len(keys):
        return data
    last = axes[len(axes) - len(keys) :]
    labels = [range(len(k)) if x is None else x for k, x in zip(keys, last, strict=True)]
    places = [ids_of(*pair, what) for pair in zip(keys, labels, strict=True)]
    for known, found in zip(labels, places, strict=True):
        absent = set(range(len(known))).difference(found)
        if absent and fill is None:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            raise InputError(f"{what}: no {str(known[min(absent)])!r}{more}; name every one")
    whole = np.asarray(data).dtype.kind in "biu"
    numbers = np.asarray(data) if whole else float_array(data, what)
    array = np.full([len(x) for x in labels], fill or 0, dtype=numbers.dtype)
    array[np.ix_(*places)] = numbers
    return array


# ---------------------------------------------------------------------- rewards
def read_rewards(
    rewards: Any, next_rewards: Any, support: Support, labels: Labels
) -> tuple[Array | None, Array | None]:
    """Rewards as ((T',) S, A, M) or as values on the pattern (T', nnz, M)."""
    n_models, n_states, n_actions = support.shape
    states, actions = labels.states or range(n_states), labels.actions or range(n_actions)
    rewards = by_label(rewards, "rewards", states, actions)
    next_rewards = by_label(next_rewards, "next_rewards", actions, states)
    if (rewards is None) == (next_rewards is None):
        raise InputError("give either rewards (per state and action) or next_rewards, one of them")
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
    rows = np.repeat(np.arange(len(support.indptr) - 1), np.diff(support.indptr))
    flat = array.reshape(len(array), n_models, -1)[:, :, rows * n_states + support.indices]
    return np.ascontiguousarray(np.moveaxis(flat, 1, 2))


def without_impossible(per_next: Array | None, support: Support) -> Array | None:
    """Rewards per next state, 0 in place of NaN and the like where the probability is 0."""
    if per_next is None or np.isfinite(per_next).all():
        return per_next
    p = support.values if len(per_next) > 1 else support.values.max(axis=0, keepdims=True)
    return np.where((p == 0) & ~np.isfinite(per_next), 0.0, per_next)


def expected_rewards(
    support: Support, per_next: Array | None, mask: npt.NDArray[np.bool_]
) -> Array:
    assert per_next is not None
    times = max(len(support.values), len(per_next))
    n_models, n_states, n_actions = support.shape
    r = np.empty((times, n_states * n_actions, n_models))
    for t in range(times):
        p_t = support.values[t if len(support.values) > 1 else 0]
        r_t = per_next[t if len(per_next) > 1 else 0]
        r[t] = support.row_sums((p_t * r_t)[None])[0]
    return r.reshape(times, n_states, n_actions, n_models)


def per_next_worth_keeping(per_next: Array | None, support: Support) -> Array | None:
    """None if the reward of a row is the same for every possible next state."""
    assert per_next is not None
    filled = np.flatnonzero(np.diff(support.indptr))
    starts = support.indptr[filled]
    possible = support.values if len(support.values) == len(per_next) else support.values.max(0)
    highest = np.maximum.reduceat(np.where(possible > 0, per_next, -np.inf), starts, axis=1)
    lowest = np.minimum.reduceat(np.where(possible > 0, per_next, np.inf), starts, axis=1)
    # published files carry rounding in their rewards: 999.99999 and 1000.00001 are the same
    known = np.isfinite(highest)
    range_ = highest.max(initial=-np.inf, where=known) - lowest.min(initial=np.inf, where=known)
    tolerance = 1e-9 * max(range_, 0.0) + ROUNDING * np.abs(np.where(known, highest, 0.0))
    return None if bool((highest - lowest <= tolerance).all()) else per_next


def read_allowed(allowed: Any, support: Support, labels: Labels) -> npt.NDArray[np.bool_]:
    _, n_states, n_actions = support.shape
    states, actions = labels.states or range(n_states), labels.actions or range(n_actions)
    if allowed is None:
        if support.dense:
            used = support.values.reshape(-1, n_states * n_actions, n_states, support.shape[0])
            return (used != 0).any(axis=(0, 2, 3)).reshape(n_states, n_actions)
        return (np.diff(support.indptr) > 0).reshape(n_states, n_actions)
    refuse_masked(allowed, "allowed")
    mask = np.array(by_label(allowed, "allowed", states, actions))
    if mask.shape != (n_states, n_actions):
        raise InputError(
            f"allowed has shape {mask.shape}; expected (states, actions) = {n_states, n_actions}"
        )
    if mask.dtype != bool:
        if not np.isin(mask, (0, 1)).all():
            raise InputError("allowed must hold booleans")
        mask = mask.astype(bool)
    return cast("npt.NDArray[np.bool_]", mask)


def drop_disallowed(support: Support, mask: npt.NDArray[np.bool_], labels: Labels) -> Support:
    """Zero what `allowed` forbids, so that no kernel can take it."""
    if not mask.any(axis=1).all():
        state = int(np.flatnonzero(~mask.any(axis=1))[0])
        raise InputError(
            f"state {labels.state(state)} has no action",
            [
                "give every state at least one (an absorbing state gets an action that stays)",
                Remedy("dead_ends", "absorb", do="load with"),
            ],
        )
    rows = np.repeat(np.arange(len(support.indptr) - 1), np.diff(support.indptr))
    forbidden = ~mask.reshape(-1)[rows]
    if support.values[:, forbidden].any():
        values = support.values.copy()
        values[:, forbidden] = 0.0
        support.values = values
    return support


def check_rows(
    support: Support, mask: npt.NDArray[np.bool_], allow_missing: Missing, labels: Labels
) -> None:
    """Every allowed row is a distribution in every model: no negative, sums to 1."""
    if _rows_fine(support, mask, allow_missing):
        return
    n_actions = support.shape[2]
    times = None if support.horizon is None or len(support.values) == 1 else support.horizon
    sums = support.row_sums(support.values)
    if not np.isfinite(sums).all():
        t, k, m = _first(~np.isfinite(support.values))
        place = _entry_place(labels, support, k, m, t if times else None)
        raise InputError(
            f"transition probability is {support.values[t, k, m]} at {place}; "
            "every probability must be a number from 0 to 1"
        )
    if support.values.size and support.values.min() < 0:
        t, k, m = _first(support.values < 0)
        place = _entry_place(labels, support, k, m, t if times else None)
        raise InputError(
            f"negative transition probability {support.values[t, k, m]:g} at {place}; "
            "every probability must be from 0 to 1"
        )
    wrong = _wrong(sums, mask, allow_missing)
    t, row, m = _first(wrong)
    place = labels.place(m, row // n_actions, row % n_actions, t if times else None)
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


def _rows_fine(support: Support, mask: npt.NDArray[np.bool_], allow_missing: Missing) -> bool:
    """Whether every row is as it must be, without an array of the size of all row sums."""
    values = support.values
    if values.size and not values.min() >= 0:
        return False
    step = max(1, SUMS_AT_ONCE // (len(values) * mask.size))
    blocks = (values[:, :, m : m + step] for m in range(0, values.shape[2], step))
    return all(
        bool(np.isfinite(sums).all()) and not _wrong(sums, mask, allow_missing).any()
        for sums in map(support.row_sums, blocks)
    )


def _wrong(
    sums: Array, mask: npt.NDArray[np.bool_], allow_missing: Missing
) -> npt.NDArray[np.bool_]:
    wrong = np.abs(sums - 1.0) > ROW_SUM_TOLERANCE
    wrong &= mask.reshape(-1)[None, :, None]
    if allow_missing == "partial":
        wrong &= sums > 1.0
    elif allow_missing:
        wrong &= sums != 0
    return wrong


def check_rewards(
    expected: Array | None, per_next: Array | None, support: Support,
    mask: npt.NDArray[np.bool_], labels: Labels,
) -> None:  # fmt: skip
    if expected is not None:
        bad = ~np.isfinite(expected) & mask[None, :, :, None]
        if bad.any():
            t, s, a, m = _first(bad)
            place = labels.place(m, s, a, t if len(expected) > 1 else None)
            raise InputError(f"reward is {expected[t, s, a, m]} at {place}; rewards must be finite")
    if per_next is not None and not np.isfinite(per_next).all():
        t, k, m = _first(~np.isfinite(per_next))
        place = _entry_place(labels, support, k, m, t if len(per_next) > 1 else None)
        raise InputError(f"reward is {per_next[t, k, m]} at {place}; rewards must be finite")


def read_distribution(
    values: npt.ArrayLike | None, size: int, what: str, of: str, labels: tuple[str, ...] | None
) -> Array:
    if values is None:
        return np.full(size, 1.0 / size)
    array = float_array(by_label(values, what, labels or range(size), fill=0.0), what)
    if array.shape != (size,):
        raise InputError(f"{what} has shape {array.shape}; expected one number per {of}: ({size},)")
    if not np.isfinite(array).all() or (array < 0).any():
        i = int(np.flatnonzero(~(array >= 0) | ~np.isfinite(array))[0])
        raise InputError(
            f"{what} is {array[i]} for {of} {_label(labels, i)}; it must be a probability"
        )
    if abs(array.sum() - 1.0) > ROW_SUM_TOLERANCE:
        raise InputError(
            f"{what} must sum to 1, not {array.sum():.10g}",
            ["divide by the sum", Remedy("normalize", True, do="load with")],
        )
    return array.copy()


def read_model_transitions(
    values: npt.ArrayLike | None, n_models: int, labels: tuple[str, ...] | None
) -> Array | None:
    """K (M, M), whose rows are distributions; None if every model stays as it is."""
    if values is None:
        return None
    names = labels or range(n_models)
    K = float_array(by_label(values, "model_transitions", names, names), "model_transitions")
    if K.shape != (n_models, n_models):
        raise InputError(
            f"model_transitions has shape {K.shape}; expected (models, models) = "
            f"{n_models, n_models}"
        )
    if not (K >= 0).all() or not np.isfinite(K).all():
        m, n = _first(~(K >= 0) | ~np.isfinite(K))
        raise InputError(
            f"model_transitions is {K[m, n]} from model {_label(labels, m)} to model "
            f"{_label(labels, n)}; it must be a probability"
        )
    wrong = np.abs(K.sum(axis=1) - 1.0) > ROW_SUM_TOLERANCE
    if wrong.any():
        (m,) = _first(wrong)
        raise InputError(
            f"model_transitions sum to {K[m].sum():.10g}, not 1, from model {_label(labels, m)}; "
            "divide each row by its sum"
        )
    return None if np.array_equal(K, np.eye(n_models)) else np.array(K, order="C")


def check_seed(seed: Any) -> None:
    """A seed is None or a whole number of at least 0."""
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, not {seed!r}")


def check_whole(value: Any, what: str, least: int = 1) -> None:
    """A whole number of at least ``least``, or one line that says otherwise."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        raise InputError(f"{what} must be a whole number of at least {least}, not {value!r}")


def read_discount(discount: Any) -> float:
    try:
        value = float(discount)
    except (TypeError, ValueError):
        raise InputError(f"discount must be a number from 0 to 1, not {discount!r}") from None
    if not 0.0 <= value <= 1.0:
        raise InputError(f"discount must be from 0 to 1, not {value:g}")
    return value


def read_terminal(
    terminal: npt.ArrayLike | None, n_models: int, n_states: int, labels: Labels
) -> Array:
    if terminal is None:
        return np.zeros((n_states, n_models))
    names = labels.models or range(n_models), labels.states or range(n_states)
    array = float_array(by_label(terminal, "terminal", *names), "terminal")
    if array.shape == (n_states,):
        array = np.broadcast_to(array, (n_models, n_states))
    if array.shape != (n_models, n_states):
        raise InputError(
            f"terminal has shape {array.shape}; expected (states,) = ({n_states},) or "
            f"(models, states) = {n_models, n_states}"
        )
    if not np.isfinite(array).all():
        raise InputError("terminal values must be finite")
    return np.array(array.T, order="C")


def read_parameters(
    parameters: Mapping[str, npt.ArrayLike] | None, n_models: int, labels: tuple[str, ...] | None
) -> dict[str, Array]:
    result: dict[str, Array] = {}
    for key, values in ({} if parameters is None else parameters).items():
        what = f"parameter {key!r}"
        array = float_array(by_label(values, what, labels or range(n_models)), what).copy()
        if array.shape != (n_models,):
            raise InputError(
                f"parameter {key!r} has shape {array.shape}; expected one value per model "
                f"({n_models},)"
            )
        array.setflags(write=False)
        result[str(key)] = array
    return result


def ordered(labels: Iterable[object] | None, what: str) -> tuple[str, ...] | None:
    """Labels as text in their order, which a set does not have."""
    if isinstance(labels, Set) and not isinstance(labels, KeysView):
        raise InputError(f"the labels of {what}s are a set, which has no order; give a list")
    return None if labels is None else tuple(str(x) for x in labels)


def read_labels(labels: Iterable[object] | None, size: int, what: str) -> tuple[str, ...] | None:
    result = ordered(labels, what)
    if result is None:
        return None
    if len(result) != size:
        raise InputError(f"{len(result)} {what} labels for {counted(size, what)}")
    if len(set(result)) != size:
        twice = next(x for x in result if result.count(x) > 1)
        raise InputError(f"{what} label {twice!r} is used twice; labels must differ")
    return result


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
        raise InputError(f"horizon must be at least 1, not {horizon}")
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
    largest = max(float(x.r.max()), float(x.r.min()), key=abs)
    last = float(np.abs(x.terminal).max())
    steps = horizon if x.discount == 1 else (1 - x.discount**horizon) / (1 - x.discount)
    if not abs(largest) * min(steps, LARGEST) + last <= LARGEST:
        raise InputError(
            f"the largest reward is {largest:g} and the horizon {horizon:,}, so values would "
            f"pass {LARGEST:g}, too large to compute with; give rewards in a larger unit"
        )


def check_whole_model(problem: Problem, what: str, remedies: Iterable[str | Remedy] = ()) -> None:
    """Refuse a part of the models for what needs all of them in one process."""
    if problem.part is not None:
        raise InputError(
            f"{what} needs all models in one process, and this is {problem.part}",
            [*remedies, "load the models without part="],
        )


def check_time_limit(time_limit: float | None) -> None:
    if time_limit is None:
        return
    number = isinstance(time_limit, (int, float, np.number)) and not isinstance(time_limit, bool)
    if not number or not time_limit > 0:
        raise InputError(f"time_limit must be a positive number of seconds, not {time_limit!r}")
