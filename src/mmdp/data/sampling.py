"""Random numbers: independent generators from one seed, and Dirichlet rows."""

from __future__ import annotations

import numpy as np

from mmdp.core.errors import check_memory
from mmdp.core.shapes import Array, IndexArray

BLOCK_SIZE = 1_000_000  # numbers that are sampled at a time


def spawn_generators(seed: int | np.integer | None, count: int) -> list[np.random.Generator]:
    """Make independent random generators from one seed.

    Train, test and log have separate streams, so that the size of one set does not change the
    others.
    """
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def sample_dirichlet_rows(
    alpha: Array,
    indptr: IndexArray,
    n_samples: int,
    rng: np.random.Generator,
    kept: slice = slice(None),
) -> Array:
    """Sample Dirichlet(alpha) rows, the entries indptr[i]:indptr[i + 1], n_samples times.

    Rows are sampled in blocks, so that no second large array is needed.
    ``kept``: the slice of samples to return.
    Returns: (nnz, number kept).

    >>> rng = np.random.default_rng(0)
    >>> p = sample_dirichlet_rows(np.array([2.0, 1.0, 5.0]), np.array([0, 2, 3]), 1000, rng)
    >>> p[2].min(), bool(abs(p[0].mean() - 2 / 3) < 0.03)
    (np.float64(1.0), True)
    """
    n_kept = len(range(n_samples)[kept])
    check_memory(
        8 * len(alpha) * n_kept,
        f"{n_kept:,} models of {len(alpha):,} transitions",
        ["sample fewer models"],
    )
    values = np.empty((len(alpha), n_kept))
    row_lengths = np.diff(indptr)
    rows = np.flatnonzero(row_lengths)
    rows_per_block = max(1, BLOCK_SIZE // max(1, n_samples * int(row_lengths.max(initial=1))))
    for start in range(0, len(rows), rows_per_block):
        block_rows = rows[start : start + rows_per_block]
        low, high = int(indptr[block_rows[0]]), int(indptr[block_rows[-1] + 1])
        samples = rng.standard_gamma(alpha[low:high, None], (high - low, n_samples))
        row_starts = indptr[block_rows] - low
        sums = np.add.reduceat(samples, row_starts, axis=0)
        for row, m in np.argwhere(sums <= 0):  # all gamma variates underflow: sample a vertex
            row_alpha = alpha[low:high][row_starts[row] :][: row_lengths[block_rows[row]]]
            vertex = rng.choice(len(row_alpha), p=row_alpha / row_alpha.sum())
            samples[row_starts[row] + vertex, m] = sums[row, m] = 1.0
        samples /= np.repeat(sums, row_lengths[block_rows], axis=0)
        values[low:high] = samples[:, kept]
    return values
