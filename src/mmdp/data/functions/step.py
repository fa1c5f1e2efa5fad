"""from_step: models from a step function of state, action and event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mmdp.core.arguments import Unchecked, check_arguments, is_of_type
from mmdp.core.errors import InputError, check_memory
from mmdp.core.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.core.model import MMDP
from mmdp.core.policies.tree import ENDED_LABEL
from mmdp.core.shapes import AnyArray, Array, IndexArray, Mask
from mmdp.core.text import did_you_mean, pluralize, shorten
from mmdp.core.validate import check_field_names, check_int, is_list, parse_time_labels
from mmdp.data.functions.axes import Axes, AxisValues, Grid, format_row
from mmdp.data.functions.build import build_model
from mmdp.data.functions.calls import PROBS_KEY, REWARD_KEY, RowOutputs, UserFunction
from mmdp.data.functions.off_grid import OffGridSimulator
from mmdp.data.posterior.samples import ParameterSamples, read_samples

PARAMETERS = {  # that user functions may have
    "step": ("state", "action", "event", "sample", "time"),
    "event_probs": ("sample", "state", "action", "time"),
    "allowed": ("state", "action"),
    "terminal_reward": ("state", "sample"),
    "is_terminal": ("state",),
    "initial": ("state", "sample"),
}


@check_arguments
def from_step(
    step: Unchecked[Callable[..., object]],
    *,
    states: Unchecked[Mapping[str, object]],
    actions: Unchecked[Mapping[str, object]],
    events: Mapping[str, object] | None = None,
    event_probs: Callable[..., object] | None = None,
    samples: object = None,
    initial: Mapping[str, object] | Callable[..., object] | None = None,
    discount: float = 1.0,
    allowed: Callable[..., object] | None = None,
    terminal_reward: Callable[..., object] | None = None,
    is_terminal: Callable[..., object] | None = None,
    time_labels: Unchecked[int | Iterable[object] | Mapping[str, Iterable[object]] | None] = None,
    **fields: object,
) -> MMDP:
    """Build models from a step function, one model per parameter sample.

    All functions take their arguments by name and may leave out those that they do not need.
    ``state``, ``action`` and ``event`` are dicts of arrays by axis, one entry per row, which must
    not be changed; ``sample`` is a dict of the parameters of one sample; ``time`` is one of
    ``time_labels``.

    Parameters
    ----------
    step
        ``step(state, action, event, sample, time)`` returns the next state, a dict with every axis
        of states, and the reward. It is called with many rows at once, so it computes with arrays
        (``np.where`` in place of ``if``), each row by itself. Numbers stand for all rows.
    states, actions, events
        Axes by name: a range, a list of numbers or labels, or an :class:`mmdp.Grid` for a
        continuous quantity. Without events the step is deterministic.
    event_probs
        ``event_probs(sample, state, action, time)`` returns the probabilities of the events: an
        array (one event axis), a dict of arrays by axis (independent events), or one table with an
        axis for each. State and action arrive as columns (n, 1), so that probabilities that depend
        on them come out as (n, events).
    samples
        Parameters by name, one entry per model, as :func:`mmdp.from_samples` takes them. None: one
        model without parameters.
    initial
        ``{"stock": 10}``; or for an axis its values with their probabilities, ``{"stock": {0: 0.5,
        10: 0.5}}``; or several initial states of equal probability, arrays of one length. Or a
        function ``initial(state, sample)`` that returns one of these, or weights of the states;
        models have initial distributions of their own if it reads the sample. Uniform by default.
    allowed
        ``allowed(state, action)``: whether an action may be taken; ``step`` never sees the others.
        If it depends on the time, solve with ``policy_class=mmdp.policies.Fixed(mask)``, a mask
        (T, S, A).
    terminal_reward
        ``terminal_reward(state, sample)``: the value of a state after the last decision.
    is_terminal
        ``is_terminal(state)``: whether the process ends in a state. It is called with the next
        state as ``step`` returns it, before interpolation; ended episodes go to the state
        ``ended``.
    time_labels
        A number, a range or labels: the values of the parameter ``time`` of functions, and the
        labels of decisions. ``{"age": range(40, 90)}`` names the axis.
    fields
        Other arguments of :class:`mmdp.MMDP`: weights, name and so on.

    If the next state does not depend on the sample, all models share the next states of events and
    only their probabilities are stored for each
    (:class:`mmdp.core.kernels.events.ExogenousEvents`); otherwise the models are
    stored as tables. States and actions are labeled by their axes: ``stock=3, ordered=5``.

    >>> import mmdp, numpy as np
    >>> def step(state, action, event):
    ...     left = np.maximum(state["stock"] - event["demand"], 0)
    ...     sold = state["stock"] - left
    ...     return {"stock": np.minimum(left + action["order"], 5)}, 5 * sold - 3 * action["order"]
    >>> model = mmdp.from_step(
    ...     step, states={"stock": range(6)}, actions={"order": range(4)},
    ...     events={"demand": range(3)},
    ...     event_probs=lambda sample: [0.5 - sample["p"], 0.5, sample["p"]],
    ...     samples={"p": [0.1, 0.3]}, initial={"stock": 2}, discount=0.95)
    >>> model.n_models, model.state_labels[2]
    (2, 'stock=2')
    >>> model.transitions[0, 2, 1, :4].round(3).tolist()
    [0.0, 0.1, 0.5, 0.4]
    >>> mmdp.solve(model, 10).policy.action(time=0, stock=2)
    'order=1'
    """
    check_field_names(fields, from_step.__annotations__)
    state_axes, action_axes = Axes.parse(states, "states"), Axes.parse(actions, "actions")
    event_axes = Axes.parse(events or {}, "events")
    if (event_probs is None) == bool(event_axes):
        missing, present = ("event_probs", "events") if event_axes else ("events", "event_probs")
        raise InputError(f"{present} is given without {missing}; give both, or neither")
    names = [*state_axes, *action_axes, *event_axes]
    duplicate = next((x for x in names if names.count(x) > 1), None)
    if duplicate is not None:
        raise InputError(f"two axes are called {duplicate!r}; give each a name of its own")
    given_functions = {
        "step": step,
        "event_probs": event_probs,
        "allowed": allowed,
        "terminal_reward": terminal_reward,
        "is_terminal": is_terminal,
        "initial": initial if callable(initial) else None,
    }
    functions = {
        name: UserFunction(name, function, PARAMETERS[name])
        for name, function in given_functions.items()
        if function is not None or name == "step"
    }
    parsed_samples = {} if samples is None else read_samples(samples)
    labels_by_axis = None if time_labels is None else _parse_time_labels(time_labels)
    timed_names = [name for name, f in functions.items() if "time" in f.argument_names]
    if timed_names and labels_by_axis is None:
        raise InputError(
            f"{timed_names[0]} has a parameter time; give time_labels=, such as time_labels=52"
        )
    if is_of_type(time_labels, int) and not timed_names:
        raise InputError("no function has a parameter time; leave out time_labels=")
    spec = StepSpec(
        state_axes,
        action_axes,
        event_axes,
        functions,
        initial,
        parsed_samples,
        None if labels_by_axis is None else next(iter(labels_by_axis.values())),
    )
    spec.check_size()
    if labels_by_axis is not None:
        fields["time_labels"] = labels_by_axis
    return build_model(spec, discount=discount, **fields)


@dataclass(frozen=True, eq=False)
class StepSpec:
    """User functions with their axes, parameter samples and time labels, parsed.

    ``initial`` are the initial states unless a function returns them.
    """

    states: Axes
    actions: Axes
    events: Axes
    functions: Mapping[str, UserFunction]
    initial: Any
    samples: ParameterSamples
    time_labels: tuple[object, ...] | None

    def simulate_off_grid(
        self,
        model: MMDP,
        policy_table: AnyArray,
        n_episodes: int,
        seed: int,
        add_terminal: bool,
    ) -> Array:
        """Simulate the returns (M, n_episodes) of a policy; see :class:`OffGridSimulator`."""
        return OffGridSimulator(self, model, policy_table).simulate_returns(
            n_episodes, seed, add_terminal
        )

    # ------------------------------------------------------------ sizes and labels
    @property
    def n_models(self) -> int:
        """Number of models: one per sample, 1 without samples."""
        return len(next(iter(self.samples.values()))) if self.samples else 1

    @property
    def has_end(self) -> bool:
        """Whether there is a state ``ended``, the last one."""
        return "is_terminal" in self.functions

    @property
    def n_states(self) -> int:
        """Number of states, including the state ``ended`` if there is one."""
        return self.states.size + self.has_end

    @property
    def pairs(self) -> Axes:
        """Axes of states and actions."""
        return Axes(self.states | self.actions)

    @property
    def grid_axes(self) -> tuple[str, ...]:
        """Names of the state axes that are grids."""
        return tuple(name for name, axis in self.states.items() if isinstance(axis, Grid))

    @property
    def state_labels(self) -> list[str]:
        """Labels of all states, by their axes."""
        return self.states.make_labels() + [ENDED_LABEL] * self.has_end

    def check_size(self) -> None:
        """Refuse axes whose next states, weights and rewards would exceed the memory."""
        S, A, W = self.n_states, self.actions.size, self.events.size
        n_corners = self.states.n_corners
        bytes_per_row = 8 + 4 * n_corners + (8 * n_corners if n_corners > 1 else 0)
        check_memory(
            bytes_per_row * S * A * W * self.count_times("step"),
            f"{pluralize(S, 'state')}, {pluralize(A, 'action')} and {pluralize(W, 'event')}",
            ["make the axes coarser", "leave out an axis"],
        )

    def select_models(self, models: IndexArray) -> StepSpec:
        """Make the specification of some of the models, by id."""
        return replace(self, samples={k: v[models] for k, v in self.samples.items()})

    # ------------------------------------------------------------ calls
    def count_times(self, *names: str) -> int:
        """Count the times at which these functions have to be called: 1 if none reads the time."""
        functions = [self.functions[name] for name in names if name in self.functions]
        is_timed = any("time" in f.argument_names for f in functions)
        return len(self.time_labels or ()) if is_timed else 1

    def depends_on_sample(self, name: str) -> bool:
        """Return whether a function has read a parameter of the sample."""
        return name in self.functions and bool(self.functions[name].read_fields.get("sample"))

    def call(self, name: str, values: AxisValues, m: int = 0, t: int = 0) -> Any:
        """Call a function with values by axis, in sample m at time t."""
        roles = {"state": self.states, "action": self.actions, "event": self.events}
        arguments: dict[str, object] = {
            role: {k: x for k, x in values.items() if k in axes} for role, axes in roles.items()
        }
        arguments["sample"] = {k: x[m] for k, x in self.samples.items()}
        arguments["time"] = None if self.time_labels is None else self.time_labels[t]
        return self.functions[name](**arguments)

    def describe_call(self, name: str, values: AxisValues, i: int, m: int, t: int) -> str:
        """Format a call as ``step at stock=3, sample 1, time 2``, by what its result depends on."""
        parts = [format_row(values, i)] if values else []
        if self.depends_on_sample(name):
            parts.append(f"sample {m}")
        if self.time_labels is not None and self.count_times(name) > 1:
            parts.append(f"time {self.time_labels[t]}")
        return f"{name} at {', '.join(parts)}" if parts else name

    # ------------------------------------------------------------ allowed, event_probs and step
    @cached_property
    def terminal_mask(self) -> Mask:
        """Which states on the axes (S,) are terminal."""
        return self.find_terminal(self.states.all_values, self.states.size)

    def find_terminal(self, values: AxisValues, n_rows: int) -> Mask:
        """Find the rows of state values at which the process ends; returns (n_rows,) bool."""
        if not self.has_end:
            return np.zeros(n_rows, bool)
        return _broadcast_bools(self.call("is_terminal", values), n_rows, "is_terminal")

    def compute_allowed(self) -> Mask:
        """Find the allowed actions of every state; returns (S, A) bool."""
        pairs, shape = self.pairs, (self.states.size, self.actions.size)
        if "allowed" not in self.functions:
            return np.ones(shape, bool)
        mask = _broadcast_bools(self.call("allowed", pairs.all_values), pairs.size, "allowed")
        mask = mask.reshape(shape)
        has_no_action = ~mask.any(axis=1) & ~self.terminal_mask
        if has_no_action.any():
            state_text = format_row(self.states.all_values, int(np.argmax(has_no_action)))
            raise InputError(
                f"no action is allowed in {state_text}; allow one, or return True by is_terminal="
            )
        return mask

    def call_event_probs(self, values: AxisValues, n: int, m: int, t: int) -> RowOutputs:
        """Call event_probs for n rows of values, and check the probabilities (n, W)."""
        columns = {k: v[:, None] for k, v in values.items()}
        result = self.call("event_probs", columns, m, t)
        if isinstance(result, Mapping):  # independent events
            if set(result) != set(self.events):
                raise InputError(
                    f"event_probs returned {', '.join(map(str, result)) or 'nothing'}; return "
                    f"{', '.join(self.events)}"
                )
            p = np.ones((n, 1))
            for name, axis in self.events.items():
                shape, subject = (len(axis.values),), f"event_probs of {name}"
                axis_probs = _broadcast_probs(result[name], n, shape, subject)
                p = (p[:, :, None] * axis_probs[:, None, :]).reshape(n, -1)
        else:
            p = _broadcast_probs(result, n, self.events.shape, "event_probs")
        sums = p.sum(axis=1)
        is_bad = ~(np.abs(sums - 1) <= SUM_TOLERANCE) | ~(p >= 0).all(axis=1)
        if is_bad.any():
            i = int(np.argmax(is_bad))
            location = self.describe_call("event_probs", values, i, m, t)
            if not np.isfinite(sums[i]):
                raise InputError(f"{location}: a probability is not a number; check the parameters")
            if (p[i] < 0).any():
                raise InputError(
                    f"{location}: a probability is {p[i].min():.6g}; give none below 0"
                )
            raise InputError(
                f"{location}: the probabilities of {', '.join(self.events)} sum to {sums[i]:.6g}, "
                "not 1; divide them by their sum, or add the event that is missing"
            )
        return {PROBS_KEY: p}

    def call_step(self, values: AxisValues, n: int, m: int, t: int) -> RowOutputs:
        """Call step for n rows of values and check the next values by axis and the reward."""
        result = self.call("step", values, m, t)
        is_pair = isinstance(result, tuple) and len(result) == 2
        if not (is_pair and isinstance(result[0], Mapping)):
            is_reversed = is_pair and isinstance(result[1], Mapping)
            raise InputError(
                "step must return a dict of next values by axis and the reward, like "
                f"return {{'{next(iter(self.states))}': ...}}, reward; it returned "
                + ("the reward first" if is_reversed else type(result).__name__)
            )
        next_values, reward = result
        for name in self.states:
            if name not in next_values:
                raise InputError(f"step returns no {name!r}; return every axis of states")
        for name in next_values:
            if name not in self.states:
                raise InputError(
                    f"step returns {name!r}, which is no axis of states; these are "
                    f"{', '.join(self.states)}"
                )
        outputs = {
            name: _broadcast_rows(next_values[name], n, f"next {name}") for name in self.states
        }
        rewards = _broadcast_floats(reward, n, f"{REWARD_KEY} that step returns")
        is_bad = ~np.isfinite(rewards)
        if is_bad.any():
            i = int(np.argmax(is_bad))
            raise InputError(
                f"{self.describe_call('step', values, i, m, t)}: the reward is {rewards[i]}; "
                "give a finite number"
            )
        return outputs | {REWARD_KEY: rewards}

    def locate_next(
        self, values: AxisValues, outputs: RowOutputs, m: int, t: int
    ) -> tuple[AxisValues, Mask]:
        """Find the positions of next values of rows on their axes, and the rows that have ended.

        Values that are not on their axis are refused before the end.
        """
        is_ended = self.find_terminal(outputs, len(outputs[REWARD_KEY]))

        def describe(name: str, i: int) -> str:
            return f"{self.describe_call('step', values, i, m, t)}: next {name}"

        return self.states.locate(outputs, describe, is_ended), is_ended

    # ------------------------------------------------------------ initial and terminal values
    def list_initial_states(self, m: int) -> tuple[AxisValues, Array]:
        """List the given initial states of model m: values by axis, and their probabilities."""
        initial, points = self.initial, self.states.all_values
        if "initial" in self.functions:
            initial = self.call("initial", points, m)
        elif initial is None:
            initial = ~self.terminal_mask
        if not isinstance(initial, Mapping):
            p = _broadcast_floats(initial, self.states.size, "initial")
            if not (p >= 0).all() or not 0 < p.sum() < np.inf:
                raise InputError(
                    "initial returned weights below 0, all 0 or not finite; return weights of 0 or "
                    "more, some above 0"
                )
            return points, p / p.sum()
        has_all_axes = set(initial) == set(self.states)
        is_empty = any(isinstance(x, Mapping) and not x for x in initial.values())
        shapes = {np.shape(x) for x in initial.values()} if has_all_axes and not is_empty else set()
        if shapes == {()}:  # values, or values with their probabilities
            shares = [x if isinstance(x := initial[k], Mapping) else {x: 1.0} for k in self.states]
            values = np.meshgrid(*(np.array(list(x)) for x in shares), indexing="ij")
            axis_probs = [_as_floats(list(x.values()), "initial") for x in shares]
            probs = np.meshgrid(*axis_probs, indexing="ij")
            by_axis = {k: v.reshape(-1) for k, v in zip(self.states, values, strict=True)}
            return by_axis, np.prod(probs, axis=0).reshape(-1)
        for name in initial.keys() - set(self.states):
            axes = ", ".join(self.states)
            known = did_you_mean(str(name), self.states)
            raise InputError(f"initial has an unknown axis {known}; the axes are {axes}")
        n = len(next(iter(initial.values()))) if len(shapes) == 1 else 0
        if shapes != {(n,)} or not n:
            raise InputError(
                f"initial must name a value for each of {', '.join(self.states)}, like "
                f"{{'{next(iter(self.states))}': ...}}, or values with their probabilities, or a "
                "sample of each, of one length, or be a function of the state"
            )
        return {k: np.asarray(initial[k]) for k in self.states}, np.full(n, 1 / n)

    def compute_initial(self) -> Array | None:
        """Compute the initial distribution (S,), (M, S) if it reads the sample, None if uniform."""
        if self.initial is None and not self.has_end and "initial" not in self.functions:
            return None
        first_initial = self.compute_model_initial(0)
        if not self.depends_on_sample("initial"):
            return first_initial
        other_initials = map(self.compute_model_initial, range(1, self.n_models))
        return np.array([first_initial, *other_initials])

    def compute_model_initial(self, m: int) -> Array:
        """Compute the initial distribution (S,) of model m."""
        (values, p), initial = self.list_initial_states(m), np.zeros(self.n_states)
        positions = self.states.locate(values, lambda name, _: f"initial {name}")
        ids, weights = self.states.find_corners(positions)
        np.add.at(initial, ids, p[:, None] * weights)
        return initial

    def compute_terminal_values(self) -> Array | None:
        """Compute the terminal values (M, S); terminal states have 0."""
        if "terminal_reward" not in self.functions:
            return None
        terminal_values, S = np.zeros((self.n_models, self.n_states)), self.states.size
        for m in range(self.n_models):
            result = self.call("terminal_reward", self.states.all_values, m)
            model_values = _broadcast_floats(result, S, "terminal_reward")
            terminal_values[m, :S] = np.where(self.terminal_mask, 0.0, model_values)
        return terminal_values


def _parse_time_labels(time_labels: object) -> dict[str, tuple[object, ...]]:
    """Parse a number, range or labels of times, by the name of their axis."""
    if is_of_type(time_labels, int):
        time_labels = range(check_int(time_labels, "time_labels", 0, item_bytes=8))
    labels_by_axis: Mapping[str, Any] = (
        time_labels if isinstance(time_labels, Mapping) else {"time": time_labels}
    )
    if not all(map(is_list, labels_by_axis.values())):
        raise InputError(
            f"time_labels must be a number, a range or labels, not {shorten(time_labels)}"
        )
    parsed_labels = {name: tuple(x) for name, x in labels_by_axis.items()}
    parse_time_labels(parsed_labels)
    return parsed_labels


def _as_floats(values: object, subject: str) -> Array:
    """Convert returned values to a float array, or raise an error that names the function."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{subject} is not a number; return numbers") from None


def _broadcast_rows(values: object, n: int, subject: str) -> AnyArray:
    """Broadcast returned values to (n,); one value stands for all rows."""
    array = np.asarray(values)
    if array.shape not in ((), (1,), (n,)):
        raise InputError(
            f"{subject} has shape {array.shape} for {pluralize(n, 'row')}; return one entry per row"
        )
    return np.broadcast_to(array, (n,))


def _broadcast_floats(values: object, n: int, subject: str) -> Array:
    """Broadcast returned numbers to (n,), and refuse other types."""
    return _broadcast_rows(_as_floats(values, subject), n, subject)


def _broadcast_bools(values: object, n: int, subject: str) -> Mask:
    """Broadcast returned booleans to (n,), and refuse other types."""
    flags = _broadcast_rows(values, n, subject)
    if flags.dtype != bool:
        raise InputError(f"{subject} must return True or False for each row, not {flags.dtype}")
    return flags


def _broadcast_probs(values: object, n: int, shape: tuple[int, ...], subject: str) -> Array:
    """Broadcast returned probabilities to (n, W), and refuse other shapes."""
    array, size = _as_floats(values, subject), int(np.prod(shape))
    for event_shape in (shape, (size,)):
        if array.shape in (event_shape, (1, *event_shape), (n, *event_shape)):
            is_single = array.shape == event_shape
            p = normalize(array.reshape(1 if is_single else -1, size))
            return np.broadcast_to(p, (n, size))
    rows_text = f"(rows, {', '.join(map(str, shape))})"
    raise InputError(
        f"{subject} returned shape {array.shape}; give {shape}, one probability per event, or "
        f"{rows_text} if they depend on state or action"
    )
