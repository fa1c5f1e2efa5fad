"""Restricted Markov policies: tied over groups of states, monotone, or partly fixed."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.kernels import Problem
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.model import MMDP
from mmdp.core.policies.base import UserData
from mmdp.core.policies.markov import Markov
from mmdp.core.shapes import IndexArray, Mask
from mmdp.core.text import join_first, join_or, pluralize
from mmdp.core.transitions import check_not_masked
from mmdp.core.validate import align_to_labels, check_not_set, is_labeled, is_list, match_ids

MISSING_TEXTS = ("", "NA", "NaN", "nan", "NaT", "<NA>")  # of values that are missing
_WHOLE_NUMBER = re.compile(r"^(-?\d+)\.0+$")  # 1.0 and 1 are one group
UNFIXED = -1  # any action, in a table of fixed ones


class RestrictedMarkov(Markov):
    """Base class of restricted Markov policies; over an infinite horizon, of stationary ones."""

    is_restricted = True

    def with_infinite_horizon(self) -> Self:
        """Return the class for an infinite horizon, with texts that leave out the time."""
        change_text = self.single_change_text or self.change_text
        return self._copy_with(
            is_infinite_horizon=True,
            restriction_text=self.stationary_text
            or f"stationary and {self.restriction_text or self.name}",
            decision_inputs=self.decision_inputs.replace("the time and ", ""),
            change_text=change_text.replace(" and time", ""),
            single_change_text="",
        )


@check_arguments
@dataclass(frozen=True, eq=False)
class Tied(RestrictedMarkov):
    """State aggregation: the same action in all states of a group, at each time.

    For states that those who act cannot distinguish, and for rules that must be short.

    Parameters
    ----------
    groups
        The group of each state: a CSV file with the columns ``state,group``. Or a mapping or Series
        from state labels (or ids) to groups, or an array ``(S,)`` of ids or names of groups.

    >>> import mmdp
    >>> train, _ = mmdp.domains.load_published("hiv")
    >>> mild = [state != "C" for state in train.state_labels]
    >>> tied = mmdp.solve(train, 15, policy_class=mmdp.policies.Tied(mild))
    >>> tied.value <= mmdp.solve(train, 15).value
    True
    """

    groups: UserData

    name = "tied"
    is_action_mask = False
    decision_inputs = "the time and the group of the state"
    change_text = "change of the action in a single group and time"

    def __post_init__(self) -> None:
        """Read the groups from a CSV file if a path is given, and check their type."""
        if isinstance(self.groups, (str, Path)):
            from mmdp.data.io.reading import load_groups

            object.__setattr__(self, "groups", load_groups(self.groups))
        elif isinstance(self.groups, (Set, Iterator)) or not isinstance(self.groups, Iterable):
            raise InputError(
                "groups must be a mapping from states to groups, a list of one group per state or "
                f"the path of a CSV file, not {type(self.groups).__name__}"
            )

    def get_group_ids(self, model: MMDP) -> IndexArray:
        """Return the group id of each state, (S,), numbered in the order of first appearance."""
        hint = " (a group of its own if it is free)"
        groups = read_state_values(self.groups, "groups", model, hint, missing_texts=("",))
        names = [_WHOLE_NUMBER.sub(r"\1", str(group)) for group in groups]
        id_by_name = {name: i for i, name in enumerate(dict.fromkeys(names))}
        return np.array([id_by_name[name] for name in names])

    def _list_members(self, model: MMDP) -> list[IndexArray]:
        """List the state ids of each group."""
        group_ids = self.get_group_ids(model)
        return np.split(np.argsort(group_ids, kind="stable"), np.bincount(group_ids).cumsum()[:-1])

    def find_determined(self, model: MMDP, is_reached: Mask) -> Mask:
        """Find the states in a group with a reached state, which determines their action."""
        is_determined = np.zeros_like(is_reached)
        for members in self._list_members(model):
            is_determined[..., members] = is_reached[..., members].any(axis=-1, keepdims=True)
        return is_determined

    def describe(self, model: MMDP, horizon: int) -> str:
        """Describe the groups of more than one state."""
        group_texts = [
            join_first((model.state_labels[s] for s in states), 6)
            for states in self._list_members(model)
            if len(states) > 1
        ]
        return "the same action in " + join_first(group_texts, 6, "; in ") if group_texts else ""

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError if the states of a group have no allowed action in common."""
        for members in self._list_members(model):
            if not model.allowed[members].all(axis=0).any():
                raise InputError(
                    "no action is allowed in all states of one group: "
                    f"{_format_states(members, model)}; put them in different groups"
                )


@check_arguments
@dataclass(frozen=True, eq=False)
class Monotone(RestrictedMarkov):
    """Policies whose action never decreases as the state increases, at each time.

    Parameters
    ----------
    states
        All states from the lowest to the highest, by label or id; by default as the model has
        them. Or several such chains: actions rise along each, and a chain of one state is free.
    actions
        All actions from the lowest to the highest. To let actions fall, give them in reverse.

    Never treat less when sicker; the dead are left alone:

    >>> import mmdp
    >>> states = [["well", "ill", "very ill"], ["dead"]]
    >>> mmdp.policies.Monotone(states=states, actions=["wait", "treat"])
    Monotone(states=[['well', 'ill', 'very ill'], ['dead']], actions=['wait', 'treat'])
    """

    states: Unchecked[Sequence[UserData] | None] = None
    actions: Unchecked[Sequence[UserData] | None] = None

    name = "monotone"
    is_action_mask = False
    decision_inputs = "the time and the state, never lower in a higher state"
    change_text = "other monotone rule at a single time"
    single_change_text = "change in a single state and time that keeps it monotone"

    def __post_init__(self) -> None:
        """Check that the orders are lists, and read iterators once."""
        for axis, order in (("states", self.states), ("actions", self.actions)):
            if order is not None and not is_list(order):
                raise InputError(
                    f"{axis} must be a list of all {axis} from the lowest to the highest, "
                    f"not {order!r}"
                )
            if isinstance(order, Iterator):  # it is read more than once
                object.__setattr__(self, axis, list(order))
            else:
                check_not_set(order, axis[:-1])

    def get_state_chains(self, model: MMDP) -> list[IndexArray]:
        """Return the state ids of each chain, from lowest to highest."""
        if self.states is None:
            return [np.arange(model.n_states)]
        chains = self.states if any(map(is_list, self.states)) else [self.states]
        chain_ids = [_find_ids(chain, model, "state") for chain in chains]
        _check_order([s for chain in chain_ids for s in chain], model, "state")
        return [np.array(chain) for chain in chain_ids if chain]

    def get_action_order(self, model: MMDP) -> IndexArray:
        """Return the action ids from lowest to highest, (A,)."""
        if self.actions is None:
            return np.arange(model.n_actions)
        ids = _find_ids(self.actions, model, "action")
        _check_order(ids, model, "action")
        return np.array(ids)

    def describe(self, model: MMDP, horizon: int) -> str:
        """Describe the orders of states and actions."""
        chains = [chain for chain in self.get_state_chains(model) if len(chain) > 1]
        chain_texts = (
            join_first((model.state_labels[s] for s in chain), 8, " < ") for chain in chains
        )
        order_text = join_first(
            (model.action_labels[a] for a in self.get_action_order(model)), 8, " < "
        )
        return f"states {join_first(chain_texts, 4, '; ')}; actions {order_text}"

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError if no monotone policy of allowed actions exists."""
        order = self.get_action_order(model)
        for chain in self.get_state_chains(model):
            min_rank = 0  # rank of the lowest action that is still open
            for s in chain:
                allowed_ranks = np.flatnonzero(model.allowed[s, order][min_rank:])
                if not len(allowed_ranks):
                    raise InputError(
                        f"no monotone policy exists: state {model.state_labels[s]!r} does not "
                        "allow an action as high as a lower state needs; make it a chain of its "
                        "own"
                    )
                min_rank += int(allowed_ranks[0])


@check_arguments
@dataclass(frozen=True, eq=False)
class Fixed(RestrictedMarkov):
    """Partly fixed policies: some actions are given, the others are optimized.

    Parameters
    ----------
    actions
        A mapping or Series from state labels (or ids) to an action, or to several among which
        to choose; an array ``(S,)`` or ``(T, S)`` of action ids, -1 if free; or booleans
        ``(S, A)`` or ``(T, S, A)`` that say which actions are open.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> fixed = mmdp.policies.Fixed([[-1], [1], [-1]])
    >>> mmdp.solve(two, 3, policy_class=fixed).policy.actions.tolist()
    [[0], [1], [0]]
    """

    actions: UserData

    name = "fixed"
    bound_scope = "fixed"
    decision_inputs = "the time and the state, with some decisions given"
    change_text = "change of the action in a single free state and time"

    def make_problem(self, model: MMDP, horizon: int) -> Problem:
        """Return the arrays of the model, restricted to the actions that are not ruled out."""
        return model.problem.restrict_actions(self.make_mask(model, horizon))

    def make_mask(self, model: MMDP, horizon: int) -> Mask:
        """Return which actions may be taken, bool (T or 1, S, A)."""
        is_mapping = is_labeled(self.actions) and not hasattr(self.actions, "columns")
        mask = self._mask_from_mapping(model) if is_mapping else self._parse_fixed_actions(model)
        if mask.ndim < 3 and mask.dtype != bool:  # ids
            is_invalid = (mask < UNFIXED) | (mask >= model.n_actions)
            if is_invalid.any():
                raise InputError(
                    f"fixed action {mask[is_invalid][0]} is neither -1 (free) nor one of the "
                    f"model's {pluralize(model.n_actions, 'action')}"
                )
            ids = mask[..., None]
            mask = (ids == np.arange(model.n_actions)) | (ids == UNFIXED)
        mask = mask[None] if mask.ndim == 2 else mask
        n_times = 1 if self.is_infinite_horizon else horizon
        if mask.shape[1:] != model.allowed.shape or len(mask) not in (1, n_times):
            raise InputError(
                f"fixed actions of shape {np.shape(self.actions)} fit neither (states,) = "
                f"({model.n_states},), (times, states) = ({horizon}, {model.n_states}) nor "
                "booleans by action"
            )
        mask = mask & model.problem.allowed
        if not mask.any(axis=2).all():
            t, s = np.argwhere(~mask.any(axis=2))[0]
            raise InputError(
                f"the fixed actions leave none that the model allows in state "
                f"{model.state_labels[s]!r} at time {t}"
            )
        return mask

    def _parse_fixed_actions(self, model: MMDP) -> PolicyTable:
        """Parse fixed actions (ids, -1 if free, or booleans), aligned to labels of the model."""
        check_not_masked(self.actions, "fixed actions")
        try:
            array = np.asarray(self.actions)
        except ValueError:  # rows of different lengths
            array = np.array(None)
        if is_labeled(self.actions):  # booleans by state and action, or actions by time and state
            rows = model.state_labels if array.dtype == bool else range(len(array))
            columns = model.action_labels if array.dtype == bool else model.state_labels
            array = align_to_labels(self.actions, "fixed actions", rows, columns)
        if array.dtype.kind not in "biu":
            raise InputError(
                "fixed actions must be a mapping from states, action ids (-1 if free) or booleans"
            )
        return array

    def _mask_from_mapping(self, model: MMDP) -> Mask:
        """Convert a mapping from states to actions to a mask (S, A)."""
        mask = np.ones((model.n_states, model.n_actions), dtype=bool)
        states = match_ids(self.actions.keys(), model.state_labels, "fixed actions")
        for s, (_, actions) in zip(states, self.actions.items(), strict=True):
            if not (isinstance(actions, (int, np.integer)) and actions == UNFIXED):
                mask[s] = False
                mask[s, _find_ids(actions, model, "action")] = True
        return mask

    def describe(self, model: MMDP, horizon: int) -> str:
        """List the states with restricted actions."""
        mask, names = self.make_mask(model, horizon), np.array(model.action_labels, dtype=object)
        is_constant = (mask == mask[0]).all(axis=(0, 2))
        texts = (
            f"{model.state_labels[s]}: "
            + (join_or(names[mask[0, s]]) if is_constant[s] else "by time")
            for s in np.flatnonzero((mask != model.allowed).any(axis=(0, 2)))
        )
        return join_first(texts, 6, "; ")

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError unless the fixed actions fit the model and the horizon."""
        self.make_mask(model, horizon)


# ---------------------------------------------------------------------- labels
def read_state_values(
    values: UserData,
    name: str,
    model: MMDP,
    hint: str = "",
    missing_texts: Collection[str] = MISSING_TEXTS,
) -> list[UserData]:
    """Return the value of each state, (S,), of a mapping from states, or a sequence.

    ``name`` begins the messages, and ``hint`` ends that about missing values: None, NaN or, as
    text, one of ``missing_texts``.
    """
    check_not_masked(values, name)
    values_by_state: list[UserData]
    if is_labeled(values):
        values_by_state = [None] * model.n_states
        states = match_ids(values.keys(), model.state_labels, name)
        for s, (_, value) in zip(states, values.items(), strict=True):
            values_by_state[s] = value
    else:
        values_by_state = list(values)
    if len(values_by_state) != model.n_states:
        raise InputError(
            f"{name}: {pluralize(len(values_by_state), 'value')} for "
            f"{pluralize(model.n_states, 'state')}; give one per state"
        )
    if any(isinstance(x, tuple) or not isinstance(x, Hashable) for x in values_by_state):
        raise InputError(f"{name}: several values for one state; give text or a number for each")
    missing_states = [
        s
        for s, value in enumerate(values_by_state)
        if value is None
        or str(value).strip() in (missing_texts if isinstance(value, str) else MISSING_TEXTS)
    ]
    if missing_states:
        raise InputError(
            f"{name}: no value for {_format_states(missing_states, model)}; give every state one"
            + hint
        )
    return values_by_state


def _find_ids(labels: UserData, model: MMDP, axis: str) -> list[int]:
    """Return the ids of a label or of several labels of states or actions."""
    return model.label_index(axis).get_ids(labels if is_list(labels) else [labels])


def _format_states(states: Iterable[int], model: MMDP) -> str:
    """Format the first few states by label, for messages."""
    labels = [repr(model.state_labels[s]) for s in states]
    shown_labels = [*labels[:3], f"{len(labels) - 3} more"] if len(labels) > 4 else labels
    return f"state{'s' if len(labels) > 1 else ''} {join_or(shown_labels, ' and ')}"


def _check_order(ids: list[int], model: MMDP, axis: str) -> None:
    """Raise InputError unless the order has every state (or action) exactly once."""
    labels: tuple[str, ...] = getattr(model, f"{axis}_labels")
    counts = np.bincount(ids, minlength=len(labels))
    mistakes = [
        *(f"leaves out {labels[i]!r}" for i in np.flatnonzero(counts == 0)),
        *(f"names {labels[i]!r} twice" for i in np.flatnonzero(counts > 1)),
    ]
    if mistakes:
        raise InputError(f"the order of {axis}s {join_first(mistakes, 1)}; name every {axis} once")
