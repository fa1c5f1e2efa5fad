"""What a kernel is given and what it gives back: plain arrays, models last.

Symbols used in every kernel (the paper's letters):

=========  ======================================================  ==================
symbol     meaning                                                 shape
=========  ======================================================  ==================
p          p_t^m(s' | s, a) on the shared pattern                  (T or 1, nnz, M)
r          r_t^m(s, a)                                             (T or 1, S, A, M)
allowed    whether a may be taken in s at t                        (T or 1, S, A)
K          drift: P[model m' holds next | model m]                 (M, M), or None
v          v_{t,m}(s), eq. (backup)                                (S, M) at each t
q          q_{t,m}(s, a), eq. (value of state-action)              (S, A, M) at each t
b          b_{t,m}(s) = P[model m, state s at t], eq. (belief)     (T, S, M)
G          sum_m b q = d rho / d pi_t(s, a), up to gamma^t         (T, S, A)
=========  ======================================================  ==================

If models change, they do so after the transition and before the next decision:
v_m(s) = r_m + gamma sum_s' p_m(s') sum_m' K[m, m'] v_m'(s'), and b moves on by b K.

Row ``s * A + a`` of the pattern owns entries ``indptr[row]:indptr[row + 1]``, whose next
states are ``indices``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError

if TYPE_CHECKING:
    from mmdp.kernels.controller import Controller, NodeValues
    from mmdp.kernels.planner import PlannerTables

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
Table = npt.NDArray[Any]  # a policy: (T, S) actions or (T, S, A) probabilities

LINE = 64  # bytes that a processor moves at a time

_ENDS = ((np.max, -math.inf), (np.min, math.inf))
TIE = 1e-12  # two actions whose G differ by less, relative to their size, are tied


def aligned(*shape: int, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """An empty array that begins at a cache line, so that vectors do not cross one.

    >>> aligned(3, 8).ctypes.data % LINE
    0
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + size].view(dtype).reshape(shape)


class Part(NamedTuple):
    """Part ``i`` of ``n`` of so many models; the others are in other processes.

    >>> [Part(i, 3, 8).models_here for i in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    i: int
    n: int
    models: int

    @classmethod
    def read(cls, part: Any, models: int) -> Part | None:
        """A user's (i, n) for this number of models, checked; None if it is all of them."""
        try:
            i, n = (operator.index(x) for x in part)
        except (TypeError, ValueError):
            raise InputError(f"part must be (i, n), the i-th of n from 0, not {part!r}") from None
        if not 0 <= i < n:
            raise InputError(f"part ({i}, {n}): parts are numbered from 0 to {n - 1}")
        if n > models:
            raise InputError(f"{models} models cannot be divided into {n} parts")
        return None if n == 1 else cls(i, n, models)

    @property
    def models_here(self) -> slice:
        return slice(*(self.models * i // self.n for i in (self.i, self.i + 1)))

    @property
    def longest(self) -> int:
        """The most models that a part has."""
        return -(-self.models // self.n)

    def __str__(self) -> str:
        return f"part {self.i} of {self.n}"


class Problem(NamedTuple):
    """The arrays of an MMDP (see the module's table); all C-contiguous and read-only.

    If there is a ``part``, then p, r and terminal hold the models of that part alone; weights
    are those of all models.
    """

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
    drift: Array | None = None  # K; None: models never change
    part: Part | None = None

    @property
    def n_models(self) -> int:
        """Of all parts."""
        return len(self.weights)

    @property
    def models_here(self) -> slice:
        """Which of the models p, r and terminal hold."""
        return slice(0, self.n_models) if self.part is None else self.part.models_here

    @property
    def n_states(self) -> int:
        return self.allowed.shape[1]

    @property
    def n_actions(self) -> int:
        return self.allowed.shape[2]

    def work(self, horizon: int) -> int:
        """Multiply-adds of one backward pass."""
        return len(self.indices) * self.n_models * horizon

    def stakes(self, horizon: float) -> float:
        """What is at stake, (max r - min r) sum_t gamma^t: tolerances are shares of it.

        Actions that are not allowed and models of weight 0 do not count.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
        >>> one.problem.stakes(2), one.problem.stakes(math.inf)
        (1.5, 2.0)
        """
        g, known = self.discount, self.weights[self.models_here] > 0
        open_ = self.allowed.any(axis=0)
        spans = (self.r[:, open_][..., known], self.terminal[:, known])
        here = [end(x, initial=side) for x in spans for end, side in _ENDS]
        ends = self.everywhere(here)
        r, terminal = (float(max(ends[:, i].max() - ends[:, i + 1].min(), 0.0)) for i in (0, 2))
        times = horizon if g == 1 else (1 - g**horizon) / (1 - g)
        return times * r + g**horizon * terminal

    def check(self, horizon: int) -> None:
        """Refuse a horizon that is longer than what varies with time."""
        for name in ("p", "r", "allowed"):
            steps = len(getattr(self, name))
            if 1 < steps < horizon:
                raise InputError(f"{name} covers {steps} time steps, the horizon is {horizon}")

    def rows(self) -> npt.NDArray[np.int64]:
        """(nnz,) row s * A + a of every entry of the pattern."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def prior_weights(self, horizon: int = 1) -> Array:
        """(1, 1, M) the initial model weights as b for WSU; (T, 1, M) if models change."""
        weights = [self.weights[self.models_here]]
        for _ in range(horizon - 1 if self.drift is not None else 0):
            weights.append(self.moved(weights[-1]))
        return np.array(weights)[:, None]

    def ahead(self, v: Array) -> Array:
        """(..., M) sum_m' K[m, m'] v_m': what v is worth before the model changes."""
        return v if self.drift is None else v @ self.drift.T

    def moved(self, b: Array) -> Array:
        """(..., M) sum_m b_m K[m, m']: b after the model has changed."""
        return b if self.drift is None else b @ self.drift

    def start(self) -> Array:
        """(S, M): b at the first step, mu(s) lambda_m."""
        return self.initial[:, None] * self.weights[self.models_here]

    def returns(self, first: Array) -> Array:
        """(M,) return of every model from the values (S, M) at the first step."""
        return self.gathered(self.initial @ first)

    # ------------------------------------------------------------ all parts together
    def gathered(self, here: Array) -> Array:
        """(M,) numbers of the models of all parts, from those of the models here."""
        if self.part is None:
            return here
        found = self.everywhere(np.pad(here, (0, self.part.longest - len(here))))
        all_models: Array = np.empty(self.n_models)
        for i, row in enumerate(found):
            theirs = self.part._replace(i=i).models_here
            all_models[theirs] = row[: theirs.stop - theirs.start]
        return all_models

    def everywhere(self, values: Any) -> npt.NDArray[Any]:
        """(n, ...) these values in every part; (1, ...) if the models are whole.

        All processes must call it at the same point of their run.
        """
        if self.part is None:
            return np.asarray(values)[None]
        from mmdp.kernels.exchange import exchange

        return exchange(values)

    def mean(self, values: Array) -> Array:
        """sum_m lambda_m values[..., m] over the models of all parts."""
        total: Array = self.everywhere(values @ self.weights[self.models_here]).sum(axis=0)
        return total

    def chosen(self, values: Array, models: npt.NDArray[np.integer[Any]]) -> Array:
        """values[..., models] in every part, wherever these models are."""
        if self.part is None:
            return np.ascontiguousarray(values[..., models])
        here = self.models_here
        mine = (here.start <= models) & (models < here.stop)
        found = np.zeros((*values.shape[:-1], len(models)))
        found[..., mine] = values[..., models[mine] - here.start]
        total: Array = self.everywhere(found).sum(axis=0)
        return total

    def some(self, models: slice) -> Problem:
        """These models alone, in arrays of their own; weights as they are."""
        own = []
        for array in (self.p, self.r, self.terminal):
            own.append(aligned(*array.shape[:-1], len(self.weights[models])))
            own[-1][...] = array[..., models]
        p, r, terminal = own
        return self._replace(p=p, r=r, terminal=terminal, weights=self.weights[models])

    def restricted(self, allowed: npt.NDArray[np.bool_]) -> Problem:
        """The same problem with these actions (T or 1, S, A) alone, as a read-only view."""
        shape = (self.n_states, self.n_actions)
        if allowed.dtype != bool or allowed.ndim != 3 or allowed.shape[1:] != shape:
            raise InputError(
                f"allowed actions must be booleans of shape (time steps or 1, {shape[0]}, "
                f"{shape[1]}), not {allowed.dtype} of shape {allowed.shape}"
            )
        if not allowed.any(axis=2).all():
            t, s = (int(i) for i in np.argwhere(~allowed.any(axis=2))[0])
            raise InputError(f"no action is allowed in state {s} at time {t}")
        allowed = allowed.view()
        allowed.setflags(write=False)
        return self._replace(allowed=allowed)


def at(array: npt.NDArray[Any], t: int) -> npt.NDArray[Any]:
    """The slice at time t of an array whose time axis may have length 1 (the same at all times)."""
    result: npt.NDArray[Any] = array[t if len(array) > 1 else 0]
    return result


Choice = Literal["weighted", "own", "given"]
Sweeps = Literal["paper", "two-way"]
Watch = Callable[[Table, float], object]  # an improved policy and its value
# a row of actions (S,) that maximises sum_s G(s, row(s)) over the rows that are open, from
# G (S, A), b (S, M) and the incumbent row or None; ties as in numpy_kernel.choose, which is the
# maximiser if every row is open
Rows = Callable[[Array, Array, "npt.NDArray[Any] | None"], IntArray]


class Stop(Exception):
    """Raised where the clock is watched when the time is up."""


class Backward(NamedTuple):
    """What a backward pass found; parts that ``keep`` does not name are None.

    Actions come unasked if the pass chose them for all models together.

    first: (S, M) values at the first step. actions: (T, S), or (T, S, M) each model's own.
    values: (T + 1, S, M). gradient: (T, S, A) G, without the factor gamma^t; entries of
    actions that are not allowed are -inf. q: (T, S, A, M), -inf if not allowed.
    """

    first: Array
    actions: IntArray | None
    values: Array | None
    gradient: Array | None
    q: Array | None


class Ascent(NamedTuple):
    """The end of one ascent: the last policy that was better than the one before."""

    policy: IntArray  # (T, S)
    returns: Array  # (M,)
    value: float
    trace: list[float]  # the value of the start and after every sweep that improved it
    sweeps: int  # including the one that confirms a maximum
    end: Literal["maximum", "tolerance", "limit"]


class Pairs(NamedTuple):
    """Disjoint pairs of models with a belief between the two on a grid.

    The grid has ``reach`` steps of ``width`` on each side of the prior's log-odds.
    """

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    reach: int = 24
    width: float = 0.25

    @property
    def grid(self) -> Array:
        """(2 K,) likelihood ratios exp(h g), g = -K..K-1; 1 alone if K is 0."""
        grid: Array = np.exp(self.width * np.arange(-self.reach, max(self.reach, 1)))
        return grid


class Reach(NamedTuple):
    """L and B (T, S, M): least and largest P[model m, state s at t] over all policies."""

    lo: Array
    hi: Array


class Kernel(Protocol):
    """All the numerical work behind the methods, and the only way to it.

    :class:`mmdp.kernels.numpy_kernel.NumpyKernel` is the specification in plain numpy, and
    :func:`mmdp.testing.check_kernel` compares any other kernel with it.
    """

    name: str

    # ------------------------------------------------------------ passes
    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: Table | None = None,
        keep: Collection[str] = (),
    ) -> Backward:
        """One pass t = T..1 of q = r + gamma P v and v = q at the chosen action.

        ``choice``: ``"weighted"`` maximises G = sum_m b q with ``weights`` b of shape
        (T or 1, S or 1, M). A tie goes to the incumbent ``policy`` (T, S) if there is one, else
        to the lowest action; a state of zero weight keeps its incumbent. ``"own"`` takes each
        model's own maximum. ``"given"`` follows ``policy``, (T, S) actions or (T, S, A)
        probabilities; with ``weights`` the gradient G can be kept. ``keep``: which of actions,
        values, gradient and q to return beside the values at the first step.
        """
        ...

    def forward(self, problem: Problem, horizon: int, policy: Table) -> Array:
        """(T, S, M) model weights b under ``policy``, (T, S) or (T, S, A)."""
        ...

    def ascend(
        self,
        problem: Problem,
        horizon: int,
        starts: Iterable[Table | None],
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        sweeps: Sweeps = "two-way",
        rows: Rows | None = None,
        watch: Watch | None = None,
    ) -> list[Ascent]:
        """CADP from each of ``starts``: (T, S) actions, (T, S, A) probabilities or None for WSU.

        A ``"paper"`` sweep is a forward pass for b and a backward pass with them. From the
        second sweep on the forward pass of ``"two-way"`` sweeps improves the policy too: at time
        t, b_t of the new policy and q_t kept from the backward pass give the exact gradient
        there, so taking its maximiser is a coordinate step like those of the backward pass.
        An ascent ends when the policy repeats or gains nothing, when a sweep gains no more than
        ``tol``, in units of return, or after ``max_sweeps`` (one at least from a randomised start).

        ``rows`` restricts the rows pi_t that a policy may have. The return is linear in a whole
        row, so taking the best open row at each t is a coordinate step as before. Deterministic
        starts must have open rows only; other starts are given as probabilities.

        ``watch(policy, value)`` is called with the start and with improved policies, after every
        sweep or every few. An exception raised by it ends the ascent.
        """
        ...

    # ------------------------------------------------------------ controllers (see controller.py)
    def node_weights(
        self, problem: Problem, horizon: int, controller: Controller, values: Array | None = None
    ) -> tuple[Controller, Array]:
        """The controller and its weights b (T, S, N, M), by a forward pass over states and nodes.

        With ``values`` v (T + 1, S, N, M) of the controller the pass improves it on the way, as
        :meth:`node_values` does; its first nodes stay.
        """
        ...

    def node_values(
        self, problem: Problem, horizon: int, controller: Controller,
        weights: Array | None = None, *, keep: bool = False,
    ) -> NodeValues:  # fmt: skip
        """The controller and its exact returns, by a backward pass over states and nodes.

        With ``weights`` b (T, S, N, M) the pass improves it on the way: in every (s, n) it takes
        the action and the moves to next nodes that are best together,

            G(a) = sum_m b_m r_m(s,a) + gamma sum_s' max_n' sum_m b_m p_m(s'|s,a) v_m(s', n'),

        and at last the best first node of every state. If b is that of the controller, its
        mean return does not fall. A tie goes to the old pair of action and moves, else to the
        lowest; a node without weight in a state keeps what it has. ``keep``: return v too.
        """
        ...

    # ------------------------------------------------------------ bounds (see bounds.relaxation)
    def reach(
        self, problem: Problem, horizon: int, states: npt.NDArray[np.int64] | None = None
    ) -> Reach:
        """The least and largest probability of every model, state and time, not rounded.

        ``states``: of these alone, which takes two passes per state.
        """
        ...

    def own_values(
        self, problem: Problem, horizon: int, y: Array | None = None, u: Array | None = None
    ) -> Array:
        """(M,) lambda_m times the optimum of each model alone with rewards r - y.

        ``y`` (T, S, A, M) are prices in units of reward at that time. ``u`` (T, S, A, M) is
        filled with the occupancy P[m, s, a at t] of the models' own policies.
        """
        ...

    def pair_values(
        self, problem: Problem, horizon: int, pairs: Pairs, y: Array | None = None,
        u: Array | None = None,
    ) -> Array:  # fmt: skip
        """(n,) lambda_i V_i + lambda_j V_j of the optimum of each pair; y and u as above."""
        ...

    def common_prices(
        self, problem: Problem, horizon: int, y: Array, reach: Reach
    ) -> tuple[Array, IntArray]:
        """(T, S, A) H = sum_m (B y+ - L y-), -inf if not allowed, and (T, S) its maximiser."""
        ...

    def descend(
        self, problem: Problem, horizon: int, y: Array, u: Array, best: IntArray, reach: Reach,
        keep: float, d: Array,
    ) -> float:  # fmt: skip
        """d = keep * d + g / B for a subgradient g of D at y, in place; returns <g, d>.

        ``u`` is the occupancy that :meth:`own_values` or :meth:`pair_values` found at y, and
        ``best`` the maximiser that :meth:`common_prices` found. Among the subgradients the one
        near 0 is taken; inner products are weighed by gamma^t.
        """
        ...

    # ------------------------------------------------------------ episodes
    def simulate(
        self, world: Problem, next_rewards: Array | None, planner: PlannerTables, horizon: int,
        episodes: int, seed: int, first: int = 0,
    ) -> tuple[Array, npt.NDArray[np.int64]]:  # fmt: skip
        """((M, episodes) returns, (M,) transitions that no model of the planner explains).

        ``world`` holds the models that episodes are drawn from. Random numbers are a hash of
        (seed, model, episode, counter): every kernel draws the same ones. ``first`` is the
        number of the first episode, so that they can be simulated part by part.
        """
        ...

    def search(
        self, planner: PlannerTables, horizon: int, time: int, state: int, belief: Array, seed: int
    ) -> int:
        """One decision of the tree search from (time, state) with this belief (M,)."""
        ...
