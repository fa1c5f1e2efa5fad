"""Models of a step specification: exogenous events, or tables if samples lead to other states."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mmdp.core.errors import InputError, check_memory
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.rewards import EventRewards, at_time
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyArray, Array, IndexArray, IntArray, Mask
from mmdp.core.timing import progress_line
from mmdp.core.transitions import CoordinateEntries, SparseTransitions, entries_to_transitions
from mmdp.data.functions.axes import Axes
from mmdp.data.functions.calls import PROBS_KEY, REWARD_KEY, call_elementwise
from mmdp.data.posterior.samples import flatten_parameters

if TYPE_CHECKING:
    from mmdp.data.functions.step import StepSpec

ROWS_PER_CALL = 2**19  # rows that a function is called with at a time
PROBS_PER_BATCH = 2**23  # probabilities that are compared at a time
ENTRY_ROLES = ("model", "time", "state", "action", "next_state", "probability")


class EventProbs(NamedTuple):
    """Event probabilities, and which distribution each state-action pair has."""

    probs: Array  # (T or 1, K, W, M)
    distribution_id: IntArray | None  # (T or 1, S, A)

    def get_ids(self, t: int, pairs: IndexArray) -> AnyArray:
        """Get the distribution (n,) of pairs s A + a at time t."""
        ids = self.distribution_id
        return np.zeros_like(pairs) if ids is None else at_time(ids, t).reshape(-1)[pairs]

    def is_possible(self, times: Iterable[int], pairs: IndexArray, events: IndexArray) -> Mask:
        """Find which events (n,) of pairs can happen in some model at one of these times."""
        is_met = np.zeros(len(pairs), bool)
        for t in times:
            is_any = np.asarray(at_time(self.probs, t).any(axis=2))
            is_met |= is_any[self.get_ids(t, pairs), events]
        return is_met


def build_model(spec: StepSpec, **fields: Any) -> MMDP:
    """Build the model: exogenous events if all samples lead to the same states, else tables."""
    is_terminal, mask = spec.terminal_mask, spec.compute_allowed()
    if is_terminal.all():
        raise InputError("is_terminal holds in every state, so nothing is decided; correct it")
    is_used = mask & ~is_terminal[:, None]
    event_probs = _compute_event_probs(spec, is_used)
    next_states, rewards = _evaluate_samples(spec, is_used, event_probs)
    allowed = np.ones((spec.n_states, spec.actions.size), bool)
    allowed[: len(mask)] = mask | is_terminal[:, None]
    fields |= {
        "initial": spec.compute_initial(),
        "terminal": spec.compute_terminal_values(),
        "allowed": allowed,
        "states": spec.state_labels,
        "actions": spec.actions.make_labels(),
        "parameters": flatten_parameters(spec.samples) or None,
    }
    if any(x is not next_states[0] for x in next_states):
        tables = _make_transitions(spec, next_states, event_probs, allowed)
        return MMDP.from_sparse(tables, rewards, **fields).with_step_spec(spec)
    ids, weights = next_states[0]
    events = ExogenousEvents(ids, *event_probs, weights if spec.states.n_corners > 1 else None)
    if spec.depends_on_sample("step"):
        return MMDP.from_sparse(events, rewards, **fields).with_step_spec(spec)
    event_rewards = events.make_rewards(rewards).compact()
    return MMDP.from_sparse(events, event_rewards, **fields).with_step_spec(spec)


# ---------------------------------------------------------------------- probabilities of events
def _compute_event_probs(spec: StepSpec, mask: Mask) -> EventProbs:
    """Compute the probabilities of all events; equal distributions are stored once."""
    M, n_times = spec.n_models, spec.count_times("event_probs")
    if "event_probs" not in spec.functions:
        return EventProbs(np.ones((1, 1, 1, M)), None)
    if not spec.functions["event_probs"].argument_names & {"state", "action"}:
        row = np.zeros(1, np.int64)
        probs = [_call_event_probs(spec, t, Axes({}), row) for t in range(n_times)]
        return EventProbs(np.stack(probs), None)
    distributions: dict[bytes, tuple[int, Array]] = {}
    distribution_id = np.zeros((n_times, spec.n_states, spec.actions.size), np.int32)
    for t in range(n_times):
        distribution_id[t, : len(mask)] = _assign_distributions(spec, t, mask, distributions)
    return EventProbs(np.stack([p for _, p in distributions.values()])[None], distribution_id)


def _assign_distributions(
    spec: StepSpec, t: int, mask: Mask, distributions: dict[bytes, tuple[int, Array]]
) -> IntArray:
    """Find the distribution id (S, A) of every pair at time t, and add new distributions."""
    pairs, M = spec.pairs, spec.n_models
    probe = pairs.values_at(np.flatnonzero(mask)[:2])
    for m in range(M):  # records which axes are read
        spec.call("event_probs", {k: v[:, None] for k, v in probe.items()}, m, t)
    read_fields = spec.functions["event_probs"].read_fields
    axes = pairs.select(read_fields["state"] | read_fields["action"])
    sizes = [len(axis.values) if name in axes else 1 for name, axis in pairs.items()]
    ids = np.arange(axes.size).reshape(sizes)
    pair_ids = np.broadcast_to(ids, pairs.shape).reshape(mask.shape)
    needed_ids = np.unique(pair_ids[mask])
    distribution_id = np.zeros(axes.size, np.int32)
    batch_size = max(1, PROBS_PER_BATCH // (M * spec.events.size))
    for rows in np.split(needed_ids, range(batch_size, len(needed_ids), batch_size)):
        distribution_id[rows] = [
            distributions.setdefault(p.tobytes(), (len(distributions), p))[0]
            for p in _call_event_probs(spec, t, axes, rows)
        ]
    return np.where(mask, distribution_id[pair_ids], 0)


def _call_event_probs(spec: StepSpec, t: int, axes: Axes, rows: IndexArray) -> Array:
    """Compute the event probabilities (n, W, M) at time t for ids of combinations of the axes."""
    values, n = axes.values_at(rows), len(rows)
    outputs = [
        call_elementwise("event_probs", spec.call_event_probs, values, n, m, t)
        for m in range(spec.n_models)
    ]
    return np.stack([x[PROBS_KEY] for x in outputs], axis=-1)


# ---------------------------------------------------------------------- steps
class NextStates(NamedTuple):
    """Next states of a sample; where no event is possible, the state itself."""

    ids: IntArray  # (T or 1, S, A, W, C)
    weights: Array  # (T or 1, S, A, W, C) of each corner; (1, 1, 1, 1, 1) if C = 1


def _evaluate_samples(
    spec: StepSpec, mask: Mask, event_probs: EventProbs
) -> tuple[list[NextStates], Array]:
    """Evaluate the step function: next states by sample, and rewards.

    A step that reads no sample has one entry, and rewards (T or 1, S, A, W); otherwise rewards are
    expected over events, (T or 1, S, A, M).
    """
    first_next, reward = _evaluate_sample(spec, 0, mask, event_probs)
    if not spec.depends_on_sample("step"):
        return [first_next], reward
    shape = (spec.count_times("step", "event_probs"), *reward.shape[1:3], spec.n_models)
    check_memory(8 * math.prod(shape), "the rewards of all models")
    next_states, expected_rewards = [first_next], np.empty(shape)
    for m in range(spec.n_models):
        if m > 0:
            sample_next, reward = _evaluate_sample(spec, m, mask, event_probs)
            is_same = np.array_equal(sample_next.ids, first_next.ids)
            is_same = is_same and np.array_equal(sample_next.weights, first_next.weights)
            next_states.append(first_next if is_same else sample_next)
        probs = event_probs.probs[..., m : m + 1]
        event_rewards = EventRewards(reward, probs, event_probs.distribution_id)
        expected_rewards[..., m] = np.asarray(event_rewards)[..., 0]
    return next_states, expected_rewards


def _evaluate_sample(
    spec: StepSpec, m: int, mask: Mask, event_probs: EventProbs
) -> tuple[NextStates, Array]:
    """Evaluate the step in sample m for the pairs in the mask (S, A).

    Returns: the next states, (T or 1, S, A, W) rewards.
    """
    S, A, W, C = spec.n_states, spec.actions.size, spec.events.size, spec.states.n_corners
    n_times, all_times = spec.count_times("step"), range(spec.count_times("event_probs"))
    next_ids, rewards = np.empty((n_times, S, A, W, C), np.int32), np.zeros((n_times, S, A, W))
    next_ids[:] = np.arange(S)[:, None, None, None]
    next_ids[:, : spec.states.size][:, spec.terminal_mask] = S - 1
    weights = np.zeros(next_ids.shape if C > 1 else (1, 1, 1, 1, 1))
    weights[..., 0] = 1.0
    row_axes = Axes(spec.pairs | spec.events)
    n_rows = row_axes.size
    rows_per_call = getattr(spec.functions["step"].function, "rows_per_call", ROWS_PER_CALL)
    for t, start in product(range(n_times), range(0, n_rows, rows_per_call)):
        n_samples = spec.n_models if spec.depends_on_sample("step") else 1
        n_done, n_total = (m * n_times + t) * n_rows + start, n_samples * n_times * n_rows
        progress_line.update(f"step, {n_done:,} of {n_total:,} rows")
        rows = np.arange(start, min(start + rows_per_call, n_rows))
        pairs, times = rows // W, [t] if n_times > 1 else all_times
        rows = rows[mask.reshape(-1)[pairs] & event_probs.is_possible(times, pairs, rows % W)]
        if not len(rows):
            continue
        values = row_axes.values_at(rows)
        outputs = call_elementwise("step", spec.call_step, values, len(rows), m, t)
        rewards[t].reshape(-1)[rows] = outputs[REWARD_KEY]
        positions, is_ended = spec.locate_next(values, outputs, m, t)
        ids, row_weights = spec.states.find_corners(positions)
        ids[is_ended] = S - 1
        next_ids[t].reshape(-1, C)[rows] = ids
        if C > 1:
            weights[t].reshape(-1, C)[rows] = row_weights
    return NextStates(next_ids, weights), rewards


def _make_transitions(
    spec: StepSpec, next_states: list[NextStates], event_probs: EventProbs, allowed: Mask
) -> SparseTransitions:
    """Make the sparse transitions of models whose next states differ."""
    T, pairs, blocks = spec.count_times("step", "event_probs"), np.flatnonzero(allowed), []
    state, action = np.nonzero(allowed)
    for t, (m, (ids, weights)) in product(range(T), enumerate(next_states)):
        p = at_time(event_probs.probs, t)[event_probs.get_ids(t, pairs), :, m, None]
        if spec.states.n_corners > 1:
            p = p * at_time(weights, t)[state, action]
        i, w, c = np.nonzero(p)
        next_state, ones = at_time(ids, t)[state[i], action[i], w, c], np.ones_like(i)
        blocks.append((m * ones, t * ones, state[i], action[i], next_state, p[i, w, c]))
    columns = map(np.concatenate, zip(*blocks, strict=True))
    entries = dict(zip(ENTRY_ROLES, columns, strict=True))
    if T == 1:
        del entries["time"]
    shape = (spec.n_models, *allowed.shape)
    return entries_to_transitions(CoordinateEntries(entries, shape, T), "auto")
