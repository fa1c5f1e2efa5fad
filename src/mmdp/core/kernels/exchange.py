"""Exchange of a few numbers between processes, besides the sums of a pass."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils

from mmdp.core.errors import InputError, LostProcessError
from mmdp.core.shapes import AnyArray

if TYPE_CHECKING:
    from mmdp.core.kernels.problem import Problem

# fields that all shards must have in common
COMMON_FIELDS = (
    "states and actions",
    "transitions that are possible",
    "allowed",
    "initial",
    "weights",
    "discount",
)

CONNECTION_ERROR_WORDS = (
    "gloo",
    "nccl",
    "unavailable",
    "connection",
    "socket",
    "deadline",
)  # in jax's messages


def gather_processes(values: npt.ArrayLike) -> AnyArray:
    """Return (n, ...) the values of all n processes; all must call this at the same point."""
    array = np.ascontiguousarray(values)
    with detect_lost_process():  # as bytes, because jax would turn 64-bit numbers into 32-bit ones
        raw = multihost_utils.process_allgather(np.frombuffer(array.tobytes(), np.uint8))
    gathered: AnyArray = np.asarray(raw).reshape(-1).view(array.dtype)
    return gathered.reshape(jax.process_count(), *array.shape)


@contextmanager
def detect_lost_process() -> Iterator[None]:
    """Turn a broken connection inside the block into LostProcessError."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        is_connection_error = any(word in str(error).lower() for word in CONNECTION_ERROR_WORDS)
        if jax.process_count() == 1 or isinstance(error, InputError) or not is_connection_error:
            raise
        raise LostProcessError(
            "another process of this solve has ended, so this one ends too; its own message says "
            f"why ({str(error).splitlines()[0][:160]})"
        ) from error


def check_shards(problem: Problem) -> None:
    """Raise InputError if the shards do not match these processes or one another."""
    x, shard = problem, problem.shard
    assert shard is not None
    index, count = jax.process_index(), jax.process_count()
    if (shard.shard_index, shard.n_shards) != (index, count):
        raise InputError(
            f"the model is {shard}, and this is process {index} of {count}",
            [
                "begin every process with mmdp.distributed.join_processes()",
                "load with shard=mmdp.distributed.process_shard()",
            ],
        )
    if jax.device_count() != count * jax.local_device_count():
        raise InputError("every process must have the same number of devices")
    next_state_arrays = [
        array for array in x.storage.get_arrays() if array.dtype.kind == "i"
    ]  # no table of events
    initial = [x.initial] if x.has_common_initial else []
    fields = ([x.allowed.shape], next_state_arrays, [x.allowed], initial, [x.weights], [x.discount])
    digests = gather_processes(np.array([_hash_arrays(field) for field in fields]))
    differs = (digests != digests[0]).any(axis=0)
    if differs.any():
        field_name = COMMON_FIELDS[int(differs.argmax())]
        raise InputError(
            f"the shards in the processes differ in their {field_name}; they must be shards of one "
            'model, and those of from_samples() need storage="dense"'
        )


def _hash_arrays(arrays: Sequence[npt.ArrayLike]) -> int:
    """Return a 32-bit checksum of arrays."""
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum
