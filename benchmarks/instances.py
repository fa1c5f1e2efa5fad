"""Sizes of a run, and instances to time: those of the paper's domains, with a known pattern.

Times depend on the sizes and on the pattern of non-zeros, not on the numbers, so the
population instances are synthetic: a band of 22 of 51 next states per row, as in the true
population model, or rows without any zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lgamma
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

import mmdp
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.transitions import SparseTransitions
from mmdp.data.domains._garnet import choose_successors

if TYPE_CHECKING:
    import scipy.sparse

Array = npt.NDArray[np.float64]

BAND = 22  # non-zeros per row of the true population model, of 51


# ------------------------------------------------------------------ sizes
class Shape(NamedTuple):
    """A sparse problem: ``n_successors`` next states per row, in every model."""

    n_models: int
    n_states: int
    n_actions: int
    n_successors: int
    horizon: int

    @property
    def n_nonzeros(self) -> int:
        return self.n_models * self.n_states * self.n_actions * self.n_successors


LARGE, SHARDS = Shape(1000, 1000, 5, 40, 10), Shape(1000, 5000, 10, 40, 50)


def _scale_shapes(factors: Sequence[int]) -> dict[str, tuple[Shape, ...]]:
    """Grow the models, the states or the horizon, around POPS and POP."""
    return {
        "models": tuple(Shape(32 * k, 51, 5, BAND, 10) for k in factors),
        "states": tuple(Shape(100, 50 * k, 5, 8, 10) for k in factors),
        "horizon": tuple(Shape(100, 51, 5, BAND, 20 * k) for k in factors),
    }


@dataclass(frozen=True)
class Sizes:
    """How large and how often.

    The loops of more than ``max_loop_models`` models run one sweep over ``n_loop_steps`` only.
    """

    n_models: dict[str, int] = field(default_factory=lambda: {"RS": 100, "POPS": 100, "POP": 1000})
    n_states: int = 51
    horizon: int = 50
    n_rounds: int = 7
    n_loop_rounds: int = 3
    max_loop_models: int = 100
    n_loop_steps: int = 6
    dense_mdp: tuple[int, int] = (500, 10)
    sparse_mdp: tuple[int, int, int] = (5000, 10, 10)
    mdp_horizon: int = 100
    domains: tuple[str, ...] = ("RS", "POP", "POPS", "INV", "HIV")
    domain_horizon: int | None = None  # None: the horizon of the paper's main table
    n_episodes: int = 200  # per model, of simulated rollouts
    growth: dict[str, tuple[Shape, ...]] = field(
        default_factory=lambda: _scale_shapes((1, 3, 10, 32, 100))
    )
    large: Shape = LARGE
    perishable: tuple[int, int, int, int, int] = (3, 26, 10, 20, 100)
    input_share: float = 0.1  # of 640, 64 and 95 million non-zeros
    n_log_rows: int = 1_000_000
    # on an accelerator
    n_many_models: int = 20_000
    crossover: tuple[int, ...] = (100, 1000, 3000)
    copy_mb: int = 4096
    gpu_perishable: tuple[int, int, int, int, int] = (6, 9, 10, 20, 100)
    mdpax_ages: tuple[int, ...] = (3, 4, 5)
    max_weak_models: int = 2**21
    shards: Shape = SHARDS

    @property
    def is_trial(self) -> bool:
        return self is QUICK


FULL = Sizes()
QUICK = Sizes(
    n_models={"RS": 5, "POPS": 5, "POP": 7},
    n_states=23,
    horizon=4,
    n_rounds=2,
    n_loop_rounds=1,
    max_loop_models=5,
    n_loop_steps=2,
    dense_mdp=(12, 3),
    sparse_mdp=(40, 3, 4),
    mdp_horizon=5,
    domains=("RS", "HIV"),
    domain_horizon=5,
    n_episodes=4,
    growth={
        "models": tuple(Shape(m, 8, 2, 3, 2) for m in (4, 40, 400)),
        "states": tuple(Shape(4, s, 2, 3, 2) for s in (5, 50, 500)),
        "horizon": tuple(Shape(4, 8, 2, 3, t) for t in (2, 20, 200)),
    },
    large=Shape(20, 50, 3, 6, 4),
    perishable=(2, 4, 3, 5, 6),
    input_share=1e-6,
    n_log_rows=2000,
    n_many_models=40,
    crossover=(2, 8),
    copy_mb=8,
    gpu_perishable=(2, 4, 3, 5, 6),
    mdpax_ages=(),
    max_weak_models=32,
    shards=Shape(100, 50, 3, 6, 5),
)


# ------------------------------------------------------------------ several models
@dataclass(frozen=True)
class Instance:
    """Arrays with axes m, s, a, s_next; model weights are uniform.

    ``transitions`` and ``next_rewards`` (M, S, A, S'), ``initial`` (S,).
    """

    transitions: Array
    next_rewards: Array
    initial: Array
    discount: float
    horizon: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, S, A)."""
        m, s, a, _ = self.transitions.shape
        return m, s, a

    @cached_property
    def rewards(self) -> Array:
        """(M, S, A) expected rewards sum_s' p r."""
        return np.einsum("msan,msan->msa", self.transitions, self.next_rewards)

    @cached_property
    def model(self) -> mmdp.MMDP:
        """The same instance as an MMDP; storage chosen by density."""
        return mmdp.MMDP(
            self.transitions, self.rewards, initial=self.initial, discount=self.discount
        )

    def truncate(self, horizon: int) -> Instance:
        """Keep fewer time steps."""
        return replace(self, horizon=horizon)


def make_riverswim(
    n_models: int = 100, n_states: int = 20, horizon: int = 50, seed: int = 0
) -> Instance:
    """Make the chain of the riverswim domain with move probabilities from a Dirichlet."""
    moves = np.random.default_rng(seed).dirichlet([2.0, 3.0, 5.0], size=n_models)  # left stay right
    p = np.zeros((n_models, n_states, 2, n_states))
    r = np.zeros_like(p)
    s = np.arange(n_states)
    last = n_states - 1
    p[:, s, 0, np.maximum(s - 1, 0)] = 1.0
    for step in (-1, 0, 1):
        p[:, s, 1, np.clip(s + step, 0, last)] += moves[:, [step + 1]]
    r[:, :, 0] = 5.0
    r[:, last, 1, last] = 100.0
    return Instance(p, r, np.full(n_states, 1.0 / n_states), 0.9, horizon)


def make_population(
    n_models: int,
    n_states: int = 51,
    n_actions: int = 5,
    band: int | None = BAND,
    horizon: int = 50,
    seed: int = 0,
) -> Instance:
    """Make a controlled population: normal weights around a mean that differs by model.

    ``band`` next states per row are kept, the same in all models (None: all of them).
    """
    rng = np.random.default_rng(seed)
    s = np.arange(n_states)
    rate = np.where(np.arange(n_actions) == 0, 1.55, 0.3 + rng.random(n_actions))
    mean = np.minimum(rate * s[:, None] + 3.0, n_states - 1.0)  # (S, A)
    means = np.clip(mean + rng.normal(0, 3, (n_models, n_states, n_actions)), 0, n_states - 1)
    p = np.exp(-0.5 * ((s - means[..., None]) / 5.0) ** 2) + 1e-6
    if band is not None:
        first = np.clip(np.rint(mean).astype(int) - band // 2, 0, n_states - band)[..., None]
        p *= (s >= first) & (s < first + band)
    p /= p.sum(axis=-1, keepdims=True)
    cost = np.where(np.arange(n_actions) == 0, 0.0, 760.0 + 40.0 * np.arange(n_actions))
    reward = 1000.0 - s[:, None] ** 2.0 - cost  # (S, A)
    # uniform: from one state, a kernel that skips states nobody reaches would gain by that alone
    initial = np.full(n_states, 1.0 / n_states)
    r = np.broadcast_to(reward[None, :, :, None], p.shape)
    return Instance(p, r, initial, 0.9, horizon)


def make_instance(sizes: Sizes, name: str, pattern: str = "banded") -> Instance:
    """Make RS, POPS or POP of a run; the latter with ``"banded"`` or ``"dense"`` rows."""
    n_models = sizes.n_models[name]
    if name == "RS":
        return make_riverswim(n_models, horizon=sizes.horizon)
    band = BAND if pattern == "banded" else None
    return make_population(n_models, sizes.n_states, band=band, horizon=sizes.horizon)


ROWS_PER_BLOCK = 256


def make_sparse_model(shape: Shape, seed: int = 0) -> mmdp.MMDP:
    """Draw probabilities of consecutive next states around s, in place, block by block."""
    models, states, actions, successors, _ = shape
    rng = np.random.default_rng(seed)
    rows = states * actions
    first = np.clip(np.arange(states) - successors // 2, 0, states - successors)
    indices = np.repeat(first, actions)[:, None] + np.arange(successors)
    values = np.empty((rows, successors, models))
    for start in range(0, rows, ROWS_PER_BLOCK):
        block = values[start : start + ROWS_PER_BLOCK]
        rng.random(out=block)
        block += 1e-3
        block /= block.sum(axis=1, keepdims=True)
    support = SparseTransitions(
        (models, states, actions),
        np.arange(rows + 1, dtype=np.int64) * successors,
        indices.astype(np.int32).reshape(-1),
        values.reshape(1, -1, models),
        successors == states,
        None,
        None,
    )
    rewards = rng.normal(size=(1, states, actions, models))
    return mmdp.MMDP.from_sparse(support, rewards, discount=0.9)


# ------------------------------------------------------------------ exogenous events
def make_perishable_arrays(
    n_ages: int, max_units: int, n_orders: int, n_demands: int, n_models: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return next states (S, A, W), rewards (S, A, W) and probabilities (W, M) of perishable stock.

    A state is the units by age, oldest first, each from 0 to ``max_units``. An order arrives as the
    freshest. Demand takes the oldest first; what is left of the oldest is wasted. Models differ
    in mean demand. Reward: 5 sold - 3 ordered - 7 wasted - 1 kept - 2 lost.

    >>> after, reward, p = make_perishable_arrays(2, 2, 3, 4, 5)
    >>> after.shape, reward.shape, p.shape, bool(np.allclose(p.sum(axis=0), 1))
    ((9, 3, 4), (9, 3, 4), (4, 5), True)
    """
    base = max_units + 1
    digits = np.stack([np.arange(base**n_ages) // base**i % base for i in range(n_ages)], axis=1)
    after = np.empty((len(digits), n_orders, n_demands), np.int32)
    reward = np.empty(after.shape)
    order = np.minimum(np.arange(n_orders), max_units)
    for w in range(n_demands):
        units, unmet_demand = digits.copy(), np.full(len(digits), w)
        for i in range(n_ages):
            used = np.minimum(units[:, i], unmet_demand)
            units[:, i] -= used
            unmet_demand -= used
        waste, remaining_units = units[:, 0], units[:, 1:]
        older = remaining_units @ base ** np.arange(n_ages - 1)
        after[:, :, w] = older[:, None] + order * base ** (n_ages - 1)
        gain = 5 * (w - unmet_demand) - 7 * waste - remaining_units.sum(axis=1) - 2 * unmet_demand
        reward[:, :, w] = gain[:, None] - 3 * np.arange(n_orders)
    return after, reward, _draw_demands(n_models, n_demands)


def _draw_demands(n_models: int, n_demands: int, seed: int = 0) -> npt.NDArray[np.float64]:
    """Return (W, M) Poisson demand with gamma-distributed means; the last one has the tail."""
    mean = np.random.default_rng(seed).gamma(9, 1.0, n_models) * n_demands / 30
    w = np.arange(n_demands)[:, None]
    log = w * np.log(mean) - mean - np.array([[lgamma(x + 1)] for x in range(n_demands)])
    p = np.exp(log)
    p[-1] += np.maximum(1 - p.sum(axis=0), 0.0)
    return p


def make_perishable(
    n_ages: int, max_units: int, n_orders: int, n_demands: int, n_models: int
) -> mmdp.MMDP:
    """Make the model of that stock with exogenous events; it starts empty."""
    after, reward, p = make_perishable_arrays(n_ages, max_units, n_orders, n_demands, n_models)
    start = np.zeros(len(after))
    start[0] = 1.0
    events = ExogenousEvents(after[None, ..., None], p[None, None])
    r = events.make_rewards(reward).compact()
    return mmdp.MMDP.from_sparse(events, r, initial=start, discount=0.95)


# ------------------------------------------------------------------ one model
@dataclass(frozen=True)
class SingleModel:
    """One MDP: p (S, A, S') dense, or as a (S * A, S') sparse matrix; r (S, A)."""

    p: Array | scipy.sparse.csr_matrix
    r: Array
    discount: float

    @cached_property
    def model(self) -> mmdp.MMDP:
        if isinstance(self.p, np.ndarray):
            return mmdp.MMDP(self.p, self.r, discount=self.discount)
        n_actions = self.r.shape[1]
        matrices = [self.p[a::n_actions].tocsr() for a in range(n_actions)]
        return mmdp.MMDP([matrices], self.r, discount=self.discount, storage="sparse")


def make_dense_mdp(states: int, actions: int, seed: int = 0) -> SingleModel:
    """Draw rows without zeros."""
    rng = np.random.default_rng(seed)
    p = rng.random((states, actions, states))
    p /= p.sum(axis=-1, keepdims=True)
    return SingleModel(p, rng.normal(size=(states, actions)), 0.95)


def make_sparse_mdp(states: int, actions: int, successors: int, seed: int = 0) -> SingleModel:
    """Draw a few next states per row."""
    import scipy.sparse

    rng = np.random.default_rng(seed)
    rows = states * actions
    after = choose_successors(rows, states, successors, rng)
    p = rng.random((rows, successors)) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    starts = np.arange(rows + 1) * successors
    matrix = scipy.sparse.csr_matrix((p.reshape(-1), after.reshape(-1), starts), (rows, states))
    return SingleModel(matrix, rng.normal(size=(states, actions)), 0.95)
