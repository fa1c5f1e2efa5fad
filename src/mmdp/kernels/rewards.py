"""Rewards: tables by model, or what each event earns in all models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

BLOCK = 2**22  # numbers of r that are computed at a time


class ByEvent:
    """Rewards by event, which all models share: r_m(s, a) = sum_w chance_m(w) reward(s, a, w).

    It stands for an array r (T or 1, S, A, M) and computes what is asked for: ``r[t]``,
    ``r[t, s, a]`` or ``r[t, s, a, m]``, with numbers or arrays of them. Made by
    :meth:`Events.rewards`.
    """

    def __init__(self, reward: Array, chance: Array, kind: npt.NDArray[np.int32] | None) -> None:
        self.reward, self.chance, self.kind = reward, chance, kind
        parts = [x for x in (reward, chance, kind) if x is not None]
        self.shape = (max(map(len, parts)), *reward.shape[1:3], chance.shape[3])

    def __len__(self) -> int:
        return self.shape[0]

    def __neg__(self) -> ByEvent:
        return ByEvent(-self.reward, self.chance, self.kind)

    def __getitem__(self, place: Any) -> Array:
        t, *where = place if isinstance(place, tuple) else (place,)
        if not where:
            found = np.empty(self.shape[1:])
            for states, block in self.blocks([t]):
                found[states] = block[0]
            return found
        t, s, a, *m = np.broadcast_arrays(t, *where)
        at = [np.minimum(t, len(x) - 1) for x in (self.reward, self.chance)]
        reward, kind = self.reward[at[0], s, a], self._kind(t, s, a)
        if m:
            found = (reward * self.chance[at[1], kind, :, m[0]]).sum(axis=-1)
            return np.asarray(found)
        K = self.chance.shape[1]
        return expected(reward, self.chance.reshape(-1, *self.chance.shape[2:]), at[1] * K + kind)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.stack([self[t] for t in range(len(self))])

    def blocks(self, times: Any = None) -> Iterator[tuple[slice, Array]]:
        """(states, r[:, states]) for all states, some at a time; at these times."""
        every = range(len(self)) if times is None else times
        S, A, M = self.shape[1:]
        size = max(1, BLOCK // (len(every) * A * M))
        for first in range(0, S, size):
            states = slice(first, min(first + size, S))
            s, a = np.ogrid[states, :A]
            yield states, np.stack([self[t, s, a] for t in every])

    def of(self, events: Any) -> bool:
        """Whether these are the events that are paid for."""
        mine: tuple[Any, Any] = self.chance, self.kind
        theirs: list[Any] = [getattr(events, name, None) for name in ("chance", "kind")]
        return all(np.array_equal(x, y) for x, y in zip(mine, theirs, strict=True))

    def smallest(self) -> Rewards:
        """Itself, or its table if there are no more models than events."""
        return self if self.reward.size < math.prod(self.shape) else np.asarray(self)

    def _kind(self, t: Any, s: Any, a: Any) -> Any:
        if self.kind is None:
            return np.zeros(np.shape(s), np.int32)
        return self.kind[np.minimum(t, len(self.kind) - 1), s, a]


def expected(x: Array, chance: Array, kind: Any) -> Array:
    """(..., M) sum_w chance_m(kind, w) x(w) of rows x (..., W), from chances (K, W, M)."""
    found = np.empty((*kind.shape, chance.shape[2]))
    for k in np.unique(kind):
        here = kind == k
        found[here] = x[here] @ chance[k]
    return found


Rewards = Array | ByEvent  # r (T or 1, S, A, M)


def at(array: npt.NDArray[Any] | Rewards | list[Any], t: int) -> npt.NDArray[Any]:
    """The slice at time t of an array whose time axis may have length 1 (the same at all times)."""
    result: npt.NDArray[Any] = array[t if len(array) > 1 else 0]
    return result


def blocks(r: Rewards) -> Iterable[tuple[slice, Array]]:
    """(states, r[:, states]) for all states: tables at once, what is computed some at a time."""
    return r.blocks() if isinstance(r, ByEvent) else [(slice(None), r)]


def mapped(r: Rewards, change: Callable[[Array], Array]) -> Rewards:
    """The rewards of other models: ``change`` of numbers (..., M) that r is linear in."""
    if isinstance(r, ByEvent):
        return ByEvent(r.reward, change(r.chance), r.kind)
    return change(r)


def held(r: Rewards) -> Array:
    """What is stored of them."""
    return r.reward if isinstance(r, ByEvent) else r


def reordered(r: Rewards, s: Any, a: Any) -> Rewards:
    """With states and actions in the order of these ids."""
    if isinstance(r, ByEvent):
        kind = None if r.kind is None else r.kind[:, s][:, :, a]
        return ByEvent(r.reward[:, s][:, :, a], r.chance, kind)
    return np.ascontiguousarray(r[:, s][:, :, a])


def within(r: Rewards, allowed: Mask) -> Rewards:
    """Without rewards of actions that are not allowed (S, A)."""
    x = held(r)
    if not x[:, ~allowed].any():
        return r
    left = np.where(allowed[..., None], x, 0.0)
    return ByEvent(left, r.chance, r.kind) if isinstance(r, ByEvent) else left


def sizes(r: Rewards) -> Array:
    """(M,) the largest |r| of each model."""
    ends = [np.maximum(y.max(axis=(0, 1, 2)), -y.min(axis=(0, 1, 2))) for _, y in blocks(r)]
    return np.max(ends, axis=0)
