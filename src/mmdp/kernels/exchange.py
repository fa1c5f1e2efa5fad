"""What processes exchange besides the sums of a pass: a few numbers, now and then."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils

from mmdp.errors import InputError, LostProcess

if TYPE_CHECKING:
    from mmdp.kernels.problem import Problem

# what all parts must have in common
COMMON = ("states and actions", "transitions that are possible", "allowed", "initial", "weights",
          "discount")  # fmt: skip

BROKEN = ("gloo", "nccl", "unavailable", "connection", "socket", "deadline")  # in jax's messages


def exchange(values: Any) -> npt.NDArray[Any]:
    """(n, ...) these values of every process, which all must call this at the same point."""
    array = np.ascontiguousarray(values)
    with together():  # as bytes, because jax would turn 64-bit numbers into 32-bit ones
        raw = multihost_utils.process_allgather(np.frombuffer(array.tobytes(), np.uint8))
    found: npt.NDArray[Any] = np.asarray(raw).reshape(-1).view(array.dtype)
    return found.reshape(jax.process_count(), *array.shape)


@contextmanager
def together() -> Iterator[None]:
    """Inside, a connection that breaks is a process that has ended."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        broken = any(word in str(error).lower() for word in BROKEN)
        if jax.process_count() == 1 or isinstance(error, InputError) or not broken:
            raise
        raise LostProcess(
            "another process of this solve has ended, so this one ends too; its own message says "
            f"why ({str(error).splitlines()[0][:160]})"
        ) from error


def check_parts(problem: Problem) -> None:
    """Refuse parts that are not those of these processes, or do not belong together."""
    x, part = problem, problem.part
    assert part is not None
    index, count = jax.process_index(), jax.process_count()
    if (part.i, part.n) != (index, count):
        raise InputError(
            f"the model is {part}, and this is process {index} of {count}",
            ["begin every process with mmdp.hosts.connected()", "load with part=mmdp.hosts.part()"],
        )
    if jax.device_count() != count * jax.local_device_count():
        raise InputError("every process must have the same number of devices")
    leads = tuple(y for y in x.storage.arrays() if y.dtype.kind == "i")  # no table of events
    initial = x.initial if x.same_start else None
    parts = (x.allowed.shape, leads, x.allowed, initial, x.weights, x.discount)
    seen = exchange(np.array([_digest(each) for each in parts]))
    different = (seen != seen[0]).any(axis=0)
    if different.any():
        what = COMMON[int(different.argmax())]
        raise InputError(
            f"the parts in the processes differ in their {what}; they must be parts of one "
            'model, and of from_draws() with storage="dense"'
        )


def _digest(value: Any) -> int:
    digest = hashlib.sha256()
    for each in value if isinstance(value, tuple) else (value,):
        digest.update(np.ascontiguousarray(each).tobytes())
    return int.from_bytes(digest.digest()[:4], "little")
