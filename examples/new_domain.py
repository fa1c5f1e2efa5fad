"""A domain of your own: a machine that wears, with an uncertain rate of wear.

python examples/new_domain.py
"""

# %% domain
import numpy as np

import mmdp
from mmdp.domains import Domain
from mmdp.testing import check_method

STATES, ACTIONS = ("new", "worn", "broken"), ("run", "repair")


def make_models(wear: np.ndarray) -> mmdp.MMDP:
    """Make one model for each of the (M,) probabilities to wear in a step."""
    P = np.zeros((len(wear), 3, 2, 3))
    P[:, 0, 0] = np.stack([1 - wear, wear, 0 * wear], axis=1)
    P[:, 1, 0] = np.stack([0 * wear, 1 - wear, wear], axis=1)
    P[:, 2, 0, 2] = 1.0
    P[:, :, 1, 0] = 1.0
    rewards = [[10.0, 4.0], [6.0, 2.0], [0.0, -8.0]]
    return mmdp.MMDP(
        P,
        rewards,
        initial=[1, 0, 0],
        discount=0.95,
        states=STATES,
        actions=ACTIONS,
        parameters={"wear": wear},
        name="machine",
    )


def make_domain(n_train: int = 50, n_test: int = 50, seed: int = 0) -> Domain:
    """Train and test models have a stream of random numbers each."""
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2)]
    train, test = (
        make_models(rng.beta(2, 5, n)) for rng, n in zip(streams, (n_train, n_test), strict=True)
    )
    return Domain(train, test, true_model=make_models(np.array([0.3])))


# %% use
train, test = make_domain()
check_method("cadp", train, 12)
solution = mmdp.solve(train, 12)
print(solution.policy.to_frame().head(3).to_string(index=False))
print(f"{solution.value:.2f} in training, {mmdp.evaluate(test, solution).mean:.2f} on test models")
