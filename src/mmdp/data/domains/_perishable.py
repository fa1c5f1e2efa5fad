"""Perishable stock: order before demand is known; units that are too old are wasted.

State: orders on their way (one axis for each period but the last) and stock by age, from fresh to
old. Demand is gamma-distributed with a mean and a coefficient of variation of each model,
rounded to 0..100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array
from mmdp.core.validate import check_int
from mmdp.data.domains._common import Domain, sample_domain

Fields = Mapping[str, Array]  # values by name of a state, an action, an event or samples

MAX_UNITS, N_DEMANDS = 10, 101  # units of each age or order; demands from 0 on
ORDER_COST, SHORTAGE_COST, WASTE_COST, HOLDING_COST = 3.0, 5.0, 7.0, 1.0  # cost per unit
CITATION = (
    "De Moor, Gijsbrechts and Boute, Reward shaping to improve the performance of deep "
    "reinforcement learning in perishable inventory management, European Journal of Operational "
    "Research, 2022"
)


@check_arguments
def perishable(
    n_train: int = 100,
    n_test: int = 200,
    seed: Seed = 0,
    *,
    life: int = 2,
    lead_time: int = 1,
    issue: Literal["fifo", "lifo"] = "fifo",
) -> Domain:
    """Generate models of perishable stock with a ``life`` and a ``lead_time`` in periods.

    Each period: order 0 to 10 units, meet the demand from the oldest units (``issue="fifo"``) or
    the freshest (``"lifo"``), waste what is left of the oldest. Costs per unit: 3 ordered, 5 short,
    7 wasted, 1 held. Discount 0.99, start without stock; 11^(life + lead_time - 1) states. The mean
    demand is drawn from U(3, 5), its coefficient of variation from U(0.4, 0.6); the true model has
    4 and 0.5. Built with :func:`mmdp.from_step`.

    >>> import mmdp
    >>> train, test = mmdp.domains.perishable(n_train=5, n_test=3)
    >>> train.n_states, train.state_labels[13], train.storage
    (121, 'age1=1, age2=2', 'events')
    """
    check_int(life, "life", item_bytes=8)
    check_int(lead_time, "lead_time", item_bytes=8)

    def sample_models(rng: np.random.Generator, n_models: int) -> MMDP:
        means, variations = rng.uniform(3, 5, n_models), rng.uniform(0.4, 0.6, n_models)
        return make_models({"mean": means, "variation": variations}, life, lead_time, issue)

    nominal = {"mean": np.array([4.0]), "variation": np.array([0.5])}
    true_model = make_models(nominal, life, lead_time, issue)
    return sample_domain(sample_models, n_train, n_test, seed, true_model)


def demand_probs(sample: Fields) -> Array:
    """Compute the probabilities (101,) of the demands for a mean and coefficient of variation."""
    from scipy.special import gammainc

    shape = sample["variation"] ** -2
    cdf = gammainc(shape, (np.arange(N_DEMANDS - 1) + 0.5) * shape / sample["mean"])
    return np.diff(cdf, prepend=0.0, append=1.0)


def make_models(samples: Fields, life: int, lead_time: int, issue: str) -> MMDP:
    """Make one model for each sample of the mean and the variation of demand."""
    from mmdp.data.functions import from_step

    pipeline = [f"ordered{i}" for i in range(1, lead_time)]
    ages = [f"age{i}" for i in range(1, life + 1)]
    names, issue_order = pipeline + ages, range(life) if issue == "lifo" else range(life)[::-1]

    def step(state: Fields, action: Fields, event: Fields) -> tuple[dict[str, Array], Array]:
        """Compute orders and stock after a period, and minus its cost."""
        order, shortage = action["order"], event["demand"]
        remaining_stock = [state[x] for x in ages]
        for i in issue_order:
            sales = np.minimum(remaining_stock[i], shortage)
            remaining_stock[i], shortage = remaining_stock[i] - sales, shortage - sales
        waste = remaining_stock.pop()
        next_values = [order, *(state[x] for x in pipeline), *remaining_stock]
        cost = (
            ORDER_COST * order
            + SHORTAGE_COST * shortage
            + WASTE_COST * waste
            + HOLDING_COST * sum(remaining_stock)
        )
        return dict(zip(names, next_values, strict=True)), -cost

    return from_step(
        step,
        states={x: range(MAX_UNITS + 1) for x in names},
        actions={"order": range(MAX_UNITS + 1)},
        events={"demand": range(N_DEMANDS)},
        event_probs=demand_probs,
        samples=samples,
        initial=dict.fromkeys(names, 0),
        discount=0.99,
        name="perishable",
        citation=CITATION,
    )
