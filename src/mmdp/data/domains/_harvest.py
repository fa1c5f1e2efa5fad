"""Harvest of a population with uncertain growth, on a continuous axis.

Biomass x in units of the capacity, share a that is harvested, and good or bad years e:
x' = (y + growth y (1 - y)) e with y = (1 - a) x, which grows logistically.
"""

from __future__ import annotations

import numpy as np

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.validate import check_int
from mmdp.data.domains._common import Array, Domain, Fields, ParameterSamples, sample_parameters

MAX_BIOMASS = 1.5  # in units of the capacity
HARVEST_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
YEAR_FACTORS = (0.7, 0.9, 1.0, 1.1, 1.3)
EXTINCTION_BIOMASS = 0.02  # biomass under which a population is lost
DESCRIPTION = "harvest a population: 42 states, 6 actions, 50 train and 100 test"
CITATION = "Clark, Mathematical Bioeconomics, Wiley, 1990 (the logistic model)"


@check_arguments
def harvest(n_train: int = 50, n_test: int = 100, seed: Seed = 0, *, n_points: int = 41) -> Domain:
    """Generate models of a harvested population on a grid of ``n_points`` biomasses.

    Each year a share of 0 to 0.5 is harvested, which is the reward. What is left grows with the
    uncertain rate ``growth``, drawn from U(0.2, 0.8), in a good or a bad year; bad years have the
    uncertain probability ``bad``, U(0.05, 0.35). Under 0.02 the population is lost. Discount 0.95,
    start at half the capacity. Built with :func:`mmdp.from_step`.

    >>> import mmdp
    >>> train, test = mmdp.domains.harvest(n_train=3, n_test=2, n_points=16)
    >>> train.n_states, train.state_labels[5], train.state_labels[-1]
    (17, 'biomass=0.5', 'ended')
    """

    def sample(rng: np.random.Generator, n_models: int) -> ParameterSamples:
        return {"growth": rng.uniform(0.2, 0.8, n_models), "bad": rng.uniform(0.05, 0.35, n_models)}

    nominal = {"growth": np.array([0.5]), "bad": np.array([0.2])}
    train, test, true_model = (
        make_models(x, check_int(n_points, "n_points", 2))
        for x in (*sample_parameters(n_train, n_test, seed, sample), nominal)
    )
    return Domain("harvest", train, test, true_model, DESCRIPTION, CITATION)


def make_models(samples: ParameterSamples, n_points: int) -> MMDP:
    """Make one model for each sample of growth and of the probability of a bad year."""
    from mmdp.data.functions import Grid, from_step

    def step(
        state: Fields, action: Fields, event: Fields, sample: Fields
    ) -> tuple[dict[str, Array], Array]:
        """Compute the biomass after a year, and the harvest."""
        harvest = action["share"] * state["biomass"]
        remaining_biomass = state["biomass"] - harvest
        next_biomass = remaining_biomass + sample["growth"] * remaining_biomass * (
            1 - remaining_biomass
        )
        return {"biomass": np.minimum(next_biomass * event["year"], MAX_BIOMASS)}, harvest

    def event_probs(sample: Fields) -> list[Array]:
        bad_prob, other_prob = sample["bad"], (1 - sample["bad"]) / 4
        return [bad_prob, other_prob, other_prob, other_prob, other_prob]

    return from_step(
        step,
        states={"biomass": Grid(0, MAX_BIOMASS, n_points)},
        actions={"share": HARVEST_SHARES},
        events={"year": YEAR_FACTORS},
        event_probs=event_probs,
        samples=samples,
        initial={"biomass": 0.5},
        discount=0.95,
        is_terminal=lambda state: state["biomass"] < EXTINCTION_BIOMASS,
        name="harvest",
        citation=CITATION,
    )
