"""Probabilities as they come: below 0 by rounding, or with the digits that someone printed."""

from __future__ import annotations

import numpy as np

from mmdp.core.shapes import Array

SUM_TOLERANCE = 1e-8  # sums of probabilities may differ from 1 by this
PRINTED_TOLERANCE = 1e-5  # and by this if they can be divided by their sum: six digits, or 32 bits
NEGATIVE_TOLERANCE = 1e-12  # a number above minus this is 0


def clip_rounding(p: Array) -> Array:
    """Replace probabilities that rounding left just below 0 by 0.

    >>> clip_rounding(np.array([-2e-16, 1.0])).tolist()
    [0.0, 1.0]
    >>> clip_rounding(np.array([-0.1, 1.1])).tolist()
    [-0.1, 1.1]
    """
    if not p.min(initial=0.0) < 0:
        return p
    return np.where((p < 0) & (p > -NEGATIVE_TOLERANCE), 0.0, p)


def rescale_sums(p: Array, sums: Array) -> Array:
    """Divide probabilities by their sums where these differ from 1 only by printed digits."""
    deviation = np.abs(sums - 1.0)
    is_printed = (deviation > SUM_TOLERANCE) & (deviation <= PRINTED_TOLERANCE)
    return p / np.where(is_printed, sums, 1.0) if is_printed.any() else p


def normalize(p: Array, axis: int = -1) -> Array:
    """Clip and rescale distributions along an axis; larger errors stay as they are.

    >>> normalize(np.full(3, 0.3333333)).sum(), normalize(np.full(3, 0.3)).tolist()
    (np.float64(1.0), [0.3, 0.3, 0.3])
    """
    p = clip_rounding(p)
    return rescale_sums(p, p.sum(axis=axis, keepdims=True))
