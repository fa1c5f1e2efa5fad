"""The two-model example of the paper's third theorem: Markov policies have linear regret."""

from __future__ import annotations

import numpy as np

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.data.domains._common import CADP_PAPER, Domain

CITATION = f"{CADP_PAPER}, appendix, proof of the theorem on sublinear regret"


@check_arguments
def two_models(weight: float = 0.5, *, discount: float = 1.0) -> Domain:
    """Make the two deterministic models that a Markov policy cannot tell apart.

    From state 1, action 1 leads to state 2 and earns 2 in both models. Action 2 leads to
    state 3 and earns nothing in model m1 (probability ``weight``), and to state 4 and earns 3
    in model m2. States 2, 3 and 4 lead back to state 1, except that state 4 of m1 and state 3
    of m2, which are never reached, are absorbing. A policy that remembers where action 2 led
    knows the model from then on; a Markov policy loses min(2 weight, 1 - weight) every two
    steps. ``train`` and ``test`` are the same two models; there is nothing to seed.

    >>> import mmdp
    >>> train, _ = mmdp.domains.two_models(weight=0.5)
    >>> mmdp.solve(train, horizon=3).evaluation.bayes_regret  # visits at t = 0 and 2
    1.0
    """
    if not 0 < weight < 1:
        raise InputError(
            f"weight={weight} is not between 0 and 1, both excluded; give such a number"
        )
    next_state = np.array(  # (M, S, A), states 1..4 as 0..3
        [
            [[1, 2], [0, 0], [0, 0], [3, 3]],
            [[1, 3], [0, 0], [2, 2], [0, 0]],
        ]
    )
    rewards = np.zeros((2, 4, 2))
    rewards[:, 0, 0] = 2.0
    rewards[1, 0, 1] = 3.0
    model = MMDP(
        np.eye(4)[next_state],
        rewards,
        initial=(1, 0, 0, 0),
        weights=(weight, 1 - weight),
        discount=discount,
        states=("1", "2", "3", "4"),
        actions=("1", "2"),
        models=("m1", "m2"),
        name="two_models",
        citation=CITATION,
    )
    return Domain(model, model)
