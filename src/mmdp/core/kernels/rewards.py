"""Rewards: tables by model, or by event and the same in all models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.shapes import AnyArray, AnyIntArray, Array, IntArray, Mask

Index = int | np.integer | AnyIntArray | slice

BLOCK_SIZE = 2**22  # numbers of r that are computed at a time


class EventRewards:
    """Rewards by event, the same in all models: r_m(s, a) = sum_w probs_m(w) reward(s, a, w).

    It stands for an array r (T or 1, S, A, M) and computes what is asked for: ``r[t]``,
    ``r[t, s, a]`` or ``r[t, s, a, m]``, with numbers or arrays of them. Made by
    :meth:`ExogenousEvents.make_rewards`.
    """

    def __init__(self, reward: Array, probs: Array, distribution_id: IntArray | None) -> None:
        self.reward, self.probs, self.distribution_id = reward, probs, distribution_id
        arrays = [x for x in (reward, probs, distribution_id) if x is not None]
        self.shape = (max(map(len, arrays)), *reward.shape[1:3], probs.shape[3])

    def __len__(self) -> int:
        return self.shape[0]

    def __neg__(self) -> EventRewards:
        return EventRewards(-self.reward, self.probs, self.distribution_id)

    def __getitem__(self, index: Any) -> Array:
        t, *rest = index if isinstance(index, tuple) else (index,)
        if not rest:
            out = np.empty(self.shape[1:])
            for states, block in self.iter_blocks([t]):
                out[states] = block[0]
            return out
        t, s, a, *m = np.broadcast_arrays(t, *rest)
        time_index = [np.minimum(t, len(x) - 1) for x in (self.reward, self.probs)]
        reward, ids = self.reward[time_index[0], s, a], self._get_distribution_id(t, s, a)
        if m:
            out = (reward * self.probs[time_index[1], ids, :, m[0]]).sum(axis=-1)
            return np.asarray(out)
        K = self.probs.shape[1]
        return expect_events(
            reward, self.probs.reshape(-1, *self.probs.shape[2:]), time_index[1] * K + ids
        )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.stack([self[t] for t in range(len(self))])

    def iter_blocks(self, times: Sequence[int] | None = None) -> Iterator[tuple[slice, Array]]:
        """Yield (states, r[:, states]) for blocks of states, at these times."""
        all_times = range(len(self)) if times is None else times
        S, A, M = self.shape[1:]
        size = max(1, BLOCK_SIZE // (len(all_times) * A * M))
        for start in range(0, S, size):
            states = slice(start, min(start + size, S))
            s, a = np.ogrid[states, :A]
            yield states, np.stack([self[t, s, a] for t in all_times])

    def matches(self, events: object) -> bool:
        """Return whether these rewards belong to these events."""
        return all(
            np.array_equal(getattr(self, name), getattr(events, name, ()))
            for name in ("probs", "distribution_id")
        )

    def compact(self) -> Rewards:
        """Return itself, or its table if there are no more models than events."""
        return self if self.reward.size < math.prod(self.shape) else np.asarray(self)

    def _get_distribution_id(self, t: AnyIntArray, s: AnyIntArray, a: AnyIntArray) -> AnyIntArray:
        if self.distribution_id is None:
            return np.zeros(np.shape(s), np.int32)
        return self.distribution_id[np.minimum(t, len(self.distribution_id) - 1), s, a]


def expect_events(x: Array, probs: Array, distribution_id: AnyIntArray) -> Array:
    """Compute (..., M) the expectation of x (..., W) over events with probs (K, W, M)."""
    out = np.empty((*distribution_id.shape, probs.shape[2]))
    for k in np.unique(distribution_id):
        mask = distribution_id == k
        out[mask] = x[mask] @ probs[k]
    return out


Rewards = Array | EventRewards  # r (T or 1, S, A, M)


def at_time(array: AnyArray | Rewards | list[Any], t: int) -> AnyArray:
    """Return the slice at time t of an array whose time axis may have length 1."""
    return array[t if len(array) > 1 else 0]


def iter_blocks(r: Rewards) -> Iterable[tuple[slice, Array]]:
    """Yield (states, r[:, states]): tables at once, event rewards in blocks of states."""
    return r.iter_blocks() if isinstance(r, EventRewards) else [(slice(None), r)]


def map_rewards(r: Rewards, function: Callable[[Array], Array]) -> Rewards:
    """Return the rewards of other models: ``function`` of the numbers (..., M) of r."""
    if isinstance(r, EventRewards):
        return EventRewards(r.reward, function(r.probs), r.distribution_id)
    return function(r)


def get_stored_array(r: Rewards) -> Array:
    """Return the stored array: the table, or the reward of each event."""
    return r.reward if isinstance(r, EventRewards) else r


def reorder_rewards(r: Rewards, states: AnyIntArray, actions: AnyIntArray) -> Rewards:
    """Reorder states and actions by these ids."""
    if isinstance(r, EventRewards):
        ids = None if r.distribution_id is None else r.distribution_id[:, states][:, :, actions]
        return EventRewards(r.reward[:, states][:, :, actions], r.probs, ids)
    return np.ascontiguousarray(r[:, states][:, :, actions])


def mask_rewards(r: Rewards, allowed: Mask) -> Rewards:
    """Set the rewards of actions that are not allowed (S, A) to 0."""
    x = get_stored_array(r)
    if not x[:, ~allowed].any():
        return r
    masked = np.where(allowed[..., None], x, 0.0)
    return (
        EventRewards(masked, r.probs, r.distribution_id) if isinstance(r, EventRewards) else masked
    )


def max_abs_rewards(r: Rewards) -> Array:
    """Return (M,) the largest |r| of each model."""
    block_max = [
        np.maximum(y.max(axis=(0, 1, 2)), -y.min(axis=(0, 1, 2))) for _, y in iter_blocks(r)
    ]
    return np.max(block_max, axis=0)
