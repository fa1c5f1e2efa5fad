"""Population: control a pest whose growth is uncertain.

Symbols: population s in 0..50, action a in 0..4 (0: do nothing). Growth
g = max(0, Normal(rate(s, a), sd[a])). Exponential growth n = clamp(round(g s)); logistic
growth, of the true model only, n = clamp(round(s + (g - 1) s (50 - s) / 50)). Then
s' = clamp(round(n + max(0, Normal(3, 1.5)))). A sampled model has rate mu for action 0 and
f(s) = mu0 + mu1 s + mu2 s^2 for the others. The four are samples from the posterior given the
published log of the true model: ``benchmarks/population_posterior.py`` has the sampler and wrote
them to ``data/population.npz``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import ndtr

from mmdp.core.arguments import PositiveInt, Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array, IndexArray
from mmdp.data.domains._common import CADP_PAPER, DATA_DIR, Domain
from mmdp.data.sampling import spawn_generators

Variant = Literal["paper", "corrected"]

CAPACITY = 50
N_STATES, N_ACTIONS = CAPACITY + 1, 5
REWARDS = 1000.0 - np.arange(N_STATES)[:, None] ** 2.0 - [0.0, 800.0, 840.0, 880.0, 920.0]
GROWTH_SD = np.array([0.6, 0.6, 0.5, 0.4, 0.3])
SUPPLY_MEAN, SUPPLY_SD = 3.0, 1.5
DISCOUNT = 0.9
LOG_START = 10
N_SAMPLES = 1000  # kept for each of the two sets
MIN_PROB = 1e-12
MAX_Z_SCORE = 9.0  # Phi(-9) is 1e-19; ndtr is slow on what lies further out
CITATION = (
    "Petrik and Russel, Beyond Confidence Regions: Tight Bayesian Ambiguity Sets for Robust "
    "MDPs, NeurIPS 2019; as in "
) + CADP_PAPER


@check_arguments
def population(
    n_train: PositiveInt = N_SAMPLES,
    n_test: PositiveInt = N_SAMPLES,
    seed: Seed = 0,
    *,
    variant: Variant = "paper",
) -> Domain:
    """Generate models of pest control (POP): population 0..50, 5 actions, discount 0.9.

    Reward 1000 - s^2 - cost[a], cost = (0, 800, 840, 880, 920). The models are samples from the
    posterior given 300 logged steps of the true model, which were published. The paper's own
    models were not: these are other samples, and returns differ from one set of samples to the
    next.

    Parameters
    ----------
    n_train, n_test
        Numbers of models, each at most 1000.
    seed
        Which of the 2000 samples in the package are for training and which for testing. 0 has
        1000 of either, in their order; another seed shuffles all of them first.
    variant
        ``"paper"`` repeats two slips of the published models: the 4 x 51 table of rates of
        actions 1 to 4 is filled in the wrong order, so that action a in state s has the rate
        f((4 s + a - 1) mod 51), and all initial mass is on state 9. ``"corrected"`` has rate
        f(s) and starts in state 10, where the log starts.

    Transitions are exact, from the two normal distribution functions and one convolution;
    probabilities below 1e-12 are cut. ``train.parameters`` holds ``mu, mu0, mu1, mu2``, each
    (M,). ``Domain.true_model`` is the logistic model that the log comes from.

    >>> import mmdp
    >>> train, test = mmdp.domains.population(n_train=5, n_test=5, seed=0)
    >>> train.n_states, train.action_labels[2], sorted(train.parameters)
    (51, 'control 2', ['mu', 'mu0', 'mu1', 'mu2'])
    """
    return _make_domain("population", n_train, n_test, seed, variant)


@check_arguments
def population_small(
    n_train: PositiveInt = 100,
    n_test: PositiveInt = 100,
    seed: Seed = 0,
    *,
    variant: Variant = "paper",
) -> Domain:
    """Generate the small version (POPS) of :func:`population`: 100 train and 100 test models.

    >>> import mmdp
    >>> mmdp.domains.population_small(seed=0)
    Domain(population_small: 100 train and 100 test models, 51 states, 5 actions)
    """
    return _make_domain("population_small", n_train, n_test, seed, variant)


def _make_domain(
    name: str, n_train: int, n_test: int, seed: int | None, variant: Variant
) -> Domain:
    """Make the train and test models, and the true one, under this name."""
    (rng,) = spawn_generators(seed, 1)
    order = np.arange(2 * N_SAMPLES) if seed == 0 else rng.permutation(2 * N_SAMPLES)
    samples = np.load(DATA_DIR / "population.npz")

    def make_model(transitions: Array, parameters: dict[str, Array]) -> MMDP:
        return MMDP(
            transitions,
            REWARDS,
            initial=np.eye(N_STATES)[9 if variant == "paper" else LOG_START],
            discount=DISCOUNT,
            states=range(N_STATES),
            actions=("no control", *(f"control {a}" for a in range(1, N_ACTIONS))),
            parameters=parameters,
            name=name,
            citation=CITATION,
        )

    def make_sampled_model(argument: str, n: int, ids: IndexArray) -> MMDP:
        if n > N_SAMPLES:
            raise InputError(
                f"{argument}={n} is larger than the {N_SAMPLES} samples of each set; give fewer"
            )
        parameters = {name: x[ids[:n]] for name, x in samples.items()}
        rates = compute_growth_rates(parameters, variant)
        return make_model(make_exponential_transitions(rates), parameters)

    return Domain(
        make_sampled_model("n_train", n_train, order[:N_SAMPLES]),
        make_sampled_model("n_test", n_test, order[N_SAMPLES:]),
        make_model(make_true_transitions()[None], {}),
    )


def compute_growth_rates(parameters: dict[str, Array], variant: str) -> Array:
    """Compute the growth rates (S, A, M) of sampled models; "paper" has the table's wrong order.

    >>> one = {k: np.array([x]) for k, x in zip(("mu", "mu0", "mu1", "mu2"), (2, 0, 1, 0))}
    >>> compute_growth_rates(one, "corrected")[7, :, 0].tolist()
    [2.0, 7.0, 7.0, 7.0, 7.0]
    >>> compute_growth_rates(one, "paper")[7, :, 0].tolist()
    [2.0, 28.0, 29.0, 30.0, 31.0]
    """
    state = np.arange(N_STATES)
    rates = np.empty((N_STATES, N_ACTIONS, len(parameters["mu"])))
    rates[:, 0] = parameters["mu"]
    for a in range(1, N_ACTIONS):
        x = (4 * state + a - 1) % N_STATES if variant == "paper" else state
        x = x[:, None]
        rates[:, a] = parameters["mu0"] + parameters["mu1"] * x + parameters["mu2"] * x**2
    return rates


def make_exponential_transitions(rates: Array) -> Array:
    """Compute the exact transitions (M, S, A, S') of exponential growth with rates (S, A, M).

    P(n <= k) = P(g s < k + 1/2), so g is below (k + 1/2) / s for k = 0..49.
    """
    state = np.arange(N_STATES)[:, None]
    return _make_transitions((np.arange(CAPACITY) + 0.5) / np.maximum(state, 1e-9), rates)


def make_true_transitions() -> Array:
    """Compute the exact transitions (S, A, S') of the true model, with logistic growth.

    P(n <= k) = P(s + (g - 1) c < k + 1/2) with c = s (50 - s) / 50, so g is below
    x = 1 + (k + 1/2 - s) / c. The atom of g at zero falls on a half (x = 0) in states 5, 15, 25,
    35 and 45; the published file shows that halves were rounded up.
    """
    state = np.arange(N_STATES)
    rates = np.empty((N_STATES, N_ACTIONS, 1))
    rates[:, 0] = 2.0
    rates[:, 1:] = (0.2 + (state - 25) ** 2 / 625)[:, None, None]
    c = np.maximum(state * (CAPACITY - state), 1e-9)[:, None]  # exact integers, and halves below
    thresholds = (c + CAPACITY * (np.arange(CAPACITY) + 0.5 - state[:, None])) / c
    return _make_transitions(thresholds, rates)[0]


def _make_transitions(thresholds: Array, rates: Array) -> Array:
    """Compute the transitions (M, S, A, S') with P(n <= k) = P(g < thresholds[s, k]), (S, 50).

    That is Phi((threshold - rate) / sd), with the atom of g at zero, and 0 for a threshold of 0 or
    less, as g is not negative. Then P[s'] for s' = clamp(round(n + max(0, Normal(3, 1.5)))). The
    result is laid out models last, as :class:`mmdp.MMDP` stores it.
    """
    arrival_cdf = ndtr((np.arange(N_STATES) + 0.5 - SUPPLY_MEAN) / SUPPLY_SD)
    arrivals = np.diff(arrival_cdf, prepend=0.0)
    n, s_next = np.ogrid[:N_STATES, :N_STATES]
    supply = np.where(s_next >= n, arrivals[np.maximum(s_next - n, 0)], 0.0)
    supply[:, -1] += 1.0 - supply.sum(axis=1)
    result = np.empty((N_STATES, N_ACTIONS, N_STATES, rates.shape[2]))
    for s, x in enumerate(thresholds[:, :, None]):
        z_scores = (x - rates[s][:, None, :]) / GROWTH_SD[:, None, None]
        cdf = np.where(x > 0, ndtr(np.clip(z_scores, -MAX_Z_SCORE, MAX_Z_SCORE)), 0.0)
        rows = supply.T @ np.diff(cdf, axis=1, prepend=0.0, append=1.0)
        rows = np.where(rows < MIN_PROB, 0.0, rows)
        result[s] = rows / rows.sum(axis=1, keepdims=True)
    return np.moveaxis(result, -1, 0)
