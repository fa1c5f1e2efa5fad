"""Probabilities as they come: below 0 by rounding, or with the digits that someone printed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SUM_TOLERANCE = 1e-8  # sums of probabilities may differ from 1 by this
PRINTED = 1e-5  # and by this if they can be divided by their sum: six digits, or 32 bits
ROUNDING = 1e-12  # a number above minus this is 0


def clip(p: Array) -> Array:
    """Set to 0 what rounding left below 0; the same array if there is nothing to do.

    >>> clip(np.array([-2e-16, 1.0])).tolist(), clip(np.array([-0.1, 1.1])).tolist()
    ([0.0, 1.0], [-0.1, 1.1])
    """
    if not p.min(initial=0.0) < 0:
        return p
    return np.where((p < 0) & (p > -ROUNDING), 0.0, p)


def scale(p: Array, sums: Array) -> Array:
    """Divide by the sums that differ from 1 as far as printed digits explain."""
    off = np.abs(sums - 1.0)
    near = (off > SUM_TOLERANCE) & (off <= PRINTED)
    return p / np.where(near, sums, 1.0) if near.any() else p


def normalize(p: Array, axis: int = -1) -> Array:
    """Clip and scale distributions along an axis; what is further off stays as it is.

    >>> normalize(np.full(3, 0.3333333)).sum(), normalize(np.full(3, 0.3)).tolist()
    (np.float64(1.0), [0.3, 0.3, 0.3])
    """
    p = clip(p)
    return scale(p, p.sum(axis=axis, keepdims=True))
