"""Perishable stock: order before demand is seen, and waste what has become too old.

State: orders on their way (one axis for each period but the last) and stock by age, from fresh to
old. Demand is gamma-distributed with mean and coefficient of variation by draw, rounded to 0..100.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdp.arguments import Seed, checked
from mmdp.domains._common import Array, Domain, Draws, check_choice, drawn
from mmdp.model import MMDP
from mmdp.validate import check_whole

MOST, DEMANDS = 10, 101  # units of each age or order; demands from 0 on
ORDERED, SHORT, WASTED, HELD = 3.0, 5.0, 7.0, 1.0  # cost per unit
DESCRIPTION = "order what perishes: 121 states, 11 actions, 100 train and 200 test"
CITATION = (
    "De Moor, Gijsbrechts and Boute, Reward shaping to improve the performance of deep "
    "reinforcement learning in perishable inventory management, European Journal of Operational "
    "Research, 2022"
)


@checked
def perishable(
    n_train: int = 100,
    n_test: int = 200,
    seed: Seed = 0,
    *,
    life: int = 2,
    lead_time: int = 1,
    issue: str = "fifo",
) -> Domain:
    """Perishable stock that lives ``life`` periods and arrives ``lead_time`` after the order.

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
    check_choice(issue, "issue", ("fifo", "lifo"))
    check_whole(life, "life")
    check_whole(lead_time, "lead_time")

    def draw(rng: np.random.Generator, count: int) -> Draws:
        return {"mean": rng.uniform(3, 5, count), "variation": rng.uniform(0.4, 0.6, count)}

    nominal = {"mean": np.array([4.0]), "variation": np.array([0.5])}
    train, test, true = (
        models(x, life, lead_time, issue) for x in (*drawn(n_train, n_test, seed, draw), nominal)
    )
    return Domain("perishable", train, test, true, DESCRIPTION, CITATION)


def demand(draw: Any) -> Array:
    """(101,) probabilities of the demands."""
    from scipy.special import gammainc

    shape = draw["variation"] ** -2
    up_to = gammainc(shape, (np.arange(DEMANDS - 1) + 0.5) * shape / draw["mean"])
    return np.diff(up_to, prepend=0.0, append=1.0)


def models(draws: Draws, life: int, lead_time: int, issue: str) -> MMDP:
    """One model for each draw of the mean and the variation of demand."""
    from mmdp.functions import from_step

    on_the_way = [f"ordered{i}" for i in range(1, lead_time)]
    ages = [f"age{i}" for i in range(1, life + 1)]
    names, turns = on_the_way + ages, range(life) if issue == "lifo" else range(life)[::-1]

    def step(state: Any, action: Any, event: Any) -> Any:
        order, short, left = action["order"], event["demand"], [state[x] for x in ages]
        for i in turns:
            used = np.minimum(left[i], short)
            left[i], short = left[i] - used, short - used
        wasted = left.pop()
        following = [order, *(state[x] for x in on_the_way), *left]
        cost = ORDERED * order + SHORT * short + WASTED * wasted + HELD * sum(left)
        return dict(zip(names, following, strict=True)), -cost

    return from_step(
        step, states={x: range(MOST + 1) for x in names}, actions={"order": range(MOST + 1)},
        events={"demand": range(DEMANDS)}, chance=demand, draws=draws,
        initial=dict.fromkeys(names, 0), discount=0.99, name="perishable", citation=CITATION,
    )  # fmt: skip
