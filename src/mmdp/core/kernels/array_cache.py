"""Results that belong to a large array, kept as long as the array lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from mmdp.core.shapes import AnyArray

T = TypeVar("T")


class ArrayCache(Generic[T]):
    """A few results of read-only arrays, the oldest dropped first.

    >>> import numpy as np
    >>> cache, array = ArrayCache[float](), np.arange(3.0)
    >>> cache.get_or_make(array, "sum", lambda: float(array.sum()))
    3.0
    >>> del array
    >>> len(cache.items)
    0
    """

    def __init__(self, max_items: int = 4) -> None:
        self.max_items = max_items
        self.items: dict[tuple[int, Hashable], T] = {}

    def get_or_make(self, array: AnyArray, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of an array under a key; call ``make`` if there is none."""
        full_key = id(array), key
        if full_key not in self.items:
            self.items[full_key] = make()
            weakref.finalize(array, self.items.pop, full_key, None)
            while len(self.items) > self.max_items:
                self.items.pop(next(iter(self.items)))
        return self.items[full_key]
