"""Population: control a pest whose growth is uncertain.

Symbols: population s in 0..50, action a in 0..4 (0: do nothing). Growth
g = max(0, Normal(rate(s, a), sd[a])). Exponential growth n = clamp(round(g s)); logistic
growth, of the true model only, n = clamp(round(s + (g - 1) s (50 - s) / 50)). Then
s' = clamp(round(n + max(0, Normal(3, 1.5)))). A sampled model has rate mu for action 0 and
f(s) = mu0 + mu1 s + mu2 s^2 for the others. The four are draws from the posterior given the
published log of the true model: ``benchmarks/population_posterior.py`` has the sampler and wrote
them to ``data/population.npz``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from mmdp.arguments import Seed, checked
from mmdp.domains._common import (
    CADP_PAPER,
    DATA,
    Array,
    Domain,
    check_choice,
    generators,
)
from mmdp.errors import InputError
from mmdp.model import MMDP
from mmdp.validate import check_whole

CAPACITY = 50
N_STATES, N_ACTIONS = CAPACITY + 1, 5
COSTS = np.array([0.0, 800.0, 840.0, 880.0, 920.0])
GROWTH_SD = np.array([0.6, 0.6, 0.5, 0.4, 0.3])
SUPPLY_MEAN, SUPPLY_SD = 3.0, 1.5
DISCOUNT = 0.9
LOG_START = 10
DRAWS = 1000  # kept for each of the two sets
NEGLIGIBLE = 1e-12
FAR = 9.0  # Phi(-9) is 1e-19; ndtr is slow on what lies further out
BLOCK = 100  # models at a time: they fit the cache, and BLAS starts no threads for so little work
DESCRIPTION = "pest control: 51 states, 5 actions, 1000 train and 1000 test models"
SMALL_DESCRIPTION = "pest control with fewer models: 51 states, 5 actions, 100 train and 100 test"
CITATION = (
    "Petrik and Russel, Beyond Confidence Regions: Tight Bayesian Ambiguity Sets for Robust "
    "MDPs, NeurIPS 2019; as in "
) + CADP_PAPER


@checked
def population(
    n_train: int = DRAWS, n_test: int = DRAWS, seed: Seed = 0, *, variant: str = "paper"
) -> Domain:
    """Population (POP): pest population 0..50, 5 actions, discount 0.9.

    Reward 1000 - s^2 - cost[a], cost = (0, 800, 840, 880, 920). The models are draws from the
    posterior given 300 logged steps of the true model, which were published. The paper's own
    models were not: these are other draws, and returns differ from one set of draws to the next.

    Parameters
    ----------
    n_train, n_test
        Numbers of models, each at most 1000.
    seed
        Which of the 2000 draws in the package are for training and which for testing. 0 has
        1000 of either, in their order; another seed shuffles all of them first.
    variant
        ``"paper"`` repeats two slips of the published models: the 4 x 51 table of rates of
        actions 1 to 4 is filled in the wrong order, so that action a in state s has the rate
        f((4 s + a - 1) mod 51), and all initial mass is on state 9. ``"corrected"`` has rate
        f(s) and starts in state 10, where the log starts.

    Transitions are exact, from the two normal distribution functions and one convolution;
    probabilities below 1e-12 are cut. ``train.parameters`` holds ``mu, mu0, mu1, mu2``, each
    (M,). ``Domain.true`` is the logistic model that the log comes from.

    >>> import mmdp
    >>> train, test = mmdp.domains.population(n_train=5, n_test=5, seed=0)
    >>> train.n_states, train.action_labels[2], sorted(train.parameters)
    (51, 'control 2', ['mu', 'mu0', 'mu1', 'mu2'])
    """
    check_choice(variant, "variant", ("paper", "corrected"))
    start = 9 if variant == "paper" else LOG_START
    train, test = (
        _model(exponential_kernel(growth_rates(parameters, variant)), start, parameters)
        for parameters in _drawn({"n_train": n_train, "n_test": n_test}, seed)
    )
    return Domain(
        "population", train, test, _model(true_kernel()[None], start, {}), DESCRIPTION, CITATION
    )


@checked
def population_small(
    n_train: int = 100, n_test: int = 100, seed: Seed = 0, *, variant: str = "paper"
) -> Domain:
    """Population-small (POPS): :func:`population` with 100 train and 100 test models.

    >>> import mmdp
    >>> mmdp.domains.population_small(seed=0)
    Domain(population_small: 100 train and 100 test models, 51 states, 5 actions)
    """
    name, large = "population_small", population(n_train, n_test, seed, variant=variant)
    models = {x: getattr(large, x).replace(name=name) for x in ("train", "test", "true")}
    return replace(large, name=name, description=SMALL_DESCRIPTION, **models)


def _drawn(counts: dict[str, int], seed: int | None) -> Iterator[dict[str, Array]]:
    """Draws of ``mu, mu0, mu1, mu2`` for each set, as many as it counts."""
    (rng,) = generators(seed, 1)
    order = np.arange(2 * DRAWS) if seed == 0 else rng.permutation(2 * DRAWS)
    with (DATA / "population.npz").open("rb") as file, np.load(file) as kept:
        draws = dict(kept)
    for (what, n), ids in zip(counts.items(), np.split(order, 2), strict=True):
        if check_whole(n, what) > DRAWS:
            raise InputError(f"{what} is {n}, but there are {DRAWS} draws for each set")
        yield {name: x[ids[:n]] for name, x in draws.items()}


def growth_rates(parameters: dict[str, Array], variant: str) -> Array:
    """(S, A, M) rates of sampled models; ``variant="paper"`` with the table's wrong order.

    >>> one = {k: np.array([x]) for k, x in zip(("mu", "mu0", "mu1", "mu2"), (2, 0, 1, 0))}
    >>> growth_rates(one, "corrected")[7, :, 0].tolist()
    [2.0, 7.0, 7.0, 7.0, 7.0]
    >>> growth_rates(one, "paper")[7, :, 0].tolist()
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


def supply_matrix() -> Array:
    """(S, S') probabilities of s' = clamp(round(n + max(0, Normal(3, 1.5)))) from n."""
    below = ndtr((np.arange(N_STATES) + 0.5 - SUPPLY_MEAN) / SUPPLY_SD)
    arrivals = np.diff(below, prepend=0.0)
    n, s = np.ogrid[:N_STATES, :N_STATES]
    matrix = np.where(s >= n, arrivals[np.maximum(s - n, 0)], 0.0)
    matrix[:, -1] += 1.0 - matrix.sum(axis=1)
    return matrix


def exponential_kernel(rates: Array) -> Array:
    """(M, S, A, S') exact transitions of exponential growth from (S, A, M) rates.

    P(n <= k) = P(g s < k + 1/2) = Phi(((k + 1/2) / s - rate) / sd) for k = 0..49; the atom of
    g at zero is inside k = 0. One state and some models at a time: the work arrays stay in the
    cache, and the result is laid out models last, as :class:`mmdp.MMDP` stores it.
    """
    n_states, n_actions, n_models = rates.shape
    supply = np.ascontiguousarray(supply_matrix().T)
    result = np.empty((n_states, n_actions, n_states, n_models))
    result[0] = supply[:, :1]
    _cut(result[0])
    scaled = rates / GROWTH_SD[:, None]
    pieces = [
        (s, slice(m, m + BLOCK)) for s in range(1, n_states) for m in range(0, n_models, BLOCK)
    ]

    def fill(piece: tuple[int, slice]) -> None:
        s, models = piece
        cuts = (np.arange(n_states - 1) + 0.5) / (s * GROWTH_SD[:, None])
        below = cuts[:, :, None] - scaled[s, :, None, models]
        np.clip(below, -FAR, FAR, out=below)
        ndtr(below, out=below)
        mass = np.empty((n_actions, n_states, below.shape[2]))
        mass[:, 0], mass[:, -1] = below[:, 0], 1.0 - below[:, -1]
        np.subtract(below[:, 1:], below[:, :-1], out=mass[:, 1:-1])
        rows = supply @ mass
        _cut(rows)
        result[s, :, :, models] = rows

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, pieces))
    return np.moveaxis(result, -1, 0)


def _cut(rows: Array) -> None:
    """Cut probabilities below 1e-12 in place and scale rows (axis 1) to sum to 1."""
    rows[rows < NEGLIGIBLE] = 0.0
    rows /= rows.sum(axis=1, keepdims=True)


def true_kernel() -> Array:
    """(S, A, S') exact transitions of the true model, with logistic growth.

    P(n <= k) = P(s + (g - 1) c < k + 1/2) with c = s (50 - s) / 50, that is Phi at
    g = x = 1 + (k + 1/2 - s) / c for x > 0, and 0 for x <= 0 because g is not negative. The
    atom of g at zero falls on a half (x = 0) in states 5, 15, 25, 35 and 45; the published
    file shows that halves were rounded up.
    """
    state = np.arange(N_STATES)
    rates = np.empty((N_STATES, N_ACTIONS))
    rates[:, 0] = 2.0
    rates[:, 1:] = (0.2 + (state - 25) ** 2 / 625)[:, None]
    k = np.arange(CAPACITY)
    below = np.zeros((N_STATES, N_ACTIONS, CAPACITY))
    for s in range(1, CAPACITY):
        c = s * (CAPACITY - s)
        x = (c + CAPACITY * (k + 0.5 - s)) / c  # exact integers or halves over c
        phi = ndtr((x - rates[s][:, None]) / GROWTH_SD[:, None])
        below[s] = np.where(x > 0, phi, 0.0)
    below[0] = 1.0  # an empty population stays empty, a full one full
    cdf = np.concatenate([below, np.ones((N_STATES, N_ACTIONS, 1))], axis=2)
    kernel = np.diff(cdf, axis=2, prepend=0.0) @ supply_matrix()
    kernel[kernel < NEGLIGIBLE] = 0.0
    kernel /= kernel.sum(axis=2, keepdims=True)
    return kernel


def rewards() -> Array:
    """(S, A) rewards 1000 - s^2 - cost[a]."""
    return 1000.0 - np.arange(N_STATES)[:, None] ** 2.0 - COSTS


def _model(transitions: Array, start: int, parameters: dict[str, Array]) -> MMDP:
    return MMDP(
        transitions,
        rewards(),
        initial=np.eye(N_STATES)[start],
        discount=DISCOUNT,
        states=range(N_STATES),
        actions=("no control", *(f"control {a}" for a in range(1, N_ACTIONS))),
        parameters=parameters,
        name="population",
        citation=CITATION,
    )
