"""What a kernel is given and what it gives back: plain arrays, models last.

Symbols used in every kernel (the paper's letters):

=========  ======================================================  ==================
symbol     meaning                                                 shape
=========  ======================================================  ==================
p          p_t^m(s' | s, a) on the shared pattern                  (T or 1, nnz, M)
r          r_t^m(s, a)                                             (T or 1, S, A, M)
v          v_{t,m}(s), eq. (backup)                                (S, M) at each t
q          q_{t,m}(s, a), eq. (value of state-action)              (S, A, M) at each t
b          b_{t,m}(s) = P[model m, state s at t], eq. (belief)     (T, S, M)
G          sum_m b q = d rho / d pi_t(s, a), up to gamma^t         (T, S, A)
=========  ======================================================  ==================

Row ``s * A + a`` of the pattern owns entries ``indptr[row]:indptr[row + 1]``, whose next
states are ``indices``.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

LINE = 64  # bytes that a processor moves at a time

TIE = 1e-12  # two actions whose G differ by less, relative to their size, are tied


def aligned(*shape: int, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """An empty array that begins where a cache line does: vectors of its rows cross none.

    >>> aligned(3, 8).ctypes.data % LINE
    0
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + size].view(dtype).reshape(shape)


class Problem(NamedTuple):
    """The arrays of an MMDP (see the module's table); all C-contiguous and read-only."""

    indptr: npt.NDArray[np.int64]
    indices: IntArray
    p: Array
    r: Array
    allowed: npt.NDArray[np.bool_]
    initial: Array
    weights: Array
    discount: float
    terminal: Array
    dense: bool

    @property
    def n_models(self) -> int:
        return self.p.shape[2]

    @property
    def n_states(self) -> int:
        return self.allowed.shape[0]

    @property
    def n_actions(self) -> int:
        return self.allowed.shape[1]

    def work(self, horizon: int) -> int:
        """Multiply-adds of one backward pass."""
        return len(self.indices) * self.n_models * horizon

    def rows(self) -> npt.NDArray[np.int64]:
        """(nnz,) row s * A + a of every entry of the pattern."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def prior_weights(self) -> Array:
        """(1, 1, M): the initial model weights as constant b, for WSU."""
        return self.weights.reshape(1, 1, -1).copy()

    def returns(self, first: Array) -> Array:
        """(M,) return of every model from the values (S, M) at the first step."""
        return self.initial @ first


Choice = Literal["weighted", "own", "given"]


class Backward(NamedTuple):
    """What a backward pass found; parts that were not asked for are None.

    first: (S, M) values at the first step. actions: (T, S), or (T, S, M) each model's own.
    values: (T + 1, S, M). gradient: (T, S, A) G, without the factor gamma^t; entries of
    actions that are not allowed are -inf. q: (T, S, A, M), -inf where not allowed.
    """

    first: Array
    actions: IntArray | None
    values: Array | None
    gradient: Array | None
    q: Array | None


class Kernel(Protocol):
    """The numerical work behind every method; see :mod:`mmdp.testing` for its conformance kit."""

    name: str

    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: npt.NDArray[np.generic] | None = None,
        keep_actions: bool = False,
        keep_values: bool = False,
        keep_gradient: bool = False,
        keep_q: bool = False,
    ) -> Backward:
        """One pass t = T..1 of q = r + gamma P v and v = q at the chosen action.

        ``choice``: ``"weighted"`` maximises G = sum_m b q with ``weights`` b of shape
        (T or 1, S or 1, M); a tie goes to the incumbent ``policy`` (T, S) where given, else
        to the lowest action, and a state of zero weight keeps its incumbent. ``"own"``: each
        model its own maximum. ``"given"``: ``policy`` (T, S) actions or (T, S, A)
        probabilities; with ``weights`` the gradient G can be kept.
        """
        ...

    def forward(self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic]) -> Array:
        """(T, S, M) model weights b under ``policy``, (T, S) or (T, S, A)."""
        ...

    def improve(
        self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic], q: Array
    ) -> tuple[IntArray, Array]:
        """A forward pass that improves the policy on its way: ((T, S) actions, (T, S, M) b).

        ``q`` (T, S, A, M) is kept from a backward pass of ``policy`` (T, S). At time t, b_t of
        the new policy and q_t give the exact gradient there, so taking its maximiser is a
        coordinate step like those of the backward pass; ties as there.
        """
        ...
