"""Inventory: order stock before an uncertain demand is seen.

Symbols: stock s in 0..20, order a in 0..10 clipped to the free capacity 20 - s, demand
D ~ Poisson(rate) truncated to 0..30. Prior rate ~ Gamma(4, scale 6); after n demands with
sum y the posterior is Gamma(4 + y, scale 6 / (1 + 6 n)).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Seed, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.validate import check_int
from mmdp.data.domains._common import (
    CADP_PAPER,
    Array,
    Domain,
    check_choice,
    spawn_generators,
)

CAPACITY, MAX_ORDER, MAX_DEMAND = 20, 10, 30
PRICE, UNIT_COST, ORDER_COST, HOLDING_COST = 4.99, 2.49, 0.49, 0.05
TRUE_RATE = 10.0
PRIOR_SHAPE, PRIOR_SCALE = 4.0, 6.0
PAPER_SHAPE, PAPER_SCALE = 48.0, 6.0 / 37.0
DESCRIPTION = "order stock for uncertain demand: 21 states, 11 actions, 100 train and 200 test"
CITATION = (
    "Ho, Petrik and Wiesemann, Partial Policy Iteration for L1-Robust Markov Decision "
    "Processes, Journal of Machine Learning Research, 2021; as in "
) + CADP_PAPER


@check_arguments
def inventory(
    n_train: int = 100,
    n_test: int = 200,
    seed: Seed = 0,
    *,
    preset: str | None = None,
    demands: int | Sequence[int] = 6,
    log_seed: Seed = None,
) -> Domain:
    """Generate models of inventory control (INV): stock 0..20, orders 0..10, discount 0.95.

    The initial stock is 0.

    Reward: 4.99 sold - 2.49 ordered - 0.49 (ordered > 0) - 0.05 (stock left), kept per next
    state. Orders are clipped to the free capacity; there is no backlog.

    Parameters
    ----------
    n_train, n_test
        Numbers of models.
    seed
        Seed of the models, and of the log if ``log_seed`` is not given.
    preset
        ``"paper"`` samples the rates from Gamma(48, scale 6/37). The paper's models were not
        published; this posterior is calibrated to its table (323 with standard deviation 47
        at T = 50), and would follow from 6 demands that sum to 44.
    demands
        Without a preset: the number of demands to log from the true model (rate 10), or the
        observed demands themselves.
    log_seed
        Seed of the logged demands.

    ``train.parameters["rate"]`` holds the (M,) demand rates.

    >>> import mmdp
    >>> train, test = mmdp.domains.inventory(seed=0, preset="paper")
    >>> train.n_models, test.n_models, train.action_labels[3], train.state_labels[20]
    (100, 200, 'order 3', 'stock 20')
    """
    train_rng, test_rng, log_rng = spawn_generators(seed, 3)
    if log_seed is not None:
        (log_rng,) = spawn_generators(log_seed, 1)
    if preset is None:
        shape, scale = compute_posterior(read_demands(demands, log_rng))
    else:
        check_choice(preset, "preset", ("paper",))
        shape, scale = PAPER_SHAPE, PAPER_SCALE
    train = make_models(train_rng.gamma(shape, scale, check_int(n_train, "n_train", item_bytes=8)))
    test = make_models(test_rng.gamma(shape, scale, check_int(n_test, "n_test", item_bytes=8)))
    return Domain(
        "inventory", train, test, make_models(np.array([TRUE_RATE])), DESCRIPTION, CITATION
    )


def read_demands(demands: int | Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Read observed demands, or simulate that many from the true model."""
    if isinstance(demands, (int, np.integer)):
        count = check_int(demands, "demands", 0, item_bytes=8)
        return rng.choice(MAX_DEMAND + 1, size=count, p=compute_demand_probs([TRUE_RATE])[0])
    array = np.asarray(demands)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
        raise InputError(
            "demands is neither a count nor a list of whole numbers >= 0; give one of these"
        )
    return array.astype(np.int64)


def compute_posterior(demands: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Compute shape and scale of the Gamma posterior of the demand rate.

    >>> compute_posterior(np.array([7, 7, 7, 7, 8, 8]))  # the paper preset: 48 and 6/37
    (48.0, 0.16216216216216217)
    """
    shape = PRIOR_SHAPE + float(demands.sum())
    return shape, PRIOR_SCALE / (1.0 + PRIOR_SCALE * len(demands))


def compute_demand_probs(rates: npt.ArrayLike) -> Array:
    """Compute Poisson probabilities (M, 31) of demands 0..30, normalized to sum to 1."""
    from scipy.special import gammaln

    d = np.arange(MAX_DEMAND + 1)
    rate = np.asarray(rates, dtype=np.float64)[:, None]
    weights = np.exp(d * np.log(rate) - rate - gammaln(d + 1.0))
    return weights / weights.sum(axis=1, keepdims=True)


def make_models(rates: Array) -> MMDP:
    """Make one model for each of the demand rates (M,)."""
    stock = np.arange(CAPACITY + 1)
    order_quantity = np.minimum(np.arange(MAX_ORDER + 1), (CAPACITY - stock)[:, None])
    stock_after_order = stock[:, None] + order_quantity
    remaining_stock = np.arange(CAPACITY + 1)
    # the demand that leaves this stock; for 0 any larger one too
    demand = stock_after_order[:, :, None] - remaining_stock
    demand_probs = compute_demand_probs(rates)
    tail_probs = np.cumsum(demand_probs[:, ::-1], axis=1)[:, ::-1]
    clipped_demand = np.clip(demand, 0, MAX_DEMAND)
    transitions = np.where(
        remaining_stock == 0, tail_probs[:, clipped_demand], demand_probs[:, clipped_demand]
    )
    transitions *= demand >= 0
    margin = PRICE * demand - UNIT_COST * order_quantity[:, :, None]
    next_rewards = (
        margin - ORDER_COST * (order_quantity > 0)[:, :, None] - HOLDING_COST * remaining_stock
    )
    next_rewards = np.where(demand >= 0, next_rewards, 0.0)
    return MMDP(
        transitions,
        next_rewards=np.broadcast_to(next_rewards, transitions.shape),
        initial=np.eye(CAPACITY + 1)[0],
        discount=0.95,
        states=[f"stock {s}" for s in stock],
        actions=[f"order {a}" for a in range(MAX_ORDER + 1)],
        parameters={"rate": rates},
        name="inventory",
        citation=CITATION,
    )
