"""Random numbers of episodes: a hash of (seed, model, episode, counter), not a stream.

The same step of the same episode draws the same number under every policy, so policies are
compared on common random numbers. The world's counters begin at 0, those by which its models
change at ``SWITCH_STREAM``, the planner's at ``PLANNER_STREAM``. The functions take arrays; in
:mod:`mmdp.core.kernels.cpu.tree_search` they are compiled for numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels.problem import Problem
from mmdp.core.shapes import IndexArray

Keys = npt.NDArray[np.uint64]

PLANNER_STREAM = 1 << 32
SWITCH_STREAM = 1 << 31
GOLDEN_RATIO = (5**0.5 - 1) / 2
_U = np.uint64


def splitmix64(x: Any) -> Any:
    """Hash numbers of 64 bits (splitmix64)."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


def hash_bits(key: Any, counter: Any) -> Any:
    """Return 53 random bits that are a hash of this key and counter."""
    return splitmix64(key + (counter + _U(1)) * _U(0x9E3779B97F4A7C15)) >> _U(11)


def hash_uniform(key: Keys, counter: Any) -> Any:
    """Return numbers in [0, 1) that are a hash of these keys and counters."""
    return hash_bits(key, np.full_like(key, counter)) * 2.0**-53


def make_episode_keys(seed: int, models: IndexArray, episodes: IndexArray) -> Keys:
    """Return (n,) the random key of each episode in its model."""
    seeds = np.full(len(models), seed % 2**64, np.uint64)
    return splitmix64(
        splitmix64(splitmix64(seeds) + models.astype(np.uint64))
        + episodes.astype(np.uint64)
        + _U(1)
    )


def sample_initial_states(
    env: Problem, seed: int, models: IndexArray, episodes: IndexArray
) -> IndexArray:
    """Return (n,) the initial state of each episode.

    Steps of the golden ratio spread the episodes of a model evenly over the initial
    distribution, however many there are.
    """
    u = hash_uniform(make_episode_keys(seed, models, 0 * models), 0)
    u = (u + GOLDEN_RATIO * episodes) % 1.0
    cdf = np.cumsum(env.initial.T, axis=1)  # (M or 1, S)
    states = np.empty_like(models)
    columns = 0 * models if env.has_common_initial else models
    for m in np.unique(columns):
        mask = columns == m
        states[mask] = np.searchsorted(cdf[m], u[mask] * cdf[m, -1], side="right")
    return states
