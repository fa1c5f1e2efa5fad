"""Two products, each of which some customers take if the other is sold out.

State: the stock of both. Each week both are ordered, orders arrive at once, and demand is Poisson.
What a sold-out product lacks is asked of the other one if customers switch that week.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.arguments import Seed, checked
from mmdp.domains._common import Domain, Draws, drawn
from mmdp.model import MMDP

ROOM, ORDERS, DEMANDS = 8, 5, 10  # of each product: units in stock, orders and demands from 0 on
PRICE, COST, HELD = (8.0, 6.0), (5.0, 3.0), 0.3  # of the first and the second; per unit kept
DESCRIPTION = "order two products: 81 states, 25 actions, 50 train and 100 test"
CITATION = (
    "Hendrix, Ortega, Haijema, Buisman and Garcia, On computing optimal policies in perishable "
    "inventory control using value iteration, Computational and Mathematical Methods, 2019 (two "
    "products, here without ages)"
)


@checked
def substitutes(n_train: int = 50, n_test: int = 100, seed: Seed = 0) -> Domain:
    """Two products that substitute for each other, with uncertain demand and willingness.

    Stock 0 to 8 of each, orders 0 to 4 of each. The mean demands are drawn from U(1, 4), the
    probability that customers switch from U(0, 1). Discount 0.95, start without stock. What a
    demand does is the same in all models. Built with :func:`mmdp.from_step`.

    >>> import mmdp
    >>> train, test = mmdp.domains.substitutes(n_train=5, n_test=3)
    >>> train.state_labels[11], train.action_labels[6], train.storage
    ('first=1, second=2', 'order1=1, order2=1', 'events')
    """

    def draw(rng: np.random.Generator, count: int) -> Draws:
        return {
            "mean1": rng.uniform(1, 4, count), "mean2": rng.uniform(1, 4, count),
            "switch": rng.uniform(0, 1, count),
        }  # fmt: skip

    nominal = {k: np.array([x]) for k, x in {"mean1": 2.5, "mean2": 2.5, "switch": 0.5}.items()}
    train, test, true = map(models, (*drawn(n_train, n_test, seed, draw), nominal))
    return Domain("substitutes", train, test, true, DESCRIPTION, CITATION)


def step(state: Any, action: Any, event: Any) -> Any:
    """Stock after a week, and what it earned."""
    orders = action["order1"], action["order2"]
    stock = [np.minimum(state[k] + u, ROOM) for k, u in zip(state, orders, strict=True)]
    wanted = event["demand1"], event["demand2"]
    short = [np.maximum(d - x, 0) for d, x in zip(wanted, stock, strict=True)]
    asked = [wanted[0] + event["switches"] * short[1], wanted[1] + event["switches"] * short[0]]
    sold = [np.minimum(x, d) for x, d in zip(stock, asked, strict=True)]
    left = stock[0] - sold[0], stock[1] - sold[1]
    profit = sum(p * x - c * u for p, x, c, u in zip(PRICE, sold, COST, orders, strict=True))
    return {"first": left[0], "second": left[1]}, profit - HELD * (left[0] + left[1])


def chance(draw: Any) -> Any:
    """Probabilities of the demands, and of customers that switch; independent."""
    from scipy.stats import poisson

    def demand(mean: float) -> Any:
        p = poisson.pmf(np.arange(DEMANDS), mean)
        return p / p.sum()

    return {
        "demand1": demand(draw["mean1"]), "demand2": demand(draw["mean2"]),
        "switches": [1 - draw["switch"], draw["switch"]],
    }  # fmt: skip


def models(draws: Draws) -> MMDP:
    """One model for each draw of mean demands and of the probability of switching."""
    from mmdp.functions import from_step

    return from_step(
        step, states={"first": range(ROOM + 1), "second": range(ROOM + 1)},
        actions={"order1": range(ORDERS), "order2": range(ORDERS)},
        events={"demand1": range(DEMANDS), "demand2": range(DEMANDS), "switches": [0, 1]},
        chance=chance, draws=draws, initial={"first": 0, "second": 0}, discount=0.95,
        name="substitutes", citation=CITATION,
    )  # fmt: skip
