"""Problems on the device: layouts, transfers, and the arrays that stay there."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from mmdp.core import timing
from mmdp.core.errors import MemoryLimitError, Remedy
from mmdp.core.kernels.array_cache import ArrayCache
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.problem import PolicyTable, Problem
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.shapes import Array, IndexArray, IntArray
from mmdp.core.text import format_bytes, pluralize

MODEL_AXIS = "models"  # the axis of devices that models are spread over

Traced = Any  # an array on the device, or its stand-in while jax compiles
HostArray = npt.NDArray[np.generic]


class ProblemArrays(NamedTuple):
    """A problem on the device (see the package's table); p, r and allowed begin with T or 1."""

    p: Traced
    next_states: Traced | None  # (R, L) next states; None: every row has all of them, in order
    part_rows: Traced | None  # (R,) row s * A + a of each part; None: rows are whole
    r: Traced  # (S, A, M); (R, W) if events pay the same in all models
    allowed: Traced  # (S, A)
    initial: Traced  # as terminal
    weights: Traced  # (M,)
    discount: Traced
    terminal: Traced  # (S, M)
    distribution_id: Traced | None = None  # (T or 1, R) of shared events; None: one distribution
    corner_weights: Traced | None = None  # (T or 1, R, L) of the corners of shared events; None: 1


@contextlib.contextmanager
def enable_float64() -> Iterator[None]:
    """Let jax use 64-bit numbers inside the block; its settings outside stay the same."""
    namespace: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    with namespace.enable_x64(True):
        yield


def _on_jax_event(event: str, duration_secs: float, **_: object) -> None:
    """Record how long jax took to trace, lower and compile a function."""
    if event.startswith("/jax/core/compile/"):
        timing.add_compile_seconds(duration_secs)
    if event.endswith("trace_duration") and duration_secs > ANNOUNCE_SECONDS:
        timing.notify_compilation()


ANNOUNCE_SECONDS = (
    0.02  # seconds of tracing after which compiling takes long enough to be announced
)
jax.monitoring.register_event_duration_secs_listener(_on_jax_event)


# ------------------------------------------------------------------ transfers
def to_policy_table(policy: PolicyTable | None) -> PolicyTable | None:
    """Convert a policy to 32-bit actions or 64-bit probabilities."""
    if policy is None:
        return None
    return np.asarray(policy, dtype=np.float64 if is_randomized(policy) else np.int32)


def get_device_memory(device: jax.Device) -> float:
    """Return the bytes that a device can hold; infinite if it does not say."""
    return float((device.memory_stats() or {}).get("bytes_limit", np.inf))


class DevicePlacement(NamedTuple):
    """The devices that the models are divided over; None: jax's default device.

    ``longest``: the most models that a process brings, if the devices are those of several.
    """

    devices: tuple[jax.Device, ...] | None = None
    max_local_models: int | None = None

    @property
    def local_device(self) -> jax.Device:
        """A device of this process."""
        own_devices = [
            device for device in self.devices or () if device.process_index == jax.process_index()
        ]
        return own_devices[0] if own_devices else jax.local_devices()[0]

    @property
    def free_memory(self) -> float:
        """The bytes that a device has left; infinite if it does not say."""
        stats = self.local_device.memory_stats() or {}
        return float(stats.get("bytes_limit", np.inf) - stats.get("bytes_in_use", 0))

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The devices in a row, if there are several."""
        if self.devices is None or len(self.devices) == 1:
            return None
        return jax.sharding.Mesh(np.array(self.devices), (MODEL_AXIS,))

    def check_memory(self, problem: Problem, extra_per_model: int = 0) -> None:
        """Raise MemoryLimitError if a device cannot hold the models with these extra numbers."""
        n_models, storage = -(-problem.n_models // len(self.devices or [1])), problem.storage
        if isinstance(storage, ExogenousEvents):
            event_rewards = self.get_event_rewards(problem)
            numbers_per_model = 0 if event_rewards is not None else math.prod(problem.r.shape[:3])
            shared_bytes = sum(
                array.nbytes
                for array in (*storage.get_arrays(), event_rewards)
                if array is not None
            )
        else:
            numbers_per_model, shared_bytes = problem.p[..., 0].size, 0
        size, capacity = (
            8 * n_models * (numbers_per_model + extra_per_model) + shared_bytes,
            get_device_memory(self.local_device),
        )
        if size > capacity:
            raise MemoryLimitError(
                f"{pluralize(n_models, 'model')} would take {format_bytes(size)} on a device, "
                f"which has {format_bytes(int(capacity))}",
                [Remedy("backend", "numba", verb="use"), "spread the models over more devices"],
            )

    def get_event_rewards(self, problem: Problem) -> Array | None:
        """Return the event rewards (T or 1, S, A, W) if the device holds these, else None."""
        r = problem.r
        return r.reward if isinstance(r, EventRewards) and self.mesh is None else None

    def put(self, array: HostArray | None, *, by_model: bool = False) -> Traced:
        """Copy an array to the device; if it is ``by_model``, several devices divide the last axis.

        That is padded with zeros. Of several processes each brings its own models, and all bring
        the same other arrays.
        """
        if array is None:
            return None
        array, mesh = np.ascontiguousarray(array), self.mesh
        if mesh is None:
            return jax.device_put(array, self.devices and self.devices[0])
        spec: list[str | None] = [None] * array.ndim
        shape, n_local_devices = list(array.shape), mesh.local_mesh.size
        if by_model:
            n_models = self.max_local_models or shape[-1]
            n_padded = -(-n_models // n_local_devices) * n_local_devices
            if n_padded > shape[-1]:
                width = [*[(0, 0)] * (array.ndim - 1), (0, n_padded - shape[-1])]
                array = np.pad(array, width)
            spec[-1], shape[-1] = MODEL_AXIS, n_padded * mesh.size // n_local_devices
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.make_array_from_process_local_data(sharding, array, tuple(shape))

    def fetch(self, array: Traced, n_models: int | None = None) -> Traced:
        """Copy an array to the host; only the first ``n_models`` of this process if given."""
        if n_models is None or array.is_fully_addressable:
            joined = np.array(array)
        else:
            shards = sorted(array.addressable_shards, key=lambda shard: shard.index[-1].start)
            joined = np.concatenate([np.asarray(shard.data) for shard in shards], axis=-1)
        return joined[..., :n_models]


# ------------------------------------------------------------------ what stays on the device
class DeviceArrays:
    """The arrays of a prepared problem on the device; transitions are copied once for a model."""

    _caches = ArrayCache[tuple[dict[str, Any], dict[str, Any]]]()  # by probabilities, placement

    def __init__(self, placement: DevicePlacement, problem: Problem) -> None:
        self.placement, self.problem = placement, problem
        storage = problem.storage
        probs = storage.probs if isinstance(storage, ExogenousEvents) else problem.p
        self.transitions: dict[str, Traced]  # fields of ProblemArrays
        self.cached: dict[str, tuple[object, Traced]]  # on the host, on the device
        self.transitions, self.cached = self._caches.get_or_make(probs, placement, lambda: ({}, {}))

    def copy_cache(self) -> DeviceArrays:
        """Return a copy for a problem with other numbers; the transitions are shared."""
        clone = copy.copy(self)
        clone.cached = dict(self.cached)
        return clone

    def get_or_put(self, name: str, array: object, put_array: Callable[[], Traced]) -> Traced:
        """Return the array on the device; call ``put_array`` if it is not there yet."""
        host, device = self.cached.get(name, (None, None))
        if host is not array:
            device = put_array()
            self.cached[name] = (array, device)
        return device

    def get_arrays(self, problem: Problem) -> ProblemArrays:
        """Return a problem on the device with the transitions that are there."""
        x, put, get_or_put = problem, self.placement.put, self.get_or_put

        def put_rewards(event_rewards: Array | None) -> Traced:
            if event_rewards is None:
                return put(np.asarray(x.r), by_model=True)
            return put(event_rewards.reshape(len(event_rewards), -1, event_rewards.shape[3]))

        if not self.transitions:
            e = self.problem.storage
            if sum(array.nbytes for array in e.get_arrays()) > self.placement.free_memory:
                for arrays in list(self._caches.items.values()):  # of other models
                    arrays[0].clear()
                    arrays[1].clear()
            self.transitions |= (
                self._put_events(e) if isinstance(e, ExogenousEvents) else self._put_transitions()
            )
        return ProblemArrays(
            **self.transitions,
            r=get_or_put("r", x.r, lambda: put_rewards(self.placement.get_event_rewards(x))),
            allowed=get_or_put("allowed", x.allowed, lambda: put(x.allowed)),
            initial=get_or_put(
                "initial",
                x.initial,
                lambda: put(np.broadcast_to(x.initial, x.terminal.shape), by_model=True),
            ),
            weights=get_or_put("weights", x.weights, lambda: put(x.local_weights, by_model=True)),
            discount=np.float64(x.discount),
            terminal=get_or_put("terminal", x.terminal, lambda: put(x.terminal, by_model=True)),
        )

    def _put_events(self, events: ExogenousEvents) -> dict[str, Traced]:
        """Copy next states (T or 1, R, L) and event probs (T or 1, K, W, M) to the device."""
        put, rows, (T, *_) = (
            self.placement.put,
            events.shape[1] * events.shape[2],
            events.next_states.shape,
        )
        ids, weights = events.distribution_id, events.corner_weights
        return {
            "p": put(events.probs, by_model=True),
            "next_states": put(events.next_states.reshape(T, rows, -1)),
            "part_rows": None,
            "distribution_id": put(ids if ids is None else ids.reshape(-1, rows)),
            "corner_weights": put(
                weights if weights is None else weights.reshape(-1, rows, events.max_row_length)
            ),
        }

    def _put_transitions(self) -> dict[str, Traced]:
        """Copy the tables to the device as rows (T or 1, R, L, M) of one length."""
        x, put = self.problem, self.placement.put
        entry, next_states, part_rows = (put(array) for array in _pad_pattern(x))
        if entry is None:
            length = x.n_states if next_states is None else next_states.shape[1]
            p = put(x.p.reshape(len(x.p), -1, length, x.p.shape[2]), by_model=True)
        else:
            p = _pad_rows(put(x.p, by_model=True), entry)
        return {"p": p, "next_states": next_states, "part_rows": part_rows}


def shard_over_models(
    mesh: jax.sharding.Mesh | None,
    function: Callable[..., Traced],
    in_specs: object,
    out_specs: object,
) -> Callable[..., Traced]:
    """Run a function as it is, or on several devices, on each with its own models.

    ``in_specs`` and ``out_specs`` are their shardings: ``REPLICATED`` or ``model_spec(axis)``.
    """
    if mesh is None:
        return function
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def model_spec(axis: int) -> jax.sharding.PartitionSpec:
    """Return the sharding of an array whose axis number ``axis`` has the models."""
    return jax.sharding.PartitionSpec(*[None] * axis, MODEL_AXIS)


REPLICATED = jax.sharding.PartitionSpec()


PROBLEM_SPECS = ProblemArrays(  # how the arrays of a problem lie on several devices
    p=model_spec(3),
    next_states=REPLICATED,
    part_rows=REPLICATED,
    r=model_spec(3),
    allowed=REPLICATED,
    initial=model_spec(1),
    weights=model_spec(0),
    discount=REPLICATED,
    terminal=model_spec(1),
    distribution_id=REPLICATED,
    corner_weights=REPLICATED,
)


def _pad_pattern(
    problem: Problem,
) -> tuple[IndexArray | None, IntArray | None, IntArray | None]:
    """Pad the rows of the sparse tables to one length; split long rows if padding costs much.

    Return the entries (R, L) of the tables, nnz for padding, or None if they are in this order
    already; and next_states and part_rows of ProblemArrays.
    """
    if problem.is_dense:
        return None, None, None
    lengths = np.diff(problem.indptr)
    nnz, length = len(problem.indices), int(lengths.max(initial=1))
    if len(lengths) * length > 1.5 * nnz:
        length = max(1, -(-nnz // max(1, len(lengths))))
    n_parts = np.maximum(1, -(-lengths // length))
    part_rows = np.repeat(np.arange(len(lengths)), n_parts)
    part_number = np.arange(len(part_rows)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
    position = (part_number * length)[:, None] + np.arange(length)
    is_used = position < lengths[part_rows][:, None]
    entry = np.where(is_used, problem.indptr[part_rows][:, None] + position, nnz)
    next_states = np.append(problem.indices, 0)[entry].astype(np.int32)
    is_unsplit = len(part_rows) == len(lengths)
    return (
        None if is_used.all() else entry,
        next_states,
        None if is_unsplit else part_rows.astype(np.int32),
    )


@jax.jit
def _pad_rows(p: Traced, entry: Traced) -> Traced:
    """Arrange p (T or 1, nnz, M) in rows (T or 1, R, L, M) of one length, padded with zeros."""
    padded = jnp.take(p, entry.reshape(-1), axis=1, mode="fill", fill_value=0.0)
    return padded.reshape(p.shape[0], *entry.shape, p.shape[2])
