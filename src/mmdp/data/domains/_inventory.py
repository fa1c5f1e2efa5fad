"""Inventory: order stock before an uncertain demand is seen.

Symbols: stock s in 0..20, order a in 0..10 clipped to the free capacity 20 - s, demand
D ~ Poisson(rate) truncated to 0..30. Prior rate ~ Gamma(4, scale 6); after n demands with
sum y the posterior is Gamma(4 + y, scale 6 / (1 + 6 n)).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import NonNegativeInt, Seed, check_arguments
from mmdp.core.model import MMDP
from mmdp.core.shapes import Array
from mmdp.core.validate import check_int
from mmdp.data.domains._common import CADP_PAPER, Domain, sample_domain
from mmdp.data.sampling import spawn_generators

CAPACITY, MAX_ORDER, MAX_DEMAND = 20, 10, 30
PRICE, UNIT_COST, ORDER_COST, HOLDING_COST = 4.99, 2.49, 0.49, 0.05
TRUE_RATE = 10.0
PRIOR_SHAPE, PRIOR_SCALE = 4.0, 6.0
PAPER_DEMANDS = (7, 7, 7, 7, 8, 8)  # posterior Gamma(48, scale 6/37)
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
    preset: Literal["paper"] | None = None,
    demands: NonNegativeInt | Sequence[NonNegativeInt] = 6,
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
        Seed of the models and of the log.
    preset
        ``"paper"`` samples the rates from Gamma(48, scale 6/37). The paper's models were not
        published; this posterior is calibrated to its table (323 with standard deviation 47
        at T = 50), and would follow from 6 demands that sum to 44.
    demands
        Without a preset: the number of demands to log from the true model (rate 10), or the
        observed demands themselves.

    ``train.parameters["rate"]`` holds the (M,) demand rates.

    >>> import mmdp
    >>> train, test = mmdp.domains.inventory(seed=0, preset="paper")
    >>> train.n_models, test.n_models, train.action_labels[3], train.state_labels[20]
    (100, 200, 'order 3', 'stock 20')
    """
    if preset == "paper":
        demands = PAPER_DEMANDS
    if isinstance(demands, Iterable):
        observed = list(demands)
    else:
        log_rng, n_demands = spawn_generators(seed, 3)[2], check_int(demands, "demands", 0, 8)
        p = compute_demand_probs([TRUE_RATE])[0]
        observed = log_rng.choice(MAX_DEMAND + 1, n_demands, p=p).tolist()
    shape, scale = compute_posterior(observed)

    def sample_models(rng: np.random.Generator, n_models: int) -> MMDP:
        return make_models(rng.gamma(shape, scale, n_models))

    return sample_domain(sample_models, n_train, n_test, seed, make_models(np.array([TRUE_RATE])))


def compute_posterior(demands: Sequence[int]) -> tuple[float, float]:
    """Compute shape and scale of the Gamma posterior of the demand rate.

    >>> compute_posterior(PAPER_DEMANDS)
    (48.0, 0.16216216216216217)
    """
    return PRIOR_SHAPE + sum(demands), PRIOR_SCALE / (1.0 + PRIOR_SCALE * len(demands))


def compute_demand_probs(rates: npt.ArrayLike) -> Array:
    """Compute Poisson probabilities (M, 31) of demands 0..30, normalized to sum to 1."""
    from scipy.special import gammaln

    d = np.arange(MAX_DEMAND + 1)
    rate = np.asarray(rates, dtype=np.float64)[:, None]
    weights = np.exp(d * np.log(rate) - rate - gammaln(d + 1.0))
    return weights / weights.sum(axis=1, keepdims=True)


def make_models(rates: Array) -> MMDP:
    """Make one model for each of the demand rates (M,)."""
    stock, order, remaining = np.ogrid[: CAPACITY + 1, : MAX_ORDER + 1, : CAPACITY + 1]
    ordered = np.minimum(order, CAPACITY - stock)
    sold = stock + ordered - remaining  # the demand, or a smaller number if nothing is left
    demand_probs = compute_demand_probs(rates)
    tail_probs = np.cumsum(demand_probs[:, ::-1], axis=1)[:, ::-1]
    demand = np.clip(sold, 0, MAX_DEMAND)
    transitions = np.where(remaining == 0, tail_probs[:, demand], demand_probs[:, demand])
    transitions *= sold >= 0
    margin = PRICE * sold - UNIT_COST * ordered
    next_rewards = margin - ORDER_COST * (ordered > 0) - HOLDING_COST * remaining
    next_rewards = np.where(sold >= 0, next_rewards, 0.0)
    return MMDP(
        transitions,
        next_rewards=np.broadcast_to(next_rewards, transitions.shape),
        initial=np.eye(CAPACITY + 1)[0],
        discount=0.95,
        states=[f"stock {s}" for s in range(CAPACITY + 1)],
        actions=[f"order {a}" for a in range(MAX_ORDER + 1)],
        parameters={"rate": rates},
        name="inventory",
        citation=CITATION,
    )
