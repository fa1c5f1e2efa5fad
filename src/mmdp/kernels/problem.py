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
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.clock import seconds
from mmdp.errors import InputError, Remedy
from mmdp.kernels.moves import Moves, TableMoves
from mmdp.kernels.rewards import Rewards, blocks, mapped, sizes
from mmdp.kernels.rewards import at as at

if TYPE_CHECKING:
    from mmdp.kernels.plan import Plan

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
Table = npt.NDArray[Any]  # a policy: (T, S) actions or (T, S, A) probabilities
Ids = npt.NDArray[np.int64]
Models = slice | Ids  # some of the models
Form = Literal["dense", "sparse", "events"]

LINE = 64  # bytes that a processor moves at a time

_ENDS = ((np.max, -math.inf), (np.min, math.inf))
EPS = float(np.finfo(float).eps)
SAME = 1e-12  # numbers that differ by less than this share are equal
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


def memory_here() -> int:
    """Bytes of memory that this process may use: of the machine, its container or its limit."""
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # this system does not say
        sizes = [2**40]
    with suppress(OSError, ValueError):
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(ImportError, OSError):
        import resource  # not on every system

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        sizes += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(sizes)


class Part(NamedTuple):
    """Part ``i`` of ``n`` of all ``models``; the others are in other processes.

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

    def __str__(self) -> str:
        return f"part {self.i} of {self.n}"


class Row(NamedTuple):
    """One row of the transitions: next states (k,) and their probabilities (k, M)."""

    after: IntArray
    p: Array


class Storage(Protocol):
    """How the transitions of all models are stored."""

    @property
    def steps(self) -> int:
        """Time steps that they are given for; 1 if they do not vary."""
        ...

    @property
    def entries(self) -> int:
        """Multiply-adds per model of one step."""
        ...

    @property
    def longest(self) -> int:
        """The most next states of a row."""
        ...

    def table(self) -> Stored:
        """The transitions as tables on a pattern, for work that goes entry by entry."""
        ...

    def mapped(self, change: Callable[[Array], Array]) -> Storage:
        """The storage of other models: ``change`` of the numbers (..., M) that p is linear in."""
        ...

    def arrays(self) -> list[npt.NDArray[Any]]:
        """All arrays that hold them."""
        ...

    def plan(self, problem: Problem, horizon: int) -> Plan:
        """The problem laid out in plain numpy, for a kernel that has no plan of its own."""
        ...

    @property
    def form(self) -> Form:
        """How they are held, in a word."""
        ...

    def ordered(self, s: Ids, a: Ids) -> tuple[Storage, Ids]:
        """With states and actions in the order of these ids, and the order of the entries."""
        ...

    def row(self, t: int, row: int) -> Row:
        """Where row s * A + a leads at time t."""
        ...

    def moves(self) -> Moves:
        """Next states of single episodes."""
        ...

    def content(self, n_states: int) -> Iterator[npt.NDArray[Any]]:
        """Arrays that only equal transitions have in common, however they are stored."""
        ...


class Stored(NamedTuple):
    """Tables: the values of all models side by side on one pattern (see the module's table)."""

    indptr: npt.NDArray[np.int64]
    indices: IntArray
    p: Array
    dense: bool

    @property
    def steps(self) -> int:
        return len(self.p)

    @property
    def entries(self) -> int:
        return len(self.indices)

    @property
    def longest(self) -> int:
        return int(np.diff(self.indptr).max(initial=1))

    def table(self) -> Stored:
        return self

    def mapped(self, change: Callable[[Array], Array]) -> Stored:
        return self._replace(p=change(self.p))

    def arrays(self) -> list[npt.NDArray[Any]]:
        return [self.indptr, self.indices, self.p]

    def plan(self, problem: Problem, horizon: int) -> Plan:
        return PLAIN[Stored](problem, horizon)

    @property
    def form(self) -> Form:
        return "dense" if self.dense else "sparse"

    def rows(self) -> Ids:
        """(nnz,) row s * A + a of every entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def row(self, t: int, row: int) -> Row:
        entries = slice(*self.indptr[row : row + 2])
        return Row(self.indices[entries], at(self.p, t)[entries])

    def moves(self) -> TableMoves:
        return TableMoves(self)

    def ordered(self, s: Ids, a: Ids) -> tuple[Stored, Ids]:
        S, A, row = len(s), len(a), self.rows()
        row = np.argsort(s)[row // A] * A + np.argsort(a)[row % A]
        order = np.argsort(row * S + np.argsort(s)[self.indices])
        lengths = np.bincount(row, minlength=S * A)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        indices = np.argsort(s)[self.indices][order].astype(np.int32)
        return Stored(indptr, indices, self.p.take(order, axis=1), self.dense), order

    def content(self, n_states: int) -> Iterator[npt.NDArray[Any]]:
        p, found = once(self.p), np.asarray(self.p.any(axis=(0, 2)))  # dense ones hold zeros
        yield np.array([len(p), p.shape[2]])
        yield (self.rows() * n_states + self.indices)[found]
        for p_t in p:
            for i in range(0, len(p_t), 4096):  # a copy of all would be large
                yield p_t[i : i + 4096][found[i : i + 4096]]


# how storages are laid out in plain numpy; filled by numpy/kernel.py
PLAIN: dict[type, Callable[[Problem, int], Plan]] = {}


class Problem(NamedTuple):
    """The arrays of an MMDP (see the module's table); all C-contiguous and read-only.

    If there is a ``part``, then p, r and terminal hold the models of that part alone; weights
    are those of all models.
    """

    storage: Storage
    r: Rewards
    allowed: npt.NDArray[np.bool_]
    initial: Array
    weights: Array
    discount: float
    terminal: Array
    drift: Array | None = None  # K; None: models never change
    part: Part | None = None

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        return self.storage.table().indptr

    @property
    def indices(self) -> IntArray:
        return self.storage.table().indices

    @property
    def p(self) -> Array:
        return self.storage.table().p

    @property
    def dense(self) -> bool:
        """Whether the pattern is full."""
        return self.storage.table().dense

    @property
    def n_models(self) -> int:
        """The number of models in all parts."""
        return len(self.weights)

    @property
    def n_parts(self) -> int:
        """Over how many processes the models are spread."""
        return 1 if self.part is None else self.part.n

    @property
    def most_here(self) -> int:
        """The most models that a process holds."""
        return -(-self.n_models // self.n_parts)

    @property
    def models_here(self) -> slice:
        """Which of the models p, r and terminal hold."""
        return slice(0, self.n_models) if self.part is None else self.part.models_here

    @property
    def weights_here(self) -> Array:
        """The weights of the models that p, r and terminal hold."""
        return self.weights[self.models_here]

    @property
    def n_states(self) -> int:
        return self.allowed.shape[1]

    @property
    def n_actions(self) -> int:
        return self.allowed.shape[2]

    def work(self, horizon: int) -> int:
        """Multiply-adds of one backward pass."""
        return self.storage.entries * self.n_models * horizon

    def seconds(self, horizon: int, passes: float = 1.0) -> float:
        """About how long these passes take, by size alone: see :func:`mmdp.clock.seconds`."""
        return seconds(self.work(horizon), horizon, passes)

    def stakes(self, horizon: float, times: float | None = None) -> float:
        """What is at stake, (max r - min r) sum_t gamma^t: tolerances are shares of it.

        ``times``: that sum, if it is known.

        Actions that are not allowed and models of weight 0 do not count.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
        >>> one.problem.stakes(2), one.problem.stakes(math.inf)
        (1.5, 2.0)
        """
        known = self.weights_here > 0
        counts = np.logical_or.reduce(self.allowed)[:, :, None] & known
        spans = ((blocks(self.r), counts), ([(slice(None), self.terminal[:, None])], known))
        here = []
        for parts, y in spans:
            found = [[end(x, initial=i, where=y[n]) for end, i in _ENDS] for n, x in parts]
            here += [
                end(ends) for (end, _), ends in zip(_ENDS, zip(*found, strict=True), strict=True)
            ]
        ends = self.everywhere(here)
        r, terminal = (float(max(ends[:, i].max() - ends[:, i + 1].min(), 0.0)) for i in (0, 2))
        times, last = self._felt(horizon, times)
        return times * r + last * terminal

    def _felt(self, horizon: float, times: float | None) -> tuple[float, float]:
        """sum_t gamma^t over the decisions, and gamma^T."""
        g, last = self.discount, 0.0 if horizon == math.inf else self.discount**horizon
        if times is None:
            times = horizon if g == 1 else (1 - last) / (1 - g)
        return times, last

    def magnitudes(self, horizon: float, times: float | None = None) -> Array:
        """(M,) the largest |return| of each model that rewards of its size could give.

        ``times``: sum_t gamma^t, if it is known. Models that change, or that other processes hold
        too, count as the largest of all.
        """
        times, last = self._felt(horizon, times)
        found: Array = times * sizes(self.r) + last * np.abs(self.terminal).max(axis=0)
        if self.drift is None and self.part is None:
            return found
        return np.full(self.n_models, self.everywhere([float(found.max())]).max())

    def roundings(self, horizon: float) -> Array:
        """(M,) the most by which floating-point error can have changed the return of a model."""
        row = self.storage.longest + (0 if self.drift is None else self.n_models)
        terms = (horizon + 1) * (row + 4) + self.n_models + self.n_states
        return 4 * EPS * terms * self.magnitudes(horizon)

    def check(self, horizon: int) -> None:
        """Refuse a horizon that is longer than what varies with time."""
        given = {"p": self.storage.steps, "r": len(self.r), "allowed": len(self.allowed)}
        for name, steps in given.items():
            if 1 < steps < horizon:
                raise InputError(f"{name} covers {steps} time steps, the horizon is {horizon}")

    def rows(self) -> npt.NDArray[np.int64]:
        """(nnz,) row s * A + a of every entry of the pattern."""
        return self.storage.table().rows()

    def prior_weights(self, horizon: int = 1) -> Array:
        """(1, 1, M) the initial model weights as b for WSU; (T, 1, M) if models change."""
        weights = [self.weights_here]
        for _ in range(horizon - 1 if self.drift is not None else 0):
            weights.append(self.moved(weights[-1]))
        return np.array(weights)[:, None]

    def ahead(self, v: Array) -> Array:
        """(..., M) sum_m' K[m, m'] v_m': what v is worth before the model changes."""
        return v if self.drift is None else v @ self.drift.T

    def moved(self, b: Array, steps: int = 1) -> Array:
        """(..., M) sum_m b_m K^steps[m, m']: b after the model has changed in each step."""
        return b if self.drift is None else b @ np.linalg.matrix_power(self.drift, steps)

    def turned(self, now: Any, draw: Callable[[Array], Any]) -> Any:
        """The models that hold after a step in models ``now``; ``draw`` takes their rows of K."""
        return now if self.drift is None else draw(self.drift[now])

    def next_model(self, m: int, rng: np.random.Generator) -> int:
        """The model that holds after a step in model m."""
        return int(self.turned(m, lambda K: rng.choice(len(K), p=K / K.sum())))

    def becoming(self, models: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The models that may hold at some time if one of these holds at the start; in order."""
        found = np.unique(models)
        while self.drift is not None:
            before, turned = found, np.flatnonzero(self.drift[found].any(axis=0))
            found = np.union1d(before, turned)
            if len(found) == len(before):
                break
        return found

    def paid(self, t: int, *place: Any) -> Any:
        """r at time t of (s, a) or (s, a, m), numbers or arrays of them: no table is made of r."""
        return self.r[(t if len(self.r) > 1 else 0, *place)]

    @property
    def copies_by_start(self) -> int:
        """Copies of b, each for a model at the start, if that need not be the model now."""
        return 1 if self.drift is None else self.n_models

    def not_still(self, why: str) -> str | None:
        """``why`` something needs models that never change, as a reason; None if these do not."""
        return None if self.drift is None else f"{why}, and these models change"

    @property
    def same_start(self) -> bool:
        """Whether all models begin alike, so that the first state says nothing about them."""
        return self.initial.shape[1] == 1

    def begins(self, m: int) -> Array:
        """(S,) mu_m, for a model that is here."""
        return self.initial[:, 0 if self.same_start else m]

    def start(self) -> Array:
        """(S, M): b at the first step, mu_m(s) lambda_m."""
        return self.initial * self.weights_here

    def seen_first(self, beliefs: Array, states: Any) -> Array:
        """(..., M) beliefs after the first states (...) are seen; as before if none explains it."""
        seen = beliefs * self.initial[states]
        total = seen.sum(axis=-1, keepdims=True)
        return np.where(total > 0, seen / np.where(total > 0, total, 1.0), beliefs)

    def returns(self, first: Array) -> Array:
        """(..., M) return of every model from the values (..., S, M) at the first step."""
        same = self.same_start
        here = self.initial[:, 0] @ first if same else (self.initial * first).sum(axis=-2)
        return self.gathered(here)

    # ------------------------------------------------------------ all parts together
    def not_whole(self, what: str) -> str | None:
        """Why something that needs all models in one process cannot be done; None if it can."""
        if self.part is None:
            return None
        return f"{what} needs all models in one process, and this is {self.part}"

    def joined_by(self, backend: str) -> str:
        """The backend that joins the models of all processes: refuse one that cannot.

        ``"auto"`` is jax then. If the models are whole, every backend stays as it is.
        """
        if self.part is None:
            return backend
        if backend not in ("auto", "jax"):
            raise InputError(
                f"the model is {self.part}, which backend {backend!r} cannot join with the others",
                [Remedy("backend", "jax", do="use")],
            )
        from mmdp.kernels.exchange import check_parts

        check_parts(self)
        return "jax"

    def gathered(self, here: Array) -> Array:
        """(M,) numbers of the models of all parts, from those of the models here."""
        if self.part is None:
            return here
        found = self.everywhere(np.pad(here, (0, self.most_here - len(here))))
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

    def anywhere(self, *facts: bool) -> Sequence[bool]:
        """Whether each fact is true in one of the parts."""
        if self.part is None:
            return facts
        return [any(column) for column in self.everywhere(facts).T]

    def mean(self, values: Array) -> Array:
        """sum_m lambda_m values[..., m] over the models of all parts."""
        total: Array = self.everywhere(values @ self.weights_here).sum(axis=0)
        return total

    def average(self, p: Array) -> Array:
        """(..., 1) the mean of probabilities p (..., M), which sum to 1 again."""
        mean: Array = self.mean(p)[..., None] / self.weights.sum()
        return mean

    def averaged(self) -> Problem:
        """One model: the mean of all by weight."""
        return self._replace(
            storage=self.storage.mapped(self.average),
            r=mapped(self.r, lambda r: self.mean(r)[..., None]),
            initial=self.initial if self.same_start else self.average(self.initial),
            terminal=self.mean(self.terminal)[:, None], weights=np.ones(1), drift=None, part=None,
        )  # fmt: skip

    def deciding(self) -> npt.NDArray[np.bool_]:
        """(T or 1, S) whether actions that are allowed differ in a reward or a row, in some model.

        Rows that expect the same of a random value, in a random mean of the models, are equal up
        to rounding, whatever the storage.
        """
        rng = np.random.default_rng(0)
        weights, v = rng.uniform(1, 2, self.n_models), rng.random((self.n_states, 1))
        mean = self._replace(weights=weights / weights.sum()).averaged()
        steps = max(mean.storage.steps, len(mean.r), len(mean.allowed))
        plan = mean.storage.plan(mean, steps)
        found = np.zeros((steps, self.n_states), dtype=bool)
        for t in range(steps):
            allowed = at(mean.allowed, t)
            for x in (at(mean.r, t)[..., 0], plan.expect(t, v)[..., 0]):
                first = np.take_along_axis(x, allowed.argmax(axis=1)[:, None], axis=1)
                same = np.abs(x - first) <= SAME * np.maximum(np.abs(x), np.abs(first))
                found[t] |= np.any(allowed & ~same, axis=1)
        return found

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

    def some(self, models: Models, storage: Storage | None = None) -> Problem:
        """These models alone, in arrays of their own, which do not change; weights as they are.

        They are whole in every process. ``storage``: theirs, if it is known.
        """
        ids = np.arange(self.n_models)[models]

        def own(y: Array) -> Array:
            return picked(y, models) if self.part is None else self.chosen(y, ids)

        return self._replace(
            storage=self.storage.mapped(own) if storage is None else storage,
            r=mapped(self.r, own), terminal=own(self.terminal),
            initial=self.initial if self.same_start else own(self.initial),
            weights=self.weights[models], drift=None, part=None,
        )  # fmt: skip

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
        return self._replace(allowed=frozen(allowed))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view: numba compiles once more for every mix of read-only and writable."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def picked(array: Array, models: Models) -> Array:
    """array[..., models], in an array of its own that begins at a cache line."""
    some = array[..., models]
    own = aligned(*some.shape)
    own[...] = some
    return own


def once(values: Array) -> Array:
    """Values by time, kept once if they are the same at all times."""
    return values[:1] if all(np.array_equal(x, values[0]) for x in values[1:]) else values


def windows(horizon: int, each: int, room: float) -> list[slice]:
    """Time steps in windows: one if an array of ``each`` bytes a step fits, else about sqrt(T).

    b is then kept where windows begin and in one of them at a time, and is computed twice.

    >>> windows(10, 1, 100), windows(10, 1, 5)
    ([slice(0, 10, None)], [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)])
    """
    steps = horizon if horizon * each <= room else math.isqrt(horizon - 1) + 1
    return [slice(t, min(t + steps, horizon)) for t in range(0, horizon, steps)]


def row_entries(indptr: npt.NDArray[Any], rows: npt.NDArray[Any]) -> tuple[Ids, Ids]:
    """The entries of these rows of a pattern, and the place in ``rows`` of each."""
    counts = np.diff(indptr)[rows]
    of = np.repeat(np.arange(len(rows)), counts)
    first = indptr[rows] - np.cumsum(counts) + counts
    return first[of] + np.arange(len(of)), of


Choice = Literal["weighted", "own", "given"]
Sweeps = Literal["paper", "two-way"]
Watch = Callable[[Table, float], object]  # an improved policy and its value
# a row of actions (S,) that maximises sum_s G(s, row(s)) over the rows that are open, from
# G (S, A), b (S, M) and the incumbent row or None; ties as in numpy.passes.choose, which is the
# maximiser if every row is open
Pick = Callable[[Array, Array, "npt.NDArray[Any] | None"], IntArray]


class Job(NamedTuple):
    """How to ascend from each start: see :meth:`mmdp.kernels.numpy.passes.Passes.ascend`."""

    tol: float
    max_sweeps: int
    two_way: bool
    watch: Watch | None

    @property
    def limits(self) -> tuple[float, int, Watch | None]:
        return self.tol, self.max_sweeps, self.watch


Kept = Any  # an array if it was asked for, else None


class Backward(NamedTuple):
    """What a backward pass found; parts that ``keep`` does not name are None.

    Actions come unasked if the pass chose them for all models together.

    first: (S, M) values at the first step. actions: (T, S), or (T, S, M) each model's own.
    values: (T + 1, S, M). gradient: (T, S, A) G, without the factor gamma^t; entries of
    actions that are not allowed are -inf. q: (T, S, A, M), -inf if not allowed.
    """

    first: Array
    actions: Kept
    values: Kept
    gradient: Kept
    q: Kept


class Ascent(NamedTuple):
    """The end of one ascent: the last policy that was better than the one before."""

    policy: Any  # (T, S) actions, or what else was improved
    returns: Array  # (M,)
    value: float
    trace: list[float]  # the value of the start and after every sweep that improved it
    sweeps: int  # including the one that confirms a maximum
    end: Literal["maximum", "tolerance", "limit"]
    short: bool = False  # whether sweeps and trace are in 32-bit numbers; returns never are


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

    def between(self, to_i: Array, to_j: Array) -> tuple[IntArray, Array, Array]:
        """Where masses of the two models lie: a place z and the shares of z and z + 1.

        Places 1..G are the grid's, whose mass is (c, 1); 0 is model j alone, G + 1 model i alone.
        """
        knots = np.concatenate([[0.0], self.grid])
        last = len(knots) - 1
        beyond = to_i >= to_j * knots[last]
        c = to_i / np.where(beyond, 1.0, to_j)
        z = np.minimum(np.searchsorted(knots, c, side="right") - 1, last - 1)
        theta = (c - knots[z]) / (knots[z + 1] - knots[z])
        below = np.where(beyond, to_j, to_j * (1.0 - theta))
        above = np.where(beyond, to_i - to_j * knots[last], to_j * theta)
        return np.where(beyond, last, z), below, above

    def start(self, problem: Problem, i: int, j: int) -> Array:
        """(S, G + 2) the masses of both models at the places of their first states."""
        places = self.between(problem.begins(i), problem.begins(j))
        z, s = places[0], np.arange(problem.n_states)
        mass = np.zeros((problem.n_states, len(self.grid) + 2))
        mass[s, z], mass[s, z + 1] = places[1:]
        return mass


class Reach(NamedTuple):
    """L and B (T, S, M): least and largest P[model m, state s at t] over all policies."""

    lo: Array
    hi: Array
