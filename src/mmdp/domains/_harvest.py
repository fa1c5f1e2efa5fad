"""Harvest of a population on a continuous axis: how much may be taken if growth is uncertain?

Biomass x in units of the capacity, share a that is harvested, and good or bad years e:
x' = (y + growth y (1 - y)) e with y = (1 - a) x, which grows logistically.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.arguments import Seed, checked
from mmdp.domains._common import Domain, Draws, drawn
from mmdp.model import MMDP
from mmdp.validate import check_whole

LARGEST = 1.5  # biomass
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
YEARS = (0.7, 0.9, 1.0, 1.1, 1.3)
EXTINCT = 0.02  # biomass under which a population is lost
DESCRIPTION = "harvest a population: 42 states, 6 actions, 50 train and 100 test"
CITATION = "Clark, Mathematical Bioeconomics, Wiley, 1990 (the logistic model)"


@checked
def harvest(n_train: int = 50, n_test: int = 100, seed: Seed = 0, *, points: int = 41) -> Domain:
    """Harvest of a population with logistic growth, on a grid of ``points`` biomasses.

    Each year a share of 0 to 0.5 is harvested, which is the reward. What is left grows with the
    uncertain rate ``growth``, drawn from U(0.2, 0.8), in a good or a bad year; bad years have the
    uncertain probability ``bad``, U(0.05, 0.35). Under 0.02 the population is lost. Discount 0.95,
    start at half the capacity. Built with :func:`mmdp.from_step`.

    >>> import mmdp
    >>> train, test = mmdp.domains.harvest(n_train=3, n_test=2, points=16)
    >>> train.n_states, train.state_labels[5], train.state_labels[-1]
    (17, 'biomass=0.5', 'ended')
    """

    def draw(rng: np.random.Generator, count: int) -> Draws:
        return {"growth": rng.uniform(0.2, 0.8, count), "bad": rng.uniform(0.05, 0.35, count)}

    nominal = {"growth": np.array([0.5]), "bad": np.array([0.2])}
    train, test, true = (
        models(x, check_whole(points, "points", 2))
        for x in (*drawn(n_train, n_test, seed, draw), nominal)
    )
    return Domain("harvest", train, test, true, DESCRIPTION, CITATION)


def models(draws: Draws, points: int) -> MMDP:
    """One model for each draw of growth and of the probability of a bad year."""
    from mmdp.functions import Grid, from_step

    def step(state: Any, action: Any, event: Any, draw: Any) -> Any:
        taken = action["share"] * state["biomass"]
        left = state["biomass"] - taken
        grown = left + draw["growth"] * left * (1 - left)
        return {"biomass": np.minimum(grown * event["year"], LARGEST)}, taken

    def chance(draw: Any) -> Any:
        bad, usual = draw["bad"], (1 - draw["bad"]) / 4
        return [bad, usual, usual, usual, usual]

    return from_step(
        step, states={"biomass": Grid(0, LARGEST, points)}, actions={"share": SHARES},
        events={"year": YEARS}, chance=chance, draws=draws, initial={"biomass": 0.5},
        discount=0.95, until=lambda state: state["biomass"] < EXTINCT, name="harvest",
        citation=CITATION,
    )  # fmt: skip
