"""Models without a last decision: exact values by linear algebra, models first.

Without a discount (gamma = 1) episodes must end by themselves: see :mod:`mmdp.kernels.ending`.

Symbols besides those of :mod:`mmdp.kernels.problem`, for a policy pi that is constant over time:

=========  ======================================================  ==================
P          p_m(s' | s, a)                                          (M, S, A, S')
F          (I - gamma P_m^pi)^-1                                   (M, S, S)
v          F_m r_m^pi, the values                                  (M, S)
d          mu F_m, the discounted visits                           (M, S)
=========  ======================================================  ==================

``Endless.of(problem)`` has full matrices (M, S, A, S) if these fit. Values are iterated if there
are many states.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from mmdp.clock import Stop
from mmdp.errors import InputError, Remedy
from mmdp.kernels.ending import going_on
from mmdp.kernels.events import Events
from mmdp.kernels.plan import Plan
from mmdp.kernels.problem import Array, IntArray, Problem, Table, row_entries

MATRICES = 2**28  # bytes that P may take; beyond that values are iterated
ACCURATE = 1e-14  # last change of iterated values, relative to the rewards
EPS = float(np.finfo(float).eps)
REST = 1e-4  # weight of what lies beyond the horizon at which planning by time ends
LONGEST = 1000  # decisions of that horizon at most
MOST_BYTES = 2**29  # bytes that values by time, state and model may take there
LOOK = 64  # iterations between two looks at the clock
HELPS, CLOSER = 0.5, 1e-6  # what a correction must make of a change at most, and may
FEW = 256  # states up to which values are found by factorising
BLOCK = 2**28  # multiply-adds of factorisations between two looks
FASTER = 30  # times that a multiply-add is faster in a factorisation than in an iteration
PATIENCE = 100_000  # iterations until values without a discount are given up


def check_endless(problem: Problem, varies_over: int | None, states: Sequence[str] = ()) -> None:
    """Refuse models whose values without a last decision do not exist."""
    if varies_over is not None:
        raise InputError(
            f"the model varies over {varies_over} time steps, so it has no infinite horizon",
            [Remedy("horizon", varies_over), "give rates that do not vary"],
        )
    if reason := problem.not_still("an infinite horizon is for models that stay as they are"):
        raise InputError(reason, [Remedy("horizon", 50, do="give a number, for example")])
    if problem.discount == 1:
        known(problem, states)


def planning_horizon(problem: Problem) -> int:
    """The decisions after which little is left, as far as they fit into memory."""
    x = problem
    wanted = decisions(x, REST)[0]
    fitting = MOST_BYTES // (8 * x.n_states * x.n_models)
    return max(1, min(wanted, LONGEST, fitting))


def decisions(problem: Problem, rest: float) -> tuple[int, float]:
    """How many decisions leave at most a share ``rest`` of those that count; how many are left.

    An episode of N decisions at most, on average, goes on for e N with a chance of 1/e at most.
    """
    g = problem.discount
    if g < 1:
        count = 1 if g == 0 else math.ceil(math.log(rest) / math.log(g))
        return count, g**count / (1 - g)
    lasts, rounds = Endless.of(problem).lasts, math.ceil(-math.log(rest))
    return rounds * math.ceil(math.e * lasts), math.exp(-rounds) * lasts


class Own(NamedTuple):
    """Each model's own optimum: actions (M, S) and values (M, S).

    ``above`` (M,): it is proven that no policy has values higher than these by more than that.
    If it is not complete, the time was up before, and other actions may be better.
    """

    actions: IntArray
    values: Array
    above: Array
    is_complete: bool


class Endless:
    """Values under policies that are the same at all times.

    A policy is (S,) actions, (M, S) actions of each model, or (S, A) probabilities.
    ``check_time`` is called every so often and may raise :class:`Stop`.
    """

    def __init__(self, problem: Problem, check_time: Callable[[], object] = lambda: None) -> None:
        self.problem, self.check_time = problem, check_time
        self.kept: dict[str, tuple[Any, ...]] = {}  # of the last policy
        self.retained: dict[str, tuple[Any, ...]] = {}
        self.r: Array = np.moveaxis(problem.r[0], 2, 0)  # (M, S, A)
        self.live: Array = np.ones((1, 1))  # (M, S) 0 where nothing follows
        if problem.discount == 1:
            self.known = known(problem)
            self.live = self.known.live
            self.r = self.r * self.live[:, :, None]
            self.problem = problem._replace(r=np.moveaxis(self.r, 0, 2)[None])

    @staticmethod
    def of(problem: Problem, check_time: Callable[[], object] = lambda: None) -> Endless:
        x = problem
        size = 8 * x.n_models * x.n_states**2 * x.n_actions
        many = Stepped if isinstance(x.storage, Events) and x.discount < 1 else Iterated
        return (Factorised if size <= MATRICES else many)(x, check_time)

    def timed(self, check_time: Callable[[], object]) -> Endless:
        """The same with another clock."""
        other = copy.copy(self)
        other.check_time = check_time
        return other

    def retain(self) -> None:
        """Keep what is known of the last policy until the next call."""
        self.retained.update(self.kept)

    def q(self, v: Array) -> Array:
        """(M, S, A) q = r + gamma P v."""
        raise NotImplementedError

    def solve(self, policy: Table, right: Array, *, transposed: bool = False) -> Array:
        """(M, S) x with (I - gamma P^pi) x = right, or x (I - gamma P^pi) = right."""
        raise NotImplementedError

    def values(self, policy: Table) -> Array:
        """(M, S) v."""
        right = (self._shares(policy) * self.r).sum(axis=2)
        return self._once("v", policy, lambda: self.solve(policy, right))

    def visits(self, policy: Table) -> Array:
        """(M, S) d."""
        start = np.broadcast_to(self.problem.initial.T, self.r.shape[:2])
        return self._once("d", policy, lambda: self.solve(policy, start, transposed=True))

    def _once(self, name: str, policy: Table, find: Callable[[], Array]) -> Array:
        """What was found for this policy, if it is the last that was asked about, or retained."""
        key = (policy.shape, policy.dtype.str, policy.tobytes())
        if self.retained.get(name, (None,))[0] == key:
            self.kept[name] = self.retained[name]
        if self.kept.get(name, (None,))[0] != key:
            self.kept[name] = key, find()
        found: Array = self.kept[name][1]
        return found

    def returns(self, policy: Table) -> Array:
        """(M,) the return of every model."""
        return self.problem.returns(self.values(policy).T)

    def own(self, allowed: npt.NDArray[np.bool_] | None = None, start: Own | None = None) -> Own:
        """Each model's own optimum over the allowed actions (S, A), by policy iteration.

        For any v at all the optimum is at most v + n max(T v - v), T v = max_a q, with n the most
        decisions that count. If the time is up, that is proven for the last v.
        """
        open_ = self.problem.allowed[0] if allowed is None else allowed
        m, s = np.indices(self.r.shape[:2])
        r = np.where(open_, self.r, -np.inf)
        actions = r.argmax(axis=2)
        if start is not None:
            actions = np.where(open_[s, start.actions], start.actions, actions)
        beyond, total = self.lasts, np.full(len(r), -np.inf)
        v, late = np.broadcast_to(beyond * r.max(axis=(1, 2))[:, None], r.shape[:2]), False
        while True:
            try:
                self.check_time()
                v = self.values(actions)
            except Stop:
                late = True
            q = np.where(open_, self.q(v), -np.inf)
            best, tie = q.max(axis=2), self._error() * np.abs(v).max(axis=1)
            # with rounding, following ties or values that do not rise could go in circles
            rises = v.sum(axis=1) > total
            better = (best > q[m, s, actions] + tie[:, None]) & rises[:, None]
            if late or not better.any():
                above = beyond * (np.maximum(best - v, 0.0).max(axis=1) + tie)
                return Own(actions.astype(np.int32), best, above, not late)
            actions, total = np.where(better, q.argmax(axis=2), actions), v.sum(axis=1)

    def _error(self) -> float:
        """The relative rounding error of q."""
        return EPS * (self.problem.storage.longest + 4)

    def roundings(self) -> Array:
        """(M,) the most by which floating-point error can have changed the return of a model."""
        x = self.problem
        terms = (x.n_states + x.n_models) * self.lasts
        return 16 * EPS * terms * x.magnitudes(math.inf, self.lasts)

    def stakes(self) -> float:
        """What is at stake: see :meth:`Problem.stakes`."""
        return self.problem.stakes(math.inf, self.lasts)

    @cached_property
    def lasts(self) -> float:
        """The most decisions that count, sum_t gamma^t; those of the longest policy if gamma is 1.

        For any u with u >= 1 - e + P u for every action, u / (1 - e) is such a number.
        """
        x = self.problem
        if x.discount < 1:
            return 1 / (1 - x.discount)
        if self.known.lasts is None:
            counting = self.timed(lambda: None)  # nothing is known without it
            counting.r, counting.lasts = np.ones_like(self.r), 0.0
            counting.kept, counting.retained = {}, {}
            u = counting.own().values
            q = np.where(x.allowed[0], counting.q(u), -np.inf)
            e = float(np.maximum(q.max(axis=2) - u, 0.0).max())
            self.known.lasts = float(u.max()) / (1 - e) if e < 1 else math.inf
        return self.known.lasts

    def _shares(self, policy: Table) -> Array:
        """(M or 1, S, A) probabilities of the actions."""
        if policy.ndim == 2 and policy.dtype.kind == "f":
            return np.asarray(policy[None], dtype=np.float64)
        shares: Array = np.eye(self.problem.n_actions)[np.atleast_2d(policy)]
        return shares


class Iterated(Endless):
    """Values by iteration on the entries, all models as one system, for many states."""

    long = False  # whether iterating took too long before

    @cached_property
    def plan(self) -> Plan:
        from mmdp.kernels import get

        return get("auto", self.problem, passes=LONGEST).plan(self.problem, 1)

    def q(self, v: Array) -> Array:
        after = np.moveaxis(self.plan.expect(0, np.ascontiguousarray(v.T)), 2, 0)
        return self.r + self.problem.discount * self.live[:, :, None] * after

    def solve(self, policy: Table, right: Array, *, transposed: bool = False) -> Array:
        """x = right + gamma P x, again and again until nothing changes beyond rounding.

        In between, x moves by what BiCGSTAB finds for the last change, if that makes it smaller.
        """
        step, rounds = self._step(policy, transposed)
        rounds = 0 if self.long else rounds
        x, largest, before = np.array(right), float(np.abs(right).max()), math.inf
        n, safe = 0, x
        while True:
            n += 1
            if n % LOOK == 0:
                self.check_time()
            if n > rounds:
                self.long = True
                return self._factorised(policy, right, transposed)
            if n > PATIENCE and self.problem.discount == 1:
                raise _too_long()
            after = right + step(x)
            change = float(np.abs(after - x).max())
            if change <= ACCURATE * largest or change <= 4 * EPS * float(np.abs(after).max()):
                return after
            if change < HELPS * before:
                before, safe, x = change, after, x + self._correction(step, after - x)
            else:
                x = after if change < before else safe

    def _correction(self, step: Callable[[Array], Array], change: Array) -> Array:
        """About d = change + gamma P d, by BiCGSTAB."""
        from scipy.sparse.linalg import LinearOperator, bicgstab

        def moved(d: Array) -> Array:
            return d - step(d.reshape(change.shape)).ravel()

        system = LinearOperator((change.size, change.size), moved, dtype=np.float64)
        d, _ = bicgstab(
            system, change.ravel(), rtol=CLOSER, maxiter=LOOK, callback=lambda _: self.check_time()
        )
        return d.reshape(change.shape) if np.isfinite(d).all() else change

    def _step(self, policy: Table, transposed: bool) -> tuple[Callable[[Array], Array], float]:
        """x (M, S) to gamma P^pi x, or to x gamma P^pi; how many cost as much as factorising."""
        matrix, S = self._discounted(policy), self.problem.n_states
        rounds = len(self.r) * S**3 / (FASTER * max(matrix.nnz, 1))
        matrix = matrix.T.tocsr() if transposed else matrix
        return lambda x: np.asarray(matrix @ x.ravel()).reshape(x.shape), rounds

    def _factorised(self, policy: Table, right: Array, transposed: bool) -> Array:
        """Episodes are long: one model after the other, by its matrix."""
        whole, S = self._discounted(policy), self.problem.n_states
        found = np.empty(self.r.shape[:2])
        for m, b in enumerate(right):
            self.check_time()
            A = np.eye(S) - whole[m * S : (m + 1) * S, m * S : (m + 1) * S].toarray()
            found[m] = _solved(A.T if transposed else A, b[:, None])[:, 0]
        return found

    def _discounted(self, policy: Table) -> Any:
        """(M S, M S) gamma P^pi, one block per model."""
        from scipy.sparse import csr_array

        x, (M, S) = self.problem, self.r.shape[:2]
        if policy.ndim == 2 and policy.dtype.kind != "f":
            m, s = np.indices((M, S)).reshape(2, -1)
            k, of = row_entries(x.indptr, s * x.n_actions + policy.ravel())
            m, s, to, data = m[of], s[of], x.indices[k], x.p[0, k, m[of]]
        else:
            shares = self._shares(policy)[0]
            row = np.flatnonzero(shares)
            k, of = row_entries(x.indptr, row)
            cells, at = np.unique(row[of] // x.n_actions * S + x.indices[k], return_inverse=True)
            mixed = csr_array((shares.ravel()[row[of]], (at, k)), shape=(len(cells), len(x.p[0])))
            data = (mixed @ x.p[0]).T.ravel()  # before there are entries of each model
            m, (s, to) = np.repeat(np.arange(M), len(cells)), np.tile(np.divmod(cells, S), M)
        data *= x.discount * np.broadcast_to(self.live, (M, S))[m, s]
        return csr_array((data, (m * S + s, m * S + to)), shape=(M * S, M * S))


class Factorised(Iterated):
    """The same with full matrices, which are factorised if there are few states."""

    def __init__(self, problem: Problem, check_time: Callable[[], object] = lambda: None) -> None:
        super().__init__(problem, check_time)
        x = self.problem
        P = np.zeros((x.n_models, len(x.indptr) - 1, x.n_states))
        P[:, x.rows(), x.indices] = x.p[0].T
        self.P = P.reshape(x.n_models, x.n_states, x.n_actions, x.n_states)
        self.P *= self.live[:, :, None, None]

    def q(self, v: Array) -> Array:
        return self.r + self.problem.discount * np.matmul(self.P, v[:, None, :, None])[..., 0]

    def solve(self, policy: Table, right: Array, *, transposed: bool = False) -> Array:
        if self.problem.n_states > FEW:
            return super().solve(policy, right, transposed=transposed)
        A = self._matrix(policy)
        A = np.swapaxes(A, 1, 2) if transposed else A
        return self._by_blocks(lambda m: _solved(A[m], right[m][:, :, None])[:, :, 0])

    def inverse(self, policy: IntArray) -> Array:
        """(M, S, S) F."""
        A = self._matrix(policy)
        return self._by_blocks(lambda m: _solved(A[m], np.eye(A.shape[1])))

    def _by_blocks(self, find: Callable[[slice], npt.NDArray[Any]]) -> Array:
        """What is found for the models of one block after the other, with looks at the clock."""
        M, S = self.r.shape[:2]
        size, found = max(1, BLOCK // S**3), []
        for first in range(0, M, size):
            self.check_time()
            found.append(find(slice(first, first + size)))
        return np.concatenate(found, dtype=np.float64)

    def _matrix(self, policy: Table) -> Array:
        """(M, S, S) I - gamma P^pi."""
        if policy.dtype.kind == "f":
            P = np.einsum("sa,msaz->msz", policy, self.P)
        else:
            m, s = np.indices(self.r.shape[:2])
            P = self.P[m, s, policy]
        matrix: Array = np.eye(P.shape[1]) - self.problem.discount * P
        return matrix


class Stepped(Iterated):
    """Values by iteration on a plan, without entries; transposed steps need one policy for all."""

    def _step(self, policy: Table, transposed: bool) -> tuple[Callable[[Array], Array], float]:
        g, shares, live = self.problem.discount, self._shares(policy), self.live
        if transposed:
            return lambda x: g * self.plan.push(0, (live * x).T, policy).T, math.inf
        return (
            lambda x: g * live * (shares * np.moveaxis(self.plan.expect(0, x.T), 2, 0)).sum(axis=2),
            math.inf,
        )


def _solved(A: Array, right: Array) -> Array:
    """x (..., S, n) with A x = right; InputError if A is singular."""
    try:
        return np.asarray(np.linalg.solve(A, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise _too_long() from None


def _too_long() -> InputError:
    return InputError(
        "at discount 1 episodes must end, and in some model a policy (almost) never ends them: "
        "what they return cannot be added up",
        ["set a discount such as 0.9999", Remedy("horizon", 50, do="give a number, for example")],
    )


class Known:
    """What is known of a problem without a discount: ``live`` (M, S) as 0 or 1, and ``lasts``."""

    def __init__(self, live: Array) -> None:
        self.live, self.lasts = live, cast("float | None", None)


_KNOWN: dict[tuple[Any, ...], tuple[list[weakref.ref[Any]], Known]] = {}  # of the last problem


def known(problem: Problem, states: Sequence[str] = ()) -> Known:
    """Found once as long as the same problem is asked about; InputError if episodes go on."""
    x, arrays = problem, problem.storage.arrays()
    masks = (np.asarray(x.r) != 0, x.allowed, x.initial > 0)
    key = tuple((y.shape, np.packbits(y).tobytes()) for y in masks)
    held, found = _KNOWN.get(key, ([], None))
    if found is None or any(ref() is not y for ref, y in zip(held, arrays, strict=True)):
        found = Known(going_on(x, states).T.astype(np.float64))
        _KNOWN.clear()
        _KNOWN[key] = [weakref.ref(y) for y in arrays], found
    return found
