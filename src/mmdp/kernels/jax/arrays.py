"""Problems on the device: layouts, transfers, and what a plan holds there."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from mmdp import clock
from mmdp.errors import MemoryLimitError, Remedy
from mmdp.kernels.events import Events
from mmdp.kernels.problem import IntArray, Problem
from mmdp.kernels.rewards import ByEvent
from mmdp.words import counted, readable_bytes

MODELS = "models"  # the axis of devices that models are spread over

Traced = Any  # an array on the device, or its stand-in while jax compiles


class Arrays(NamedTuple):
    """A problem on the device (see the package's table); p, r and allowed begin with T or 1."""

    p: Traced
    after: Traced | None  # (R, L) next states; None: every row has all of them, in order
    owner: Traced | None  # (R,) row s * A + a of each part; None: rows are whole
    r: Traced  # (S, A, M), wide: (M, S, A, 1); (R, W) if events pay the same in all models
    allowed: Traced  # (S, A)
    initial: Traced  # as terminal
    weights: Traced  # (M,)
    discount: Traced
    terminal: Traced  # (S, M), wide: (M, S, 1)
    kind: Traced | None = None  # (T or 1, R) of shared events; None: all rows are of one kind
    shares: Traced | None = None  # (T or 1, R, L) of the corners of shared events; None: 1


@contextlib.contextmanager
def double() -> Iterator[None]:
    """Inside, jax has 64-bit numbers; its settings outside stay as they are."""
    room: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    with room.enable_x64(True):
        yield


def _hear(event: str, duration_secs: float, **_: object) -> None:
    """jax reports how long it took to trace, lower and compile a function."""
    if event.startswith("/jax/core/compile/"):
        clock.add(duration_secs)
    if event.endswith("trace_duration") and duration_secs > LARGE:
        clock.announce()


LARGE = 0.02  # seconds of tracing after which compiling takes long enough to be announced
jax.monitoring.register_event_duration_secs_listener(_hear)


def _padded_to(array: Any, axis: int, size: int) -> Any:
    """The array padded with zeros at the end of ``axis``."""
    width = [(0, 0)] * array.ndim
    width[axis] = (0, size - array.shape[axis])
    return np.pad(array, width) if width[axis][1] else array


# ------------------------------------------------------------------ transfers
def room_on(device: Any) -> float:
    """Bytes that a device can hold; infinite if it does not say."""
    return float((device.memory_stats() or {}).get("bytes_limit", np.inf))


class Place(NamedTuple):
    """The devices that the models are spread over; None: jax's default one.

    ``longest``: the most models that a process brings, if the devices are those of several.
    """

    devices: tuple[Any, ...] | None = None
    longest: int | None = None

    @property
    def here(self) -> Any:
        """A device of this process."""
        mine = [x for x in self.devices or () if x.process_index == jax.process_index()]
        return mine[0] if mine else jax.local_devices()[0]

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The devices in a row, if there are several."""
        if self.devices is None or len(self.devices) == 1:
            return None
        return jax.sharding.Mesh(np.array(self.devices), (MODELS,))

    def check_room(self, problem: Problem, more: int = 0) -> None:
        """Refuse models that a device cannot hold, each with ``more`` numbers."""
        models, e = -(-problem.n_models // len(self.devices or [1])), problem.storage
        if isinstance(e, Events):
            paid = self.pays(problem)
            numbers = 0 if paid is not None else math.prod(problem.r.shape[:3])
            shared = sum(y.nbytes for y in (*e.arrays(), paid) if y is not None)
        else:
            numbers, shared = problem.p[..., 0].size, 0
        size, room = 8 * models * (numbers + more) + shared, room_on(self.here)
        if size > room:
            raise MemoryLimitError(
                f"{counted(models, 'model')} would take {readable_bytes(size)} on a device, which "
                f"has {readable_bytes(int(room))}",
                [Remedy("backend", "numba", do="use"), "spread the models over more devices"],
            )

    def pays(self, problem: Problem) -> Any:
        """(T or 1, S, A, W) what events pay in all models, if that is what a device holds."""
        r = problem.r
        return r.reward if isinstance(r, ByEvent) and self.mesh is None else None

    def put(self, array: Any, models: int | None = None) -> Any:
        """Copy to the device; over several, the axis ``models`` is padded with zeros and spread.

        Of several processes each brings its own models, and all bring the same other arrays.
        """
        if array is None:
            return None
        array, mesh = np.ascontiguousarray(array), self.mesh
        if mesh is None:
            return jax.device_put(array, self.devices and self.devices[0])
        spec: list[str | None] = [None] * array.ndim
        if models is not None:
            spec[models] = MODELS
            array = _padded_to(array, models, self._width(array.shape[models], mesh))
        shape = list(array.shape)
        if models is not None:
            shape[models] *= mesh.size // mesh.local_mesh.size
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.make_array_from_process_local_data(sharding, array, tuple(shape))

    def _width(self, models: int, mesh: jax.sharding.Mesh) -> int:
        """Models in this process with those added that are empty: the same for each device."""
        here = mesh.local_mesh.size
        return -(-(self.longest or models) // here) * here

    def fetch(self, array: Any, count: int | None = None, axis: int = -1) -> Any:
        """Copy to the host; of an array by model, the first ``count`` models of this process."""
        if count is None or array.is_fully_addressable:
            whole = np.array(array)
        else:
            shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start)
            whole = np.concatenate([np.asarray(shard.data) for shard in shards], axis=axis)
        return whole if count is None else np.moveaxis(np.moveaxis(whole, axis, 0)[:count], 0, axis)


# ------------------------------------------------------------------ what stays on the device
class Held:
    """The arrays of a plan on the device: the transitions once, the others while they are used."""

    def __init__(self, place: Place, problem: Problem) -> None:
        self.place, self.problem = place, problem
        self.layouts: dict[bool, tuple[Any, Any, Any]] = {}  # p, after, owner; wide or not
        self.events: dict[str, Any] = {}  # parts of Arrays, if the models share events
        self.others: dict[tuple[str, bool], tuple[Any, Any]] = {}  # on the host, on the device

    def but(self) -> Held:
        """A copy for a plan with other numbers; the transitions are shared."""
        other = copy.copy(self)
        other.others = dict(self.others)
        return other

    def kept(self, name: str, array: Any, make: Callable[[], Any], wide: bool = False) -> Any:
        """The array on the device, where ``make`` puts it unless it is there."""
        host, device = self.others.get((name, wide), (None, None))
        if host is not array:
            device = make()
            self.others[name, wide] = (array, device)
        return device

    def arrays(self, problem: Problem, wide: bool = False) -> Arrays:
        """The problem on the device; its transitions are those of the plan."""
        x, put, kept = problem, self.place.put, partial(self.kept, wide=wide)

        def placed(array: Any, axis: int) -> Any:
            """The array with models last, or (wide) at ``axis`` and an axis for policies last."""
            if wide:
                return put(np.moveaxis(array, -1, axis)[..., None], axis)
            return put(array, array.ndim - 1)

        def rewards(paid: Any) -> Any:
            if paid is None:
                return placed(np.asarray(x.r), 1)
            return put(paid.reshape(len(paid), -1, paid.shape[3]))

        events = self._events() if isinstance(x.storage, Events) else None
        moves = events or dict(zip(("p", "after", "owner"), self._transitions(wide), strict=True))
        return Arrays(
            **moves,
            r=kept("r", x.r, lambda: rewards(self.place.pays(x))),
            allowed=kept("allowed", x.allowed, lambda: put(x.allowed)),
            initial=kept(
                "initial",
                x.initial,
                lambda: placed(np.broadcast_to(x.initial, x.terminal.shape), 0),
            ),
            weights=kept("weights", x.weights, lambda: put(x.weights_here, 0)),
            discount=np.float64(x.discount),
            terminal=kept("terminal", x.terminal, lambda: placed(x.terminal, 0)),
        )

    def _events(self) -> dict[str, Any]:
        """Next states (T or 1, R, L) and chances (T or 1, K, W, M)."""
        if not self.events:
            e, put = self.problem.storage, self.place.put
            assert isinstance(e, Events)
            rows, (T, *_) = e.shape[1] * e.shape[2], e.after.shape
            self.events |= {
                "p": put(e.chance, models=3), "after": put(e.after.reshape(T, rows, -1)),
                "owner": None,
                "kind": put(e.kind if e.kind is None else e.kind.reshape(-1, rows)),
                "shares": put(
                    e.coefficient
                    if e.coefficient is None
                    else e.coefficient.reshape(-1, rows, e.longest)
                ),
            }  # fmt: skip
        return self.events

    def _transitions(self, wide: bool) -> tuple[Any, Any, Any]:
        if False not in self.layouts:
            x, put = self.problem, self.place.put
            entry, after, owner = (put(part) for part in _pattern(x))
            if entry is None:
                length = x.n_states if after is None else after.shape[1]
                p = put(x.p.reshape(len(x.p), -1, length, x.p.shape[2]), models=3)
            else:
                p = _padded(put(x.p, models=2), entry)
            self.layouts[False] = p, after, owner
        if wide not in self.layouts:
            p, after, owner = self.layouts[False]
            self.layouts[True] = jnp.moveaxis(p, -1, 1), after, owner
        return self.layouts[wide]


def spread(
    mesh: jax.sharding.Mesh | None, run: Callable[..., Any], ins: Any, outs: Any
) -> Callable[..., Any]:
    """``run`` as it is; over several devices, on each with its own models.

    ``ins`` and ``outs`` say how arrays lie there: ``EVERYWHERE`` or ``by_model(axis)``.
    """
    if mesh is None:
        return run
    return jax.shard_map(run, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)


def by_model(axis: int) -> jax.sharding.PartitionSpec:
    """Models are axis number ``axis``, and spread."""
    return jax.sharding.PartitionSpec(*[None] * axis, MODELS)


EVERYWHERE = jax.sharding.PartitionSpec()


def arrays_by_model(wide: bool) -> Arrays:
    """How the arrays of a problem lie on several devices."""
    return Arrays(
        p=by_model(1 if wide else 3), after=EVERYWHERE, owner=EVERYWHERE,
        r=by_model(1 if wide else 3), allowed=EVERYWHERE, initial=by_model(0 if wide else 1),
        weights=by_model(0), discount=EVERYWHERE, terminal=by_model(0 if wide else 1),
        kind=EVERYWHERE, shares=EVERYWHERE,
    )  # fmt: skip


class _Pattern(NamedTuple):
    """Rows of one length: entry (R, L) of the pattern, nnz for padding; see Arrays."""

    entry: npt.NDArray[np.int64] | None  # None: entries are in this order already
    after: IntArray | None
    owner: IntArray | None


def _pattern(problem: Problem) -> _Pattern:
    """The sparse pattern as padded rows; rows over the mean are split if padding costs."""
    if problem.dense:
        return _Pattern(None, None, None)
    lengths = np.diff(problem.indptr)
    nnz, length = len(problem.indices), int(lengths.max(initial=1))
    if len(lengths) * length > 1.5 * nnz:
        length = max(1, -(-nnz // max(1, len(lengths))))
    parts = np.maximum(1, -(-lengths // length))
    owner = np.repeat(np.arange(len(lengths)), parts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    within = (nth * length)[:, None] + np.arange(length)
    used = within < lengths[owner][:, None]
    entry = np.where(used, problem.indptr[owner][:, None] + within, nnz)
    after = np.append(problem.indices, 0)[entry].astype(np.int32)
    whole = len(owner) == len(lengths)
    return _Pattern(None if used.all() else entry, after, None if whole else owner.astype(np.int32))


@jax.jit
def _padded(p: Traced, entry: Traced) -> Traced:
    """p (T or 1, nnz, M) as rows (T or 1, R, L, M) of one length, zero beyond a row's end."""
    found = jnp.take(p, entry.reshape(-1), axis=1, mode="fill", fill_value=0.0)
    return found.reshape(p.shape[0], *entry.shape, p.shape[2])
