"""The bases of policy classes and of policies, and the protocol of planners.

``solve(policy_class=...)`` takes a :class:`PolicyClass`, or its name. It is a small frozen object
that says which policies are searched: which observations a decision may depend on. It checks that
a model has such policies and converts the table that a method finds to a policy.
``Method.unsupported_reason`` says whether a method can find one. :class:`Policy` has everything
that is done with a policy.
"""

from __future__ import annotations

import copy
import functools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from mmdp.core.arguments import Seed, Unchecked, check_arguments, is_of_type
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels import Backend, Problem
from mmdp.core.kernels.infinite import check_infinite_horizon, choose_planning_horizon
from mmdp.core.kernels.planner import PlannerTables
from mmdp.core.kernels.problem import PolicyTable
from mmdp.core.model import MMDP
from mmdp.core.objectives import Objective
from mmdp.core.shapes import ActionTable, Array, IntArray, Mask, ProbabilityTable
from mmdp.core.text import TimeLabels, join_or, parse_named_axes, parse_named_values, pluralize
from mmdp.core.validate import LabelIndex, check_horizon, match_ids, parse_time_labels

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.core.policies.markov import MarkovPolicy, TablePolicy
    from mmdp.insight.draw.maps import PolicyMap

Json = Any  # a value of JSON types
NamedValues = dict[str, Any]  # values of different types, by name
UserData = Any  # a list, array, mapping or pandas object that a user passes
SearchResult = Any  # the table, controller or tree that a search returns for a policy class
PolicyMemory = Any  # what a policy remembers during an episode

TO_MARKOV_REMEDY = "give policy.to_markov(T), the same over T decisions"

INFINITE_HORIZON_PASSES = 60  # one start and a policy of time and state, besides linear algebra
RANDOMIZED_PASSES = 1000  # of an ascent on probabilities


class PolicyClass:
    """Base class of policy classes: frozen dataclasses that say which policies are searched."""

    name: ClassVar[str]
    decision_inputs: str  # what a decision depends on, as the end of a sentence
    change_text: str = "change of the action"  # in "no change of the action improves it"
    single_change_text: str = ""  # the same for objectives other than the mean, if it differs
    is_infinite_horizon: bool = False  # whether there is no last decision
    randomized: bool = False  # whether actions may be drawn at random
    restriction_text: ClassVar[str] = ""  # in "being tied costs 3", if it is not the name
    stationary_text: ClassVar[str] = ""  # the same over an infinite horizon
    finite_horizon_reason: ClassVar[str] = ""  # why there must be one, as a clause
    is_action_mask: bool = False  # whether it only closes actions: one decision binds no other
    is_restricted: ClassVar[bool] = False  # whether some policies of time and state are left out
    can_initialize: ClassVar[bool] = True  # whether a search can start from a policy of this class
    uses_belief: ClassVar[bool] = False  # whether its policies keep a belief over the models
    # whether a search begins with the smallest policy, and any given one
    uses_growth: ClassVar[bool] = False
    bound_scope: ClassVar[str] = ""  # which policies the bound of a solve covers, if not all

    def estimate_passes(self, markov_passes: float) -> float:
        """Estimate the passes of a solve from those that a Markov policy takes."""
        if self.is_infinite_horizon and not self.uses_belief:
            return min(markov_passes, INFINITE_HORIZON_PASSES)
        return markov_passes + RANDOMIZED_PASSES * self.randomized

    def _copy_with(self, **attributes: object) -> Self:
        """Copy the frozen class with other attributes, which need not be settings."""
        policy_class = copy.copy(self)
        policy_class.__dict__.update(attributes)
        return policy_class

    def with_infinite_horizon(self) -> Self:
        """Return the policy class for an infinite horizon, with decisions that ignore the time."""
        raise InputError(
            f"for an infinite horizon there are no {self.name} policies: "
            f"{self.finite_horizon_reason}",
            [Remedy("policy_class", "stationary"), "give the number of decisions"],
        )

    def for_horizon(self, horizon: float | None) -> Self:
        """Return the policy class for a horizon; InputError if it has no policies there."""
        if horizon == math.inf:
            return self.with_infinite_horizon()
        if self.is_infinite_horizon and horizon is not None:
            raise InputError(
                f"a {self.name} policy is for an infinite horizon, not for {horizon} decisions",
                [Remedy("horizon", math.inf), Remedy("policy_class", "markov")],
            )
        return self

    def resolve_horizon(self, model: MMDP, horizon: float | None) -> int:
        """Return the number of decisions to plan for.

        If there is no last one, that of the policy of time and state to compare with.
        """
        if self.is_infinite_horizon:
            check_infinite_horizon(model.problem, model.horizon, model.state_labels)
            return choose_planning_horizon(model.problem)
        return check_horizon(model.horizon, horizon)

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError unless the model has a policy of this class."""

    def make_problem(self, model: MMDP, horizon: int) -> Problem:
        """Return the arrays of the model, restricted to the actions that the class allows."""
        return model.problem

    def describe(self, model: MMDP, horizon: int) -> str:
        """Describe the restriction on the model in words; empty if there is none."""
        return ""

    def find_determined(self, model: MMDP, is_reached: Mask) -> Mask:
        """Find the states (..., S) whose action is determined by the actions in reached states."""
        return is_reached

    def make_policy(self, model: MMDP, table: SearchResult) -> Policy:
        """Make the policy for the table that a method found, with the labels of the model."""
        raise NotImplementedError

    def policy_to_table(self, policy: Policy, model: MMDP) -> SearchResult:
        """Return the table of a policy, from which a method can resume."""
        return policy.to_table(model)


class Belief(PolicyClass):
    """Policies that act on the state and on a belief over the models, updated at every step."""

    name = "belief"
    decision_inputs = "everything seen so far"
    can_initialize = False
    uses_belief = True

    def with_infinite_horizon(self) -> Self:
        """Return the policy class for an infinite horizon."""
        return self._copy_with(is_infinite_horizon=True)

    def __repr__(self) -> str:
        return "Belief()"


@runtime_checkable
class Planner(Protocol):
    """Protocol of objects that simulations can follow; decisions may depend on the whole history.

    Every :class:`mmdp.policies.Policy` is one. The planner itself is never changed by use, so
    several deployments can share one; all that a deployment remembers is in the memory that
    ``initial_memory`` and ``update`` return. Random choices come from the memory's own generator,
    which ``act`` and ``update`` advance.
    """

    @property
    def name(self) -> str:
        """Name of the policy in tables and messages."""
        ...

    @property
    def horizon(self) -> float:
        """Number of decisions."""
        ...

    @check_arguments
    def initial_memory(self, seed: Seed = 0) -> PolicyMemory:
        """Make the memory at the start of an episode; give each episode its own seed."""
        return None

    def act(self, memory: PolicyMemory, time: int, state: int) -> int:
        """Return the id of the action to take, given the memory, the time and the state."""
        ...

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


class Policy(Planner):
    """Base class of policies: maps what has been observed to an action; immutable.

    A new policy derives from this class. It defines ``policy_class``, ``horizon`` (the number of
    decisions, or infinite), ``defining_values`` and ``act``; with memory also ``initial_memory``
    and ``update``. Operations that it does not support raise InputError with a reason.

    It follows the :class:`mmdp.policies.Planner` protocol. Nothing in it changes by use: all that a
    deployment remembers is in the memory of ``initial_memory`` and ``update``.
    """

    n_states: int
    n_actions: int
    state_labels: tuple[str, ...] | None
    action_labels: tuple[str, ...] | None
    time_labels: TimeLabels
    table: PolicyTable  # all decisions as one array, if the policy has one
    objective: Objective | None  # what it was solved for, if the file that it was read from says so

    has_rules: ClassVar[bool] = True  # whether ``describe`` says more than the size of a table
    has_exact_returns: ClassVar[bool] = True  # whether ``returns`` are known without simulation
    control_variate: TablePolicy | None = None  # a control variate for its episodes

    def _set_attributes(self, **attributes: object) -> None:
        """Set attributes by name on the immutable policy."""
        self.__dict__.update(attributes)

    def _set_labels(
        self, n_states: int, n_actions: int, time_labels: UserData = None, **labels: UserData
    ) -> None:
        """Check the labels of states, actions and times against their counts, and set them."""
        self._set_attributes(time_labels=parse_time_labels(time_labels), objective=None)
        for axis, n in (("state", n_states), ("action", n_actions)):
            axis_labels = LabelIndex.parse(axis, n, labels[f"{axis}_labels"]).labels
            self._set_attributes(**{f"n_{axis}s": n, f"{axis}_labels": axis_labels})

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
        names = ("n_actions", "state_labels", "action_labels", "time_labels")
        return {name: getattr(self, name) for name in names}

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
        if self.n_states != model.n_states or self.n_actions > model.n_actions:
            raise InputError(
                f"the policy is for {self.n_states} states and {self.n_actions} actions, "
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
            remedy = remedy if self.memory_note else TO_MARKOV_REMEDY
        raise InputError(f"the policy {coverage}, {subject} {horizon}", [remedy])

    def _check_names(self, model: MMDP) -> None:
        """Raise InputError if the labels of states or actions differ from those of the model."""
        remedy = "plan for models with these names"
        if self.has_exact_returns:
            remedy = (
                "save the policy and load it with load_policy(path, model), which matches names"
            )
        for axis in ("state", "action"):
            own_labels = getattr(self, f"{axis}_labels")
            if own_labels is None or not model.has_labels[axis]:
                continue
            model_labels = getattr(model, f"{axis}_labels")
            # a file without labels of unused actions has their ids in place of them, or "action 1"
            for i, (a, b) in enumerate(zip(own_labels, model_labels, strict=False)):
                if a != b and (a not in (str(i), f"{axis} {i}") or a in model_labels):
                    raise InputError(
                        f"the policy's {axis}s are named differently from the model's "
                        f"(number {i} is {a!r} here, {b!r} there)",
                        [remedy],
                    )

    def _check_actions(self, model: MMDP) -> None:
        """Raise InputError if the policy takes an action that the model does not allow."""

    def compute_returns(self, model: MMDP, backend: Backend) -> Array:
        """Compute the exact return of the policy on every model, (M,)."""
        raise InputError(f"the return of {self!r} is known by simulation only")

    def make_simulation_tables(self, model: MMDP) -> PlannerTables | None:
        """Make the tables with which a backend simulates the policy; None: step by step."""
        return None

    # ------------------------------------------------------------ who reads it
    @check_arguments
    def action(
        self,
        time: Unchecked[int | None] = None,
        state: int | str | None = None,
        **state_values: object,
    ) -> str:
        """Return the label of the action in a state, given by id, label, or values of its axes.

        If decisions have labels, such as weeks, ``week="w4"`` stands for the time. A policy that is
        the same at all times needs none.

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
        is_index = time is None or (is_of_type(time, int) and 0 <= time < self.horizon)
        if not is_index:
            raise InputError(f"time {time} is outside 0..{self.horizon - 1:g}")
        if (state is None) == (not state_values):
            raise InputError("give the state: state= its id or label, or its values by name")
        key = self.state_index.find_label(state_values) if state is None else state
        s = self.state_index.ids.get(key) if isinstance(key, str) else None
        s = match_ids([key], self.state_names, "the state")[0] if s is None else s
        if time is None and self._differs_over_time:
            label_text = f", or {time_column}=" if self.time_labels.labels else ""
            raise InputError(
                f"the policy depends on the time; give time= (0: the first decision){label_text}"
            )
        return self.action_names[self.act(self.initial_memory(), time or 0, s)]

    @functools.cached_property
    def _differs_over_time(self) -> bool:
        """Whether some decision differs from the first one in its state."""
        markov = None if self.horizon == math.inf else self.as_markov
        return markov is not None and bool((markov.table != markov.table[:1]).any())

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
        """Describe the policy in words; empty if there are none."""
        return ""

    def to_frame(self) -> pd.DataFrame:
        """Return the policy as a tidy DataFrame."""
        raise self._unsupported_error("table of actions")

    def _make_frame(self, columns: NamedValues) -> pd.DataFrame:
        """Make a DataFrame with labels in place of ids, and the ids as idstate, idaction."""
        import pandas as pd

        names = {"state": self.state_labels, "action": self.action_labels}
        labeled_columns = {
            column: np.array(labels, dtype=object)[columns[column]]
            for column, labels in names.items()
            if labels is not None
        }
        id_columns = {f"id{column}": columns[column] for column in names if labeled_columns}
        columns = {**columns, **labeled_columns, **id_columns}
        return pd.DataFrame(self.time_labels.add_column(columns))

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

    @functools.cached_property
    def state_index(self) -> StateIndex:
        """Ids of the states by label and by named values."""
        return StateIndex(self.state_names)

    @property
    def action_names(self) -> list[str]:
        """Labels of the actions, or their ids."""
        return list(self.action_labels or map(str, range(self.n_actions)))

    # ------------------------------------------------------------ an object
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

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


class StateIndex:
    """Ids of states by label, or by the values of the axes that their labels name."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.ids = {label: i for i, label in enumerate(labels)}
        self._texts = {name: {*texts} for name, texts in parse_named_axes(labels)[0].items()}
        self._points: dict[str, list[tuple[float, str]]] = {}  # of axes of numbers, sorted
        for name, texts in self._texts.items():
            with suppress(ValueError):
                self._points[name] = sorted((float(text), text) for text in texts)

    def find_label(self, state_values: Mapping[str, UserData]) -> str:
        """Find the label of the state with these values, or of the nearest grid point."""
        if state_values.keys() != self._texts.keys():
            names = join_or(self._texts, " and ")
            description = f"are named by {names}" if names else "have no names of values"
            raise InputError(f"states {description}, not by {join_or(state_values, ' and ')}")
        return ", ".join(f"{x}={self._find_nearest(x, state_values[x])}" for x in self._texts)

    def _find_nearest(self, name: str, value: UserData) -> str:
        """Find the grid value nearest to a number; other text is returned unchanged."""
        is_float = isinstance(value, (float, np.floating))
        text = f"{value:.6g}" if is_float else str(value)
        if text in self._texts[name] or name not in self._points:
            return text
        try:
            x = float(value)
        except (TypeError, ValueError):
            return text
        points = self._points[name]
        (low, _), (high, _) = points[0], points[-1]
        if not low <= x <= high:
            raise InputError(f"{name} must be from {low:g} to {high:g}, not {text}")
        i = min(max(1, bisect_left(points, (x,))), len(points) - 1)
        return min(points[i - 1 : i + 1], key=lambda point: abs(point[0] - x))[1]


def get_label_kwargs(model: MMDP) -> NamedValues:
    """Return the labels of the model as keyword arguments for a policy."""
    return {
        "n_actions": model.n_actions,
        "state_labels": model.label_index("state").labels,
        "action_labels": model.label_index("action").labels,
        "time_labels": model.time_labels,
    }


class PlannerPolicy(Policy):
    """Policy that follows a user's planner step by step."""

    has_exact_returns = False
    policy_class = Belief()  # for the horizon of the planner
    memory_note = "may depend on all that was seen"
    name, horizon = "", math.inf  # those of the planner
    planner: Planner

    def __init__(self, planner: Planner) -> None:
        """Take the methods and the horizon of the planner."""
        names = ("act", "horizon", "initial_memory", "name", "update")
        attributes = {name: getattr(planner, name) for name in names}
        policy_class = Belief().for_horizon(attributes["horizon"])
        self._set_attributes(planner=planner, policy_class=policy_class, **attributes)

    def check(self, model: MMDP, horizon: float | None = None) -> None:
        """Accept every model: the actions are checked when they are taken."""

    def __repr__(self) -> str:
        return repr(self.planner)


@check_arguments
def as_policy(policy: object, purpose: str, *remedies: str) -> Policy:
    """Return the policy of a Policy, Planner or Solution; InputError for other objects.

    ``purpose`` begins the message of the error.

    >>> as_policy(3, "simulate() takes a policy")
    Traceback (most recent call last):
    mmdp.core.errors.InputError: simulate() takes a policy, not int
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, Planner):
        return PlannerPolicy(policy)  # type: ignore[abstract]
    if (inner_policy := getattr(policy, "policy", None)) is not None:
        return as_policy(inner_policy, purpose, *remedies)
    raise InputError(f"{purpose}, not {type(policy).__name__}", remedies)
