"""from_step: models from a step function of state, action and event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Unchecked, check_arguments, is_of_type
from mmdp.core.errors import InputError
from mmdp.core.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.core.memory import check_memory
from mmdp.core.model import MMDP
from mmdp.core.policies.tree import ENDED_LABEL
from mmdp.core.text import pluralize, shorten
from mmdp.core.timing import ProgressBar
from mmdp.core.validate import check_field_names, check_int, is_list, parse_time_labels
from mmdp.data.functions.axes import Array, Axes, AxisValues, Grid, ValueArray
from mmdp.data.functions.build import EventProbs, IntArray, Mask, NextStates, build_model
from mmdp.data.functions.calls import REWARD_KEY, RowOutputs, UserFunction, check_elementwise
from mmdp.data.functions.off_grid import OffGridSimulator
from mmdp.data.posterior.samples import ParameterSamples, read_samples

ROWS_PER_CALL = 2**19  # rows that a function is called with at a time
PROBS_PER_BATCH = 2**23  # probabilities that are compared at a time
PROBS_KEY = "the probability"  # name of the output of event_probs in messages


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
    >>> mmdp.solve(model, 10).policy.action(stock=2)
    'order=1'
    """
    check_field_names(fields, from_step.__annotations__)
    spec = StepSpec.from_arguments(
        step,
        states,
        actions,
        events,
        event_probs,
        samples,
        allowed,
        terminal_reward,
        is_terminal,
        time_labels,
        initial,
    )
    spec.check_size()
    if spec.time_labels is not None:
        axis_name = next(iter(time_labels)) if isinstance(time_labels, Mapping) else "time"
        fields["time_labels"] = {axis_name: spec.time_labels}
    return build_model(spec, discount=discount, **fields)


@dataclass(frozen=True, eq=False)
class StepSpec:
    """User functions with their axes, parameter samples and time labels, parsed."""

    states: Axes
    actions: Axes
    events: Axes
    step: UserFunction
    event_probs: UserFunction | None
    allowed: UserFunction | None
    terminal_reward: UserFunction | None
    is_terminal: UserFunction | None
    samples: ParameterSamples
    time_labels: tuple[object, ...] | None
    initial_spec: Any = None
    progress_bar: ProgressBar = field(default_factory=lambda: ProgressBar("step"))

    @classmethod
    def from_arguments(
        cls,
        step: object,
        states: object,
        actions: object,
        events: object,
        event_probs: object,
        samples: object,
        allowed: object,
        terminal_reward: object,
        is_terminal: object,
        time_labels: object,
        initial: object,
    ) -> StepSpec:
        """Parse the arguments of :func:`from_step`."""

        def wrap(name: str, function: object, *allowed_names: str) -> UserFunction | None:
            return None if function is None else UserFunction(name, function, allowed_names)

        axes = Axes.parse(states, "states"), Axes.parse(actions, "actions")
        event_axes = Axes.parse(events or {}, "events")
        if (event_probs is None) == bool(event_axes):
            missing, present = (
                ("event_probs", "events") if event_axes else ("events", "event_probs")
            )
            raise InputError(f"{present} is given without {missing}; give both, or neither")
        names = [name for named_axes in (*axes, event_axes) for name in named_axes]
        duplicate = next((x for x in names if names.count(x) > 1), None)
        if duplicate is not None:
            raise InputError(f"two axes are called {duplicate!r}; give each a name of its own")
        spec = cls(
            *axes,
            event_axes,
            UserFunction("step", step, ("state", "action", "event", "sample", "time")),
            wrap("event_probs", event_probs, "sample", "state", "action", "time"),
            wrap("allowed", allowed, "state", "action"),
            wrap("terminal_reward", terminal_reward, "state", "sample"),
            wrap("is_terminal", is_terminal, "state"),
            {} if samples is None else read_samples(samples),
            _parse_time_labels(time_labels),
            wrap("initial", initial, "state", "sample") if callable(initial) else initial,
        )
        spec._check_times(time_labels)
        return spec

    def simulate_off_grid(
        self,
        model: MMDP,
        policy_table: ValueArray,
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
    def n_states(self) -> int:
        """Number of states, including the state ``ended`` if there is one."""
        return self.states.size + (self.is_terminal is not None)

    def check_size(self) -> None:
        """Refuse axes whose next states, weights and rewards would exceed the memory."""
        S, A, W = self.n_states, self.actions.size, self.events.size
        n_corners = self.states.n_corners
        bytes_per_row = 8 + 4 * n_corners + (8 * n_corners if n_corners > 1 else 0)
        check_memory(
            bytes_per_row * S * A * W * self.count_times(self.step),
            f"{pluralize(S, 'state')}, {pluralize(A, 'action')} and {pluralize(W, 'event')}",
            ["make the axes coarser", "leave out an axis"],
        )

    @property
    def state_labels(self) -> list[str]:
        """Labels of all states, by their axes."""
        return [
            *self.states.make_labels(),
            *([ENDED_LABEL] if self.is_terminal is not None else []),
        ]

    def count_times(self, *functions: UserFunction | None) -> int:
        """Count the times at which these functions have to be called: 1 if none reads the time."""
        depends_on_time = any(f is not None and "time" in f.argument_names for f in functions)
        return len(self.time_labels) if depends_on_time and self.time_labels is not None else 1

    @property
    def grid_axes(self) -> tuple[str, ...]:
        """Names of the state axes that are grids."""
        return tuple(name for name, axis in self.states.items() if isinstance(axis, Grid))

    def select_models(self, models: npt.NDArray[np.int64]) -> StepSpec:
        """Make the specification of some of the models, by id."""
        return replace(self, samples={k: v[models] for k, v in self.samples.items()})

    def call_context(self, m: int, t: int) -> dict[str, object]:
        """Get the arguments ``sample`` and ``time`` of model m and time t."""
        sample = {name: values[m] for name, values in self.samples.items()}
        return {
            "sample": sample,
            "time": None if self.time_labels is None else self.time_labels[t],
        }

    def describe_context(self, m: int, t: int, *functions: UserFunction | None) -> str:
        """Format sample and time as ``, sample 3, time 2``, if these functions depend on them."""
        used_functions = [f for f in functions if f is not None]
        sample_text = f", sample {m}" if any(f.depends_on_sample() for f in used_functions) else ""
        time_text = (
            f", time {self.call_context(m, t)['time']}"
            if self.count_times(*used_functions) > 1
            else ""
        )
        return sample_text + time_text

    def _check_times(self, time_labels: object) -> None:
        """Refuse functions of time without time labels, and a number of times without them."""
        timed_names = [
            f.name
            for f in (self.step, self.event_probs)
            if f is not None and "time" in f.argument_names
        ]
        if timed_names and self.time_labels is None:
            raise InputError(
                f"{timed_names[0]} has a parameter time; give time_labels=, such as time_labels=52"
            )
        if isinstance(time_labels, (int, np.integer)) and not timed_names:
            raise InputError("no function has a parameter time; leave out time_labels=")

    # ------------------------------------------------------------ results of the functions
    def terminal_mask(self) -> Mask:
        """Find the states on the axes in which the process ends; returns (S,) bool."""
        values = self.states.values_at(np.arange(self.states.size))
        return self.find_terminal(values, self.states.size)

    def find_terminal(self, values: AxisValues, n_rows: int) -> Mask:
        """Find the rows of state values at which the process ends; returns (n_rows,) bool."""
        if self.is_terminal is None:
            return np.zeros(n_rows, bool)
        return _broadcast_bools(self.is_terminal(state=values), n_rows, "is_terminal")

    def compute_allowed(self) -> Mask:
        """Find the allowed actions of every state; returns (S, A) bool."""
        S, A = self.states.size, self.actions.size
        if self.allowed is None:
            return np.ones((S, A), bool)
        s, a = np.divmod(np.arange(S * A), A)
        pair = {"state": self.states.values_at(s), "action": self.actions.values_at(a)}
        mask = _broadcast_bools(self.allowed(**pair), S * A, "allowed").reshape(S, A)
        has_no_action = ~mask.any(axis=1) & ~self.terminal_mask()
        if has_no_action.any():
            state_text = self.states.format_label(int(np.argmax(has_no_action)))
            raise InputError(
                f"no action is allowed in {state_text}; allow one, or return True by is_terminal="
            )
        return mask

    def compute_event_probs(self, mask: Mask) -> EventProbs:
        """Compute the probabilities of all events; equal distributions are stored once."""
        function, M = self.event_probs, self.n_models
        if function is None:
            return EventProbs(np.ones((1, 1, 1, M)), None)
        n_times = self.count_times(function)
        if not function.argument_names & {"state", "action"}:
            probs_by_time = [
                np.stack([self._call_event_probs(function, m, t, {}, 1) for m in range(M)], axis=-1)
                for t in range(n_times)
            ]
            return EventProbs(np.stack(probs_by_time), None)
        distributions: dict[bytes, Array] = {}
        distribution_id = np.zeros((n_times, self.n_states, self.actions.size), np.int32)
        for t in range(n_times):
            distribution_id[t, : len(mask)] = self._assign_distributions(
                function, t, mask, distributions
            )
        return EventProbs(np.stack([*distributions.values()])[None], distribution_id)

    def _assign_distributions(
        self,
        function: UserFunction,
        t: int,
        mask: Mask,
        distributions: dict[bytes, Array],
    ) -> npt.NDArray[np.int32]:
        """Find the distribution id (S, A) of every pair at time t, and add new distributions."""
        M, probe_pairs = self.n_models, np.argwhere(mask)[:2]
        probe = self._make_columns(self.states, self.actions, probe_pairs[:, 0], probe_pairs[:, 1])
        for m in range(M):  # records which axes are read
            function(**probe, **self.call_context(m, t))
        states, actions = (
            self.states.select(frozenset(function.read_fields["state"])),
            self.actions.select(frozenset(function.read_fields["action"])),
        )
        s = states.project_ids(self.states, np.arange(self.states.size))
        a = actions.project_ids(self.actions, np.arange(self.actions.size))
        pair_ids = s[:, None] * actions.size + a
        needed_ids = np.unique(pair_ids[mask])
        distribution_id = np.zeros(states.size * actions.size, np.int32)
        batch_size = max(1, PROBS_PER_BATCH // (M * self.events.size))
        for rows in np.split(needed_ids, range(batch_size, len(needed_ids), batch_size)):
            pairs = states, actions, *np.divmod(rows, actions.size)
            model_probs = [
                self._call_event_probs(function, m, t, self._make_columns(*pairs), len(rows), pairs)
                for m in range(M)
            ]
            p = np.ascontiguousarray(np.stack(model_probs, axis=-1))
            raw = p.reshape(len(rows), -1).view(np.dtype((np.void, p[0].nbytes))).reshape(-1)
            _, first_rows, inverse = np.unique(raw, return_index=True, return_inverse=True)
            for i in first_rows:
                distributions.setdefault(p[i].tobytes(), p[i])
            id_by_bytes = {key: i for i, key in enumerate(distributions)}
            ids = np.array([id_by_bytes[p[i].tobytes()] for i in first_rows], np.int32)
            distribution_id[rows] = ids[inverse]
        return np.where(mask, distribution_id[pair_ids], 0).astype(np.int32)

    @staticmethod
    def _make_columns(
        states: Axes, actions: Axes, s: IntArray, a: IntArray
    ) -> dict[str, AxisValues]:
        """Make state and action values as columns (n, 1), by axis."""
        return {
            "state": {k: v[:, None] for k, v in states.values_at(s).items()},
            "action": {k: v[:, None] for k, v in actions.values_at(a).items()},
        }

    def _call_event_probs(
        self,
        function: UserFunction,
        m: int,
        t: int,
        pair: Mapping[str, AxisValues],
        n: int,
        pairs: tuple[Axes, Axes, IntArray, IntArray] | None = None,
    ) -> Array:
        """Call event_probs for n rows and check the probabilities (n, W)."""

        def describe_row(i: int) -> str:
            if pairs is None:
                return self.describe_context(m, t, function).removeprefix(", ")
            names = [
                axes.format_label(int(axis_ids[i]))
                for axes, axis_ids in zip(pairs[:2], pairs[2:], strict=True)
                if axes
            ]
            return ", ".join(names) + self.describe_context(m, t, function)

        def call_rows(rows: IntArray) -> RowOutputs:
            inputs = {
                argument: {k: v[rows] for k, v in values.items()}
                for argument, values in pair.items()
            }
            return {
                PROBS_KEY: self.parse_event_probs(
                    function(**inputs, **self.call_context(m, t)), len(rows)
                )
            }

        outputs = call_rows(np.arange(n))
        p = outputs[PROBS_KEY]
        if m == 0:
            check_elementwise(function.name, call_rows, n, outputs, describe_row)
        sums = p.sum(axis=1)
        is_bad = ~(np.abs(sums - 1) <= SUM_TOLERANCE) | ~(p >= 0).all(axis=1)
        if is_bad.any():
            i = int(np.argmax(is_bad))
            location = f"event_probs at {describe_row(i)}" if describe_row(i) else "event_probs"
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
        return p

    def parse_event_probs(self, result: object, n: int) -> Array:
        """Parse the result of event_probs, a table or a dict of independent events, as (n, W)."""
        if isinstance(result, Mapping):
            if set(result) != set(self.events):
                raise InputError(
                    f"event_probs returned {', '.join(map(str, result)) or 'nothing'}; return "
                    f"{', '.join(self.events)}"
                )
            probs = np.ones((n, 1))
            for name, axis in self.events.items():
                axis_probs = self._broadcast_probs(
                    result[name], n, (len(axis.values),), f"event_probs of {name}"
                )
                probs = (probs[:, :, None] * axis_probs[:, None, :]).reshape(n, -1)
            return probs
        return self._broadcast_probs(result, n, self.events.shape, "event_probs")

    @staticmethod
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

    def evaluate_step(
        self, m: int, t: int, mask: Mask, is_terminal: Mask, event_probs: EventProbs
    ) -> tuple[NextStates, Array]:
        """Evaluate the step in sample m at time t for the pairs in the mask (S, A).

        Returns: the next states, (S A, W) rewards.
        """
        S, A, W, C = self.n_states, self.actions.size, self.events.size, self.states.n_corners
        next_ids = np.empty((S, A, W, C), np.int32)
        next_ids[:] = np.arange(S)[:, None, None, None]
        next_ids[: len(is_terminal)][is_terminal] = S - 1
        weights = None if C == 1 else np.zeros((S, A, W, C))
        if weights is not None:
            weights[..., 0] = 1.0
        reward = np.zeros(S * A * W)
        times = [t] if self.count_times(self.step) > 1 else range(event_probs.n_times)
        n_rows, rows_per_call = (
            self.states.size * A * W,
            getattr(self.step.function, "rows_per_call", ROWS_PER_CALL),
        )
        for start in range(0, n_rows, rows_per_call):
            n_calls = self.n_models if self.step.depends_on_sample() else 1
            self.progress_bar.update(
                (t * n_calls + m) * n_rows + start, self.count_times(self.step) * n_calls * n_rows
            )
            rows = np.arange(start, min(start + rows_per_call, n_rows))
            pairs = rows // W
            rows = rows[mask.reshape(-1)[pairs] & event_probs.is_possible(times, pairs, rows % W)]
            if not len(rows):
                continue
            outputs = self._call_rows(rows, m, t)
            if m == 0 and t == 0:
                self._check_elementwise(rows, outputs)
            reward[rows] = outputs.pop(REWARD_KEY)
            ids, row_weights = self._interpolate_next(outputs, rows, m, t)
            next_ids.reshape(-1, C)[rows] = ids
            if weights is not None:
                weights.reshape(-1, C)[rows] = row_weights
        return NextStates(next_ids, weights), reward.reshape(S * A, W)

    def _call_rows(self, rows: IntArray, m: int, t: int) -> RowOutputs:
        """Call step for rows (s A + a) W + w: next values by axis, and the reward."""
        A, W = self.actions.size, self.events.size
        outputs = self.call_step(
            {
                "state": self.states.values_at(rows // (A * W)),
                "action": self.actions.values_at(rows // W % A),
                "event": self.events.values_at(rows % W),
            },
            len(rows),
            m,
            t,
            lambda i: self._describe_row(rows, i),
        )
        return outputs

    def _describe_row(self, rows: IntArray, i: int) -> str:
        """Format the state, action and event of row i, for messages."""
        A, W = self.actions.size, self.events.size
        s, (a, w) = int(rows[i] // (A * W)), divmod(int(rows[i] % (A * W)), W)
        names = [
            self.states.format_label(s),
            self.actions.format_label(a),
            self.events.format_label(w),
        ]
        return ", ".join(filter(None, names))

    def _check_elementwise(self, rows: IntArray, outputs: RowOutputs) -> None:
        """Refuse a step that does not compute each row by itself."""
        check_elementwise(
            "step",
            lambda probe_rows: self._call_rows(rows[probe_rows], 0, 0),
            len(rows),
            outputs,
            lambda i: self._describe_row(rows, i),
        )

    def call_step(
        self,
        inputs: Mapping[str, AxisValues],
        n: int,
        m: int,
        t: int,
        describe_row: Callable[[int], str],
    ) -> RowOutputs:
        """Call step for n rows of inputs and check the next values by axis and the reward."""
        result = self.step(**inputs, **self.call_context(m, t))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise InputError(
                "step must return a dict of next values by axis and the reward, like "
                f"return {{'{next(iter(self.states))}': ...}}, reward; it returned "
                f"{type(result).__name__}"
            )
        next_values, reward = result
        for name in self.states:
            if name not in next_values:
                raise InputError(f"step returns no {name!r}; return every axis of states")
        unknown = next((x for x in next_values if x not in self.states), None)
        if unknown is not None:
            raise InputError(
                f"step returns {unknown!r}, which is no axis of states; these are "
                f"{', '.join(self.states)}"
            )
        outputs = {
            name: _broadcast_rows(next_values[name], n, f"next {name}") for name in self.states
        }
        outputs[REWARD_KEY] = _broadcast_rows(reward, n, REWARD_KEY)
        if outputs[REWARD_KEY].dtype.kind not in "biuf":
            raise InputError(f"{REWARD_KEY} that step returns is not a number")
        is_bad = ~np.isfinite(outputs[REWARD_KEY].astype(float))
        if is_bad.any():
            i = int(np.argmax(is_bad))
            raise InputError(
                f"step at {describe_row(i)}{self.describe_context(m, t, self.step)}: the reward is "
                f"{outputs[REWARD_KEY][i]}; give a finite number"
            )
        return outputs

    def _interpolate_next(
        self, outputs: RowOutputs, rows: IntArray, m: int, t: int
    ) -> tuple[npt.NDArray[np.int32], Array | None]:
        """Convert next values to states; refuse values that are not on their axis.

        Returns: (n, C) ids; (n, C) weights, or None if C = 1.
        """
        is_ended = self.find_terminal(outputs, len(rows))
        context_text = self.describe_context(m, t, self.step)
        positions = self.locate_next(
            outputs, is_ended, lambda i: self._describe_row(rows, i) + context_text
        )
        ids, weights = self.states.interpolate_positions(positions)
        ids[is_ended] = self.n_states - 1
        return ids, weights

    def locate_next(
        self, outputs: RowOutputs, is_ended: Mask, describe_row: Callable[[int], str]
    ) -> RowOutputs:
        """Find the positions of next values on their axes; refuse others before the end."""
        positions = {}
        for name, axis in self.states.items():
            values = outputs[name]
            if (values.dtype.kind in "biuf") != axis.is_numeric:
                raise InputError(
                    f"step returns next {name} as {values.dtype}, its axis has {axis}; return "
                    f"{'numbers' if axis.is_numeric else 'labels'}"
                )
            positions[name], is_off = axis.locate(values)
            is_off &= ~is_ended
            if is_off.any():
                i = int(np.argmax(is_off))
                value = values[i]
                remedy = "check the formula" if value != value else axis.suggest_remedy(value)
                raise InputError(
                    f"step at {describe_row(i)}: next {name} is {value}, which is not on its axis "
                    f"({axis}); {remedy}"
                )
        return positions

    # ------------------------------------------------------------ initial and terminal values
    def list_initial_states(self, m: int) -> tuple[dict[str, ValueArray], Array]:
        """List the given initial states of model m: values by axis, and their probabilities."""
        spec, states = self.initial_spec, self.states.values_at(np.arange(self.states.size))
        if isinstance(spec, UserFunction):
            spec = spec(state=states, **self.call_context(m, 0))
        if self.initial_spec is None or (
            callable(self.initial_spec) and not isinstance(spec, Mapping)
        ):
            weights = ~self.terminal_mask() if self.initial_spec is None else spec
            p = _broadcast_rows(_as_floats(weights, "initial"), self.states.size, "initial")
            if not (p >= 0).all() or not 0 < p.sum() < np.inf:
                raise InputError(
                    "initial returned weights below 0, all 0 or not finite; return weights of 0 or "
                    "more, some above 0"
                )
            return states, p / p.sum()
        has_all_axes = isinstance(spec, Mapping) and set(spec) == set(self.states)
        shape, *other_shapes = {np.shape(x) for x in spec.values()} if has_all_axes else [(0,)]
        if not other_shapes and len(shape) == 1 and shape[0]:
            return {k: np.asarray(spec[k]) for k in self.states}, np.full(shape, 1 / shape[0])
        if not has_all_axes or other_shapes or shape:
            raise InputError(
                f"initial must name a value for each of {', '.join(self.states)}, like "
                f"{{'{next(iter(self.states))}': ...}}, or values with their probabilities, or a "
                "sample of each, of one length, or be a function of the state"
            )
        values_by_axis = {
            k: v if isinstance(v := spec[k], Mapping) else {v: 1.0} for k in self.states
        }
        combinations = np.indices([len(x) for x in values_by_axis.values()]).reshape(
            len(values_by_axis), -1
        )
        axis_probs = [
            _as_floats(list(x.values()), "initial")[i]
            for x, i in zip(values_by_axis.values(), combinations, strict=True)
        ]
        values = {
            k: np.array(list(x))[i]
            for (k, x), i in zip(values_by_axis.items(), combinations, strict=True)
        }
        return values, np.prod(axis_probs, axis=0)

    def compute_initial(self) -> Array | None:
        """Compute the initial distribution (S,), (M, S) if it reads the sample, None if uniform."""
        if self.initial_spec is None and self.is_terminal is None:
            return None
        first_initial = self.compute_model_initial(0)
        if not (
            isinstance(self.initial_spec, UserFunction) and self.initial_spec.depends_on_sample()
        ):
            return first_initial
        return np.array(
            [first_initial, *(self.compute_model_initial(m) for m in range(1, self.n_models))]
        )

    def compute_model_initial(self, m: int) -> Array:
        """Compute the initial distribution (S,) of model m."""
        (values, p), initial = self.list_initial_states(m), np.zeros(self.n_states)
        for name, axis in self.states.items():
            is_numeric = values[name].dtype.kind in "biuf"
            is_off = (
                axis.locate(values[name])[1] if is_numeric == axis.is_numeric else np.ones(1, bool)
            )
            if is_off.any():
                value = values[name][np.argmax(is_off)]
                raise InputError(
                    f"initial {name} is {value}, which is not on its axis ({axis}); give one on it"
                )
        ids, weights = self.states.interpolate(values)
        np.add.at(initial, ids, p[:, None] if weights is None else p[:, None] * weights)
        return initial

    def compute_terminal_values(self) -> Array | None:
        """Compute the terminal values (M, S); terminal states have 0."""
        if self.terminal_reward is None:
            return None
        terminal_values, S = np.zeros((self.n_models, self.n_states)), self.states.size
        values, is_terminal = self.states.values_at(np.arange(S)), self.terminal_mask()
        for m in range(self.n_models):
            model_values = _as_floats(
                self.terminal_reward(state=values, **self.call_context(m, 0)), "terminal_reward"
            )
            terminal_values[m, :S] = np.where(
                is_terminal, 0.0, _broadcast_rows(model_values, S, "terminal_reward")
            )
        return terminal_values


def _parse_time_labels(time_labels: object) -> tuple[object, ...] | None:
    """Parse a number, range or labels of times; None without."""
    if time_labels is None:
        return None
    if is_of_type(time_labels, int):
        time_labels = range(check_int(time_labels, "time_labels", 0, item_bytes=8))
    labels_by_axis: Mapping[str, Any] = (
        time_labels if isinstance(time_labels, Mapping) else {"time": time_labels}
    )
    if not all(map(is_list, labels_by_axis.values())):
        raise InputError(
            f"time_labels must be a number, a range or labels, not {shorten(time_labels)}"
        )
    labels_by_axis = {name: tuple(x) for name, x in labels_by_axis.items()}
    parse_time_labels(labels_by_axis)
    (labels,) = labels_by_axis.values()
    return labels


def _as_floats(values: object, subject: str) -> Array:
    """Convert returned values to a float array, or raise an error that names the function."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{subject} is not a number; return numbers") from None


def _broadcast_rows(values: object, n: int, subject: str) -> ValueArray:
    """Broadcast returned values to (n,); one value stands for all rows."""
    array = np.asarray(values)
    if array.shape not in ((), (1,), (n,)):
        raise InputError(
            f"{subject} has shape {array.shape} for {pluralize(n, 'row')}; return one entry per row"
        )
    return np.broadcast_to(array, (n,))


def _broadcast_bools(values: object, n: int, subject: str) -> Mask:
    """Broadcast returned booleans to (n,), and refuse other types."""
    flags = _broadcast_rows(values, n, subject)
    if flags.dtype != bool:
        raise InputError(f"{subject} must return True or False for each row, not {flags.dtype}")
    return flags
