"""Riverswim: a chain of 20 states; swim right against the current for a large reward.

Symbols: action 1 moves left, stays or moves right with p = (p_left, p_stay, p_right), the
same in every state. Prior p ~ Dirichlet(1, 1, 1); with ``counts`` n of observed moves the
posterior is p ~ Dirichlet(1 + n).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmdp.domains._common import (
    CADP_PAPER,
    Array,
    Domain,
    check_choice,
    check_count,
    generators,
)
from mmdp.errors import InputError
from mmdp.model import MMDP

N_STATES = 20
TRUE_MOVES = (0.2, 0.3, 0.5)
PUBLISHED_COUNTS = (0, 1, 4)
DESCRIPTION = "swim against the current: 20 states, 2 actions, 100 train and 700 test models"
CITATION = (
    "Strehl and Littman, An Analysis of Model-Based Interval Estimation for Markov Decision "
    "Processes, Journal of Computer and System Sciences, 2008; the larger variant of Behzadian "
    "et al., Optimizing Percentile Criterion Using Robust MDPs, AISTATS 2021; as in "
) + CADP_PAPER


def riverswim(
    n_train: int = 100,
    n_test: int = 700,
    seed: int | None = 0,
    *,
    variant: str = "paper",
    counts: Sequence[int] | None = None,
    log_seed: int | None = None,
) -> Domain:
    """Riverswim (RS): 20 states, 2 actions, discount 0.9, uniform initial distribution.

    Parameters
    ----------
    n_train, n_test
        Numbers of models.
    seed
        Seed of the models.
    variant
        ``"paper"`` has the rewards of the published files, ``"corrected"`` those of the
        domain's description; see below.
    counts
        Observed moves (left, stay, right) of action 1. The default, (0, 1, 4), are the
        integers of maximum likelihood for the 800 published models; the likelihood without
        the integer constraint is largest at Dirichlet(0.99, 2.10, 5.11), next to
        Dirichlet(1, 2, 5).
    log_seed
        Simulate the log instead: 15 steps of the uniform random policy from state 0 under
        the true model; moves of action 1 away from both ends are counted.

    Rewards. Action 0 earns 5. Action 1 earns 100 in state 19 when the swimmer stays there.
    The published training and test files hold 100 (p_stay + p_right) for that transition:
    the reward is already weighted by its probability, and solvers weight it again, so the
    expected reward is 100 (p_stay + p_right)^2. The published values come from these files,
    so ``variant="paper"`` does the same; ``"corrected"`` puts 100. The file of the true model
    holds 100, and so does ``Domain.true`` in both variants.

    ``train.parameters`` holds ``p_left, p_stay, p_right``, each (M,).

    >>> import mmdp
    >>> train, test = mmdp.domains.riverswim(seed=0)
    >>> train.n_models, test.n_models, train.action_labels
    (100, 700, ('swim left', 'swim right'))
    """
    check_choice(variant, "variant", ("paper", "corrected"))
    if counts is not None and log_seed is not None:
        raise InputError("give counts= or log_seed=, not both")
    if log_seed is not None:
        seen = logged_counts(log_seed)
    else:
        seen = read_counts(PUBLISHED_COUNTS if counts is None else counts)
    train, test = (
        _models(rng.dirichlet(1.0 + seen, size=check_count(n, what)), variant)
        for rng, n, what in zip(
            generators(seed, 2), (n_train, n_test), ("n_train", "n_test"), strict=True
        )
    )
    true = _models(np.array([TRUE_MOVES]), "corrected")
    return Domain("riverswim", train, test, true, DESCRIPTION, CITATION)


def logged_counts(seed: int, steps: int = 15) -> npt.NDArray[np.int64]:
    """(3,) moves left, stay, right of action 1 away from the ends in one simulated episode.

    >>> logged_counts(1).shape
    (3,)
    """
    (rng,) = generators(seed, 1)
    counts = np.zeros(3, dtype=np.int64)
    state = 0
    for _ in range(steps):
        swims_right = rng.random() < 0.5
        move = int(rng.choice(3, p=TRUE_MOVES)) if swims_right else 0
        if swims_right and 0 < state < N_STATES - 1:
            counts[move] += 1
        state = min(max(state + move - 1, 0), N_STATES - 1)
    return counts


def read_counts(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    array = np.asarray(counts)
    if array.shape != (3,) or array.dtype.kind not in "iu" or array.min() < 0:
        raise InputError(
            f"counts must be three whole numbers (left, stay, right), none negative, not {counts!r}"
        )
    return array.astype(np.int64)


def _models(moves: Array, variant: str) -> MMDP:
    """Models from (M, 3) probabilities of moving left, staying, moving right."""
    n_models, last = len(moves), N_STATES - 1
    states = np.arange(N_STATES)
    transitions = np.zeros((n_models, N_STATES, 2, N_STATES))
    transitions[:, states, 0, np.maximum(states - 1, 0)] = 1.0
    for step, p in zip((-1, 0, 1), moves.T, strict=True):
        transitions[:, states, 1, np.clip(states + step, 0, last)] += p[:, None]
    next_rewards = np.zeros_like(transitions)
    next_rewards[:, :, 0, :] = 5.0
    next_rewards[:, last, 1, last] = (
        100.0 * transitions[:, last, 1, last] if variant == "paper" else 100.0
    )
    return MMDP(
        transitions,
        next_rewards=next_rewards,
        initial=np.full(N_STATES, 1 / N_STATES),
        discount=0.9,
        states=states,
        actions=("swim left", "swim right"),
        parameters=dict(zip(("p_left", "p_stay", "p_right"), moves.T, strict=True)),
        name="riverswim",
        citation=CITATION,
    )
