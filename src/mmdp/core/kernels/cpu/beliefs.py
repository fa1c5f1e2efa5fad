"""Beliefs of many episodes, compiled: numpy takes four times as long.

``lanes`` (n,) are the rows of ``beliefs`` that a call is about; other arrays have their length.
"""

from __future__ import annotations

import numpy as np

from mmdp.core.kernels.cpu.jit import REASSOC_OPTIONS, jit

_U = np.uint64


@jit(**REASSOC_OPTIONS)
def choose_by_values(beliefs, lanes, states, q, allowed, actions):  # type: ignore[no-untyped-def]
    """Choose argmax_a sum_m beta_m q(s, a, m) over the allowed actions; ties to the lowest."""
    for i in range(_U(len(lanes))):
        s, best = _U(states[i]), -np.inf
        belief = beliefs[_U(lanes[i])]
        for a in range(_U(q.shape[1])):
            if allowed[s, a]:
                value = 0.0
                for m in range(_U(len(belief))):
                    value += belief[m] * q[s, a, m]
                if value > best:
                    best, actions[i] = value, a


@jit(**REASSOC_OPTIONS)
def multiply_beliefs(beliefs, lanes, p, entries, is_explained):  # type: ignore[no-untyped-def]
    """Update beliefs by likelihoods p[entries] (-1: 0), where any model explains the step."""
    for i in range(_U(len(lanes))):
        belief, k, total = beliefs[_U(lanes[i])], entries[i], 0.0
        if k >= 0:
            for m in range(_U(len(belief))):
                total += belief[m] * p[_U(k), m]
        is_explained[i] = total > 0.0
        if total > 0.0:
            scale = 1.0 / total
            for m in range(_U(len(belief))):
                belief[m] = belief[m] * p[_U(k), m] * scale
