"""Markov and stationary policies: tables of actions, or of distributions over actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import PositiveInt, Seed, Unchecked, check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Backend
from mmdp.core.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.core.kernels.infinite import InfiniteHorizon
from mmdp.core.kernels.planner import ACTIONS, PROBABILITIES, PlannerTables
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.model import MMDP
from mmdp.core.policies.base import (
    TO_MARKOV_REMEDY,
    NamedValues,
    Policy,
    PolicyClass,
    UserData,
    as_policy,
    get_label_kwargs,
)
from mmdp.core.shapes import ActionTable, Array, IntArray, ProbabilityTable
from mmdp.core.text import format_percent, pluralize
from mmdp.core.transitions import as_float_array, check_not_masked
from mmdp.core.validate import align_to_labels, check_int

if TYPE_CHECKING:
    import pandas as pd


class TableClass(PolicyClass):
    """Base class of the policy classes whose policies are tables by state (and time)."""

    is_action_mask = True

    def make_policy(self, model: MMDP, table: PolicyTable) -> TablePolicy:
        """Make a Markov policy of a table, or a stationary policy of a row."""
        policy_type = StationaryPolicy if self.is_infinite_horizon else MarkovPolicy
        return policy_type.from_table(table, **get_label_kwargs(model))


class Markov(TableClass):
    """Markov policies pi_t(s): the action depends on the time and the state.

    Parameters
    ----------
    randomized
        Allow policies that draw actions at random.

    That gains nothing for the mean, which is linear in the probabilities at one time (Corollary
    4.2 of Su and Petrik 2023); for other objectives it may.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 0.0]], [[0.0, 2.0]]])
    >>> mmdp.solve(two, 1, objective="worst").value
    0.0
    >>> randomized = mmdp.policies.Markov(randomized=True)
    >>> even = mmdp.solve(two, 1, objective="worst", policy_class=randomized)
    >>> round(even.value, 3), even.policy.probabilities.round(3).tolist()
    (1.0, [[[0.5, 0.5]]])
    """

    name = "markov"
    decision_inputs = "the time and the state"
    change_text = "change of the action in a single state and time"
    finite_horizon_reason = "a table of time and state has a last row"

    @check_arguments
    def __init__(self, randomized: bool = False) -> None:
        self.randomized = randomized

    def __repr__(self) -> str:
        return f"Markov({'randomized=True' if self.randomized else ''})"


@check_arguments
@dataclass(frozen=True)
class Stationary(TableClass):
    """Stationary policies pi(s): the action depends on the state alone.

    Over an infinite horizon the model must not vary with time. Without a discount its episodes must
    end by themselves: every policy must come to states that no action leaves or earns anything in.
    Terminal values play no part there, since there is no last decision. Over a number of decisions
    the policy is a table of time and state with equal rows.

    With ``randomized=True`` actions may be drawn at random: if one model needs another action than
    the others, a rule that sometimes takes it may earn more than every rule that never does.

    >>> import math, mmdp
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> solution = mmdp.solve(one, math.inf)
    >>> solution.policy, solution.value
    (StationaryPolicy(1 state, 2 actions, deterministic), 6.0)
    """

    randomized: bool = False

    name = "stationary"
    decision_inputs = "the state alone"
    change_text = "change of the action in a single state"
    is_infinite_horizon = True
    is_restricted = True

    def for_horizon(self, horizon: float | None) -> Self:
        """Return the class for the horizon: with a finite one, tables of equal rows."""
        if horizon is None or horizon == math.inf:
            return type(self)(self.randomized)
        # a decision binds those of other times
        return self._copy_with(is_infinite_horizon=False, is_action_mask=False)


class TablePolicy(Policy):
    """Base class of policies given by a table of actions or probabilities by state (and time)."""

    axes: tuple[str, ...]  # of the states, after the time if the policy depends on it
    table: PolicyTable  # what kernels read: (..., S) actions or (..., S, A) probabilities
    horizon: float = math.inf  # number of decisions; infinite if there is no last one
    has_rules = False

    @check_arguments
    def __init__(
        self,
        actions: Unchecked[npt.ArrayLike | None] = None,
        *,
        probabilities: npt.ArrayLike | None = None,
        n_actions: PositiveInt | None = None,
        state_labels: Sequence[str] | None = None,
        action_labels: Sequence[str] | None = None,
        time_labels: UserData = None,
    ) -> None:
        if (actions is None) == (probabilities is None):
            shape = ", ".join(axis[0].upper() for axis in self.axes)
            raise InputError(
                f"a policy needs either actions ({shape}) or probabilities ({shape}, A)"
            )
        labels = {"state_labels": state_labels, "action_labels": action_labels}
        if actions is not None:
            unlabeled_axes = (None,) * (len(self.axes) - 1)
            array = align_to_labels(actions, "the policy", *unlabeled_axes, state_labels)
            table: PolicyTable = read_actions(array, self.axes)
            n_actions = max(int(table.max()) + 1, n_actions or len(action_labels or ()))
        else:
            array = align_to_labels(probabilities, "the policy", *labels.values())
            table = _read_probabilities(array, self.axes)
            n_actions = table.shape[-1]
        horizon = len(table) if "time" in self.axes else math.inf
        self._set_attributes(table=table, horizon=horizon)
        self._set_labels(table.shape[len(self.axes) - 1], n_actions, time_labels, **labels)

    @classmethod
    @check_arguments
    def for_model(
        cls,
        model: MMDP,
        actions: npt.ArrayLike | None = None,
        *,
        probabilities: npt.ArrayLike | None = None,
    ) -> Self:
        """Make a policy with the labels of the model."""
        return cls(actions, probabilities=probabilities, **get_label_kwargs(model))

    @classmethod
    def from_table(cls, table: PolicyTable, **labels: UserData) -> Self:
        """Make the policy of a table of actions or probabilities, by its number of axes."""
        labels["actions" if table.ndim == len(cls.axes) else "probabilities"] = table
        return cls(**labels)

    @property
    def is_deterministic(self) -> bool:
        """Whether the policy takes one action in each state."""
        return self.table.ndim == len(self.axes)

    @property
    def actions(self) -> ActionTable:
        """Action ids, (..., S); of a randomized policy, the most probable actions."""
        return self.table if self.is_deterministic else self.table.argmax(axis=-1).astype(np.int32)

    @property
    def probabilities(self) -> ProbabilityTable:
        """Action probabilities pi(s, a), (..., S, A)."""
        if not self.is_deterministic:
            return self.table
        return (self.table[..., None] == np.arange(self.n_actions)).astype(np.float64)

    @property
    def defining_values(self) -> NamedValues:
        """Table of actions or probabilities, by name."""
        return {"actions" if self.is_deterministic else "probabilities": self.table}

    @property
    def randomized_cells(self) -> IntArray:
        """Index of each (time, state) in which the action is random, (k, axes)."""
        if self.is_deterministic:
            return np.empty((0, len(self.axes)), np.int32)
        return np.argwhere((self.table > 0).sum(axis=-1) > 1).astype(np.int32)

    def describe_randomization(self, cell: Sequence[int]) -> str:
        """Describe the distribution over actions at an index (time, state) of a random action.

        >>> MarkovPolicy(probabilities=[[[0.25, 0.75]]]).describe_randomization([0, 0])
        '0 at time 0 (1 75%, 0 25%)'
        """
        probs = self.table[tuple(cell)]
        actions = [a for a in np.argsort(-probs.round(6), kind="stable") if probs[a] > 0]
        texts = (f"{self.action_names[a]} {format_percent(probs[a])}" for a in actions)
        return f"{self.state_names[cell[-1]]}{self._format_time(cell)} ({', '.join(texts)})"

    def _format_time(self, cell: Sequence[int]) -> str:
        """Format the time of an index (time, state), as the end of a clause; empty without time."""
        return f" at {self.time_labels.describe_range(int(cell[0]))}" if len(cell) > 1 else ""

    def _check_actions(self, model: MMDP) -> None:
        """Raise InputError if the policy takes an action that the model does not allow."""
        allowed = model.allowed[:, : self.n_actions]
        if self.is_deterministic:
            is_forbidden = ~allowed[np.arange(self.n_states), self.actions]
        else:
            is_forbidden = (self.probabilities > 0) & ~allowed
        if is_forbidden.any():
            cell = np.argwhere(is_forbidden)[0].tolist()
            a = self.table[tuple(cell)] if self.is_deterministic else cell.pop()
            raise InputError(
                f"the policy takes action {model.action_labels[a]!r} in state "
                f"{model.state_labels[cell[-1]]!r}{self._format_time(cell)}, which the model does "
                "not allow"
            )

    def to_table(self, model: MMDP) -> PolicyTable:
        """Return the table, padded with zeros to the number of actions of the model."""
        n_missing = model.n_actions - self.n_actions
        if self.is_deterministic or n_missing == 0:
            return self.table
        return np.pad(self.table, [(0, 0)] * len(self.axes) + [(0, n_missing)])

    def compute_returns(self, model: MMDP, backend: Backend) -> Array:
        """Compute the exact return of the policy on every model, (M,)."""
        table = self.to_table(model)
        if self.horizon == math.inf:
            return InfiniteHorizon.from_problem(model.problem).compute_returns(table)
        prepared = backend.prepare(model.problem, len(table))
        return prepared.compute_returns(prepared.backward("policy", policy=table).first_values)

    def make_simulation_tables(self, model: MMDP) -> PlannerTables:
        """Make the tables a backend needs to simulate the policy."""
        table = self.to_table(model)
        table = table[None] if self.horizon == math.inf else table
        if self.is_deterministic:
            return PlannerTables(ACTIONS, model.problem, actions=table)
        return PlannerTables(PROBABILITIES, model.problem, probabilities=table)

    @check_arguments
    def initial_memory(self, seed: Seed = 0) -> np.random.Generator | None:
        """Return None; a random generator if the policy is randomized."""
        return None if self.is_deterministic else np.random.default_rng(seed)

    def act(self, memory: np.random.Generator | None, time: int, state: int) -> int:
        """Return the action id at this time and state, sampled if the policy is randomized."""
        entry = self.table[(time, state)[-len(self.axes) :]]
        if self.is_deterministic:
            return int(entry)
        assert memory is not None
        return int(memory.choice(self.n_actions, p=entry))

    @check_arguments
    def to_markov(self, horizon: int) -> MarkovPolicy:
        """Return the Markov policy with the same actions; a stationary policy is repeated."""
        if self.as_markov is not None:
            self.check_horizon(horizon)
            return self.as_markov
        check_int(horizon, "horizon", item_bytes=self.table.nbytes)
        return MarkovPolicy.from_table(
            np.repeat(self.table[None], horizon, axis=0), **self.label_kwargs
        )

    def describe(self) -> str:
        """Describe the size of the table.

        >>> MarkovPolicy([[0, 1]]).describe()
        'a table of 1 time and 2 states; see policy.to_frame()'
        """
        sizes = map(pluralize, self.table.shape, self.axes)
        return f"a table of {' and '.join(sizes)}; see policy.to_frame()"

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame ``time, state, action``, with ``probability`` if randomized.

        The time is left out if it does not matter. States and actions are labels if the policy has
        them; the ids are then in ``idstate, idaction``. Times are numbers of decisions, followed
        by their labels if they have any. A randomised policy lists the actions it may take.

        >>> policy = MarkovPolicy([[0, 1]], state_labels=["up", "down"])
        >>> print(policy.to_frame().to_string(index=False))
        time state  action  idstate  idaction
           0    up       0        0         0
           0  down       1        1         1
        """
        if self.is_deterministic:
            index = [*np.indices(self.table.shape).reshape(len(self.axes), -1)]
            a = self.table.ravel()
        else:
            *index, a = np.nonzero(self.table)
        columns: NamedValues = dict(zip(self.axes, index, strict=True))
        columns["action"] = a.astype(np.int64)
        if not self.is_deterministic:
            columns["probability"] = self.table[(*index, a)]
        return self._make_frame(columns)

    def to_dict(self) -> NamedValues:
        """Return the table as a dict of JSON types, with a time axis of length 1 if stationary."""
        table = self.table if len(self.axes) == 2 else self.table[None]
        return {"policy" if self.is_deterministic else "probabilities": table.tolist()}

    def to_map_rows(self) -> tuple[IntArray, list[str]]:
        """Return the actions (times, states) that a map shows, and the state names."""
        return self.actions.reshape(-1, self.n_states), self.state_names

    @property
    def _repr_suffix(self) -> str:
        """Last part of the ``repr``: deterministic or randomized."""
        return "deterministic" if self.is_deterministic else "randomized"


class MarkovPolicy(TablePolicy):
    """Markov policy: an action (or a distribution over actions) by time and state; immutable.

    Parameters
    ----------
    actions
        ``(T, S)`` action ids, for a deterministic policy; or
    probabilities
        ``(T, S, A)`` probabilities pi_t(s, a), for a randomised one.
    n_actions
        Number of actions; needed only if it exceeds the largest action used.
    state_labels, action_labels, time_labels
        Labels, kept for tables, maps and files; ``times`` as for :class:`mmdp.MMDP`.

    Examples
    --------
    >>> from mmdp.core.policies import MarkovPolicy
    >>> MarkovPolicy([[0, 1], [1, 1]], action_labels=["run", "repair"])
    MarkovPolicy(2 time steps, 2 states, 2 actions, deterministic)
    """

    axes = ("time", "state")
    horizon: int
    policy_class = Markov()

    @classmethod
    @check_arguments
    def uniform(cls, model: MMDP, horizon: int) -> MarkovPolicy:
        """Make the policy that takes every allowed action with the same probability."""
        check_int(horizon, "horizon", item_bytes=8 * model.allowed.size)
        row = model.allowed / model.allowed.sum(axis=1, keepdims=True)
        return cls.for_model(model, probabilities=np.repeat(row[None], horizon, axis=0))

    @classmethod
    @check_arguments
    def random(cls, model: MMDP, horizon: int, seed: Seed = 0) -> MarkovPolicy:
        """Sample a deterministic policy uniformly from the allowed actions.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 1.0]])
        >>> mmdp.policies.MarkovPolicy.random(one, 3, seed=0).actions.shape
        (3, 1)
        """
        check_int(horizon, "horizon", item_bytes=8 * model.allowed.size)
        rng = np.random.default_rng(seed)
        scores = rng.random((horizon, model.n_states, model.n_actions))
        return cls.for_model(model, np.where(model.allowed, scores, -1.0).argmax(axis=2))

    @property
    def as_markov(self) -> MarkovPolicy:
        """The policy itself."""
        return self


class StationaryPolicy(TablePolicy):
    """Stationary policy: an action (or a distribution over actions) by state; immutable.

    Parameters
    ----------
    actions
        ``(S,)`` action ids; or
    probabilities
        ``(S, A)`` probabilities pi(s, a).
    n_actions, state_labels, action_labels, time_labels
        As for :class:`mmdp.policies.MarkovPolicy`.

    >>> import mmdp
    >>> policy = mmdp.policies.StationaryPolicy([0, 1], action_labels=["run", "repair"])
    >>> policy.to_markov(3).actions.tolist()
    [[0, 1], [0, 1], [0, 1]]
    """

    axes = ("state",)
    policy_class = Stationary()

    @classmethod
    def from_row(cls, row: MarkovPolicy) -> StationaryPolicy:
        """Make the stationary policy of a Markov policy with one row."""
        if row.horizon != 1:
            raise InputError(f"a stationary policy has one row, not {row.horizon}")
        return cls.from_table(row.table[0], **row.label_kwargs)


@check_arguments
def require_markov(
    policy: UserData,
    purpose: str,
    horizon: int | None = None,
    *,
    method_argument: str = "method",
    requirement: str = "a policy of time and state",
) -> MarkovPolicy:
    """Return the Markov policy of a policy or Solution; InputError if it has none.

    A stationary policy is repeated over ``horizon`` decisions. ``purpose`` begins the message of
    the error, ``requirement`` says what is needed, and ``method_argument`` is the name of the
    caller's argument for methods.

    >>> require_markov(3, "a map shows")
    Traceback (most recent call last):
    mmdp.core.errors.InputError: a map shows a policy or the Solution it comes from, not int
    """
    inner_policy = getattr(policy, "policy", policy)
    prefix = f"{purpose} {requirement}, and"
    cadp_remedy = Remedy(method_argument, "cadp", verb="choose")
    if inner_policy is None and policy is not None:
        raise InputError(f"{prefix} {policy.method} has one policy per model", [cadp_remedy])
    plain_policy = as_policy(inner_policy, f"{purpose} a policy or the Solution it comes from")
    if plain_policy.memory_note:
        plots = "draw it with mmdp plot belief, or a controller with mmdp plot chart"
        remedies = [plots] if plain_policy.has_exact_returns else [cadp_remedy]
        subject = "this one" if plain_policy.has_exact_returns else plain_policy.name
        raise InputError(f"{prefix} {subject} {plain_policy.memory_note}", remedies)
    if horizon is None and plain_policy.horizon == math.inf:
        raise InputError(f"{prefix} this one is stationary", [TO_MARKOV_REMEDY])
    return plain_policy.to_markov(int(plain_policy.horizon) if horizon is None else horizon)


def read_actions(actions: npt.ArrayLike, axes: tuple[str, ...]) -> IntArray:
    """Check action ids with the given axes and return them as a read-only array."""
    check_not_masked(actions, "policy actions")
    try:
        array = np.asarray(actions)
    except ValueError:
        raise InputError(f"policy actions must be a table {_format_shape(axes)}") from None
    if array.ndim != len(axes) or array.size == 0:
        raise InputError(f"policy actions have shape {array.shape}; expected {_format_shape(axes)}")
    if array.dtype.kind not in "iu":
        raise InputError("policy actions must be whole numbers (action ids from 0)")
    if array.min() < 0:
        raise InputError("policy actions count from 0; a negative one was given")
    if array.max() > np.iinfo(np.int32).max:
        raise InputError(f"policy action {array.max()} is too large for an action id")
    result = array.astype(np.int32)
    result.setflags(write=False)
    return result


def _read_probabilities(probabilities: npt.ArrayLike, axes: tuple[str, ...]) -> Array:
    """Check action probabilities with the given axes and return them as a read-only array."""
    table = as_float_array(probabilities, "policy probabilities")
    if table.ndim != len(axes) + 1 or table.size == 0:
        raise InputError(
            f"policy probabilities have shape {table.shape}; expected "
            f"{_format_shape((*axes, 'action'))}"
        )
    table = normalize(table.copy())
    is_invalid = ~(np.abs(table.sum(axis=-1) - 1.0) <= SUM_TOLERANCE) | (table < 0).any(axis=-1)
    if is_invalid.any():
        cell = tuple(np.argwhere(is_invalid)[0].tolist())
        cell_text = ", ".join(f"{axis} {i}" for axis, i in zip(axes, cell, strict=True))
        raise InputError(
            f"policy probabilities at {cell_text} are not a distribution over actions: "
            f"{table[cell].tolist()}"
        )
    table.setflags(write=False)
    return table


def _format_shape(axes: Sequence[str]) -> str:
    """Format the axes for messages.

    >>> _format_shape(("time", "state"))
    '(time steps, states)'
    """
    return f"({', '.join(f'{axis}s' for axis in axes)})".replace("times", "time steps")
