"""Riverswim: a chain of 20 states; swim right against the current for a large reward.

Symbols: action 1 moves left, stays or moves right with p = (p_left, p_stay, p_right), the
same in every state. Prior p ~ Dirichlet(1, 1, 1); with n logged moves (left, stay, right) of
action 1 away from both ends the posterior is p ~ Dirichlet(1 + n). The published log, 15 steps of
the uniform random policy from state 0, is in ``data/riverswim_log.csv``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array
from mmdp.data.domains._common import CADP_PAPER, Domain, sample_domain

N_STATES = 20
TRUE_MOVE_PROBS = (0.2, 0.3, 0.5)
LOGGED_MOVES = (0, 1, 4)  # left, stay, right in the published log
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
    variant: Literal["paper", "corrected"] = "paper",
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

    def sample_models(rng: np.random.Generator, n_models: int) -> MMDP:
        return _make_models(rng.dirichlet(1 + np.array(LOGGED_MOVES), n_models), variant)

    true_model = _make_models(np.array([TRUE_MOVE_PROBS]), "corrected")
    return sample_domain(sample_models, n_train, n_test, seed, true_model)


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
        states=range(N_STATES),
        actions=("swim left", "swim right"),
        parameters=dict(zip(("p_left", "p_stay", "p_right"), move_probs.T, strict=True)),
        name="riverswim",
        citation=CITATION,
    )
