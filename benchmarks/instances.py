"""Instances to time: the sizes of the paper's domains, with a known share of non-zeros.

Times depend on the sizes and on the pattern of non-zeros, not on the numbers, so the
population instances are synthetic: a band of 22 of 51 next states per row, as in the true
population model, or rows without any zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import mmdp
from benchmarks.sizes import Shape
from mmdp.domains._garnet import choose_successors
from mmdp.support import Support

if TYPE_CHECKING:
    import scipy.sparse

Array = npt.NDArray[np.float64]

BAND = 22  # non-zeros per row of the true population model, of 51


@dataclass(frozen=True)
class Instance:
    """Arrays with axes m, s, a, s_next; model weights are uniform.

    ``transitions`` and ``next_rewards`` (M, S, A, S'), ``initial`` (S,).
    """

    name: str
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

    @property
    def per_row(self) -> float:
        """Mean number of next states per row, counted over the union of the models."""
        return float((self.transitions > 0).any(axis=0).sum(axis=-1).mean())

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

    def shortened(self, horizon: int) -> Instance:
        """The same instance over fewer time steps."""
        return replace(self, horizon=horizon)


def riverswim(models: int = 100, states: int = 20, horizon: int = 50, seed: int = 0) -> Instance:
    """The chain of the riverswim domain, move probabilities from a Dirichlet posterior."""
    moves = np.random.default_rng(seed).dirichlet([2.0, 3.0, 5.0], size=models)  # left stay right
    p = np.zeros((models, states, 2, states))
    r = np.zeros_like(p)
    s = np.arange(states)
    last = states - 1
    p[:, s, 0, np.maximum(s - 1, 0)] = 1.0
    for step in (-1, 0, 1):
        p[:, s, 1, np.clip(s + step, 0, last)] += moves[:, [step + 1]]
    r[:, :, 0] = 5.0
    r[:, last, 1, last] = 100.0
    return Instance(f"RS {models}", p, r, np.full(states, 1.0 / states), 0.9, horizon)


def population(
    models: int,
    states: int = 51,
    actions: int = 5,
    band: int | None = BAND,
    horizon: int = 50,
    seed: int = 0,
) -> Instance:
    """Growth and control of a population: normal weights around a mean that differs by model.

    ``band`` next states per row are kept, the same in all models (None: all of them).
    """
    rng = np.random.default_rng(seed)
    s = np.arange(states)
    rate = np.where(np.arange(actions) == 0, 1.55, 0.3 + rng.random(actions))
    mean = np.minimum(rate * s[:, None] + 3.0, states - 1.0)  # (S, A)
    means = np.clip(mean + rng.normal(0, 3, (models, states, actions)), 0, states - 1)
    p = np.exp(-0.5 * ((s - means[..., None]) / 5.0) ** 2) + 1e-6
    if band is not None:
        first = np.clip(np.rint(mean).astype(int) - band // 2, 0, states - band)[..., None]
        p *= (s >= first) & (s < first + band)
    p /= p.sum(axis=-1, keepdims=True)
    cost = np.where(np.arange(actions) == 0, 0.0, 760.0 + 40.0 * np.arange(actions))
    reward = 1000.0 - s[:, None] ** 2.0 - cost  # (S, A)
    # uniform: from one state, a kernel that skips states nobody reaches would gain by that alone
    initial = np.full(states, 1.0 / states)
    kind = "dense" if band is None else "banded"
    r = np.broadcast_to(reward[None, :, :, None], p.shape)
    return Instance(f"POP {models} {kind}", p, r, initial, 0.9, horizon)


# ------------------------------------------------------------------ any size, never twice in memory
ROWS_AT_ONCE = 256


def sparse_model(shape: Shape, seed: int = 0) -> mmdp.MMDP:
    """Random probabilities on consecutive next states around s, filled in place, block by block."""
    models, states, actions, successors, _ = shape
    rng = np.random.default_rng(seed)
    rows = states * actions
    first = np.clip(np.arange(states) - successors // 2, 0, states - successors)
    indices = np.repeat(first, actions)[:, None] + np.arange(successors)
    values = np.empty((rows, successors, models))
    for start in range(0, rows, ROWS_AT_ONCE):
        block = values[start : start + ROWS_AT_ONCE]
        rng.random(out=block)
        block += 1e-3
        block /= block.sum(axis=1, keepdims=True)
    support = Support(
        (models, states, actions),
        np.arange(rows + 1, dtype=np.int64) * successors,
        indices.astype(np.int32).reshape(-1),
        values.reshape(1, -1, models),
        successors == states,
        None,
        None,
    )
    rewards = rng.normal(size=(1, states, actions, models))
    return mmdp.MMDP.from_support(support, rewards, discount=0.9)


# ------------------------------------------------------------------ one model
@dataclass(frozen=True)
class OneModel:
    """A single model: p (S, A, S') dense, or as a (S * A, S') sparse matrix; r (S, A)."""

    name: str
    p: Array | scipy.sparse.csr_matrix
    r: Array
    discount: float

    @cached_property
    def model(self) -> mmdp.MMDP:
        if isinstance(self.p, np.ndarray):
            return mmdp.MMDP(self.p, self.r, discount=self.discount)
        by_action = self.by_action()
        return mmdp.MMDP([by_action], self.r, discount=self.discount, storage="sparse")

    def by_action(self) -> list[scipy.sparse.csr_matrix]:
        """One (S, S') matrix an action, of sparse transitions."""
        assert not isinstance(self.p, np.ndarray)
        actions = self.r.shape[1]
        return [self.p[a::actions].tocsr() for a in range(actions)]


def one_dense(states: int, actions: int, seed: int = 0) -> OneModel:
    """Random rows without zeros."""
    rng = np.random.default_rng(seed)
    p = rng.random((states, actions, states))
    p /= p.sum(axis=-1, keepdims=True)
    return OneModel(
        f"one model, dense {states}×{actions}", p, rng.normal(size=(states, actions)), 0.95
    )


def one_sparse(states: int, actions: int, successors: int, seed: int = 0) -> OneModel:
    """A few random next states per row."""
    import scipy.sparse

    rng = np.random.default_rng(seed)
    rows = states * actions
    after = choose_successors(rows, states, successors, rng)
    p = rng.random((rows, successors)) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    starts = np.arange(rows + 1) * successors
    matrix = scipy.sparse.csr_matrix((p.reshape(-1), after.reshape(-1), starts), (rows, states))
    rewards = rng.normal(size=(states, actions))
    return OneModel(f"one model, sparse {states}×{actions}", matrix, rewards, 0.95)
