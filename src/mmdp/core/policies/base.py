"""The base class of all policies, with the operations that every policy supports."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Seed, Unchecked, check_arguments, is_of_type
from mmdp.core.errors import InputError
from mmdp.core.kernels import Backend
from mmdp.core.kernels.infinite import check_infinite_horizon
from mmdp.core.kernels.planner import PlannerTables
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.policies.classes import NamedValues, PolicyClass, UserData
from mmdp.core.shapes import ActionTable, ProbabilityTable
from mmdp.core.text import TimeLabels, join_or, parse_named_axes, parse_named_values, pluralize
from mmdp.core.validate import match_ids, parse_labels, parse_time_labels

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.core.model import MMDP
    from mmdp.core.objectives import Objective
    from mmdp.core.policies.markov import MarkovPolicy, TablePolicy
    from mmdp.insight.draw.maps import PolicyMap

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
PolicyMemory = Any  # what a policy remembers during an episode


class Policy:
    """Base class of policies: maps what has been observed to an action; immutable.

    A new policy derives from this class. It defines ``policy_class``, ``horizon`` (the number of
    decisions, or infinite), ``defining_values`` and ``act``; with memory also ``initial_memory``
    and ``update``. Operations that it does not support raise InputError with a reason.

    It follows the :class:`mmdp.policies.Planner` protocol. Nothing in it changes by use: all that a
    deployment remembers is in the memory of ``initial_memory`` and ``update``.
    """

    __slots__ = (
        "action_labels",
        "n_actions",
        "n_states",
        "objective",
        "state_labels",
        "time_labels",
    )

    n_states: int
    n_actions: int
    state_labels: tuple[str, ...] | None
    action_labels: tuple[str, ...] | None
    time_labels: TimeLabels
    objective: Objective | None  # what it was solved for, if the file that it was read from says so

    message_name: ClassVar[str] = "the policy"  # in messages
    has_exact_returns: ClassVar[bool] = True  # whether ``returns`` are known without simulation
    control_variate: TablePolicy | None = None  # a control variate for its episodes

    def _set_attributes(self, **attributes: object) -> None:
        """Set attributes by name on the immutable policy."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _set_labels(
        self,
        n_states: int,
        n_actions: int,
        state_labels: Sequence[str] | None,
        action_labels: Sequence[str] | None,
        time_labels: UserData = None,
    ) -> None:
        """Check the labels of states, actions and times against their counts, and set them."""
        self._set_attributes(time_labels=parse_time_labels(time_labels), objective=None)
        for axis, n, labels in (
            ("state", n_states, state_labels),
            ("action", n_actions, action_labels),
        ):
            checked_labels = parse_labels(labels, axis)
            if checked_labels is not None and len(checked_labels) != n:
                raise InputError(
                    f"{len(checked_labels)} {axis} labels for a policy over {n} {axis}s"
                )
            self._set_attributes(**{f"n_{axis}s": n, f"{axis}_labels": checked_labels})

    # ------------------------------------------------------------ what it is
    @property
    def name(self) -> str:
        """Name of the policy, that of its class unless a subclass overrides it."""
        return self.policy_class.name

    @property
    def policy_class(self) -> PolicyClass:
        """Policy class that contains this policy."""
        raise NotImplementedError

    @property
    def horizon(self) -> float:
        """Number of decisions; math.inf for an infinite horizon."""
        raise NotImplementedError

    @property
    def defining_values(self) -> NamedValues:
        """Arrays, numbers and texts that determine the policy, by name: equal ones if equal."""
        raise NotImplementedError

    @property
    def actions(self) -> ActionTable:
        """Action ids by time and state, (T, S); (S,) without time, (T, S, nodes) with memory.

        Of a randomized policy, the most probable actions.
        """
        raise self._unsupported_error("table of actions")

    @property
    def probabilities(self) -> ProbabilityTable:
        """Action probabilities pi(s, a) by time and state, (T, S, A); (S, A) without time."""
        raise self._unsupported_error("table of probabilities")

    @property
    def table(self) -> PolicyTable:
        """All decisions of the policy as one array."""
        raise self._unsupported_error("table")

    def to_table(self, model: MMDP) -> PolicyTable:
        """Return the policy's table, padded to the number of actions of the model."""
        raise self._unsupported_error("table")

    @property
    def memory_note(self) -> str:
        """Clause that says what the policy remembers, for messages; empty if it has no memory."""
        return ""

    @property
    def label_kwargs(self) -> NamedValues:
        """Keyword arguments (labels, action count) for a policy over the same states."""
        return {
            "n_actions": self.n_actions,
            "state_labels": self.state_labels,
            "action_labels": self.action_labels,
            "time_labels": self.time_labels,
        }

    @property
    def as_markov(self) -> MarkovPolicy | None:
        """The policy itself if it is a Markov policy, otherwise None."""
        return None

    @check_arguments
    def to_markov(self, horizon: int) -> MarkovPolicy:
        """Convert the policy to a Markov policy pi_t(s) of the given horizon."""
        raise self._unsupported_error("table of time and state")

    def _unsupported_error(self, feature: str) -> InputError:
        """Make the error for an operation that policies with memory do not support."""
        return InputError(f"{self!r} has no {feature}: it {self.memory_note}")

    # ------------------------------------------------------------ in a model
    @check_arguments
    def check(self, model: MMDP, horizon: float | None = None) -> None:
        """Raise InputError unless this policy can be followed in the model."""
        if self.n_states != model.n_states or self._has_too_many_actions(model):
            raise InputError(
                f"{self.message_name} is for {self.n_states} states and {self.n_actions} actions, "
                f"the model has {model.n_states} states and {model.n_actions} actions"
            )
        self._check_names(model)
        self.check_horizon(horizon)
        self.check_horizon(model.horizon, "the model varies over")
        if self.horizon == math.inf:
            check_infinite_horizon(model.problem, None, model.state_labels)
        self._check_actions(model)

    def check_horizon(self, horizon: float | None, subject: str = "the horizon is") -> None:
        """Raise InputError if the horizon differs from that of the policy."""
        if horizon in (None, self.horizon):
            return
        coverage, remedy = f"covers {self.horizon} time steps", "solve again for that horizon"
        if self.horizon == math.inf:
            coverage = "is for an infinite horizon"
            remedy = (
                remedy
                if self.memory_note
                else "give policy.to_markov(T), the same over T decisions"
            )
        raise InputError(f"{self.message_name} {coverage}, {subject} {horizon}", [remedy])

    def _has_too_many_actions(self, model: MMDP) -> bool:
        """Return whether the policy has more actions than the model."""
        return self.n_actions > model.n_actions

    def _check_names(self, model: MMDP) -> None:
        """Raise InputError if the labels of states or actions differ from those of the model."""
        for axis, policy_labels, model_labels in (
            ("state", self.state_labels, model.state_labels),
            ("action", self.action_labels, model.action_labels),
        ):
            if policy_labels is None or not model.has_labels[axis]:
                continue
            # a file without labels of unused actions has their ids in place of them
            pairs = enumerate(zip(policy_labels, model_labels, strict=False))
            i = next(
                (i for i, (a, b) in pairs if a != b and (a != str(i) or a in model_labels)), None
            )
            if i is not None:
                raise InputError(
                    f"{self.message_name}'s {axis}s are named differently from the model's "
                    f"(number {i} is {policy_labels[i]!r} here, {model_labels[i]!r} there)",
                    [
                        "save the policy and load it with load_policy(path, model), which matches "
                        "names"
                        if self.has_exact_returns
                        else "plan for models with these names"
                    ],
                )

    def _check_actions(self, model: MMDP) -> None:
        """Raise InputError if the policy takes an action that the model does not allow."""

    def compute_returns(self, model: MMDP, backend: Backend) -> Array:
        """Compute the exact return of the policy on every model, (M,)."""
        raise InputError(f"the return of {self!r} is known by simulation only")

    def make_simulation_tables(self, model: MMDP, horizon: int) -> PlannerTables | None:
        """Make the tables with which a backend simulates the policy; None: step by step."""
        return None

    # ------------------------------------------------------------ who follows it
    @check_arguments
    def initial_memory(self, seed: Seed = 0) -> PolicyMemory:
        """Make the memory at the start of an episode; give each episode its own seed."""
        return None

    def act(self, memory: PolicyMemory, time: int, state: int) -> int:
        """Return the id of the action to take, given the memory, the time and the state."""
        raise NotImplementedError

    def update(
        self,
        memory: PolicyMemory,
        time: int,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
    ) -> PolicyMemory:
        """Return the memory after observing the next state (and the reward)."""
        return memory

    # ------------------------------------------------------------ who reads it
    @check_arguments
    def action(
        self, time: Unchecked[int] = 0, state: int | str | None = None, **state_values: object
    ) -> str:
        """Return the label of the action in a state, given by id, label, or values of its axes.

        If decisions have labels, such as weeks, ``week="w4"`` stands for the time.

        A number between two points of an axis goes to the nearer one, and to the lower if it is
        halfway, as in :func:`mmdp.simulate` with ``off_grid=True`` (which has the functions, and so
        passes over points at which the process is over or does not allow what is done here).

        >>> import mmdp
        >>> states = ["stock=0, mode=on", "stock=0, mode=off"]
        >>> policy = mmdp.policies.StationaryPolicy([1, 0], state_labels=states)
        >>> policy.action(mode="on", stock=0), policy.action(state=1)
        ('1', '0')
        >>> tank = mmdp.policies.StationaryPolicy([1, 0], state_labels=["level=0.5", "level=2.5"])
        >>> tank.action(level=1.234)
        '1'
        """
        if self.memory_note:
            raise InputError(
                f"the action depends on more than the state: {self!r} {self.memory_note}"
            )
        if (
            time_column := self.time_labels.column_name
        ) in state_values and time_column not in parse_named_values(self.state_names[0]):
            time = self._find_time(time_column, state_values.pop(time_column))
        if not is_of_type(time, int) or not 0 <= time < self.horizon:
            raise InputError(f"time {time} is outside 0..{self.horizon - 1:g}")
        if (state is None) == (not state_values):
            raise InputError("give the state: state= its id or label, or its values by name")
        key = find_state_label(state_values, self.state_names) if state is None else state
        s = match_ids([key], self.state_names, "the state")[0]
        return self.action_names[self.act(self.initial_memory(), time, s)]

    def _find_time(self, axis: str, value: object) -> int:
        """Return the time with that label; 0 if the policy does not depend on the time."""
        if self.horizon == math.inf:
            return 0
        label = f"{value:.10g}" if isinstance(value, float) else str(value)
        if label not in (all_labels := self.time_labels.get_labels(int(self.horizon))):
            range_text = f"{all_labels[0]} to {all_labels[-1]}"
            raise InputError(f"no decision is called {axis} {label!r}; give one of {range_text}")
        return all_labels.index(label)

    def describe(self) -> str:
        """Describe the policy in words; empty if its table is its only description."""
        return ""

    def to_frame(self) -> pd.DataFrame:
        """Return the policy as a tidy DataFrame."""
        raise self._unsupported_error("table of actions")

    def to_dict(self) -> NamedValues:
        """Return the policy as a dict of JSON types."""
        raise self._unsupported_error("table of actions")

    def to_map_rows(self) -> tuple[IntArray, list[str]]:
        """Return the actions (times, rows) that a map shows, and the label of each row."""
        raise self._unsupported_error("map of actions")

    def to_map(self) -> PolicyMap:
        """Return a map of the actions by time and state, for notebooks and plots."""
        from mmdp.insight.draw.maps import PolicyMap

        return PolicyMap(*self.to_map_rows(), self.action_names, self.time_labels)

    @property
    def state_names(self) -> list[str]:
        """Labels of the states, or their ids."""
        return list(self.state_labels or map(str, range(self.n_states)))

    @property
    def action_names(self) -> list[str]:
        """Labels of the actions, or their ids."""
        return list(self.action_labels or map(str, range(self.n_actions)))

    # ------------------------------------------------------------ an object
    @classmethod
    def _slot_names(cls) -> list[str]:
        """List the names of all slots, those of base classes included."""
        return [name for base in cls.__mro__ for name in getattr(base, "__slots__", ())]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __getstate__(self) -> NamedValues:
        return {name: getattr(self, name) for name in self._slot_names()}

    def __setstate__(self, state: NamedValues) -> None:
        self._set_attributes(**state)

    def __eq__(self, other: object) -> bool:
        """Compare the policies by the values that determine them."""
        if type(other) is not type(self):
            return NotImplemented
        own_values, other_values = self.defining_values, other.defining_values
        return own_values.keys() == other_values.keys() and all(
            np.array_equal(own_values[name], other_values[name]) for name in own_values
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """Render a map of the actions (most probable ones if randomized) for notebooks."""
        return self.to_map().to_html()

    def __repr__(self) -> str:
        time_parts = [] if self.horizon == math.inf else [pluralize(int(self.horizon), "time step")]
        size_parts = pluralize(self.n_states, "state"), pluralize(self.n_actions, "action")
        return f"{type(self).__name__}({', '.join([*time_parts, *size_parts, self._repr_suffix])})"

    @property
    def _repr_suffix(self) -> str:
        """Last part of the ``repr``, such as "deterministic"."""
        return self.name


def find_state_label(
    state_values: Mapping[str, object],
    labels: Collection[str],
    axes: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Find the label of the state with these values of its axes, or of the nearest grid point.

    ``axes`` are those of :func:`parse_named_axes`, if they are known.
    """
    names = parse_named_values(next(iter(labels)))
    if set(names) != set(state_values):
        description = (
            f"are named by {join_or(names, ' and ')}" if names else "have no names of values"
        )
        raise InputError(f"states {description}, not by {join_or(state_values, ' and ')}")
    exact_label = ", ".join(f"{name}={_format_value(state_values[name])}" for name in names)
    if exact_label in labels:
        return exact_label
    axes = parse_named_axes([*labels])[0] if axes is None else axes
    return ", ".join(
        f"{name}={_find_nearest(name, state_values[name], axes.get(name, []))}" for name in names
    )


def _format_value(value: object) -> str:
    """Format a value as it appears in state labels."""
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _find_nearest(name: str, value: UserData, grid_values: Sequence[str]) -> str:
    """Return the grid value nearest to a number; other text is returned unchanged."""
    text = _format_value(value)
    try:
        x, grid = float(value), np.array(grid_values, dtype=float)
    except (TypeError, ValueError):
        return text
    if not grid.size or text in grid_values:
        return text
    if not grid.min() <= x <= grid.max():
        range_text = f"from {grid.min():g} to {grid.max():g}"
        raise InputError(
            f"{name} is {text}, and the policy knows it {range_text}; give a value there"
        )
    return grid_values[int(np.abs(grid - x).argmin())]


def get_label_kwargs(model: MMDP) -> NamedValues:
    """Return the labels of the model as keyword arguments for a policy."""
    return {
        "n_actions": model.n_actions,
        "state_labels": model.state_labels if model.has_labels["state"] else None,
        "action_labels": model.action_labels if model.has_labels["action"] else None,
        "time_labels": model.time_labels,
    }
