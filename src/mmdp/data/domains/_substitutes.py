"""Inventory of two products that substitute for each other when one is sold out.

State: the stock of both. Each week both are ordered, orders arrive at once, and demand is Poisson.
Unmet demand for a sold-out product goes to the other one if customers switch that week.
"""

from __future__ import annotations

import numpy as np

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.data.domains._common import Array, Domain, Fields, ParameterSamples, sample_parameters

CAPACITY, N_ORDERS, N_DEMANDS = 8, 5, 10  # of each product; orders and demands from 0 on
PRICES, UNIT_COSTS = (8.0, 6.0), (5.0, 3.0)  # of the first and the second product
HOLDING_COST = 0.3  # per unit kept
DESCRIPTION = "order two products: 81 states, 25 actions, 50 train and 100 test"
CITATION = (
    "Hendrix, Ortega, Haijema, Buisman and Garcia, On computing optimal policies in perishable "
    "inventory control using value iteration, Computational and Mathematical Methods, 2019 (two "
    "products, here without ages)"
)


@check_arguments
def substitutes(n_train: int = 50, n_test: int = 100, seed: Seed = 0) -> Domain:
    """Generate models of two products with uncertain demands and probability of switching.

    Stock 0 to 8 of each, orders 0 to 4 of each. The mean demands are drawn from U(1, 4), the
    probability that customers switch from U(0, 1). Discount 0.95, start without stock. What a
    demand does is the same in all models. Built with :func:`mmdp.from_step`.

    >>> import mmdp
    >>> train, test = mmdp.domains.substitutes(n_train=5, n_test=3)
    >>> train.state_labels[11], train.action_labels[6], train.storage
    ('first=1, second=2', 'order1=1, order2=1', 'events')
    """

    def sample(rng: np.random.Generator, n_models: int) -> ParameterSamples:
        """Sample mean demands and probabilities of switching."""
        return {
            "mean1": rng.uniform(1, 4, n_models),
            "mean2": rng.uniform(1, 4, n_models),
            "switch": rng.uniform(0, 1, n_models),
        }

    nominal = {k: np.array([x]) for k, x in {"mean1": 2.5, "mean2": 2.5, "switch": 0.5}.items()}
    train, test, true_model = map(
        make_models, (*sample_parameters(n_train, n_test, seed, sample), nominal)
    )
    return Domain("substitutes", train, test, true_model, DESCRIPTION, CITATION)


def step(state: Fields, action: Fields, event: Fields) -> tuple[dict[str, Array], Array]:
    """Compute the stock of both products after a week, and its profit."""
    orders = action["order1"], action["order2"]
    stock = [np.minimum(state[k] + u, CAPACITY) for k, u in zip(state, orders, strict=True)]
    demands = event["demand1"], event["demand2"]
    shortages = [np.maximum(d - x, 0) for d, x in zip(demands, stock, strict=True)]
    total_demands = [
        demands[0] + event["switches"] * shortages[1],
        demands[1] + event["switches"] * shortages[0],
    ]
    sold = [np.minimum(x, d) for x, d in zip(stock, total_demands, strict=True)]
    remaining_stock = stock[0] - sold[0], stock[1] - sold[1]
    revenue = PRICES[0] * sold[0] - UNIT_COSTS[0] * orders[0]
    revenue = revenue + (PRICES[1] * sold[1] - UNIT_COSTS[1] * orders[1])
    profit = revenue - HOLDING_COST * (remaining_stock[0] + remaining_stock[1])
    return {"first": remaining_stock[0], "second": remaining_stock[1]}, profit


def event_probs(sample: Fields) -> dict[str, Array | list[Array]]:
    """Compute the probabilities of the two demands and of switching, which are independent."""
    from scipy.stats import poisson

    def demand_probs(mean: Array) -> Array:
        p = np.asarray(poisson.pmf(np.arange(N_DEMANDS), mean), dtype=np.float64)
        return p / p.sum()

    return {
        "demand1": demand_probs(sample["mean1"]),
        "demand2": demand_probs(sample["mean2"]),
        "switches": [1 - sample["switch"], sample["switch"]],
    }


def make_models(samples: ParameterSamples) -> MMDP:
    """Make one model for each sample of mean demands and of the probability of switching."""
    from mmdp.data.functions import from_step

    return from_step(
        step,
        states={"first": range(CAPACITY + 1), "second": range(CAPACITY + 1)},
        actions={"order1": range(N_ORDERS), "order2": range(N_ORDERS)},
        events={"demand1": range(N_DEMANDS), "demand2": range(N_DEMANDS), "switches": [0, 1]},
        event_probs=event_probs,
        samples=samples,
        initial={"first": 0, "second": 0},
        discount=0.95,
        name="substitutes",
        citation=CITATION,
    )
