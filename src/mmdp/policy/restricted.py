"""Policies of time and state that people can carry out: tied, monotone, or fixed in part."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Read, checked
from mmdp.errors import InputError
from mmdp.kernels import Problem
from mmdp.policy.kinds import needs_settings
from mmdp.policy.markov import Markov, TablePolicy
from mmdp.policy.stationary import Stationary
from mmdp.support import refuse_masked
from mmdp.validate import by_label, ids_of, is_named, refuse_set
from mmdp.words import counted, either, some

if TYPE_CHECKING:
    from mmdp.model import MMDP

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_WHOLE = re.compile(r"^(-?\d+)\.0+$")  # 1.0 and 1 are one group
FREE = -1  # any action, in a table of fixed ones


class Restricted(Markov):
    """Some of the policies of time and state; for an infinite horizon, of the stationary ones."""

    restricted: ClassVar[bool] = True

    def for_ever(self) -> Self:
        words = {
            "endless": True, "title": self.title.replace("the time and ", ""),
            "change": (self.single_change or self.change).replace(" and time", ""),
            "single_change": "",
        }  # fmt: skip
        kind = copy.copy(self)
        for name, value in words.items():
            object.__setattr__(kind, name, value)
        return kind

    def policy_of(self, model: MMDP, table: npt.NDArray[Any]) -> TablePolicy:  # type: ignore[override]
        kind = Stationary() if self.endless else Markov()
        return kind.policy_of(model, table)


@checked
@dataclass(frozen=True, eq=False)
class Tied(Restricted):
    """The same action in all states of a group, at each time.

    For states that those who act cannot distinguish, and for rules that must be short.

    Parameters
    ----------
    groups
        The group of each state: a mapping or Series from state labels (or ids) to groups, an
        array ``(S,)`` of ids or names of groups, or the path of a CSV with the columns
        ``state,group``.

    >>> import mmdp
    >>> train, _ = mmdp.domains.published("hiv")
    >>> mild = [state != "C" for state in train.state_labels]
    >>> mmdp.solve(train, 15, policy=mmdp.Tied(mild)).value <= mmdp.solve(train, 15).value
    True
    """

    groups: Any

    name: ClassVar[str] = "tied"
    masks = False
    title = "the time and the group of the state"
    change = "change of the action in a single group and time"

    def __post_init__(self) -> None:
        if isinstance(self.groups, (str, Path)):
            from mmdp.io.features import load_groups

            object.__setattr__(self, "groups", load_groups(self.groups))
        elif isinstance(self.groups, (Set, Iterator)) or not isinstance(self.groups, Iterable):
            raise InputError(
                "groups must be a mapping from states to groups, a list of one group per state or "
                f"the path of a CSV file, not {type(self.groups).__name__}"
            )

    @classmethod
    def by_name(cls) -> Self:
        raise needs_settings(cls, "mmdp.Tied(groups)")

    def group_of(self, model: MMDP) -> Ints:
        """(S,) the group of each state, numbered from 0 in the order of first appearance."""
        names = self._names(model)
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        return np.array([number[name] for name in names])

    def _names(self, model: MMDP) -> list[str]:
        given = self._given(model)
        absent = [s for s, x in enumerate(given) if _is_missing(x)]
        if absent:
            raise InputError(
                f"the groups leave out {_named(absent, model)}; give every state a group (one "
                "of its own if it is free)"
            )
        return [_WHOLE.sub(r"\1", str(x)) for x in given]

    def _given(self, model: MMDP) -> list[Any]:
        """The group of each state, as it was given."""
        if is_named(self.groups):
            keys, groups = zip(*self.groups.items(), strict=True)
            found = dict(zip(ids_of(keys, model.state_labels, "groups"), groups, strict=True))
            return [found.get(s) for s in range(model.n_states)]
        refuse_masked(self.groups, "groups")
        names = np.asarray(_refuse_lists(self.groups), dtype=object)
        if names.shape != (model.n_states,):
            raise InputError(
                f"groups of shape {names.shape} for {counted(model.n_states, 'state')}; give one "
                "group per state"
            )
        given: list[Any] = names.tolist()
        return given

    def decided(self, model: MMDP, there: Mask) -> Mask:
        group = self.group_of(model)
        return (there @ np.eye(group.max() + 1, dtype=bool)[group])[..., group]

    def settings(self, model: MMDP, horizon: int) -> Any:
        return self.group_of(model).tolist()

    def text(self, model: MMDP, horizon: int) -> str:
        group, labels = self.group_of(model), model.state_labels
        members = [np.flatnonzero(group == g) for g in range(group.max() + 1)]
        together = [some((labels[s] for s in x), 6) for x in members if len(x) > 1]
        return "the same action in " + some(together, 6, "; in ") if together else ""

    def check(self, model: MMDP, horizon: int) -> None:
        group = self.group_of(model)
        for g in range(group.max() + 1):
            inside = np.flatnonzero(group == g)
            if not model.allowed[inside].all(axis=0).any():
                raise InputError(
                    f"no action is allowed in all states of one group: {_named(inside, model)}; "
                    "put them in different groups"
                )


@checked
@dataclass(frozen=True, eq=False)
class Monotone(Restricted):
    """Never a lower action in a higher state, at each time.

    Parameters
    ----------
    states
        All states from the lowest to the highest, by label or id; by default as the model has
        them. Or several such chains: actions rise along each, and a chain of one state is free.
    actions
        All actions from the lowest to the highest. To let actions fall, give them in reverse.

    Never treat less when sicker; the dead are left alone:

    >>> import mmdp
    >>> mmdp.Monotone(states=[["well", "ill", "very ill"], ["dead"]], actions=["wait", "treat"])
    Monotone(states=[['well', 'ill', 'very ill'], ['dead']], actions=['wait', 'treat'])
    """

    states: Read[Sequence[Any] | None] = None
    actions: Read[Sequence[Any] | None] = None

    name: ClassVar[str] = "monotone"
    masks = False
    title = "the time and the state, never lower in a higher state"
    change = "other monotone rule at a single time"
    single_change = "change in a single state and time that keeps it monotone"

    def __post_init__(self) -> None:
        for what, given in (("states", self.states), ("actions", self.actions)):
            if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
                raise InputError(
                    f"{what} must be a list of all {what} from the lowest to the highest, "
                    f"not {given!r}"
                )
            if isinstance(given, Iterator):  # it is read more than once
                object.__setattr__(self, what, list(given))
            else:
                refuse_set(given, what[:-1])

    def chains(self, model: MMDP) -> list[Ints]:
        """The states of each chain, from the lowest to the highest."""
        if self.states is None:
            return [np.arange(model.n_states)]
        nested = any(not isinstance(x, str) and isinstance(x, Iterable) for x in self.states)
        ids = [_ids_of(x, model, "state") for x in (self.states if nested else [self.states])]
        _check_order([s for chain in ids for s in chain], model, "state")
        return [np.array(chain) for chain in ids if chain]

    def order(self, model: MMDP) -> Ints:
        """(A,) the actions from the lowest to the highest."""
        if self.actions is None:
            return np.arange(model.n_actions)
        ids = _ids_of(self.actions, model, "action")
        _check_order(ids, model, "action")
        return np.array(ids)

    def settings(self, model: MMDP, horizon: int) -> Any:
        return [*(chain.tolist() for chain in self.chains(model)), self.order(model).tolist()]

    def text(self, model: MMDP, horizon: int) -> str:
        chains = [x for x in self.chains(model) if len(x) > 1]
        rising = (some((model.state_labels[s] for s in x), 8, " < ") for x in chains)
        actions = some((model.action_labels[a] for a in self.order(model)), 8, " < ")
        return f"states {some(rising, 4, '; ')}; actions {actions}"

    def check(self, model: MMDP, horizon: int) -> None:
        order = self.order(model)
        for chain in self.chains(model):
            lowest = 0  # rank of the lowest action that is still open
            for s in chain:
                open_ = np.flatnonzero(model.allowed[s, order][lowest:])
                if not len(open_):
                    raise InputError(
                        f"no monotone policy exists: state {model.state_labels[s]!r} does not "
                        "allow an action as high as a lower state needs; make it a chain of its "
                        "own"
                    )
                lowest += int(open_[0])


@checked
@dataclass(frozen=True, eq=False)
class Fixed(Restricted):
    """Some decisions are made already; the others are free.

    Parameters
    ----------
    actions
        A mapping or Series from state labels (or ids) to an action, or to several among which
        to choose; an array ``(S,)`` or ``(T, S)`` of action ids, -1 if free; or booleans
        ``(S, A)`` or ``(T, S, A)`` that say which actions are open.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 3, policy=mmdp.Fixed([[-1], [1], [-1]])).policy.actions.tolist()
    [[0], [1], [0]]
    """

    actions: Any

    name: ClassVar[str] = "fixed"
    proven: ClassVar[str] = "fixed"
    title = "the time and the state, with some decisions given"
    change = "change of the action in a single free state and time"

    @classmethod
    def by_name(cls) -> Self:
        raise needs_settings(cls, "mmdp.Fixed(actions)")

    def problem(self, model: MMDP, horizon: int) -> Problem:
        return model.problem.restricted(self.mask(model, horizon))

    def mask(self, model: MMDP, horizon: int) -> Mask:
        """(T or 1, S, A): which actions are open."""
        mapped = is_named(self.actions) and not hasattr(self.actions, "columns")
        mask = self._from_mapping(model) if mapped else self._array(model)
        table = mask.ndim < 3 and mask.dtype != bool
        shape = (model.n_states,) if table else (model.n_states, model.n_actions)
        if mask.ndim == len(shape):
            mask = mask[None]
        if mask.shape[1:] != shape or len(mask) not in (1, 1 if self.endless else horizon):
            raise InputError(
                f"fixed actions of shape {np.shape(self.actions)} fit neither (states,) = "
                f"({model.n_states},), (times, states) = ({horizon}, {model.n_states}) nor "
                "booleans by action"
            )
        if table:
            _check_range(mask, model)
            mask = (mask[:, :, None] == np.arange(model.n_actions)) | (mask[:, :, None] == FREE)
        mask = mask & model.problem.allowed
        if not mask.any(axis=2).all():
            t, s = (int(i) for i in np.argwhere(~mask.any(axis=2))[0])
            raise InputError(
                f"the fixed actions leave none that the model allows in state "
                f"{model.state_labels[s]!r} at time {t}"
            )
        return mask

    def _array(self, model: MMDP) -> npt.NDArray[Any]:
        refuse_masked(self.actions, "fixed actions")
        try:
            array = np.asarray(self.actions)
        except ValueError:  # rows of different lengths
            array = np.array(None)
        if is_named(self.actions):  # booleans by state and action, or actions by time and state
            rows = model.state_labels if array.dtype == bool else range(len(array))
            columns = model.action_labels if array.dtype == bool else model.state_labels
            array = by_label(self.actions, "fixed actions", rows, columns)
        if array.dtype.kind not in "biu":
            raise InputError(
                "fixed actions must be a mapping from states, action ids (-1 if free) or booleans"
            )
        return array

    def _from_mapping(self, model: MMDP) -> Mask:
        mask = np.ones((model.n_states, model.n_actions), dtype=bool)
        states = ids_of(self.actions.keys(), model.state_labels, "fixed actions")
        for s, (_, given) in zip(states, self.actions.items(), strict=True):
            several = not isinstance(given, str) and isinstance(given, Iterable)
            if isinstance(given, (int, np.integer)) and given == FREE:
                continue
            mask[s] = False
            mask[s, _ids_of(given if several else [given], model, "action")] = True
        return mask

    def settings(self, model: MMDP, horizon: int) -> Any:
        mask = self.mask(model, horizon)
        return [len(mask), hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()]

    def text(self, model: MMDP, horizon: int) -> str:
        mask, names = self.mask(model, horizon), np.array(model.action_labels, dtype=object)
        closed = (mask != model.allowed).any(axis=(0, 2))
        always = (mask == mask[0]).all(axis=(0, 2))
        return some(
            (f"{model.state_labels[s]}: {either(names[mask[0, s]])}" if always[s]
             else f"{model.state_labels[s]}: by time" for s in np.flatnonzero(closed)),
            6, "; ",
        )  # fmt: skip

    def check(self, model: MMDP, horizon: int) -> None:
        self.mask(model, horizon)


# ---------------------------------------------------------------------- labels
def _refuse_lists(groups: Iterable[Any]) -> list[Any]:
    given = list(groups)
    if not all(isinstance(x, Hashable) for x in given):
        raise InputError("a group is text or a number; give one for each state")
    return given


def _is_missing(given: Any) -> bool:
    import pandas as pd

    return given is None or bool(np.all(pd.isna(given))) or not str(given).strip()


def _ids_of(given: Any, model: MMDP, what: str) -> list[int]:
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    return model.names(what).all([given] if alone else given)


def _named(states: Iterable[int], model: MMDP) -> str:
    """Some states in words, the first few by label."""
    labels = [repr(model.state_labels[s]) for s in states]
    shown = [*labels[:3], f"{len(labels) - 3} more"] if len(labels) > 4 else labels
    return f"state{'s' if len(labels) > 1 else ''} {either(shown, ' and ')}"


def _check_order(ids: list[int], model: MMDP, what: str) -> None:
    """An order names every state or action once."""
    labels: tuple[str, ...] = getattr(model, f"{what}_labels")
    missing = [labels[i] for i in range(len(labels)) if i not in ids]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"the order of {what}s leaves out {missing[0]!r}{more}; name every {what} once"
        )
    if len(ids) > len(labels):
        twice = next(labels[i] for i in ids if ids.count(i) > 1)
        raise InputError(f"the order of {what}s names {twice!r} twice; name every {what} once")


def _check_range(table: npt.NDArray[Any], model: MMDP) -> None:
    wrong = (table < FREE) | (table >= model.n_actions)
    if wrong.any():
        raise InputError(
            f"fixed action {table[wrong][0]} is neither -1 (free) nor one of the model's "
            f"{counted(model.n_actions, 'action')}"
        )
