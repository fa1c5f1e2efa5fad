"""Policies of time and state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mmdp.arguments import PositiveInt, Read, Seed, checked
from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel
from mmdp.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.kernels.planner import ACTIONS, PROBABILITIES, PlannerTables
from mmdp.policy.base import Policy, labels_of
from mmdp.policy.kinds import PolicyKind
from mmdp.policy.planner import followed
from mmdp.support import refuse_masked
from mmdp.validate import by_label, check_whole
from mmdp.words import percent

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Markov(PolicyKind):
    """Policies of time and state, without memory.

    With ``randomised=True`` actions may be drawn at random. For the mean that earns nothing, since
    it is linear in what is done at one time and state; for other objectives it may.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 0.0]], [[0.0, 2.0]]])
    >>> mmdp.solve(two, 1, objective="worst").value
    0.0
    >>> even = mmdp.solve(two, 1, objective="worst", policy=mmdp.Markov(randomised=True))
    >>> round(even.value, 3), even.policy.probabilities.round(3).tolist()
    (1.0, [[[0.5, 0.5]]])
    """

    name: ClassVar[str] = "markov"
    title = "the time and the state"
    change = "change of the action in a single state and time"
    ends: ClassVar[str] = "a table of time and state has a last row"
    masks = True

    @checked
    def __init__(self, randomised: bool = False) -> None:
        self.randomised = randomised

    def policy_of(self, model: MMDP, table: npt.NDArray[Any]) -> MarkovPolicy:
        return MarkovPolicy.of_table(table, **labels_of(model))

    def __repr__(self) -> str:
        return f"Markov({'randomised=True' if self.randomised else ''})"


class TablePolicy(Policy):
    """An action, or a distribution over actions, by state and perhaps time."""

    __slots__ = ("table",)

    axes: ClassVar[tuple[str, ...]]
    table: npt.NDArray[Any]  # what kernels read: (..., S) actions or (..., S, A) probabilities

    @checked
    def __init__(
        self,
        actions: Read[npt.ArrayLike | None] = None,
        *,
        probabilities: npt.ArrayLike | None = None,
        n_actions: PositiveInt | None = None,
        state_labels: Sequence[str] | None = None,
        action_labels: Sequence[str] | None = None,
        times: Any = None,
    ) -> None:
        if (actions is None) == (probabilities is None):
            shape = ", ".join(axis[0].upper() for axis in self.axes)
            raise InputError(
                f"a policy needs either actions ({shape}) or probabilities ({shape}, A)"
            )
        if actions is not None:
            numbered = (None,) * (len(self.axes) - 1)
            given = by_label(actions, "the policy", *numbered, state_labels)
            self._set(table=_read_actions(given, self.axes))
            count = int(self.table.max()) + 1
            size = max(count, n_actions or (len(action_labels) if action_labels else count))
        else:
            given = by_label(probabilities, "the policy", state_labels, action_labels)
            self._set(table=_read_probabilities(given, self.axes))
            size = self.table.shape[-1]
        n_states = self.table.shape[len(self.axes) - 1]
        self._set_labels(n_states, size, state_labels, action_labels, times)

    @classmethod
    @checked
    def for_model(
        cls,
        model: MMDP,
        actions: npt.ArrayLike | None = None,
        *,
        probabilities: npt.ArrayLike | None = None,
    ) -> Self:
        """A policy that carries the labels of ``model``."""
        return cls(actions, probabilities=probabilities, **labels_of(model))

    @classmethod
    def of_table(cls, table: npt.NDArray[Any], **labels: Any) -> Self:
        """The policy of actions or probabilities, by their number of axes."""
        sharp = table.ndim == len(cls.axes)
        return cls(table if sharp else None, probabilities=None if sharp else table, **labels)

    @property
    def deterministic(self) -> bool:
        return self.table.ndim == len(self.axes)

    @property
    def actions(self) -> IntArray:
        """(..., S) action ids; of a randomised policy, the most probable action."""
        return self.table if self.deterministic else self.table.argmax(axis=-1).astype(np.int32)

    @property
    def probabilities(self) -> Array:
        """(..., S, A) pi(s, a)."""
        if not self.deterministic:
            return self.table
        table = np.zeros((*self.table.shape, self.n_actions))
        np.put_along_axis(table, self.table[..., None].astype(np.int64), 1.0, axis=-1)
        return table

    @property
    def parts(self) -> dict[str, Any]:
        return {"actions" if self.deterministic else "probabilities": self.table}

    @property
    def drawn_at(self) -> IntArray:
        """(k, axes) the places, such as (time, state), where the action is drawn."""
        if self.deterministic:
            return np.empty((0, len(self.axes)), np.int32)
        return np.argwhere((self.table > 0).sum(axis=-1) > 1).astype(np.int32)

    def drawn_text(self, place: Sequence[int]) -> str:
        """How the action is drawn at a place, in words.

        >>> MarkovPolicy(probabilities=[[[0.25, 0.75]]]).drawn_text([0, 0])
        '0 at time 0 (1 75%, 0 25%)'
        """
        *time, s = place
        at = f" at {self.times.span(int(time[0]))}" if time else ""
        return f"{self.state_names[s]}{at} ({self.action_text(place)})"

    def action_text(self, place: Sequence[int]) -> str:
        """The action at a place; if it is drawn, the shares of all."""
        if self.deterministic:
            return self.action_names[self.table[tuple(place)]]
        shares = self.table[tuple(place)]
        taken = [a for a in np.argsort(-shares, kind="stable") if shares[a] > 0]
        odds = [f"{self.action_names[a]} {percent(shares[a])}" for a in taken]
        return ", ".join(odds) if len(taken) > 1 else self.action_names[taken[0]]

    def _check_actions(self, model: MMDP) -> None:
        allowed = model.allowed[:, : self.n_actions]
        if self.deterministic:
            bad = ~allowed[np.arange(self.n_states), self.actions]
        else:
            bad = (self.probabilities > 0) & ~allowed
        if bad.any():
            place = [int(i) for i in np.argwhere(bad)[0]]
            a = self.table[tuple(place)] if self.deterministic else place.pop()
            *time, s = place
            at = f" at {self.times.span(int(time[0]))}" if time else ""
            raise InputError(
                f"the policy takes action {model.action_labels[a]!r} in state "
                f"{model.state_labels[s]!r}{at}, which the model does not allow"
            )

    def table_for(self, model: MMDP) -> npt.NDArray[Any]:
        missing = model.n_actions - self.n_actions
        if self.deterministic or missing == 0:
            return self.table
        return np.pad(self.table, [(0, 0)] * len(self.axes) + [(0, missing)])

    def tables_for(self, model: MMDP, horizon: int) -> PlannerTables:
        table = self.table_for(model)
        table = table[None] if self.kind.endless else table
        if self.deterministic:
            return PlannerTables(ACTIONS, model.problem, actions=table)
        return PlannerTables(PROBABILITIES, model.problem, probabilities=table)

    @checked
    def start(self, seed: Seed = 0) -> np.random.Generator | None:
        """Nothing is remembered; a randomised policy draws from a generator."""
        return None if self.deterministic else np.random.default_rng(seed)

    def act(self, memory: np.random.Generator | None, time: int, state: int) -> int:
        """The action at this time and state, drawn if the policy is randomised."""
        there = self.table[(time, state)[-len(self.axes) :]]
        if self.deterministic:
            return int(there)
        assert memory is not None
        return int(memory.choice(self.n_actions, p=there))

    def to_frame(self) -> pd.DataFrame:
        """The policy as a tidy table: ``time, state, action``, ``probability`` if randomised.

        The time is left out if it does not matter. States and actions are labels if the policy has
        them; the ids are then in ``idstate, idaction``. Times are numbers of decisions, followed
        by their labels if they have any. A randomised policy lists the actions it may take.

        >>> policy = MarkovPolicy([[0, 1]], state_labels=["up", "down"])
        >>> print(policy.to_frame().to_string(index=False))
        time state  action  idstate  idaction
           0    up       0        0         0
           0  down       1        1         1
        """
        import pandas as pd

        if self.deterministic:
            index = [*np.indices(self.table.shape).reshape(len(self.axes), -1)]
            a = self.table.ravel()
        else:
            *index, a = np.nonzero(self.table)
        columns: dict[str, Any] = dict(zip(self.axes, index, strict=True))
        columns["action"] = a.astype(np.int64)
        if not self.deterministic:
            columns["probability"] = self.table[(*index, a)]
        named = labelled(columns, state=self.state_labels, action=self.action_labels)
        return pd.DataFrame(self.times.beside(named))

    def stored(self) -> dict[str, Any]:
        """The table with an axis of time, of length 1 if time does not matter."""
        rows = self.table if len(self.axes) == 2 else self.table[None]
        return {"policy" if self.deterministic else "probabilities": rows.tolist()}

    def drawn(self) -> tuple[IntArray, list[str]]:
        return self.actions.reshape(-1, self.n_states), self.state_names

    @property
    def _trait(self) -> str:
        return "deterministic" if self.deterministic else "randomised"


class MarkovPolicy(TablePolicy):
    """One action (or a distribution over actions) for every time and state; frozen.

    Parameters
    ----------
    actions
        ``(T, S)`` action ids, for a deterministic policy; or
    probabilities
        ``(T, S, A)`` probabilities pi_t(s, a), for a randomised one.
    n_actions
        Number of actions; needed only if it exceeds the largest action used.
    state_labels, action_labels, times
        Labels, kept for tables, maps and files; ``times`` as for :class:`mmdp.MMDP`.

    Examples
    --------
    >>> from mmdp import MarkovPolicy
    >>> MarkovPolicy([[0, 1], [1, 1]], action_labels=["run", "repair"])
    MarkovPolicy(2 time steps, 2 states, 2 actions, deterministic)
    """

    __slots__ = ()

    axes: ClassVar[tuple[str, ...]] = ("time", "state")

    @classmethod
    @checked
    def uniform(cls, model: MMDP, horizon: int) -> MarkovPolicy:
        """Every allowed action with the same probability."""
        check_whole(horizon, "horizon")
        row = model.allowed / model.allowed.sum(axis=1, keepdims=True)
        return cls.for_model(model, probabilities=np.repeat(row[None], horizon, axis=0))

    @classmethod
    @checked
    def random(cls, model: MMDP, horizon: int, seed: Seed = 0) -> MarkovPolicy:
        """A deterministic policy drawn uniformly from the allowed actions.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 1.0]])
        >>> mmdp.MarkovPolicy.random(one, 3, seed=0).actions.shape
        (3, 1)
        """
        check_whole(horizon, "horizon")
        rng = np.random.default_rng(seed)
        scores = rng.random((horizon, model.n_states, model.n_actions))
        return cls.for_model(model, np.where(model.allowed, scores, -1.0).argmax(axis=2))

    @property
    def kind(self) -> PolicyKind:
        return Markov()

    @property
    def horizon(self) -> int:
        return len(self.table)

    @property
    def markov(self) -> MarkovPolicy:
        return self

    @checked
    def over(self, horizon: int) -> MarkovPolicy:
        """The policy itself; a horizon other than its own is refused."""
        self.check_horizon(horizon)
        return self

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        """(M,) its exact return on every model; :func:`mmdp.evaluate` has more."""
        plan, table = kernel.plan(model.problem, self.horizon), self.table_for(model)
        return plan.returns(plan.backward("given", policy=table).first)


@checked
def markov_policy(
    given: Any, purpose: str, horizon: int | None = None, *, argument: str = "method",
    needed: str = "a policy of time and state",
) -> MarkovPolicy:  # fmt: skip
    """The policy of time and state that was given, or that a solution has.

    A stationary one is followed over ``horizon`` decisions. ``purpose`` begins the sentence of a
    refusal, ``needed`` says what is needed, and ``argument`` is the caller's own argument for
    methods.

    >>> markov_policy(3, "a map shows")
    Traceback (most recent call last):
    mmdp.errors.InputError: a map shows a policy or the Solution it comes from, not int
    """
    policy = getattr(given, "policy", given)
    needs = f"{purpose} {needed}, and"
    if policy is None and given is not None:
        raise InputError(f"{needs} {given.method} has one policy per model", [_other(argument)])
    policy = followed(policy, f"{purpose} a policy or the Solution it comes from")
    if policy.memory:
        others = [] if policy.exact else [_other(argument)]
        whose = "this one" if policy.exact else policy.name
        raise InputError(f"{needs} {whose} {policy.memory}", others)
    if horizon is None and policy.horizon == math.inf:
        repeated = "give policy.over(T), the same over T decisions"
        raise InputError(f"{needs} this one is stationary", [repeated])
    return policy.over(int(policy.horizon) if horizon is None else horizon)


def _other(argument: str) -> Remedy:
    return Remedy(argument, "cadp", do="choose")


def labelled(columns: dict[str, Any], **labels: Sequence[str] | None) -> dict[str, Any]:
    """The columns with labels in place of ids, if there are any, followed by the ids.

    >>> labelled({"state": [1, 0]}, state=["up", "down"])
    {'state': array(['down', 'up'], dtype=object), 'idstate': [1, 0]}
    >>> labelled({"state": [1, 0]}, state=None)
    {'state': [1, 0]}
    """
    names = {
        column: np.array(given, dtype=object)[columns[column]]
        for column, given in labels.items()
        if given is not None
    }
    ids = {f"id{column}": columns[column] for column in labels if names}
    return {**columns, **names, **ids}


def _read_actions(actions: npt.ArrayLike, axes: tuple[str, ...]) -> IntArray:
    """Action ids with these axes, such as time and state, checked and read-only."""
    refuse_masked(actions, "policy actions")
    try:
        array = np.asarray(actions)
    except ValueError:
        raise InputError(f"policy actions must be a table {_shape(axes)}") from None
    if array.ndim != len(axes) or array.size == 0:
        raise InputError(f"policy actions have shape {array.shape}; expected {_shape(axes)}")
    if array.dtype.kind not in "iu":
        raise InputError("policy actions must be whole numbers (action ids from 0)")
    if array.min() < 0:
        raise InputError("policy actions count from 0; a negative one was given")
    if array.max() > np.iinfo(np.int32).max:
        raise InputError(f"policy action {array.max()} is too large for an action id")
    result = array.astype(np.int32)
    result.setflags(write=False)
    return result


def _read_probabilities(probabilities: Any, axes: tuple[str, ...]) -> Array:
    """Probabilities with these axes and, last, actions; checked and read-only."""
    refuse_masked(probabilities, "policy probabilities")
    whole = _shape((*axes, "action"))
    try:
        table = np.array(probabilities, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"policy probabilities must be numbers {whole}") from None
    if table.ndim != len(axes) + 1 or table.size == 0:
        raise InputError(f"policy probabilities have shape {table.shape}; expected {whole}")
    table = normalize(table)
    wrong = ~(np.abs(table.sum(axis=-1) - 1.0) <= SUM_TOLERANCE) | (table < 0).any(axis=-1)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, place, strict=True))
        raise InputError(
            f"policy probabilities at {where} are not a distribution over actions: "
            f"{table[place].tolist()}"
        )
    table.setflags(write=False)
    return table


def _shape(axes: Sequence[str]) -> str:
    """The axes as a message names them.

    >>> _shape(("time", "state"))
    '(time steps, states)'
    """
    return f"({', '.join(f'{axis}s' for axis in axes)})".replace("times", "time steps")
