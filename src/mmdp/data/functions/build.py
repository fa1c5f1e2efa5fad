"""Models of a step specification: exogenous events, or tables if samples lead to other states."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.memory import check_memory
from mmdp.core.model import MMDP
from mmdp.core.transitions import CoordinateEntries, SparseTransitions, entries_to_transitions
from mmdp.data.functions.axes import Array, ValueArray
from mmdp.data.posterior.samples import flatten_parameters

if TYPE_CHECKING:
    from mmdp.data.functions.step import StepSpec

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class NextStates(NamedTuple):
    """Next states of all events for one sample at one time; unused rows stay in their state."""

    ids: npt.NDArray[np.int32]  # (S, A, W, C)
    weights: Array | None  # (S, A, W, C) of each corner; None if C = 1

    def equals(self, other: NextStates) -> bool:
        """Return whether ids and weights are the same."""
        if self.weights is None or other.weights is None:
            return self.weights is other.weights and np.array_equal(self.ids, other.ids)
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.weights, other.weights)


class EventProbs(NamedTuple):
    """Event probabilities, and which distribution each state-action pair has."""

    probs: Array  # (T or 1, K, W, M)
    distribution_id: npt.NDArray[np.int32] | None  # (T or 1, S, A)

    def get_probs(self, t: int, pairs: IntArray) -> tuple[Array, IntArray]:
        """Get the event probabilities at time t and the distribution id of pairs s A + a.

        Returns: (K, W, M) probabilities, (n,) ids.
        """
        probs = self.probs[min(t, len(self.probs) - 1)]
        if self.distribution_id is None:
            return probs, np.zeros(len(pairs), np.int64)
        return probs, self.distribution_id[min(t, len(self.distribution_id) - 1)].reshape(-1)[
            pairs
        ].astype(np.int64)

    def is_possible(self, times: Iterable[int], pairs: IntArray, events: IntArray) -> Mask:
        """Find which events of pairs have positive probability in some model at these times.

        Returns: (n,) bool.
        """
        is_met = np.zeros(len(pairs), bool)
        for t in times:
            probs, distribution_id = self.get_probs(t, pairs)
            is_met |= np.asarray(probs.any(axis=2))[distribution_id, events]
        return is_met

    @property
    def n_times(self) -> int:
        """Number of times with probabilities of their own."""
        return max(
            len(self.probs), 1 if self.distribution_id is None else len(self.distribution_id)
        )


def build_model(spec: StepSpec, **fields: Any) -> MMDP:
    """Build the model: exogenous events if all samples lead to the same states, else tables."""
    S, A = spec.n_states, spec.actions.size
    is_terminal, mask = spec.terminal_mask(), spec.compute_allowed()
    if is_terminal.all():
        raise InputError("is_terminal holds in every state, so nothing is decided; correct it")
    event_probs = spec.compute_event_probs(mask & ~is_terminal[:, None])
    with spec.progress_bar:
        next_states, rewards = _evaluate_steps(
            spec, mask & ~is_terminal[:, None], is_terminal, event_probs
        )
    allowed = np.ones((S, A), bool)
    allowed[: len(mask)] = mask | is_terminal[:, None]
    fields |= {
        "initial": spec.compute_initial(),
        "terminal": spec.compute_terminal_values(),
        "allowed": allowed,
        "states": spec.state_labels,
        "actions": spec.actions.make_labels(),
        "parameters": flatten_parameters(spec.samples) or None,
    }
    if all(sample_next is row[0] for row in next_states for sample_next in row):
        events = _make_events(next_states, event_probs)
        r = rewards if spec.step.depends_on_sample() else events.make_rewards(rewards).compact()
        return MMDP.from_sparse(events, r, **fields).with_step_spec(spec)
    return MMDP.from_sparse(
        _make_transitions(spec, next_states, event_probs, allowed), rewards, **fields
    ).with_step_spec(spec)


def _evaluate_steps(
    spec: StepSpec, mask: Mask, is_terminal: Mask, event_probs: EventProbs
) -> tuple[list[list[NextStates]], Array]:
    """Evaluate the step function: next states by time and sample, and rewards.

    A step that reads no sample has one entry per time, and rewards (T or 1, S, A, W); otherwise
    rewards are expected over events, (T or 1, S, A, M).
    """
    T, n_step_times = spec.count_times(spec.step, spec.event_probs), spec.count_times(spec.step)
    next_states: list[list[NextStates]] = [[] for _ in range(n_step_times)]

    def evaluate(m: int, t: int) -> Array:
        """Evaluate one sample at one time, add its next states, return (1, S, A, W) rewards."""
        sample_next, reward = spec.evaluate_step(m, t, mask, is_terminal, event_probs)
        row = next_states[t]
        row.append(row[0] if row and sample_next.equals(row[0]) else sample_next)
        return reward.reshape(1, *sample_next.ids.shape[:3])

    first_rewards = [evaluate(0, t) for t in range(n_step_times)]
    if not spec.step.depends_on_sample():
        return next_states, np.concatenate(first_rewards)
    size = first_rewards[0].shape[1:3]
    check_memory(8 * T * math.prod(size) * spec.n_models, "the rewards of all models")
    r = np.empty((T, *size, spec.n_models))
    for m, t in np.ndindex(spec.n_models, n_step_times):
        reward = first_rewards[t] if m == 0 else evaluate(m, t)
        event_rewards = EventRewards(
            reward, event_probs.probs[..., m : m + 1], event_probs.distribution_id
        )
        for i in [t] if n_step_times > 1 else range(T):
            r[i, ..., m] = event_rewards[i][..., 0]
    return next_states, r


def _make_events(next_states: list[list[NextStates]], event_probs: EventProbs) -> ExogenousEvents:
    """Make the storage of events whose next states are the same in all models."""
    ids = np.stack([row[0].ids for row in next_states])
    weights_by_time = [row[0].weights for row in next_states]
    weights = (
        None
        if weights_by_time[0] is None
        else np.stack(
            [time_weights for time_weights in weights_by_time if time_weights is not None]
        )
    )
    return ExogenousEvents(ids, event_probs.probs, event_probs.distribution_id, weights)


def _make_transitions(
    spec: StepSpec, next_states: list[list[NextStates]], event_probs: EventProbs, allowed: Mask
) -> SparseTransitions:
    """Make the sparse transitions of models whose next states differ."""
    S, A = allowed.shape
    T = max(len(next_states), event_probs.n_times)
    pairs = np.flatnonzero(allowed)
    roles = ("model", "time", "state", "action", "next_state", "probability")
    columns: dict[str, list[ValueArray]] = {role: [] for role in roles}
    for t in range(T):
        probs, distribution_id = event_probs.get_probs(t, pairs)
        row = next_states[min(t, len(next_states) - 1)]
        for m, sample_next in enumerate(row * spec.n_models if len(row) == 1 else row):
            W, C = sample_next.ids.shape[2:]
            p = np.repeat(probs[distribution_id][:, :, m, None], C, axis=2)
            if sample_next.weights is not None:
                p = p * sample_next.weights.reshape(S * A, W, C)[pairs]
            i, w, c = np.nonzero(p)
            pair_ids = pairs[i]
            target_ids = sample_next.ids.reshape(S * A, W, C)[pair_ids, w, c]
            role_values = (
                np.full(len(i), m),
                np.full(len(i), t),
                pair_ids // A,
                pair_ids % A,
                target_ids,
                p[i, w, c],
            )
            for role, values in zip(roles, role_values, strict=True):
                columns[role].append(values)
    entries = {role: np.concatenate(value_lists) for role, value_lists in columns.items()}
    if T == 1:
        del entries["time"]
    return entries_to_transitions(CoordinateEntries(entries, (spec.n_models, S, A), T), "auto")
