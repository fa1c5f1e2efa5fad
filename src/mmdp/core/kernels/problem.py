"""The inputs and outputs of backends: plain arrays, models last.

Symbols used in every backend (the paper's letters):

=========  ======================================================  ==================
symbol     meaning                                                 shape
=========  ======================================================  ==================
p          p_t^m(s' | s, a) on the shared pattern                  (T or 1, nnz, M)
r          r_t^m(s, a)                                             (T or 1, S, A, M)
allowed    whether a may be taken in s at t                        (T or 1, S, A)
K          model_transitions: P[model m' next | model m]           (M, M), or None
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.costs import Work, estimate_backend_seconds
from mmdp.core.kernels.rewards import Rewards, iter_blocks, map_rewards, max_abs_rewards
from mmdp.core.kernels.rewards import at_time as at_time
from mmdp.core.kernels.sampling import TableSampler
from mmdp.core.shapes import AnyArray, AnyIntArray, Array, IndexArray, IntArray, Mask

if TYPE_CHECKING:
    from mmdp.core.kernels.prepared import PreparedProblem
    from mmdp.core.kernels.storage import CustomStorage

PolicyTable = npt.NDArray[Any]  # a policy: (T, S) actions or (T, S, A) probabilities
ModelSelection = slice | IndexArray  # some of the models
StorageFormat = Literal["dense", "sparse", "events"]

ALL_MODELS = slice(None)
CACHE_LINE = 64  # bytes that a processor moves at a time

EPS = float(np.finfo(float).eps)
EQUAL_RTOL = 1e-12  # numbers that differ by less, relative to their size, are equal
TIE_RTOL = 1e-12  # two actions whose G differ by less, relative to their size, are tied


def empty_aligned(*shape: int, dtype: npt.DTypeLike = np.float64) -> AnyArray:
    """Make an empty array that begins at a cache line, so that vectors do not cross one.

    >>> empty_aligned(3, 8).ctypes.data % CACHE_LINE
    0
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + CACHE_LINE, np.uint8)
    offset = -raw.ctypes.data % CACHE_LINE
    return raw[offset : offset + size].view(dtype).reshape(shape)


class Shard(NamedTuple):
    """One of ``n_shards`` parts of all models; the others are in other processes.

    >>> [Shard(i, 3, 8).local_models for i in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    shard_index: int
    n_shards: int
    n_models: int

    @classmethod
    def parse(cls, shard: Iterable[object], n_models: int) -> Shard | None:
        """Check a user's (i, n) and convert it to a shard; return None if it is all models."""
        try:
            i, n = (operator.index(x) for x in shard)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise InputError(f"shard must be (i, n), the i-th of n from 0, not {shard!r}") from None
        if not 0 <= i < n:
            raise InputError(f"part ({i}, {n}): parts are numbered from 0 to {n - 1}")
        if n > n_models:
            raise InputError(f"{n_models} models cannot be divided into {n} parts")
        return None if n == 1 else cls(i, n, n_models)

    @property
    def local_models(self) -> slice:
        """The models of this shard."""
        return slice(
            *(self.n_models * i // self.n_shards for i in (self.shard_index, self.shard_index + 1))
        )

    def __str__(self) -> str:
        return f"part {self.shard_index} of {self.n_shards}"


class TransitionRow(NamedTuple):
    """One row of the transitions: next states (k,) and their probabilities (k, M)."""

    next_states: IntArray
    p: Array


class TableStorage(NamedTuple):
    """Transition tables: the probabilities of all models on one sparse pattern."""

    indptr: IndexArray
    indices: IntArray
    p: Array
    is_dense: bool

    @property
    def is_compiled(self) -> bool:
        return True

    @property
    def n_times(self) -> int:
        return len(self.p)

    @property
    def n_entries(self) -> int:
        return len(self.indices)

    @property
    def max_row_length(self) -> int:
        return int(np.diff(self.indptr).max(initial=1))

    def to_table(self) -> TableStorage:
        return self

    def select_rows(self, rows: IndexArray) -> TableStorage:
        entries, _ = find_row_entries(self.indptr, rows)
        indptr = make_indptr(np.diff(self.indptr)[rows])
        return TableStorage(
            indptr, self.indices[entries], self.p.take(entries, axis=1), self.is_dense
        )

    def map_models(self, function: Callable[[Array], Array]) -> TableStorage:
        return self._replace(p=function(self.p))

    def get_arrays(self) -> list[AnyArray]:
        return [self.indptr, self.indices, self.p]

    def prepare(self, problem: Problem, horizon: int) -> PreparedProblem:
        from mmdp.core.kernels.numpy.backend import prepare_tables

        return prepare_tables(problem, horizon)

    @property
    def format(self) -> StorageFormat:
        return "dense" if self.is_dense else "sparse"

    def get_entry_rows(self) -> IndexArray:
        """Return (nnz,) the row s * A + a of every entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def get_row(self, t: int, row: int) -> TransitionRow:
        entries = slice(*self.indptr[row : row + 2])
        return TransitionRow(self.indices[entries], at_time(self.p, t)[entries])

    def make_sampler(self, models: slice = ALL_MODELS) -> TableSampler:
        return TableSampler(self, models)

    def reorder(self, states: IndexArray, actions: IndexArray) -> tuple[TableStorage, IndexArray]:
        S, A, row = len(states), len(actions), self.get_entry_rows()
        row = np.argsort(states)[row // A] * A + np.argsort(actions)[row % A]
        order = np.argsort(row * S + np.argsort(states)[self.indices])
        indptr = make_indptr(np.bincount(row, minlength=S * A))
        indices = np.argsort(states)[self.indices][order].astype(np.int32)
        return TableStorage(indptr, indices, self.p.take(order, axis=1), self.is_dense), order

    def iter_content(self, n_states: int) -> Iterator[AnyArray]:
        p = collapse_time_axis(self.p)
        is_nonzero = np.asarray(self.p.any(axis=(0, 2)))
        yield np.array([len(p), p.shape[2]])
        yield (self.get_entry_rows() * n_states + self.indices)[is_nonzero]
        for p_t in p:
            for i in range(0, len(p_t), 4096):  # a copy of all would be large
                yield p_t[i : i + 4096][is_nonzero[i : i + 4096]]


Storage: TypeAlias = "TableStorage | CustomStorage"


class Problem(NamedTuple):
    """The arrays of an MMDP (see the module's table); all C-contiguous and read-only.

    If there is a ``shard``, then p, r and terminal hold the models of that shard alone; weights
    are those of all models.
    """

    storage: Storage
    r: Rewards
    allowed: Mask
    initial: Array
    weights: Array
    discount: float
    terminal: Array
    model_transitions: Array | None = None  # K; None: models never change
    shard: Shard | None = None

    @property
    def indptr(self) -> IndexArray:
        return self.storage.to_table().indptr

    @property
    def indices(self) -> IntArray:
        return self.storage.to_table().indices

    @property
    def p(self) -> Array:
        return self.storage.to_table().p

    @property
    def is_dense(self) -> bool:
        """Whether every next state has an entry."""
        return self.storage.to_table().is_dense

    @property
    def n_models(self) -> int:
        """The number of models in all shards."""
        return len(self.weights)

    @property
    def n_shards(self) -> int:
        """The number of processes that the models are divided over."""
        return 1 if self.shard is None else self.shard.n_shards

    @property
    def max_local_models(self) -> int:
        """The largest number of models in one process."""
        return -(-self.n_models // self.n_shards)

    @property
    def local_models(self) -> slice:
        """The models whose p, r and terminal are in this process."""
        return slice(0, self.n_models) if self.shard is None else self.shard.local_models

    @property
    def local_weights(self) -> Array:
        """The weights of the models in this process."""
        return self.weights[self.local_models]

    @property
    def n_states(self) -> int:
        return self.allowed.shape[1]

    @property
    def n_actions(self) -> int:
        return self.allowed.shape[2]

    @property
    def work(self) -> Work:
        """The sizes on which the computing time depends."""
        x = self.storage
        return Work(
            x.format if x.is_compiled else "custom",
            self.max_local_models,
            self.n_states,
            self.n_actions,
            x.n_entries,
            x.max_row_length,
            self.model_transitions is not None,
        )

    def estimate_seconds(self, horizon: int, n_passes: float = 1.0) -> float:
        """Estimate the seconds of passes on the better of numpy and loaded compiled code."""
        return min(
            estimate_backend_seconds(name, self.work, horizon, n_passes)
            for name in ("numpy", "numba")
        )

    def return_span(self, horizon: float, effective_horizon: float | None = None) -> float:
        """Return the range of possible returns, (max r - min r) sum_t gamma^t.

        ``effective_horizon``: that sum, if it is known. Tolerances are relative to the range.
        Actions that are not allowed and models of weight 0 do not count.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
        >>> one.problem.return_span(2), one.problem.return_span(math.inf)
        (1.5, 2.0)
        """
        model_mask = self.local_weights > 0
        reward_mask = np.logical_or.reduce(self.allowed)[:, :, None] & model_mask

        def find_extremes(x: Array, mask: Mask) -> tuple[float, float]:
            return x.max(initial=-math.inf, where=mask), -x.min(initial=math.inf, where=mask)

        rewards = [find_extremes(r, reward_mask[states]) for states, r in iter_blocks(self.r)]
        local_extremes = np.max(rewards, axis=0), find_extremes(self.terminal, model_mask)
        r, terminal = np.maximum(self.all_gather(local_extremes).max(axis=0).sum(axis=1), 0.0)
        effective_horizon, final_discount = self._compute_discounts(horizon, effective_horizon)
        return float(effective_horizon * r + final_discount * terminal)

    def _compute_discounts(
        self, horizon: float, effective_horizon: float | None
    ) -> tuple[float, float]:
        """Return sum_t gamma^t over the decisions, and gamma^T."""
        g, final_discount = self.discount, 0.0 if horizon == math.inf else self.discount**horizon
        if effective_horizon is None:
            effective_horizon = horizon if g == 1 else (1 - final_discount) / (1 - g)
        return effective_horizon, final_discount

    def max_abs_returns(self, horizon: float, effective_horizon: float | None = None) -> Array:
        """Bound (M,) the size of the return of each model by the size of its rewards.

        ``effective_horizon``: sum_t gamma^t, if it is known. Models that change, or that
        other processes hold too, count as the largest of all.
        """
        effective_horizon, final_discount = self._compute_discounts(horizon, effective_horizon)
        max_returns: Array = effective_horizon * max_abs_rewards(self.r) + final_discount * np.abs(
            self.terminal
        ).max(axis=0)
        if self.model_transitions is None and self.shard is None:
            return max_returns
        return np.full(self.n_models, self.all_gather([float(max_returns.max())]).max())

    def rounding_errors(self, horizon: float) -> Array:
        """Bound (M,) the effect of rounding on the return of each model."""
        row_length = self.storage.max_row_length + (
            0 if self.model_transitions is None else self.n_models
        )
        n_terms = (horizon + 1) * (row_length + 4) + self.n_models + self.n_states
        return 4 * EPS * n_terms * self.max_abs_returns(horizon)

    def check_horizon(self, horizon: int) -> None:
        """Raise InputError if the horizon is longer than arrays that vary with time."""
        coverage = {"p": self.storage.n_times, "r": len(self.r), "allowed": len(self.allowed)}
        for name, n_times in coverage.items():
            if 1 < n_times < horizon:
                raise InputError(f"{name} covers {n_times} time steps, the horizon is {horizon}")

    def get_entry_rows(self) -> IndexArray:
        """Return (nnz,) the row s * A + a of every entry of the tables."""
        return self.storage.to_table().get_entry_rows()

    def prior_weights(self, horizon: int = 1) -> Array:
        """Return the model weights (1, 1, M) as b for WSU; (T, 1, M) if models change."""
        weights = [self.local_weights]
        for _ in range(horizon - 1 if self.model_transitions is not None else 0):
            weights.append(self.push_models(weights[-1]))
        return np.array(weights)[:, None]

    def expect_models(self, v: Array) -> Array:
        """Compute (..., M) sum_m' K[m, m'] v_m', the value before the model changes."""
        return v if self.model_transitions is None else v @ self.model_transitions.T

    def push_models(self, b: Array, n_steps: int = 1) -> Array:
        """Compute (..., M) sum_m b_m K^n_steps[m, m'], the weights after the model changes."""
        return (
            b
            if self.model_transitions is None
            else b @ np.linalg.matrix_power(self.model_transitions, n_steps)
        )

    def sample_next_models(self, models: Any, sample: Callable[[Array], Any]) -> Any:
        """Sample the models after a step; ``sample`` takes their rows of K."""
        return models if self.model_transitions is None else sample(self.model_transitions[models])

    def sample_next_model(self, m: int, rng: np.random.Generator) -> int:
        """Sample the model after a step in model m."""
        return int(self.sample_next_models(m, lambda K: rng.choice(len(K), p=K / K.sum())))

    def reachable_models(self, models: AnyIntArray) -> IndexArray:
        """Return the models that may follow these at some time, these included, in order."""
        reachable: IndexArray = np.unique(models)
        while self.model_transitions is not None:
            previous = reachable
            successors = np.flatnonzero(self.model_transitions[reachable].any(axis=0))
            reachable = np.union1d(previous, successors)
            if len(reachable) == len(previous):
                break
        return reachable

    def get_rewards(self, t: int, *index: Any) -> Any:
        """Return r at time t for indices (s, a) or (s, a, m), without making a table of r."""
        return self.r[(t if len(self.r) > 1 else 0, *index)]

    def reason_if_switching(self, requirement: str) -> str | None:
        """Return why something needs constant models; None if these are constant."""
        return None if self.model_transitions is None else f"{requirement}, and these models change"

    @property
    def has_common_initial(self) -> bool:
        """Whether all models have the same initial distribution."""
        return self.initial.shape[1] == 1

    def get_initial(self, m: int) -> Array:
        """Return (S,) the initial distribution of a model in this process."""
        return self.initial[:, 0 if self.has_common_initial else m]

    def initial_joint(self) -> Array:
        """Compute (S, M) b at the first step, mu_m(s) lambda_m."""
        return self.initial * self.local_weights

    def condition_on_initial(self, beliefs: Array, states: int | IndexArray) -> Array:
        """Update beliefs (..., M) by the first states (...); ignore unexplained states."""
        joint = beliefs * self.initial[states]
        total = joint.sum(axis=-1, keepdims=True)
        return np.where(total > 0, joint / np.where(total > 0, total, 1.0), beliefs)

    def compute_returns(self, first_values: Array) -> Array:
        """Compute (..., M) returns from the values (..., S, M) at the first step."""
        is_common = self.has_common_initial
        local_returns = (
            np.einsum("s,...sm->...m", self.initial[:, 0], first_values)  # BLAS starts threads
            if is_common
            else (self.initial * first_values).sum(axis=-2)
        )
        return self.gather_models(local_returns)

    # ------------------------------------------------------------ all parts together
    def reason_if_sharded(self, operation: str) -> str | None:
        """Return why an operation needs all models in one process; None if they are."""
        if self.shard is None:
            return None
        return f"{operation} needs all models in one process, and this is {self.shard}"

    def resolve_backend(self, backend: str) -> str:
        """Return the backend that joins the models of all processes.

        ``"auto"`` is jax then. If the models are whole, every backend stays as it is.
        """
        if self.shard is None:
            return backend
        if backend not in ("auto", "jax"):
            raise InputError(
                f"the model is {self.shard}, which backend {backend!r} cannot join with the others",
                [Remedy("backend", "jax", verb="use")],
            )
        from mmdp.core.kernels.exchange import check_shards

        check_shards(self)
        return "jax"

    def gather_models(self, local_values: Array) -> Array:
        """Gather (M,) numbers of all models from those in each process."""
        if self.shard is None:
            return local_values
        padded = self.all_gather(
            np.pad(local_values, (0, self.max_local_models - len(local_values)))
        )
        all_models: Array = np.empty(self.n_models)
        for i, row in enumerate(padded):
            shard_models = self.shard._replace(shard_index=i).local_models
            all_models[shard_models] = row[: shard_models.stop - shard_models.start]
        return all_models

    def all_gather(self, values: npt.ArrayLike) -> AnyArray:
        """Gather (n, ...) the values of all n shards; (1, ...) if the models are not divided.

        All processes must call it at the same point of their run.
        """
        if self.shard is None:
            return np.asarray(values)[None]
        from mmdp.core.kernels.exchange import gather_processes

        return gather_processes(values)

    def any_across_shards(self, *flags: bool) -> Sequence[bool]:
        """Return whether each flag is true in any shard."""
        if self.shard is None:
            return flags
        return [any(column) for column in self.all_gather(flags).T]

    def mean_over_models(self, values: Array) -> Array:
        """Compute sum_m lambda_m values[..., m] over the models of all shards."""
        return self.all_gather(values @ self.local_weights).sum(axis=0)

    def mean_probs(self, p: Array) -> Array:
        """Compute (..., 1) the mean of probabilities p (..., M), which sums to 1 again."""
        return self.mean_over_models(p)[..., None] / self.weights.sum()

    def make_mean_model(self) -> Problem:
        """Make a problem of one model, the weighted mean of all."""
        return self._replace(
            storage=self.storage.map_models(self.mean_probs),
            r=map_rewards(self.r, lambda r: self.mean_over_models(r)[..., None]),
            initial=self.initial if self.has_common_initial else self.mean_probs(self.initial),
            terminal=self.mean_over_models(self.terminal)[:, None],
            weights=np.ones(1),
            model_transitions=None,
            shard=None,
        )

    def has_choice(self) -> Mask:
        """Return (T or 1, S) whether allowed actions differ in a reward or a row, in some model.

        Rows that expect the same of a random value, in a random mean of the models, are equal up
        to rounding, whatever the storage.
        """
        rng = np.random.default_rng(0)
        weights, v = rng.uniform(1, 2, self.n_models), rng.random((self.n_states, 1))
        mean_problem = self._replace(weights=weights / weights.sum()).make_mean_model()
        n_times = max(mean_problem.storage.n_times, len(mean_problem.r), len(mean_problem.allowed))
        prepared = mean_problem.storage.prepare(mean_problem, n_times)
        differs = np.zeros((n_times, self.n_states), dtype=bool)
        for t in range(n_times):
            allowed = at_time(mean_problem.allowed, t)
            for x in (at_time(mean_problem.r, t)[..., 0], prepared.expect_next(t, v)[..., 0]):
                reference = np.take_along_axis(x, allowed.argmax(axis=1)[:, None], axis=1)
                is_same = np.abs(x - reference) <= EQUAL_RTOL * np.maximum(
                    np.abs(x), np.abs(reference)
                )
                differs[t] |= np.any(allowed & ~is_same, axis=1)
        return differs

    def gather_selected(self, values: Array, models: ModelSelection) -> Array:
        """Copy values[..., models] from the processes that hold these models."""
        ids, local = np.arange(self.n_models)[models], self.local_models
        selected = empty_aligned(*values.shape[:-1], len(ids))
        if self.shard is None:
            selected[:] = values[..., models]
            return selected
        is_local = (local.start <= ids) & (ids < local.stop)
        selected[..., is_local] = values[..., ids[is_local] - local.start]
        selected[..., ~is_local] = 0.0
        return self.all_gather(selected).sum(axis=0)

    def select_models(self, models: ModelSelection, storage: Storage | None = None) -> Problem:
        """Make a problem of these models alone, which do not change; their weights stay the same.

        They are whole in every process. ``storage``: theirs, if it is known.
        """

        def select(array: Array) -> Array:
            return self.gather_selected(array, models)

        return self._replace(
            storage=self.storage.map_models(select) if storage is None else storage,
            r=map_rewards(self.r, select),
            terminal=select(self.terminal),
            initial=self.initial if self.has_common_initial else select(self.initial),
            weights=self.weights[models],
            model_transitions=None,
            shard=None,
        )

    def restrict_actions(self, allowed: Mask) -> Problem:
        """Make the same problem with only these actions (T or 1, S, A) allowed."""
        shape = (self.n_states, self.n_actions)
        if allowed.dtype != bool or allowed.ndim != 3 or allowed.shape[1:] != shape:
            raise InputError(
                f"allowed actions must be booleans of shape (time steps or 1, {shape[0]}, "
                f"{shape[1]}), not {allowed.dtype} of shape {allowed.shape}"
            )
        if not allowed.any(axis=2).all():
            t, s = (int(i) for i in np.argwhere(~allowed.any(axis=2))[0])
            raise InputError(f"no action is allowed in state {s} at time {t}")
        return self._replace(allowed=as_readonly(allowed))


def as_readonly(array: AnyArray) -> AnyArray:
    """Return a read-only view, because numba compiles again for writable arrays."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def collapse_time_axis(values: Array) -> Array:
    """Keep values by time once if they are the same at all times."""
    return values[:1] if all(np.array_equal(x, values[0]) for x in values[1:]) else values


def split_windows(horizon: int, bytes_per_time: int, max_bytes: float) -> list[slice]:
    """Split time steps into windows: one if all fit into ``max_bytes``, else about sqrt(T).

    b is then kept where windows begin and in one of them at a time, and is computed twice.

    >>> split_windows(10, 1, 100), split_windows(10, 1, 5)
    ([slice(0, 10, None)], [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)])
    """
    length = horizon if horizon * bytes_per_time <= max_bytes else math.isqrt(horizon - 1) + 1
    return [slice(t, min(t + length, horizon)) for t in range(0, horizon, length)]


def make_indptr(lengths: AnyIntArray) -> IndexArray:
    """Compute the first entry of each row from their lengths; the number of entries comes last."""
    return np.concatenate([[0], np.cumsum(lengths)])


def find_row_entries(indptr: AnyArray, rows: AnyArray) -> tuple[IndexArray, IndexArray]:
    """Return the entries of these rows of the tables, and the position in ``rows`` of each."""
    counts = np.diff(indptr)[rows]
    positions = np.repeat(np.arange(len(rows)), counts)
    offsets = indptr[rows] - np.cumsum(counts) + counts
    return offsets[positions] + np.arange(len(positions)), positions


ActionChoice = Literal["weighted", "per_model", "policy"]
SweepType = Literal["paper", "two-way"]
Callback = Callable[[PolicyTable, float], object]  # an improved policy and its value
# a row of actions (S,) that maximizes sum_s G(s, row(s)) over the rows that are open, from
# G (S, A), b (S, M) and the incumbent row or None; ties as in numpy.passes.choose_actions,
# which is the maximizer if every row is open
RowChooser = Callable[[Array, Array, "AnyArray | None"], IntArray]


OptionalArray = Any  # an array if it was asked for, else None


class BackwardResult(NamedTuple):
    """The result of a backward pass; arrays that ``keep`` does not name are None.

    Actions come unasked if the pass chose them for all models together.

    first_values: (S, M) values at the first step. actions: (T, S), or (T, S, M) each model's own;
    a pass along a policy has none.
    values: (T + 1, S, M). gradient: (T, S, A) G, without the factor gamma^t; entries of
    actions that are not allowed are -inf. q: (T, S, A, M), -inf if not allowed.
    """

    first_values: Array
    actions: OptionalArray = None
    values: OptionalArray = None
    gradient: OptionalArray = None
    q: OptionalArray = None


class AscentResult(NamedTuple):
    """The result of one ascent: its last policy, returns and values."""

    policy: Any  # (T, S) actions, or what else was improved
    returns: Array  # (M,)
    value: float
    trace: list[float]  # the value of the init and after every sweep that improved it
    n_sweeps: int  # including the one that confirms a maximum
    stop_reason: Literal["local_optimum", "tolerance", "limit"]
    is_single_precision: bool = (
        False  # whether sweeps and trace are in 32-bit numbers; returns never are
    )


class ModelPairs(NamedTuple):
    """Disjoint pairs of models with a belief between the two on a grid.

    The grid has ``grid_radius`` steps of ``grid_step`` on each side of the prior's log-odds.
    """

    first: IndexArray
    second: IndexArray
    grid_radius: int = 24
    grid_step: float = 0.25

    @property
    def grid(self) -> Array:
        """The likelihood ratios (2 K,) exp(h g), g = -K..K-1; 1 alone if K is 0."""
        return np.exp(self.grid_step * np.arange(-self.grid_radius, max(self.grid_radius, 1)))

    def interpolate(self, mass_i: Array, mass_j: Array) -> tuple[IntArray, Array, Array]:
        """Return the grid point z below the masses of two models, and the weights of z and z + 1.

        Places 1..G are the grid's, whose mass is (c, 1); 0 is model j alone, G + 1 model i alone.
        """
        knots = np.concatenate([[0.0], self.grid])
        last_knot = len(knots) - 1
        is_above = mass_i >= mass_j * knots[last_knot]
        c = mass_i / np.where(is_above, 1.0, mass_j)
        z = np.minimum(np.searchsorted(knots, c, side="right") - 1, last_knot - 1)
        theta = (c - knots[z]) / (knots[z + 1] - knots[z])
        lower_weight = np.where(is_above, mass_j, mass_j * (1.0 - theta))
        upper_weight = np.where(is_above, mass_i - mass_j * knots[last_knot], mass_j * theta)
        return np.where(is_above, last_knot, z), lower_weight, upper_weight

    def initial_mass(self, problem: Problem, i: int, j: int) -> Array:
        """Return (S, G + 2) the mass of both models at the grid points of their initial states."""
        interpolation = self.interpolate(problem.get_initial(i), problem.get_initial(j))
        z, s = interpolation[0], np.arange(problem.n_states)
        mass = np.zeros((problem.n_states, len(self.grid) + 2))
        mass[s, z], mass[s, z + 1] = interpolation[1:]
        return mass


class VisitBounds(NamedTuple):
    """Bounds L and B (T, S, M) of P[model m, state s at t] over all policies."""

    lo: Array
    hi: Array
