"""Riverswim: a chain of 20 states; swim right against the current for a large reward.

Symbols: action 1 moves left, stays or moves right with p = (p_left, p_stay, p_right), the
same in every state. Prior p ~ Dirichlet(1, 1, 1); with n logged moves (left, stay, right) of
action 1 away from both ends the posterior is p ~ Dirichlet(1 + n).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Seed, Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.validate import check_int
from mmdp.data.domains._common import (
    CADP_PAPER,
    DATA_DIR,
    Array,
    Domain,
    check_choice,
    spawn_generators,
)

N_STATES = 20
COLUMNS = ("state", "action", "next_state")
TRUE_MOVE_PROBS = (0.2, 0.3, 0.5)
LOG_STEPS = 15
STATES, ACTIONS = range(N_STATES), ("swim left", "swim right")
DESCRIPTION = "swim against the current: 20 states, 2 actions, 100 train and 700 test models"
CITATION = (
    "Strehl and Littman, An Analysis of Model-Based Interval Estimation for Markov Decision "
    "Processes, Journal of Computer and System Sciences, 2008; the larger variant of Behzadian "
    "et al., Optimizing Percentile Criterion Using Robust MDPs, AISTATS 2021; as in "
) + CADP_PAPER


@check_arguments
def riverswim(
    n_train: int = 100,
    n_test: int = 700,
    seed: Seed = 0,
    *,
    variant: str = "paper",
    log: Unchecked[npt.ArrayLike] = "published",
) -> Domain:
    """Generate models of riverswim (RS): 20 states, 2 actions, discount 0.9, uniform start.

    Parameters
    ----------
    n_train, n_test
        Numbers of models.
    seed
        Seed of the models.
    variant
        ``"paper"`` has the rewards of the published files, ``"corrected"`` those of the
        domain's description; see below.
    log
        The logged steps that the posterior learns from. ``"published"`` is the published
        log, 15 steps of the uniform random policy from state 0. A seed simulates another.
        Your own logged steps are a DataFrame with the columns ``state, action,
        next_state``, or an (n, 3) array of them.

    Rewards. Action 0 earns 5. Action 1 earns 100 in state 19 when the swimmer stays there.
    The published training and test files hold 100 (p_stay + p_right) for that transition:
    the reward is already weighted by its probability, and solvers weight it again, so the
    expected reward is 100 (p_stay + p_right)^2. The published values come from these files,
    so ``variant="paper"`` does the same; ``"corrected"`` puts 100. The file of the true model
    holds 100, and so does ``Domain.true_model`` in both variants.

    ``train.parameters`` holds ``p_left, p_stay, p_right``, each (M,).

    >>> import mmdp
    >>> train, test = mmdp.domains.riverswim(seed=0)
    >>> train.n_models, test.n_models, train.action_labels
    (100, 700, ('swim left', 'swim right'))
    """
    check_choice(variant, "variant", ("paper", "corrected"))
    move_counts = count_moves(read_log(log))
    train, test = (
        _make_models(
            rng.dirichlet(1.0 + move_counts, size=check_int(n, argument, item_bytes=8)), variant
        )
        for rng, n, argument in zip(
            spawn_generators(seed, 2), (n_train, n_test), ("n_train", "n_test"), strict=True
        )
    )
    return Domain("riverswim", train, test, make_true_model(), DESCRIPTION, CITATION)


def make_true_model() -> MMDP:
    """Make the one model that the log comes from."""
    return _make_models(np.array([TRUE_MOVE_PROBS]), "corrected")


def read_log(log: Any) -> npt.NDArray[np.int64]:
    """Read logged steps (n, 3) from ``"published"``, a seed, or a table of steps.

    >>> read_log([[0, 1, 1], [1, 1, 2]])[:, 2].tolist()
    [1, 2]
    """
    if isinstance(log, str) and log == "published":
        with (DATA_DIR / "riverswim_log.csv").open(encoding="utf-8") as file:
            return np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1)
    if isinstance(log, (int, np.integer)):
        return simulate_log(*spawn_generators(log, 1))
    has_columns = hasattr(log, "columns") and set(COLUMNS) <= set(log.columns)
    try:
        steps = np.asarray(log[list(COLUMNS)] if has_columns else log)
    except ValueError:  # rows of different lengths
        steps = np.empty(0)
    if steps.ndim != 2 or steps.shape[1] != 3 or not len(steps) or steps.dtype.kind not in "iu":
        raise InputError(
            'log is not readable; give "published", a seed, or a table of whole numbers with the '
            f"columns {', '.join(COLUMNS)}"
        )
    sizes = np.array([N_STATES, len(ACTIONS), N_STATES])
    bad_entries = np.argwhere((steps < 0) | (steps >= sizes))
    if len(bad_entries):
        step, column = bad_entries[0]
        raise InputError(
            f"log has {COLUMNS[column]} {steps[step, column]} in step {step}; "
            f"it must be from 0 to {sizes[column] - 1}"
        )
    return steps.astype(np.int64)


def simulate_log(rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Simulate steps (n, 3) of the true model under the uniform random policy from state 0."""
    steps = np.empty((LOG_STEPS, 3), dtype=np.int64)
    state = 0
    for step in steps:
        action = int(rng.random() < 0.5)
        move = int(rng.choice((-1, 0, 1), p=TRUE_MOVE_PROBS)) if action else -1
        next_state = min(max(state + move, 0), N_STATES - 1)
        step[:] = state, action, next_state
        state = next_state
    return steps


def count_moves(log: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count moves left, stay, right of action 1 away from both ends. Returns: (3,).

    >>> count_moves(read_log("published")).tolist()
    [0, 1, 4]
    """
    state, action, next_state = log.T
    move = next_state - state
    jumps = np.flatnonzero(np.abs(move) > 1)
    if len(jumps):
        raise InputError(
            f"log moves from state {state[jumps[0]]} to {next_state[jumps[0]]} in step {jumps[0]}; "
            "a swimmer moves at most one state per step"
        )
    is_inside = (action == 1) & (state > 0) & (state < N_STATES - 1)
    return np.bincount(move[is_inside] + 1, minlength=3)


def _make_models(move_probs: Array, variant: str) -> MMDP:
    """Make models from probabilities (M, 3) of moving left, staying, moving right."""
    n_models, last = len(move_probs), N_STATES - 1
    states = np.arange(N_STATES)
    transitions = np.zeros((n_models, N_STATES, 2, N_STATES))
    transitions[:, states, 0, np.maximum(states - 1, 0)] = 1.0
    for step, p in zip((-1, 0, 1), move_probs.T, strict=True):
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
        states=STATES,
        actions=ACTIONS,
        parameters=dict(zip(("p_left", "p_stay", "p_right"), move_probs.T, strict=True)),
        name="riverswim",
        citation=CITATION,
    )
